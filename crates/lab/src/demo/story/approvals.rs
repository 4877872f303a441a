//! A transfer that somebody has to approve first: what they are shown, what they sign, and that it runs once.
//! Never approves anything but what was shown.

use std::time::{Duration, Instant};

use sealwire::errors::code;
use sealwire::internal::files::write_public;
use sealwire::{Client, ClientError};
use serde::Deserialize;
use serde_json::{Value, json};

use super::transcript::{Transcript, heading, shown, timed};
use crate::audience::Audience;
use crate::demo::frame::digest;
use crate::demo::stage::{READY, Stage};
use crate::error::{Blame, LabError, OrFail as _};
use crate::parties::SERVICE;

/// What comes into force for this scene: `operator`, whose key is an Ed25519 key, is the treasurer.
const POLICY: &str = r#"
[role.treasurer]
from = "files"
allow = ["rpc.approvals", "rpc.approval", "rpc.approve"]

[agent."operator"]
roles = ["treasurer"]

[approval.treasurer]
from = ["treasurer"]

[rule.taxes]
roles = ["teller"]
allow = ["bank/transfer"]
when.params.to = { is = "tax-office" }
when.params.amount = { min = 1, max = 1_000_00 }

[rule.large-taxes]
everyone = true
deny = ["bank/transfer"]
unless_approved = "treasurer"
when.params.to = { is = "tax-office" }
when.params.amount = { min = 10_00 }
"#;

/// In cents, and how the approver reads it: members in the order of their names, as they are signed.
const AMOUNT: u64 = 2_000;
const SEEN: &str = r#"{"amount":2000,"to":"tax-office"}"#;

/// A request, as its approver is shown it.
#[derive(Deserialize)]
struct Request {
    text: String,
}

#[derive(Deserialize)]
struct Text {
    params: Value,
}

pub(super) async fn play(
    told: &mut Transcript,
    out: &dyn Audience,
    stage: &Stage,
    teller: &Client,
    treasurer: &Client,
) -> Result<(), LabError> {
    heading(out, "What somebody has to approve first")?;
    write_public(&stage.sandbox.path("policies/approvals.toml"), POLICY).or_fail(Blame::Input)?;
    let waits = format!("{} approval required", code::APPROVAL_REQUIRED);
    let pay =
        |amount: u64| teller.call::<Value>(SERVICE, "bank/transfer", json!({ "to": "tax-office", "amount": amount }));
    in_force(treasurer).await?;
    let (outcome, took) = timed(pay(AMOUNT)).await;
    let request = request(&outcome);
    told.line(out, "teller pays 20.00 of taxes, which a treasurer has to approve", &waits, shown(outcome), took)?;

    let (read, took) = timed(treasurer.call::<Request>(SERVICE, "rpc.approval", json!({ "id": request }))).await;
    let text = read.map(|read| read.text);
    let seen = text.as_deref().ok().and_then(|text| serde_json::from_str::<Text>(text).ok());
    let seen = seen.map_or_else(|| "nothing".to_owned(), |text| text.params.to_string());
    told.line(out, "operator, the treasurer, reads what it would sign", SEEN, seen, took)?;

    let signed = digest(&[b"sealwire-approval-v1\0", text.unwrap_or_default().as_bytes()].concat());
    let approval = json!({ "id": request, "digest": signed, "decision": "approve", "approval": "treasurer" });
    let (state, took) = timed(treasurer.call::<Value>(SERVICE, "rpc.approve", approval)).await;
    let state = state.map(|request| request.get("state").cloned().unwrap_or_default());
    told.line(out, "... and signs the digest of that", "\"approved\"", shown(state), took)?;

    let (outcome, took) = timed(pay(AMOUNT + 1)).await;
    told.line(out, "teller sends it with another amount", &waits, shown(outcome), took)?;
    let (outcome, took) = timed(pay(AMOUNT)).await;
    let said = outcome.map_or_else(|error| shown(Err(error)), |_| "done".to_owned());
    told.line(out, "... with the amount that was approved", "done", said, took)?;
    let (outcome, took) = timed(pay(AMOUNT)).await;
    let said = shown(outcome);
    let said = said.split_once(": to call").map_or(said.as_str(), |(said, _)| said).to_owned();
    let ran = format!("{} conflict: this call has begun under its approval", code::CONFLICT);
    told.line(out, "teller makes the approved transfer a second time", &ran, said, took)
}

/// Waits until the service has read the new policy.
async fn in_force(treasurer: &Client) -> Result<(), LabError> {
    let deadline = Instant::now() + READY;
    loop {
        match treasurer.call::<Value>(SERVICE, "rpc.approvals", ()).await {
            Ok(_) => return Ok(()),
            Err(error) if error.remote().is_some() && Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(error) => return Err(error).or_fail(Blame::Remote),
        }
    }
}

/// The id of the request that the call waits for.
fn request(outcome: &Result<Value, ClientError>) -> Option<String> {
    let data = outcome.as_ref().err()?.remote()?.data()?;
    serde_json::from_str::<Value>(data.get()).ok()?.get("approval")?.as_str().map(str::to_owned)
}
