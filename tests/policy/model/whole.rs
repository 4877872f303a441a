//! The whole exported policy set under Cedar's own authorizer, with every attribute: no slices, no shortcuts.

use std::collections::{HashMap, HashSet};

use cedar_policy::{Authorizer, Context, Decision, Entities, Entity, EntityUid, Request, RestrictedExpression, Schema};
use sealwire::PolicySet;
use serde_json::{Value, json};

use super::generate::{Asked, DAYS};

pub(crate) struct Whole {
    policies: cedar_policy::PolicySet,
    schema: Schema,
}

impl Whole {
    pub(crate) fn of(set: &PolicySet) -> Self {
        let all: cedar_policy::PolicySet = set.to_cedar().parse().unwrap();
        let mut policies = cedar_policy::PolicySet::new();
        for policy in all.policies().filter(|policy| policy.annotation("mode") != Some("shadow")) {
            policies.add(policy.clone()).unwrap();
        }
        Self { policies, schema: Schema::from_json_value(set.cedar_schema()).unwrap() }
    }

    /// Whether Cedar alone allows every party, without any policy failing.
    pub(crate) fn allows(&self, asked: &Asked) -> bool {
        // Cedar cannot be given a claim of the wrong type; the engine refuses it where a rule reads it.
        let asks_tenant = self.policies.policies().any(|policy| {
            let about = policy.to_string().contains("claims");
            about && concerns(policy, &asked.method)
        });
        let tenant = asked.caller.token.claims.get("tenant");
        if asks_tenant && tenant.is_some_and(|tenant| !tenant.is_string()) {
            return false;
        }
        let subject = asked.caller.delegated.then_some(("Subject", asked.caller.subject.as_str()));
        let parties = [Some(("Agent", asked.caller.agent.as_str())), subject];
        parties.into_iter().flatten().all(|party| {
            let (request, entities) = self.question(asked, party);
            let response = Authorizer::new().is_authorized(&request, &self.policies, &entities);
            response.decision() == Decision::Allow && response.diagnostics().errors().next().is_none()
        })
    }

    fn question(&self, asked: &Asked, (kind, party): (&str, &str)) -> (Request, Entities) {
        let uid = |kind: &str, name: &str| -> EntityUid { format!("{kind}::{name:?}").parse().unwrap() };
        let mut roles: HashSet<&str> =
            asked.caller.roles.iter().map(String::as_str).filter(|role| *role != "files").collect();
        match (kind, party) {
            ("Agent", "a1") => roles.extend(["r1", "files"]),
            ("Subject", "a0") => roles.extend(["r2"]),
            ("Subject", "alice") => roles.extend(["files"]),
            _ => {}
        }
        let agent = Entity::new(
            uid(kind, party),
            HashMap::from([("name".to_owned(), RestrictedExpression::new_string(party.to_owned()))]),
            roles.iter().map(|role| uid("Role", role)).collect(),
        );
        let included = Entity::new_no_attrs(uid("Role", "r2"), HashSet::from([uid("Role", "r0")]));
        let entities = Entities::from_entities([agent.unwrap(), included], Some(&self.schema)).unwrap();
        let context =
            Context::from_json_value(context(asked), Some((&self.schema, &uid("Action", &asked.method)))).unwrap();
        let request = Request::new(
            uid(kind, party),
            uid("Action", &asked.method),
            uid("Service", "this"),
            context,
            Some(&self.schema),
        );
        (request.unwrap(), entities)
    }
}

fn concerns(policy: &cedar_policy::Policy, method: &str) -> bool {
    let text = policy.to_string();
    let (head, _) = text.split_once("resource").unwrap();
    let groups = ["*", method.get(..2).map_or("", |prefix| if prefix == "m/" { "m/*" } else { "n/*" }), method];
    groups.iter().any(|group| head.contains(&format!("Action::\"{group}\"")))
}

fn context(asked: &Asked) -> Value {
    let params: Value = serde_json::from_str(asked.params.as_ref().unwrap()).unwrap();
    let member = |name: &str, position: usize| {
        let found = if params.is_array() { params.get(position) } else { params.get(name) };
        found.filter(|value| !value.is_null()).cloned()
    };
    let mut record = json!({ "amount": member("amount", 0).unwrap() });
    if let Some(to) = member("to", 1) {
        record["to"] = to;
    }
    if let Some(ids) = member("ids", 2) {
        let size = ids.as_array().unwrap().len();
        record["ids"] = json!({ "items": ids, "size": size });
    }
    if let Some(price) = super::reference::raw(asked.params.as_ref().unwrap(), "price", 3) {
        let (whole, fraction, beyond) = super::reference::parts(&price);
        record["price"] = json!({ "whole": whole, "fraction": fraction, "beyond": beyond });
    }
    let seconds = asked.now_ms / 1000;
    let minutes = seconds / 60;
    let week = (minutes + 3 * 1440) % 10_080;
    let caller = &asked.caller;
    let claims = match caller.token.claims.get("tenant") {
        Some(Value::String(tenant)) => json!({ "tenant": tenant }),
        _ => json!({}),
    };
    let mut context = json!({
        "delegated": caller.delegated,
        "agent": caller.agent.as_str(),
        "now": { "__extn": { "fn": "datetime", "arg": "2026-09-21" } },
        "hour": minutes % 1440 / 60,
        "minute": minutes % 60,
        "minute_of_day": minutes % 1440,
        "minute_of_week": week,
        "weekday": DAYS[usize::try_from(week / 1440).unwrap()],
        "algorithm": caller.algorithm.as_str(),
        "key": caller.key,
        "token": {
            "age_s": seconds - caller.token.issued_at, "remaining_s": 0, "id": "", "issuer": "", "key": "",
        },
        "claims": claims,
        "params": record,
    });
    if caller.delegated {
        context["subject"] = json!(caller.subject);
    }
    context
}
