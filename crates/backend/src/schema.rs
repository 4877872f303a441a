//! The JSON Schema of a tool's arguments or results: read within bounds, and asked before anything leaves.
//! Never fetches anything, and never spends more than a bounded time on a value.
//!
//! Schemas come from programs that nobody here wrote. So a schema is bounded in size, depth and count of subschemas; a
//! reference goes to a place within the same text; patterns are matched in linear time; and references that would make
//! a small value cost exponential time are counted beforehand.

mod cost;
mod declared;

use std::fmt;
use std::sync::Arc;

use jsonschema::{PatternOptions, Validator};
use sealwire::policy::Param;
use serde_json::Value;
use serde_json::value::RawValue;

/// The JSON Schema (2020-12, 2019-09, draft 7 or draft 6) of an object. Cloning shares it.
#[derive(Clone)]
pub struct Schema(Arc<Inner>);

struct Inner {
    text: Box<RawValue>,
    validator: Validator,
    /// Values nested deeper than this are refused unseen.
    depth: usize,
    /// How many subschemas look at one way through a value.
    work: u64,
    declared: Vec<Param>,
}

impl Schema {
    /// The longest text, in bytes: 64 KiB.
    pub const MAX_BYTES: usize = 64 * 1024;
    /// How deep the text may be nested.
    pub const MAX_DEPTH: usize = 32;
    /// The most subschemas.
    pub const MAX_SUBSCHEMAS: usize = 1_000;

    /// Reads a schema. One without `$schema` is of draft 2020-12.
    ///
    /// # Errors
    /// [`SchemaError`], always the fault of who wrote the schema.
    pub fn new(text: &RawValue) -> Result<Self, SchemaError> {
        if text.get().len() > Self::MAX_BYTES {
            return Err(SchemaError::TooLong);
        }
        let schema: Value =
            serde_json::from_str(text.get()).map_err(|error| SchemaError::Invalid(error.to_string()))?;
        if depth(&schema) > Self::MAX_DEPTH {
            return Err(SchemaError::TooDeep);
        }
        let (depth, work) = cost::depth_within_bounds(&schema)?;
        let patterns = PatternOptions::regex().size_limit(PATTERN_BYTES).dfa_size_limit(PATTERN_BYTES);
        let options = jsonschema::options().offline().with_pattern_options(patterns);
        let validator = options.build(&schema).map_err(|error| {
            // The masked text quotes nothing but keywords; what is long in it stays out of the log.
            SchemaError::Invalid(shortened(&format!("at `{}`: {}", error.instance_path(), error.masked())))
        })?;
        let declared = declared::params(text, &schema);
        Ok(Self(Arc::new(Inner { text: text.to_owned(), validator, depth, work, declared })))
    }

    /// The text that was read, as it came.
    #[must_use]
    pub fn text(&self) -> &RawValue {
        &self.0.text
    }

    /// The members of the object as parameters that policies can speak of, in the order of the text: texts, numbers, truth
    /// values and lists of them by their type, everything else as `any`. Names that policies could not write are left out.
    #[must_use]
    pub fn declared(&self) -> &[Param] {
        &self.0.declared
    }

    /// Whether a value fits.
    ///
    /// # Errors
    /// [`Mismatch`], with the places that do not fit. It quotes names and places, and no values.
    pub fn check(&self, text: &RawValue) -> Result<(), Mismatch> {
        let value: Value = serde_json::from_str(text.get()).map_err(|error| Mismatch(error.to_string()))?;
        if depth(&value) > self.0.depth {
            return Err(Mismatch(format!("nested deeper than {} levels", self.0.depth)));
        }
        let cost = self.0.work.saturating_mul(u64::try_from(text.get().len()).unwrap_or(u64::MAX));
        if cost > MOST_CHECKED {
            return Err(Mismatch("too long for a schema of so many parts".to_owned()));
        }
        if self.0.validator.is_valid(&value) {
            return Ok(());
        }
        // All errors are collected, however few are shown: only where there cannot be many.
        if cost > MOST_EXPLAINED {
            return Err(Mismatch("it does not fit the schema".to_owned()));
        }
        let wrong: Vec<String> = self
            .0
            .validator
            .iter_errors(&value)
            .take(SHOWN_ERRORS)
            .map(|error| {
                let place = error.instance_path().to_string();
                let place = if place.is_empty() { String::new() } else { format!("`{place}`: ") };
                format!("{place}{}", error.masked())
            })
            .collect();
        Err(Mismatch(shortened(&wrong.join("; "))))
    }
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Schema").field(&self.0.text.get()).finish()
    }
}

/// A schema cannot be used.
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
    /// A reference to something else than a subschema of the same text.
    #[error("the reference `{0}` of the schema does not lead to a subschema in it, such as `#/$defs/name`")]
    Reference(String),
    /// A keyword that changes what references mean, where it cannot be followed.
    #[error("the keyword `{0}` of the schema is not supported there")]
    Keyword(&'static str),
    /// Another version of JSON Schema.
    #[error("`$schema` is `{0}`: 2020-12, 2019-09, draft-07 and draft-06 are supported")]
    Version(String),
    /// References that lead back to themselves, or multiply: even a small value could take for ever.
    #[error("the references of the schema multiply: a value could not be checked in bounded time")]
    Cost,
    /// No JSON Schema.
    #[error("the schema cannot be read: {0}")]
    Invalid(String),
}

/// A value does not fit a schema; where, and which keyword says so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Mismatch(String);

/// How many levels of objects and arrays a value has. Its reader has bounded them (128 in `serde_json`).
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

/// What one pattern may take when it is compiled, in bytes.
const PATTERN_BYTES: usize = 256 * 1024;
/// Bytes of a value times subschemas that look at one way through it: some seconds of one processor at worst.
const MOST_CHECKED: u64 = 1 << 28;
/// Where there are more, the places that do not fit are not told.
const MOST_EXPLAINED: u64 = 1 << 20;
/// How many errors are told at once: the first ones help.
const SHOWN_ERRORS: usize = 3;
/// The longest text of errors.
const SHOWN_CHARS: usize = 400;
