//! What parameters a method has: names, positions and types, declared once for handler and policy alike.
//! Never guesses a type from a value.

use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value, json};

/// One declared parameter. Its place in the list is its position in a call with positional parameters.
///
/// Two are equal if every call fits both: what their descriptions say does not count, nor what is recorded of them.
#[derive(Debug, Clone, Serialize)]
pub struct Param {
    name: String,
    #[serde(rename = "type", serialize_with = "display")]
    kind: ParamType,
    optional: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    #[serde(skip_serializing_if = "Audit::is_clear")]
    audit: Audit,
}

/// What the record keeps of a parameter's value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Audit {
    /// The value.
    #[default]
    Clear,
    /// A digest under a salt: equal values can be found.
    Hash,
    /// Nothing.
    Drop,
}

impl Audit {
    pub(crate) const NAMED: [(&'static str, Self); 3] =
        [("clear", Self::Clear), ("hash", Self::Hash), ("drop", Self::Drop)];

    fn is_clear(&self) -> bool {
        *self == Self::Clear
    }
}

impl PartialEq for Param {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.kind == other.kind && self.optional == other.optional
    }
}

impl Eq for Param {}

impl Param {
    /// A required parameter.
    #[must_use]
    pub fn new(name: impl Into<String>, kind: ParamType) -> Self {
        Self { name: name.into(), kind, optional: false, description: None, audit: Audit::Clear }
    }

    /// A required text.
    #[must_use]
    pub fn string(name: impl Into<String>) -> Self {
        Self::new(name, ParamType::String)
    }

    /// A required whole number.
    #[must_use]
    pub fn integer(name: impl Into<String>) -> Self {
        Self::new(name, ParamType::Integer)
    }

    /// A required truth value.
    #[must_use]
    pub fn boolean(name: impl Into<String>) -> Self {
        Self::new(name, ParamType::Boolean)
    }

    /// A required number, fractions included.
    #[must_use]
    pub fn number(name: impl Into<String>) -> Self {
        Self::new(name, ParamType::Number)
    }

    /// The same parameter, but a call may leave it out or send `null`.
    #[must_use]
    pub fn optional(self) -> Self {
        self.optional_if(true)
    }

    /// [`Param::optional`], or not.
    #[must_use]
    pub fn optional_if(mut self, optional: bool) -> Self {
        self.optional = optional;
        self
    }

    /// The same parameter, with what callers are told of it.
    #[must_use]
    pub fn describe(mut self, text: impl Into<String>) -> Self {
        self.description = Some(text.into());
        self
    }

    /// The same parameter, of which the record keeps this.
    pub(crate) fn audited(mut self, audit: Audit) -> Self {
        self.audit = audit;
        self
    }

    /// What the record keeps of its value.
    pub(crate) fn audit(&self) -> Audit {
        self.audit
    }

    /// What callers are told of it.
    #[must_use]
    pub fn description(&self) -> Option<&str> {
        self.description.as_deref()
    }

    /// Its JSON Schema.
    fn schema(&self) -> Value {
        let mut schema = self.kind.schema();
        if let (Some(text), Value::Object(members)) = (&self.description, &mut schema) {
            members.insert("description".to_owned(), text.as_str().into());
        }
        schema
    }

    /// The name in a call with named parameters.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The type.
    #[must_use]
    pub fn kind(&self) -> &ParamType {
        &self.kind
    }

    /// Whether a call may leave it out or send `null`.
    #[must_use]
    pub fn is_optional(&self) -> bool {
        self.optional
    }

    /// `to: string, note?: string`.
    pub(crate) fn listed(params: &[Self]) -> String {
        params.iter().map(Self::to_string).collect::<Vec<_>>().join(", ")
    }

    /// These as the members of one object, as a JSON Schema. `closed`: it has no others.
    #[must_use]
    pub fn object_schema(params: &[Self], closed: bool) -> Value {
        let properties: Map<String, Value> = params.iter().map(|param| (param.name.clone(), param.schema())).collect();
        let required: Vec<&str> = params.iter().filter(|param| !param.optional).map(Self::name).collect();
        let mut schema = json!({ "type": "object", "properties": properties });
        if let Value::Object(members) = &mut schema {
            if !required.is_empty() {
                members.insert("required".to_owned(), required.into());
            }
            if closed {
                members.insert("additionalProperties".to_owned(), false.into());
            }
        }
        schema
    }
}

impl fmt::Display for Param {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}: {}", self.name, if self.optional { "?" } else { "" }, self.kind)
    }
}

/// The type of a parameter, of a claim or of an agent's attribute.
///
/// Each type has one spelling in JSON: `1.0`, `1e9` and `"1"` are not integers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParamType {
    /// A JSON string.
    String,
    /// A JSON number without fraction and exponent that fits a signed 64-bit integer.
    Integer,
    /// `true` or `false`.
    Boolean,
    /// A JSON number that a double can hold, so not `1e400`. Of a parameter, rules can ask `min` and `max`, compared with the
    /// number as the call writes it; of a claim, only whether it is there.
    Number,
    /// Any JSON value. Rules cannot put a condition on it.
    Any,
    /// A JSON array of at most [`MAX_LIST`] values of one type.
    List(ScalarType),
    /// A JSON object with exactly these members, in any order.
    Object(Vec<Param>),
}

/// The type of the values in a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScalarType {
    /// A JSON string.
    String,
    /// As [`ParamType::Integer`].
    Integer,
    /// `true` or `false`.
    Boolean,
}

/// The most values that a list parameter may hold if a policy reads it. A rule about a longer list is a rule about a
/// document, and comparing it would cost more than the call.
pub const MAX_LIST: usize = 1024;

impl ParamType {
    /// As a JSON Schema.
    #[must_use]
    pub fn schema(&self) -> Value {
        match self {
            Self::String | Self::Integer | Self::Boolean | Self::Number => json!({ "type": self.to_string() }),
            Self::Any => json!({}),
            Self::List(kind) => json!({ "type": "array", "items": kind.as_param().schema() }),
            Self::Object(members) => Param::object_schema(members, true),
        }
    }

    /// The types that have a name in policy files: all but objects.
    const NAMED: [(&'static str, Self); 8] = [
        ("string", Self::String),
        ("integer", Self::Integer),
        ("boolean", Self::Boolean),
        ("number", Self::Number),
        ("any", Self::Any),
        ("string[]", Self::List(ScalarType::String)),
        ("integer[]", Self::List(ScalarType::Integer)),
        ("boolean[]", Self::List(ScalarType::Boolean)),
    ];

    /// The type with this name in a policy file.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::NAMED.into_iter().find(|(known, _)| *known == name).map(|(_, kind)| kind)
    }

    /// The names that [`ParamType::named`] knows.
    pub(crate) fn names() -> Vec<&'static str> {
        Self::NAMED.into_iter().map(|(name, _)| name).collect()
    }
}

impl ScalarType {
    pub(crate) fn as_param(self) -> ParamType {
        match self {
            Self::String => ParamType::String,
            Self::Integer => ParamType::Integer,
            Self::Boolean => ParamType::Boolean,
        }
    }
}

impl fmt::Display for ParamType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Object(members) = self {
            return write!(f, "{{{}}}", Param::listed(members));
        }
        let named = Self::NAMED.iter().find(|(_, kind)| kind == self);
        named.map_or(Ok(()), |(name, _)| f.write_str(name))
    }
}

fn display<T: fmt::Display, S: serde::Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}
