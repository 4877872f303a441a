//! HTTP/2 at the gateway: unchanged clients, and messages that none would send. The gateway's own tests cover connections.

use std::time::{Duration, Instant};

use sealwire_testkit::python::python;
use sealwire_testkit::within;
use serde_json::{Value, json};
use tokio::process::Command;

use super::wire::call;
use super::{FAST, Gateway, certificate, demo};
use crate::backends::stage::LONG;

/// docs/gateway/http.md, "HTTP/2".
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http2_is_spoken_over_tls_within_the_same_bounds() {
    let Some(python) = python() else { return };
    let stage = demo().await;
    certificate(&stage.shell, "gateway");
    let tls = "tls_cert = \"gateway.pem\"\ntls_key = \"gateway.key\"\n";
    let gateway = Gateway::start(&stage.shell, &format!("{tls}{FAST}"), "").await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/gateway_http/http2.py");
    let mut command = Command::new(python);
    command.arg(script).arg(gateway.at.port().to_string()).arg(stage.shell.path("gateway.pem")).kill_on_drop(true);
    let output = within(2 * LONG, command.output()).await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["added"], json!(["HTTP/2", 200, 5]));
    assert_eq!(found["told"], json!(["HTTP/2", 204, ""]));
    assert_eq!(found["batch"], json!([0, 2, 4]));
    assert_eq!(found["large"], 5);
    assert_eq!(found["head"], json!([200, ""]));
    assert_eq!(found["tool"], json!(["HTTP/2", "5"]));
    assert_eq!(found["events"], "[DONE]");
    assert_eq!(found["many"], true);
    assert_eq!(found["late"], json!([404, false]));
    assert_eq!(
        found["asked"],
        json!({
            "as it should be": 200,
            "with its length": 200,
            "a host that is the same": 200,
            "a host alone": 200,
            "a host that differs": 400,
            "two hosts": 400,
            "another authority": 403,
            "no authority": 400,
            "user information": 403,
            "another page": 403,
            "two origins": 400,
            "two types": 400,
            "another type": 415,
            "a proxy": 403,
            "a shorter length": "reset",
            "a longer length": "reset",
            "two lengths": 400,
            "chunks": "reset",
            "a connection": "reset",
            "capitals": "closed",
            "too much": 413,
            "too much, and said": 413,
            "a large field": 431,
            "many fields": 431,
            "a long address": 414,
            "nothing there": 404,
            "a socket": 405,
        })
    );
}

/// In clear text for clients that begin with it; the others speak HTTP/1.1 as before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http2_is_spoken_in_clear_text_with_who_begins_with_it() {
    let stage = demo().await;
    let gateway = Gateway::start(&stage.shell, FAST, "").await;
    for (option, version) in [("--http2-prior-knowledge", "2"), ("--http2", "1.1"), ("--http1.1", "1.1")] {
        let mut curl = Command::new("curl");
        curl.args(["-sS", option, "-H", "content-type: application/json", "-w", " %{http_code} %{http_version}", "-d"]);
        curl.arg(call(1, "math/add", "[2,3]")).arg(format!("http://{}/rpc/tools", gateway.at));
        let output = within(LONG, curl.kill_on_drop(true).output()).await.unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.contains("\"result\":5") && said.ends_with(&format!(" 200 {version}")), "{option}: {said}");
    }
    // Input that begins alike but continues differently, byte for byte.
    let mut wire = gateway.wire().await;
    wire.write("P").await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let post = super::wire::post("/rpc/tools", "", &call(1, "math/add", "[2,3]"));
    wire.write(post.strip_prefix('P').unwrap()).await;
    assert_eq!(wire.answer().await.unwrap().json()["result"], 5);
    // Clients that have sent nothing, or not enough to tell, do not keep the gateway from stopping.
    let (silent, mut half) = (gateway.wire().await, gateway.wire().await);
    half.write("PR").await;
    let began = Instant::now();
    assert_eq!(gateway.stop().await.0, Some(0));
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    drop((silent, half));
}
