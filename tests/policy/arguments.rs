//! A limit on an argument, and every spelling that might get around it: through `Service::handle`, to a method that
//! accepts whatever it gets.

use std::sync::{Arc, Mutex};

use sealwire::{Ctx, Router, RpcError, ServiceLimits};
use sealwire_testkit::desk::{Desk, call, code};
use serde_json::Value;

/// Workers may move at most 100.
const LIMITED: &str = r#"
[method."desk/transfer"]
params = [
  { name = "to", type = "string" },
  { name = "amount", type = "integer" },
  { name = "note", type = "string", optional = true },
]
[role.worker]
[rule.small]
roles = ["worker"]
allow = ["desk/transfer"]
when.params.amount = { min = 0, max = 100 }
"#;

/// The same without a limit.
const OPEN: &str = "[role.worker]\nallow = [\"desk/transfer\"]\n";

type Moved = Arc<Mutex<Vec<f64>>>;

/// A method whose author reads amounts in any form: by name or position, under older names, out of texts, lists and
/// wrappers, in any notation; of several, the largest.
fn careless() -> (Router<Moved>, Moved) {
    let moved = Moved::default();
    let router = Router::new(moved.clone()).method("desk/transfer", |ctx: Ctx<Moved>, p: Value| async move {
        ctx.state().lock().unwrap().push(amounts(&p).into_iter().fold(0.0, f64::max));
        Ok::<_, RpcError>("moved")
    });
    (router, moved)
}

fn amounts(value: &Value) -> Vec<f64> {
    match value {
        Value::Number(number) => number.as_f64().into_iter().collect(),
        Value::String(text) => text.trim().parse().into_iter().collect(),
        Value::Array(values) => values.iter().flat_map(amounts).collect(),
        Value::Object(members) => members.values().flat_map(amounts).collect(),
        Value::Bool(_) | Value::Null => Vec::new(),
    }
}

