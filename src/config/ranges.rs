//! Checks that every number of a file is within its range.
//! Never keeps a string from the file: it may be a password.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::settings::{Kind, Setting, Table};

/// A number that is out of range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{member}` is {value}: write {range}. {about}")]
pub struct OutOfRange {
    /// Where it is in the file.
    member: String,
    value: u64,
    range: String,
    /// What the key means, and why it has this range.
    about: &'static str,
}

/// Reports the first number of a file that is out of range. Ignores anything else that may be wrong with the file.
///
/// # Errors
/// The number, and what to write.
pub fn check_ranges<T: Setting>(text: &str) -> Result<(), OutOfRange> {
    match toml::from_str::<Found>(text) {
        Ok(found) => check(&Table::of::<T>(), &found, ""),
        Err(_) => Ok(()),
    }
}

fn check(table: &Table, found: &Found, path: &str) -> Result<(), OutOfRange> {
    let Found::Table(values) = found else { return Ok(()) };
    for (key, value) in table.keys.iter().filter_map(|key| Some((key, values.get(key.name)?))) {
        let member = format!("{path}{}", key.name);
        match (&key.kind, value) {
            (Kind::Number(_, least, most), Found::Number(value)) => {
                let (value, most) = (*value, *most);
                if value < *least || most.is_some_and(|most| value > most) {
                    let range = most.map_or(format!("{least} or more"), |most| format!("{least} to {most}"));
                    return Err(OutOfRange { member, value, range, about: key.about });
                }
            }
            (Kind::Table(table), found) => check(table, found, &format!("{member}."))?,
            (Kind::Tables(table), Found::List(items)) => {
                for (position, item) in items.iter().enumerate() {
                    check(table, item, &format!("{member}[{position}]."))?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// The numbers of a file, in its structure.
enum Found {
    Table(BTreeMap<String, Self>),
    List(Vec<Self>),
    Number(u64),
    Other,
}

impl<'de> Deserialize<'de> for Found {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Found;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("anything")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Found, A::Error> {
                let mut table = BTreeMap::new();
                while let Some((name, value)) = members.next_entry()? {
                    table.insert(name, value);
                }
                Ok(Found::Table(table))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Found, A::Error> {
                let mut list = Vec::new();
                while let Some(item) = items.next_element()? {
                    list.push(item);
                }
                Ok(Found::List(list))
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<Found, E> {
                Ok(Found::Number(value))
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<Found, E> {
                // A negative number cannot be in a file that loaded.
                Ok(u64::try_from(value).map_or(Found::Other, Found::Number))
            }

            fn visit_str<E: Error>(self, _: &str) -> Result<Found, E> {
                Ok(Found::Other)
            }

            fn visit_bool<E: Error>(self, _: bool) -> Result<Found, E> {
                Ok(Found::Other)
            }

            fn visit_f64<E: Error>(self, _: f64) -> Result<Found, E> {
                Ok(Found::Other)
            }
        }
        deserializer.deserialize_any(Any)
    }
}
