//! What a span is about, and what may be said in one.

use std::borrow::Cow;

/// What a span is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Work for a caller.
    Server,
    /// Work that somebody else does for us.
    Client,
    /// Anything else.
    Internal,
}

/// The value of an attribute.
#[derive(Debug)]
pub enum Value<'a> {
    /// A text.
    Text(Cow<'a, str>),
    /// A number.
    Number(i64),
}

/// The most characters of a call's id in a span: callers choose it.
pub const MAX_ID: usize = 64;

impl Kind {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
            Self::Internal => "internal",
        }
    }
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }
}

impl From<String> for Value<'_> {
    fn from(text: String) -> Self {
        Self::Text(Cow::Owned(text))
    }
}

impl From<i64> for Value<'_> {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}
