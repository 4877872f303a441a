//! The two kinds of principals for which calls are decided. Each has a name space of its own.
//! Never gives one what is kept for a namesake of the other kind.

use std::collections::HashMap;
use std::fmt;

use serde::Serialize;

/// What a principal of a call is.
///
/// Who chooses subjects at an identity provider and who enrols agents are different people, so a subject that has the
/// name of an agent is somebody else, and gets nothing that is granted to the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PrincipalKind {
    /// The owner of the key that signed the call.
    Agent,
    /// Whom the agent acts for in a delegated call.
    Subject,
}

impl fmt::Display for PrincipalKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// What is kept for each principal.
#[derive(Debug, Clone)]
pub(crate) struct ByPrincipal<T> {
    agents: HashMap<String, T>,
    subjects: HashMap<String, T>,
}

impl<T> Default for ByPrincipal<T> {
    fn default() -> Self {
        Self { agents: HashMap::new(), subjects: HashMap::new() }
    }
}

impl<T> ByPrincipal<T> {
    fn of(&self, kind: PrincipalKind) -> &HashMap<String, T> {
        match kind {
            PrincipalKind::Agent => &self.agents,
            PrincipalKind::Subject => &self.subjects,
        }
    }

    pub(crate) fn get(&self, kind: PrincipalKind, name: &str) -> Option<&T> {
        self.of(kind).get(name)
    }

    /// Keeps `value`, and returns what was kept for this principal before.
    pub(crate) fn insert(&mut self, kind: PrincipalKind, name: &str, value: T) -> Option<T> {
        self.of_mut(kind).insert(name.to_owned(), value)
    }

    /// What is kept for this principal, the default if that is nothing yet.
    pub(crate) fn or_default(&mut self, kind: PrincipalKind, name: &str) -> &mut T
    where
        T: Default,
    {
        self.of_mut(kind).entry(name.to_owned()).or_default()
    }

    fn of_mut(&mut self, kind: PrincipalKind) -> &mut HashMap<String, T> {
        match kind {
            PrincipalKind::Agent => &mut self.agents,
            PrincipalKind::Subject => &mut self.subjects,
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (PrincipalKind, &str, &T)> {
        let agents = self.agents.iter().map(|(name, value)| (PrincipalKind::Agent, name.as_str(), value));
        let subjects = self.subjects.iter().map(|(name, value)| (PrincipalKind::Subject, name.as_str(), value));
        agents.chain(subjects)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.iter().map(|(_, _, value)| value)
    }
}
