//! Decisions as lines of the record.
//! Never holds an argument that no file declares, a signature, or a token.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::arguments;
use super::decision::{Decision, Question, Verdict};
use super::set::PolicySet;
use crate::jose::{b64, sha256};
use crate::name::Name;
use crate::policy::model::{Audit, Param, ParamType, to_json};
use crate::record::{Body, Kind, MAX_LINE, Salt, read_head};

/// One decision with the question it answers: a line of kind `decision` of the record (docs/records.md).
///
/// It contains the declared arguments, as each one's declaration says, the declared claims, and the token's id, times, issuer and the
/// issuer's key id. It also says what was declared: a policy with other declarations asks for more.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DecisionRecord {
    /// When it was decided, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The id of the message that asked (its `jti`), as in the log; together with the agent and the entry, it identifies the call. All
    /// entries of a batch have the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The position in the batch, from 0, if it was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<usize>,
    /// The trace that the call belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    /// Whether the call was under way already: it is denied because a newer policy, or the roles of a newer token, no longer allow it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub under_way: bool,
    /// Whether the call is a task: what it comes to is recorded when its method has ended, and its caller was told before that it had begun.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub task: bool,
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
    /// The digests of parameters that are declared with `audit = "hash"`, by name; a member of an object is `order.to`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub hashed: BTreeMap<String, String>,
    /// The month of the salt of these digests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub salt: Option<String>,
    /// The names of parameters that the call had and that are declared with `audit = "drop"`.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub dropped: BTreeSet<String>,
    /// The SHA-256 of parameters and claims, in base64url, if they would have made the line too long and were left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<String>,
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
    /// The approvals that the call needs, given or not; none if it is denied even with them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approvals: Vec<String>,
    /// The request for approval that the call belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalRecord>,
    /// What rules in shadow mode would have done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shadow: Vec<ShadowRecord>,
}

/// How far the approval of a call has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalRecord {
    /// The request's id, once it was found or made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// When it was made, in seconds since the Unix epoch, if it waits or is approved: the same call may wait again later, under the same id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_at: Option<u64>,
    /// `approved`: the call may run, once. Otherwise why it may not: `approval_pending`, `approval_denied`, `approval_consumed`,
    /// `approval_too_large` or `approval_store`.
    pub state: String,
    /// The approvals that counted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub given: Vec<GivenRecord>,
}

/// An approval that counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenRecord {
    /// Who gave it.
    pub agent: String,
    /// Its name in the policy.
    pub approval: String,
    /// When it was signed, in seconds since the Unix epoch.
    pub at: u64,
}

/// What one rule in shadow mode would have done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShadowRecord {
    /// The rule's name.
    pub rule: String,
    /// `would_deny` or `would_allow`.
    pub would: String,
}

impl DecisionRecord {
    /// The record of a decision that `set` made. Without a salt, nothing is kept of values that are declared with `audit = "hash"`.
    #[must_use]
    pub fn new(set: &PolicySet, question: &Question<'_>, decision: &Decision, salt: Option<&Salt>) -> Self {
        let caller = question.caller;
        let declared = set.methods().params(question.method);
        let mut hidden = Hidden::default();
        let (params, fault) = match declared.map(|declared| arguments::bind(question.params, declared)) {
            None => (None, None),
            Some(Ok(params)) => {
                let mut params = to_json(&params);
                let declared = set.methods().recorded_params(question.method).unwrap_or_default();
                hidden.hide(&mut params, declared, "", question.method, salt);
                (Some(params), None)
            }
            Some(Err(fault)) => (None, Some(fault.label().to_owned())),
        };
        let salt = salt.filter(|_| !hidden.hashed.is_empty()).map(|salt| salt.month().to_owned());
        let claims = &set.checked().declarations.claims;
        Self {
            at_ms: question.now_ms,
            message: None,
            entry: None,
            trace: None,
            under_way: false,
            task: false,
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
            hashed: hidden.hashed,
            salt,
            dropped: hidden.dropped,
            cut: None,
            fault,
            verdict: decision.verdict,
            reason: decision.reason.label().to_owned(),
            rule: decision.rule.as_ref().map(|rule| rule.name().to_owned()),
            approvals: decision.approvals.clone(),
            approval: None,
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

    /// The decision in a line of the record; `None` for a line of another kind.
    ///
    /// # Errors
    /// What is wrong with the line.
    pub fn read(line: &[u8]) -> Result<Option<Self>, String> {
        if read_head(line)?.kind != Kind::Decision {
            return Ok(None);
        }
        serde_json::from_slice(line).map(Some).map_err(|error| error.to_string())
    }

    /// The same, and its line, no longer than one may be: what callers choose freely is replaced by its digest, and a method's name is cut.
    pub(crate) fn within_bounds(mut self) -> (Self, Body) {
        let body = Body::new(&self);
        if body.len() <= MAX_BODY {
            return (self, body);
        }
        let (params, claims) = (self.params.take(), std::mem::take(&mut self.claims));
        let digest = serde_json::to_vec(&(params, claims)).map(|text| b64(sha256(&text)));
        (self.cut, self.known_claims) = (digest.ok(), None);
        (self.hashed, self.dropped, self.salt) = Default::default();
        self.method = self.method.chars().take(MAX_METHOD).collect();
        let body = Body::new(&self);
        (self, body)
    }

    /// What of the parameters is not in the record in the clear: the name of one, or `…` for all.
    #[must_use]
    pub fn hidden(&self) -> Option<&str> {
        let all = self.cut.as_ref().map(|_| "…");
        all.or_else(|| self.hashed.keys().chain(&self.dropped).next().map(String::as_str))
    }

    /// The declarations of parameters, each as in a record.
    pub(crate) fn declarations(params: &[Param]) -> Vec<String> {
        params.iter().map(ToString::to_string).collect()
    }
}

/// What a body may have beside a line's head.
const MAX_BODY: usize = MAX_LINE - 512;
/// More characters than the name of a method may have, so that none that exists is cut.
const MAX_METHOD: usize = 256;

/// What is taken out of parameters.
#[derive(Debug, Default)]
struct Hidden {
    hashed: BTreeMap<String, String>,
    dropped: BTreeSet<String>,
}

impl Hidden {
    fn hide(
        &mut self,
        params: &mut Map<String, Value>,
        declared: &[Param],
        prefix: &str,
        method: &str,
        salt: Option<&Salt>,
    ) {
        for param in declared {
            let name = || format!("{prefix}{}", param.name());
            match (param.audit(), param.kind()) {
                (Audit::Clear, ParamType::Object(fields)) => {
                    if let Some(Value::Object(members)) = params.get_mut(param.name()) {
                        self.hide(members, fields, &format!("{}.", name()), method, salt);
                    }
                }
                (Audit::Clear, _) => {}
                (audit, _) => {
                    let Some(value) = params.remove(param.name()) else { continue };
                    if let Some(salt) = salt.filter(|_| audit == Audit::Hash) {
                        self.hashed.insert(name(), salt.digest(method, &name(), &value));
                    } else {
                        self.dropped.insert(name());
                    }
                }
            }
        }
    }
}
