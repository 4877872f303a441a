//! A service in Python under the clients of this project: the one in Rust, and the independent one of tests/interop.
//! Never looks into the service: what callers get is what counts.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use sealwire::call::Attachment;
use sealwire::errors::ErrorKind;
use sealwire::{Client, Credentials, RpcError};
use sealwire_testkit::python::python;
use sealwire_testkit::{SOON, root, within};
use serde_json::{Value, json};

use crate::package;
use crate::stage::{Serves, Stage};

/// A service process, which drains when it is dropped.
struct Process(Child);

impl Process {
    fn start(stage: &Stage) -> Option<Self> {
        let mut command = package::command(&["service_for_others.py"])?;
        command.env("SEALWIRE_STAGE", stage.folder()).stderr(Stdio::inherit());
        Some(Self(command.spawn().unwrap()))
    }

    /// SIGTERM, and the exit status.
    fn stop(mut self) -> Option<i32> {
        self.terminate();
        let began = Instant::now();
        while began.elapsed() < 2 * SOON {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        None
    }

    fn terminate(&self) {
        let killed = std::process::Command::new("kill").arg(self.0.id().to_string()).status().unwrap();
        assert!(killed.success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn client(stage: &Stage) -> Client {
    let credentials = Credentials::load(stage.folder().join("ann.creds.json")).unwrap();
    let client = within(SOON, Client::connect(credentials)).await.unwrap();
    within(2 * SOON, client.wait_for("site", SOON)).await.unwrap();
    client
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_in_python_serves_the_client_in_rust() {
    let stage = Stage::open(Serves::Nothing).await;
    let Some(process) = Process::start(&stage) else { return };
    let client = client(&stage).await;
    assert_eq!(within(SOON, client.call::<f64>("site", "site/add", (2, 3))).await.unwrap(), 5.0);
    let who: Value = within(SOON, client.call("site", "site/who", ())).await.unwrap();
    assert_eq!(who, json!(["ann", "ann", ["worker"]]));
    let denied = within(SOON, client.call::<Value>("site", "secret/open", ())).await.unwrap_err();
    assert_eq!(denied.remote().and_then(RpcError::profile_code), Some(-32002));
    let wrong = within(SOON, client.call::<Value>("site", "site/add", json!({ "a": 1, "b": "2" }))).await.unwrap_err();
    assert_eq!(wrong.to_string(), "Invalid params: parameter `b` must be a number, and is a string (-32602)");

    let counted: Vec<u64> =
        within(SOON, client.stream::<u64>("site", "site/count", (500,)).map(Result::unwrap).collect()).await;
    assert_eq!(counted, (1..=500).collect::<Vec<_>>());
    let answered = client.request("site").on_ask(|asked| async move { Ok::<_, RpcError>(asked.method) });
    let asked = answered.stream::<Value>("site/ask", ("really?",)).finish::<Value>();
    assert_eq!(within(SOON, asked).await.unwrap(), "user/confirm");
    let document = Attachment::bytes("text/plain", vec![b'x'; 200_000]);
    let stored = client.request("site").attach(&document).call::<u64>("site/store", (&document,));
    assert_eq!(within(SOON, stored).await.unwrap(), 200_000);

    // A call under way is finished after SIGTERM.
    let mut slow = client.request("site").deadline(SOON).stream::<String>("site/slowly", (1_500,));
    assert_eq!(within(SOON, slow.next()).await.unwrap().unwrap(), "begun");
    let code = tokio::task::spawn_blocking(|| process.stop());
    assert_eq!(within(SOON, slow.next()).await.unwrap().unwrap(), "finished");
    assert!(within(SOON, slow.next()).await.is_none());
    assert_eq!(within(3 * SOON, code).await.unwrap(), Some(0));
    let gone = within(SOON, client.call::<Value>("site", "site/who", ())).await.unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NoResponders);
}

/// A handler that holds up its loop for nine seconds holds up no stream of another caller, whose signs of life the library sends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_handler_delays_handlers_only() {
    let stage = Stage::open(Serves::Nothing).await;
    let Some(_process) = Process::start(&stage) else { return };
    let client = client(&stage).await;
    let mut ticks = Box::pin(client.subscribe::<Value>("site", "site/ticks", ()));
    within(SOON, ticks.next()).await.unwrap().unwrap();
    let busy = tokio::spawn({
        let client = client.clone();
        async move { client.call::<u64>("site", "site/busy", (9,)).await }
    });
    tokio::time::sleep(Duration::from_millis(700)).await;
    // The library itself refuses.
    let denied = within(SOON, client.call::<Value>("site", "secret/open", ())).await.unwrap_err();
    assert_eq!(denied.remote().and_then(RpcError::profile_code), Some(-32002));
    assert!(!busy.is_finished(), "a refusal waited for Python");
    assert_eq!(within(SOON, busy).await.unwrap().unwrap(), 9);
    within(SOON, ticks.next()).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_in_python_serves_the_independent_client() {
    let stage = Stage::open(Serves::Nothing).await;
    let Some(_process) = Process::start(&stage) else { return };
    drop(client(&stage).await);
    let credentials = stage.folder().join("ann.creds.json");
    let run = |arguments: &'static [&'static str]| {
        let mut command = tokio::process::Command::new(python().unwrap());
        command.arg("-B").arg(root().join("tests/interop/client.py")).arg("--creds").arg(&credentials).args(arguments);
        async move {
            let output = within(SOON, command.output()).await.unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let said: Value = serde_json::from_str(text.lines().last().unwrap_or_default())
                .unwrap_or_else(|_| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)));
            (output.status.code(), said)
        }
    };
    let (code, said) = run(&["call", "site", "site/add", "[1, 2]"]).await;
    assert_eq!((code, said["result"].as_f64()), (Some(0), Some(3.0)), "{said}");
    let (code, said) = run(&["call", "site", "secret/open", "[]"]).await;
    assert_eq!((code, &said["code"]), (Some(10), &json!(-32002)), "{said}");
    let (code, said) = run(&["call", "site", "rpc.discover"]).await;
    assert_eq!(code, Some(0), "{said}");
    let methods = said["result"]["methods"].as_array().unwrap();
    let add = methods.iter().find(|method| method["name"] == "site/add").unwrap();
    assert_eq!(add["description"], "Adds two numbers.");
    assert_eq!(add["x-params"]["properties"]["a"]["type"], "number");
}
