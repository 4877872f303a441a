//! The JSON Schema of a tool's arguments or results: read within bounds, and checked before anything is passed on.
//! Never fetches anything, never spends more than a bounded time on a value, and never more than a moment on a worker of the runtime.
//!
//! Schemas come from programs that nobody here wrote. So a schema is bounded in size, depth and number of subschemas; a reference must lead
//! to a place in the same text; patterns are matched within a bound of work; and references that would make a small value cost exponential time are
//! counted in advance. A schema is compiled when a value is to be checked, which is after its tool was approved, and compiled schemas are
//! bounded, each and all together.

pub(crate) mod apart;
mod built;
mod cost;
mod declared;
mod ecma;
mod error;
mod limits;
mod patterns;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use sealwire::decide::Param;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::Semaphore;

use self::built::{CompiledSchema, SharedSchema, Slot};
pub(crate) use self::error::CheckError;
use self::error::shortened;
pub use self::error::{Mismatch, SchemaError};
use crate::exact;

/// The JSON Schema (2020-12, 2019-09, draft 7, draft 6 or draft 4) of an object. Cloning shares it.
#[derive(Clone)]
pub struct Schema(Arc<SharedSchema>);

impl Schema {
    /// The longest text, in bytes: 64 KiB.
    pub const MAX_BYTES: usize = limits::MAX_BYTES;
    /// How deep the text may be nested.
    pub const MAX_DEPTH: usize = limits::MAX_DEPTH;
    /// The most subschemas.
    pub const MAX_SUBSCHEMAS: usize = limits::MAX_SUBSCHEMAS;

    /// Reads a schema and compiles it. Without `$schema`, it is of draft 2020-12.
    ///
    /// # Errors
    /// [`SchemaError`]; except for `Failed`, the fault of whoever wrote the schema.
    pub fn new(text: &RawValue) -> Result<Self, SchemaError> {
        let schema = Self::read(text)?;
        schema.built()?;
        Ok(schema)
    }

    /// Reads a schema. Whether it can be compiled is found only when that is needed.
    ///
    /// # Errors
    /// [`SchemaError`], always the fault of whoever wrote the schema.
    pub(crate) fn read(text: &RawValue) -> Result<Self, SchemaError> {
        if text.get().len() > Self::MAX_BYTES {
            return Err(SchemaError::TooLong);
        }
        let schema = exact::value(text.get()).map_err(|error| SchemaError::Invalid(error.to_string()))?;
        if depth(&schema) > Self::MAX_DEPTH {
            return Err(SchemaError::TooDeep);
        }
        cost::Plan::of(&schema)?.bounds(|_| 0)?;
        let declared = declared::params(text, &schema);
        Ok(Self(Arc::new(SharedSchema { text: text.to_owned(), declared, slot: Mutex::default() })))
    }

    /// Checks that it can be compiled, and says what of it is not checked; keeps nothing.
    ///
    /// # Errors
    /// [`SchemaError`]; except for `Failed`, the fault of whoever wrote the schema.
    pub(crate) fn try_out(&self) -> Result<Vec<String>, SchemaError> {
        CompiledSchema::new(self.0.text.get()).map(|built| built.unchecked)
    }

    /// The compiled schema, or why it cannot be compiled, if that is known.
    fn known(&self) -> Option<Result<Arc<CompiledSchema>, SchemaError>> {
        match &*self.0.slot.lock().unwrap_or_else(PoisonError::into_inner) {
            Slot::Empty => None,
            Slot::Built(built) => Some(Ok(Arc::clone(built))),
            Slot::Refused(error) => Some(Err(error.clone())),
        }
    }

    fn built(&self) -> Result<Arc<CompiledSchema>, SchemaError> {
        if let Some(known) = self.known() {
            return known;
        }
        // Without the lock, since it takes a while.
        let built = CompiledSchema::new(self.0.text.get()).map(Arc::new);
        let slot = match &built {
            Ok(built) => Slot::Built(Arc::clone(built)),
            Err(SchemaError::Failed(_)) => return built,
            Err(error) => Slot::Refused(error.clone()),
        };
        let before = std::mem::replace(&mut *self.0.slot.lock().unwrap_or_else(PoisonError::into_inner), slot);
        // Somebody else may have done it meanwhile.
        if let (Ok(built), Slot::Empty) = (&built, before) {
            built::keep(&self.0, built);
        }
        built
    }

    /// The text of the schema, unchanged.
    #[must_use]
    pub fn text(&self) -> &RawValue {
        &self.0.text
    }

    /// The members of the object as parameters for policies, in the order of the text: strings, numbers, booleans, and lists of strings,
    /// integers or booleans have their type, everything else is `any`. Names that policies could not write are left out.
    #[must_use]
    pub fn declared(&self) -> &[Param] {
        &self.0.declared
    }

