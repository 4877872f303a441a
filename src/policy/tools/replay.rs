//! What another policy would have decided about recorded calls.
//! Never guesses: if the record lacks what the policy reads, the answer is that it cannot be told.

use std::fmt;

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::auth::{Caller, TokenFacts};
use crate::policy::cedar::References;
use crate::policy::engine::{Decision, DecisionRecord, PolicySet, Question, Reason};
use crate::policy::model::{Decimal, Mode, Param, ParamType, Revision};
use crate::wire::ProofAlgorithm;

/// Recorded decisions put to another policy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Replay {
    /// The policy that was asked.
    pub revision: Revision,
    /// How many calls were asked about.
    pub calls: usize,
    /// The calls that would come out differently: the first ones, as [`totals`](Self::totals) says.
    pub different: Vec<Replayed>,
    /// The first calls for which that cannot be told, because the record lacks something that the policy reads.
    pub unknown: Vec<Replayed>,
    /// The first lines that are not records, with what is wrong.
    pub unreadable: Vec<(usize, String)>,
    /// How many there are of each.
    pub totals: ReplayTotals,
    /// The bytes of the lines that are listed.
    #[serde(skip)]
    listed: usize,
}

/// How many lines of a recording are of which kind. A [`Replay`] lists the first 1,000 of each, as long as all of these have no more than 4
/// MiB together: a recording may have millions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ReplayTotals {
    /// Calls that would come out differently.
    pub different: usize,
    /// Those among them that would wait for an approval, and did not.
    pub waiting: usize,
    /// Calls for which that cannot be told.
    pub unknown: usize,
    /// Lines that are not records.
    pub unreadable: usize,
}

/// One recorded decision, and what the policy decides.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Replayed {
    /// The line of the recording, counted from 1.
    pub line: usize,
    /// What was recorded.
    pub record: DecisionRecord,
    /// What the policy decides.
    pub now: Decision,
    /// Why it cannot be told whether the call itself would be decided this way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// The most lines of a kind that are listed, and the most bytes of all of them together.
const LISTED: usize = 1_000;
const LISTED_BYTES: usize = 4 << 20;

impl Replay {
    /// Without any calls yet.
    #[must_use]
    pub fn new(set: &PolicySet) -> Self {
        Self {
            revision: set.revision().clone(),
            calls: 0,
            different: Vec::new(),
            unknown: Vec::new(),
            unreadable: Vec::new(),
            totals: ReplayTotals::default(),
            listed: 0,
        }
    }

    /// Puts every line of a recording to `set`.
    #[must_use]
    pub fn run(set: &PolicySet, recording: &str) -> Self {
        let mut replay = Self::new(set);
        for (position, text) in recording.lines().enumerate() {
            replay.line(set, position + 1, text.as_bytes());
        }
        replay
    }

    /// Puts one more line, counted from 1, to the `set` that this was made with: for recordings that are read line by line.
    pub fn line(&mut self, set: &PolicySet, line: usize, text: &[u8]) {
        if text.trim_ascii().is_empty() {
            return;
        }
        let record = match DecisionRecord::read(text) {
            Ok(Some(record)) => record,
            // It says something else: how a call ended, or how the record itself fared.
            Ok(None) => return,
            Err(error) => {
                self.totals.unreadable += 1;
                if self.lists(self.totals.unreadable, error.len()) {
                    self.unreadable.push((line, error));
                }
                return;
            }
        };
        self.calls += 1;
        let (now, why) = record.again(set);
        let is_unknown = why.is_some();
        let (waited, waits) = (record.is_waiting(), now.reason == Reason::ApprovalRequired);
        if !is_unknown && now.verdict == record.verdict && waits == waited {
            return;
        }
        self.totals.waiting += usize::from(!is_unknown && waits && !waited);
        let total = if is_unknown { &mut self.totals.unknown } else { &mut self.totals.different };
        *total += 1;
        let total = *total;
        if self.lists(total, text.len()) {
            let list = if is_unknown { &mut self.unknown } else { &mut self.different };
            list.push(Replayed { line, record, now, why });
        }
    }

