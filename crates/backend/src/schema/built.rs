//! Compiled schemas: those that are needed, in bounded memory.
//! Never keeps more than a fixed number of bytes: those compiled first go first, and are compiled again when needed.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use jsonschema::Validator;
use sealwire::decide::Param;
use serde_json::Value;
use serde_json::value::RawValue;

use super::apart;
use super::cost::{Bounds, Plan};
use super::error::{SchemaError, shortened};
use super::patterns::{self, Patterns};
use crate::exact;

/// A compiled schema.
pub(super) struct CompiledSchema {
    pub(super) validator: Validator,
    pub(super) bounds: Bounds,
    /// The patterns that are not checked, and why.
    pub(super) unchecked: Vec<String>,
    /// About how many bytes it takes, and no less.
    weight: usize,
}

impl CompiledSchema {
    /// # Errors
    /// [`SchemaError`]; except for `Failed`, the fault of whoever wrote the schema.
    pub(super) fn new(text: &str) -> Result<Self, SchemaError> {
        apart::deep(|| Self::compile(text)).unwrap_or_else(|fault| Err(SchemaError::Failed(fault)))
    }

    fn compile(text: &str) -> Result<Self, SchemaError> {
        let mut schema = exact::value(text).map_err(|error| SchemaError::Invalid(error.to_string()))?;
        let plan = Plan::of(&schema)?;
        let patterns = Patterns::compile(plan.patterns())?;
        let bounds = plan.bounds(|pattern| patterns.cost(pattern))?;
        // Each value in the text, of at least two bytes, is in the compiled schema as some words, and some values are there twice.
        let weight = 48 * text.len() + plan.size() + patterns.weight();
        let unchecked = patterns.unchecked().to_vec();
        for place in plan.places_of_names() {
            if let Some(Value::Object(members)) = schema.pointer_mut(&place) {
                patterns.rename(members)?;
            }
        }
        let options = patterns::options()
            // Only drafts 6 and 7 require the format, and one text can hold thousands of groups whose names are compared with each other.
            .with_format("regex", |_: &str| true)
            .with_keyword("pattern", move |_, value, _| {
                let keyword = patterns.keyword(value);
                // The plan has found all of them.
                keyword.ok_or_else(|| jsonschema::ValidationError::custom("the pattern is in an unexpected place"))
            });
        let validator = options.build(&schema).map_err(|error| {
            // The masked text quotes nothing but keywords; long parts of it stay out of the log.
            SchemaError::Invalid(shortened(&format!("at `{}`: {}", error.instance_path(), error.masked())))
        })?;
        Ok(Self { validator, bounds, unchecked, weight })
    }
}

/// What the clones of a schema share.
pub(super) struct SharedSchema {
    pub(super) text: Box<RawValue>,
    pub(super) declared: Vec<Param>,
    pub(super) slot: Mutex<Slot>,
}

/// The compiled form of a schema, as far as it is known.
#[derive(Default)]
pub(super) enum Slot {
    /// Not needed yet, or not for a long time.
    #[default]
    Empty,
    Built(Arc<CompiledSchema>),
    Refused(SchemaError),
}

/// All compiled schemas, in the order in which they were compiled.
struct CompiledSchemas {
    schemas: VecDeque<(Weak<SharedSchema>, usize)>,
    weight: usize,
}

static COMPILED: Mutex<CompiledSchemas> = Mutex::new(CompiledSchemas { schemas: VecDeque::new(), weight: 0 });

/// The most bytes of all compiled schemas of a process: some hundred of the largest that servers have, or thousands of ordinary ones.
const MOST_BUILT: usize = 128 << 20;

/// Records that a schema is compiled; drops others if that is too much.
pub(super) fn keep(schema: &Arc<SharedSchema>, built: &CompiledSchema) {
    let mut gone = Vec::new();
    let mut shelf = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    let CompiledSchemas { schemas, weight } = &mut *shelf;
    schemas.retain(|(schema, of_it)| {
        let is_there = schema.strong_count() > 0;
        if !is_there {
            *weight -= of_it;
        }
        is_there
    });
    schemas.push_back((Arc::downgrade(schema), built.weight));
    *weight += built.weight;
    while *weight > MOST_BUILT && schemas.len() > 1 {
        let Some((first, of_it)) = schemas.pop_front() else { break };
        *weight -= of_it;
        if let Some(first) = first.upgrade() {
            let slot = std::mem::take(&mut *first.slot.lock().unwrap_or_else(PoisonError::into_inner));
            // Dropped without the lock, since that takes time.
            gone.push((slot, first));
        }
    }
    drop(shelf);
    drop(gone);
}
