//! The compiled policy as Cedar text and its schema, for those who want to see or analyse exactly what is evaluated.
//! Never the other way round: evaluation does not use this text.

use std::collections::BTreeMap;
use std::fmt::Write;

use cedar_policy::pst;

use crate::policy::cedar::{Scope, compile, schema};
use crate::policy::engine::PolicySet;
use crate::policy::model::{Mode, Rule};

impl PolicySet {
    /// Every rule as a Cedar policy, with its name, description and mode as annotations.
    ///
    /// The text can be loaded again as a policy file: `@delegated("also")` says that what a rule requires of delegated
    /// calls is already among its conditions.
    #[must_use]
    pub fn to_cedar(&self) -> String {
        let mut text = String::new();
        for rule in &self.checked().rules {
            let policy = annotated(rule).unwrap_or_else(|| format!("// {} cannot be written as Cedar\n", rule.id));
            // Writing to a String cannot fail.
            let _infallible = writeln!(text, "// {}\n{policy}", rule.id.at);
        }
        text
    }

    /// The schema that the rules were checked against, in Cedar's JSON format.
    #[must_use]
    pub fn cedar_schema(&self) -> serde_json::Value {
        schema::schema_json(self.methods().iter(), &self.checked().declarations, true)
    }
}

fn annotated(rule: &Rule) -> Option<String> {
    let policy = compile::policy(rule, Scope::Full).ok()??;
    let annotations = [
        ("id", Some(rule.id.name())),
        ("delegated", Some("also")),
        ("description", rule.description.as_deref()),
        ("unless_approved", rule.approval()),
        ("mode", (rule.mode == Mode::Shadow).then_some("shadow")),
    ];
    let annotations: BTreeMap<String, pst::SmolStr> =
        annotations.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.into()))).collect();
    let template = policy.to_pst().ok()?.body().clone().with_annotations(annotations);
    let policy = cedar_policy::Policy::from_pst(pst::Policy::Static(template.try_into().ok()?)).ok()?;
    policy.to_cedar()
}
