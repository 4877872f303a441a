//! The names that appear in subjects: agents, services, environments and methods.
//! Never accepts a name that could be read as two subject tokens or as a wildcard.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::settings::{self, Kind, Setting};

/// The name of an agent, a service or an environment: 1 to 64 bytes of `[A-Za-z0-9_-]`.
///
/// Cloning is cheap: the text is shared.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Arc<str>);

/// The error for a text that is not a [`Name`] or not a [`MethodName`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Not 1 to 64 bytes of `[A-Za-z0-9_-]`.
    #[error("`{}` is not a name: 1 to 64 of A-Z a-z 0-9 _ - are allowed", shown(.0))]
    Name(String),
    /// Not a method name.
    #[error(
        "`{}` is not a method name: 1 to 128 bytes, tokens of A-Z a-z 0-9 _ - separated by single / or .",
        shown(.0)
    )]
    Method(String),
}

impl Name {
    /// Checks the grammar.
    ///
    /// # Errors
    /// [`NameError::Name`] when `text` is empty, longer than 64 bytes or contains a byte outside `[A-Za-z0-9_-]`.
    pub fn new(text: &str) -> Result<Self, NameError> {
        if is_name(text) { Ok(Self(text.into())) } else { Err(NameError::Name(text.to_owned())) }
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The name of a method: 1 to 128 bytes; tokens of `[A-Za-z0-9_-]` separated by single `/` or `.`.
///
/// The first token `rpc` is reserved for built-in methods (JSON-RPC 2.0 §4).
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MethodName(Arc<str>);

impl MethodName {
    /// Checks the grammar.
    ///
    /// # Errors
    /// [`NameError::Method`] when `text` does not follow it.
    pub fn new(text: &str) -> Result<Self, NameError> {
        let tokens_hold = text.split(['/', '.']).all(|token| !token.is_empty() && token.bytes().all(is_name_byte));
        if (1..=128).contains(&text.len()) && tokens_hold {
            Ok(Self(text.into()))
        } else {
            Err(NameError::Method(text.to_owned()))
        }
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The method as it appears in a subject, with every `/` replaced by `.`.
    #[must_use]
    pub fn in_subject(&self) -> String {
        self.0.replace('/', ".")
    }

    /// Whether the first token is `rpc`, which JSON-RPC 2.0 §4 reserves.
    #[must_use]
    pub fn is_reserved(&self) -> bool {
        self.0.split(['/', '.']).next() == Some("rpc")
    }
}

/// Whether `text` is a valid [`Name`].
pub(crate) fn is_name(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(is_name_byte)
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

/// At most 80 characters of a rejected text, with control characters escaped, so that an error message stays one line.
pub(crate) fn shown(text: &str) -> String {
    text.chars().take(80).flat_map(char::escape_default).collect()
}

macro_rules! text_type {
    ($type:ident) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }

        impl FromStr for $type {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Self::new(text)
            }
        }

        impl AsRef<str> for $type {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $type {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl PartialEq<str> for $type {
            fn eq(&self, other: &str) -> bool {
                &*self.0 == other
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                Self::new(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}

text_type!(Name);
text_type!(MethodName);

impl Setting for Name {
    fn kind() -> Kind {
        Kind::Name
    }

    fn value(&self) -> settings::Value {
        self.as_str().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SPEC.md §3.
    #[test]
    fn names_are_one_subject_token() {
        for good in ["a", "agent-7f3a", "A_9", &"x".repeat(64)] {
            assert!(Name::new(good).is_ok(), "{good}");
        }
        for bad in ["", "a.b", "*", ">", "a b", "ä", "a\n", &"x".repeat(65)] {
            assert!(Name::new(bad).is_err(), "{bad:?}");
        }
    }

    /// SPEC.md §3.
    #[test]
    fn method_names_have_no_empty_tokens() {
        for good in ["add", "math/add", "a.b/c", &"x".repeat(128)] {
            assert!(MethodName::new(good).is_ok(), "{good}");
        }
        for bad in ["", "/add", "add/", "a//b", "a./b", "math/*", "a b", &"x".repeat(129)] {
            assert!(MethodName::new(bad).is_err(), "{bad:?}");
        }
    }

    /// SPEC.md §3.1.
    #[test]
    fn reserved_methods_begin_with_the_token_rpc() {
        let reserved = |text: &str| MethodName::new(text).map(|name| name.is_reserved());
        assert_eq!(reserved("rpc.can"), Ok(true));
        assert_eq!(reserved("rpc/can"), Ok(true));
        assert_eq!(reserved("rpcx/can"), Ok(false));
    }
}
