//! Policies that change, the revision that a message is judged under, and the two seams for layers.

use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use sealwire::internal::rpc::{Limits, Responses};
use sealwire::serve::Permitted;
use sealwire::{Ctx, Router, RpcError, Service, ServiceLimits};
use serde_json::json;
use serde_json::value::RawValue;
use tower::{ServiceBuilder, ServiceExt as _};

use sealwire_testkit::desk::{Desk, POLICY, Setup, call, code, recording};

#[tokio::test]
async fn allow_deny_change_the_policy_and_again() {
    let (router, runs) = recording();
    let desk = Desk::open(router);
    let ann = desk.agent("ann", &["worker"]);
    let ask = async |method: &str| code(&desk.ask(&ann, &call(method, "[]")).await.unwrap());
    assert_eq!((ask("desk/echo").await, ask("vault/open").await), (None, Some(-32002)));
    desk.change_policy("[role.worker]\nallow = [\"vault/*\"]\n");
    assert_eq!((ask("desk/echo").await, ask("vault/open").await), (Some(-32002), None));
    // Deny wins over allow.
    desk.change_policy("[role.worker]\nallow = [\"*\"]\ndeny = [\"vault/open\"]\n");
    assert_eq!((ask("desk/echo").await, ask("vault/open").await), (None, Some(-32002)));
    // A role granted by the file instead of the token.
    desk.change_policy("[role.keeper]\nallow = [\"vault/*\"]\n[agent.ann]\nroles = [\"keeper\"]\n");
    assert_eq!((ask("desk/echo").await, ask("vault/open").await), (Some(-32002), None));
    desk.change_policy(POLICY);
    assert_eq!((ask("desk/echo").await, ask("vault/open").await), (None, Some(-32002)));
    assert_eq!(runs.count(), 5);
}

#[tokio::test]
async fn empty_policy_folder_denies_everything_and_says_so() {
    let (router, runs) = recording();
    let desk = Desk::open(router);
    let ann = desk.agent("ann", &["worker"]);
    let empty = tempfile::tempdir().unwrap();
    desk.service.replace_policy(desk.load_policy(empty.path()).unwrap());
    assert!(desk.service.policy().revision().why().unwrap().contains("no policy file"));
    assert_eq!(desk.service.policy().revision().to_string(), "deny-all");
    for method in ["desk/echo", "desk/note", "vault/open", "no/such", "rpc.discover"] {
        assert_eq!(code(&desk.ask(&ann, &call(method, "[]")).await.unwrap()), Some(-32002), "{method}");
    }
    assert_eq!(runs.count(), 0);
}

#[tokio::test]
async fn broken_policy_is_refused_whole_and_the_one_in_force_stays() {
    let (router, _) = recording();
    let desk = Desk::open(router);
    let ann = desk.agent("ann", &["worker"]);
    let before = desk.service.policy().revision().clone();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.toml"), "[role.worker]\nallow = [\"vault/*\"]\n").unwrap();
    for broken in ["[role.worker]\nallow = [\"no/such\"]\n", "[role.worker", "[role.other]\nalow = [\"*\"]\n"] {
        std::fs::write(folder.path().join("b.toml"), broken).unwrap();
        assert!(desk.load_policy(folder.path()).is_err(), "{broken}");
    }
    assert!(desk.load_policy(&folder.path().join("missing")).is_err());
    assert_eq!(*desk.service.policy().revision(), before);
    assert_eq!(code(&desk.ask(&ann, &call("vault/open", "[]")).await.unwrap()), Some(-32002));
}

#[tokio::test]
async fn batch_is_judged_under_one_revision() {
    type State = Arc<OnceLock<Arc<Desk>>>;
    let state = State::default();
    let router = Router::new(Arc::clone(&state))
        .method("desk/forbid", |ctx: Ctx<State>, (): ()| async move {
            ctx.state().get().unwrap().change_policy("[role.worker]\ndeny = [\"*\"]\n");
            Ok::<_, RpcError>(ctx.permit().revision().to_string())
        })
        .method("desk/revision", |ctx: Ctx<State>, (): ()| async move {
            Ok::<_, RpcError>(ctx.permit().revision().to_string())
        });
    // One entry at a time, so that the first has changed the policy before the second is judged.
    let limits = ServiceLimits { batch_concurrency: 1, ..ServiceLimits::default() };
    let desk = Arc::new(Desk::open_with(router, POLICY, limits));
    assert!(state.set(Arc::clone(&desk)).is_ok());
    let ann = desk.agent("ann", &["worker"]);
    let before = desk.service.policy().revision().to_string();
    let (forbid, revision) = (call("desk/forbid", "[]"), call("desk/revision", "[]"));
    let answer = desk.ask(&ann, &format!("[{revision},{forbid},{revision}]")).await.unwrap();
    assert_eq!(answer.matches(&before).count(), 3, "{answer}");
    assert_ne!(desk.service.policy().revision().to_string(), before);
    assert_eq!(code(&desk.ask(&ann, &revision).await.unwrap()), Some(-32002));
}

