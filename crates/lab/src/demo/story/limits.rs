//! A limit on an argument: a call that exceeds it, why it is denied, and spellings that do not get past it.
//! Never explains by hand: the words are the library's, from the policies that the service uses.

use std::fmt::Write as _;

use sealwire::decide::{ConditionExplanation, Effect, Methods, Mode, Outcome};
use sealwire::errors::code;
use sealwire::{Caller, Client, Clock as _, Explanation, Name, PolicySet, Question, SystemClock};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::transcript::{Transcript, shown, timed};
use crate::audience::Audience;
use crate::demo::stage::Stage;
use crate::error::{Blame, LabError, OrFail as _};
use crate::parties::SERVICE;

/// 2,000.00: over every limit, at any time of day.
const TOO_MUCH: &str = r#"{"to":"alice","amount":200000}"#;

pub(super) async fn play(
    told: &mut Transcript,
    out: &dyn Audience,
    stage: &Stage,
    teller: &Client,
) -> Result<(), LabError> {
    let denied = format!("{} permission denied", code::PERMISSION_DENIED);
    let refused = format!("{} Invalid params: parameter `amount` is not of its declared type", code::INVALID_PARAMS);
    let transfer = |params: Value| timed(teller.call::<Value>(SERVICE, "bank/transfer", params));

    let (outcome, took) = timed(teller.call::<Value>(SERVICE, "bank/transfer", raw(TOO_MUCH)?)).await;
    told.line(out, "teller calls bank/transfer of 2,000.00, over the limit", &denied, shown(outcome), took)?;
    out.line(&why(stage)?).map_err(LabError::Output)?;

    let (outcome, took) = transfer(json!(["alice", 200_000])).await;
    told.line(out, "... the same by position", &denied, shown(outcome), took)?;
    let (outcome, took) = transfer(json!({ "to": "alice", "amount": "200000" })).await;
    told.line(out, "... with the amount as a string", &refused, shown(outcome), took)?;
    let spelled = raw(r#"{"to":"alice","amount":2e5}"#)?;
    let (outcome, took) = timed(teller.call::<Value>(SERVICE, "bank/transfer", spelled)).await;
    told.line(out, "... with the amount as 2e5", &refused, shown(outcome), took)
}

fn raw(params: &str) -> Result<Box<RawValue>, LabError> {
    RawValue::from_string(params.to_owned()).or_fail(Blame::Bug)
}

/// The decision in words, with the conditions that did not hold.
fn why(stage: &Stage) -> Result<String, LabError> {
    let (set, _) = PolicySet::open(&stage.sandbox.path("policies"), &Methods::from_files()).or_fail(Blame::Bug)?;
    let mut caller = Caller::new(Name::new("teller").or_fail(Blame::Bug)?, ["teller".to_owned()]);
    let now_ms = SystemClock.now_ms();
    caller.token.issued_at = now_ms / 1_000;
    caller.token.expires_at = now_ms / 1_000 + 900;
    let params = raw(TOO_MUCH)?;
    let question = Question { caller: &caller, method: "bank/transfer", params: Some(&params), now_ms };
    Ok(in_words(&set.explain(&question)))
}

/// The rules that could have allowed the call, and the conditions that it did not meet.
fn in_words(explanation: &Explanation) -> String {
    let mut text = format!("       {}", explanation.decision.reason);
    let rules = explanation.principals.iter().flat_map(|party| &party.rules);
    for rule in rules.filter(|rule| rule.effect == Effect::Allow && rule.mode == Mode::Enforce) {
        let failed = rule.conditions.iter().filter(|part| part.outcome != Outcome::Held);
        let asks: Vec<String> = failed.map(asked).collect();
        // Writing to a string cannot fail.
        let _ = write!(text, "\n         {} asks that {}", rule.rule, asks.join(",\n           and that "));
    }
    text
}

/// What a rule asks, and what the call had instead. The time is left out: the reader has a clock.
fn asked(part: &ConditionExplanation) -> String {
    let had = part.actual.as_ref().filter(|actual| !actual.starts_with("minute_of_week"));
    had.map_or_else(|| part.condition.clone(), |had| format!("{} ({had})", part.condition))
}
