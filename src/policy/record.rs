//! Decisions as lines of JSON, and what other policies would have decided.
//! Never records an argument that no file declares, a signature, or a token.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};

use super::decision::{Decision, Question, Reason, Verdict};
use super::expr::Reads;
use super::params::{Param, ParamType};
use super::project;
use super::revision::Revision;
use super::rule::Mode;
use super::set::PolicySet;
use crate::auth::{Caller, ProofAlgorithm, TokenFacts};
use crate::name::Name;

/// One decision with the question it answers: a line of `decisions.jsonl`.
///
/// Of the arguments it has those that are declared, of the claims those that are declared, of the token its id, its times,
/// its issuer and the issuer's key id. What was declared is in it, too: a policy with other declarations asks for more.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecisionRecord {
    /// When it was decided, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The revision of the policy that decided.
    pub revision: String,
    /// The agent.
    pub agent: Name,
    /// The subject, if the call was on behalf of another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// The roles of the token.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub roles: BTreeSet<String>,
    /// `HS256` or `EdDSA`.
    pub algorithm: String,
    /// The key id of the proof.
    pub key: String,
    /// The token's issuer.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub issuer: String,
    /// The token's id.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub token_id: String,
    /// The key id of the token's issuer.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub token_key: String,
    /// When the token was issued, in seconds since the Unix epoch.
    pub issued_at: u64,
    /// When the token expires, in seconds since the Unix epoch.
    pub expires_at: u64,
    /// The names of all claims that were declared, whether or not the token had them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known_claims: Option<BTreeSet<String>>,
    /// The declared claims of the token.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub claims: Map<String, Value>,
    /// The method.
    pub method: String,
    /// The declarations of the parameters by position, as `amount: integer`, if the method had any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub declared: Option<Vec<String>>,
    /// The declared parameters by name, if the method has declarations and the call followed them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub params: Option<Map<String, Value>>,
    /// How the call did not follow the declarations: the label of a [`Reason`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// Whether the call was allowed.
    pub verdict: Verdict,
    /// The label of the [`Reason`].
    pub reason: String,
    /// The name of the rule that decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// What rules in shadow mode would have done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shadow: Vec<ShadowRecord>,
}

/// What one rule in shadow mode would have done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShadowRecord {
    /// The rule's name.
    pub rule: String,
    /// `would_deny` or `would_allow`.
    pub would: String,
}

impl DecisionRecord {
    /// The record of a decision that `set` made.
    #[must_use]
    pub fn new(set: &PolicySet, question: &Question<'_>, decision: &Decision) -> Self {
        let caller = question.caller;
        let declared = set.methods().params(question.method);
        let (params, fault) = match declared.map(|declared| project::project(question.params, declared)) {
            None => (None, None),
            Some(Ok(params)) => (Some(project::to_json(&params)), None),
            Some(Err(fault)) => (None, Some(fault.label().to_owned())),
        };
        let claims = &set.ground().vocabulary.claims;
        Self {
            at_ms: question.now_ms,
            revision: set.revision().to_string(),
            agent: caller.agent.clone(),
            subject: caller.delegated.then(|| caller.subject.clone()),
            roles: caller.roles.clone(),
            algorithm: caller.algorithm.as_str().to_owned(),
            key: caller.key.clone(),
            issuer: caller.token.issuer.clone(),
            token_id: caller.token.id.clone(),
            token_key: caller.token.key.clone(),
            issued_at: caller.token.issued_at,
            expires_at: caller.token.expires_at,
            known_claims: Some(claims.keys().cloned().collect()),
            claims: caller
                .token
                .claims
                .iter()
                .filter(|(name, _)| claims.contains_key(*name))
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect(),
            method: question.method.to_owned(),
            declared: declared.map(declarations),
            params,
            fault,
            verdict: decision.verdict,
            reason: decision.reason.label().to_owned(),
            rule: decision.rule.as_ref().map(|rule| rule.name().to_owned()),
            shadow: decision
                .shadow
                .iter()
                .map(|shadow| ShadowRecord {
                    rule: shadow.rule.name().to_owned(),
                    would: if shadow.would.is_allow() { "would_allow" } else { "would_deny" }.to_owned(),
                })
                .collect(),
        }
    }

    fn caller(&self) -> Caller {
        Caller {
            agent: self.agent.clone(),
            subject: self.subject.clone().unwrap_or_else(|| self.agent.to_string()),
            delegated: self.subject.is_some(),
            roles: self.roles.clone(),
            token: TokenFacts {
                id: self.token_id.clone(),
                issuer: self.issuer.clone(),
                key: self.token_key.clone(),
                issued_at: self.issued_at,
                expires_at: self.expires_at,
                claims: self.claims.clone(),
            },
            key: self.key.clone(),
            algorithm: if self.algorithm == "EdDSA" { ProofAlgorithm::EdDsa } else { ProofAlgorithm::Hs256 },
        }
    }
}

/// Recorded decisions put to another policy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Replay {
    /// The policy that was asked.
    pub revision: Revision,
    /// How many calls were asked about.
    pub calls: usize,
    /// The calls that would come out differently.
    pub different: Vec<Replayed>,
    /// The calls of which that cannot be told, because the record lacks something that the policy asks.
    pub unknown: Vec<Replayed>,
    /// The lines that are no records, with what is wrong.
    pub unreadable: Vec<(usize, String)>,
}

