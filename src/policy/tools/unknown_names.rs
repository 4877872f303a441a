//! What in a question is probably mistyped: names that the policy does not know.
//! Never changes what is decided: an unknown name is denied like any other that nothing is allowed to.

use std::collections::BTreeSet;

use super::caller_group::CallerGroup;
use crate::policy::engine::{PolicySet, Question};
use crate::policy::model::{did_you_mean, shown};

impl PolicySet {
    /// Names in a question that the files do not know, each in a sentence with the nearest one that they do: the method,
    /// roles, and an agent whose name is nearly one of theirs. Files need not name agents, so others are no doubt.
    #[must_use]
    pub fn unknown_names(&self, question: &Question<'_>) -> Vec<String> {
        let (mut roles, mut agents) = (BTreeSet::new(), BTreeSet::new());
        for callers in self.callers() {
            match callers {
                CallerGroup::Role(name) => drop(roles.insert(name)),
                CallerGroup::Agent(name) => drop(agents.insert(name)),
                CallerGroup::Anyone => {}
            }
        }
        let near = |name: &str, known: &BTreeSet<String>| did_you_mean(name, known.iter().map(String::as_str));
        let mut found = Vec::new();
        if !self.methods().contains(question.method) {
            let known: BTreeSet<String> = self.methods().names().map(ToString::to_string).collect();
            let help = near(question.method, &known).map(|help| format!(": {help}")).unwrap_or_default();
            found.push(format!("no file declares the method `{}`{help}", shown(question.method)));
        }
        for role in question.caller.roles.iter().filter(|role| !roles.contains(*role)) {
            let known =
                || format!("there are {}", roles.iter().map(|role| format!("`{role}`")).collect::<Vec<_>>().join(", "));
            let help = near(role, &roles).or_else(|| (1..=8).contains(&roles.len()).then(known));
            let help = help.map(|help| format!(": {help}")).unwrap_or_default();
            found.push(format!("no file speaks of the role `{}`{help}", shown(role)));
        }
        let agent = question.caller.agent.as_str();
        if let Some(help) = near(agent, &agents).filter(|_| !agents.contains(agent)) {
            found.push(format!("no file names the agent `{agent}`: {help}"));
        }
        found
    }
}
