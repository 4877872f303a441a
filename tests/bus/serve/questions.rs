//! Questions to a service besides calls: from its other replicas, and from tools on `$SRV`, however many and whatever they contain.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use sealwire::ServeError;
use sealwire::internal::wire::Nonce;
use sealwire::serve::State;
use serde_json::{Value, json};

use sealwire_testkit::raw::{RawConnection, poison_headers};
use sealwire_testkit::site::{Answer, Caller, Served, Site, methods, sum};
use sealwire_testkit::{NatsServer, SOON, settle, within};

/// The users of SPEC.md §19, reduced to what is needed here. A connection that names no user is `ann`.
const BROKER: &str = r#"
accounts { A { users = [
  { user: site, password: site, permissions: {
      publish: ["_INBOX.>", "_SVC.site.replica.>"],
      subscribe: ["rpc.v1.site.>", "rpc.v1-ctl.site.>", "_SVC.site.replica.>", "$SRV.PING", "$SRV.PING.site", "$SRV.PING.site.*",
                  "$SRV.INFO", "$SRV.INFO.site", "$SRV.INFO.site.*", "$SRV.STATS", "$SRV.STATS.site", "$SRV.STATS.site.*"] } }
  { user: blind, password: blind, permissions: {
      publish: ["_INBOX.>"], subscribe: ["rpc.v1.site.>", "rpc.v1-ctl.site.>", "_SVC.site.replica.>", "$SRV.>"] } }
  { user: ann, password: ann, permissions: {
      publish: ["rpc.v1.*.ann", "rpc.v1.*.ann.>"], subscribe: ["_INBOX.ann.>"] } }
  { user: tools, password: tools, permissions: { publish: ["$SRV.>"], subscribe: ["_INBOX.tools.>"] } }
] } }
no_auth_user: ann
"#;

