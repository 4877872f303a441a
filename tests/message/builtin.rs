//! The methods that every service has: `rpc.can` and `rpc.explain`.

use sealwire::configure::AgentKey;
use sealwire::internal::auth::KeyEntry;
use sealwire::{Name, ServiceLimits};
use sealwire_testkit::desk::{Agent, Desk, OPEN_POLICY, call, code, recording};
use serde_json::{Value, json};

/// Everybody may ask; auditors may ask why; workers move small amounts.
const POLICY: &str = r#"
[method."desk/echo"]
params = [{ name = "amount", type = "integer" }]

[role.worker]
allow = ["desk/note"]
[role.auditor]

[rule.small]
roles = ["worker"]
allow = ["desk/echo"]
when.params.amount = { max = 100 }

[rule.ask]
everyone = true
allow = ["rpc.can"]

[rule.ask-why]
roles = ["auditor"]
allow = ["rpc.explain"]
"#;

fn open() -> (Desk, std::sync::Arc<sealwire_testkit::desk::Runs>) {
    let (router, runs) = recording();
    (Desk::open_with(router, POLICY, ServiceLimits::default()), runs)
}

async fn ask(desk: &Desk, agent: &Agent, method: &str, params: Value) -> Result<Value, i64> {
    let text = desk.ask(agent, &call(method, &params.to_string())).await.unwrap();
    let answer: Value = serde_json::from_str(&text).unwrap();
    code(&text).map_or_else(|| Ok(answer["result"].clone()), Err)
}

async fn can(desk: &Desk, agent: &Agent, params: Value) -> bool {
    let answer = ask(desk, agent, "rpc.can", params).await.unwrap();
    assert_eq!(answer.as_object().unwrap().len(), 1, "an answer, and nothing about the rules: {answer}");
    answer["allowed"].as_bool().unwrap()
}

#[tokio::test]
async fn can_answers_as_the_call_itself_would_be_decided() {
    let (desk, runs) = open();
    let ann = desk.agent("ann", &["worker"]);
    for (method, params) in [
        ("desk/echo", json!({ "amount": 100 })),
        ("desk/echo", json!([100])),
        ("desk/echo", json!({ "amount": 101 })),
        ("desk/echo", json!([101])),
        ("desk/echo", json!({ "amount": "100" })),
        ("desk/echo", json!({ "amount": 1, "more": 1 })),
        ("desk/echo", json!({})),
        ("desk/note", json!([])),
        ("vault/open", json!([])),
        ("no/such", json!([])),
        ("", json!([])),
        ("rpc.can", json!([])),
        ("rpc.explain", json!([])),
    ] {
        let before = runs.count();
        let answer = can(&desk, &ann, json!({ "method": method, "params": params })).await;
        assert_eq!(runs.count(), before, "asking runs nothing");
        let denied = ask(&desk, &ann, method, params.clone()).await;
        // A call that was dispatched and failed later was allowed.
        let expected = runs.count() > before || method == "rpc.can";
        assert_eq!(answer, expected, "{method} {params}: {denied:?}");
    }
    let by_position = ask(&desk, &ann, "rpc.can", json!(["desk/echo", [100]])).await;
    assert_eq!(by_position, Ok(json!({ "allowed": true })));
}

#[tokio::test]
async fn can_answers_about_the_asking_caller_only() {
    let (desk, _) = open();
    let (ann, bob) = (desk.agent("ann", &["worker"]), desk.agent("bob", &["auditor"]));
    let question = json!({ "method": "desk/echo", "params": [1] });
    assert!(can(&desk, &ann, question.clone()).await);
    assert!(!can(&desk, &bob, question.clone()).await);
    // There is no way to ask about somebody else, or with other roles.
    for (name, value) in [("agent", json!("ann")), ("subject", json!("ann")), ("roles", json!(["worker"]))] {
        let mut asked = question.clone();
        asked[name] = value;
        assert_eq!(ask(&desk, &bob, "rpc.can", asked).await, Err(-32602), "{name}");
    }
    desk.change_policy(
        "[role.worker]\nallow = [\"rpc.can\"]\n[rule.x]\nagents = [\"bob\"]\nallow = [\"desk/*\", \"rpc.can\"]\n",
    );
    assert!(!can(&desk, &ann, question.clone()).await, "the policy in force now");
    assert!(can(&desk, &bob, question).await);
}

