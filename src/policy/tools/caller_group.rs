//! The groups of callers that the rules distinguish.
//! Never one caller alone: a caller with several roles is in several groups.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

use crate::policy::cedar::References;
use crate::policy::engine::PolicySet;
use crate::policy::model::{CallerMatch, PrincipalKind};

/// Callers that are considered together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CallerGroup {
    /// Callers about whom nothing is known.
    Anyone,
    /// Callers that have this role, whatever else they have.
    Role(String),
    /// This agent with the roles that files grant it, whatever its token adds.
    Agent(String),
    /// This subject of delegated calls with the roles that files grant it, whatever the token adds.
    Subject(String),
}

impl fmt::Display for CallerGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anyone => f.pad("anyone"),
            Self::Role(name) => f.pad(&format!("role {}", name.escape_debug())),
            Self::Agent(name) => f.pad(&format!("agent {}", name.escape_debug())),
            Self::Subject(name) => f.pad(&format!("subject {}", name.escape_debug())),
        }
    }
}

impl PolicySet {
    /// Every group of callers that the policy knows: anyone, its roles, and the agents and subjects it names.
    #[must_use]
    pub fn callers(&self) -> Vec<CallerGroup> {
        let roles = self.checked().declarations.roles.keys().map(|name| CallerGroup::Role(name.clone()));
        let named = self.named().into_iter().map(|(kind, name)| match kind {
            PrincipalKind::Agent => CallerGroup::Agent(name),
            PrincipalKind::Subject => CallerGroup::Subject(name),
        });
        [CallerGroup::Anyone].into_iter().chain(roles).chain(named).collect()
    }

    /// The agents and subjects that files name.
    pub(crate) fn named(&self) -> BTreeSet<(PrincipalKind, String)> {
        let checked = self.checked();
        let granted = checked.granted.iter().map(|(kind, name, _)| (kind, name.to_owned()));
        let mut named: BTreeSet<(PrincipalKind, String)> = granted.collect();
        for rule in &checked.rules {
            named.extend(rule.callers.iter().filter_map(|whom| match whom {
                CallerMatch::Named(kind, name) => Some((*kind, name.clone())),
                _ => None,
            }));
            named.extend(References::of(rule.conditions.iter().map(|part| &part.expr)).principals);
        }
        named
    }
}
