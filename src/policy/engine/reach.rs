//! What one caller may call at all, and which values of parameters its rules leave it: for telling it beforehand.
//! Never decides a call.

use serde_json::{Map, Value};

use super::bounds::{bounds, union};
use super::decision::Question;
use super::party::{Party, parties};
use super::set::PolicySet;
use crate::auth::Caller;

/// What is left of the parameters of a method that a caller may call, as JSON Schemas: each holds for every value with which some
/// call is allowed, and one that is not here may have any.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reach {
    params: Vec<(String, Map<String, Value>)>,
}

impl Reach {
    /// The parameters with bounds, and the keywords of JSON Schema that state these. One may be there twice: then both hold.
    pub fn params(&self) -> impl Iterator<Item = (&str, &Map<String, Value>)> {
        self.params.iter().map(|(name, keywords)| (name.as_str(), keywords))
    }
}

impl PolicySet {
    /// What `caller` may call of `method` at `now_ms` (milliseconds since the Unix epoch), with whatever parameters; `None` if
    /// there is no call of it that would be allowed.
    #[must_use]
    pub fn reach(&self, caller: &Caller, method: &str, now_ms: u64) -> Option<Reach> {
        let policies = self.by_method.get(method)?;
        let checked = self.checked();
        let question = Question { caller, method, params: None, now_ms };
        let mut reach = Reach::default();
        for name in parties(caller) {
            let rules = policies.reached(&question, &Party::of(caller, name, checked))?;
            let bounds = rules.iter().filter_map(|position| {
                let (known, rule) = (self.bounds.get(*position)?, checked.rules.get(*position)?);
                Some(known.get_or_init(|| bounds(rule)))
            });
            reach.params.extend(union(&bounds.collect::<Vec<_>>()));
        }
        Some(reach)
    }
}
