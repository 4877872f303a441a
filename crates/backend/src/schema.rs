//! The JSON Schema of a tool's arguments or results: read within bounds, and checked before anything is passed on.
//! Never fetches anything, never spends more than a bounded time on a value, and never more than a moment on a worker of the runtime.
//!
//! Schemas come from programs that nobody here wrote. So a schema is bounded in size, depth and number of subschemas; a reference must lead
//! to a place in the same text; patterns are matched in linear time; and references that would make a small value cost exponential time are
//! counted in advance. A schema is compiled when a value is to be checked, which is after its tool was approved, and compiled schemas are
//! bounded, each and all together.

pub(crate) mod apart;
mod built;
mod cost;
mod declared;
mod patterns;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use sealwire::policy::Param;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::Semaphore;

use self::built::{Built, Slot};

/// The JSON Schema (2020-12, 2019-09, draft 7 or draft 6) of an object. Cloning shares it.
#[derive(Clone)]
pub struct Schema(Arc<Inner>);

struct Inner {
    text: Box<RawValue>,
    declared: Vec<Param>,
    slot: Mutex<Slot>,
}

impl Schema {
    /// The longest text, in bytes: 64 KiB.
    pub const MAX_BYTES: usize = 64 * 1024;
    /// How deep the text may be nested.
    pub const MAX_DEPTH: usize = 32;
    /// The most subschemas.
    pub const MAX_SUBSCHEMAS: usize = 1_000;

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
        let schema: Value =
            serde_json::from_str(text.get()).map_err(|error| SchemaError::Invalid(error.to_string()))?;
        if depth(&schema) > Self::MAX_DEPTH {
            return Err(SchemaError::TooDeep);
        }
        cost::Plan::of(&schema)?.bounds(|_| 0)?;
        let declared = declared::params(text, &schema);
        Ok(Self(Arc::new(Inner { text: text.to_owned(), declared, slot: Mutex::default() })))
    }

    /// Checks that it can be compiled; keeps nothing.
    ///
    /// # Errors
    /// [`SchemaError`]; except for `Failed`, the fault of whoever wrote the schema.
    pub(crate) fn try_out(&self) -> Result<(), SchemaError> {
        Built::new(self.0.text.get()).map(drop)
    }

    /// The compiled schema, or why it cannot be compiled, if that is known.
    fn known(&self) -> Option<Result<Arc<Built>, SchemaError>> {
        match &*self.0.slot.lock().unwrap_or_else(PoisonError::into_inner) {
            Slot::Empty => None,
            Slot::Built(built) => Some(Ok(Arc::clone(built))),
            Slot::Refused(error) => Some(Err(error.clone())),
        }
    }

    fn built(&self) -> Result<Arc<Built>, SchemaError> {
        if let Some(known) = self.known() {
            return known;
        }
        // Without the lock, since it takes a while.
        let built = Built::new(self.0.text.get()).map(Arc::new);
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
            Err(Unfit::Value(mismatch)) => Err(mismatch),
            Err(unfit) => Err(Mismatch(unfit.to_string())),
        }
    }

    /// Checks whether a value fits: at once if that takes only a moment, otherwise in a thread of its own, when there is room and it is its
    /// `turn` among the checks of one server. A thread runs to its end even if nobody waits for it any more.
    ///
    /// # Errors
    /// [`Unfit`].
    pub(crate) async fn fits(&self, text: &RawValue, turn: &Arc<Semaphore>) -> Result<(), Unfit> {
        if let Some(known) = self.known()
            && let Some(found) = known.map_err(Unfit::Schema)?.at_once(text)
        {
            return Ok(found?);
        }
        let turn = Arc::clone(turn).acquire_owned().await.map_err(|error| Unfit::Failed(error.to_string()))?;
        let (schema, text) = (self.clone(), text.to_owned());
        let check = move || {
            let found = schema.judge(&text);
            drop(turn);
            found
        };
        apart::CHECKING.run(check).await.map_err(Unfit::Failed)?
    }

    fn judge(&self, text: &RawValue) -> Result<(), Unfit> {
        Ok(self.built().map_err(Unfit::Schema)?.check(text)?)
    }
}

