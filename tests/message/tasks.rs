//! Calls for which nobody waits: SPEC.md §6.5, with the store of a single replica.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sealwire::configure::{FileTrust, RecordConfig, RevocationConfig};
use sealwire::internal::auth::{
    Denylist, OperatorKey, Revocation, RevocationKind, RevocationList, Revocations, SignedList, TokenRules,
    TokenVerifier,
};
use sealwire::internal::record::record_files;
use sealwire::serve::{Builder, Recorder, TaskLimits, WantsMethods};
use sealwire::{Clock as _, Ctx, Idempotent, Name, Router, RpcError};
use sealwire_testkit::desk::{Agent, Desk, Letter, POLICY, Setup, call, code, recording};
use serde_json::{Value, json};
use tokio::sync::watch;

const HOUR: Duration = Duration::from_secs(3600);
const NOW: u64 = sealwire_testkit::desk::NOW;

/// A desk with a method `desk/work` that begins, and ends as its params say once it may.
struct Office {
    desk: Desk,
    /// How many runs have begun.
    runs: Arc<AtomicUsize>,
    /// Which each of them holds for as long as it goes on.
    running: Arc<()>,
    may_end: watch::Sender<bool>,
    /// Where tokens come from, if that is not the desk.
    issuer: Option<Desk>,
}

impl Office {
    fn open(declared: Idempotent) -> Self {
        Self::open_with(declared, POLICY, |_| {})
    }

    fn open_with(declared: Idempotent, policy: &'static str, change: impl FnOnce(&mut TaskLimits)) -> Self {
        let mut setup = Setup { policy, ..Setup::default() };
        change(&mut setup.limits.tasks);
        Self::open_as(declared, setup, |service| service)
    }

    fn open_as(
        declared: Idempotent,
        setup: Setup,
        more: impl FnOnce(Builder<WantsMethods>) -> Builder<WantsMethods>,
    ) -> Self {
        let (runs, (may_end, ends)) = (Arc::new(AtomicUsize::new(0)), watch::channel(false));
        let (begun, running) = (Arc::clone(&runs), Arc::new(()));
        let held = Arc::clone(&running);
        let work = move |ctx: Ctx, (how,): (String,)| {
            let (begun, mut ends, held) = (Arc::clone(&begun), ends.clone(), Arc::clone(&held));
            async move {
                let _held = held;
                begun.fetch_add(1, Ordering::SeqCst);
                assert_ne!(how, "panic");
                ctx.progress(1.0, Some(2.0), Some("half\nway"));
                ctx.progress(f64::NAN, None, None);
                ends.wait_for(|may| *may).await.map_err(RpcError::internal)?;
                match &*how {
                    "fail" => Err(RpcError::application(-32014, "mine")),
                    "large" => Ok("x".repeat(2 << 20)),
                    _ => Ok(format!("{how} {}", ctx.is_task())),
                }
            }
        };
        let echo = |_: Ctx, (n,): (u64,)| async move { Ok::<_, RpcError>(n) };
        let router = Router::new(()).method("desk/work", work).idempotent("desk/work", declared);
        let router = router.method("desk/echo", echo).idempotent("desk/echo", HOUR);
        let desk = Desk::open_as(setup, |service| more(service).methods(router));
        Self { desk, runs, running, may_end, issuer: None }
    }

    fn ann(&self) -> Agent {
        self.issuer.as_ref().unwrap_or(&self.desk).agent("ann", &["worker"])
    }

    fn letter(&self, agent: &Agent, key: &str, how: &str) -> Letter {
        self.desk.letter_claiming(agent, &call("desk/work", &format!("[\"{how}\"]")), |claims| {
            claims.idk = Some(key.to_owned());
            claims.det = Some(60_000);
        })
    }

    /// Begins a task.
    async fn begin(&self, key: &str, how: &str) -> Value {
        self.told(&self.letter(&self.ann(), key, how)).await
    }

    /// The same call, whose caller waits.
    async fn attached(&self, key: &str, how: &str) -> Value {
        self.told(&self.desk.keyed(&self.ann(), key, &call("desk/work", &format!("[\"{how}\"]")))).await
    }