    /// Whether the `total`-th line of its kind is listed.
    fn lists(&mut self, total: usize, bytes: usize) -> bool {
        if total > LISTED {
            return false;
        }
        // Once there is no room, nothing more is listed: the listed ones are the first.
        self.listed = self.listed.saturating_add(bytes);
        self.listed <= LISTED_BYTES
    }

    /// Whether every call would certainly come out as it did.
    #[must_use]
    pub fn is_same(&self) -> bool {
        self.totals == ReplayTotals::default()
    }
}

impl DecisionRecord {
    /// What `set` decides about the recorded call, and, if that cannot be told, why: the record may lack something that the
    /// policy reads.
    #[must_use]
    pub fn again(&self, set: &PolicySet) -> (Decision, Option<String>) {
        let caller = caller(self);
        let why = lacks(set, self);
        let declared = set.methods().params(&self.method).unwrap_or_default();
        let params = self.params.as_ref().map(|params| spelled(params, declared));
        let params: Option<Box<RawValue>> = params.and_then(|params| RawValue::from_string(params).ok());
        let question =
            Question { caller: &caller, method: &self.method, params: params.as_deref(), now_ms: self.at_ms };
        let decision = match &self.fault {
            // Which parameter was wrong is not recorded, but that one was is what decides.
            Some(fault) => decide_faulty(set, &question, Reason::ParamType(fault.clone())),
            // Whatever was approved before a call was allowed still counts.
            None if self.verdict.is_allow() => set.decide_approved(&question, &self.approvals()),
            None => set.decide(&question),
        };
        (decision, why)
    }

    /// Whether it was denied until it would be approved.
    fn is_waiting(&self) -> bool {
        self.reason == Reason::ApprovalRequired.label()
    }

    fn approvals(&self) -> Vec<&str> {
        self.approvals.iter().map(String::as_str).collect()
    }
}

/// Who called.
fn caller(record: &DecisionRecord) -> Caller {
    Caller {
        agent: record.agent.clone(),
        subject: record.subject.clone().unwrap_or_else(|| record.agent.to_string()),
        delegated: record.subject.is_some(),
        roles: record.roles.clone(),
        token: TokenFacts {
            id: record.token_id.clone(),
            issuer: record.issuer.clone(),
            key: record.token_key.clone(),
            // No policy asks for them.
            via: Vec::new(),
            issued_at: record.issued_at,
            expires_at: record.expires_at,
            claims: record.claims.clone(),
        },
        key: record.key.clone(),
        algorithm: if record.algorithm == "EdDSA" { ProofAlgorithm::EdDsa } else { ProofAlgorithm::Hs256 },
    }
}

/// Like [`PolicySet::decide`], for parameters of which only the fault is known.
fn decide_faulty(set: &PolicySet, question: &Question<'_>, fault: Reason) -> Decision {
    match set.policies_for(question.method).filter(|policies| !policies.unregistered) {
        Some(policies) => {
            let mut facts = policies.facts(question);
            facts.params = facts.params.map(|_| Err(fault));
            set.decide_in(policies, &facts)
        }
        None => set.decide(question),
    }
}

