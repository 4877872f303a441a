//! The patterns of a schema: compiled within bounds of size, and matched within a bound of work.
//! Never matches for longer than a check may take: each byte of a text costs the size of the pattern, or how often it may be tried again.
//!
//! A pattern that is not understood is not checked: the server has it, too. Whether a value fits is then a question of the rest of the
//! schema; see [`assuming`].

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fancy_regex::{CompileError, Error, Regex, RegexBuilder};
use jsonschema::{Keyword, PatternOptions, ValidationError};
use serde_json::{Map, Value};

use super::ecma::{Translation, TranslationError, translated};
use super::error::{SchemaError, shortened};

/// All patterns of one schema.
#[derive(Default)]
pub(super) struct Patterns {
    compiled: BTreeMap<String, Arc<Pattern>>,
    /// How many bytes they take together.
    size: usize,
    /// Those that are not checked, and why.
    unchecked: Vec<String>,
}

struct Pattern {
    text: String,
    /// As the engine has it.
    translated: String,
    /// `None` if it is not checked.
    regex: Option<Regex>,
    /// An upper bound of its bytes, less than twice what it takes.
    size: usize,
    /// How many caches of lazy DFAs it has.
    caches: usize,
    /// Whether it asserts something about what is around it: that takes another engine.
    looks_around: bool,
    /// The work that each byte of a text may cost.
    cost: u64,
}

impl Patterns {
    /// # Errors
    /// A pattern is invalid or too large, or all together are too large.
    pub(super) fn compile<'a>(texts: impl Iterator<Item = &'a str>) -> Result<Self, SchemaError> {
        let mut patterns = Self::default();
        for text in texts {
            let pattern = match Pattern::compile(text)? {
                Ok(pattern) => pattern,
                Err(why) => {
                    patterns.unchecked.push(shortened(&format!("the pattern `{text}` ({why})")));
                    Pattern::unchecked(text)
                }
            };
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
        self.compiled.values().fold(0, |sum, pattern| sum + 16 * pattern.size + pattern.caches * REMEMBERED)
    }

    /// The cost per byte of matching a name with one of them, in subschemas that look at it.
    pub(super) fn cost(&self, text: &str) -> u64 {
        self.compiled.get(text).map_or(u64::MAX, |pattern| wide(pattern.size) / STATE)
    }

    /// The keyword `pattern` for one of them.
    pub(super) fn keyword(&self, text: &Value) -> Option<Box<dyn for<'i> Keyword<'i>>> {
        let pattern = self.compiled.get(text.as_str()?)?;
        Some(Box::new(PatternKeyword(Arc::clone(pattern))))
    }

    /// Those that are not checked, and why.
    pub(super) fn unchecked(&self) -> &[String] {
        &self.unchecked
    }

    /// Writes the members of `patternProperties` as the engine has them.
    ///
    /// # Errors
    /// One of them cannot be checked: then it is not known what may be in the object.
    pub(super) fn rename(&self, members: &mut Map<String, Value>) -> Result<(), SchemaError> {
        let mut taken = BTreeSet::new();
        for (text, schema) in std::mem::take(members) {
            let known = self.compiled.get(&text).filter(|pattern| pattern.regex.is_some() && !pattern.looks_around);
            let Some(pattern) = known else {
                let why = "it looks around, or is not understood";
                return Err(SchemaError::Invalid(shortened(&format!(
                    "`patternProperties` cannot be checked for `{text}`: {why}"
                ))));
            };
            let mut name = pattern.translated.clone();
            // Two spellings of one pattern are two members.
            while !taken.insert(name.clone()) {
                name.push_str("(?:)");
            }
            members.insert(name, schema);
        }
        Ok(())
    }
}

