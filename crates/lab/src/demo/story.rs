//! The scenario, line by line: what somebody does, what is expected, what happened.
//! Never accepts anything but the exact outcome.

mod approvals;
mod intruders;
mod limits;
mod players;
mod streams;
mod transcript;

use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use sealwire::configure::{AgentKey, ProofAlgorithm};
use sealwire::errors::{ErrorKind, code};
use sealwire::internal::wire::{RequestSigner, Signed};
use sealwire::{Client, Clock as _, Credentials, Name, SystemClock};
use serde_json::{Value, json};

use self::players::Cast;
pub use self::transcript::{Line, Transcript};
use self::transcript::{heading, shown, timed};
use super::mallory::{Answer, Mallory};
use super::stage::Stage;
use crate::audience::Audience;
use crate::error::{Blame, LabError, OrFail as _};
use crate::parties::SERVICE;

/// Waits for the service, then plays everything.
pub(super) async fn play(stage: &Stage, out: &dyn Audience) -> Result<Transcript, LabError> {
    let agent = |name| async move { Client::connect(stage.credentials(name)?).await.or_fail(Blame::Transport) };
    let planner = agent("planner").await?;
    out.note("waiting until the replay guard can vouch for new messages");
    ready(&planner).await?;
    let mut told = Transcript::default();
    let mut mallory = Mallory::connect(stage).await?;

    heading(out, "What agents may do")?;
    permitted(&mut told, out, &planner).await?;
    let captured = mallory.capture().await?;
    let (teller, operator) = (agent("teller").await?, agent("operator").await?);
    others(&mut told, out, &planner, &operator, &teller).await?;

    heading(out, "What the policy denies")?;
    denied(&mut told, out, &planner, &agent("auditor").await?).await?;
    limits::play(&mut told, out, stage, &teller).await?;
    approvals::play(&mut told, out, stage, &teller, &operator).await?;

    heading(out, "What strangers and eavesdroppers try, with every permission on the broker and none of the keys")?;
    strangers(&mut told, out, stage, &mallory).await?;
    copies(&mut told, out, &mallory, &captured).await?;
    forgeries(&mut told, out, &planner, &mallory).await?;

    let cast = Cast { stage, mallory: &mallory, planner: &planner, operator: &operator };
    streams::play(&mut told, out, &cast).await?;

    heading(out, "What the broker itself refuses, and what goes wrong without an attacker")?;
    broker(&mut told, out, stage, &planner).await?;
    Ok(told)
}

async fn ready(planner: &Client) -> Result<(), LabError> {
    let deadline = Instant::now() + super::stage::READY;
    loop {
        match planner.call::<Value>(SERVICE, "math/add", (0, 0)).await {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::NoResponders && Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(error) => return Err(error).or_fail(Blame::Transport),
        }
    }
}

async fn permitted(told: &mut Transcript, out: &dyn Audience, planner: &Client) -> Result<(), LabError> {
    let (sum, took) = timed(planner.call::<Value>(SERVICE, "math/add", json!({ "a": 2, "b": 3 }))).await;
    told.line(out, "planner calls math/add {a: 2, b: 3}", "5", shown(sum), took)?;
    Ok(())
}

async fn others(
    told: &mut Transcript,
    out: &dyn Audience,
    planner: &Client,
    operator: &Client,
    teller: &Client,
) -> Result<(), LabError> {
    let (sum, took) = timed(planner.call::<Value>(SERVICE, "math/add", json!([2, 3]))).await;
    told.line(out, "... the same by position: math/add [2, 3]", "5", shown(sum), took)?;

    let (sent, took) = timed(planner.notify(SERVICE, "log/append", json!({ "msg": "hello" }))).await;
    let said = sent.map_or_else(|error| error.to_string(), |()| "sent, and no answer".to_owned());
    told.line(out, "planner sends the notification log/append", "sent, and no answer", said, took)?;

    let mut batch = planner.batch(SERVICE);
    let first = batch.call("math/add", json!({ "a": 1, "b": 2 }));
    let second = batch.call("math/reset", ());
    let third = batch.call("math/mul", json!({ "a": 3, "b": 4 }));
    batch.notify("log/append", json!({ "msg": "from a batch" }));
    let (answers, took) = timed(batch.send()).await;
    let mut answers = answers.or_fail(Blame::Remote)?;
    let mut three = Vec::new();
    for call in [first, second, third] {
        three.push(shown(answers.take::<Value>(call)));
    }
    let expected = format!("3 | {} permission denied | 12", code::PERMISSION_DENIED);
    told.line(
        out,
        "planner sends a batch: add, reset (denied), mul, a notification",
        &expected,
        three.join(" | "),
        took,
    )?;

    let (drained, took) = timed(operator.call::<Value>(SERVICE, "admin/drain-cache", ())).await;
    let said = drained.map_or_else(|error| shown(Err(error)), |_| "done".to_owned());
    told.line(out, "operator (an Ed25519 key) calls admin/drain-cache", "done", said, took)?;

    let transfer = json!({ "to": "alice", "amount": 5_000 });
    let (moved, took) = timed(teller.call::<Value>(SERVICE, "bank/transfer", transfer)).await;
    let said = moved.map_or_else(|error| shown(Err(error)), |_| "done".to_owned());
    told.line(out, "teller calls bank/transfer of 50.00", "done", said, took)?;
    Ok(())
}