#[tokio::test]
async fn permit_names_the_rule_and_the_caller_is_what_the_checks_established() {
    let router = Router::new(()).method("desk/why", |ctx: Ctx, (): ()| async move {
        let caller = ctx.caller();
        Ok::<_, RpcError>(json!({
            "rule": ctx.permit().rule().map(ToString::to_string),
            "agent": caller.agent.as_str(),
            "roles": caller.roles,
            "key": caller.key,
            "alg": caller.algorithm.as_str(),
            "method": ctx.method(),
        }))
    });
    let desk = Desk::open(router);
    for (name, alg) in [("ann", "HS256"), ("eve", "EdDSA")] {
        let answer = desk.ask(&desk.agent(name, &["worker"]), &call("desk/why", "[]")).await.unwrap();
        let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
        let result = &answer["result"];
        assert!(result["rule"].as_str().unwrap().contains("policy.toml"), "{result}");
        assert_eq!(
            [&result["agent"], &result["key"], &result["alg"], &result["method"]],
            [&json!(name), &json!(format!("{name}.k1")), &json!(alg), &json!("desk/why")]
        );
        assert_eq!(result["roles"], json!(["worker"]));
    }
}

#[tokio::test]
async fn fault_of_parameters_is_told_only_to_those_who_could_call_the_method_with_others() {
    let policy = r#"
        [method."desk/echo"]
        params = [{ name = "n", type = "integer" }]
        [agent.ann]
        roles = ["teller"]
        [role.teller]
        [rule.small]
        roles = ["teller"]
        allow = ["desk/echo"]
        delegated = "also"
        when.params.n = { max = 10 }
    "#;
    let (router, runs) = recording();
    let desk = Desk::open(router);
    desk.change_policy(policy);
    let agent_for = |name: &str, subject: &str| {
        desk.agent_with(name, |request| {
            request.roles.clear();
            if subject != name {
                request.actor = Some(name.to_owned());
                request.subject = subject.to_owned();
            }
        })
    };
    let ask = async |name: &str, subject: &str, params: &str| {
        code(&desk.ask(&agent_for(name, subject), &call("desk/echo", params)).await.unwrap())
    };
    assert_eq!(ask("ann", "ann", "[10]").await, None);
    assert_eq!(ask("ann", "ann", "[11]").await, Some(-32002));
    for wrong in ["[]", "[\"10\"]", "[1.0]", "[1,2]", r#"{"n":1,"N":1}"#, r#"{"m":1}"#] {
        assert_eq!(ask("ann", "ann", wrong).await, Some(-32602), "{wrong}");
        // Neither to an agent without the right, nor to one that has it and acts for somebody without it, nor to one
        // without it that acts for somebody who has it.
        for (name, subject) in [("bob", "bob"), ("ann", "carol"), ("bob", "ann")] {
            assert_eq!(ask(name, subject, wrong).await, Some(-32002), "{name} for {subject}: {wrong}");
        }
    }
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn what_is_denied_is_denied_on_every_path() {
    let (router, runs) = recording();
    let desk = Desk::open(router);
    let ann = desk.agent("ann", &["worker"]);
    let (open, notify) = (call("vault/open", "[]"), r#"{"jsonrpc":"2.0","method":"vault/open"}"#);
    let (subject, inbox) = ("rpc.v1.desk.ann", "_INBOX.ann.r1");
    for (subject, reply, payload, denials) in [
        (subject, inbox, open.clone(), 1),
        (subject, inbox, notify.to_owned(), 0),
        (subject, "", notify.to_owned(), 0),
        (subject, inbox, format!("[{open}]"), 1),
        (subject, inbox, format!("[{notify},{open},{notify},{open}]"), 2),
        (subject, inbox, format!("[{notify}]"), 0),
        ("rpc.v1.desk.ann.vault.open", inbox, open.clone(), 1),
        ("rpc.v1.desk.ann.vault.open", "", notify.to_owned(), 0),
    ] {
        let answer = desk.answer(&desk.letter_to(&ann, subject, reply, &payload, None)).await.unwrap_or_default();
        assert_eq!(answer.matches("-32002").count(), denials, "{payload}: {answer}");
    }
    assert_eq!(runs.count(), 0);
    let (_, counted) = desk.service.counters().methods().find(|(name, _)| *name == "vault/open").unwrap();
    assert_eq!(counted.denied.load(std::sync::atomic::Ordering::SeqCst), 11);
}

/// A layer that records what it sees.
#[derive(Clone)]
struct Watch<S> {
    inner: S,
    seen: Arc<Mutex<Vec<String>>>,
}

impl<S: tower::Service<Permitted>> tower::Service<Permitted> for Watch<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, permitted: Permitted) -> S::Future {
        let (call, rule) = (permitted.call(), permitted.permit().rule().unwrap());
        self.seen.lock().unwrap().push(format!("{} {} {}", call.caller().agent, call.method(), rule));
        self.inner.call(permitted)
    }
}

