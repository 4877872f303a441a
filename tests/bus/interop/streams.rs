//! The Python client takes frames from a real service, over a real broker, and controls its calls.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::{StreamExt as _, stream};
use sealwire::internal::files::write_secret;
use sealwire::serve::Attachment;
use sealwire::{Ctx, Router, RpcError, Sink};
use sealwire_testkit::cluster::Cluster;
use sealwire_testkit::python::python;
use sealwire_testkit::site::{Served, Site, agent_key};
use sealwire_testkit::{NatsServer, SOON, settle, within};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{Got, PythonClient};

#[derive(serde::Deserialize)]
struct Store {
    document: Attachment,
}

/// What the methods have done so far.
#[derive(Debug, Default)]
struct Seen {
    sent: AtomicU64,
    /// Runs of `site/endless`.
    begun: AtomicU64,
    cancelled: AtomicU64,
}

type C = Ctx<Arc<Seen>>;

fn methods(seen: &Arc<Seen>) -> Router<Arc<Seen>> {
    Router::new(Arc::clone(seen))
        .stream("site/count", |_: C, (to,): (u64,)| async move {
            Ok::<_, RpcError>(stream::iter((1..=to).map(Ok::<_, RpcError>)))
        })
        .stream("site/slowly", |ctx: C, (to, ms): (u64, u64)| async move {
            Ok::<_, RpcError>(stream::unfold(1, move |next| {
                let ctx = ctx.clone();
                async move {
                    sleep(Duration::from_millis(ms)).await;
                    ctx.state().sent.store(next, Ordering::SeqCst);
                    (next <= to).then_some((Ok::<_, RpcError>(next), next + 1))
                }
            }))
        })
        .method_with_sink("site/report", |ctx: C, (): (), sink: Sink<u64>| async move {
            ctx.progress(1.0, Some(2.0), Some("half"));
            sink.send(&1).await.map_err(RpcError::internal)?;
            let goes_on = ctx.ask::<bool>("confirm", &["go on?"]).await;
            Ok::<_, RpcError>(goes_on.unwrap_or(false))
        })
        .method("site/large", |_: C, (bytes,): (usize,)| async move { Ok::<_, RpcError>("é".repeat(bytes / 2)) })
        .method("site/store", |ctx: C, p: Store| async move {
            let document = ctx.attachment(&p.document).await?;
            let sum: u64 = document.iter().copied().map(u64::from).sum();
            Ok::<_, RpcError>(json!([document.len(), sum]))
        })
        .method("site/endless", |ctx: C, (): ()| async move {
            ctx.state().begun.fetch_add(1, Ordering::SeqCst);
            ctx.cancelled().await;
            ctx.state().cancelled.fetch_add(1, Ordering::SeqCst);
            Ok::<_, RpcError>(())
        })
        .subscription("site/ticks", |_: C, (): ()| async move {
            Ok::<_, RpcError>(stream::unfold(0_u64, |next| async move {
                sleep(Duration::from_millis(20)).await;
                Some((Ok::<_, RpcError>(json!({"tick": next})), next + 1))
            }))
        })
}

/// The credentials that `ann` needs as a client.
fn credentials(site: &Site, url: &str) -> PathBuf {
    credentials_at(site, &[url.to_owned()])
}

fn credentials_at(site: &Site, urls: &[String]) -> PathBuf {
    let key = agent_key("ann");
    let credentials = json!({
        "version": 1,
        "environment": "test",
        "agent": "ann",
        "key": { "kid": key.kid(), "alg": "HS256", "secret": URL_SAFE_NO_PAD.encode(key.expose()) },
        "token": site.token("ann", &["worker"]),
        "nats": { "urls": urls },
    });
    let file = site.path("ann.creds.json");
    write_secret(&file, &credentials.to_string(), false).unwrap();
    file
}

/// A service with its own broker, and the client.
struct Stage {
    server: NatsServer,
    site: Site,
    served: Served,
    client: PythonClient,
}

impl Stage {
    async fn open(python: &Path, methods: Router<Arc<Seen>>) -> Self {
        let server = NatsServer::start().await;
        let site = Site::new(&server.url());
        let served = site.serve(methods).await;
        let client = PythonClient::start(python, credentials(&site, &server.url()));
        Self { server, site, served, client }
    }
}

