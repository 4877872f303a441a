//! Calls that people approve first: SPEC.md §6.3.

mod life;
pub(crate) mod model;
mod order;
pub(crate) mod stores;

use std::sync::Arc;

use sealwire::configure::AgentKey;
use sealwire::internal::auth::{IssueRequest, KeyEntry};
use sealwire::{Clock as _, Name, Router};
use sealwire_testkit::desk::{Agent, Desk, Letter, Runs, Setup, call, recording};
use serde_json::{Value, json};

/// Large amounts need two treasurers, and what goes to `abroad` an officer besides.
const POLICY: &str = r#"
[method."desk/echo"]
params = [{ name = "to", type = "string" }, { name = "amount", type = "integer" }]

[role.worker]
allow = ["desk/*", "rpc.approval", "rpc.approvals", "rpc.approve"]
delegated = "also"
[role.treasurer]
allow = ["rpc.*"]
delegated = "also"
[role.officer]
allow = ["rpc.*"]

[approval.two-treasurers]
from = ["treasurer"]
count = 2
within = "30m"
valid = "5m"

[approval.officer]
from = ["officer"]
within = "30m"
valid = "5m"

[rule.large]
everyone = true
deny = ["desk/echo"]
delegated = "also"
unless_approved = "two-treasurers"
when.params.amount = { min = 100 }

[rule.abroad]
everyone = true
deny = ["desk/echo"]
delegated = "also"
unless_approved = "officer"
when.params.to = { is = "abroad" }
"#;

const LARGE: &str = r#"{"to":"al","amount":100}"#;

/// Whose key is Ed25519, besides `eve`, and the seed.
const APPROVERS: [(&str, u8); 4] = [("tess", 41), ("tom", 42), ("trudy", 43), ("otto", 44)];

fn desk_with<S: Send + Sync + 'static>(router: Router<S>, setup: Setup) -> Desk {
    let desk = Desk::open_as(setup, |service| service.methods(router));
    with_approvers(&desk, |_| {});
    desk
}

fn desk() -> (Desk, Arc<Runs>) {
    let (router, runs) = recording();
    (desk_with(router, Setup { policy: POLICY, ..Setup::default() }), runs)
}

/// Puts the keys of the approvers in force, after `change`.
pub(crate) fn with_approvers(desk: &Desk, change: impl FnOnce(&mut Vec<KeyEntry>)) {
    desk.change_ring(|keys| {
        for (name, seed) in APPROVERS {
            keys.push(KeyEntry::ed25519(
                &format!("{name}.k1"),
                Name::new(name).unwrap(),
                key(name, seed).public().unwrap(),
            ));
        }
        change(keys);
    });
}

fn key(name: &str, seed: u8) -> AgentKey {
    AgentKey::ed25519(&format!("{name}.k1"), [seed; 32]).unwrap()
}

fn approver_with(desk: &Desk, name: &str, change: impl FnOnce(&mut IssueRequest)) -> Agent {
    let (_, seed) = APPROVERS.into_iter().find(|(known, _)| *known == name).unwrap();
    let mut request = IssueRequest::new(name, desk.endpoint.audience().as_str(), desk.clock.now_s());
    let role = if name == "otto" { "officer" } else { "treasurer" };
    request.roles = [role.to_owned()].into();
    change(&mut request);
    Agent { name: Name::new(name).unwrap(), key: key(name, seed), token: desk.issuer.issue(&request).unwrap() }
}

pub(crate) fn approver(desk: &Desk, name: &str) -> Agent {
    approver_with(desk, name, |_| {})
}

async fn send(desk: &Desk, letter: &Letter) -> Value {
    serde_json::from_str(&desk.answer(letter).await.unwrap()).unwrap()
}

async fn ask(desk: &Desk, agent: &Agent, method: &str, params: &str) -> Value {
    send(desk, &desk.letter(agent, &call(method, params))).await
}

async fn echo(desk: &Desk, params: &str) -> Value {
    ask(desk, &desk.agent("ann", &["worker"]), "desk/echo", params).await
}

/// The id of the request that the call waits for.
#[track_caller]
pub(crate) fn pending(answer: &Value) -> String {
    assert_eq!(
        (&answer["error"]["code"], &answer["error"]["data"]["state"]),
        (&json!(-32018), &json!("pending")),
        "{answer}"
    );
    answer["error"]["data"]["approval"].as_str().unwrap().to_owned()
}

async fn text(desk: &Desk, by: &Agent, id: &str) -> String {
    let shown = ask(desk, by, "rpc.approval", &json!({ "id": id }).to_string()).await;
    shown["result"]["text"].as_str().unwrap_or_else(|| panic!("{shown}")).to_owned()
}

/// Computed from what is shown, as an approver's program does.
fn digest(text: &str) -> String {
    sealwire_testkit::desk::digest(&[b"sealwire-approval-v1\0", text.as_bytes()].concat())
}

pub(crate) async fn decide(desk: &Desk, by: &Agent, id: &str, approval: &str, decision: &str) -> Value {
    let digest = digest(&text(desk, by, id).await);
    let params = match decision {
        "deny" => json!({ "id": id, "digest": digest, "decision": decision }),
        _ => json!({ "id": id, "approval": approval, "digest": digest, "decision": decision }),
    };
    ask(desk, by, "rpc.approve", &params.to_string()).await
}

/// Approves as one of the two treasurers.
async fn approve(desk: &Desk, name: &str, id: &str) -> Value {
    decide(desk, &approver(desk, name), id, "two-treasurers", "approve").await
}

pub(crate) async fn approve_by_both(desk: &Desk, id: &str) {
    for (name, state) in [("tess", "pending"), ("tom", "approved")] {
        let answer = approve(desk, name, id).await;
        assert_eq!(answer["result"]["state"], state, "{answer}");
    }
}