    /// Checks whether a value fits.
    ///
    /// # Errors
    /// [`Mismatch`], with the places that do not fit. It quotes names and places, never values.
    pub fn check(&self, text: &RawValue) -> Result<(), Mismatch> {
        match self.judge(text) {
            Ok(()) => Ok(()),
            Err(CheckError::Value(mismatch)) => Err(mismatch),
            Err(unfit) => Err(Mismatch(unfit.to_string())),
        }
    }

    /// Checks whether a value fits: at once if that takes only a moment, otherwise in a thread of its own, when there is room and it is its
    /// `turn` among the checks of one server. A thread runs to its end even if nobody waits for it any more.
    ///
    /// # Errors
    /// [`CheckError`].
    pub(crate) async fn fits(&self, text: &RawValue, turn: &Arc<Semaphore>) -> Result<(), CheckError> {
        if let Some(known) = self.known()
            && let Some(found) = known.map_err(CheckError::Schema)?.at_once(text)
        {
            return Ok(found?);
        }
        let turn = Arc::clone(turn).acquire_owned().await.map_err(|error| CheckError::Failed(error.to_string()))?;
        let (schema, text) = (self.clone(), text.to_owned());
        let check = move || {
            let found = schema.judge(&text);
            drop(turn);
            found
        };
        apart::CHECKING.run(check).await.map_err(CheckError::Failed)?
    }

    fn judge(&self, text: &RawValue) -> Result<(), CheckError> {
        Ok(self.built().map_err(CheckError::Schema)?.check(text)?)
    }
}

impl CompiledSchema {
    /// Whether a value fits, if that can be said in a moment.
    fn at_once(&self, text: &RawValue) -> Option<Result<(), Mismatch>> {
        // Every error may be explained, each with the subschemas that led to it.
        let most = self.units(text).saturating_mul(self.bounds.reach);
        (most <= AT_ONCE).then(|| self.check_within(text, MATCHED_AT_ONCE)).flatten()
    }

    fn check(&self, text: &RawValue) -> Result<(), Mismatch> {
        let found = self.check_within(text, MOST_MATCHED);
        found.unwrap_or_else(|| Err(Mismatch("its texts are too long for the patterns of the schema".to_owned())))
    }

    /// How many times subschemas may look at something.
    fn units(&self, text: &RawValue) -> u64 {
        self.bounds.cost.saturating_mul(u64::try_from(text.get().len()).unwrap_or(u64::MAX))
    }

    /// `None` if matching patterns takes more work than `matched`.
    fn check_within(&self, text: &RawValue, matched: u64) -> Option<Result<(), Mismatch>> {
        let units = self.units(text);
        if units > MOST_CHECKED {
            return Some(Err(Mismatch("too long for a schema of so many parts".to_owned())));
        }
        // A number that is too large is not taken for another.
        let Ok(value) = serde_json::from_str::<Value>(text.get()) else {
            return Some(Err(Mismatch("it has a number that is too large".to_owned())));
        };
        if depth(&value) > self.bounds.depth {
            return Some(Err(Mismatch(format!("nested deeper than {} levels", self.bounds.depth))));
        }
        if patterns::spending(matched, || self.validator.is_valid(&value))? {
            return Some(Ok(()));
        }
        // Of a pattern that is not checked, either may be true.
        if !self.unchecked.is_empty()
            && patterns::spending(matched, || patterns::assuming(false, || self.validator.is_valid(&value)))?
        {
            return Some(Ok(()));
        }
        // All errors are collected, however few are shown, so this is only for values that cannot have many.
        if units > MOST_EXPLAINED {
            return Some(Err(Mismatch("it does not fit the schema".to_owned())));
        }
        let wrong: Vec<String> = patterns::spending(matched, || {
            let wrong = self.validator.iter_errors(&value).take(SHOWN_ERRORS).map(|error| {
                let place = error.instance_path().to_string();
                let place = if place.is_empty() { String::new() } else { format!("`{place}`: ") };
                format!("{place}{}", error.masked())
            });
            wrong.collect()
        })?;
        Some(Err(Mismatch(shortened(&wrong.join("; ")))))
    }
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Schema").field(&self.0.text.get()).finish()
    }
}

/// How many levels of objects and arrays a value has. Its parser has bounded them (128 in `serde_json`).
fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// The most work of a check: bytes of the value times subschemas that look at one path through it. Some seconds of one processor at worst.
const MOST_CHECKED: u64 = 1 << 28;
/// The same for patterns: bytes of strings times bytes of the patterns that they are matched with.
const MOST_MATCHED: u64 = 1 << 33;
/// Above this much work, the places that do not fit are not reported.
const MOST_EXPLAINED: u64 = 1 << 20;
/// What takes no more than a millisecond: subschemas that look at something, times the chain that leads to each ...
const AT_ONCE: u64 = 1 << 17;
/// ... and the work of matching patterns.
const MATCHED_AT_ONCE: u64 = 1 << 22;
/// How many errors are reported at once: the first ones help.
const SHOWN_ERRORS: usize = 3;

#[cfg(test)]
mod tests;