/// Without the limit, the method would move more than 100 for this spelling. With it, the method never sees the spelling:
/// not as a call, not as a notification, not in a batch beside a good call.
async fn never_arrives(params: &str, refusal: i64) {
    let (router, moved) = careless();
    let desk = Desk::open_with(router, OPEN, ServiceLimits::default());
    let ann = desk.agent("ann", &["worker"]);
    let largest = || moved.lock().unwrap().iter().copied().fold(0.0, f64::max);
    let open = desk.ask(&ann, &call("desk/transfer", params)).await.unwrap();
    // A request that is invalid before any policy is asked is refused with either policy.
    let unreadable = refusal == -32600;
    assert_eq!(code(&open), unreadable.then_some(refusal), "{open}");
    assert_eq!(largest() > 100.0, !unreadable, "not an evasion: {params}");

    moved.lock().unwrap().clear();
    desk.change_policy(LIMITED);
    let good = call("desk/transfer", r#"{"to":"bob","amount":100}"#);
    let answer = desk.ask(&ann, &call("desk/transfer", params)).await.unwrap();
    assert_eq!(code(&answer), Some(refusal), "{params}: {answer}");
    let notification = call("desk/transfer", params).replace(",\"id\":1}", "}");
    desk.ask(&ann, &notification).await;
    let batch = desk.ask(&ann, &format!("[{good},{},{notification}]", call("desk/transfer", params))).await.unwrap();
    if unreadable {
        assert_eq!((code(&batch), moved.lock().unwrap().len()), (Some(refusal), 0), "{batch}");
    } else {
        let answers: Vec<Value> = serde_json::from_str(&batch).unwrap();
        let codes: Vec<Option<i64>> = answers.iter().map(|answer| code(&answer.to_string())).collect();
        assert_eq!((codes.len(), moved.lock().unwrap().as_slice()), (2, [100.0].as_slice()), "{batch}");
        assert!(codes.contains(&None) && codes.contains(&Some(refusal)), "{batch}");
    }
}

const INVALID_PARAMS: i64 = -32602;
const DENIED: i64 = -32002;

#[tokio::test]
async fn limit_holds_for_amounts_by_name() {
    never_arrives(r#"{"to":"bob","amount":101}"#, DENIED).await;
    never_arrives(r#"{"amount":9223372036854775807,"to":"bob"}"#, DENIED).await;
}

#[tokio::test]
async fn limit_is_not_evaded_by_position() {
    never_arrives(r#"["bob",101]"#, DENIED).await;
    never_arrives(r#"["bob",50000,null]"#, DENIED).await;
    never_arrives(r#"["bob",5,null,50000]"#, INVALID_PARAMS).await;
}

#[tokio::test]
async fn limit_is_not_evaded_by_an_exponent() {
    never_arrives(r#"{"to":"bob","amount":1e9}"#, INVALID_PARAMS).await;
    never_arrives(r#"["bob",5E4]"#, INVALID_PARAMS).await;
}

#[tokio::test]
async fn limit_is_not_evaded_by_a_fraction() {
    // 1.0 is not an integer either, although its value is allowed; the larger one shows that the method would accept the spelling.
    let (router, moved) = careless();
    let desk = Desk::open_with(router, LIMITED, ServiceLimits::default());
    let ann = desk.agent("ann", &["worker"]);
    let answer = desk.ask(&ann, &call("desk/transfer", r#"{"to":"bob","amount":1.0}"#)).await.unwrap();
    assert_eq!((code(&answer), moved.lock().unwrap().len()), (Some(INVALID_PARAMS), 0), "{answer}");
    never_arrives(r#"{"to":"bob","amount":50000.0}"#, INVALID_PARAMS).await;
    never_arrives(r#"["bob",100.5]"#, INVALID_PARAMS).await;
}

#[tokio::test]
async fn limit_is_not_evaded_by_a_text() {
    never_arrives(r#"{"to":"bob","amount":"50000"}"#, INVALID_PARAMS).await;
    never_arrives(r#"["bob","\u0035e4"]"#, INVALID_PARAMS).await;
}

#[tokio::test]
async fn limit_is_not_evaded_by_a_repeated_member() {
    never_arrives(r#"{"to":"bob","amount":5,"amount":50000}"#, -32600).await;
    never_arrives(r#"{"to":"bob","amount":50000,"amoun\u0074":5}"#, -32600).await;
}

#[tokio::test]
async fn limit_is_not_evaded_by_a_number_beyond_64_bits() {
    // One more than 2^64: a reader that wraps around turns it into 1.
    never_arrives(r#"{"to":"bob","amount":18446744073709551617}"#, INVALID_PARAMS).await;
    never_arrives(r#"["bob",9223372036854775808]"#, INVALID_PARAMS).await;
}

#[tokio::test]
async fn limit_is_not_evaded_by_nesting() {
    never_arrives(r#"{"to":"bob","amount":{"value":50000}}"#, INVALID_PARAMS).await;
    never_arrives(r#"{"to":"bob","amount":[50000]}"#, INVALID_PARAMS).await;
    never_arrives(r#"{"to":"bob","amount":5,"more":{"amount":50000}}"#, INVALID_PARAMS).await;
    never_arrives(r#"{"params":{"to":"bob","amount":50000}}"#, INVALID_PARAMS).await;
    never_arrives(r#"[{"to":"bob","amount":50000}]"#, INVALID_PARAMS).await;
    never_arrives(r#"[["bob",50000]]"#, INVALID_PARAMS).await;
}

#[tokio::test]
async fn limit_is_not_evaded_by_another_name() {
    never_arrives(r#"{"to":"bob","amount":5,"amt":50000}"#, INVALID_PARAMS).await;
    never_arrives(r#"{"to":"bob","Amount":50000}"#, INVALID_PARAMS).await;
    never_arrives(r#"{"to":"bob","amount\u0000":50000,"amount":5}"#, INVALID_PARAMS).await;
    never_arrives(r#"{"to":"bob","аmount":50000,"amount":5}"#, INVALID_PARAMS).await;
}

/// As `serde` allows it: a field that a derived type also accepts under an older name.
#[derive(serde::Deserialize)]
struct Transfer {
    #[serde(rename = "to")]
    _to: String,
    #[serde(alias = "amt", alias = "value")]
    amount: f64,
}

#[tokio::test]
async fn limit_is_not_evaded_by_an_alias_of_a_derived_type() {
    let moved = Moved::default();
    let router = Router::new(moved.clone()).method("desk/transfer", |ctx: Ctx<Moved>, p: Transfer| async move {
        ctx.state().lock().unwrap().push(p.amount);
        Ok::<_, RpcError>("moved")
    });
    let desk = Desk::open_with(router, OPEN, ServiceLimits::default());
    let ann = desk.agent("ann", &["worker"]);
    let spellings = [r#"{"to":"bob","amt":50000}"#, r#"{"to":"bob","value":5e4}"#];
    for params in spellings {
        assert_eq!(code(&desk.ask(&ann, &call("desk/transfer", params)).await.unwrap()), None, "{params}");
    }
    assert_eq!(moved.lock().unwrap().as_slice(), [50000.0, 50000.0]);
    desk.change_policy(LIMITED);
    for params in spellings {
        let answer = desk.ask(&ann, &call("desk/transfer", params)).await.unwrap();
        assert_eq!(code(&answer), Some(INVALID_PARAMS), "{params}: {answer}");
    }
    assert_eq!(moved.lock().unwrap().len(), 2);
    let good = desk.ask(&ann, &call("desk/transfer", r#"["bob",100]"#)).await.unwrap();
    assert_eq!((code(&good), moved.lock().unwrap().last().copied()), (None, Some(100.0)), "{good}");
}

/// A caller that may not call the method at all learns nothing about its parameters.
#[tokio::test]
async fn strangers_are_denied_alike_whatever_they_send() {
    let (router, moved) = careless();
    let desk = Desk::open_with(router, LIMITED, ServiceLimits::default());
    let bob = desk.agent("bob", &[]);
    let mut answers = Vec::new();
    for params in [r#"{"to":"a","amount":5}"#, r#"{"to":"a","amount":1e9}"#, r#"{"amt":1}"#, "[]"] {
        answers.push(desk.ask(&bob, &call("desk/transfer", params)).await.unwrap());
    }
    assert_eq!(code(&answers[0]), Some(DENIED), "{answers:?}");
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    assert!(moved.lock().unwrap().is_empty());
}
