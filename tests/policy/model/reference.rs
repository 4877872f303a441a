//! The rules as the documentation states them, evaluated one by one without an engine.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use sealwire::configure::ProofAlgorithm;
use sealwire::decide::Verdict;
use serde_json::Value;
use serde_json::value::RawValue;

use super::generate::{Asked, Condition, Effect, Model, Rule, Who};

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Expected {
    pub(crate) verdict: Verdict,
    pub(crate) reason: &'static str,
    pub(crate) rule: Option<String>,
    pub(crate) shadow: Vec<(String, Verdict)>,
    /// For a method that does not exist.
    pub(crate) would_allow: Option<bool>,
}

/// The declared parameters of a call, read by hand.
struct Params {
    amount: i64,
    to: Option<String>,
    ids: Option<Vec<i64>>,
    price: Option<String>,
}

/// Whether it is the agent or the subject, and its name.
type Party<'a> = (bool, &'a str);

pub(crate) fn decide(model: &Model, asked: &Asked) -> Expected {
    let mut parties = vec![(true, asked.caller.agent.as_str())];
    if asked.caller.delegated {
        parties.push((false, asked.caller.subject.as_str()));
    }
    if !asked.exists() {
        let rules = enforced(model, asked);
        let real = !asked.method.ends_with(['/', ' ']);
        // Conditions on parameters are ignored, and so are deny rules that have any.
        let asks_tenant = rules.iter().any(|rule| {
            let tenant = |conditions: &[Condition]| conditions.iter().any(|part| matches!(part, Condition::Tenant(_)));
            let params = |conditions: &[Condition]| conditions.iter().any(reads_params);
            let left_out = rule.effect == Effect::Deny && (params(&rule.when) || params(&rule.unless));
            !left_out && (tenant(&rule.when) || (tenant(&rule.unless) && !params(&rule.unless)))
        });
        let tenant = asked.caller.token.claims.get("tenant");
        let typed = !asks_tenant || tenant.is_none_or(Value::is_string);
        let would_allow = real && typed && parties.iter().all(|party| is_allow(&without_params(&rules, asked, *party)));
        let (verdict, reason) = (Verdict::Deny, "unknown_method");
        return Expected { verdict, reason, rule: None, shadow: Vec::new(), would_allow: Some(would_allow) };
    }
    let rules = enforced(model, asked);
    let outcomes: Vec<Outcome> = parties.iter().map(|party| decide_party(&rules, asked, *party)).collect();
    // A fault in the parameters is reported only if both parties could call the method with other parameters.
    let refusals = || outcomes.iter().filter(|outcome| outcome.verdict == Verdict::Deny);
    let plain = refusals().find(|outcome| !outcome.reason.starts_with("param_"));
    let decisive = plain.or(refusals().next()).unwrap_or(&outcomes[0]);
    let mut shadow = Vec::new();
    for rule in model.rules.iter().filter(|rule| rule.shadow && about(rule, &asked.method)) {
        // The verdict if this rule were enforced too.
        let mut with: Vec<&Rule> = rules.clone();
        with.push(rule);
        let all = parties.iter().all(|party| is_allow(&decide_party(&with, asked, *party)));
        let would = if all { Verdict::Allow } else { Verdict::Deny };
        if would != decisive.verdict {
            shadow.push((rule.name.clone(), would));
        }
    }
    Expected {
        verdict: decisive.verdict,
        reason: decisive.reason,
        rule: decisive.rule.clone(),
        shadow,
        would_allow: None,
    }
}

fn enforced<'a>(model: &'a Model, asked: &Asked) -> Vec<&'a Rule> {
    model.rules.iter().filter(|rule| !rule.shadow && about(rule, &asked.method)).collect()
}

#[derive(Debug, Clone)]
struct Outcome {
    verdict: Verdict,
    reason: &'static str,
    rule: Option<String>,
}

fn is_allow(outcome: &Outcome) -> bool {
    outcome.verdict == Verdict::Allow
}

fn decide_party(rules: &[&Rule], asked: &Asked, party: Party<'_>) -> Outcome {
    let deny = |reason| Outcome { verdict: Verdict::Deny, reason, rule: None };
    // A claim that a rule reads must be of its type.
    let asks =
        |wanted: fn(&Condition) -> bool| rules.iter().any(|rule| rule.when.iter().chain(&rule.unless).any(wanted));
    let tenant = asked.caller.token.claims.get("tenant");
    if asks(|condition| matches!(condition, Condition::Tenant(_))) && tenant.is_some_and(|tenant| !tenant.is_string()) {
        return deny("claim_type");
    }
    let params = if asks(reads_params) {
        match read(asked.params.as_deref()) {
            Ok(params) => Some(params),
            Err(fault) => {
                // A caller that could not call the method in any case learns nothing about its parameters.
                let relaxed = without_params(rules, asked, party);
                return if is_allow(&relaxed) { deny(fault) } else { relaxed };
            }
        }
    } else {
        None
    };
    let holds = |rule: &&&Rule| {
        let all =
            |conditions: &[Condition]| conditions.iter().all(|condition| holds(condition, asked, params.as_ref()));
        applies(rule, asked, party) && all(&rule.when) && (rule.unless.is_empty() || !all(&rule.unless))
    };
    conclude(rules.iter().filter(holds).copied())
}

