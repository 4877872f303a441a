//! `rpc.discover`: each caller is told what it may call, and about nothing else. SPEC.md §18.1.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::stream;
use sealwire::decide::{Param, ParamType, ScalarType};
use sealwire::errors::RouterError;
use sealwire::serve::{Description, QuotaLimits};
use sealwire::{BuildError, Ctx, Router, RpcError, ServiceLimits};
use sealwire_testkit::desk::{Agent, Desk, call, code};
use serde_json::{Value, json};

async fn nothing(_: Ctx, _: Option<Value>) -> Result<(), RpcError> {
    Ok(())
}

async fn numbers(_: Ctx, _: Option<Value>) -> Result<stream::Empty<Result<u8, RpcError>>, RpcError> {
    Ok(stream::empty())
}

fn router() -> Router {
    Router::new(())
        .method("bank/pay", nothing)
        .params(
            "bank/pay",
            [
                Param::string("to"),
                Param::integer("amount"),
                Param::new("tags", ParamType::List(ScalarType::String)).optional(),
            ],
        )
        .describe(
            "bank/pay",
            Description::new("Pays.")
                .result(json!({ "type": "null" }))
                .example(json!({ "amount": 1, "to": "bob" }), json!(null)),
        )
        .idempotent("bank/pay", Duration::from_secs(60))
        .method("bank/close", nothing)
        .stream("log/lines", numbers)
        .subscription("log/ticks", numbers_of_notes)
        .method("vault/open", nothing)
}

async fn numbers_of_notes(_: Ctx, _: Option<Value>) -> Result<stream::Empty<Result<[u8; 1], RpcError>>, RpcError> {
    Ok(stream::empty())
}

const POLICY: &str = r#"
[role.clerk]
allow = ["log/*"]
[role.boss]
allow = ["*"]
[role.closed]
deny = ["rpc.discover"]

[rule.small]
roles = ["clerk"]
allow = ["bank/pay"]
when.params.amount = { min = 1, max = 100 }
"#;

async fn discover(desk: &Desk, agent: &Agent, params: Value) -> Result<Value, i64> {
    let text = desk.ask(agent, &call("rpc.discover", &params.to_string())).await.unwrap();
    let answer: Value = serde_json::from_str(&text).unwrap();
    code(&text).map_or_else(|| Ok(answer["result"].clone()), Err)
}

