//! Schemas that are compiled, in bounded memory.
//! Never compiles on the stack of its caller.

use jsonschema::Validator;
use serde_json::Value;

use super::apart;
use super::cost::{Bounds, Plan};
use super::patterns::{self, Patterns};
use super::{SchemaError, shortened};

/// A schema that is compiled.
pub(super) struct Built {
    pub(super) validator: Validator,
    pub(super) bounds: Bounds,
}

impl Built {
    /// # Errors
    /// [`SchemaError`], always the fault of who wrote the schema.
    pub(super) fn new(text: &str) -> Result<Self, SchemaError> {
        apart::deep(|| Self::compile(text)).unwrap_or_else(|fault| Err(SchemaError::Failed(fault)))
    }

    fn compile(text: &str) -> Result<Self, SchemaError> {
        let schema: Value = serde_json::from_str(text).map_err(|error| SchemaError::Invalid(error.to_string()))?;
        let plan = Plan::of(&schema)?;
        let patterns = Patterns::compile(plan.patterns())?;
        let bounds = plan.bounds(|pattern| patterns.cost(pattern))?;
        let options = patterns::options()
            // Drafts 6 and 7 alone demand it, and one text can hold thousands of groups whose names are compared with each other.
            .with_format("regex", |_: &str| true)
            .with_keyword("pattern", move |_, value, _| {
                let keyword = patterns.keyword(value);
                // All of them were found before.
                keyword.ok_or_else(|| jsonschema::ValidationError::custom("the pattern stands where none is read"))
            });
        let validator = options.build(&schema).map_err(|error| {
            // The masked text quotes nothing but keywords; what is long in it stays out of the log.
            SchemaError::Invalid(shortened(&format!("at `{}`: {}", error.instance_path(), error.masked())))
        })?;
        Ok(Self { validator, bounds })
    }
}