/// What can be decided without looking at the parameters: from allow rules, without their conditions on parameters, and
/// from those deny rules that have none.
fn without_params(rules: &[&Rule], asked: &Asked, party: Party<'_>) -> Outcome {
    let left = rules.iter().filter(|rule| {
        let plain =
            |conditions: &[Condition]| conditions.iter().all(|part| reads_params(part) || holds(part, asked, None));
        let unless = if rule.unless.iter().any(reads_params) {
            rule.effect == Effect::Allow
        } else {
            rule.unless.is_empty() || !plain(&rule.unless)
        };
        let certain = rule.effect == Effect::Allow || !rule.when.iter().any(reads_params);
        applies(rule, asked, party) && certain && plain(&rule.when) && unless
    });
    conclude(left.copied())
}

fn conclude<'a>(matching: impl Iterator<Item = &'a Rule>) -> Outcome {
    let matching: Vec<&Rule> = matching.collect();
    let first = |effect| matching.iter().find(|rule| rule.effect == effect).map(|rule| rule.name.clone());
    match (first(Effect::Deny), first(Effect::Allow)) {
        (Some(rule), _) => Outcome { verdict: Verdict::Deny, reason: "forbidden_by", rule: Some(rule) },
        (None, Some(rule)) => Outcome { verdict: Verdict::Allow, reason: "allowed_by", rule: Some(rule) },
        (None, None) => Outcome { verdict: Verdict::Deny, reason: "no_rule", rule: None },
    }
}

fn about(rule: &Rule, method: &str) -> bool {
    rule.methods.iter().any(|pattern| match *pattern {
        "*" => true,
        "m/*" => method.starts_with("m/"),
        "n/*" => method.starts_with("n/"),
        exact => exact == method,
    })
}

fn applies(rule: &Rule, asked: &Asked, (is_agent, party): Party<'_>) -> bool {
    let delegated = match (rule.delegated, rule.effect) {
        (Some("never"), _) | (None, Effect::Allow) => !asked.caller.delegated,
        (Some("only"), _) => asked.caller.delegated,
        _ => true,
    };
    let has = |role: &str| {
        let token = asked.caller.roles.contains(role) && role != "files";
        let included = role == "r0" && asked.caller.roles.contains("r2");
        let granted = match (is_agent, party) {
            (true, "a1") => role == "r1" || role == "files",
            // The one role includes the other.
            (false, "a0") => role == "r2" || role == "r0",
            (false, "alice") => role == "files",
            _ => false,
        };
        token || included || granted
    };
    delegated
        && rule.who.iter().any(|who| match who {
            Who::Everyone => true,
            Who::Role(role) => has(role),
            Who::Agent(name) => is_agent && *name == party,
            Who::Subject(name) => !is_agent && *name == party,
            Who::Agents(glob) | Who::Subjects(glob) => {
                let matches = match *glob {
                    "a*" => party.starts_with('a'),
                    "*e" => party.ends_with('e'),
                    other => panic!("{other}"),
                };
                matches && is_agent == matches!(who, Who::Agents(_))
            }
        })
}

fn reads_params(condition: &Condition) -> bool {
    !matches!(
        condition,
        Condition::Hours(..)
            | Condition::Days(..)
            | Condition::TokenAge(_)
            | Condition::Own
            | Condition::Tenant(_)
            | Condition::SubjectIs(_)
    )
}

fn holds(condition: &Condition, asked: &Asked, params: Option<&Params>) -> bool {
    let seconds = asked.now_ms / 1000;
    let hour = u32::try_from(seconds / 3600 % 24).unwrap();
    // 1970-01-01 was a Thursday.
    let day = usize::try_from((seconds / 86_400 + 3) % 7).unwrap();
    let amount = || params.unwrap().amount;
    let to = || params.unwrap().to.as_deref();
    let ids = || params.unwrap().ids.as_deref();
    let price = || params.unwrap().price.as_deref();
    match condition {
        Condition::AmountMin(bound) => amount() >= *bound,
        Condition::AmountMax(bound) => amount() <= *bound,
        Condition::AmountNot(value) => amount() != *value,
        Condition::ToIs(text) => to() == Some(text),
        Condition::ToGlob("*") => to().is_some(),
        Condition::ToGlob("x*") => to().is_some_and(|to| to.starts_with('x')),
        Condition::ToGlob("a*0") => to().is_some_and(|to| to.starts_with('a') && to.ends_with('0') && to.len() > 1),
        Condition::ToGlob(other) => panic!("{other}"),
        Condition::ToIn(texts) => to().is_some_and(|to| texts.contains(&to)),
        Condition::ToAbsent => to().is_none(),
        Condition::ToIsAgent => to() == Some(asked.caller.agent.as_str()),
        Condition::IdsMaxSize(size) => ids().is_some_and(|ids| ids.len() <= *size),
        Condition::IdsContains(id) => ids().is_some_and(|ids| ids.contains(id)),
        Condition::IdsEachIn(values) => ids().is_some_and(|ids| ids.iter().all(|id| values.contains(id))),
        Condition::PriceMin(bound) => price().is_some_and(|price| order(price, bound).is_ge()),
        Condition::PriceMax(bound) => price().is_some_and(|price| order(price, bound).is_le()),
        Condition::SubjectIs(name) => asked.caller.delegated && asked.caller.subject == *name,
        Condition::Hours(from, to) if from < to => hour >= *from && hour < *to,
        Condition::Hours(from, to) => hour >= *from || hour < *to,
        Condition::Days(from, to) => (day + 7 - from) % 7 <= (to + 7 - from) % 7,
        Condition::TokenAge(age) => seconds - asked.caller.token.issued_at <= *age,
        Condition::Own => asked.caller.algorithm == ProofAlgorithm::EdDsa,
        Condition::Tenant(name) => asked.caller.token.claims.get("tenant") == Some(&Value::from(*name)),
    }
}