#[tokio::test]
async fn can_names_the_approvals_with_which_a_call_would_be_allowed() {
    let (desk, runs) = open();
    let (ann, bob) = (desk.agent("ann", &["worker"]), desk.agent("bob", &["auditor"]));
    desk.change_policy(&format!(
        "{POLICY}\n[approval.auditor]\nfrom = [\"auditor\"]\n\
         [rule.negative]\neveryone = true\ndeny = [\"desk/echo\"]\nunless_approved = \"auditor\"\n\
         when.params.amount = {{ max = -1 }}\n\
         [rule.never]\neveryone = true\ndeny = [\"desk/echo\"]\nwhen.params.amount = {{ max = -100 }}\n"
    ));
    let answer = async |agent: &Agent, amount: i64| {
        ask(&desk, agent, "rpc.can", json!({ "method": "desk/echo", "params": [amount] })).await.unwrap()
    };
    assert_eq!(answer(&ann, 5).await, json!({ "allowed": true }));
    assert_eq!(answer(&ann, -5).await, json!({ "allowed": false, "approvals": ["auditor"] }));
    // Nobody learns of an approval that would not help.
    assert_eq!(answer(&ann, -500).await, json!({ "allowed": false }));
    assert_eq!(answer(&bob, -5).await, json!({ "allowed": false }));
    let before = runs.count();
    assert!(ask(&desk, &ann, "desk/echo", json!([-5])).await.is_err());
    assert_eq!(runs.count(), before, "nobody approved it");
}

#[tokio::test]
async fn can_answers_for_the_agent_and_for_whom_it_acts() {
    let (desk, runs) = open();
    let for_carol = desk.agent_with("ann", |request| {
        request.subject = "carol".to_owned();
        request.actor = Some("ann".to_owned());
    });
    let rules = |subject: &str| {
        format!(
            "[rule.ask]\neveryone = true\nallow = [\"rpc.can\"]\ndelegated = \"also\"\n\
             [rule.both]\nagents = [\"ann\"]\nsubjects = [\"{subject}\"]\nallow = [\"desk/note\"]\ndelegated = \"also\"\n\
             [rule.own]\nagents = [\"ann\"]\nallow = [\"desk/echo\"]\n"
        )
    };
    for (subject, expected) in [("carol", true), ("dave", false)] {
        desk.change_policy(&rules(subject));
        assert_eq!(can(&desk, &for_carol, json!({ "method": "desk/note" })).await, expected, "{subject}");
        let before = runs.count();
        let _answer = ask(&desk, &for_carol, "desk/note", json!([])).await;
        assert_eq!(runs.count() > before, expected, "like the call itself");
        // The rights that ann has in her own name do not extend to carol.
        assert!(!can(&desk, &for_carol, json!({ "method": "desk/echo", "params": [1] })).await);
    }
    let ann = desk.agent("ann", &[]);
    assert!(can(&desk, &ann, json!({ "method": "desk/echo", "params": [1] })).await);
}

#[tokio::test]
async fn can_does_not_tell_a_missing_method_from_a_denied_one() {
    let (router, _) = recording();
    let desk = Desk::open_with(router, OPEN_POLICY, ServiceLimits::default());
    let ann = desk.agent("ann", &["worker"]);
    assert!(can(&desk, &ann, json!({ "method": "vault/open" })).await);
    assert!(!can(&desk, &ann, json!({ "method": "vault/none" })).await);
    let (desk, _) = open();
    let ann = desk.agent("ann", &["worker"]);
    let answer = |method: &str| ask(&desk, &ann, "rpc.can", json!({ "method": method }));
    assert_eq!(answer("vault/open").await, answer("vault/none").await);
}

#[tokio::test]
async fn what_cannot_be_asked_is_refused() {
    let (desk, _) = open();
    let ann = desk.agent("ann", &["worker"]);
    for params in [json!({}), json!([]), json!({ "method": 1 }), json!({ "method": "a", "params": 1 })] {
        assert_eq!(ask(&desk, &ann, "rpc.can", params.clone()).await, Err(-32602), "{params}");
    }
    let null = json!({ "method": "desk/note", "params": null });
    assert!(can(&desk, &ann, null).await, "like a call without parameters");
}

#[tokio::test]
async fn explain_is_for_those_whom_the_policy_lets_ask() {
    let (desk, runs) = open();
    let (ann, bob) = (desk.agent("ann", &["worker"]), desk.agent("bob", &["auditor"]));
    let question = json!({ "agent": "ann", "roles": ["worker"], "method": "desk/echo", "params": [101] });
    assert_eq!(ask(&desk, &ann, "rpc.explain", question.clone()).await, Err(-32002));
    let why = ask(&desk, &bob, "rpc.explain", question).await.unwrap();
    assert_eq!((&why["decision"]["verdict"], &why["decision"]["reason"]), (&json!("deny"), &json!("no_rule")), "{why}");
    assert!(why.to_string().contains("amount = 101"), "{why}");
    assert_eq!(why["revision"], desk.service.policy().revision().to_string());
    assert_eq!(runs.count(), 0);

    let granted = json!({ "agent": "ann", "roles": ["worker"], "method": "desk/echo", "params": [100] });
    let why = ask(&desk, &bob, "rpc.explain", granted).await.unwrap();
    assert_eq!(
        (&why["decision"]["verdict"], &why["decision"]["rule"]["name"]),
        (&json!("allow"), &json!("small")),
        "{why}"
    );
    let delegated = json!({ "agent": "ann", "subject": "carol", "roles": ["worker"], "method": "desk/note" });
    let why = ask(&desk, &bob, "rpc.explain", delegated).await.unwrap();
    assert_eq!(
        (&why["decision"]["verdict"], why["principals"].as_array().unwrap().len()),
        (&json!("deny"), 2),
        "{why}"
    );
}

