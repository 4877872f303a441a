//! The principals for which a call is decided.
//! Never lets one principal have a role of the other.

use crate::auth::Caller;
use crate::policy::language::CheckedPolicy;
use crate::policy::model::{PrincipalKind, RoleSource};

/// One of the two for whom a call is judged: the agent, or the subject it acts for.
#[derive(Debug)]
pub(crate) struct Principal<'a> {
    /// The policy that judges it.
    pub(crate) checked: &'a CheckedPolicy,
    pub(crate) kind: PrincipalKind,
    pub(crate) name: &'a str,
    /// The roles of the token that are believed, those that files grant, and those that these include. One may occur
    /// twice.
    pub(crate) roles: Vec<&'a str>,
}

impl<'a> Principal<'a> {
    /// One of the principals of a call, with all the roles that count for it.
    pub(crate) fn of(caller: &'a Caller, kind: PrincipalKind, checked: &'a CheckedPolicy) -> Self {
        let name = match kind {
            PrincipalKind::Agent => caller.agent.as_str(),
            PrincipalKind::Subject => caller.subject.as_str(),
        };
        let known = |role: &str| checked.declarations.roles.get(role);
        let believed = |role: &&String| known(role).is_none_or(|role| role.source != RoleSource::Files);
        let held = checked.granted.get(kind, name).into_iter().flatten().chain(caller.roles.iter().filter(believed));
        let included = |role: &'a String| known(role).into_iter().flat_map(|role| &role.includes);
        let roles = held.flat_map(|role| [role].into_iter().chain(included(role))).map(String::as_str).collect();
        Self { checked, kind, name, roles }
    }
}

/// The principals for which a call is judged: the agent, and the subject if it acts for one.
pub(crate) fn principals(caller: &Caller) -> impl Iterator<Item = PrincipalKind> + use<> {
    [Some(PrincipalKind::Agent), caller.delegated.then_some(PrincipalKind::Subject)].into_iter().flatten()
}