/// One recorded decision and what became of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Replayed {
    /// The line of the recording, counted from 1.
    pub line: usize,
    /// What was recorded.
    pub record: DecisionRecord,
    /// What the policy decides.
    pub now: Decision,
    /// Why it cannot be told whether the call itself would be decided so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl Replay {
    /// Puts every line of a recording to `set`.
    #[must_use]
    pub fn run(set: &PolicySet, recording: &str) -> Self {
        let mut replay = Self {
            revision: set.revision().clone(),
            calls: 0,
            different: Vec::new(),
            unknown: Vec::new(),
            unreadable: Vec::new(),
        };
        for (position, text) in recording.lines().enumerate().filter(|(_, text)| !text.trim().is_empty()) {
            let line = position + 1;
            let record: DecisionRecord = match serde_json::from_str(text) {
                Ok(record) => record,
                Err(error) => {
                    replay.unreadable.push((line, error.to_string()));
                    continue;
                }
            };
            replay.calls += 1;
            let (now, why) = again(set, &record);
            let differs = now.verdict != record.verdict;
            if why.is_some() {
                replay.unknown.push(Replayed { line, record, now, why });
            } else if differs {
                replay.different.push(Replayed { line, record, now, why });
            }
        }
        replay
    }

    /// Whether every call would certainly come out as it did.
    #[must_use]
    pub fn is_same(&self) -> bool {
        self.different.is_empty() && self.unknown.is_empty() && self.unreadable.is_empty()
    }
}

/// The decision of `set`, and why the record may lack something that it depends on.
fn again(set: &PolicySet, record: &DecisionRecord) -> (Decision, Option<String>) {
    let caller = record.caller();
    let why = lacks(set, record);
    let declared = set.methods().params(&record.method).unwrap_or_default();
    let params = record.params.as_ref().map(|params| spelled(params, declared));
    let params: Option<Box<RawValue>> = params.as_ref().and_then(|params| to_raw_value(params).ok());
    let question =
        Question { caller: &caller, method: &record.method, params: params.as_deref(), now_ms: record.at_ms };
    let decision = match &record.fault {
        // Which parameter was wrong is not recorded; that one was, decides.
        Some(fault) => set.decide_faulty(&question, Reason::ParamType(fault.clone())),
        None => set.decide(&question),
    };
    (decision, why)
}

/// What the rules of the method ask for and the record does not have.
fn lacks(set: &PolicySet, record: &DecisionRecord) -> Option<String> {
    let slice = set.slice_for(&record.method)?;
    let ground = set.ground();
    let rules = slice.rules.iter().filter_map(|position| ground.rules.get(*position));
    let parts = rules.filter(|rule| rule.mode == Mode::Enforce).flat_map(|rule| &rule.parts);
    let reads = Reads::of(parts.map(|part| &part.condition));
    if record.known_claims.is_none() && ["id", "key"].iter().any(|name| reads.context(&["token", name])) {
        return Some("the policy asks for the token's id or key, and the record has neither".to_owned());
    }
    let known = |claim: &String| {
        record.claims.contains_key(claim) || record.known_claims.as_ref().is_some_and(|known| known.contains(claim))
    };
    let asked = |claim: &&String| reads.context(&["claims", claim]);
    if let Some(claim) = ground.vocabulary.claims.keys().filter(asked).find(|claim| !known(claim)) {
        return Some(format!("the policy asks for the claim `{}`, which was not recorded", claim.escape_debug()));
    }
    if set.looks_at_params(&record.method) {
        let now = set.methods().params(&record.method).unwrap_or_default();
        let before = record.declared.as_deref().unwrap_or_default();
        // What was declared decides what a fault is, what was recorded and how positions were read. A call without
        // fault had nothing else, so what else is optional now was not there.
        let (same, more) = now.split_at_checked(before.len()).unwrap_or_default();
        let fits = record.fault.is_none() && more.iter().all(Param::is_optional);
        if record.declared.is_none() || declarations(same) != before || !(more.is_empty() || fits) {
            return Some("the policy asks for parameters, and others were declared when it was recorded".to_owned());
        }
    }
    None
}

fn declarations(params: &[Param]) -> Vec<String> {
    params.iter().map(ToString::to_string).collect()
}

/// The recorded parameters as a call would spell them. A number that is recorded as text is beyond what a number can hold
/// here; no rule looks at it, so any other will do.
fn spelled(params: &Map<String, Value>, declared: &[Param]) -> Map<String, Value> {
    let kind = |name: &String| declared.iter().find(|param| param.name() == name).map(Param::kind);
    let value = |name: &String, value: &Value| match (kind(name), value) {
        (Some(ParamType::Number), Value::String(_)) => Value::from(0),
        (Some(ParamType::Object(fields)), Value::Object(members)) => Value::Object(spelled(members, fields)),
        _ => value.clone(),
    };
    params.iter().map(|(name, member)| (name.clone(), value(name, member))).collect()
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
            writeln!(
                f,
                "line {}: {} {}: cannot be told: {}",
                one.line,
                who(&one.record),
                one.record.method.escape_debug(),
                one.why.as_deref().unwrap_or_default()
            )?;
        }
        for (line, error) in &self.unreadable {
            writeln!(f, "line {line}: not a recorded decision: {error}")?;
        }
        write!(
            f,
            "{} calls: {} would come out differently, {} cannot be told, {} unreadable lines (policy revision {})",
            self.calls,
            self.different.len(),
            self.unknown.len(),
            self.unreadable.len(),
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