/// `rpc.explain` answers as the service would decide the same call, whatever the rules require of token and proof.
#[tokio::test]
async fn explain_takes_the_proof_of_the_agents_own_key() {
    let (desk, runs) = open();
    let ask_why = "[role.auditor]\nallow = [\"rpc.explain\"]\n";
    desk.change_policy(&format!(
        "{ask_why}[claims]\ntenant = \"string\"\n[rule.own-key]\neveryone = true\nallow = [\"desk/note\"]\nwhen.algorithm = \"EdDSA\"\n\
         [rule.acme]\neveryone = true\nallow = [\"desk/echo\"]\nwhen.claims.tenant = \"acme\"\nwhen.token_age = \"1m\"\n\
         when.issuer = \"https://issuer.test\"\nwhen.key = \"eve.k1\"\n"
    ));
    let bob = desk.agent("bob", &["auditor"]);
    for name in ["ann", "eve"] {
        let before = runs.count();
        let _answer = ask(&desk, &desk.agent(name, &[]), "desk/note", json!([])).await;
        let why = ask(&desk, &bob, "rpc.explain", json!({ "agent": name, "method": "desk/note" })).await.unwrap();
        let ran = runs.count() > before;
        assert_eq!(ran, name == "eve");
        assert_eq!(why["decision"]["verdict"], if ran { "allow" } else { "deny" }, "{why}");
        assert_eq!(why["caller"]["key"], format!("{name}.k1"), "{why}");
    }

    let question = json!({ "agent": "eve", "method": "desk/echo", "params": [1], "token_age": 59,
                           "issuer": "https://issuer.test", "claims": { "tenant": "acme" } });
    let why = ask(&desk, &bob, "rpc.explain", question.clone()).await.unwrap();
    assert_eq!(why["decision"]["verdict"], "allow", "{why}");
    for (name, value) in [
        ("token_age", json!(61)),
        ("issuer", json!("https://other.test")),
        ("claims", json!({ "tenant": "evil" })),
        ("claims", json!({})),
        ("key", json!("eve.k2")),
    ] {
        let mut other = question.clone();
        other[name] = value;
        let why = ask(&desk, &bob, "rpc.explain", other).await.unwrap();
        assert_eq!(why["decision"]["verdict"], "deny", "{name}: {why}");
    }
    let wrong = json!({ "agent": "eve", "method": "desk/note", "algorithm": "RS256" });
    assert_eq!(ask(&desk, &bob, "rpc.explain", wrong).await, Err(-32602));

    // With keys of both algorithms, only the question can say which one is meant.
    let endpoint = desk.endpoint.clone();
    desk.change_ring(|keys| {
        let second = AgentKey::hmac("eve.k0", &[7; 32]).unwrap();
        let derived = second.derived(endpoint.audience()).unwrap();
        keys.push(KeyEntry::hmac("eve.k0", Name::new("eve").unwrap(), &derived));
    });
    let ask_note = |more: Value| {
        let mut question = json!({ "agent": "eve", "method": "desk/note" });
        question.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        question
    };
    assert_eq!(ask(&desk, &bob, "rpc.explain", ask_note(json!({}))).await, Err(-32602));
    for (more, verdict) in [
        (json!({ "key": "eve.k0" }), "deny"),
        (json!({ "key": "eve.k1" }), "allow"),
        (json!({ "algorithm": "HS256" }), "deny"),
        (json!({ "algorithm": "EdDSA" }), "allow"),
    ] {
        let why = ask(&desk, &bob, "rpc.explain", ask_note(more.clone())).await.unwrap();
        assert_eq!(why["decision"]["verdict"], verdict, "{more}: {why}");
    }
}

/// No valid token says that an agent acts for a namesake, so `rpc.explain` answers no question about such a call.
#[tokio::test]
async fn explain_judges_no_call_on_behalf_of_a_namesake() {
    let (desk, _) = open();
    desk.change_policy(
        "[role.auditor]\nallow = [\"rpc.explain\"]\n[agent.ann]\nallow = [\"desk/note\"]\ndelegated = \"also\"\n",
    );
    let bob = desk.agent("bob", &["auditor"]);
    let question = |subject: &str| json!({ "agent": "ann", "subject": subject, "method": "desk/note" });
    assert_eq!(ask(&desk, &bob, "rpc.explain", question("ann")).await, Err(-32602));
    // A subject is somebody else than the agent of its name.
    desk.change_policy(
        "[role.auditor]\nallow = [\"rpc.explain\"]\n[rule.both]\nagents = [\"ann\", \"eve\"]\nallow = [\"desk/note\"]\ndelegated = \"also\"\n",
    );
    let why = ask(&desk, &bob, "rpc.explain", question("eve")).await.unwrap();
    assert_eq!((&why["decision"]["verdict"], &why["caller"]["delegated"]), (&json!("deny"), &json!(true)), "{why}");
    assert_eq!(why["principals"][1]["kind"], "subject", "{why}");
}
