//! Which budgets a call is charged to, and how much.
//! Never leaves one out because of who else it is for: it is enough that the agent or the subject is one of its callers.

use std::collections::HashMap;

use super::arguments;
use super::decision::Question;
use super::principal::{Principal, principals};
use crate::name::MethodName;
use crate::policy::language::CheckedPolicy;
use crate::policy::model::{Budget, CallerMatch, PrincipalKind, TypedValue, matches_glob};

/// The budgets of each method, by name.
pub(super) type BudgetsOf = HashMap<MethodName, Vec<String>>;

/// What one call takes from one budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Charge<'a> {
    /// The budget.
    pub(crate) budget: &'a Budget,
    /// One, or the value of the parameter that the budget adds up.
    pub(crate) amount: u64,
}

pub(super) fn by_method(checked: &CheckedPolicy) -> BudgetsOf {
    let mut by_method = BudgetsOf::new();
    for budget in checked.budgets.values() {
        for name in checked.methods.matching_any(&budget.methods).into_keys() {
            by_method.entry(name.clone()).or_default().push(budget.name.clone());
        }
    }
    by_method
}

/// The budgets that calls of this method are charged to, whoever makes them.
pub(super) fn budgets_of<'a>(
    checked: &'a CheckedPolicy,
    by_method: &'a BudgetsOf,
    method: &str,
) -> impl Iterator<Item = &'a Budget> + use<'a> {
    by_method.get(method).into_iter().flatten().filter_map(|name| checked.budgets.get(name))
}

/// What a call is charged if it is permitted, or why it cannot be counted.
pub(super) fn charges<'a>(
    checked: &'a CheckedPolicy,
    by_method: &'a BudgetsOf,
    question: &Question<'_>,
) -> Result<Vec<Charge<'a>>, String> {
    let callers: Vec<_> =
        principals(question.caller).map(|kind| Principal::of(question.caller, kind, checked)).collect();
    let is_for = |budget: &&Budget| budget.callers.iter().any(|whom| callers.iter().any(|who| is_one(who, whom)));
    let budgets: Vec<_> = budgets_of(checked, by_method, question.method).filter(is_for).collect();
    let params = match budgets.iter().any(|budget| budget.sum.is_some()) {
        // Its parameters must be the declared ones and nothing else: the method reads the value that is counted.
        true => {
            let declared = checked.methods.params(question.method).unwrap_or_default();
            Some(arguments::bind(question.params, declared).map_err(|reason| reason.to_string())?)
        }
        false => None,
    };
    let amount = |budget: &Budget| {
        let Some(param) = &budget.sum else { return Ok(1) };
        let wrong = |what| format!("parameter `{param}` is {what}, and the budget `{}` adds it up", budget.name);
        match params.as_ref().and_then(|params| params.get(param)) {
            Some(TypedValue::Integer(value)) => u64::try_from(*value).map_err(|_| wrong("negative")),
            _ => Err(wrong("no integer")),
        }
    };
    budgets.into_iter().map(|budget| Ok(Charge { budget, amount: amount(budget)? })).collect()
}

/// Whether a principal is one of these callers. A rule asks Cedar; a budget has nothing else to ask.
fn is_one(principal: &Principal<'_>, whom: &CallerMatch) -> bool {
    let is = |kind: PrincipalKind| principal.kind == kind;
    match whom {
        CallerMatch::Everyone => true,
        CallerMatch::Role(role) => principal.roles.contains(&role.as_str()),
        CallerMatch::Named(kind, name) => is(*kind) && principal.name == name,
        CallerMatch::Like(kind, glob) => is(*kind) && matches_glob(glob, principal.name),
    }
}