impl Built {
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
        let value: Value = match serde_json::from_str(text.get()) {
            Ok(value) => value,
            Err(error) => return Some(Err(Mismatch(error.to_string()))),
        };
        if depth(&value) > self.bounds.depth {
            return Some(Err(Mismatch(format!("nested deeper than {} levels", self.bounds.depth))));
        }
        if patterns::spending(matched, || self.validator.is_valid(&value))? {
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

/// Why a schema cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SchemaError {
    /// More than [`Schema::MAX_BYTES`].
    #[error("the schema is longer than {} bytes", Schema::MAX_BYTES)]
    TooLong,
    /// Nested deeper than [`Schema::MAX_DEPTH`].
    #[error("the schema is nested deeper than {} levels", Schema::MAX_DEPTH)]
    TooDeep,
    /// More than [`Schema::MAX_SUBSCHEMAS`].
    #[error("the schema has more than {} subschemas", Schema::MAX_SUBSCHEMAS)]
    TooMany,
    /// A reference to something other than a subschema of the same text.
    #[error("the reference `{0}` of the schema does not lead to a subschema in it, such as `#/$defs/name`")]
    Reference(String),
    /// A keyword that changes the meaning of references, in a place where that is not supported.
    #[error("the keyword `{0}` of the schema is not supported there")]
    Keyword(&'static str),
    /// A keyword that depends on what other keywords have evaluated, beside keywords that lead to further subschemas.
    #[error(
        "`{0}` of the schema stands beside `$ref`, `allOf`, `anyOf` or the like: list what may be there in the same place, with \
         `additionalProperties` or `items`"
    )]
    Unevaluated(&'static str),
    /// Subschemas that lead to each other in too long a chain.
    #[error("the schema leads through more than {} subschemas in a row", cost::FARTHEST)]
    TooFar,
    /// Names so long that the compiled schema would be far larger than the text.
    #[error("the schema has long names with many subschemas below them: it would take too much memory")]
    TooLarge,
    /// Patterns that together take too much memory.
    #[error(
        "the patterns of the schema are too large together: leave out long repetitions such as `{{1,1000}}`, for which there is `maxLength`"
    )]
    Patterns,
    /// An unsupported version of JSON Schema.
    #[error("`$schema` is `{0}`: 2020-12, 2019-09, draft-07 and draft-06 are supported")]
    Version(String),
    /// References that lead back to themselves, or multiply: checking even a small value could take forever.
    #[error("the references of the schema multiply: a value could not be checked in bounded time")]
    Cost,
    /// Not a JSON Schema.
    #[error("the schema cannot be read: {0}")]
    Invalid(String),
    /// There was no thread for it, for example: nobody's fault, and it is tried again.
    #[error("the schema was not read: {0}")]
    Failed(String),
}

/// Why a value does not fit a schema: where, and by which keyword.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Mismatch(String);

/// Why a value is not known to fit a schema.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unfit {
    /// It does not fit.
    #[error(transparent)]
    Value(#[from] Mismatch),
    /// The schema cannot be used.
    #[error(transparent)]
    Schema(SchemaError),
    /// The check could not be made.
    #[error("{0}")]
    Failed(String),
}

/// How many levels of objects and arrays a value has. Its parser has bounded them (128 in `serde_json`).
fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// One printable line of bounded length.
fn shortened(text: &str) -> String {
    let mut line: String = text.chars().take(SHOWN_CHARS).flat_map(shown).collect();
    if text.chars().nth(SHOWN_CHARS).is_some() {
        line.push('…');
    }
    line
}

fn shown(c: char) -> impl Iterator<Item = char> {
    let escaped = c.is_control().then(|| c.escape_unicode());
    let plain = escaped.is_none().then_some(c);
    escaped.into_iter().flatten().chain(plain)
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
/// The longest text of errors, in characters.
const SHOWN_CHARS: usize = 400;

#[cfg(test)]
mod tests;
