//! What a new agent can call, for the lines that say what to type next.
//! Never more than a guess: the user types it, and then sees what the service decides.

use std::path::Path;

use sealwire::decide::{Param, ParamType, ScalarType};
use sealwire::internal::policy::CallerGroup;
use sealwire::{Caller, Name, PolicySet, Question};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::policies;
use crate::when;

/// A new agent, with the roles in its tokens.
pub(crate) struct NewAgent<'a> {
    pub(crate) agent: &'a Name,
    pub(crate) roles: &'a [String],
    pub(crate) credentials: &'a Path,
    pub(crate) service: &'a str,
    /// The policies' folder.
    pub(crate) policies: &'a Path,
}

impl NewAgent<'_> {
    /// A call that is allowed, if there is one, and how to give the agent a role if it has none.
    pub(crate) fn next_steps(&self, set: &PolicySet) -> String {
        let Self { agent, credentials, service, policies, .. } = self;
        let (credentials, policies) = (credentials.display(), policies.display());
        let call = self.call(set);
        let first = match &call {
            // A running service picks up a new key within a second.
            Some(call) => format!("call --creds {credentials} {service} {call} --wait 10s"),
            None => format!("ping --creds {credentials} {service} --within 10s"),
        };
        let next = format!("Next:\n  sealwire {first}");
        if call.is_some() && !self.roles.is_empty() {
            return next;
        }
        let roles: Vec<String> = policies::roles(set).collect();
        let role = if let [only] = roles.as_slice() { only } else { "ROLE" };
        let there = if roles.is_empty() { "none yet".to_owned() } else { roles.join(", ") };
        let so = if call.is_some() { "" } else { ", and no policy lets it call anything" };
        format!(
            "{next}\n\n{agent} has no role{so}. To give it one of those in the policies ({there}):\n  \
             printf '\\n[agent.\"{agent}\"]\\nroles = [\"{role}\"]\\n' >> {policies}/agents.toml"
        )
    }

    /// Method and parameters, quoted for a shell, of a call that is allowed or may be.
    fn call(&self, set: &PolicySet) -> Option<String> {
        let mut callers: Vec<CallerGroup> = self.roles.iter().cloned().map(CallerGroup::Role).collect();
        callers.extend([CallerGroup::Agent(self.agent.to_string()), CallerGroup::Anyone]);
        let methods: Vec<String> = callers.iter().flat_map(|callers| set.can(callers)).map(|(name, _)| name).collect();
        // Leave out the methods that every service has: they say nothing about this one.
        let own = || methods.iter().filter(|name| !name.starts_with("rpc."));
        let caller = Caller::new(self.agent.clone(), self.roles.iter().cloned());
        // Also try the agent's own name as a text: some calls are about the caller itself.
        let tries =
            own().flat_map(|method| ["text", self.agent.as_str()].map(|text| (method, example(set, method, text))));
        let allowed = tries.into_iter().find(|(method, params)| {
            let params = params.clone().and_then(|params| RawValue::from_string(params).ok());
            let now_ms = when::now_s().saturating_mul(1_000);
            set.decide(&Question { caller: &caller, method, params: params.as_deref(), now_ms }).is_allow()
        });
        match allowed {
            Some((method, Some(params))) => Some(format!("{method} '{params}'")),
            Some((method, None)) if set.methods().params(method).is_some() => Some(method.clone()),
            Some((method, None)) => Some(format!("{method} '{{…}}'")),
            // The agent may call a method, but whether it is allowed depends on the parameters.
            None => own().next().map(|method| format!("{method} '{{…}}'")),
        }
    }
}

/// Example parameters of the declared types; `None` if none are needed or declared.
fn example(set: &PolicySet, method: &str, text: &str) -> Option<String> {
    let members = members(set.methods().params(method)?, text);
    (!members.is_empty()).then(|| Value::from(members).to_string())
}

fn members(params: &[Param], text: &str) -> Map<String, Value> {
    let needed = params.iter().filter(|param| !param.is_optional());
    needed.zip(2..).map(|(param, number)| (param.name().to_owned(), value(param.kind(), text, number))).collect()
}

fn value(kind: &ParamType, text: &str, number: i64) -> Value {
    match kind {
        ParamType::String | ParamType::Any => text.into(),
        ParamType::Integer | ParamType::Number => number.into(),
        ParamType::Boolean => true.into(),
        ParamType::List(ScalarType::String) => json!([text]),
        ParamType::List(ScalarType::Integer) => json!([number]),
        ParamType::List(ScalarType::Boolean) => json!([true]),
        ParamType::Object(inner) => members(inner, text).into(),
    }
}
