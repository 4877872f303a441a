//! What is probably mistyped in a question: names that the policy does not know.
//! Never changes a decision: an unknown name is denied like any other that has no permission.

use crate::policy::engine::{PolicySet, Question};
use crate::policy::model::{did_you_mean, shown};

impl PolicySet {
    /// Names in a question that the files do not know, each in a sentence with the nearest one that they do know: the
    /// method, roles, and an agent whose name is nearly one of theirs. Files need not name agents, so others are not
    /// reported.
    #[must_use]
    pub fn unknown_names(&self, question: &Question<'_>) -> Vec<String> {
        let (roles, agents) = (&self.checked().declarations.roles, self.agents());
        let said = |help: Option<String>| help.map(|help| format!(": {help}")).unwrap_or_default();
        let mut found = Vec::new();
        if !self.methods().contains(question.method) {
            let help = did_you_mean(question.method, self.methods().names().map(|name| name.as_str()));
            found.push(format!("no file declares the method `{}`{}", shown(question.method), said(help)));
        }
        for role in question.caller.roles.iter().filter(|role| !roles.contains_key(*role)) {
            let known: Vec<String> = roles.keys().map(|role| format!("`{role}`")).collect();
            let known = (1..=8).contains(&known.len()).then(|| format!("there are {}", known.join(", ")));
            let help = did_you_mean(role, roles.keys().map(String::as_str)).or(known);
            found.push(format!("no file speaks of the role `{}`{}", shown(role), said(help)));
        }
        let agent = question.caller.agent.as_str();
        let near = did_you_mean(agent, agents.iter().map(String::as_str));
        if let Some(help) = near.filter(|_| !agents.contains(agent)) {
            found.push(format!("no file names the agent `{agent}`: {help}"));
        }
        found
    }
}
