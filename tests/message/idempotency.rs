//! Calls with an idempotency key: SPEC.md §6.1 and §14.2, with the store of a single replica.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sealwire::internal::auth::{IssueRequest, KeySet, TokenIssuer, TokenRules, TokenVerifier};
use sealwire::{BuildError, Clock as _, Ctx, Idempotent, Router, RpcError};
use sealwire_testkit::desk::{Agent, Desk, POLICY, Setup, call, code, recording};
use serde_json::{Value, json};

const HOUR: Duration = Duration::from_secs(3600);

fn member<'a>(answer: &'a Value, path: &str) -> &'a Value {
    answer.pointer(path).unwrap_or(&Value::Null)
}

async fn ask(desk: &Desk, agent: &str, key: &str, payload: &str) -> Value {
    let agent = desk.agent(agent, &["worker"]);
    let answer = desk.answer(&desk.keyed(&agent, key, payload)).await.unwrap();
    serde_json::from_str(&answer).unwrap()
}

#[tokio::test]
async fn the_same_call_runs_once_and_gets_the_outcome_again_marked_and_under_its_own_id() {
    let (router, runs) = recording();
    let desk = Desk::open(router.idempotent("desk/echo", HOUR));
    let first = ask(&desk, "ann", "k1", &call("desk/echo", "[1, 2]")).await;
    assert_eq!(first, json!({"jsonrpc": "2.0", "result": [1, 2], "id": 1}));
    let again = ask(&desk, "ann", "k1", r#"{"jsonrpc":"2.0","method":"desk/echo","params":[1, 2],"id":"x"}"#).await;
    assert_eq!(again, json!({"jsonrpc": "2.0", "result": [1, 2], "idempotent_replay": true, "id": "x"}));
    assert_eq!(runs.count(), 1);

    // Other params, byte for byte.
    let other = ask(&desk, "ann", "k1", &call("desk/echo", "[1,2]")).await;
    assert_eq!(
        (member(&other, "/error/code"), member(&other, "/error/data")),
        (&json!(-32017), &json!({"idempotency": "other_params"}))
    );
    assert_eq!(runs.count(), 1);

    // Another key, another agent, another method, no key: none of them is the same call.
    ask(&desk, "ann", "k2", &call("desk/echo", "[1, 2]")).await;
    ask(&desk, "bob", "k1", &call("desk/echo", "[1, 2]")).await;
    ask(&desk, "ann", "k1", &call("desk/note", "[1, 2]")).await;
    ask(&desk, "ann", "k1", &call("desk/note", "[1, 2]")).await;
    desk.ask(&desk.agent("ann", &["worker"]), &call("desk/echo", "[1, 2]")).await.unwrap();
    assert_eq!(runs.count(), 6, "a method that is not declared idempotent runs each time");
}

/// Ann on behalf of others: the subject is part of the key.
#[tokio::test]
async fn an_outcome_is_for_the_subject_that_it_was_made_for() {
    let (router, runs) = recording();
    let policy = "[role.worker]\nallow = [\"desk/*\"]\ndelegated = \"also\"\n";
    let desk = Desk::open_with(router.idempotent("desk/echo", HOUR), policy, sealwire::ServiceLimits::default());
    for (subject, expected) in [("user-1", 1), ("user-2", 2), ("user-1", 2)] {
        let ann = desk.agent_with("ann", |request| {
            request.subject = subject.to_owned();
            request.actor = Some("ann".to_owned());
        });
        let answer = desk.answer(&desk.keyed(&ann, "k", &call("desk/echo", "[]"))).await.unwrap();
        assert_eq!((code(&answer), runs.count()), (None, expected), "{answer}");
    }
}

/// Two issuers may each have a `user-42` of their own.
#[tokio::test]
async fn the_same_key_of_the_same_subject_at_two_issuers_is_two_calls() {
    let (router, runs) = recording();
    let issuers = ["https://one.test", "https://two.test"].map(|issuer| TokenIssuer::generate(issuer).unwrap());
    let keys = KeySet::merge(issuers.iter().map(|issuer| issuer.key_set().unwrap())).unwrap();
    let setup = Setup {
        policy: "[role.worker]\nallow = [\"desk/*\"]\ndelegated = \"also\"\n",
        tokens: Some(TokenVerifier::new(TokenRules::new("test/desk"), keys)),
        ..Setup::default()
    };
    let desk = Desk::open_as(setup, |service| service.methods(router.idempotent("desk/echo", HOUR)));
    for (issuer, expected, params) in [(0, 1, "[1]"), (1, 2, "[2]"), (0, 2, "[1]"), (1, 2, "[2]")] {
        let mut request = IssueRequest::new("user-42", "test/desk", desk.clock.now_s());
        request.roles = ["worker".to_owned()].into();
        request.actor = Some("ann".to_owned());
        let ann = Agent { token: issuers[issuer].issue(&request).unwrap(), ..desk.agent("ann", &["worker"]) };
        let answer = desk.answer(&desk.keyed(&ann, "k", &call("desk/echo", params))).await.unwrap();
        // The answer shows neither the other's outcome nor anything about its params.
        assert_eq!((code(&answer), runs.count()), (None, expected), "{answer}");
        assert!(answer.contains(params), "{answer}");
    }
}

#[tokio::test]
async fn who_may_not_call_sees_no_stored_outcome() {
    let (router, runs) = recording();
    let desk = Desk::open(router.idempotent("desk/echo", HOUR));
    let payload = call("desk/echo", "[\"secret\"]");
    ask(&desk, "ann", "k", &payload).await;
    desk.change_policy("[role.worker]\nallow = [\"desk/note\"]\n");
    let denied = ask(&desk, "ann", "k", &payload).await;
    assert_eq!(denied, json!({"jsonrpc": "2.0", "error": {"code": -32002, "message": "permission denied"}, "id": 1}));
    desk.change_policy(POLICY);
    assert_eq!(member(&ask(&desk, "ann", "k", &payload).await, "/idempotent_replay"), &json!(true));
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn a_batch_with_a_key_runs_no_idempotent_method() {
    let (router, runs) = recording();
    let desk = Desk::open(router.idempotent("desk/echo", HOUR));
    let batch = format!("[{},{}]", call("desk/echo", "[1]"), call("desk/note", "[1]"));
    let answer = ask(&desk, "ann", "k", &batch).await;
    assert_eq!((member(&answer, "/0/error/code"), member(&answer, "/1/result")), (&json!(-32600), &json!(null)));
    assert_eq!(runs.count(), 1, "the other method ran");
}

#[tokio::test]
async fn a_notification_runs_once_as_well() {
    let (router, runs) = recording();
    let desk = Desk::open(router.idempotent("desk/echo", HOUR));
    let ann = desk.agent("ann", &["worker"]);
    let notification = r#"{"jsonrpc":"2.0","method":"desk/echo","params":[7]}"#;
    for _ in 0..2 {
        assert_eq!(desk.answer(&desk.keyed(&ann, "k", notification)).await, None);
    }
    let answer = ask(&desk, "ann", "k", &call("desk/echo", "[7]")).await;
    assert_eq!((member(&answer, "/result"), runs.count()), (&json!([7]), 1));
}

/// `desk/wait` counts its runs. It waits for ever if its parameter says so, and fails otherwise.
fn waiting(declared: Idempotent) -> (Desk, Arc<AtomicUsize>) {
    let runs = Arc::new(AtomicUsize::new(0));
    let router = Router::new(Arc::clone(&runs)).method(
        "desk/wait",
        |ctx: Ctx<Arc<AtomicUsize>>, (forever,): (bool,)| async move {
            let run = ctx.state().fetch_add(1, Ordering::SeqCst) + 1;
            if forever && run == 1 {
                std::future::pending::<()>().await;
            }
            Err::<(), _>(RpcError::application(run.try_into().unwrap(), "no such account"))
        },
    );
    (Desk::open(router.idempotent("desk/wait", declared)), runs)
}

#[tokio::test]
async fn an_error_of_the_method_is_an_outcome() {
    let (desk, runs) = waiting(Idempotent::keep(HOUR));
    for stored in [false, true, true] {
        let answer = ask(&desk, "ann", "k", &call("desk/wait", "[false]")).await;
        assert_eq!(member(&answer, "/error/message"), &json!("no such account"));
        assert_eq!(answer.get("idempotent_replay").is_some(), stored);
    }
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

/// SPEC.md §14: with these numbers of ours and this data, no repetition is refused in our name.
#[tokio::test]
async fn the_error_of_an_application_is_its_own_in_a_stored_outcome_too() {
    let router = Router::new(()).method("desk/fail", |_: Ctx, (code,): (i32,)| async move {
        Err::<(), _>(RpcError::application(code, "mine").with_data(&json!({ "idempotency": "running" })))
    });
    let desk = Desk::open(router.idempotent("desk/fail", HOUR));
    for code in [-32002, -32011, -32014, -32017, -32601, -32603] {
        let call = call("desk/fail", &format!("[{code}]"));
        let mut wanted = json!({
            "jsonrpc": "2.0",
            "error": { "code": code, "message": "mine", "data": { "idempotency": "running" } },
            "application_error": true,
            "id": 1,
        });
        assert_eq!(ask(&desk, "ann", &code.to_string(), &call).await, wanted);
        wanted["idempotent_replay"] = json!(true);
        assert_eq!(ask(&desk, "ann", &code.to_string(), &call).await, wanted);
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_goes_on_or_was_stopped_is_told_and_not_repeated_unless_declared_so() {
    for (declared, last) in [(Idempotent::keep(HOUR), "unknown"), (Idempotent::keep(HOUR).rerun_if_lost(), "ran")] {
        let (desk, runs) = waiting(declared);
        let ann = desk.agent("ann", &["worker"]);
        let first = desk.keyed(&ann, "k", &call("desk/wait", "[true]"));
        let mut run = Box::pin(desk.answer(&first));
        assert!(tokio::time::timeout(Duration::from_millis(10), &mut run).await.is_err());

        let answer = ask(&desk, "ann", "k", &call("desk/wait", "[true]")).await;
        let running = json!({"idempotency": "running", "retry_after_ms": 250});
        assert_eq!((member(&answer, "/error/code"), member(&answer, "/error/data")), (&json!(-32017), &running));

        // Its deadline comes 30 s after the signing.
        desk.clock.advance_ms(30 * 1000);
        assert_eq!(code(&run.await.unwrap()), Some(-32003));
        let answer = ask(&desk, "ann", "k", &call("desk/wait", "[true]")).await;
        if last == "ran" {
            assert_eq!((member(&answer, "/error/code"), runs.load(Ordering::SeqCst)), (&json!(2), 2));
        } else {
            assert_eq!(member(&answer, "/error/data"), &json!({"idempotency": "unknown"}));
            assert_eq!(runs.load(Ordering::SeqCst), 1);
        }
    }
}

/// By the clock, its deadline is long past, but nobody has stopped the run yet.
#[tokio::test(start_paused = true)]
async fn a_run_over_whose_deadline_the_clock_leaps_has_none_beside_it() {
    let (desk, runs) = waiting(Idempotent::keep(2 * HOUR).rerun_if_lost());
    let first = desk.keyed(&desk.agent("ann", &["worker"]), "k", &call("desk/wait", "[true]"));
    let mut run = Box::pin(desk.answer(&first));
    assert!(tokio::time::timeout(Duration::from_millis(10), &mut run).await.is_err());
    desk.clock.advance_ms(3_600_000);
    let again = async || ask(&desk, "ann", "k", &call("desk/wait", "[true]")).await;
    assert_eq!(member(&again().await, "/error/data/idempotency"), &json!("running"));
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    // Once the run has ended or was given up, it is lost, and treated as was declared for lost runs.
    drop(run);
    assert_eq!((member(&again().await, "/error/code"), runs.load(Ordering::SeqCst)), (&json!(2), 2));
}

/// A crash leaves only a claim behind.
#[tokio::test(start_paused = true)]
async fn a_claim_without_an_end_runs_until_its_deadline_and_is_unknown_from_then_on() {
    let (desk, runs) = waiting(Idempotent::keep(HOUR));
    let ann = desk.agent("ann", &["worker"]);
    let first = desk.keyed(&ann, "k", &call("desk/wait", "[true]"));
    assert!(tokio::time::timeout(Duration::from_millis(50), desk.answer(&first)).await.is_err());
    for (after_s, said) in [(0, "running"), (41, "running"), (2, "unknown")] {
        desk.clock.advance_ms(after_s * 1000);
        let answer = ask(&desk, "ann", "k", &call("desk/wait", "[true]")).await;
        assert_eq!(member(&answer, "/error/data/idempotency"), &json!(said));
    }
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn an_outcome_for_which_there_is_no_room_is_said_to_be_lost() {
    let router =
        Router::new(()).method("desk/large", |_: Ctx, (): ()| async { Ok::<_, RpcError>("x".repeat(2 << 20)) });
    let desk = Desk::open(router.idempotent("desk/large", HOUR));
    assert_eq!(member(&ask(&desk, "ann", "k", &call("desk/large", "[]")).await, "/error/code"), &json!(-32015));
    let again = ask(&desk, "ann", "k", &call("desk/large", "[]")).await;
    assert_eq!(member(&again, "/error/data"), &json!({"idempotency": "not_kept"}));
}

#[test]
fn what_cannot_be_declared_is_told_when_the_service_is_built() {
    let router = || recording().0;
    let build = |router| Desk::try_open(router).map(drop);
    let told = |result: Result<(), BuildError>| result.unwrap_err().to_string();
    let unknown = told(build(router().idempotent("desk/ecko", HOUR)));
    assert_eq!(unknown, "`desk/ecko` is declared idempotent, but not registered: register the method first");
    let parts = router().stream("desk/parts", |_, (): ()| async {
        Ok::<_, RpcError>(futures_util::stream::iter([Ok::<_, RpcError>(1)]))
    });
    assert!(told(build(parts.idempotent("desk/parts", HOUR))).starts_with("`desk/parts` answers in parts"));
    for keep in [Duration::from_millis(999), Idempotent::MOST + Duration::from_secs(1)] {
        let range = told(build(router().idempotent("desk/echo", keep)));
        let wanted =
            "outcomes of `desk/echo` are kept, and its tasks run, for 1 s to 7 days: declare times in that range";
        assert_eq!(range, wanted);
        assert_eq!(told(build(router().idempotent("desk/echo", Idempotent::keep(HOUR).as_task(keep)))), wanted);
    }
}
