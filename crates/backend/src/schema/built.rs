//! Compiled schemas: those that are needed, in bounded memory.
//! Never keeps more than a fixed number of bytes: those compiled first go first, and are compiled again when needed.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use jsonschema::Validator;
use serde_json::Value;

use super::apart;
use super::cost::{Bounds, Plan};
use super::patterns::{self, Patterns};
use super::{Inner, SchemaError, shortened};

/// A compiled schema.
pub(super) struct Built {
    pub(super) validator: Validator,
    pub(super) bounds: Bounds,
    /// About how many bytes it takes, and no less.
    weight: usize,
}

impl Built {
    /// # Errors
    /// [`SchemaError`]; except for `Failed`, the fault of whoever wrote the schema.
    pub(super) fn new(text: &str) -> Result<Self, SchemaError> {
        apart::deep(|| Self::compile(text)).unwrap_or_else(|fault| Err(SchemaError::Failed(fault)))
    }

    fn compile(text: &str) -> Result<Self, SchemaError> {
        let schema: Value = serde_json::from_str(text).map_err(|error| SchemaError::Invalid(error.to_string()))?;
        let plan = Plan::of(&schema)?;
        let patterns = Patterns::compile(plan.patterns())?;
        let bounds = plan.bounds(|pattern| patterns.cost(pattern))?;
        // Each value in the text, of at least two bytes, is in the compiled schema as some words, and some values are there twice.
        let weight = 48 * text.len() + plan.size() + patterns.weight();
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
        Ok(Self { validator, bounds, weight })
    }
}

/// The compiled form of a schema, as far as it is known.
#[derive(Default)]
pub(super) enum Slot {
    /// Not needed yet, or not for a long time.
    #[default]
    Empty,
    Built(Arc<Built>),
    Refused(SchemaError),
}

/// All compiled schemas, in the order in which they were compiled.
struct Shelf {
    schemas: VecDeque<(Weak<Inner>, usize)>,
    weight: usize,
}

static SHELF: Mutex<Shelf> = Mutex::new(Shelf { schemas: VecDeque::new(), weight: 0 });

/// The most bytes of all compiled schemas of a process: some hundred of the largest that servers have, or thousands of ordinary ones.
const MOST_BUILT: usize = 128 << 20;

/// Records that a schema is compiled; drops others if that is too much.
pub(super) fn keep(schema: &Arc<Inner>, built: &Built) {
    let mut gone = Vec::new();
    let mut shelf = SHELF.lock().unwrap_or_else(PoisonError::into_inner);
    let Shelf { schemas, weight } = &mut *shelf;
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
