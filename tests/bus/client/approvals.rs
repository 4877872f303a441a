//! A call that waits until people have approved it: SPEC.md §6.3.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use sealwire::call::{PendingApproval, TaskState};
use sealwire::configure::AgentKey;
use sealwire::errors::{ErrorKind, InvalidRequest, code};
use sealwire::internal::auth::{IssueRequest, KeyEntry};
use sealwire::serve::Delivery;
use sealwire::{Client, ClientError, Clock as _, Ctx, Idempotent, Name, RequestBuilder, Router, RpcError};
use sealwire_testkit::desk::{Agent, Desk, Setup, call, digest};
use sealwire_testkit::{NatsServer, SOON, publish, within};
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;

use super::{Serving, Stage, at_once};

const POLICY: &str = r#"
[method."desk/pay"]
params = [{ name = "amount", type = "integer" }]
[role.worker]
allow = ["desk/*"]
[role.treasurer]
allow = ["rpc.*"]
[approval.two-treasurers]
from = ["treasurer"]
count = 2
within = "30m"
[rule.large]
everyone = true
deny = ["desk/pay"]
unless_approved = "two-treasurers"
when.params.amount = { min = 100 }
"#;

const APPROVERS: [(&str, u8); 2] = [("tess", 41), ("tom", 42)];

/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);

/// A service whose large payments two treasurers approve. A payment returns its amount and its idempotency key, and may be made as a task.
fn stage(server: NatsServer) -> Stage {
    let executed = Arc::new(AtomicU64::new(0));
    #[derive(serde::Deserialize)]
    struct Pay {
        amount: i64,
    }
    let pay = |ctx: Ctx<Arc<AtomicU64>>, Pay { amount }: Pay| async move {
        ctx.state().fetch_add(1, Ordering::SeqCst);
        Ok::<_, RpcError>((amount, ctx.idempotency_key().map(str::to_owned)))
    };
    let declared = Idempotent::keep(LONG).as_task(LONG);
    let router = Router::new(Arc::clone(&executed)).method("desk/pay", pay).idempotent("desk/pay", declared);
    let desk = Desk::open_as(Setup { policy: POLICY, ..Setup::default() }, |service| service.methods(router));
    desk.change_ring(|keys| {
        for (owner, seed) in APPROVERS {
            let public = key(owner, seed).public().unwrap();
            keys.push(KeyEntry::ed25519(&format!("{owner}.k1"), Name::new(owner).unwrap(), public));
        }
    });
    Stage { server, desk, executed }
}

fn key(owner: &str, seed: u8) -> AgentKey {
    AgentKey::ed25519(&format!("{owner}.k1"), [seed; 32]).unwrap()
}

/// Asks the service as one of the treasurers, past the bus.
async fn ask(desk: &Desk, owner: &str, method: &str, params: &Value) -> Value {
    let (_, seed) = APPROVERS.into_iter().find(|(known, _)| *known == owner).unwrap();
    let mut request = IssueRequest::new(owner, "test/desk", desk.clock.now_s());
    request.roles = ["treasurer".to_owned()].into();
    let token = desk.issuer.issue(&request).unwrap();
    let by = Agent { name: Name::new(owner).unwrap(), key: key(owner, seed), token };
    let answer = desk.ask(&by, &call(method, &params.to_string())).await.unwrap();
    serde_json::from_str(&answer).unwrap()
}

