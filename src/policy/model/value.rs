//! A value of a declared type, whatever it was read from: an argument, a claim, or an attribute in a file.
//! Never more than its declaration says: of a value without a type, only the presence is known.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::number::is_same_number;

/// A value of a declared type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TypedValue {
    String(String),
    Integer(i64),
    Boolean(bool),
    List(Vec<TypedValue>),
    Object(BTreeMap<String, TypedValue>),
    /// As the call spells it.
    Number(String),
    /// Present, but not read.
    Any,
}

impl TypedValue {
    /// The value for a record of the call. A value of type `any` is left out: the record only says that it was there.
    pub(crate) fn to_json(&self) -> Value {
        match self {
            Self::String(text) => text.as_str().into(),
            Self::Integer(value) => (*value).into(),
            Self::Boolean(value) => (*value).into(),
            // If a number here would be another, the text says what the call had.
            Self::Number(text) => match serde_json::from_str::<serde_json::Number>(text) {
                Ok(number) if is_same_number(&number.to_string(), text) => number.into(),
                _ => text.as_str().into(),
            },
            Self::Any => "…".into(),
            Self::List(values) => values.iter().map(Self::to_json).collect(),
            Self::Object(fields) => Value::Object(to_json(fields)),
        }
    }
}

/// Parameters as the object of a call with named parameters.
pub(crate) fn to_json(params: &Params) -> Map<String, Value> {
    params.iter().map(|(name, value)| (name.clone(), value.to_json())).collect()
}

/// The declared parameters that a call has, by name.
pub(crate) type Params = BTreeMap<String, TypedValue>;
