//! JSON-RPC messages as they come, with their parameters and results unparsed.
//! Never keeps more of a message than its members' texts.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use super::json;

/// A message.
#[derive(Debug, Deserialize)]
pub struct Message<'a> {
    /// `2.0`.
    #[serde(borrow)]
    pub jsonrpc: Option<Cow<'a, str>>,
    /// Null if that is what it says.
    #[serde(borrow, default, deserialize_with = "present")]
    pub id: Option<&'a RawValue>,
    /// Of a request or notification.
    #[serde(borrow)]
    pub method: Option<Cow<'a, str>>,
    /// Of a request or notification.
    #[serde(borrow)]
    pub params: Option<&'a RawValue>,
    /// Of a response.
    #[serde(borrow)]
    pub result: Option<&'a RawValue>,
    /// Of a response.
    #[serde(borrow)]
    pub error: Option<&'a RawValue>,
}

/// A member that is present, even if it is null.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// The id of a request: a string or an integer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Id {
    /// An integer.
    Number(i64),
    /// A string.
    Text(String),
}

/// The request that `notifications/cancelled` with these parameters is about.
#[must_use]
pub fn cancelled(params: Option<&RawValue>) -> Option<Id> {
    #[derive(Deserialize)]
    struct Cancelled {
        #[serde(rename = "requestId")]
        request: Id,
    }
    json::object::<Cancelled>(params?.get()).ok().map(|cancelled| cancelled.request)
}

/// The members of an object, with their values left unparsed.
pub type Members = BTreeMap<String, Box<RawValue>>;

/// The value as JSON; null if it cannot be serialized, which happens only to maps whose keys are not strings.
pub fn raw<T: Serialize + ?Sized>(value: &T) -> Box<RawValue> {
    to_raw_value(value).unwrap_or_default()
}

/// An object with these members.
#[must_use]
pub fn members<const N: usize>(pairs: [(&str, Value); N]) -> Members {
    pairs.into_iter().map(|(name, value)| (name.to_owned(), raw(&value))).collect()
}

/// Sets a member.
pub fn insert(members: &mut Members, name: &str, value: &impl Serialize) {
    members.insert(name.to_owned(), raw(value));
}

/// A notification.
#[must_use]
pub fn notification(method: &str, params: &Value) -> Value {
    serde_json::json!({ "jsonrpc": "2.0", "method": method, "params": params })
}
