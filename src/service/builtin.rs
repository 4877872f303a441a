//! The methods that every service has. They pass the policy like any other method, except that some need no rule.
//! Never tells a caller about anybody else, unless the policy lets it ask.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};

use super::approvals::{Approvals, Approve, InForce};
use super::authorize::Permitted;
use super::calls::APPROVE;
use super::catalogue::{Asked, Catalogue};
use super::idempotency::{Idempotency, TaskAsked, TaskStatus};
use super::refusal::Refusal;
use crate::auth::{Caller, Evidence, Verifier};
use crate::name::{MethodName, Name};
use crate::policy::{Decision, Explanation, Methods, OPEN_TO_ALL, PolicySet, Question, Verdict};
use crate::rpc::{Params, RpcError, code};
use crate::wire::ProofAlgorithm;

/// May I call this, with these arguments? `{"method": …, "params": …?}` → `{"allowed": true|false, "approvals": [NAME]?}`.
pub(super) const CAN: &str = "rpc.can";
/// Which methods may I call? `{"cursor": …?}` → an OpenRPC document; see `service::catalogue`.
pub(super) const DISCOVER: &str = OPEN_TO_ALL[0];
/// How would a call of some agent be decided, and why? `{"agent": …, "method": …, "params": …?, "at": …?}`, and what its
/// token and proof say: `subject`, `roles`, `claims`, `issuer`, `token_age`, `key` and `algorithm`. The answer says what
/// was assumed for those.
pub(super) const EXPLAIN: &str = "rpc.explain";

/// Which calls that wait for approval did I make, or may I decide? `{"cursor": …?}`.
pub(super) const APPROVALS: &str = "rpc.approvals";
/// What is one of them, in full? `{"id": …}`.
pub(super) const APPROVAL: &str = "rpc.approval";

/// What is known of a task of mine? `{"method": …, "key": …}`.
const TASK: &str = OPEN_TO_ALL[1];
/// It is to end. `{"method": …, "key": …}`.
const TASK_CANCEL: &str = OPEN_TO_ALL[2];

/// The methods that every service has besides its own: policy files may name them.
pub const BUILTIN_METHODS: [&str; 8] = [APPROVAL, APPROVALS, APPROVE, CAN, DISCOVER, EXPLAIN, TASK, TASK_CANCEL];