async fn denied(told: &mut Transcript, out: &dyn Audience, planner: &Client, auditor: &Client) -> Result<(), LabError> {
    let refused = format!("{} permission denied", code::PERMISSION_DENIED);
    let transfer = json!({ "to": "planner", "amount": 1 });
    let (outcome, took) = timed(planner.call::<Value>(SERVICE, "bank/transfer", transfer)).await;
    told.line(out, "planner calls bank/transfer", &refused, shown(outcome), took)?;
    let (outcome, took) = timed(planner.call::<Value>(SERVICE, "admin/no-such-method", ())).await;
    told.line(out, "planner calls a method that does not exist, outside its rights", &refused, shown(outcome), took)?;
    let unknown = format!("{} Method not found", code::METHOD_NOT_FOUND);
    let (outcome, took) = timed(planner.call::<Value>(SERVICE, "math/no-such-method", ())).await;
    told.line(out, "... and one within its rights", &unknown, shown(outcome), took)?;
    let (outcome, took) = timed(auditor.call::<Value>(SERVICE, "math/add", json!([1, 1]))).await;
    told.line(out, "auditor, who may only read, calls math/add", &refused, shown(outcome), took)?;
    Ok(())
}

const CALL: &str = r#"{"jsonrpc":"2.0","method":"math/add","params":[1,1],"id":1}"#;

/// What an attacker got back, in one line.
fn came(came: Answer) -> String {
    match came {
        Answer::Nothing => "silence".to_owned(),
        Answer::Text { text, signed } => {
            let answer: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
            let sign = if signed { "signed" } else { "unsigned" };
            match (answer.pointer("/error/code"), answer.pointer("/error/message").and_then(Value::as_str)) {
                (Some(code), Some(message)) => format!("{code} {message}, {sign}"),
                _ => format!("{text}, {sign}"),
            }
        }
    }
}

/// Signs a call as somebody, and sends it over Mallory's connection.
async fn signed_call(
    stage: &Stage,
    mallory: &Mallory,
    agent: &str,
    key: &AgentKey,
    token: &str,
    age_s: u64,
) -> Result<(Answer, Duration), LabError> {
    let name = Name::new(agent).or_fail(Blame::Bug)?;
    let endpoint = sealwire::internal::wire::Endpoint::new(
        Name::new(crate::parties::ENVIRONMENT).or_fail(Blame::Bug)?,
        Name::new(SERVICE).or_fail(Blame::Bug)?,
    );
    let pinned = vec![stage.sandbox.service_key().public()];
    let signer = RequestSigner::new(key, stage.sandbox.audience().clone(), pinned).or_fail(Blame::Bug)?;
    let (subject, reply) = (endpoint.subject(&name), format!("{}x1", endpoint.inbox(&name)));
    let signed = signer.sign(&Signed {
        subject: &subject,
        reply: &reply,
        payload: CALL.as_bytes(),
        token,
        now_ms: SystemClock.now_ms().saturating_sub(age_s * 1000),
        valid_s: 30,
        ..Signed::default()
    });
    let mut headers = HeaderMap::new();
    headers.insert("Authorization", signed.authorization.as_str());
    mallory.send(&subject, &reply, headers, CALL).await
}