async fn run(client: &mut PythonClient, arguments: &[&str]) -> Got {
    within(2 * SOON, client.run(arguments)).await
}

fn numbers(to: u64) -> Value {
    (1..=to).collect()
}

/// SPEC.md §25.6.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python_client_gives_arguments_larger_than_a_message() {
    let Some(python) = python() else { return };
    let Stage { server: _server, site, served, mut client } = Stage::open(python, methods(&Arc::default())).await;
    let file = site.path("document");
    std::fs::write(&file, vec![3; 5 << 20]).unwrap();
    let attach = format!("document={}", file.display());
    let call = ["--timeout-ms", "50000", "stream", "site", "site/store"];
    let got = run(&mut client, &[&call[..], &["--attach", &attach]].concat()).await;
    assert_eq!((got.code, &got.said["result"]), (0, &json!([5 << 20, 15 << 20])), "{got:?}");
    // The attachment is not the one that the call names.
    let other =
        json!({ "document": { "sha256": "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU", "size": 9, "type": "a/b" } });
    let attach = format!("other={}", file.display());
    let got = run(&mut client, &[&call[..], &[&other.to_string(), "--attach", &attach]].concat()).await;
    assert_eq!((got.code, &got.said["code"], &got.said["signed"]), (21, &json!(-32602), &json!(true)), "{got:?}");
    served.stop().await.unwrap();
}

/// SPEC.md §25.1, SPEC.md §25.2, SPEC.md §25.4, SPEC.md §25.5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python_client_takes_frames_and_controls_its_calls() {
    let Some(python) = python() else { return };
    let seen = Arc::<Seen>::default();
    let Stage { server: _server, site: _site, served, mut client } = Stage::open(python, methods(&seen)).await;

    for window in ["1", "2", "32"] {
        let got = run(&mut client, &["stream", "site", "site/count", "[500]", "--window", window]).await;
        assert_eq!((got.code, &got.said["items"], &got.said["result"]), (0, &numbers(500), &Value::Null), "{got:?}");
        // With a large window, there may be so few frames that none has to be acknowledged.
        assert!(window == "32" || got.said["sent"]["ack"].as_u64() > Some(0), "{got:?}");
    }
    let got = run(&mut client, &["stream", "site", "site/count", "[5]", "--window", "0"]).await;
    assert_eq!((got.code, &got.said["result"]), (0, &numbers(5)), "{got:?}");

    // Lost frames are asked for again, including the first.
    let lost = ["--lose", "0", "--lose", "3", "--lose", "4"];
    let got = run(&mut client, &[&["stream", "site", "site/slowly", "[20, 5]"], &lost[..]].concat()).await;
    assert_eq!((got.code, &got.said["items"]), (0, &numbers(20)), "{got:?}");
    assert!(got.said["sent"]["again"].as_u64() > Some(0), "{got:?}");

    // Progress, a question, and a result; then nobody to answer the question; then a text above the limit of answers.
    for (answer, result) in [(&["--answer", "true"][..], true), (&[], false)] {
        let got = run(&mut client, &[&["stream", "site", "site/report", "[]"], answer].concat()).await;
        assert_eq!((got.code, &got.said["result"], &got.said["items"]), (0, &json!(result), &json!([1])), "{got:?}");
        assert_eq!(got.said["asked"], json!(["confirm"]), "{got:?}");
        assert_eq!(got.said["notes"].as_array().unwrap().len(), 1, "{got:?}");
    }
    // A lost answer is sent again, and the service handles it once.
    let lossy = ["--answer", "true", "--lose-answers", "1"];
    let got = run(&mut client, &[&["stream", "site", "site/report", "[]"], &lossy[..]].concat()).await;
    assert_eq!((got.code, &got.said["result"], &got.said["sent"]["answer"]), (0, &json!(true), &json!(2)), "{got:?}");
    let got = run(&mut client, &["stream", "site", "site/large", "[1000000]"]).await;
    assert_eq!(got.said["result"].as_str().map(str::len), Some(1_000_000), "{}", got.code);
    let got = run(&mut client, &["stream", "site", "site/large", "[1000000]", "--window", "0"]).await;
    assert_eq!((got.code, &got.said["code"]), (21, &json!(-32015)), "{got:?}");

    // Cancelled while they run: a stream, a call without frames, a subscription that outlives its first deadline.
    let got = run(&mut client, &["stream", "site", "site/slowly", "[100000, 5]", "--cancel-after-items", "5"]).await;
    assert_eq!((got.code, &got.said["code"], &got.said["signed"]), (21, &json!(-32016), &json!(true)), "{got:?}");
    for window in ["0", "32"] {
        let cancel = ["--cancel-after-ms", "300", "--window", window];
        let call = ["--timeout-ms", "29000", "stream", "site", "site/endless", "[]"];
        let got = run(&mut client, &[&call[..], &cancel[..]].concat()).await;
        assert_eq!((got.code, &got.said["code"]), (21, &json!(-32016)), "not by its deadline: {got:?}");
    }
    let arguments =
        ["--timeout-ms", "8000", "stream", "site", "site/ticks", "[]", "--renew", "--cancel-after-ms", "12000"];
    let got = run(&mut client, &arguments).await;
    assert_eq!((got.code, &got.said["code"]), (21, &json!(-32016)), "it outlives its first deadline: {got:?}");
    assert!(!got.said["notes"].as_array().unwrap().is_empty(), "{got:?}");
    let got = run(&mut client, &["stream", "site", "site/ticks", "[]", "--window", "0"]).await;
    assert_eq!((got.code, &got.said["code"]), (21, &json!(-32600)), "{got:?}");
    let got = run(&mut client, &["--timeout-ms", "1000", "stream", "site", "site/ticks", "[]"]).await;
    assert_eq!((got.code, &got.said["code"]), (21, &json!(-32003)), "its lease runs out: {got:?}");

    assert_eq!(seen.cancelled.load(Ordering::SeqCst), 2);
    served.stop().await.unwrap();
}