/// What the rules of the method read and the record does not have.
fn lacks(set: &PolicySet, record: &DecisionRecord) -> Option<String> {
    let policies = set.policies_for(&record.method)?;
    let checked = set.checked();
    let rules = policies.rules.iter().filter_map(|position| checked.rules.get(*position));
    let parts = rules.filter(|rule| rule.mode == Mode::Enforce).flat_map(|rule| &rule.conditions);
    let reads = References::of(parts.map(|part| &part.expr));
    if record.known_claims.is_none() && ["id", "key"].iter().any(|name| reads.context(&["token", name])) {
        return Some("the policy asks for the token's id or key, and the record has neither".to_owned());
    }
    let known = |claim: &String| {
        record.claims.contains_key(claim) || record.known_claims.as_ref().is_some_and(|known| known.contains(claim))
    };
    let asked = |claim: &&String| reads.context(&["claims", claim]);
    if let Some(claim) = checked.declarations.claims.keys().filter(asked).find(|claim| !known(claim)) {
        return Some(format!("the policy asks for the claim `{}`, which was not recorded", claim.escape_debug()));
    }
    if set.looks_at_params(&record.method) {
        if let Some(name) = record.hidden() {
            let name = name.escape_debug();
            return Some(format!("the policy asks for parameters, and the record does not show the value of `{name}`"));
        }
        let now = set.methods().params(&record.method).unwrap_or_default();
        let before = record.declared.as_deref().unwrap_or_default();
        // The declarations determine what a fault is, what was recorded and how positions were read. A call without
        // fault had nothing else, so further parameters that are optional now were absent.
        let (same, more) = now.split_at_checked(before.len()).unwrap_or_default();
        let fits = record.fault.is_none() && more.iter().all(Param::is_optional);
        if record.declared.is_none() || DecisionRecord::declarations(same) != before || !(more.is_empty() || fits) {
            return Some("the policy asks for parameters, and others were declared when it was recorded".to_owned());
        }
    }
    None
}

/// The recorded parameters as a call would spell them. A number that is recorded as text is one that would be another if it
/// were recorded as a number.
fn spelled(params: &Map<String, Value>, declared: &[Param]) -> String {
    let kind = |name: &String| declared.iter().find(|param| param.name() == name).map(Param::kind);
    let value = |name: &String, value: &Value| match (kind(name), value) {
        (Some(ParamType::Number), Value::String(text)) if Decimal::parse(text).is_some() => text.clone(),
        (Some(ParamType::Object(fields)), Value::Object(members)) => spelled(members, fields),
        _ => value.to_string(),
    };
    let members = params.iter().map(|(name, member)| format!("{}:{}", Value::from(name.as_str()), value(name, member)));
    format!("{{{}}}", members.collect::<Vec<_>>().join(","))
}

impl fmt::Display for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for one in &self.different {
            let record = &one.record;
            let by = record.rule.as_ref().map(|rule| format!(" by `{rule}`")).unwrap_or_default();
            writeln!(f, "line {}: {} {}", one.line, who(record), record.method.escape_debug())?;
            writeln!(f, "  - {} ({}){by}", record.verdict, record.reason)?;
            writeln!(f, "  + {}", one.now)?;
        }
        for one in &self.unknown {
            let (who, method) = (who(&one.record), one.record.method.escape_debug());
            let why = one.why.as_deref().unwrap_or_default();
            writeln!(f, "line {}: {who} {method}: cannot be told: {why}", one.line)?;
        }
        for (line, error) in &self.unreadable {
            writeln!(f, "line {line}: not a recorded decision: {error}")?;
        }
        let ReplayTotals { different, waiting, unknown, unreadable } = self.totals;
        let listed = self.different.len() + self.unknown.len() + self.unreadable.len();
        let left_out = (different + unknown + unreadable).saturating_sub(listed);
        if left_out > 0 {
            writeln!(f, "{left_out} more lines are not listed")?;
        }
        write!(
            f,
            "{} calls: {different} would come out differently{}, {unknown} cannot be told, {unreadable} unreadable lines (policy \
             revision {})",
            self.calls,
            if waiting > 0 { format!(" ({waiting} would have waited for an approval)") } else { String::new() },
            self.revision
        )
    }
}

fn who(record: &DecisionRecord) -> String {
    match &record.subject {
        Some(subject) => format!("{} for {}", record.agent, subject.escape_debug()),
        None => record.agent.to_string(),
    }
}
