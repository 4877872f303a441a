//! The methods that every service has: `rpc.can` and `rpc.explain`. They pass the policy like any other.
//! Never tells a caller about anybody but itself, unless the policy lets it ask.

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use crate::auth::Caller;
use crate::name::{MethodName, Name};
use crate::policy::{Permitted, PolicySet, Question, Verdict};
use crate::rpc::{Params, RpcError};

/// May I call this, with these arguments? `{"method": …, "params": …?}` → `{"allowed": true|false}`.
pub(super) const CAN: &str = "rpc.can";
/// What is decided about a call of some agent, and why? `{"agent": …, "roles": […]?, "method": …, "params": …?, "at": …?}`
pub(super) const EXPLAIN: &str = "rpc.explain";

/// The methods that every service has beside its own: policy files may speak of them.
pub const BUILTIN_METHODS: [&str; 2] = [CAN, EXPLAIN];

/// The names, for the registry that policies are checked against.
pub(super) fn names() -> impl Iterator<Item = MethodName> {
    BUILTIN_METHODS.into_iter().filter_map(|name| MethodName::new(name).ok())
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
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Explain {
    agent: Name,
    #[serde(default)]
    subject: Option<String>,
    #[serde(default)]
    roles: Vec<String>,
    method: String,
    #[serde(default)]
    params: Option<Box<RawValue>>,
    /// Seconds since the Unix epoch.
    #[serde(default)]
    at: Option<u64>,
}

/// The answer, if the permitted call is of a built-in method; else the call back.
pub(super) fn answer(
    permitted: Permitted,
    policy: &PolicySet,
    now_ms: u64,
) -> Result<Result<Box<RawValue>, RpcError>, Box<Permitted>> {
    match permitted.call().method() {
        CAN => Ok(can(&permitted, policy, now_ms)),
        EXPLAIN => Ok(explain(&permitted, policy, now_ms)),
        _ => Err(Box::new(permitted)),
    }
}

fn can(permitted: &Permitted, policy: &PolicySet, now_ms: u64) -> Result<Box<RawValue>, RpcError> {
    let call = permitted.call();
    let asked: Can = Params::decode(call.params())?;
    let question =
        Question { caller: call.caller(), method: &asked.method, params: structured(asked.params.as_deref())?, now_ms };
    // A method that does not exist cannot be called either: the answer does not tell the two apart.
    let allowed = policy.decide(&question).verdict == Verdict::Allow;
    to_raw_value(&Answer { allowed }).map_err(RpcError::internal)
}

fn explain(permitted: &Permitted, policy: &PolicySet, now_ms: u64) -> Result<Box<RawValue>, RpcError> {
    let asked: Explain = Params::decode(permitted.call().params())?;
    let mut caller = Caller::new(asked.agent, asked.roles);
    if let Some(subject) = asked.subject {
        caller.delegated = subject != caller.agent.as_str();
        caller.subject = subject;
    }
    let now_ms = asked.at.map_or(now_ms, |seconds| seconds.saturating_mul(1000));
    // A token as fresh as can be: the explanation says what the rules ask of its age.
    caller.token.issued_at = now_ms / 1000;
    caller.token.expires_at = now_ms / 1000 + 900;
    let question =
        Question { caller: &caller, method: &asked.method, params: structured(asked.params.as_deref())?, now_ms };
    to_raw_value(&policy.explain(&question)).map_err(RpcError::internal)
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