fn names(document: &Value) -> Vec<&str> {
    document["methods"].as_array().unwrap().iter().map(|method| method["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn each_caller_is_told_what_it_may_call() {
    let desk = Desk::open_with(router(), POLICY, ServiceLimits::default());
    let (ann, bob) = (desk.agent("ann", &["clerk"]), desk.agent("bob", &["boss"]));
    let clerks = discover(&desk, &ann, json!({})).await.unwrap();
    assert_eq!(names(&clerks), ["bank/pay", "log/lines", "log/ticks"]);
    assert!(!clerks.to_string().contains("vault"), "{clerks}");
    assert_eq!(clerks["openrpc"], "1.3.2");
    assert_eq!(
        clerks["info"],
        json!({ "title": "test/desk", "version": desk.service.policy().revision().to_string() })
    );
    let amount = json!({ "type": "integer", "minimum": 1, "maximum": 100 });
    let tags = json!({ "type": "array", "items": { "type": "string" } });
    assert_eq!(
        clerks["methods"][0],
        json!({
            "name": "bank/pay",
            "description": "Pays.",
            "params": [
                { "name": "to", "required": true, "schema": { "type": "string" } },
                { "name": "amount", "required": true, "schema": amount },
                { "name": "tags", "required": false, "schema": tags },
            ],
            "result": { "name": "result", "schema": { "type": "null" } },
            "examples": [{
                "name": "example 1",
                "params": [{ "name": "amount", "value": 1 }, { "name": "to", "value": "bob" }],
                "result": { "name": "result", "value": null },
            }],
            "x-params": {
                "type": "object",
                "properties": { "to": { "type": "string" }, "amount": amount, "tags": tags },
                "required": ["to", "amount"],
                "additionalProperties": false,
            },
            "x-idempotent": true,
        })
    );
    assert_eq!(
        (&clerks["methods"][1]["x-stream"], &clerks["methods"][2]["x-subscription"]),
        (&json!(true), &json!(true))
    );
    assert_eq!(clerks["methods"][1]["x-params"], json!({ "type": "object" }), "nothing is declared");

    let all = discover(&desk, &bob, json!({})).await.unwrap();
    assert_eq!(names(&all), ["bank/close", "bank/pay", "log/lines", "log/ticks", "vault/open"]);
    assert_eq!(all["methods"][1]["params"][1]["schema"], json!({ "type": "integer" }), "no bounds for the boss");

    // Another policy, another answer.
    desk.change_policy("[role.clerk]\nallow = [\"vault/*\"]\n");
    assert_eq!(names(&discover(&desk, &ann, json!({})).await.unwrap()), ["vault/open"]);
    assert!(names(&discover(&desk, &bob, json!({})).await.unwrap()).is_empty());
}

#[tokio::test]
async fn everybody_may_ask_unless_a_rule_says_no() {
    let desk = Desk::open_with(router(), POLICY, ServiceLimits::default());
    let nobody = desk.agent("ann", &[]);
    assert!(names(&discover(&desk, &nobody, json!({})).await.unwrap()).is_empty());
    let closed = desk.agent("bob", &["boss", "closed"]);
    assert_eq!(discover(&desk, &closed, json!({})).await, Err(-32002));
    // On behalf of somebody: what both may call.
    let for_bob = desk.agent_with("ann", |request| {
        request.subject = "bob".to_owned();
        request.actor = Some("ann".to_owned());
    });
    assert!(names(&discover(&desk, &for_bob, json!({})).await.unwrap()).is_empty(), "no rule is about such calls");
    let rule = |callers: &str| format!("[rule.x]\n{callers}\nallow = [\"log/*\"]\ndelegated = \"also\"\n");
    desk.change_policy(&rule("agents = [\"ann\"]"));
    assert!(names(&discover(&desk, &for_bob, json!({})).await.unwrap()).is_empty(), "only the agent may");
    desk.change_policy(&rule("agents = [\"ann\", \"bob\"]"));
    assert!(names(&discover(&desk, &for_bob, json!({})).await.unwrap()).is_empty(), "the subject is no agent");
    let both = rule("agents = [\"ann\"]\nsubjects = [\"bob\"]");
    desk.change_policy(&both);
    assert_eq!(names(&discover(&desk, &for_bob, json!({})).await.unwrap()), ["log/lines", "log/ticks"]);
    // Nobody may ask on behalf of a subject that may not ask.
    desk.change_policy(&format!("{both}[rule.y]\nsubjects = [\"bob\"]\ndeny = [\"rpc.discover\"]\n"));
    assert_eq!(discover(&desk, &for_bob, json!({})).await, Err(-32002));
}

/// SPEC.md §18.1.
#[tokio::test]
async fn what_a_rule_about_arguments_denies_altogether_is_not_told() {
    let policy = |conditions: &str| {
        format!(
            "[role.clerk]\n[role.guest]\n[agent.ann]\n\
             [rule.small]\nroles = [\"clerk\"]\nallow = [\"bank/pay\"]\nwhen.params.amount = {{ min = 1, max = 100 }}\n\
             when.params.to = {{ in = [\"bob\", \"eve\"] }}\n[rule.none]\ndeny = [\"bank/pay\"]\n{conditions}\n"
        )
    };
    let everyone = "everyone = true\n";
    for (conditions, is_told) in [
        (format!("{everyone}when.params.amount = {{ min = 0 }}"), false),
        (format!("{everyone}when.params.amount = {{ max = 100 }}"), false),
        (format!("{everyone}when.params.to = {{ not_in = [\"carl\"] }}"), false),
        (
            format!(
                "{everyone}when.params.amount = {{ min = 0 }}\nwhen.params.to = {{ in = [\"bob\", \"dan\", \"eve\"] }}"
            ),
            false,
        ),
        ("roles = [\"clerk\"]\nwhen.params.amount = { min = 1 }".to_owned(), false),
        ("agents = [\"ann\"]\nwhen.params.amount = { min = 1 }".to_owned(), false),
        // The rule leaves something allowed, or is about somebody else, or applies only to some calls.
        (format!("{everyone}when.params.amount = {{ min = 2 }}"), true),
        (format!("{everyone}when.params.to = \"bob\""), true),
        (format!("{everyone}when.params.amount = {{ min = 0 }}\nwhen.params.to = \"bob\""), true),
        ("roles = [\"guest\"]\nwhen.params.amount = { min = 1 }".to_owned(), true),
        ("agents = [\"bert\"]\nwhen.params.amount = { min = 1 }".to_owned(), true),
        (format!("{everyone}delegated = \"only\"\nwhen.params.amount = {{ min = 1 }}"), true),
        (format!("{everyone}when.params.amount = {{ min = 1 }}\nwhen.params.tags = {{ present = true }}"), true),
    ] {
        let desk = Desk::open_with(router(), policy(&conditions).leak(), ServiceLimits::default());
        let ann = desk.agent("ann", &["clerk"]);
        // Twice: the result of the first time is cached.
        for _ in 0..2 {
            let told = discover(&desk, &ann, json!({})).await.unwrap();
            assert_eq!(names(&told), if is_told { &["bank/pay"][..] } else { &[] }, "{conditions}");
        }
        let mut allowed = false;
        for (to, amount) in [("bob", 1), ("bob", 100), ("eve", 1), ("eve", 100)] {
            let text = desk.ask(&ann, &call("bank/pay", &json!({ "to": to, "amount": amount }).to_string())).await;
            allowed |= code(&text.unwrap()) != Some(-32002);
        }
        assert_eq!(allowed, is_told, "the policy says so as well: {conditions}");
    }
}

/// SPEC.md §18.1: the method may be listed then.
#[tokio::test]
async fn more_rules_than_are_compared_cost_no_more() {
    for (count, is_told) in [(20, false), (100, true)] {
        let policy = (0..count).fold("[role.clerk]\n".to_owned(), |policy, n| {
            let condition = format!("when.params.amount = {{ min = {}, max = {} }}\n", 10 * n, 10 * n + 5);
            let rule = |effect: &str| {
                format!("[rule.{effect}-{n}]\nroles = [\"clerk\"]\n{effect} = [\"bank/pay\"]\n{condition}")
            };
            policy + &rule("allow") + &rule("deny")
        });
        let desk = Desk::open_with(router(), policy.leak(), ServiceLimits::default());
        let ann = desk.agent("ann", &["clerk"]);
        for _ in 0..2 {
            let told = discover(&desk, &ann, json!({})).await.unwrap();
            assert_eq!(names(&told), if is_told { &["bank/pay"][..] } else { &[] }, "{count}");
        }
    }
}

#[tokio::test]
async fn a_thousand_methods_come_in_pages_that_name_no_others() {
    let name = |number: usize| format!("{}/m{number:04}", if number.is_multiple_of(2) { "even" } else { "odd" });
    let mut router = (0..1_000).fold(Router::new(()), |router, number| {
        let about = Description::new(format!("The method number {number}. {}", "It does what it does. ".repeat(20)));
        router.method(&name(number), nothing).describe(&name(number), about)
    });
    // More than fits into an answer without frames.
    let large = Description::new("Large.").extension("x-text", "x".repeat(250 * 1024));
    router = router.method("even/large", nothing).describe("even/large", large);
    let desk = Desk::open_with(router, "[role.clerk]\nallow = [\"even/*\"]\n", ServiceLimits::default());
    let ann = desk.agent("ann", &["clerk"]);
    let (mut found, mut pages, mut cursor) = (Vec::new(), 0, json!({}));
    loop {
        let text = desk.ask(&ann, &call("rpc.discover", &cursor.to_string())).await.unwrap();
        assert!(text.len() <= 192 * 1024, "{}", text.len());
        assert!(!text.contains("odd/"), "a cursor names no method that is left out");
        let answer: Value = serde_json::from_str(&text).unwrap();
        found.extend(names(&answer["result"]).into_iter().map(str::to_owned));
        pages += 1;
        let methods = answer["result"]["methods"].as_array().unwrap();
        let large = methods.iter().find(|method| method["name"] == "even/large");
        assert!(large.is_none_or(|large| large["x-shortened"] == true && large["x-text"] == Value::Null));
        match answer["result"].get("x-next") {
            Some(next) => cursor = json!({ "cursor": next }),
            None => break,
        }
    }
    assert_eq!((found.len(), pages), (501, 2));
    assert!(found.is_sorted());
    for wrong in [json!({ "cursor": "a//b" }), json!({ "cursor": 1 }), json!({ "more": 1 }), json!(["a", "b"])] {
        assert_eq!(discover(&desk, &ann, wrong.clone()).await, Err(-32602), "{wrong}");
    }
}

#[tokio::test]
async fn a_large_catalogue_is_charged_to_who_asks() {
    let router = (0..320).fold(Router::new(()), |router, number| router.method(&format!("m/n{number}"), nothing));
    let quota = QuotaLimits { per_second: 1, burst: 50, ..QuotaLimits::default() };
    let desk = Desk::open_with(router, "", ServiceLimits { quota, ..ServiceLimits::default() });
    let (ann, bob) = (desk.agent("ann", &[]), desk.agent("bob", &[]));
    // Each answer costs 21.
    for _ in 0..2 {
        assert!(discover(&desk, &ann, json!({})).await.is_ok());
    }
    assert_eq!(discover(&desk, &ann, json!({})).await, Err(-32013));
    assert!(discover(&desk, &bob, json!({})).await.is_ok());
}

#[tokio::test]
async fn long_descriptions_are_charged_to_who_is_told_them() {
    let about = Description::new("x".repeat(2_000));
    let router = (0..160).fold(Router::new(()), |router, number| {
        let name = format!("m/n{number}");
        router.method(&name, nothing).describe(&name, about.clone())
    });
    let quota = QuotaLimits { per_second: 1, burst: 50, ..QuotaLimits::default() };
    let policy = "[role.boss]\nallow = [\"*\"]\n[role.clerk]\nallow = [\"m/n1\"]\n";
    let desk = Desk::open_with(router, policy, ServiceLimits { quota, ..ServiceLimits::default() });
    let (boss, other, clerk) =
        (desk.agent("ann", &["boss"]), desk.agent("bob", &["boss"]), desk.agent("eve", &["clerk"]));
    // 11 for the decisions, and as many again for a full page of 190 KB, once the page is known to be full.
    assert!(names(&discover(&desk, &other, json!({})).await.unwrap()).len() > 80);
    for _ in 0..2 {
        assert!(discover(&desk, &boss, json!({})).await.is_ok());
    }
    assert_eq!(discover(&desk, &boss, json!({})).await, Err(-32013));
    for _ in 0..4 {
        assert_eq!(names(&discover(&desk, &clerk, json!({})).await.unwrap()), ["m/n1"]);
    }
}

#[tokio::test]
async fn a_long_answer_lets_others_go_on_meanwhile() {
    let router = (0..320).fold(Router::new(()), |router, number| router.method(&format!("m/n{number}"), nothing));
    let desk = Desk::open_with(router, "[role.boss]\nallow = [\"*\"]\n", ServiceLimits::default());
    let boss = desk.agent("ann", &["boss"]);
    let mut asked = std::pin::pin!(discover(&desk, &boss, json!({})));
    let mut turns = 0;
    let told = std::future::poll_fn(|context| {
        turns += 1;
        asked.as_mut().poll(context)
    });
    let told = told.await.unwrap();
    assert_eq!(names(&told).len(), 320);
    // It yields once per 16 decisions, and now and then for the texts.
    assert!(turns >= 20, "{turns}");
}

#[tokio::test]
async fn a_description_may_change_while_the_service_runs() {
    let shown = Arc::new(AtomicBool::new(true));
    let asked = Arc::clone(&shown);
    let schema = json!({
        "type": "object", "properties": { "n": { "$ref": "#/$defs/n" }, "any": true }, "$defs": { "n": { "type": "integer" } },
    });
    let router = Router::new(()).method("t/tool", nothing).params("t/tool", [Param::integer("n")]).describe_with(
        "t/tool",
        move || {
            let about =
                Description::new("A tool.").params(schema.clone()).extension("x-mcp", json!({ "title": "Tool" }));
            asked.load(Ordering::Relaxed).then(|| Arc::new(about))
        },
    );
    let policy = "[rule.x]\neveryone = true\nallow = [\"t/*\"]\nwhen.params.n = { max = 3 }\n";
    let desk = Desk::open_with(router, policy, ServiceLimits::default());
    let ann = desk.agent("ann", &[]);
    let told = discover(&desk, &ann, json!({})).await.unwrap();
    assert_eq!(told["methods"][0]["x-mcp"], json!({ "title": "Tool" }));
    let n = &told["methods"][0]["x-params"]["properties"]["n"];
    assert_eq!(n, &json!({ "$ref": "#/$defs/n", "maximum": 3 }), "its own schema, and the bound of the rule");
    shown.store(false, Ordering::Relaxed);
    assert!(names(&discover(&desk, &ann, json!({})).await.unwrap()).is_empty());
}

#[test]
fn what_cannot_be_told_is_reported() {
    let cases = [
        Description::default().params(json!({ "type": "string" })),
        Description::default().params(json!([])),
        Description::default().result(json!("number")),
        Description::default().example(json!([1]), json!(1)),
        Description::default().extension("title", "x"),
        Description::default().extension("x-params", "x"),
        Description::new("x".repeat(Description::MAX_BYTES + 1)),
    ];
    for about in cases {
        let router = Router::new(()).method("a/b", nothing).describe("a/b", about.clone());
        let error = Desk::try_open(router).err().unwrap();
        assert!(
            matches!(&error, BuildError::Methods(wrong) if matches!(wrong[..], [RouterError::Description(..)])),
            "{about:?}"
        );
    }
    let error = Desk::try_open(Router::new(()).describe("a/b", Description::new("x"))).err().unwrap();
    assert!(error.to_string().contains("register the method first"), "{error}");
}