#[tokio::test]
async fn layer_around_the_methods_sees_permitted_calls_only() {
    let (router, runs) = recording();
    let seen = Arc::<Mutex<Vec<String>>>::default();
    let watch = tower::layer::layer_fn(|inner| Watch { inner, seen: Arc::clone(&seen) });
    let desk = Desk::open_as(Setup::default(), |service| service.methods(router).layer(watch));
    let ann = desk.agent("ann", &["worker"]);
    let late = desk.letter_to(
        &ann,
        "rpc.v1.desk.ann",
        "_INBOX.ann.r1",
        &call("desk/echo", "[]"),
        Some(Duration::from_millis(1)),
    );
    let batch =
        [call("desk/echo", "[]"), call("vault/open", "[]"), call("desk/nowhere", "[]"), "1".to_owned()].join(",");
    let answer = desk.ask(&ann, &format!("[{batch}]")).await.unwrap();
    for code in ["result", "-32002", "-32601", "-32600"] {
        assert_eq!(answer.matches(code).count(), 1, "{answer}");
    }
    desk.clock.advance_ms(1);
    assert_eq!(desk.offer(&late).await, Some(-32003));
    assert_eq!(desk.offer(&late).await, Some(-32012));
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert!(seen[0].starts_with("ann desk/echo "), "{seen:?}");
    assert_eq!(runs.count(), 1);
}

/// An error object as a client receives it from another service.
fn received(code: i32) -> RpcError {
    let text = format!(r#"{{"jsonrpc":"2.0","error":{{"code":{code},"message":"said elsewhere"}},"id":1}}"#);
    match Responses::parse(text.as_bytes(), &Limits::default()).unwrap() {
        Responses::Single(response) => response.outcome.unwrap_err(),
        Responses::Batch(_) => unreachable!("an object was given"),
    }
}

#[tokio::test]
async fn layer_may_end_a_call_but_not_in_the_words_of_our_own_checks() {
    async fn refuse(error: Arc<Mutex<Option<tower::BoxError>>>) -> Result<Box<RawValue>, tower::BoxError> {
        Err(error.lock().unwrap().take().unwrap())
    }
    let own = [
        -32002, -32003, -32010, -32011, -32012, -32013, -32014, -32015, -32016, -32017, -32600, -32700, -32768, -32018,
    ];
    let mut cases: Vec<(tower::BoxError, i32, bool)> =
        own.iter().map(|code| (received(*code).into(), *code, true)).collect();
    cases.extend([
        // What another service said of its own methods says nothing of this one's.
        (received(-32601).into(), -32601, true),
        (RpcError::application(50, "try later").into(), 50, false),
        (RpcError::application(-32002, "try later").into(), -32002, true),
        (RpcError::validation("no").into(), -32001, false),
        (RpcError::dependency("down").into(), -32004, false),
        (received(7).into(), 7, false),
        ("postgres://user:secret@db is down".into(), -32603, false),
    ]);
    let next = Arc::<Mutex<Option<tower::BoxError>>>::default();
    let error = Arc::clone(&next);
    let desk = Desk::open_as(Setup::default(), |service| {
        service.methods(recording().0).layer(tower::layer::layer_fn(move |_inner| {
            let error = Arc::clone(&error);
            tower::service_fn(move |_permitted: Permitted| refuse(Arc::clone(&error)))
        }))
    });
    let ann = desk.agent("ann", &["worker"]);
    for (error, expected, is_marked) in cases {
        let what = error.to_string();
        *next.lock().unwrap() = Some(error);
        let answer = desk.ask(&ann, &call("desk/echo", "[]")).await.unwrap();
        assert_eq!(code(&answer), Some(expected.into()), "{what}");
        assert_eq!(answer.contains(r#"},"application_error":true,"id":1}"#), is_marked, "{answer}");
        assert!(!answer.contains("secret"), "{answer}");
    }
}

#[tokio::test]
async fn service_is_a_tower_service_of_deliveries() {
    let (router, runs) = recording();
    let desk = Desk::open(router);
    let ann = desk.agent("ann", &["worker"]);
    let counted = Arc::<Mutex<usize>>::default();
    let stack = ServiceBuilder::new()
        .map_request(|letter: sealwire::serve::Delivery| {
            *counted.lock().unwrap() += 1;
            letter
        })
        .service(desk.service.clone());
    let letter = desk.letter(&ann, &call("desk/echo", "[]"));
    let sealed = stack.clone().oneshot(letter.delivery()).await.unwrap().unwrap();
    let headers = sealed.headers().unwrap();
    letter.expectation.accept(sealed.to(), headers, sealed.payload()).unwrap();
    let again = stack.oneshot(letter.delivery()).await.unwrap().unwrap();
    assert_eq!(code(&sealwire_testkit::desk::text(&again)), Some(-32012));
    assert_eq!((runs.count(), *counted.lock().unwrap()), (1, 2));
    // Clones share everything.
    let _: Service = desk.service.clone();
    assert_eq!(desk.service.counters().refusals()["replayed"], 1);
}
