//! A method's facts, said once where it is registered, are what policies are checked against and what callers are told.

use std::time::Duration;

use sealwire::decide::Param;
use sealwire::serve::{Attachment, ParamList as _};
use sealwire::{Ctx, Params, PolicySet, Router, RpcError, ServiceLimits, method};
use sealwire_testkit::desk::{Desk, call, code};
use serde_json::{Value, json};

#[derive(serde::Deserialize, Params)]
#[serde(rename_all = "camelCase")]
#[expect(dead_code, reason = "only its declaration counts")]
struct Everything {
    /// Whom to pay,
    /// by account.
    to_whom: String,
    amount: u32,
    rate: f64,
    #[serde(default)]
    fast: bool,
    #[serde(rename = "tag-list")]
    tags: Option<Vec<String>>,
    matrix: Vec<Vec<i64>>,
    receipt: Attachment,
    inner: Inner,
    #[param(integer)]
    duration: std::time::Duration,
    #[param(any)]
    pause: Option<std::time::Duration>,
    #[serde(skip)]
    kept: usize,
    r#type: Value,
}

#[derive(serde::Deserialize, Params)]
#[expect(dead_code, reason = "only its declaration counts")]
struct Inner {
    a: Option<i8>,
}

#[test]
fn parameters_are_those_that_serde_takes() {
    let shown: Vec<String> = Everything::params().iter().map(Param::to_string).collect();
    assert_eq!(
        shown[..7],
        [
            "toWhom: string",
            "amount: integer",
            "rate: number",
            "fast?: boolean",
            "tag-list?: string[]",
            "matrix: any",
            &Attachment::param("receipt").to_string(),
        ]
    );
    assert_eq!(shown[8..], ["duration: integer", "pause?: any", "type: any"]);
    assert_eq!(Everything::params()[0].description(), Some("Whom to pay, by account."));
    assert_eq!(<()>::params(), []);
}

#[derive(serde::Deserialize, Params)]
struct Payment {
    /// The receiving account.
    to: String,
    amount: i64,
}

async fn pay(_: Ctx, p: Payment) -> Result<String, RpcError> {
    Ok(format!("{} {}", p.to, p.amount))
}

fn router() -> Router {
    let pay = method(pay).describe("Pays.").example(json!({ "to": "bob", "amount": 1 }), "bob 1");
    Router::new(()).add("bank/pay", pay.idempotent(Duration::from_secs(60)))
}

const POLICY: &str = r#"
[role.clerk]
[rule.small]
roles = ["clerk"]
allow = ["bank/pay"]
when.params.amount = { max = 100 }
"#;

#[tokio::test]
async fn facts_reach_policy_and_callers() {
    let desk = Desk::open_with(router(), POLICY, ServiceLimits::default());
    let ann = desk.agent("ann", &["clerk"]);
    let text = desk.ask(&ann, &call("rpc.discover", "{}")).await.unwrap();
    let answer: Value = serde_json::from_str(&text).unwrap();
    let about = &answer["result"]["methods"][0];
    assert_eq!((&about["name"], &about["description"]), (&json!("bank/pay"), &json!("Pays.")));
    assert_eq!(about["params"][0]["description"], "The receiving account.");
    assert_eq!(about["x-params"]["properties"]["to"]["description"], "The receiving account.");
    assert_eq!(about["x-params"]["required"], json!(["to", "amount"]));
    assert_eq!(about["examples"].as_array().unwrap().len(), 1);
    assert_eq!(about["x-idempotent"], true);
    // The rule on an argument needs no declaration in a policy file.
    assert_eq!(code(&desk.ask(&ann, &call("bank/pay", r#"["bob", 100]"#)).await.unwrap()), None);
    assert_eq!(code(&desk.ask(&ann, &call("bank/pay", r#"["bob", 101]"#)).await.unwrap()), Some(-32002));
}

#[test]
fn policy_file_that_declares_other_parameters_does_not_load() {
    let load = |params: &str| {
        let declared = format!("[method.\"bank/pay\"]\nparams = [{params}]\n{POLICY}");
        PolicySet::from_texts([("bank.toml", declared.as_str())], &router().policy_methods()).map(|_| ())
    };
    load(r#"{ name = "to", type = "string", description = "Another text." }, { name = "amount", type = "integer" }"#)
        .unwrap();
    let wrong = load(r#"{ name = "to", type = "string" }"#).unwrap_err().to_string();
    assert!(wrong.contains("bank/pay") && wrong.contains("amount"), "{wrong}");
}
