//! The few pieces of JSON that requests and responses share, for reading and writing.
//! Never gets a text that `strict_json` has not checked.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

/// Whether a JSON text without leading white space is an object.
pub(super) fn is_object(text: &str) -> bool {
    text.starts_with('{')
}

/// Whether a JSON text without leading white space is an array.
pub(super) fn is_array(text: &str) -> bool {
    text.starts_with('[')
}

/// Trims the white space that RFC 8259 §2 allows around a value (not what Unicode calls white space).
pub(super) fn trimmed(text: &str) -> &str {
    text.trim_matches([' ', '\t', '\n', '\r'])
}

/// Reads a member so that `null` and an absent member stay distinct, which a plain `Option` would merge.
pub(super) fn member<'de: 'a, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// The text of a JSON string, escapes resolved; `None` for any other value.
pub(super) fn string(raw: &RawValue) -> Option<Cow<'_, str>> {
    let text = raw.get();
    if text.contains('\\') {
        return serde_json::from_str(text).ok().map(Cow::Owned);
    }
    text.strip_prefix('"')?.strip_suffix('"').map(Cow::Borrowed)
}

/// Serializes the items as an array, or returns `None` if there are none.
pub(super) fn array_to_bytes<T: Serialize>(items: &[T]) -> Option<Vec<u8>> {
    if items.is_empty() { None } else { Some(to_bytes(&items)) }
}

/// Serializes one of this module's own messages.
pub(super) fn to_bytes<T: Serialize>(message: &T) -> Vec<u8> {
    to_bytes_of(message, 128)
}

/// Like [`to_bytes`], for a text of about this many bytes.
#[expect(
    clippy::expect_used,
    reason = "messages consist of strings, integers and raw JSON: none of them fails to serialise, and a Vec takes all"
)]
pub(super) fn to_bytes_of<T: Serialize>(message: &T, about: usize) -> Vec<u8> {
    let mut text = Vec::with_capacity(about);
    serde_json::to_writer(&mut text, message).expect("a message is serialisable");
    text
}
