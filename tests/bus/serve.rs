//! A service on a real nats-server: answers, discovery, survival, overload, reload, draining.

mod questions;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use sealwire::serve::State;
use sealwire::{Ctx, Router, RpcError, ServeError};
use sealwire_testkit::raw::RawConnection;
use sealwire_testkit::site::{Answer, Site, methods, sum, write};
use sealwire_testkit::slow::SlowLine;
use sealwire_testkit::{NatsServer, SOON, settle, within};
use serde_json::Value;
use tokio::sync::watch;

const DENIED: &str = r#"{"jsonrpc":"2.0","error":{"code":-32002,"message":"permission denied"},"id":1}"#;

const UNAUTHENTICATED: &str = r#"{"jsonrpc":"2.0","error":{"code":-32010,"message":"unauthenticated"},"id":null}"#;

async fn request(client: &async_nats::Client, subject: &str) -> Value {
    let message = within(SOON, client.request(subject.to_owned(), "".into())).await.unwrap();
    serde_json::from_slice(&message.payload).unwrap()
}

type Held = (Arc<AtomicU64>, watch::Receiver<bool>);

/// `site/add`, and `site/hold`, which is counted when it begins and goes on until it is let go.
fn holding() -> (Router<Held>, Arc<AtomicU64>, watch::Sender<bool>) {
    let (begun, go) = (Arc::new(AtomicU64::new(0)), watch::Sender::new(false));
    let router = Router::new((Arc::clone(&begun), go.subscribe()))
        .method("site/hold", |ctx: Ctx<Held>, (): ()| async move {
            let (begun, mut go) = ctx.state().clone();
            begun.fetch_add(1, Ordering::SeqCst);
            drop(go.wait_for(|go| *go).await);
            Ok::<_, RpcError>(())
        })
        .method("site/add", |_: Ctx<Held>, (a, b): (i64, i64)| async move { Ok::<_, RpcError>(a + b) });
    (router, begun, go)
}

