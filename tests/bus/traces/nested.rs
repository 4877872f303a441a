//! Calls that are made for a call: one trace, whose spans are those of each hop.

use std::sync::{Arc, OnceLock};

use sealwire::{BusConfig, Client, Credentials, Ctx, Name, Router, RpcError};
use sealwire_testkit::collector::Collector;
use sealwire_testkit::site::{Site, agent_key};
use sealwire_testkit::{NatsServer, SOON, within};
use serde_json::{Value, json};

use super::traces;

type State = Arc<OnceLock<Client>>;

async fn inner(client: &Client, word: &str) -> Result<(), RpcError> {
    client.call("site", "site/inner", [word]).await.map_err(RpcError::dependency)
}

/// `site/outer` calls `site/inner` by itself, from a task of its own, and in a batch.
fn methods(state: &State) -> Router<State> {
    Router::new(Arc::clone(state))
        .method("site/inner", |_: Ctx<State>, [_]: [String; 1]| async { Ok::<_, RpcError>(()) })
        .method("site/outer", |ctx: Ctx<State>, (): ()| async move {
            let client = ctx.state().get().unwrap().clone();
            inner(&client, "alone").await?;
            let (trace, spawned) = (ctx.trace(), client.clone());
            let task = tokio::spawn(async move {
                let call = spawned.request("site").in_trace(&trace).call::<()>("site/inner", ["task"]);
                call.await.map_err(RpcError::dependency)
            });
            task.await.map_err(RpcError::internal)??;
            let mut batch = client.batch("site");
            let first = batch.call("site/inner", ["hunter2"]);
            batch.call("site/none", ());
            let mut answers = batch.send().await.map_err(RpcError::dependency)?;
            answers.take::<()>(first).map_err(RpcError::dependency)
        })
}

fn client_of(site: &Site, server: &NatsServer) -> sealwire::call::ClientBuilder {
    let name = |text| Name::new(text).unwrap();
    let credentials = Credentials::new(name("test"), name("ann"), agent_key("ann"), BusConfig::open(&server.url()));
    Client::builder(credentials.token(site.token("ann", &["worker"])))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nested_calls_continue_the_call_that_they_are_made_for() {
    let (server, collector) = (NatsServer::start().await, Collector::start().await);
    let site = Site::new(&server.url());
    let state = State::default();
    let config = site.config();
    let (builder, options) = config.builder().await.unwrap();
    let service = builder.methods(methods(&state)).build().unwrap();
    let (traces, of_caller) = (traces(&collector.url(), 0.0), traces(&collector.url(), 1.0));
    service.trace(traces.tracer());
    let served = sealwire_testkit::site::Served::spawn(service, config.nats.clone(), options);
    served.ready().await;
    // It has no tracer of its own: the call has one.
    state.set(within(SOON, client_of(&site, &server).connect()).await.unwrap()).unwrap();
    let caller = within(SOON, client_of(&site, &server).connect()).await.unwrap();
    caller.trace(of_caller.tracer());
    within(SOON, caller.call::<()>("site", "site/outer", ())).await.unwrap();
    within(SOON, caller.call::<()>("site", "site/none", ())).await.unwrap_err();
    traces.close().await;
    of_caller.close().await;
    served.stop().await.unwrap();

    for secret in ["hunter2", "alone"] {
        let is_in = |body: &[u8]| body.windows(secret.len()).any(|bytes| bytes == secret.as_bytes());
        assert!(!collector.received().iter().any(|one| is_in(&one.body)), "{secret}");
    }
    let Some(spans) = collector.spans() else { return };
    let of = |parent: &Value, kind: &str| -> Vec<Value> {
        spans.iter().filter(|span| span["parent"] == *parent && span["kind"] == kind).cloned().collect()
    };
    let root = spans.iter().find(|span| span["name"] == "site/outer" && span["kind"] == "client").unwrap();
    assert_eq!((&root["parent"], &root["attributes"]["server.address"]), (&json!(""), &json!("test/site")));
    let trace: Vec<_> = spans.iter().filter(|span| span["trace"] == root["trace"]).collect();
    // The caller's, the service's; two calls with both; a batch and its two entries, on either side.
    assert_eq!(trace.len(), 2 + 4 + 6, "{trace:#?}");
    let [outer] = &of(&root["id"], "server")[..] else { panic!("{trace:#?}") };
    assert_eq!(outer["name"], "site/outer");
    let calls = of(&outer["id"], "client");
    assert_eq!(calls.len(), 2, "{trace:#?}");
    for call in &calls {
        let [served] = &of(&call["id"], "server")[..] else { panic!("{trace:#?}") };
        assert_eq!((&call["name"], &served["name"]), (&json!("site/inner"), &json!("site/inner")));
        assert!(!call["failed"].as_bool().unwrap());
    }
    let [batch] = &of(&outer["id"], "internal")[..] else { panic!("{trace:#?}") };
    let asked = of(&batch["id"], "client");
    let [served] = &of(&batch["id"], "internal")[..] else { panic!("{trace:#?}") };
    assert_eq!((asked.len(), of(&served["id"], "server").len()), (2, 2), "{trace:#?}");
    let failed: Vec<_> = asked.iter().filter(|span| span["failed"] == true).collect();
    assert_eq!(failed.len(), 1, "{asked:#?}");
    assert_eq!(failed[0]["attributes"]["error.type"], "-32601");
    // The other one of the caller is a trace of its own.
    let other: Vec<_> = spans.iter().filter(|span| span["trace"] != root["trace"]).collect();
    assert_eq!(other.len(), 2, "{other:#?}");
    let asked = other.iter().find(|span| span["kind"] == "client").unwrap();
    let [served] = &of(&asked["id"], "server")[..] else { panic!("{other:#?}") };
    assert_eq!((&asked["name"], &served["name"]), (&json!("site/none"), &json!("_OTHER")), "its own program names it");
}

/// A program of the library's user, with the same file as `sealwire serve`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_with_a_configuration_sends_traces_until_its_end() {
    let (server, collector) = (NatsServer::start().await, Collector::start().await);
    let site = Site::new(&server.url());
    site.write_config(&format!("[telemetry]\notlp = \"{}\"\nsample = 1\n", collector.url()));
    let state = State::default();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let program = tokio::spawn(site.config().serve_until(methods(&state), async { drop(stopped.await) }));
    let caller = within(SOON, client_of(&site, &server).connect()).await.unwrap();
    within(SOON, caller.wait_for("site", SOON)).await.unwrap();
    let request = caller.request("site").idempotent().deadline(SOON);
    within(2 * SOON, request.call::<()>("site/inner", ["x"])).await.unwrap();
    stop.send(()).unwrap();
    within(3 * SOON, program).await.unwrap().unwrap();
    let Some(spans) = collector.spans() else { return };
    let served = spans.iter().find(|span| span["name"] == "site/inner" && span["failed"] == false).unwrap();
    assert_eq!(
        (&served["resource"]["service.name"], &served["resource"]["service.namespace"]),
        (&json!("site"), &json!("test"))
    );
    assert!(served["attributes"]["sealwire.replica"].is_string(), "{served}");

    site.write_config("[telemetry]\notlp = \"http://collector.example:4318\"\n");
    let error = site.config().serve_until(methods(&state), std::future::pending()).await.unwrap_err();
    assert!(error.to_string().contains("otlp_allow_plaintext"), "{error}");
}