async fn strangers(
    told: &mut Transcript,
    out: &dyn Audience,
    stage: &Stage,
    mallory: &Mallory,
) -> Result<(), LabError> {
    let unauthenticated = format!("{} unauthenticated, unsigned", code::UNAUTHENTICATED);
    let sandbox = &stage.sandbox;
    let token = sandbox.token("planner", &["calculator"], 60)?;

    let unknown = AgentKey::generate("stranger.k1", ProofAlgorithm::Hs256).or_fail(Blame::Bug)?;
    let (answer, took) = signed_call(stage, mallory, "stranger", &unknown, &token, 0).await?;
    told.line(out, "a stranger calls with a key of its own", &unauthenticated, came(answer), took)?;

    let guessed = AgentKey::generate("planner.k1", ProofAlgorithm::Hs256).or_fail(Blame::Bug)?;
    let (answer, took) = signed_call(stage, mallory, "planner", &guessed, &token, 0).await?;
    told.line(
        out,
        "... under the planner's name, key id and token, with another key",
        &unauthenticated,
        came(answer),
        took,
    )?;

    let teller = sandbox.key("teller")?;
    let (answer, took) = signed_call(stage, mallory, "teller", &teller, &token, 0).await?;
    told.line(out, "teller's key with the planner's token", &unauthenticated, came(answer), took)?;

    let stale = format!("{} stale, signed", code::STALE);
    let planner = sandbox.key("planner")?;
    let (answer, took) = signed_call(stage, mallory, "planner", &planner, &token, 60).await?;
    told.line(out, "a genuine message that was held back for a minute", &stale, came(answer), took)?;
    Ok(())
}

async fn copies(
    told: &mut Transcript,
    out: &dyn Audience,
    mallory: &Mallory,
    captured: &async_nats::Message,
) -> Result<(), LabError> {
    let unauthenticated = format!("{} unauthenticated, unsigned", code::UNAUTHENTICATED);
    let headers = captured.headers.clone().unwrap_or_default();
    let subject = captured.subject.as_str();
    let reply = captured.reply.as_ref().map_or("", |reply| reply.as_str());

    let replayed = format!("{} replayed, signed", code::REPLAYED);
    let (answer, took) = mallory.send(subject, reply, headers.clone(), captured.payload.clone()).await?;
    told.line(out, "planner's first message, captured and sent again", &replayed, came(answer), took)?;

    let changed = String::from_utf8_lossy(&captured.payload).replace('2', "9");
    let (answer, took) = mallory.send(subject, reply, headers.clone(), changed).await?;
    told.line(out, "... with one digit changed", &unauthenticated, came(answer), took)?;

    let (answer, took) =
        mallory.send(subject, "_INBOX.planner.elsewhere", headers.clone(), captured.payload.clone()).await?;
    told.line(out, "... with the answer redirected", &unauthenticated, came(answer), took)?;

    let (answer, took) = mallory.send(subject, "_INBOX.mallory.x", headers, captured.payload.clone()).await?;
    told.line(out, "... redirected to another agent's inbox", "silence", came(answer), took)?;
    Ok(())
}

async fn forgeries(
    told: &mut Transcript,
    out: &dyn Audience,
    planner: &Client,
    mallory: &Mallory,
) -> Result<(), LabError> {
    const FORGED: &str = r#"{"jsonrpc":"2.0","result":666,"id":1}"#;
    let forging = mallory.forge_answers(&format!("rpc.v1.{SERVICE}.>"), FORGED).await?;
    let (sum, took) = timed(planner.call::<Value>(SERVICE, "math/add", json!({ "a": 2, "b": 3 }))).await;
    told.line(out, "planner calls while Mallory answers as well: 666", "5", shown(sum), took)?;
    forging.abort();

    let forging = mallory.forge_answers("rpc.v1.ghost.>", FORGED).await?;
    let call = planner.request("ghost").deadline(Duration::from_millis(400)).call::<Value>("math/add", (2, 3));
    let (sum, took) = timed(call).await;
    told.line(out, "... and when only Mallory answers", "no answer that can be trusted", shown(sum), took)?;
    forging.abort();
    Ok(())
}

async fn broker(told: &mut Transcript, out: &dyn Audience, stage: &Stage, planner: &Client) -> Result<(), LabError> {
    // The planner's broker user with the teller's key and token: the broker is a gate of its own.
    let posing = Credentials::new(
        Name::new(crate::parties::ENVIRONMENT).or_fail(Blame::Bug)?,
        Name::new("teller").or_fail(Blame::Bug)?,
        stage.sandbox.key("teller")?,
        stage.sandbox.bus(&stage.url, "planner"),
    )
    .token(stage.sandbox.token("teller", &["teller"], 60)?);
    let outcome = async {
        let client = Client::connect(posing).await?;
        client.call::<Value>(SERVICE, "bank/balance", json!({ "account": "alice" })).await
    };
    let (outcome, took) = timed(outcome).await;
    told.line(
        out,
        "planner's connection, with the teller's key and token",
        "forbidden by the broker",
        shown(outcome),
        took,
    )?;

    let (outcome, took) = timed(planner.call::<Value>("nowhere", "math/add", (1, 1))).await;
    told.line(out, "planner calls a service that does not exist", "nobody listens", shown(outcome), took)?;
    Ok(())
}
