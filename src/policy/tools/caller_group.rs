//! The groups of callers that the rules distinguish.
//! Never one caller alone: a caller with several roles is in several groups.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

use crate::policy::cedar::References;
use crate::policy::engine::PolicySet;
use crate::policy::model::CallerMatch;

/// Callers that are considered together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CallerGroup {
    /// Callers about whom nothing is known.
    Anyone,
    /// Callers that have this role, whatever else they have.
    Role(String),
    /// This agent (or subject) with the roles that files grant it, whatever its token adds.
    Agent(String),
}

impl fmt::Display for CallerGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anyone => f.pad("anyone"),
            Self::Role(name) => f.pad(&format!("role {}", name.escape_debug())),
            Self::Agent(name) => f.pad(&format!("agent {}", name.escape_debug())),
        }
    }
}

impl PolicySet {
    /// Every group of callers that the policy knows: anyone, its roles, and the agents it names.
    #[must_use]
    pub fn callers(&self) -> Vec<CallerGroup> {
        let roles = self.checked().declarations.roles.keys().map(|name| CallerGroup::Role(name.clone()));
        let agents = self.agents().into_iter().map(CallerGroup::Agent);
        [CallerGroup::Anyone].into_iter().chain(roles).chain(agents).collect()
    }

    /// The agents that files name.
    pub(crate) fn agents(&self) -> BTreeSet<String> {
        let checked = self.checked();
        let mut agents: BTreeSet<String> = checked.granted.keys().cloned().collect();
        for rule in &checked.rules {
            agents.extend(rule.callers.iter().filter_map(|whom| match whom {
                CallerMatch::Agent(name) => Some(name.clone()),
                _ => None,
            }));
            agents.extend(References::of(rule.conditions.iter().map(|part| &part.expr)).agents);
        }
        agents
    }
}
