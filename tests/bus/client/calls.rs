//! What a client can ask for, and what it gets when everybody is honest.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use sealwire::ClientError;
use sealwire::errors::{ErrorKind, InvalidRequest};
use serde_json::json;

use super::{Stage, at_once, eventually};
use sealwire::call::StaticToken;
use sealwire::internal::auth::IssueRequest;
use sealwire::internal::rpc::Responses;
use sealwire::serve::Delivery;
use sealwire::{BusConfig, Client, Clock as _, Credentials, Ctx, Name, Router, RpcError, SystemClock};
use sealwire_testkit::site::{Site, agent_key};
use sealwire_testkit::{NatsServer, SOON, publish, within};
use serde_json::Value;
use tokio::sync::Notify;

#[tokio::test]
async fn calls_by_name_and_by_position_get_their_results() {
    let stage = Stage::open().await;
    let _serving = stage.serve().await;
    // An HMAC agent and an Ed25519 agent.
    for agent in ["ann", "eve"] {
        let client = stage.client(agent).await;
        let sum: i64 = within(SOON, client.call("desk", "desk/add", json!({"a": 2, "b": 3}))).await.unwrap();
        assert_eq!(sum, 5);
        let sum: i64 = within(SOON, client.call("desk", "desk/add", (20, 3))).await.unwrap();
        assert_eq!(sum, 23);
        let on_method = client.request("desk").on_method_subject().call("desk/add", (1, 1));
        assert_eq!(within(SOON, on_method).await.map(|sum: i64| sum).unwrap(), 2);
        assert_eq!(client.stats().pending, 0);
    }
}

#[tokio::test]
async fn errors_of_method_and_policy_are_the_service_s_own() {
    let stage = Stage::open().await;
    let _serving = stage.serve().await;
    let client = stage.client("ann").await;
    let cases = [("desk/fail", 7), ("vault/open", -32002), ("no/such", -32002), ("desk/nothing", -32601)];
    for (method, code) in cases {
        let error = within(SOON, client.call::<()>("desk", method, ())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Remote, "{method}: {error}");
        assert_eq!(error.remote().unwrap().code(), code, "{method}");
        assert!(!error.is_outcome_unknown());
    }
    let error = within(SOON, client.call::<()>("desk", "desk/fail", ())).await.unwrap_err();
    assert_eq!(error.remote().unwrap().data().unwrap().get(), "[1]");
    // There is a result, but not of the requested type.
    let error = within(SOON, client.call::<String>("desk", "desk/add", (1, 2))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Decode, "{error}");
}