    async fn told(&self, letter: &Letter) -> Value {
        serde_json::from_str(&self.desk.answer(letter).await.unwrap()).unwrap()
    }

    async fn ask(&self, agent: &Agent, method: &str, key: &str) -> Value {
        let params = json!({ "method": "desk/work", "key": key });
        let answer = self.desk.ask(agent, &call(method, &params.to_string())).await.unwrap();
        serde_json::from_str(&answer).unwrap()
    }

    async fn state(&self, key: &str) -> Value {
        self.ask(&self.ann(), "rpc.task", key).await["result"].clone()
    }

    /// Waits for the end of a task.
    async fn ended(&self, key: &str) -> Value {
        self.until(key, |state| state["state"] != "working").await
    }

    async fn until(&self, key: &str, holds: impl Fn(&Value) -> bool) -> Value {
        for _ in 0..1_000 {
            let state = self.state(key).await;
            if holds(&state) {
                return state;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{}", self.state(key).await)
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }
}

fn day() -> Idempotent {
    Idempotent::keep(HOUR).as_task(Duration::from_secs(30))
}

fn data(answer: &Value) -> (Option<i64>, &Value) {
    (answer["error"]["code"].as_i64(), &answer["error"]["data"])
}

/// SPEC.md §6.5.
#[tokio::test]
async fn a_task_is_answered_when_it_begins_and_its_outcome_found_by_its_key() {
    let office = Office::open(day());
    let working = json!({
        "state": "working", "started": NOW, "limit": NOW + 30, "keep": 3600, "retry_after_ms": 500
    });
    let begun = office.begin("k", "well").await;
    assert_eq!(begun, json!({ "jsonrpc": "2.0", "result": working, "task": true, "id": 1 }));
    let mut half = working.clone();
    half["progress"] = json!({ "progress": 1.0, "total": 2.0, "message": "half\\nway" });
    assert_eq!(office.until("k", |state| state["progress"] != json!(null)).await, half);
    // Begun again, since the first answer may have been lost; or by a caller that waits.
    assert_eq!(office.begin("k", "well").await["result"], half);
    let running = json!({ "idempotency": "running", "retry_after_ms": 250 });
    assert_eq!(data(&office.attached("k", "well").await), (Some(-32017), &running));
    let other = json!({ "idempotency": "other_params" });
    assert_eq!(data(&office.begin("k", "otherwise").await), (Some(-32017), &other));

    office.may_end.send_replace(true);
    let completed = json!({
        "state": "completed", "started": NOW, "ended": NOW, "expires": NOW + 3600,
        "response": { "jsonrpc": "2.0", "result": "well true", "id": null }
    });
    assert_eq!(office.ended("k").await, completed);
    assert_eq!(office.begin("k", "well").await["result"], completed);
    let stored = json!({ "jsonrpc": "2.0", "result": "well true", "idempotent_replay": true, "id": 1 });
    assert_eq!(office.attached("k", "well").await, stored);
    assert_eq!(office.runs(), 1);
    // A call whose caller has waited is found in the same way.
    assert_eq!(office.attached("a", "well").await["result"], "well false");
    let found = office.state("a").await;
    assert_eq!((&found["state"], &found["response"]["result"]), (&json!("completed"), &json!("well false")));
}

/// SPEC.md §6.5: an error of the method, none that is kept, none that is known.
#[tokio::test]
async fn a_task_without_a_result_says_why() {
    let office = Office::open(day());
    office.may_end.send_replace(true);
    for (how, state) in [("fail", "failed"), ("large", "not_kept"), ("panic", "unknown")] {
        assert_eq!(office.begin(how, how).await["result"]["state"], "working");
        let ended = office.ended(how).await;
        assert_eq!(ended["state"], state, "{ended}");
        let error = json!({ "code": -32014, "message": "mine" });
        let own = json!({ "jsonrpc": "2.0", "error": error, "application_error": true, "id": null });
        assert_eq!(ended.get("response"), (how == "fail").then_some(&own));
    }
    assert_eq!(office.runs(), 3);
}

/// SPEC.md §6.5.
#[tokio::test]
async fn a_task_is_found_by_its_caller_alone() {
    let office = Office::open_with(day(), "[role.worker]\nallow = [\"desk/*\"]\ndelegated = \"also\"\n", |_| {});
    office.begin("k", "well").await;
    let absent = json!({ "state": "absent", "keep": 3600 });
    let bob = office.desk.agent("bob", &["worker"]);
    let for_user = office.desk.agent_with("ann", |request| {
        request.subject = "user-1".to_owned();
        request.actor = Some("ann".to_owned());
    });
    for method in ["rpc.task", "rpc.task.cancel"] {
        assert_eq!(office.ask(&bob, method, "k").await["result"], absent);
        assert_eq!(office.ask(&for_user, method, "k").await["result"], absent);
        assert_eq!(office.ask(&office.ann(), method, "l").await["result"], absent);
    }
    // The same key, and another task.
    assert_eq!(office.told(&office.letter(&bob, "k", "well")).await["result"]["state"], "working");
    assert_eq!(office.state("k").await["state"], "working");
    office.may_end.send_replace(true);
    assert_eq!(office.ended("k").await["state"], "completed");
    assert_eq!(office.runs(), 2);
    // The outcome is for whoever may call the method now.
    office.desk.change_policy("[role.worker]\nallow = [\"desk/echo\"]\n");
    assert_eq!(office.ask(&office.ann(), "rpc.task", "k").await["error"]["code"], -32002);
    office.desk.change_policy("[role.worker]\nallow = [\"desk/work\"]\ndeny = [\"rpc.task\"]\n");
    assert_eq!(office.ask(&office.ann(), "rpc.task", "k").await["error"]["code"], -32002);
    office.desk.change_policy(POLICY);
    assert_eq!(office.state("k").await["state"], "completed");
}

/// SPEC.md §6.5, SPEC.md §14.2.
#[tokio::test]
async fn what_is_no_task_or_only_one_is_refused_before_it_runs() {
    let office = Office::open(day());
    let ann = office.ann();
    let claiming = |payload: &str, det: u64, key: Option<&str>, win: Option<u64>| {
        office.desk.letter_claiming(&ann, payload, |claims| {
            (claims.det, claims.idk, claims.win) = (Some(det), key.map(str::to_owned), win);
            claims.tmo = Some(5_000);
        })
    };
    let work = call("desk/work", "[\"well\"]");
    let not_a_task = office.told(&claiming(&call("desk/echo", "[1]"), 1_000, Some("k"), None)).await;
    assert_eq!(data(&not_a_task), (Some(-32600), &json!({ "task": "forbidden" })));
    let built_in = office.told(&claiming(&call("rpc.discover", "{}"), 1_000, Some("k"), None)).await;
    assert_eq!(data(&built_in), (Some(-32600), &json!({ "task": "forbidden" })));
    for body in [format!("[{work}]"), work.replace(",\"id\":1", "")] {
        assert_eq!(office.told(&claiming(&body, 1_000, Some("k"), None)).await["error"]["code"], -32600, "{body}");
    }
    // Outside of the grammar of claims, nobody is known to have sent it.
    for (det, key, win) in
        [(0, Some("k"), None), (604_800_001, Some("k"), None), (1_000, None, None), (1_000, Some("k"), Some(8))]
    {
        assert_eq!(office.desk.offer(&claiming(&work, det, key, win)).await, Some(-32010), "{det}");
    }
    // Who may not call it learns nothing about it.
    office.desk.change_policy("[role.worker]\nallow = [\"rpc.can\"]\n");
    assert_eq!(office.begin("k", "well").await["error"]["code"], -32002);
    assert_eq!(office.runs(), 0);

    let office = Office::open(Idempotent::keep(HOUR).only_as_task(HOUR));
    assert_eq!(data(&office.attached("k", "well").await), (Some(-32600), &json!({ "task": "required" })));
    let unkeyed = office.desk.ask(&office.ann(), &work).await.unwrap();
    assert_eq!(code(&unkeyed), Some(-32600));
    assert_eq!(office.runs(), 0);
    assert_eq!(office.begin("k", "well").await["task"], true);
    let listed = office.desk.ask(&office.ann(), &call("rpc.discover", "{}")).await.unwrap();
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let modes = listed["result"]["methods"].as_array().unwrap().iter().map(|method| &method["x-task"]);
    assert_eq!(modes.collect::<Vec<_>>(), [&Value::Null, &json!("required")]);
}

/// SPEC.md §6.5.
#[tokio::test]
async fn a_cancelled_task_ends_and_stays_cancelled() {
    let office = Office::open(day());
    office.begin("k", "well").await;
    office.until("k", |state| state["progress"] != json!(null)).await;
    let told = office.ask(&office.ann(), "rpc.task.cancel", "k").await;
    assert_eq!((&told["result"]["state"], &told["result"]["cancelling"]), (&json!("working"), &json!(true)));
    let cancelled = json!({ "state": "cancelled", "started": NOW, "ended": NOW, "expires": NOW + 3600 });
    assert_eq!(office.ended("k").await, cancelled);
    assert_eq!(office.ask(&office.ann(), "rpc.task.cancel", "k").await["result"], cancelled);
    assert_eq!(office.begin("k", "well").await["result"], cancelled);
    assert_eq!(data(&office.attached("k", "well").await), (Some(-32017), &json!({ "idempotency": "cancelled" })));
    assert_eq!(office.runs(), 1);
    // It is too late for one that has ended, and a call for which somebody waits is its caller's to cancel.
    office.may_end.send_replace(true);
    office.begin("l", "well").await;
    office.ended("l").await;
    assert_eq!(office.ask(&office.ann(), "rpc.task.cancel", "l").await["result"]["state"], "completed");
    office.may_end.send_replace(false);
    let waiting = office.desk.keyed(&office.ann(), "m", &call("desk/work", "[\"well\"]"));
    let mut waiting = Box::pin(office.desk.answer(&waiting));
    assert!(tokio::time::timeout(Duration::from_millis(50), &mut waiting).await.is_err());
    let told = office.ask(&office.ann(), "rpc.task.cancel", "m").await;
    assert_eq!((&told["result"]["state"], told["result"].get("cancelling")), (&json!("working"), None));
    office.may_end.send_replace(true);
    assert_eq!(code(&waiting.await.unwrap()), None);
}

/// SPEC.md §6.4, SPEC.md §6.5.
#[tokio::test]
async fn a_task_is_charged_when_it_begins_and_for_nothing_that_is_asked_of_it() {
    const TWICE: &str = r#"
        [role.worker]
        allow = ["desk/*"]
        [budget.twice]
        methods = ["desk/work"]
        per = "agent"
        calls = "2/h"
    "#;
    let office = Office::open_with(day(), TWICE, |_| {});
    let counted = || {
        let budgets = office.desk.service.counters().budgets();
        budgets.get("twice").map(|budget| (budget.charged, budget.refused))
    };
    office.begin("k", "well").await;
    let asked = async |key: &str, state: &str| {
        for _ in 0..3 {
            assert_eq!(office.begin(key, "well").await["result"]["state"], state);
            assert_eq!(office.state(key).await["state"], state);
            office.attached(key, "well").await;
        }
    };
    asked("k", "working").await;
    assert_eq!(counted(), Some((1, 0)));
    // What was begun stays charged.
    office.ask(&office.ann(), "rpc.task.cancel", "k").await;
    office.ended("k").await;
    asked("k", "cancelled").await;
    office.may_end.send_replace(true);
    office.begin("l", "well").await;
    office.ended("l").await;
    asked("l", "completed").await;
    assert_eq!(counted(), Some((2, 0)));
    // One without room has not begun, and gives its key back.
    let refused = office.begin("m", "well").await;
    let (code, data) = data(&refused);
    assert_eq!((code, &data["scope"], &data["budget"]), (Some(-32013), &json!("budget"), &json!("twice")));
    assert_eq!((office.state("m").await["state"].as_str(), counted()), (Some("absent"), Some((2, 1))));
    office.desk.clock.advance_ms(data["retry_after_ms"].as_u64().unwrap());
    assert_eq!(office.begin("m", "well").await["task"], true);
    office.ended("m").await;
    assert_eq!(office.runs(), 3);
}

/// docs/bounds.md, SPEC.md §15.1.
#[tokio::test]
async fn tasks_beyond_the_bounds_are_refused_and_those_that_run_are_told_of() {
    type Change = fn(&mut TaskLimits);
    let changes: [Change; 3] = [
        |limits| limits.per_agent = 2,
        // Each may have one more only while it has fewer than are free.
        |limits| limits.in_all = 4,
        |limits| limits.bytes = 64,
    ];
    for change in changes {
        let office = Office::open_with(day(), POLICY, change);
        for key in ["1", "2"] {
            assert_eq!(office.begin(key, "well").await["task"], true, "{key}");
        }
        let full = office.begin("3", "well").await;
        let wanted = json!({ "retry_after_ms": 1000, "scope": "replica-tasks" });
        assert_eq!(data(&full), (Some(-32013), &wanted));
        assert_eq!(office.state("3").await["state"], "absent");
        assert_eq!(office.begin("2", "well").await["result"]["state"], "working");
        // Another agent has a place, and so has one for which somebody waits.
        if office.desk.service.counters().refusals()["tasks_quota"] == 1 {
            let bob = office.desk.agent("bob", &["worker"]);
            let others = office.told(&office.letter(&bob, "1", "a")).await;
            assert_eq!(others["task"], true, "{others}");
        }
        office.may_end.send_replace(true);
        assert_eq!(office.attached("4", "well").await["result"], "well false");
        office.ended("1").await;
        office.ended("2").await;
        let again = async || office.begin("3", "well").await["task"] == true;
        while !again().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// SPEC.md §6.5: nobody is there to show a new token, so the one it began with may end, and must not be revoked.
#[tokio::test]
async fn what_a_task_began_with_ends_it_once_it_is_taken_away() {
    let office = Office::open(day());
    let begins = async |key: &str| {
        office.begin(key, "well").await;
        office.until(key, |state| state["progress"] != json!(null)).await;
        office.desk.service.review();
        assert_eq!(office.state(key).await["state"], "working");
    };
    begins("token").await;
    office.desk.clock.advance_ms(3_000_000);
    office.desk.service.review();
    assert_eq!(office.state("token").await["state"], "working", "its token has ended, and its lease was not over");

    begins("policy").await;
    office.desk.change_policy("[role.worker]\nallow = [\"desk/echo\"]\n");
    office.desk.service.review();
    office.desk.change_policy(POLICY);
    assert_eq!(office.ended("policy").await["state"], "unknown");

    begins("denied").await;
    let now = office.desk.clock.now_s();
    let verifier = office.desk.service.verifier();
    verifier.tokens().replace_denylist(Denylist::default().with_subject("ann", now + 1));
    office.desk.service.review();
    verifier.tokens().replace_denylist(Denylist::default());
    assert_eq!(office.ended("denied").await["state"], "unknown");

    begins("key").await;
    office.desk.change_ring(|keys| keys.retain(|key| key.owner.as_str() != "ann"));
    office.desk.service.review();
    office.desk.change_ring(|_| {});
    assert_eq!(office.ended("key").await["state"], "unknown");
    assert_eq!(office.runs(), 4);
}

/// SPEC.md §6.5, SPEC.md §16.
#[tokio::test]
async fn operators_end_the_tasks_of_an_agent_and_their_outcomes_are_not_shown() {
    let (folder, key) = (tempfile::tempdir().unwrap(), OperatorKey::generate("op-1").unwrap());
    let environment = Name::new("test").unwrap();
    let list = RevocationList::first(environment.clone(), 0);
    let signed = |list: &RevocationList| SignedList::new(list).signed(&key).to_text().unwrap();
    let state = folder.path().join("state");
    std::fs::write(&state, signed(&list)).unwrap();
    let config = json!({
        "operator": [{ "kid": "op-1", "x": key.x() }], "serve_stale": true, "state": state,
        "nats": { "urls": ["nats://127.0.0.1:1"] },
    });
    let config: RevocationConfig = serde_json::from_value(config).unwrap();
    let revocations = Arc::new(Revocations::open(&config, &environment, &FileTrust::default()).unwrap());
    let issuer = Desk::open(recording().0);
    let tokens = TokenVerifier::new(TokenRules::new("test/desk"), issuer.issuer.key_set().unwrap());
    let tokens = Some(tokens.with_revocations(Arc::clone(&revocations)));
    let office = Office::open_as(day(), Setup { tokens, ..Setup::default() }, |service| service);
    let office = Office { issuer: Some(issuer), ..office };

    let mut list = list;
    for (kind, name) in [(RevocationKind::Agent, "ann"), (RevocationKind::Method, "desk/work")] {
        office.begin(name, "well").await;
        office.until(name, |state| state["progress"] != json!(null)).await;
        let revoked = Revocation { kind, name: name.to_owned(), until: None, at_ms: 0, reason: String::new() };
        list = list.revoke(revoked).unwrap();
        revocations.offer(signed(&list).as_bytes());
        let letter = office
            .desk
            .letter(&office.ann(), &call("rpc.task", &json!({ "method": "desk/work", "key": name }).to_string()));
        let wanted = if kind == RevocationKind::Agent { -32010 } else { -32002 };
        assert_eq!(office.desk.offer(&letter).await, Some(wanted));
        // Two are the office's own. What was restored before the task saw that it was revoked would not end it.
        let ended = async {
            while Arc::strong_count(&office.running) > 2 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), ended).await.unwrap();
        list = list.restore(kind, name, 0).unwrap();
        revocations.offer(signed(&list).as_bytes());
        assert_eq!(office.ended(name).await["state"], "unknown");
    }
    assert_eq!(office.runs(), 2);
}

/// docs/records.md.
#[tokio::test]
async fn the_record_tells_when_a_task_begins_and_what_it_has_come_to() {
    let outer = tempfile::tempdir().unwrap();
    let folder = outer.path().join("records");
    let recorder = Recorder::open(&RecordConfig::in_folder(&folder), "test/desk", "s1").unwrap();
    let office = Office::open_as(day(), Setup::default(), |service| service.record(recorder));
    for (key, how) in [("1", "well"), ("2", "fail"), ("3", "cancelled")] {
        office.begin(key, how).await;
        office.until(key, |state| state["progress"] != json!(null)).await;
    }
    office.ask(&office.ann(), "rpc.task.cancel", "3").await;
    office.ended("3").await;
    office.may_end.send_replace(true);
    office.ended("1").await;
    office.ended("2").await;
    // The line is written just after the outcome is kept.
    let recorded = || {
        let text = record_files(&folder).unwrap().into_iter().map(|file| std::fs::read_to_string(file.path).unwrap());
        let lines: Vec<Value> =
            text.collect::<String>().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let of = |kind: &str| {
            let lines = lines.iter().filter(|line| line["kind"] == kind && line["method"] == "desk/work");
            lines.cloned().collect::<Vec<_>>()
        };
        (of("decision"), of("outcome"))
    };
    while recorded().1.len() < 3 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let (decisions, outcomes) = recorded();
    assert!(decisions.len() == 3 && decisions.iter().all(|decision| decision["task"] == true), "{decisions:?}");
    let told = |outcome: &Value| (outcome["by"].clone(), outcome["code"].clone(), outcome["answer"].is_string());
    let mut told: Vec<_> = outcomes.iter().map(told).collect();
    told.sort_by_key(|told| told.1.to_string());
    let wanted = [
        (json!("answered"), json!(-32014), true),
        (json!("cancelled"), json!(-32016), false),
        (json!("answered"), json!(null), true),
    ];
    assert_eq!(told, wanted);
}