/// SPEC.md §25.5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python_client_goes_on_with_a_stream_after_the_broker_was_killed() {
    let Some(python) = python() else { return };
    let seen = Arc::<Seen>::default();
    let Stage { mut server, site: _site, served, mut client } = Stage::open(python, methods(&seen)).await;

    let arguments = ["--timeout-ms", "40000", "stream", "site", "site/slowly", "[400, 5]"];
    let streaming = run(&mut client, &arguments);
    let killing = async {
        let begun = Instant::now();
        while seen.sent.load(Ordering::SeqCst) < 100 {
            assert!(begun.elapsed() < SOON, "no items");
            sleep(Duration::from_millis(5)).await;
        }
        server.kill().await;
        sleep(Duration::from_millis(500)).await;
        server.restart().await;
    };
    let (got, ()) = tokio::join!(streaming, killing);
    assert_eq!((got.code, &got.said["items"], &got.said["result"]), (0, &numbers(400), &Value::Null), "{got:?}");
    assert!(got.said["sent"]["again"].as_u64() > Some(0), "{got:?}");
    served.stop().await.unwrap();
}

/// SPEC.md §25.5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python_client_goes_on_with_a_stream_at_another_node_of_the_cluster() {
    let Some(python) = python() else { return };
    let mut cluster = Cluster::start(3).await;
    // The service stays at its node; the client begins at the only node that it can reach.
    let site = Site::new(&cluster.nodes[2].url());
    let seen = Arc::<Seen>::default();
    let served = site.serve(methods(&seen)).await;
    let (other, proxy) = cluster.proxy(1).await;
    proxy.cut(true);
    let urls = [cluster.nodes[0].url(), other.urls[0].clone()];
    let mut client = PythonClient::start(python, credentials_at(&site, &urls));

    let arguments = ["--timeout-ms", "35000", "stream", "site", "site/slowly", "[600, 5]"];
    let streaming = run(&mut client, &arguments);
    let killing = async {
        let begun = Instant::now();
        while seen.sent.load(Ordering::SeqCst) < 100 {
            assert!(begun.elapsed() < 2 * SOON, "no items");
            sleep(Duration::from_millis(5)).await;
        }
        proxy.cut(false);
        cluster.nodes[0].kill().await;
    };
    let (got, ()) = tokio::join!(streaming, killing);
    assert_eq!((got.code, &got.said["items"], &got.said["result"]), (0, &numbers(600), &Value::Null), "{got:?}");
    assert!(got.said["sent"]["again"].as_u64() > Some(0), "{got:?}");
    served.stop().await.unwrap();
}

