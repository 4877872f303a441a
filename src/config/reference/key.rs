//! The description of a key of the configuration file.

use serde_json::Value;

/// One key.
pub(in crate::config) struct Key {
    pub(in crate::config) name: &'static str,
    pub(in crate::config) kind: Kind,
    pub(in crate::config) left_out: LeftOut,
    pub(in crate::config) about: &'static str,
}

/// What it means if the key is left out.
pub(in crate::config) enum LeftOut {
    /// The file does not load.
    Required,
    /// The same as this value.
    Value(Value),
    /// What these words say.
    Means(&'static str),
}

/// The kind of a key's value.
pub(in crate::config) enum Kind {
    Text,
    /// 1 to 64 of `A-Z a-z 0-9 _ -`.
    Name,
    /// 1 to 8 subject tokens with dots in between.
    Prefix,
    /// A path, relative to the configuration file.
    Path,
    Flag,
    /// Unit, minimum, maximum.
    Number(&'static str, u64, Option<u64>),
    Choice(&'static [&'static str]),
    /// The path to a claim.
    Claim,
    /// A string, or the beginning of one.
    Pattern,
    /// Strings by claim.
    Claims,
    /// Strings by string.
    Texts,
    /// A list, and its minimum length.
    List(Box<Kind>, u64),
    Table(Table),
    /// `[[…]]`, at least one.
    Tables(Table),
}

/// A table.
pub(in crate::config) struct Table {
    pub(in crate::config) about: &'static str,
    pub(in crate::config) keys: Vec<Key>,
}

impl Key {
    pub(super) fn new(name: &'static str, kind: Kind, left_out: LeftOut, about: &'static str) -> Self {
        Self { name, kind, left_out, about }
    }

    pub(super) fn required(name: &'static str, kind: Kind, about: &'static str) -> Self {
        Self::new(name, kind, LeftOut::Required, about)
    }

    pub(super) fn value(name: &'static str, kind: Kind, value: impl Into<Value>, about: &'static str) -> Self {
        Self::new(name, kind, LeftOut::Value(value.into()), about)
    }

    pub(super) fn none(name: &'static str, kind: Kind, means: &'static str, about: &'static str) -> Self {
        Self::new(name, kind, LeftOut::Means(means), about)
    }

    pub(super) fn table(name: &'static str, means: &'static str, about: &'static str, keys: Vec<Self>) -> Self {
        Self::new(name, Kind::Table(Table { about, keys }), LeftOut::Means(means), "")
    }
}
