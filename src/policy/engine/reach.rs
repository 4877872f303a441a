//! What one caller may call at all, and which parameter values its rules leave it: to tell it beforehand.
//! Never decides a call.

use serde_json::{Map, Value};

use super::bounds::{bounds, union};
use super::decision::Question;
use super::principal::{Principal, principals};
use super::set::PolicySet;
use crate::auth::Caller;

/// What a caller may pass to a method, as JSON Schemas: each admits every value with which some call is allowed, and a parameter without
/// one may have any value.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reach {
    params: Vec<(String, Map<String, Value>)>,
}

impl Reach {
    /// The parameters with bounds, and the JSON Schema keywords that state these. A parameter may occur twice: then both
    /// hold.
    pub fn params(&self) -> impl Iterator<Item = (&str, &Map<String, Value>)> {
        self.params.iter().map(|(name, keywords)| (name.as_str(), keywords))
    }
}

impl PolicySet {
    /// What `caller` may call of `method` at `now_ms` (milliseconds since the Unix epoch), with whatever parameters; `None` if no call of
    /// it would be allowed.
    #[must_use]
    pub fn reach(&self, caller: &Caller, method: &str, now_ms: u64) -> Option<Reach> {
        let policies = self.by_method.get(method)?;
        let checked = self.checked();
        let question = Question { caller, method, params: None, now_ms };
        let mut reach = Reach::default();
        for kind in principals(caller) {
            let rules = policies.reached(&question, &Principal::of(caller, kind, checked))?;
            let bounds = rules.iter().filter_map(|position| {
                let (known, rule) = (self.bounds.get(*position)?, checked.rules.get(*position)?);
                Some(known.get_or_init(|| bounds(rule)))
            });
            reach.params.extend(union(&bounds.collect::<Vec<_>>()));
        }
        Some(reach)
    }
}
