//! What a file may contain: every key with its type, unit, range, default and meaning, read by `#[derive(Setting)]` from the very structs
//! that serde fills.
//! Never reads a file.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;

pub use sealwire_macros::Setting;
use serde::Deserialize;
pub use serde_json::Value;
use zeroize::Zeroizing;

/// A part of a whole, from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(try_from = "f64")]
pub struct Fraction(f64);

// It is never NaN.
impl Eq for Fraction {}

impl Fraction {
    /// `None` for anything else.
    #[must_use]
    pub const fn new(value: f64) -> Option<Self> {
        if value >= 0.0 && value <= 1.0 { Some(Self(value)) } else { None }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl TryFrom<f64> for Fraction {
    type Error = &'static str;

    fn try_from(value: f64) -> Result<Self, Self::Error> {
        Self::new(value).ok_or("write a number from 0 to 1")
    }
}

/// A type that a key can have.
pub trait Setting {
    /// What a file writes for it.
    fn kind() -> Kind;

    /// How a file would write this value. Nobody asks a table for it.
    fn value(&self) -> Value {
        Value::Null
    }
}

/// A table.
#[derive(Debug)]
pub struct Table {
    /// What it is, if it is the whole file; a table in a file is described by its key.
    pub about: &'static str,
    /// Its keys, in the order in which they are explained.
    pub keys: Vec<Key>,
}

/// One key.
#[derive(Debug)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// The kind of its value.
    pub kind: Kind,
    /// What it means if it is left out.
    pub left_out: LeftOut,
    /// What it means, and why it has its range.
    pub about: &'static str,
}

/// What it means if a key is left out.
#[derive(Debug)]
pub enum LeftOut {
    /// The file does not load.
    Required,
    /// The same as this value.
    Value(Value),
    /// What these words say.
    Means(&'static str),
}

/// The kind of a key's value.
#[derive(Debug)]
pub enum Kind {
    /// Any string.
    Text,
    /// 1 to 64 of `A-Z a-z 0-9 _ -`.
    Name,
    /// 1 to 8 subject tokens with dots in between.
    Prefix,
    /// A path, relative to the file.
    Path,
    /// `true` or `false`.
    Flag,
    /// A whole number: unit, minimum, maximum.
    Number(&'static str, u64, Option<u64>),
    /// A number from 0 to 1.
    Fraction,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// The path to a claim.
    Claim,
    /// A string, or the beginning of one and `*`.
    Pattern,
    /// The kind of its keys, and that of its values.
    Map(Box<Self>, Box<Self>),
    /// A list, and its minimum length.
    List(Box<Self>, u64),
    /// `[…]`
    Table(Table),
    /// `[[…]]`, at least one.
    Tables(Table),
    /// One of these tables, told apart by the word of a key of this name.
    Variants(&'static str, Vec<(&'static str, Table)>),
}

impl Kind {
    /// Says what its number, or each of its numbers, counts, and which numbers there may be.
    #[must_use]
    pub fn of_numbers(self, unit: &'static str, least: u64, most: Option<u64>) -> Self {
        match self {
            Self::Number(..) => Self::Number(unit, least, most),
            Self::List(item, fewest) => Self::List(Box::new(item.of_numbers(unit, least, most)), fewest),
            other => other,
        }
    }

    /// Says that a list has an entry at least.
    #[must_use]
    pub fn not_empty(self) -> Self {
        match self {
            Self::List(item, _) => Self::List(item, 1),
            other => other,
        }
    }

    /// Adds the names of all keys at any depth. Whatever else a file contains may be a secret in the wrong place.
    pub(crate) fn names(&self, names: &mut BTreeSet<&'static str>) {
        match self {
            Self::Table(table) | Self::Tables(table) => table.names(names),
            Self::Map(_, value) | Self::List(value, _) => value.names(names),
            Self::Variants(tag, tables) => {
                names.insert(tag);
                tables.iter().for_each(|(_, table)| table.names(names));
            }
            _ => {}
        }
    }
}

impl Table {
    /// The table that a struct is.
    #[must_use]
    pub fn of<T: Setting>() -> Self {
        match T::kind() {
            Kind::Table(table) => table,
            _ => Self { about: "", keys: Vec::new() },
        }
    }

    fn names(&self, names: &mut BTreeSet<&'static str>) {
        for key in &self.keys {
            names.insert(key.name);
            key.kind.names(names);
        }
    }
}

impl LeftOut {
    /// What serde takes.
    pub fn usual<T: Setting>(value: &T) -> Self {
        match T::kind() {
            Kind::Table(_) => Self::Means("the defaults below"),
            _ => Self::Value(value.value()),
        }
    }
}

macro_rules! setting {
    ($($type:ty, $kind:expr, $value:expr;)*) => {
        $(impl Setting for $type {
            fn kind() -> Kind {
                $kind
            }

            fn value(&self) -> Value {
                let value: fn(&Self) -> Value = $value;
                value(self)
            }
        })*
    };
}

setting! {
    bool, Kind::Flag, |flag| (*flag).into();
    String, Kind::Text, |text| text.as_str().into();
    Zeroizing<String>, Kind::Text, |_| Value::Null;
    SocketAddr, Kind::Text, |address| address.to_string().into();
    PathBuf, Kind::Path, |path| path.to_string_lossy().into();
    u32, Kind::Number("", 0, Some(u32::MAX.into())), |number| (*number).into();
    u64, Kind::Number("", 0, None), |number| (*number).into();
    usize, Kind::Number("", 0, None), |number| (*number).into();
    Fraction, Kind::Fraction, |part| part.get().into();
    NonZeroU64, Kind::Number("", 1, None), |number| number.get().into();
}

impl<T: Setting> Setting for Option<T> {
    fn kind() -> Kind {
        T::kind()
    }

    fn value(&self) -> Value {
        self.as_ref().map_or(Value::Null, T::value)
    }
}

impl<T: Setting> Setting for Vec<T> {
    fn kind() -> Kind {
        match T::kind() {
            Kind::Table(table) => Kind::Tables(table),
            item => Kind::List(Box::new(item), 0),
        }
    }

    fn value(&self) -> Value {
        self.iter().map(T::value).collect()
    }
}

impl<K: Setting, V: Setting> Setting for BTreeMap<K, V> {
    fn kind() -> Kind {
        Kind::Map(Box::new(K::kind()), Box::new(V::kind()))
    }

    fn value(&self) -> Value {
        let text = |key: &K| key.value().as_str().unwrap_or_default().to_owned();
        Value::Object(self.iter().map(|(key, value)| (text(key), value.value())).collect())
    }
}