/// These methods and the built-in ones, for the registry that policies are checked against.
#[must_use]
pub fn with_builtin_methods(methods: Methods) -> Methods {
    let names = BUILTIN_METHODS.into_iter().filter_map(|name| MethodName::new(name).ok());
    names.fold(methods, |methods, name| match name.as_str() {
        // So that the record has what was decided.
        APPROVE => methods.with_params(name, Approve::params()),
        _ => methods.with(name),
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Can {
    method: String,
    #[serde(default)]
    params: Option<Box<RawValue>>,
}

#[derive(Serialize)]
struct Answer {
    allowed: bool,
    /// The approvals with which it would be.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    approvals: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct One {
    id: String,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Page {
    cursor: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Explain {
    agent: Name,
    /// The subject that the call is on behalf of, even if that is the agent itself.
    #[serde(default)]
    subject: Option<String>,
    #[serde(default)]
    roles: Vec<String>,
    #[serde(default)]
    claims: Map<String, Value>,
    #[serde(default)]
    issuer: String,
    /// Seconds since the token was issued.
    #[serde(default)]
    token_age: u64,
    /// The key id of the proof.
    #[serde(default)]
    key: Option<String>,
    #[serde(default)]
    algorithm: Option<String>,
    method: String,
    #[serde(default)]
    params: Option<Box<RawValue>>,
    /// Seconds since the Unix epoch.
    #[serde(default)]
    at: Option<u64>,
}

/// A task, by its method and its caller's key.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Task {
    method: String,
    key: String,
}

/// An explanation, and the caller it is about.
#[derive(Serialize)]
struct Explained<'a> {
    #[serde(flatten)]
    explanation: Explanation,
    caller: Assumed<'a>,
}

#[derive(Serialize)]
struct Assumed<'a> {
    agent: &'a Name,
    subject: &'a str,
    delegated: bool,
    key: &'a str,
    algorithm: &'static str,
    issuer: &'a str,
    token_age: u64,
}

/// What the methods need besides the policy.
pub(super) struct About<'a> {
    pub(super) verifier: &'a Verifier,
    pub(super) catalogue: &'a Catalogue,
    pub(super) approvals: Option<&'a Approvals>,
    pub(super) kept: Option<&'a Idempotency>,
    /// Whether an operator has revoked what a call of this method by the caller needs.
    pub(super) is_revoked: &'a (dyn Fn(&str) -> bool + Sync),
    /// The message that asks, if it is one of [`APPROVE`] that can be kept.
    pub(super) evidence: Option<&'a Evidence>,
    /// The service's audience.
    pub(super) title: &'a str,
    /// The most bytes of a page.
    pub(super) room: usize,
}

/// The answer to a permitted call of one of [`BUILTIN_METHODS`]. `charge` is told how many bytes will be written, if they are many.
pub(super) async fn answer(
    permitted: &Permitted,
    policy: &PolicySet,
    service: About<'_>,
    now_ms: u64,
    charge: impl Fn(usize) -> Result<(), RpcError>,
) -> Result<Box<RawValue>, RpcError> {
    let About { verifier, approvals, kept, is_revoked, evidence, catalogue, title, room } = service;
    let (params, caller) = (permitted.call().params(), permitted.call().caller());
    let in_force = InForce { policy, verifier, now_s: now_ms / 1000 };
    match permitted.call().method() {
        CAN => can(permitted, policy, now_ms),
        DISCOVER => {
            let call = permitted.call();
            let asked = Asked { title, caller: call.caller(), params: call.params(), now_ms, room };
            catalogue.page(asked, policy, charge).await
        }
        EXPLAIN => explain(permitted, policy, verifier, now_ms),
        method if [TASK, TASK_CANCEL].contains(&method) => {
            let Task { method: of, key } = Params::decode(params)?;
            let refused = |refusal: Refusal| Err(refusal.answer(now_ms / 1000).into_error());
            // What it came to is for whoever may call the method, at least with some params, and not for who once could.
            if policy.reach(caller, &of, now_ms).is_none() {
                return refused(Refusal::Denied);
            }
            if is_revoked(&of) {
                return refused(Refusal::Revoked);
            }
            let asked = TaskAsked { caller, method: &of, key: &key };
            let status = match (kept, method) {
                (None, _) => Ok(TaskStatus::absent()),
                (Some(kept), TASK) => kept.task(asked, verifier, now_ms).await,
                (Some(kept), _) => kept.cancel(asked, verifier, now_ms).await,
            };
            match status {
                Ok(status) => to_raw_value(&status).map_err(RpcError::internal),
                Err(error) => refused(Refusal::OutcomeStore(error)),
            }
        }
        method => match (method, approvals) {
            (APPROVE, Some(approvals)) => approvals.decide(&Approve::read(params)?, (caller, evidence), in_force).await,
            (APPROVAL, Some(approvals)) => {
                let One { id } = Params::decode(params)?;
                approvals.show(&id, caller, in_force).await
            }
            (APPROVALS, Some(approvals)) => {
                let Page { cursor } = Params::decode(params)?;
                approvals.list(cursor.as_deref(), caller, in_force).await
            }
            _ => Err(RpcError::with_code(code::METHOD_NOT_FOUND, "Method not found")),
        },
    }
}

fn can(permitted: &Permitted, policy: &PolicySet, now_ms: u64) -> Result<Box<RawValue>, RpcError> {
    let call = permitted.call();
    let asked: Can = Params::decode(call.params())?;
    let question =
        Question { caller: call.caller(), method: &asked.method, params: structured(asked.params.as_deref())?, now_ms };
    // A method that does not exist cannot be called either: the answer does not tell the two apart.
    let Decision { verdict, approvals, .. } = policy.decide(&question);
    to_raw_value(&Answer { allowed: verdict == Verdict::Allow, approvals }).map_err(RpcError::internal)
}

fn explain(
    permitted: &Permitted,
    policy: &PolicySet,
    verifier: &Verifier,
    now_ms: u64,
) -> Result<Box<RawValue>, RpcError> {
    let asked: Explain = Params::decode(permitted.call().params())?;
    let now_ms = asked.at.map_or(now_ms, |seconds| seconds.saturating_mul(1000));
    let now_s = now_ms / 1000;
    let (key, algorithm) =
        proof(&verifier.keys_of(&asked.agent, now_s), &asked.agent, asked.key, asked.algorithm.as_deref())?;
    if asked.subject.as_deref() == Some(asked.agent.as_str()) {
        return Err(RpcError::invalid_params("`subject` is the agent itself: leave it out for a call in its own name"));
    }
    let mut caller = Caller::new(asked.agent, asked.roles);
    if let Some(subject) = asked.subject {
        caller.delegated = true;
        caller.subject = subject;
    }
    (caller.key, caller.algorithm) = (key, algorithm);
    caller.token.issuer = asked.issuer;
    caller.token.claims = asked.claims;
    caller.token.issued_at = now_s.saturating_sub(asked.token_age);
    caller.token.expires_at = now_s.saturating_add(900);
    let question =
        Question { caller: &caller, method: &asked.method, params: structured(asked.params.as_deref())?, now_ms };
    let explained = Explained {
        explanation: policy.explain(&question),
        caller: Assumed {
            agent: &caller.agent,
            subject: &caller.subject,
            delegated: caller.delegated,
            key: &caller.key,
            algorithm: caller.algorithm.as_str(),
            issuer: &caller.token.issuer,
            token_age: asked.token_age,
        },
    };
    to_raw_value(&explained).map_err(RpcError::internal)
}

/// The key and algorithm of the call in question: as given, otherwise from the key ring.
///
/// An agent with keys of both algorithms could call with either, so the question must say which.
fn proof(
    ring: &BTreeMap<String, ProofAlgorithm>,
    agent: &Name,
    key: Option<String>,
    algorithm: Option<&str>,
) -> Result<(String, ProofAlgorithm), RpcError> {
    let algorithm = match algorithm {
        None => None,
        Some("HS256") => Some(ProofAlgorithm::Hs256),
        Some("EdDSA") => Some(ProofAlgorithm::EdDsa),
        Some(_) => return Err(RpcError::invalid_params("`algorithm` is `HS256` or `EdDSA`")),
    };
    let of_key = key.as_ref().and_then(|key| ring.get(key)).copied();
    let wanted = algorithm.or(of_key);
    let mut fitting = ring.iter().filter(|(_, known)| wanted.is_none_or(|wanted| **known == wanted));
    let first = fitting.next().map(|(known, algorithm)| (known.clone(), *algorithm));
    if let Some((_, one)) = &first
        && fitting.any(|(_, other)| other != one)
    {
        let message = format!("`{agent}` has keys of both algorithms: say `key` or `algorithm`");
        return Err(RpcError::invalid_params(message));
    }
    let (known, found) = first.unwrap_or_else(|| (format!("{agent}.k1"), ProofAlgorithm::Hs256));
    Ok((key.unwrap_or(known), wanted.unwrap_or(found)))
}

/// JSON-RPC 2.0 §4.2: parameters are an object or an array.
fn structured(params: Option<&RawValue>) -> Result<Option<&RawValue>, RpcError> {
    match params {
        Some(params) if params.get() == "null" => Ok(None),
        Some(params) if params.get().starts_with(['{', '[']) => Ok(Some(params)),
        None => Ok(None),
        Some(_) => Err(RpcError::invalid_params("`params` must be an object or an array")),
    }
}