/// The state of a request after a treasurer's decision.
async fn decide(desk: &Desk, owner: &str, id: &str, decision: &str) -> String {
    let shown = ask(desk, owner, "rpc.approval", &json!({ "id": id })).await;
    let text = shown["result"]["text"].as_str().unwrap_or_else(|| panic!("{shown}"));
    let signed = digest(&[b"sealwire-approval-v1\0", text.as_bytes()].concat());
    let mut params = json!({ "id": id, "digest": signed, "decision": decision });
    if decision == "approve" {
        params["approval"] = "two-treasurers".into();
    }
    let answer = ask(desk, owner, "rpc.approve", &params).await;
    answer["result"]["state"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

type Paid = (i64, Option<String>);

/// A call that waits, and what it is told meanwhile.
struct Waiter {
    call: JoinHandle<Result<Paid, ClientError>>,
    told: mpsc::UnboundedReceiver<PendingApproval>,
}

impl Waiter {
    fn begin(client: &Client, amount: i64, change: impl FnOnce(RequestBuilder) -> RequestBuilder) -> Self {
        let (tell, told) = mpsc::unbounded_channel();
        let request = client.request("desk").deadline(SOON).await_approval(LONG);
        let request = change(request.on_pending(move |pending| drop(tell.send(pending.clone()))));
        Self { call: tokio::spawn(request.call("desk/pay", json!({ "amount": amount }))), told }
    }

    async fn is_told(&mut self) -> PendingApproval {
        within(SOON, self.told.recv()).await.unwrap()
    }

    async fn end(self) -> Result<Paid, ClientError> {
        within(SOON, self.call).await.unwrap()
    }
}

/// The data of the error that the service has answered with.
#[track_caller]
fn refused(ended: Result<Paid, ClientError>, code: i32) -> (Value, bool) {
    let error = ended.unwrap_err();
    let remote = error.remote().unwrap_or_else(|| panic!("{error}"));
    assert_eq!(remote.code(), code, "{error}");
    (serde_json::from_str(remote.data().unwrap().get()).unwrap(), error.is_outcome_unknown())
}

#[tokio::test]
async fn a_call_that_waits_is_told_what_for_and_runs_once_it_is_approved() {
    let stage = stage(NatsServer::start().await);
    let _serving = stage.serve().await;
    let client = stage.client("ann").await;
    // Nobody has to be asked.
    let small = within(SOON, client.request("desk").await_approval(LONG).call::<Paid>("desk/pay", [99])).await.unwrap();
    assert_eq!(small, (99, None));
    let mut waiter = Waiter::begin(&client, 100, |request| request.idempotency_key("pay-17"));
    let first = waiter.is_told().await;
    let need = &first.needs[0];
    assert_eq!((need.approval.as_str(), need.roles.join(" ").as_str()), ("two-treasurers", "treasurer"));
    assert_eq!((need.count, need.have, first.retry_after), (2, 0, Duration::from_secs(2)));
    assert_eq!(first.deadline, stage.desk.clock.now_s() + 1800);
    assert_eq!(decide(&stage.desk, "tess", &first.id, "approve").await, "pending");
    let second = waiter.is_told().await;
    assert_eq!((second.id.as_str(), second.needs[0].have), (first.id.as_str(), 1));
    assert_eq!(stage.executed(), 1);
    assert_eq!(decide(&stage.desk, "tom", &first.id, "approve").await, "approved");
    // Under the same key all the time, or it would have been another call.
    assert_eq!(waiter.end().await.unwrap(), (100, Some("pay-17".to_owned())));
    assert_eq!((stage.executed(), client.stats().pending), (2, 0));
}

#[tokio::test]
async fn a_denial_ends_the_wait_and_so_does_its_time() {
    let stage = stage(NatsServer::start().await);
    let _serving = stage.serve().await;
    let client = stage.client("ann").await;
    let mut waiter = Waiter::begin(&client, 100, |request| request);
    let id = waiter.is_told().await.id;
    decide(&stage.desk, "tom", &id, "deny").await;
    let (data, is_unknown) = refused(waiter.end().await, code::PERMISSION_DENIED);
    assert_eq!((&data["state"], &data["approval"], is_unknown), (&json!("denied"), &json!(id), false));

    let mut waiter = Waiter::begin(&client, 101, |request| request.await_approval(Duration::from_secs(1)));
    let id = waiter.is_told().await.id;
    let (data, is_unknown) = refused(waiter.end().await, code::APPROVAL_REQUIRED);
    assert_eq!((&data["state"], &data["approval"], is_unknown), (&json!("pending"), &json!(id), false));
    assert_eq!(stage.executed(), 0);
    // The request has stayed: the same call finds it.
    let mut again = Waiter::begin(&client, 101, |request| request);
    assert_eq!(again.is_told().await.id, id);
    for owner in ["tess", "tom"] {
        decide(&stage.desk, owner, &id, "approve").await;
    }
    assert_eq!(again.end().await.unwrap().0, 101);
}

/// The same call would make a new request, and ask people again.
#[tokio::test]
async fn nobody_is_asked_again_after_the_request_s_deadline() {
    let stage = stage(NatsServer::start().await);
    let _serving = stage.serve().await;
    let mut sent = stage.overhear().await;
    let client = stage.client("ann").await;
    // The clock runs before the pause is chosen.
    let clock = Arc::clone(&stage.desk.clock);
    let late = move |pending: &PendingApproval| clock.set_ms(pending.deadline * 1000 - 1400);
    let waiting = client.request("desk").deadline(SOON).await_approval(LONG).on_pending(late);
    let ended = within(SOON, waiting.call::<Paid>("desk/pay", json!({ "amount": 100 }))).await;
    assert_eq!(refused(ended, code::APPROVAL_REQUIRED).0["state"], "pending");
    assert!(at_once(&mut sent).is_some() && at_once(&mut sent).is_none(), "it was sent once");
}

/// Answers that do not arrive once the call was approved.
async fn serve_until_lost(stage: &Stage, lost: &Arc<AtomicBool>, handled: &Arc<Notify>) -> Serving {
    let (service, lost, handled) = (stage.desk.service.clone(), Arc::clone(lost), Arc::clone(handled));
    let answer = move |bus, message| {
        let (service, lost, handled) = (service.clone(), Arc::clone(&lost), Arc::clone(&handled));
        async move {
            let sealed = service.handle(Delivery::from(message)).await;
            if lost.load(Ordering::SeqCst) {
                handled.notify_one();
            } else if let Some(sealed) = sealed {
                publish(&bus, sealed).await;
            }
        }
    };
    stage.answer_with(None, answer).await
}

#[tokio::test]
async fn an_answer_that_is_lost_after_the_approval_leaves_the_outcome_unknown_and_is_not_asked_for_again() {
    let stage = stage(NatsServer::start().await);
    let (lost, handled) = (Arc::new(AtomicBool::new(false)), Arc::new(Notify::new()));
    let serving = serve_until_lost(&stage, &lost, &handled).await;
    let client = stage.client("ann").await;
    let mut waiter = Waiter::begin(&client, 100, |request| request.deadline(Duration::from_secs(10)));
    let id = waiter.is_told().await.id;
    // What is sent from now on is not answered. The connection goes when the call has run.
    lost.store(true, Ordering::SeqCst);
    for owner in ["tess", "tom"] {
        decide(&stage.desk, owner, &id, "approve").await;
    }
    within(SOON, async {
        while stage.executed() == 0 {
            handled.notified().await;
        }
    })
    .await;
    let mut sent = stage.overhear().await;
    let error = waiter.end().await.unwrap_err();
    assert_eq!((error.kind(), error.is_outcome_unknown()), (ErrorKind::Timeout, true), "{error}");
    // What the client publishes after that comes after it. Besides, it tells the service that nobody waits any more.
    drop(serving);
    within(SOON, client.notify("desk", "desk/fence", ())).await.unwrap();
    loop {
        let message = within(SOON, futures_util::StreamExt::next(&mut sent)).await.unwrap();
        let text = String::from_utf8(message.payload.to_vec()).unwrap();
        assert!(!text.contains("desk/pay"), "{text}");
        if text.contains("desk/fence") {
            break;
        }
    }
    // Whoever sends it again all the same, is told that it ran.
    let _serving = stage.serve().await;
    let again = Waiter::begin(&client, 100, |request| request);
    let (data, is_unknown) = refused(again.end().await, code::CONFLICT);
    assert_eq!((&data["state"], is_unknown, stage.executed()), (&json!("consumed"), true, 1));
}

#[tokio::test]
async fn a_wait_that_is_stopped_ends_with_what_the_service_has_said() {
    let stage = stage(NatsServer::start().await);
    let _serving = stage.serve().await;
    let client = stage.client("ann").await;
    let stop = Arc::new(Notify::new());
    let stopped = Arc::clone(&stop).notified_owned();
    let mut waiter = Waiter::begin(&client, 100, |request| request.cancel_on(stopped));
    let id = waiter.is_told().await.id;
    stop.notify_one();
    let (data, is_unknown) = refused(waiter.end().await, code::APPROVAL_REQUIRED);
    assert_eq!((&data["approval"], is_unknown), (&json!(id), false));
    assert_eq!((stage.executed(), client.stats().pending), (0, 0));
}

/// SPEC.md §6.5: it begins once it is approved, for whichever program of its caller sends it then.
#[tokio::test]
async fn a_task_that_waits_for_people_begins_once_and_not_at_all_if_they_deny_it() {
    let stage = stage(NatsServer::start().await);
    let _serving = stage.serve().await;
    let (first, second) = (stage.client("ann").await, stage.client("ann").await);
    let begin = |client: &Client, key: &str, amount: i64| {
        let (tell, told) = mpsc::unbounded_channel();
        let request = client.request("desk").deadline(SOON).await_approval(LONG).idempotency_key(key);
        let request = request.on_pending(move |pending| drop(tell.send(pending.clone())));
        (tokio::spawn(request.detach("desk/pay", json!({ "amount": amount }))), told)
    };
    let without =
        first.request("desk").deadline(SOON).idempotency_key("17").detach("desk/pay", json!({ "amount": 100 }));
    let error = within(SOON, without).await.unwrap_err();
    let wanted = PendingApproval::of(error.remote().unwrap()).unwrap().id;
    let (begun, mut told) = begin(&first, "17", 100);
    assert_eq!(within(SOON, told.recv()).await.unwrap().id, wanted);
    let task = second.task("desk", "desk/pay", "17").unwrap();
    assert_eq!(within(SOON, task.status()).await.unwrap().state, TaskState::Absent);
    // Whoever waited for people is gone, and so is nothing else.
    begun.abort();
    let (begun, mut told) = begin(&second, "17", 100);
    assert_eq!(within(SOON, told.recv()).await.unwrap().id, wanted);
    assert_eq!(stage.executed(), 0);
    for owner in ["tess", "tom"] {
        decide(&stage.desk, owner, &wanted, "approve").await;
    }
    let task = within(SOON, begun).await.unwrap().unwrap();
    let paid: Paid = within(SOON, task.wait(SOON)).await.unwrap().result().unwrap();
    assert_eq!(paid, (100, Some("17".to_owned())));
    // Begun again, it is known already: nobody is asked, and nothing runs.
    let (again, mut told) = begin(&first, "17", 100);
    assert_eq!(within(SOON, again).await.unwrap().unwrap().status().await.unwrap().state, TaskState::Completed);
    assert_eq!((told.recv().await, stage.executed()), (None, 1));

    let (denied, mut told) = begin(&first, "18", 101);
    let id = within(SOON, told.recv()).await.unwrap().id;
    decide(&stage.desk, "tess", &id, "deny").await;
    let error = within(SOON, denied).await.unwrap().unwrap_err();
    assert_eq!(error.remote().and_then(RpcError::profile_code), Some(code::PERMISSION_DENIED), "{error}");
    let state = first.task("desk", "desk/pay", "18").unwrap().status().await.unwrap().state;
    assert_eq!((state, stage.executed()), (TaskState::Absent, 1));
}

#[tokio::test]
async fn only_single_calls_wait_for_approval() {
    let stage = stage(NatsServer::start().await);
    let client = stage.client("ann").await;
    let request = || client.request("desk").await_approval(LONG);
    let mut batch = request().batch();
    batch.call("desk/pay", [100]);
    let errors = [
        within(SOON, request().notify("desk/pay", [100])).await.unwrap_err(),
        within(SOON, request().send_raw("{}")).await.unwrap_err(),
        within(SOON, request().stream::<Value>("desk/pay", [100]).finish::<Value>()).await.unwrap_err(),
        within(SOON, batch.send()).await.map(drop).unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, ClientError::Invalid(InvalidRequest::AwaitApproval)), "{error}");
    }
}