#[tokio::test]
async fn thousand_calls_at_once_each_get_their_own_answer() {
    let stage = Stage::open().await;
    let _serving = stage.serve().await;
    let client = stage.client("ann").await;
    let calls = (0..1000_i64).map(|n| {
        let client = client.clone();
        async move { client.request("desk").deadline(SOON).call::<i64>("desk/add", (n, n)).await.map(|sum| (n, sum)) }
    });
    let sums = within(2 * SOON, join_all(calls)).await;
    for sum in sums {
        // The quota of the stage has room for all of them, so none may fail.
        match sum {
            Ok((n, sum)) => assert_eq!(sum, n + n),
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(client.stats().pending, 0);
}

#[tokio::test]
async fn more_calls_than_places_wait_for_their_turn_and_then_fail_unsent() {
    let stage = Stage::open().await;
    let _serving = stage.serve().await;
    let client = within(SOON, stage.builder("ann").in_flight(2).connect()).await.unwrap();
    let turns = (0..6).map(|n| client.call::<i64>("desk", "desk/add", (n, 1)));
    for (n, sum) in within(SOON, join_all(turns)).await.into_iter().enumerate() {
        assert_eq!(sum.unwrap(), i64::try_from(n).unwrap() + 1);
    }
    // They hold their places for as long as this takes.
    let slow: Vec<_> = (0..2)
        .map(|_| {
            let call = client.request("desk").deadline(Duration::from_secs(500));
            tokio::spawn(call.call::<u64>("desk/sleep", (400_000,)))
        })
        .collect();
    eventually("both have places", || client.stats().pending == 2).await;
    let late = client.request("desk").deadline(Duration::from_millis(100)).call::<u64>("desk/count", ());
    let late = within(SOON, late).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Busy, "{late}");
    assert!(!late.is_outcome_unknown());
    assert_eq!(stage.executed(), 0);
    slow.iter().for_each(tokio::task::JoinHandle::abort);
    let next = client.request("desk").deadline(SOON).call::<i64>("desk/add", (1, 1));
    assert_eq!(within(2 * SOON, next).await.unwrap(), 2, "their places are free again");
}

#[tokio::test]
async fn notification_is_executed_and_not_waited_for() {
    let stage = Stage::open().await;
    let _serving = stage.serve().await;
    let client = stage.client("ann").await;
    within(SOON, client.notify("desk", "desk/count", ())).await.unwrap();
    within(SOON, client.request("desk").on_method_subject().notify("desk/count", ())).await.unwrap();
    eventually("both are executed", || stage.executed() == 2).await;
    // A denied notification is silent as well.
    within(SOON, client.notify("desk", "vault/open", ())).await.unwrap();
    assert_eq!(client.stats().pending, 0);
}

#[tokio::test]
async fn entries_of_a_batch_fail_alone() {
    let stage = Stage::open().await;
    let _serving = stage.serve().await;
    for agent in ["ann", "eve"] {
        let client = stage.client(agent).await;
        let before = stage.executed();
        let mut batch = client.batch("desk");
        let sum = batch.call("desk/add", (2, 3));
        let denied = batch.call("vault/open", ());
        batch.notify("desk/count", ());
        let failed = batch.call("desk/fail", ());
        let last = batch.call("desk/add", json!({"b": 1, "a": 1}));
        assert_eq!(batch.len(), 5);
        let mut answers = within(SOON, batch.send()).await.unwrap();
        assert_eq!(answers.take::<i64>(sum).unwrap(), 5);
        assert_eq!(answers.error(denied).unwrap().code(), -32002);
        assert_eq!(answers.take::<()>(denied).unwrap_err().remote().unwrap().code(), -32002);
        assert_eq!(answers.take::<()>(failed).unwrap_err().remote().unwrap().code(), 7);
        assert_eq!(answers.take::<i64>(last).unwrap(), 2);
        assert_eq!(answers.take::<i64>(last).unwrap_err().kind(), ErrorKind::Protocol, "taken before");
        assert_eq!(stage.executed(), before + 1);
    }
}

/// SPEC.md §9.2: the first attempt ran, but its answer was lost, and the policy changed before the second attempt.
#[tokio::test]
async fn an_entry_that_ran_is_not_said_to_be_denied_by_a_repetition() {
    let stage = Stage::open().await;
    let (service, attempts) = (stage.desk.service.clone(), Arc::new(AtomicU64::new(0)));
    let (ran, denied) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let _serving = stage
        .answer_with(None, {
            let (ran, denied, attempts) = (Arc::clone(&ran), Arc::clone(&denied), Arc::clone(&attempts));
            move |bus, message| {
                let (service, ran, denied) = (service.clone(), Arc::clone(&ran), Arc::clone(&denied));
                let is_first = attempts.fetch_add(1, Ordering::SeqCst) == 0;
                async move {
                    let reply = message.reply.clone().unwrap();
                    let sealed = service.handle(Delivery::from(message)).await.unwrap();
                    if !is_first {
                        return publish(&bus, sealed).await;
                    }
                    ran.notify_one();
                    denied.notified().await;
                    let hint = r#"{"jsonrpc":"2.0","error":{"code":-32014,"message":"overloaded"},"id":null}"#;
                    bus.publish(reply, hint.into()).await.unwrap();
                }
            }
        })
        .await;
    let client = stage.client("ann").await;
    let count = r#"{"jsonrpc":"2.0","method":"desk/count","id":1}"#;
    for is_raw in [false, true] {
        attempts.store(0, Ordering::SeqCst);
        stage.desk.change_policy("[role.worker]\nallow = [\"desk/*\"]\n");
        let (before, request) = (stage.executed(), client.request("desk").idempotent().idempotency_key("k"));
        let call = async {
            if is_raw {
                let batch = format!("[{count},{}]", count.replace("count", "key").replace('1', "2"));
                return request.send_raw(batch).await.unwrap_err();
            }
            let mut batch = request.batch();
            let (counted, key) = (batch.call("desk/count", ()), batch.call("desk/key", ()));
            let mut answers = batch.send().await.unwrap();
            assert_eq!(answers.take::<String>(key).unwrap(), "k");
            answers.take::<u64>(counted).unwrap_err()
        };
        let changes = async {
            ran.notified().await;
            stage.desk.change_policy("[role.worker]\nallow = [\"desk/*\"]\ndeny = [\"desk/count\"]\n");
            denied.notify_one();
        };
        let (error, ()) = within(SOON, futures_util::future::join(call, changes)).await;
        assert_eq!((stage.executed() - before, attempts.load(Ordering::SeqCst)), (1, 2));
        assert!(error.is_outcome_unknown(), "{error:?}");
        let ClientError::Repeated { earlier, last } = &error else { panic!("{error:?}") };
        assert_eq!((earlier.kind(), last.remote().map(RpcError::code)), (ErrorKind::Hint, Some(-32002)));
    }
}

#[tokio::test]
async fn batch_of_notifications_is_executed_and_not_waited_for() {
    let stage = Stage::open().await;
    let _serving = stage.serve().await;
    let client = stage.client("ann").await;
    let mut batch = client.batch("desk");
    batch.notify("desk/count", ());
    batch.notify("desk/count", ());
    within(SOON, batch.send()).await.unwrap();
    eventually("both are executed", || stage.executed() == 2).await;
    assert_eq!(client.stats().pending, 0);
}

#[tokio::test]
async fn what_the_protocol_cannot_express_is_refused_before_it_is_sent() {
    let stage = Stage::open().await;
    let mut seen = stage.overhear().await;
    let client = stage.client("ann").await;
    let desk = || client.request("desk");
    let error = within(SOON, client.call::<()>("no.such", "a", ())).await.unwrap_err();
    assert!(matches!(error, ClientError::Invalid(InvalidRequest::Name(_))), "{error}");
    let error = within(SOON, client.call::<()>("desk", "a", 5)).await.unwrap_err();
    assert!(matches!(error, ClientError::Invalid(InvalidRequest::Params(_))), "{error}");
    let error = within(SOON, desk().on_method_subject().call::<()>("a..b", ())).await.unwrap_err();
    assert!(matches!(error, ClientError::Invalid(InvalidRequest::Name(_))), "{error}");
    for wrong in [Duration::ZERO, Duration::from_micros(10), Duration::from_millis(600_001)] {
        let error = within(SOON, desk().deadline(wrong).call::<()>("a", ())).await.unwrap_err();
        assert!(matches!(error, ClientError::Invalid(InvalidRequest::Deadline(_))), "{error}");
    }
    for key in [String::new(), "x".repeat(129), "ä".to_owned()] {
        let error = within(SOON, desk().idempotency_key(key).call::<()>("a", ())).await.unwrap_err();
        assert!(matches!(error, ClientError::Invalid(InvalidRequest::IdempotencyKey)), "{error}");
    }
    let error = within(SOON, client.batch("desk").send()).await.unwrap_err();
    assert!(matches!(error, ClientError::Invalid(InvalidRequest::BatchSize(0))), "{error}");
    let mut long = client.batch("desk");
    (0..51).for_each(|_| long.notify("desk/count", ()));
    let error = within(SOON, long.send()).await.unwrap_err();
    assert!(matches!(error, ClientError::Invalid(InvalidRequest::BatchSize(51))), "{error}");
    let mut wrong = client.batch("desk");
    wrong.call("desk/add", "text");
    assert_eq!(within(SOON, wrong.send()).await.unwrap_err().kind(), ErrorKind::Invalid);
    let mut subject = desk().on_method_subject().batch();
    subject.call("desk/add", (1, 2));
    assert_eq!(within(SOON, subject.send()).await.unwrap_err().kind(), ErrorKind::Invalid);
    assert!(at_once(&mut seen).is_none(), "nothing was sent");
}

#[tokio::test]
async fn raw_payload_arrives_as_it_is_and_its_answer_is_verified() {
    let stage = Stage::open().await;
    let _serving = stage.serve().await;
    let client = stage.client("ann").await;
    let payload = r#" {"id" : 1.50e1, "jsonrpc":"2.0","method":"desk/add","params":[1,2]} "#;
    let answer = within(SOON, client.send_raw("desk", payload)).await.unwrap();
    assert_eq!(answer, r#"{"jsonrpc":"2.0","result":3,"id":1.50e1}"#);
    let (text, responses) = within(SOON, client.request("desk").relay().exchange(payload)).await.unwrap();
    assert!(text == answer && matches!(responses, Responses::Single(response) if response.outcome.is_ok()));
    let answer = within(SOON, client.send_raw("desk", "nonsense")).await.unwrap();
    assert!(answer.contains("-32700"), "{answer}");
    let other = r#"{"jsonrpc":"2.0","method":"desk/count","id":1}"#;
    let mismatch = client.request("desk").on_subject_of("desk/add").send_raw(other);
    let answer = within(SOON, mismatch).await.unwrap();
    assert!(answer.contains("-32600"), "{answer}");
    within(SOON, client.request("desk").publish_raw(r#"{"jsonrpc":"2.0","method":"desk/count"}"#)).await.unwrap();
    eventually("the notification is executed", || stage.executed() == 1).await;
}

#[tokio::test]
async fn idempotency_key_reaches_the_method() {
    let stage = Stage::open().await;
    let _serving = stage.serve().await;
    let client = stage.client("ann").await;
    let with_key = client.request("desk").idempotency_key("order 7").call::<Option<String>>("desk/key", ());
    assert_eq!(within(SOON, with_key).await.unwrap().as_deref(), Some("order 7"));
    let without = client.call::<Option<String>>("desk", "desk/key", ());
    assert_eq!(within(SOON, without).await.unwrap(), None);
}

#[tokio::test]
async fn deadline_ends_the_wait_and_is_told_to_the_service() {
    let stage = Stage::open().await;
    let _silent = stage.answer_with(None, |_, _| async {}).await;
    let client = within(SOON, stage.builder("ann").deadline(Duration::from_secs(500)).connect()).await.unwrap();
    let started = std::time::Instant::now();
    let call = client.request("desk").deadline(Duration::from_millis(300)).call::<u64>("desk/count", ());
    let error = within(SOON, call).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert!(error.is_outcome_unknown());
    let waited = started.elapsed();
    // The client's own deadline would come later.
    assert!(waited >= Duration::from_millis(300) && waited < 2 * SOON, "{waited:?}");
    assert_eq!(client.stats().pending, 0);
}

#[tokio::test]
async fn unanswered_and_cancelled_calls_leave_nothing_behind() {
    let stage = Stage::open().await;
    let _silent = stage.answer_with(None, |_, _| async {}).await;
    let client = stage.client("ann").await;
    let unanswered = (0..10_000).map(|_| {
        let client = client.clone();
        async move { client.request("desk").deadline(Duration::from_secs(2)).call::<u64>("desk/count", ()).await }
    });
    let errors = within(Duration::from_secs(60), join_all(unanswered)).await;
    // Some calls had a place but got no answer; the others got no place in time.
    for error in errors {
        let kind = error.unwrap_err().kind();
        assert!(matches!(kind, ErrorKind::Timeout | ErrorKind::Busy), "{kind:?}");
    }
    assert_eq!(client.stats().pending, 0);
    // One thousand after the other, so that all of them are sent.
    for _ in 0..10 {
        let thousand =
            (0..1000).map(|_| client.request("desk").deadline(Duration::from_millis(50)).call::<u64>("a", ()));
        drop(within(Duration::from_secs(60), join_all(thousand)).await);
    }
    assert_eq!(client.stats().pending, 0);

    let cancelled: Vec<_> = (0..500)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move {
                client.request("desk").deadline(Duration::from_secs(500)).call::<u64>("desk/count", ()).await
            })
        })
        .collect();
    eventually("all of them wait", || client.stats().pending == 500).await;
    for task in &cancelled {
        task.abort();
    }
    eventually("none of them waits", || client.stats().pending == 0).await;
}

#[tokio::test]
async fn closed_client_ends_its_calls_and_takes_no_more() {
    let stage = Stage::open().await;
    let _serving = stage.serve().await;
    let client = stage.client("ann").await;
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.request("desk").deadline(Duration::from_secs(500)).call::<u64>("desk/sleep", (400_000,)).await }
    });
    eventually("the call waits", || client.stats().pending == 1).await;
    within(SOON, client.notify("desk", "desk/count", ())).await.unwrap();
    within(SOON, client.close()).await;
    let waited = within(SOON, waiting).await.unwrap().unwrap_err();
    assert!(waited.kind() == ErrorKind::Closed && waited.is_outcome_unknown(), "{waited:?}");
    let error = within(SOON, client.call::<u64>("desk", "desk/count", ())).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Closed && !error.is_outcome_unknown(), "nothing was sent: {error:?}");
    assert_eq!(client.stats().pending, 0);
    eventually("what was published is executed", || stage.executed() == 1).await;
    within(SOON, client.close()).await;
}