impl Pattern {
    /// The pattern, or why it cannot be checked.
    fn compile(text: &str) -> Result<Result<Self, &'static str>, SchemaError> {
        let Translation { text: translated, assertions } = match translated(text) {
            Ok(translated) => translated,
            Err(TranslationError::Unclear(why)) => return Ok(Err(why)),
            Err(TranslationError::Invalid(why)) => {
                return Err(SchemaError::Invalid(shortened(&format!("`{text}` is not a regular expression: {why}"))));
            }
        };
        if assertions > MOST_ASSERTIONS {
            return Ok(Err("it looks around too often"));
        }
        let mut limit = LEAST;
        loop {
            let built = RegexBuilder::new(&translated)
                .delegate_size_limit(limit)
                .delegate_dfa_size_limit(REMEMBERED)
                .max_prog_size(MOST_STEPS)
                .backtrack_limit(TRIES)
                .build();
            match built {
                Ok(regex) => {
                    let parts = 1 + 2 * assertions;
                    let size = limit.saturating_mul(parts).max(4 * text.len());
                    let cost = if assertions == 0 { wide(size) } else { wide(size).max(wide(TRIES)) };
                    let (text, looks_around) = (text.to_owned(), assertions > 0);
                    return Ok(Ok(Self {
                        text,
                        translated,
                        regex: Some(regex),
                        size,
                        caches: 2 * parts,
                        looks_around,
                        cost,
                    }));
                }
                Err(error) if !is_too_large(&error) => return Ok(Err("the engine here does not have it")),
                Err(_) if limit < MOST => limit *= 2,
                Err(_) => {
                    let most = MOST / 1024;
                    let why = format!("a pattern takes more than {most} KiB once compiled: `{text}`");
                    return Err(SchemaError::Invalid(shortened(&why)));
                }
            }
        }
    }

    fn unchecked(text: &str) -> Self {
        let text = text.to_owned();
        Self { text, translated: String::new(), regex: None, size: 0, caches: 0, looks_around: false, cost: 0 }
    }
}

fn is_too_large(error: &Error) -> bool {
    match error {
        Error::CompileError(error) => match &**error {
            CompileError::InnerError(error) => error.size_limit().is_some(),
            CompileError::PatternTooComplex => true,
            _ => false,
        },
        _ => false,
    }
}

/// The options of a schema none of whose names' patterns takes more than `MOST`, in either direction.
pub(super) fn options() -> jsonschema::ValidationOptions<'static> {
    let patterns = PatternOptions::regex().size_limit(MOST).dfa_size_limit(REMEMBERED);
    jsonschema::options().offline().with_pattern_options(patterns)
}

/// The keyword `pattern`, which matches only as long as the check may go on.
struct PatternKeyword(Arc<Pattern>);

impl<'i> Keyword<'i> for PatternKeyword {
    fn validate(&self, instance: &'i Value) -> Result<(), ValidationError<'i>> {
        if self.is_valid(instance) {
            return Ok(());
        }
        Err(ValidationError::custom(format!("it does not match {:?}", self.0.text)))
    }

    fn is_valid(&self, instance: &'i Value) -> bool {
        let Some(text) = instance.as_str() else { return true };
        let Some(regex) = &self.0.regex else { return ASSUMED.get() };
        if !spend(wide(text.len()).saturating_add(BEGUN).saturating_mul(self.0.cost)) {
            return true;
        }
        regex.is_match(text).unwrap_or_else(|_| {
            // It was tried too often: nothing is known.
            LEFT.set(None);
            true
        })
    }
}

thread_local! {
    /// What the current check in this thread may still spend on patterns; `None` once it has spent everything.
    static LEFT: Cell<Option<u64>> = const { Cell::new(None) };
    /// What is said of a text and a pattern that is not checked.
    static ASSUMED: Cell<bool> = const { Cell::new(true) };
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

/// Makes a check in which texts match patterns that are not checked, or do not.
pub(super) fn assuming<T>(matching: bool, check: impl FnOnce() -> T) -> T {
    ASSUMED.set(matching);
    let found = check();
    ASSUMED.set(true);
    found
}

fn wide(size: usize) -> u64 {
    u64::try_from(size).unwrap_or(u64::MAX)
}

/// The size limit of one compiled pattern, in bytes: the first that is tried, and the last. zod's pattern of host names takes 300 KiB.
const LEAST: usize = 1024;
const MOST: usize = 512 * 1024;
/// The most bytes of all patterns of a schema.
const MOST_TOGETHER: usize = 2 << 20;
/// What each pattern takes besides.
const EACH: usize = 4 * 1024;
/// The cache of a lazy DFA, which speeds up the next match, for each pattern and direction, in bytes.
const REMEMBERED: usize = 32 * 1024;
/// The bytes of a state or two.
const STATE: u64 = 64;
/// The cost of starting a match, in bytes of text.
const BEGUN: u64 = 8;
/// The most assertions of a pattern about what is around them: each part between them is compiled on its own.
const MOST_ASSERTIONS: usize = 64;
/// The most steps of the program that such a pattern becomes.
const MOST_STEPS: usize = 16 * 1024;
/// How often a text may be tried again in another way: what e-mail addresses, times and passwords need is a few.
const TRIES: usize = 10_000;