/// Waits until so many calls of `site/hold` have begun.
async fn begun_reaches(begun: &AtomicU64, calls: u64) {
    let reached = async {
        while begun.load(Ordering::SeqCst) < calls {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(SOON, reached).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_identity_provider_that_is_away_is_seen_and_harms_no_other() {
    let server = NatsServer::start().await;
    let site = Site::new(&server.url());
    let text = std::fs::read_to_string(site.path("sealwire.toml")).unwrap();
    let two = "jwks = \"jwks.json\"\nmay = { agents = [\"ann\", \"bob\"], roles = [\"worker\"] }\n[[tokens.issuer]]\n\
               issuer = \"https://away.test\"\njwks_url = \"http://127.0.0.1:1/keys?code=hunter2\"\nhttp_on_loopback = true\n\
               may = { agents = [\"bob\"] }\n";
    assert!(text.contains("jwks = \"jwks.json\"\n"));
    std::fs::write(site.path("sealwire.toml"), text.replace("jwks = \"jwks.json\"\n", two)).unwrap();
    let served = site.serve(methods()).await;
    let caller = site.caller("ann").await;
    assert_eq!(caller.add().await, sum());
    let stats = request(caller.client(), "$SRV.STATS.site").await;
    let keys = &stats["endpoints"][0]["data"]["token_keys"];
    assert_eq!((keys[0]["issuer"].as_str(), keys[0]["state"].as_str()), (Some("https://away.test"), Some("missing")));
    assert!(keys[0]["failed"].as_u64() >= Some(1) && keys[0]["keys"] == 0 && keys[1].is_null(), "{keys}");
    let status = served.running.token_keys().remove(0);
    let error = status.error.unwrap();
    assert!(error.contains("http://127.0.0.1:1/keys") && !error.contains("hunter2"), "{error}");
    assert!(!stats.to_string().contains("hunter2"));
    served.stop().await.unwrap();
}

/// SPEC.md §18.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_are_answered_and_discovery_lists_the_service() {
    let server = NatsServer::start().await;
    let site = Site::new(&server.url());
    let served = site.serve(methods()).await;
    let caller = site.caller("ann").await;
    assert_eq!(caller.add().await, sum());
    assert_eq!(
        caller.call("site/none", "[]", SOON).await,
        Answer::Signed(DENIED.replace("-32002", "-32601").replace("permission denied", "Method not found"))
    );
    assert_eq!(caller.call("other/none", "[]", SOON).await, Answer::Signed(DENIED.into()));

    let client = caller.client();
    let id = served.running.instance().to_owned();
    for subject in ["$SRV.PING".to_owned(), "$SRV.PING.site".to_owned(), format!("$SRV.PING.site.{id}")] {
        let ping = request(client, &subject).await;
        assert_eq!(ping["type"], "io.nats.micro.v1.ping_response");
        assert_eq!((ping["name"].as_str(), ping["id"].as_str()), (Some("site"), Some(id.as_str())));
        assert_eq!(ping["metadata"]["sealwire.audience"], "test/site");
        assert_eq!(ping["metadata"]["sealwire.state"], "ready");
        assert!(ping["version"].as_str().unwrap().split('.').count() >= 3);
    }
    let info = request(client, "$SRV.INFO.site").await;
    assert_eq!(info["type"], "io.nats.micro.v1.info_response");
    assert_eq!(info["endpoints"][0]["subject"], "rpc.v1.site.>");
    let stats = request(client, &format!("$SRV.STATS.site.{id}")).await;
    assert_eq!(stats["type"], "io.nats.micro.v1.stats_response");
    time::OffsetDateTime::parse(stats["started"].as_str().unwrap(), &time::format_description::well_known::Rfc3339)
        .unwrap();
    let endpoints = stats["endpoints"].as_array().unwrap();
    for endpoint in endpoints {
        let name = endpoint["name"].as_str().unwrap();
        assert!(
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-'),
            "{name}"
        );
        assert!(endpoint["last_error"].is_string());
        for number in ["num_requests", "num_errors", "processing_time", "average_processing_time"] {
            assert!(endpoint[number].is_u64(), "{number}");
        }
    }
    let add = endpoints.iter().find(|endpoint| endpoint["name"] == "site_add").unwrap();
    assert_eq!((&add["num_requests"], &add["num_errors"]), (&1.into(), &0.into()));
    assert_eq!((&endpoints[0]["num_requests"], &endpoints[0]["num_errors"]), (&3.into(), &2.into()));

    served.stop().await.unwrap();
    let gone = within(SOON, client.request("$SRV.PING.site", "".into())).await;
    assert_eq!(gone.unwrap_err().kind(), async_nats::RequestErrorKind::NoResponders);
    assert_eq!(caller.add().await, Answer::NoResponders, "a call to a stopped service is told so at once");
}

/// SPEC.md §15.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answer_that_the_broker_has_no_room_for_becomes_an_error() {
    // The limit of answers is 192 KiB, the broker's limit for messages with headers 64 KiB.
    let server = NatsServer::start_with("max_payload: 65536").await;
    let site = Site::new(&server.url());
    let router =
        Router::new(()).method("site/text", |_: Ctx, (n,): (usize,)| async move { Ok::<_, RpcError>("x".repeat(n)) });
    let served = site.serve(router).await;
    let caller = site.caller("ann").await;
    assert!(matches!(caller.call("site/text", "[60000]", SOON).await, Answer::Signed(text) if text.len() > 60_000));
    let too_large = r#"{"jsonrpc":"2.0","error":{"code":-32015,"message":"too large"},"id":1}"#;
    for n in [63_500, 65_000, 65_536, 190_000] {
        let answer = caller.call("site/text", &format!("[{n}]"), SOON).await;
        assert_eq!(answer, Answer::Signed(too_large.into()), "{n}");
    }
    assert_eq!(served.running.health().unsent.load(Ordering::Relaxed), 0);
    served.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_published_outside_the_inboxes() {
    let server = NatsServer::start().await;
    let site = Site::new(&server.url());
    let served = site.serve(methods()).await;
    let caller = site.caller("ann").await;
    let mut heard = caller.client().subscribe(">").await.unwrap();
    settle(caller.client()).await;
    let mut raw = RawConnection::connect(&server.url(), None).await;
    for reply in ["$JS.API.STREAM.DELETE.X", "admin.delete", "rpc.v1.site.ann", "_INBOX.bob.1", "wild.*", "_INBOX.ann"]
    {
        let payload = r#"{"jsonrpc":"2.0","method":"site/add","params":[1,2],"id":1}"#;
        let (_, headers, _) = caller.sign(payload);
        let value = headers.get("Authorization").unwrap().as_str();
        let block = format!("NATS/1.0\r\nAuthorization: {value}\r\n\r\n");
        raw.hpub_raw(caller.subject(), Some(reply), block.as_bytes(), payload.as_bytes()).await;
        raw.publish("$SRV.PING", Some(reply), b"").await;
        raw.publish("$SRV.INFO.site", Some(reply), b"").await;
    }
    raw.flush().await;
    assert_eq!(caller.add().await, sum());
    let mut answers = Vec::new();
    while let Ok(Some(message)) = tokio::time::timeout(Duration::from_millis(300), heard.next()).await {
        let subject = message.subject.to_string();
        // Calls, questions on `$SRV`, and the messages between replicas.
        if !["rpc.v1.site.", "$SRV", "_SVC.site.replica."].iter().any(|own| subject.starts_with(own)) {
            answers.push((subject, String::from_utf8_lossy(&message.payload).into_owned()));
        }
    }
    // Discovery answers anywhere below the inbox prefix, where its users have their inboxes; calls only below the caller's own.
    let stray: Vec<_> = answers.iter().filter(|(subject, _)| !subject.starts_with("_INBOX.")).collect();
    assert!(stray.is_empty(), "{stray:?}");
    let rpc: Vec<_> = answers.iter().filter(|(_, text)| text.contains("jsonrpc")).collect();
    assert!(matches!(rpc[..], [(subject, _)] if subject.starts_with("_INBOX.ann._INBOX-")), "{rpc:?}");
    served.stop().await.unwrap();
}

/// Ten thousand a second, of every kind, from somebody without a key. Calls of other agents do not suffer, and the sender's
/// messages are counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn poison_headers_at_ten_thousand_a_second_fail_no_call_of_another_agent() {
    const TIME: Duration = Duration::from_secs(3);
    let server = NatsServer::start().await;
    let site = Site::new(&server.url());
    let served = site.serve(methods()).await;
    let caller = site.caller("ann").await;
    let stop = Arc::new(AtomicBool::new(false));
    let calls: Vec<_> = (0..4)
        .map(|_| {
            let (caller, stop) = (caller.clone(), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut answers = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    answers.push(caller.add().await);
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                answers
            })
        })
        .collect();
    // On a thread of its own, like a separate process: the service does not pay for the sending.
    let url = server.url();
    let flood = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut raw = RawConnection::connect(&url, None).await;
            raw.flood(10_000, TIME, || ("rpc.v1.site.mallory".into(), "_INBOX.mallory.1".into())).await
        })
    });
    let sent = within(2 * SOON, flood).await.unwrap();
    stop.store(true, Ordering::Relaxed);
    let mut answered = 0;
    for call in calls {
        for answer in within(SOON, call).await.unwrap() {
            assert_eq!(answer, sum(), "after {answered} good ones");
            answered += 1;
        }
    }
    println!("{sent} poison messages, {answered} calls answered, none failed");
    assert!(sent == 30_000 && answered > 20, "{sent} {answered}");
    let stats = request(caller.client(), "$SRV.STATS.site").await;
    let data = &stats["endpoints"][0]["data"];
    let refusals = data["refusals"]["malformed_headers"].as_u64().unwrap() + data["shed"].as_u64().unwrap();
    assert!(refusals >= sent / 2, "{data}");
    assert_eq!((&data["connections_reconnected"], *served.running.state().borrow() == State::Ready), (&0.into(), true));
    served.stop().await.unwrap();
}

