//! Decisions as lines of JSON.
//! Never records an argument that no file declares, a signature, or a token.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::arguments;
use super::decision::{Decision, Question, Verdict};
use super::set::PolicySet;
use crate::name::Name;
use crate::policy::model::{Param, to_json};

/// One decision with the question it answers: a line of `decisions.jsonl`.
///
/// It contains the declared arguments, the declared claims, and the token's id, times, issuer and the issuer's key id. It
/// also says what was declared: a policy with other declarations asks for more.
///
/// A call that may be answered with frames has one more line when it ends, and one if it is denied in between: see
/// [`StreamRecord`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecisionRecord {
    /// When it was decided, or when the stream ended, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The nonce of the message that asked (its `jti`), as in the log; together with the agent, it identifies the call. All entries of a
    /// batch have the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<String>,
    /// What happened to the call, if it may be answered with frames.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<StreamRecord>,
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
    /// How the call violated the declarations: the label of a [`Reason`](crate::policy::Reason).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// Whether the call was allowed.
    pub verdict: Verdict,
    /// The label of the [`Reason`](crate::policy::Reason).
    pub reason: String,
    /// The name of the rule that decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// What rules in shadow mode would have done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shadow: Vec<ShadowRecord>,
}

/// What happened to a call that may be answered with frames. Records of one call have the same `agent` and `call`; an allowed one
/// has a beginning and an end, unless the process died in between.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case", deny_unknown_fields)]
pub enum StreamRecord {
    /// It was allowed, and began.
    Began {},
    /// While it ran, a newer policy, or the roles of a newer token, no longer allowed it.
    Denied {},
    /// It ended. The decision in this record is the last one recorded for it, not a new one.
    Ended {
        /// By what: `answered` (the method's result or error was sent), `cancelled`, `deadline`, `unauthenticated` (key, token or
        /// subject), `denied`, `stalled` (frames were not acknowledged), `suspended`, `no_room`, `draining`, or `given_up` (the
        /// service stopped before it had ended).
        by: String,
        /// How many frames were made for it, the first and the last included; 0 for one ordinary answer.
        frames: u64,
    },
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
        let (params, fault) = match declared.map(|declared| arguments::bind(question.params, declared)) {
            None => (None, None),
            Some(Ok(params)) => (Some(to_json(&params)), None),
            Some(Err(fault)) => (None, Some(fault.label().to_owned())),
        };
        let claims = &set.checked().declarations.claims;
        Self {
            at_ms: question.now_ms,
            call: None,
            stream: None,
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
            declared: declared.map(Self::declarations),
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

    /// The declarations of parameters, each as in a record.
    pub(crate) fn declarations(params: &[Param]) -> Vec<String> {
        params.iter().map(ToString::to_string).collect()
    }
}
