//! Which values conditions may compare: not those that Cedar is only told to be there, nor lists, whose order and
//! repetitions it does not know. Never looks at calls: what is found here is wrong for every call.
//!
//! The context stands in for such a value with one that is the same for all. Compared, two of them would always be
//! equal: a limit on them would let everything pass, and a deny rule with it under `unless` would never deny.

use cedar_policy::pst::{SmolStr, Var};

use super::checked::CheckedPolicy;
use crate::policy::cedar::references;
use crate::policy::model::{Declarations, Methods, Param, ParamType, Report, Rule};

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

/// Reports every value that a rule uses as a whole, other than to ask whether it is there, and that cannot be compared.
pub(crate) fn check(checked: &CheckedPolicy, report: &Report) {
    let CheckedPolicy { rules, methods, declarations, .. } = checked;
    for rule in rules {
        let mut used: Vec<_> = rule.conditions.iter().flat_map(|part| references::values(&part.expr)).collect();
        used.sort_by(|(_, left), (_, right)| left.cmp(right));
        used.dedup();
        for (var, path) in used {
            let found = match &var {
                Var::Context => in_context(&path, rule, methods, declarations),
                Var::Principal => match path.split_first() {
                    Some((name, rest)) => declarations.attributes.get(name.as_str()).and_then(|kind| look(kind, rest)),
                    // The caller itself is compared by its name.
                    None => None,
                },
                Var::Action | Var::Resource => None,
            };
            let Some(Incomparable { below, kind, instead }) = found else { continue };
            let root = if var == Var::Principal { "principal" } else { "context" };
            let path: Vec<&str> = std::iter::once(root).chain(path.iter().map(SmolStr::as_str)).collect();
            let path = path.join(".");
            let message = if below.is_empty() {
                format!("`{path}` is of type {kind}, which rules cannot compare")
            } else {
                format!("`{path}` cannot be compared, since its `{}` is of type {kind}", below.join("."))
            };
            report.error(&rule.id.at, message, instead);
        }
    }
}

/// Something at the end of a path, or below it, that cannot be compared.
struct Incomparable {
    /// From the end of the path to it.
    below: Vec<String>,
    kind: String,
    instead: &'static str,
}

impl Incomparable {
    fn within(mut self, name: &str) -> Self {
        self.below.insert(0, name.to_owned());
        self
    }
}

fn in_context(path: &[SmolStr], rule: &Rule, methods: &Methods, declarations: &Declarations) -> Option<Incomparable> {
    let params = |rest: &[SmolStr]| {
        let about = methods.matching_any(&rule.methods);
        about.values().filter_map(|method| method.params()).find_map(|params| member(params, rest))
    };
    let claims = || declarations.claims.iter().find_map(|(name, kind)| look(kind, &[]).map(|it| it.within(name)));
    match path.split_first() {
        None => params(&[]).map(|it| it.within("params")).or_else(|| claims().map(|it| it.within("claims"))),
        Some((group, rest)) if group == "params" => params(rest),
        Some((group, [])) if group == "claims" => claims(),
        Some((group, [name, rest @ ..])) if group == "claims" => {
            declarations.claims.get(name.as_str()).and_then(|kind| look(kind, rest))
        }
        Some(_) => None,
    }
}

/// In a record with these members.
fn member(members: &[Param], path: &[SmolStr]) -> Option<Incomparable> {
    match path.split_first() {
        Some((name, rest)) => {
            members.iter().find(|member| member.name() == name).and_then(|member| look(member.kind(), rest))
        }
        None => members.iter().find_map(|member| look(member.kind(), &[]).map(|it| it.within(member.name()))),
    }
}

fn look(kind: &ParamType, path: &[SmolStr]) -> Option<Incomparable> {
    match kind {
        ParamType::Object(members) => member(members, path),
        // The set of its values, or its size.
        ParamType::List(_) if !path.is_empty() => None,
        kind => instead(kind).map(|instead| Incomparable { below: Vec::new(), kind: kind.to_string(), instead }),
    }
}