/// SPEC.md §18.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_replica_with_a_local_guard_is_refused() {
    let server = NatsServer::start().await;
    let site = Site::new(&server.url());
    let (methods, begun, go) = holding();
    let first = site.serve(methods).await;
    site.write_config("state = \"other.floor\"\n");
    let error = site.start(self::methods()).await.ended().await.unwrap_err();
    assert!(
        matches!(&error, ServeError::AnotherReplica { instance, .. } if instance == first.running.instance()),
        "{error}"
    );
    assert!(error.to_string().contains("stop the other one first"), "{error}");

    // A draining replica is still on the bus, until its last message is done.
    let caller = site.caller("ann").await;
    let slow = {
        let caller = caller.clone();
        tokio::spawn(async move { caller.call("site/hold", "[]", 2 * SOON).await })
    };
    begun_reaches(&begun, 1).await;
    let (state, stopping) = (first.running.state(), tokio::spawn(first.stop()));
    let mut state = state;
    drop(within(SOON, state.wait_for(|state| *state == State::Draining)).await.unwrap());
    let error = site.start(self::methods()).await.ended().await.unwrap_err();
    assert!(matches!(error, ServeError::AnotherReplica { .. }), "{error}");
    // It goes on for as long as this takes.
    go.send_replace(true);
    assert_eq!(slow.await.unwrap(), Answer::Signed(r#"{"jsonrpc":"2.0","result":null,"id":1}"#.into()));
    within(SOON, stopping).await.unwrap().unwrap();
    let third = site.serve(self::methods()).await;
    assert_eq!(caller.add().await, sum());
    third.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_replicas_that_start_at_once_do_not_both_serve() {
    let server = NatsServer::start().await;
    let site = Site::new(&server.url());
    let one = site.start(methods()).await;
    site.write_config("state = \"other.floor\"\n");
    let two = site.start(methods()).await;
    let is = |served: &sealwire_testkit::site::Served, state: State| *served.running.state().borrow() == state;
    let decided = async {
        while !is(&one, State::Stopped) && !is(&two, State::Stopped) {
            assert!(!(is(&one, State::Ready) && is(&two, State::Ready)));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within(SOON, decided).await;
    let (one, two) = (one.stop().await, two.stop().await);
    assert!(
        matches!(one, Err(ServeError::AnotherReplica { .. })) || matches!(two, Err(ServeError::AnotherReplica { .. }))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_answers_a_hint_instead_of_silence() {
    let server = NatsServer::start().await;
    let site = Site::new(&server.url());
    site.write_config("[limits]\nqueue = 8\nin_flight = 4\nhints_per_second = 1000\n");
    let (methods, _, go) = holding();
    let served = site.serve(methods).await;
    let caller = site.caller("ann").await;
    let calls: Vec<_> = (0..40)
        .map(|_| {
            let caller = caller.clone();
            tokio::spawn(async move { caller.call("site/hold", "[]", 2 * SOON).await })
        })
        .collect();
    // No call ends before the queue was full for many.
    let full = async {
        while served.running.health().shed.load(Ordering::Relaxed) < 20 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(SOON, full).await;
    go.send_replace(true);
    let mut counts = [0; 2];
    for call in calls {
        match call.await.unwrap() {
            Answer::Signed(_) => counts[0] += 1,
            Answer::Hint(text) => {
                assert_eq!(text, r#"{"jsonrpc":"2.0","error":{"code":-32014,"message":"overloaded"},"id":null}"#);
                counts[1] += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(counts[0] + counts[1], 40, "every call is answered");
    // A single agent may use half of the queue, and half of the concurrent calls.
    assert!(counts[0] >= 4 && counts[1] >= 20, "{counts:?}");
    assert_eq!(served.running.health().shed.load(Ordering::Relaxed), counts[1]);
    assert_eq!(caller.add().await, sum());
    served.stop().await.unwrap();
}

/// Otherwise four agents with 256 calls each would block a service for everybody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_calls_of_some_agents_leave_places_for_the_others() {
    let server = NatsServer::start().await;
    let site = Site::new(&server.url());
    let slow = ["s1", "s2", "s3", "s4"];
    site.write_ring(&["ann", "s1", "s2", "s3", "s4"]);
    site.write_config("[limits]\nqueue = 64\nin_flight = 32\nhints_per_second = 1000\n");
    let (methods, begun, go) = holding();
    let served = site.serve(methods).await;
    let ann = site.caller("ann").await;
    let mut calls = Vec::new();
    for name in slow {
        let caller = site.caller(name).await;
        // Twice as many as there are places, from each agent.
        for _ in 0..64 {
            let caller = caller.clone();
            calls.push(tokio::spawn(async move { caller.call("site/hold", "[]", 3 * SOON).await }));
        }
    }
    begun_reaches(&begun, 16).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    // No slow call ends before all of these have ended.
    for _ in 0..20 {
        assert_eq!(ann.add().await, sum());
    }
    go.send_replace(true);
    let mut counts = [0; 2];
    for call in calls {
        match call.await.unwrap() {
            Answer::Signed(_) => counts[0] += 1,
            Answer::Hint(_) => counts[1] += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(counts[0] >= 30 && counts[1] >= 100, "{counts:?}");
    served.stop().await.unwrap();
}

/// The guard has a limit on agents: any beyond it would be refused whenever all others are busy.
#[tokio::test]
async fn a_ring_of_more_agents_than_the_guard_has_room_for_is_refused() {
    let site = Site::new("nats://127.0.0.1:1");
    site.write_config("agents = 1\n");
    let error = site.config().check().unwrap_err();
    assert!(error.to_string().contains("2 agents") && error.to_string().contains("`agents` in `[replay]`"), "{error}");
    // Up to as many agents as a key ring may have keys, in the default room: each has its reserve.
    for more in ["agents = 2\n", "agents = 100000\n", "agents = 100000\ntotal = 100000\n"] {
        site.write_config(more);
        site.config().check().unwrap();
        drop(site.config().builder().await.unwrap_or_else(|error| panic!("{more}: {error}")));
    }
    site.write_config("agents = 100001\ntotal = 100000\n");
    let error = site.config().builder().await.err().unwrap();
    assert!(error.to_string().contains("do not fit"), "{error}");
}

/// Waits until a call gets `wanted`.
async fn until(caller: &sealwire_testkit::site::Caller, wanted: &Answer) {
    let waited = async {
        while caller.add().await != *wanted {
            // Not so often that hints are held back: then a call waits in vain.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    within(2 * SOON, waited).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_keys_and_token_keys_are_read_again_and_bad_ones_refused() {
    let server = NatsServer::start().await;
    let site = Site::new(&server.url());
    let deny = site.path("denylist.json");
    std::fs::write(&deny, "{}").unwrap();
    site.write_config("");
    let config = std::fs::read_to_string(site.path("sealwire.toml")).unwrap();
    write(&site.path("sealwire.toml"), &config.replace("[[tokens", "denylist = \"denylist.json\"\n[[tokens"));
    let served = site.serve(methods()).await;
    let caller = site.caller("ann").await;
    let unauthenticated = Answer::Hint(UNAUTHENTICATED.into());
    until(&caller, &sum()).await;

    let policy = site.path("policies/policy.toml");
    write(&policy, "[role.worker]\nallow = [\"site/count\"]\n");
    until(&caller, &Answer::Signed(DENIED.into())).await;
    write(&policy, "[role.worker\nallow = ");
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(caller.add().await, Answer::Signed(DENIED.into()), "a broken file changes nothing");
    write(&policy, sealwire_testkit::site::POLICY);
    until(&caller, &sum()).await;

    site.write_ring(&["bob"]);
    until(&caller, &unauthenticated).await;
    std::fs::write(site.path("ring.json"), "{").unwrap();
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(site.caller("bob").await.add().await, sum(), "the last good ring stays");
    site.write_ring(&["ann", "bob"]);
    until(&caller, &sum()).await;

    let other = sealwire::internal::auth::TokenIssuer::generate("https://issuer.test").unwrap();
    write(&site.path("jwks.json"), &other.public_jwks());
    until(&caller, &unauthenticated).await;
    write(&site.path("jwks.json"), &site.issuer.public_jwks());
    until(&caller, &sum()).await;

    write(&deny, r#"{"keys":["ann.k1"]}"#);
    until(&caller, &unauthenticated).await;
    assert_eq!(site.caller("bob").await.add().await, sum());
    served.stop().await.unwrap();
}

/// The key ring of `site` with ann's key revoked, with this mode: a careless editor leaves it open to others.
fn revoke_ann(site: &Site, mode: u32) {
    use std::os::unix::fs::PermissionsExt as _;
    let mut ring: Value = serde_json::from_str(&std::fs::read_to_string(site.path("ring.json")).unwrap()).unwrap();
    ring["keys"][0]["status"] = "revoked".into();
    // In its place only once it has its mode: the service may look at any time.
    let beside = site.path("ring.new");
    std::fs::write(&beside, ring.to_string()).unwrap();
    std::fs::set_permissions(&beside, std::fs::Permissions::from_mode(mode)).unwrap();
    std::fs::rename(&beside, site.path("ring.json")).unwrap();
}

/// What the service reports about the files that it refuses, as monitoring sees it.
async fn refused_reloads(client: &async_nats::Client) -> Value {
    request(client, "$SRV.STATS.site").await["endpoints"][0]["data"]["reloads_refused"].clone()
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revocation_that_was_refused_holds_once_the_mode_is_corrected() {
    use std::os::unix::fs::PermissionsExt as _;
    let server = NatsServer::start().await;
    let site = Site::new(&server.url());
    let served = site.serve(methods()).await;
    let caller = site.caller("ann").await;
    until(&caller, &sum()).await;
    assert_eq!(refused_reloads(caller.client()).await, serde_json::json!([]));

    revoke_ann(&site, 0o644);
    within(SOON, async {
        while served.running.health().refused_reloads().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let shown = refused_reloads(caller.client()).await;
    assert_eq!((&shown[0]["what"], &shown[0]["closed"]), (&"key ring".into(), &false.into()), "{shown}");
    assert!(shown[0]["since"].as_str().unwrap().starts_with("20"), "{shown}");
    assert_eq!(caller.add().await, sum(), "a refused file is only reported");

    std::fs::set_permissions(site.path("ring.json"), std::fs::Permissions::from_mode(0o600)).unwrap();
    until(&caller, &Answer::Hint(UNAUTHENTICATED.into())).await;
    // It is in force a moment before it is noted.
    within(SOON, async {
        while !served.running.health().refused_reloads().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert_eq!(refused_reloads(caller.client()).await, serde_json::json!([]));
    served.stop().await.unwrap();
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ring_that_cannot_be_read_for_too_long_closes_the_service_if_asked_to() {
    let server = NatsServer::start().await;
    let site = Site::new(&server.url());
    site.write_config("[reload]\nfail_closed_after_s = 1\n");
    let served = site.serve(methods()).await;
    let (ann, bob) = (site.caller("ann").await, site.caller("bob").await);
    until(&ann, &sum()).await;

    let good = std::fs::read_to_string(site.path("ring.json")).unwrap();
    std::fs::remove_file(site.path("ring.json")).unwrap();
    served.reaches(|state| matches!(state, State::Interrupted(_))).await;
    for caller in [&ann, &bob] {
        let Answer::Signed(refused) = caller.add().await else { panic!("not signed") };
        assert!(refused.contains("-32014"), "{refused}");
    }
    assert_eq!(refused_reloads(ann.client()).await[0]["closed"], true);
    let ping = request(ann.client(), "$SRV.PING.site").await;
    assert_eq!(ping["metadata"]["sealwire.state"], "interrupted");

    sealwire::internal::files::write_secret(&site.path("ring.json"), &good, true).unwrap();
    served.ready().await;
    until(&ann, &sum()).await;
    revoke_ann(&site, 0o600);
    until(&ann, &Answer::Hint(UNAUTHENTICATED.into())).await;
    assert_eq!(bob.add().await, sum());
    served.stop().await.unwrap();
}

/// 20 restarts, each under 64 callers. A call that a service accepted is answered. A call that finds nobody is told so at
/// once, and so is a call signed in the very second for which the new guard cannot vouch. So no call ever waits in vain. A
/// start mostly waits for its guard, so five services are restarted side by side.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_accepted_request_is_lost_over_20_restarts() {
    const SERVICES: usize = 5;
    const RESTARTS: usize = 4;
    let services = join_all((0..SERVICES).map(|_| restart_under_load(RESTARTS))).await;
    let [answered, nobody, stale] =
        services.into_iter().fold([0; 3], |sum, service| std::array::from_fn(|of| sum[of] + service[of]));
    println!(
        "{} restarts: {answered} calls answered, {nobody} told that nobody listens, {stale} refused as stale, none lost",
        SERVICES * RESTARTS
    );
    assert!(answered > 500 && nobody > 0 && stale < answered / 10, "{answered} {nobody} {stale}");
}

/// Restarts a service of its own. Returns how many calls were answered, found no responders, and were refused as stale.
async fn restart_under_load(restarts: usize) -> [u64; 3] {
    const CALLERS: u64 = 64;
    let server = NatsServer::start().await;
    let site = Site::new(&server.url());
    site.write_config("[limits]\nagent_per_second = 100000\nagent_burst = 200000\n");
    let config = std::fs::read_to_string(site.path("sealwire.toml")).unwrap();
    // No skew, so that the guard waits no longer than it must.
    write(
        &site.path("sealwire.toml"),
        &config.replace("skew_s = 1", "skew_s = 0\nper_agent = 900000\ntotal = 1000000"),
    );
    let caller = site.caller("ann").await;
    let stop = Arc::new(AtomicBool::new(false));
    let [answered, nobody, stale] = [(); 3].map(|()| Arc::new(AtomicU64::new(0)));
    let mut served = site.serve(methods()).await;
    let load: Vec<_> = (0..CALLERS)
        .map(|_| {
            let (caller, stop) = (caller.clone(), Arc::clone(&stop));
            let [answered, nobody, stale] = [&answered, &nobody, &stale].map(Arc::clone);
            tokio::spawn(async move {
                let mut odd = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    match caller.call("site/sleep", "[20]", SOON).await {
                        Answer::Signed(text) if text.contains("\"result\":20") => {
                            answered.fetch_add(1, Ordering::Relaxed);
                        }
                        Answer::NoResponders => {
                            nobody.fetch_add(1, Ordering::Relaxed);
                            tokio::time::sleep(Duration::from_millis(100)).await;
                        }
                        Answer::Signed(text) if text.contains("\"code\":-32011,") => {
                            stale.fetch_add(1, Ordering::Relaxed);
                        }
                        other => odd.push(format!("{other:?}")),
                    }
                }
                odd
            })
        })
        .collect();
    // Waits until all callers are busy: from then on each has a call in flight.
    let busy = async || {
        let enough = answered.load(Ordering::Relaxed) + 2 * CALLERS;
        while answered.load(Ordering::Relaxed) < enough {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    for _ in 0..restarts {
        within(3 * SOON, busy()).await;
        served.stop().await.unwrap();
        served = site.serve(methods()).await;
    }
    within(3 * SOON, busy()).await;
    stop.store(true, Ordering::Relaxed);
    let mut odd = Vec::new();
    for task in load {
        odd.extend(within(2 * SOON, task).await.unwrap());
    }
    served.stop().await.unwrap();
    assert!(odd.is_empty(), "{} lost: {:?}", odd.len(), &odd[..odd.len().min(10)]);
    [answered, nobody, stale].map(|count| count.load(Ordering::Relaxed))
}

/// A slow broker chose this replica for calls that arrive seconds after the replica was told to stop.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_on_the_way_to_a_replica_that_is_told_to_stop_are_answered() {
    const CALLS: usize = 20;
    const HELD_UP: Duration = Duration::from_secs(4);
    let server = NatsServer::start().await;
    let line = SlowLine::to(server.port()).await;
    let site = Site::new(&server.url());
    let config = std::fs::read_to_string(site.path("sealwire.toml")).unwrap();
    write(&site.path("sealwire.toml"), &config.replace(&server.url(), &line.url()));
    let served = site.serve(methods()).await;
    let caller = site.caller("ann").await;
    assert_eq!(caller.add().await, sum());
    line.slow_down(HELD_UP);
    let calls = join_all((0..CALLS).map(|_| caller.call("site/add", "[1,2]", SOON)));
    let stopped = async {
        // The broker has chosen, as there is only one replica. Whatever it says next waits behind these calls.
        settle(caller.client()).await;
        tokio::time::sleep(HELD_UP / 20).await;
        line.slow_down(Duration::ZERO);
        served.stop().await
    };
    let (answers, stopped) = tokio::join!(calls, stopped);
    assert_eq!(answers, vec![sum(); CALLS]);
    stopped.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_restarts_is_waited_for() {
    let mut server = NatsServer::start().await;
    let site = Site::new(&server.url());
    let served = site.serve(methods()).await;
    let caller = site.caller("ann").await;
    assert_eq!(caller.add().await, sum());
    server.restart().await;
    until(&caller, &sum()).await;
    served.ready().await;
    served.stop().await.unwrap();
}