/// SPEC.md §6.1: the mark of an outcome of an earlier run. SPEC.md §14: that of an error of the application.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python_client_tells_the_outcome_of_an_earlier_call() {
    let Some(python) = python() else { return };
    let seen = Arc::<Seen>::default();
    let pay = |ctx: C, (amount,): (u64,)| async move {
        ctx.state().sent.fetch_add(amount, Ordering::SeqCst);
        if amount > 100 { Err(RpcError::application(-32002, "too much")) } else { Ok(amount) }
    };
    let router = methods(&seen).method("site/pay", pay).idempotent("site/pay", Duration::from_secs(60));
    let Stage { server: _server, site: _site, served, mut client } = Stage::open(python, router).await;
    for (key, amount, code, member) in [("a", "[5]", 0, "result"), ("b", "[500]", 21, "code")] {
        let call = ["--idempotency-key", key, "call", "site", "site/pay", amount];
        let first = run(&mut client, &call).await;
        let again = run(&mut client, &call).await;
        assert_eq!((first.code, &first.said["idempotent_replay"]), (code, &Value::Null), "{first:?}");
        assert_eq!((again.code, &again.said["idempotent_replay"]), (code, &json!(true)), "{again:?}");
        assert_eq!(first.said[member], again.said[member]);
        let own = if code == 21 { json!(true) } else { Value::Null };
        assert_eq!([&first, &again].map(|got| got.said["application_error"].clone()), [own.clone(), own]);
    }
    let other = run(&mut client, &["--idempotency-key", "a", "call", "site", "site/pay", "[6]"]).await;
    assert_eq!((other.code, &other.said["code"]), (21, &json!(-32017)), "{other:?}");
    assert_eq!(other.said["idempotent_replay"], Value::Null, "{other:?}");
    assert_eq!(seen.sent.load(Ordering::SeqCst), 505, "each ran once");
    served.stop().await.unwrap();
}

/// SPEC.md §25.4: a hint is not signed, so the method may be running.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python_client_cancels_what_a_hint_has_ended() {
    let Some(python) = python() else { return };
    let seen = Arc::<Seen>::default();
    let Stage { server, site: _site, served, mut client } = Stage::open(python, methods(&seen)).await;
    let bus = server.client().await;
    let mut requests = within(SOON, bus.subscribe("rpc.v1.site.ann")).await.unwrap();
    settle(&bus).await;
    // A hint that comes after the first frame has no effect; then the client cancels the call after a while.
    let arguments = ["--timeout-ms", "30000", "stream", "site", "site/endless", "[]", "--cancel-after-ms", "3000"];
    for run_before in 0..20 {
        let running = run(&mut client, &arguments);
        let forging = async {
            let reply = within(2 * SOON, requests.next()).await.unwrap().reply.unwrap();
            let begun = Instant::now();
            while seen.begun.load(Ordering::SeqCst) == run_before {
                assert!(begun.elapsed() < SOON, "it does not begin");
                sleep(Duration::from_millis(5)).await;
            }
            let hint = r#"{"jsonrpc":"2.0","error":{"code":-32014,"message":"overloaded"},"id":null}"#;
            within(SOON, bus.publish(reply, hint.into())).await.unwrap();
            within(SOON, bus.flush()).await.unwrap();
        };
        let (got, ()) = tokio::join!(running, forging);
        let begun = Instant::now();
        while seen.cancelled.load(Ordering::SeqCst) == run_before {
            assert!(begun.elapsed() < SOON, "not cancelled: {got:?}");
            sleep(Duration::from_millis(5)).await;
        }
        if got.said["outcome"] == "hint" {
            assert_eq!((got.code, &got.said["code"]), (22, &json!(-32014)), "{got:?}");
            served.stop().await.unwrap();
            return;
        }
    }
    panic!("too late each time");
}
