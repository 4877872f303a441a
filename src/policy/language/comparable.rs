//! Which values conditions may compare: not those of which Cedar knows only the presence, nor lists, whose order and
//! repetitions it does not know. Never looks at calls: what is found here is wrong for every call.
//!
//! The context represents such a value by one that is the same for all. If two of them were compared, they would always
//! be equal: a limit on them would let everything pass, and a deny rule with it under `unless` would never deny.

use cedar_policy::pst::{SmolStr, Var};

use super::checked::CheckedPolicy;
use crate::policy::cedar::references;
use crate::policy::model::{ParamType, Report};

/// What to write instead of comparing a value of this type; `None` for the types that can be compared.
pub(crate) fn instead(kind: &ParamType) -> Option<&'static str> {
    match kind {
        ParamType::Number => Some("declare it an integer in a smaller unit (cents, millimetres)"),
        ParamType::Any => Some("declare its type"),
        ParamType::List(_) => Some("in Cedar, compare `.items`, which is a set, and `.size`"),
        ParamType::Object(_) => Some("compare its members"),
        ParamType::String | ParamType::Integer | ParamType::Boolean => None,
    }
}

/// Reports every value that a rule uses as a whole, other than to test its presence, and that cannot be compared.
pub(crate) fn check(CheckedPolicy { rules, methods, declarations, .. }: &CheckedPolicy, report: &Report) {
    let mut declared = Vec::new();
    declarations.claims.iter().for_each(|(name, kind)| add(&["context", "claims"], name, kind, &mut declared));
    declarations.attributes.iter().for_each(|(name, kind)| add(&["principal"], name, kind, &mut declared));
    for rule in rules.iter().filter(|rule| !rule.conditions.is_empty()) {
        let mut used: Vec<_> = rule.conditions.iter().flat_map(|part| references::values(&part.expr)).collect();
        used.sort_by(|(_, left), (_, right)| left.cmp(right));
        used.dedup();
        let about = methods.matching_any(&rule.methods);
        let params = about.values().flat_map(|method| method.params().unwrap_or_default());
        let mut known = Vec::new();
        params.for_each(|param| add(&["context", "params"], param.name(), param.kind(), &mut known));
        for (var, path) in used {
            let root = match var {
                Var::Context => "context",
                // The caller itself is compared by its name.
                Var::Principal if !path.is_empty() => "principal",
                Var::Principal | Var::Action | Var::Resource => continue,
            };
            let path: Vec<&str> = std::iter::once(root).chain(path.iter().map(SmolStr::as_str)).collect();
            // The set of a list's values can be compared, and so can its size and the parts of a number.
            let is_in = |(place, kind, _): &&Incomparable<'_>| {
                let by_parts = match kind {
                    ParamType::List(_) => true,
                    ParamType::Number => place.starts_with(&["context", "params"]),
                    _ => false,
                };
                place.iter().zip(&path).all(|(left, right)| left == right) && (place.len() >= path.len() || !by_parts)
            };
            let Some((place, kind, instead)) = known.iter().chain(&declared).find(is_in) else { continue };
            let message = match (path.join("."), place.get(path.len()..).unwrap_or_default()) {
                (path, []) => format!("`{path}` is of type {kind}, which rules cannot compare"),
                (path, below) => {
                    format!("`{path}` cannot be compared, since its `{}` is of type {kind}", below.join("."))
                }
            };
            report.error(&rule.id.at, message, *instead);
        }
    }
}

/// Where a value is that cannot be compared, its type, and what to write instead.
type Incomparable<'a> = (Vec<&'a str>, &'a ParamType, &'static str);

/// Adds what cannot be compared in the value of this name below a path.
fn add<'a>(path: &[&'a str], name: &'a str, kind: &'a ParamType, known: &mut Vec<Incomparable<'a>>) {
    let path = || [path, &[name]].concat();
    if let ParamType::Object(members) = kind {
        members.iter().for_each(|member| add(&path(), member.name(), member.kind(), known));
    } else {
        known.extend(instead(kind).map(|instead| (path(), kind, instead)));
    }
}
