//! JSON that is passed on as text.

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

/// The value as JSON; null if it cannot be serialized, which does not happen here.
pub(crate) fn raw<T: Serialize + ?Sized>(value: &T) -> Box<RawValue> {
    to_raw_value(value).unwrap_or_default()
}