#[tokio::test]
async fn nobody_listening_is_told_at_once() {
    let stage = Stage::open().await;
    let client = stage.client("ann").await;
    // After the deadline, the error would be another.
    let error = within(SOON, client.call::<u64>("desk", "desk/count", ())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoResponders, "{error}");
    assert!(error.is_outcome_unknown() && error.to_string().contains("rpc.v1.desk.ann"), "{error}");
}

#[tokio::test]
async fn idempotent_call_waits_for_a_service_that_starts() {
    let stage = Stage::open().await;
    let client = stage.client("ann").await;
    let call = client.request("desk").deadline(SOON).idempotent().call::<u64>("desk/count", ());
    let starts = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        stage.serve().await
    };
    let (count, _serving) = within(SOON, futures_util::future::join(call, starts)).await;
    assert_eq!(count.unwrap(), 1);
}

#[tokio::test]
async fn requests_on_behalf_of_others_are_made_and_controlled_with_their_tokens() {
    let server = NatsServer::start().await;
    let site = Site::new(&server.url());
    let policy =
        "[role.worker]\nallow = []\n[rule.others]\nroles = [\"worker\"]\nallow = [\"site/*\"]\ndelegated = \"only\"\n";
    std::fs::write(site.path("policies/policy.toml"), policy).unwrap();
    let begun = std::sync::Arc::new(tokio::sync::Notify::new());
    let who = |ctx: Ctx<_>, (): ()| async move { Ok::<_, RpcError>(json!([ctx.caller().agent, ctx.caller().subject])) };
    let wait = |ctx: Ctx<std::sync::Arc<tokio::sync::Notify>>, (): ()| async move {
        ctx.state().notify_one();
        std::future::pending::<Result<(), RpcError>>().await
    };
    let router = Router::new(std::sync::Arc::clone(&begun)).method("site/who", who).method("site/wait", wait);
    let served = site.serve(router).await;
    let name = |text| Name::new(text).unwrap();
    let credentials = Credentials::new(name("test"), name("ann"), agent_key("ann"), BusConfig::open(&server.url()));
    let client = Client::connect(credentials.token(site.token("ann", &["worker"]))).await.unwrap();
    let tokens = |subject: &str, actor: &str| {
        let mut request = IssueRequest::new(subject, site.endpoint.audience().as_str(), SystemClock.now_s());
        request.actor = Some(actor.to_owned());
        request.roles = ["worker".to_owned()].into();
        client.tokens(StaticToken::new(site.issuer.issue(&request).unwrap()))
    };
    for subject in ["zoe", "max"] {
        let asking =
            client.request("site").relay().tokens(&tokens(subject, "ann")).request().call::<Value>("site/who", ());
        assert_eq!(within(SOON, asking).await.unwrap(), json!(["ann", subject]));
    }
    let found =
        within(SOON, client.request("site").relay().tokens(&tokens("zoe", "ann")).request().discover()).await.unwrap();
    assert_eq!(found.methods.iter().map(|method| method.name.as_str()).collect::<Vec<_>>(), ["site/wait", "site/who"]);
    // Without the tokens, the agent's own is used, which these rules do not cover; another agent's token does not help.
    let own = within(SOON, client.call::<Value>("site", "site/who", ())).await.unwrap_err();
    assert_eq!(own.remote().unwrap().code(), -32002);
    assert!(within(SOON, client.discover("site")).await.unwrap().methods.is_empty());
    let foreign = client.request("site").relay().tokens(&tokens("zoe", "bob")).request().call::<Value>("site/who", ());
    assert_eq!(within(SOON, foreign).await.unwrap_err().kind(), ErrorKind::Hint);
    let none = client
        .request("site")
        .relay()
        .tokens(&client.tokens(StaticToken::new("none")))
        .request()
        .call::<Value>("site/who", ());
    assert_eq!(within(SOON, none).await.unwrap_err().kind(), ErrorKind::Token);
    // The service accepts control of a call only from its caller.
    let waiting =
        client.request("site").relay().tokens(&tokens("zoe", "ann")).request().stream::<Value>("site/wait", ());
    within(SOON, begun.notified()).await;
    assert!(within(SOON, waiting.cancel()).await);
    within(SOON, served.stop()).await.unwrap();
}
