//! How others inject messages into the planner's open calls, and try to end them.
//! Never takes it for granted that nothing happened: refusals are counted, and calls are seen to go on.

use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use sealwire::configure::{AgentKey, ProofAlgorithm};
use sealwire::errors::code;
use sealwire::internal::files::write_public;
use sealwire::internal::wire::{ControlClaims, ControlOp, RequestSigner};
use sealwire::{Client, Clock as _, SystemClock};

use super::players::{Activity, Cast, ENOUGH, Job, Ticks, job};
use super::transcript::{Transcript, timed};
use crate::audience::Audience;
use crate::demo::frame::{Frame, INFO, control_claims, digest, proof_of_control};
use crate::demo::mallory::Eavesdropper;
use crate::error::{Blame, LabError, OrFail as _, at};
use crate::parties::SERVICE;

const REFUSED: &str = "1 refused, it goes on";
const UNMOVED: &str = "it goes on";

pub(super) async fn play(told: &mut Transcript, out: &dyn Audience, cast: &Cast<'_>) -> Result<(), LabError> {
    let Cast { mallory, planner, operator, .. } = *cast;
    let mut control = mallory.overhear(&format!("rpc.v1-ctl.{SERVICE}.planner.>")).await?;
    let mut inbox = mallory.overhear("_INBOX.planner.>").await?;
    job(planner, 1, ENOUGH).await;
    let (old_end, _) = inbox.first(|message| Frame::with(message, r#""result":{"steps":1}"#)).await?;

    let mut ticks = Ticks::start(planner);
    let (mine, frame) = inbox.first(|message| Frame::with(message, "clock/ticks")).await?;
    let other = Ticks::start(planner);
    let of_other = |message: &_| Frame::with(message, "clock/ticks").filter(|frame| !frame.is_on(&mine.subject));
    let (foreign, _) = inbox.first(of_other).await?;
    let put = mallory.put(&mine.subject, foreign.headers.unwrap_or_default(), foreign.payload);
    let (said, took) = refused(planner, &mut ticks, put).await?;
    told.line(out, "clock/ticks: a tick of planner's other subscription", REFUSED, said, took)?;
    drop(other);

    let is_of_it = |claims: &ControlClaims| claims.req == frame.request();
    let (own, _) = control.first(|message| control_claims(message).filter(is_of_it)).await?;
    let put = mallory.put(&mine.subject, signed(&format!("NatsRpc {}", proof_of_control(&own))), Default::default());
    let (said, took) = refused(planner, &mut ticks, put).await?;
    told.line(out, "... planner's own control message, as if it were one", REFUSED, said, took)?;

    // From here on, overheard control messages are the job's.
    let mut job = Job::start(planner);
    let mut operators_inbox = mallory.overhear("_INBOX.operator.>").await?;
    let mut operators = Ticks::start(operator);
    let (genuine, frame) = operators_inbox.first(|message| Frame::with(message, "clock/ticks")).await?;
    let put = mallory.put(&genuine.subject, signed(&frame.forged(FORGED.as_bytes())?), FORGED.into());
    let (said, took) = refused(operator, &mut operators, put).await?;
    told.line(out, "... for operator, one of Mallory's, under the service's key id", REFUSED, said, took)?;

    let (step, frame) = inbox.first(|message| Frame::with(message, r#""total":600"#)).await?;
    let put = mallory.put(&step.subject, old_end.headers.unwrap_or_default(), old_end.payload);
    let (said, took) = refused(planner, &mut job, put).await?;
    told.line(out, "job/run: the end of an earlier job", REFUSED, said, took)?;
    cancels(told, out, cast, &mut job, &frame, &mut control).await?;
    policy(told, out, cast, &mut job, &mut ticks).await
}

const FORGED: &str = r#"{"jsonrpc":"2.0","method":"clock/ticks","params":{"tick":666,"at":0}}"#;

/// The outcome of an injection into an open call: how many messages were refused, and whether the call goes on.
async fn refused(
    agent: &Client,
    open: &mut impl Activity,
    attack: impl Future<Output = Result<(), LabError>>,
) -> Result<(String, Duration), LabError> {
    let (before, began) = (agent.stats().frames_refused, Instant::now());
    attack.await?;
    let refused = || agent.stats().frames_refused - before;
    let mut went_on = Ok(());
    while went_on.is_ok() && refused() == 0 && began.elapsed() < Duration::from_secs(5) {
        went_on = open.go_on(1).await;
    }
    let went_on = went_on.and(open.go_on(1).await);
    Ok((went_on.err().unwrap_or_else(|| format!("{} refused, it goes on", refused())), began.elapsed()))
}

/// Neither another agent nor a cancellation of another call can end a job.
async fn cancels(
    told: &mut Transcript,
    out: &dyn Audience,
    cast: &Cast<'_>,
    job: &mut Job,
    frame: &Frame,
    control: &mut Eavesdropper,
) -> Result<(), LabError> {
    let Cast { stage, mallory, planner, .. } = *cast;
    // A control message of the job itself names the call.
    let is_its_own = |claims: &ControlClaims| claims.req == frame.request();
    let (genuine, claims) = control.first(|message| control_claims(message).filter(is_its_own)).await?;
    let cancel = |key: &AgentKey, token: &str| {
        let now_s = SystemClock.now_ms() / 1_000;
        let (iat, exp, ath) = (now_s, now_s + 30, digest(token.as_bytes()));
        let (dig, ctr, op) = (digest(b""), claims.ctr + 1_000, ControlOp::Cancel);
        let claims = ControlClaims { iat, exp, ath, dig, ctr, op, ..claims.clone() };
        let signer = RequestSigner::new(key, stage.sandbox.audience().clone(), vec![]).or_fail(Blame::Bug)?;
        let mut headers = HeaderMap::new();
        headers.insert("Authorization", signer.sign_control_claims(&claims, token).as_str());
        Ok::<_, LabError>(headers)
    };

    let guessed = AgentKey::generate("planner.k1", ProofAlgorithm::Hs256).or_fail(Blame::Bug)?;
    let forged = cancel(&guessed, &stage.sandbox.token("planner", &["calculator"], 60)?)?;
    let teller = cancel(&stage.sandbox.key("teller")?, &stage.sandbox.token("teller", &["teller"], 60)?)?;
    let mut other = Job::start(planner);
    // Wait until it has begun: cancelling a call that was not sent yet sends nothing.
    let _begun = other.go_on(1).await;
    other.cancel().await;
    let is_cancel = |claims: &ControlClaims| claims.op == ControlOp::Cancel && claims.req != frame.request();
    let (old_cancel, _) = control.first(|message| control_claims(message).filter(is_cancel)).await?;
    for (what, headers) in [
        ("... Mallory cancels it under planner's key id, with another key", forged),
        ("... teller cancels it, with its own key and token", teller),
        ("... planner's own cancel of another job is sent to it", old_cancel.headers.unwrap_or_default()),
    ] {
        let began = Instant::now();
        mallory.put(&genuine.subject, headers, Default::default()).await?;
        let said = job.go_on(2).await.err().unwrap_or_else(|| UNMOVED.to_owned());
        told.line(out, what, UNMOVED, said, began.elapsed())?;
    }
    Ok(())
}

/// A changed policy ends the calls that it no longer allows.
async fn policy(
    told: &mut Transcript,
    out: &dyn Audience,
    cast: &Cast<'_>,
    job: &mut Job,
    ticks: &mut Ticks,
) -> Result<(), LabError> {
    let path = cast.stage.sandbox.path("policies/streams.toml");
    let text = std::fs::read_to_string(&path).map_err(|error| at(&path, &error))?;
    write_public(&path, &text.replace("max = 600", "max = 5")).or_fail(Blame::Input)?;
    let end = async {
        loop {
            if let Err(end) = job.go_on(1).await {
                break end;
            }
        }
    };
    let (end, took) = timed(end).await;
    let denied = format!("{} permission denied: no longer, and it had begun", code::PERMISSION_DENIED);
    told.line(out, "... the policy is edited: jobs have 5 steps at most", &denied, end, took)?;
    // More than can have been on the way.
    let (went_on, took) = timed(ticks.go_on(60)).await;
    let said = went_on.err().unwrap_or_else(|| UNMOVED.to_owned());
    told.line(out, "... clock/ticks, which it still allows", UNMOVED, said, took)
}

fn signed(value: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(INFO, value);
    headers
}
