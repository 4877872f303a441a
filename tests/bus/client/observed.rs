//! What an observer of requests is told, and what it is never told.

use std::borrow::Cow;
use std::sync::{Arc, Mutex};

use futures_util::StreamExt as _;
use sealwire::internal::client::{CallEnd, Observed, Observer};
use sealwire::{BusConfig, Client, ClientError, Credentials, Ctx, Name, Router, RpcError, Sink};
use sealwire_testkit::site::{Site, agent_key};
use sealwire_testkit::{NatsServer, SOON, within};
use serde_json::Value;

/// Records everything that it is told.
#[derive(Debug, Default, Clone)]
struct Notes(Arc<Mutex<Vec<String>>>);

struct Note {
    notes: Notes,
    text: String,
    parts: usize,
    has_ended: bool,
}

impl Observer for Notes {
    fn begun(&self, service: &str, methods: &[Cow<'_, str>], is_stream: bool) -> Box<dyn Observed> {
        let text = format!("{service} {} {}", methods.join(" "), if is_stream { "stream" } else { "message" });
        Box::new(Note { notes: self.clone(), text, parts: 0, has_ended: false })
    }
}

impl Observed for Note {
    fn part(&mut self, replica: Option<&str>) {
        assert!(replica.is_some());
        self.parts += 1;
    }

    fn ended(&mut self, ended: &CallEnd<'_>, replica: Option<&str>) {
        assert_eq!(replica.is_some(), self.parts > 0);
        self.has_ended = true;
        let ended = match ended {
            CallEnd::Failed(error) => format!("Failed({:?})", error.kind()),
            ended => format!("{ended:?}"),
        };
        self.notes.0.lock().unwrap().push(format!("{} {} {ended}", self.text, self.parts));
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        if !self.has_ended {
            self.notes.0.lock().unwrap().push(format!("{} {} dropped", self.text, self.parts));
        }
    }
}

impl Notes {
    /// Exactly this was recorded since the last check.
    #[track_caller]
    fn is(&self, text: &str) {
        assert_eq!(*std::mem::take(&mut *self.0.lock().unwrap()), [text]);
    }
}

#[tokio::test]
async fn an_observer_is_told_once_what_each_message_comes_to() {
    let server = NatsServer::start().await;
    let site = Site::new(&server.url());
    let three = |_: Ctx<()>, (): (), parts: Sink<u32>| async move {
        for part in 0..3 {
            parts.send(&part).await?;
        }
        Ok::<_, RpcError>("done")
    };
    let add = |_: Ctx<()>, (a, b): (u32, u32)| async move { Ok::<_, RpcError>(a + b) };
    let served = site.serve(Router::new(()).method("site/add", add).method_with_sink("site/three", three)).await;
    let name = |text| Name::new(text).unwrap();
    let credentials = Credentials::new(name("test"), name("ann"), agent_key("ann"), BusConfig::open(&server.url()));
    let client = within(SOON, Client::connect(credentials.token(site.token("ann", &["worker"])))).await.unwrap();
    let notes = Notes::default();
    let request = || client.request("site").relay().observer(Arc::new(notes.clone())).request();

    let sum: u32 = within(SOON, request().call("site/add", (20, 22))).await.unwrap();
    assert_eq!(sum, 42);
    notes.is("site site/add message 0 Answered([Result])");
    within(SOON, request().call::<u32>("site/add", ("secret",))).await.unwrap_err();
    notes.is("site site/add message 0 Answered([Error(-32602)])");
    let batch = r#"[{"jsonrpc":"2.0","id":1,"method":"site/add","params":[1,2]},{"jsonrpc":"2.0","id":2,"method":"other/one"}]"#;
    within(SOON, request().send_raw(batch)).await.unwrap();
    notes.is("site site/add other/one message 0 Answered([Result, Error(-32002)])");
    within(SOON, request().send_raw("{}")).await.unwrap();
    notes.is("site  message 0 Answered([Error(-32600)])");
    within(SOON, request().notify("site/add", (1, 2))).await.unwrap();
    notes.is("site site/add message 0 Sent");

    let mut stream = request().stream::<u32>("site/three", ());
    while let Some(part) = within(SOON, stream.next()).await {
        part.unwrap();
    }
    let done: Value = within(SOON, stream.finish()).await.unwrap();
    assert_eq!(done, "done");
    notes.is("site site/three stream 3 Answered([Result])");
    let mut stream = request().stream::<u32>("site/three", ());
    within(SOON, stream.next()).await.unwrap().unwrap();
    drop(stream);
    notes.is("site site/three stream 1 dropped");
    // A request that cannot be sent is reported, too.
    let error = within(SOON, request().window(0).stream::<u32>("site/three", ()).finish::<Value>()).await.unwrap_err();
    assert!(matches!(error, ClientError::Invalid(_)), "{error}");
    notes.is("site site/three stream 0 Failed(Invalid)");
    served.stop().await.unwrap();
    let nobody = within(SOON, request().call::<u32>("site/add", (1, 2))).await.unwrap_err();
    notes.is(&format!("site site/add message 0 Failed({:?})", nobody.kind()));
}
