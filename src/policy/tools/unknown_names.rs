//! What is probably mistyped in a question: names that the policy does not know.
//! Never changes a decision: an unknown name is denied like any other that has no permission.

use crate::policy::engine::{PolicySet, Principal, Question, principals};
use crate::policy::model::{PrincipalKind, did_you_mean, shown};

impl PolicySet {
    /// Of these claims, those that no file declares, each in a sentence: no rule can ask for them.
    #[must_use]
    pub fn unknown_claims<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
        let claims = &self.checked().declarations.claims;
        let unknown = names.into_iter().filter(|name| !claims.contains_key(*name));
        let said = unknown.map(|name| {
            let near = did_you_mean(name, claims.keys().map(String::as_str)).map(|help| format!(": {help}"));
            format!("no file declares the claim `{}`{}", shown(name), near.unwrap_or_default())
        });
        said.collect()
    }

    /// Names in a question that the files do not know, each in a sentence with the nearest one that they do know: the
    /// method, roles, and an agent or a subject whose name is nearly one of theirs, or that of a principal of the other
    /// kind. Files need not name principals, so others are not reported.
    #[must_use]
    pub fn unknown_names(&self, question: &Question<'_>) -> Vec<String> {
        let (roles, named) = (&self.checked().declarations.roles, self.named());
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
        for kind in principals(question.caller) {
            let name = Principal::of(question.caller, kind, self.checked()).name;
            let (mine, others): (Vec<_>, Vec<_>) = named.iter().partition(|(known, _)| *known == kind);
            let is_in = |names: &[&(PrincipalKind, String)]| names.iter().any(|(_, known)| known == name);
            let near = did_you_mean(name, mine.iter().map(|(_, known)| known.as_str()));
            if is_in(&mine) {
                continue;
            }
            if let [(other, _), ..] = others.as_slice()
                && is_in(&others)
            {
                let shown = shown(name);
                found
                    .push(format!("no file names the {kind} `{shown}`: the {other} of that name is another principal"));
            } else if let Some(help) = near {
                found.push(format!("no file names the {kind} `{}`: {help}", shown(name)));
            }
        }
        found
    }
}