/// Calls of one agent while `flood` goes on. Panics at the first call that fails, and returns how many were answered.
async fn calls_during(caller: &Caller, flood: impl Future<Output = u64>) -> u64 {
    let mut flood = std::pin::pin!(flood);
    let mut answered = 0_u64;
    loop {
        tokio::select! {
            sent = &mut flood => {
                println!("{sent} messages, {answered} calls answered, none failed");
                return sent;
            }
            answer = caller.add() => {
                assert_eq!(answer, sum(), "after {answered} good ones");
                answered += 1;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
}

/// Waits until a question of a tools user is answered, and with it everything that was asked before.
async fn answered_again(server: &NatsServer) {
    let tools = async_nats::ConnectOptions::with_user_and_password("tools".into(), "tools".into());
    let tools = within(SOON, tools.custom_inbox_prefix("_INBOX.tools").connect(server.url())).await.unwrap();
    let asking = async {
        loop {
            let asked = tools.request("$SRV.STATS.site", "".into());
            if let Ok(Ok(_)) = tokio::time::timeout(Duration::from_secs(2), asked).await {
                return;
            }
        }
    };
    within(2 * SOON, asking).await;
}

/// Runs `work` on a thread of its own, like a separate process: the service does not pay for the sending.
async fn elsewhere<F: Future<Output = u64>>(work: impl FnOnce() -> F + Send + 'static) -> u64 {
    let thread = tokio::task::spawn_blocking(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(work())
    });
    within(3 * SOON, thread).await.unwrap()
}

/// Each question has a nonce and so needs a signature. A guard that had doubts would refuse calls for two seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn questions_of_a_tools_user_at_two_thousand_a_second_fail_no_call_and_no_guard_doubts() {
    const TIME: Duration = Duration::from_secs(4);
    let server = NatsServer::start_with(BROKER).await;
    let site = Site::logging_in_as(&server.url(), "site");
    let served = site.serve(methods()).await;
    let caller = site.caller("ann").await;
    let url = server.url();
    let flood = elsewhere(move || async move {
        let mut raw = RawConnection::connect(&url, Some(("tools", "tools"))).await;
        let (started, mut sent) = (Instant::now(), 0);
        loop {
            // The full number, however long the machine stands still.
            let elapsed = started.elapsed().min(TIME);
            let due = (elapsed.as_secs_f64() * 2_000.0) as u64;
            while sent < due {
                raw.publish("$SRV.PING", Some("_INBOX.tools.1"), Nonce::random().to_text().as_bytes()).await;
                sent += 1;
            }
            if elapsed == TIME {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(raw.flush().await.is_empty());
        sent
    });
    let sent = calls_during(&caller, flood).await;
    assert_eq!(sent, 8_000);

    // All at once: some find no room, and are counted.
    let mut raw = RawConnection::connect(&server.url(), Some(("tools", "tools"))).await;
    let question = b"PUB $SRV.STATS _INBOX.tools.1 0\r\n\r\n".repeat(20_000);
    let unasked = async {
        while served.running.health().unasked.load(Ordering::Relaxed) == 0 {
            raw.send(&question).await;
            assert_eq!(caller.add().await, sum());
        }
    };
    within(2 * SOON, unasked).await;
    assert_eq!(served.running.health().unsent.load(Ordering::Relaxed), 0);
    served.stop().await.unwrap();
}

/// Far more than can be read, although the messages between replicas, and answers, use the same connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn questions_as_fast_as_the_broker_takes_them_fail_no_call_and_no_guard_doubts() {
    const TIME: Duration = Duration::from_secs(6);
    let server = NatsServer::start_with(BROKER).await;
    let site = Site::logging_in_as(&server.url(), "site");
    let served = site.serve(methods()).await;
    let caller = site.caller("ann").await;
    let url = server.url();
    let flood = elsewhere(move || async move {
        let mut raw = RawConnection::connect(&url, Some(("tools", "tools"))).await;
        let questions = b"PUB $SRV.STATS.site _INBOX.tools.1 0\r\n\r\n".repeat(4_000);
        let (started, mut sent) = (Instant::now(), 0);
        // More than can be read, also where a busy machine makes that take longer.
        while started.elapsed() < TIME || sent <= 200_000 {
            raw.send(&questions).await;
            sent += 4_000;
        }
        sent
    });
    assert!(calls_during(&caller, flood).await > 200_000);
    let health = served.running.health();
    let count = |number: &std::sync::atomic::AtomicU64| number.load(Ordering::Relaxed);
    assert_eq!((count(&health.reconnected), count(&health.unsent)), (0, 0));
    assert!(count(&health.unasked) > 0);

    // Questions are answered again once the broker has handed over what it held back.
    answered_again(&server).await;
    served.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn poison_on_discovery_at_five_thousand_a_second_fails_no_call() {
    const TIME: Duration = Duration::from_secs(3);
    let server = NatsServer::start_with(BROKER).await;
    let site = Site::logging_in_as(&server.url(), "site");
    let served = site.serve(methods()).await;
    let caller = site.caller("ann").await;
    let url = server.url();
    let flood = elsewhere(move || async move {
        let mut raw = RawConnection::connect(&url, Some(("tools", "tools"))).await;
        raw.flood(5_000, TIME, || ("$SRV.PING".into(), "_INBOX.tools.1".into())).await
    });
    assert_eq!(calls_during(&caller, flood).await, 15_000);
    assert_eq!(served.running.health().reconnected.load(Ordering::Relaxed), 0, "no connection was lost");
    assert_eq!(*served.running.state().borrow(), State::Ready);
    // Header blocks are not read here: a question is a question whatever its headers contain.
    // No room may be left for them before.
    answered_again(&server).await;
    let mut raw = RawConnection::connect(&server.url(), Some(("tools", "tools"))).await;
    raw.send(b"SUB _INBOX.tools.> 1\r\n").await;
    for (kind, block) in poison_headers() {
        let reply = format!("_INBOX.tools.{}", Nonce::random().to_text());
        raw.hpub_raw("$SRV.PING.site", Some(&reply), block, b"").await;
        while !raw.line().await.contains(&reply) {}
        println!("answered: {kind}");
    }
    served.stop().await.unwrap();
}

/// Only the broker's permissions keep others from asking and answering: a service does not start without them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_may_not_ask_its_replicas_says_what_to_permit() {
    let server = NatsServer::start_with(BROKER).await;
    let error = Site::logging_in_as(&server.url(), "blind").start(methods()).await.ended().await.unwrap_err();
    assert!(matches!(error, ServeError::Blind { .. }), "{error}");
    let said = error.to_string();
    assert!(said.contains("`_SVC.site.replica.peers`") && said.contains("`_SVC.site.replica.>`"), "{said}");
}

/// Removes the service's key from the configuration, and sets another state file.
fn without_a_key(site: &Site) {
    site.write_config("state = \"other.floor\"\n");
    let config = site.path("sealwire.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    assert!(text.contains("service_key = \"service-key.json\"\n"));
    std::fs::write(&config, text.replace("service_key = \"service-key.json\"\n", "")).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_with_and_without_a_key_do_not_start_beside_each_other() {
    let server = NatsServer::start().await;
    let site = Site::new(&server.url());
    let keyed = site.serve(methods()).await;
    without_a_key(&site);
    let error = site.start(methods()).await.ended().await.unwrap_err();
    assert!(matches!(error, ServeError::AnotherReplica { .. }), "{error}");
    keyed.stop().await.unwrap();

    let keyless = site.serve(methods()).await;
    site.write_config("");
    let error = site.start(methods()).await.ended().await.unwrap_err();
    assert!(matches!(&error, ServeError::AnotherReplica { why, .. } if why.contains("not signed")), "{error}");
    assert_eq!(site.caller("ann").await.add().await, sum(), "the first one goes on");
    keyless.stop().await.unwrap();
}

/// Answers each question between replicas like a replica with another guard, but without being able to sign.
async fn answer_as_another(server: &NatsServer) -> tokio::task::JoinHandle<()> {
    let client = server.client().await;
    let mut asked = client.subscribe("_SVC.site.replica.peers").await.unwrap();
    settle(&client).await;
    tokio::spawn(async move {
        while let Some(question) = asked.next().await {
            let identity = json!({ "kind": "local", "stream": "", "created_ms": 0, "window_s": 30, "skew_s": 1 });
            let said = json!({ "id": "ghost", "metadata": {
                "sealwire.audience": "test/site", "sealwire.subject": "rpc.v1.site.>", "sealwire.guard": "local",
                "sealwire.guard.identity": identity.to_string(), "sealwire.guard.ready": "true",
                "sealwire.started": "1", "sealwire.state": "ready" } });
            client.publish(question.reply.unwrap(), said.to_string().into()).await.unwrap();
        }
    })
}

async fn until(caller: &Caller, wanted: impl Fn(&Answer) -> bool) {
    let deadline = Instant::now() + SOON;
    loop {
        let answer = caller.add().await;
        if wanted(&answer) {
            return;
        }
        assert!(Instant::now() < deadline, "{answer:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn is_up(served: &Served) -> bool {
    *served.running.state().borrow() == State::Ready
}

/// At a broker where anybody may answer: an unsigned answer keeps a replica from starting, and a running one from admitting
/// anything while such answers come. It ends no replica, and is not mistaken for the replica's own answer either.
/// SPEC.md §18.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_without_a_proof_closes_the_guard_and_ends_no_replica() {
    let server = NatsServer::start().await;
    let site = Site::new(&server.url());
    let served = site.serve(methods()).await;
    let caller = site.caller("ann").await;
    assert_eq!(caller.add().await, sum());
    let ghost = answer_as_another(&server).await;
    let refused = |answer: &Answer| matches!(answer, Answer::Signed(text) if text.contains("-320"));
    until(&caller, refused).await;
    let still = Instant::now() + Duration::from_secs(3);
    while Instant::now() < still {
        let answer = caller.add().await;
        assert!(refused(&answer) && is_up(&served), "{answer:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    ghost.abort();
    until(&caller, |answer| *answer == sum()).await;
    assert!(is_up(&served));
    served.stop().await.unwrap();

    let ghost = answer_as_another(&server).await;
    let error = site.start(methods()).await.ended().await.unwrap_err();
    assert!(matches!(&error, ServeError::AnotherReplica { instance, .. } if instance == "ghost"), "{error}");
    ghost.abort();
}

/// Among the answers that found no room could be one from a replica that has another guard.
/// SPEC.md §18.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_hears_too_much_has_not_heard_itself() {
    let server = NatsServer::start().await;
    let site = Site::new(&server.url());
    let served = site.serve(methods()).await;
    let caller = site.caller("ann").await;
    assert_eq!(caller.add().await, sum());
    let mut raw = RawConnection::connect(&server.url(), None).await;
    let client = server.client().await;
    let mut asked = client.subscribe("_SVC.site.replica.peers").await.unwrap();
    settle(&client).await;
    let shouting = tokio::spawn(async move {
        while let Some(question) = asked.next().await {
            raw.send(format!("PUB {} 1\r\nx\r\n", question.reply.unwrap()).repeat(1_100).as_bytes()).await;
        }
    });
    until(&caller, |answer| *answer != sum()).await;
    assert!(is_up(&served));
    shouting.abort();
    until(&caller, |answer| *answer == sum()).await;
    served.stop().await.unwrap();
}

/// Replicas and health checks ask outside `$SRV`; tools get answers as in ADR-32, signed if the question has a nonce.
/// SPEC.md §18.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tools_get_signed_answers_in_their_inboxes_and_none_where_replicas_listen() {
    let server = NatsServer::start().await;
    let site = Site::new(&server.url());
    let served = site.serve(methods()).await;
    let client = server.client().await;
    let signed = within(SOON, client.request("$SRV.PING.site", Nonce::random().to_text().into())).await.unwrap();
    let header = signed.headers.unwrap();
    assert!(header.get("Authentication-Info").unwrap().as_str().starts_with("NatsRpc ey"));
    let plain = within(SOON, client.request("$SRV.PING.site", "".into())).await.unwrap();
    assert!(plain.headers.is_none());
    let said: Value = serde_json::from_slice(&plain.payload).unwrap();
    assert_eq!(said["id"], served.running.instance());
    // The service would publish this with its own rights for whoever asks: so never to another replica's inbox.
    let mut heard = client.subscribe("_SVC.site.replica.x.>").await.unwrap();
    settle(&client).await;
    client.publish_with_reply("$SRV.PING.site", "_SVC.site.replica.x.1", "".into()).await.unwrap();
    client.publish_with_reply("_SVC.site.replica.peers", "_SVC.site.replica.x.2", "".into()).await.unwrap();
    assert_eq!(within(SOON, heard.next()).await.unwrap().subject.as_str(), "_SVC.site.replica.x.2");
    served.stop().await.unwrap();
}
