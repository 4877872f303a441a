//! The patterns of a schema: compiled within bounds of size, and matched within a bound of work.
//! Never matches for longer than a check may take: each byte of a text costs the size of the pattern.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use jsonschema::{Keyword, PatternOptions, ValidationError, Validator};
use serde_json::{Value, json};

use super::{SchemaError, shortened};

/// All patterns of one schema.
#[derive(Default)]
pub(super) struct Patterns {
    compiled: BTreeMap<String, Arc<Pattern>>,
    /// How many bytes they take together.
    size: usize,
}

struct Pattern {
    validator: Validator,
    /// An upper bound of its bytes, less than twice what it takes.
    size: usize,
}

impl Patterns {
    /// # Errors
    /// A pattern is invalid or too large, or all together are too large.
    pub(super) fn compile<'a>(texts: impl Iterator<Item = &'a str>) -> Result<Self, SchemaError> {
        let mut patterns = Self::default();
        for text in texts {
            let pattern = Pattern::compile(text)?;
            patterns.size += pattern.size + EACH;
            if patterns.size > MOST_TOGETHER {
                return Err(SchemaError::Patterns);
            }
            patterns.compiled.insert(text.to_owned(), Arc::new(pattern));
        }
        Ok(patterns)
    }

    /// How many bytes they may take in use: compiled, in both directions, and with the caches of their lazy DFAs.
    pub(super) fn weight(&self) -> usize {
        self.compiled.values().fold(0, |sum, pattern| sum + 16 * pattern.size + 2 * REMEMBERED)
    }

    /// The cost per byte of matching a name with one of them, in subschemas that look at it.
    pub(super) fn cost(&self, text: &str) -> u64 {
        self.compiled.get(text).map_or(u64::MAX, |pattern| wide(pattern.size) / STATE)
    }

    /// The keyword `pattern` for one of them.
    pub(super) fn keyword(&self, text: &Value) -> Option<Box<dyn for<'i> Keyword<'i>>> {
        let pattern = self.compiled.get(text.as_str()?)?;
        Some(Box::new(Matched(Arc::clone(pattern))))
    }
}

impl Pattern {
    fn compile(text: &str) -> Result<Self, SchemaError> {
        let schema = json!({ "pattern": text });
        let mut limit = LEAST;
        loop {
            match limited(limit).build(&schema) {
                // A pattern that is a mere list of literals is gone through one by one, whatever the limit.
                Ok(validator) => return Ok(Self { validator, size: limit.max(4 * text.len()) }),
                Err(_) if limit < MOST => limit *= 2,
                Err(_) => {
                    return Err(SchemaError::Invalid(shortened(&format!(
                        "no look-around, no back-references, and no more than {} KiB once compiled may be in a pattern: `{text}`",
                        MOST / 1024
                    ))));
                }
            }
        }
    }
}

/// The options of a schema none of whose patterns takes more than `bytes`, in either direction.
fn limited(bytes: usize) -> jsonschema::ValidationOptions<'static> {
    let patterns = PatternOptions::regex().size_limit(bytes).dfa_size_limit(REMEMBERED);
    jsonschema::options().offline().with_pattern_options(patterns)
}

/// The options of a schema as a whole.
pub(super) fn options() -> jsonschema::ValidationOptions<'static> {
    limited(MOST)
}

/// The keyword `pattern`, which matches only as long as the check may go on.
struct Matched(Arc<Pattern>);

impl Matched {
    fn may_match(&self, value: &Value) -> bool {
        let length = value.as_str().map_or(0, |text| wide(text.len()).saturating_add(BEGUN));
        spend(length.saturating_mul(wide(self.0.size)))
    }
}

impl<'i> Keyword<'i> for Matched {
    fn validate(&self, instance: &'i Value) -> Result<(), ValidationError<'i>> {
        if self.may_match(instance) { self.0.validator.validate(instance) } else { Ok(()) }
    }

    fn is_valid(&self, instance: &'i Value) -> bool {
        self.may_match(instance) && self.0.validator.is_valid(instance)
    }
}

thread_local! {
    /// What the current check in this thread may still spend on patterns; `None` once it has spent everything.
    static LEFT: Cell<Option<u64>> = const { Cell::new(None) };
}

fn spend(work: u64) -> bool {
    LEFT.with(|left| {
        let rest = left.get().and_then(|left| left.checked_sub(work));
        left.set(rest);
        rest.is_some()
    })
}

/// Lets a check spend this much on patterns, in bytes of patterns times bytes of texts. `None` if that was not enough: then nothing is
/// known.
pub(super) fn spending<T>(most: u64, check: impl FnOnce() -> T) -> Option<T> {
    LEFT.with(|left| left.set(Some(most)));
    let found = check();
    LEFT.with(Cell::take).map(|_| found)
}

fn wide(size: usize) -> u64 {
    u64::try_from(size).unwrap_or(u64::MAX)
}

/// The size limit of one compiled pattern, in bytes: the first that is tried, and the last.
const LEAST: usize = 1024;
const MOST: usize = 256 * 1024;
/// The most bytes of all patterns of a schema.
const MOST_TOGETHER: usize = 1 << 20;
/// What each pattern takes besides.
const EACH: usize = 4 * 1024;
/// The cache of a lazy DFA, which speeds up the next match, for each pattern and direction, in bytes.
const REMEMBERED: usize = 32 * 1024;
/// The bytes of a state or two.
const STATE: u64 = 64;
/// The cost of starting a match, in bytes of text.
const BEGUN: u64 = 8;
