//! Why a schema cannot be used, and why a value does not fit one.
//! Never quotes a value.

use super::limits::{FARTHEST, MAX_BYTES, MAX_DEPTH, MAX_SUBSCHEMAS};

/// Why a schema cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SchemaError {
    /// More than [`MAX_BYTES`](crate::Schema::MAX_BYTES).
    #[error("the schema is longer than {} bytes", MAX_BYTES)]
    TooLong,
    /// Nested deeper than [`MAX_DEPTH`](crate::Schema::MAX_DEPTH).
    #[error("the schema is nested deeper than {} levels", MAX_DEPTH)]
    TooDeep,
    /// More than [`MAX_SUBSCHEMAS`](crate::Schema::MAX_SUBSCHEMAS).
    #[error("the schema has more than {} subschemas", MAX_SUBSCHEMAS)]
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
    #[error("the schema leads through more than {} subschemas in a row", FARTHEST)]
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
    #[error("`$schema` is `{0}`: 2020-12, 2019-09, draft-07, draft-06 and draft-04 are supported")]
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
pub struct Mismatch(pub(super) String);

/// Why a value is not known to fit a schema.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CheckError {
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

/// One printable line of bounded length.
pub(super) fn shortened(text: &str) -> String {
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

/// The longest text of errors, in characters.
const SHOWN_CHARS: usize = 400;