/// Knows only what the generator makes: good parameters, and a fixed list of bad ones.
fn read(text: Option<&str>) -> Result<Params, &'static str> {
    let text = match text {
        None | Some("{}" | "[]") => return Err("param_missing"),
        Some(text) => text,
    };
    if text.contains("1e400") {
        return Err("param_type");
    }
    if text.contains("\"amount\":1,\"amount\"") {
        return Err("param_repeated");
    }
    let value: Value = serde_json::from_str(text).unwrap();
    let member = |name: &str, position: usize| {
        let found = if value.is_array() { value.get(position) } else { value.get(name) };
        found.filter(|value| !value.is_null()).cloned()
    };
    if value.get("amt").is_some() || value.get(4).is_some() {
        return Err("param_undeclared");
    }
    let amount = member("amount", 0).and_then(|value| value.as_i64()).ok_or("param_type")?;
    let to = match member("to", 1) {
        None => None,
        Some(value) => Some(value.as_str().ok_or("param_type")?.to_owned()),
    };
    let ids = match member("ids", 2) {
        None => None,
        Some(value) => {
            let ids: Option<Vec<i64>> = value.as_array().unwrap().iter().map(Value::as_i64).collect();
            Some(ids.ok_or("param_type")?)
        }
    };
    let price = raw(text, "price", 3);
    if price.as_ref().is_some_and(|price| price.starts_with('"')) {
        return Err("param_type");
    }
    Ok(Params { amount, to, ids, price })
}

/// A parameter as the call writes it.
pub(crate) fn raw(text: &str, name: &str, position: usize) -> Option<String> {
    let named = serde_json::from_str::<BTreeMap<String, Box<RawValue>>>(text).ok();
    let placed = || serde_json::from_str::<Vec<Box<RawValue>>>(text).ok();
    let found = match named {
        Some(mut named) => named.remove(name),
        None => placed().and_then(|placed| placed.into_iter().nth(position)),
    };
    found.map(|value| value.get().to_owned()).filter(|value| value != "null")
}

/// The sign of a number, and its digits from 10^320 down to 10^-450: the order of two numbers is that of their digits.
fn digits(text: &str) -> (bool, String) {
    let (negative, text) = text.strip_prefix('-').map_or((false, text), |text| (true, text));
    let (mantissa, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let (before, after) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let shift = 320 - i64::try_from(before.len()).unwrap() - exponent.parse::<i64>().unwrap();
    let written = format!("{}{before}{after}", "0".repeat(usize::try_from(shift).unwrap()));
    let digits = format!("{written:0<770}");
    (negative && digits.contains(|digit| digit != '0'), digits)
}

fn order(one: &str, other: &str) -> Ordering {
    match (digits(one), digits(other)) {
        ((false, one), (false, other)) => one.cmp(&other),
        ((true, one), (true, other)) => other.cmp(&one),
        ((true, _), (false, _)) => Ordering::Less,
        ((false, _), (true, _)) => Ordering::Greater,
    }
}

/// The parts by which Cedar knows a number.
pub(crate) fn parts(text: &str) -> (i64, i64, bool) {
    let (negative, digits) = digits(text);
    let (large, rest) = digits.split_at(302);
    let unit = 10_i128.pow(18);
    if large.contains(|digit| digit != '0') {
        let least = i64::try_from(unit).unwrap();
        return (if negative { -least - 1 } else { least }, 0, true);
    }
    let (units, beyond) = rest.split_at(36);
    let beyond = beyond.contains(|digit| digit != '0');
    let units: i128 = units.parse().unwrap();
    let units = if negative { -units - i128::from(beyond) } else { units };
    (i64::try_from(units.div_euclid(unit)).unwrap(), i64::try_from(units.rem_euclid(unit)).unwrap(), beyond)
}
