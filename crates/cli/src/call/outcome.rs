//! The outcome of a call, for scripts and for people.
//! Never anything that a terminal would obey.

use serde::Serialize;
use serde_json::value::RawValue;

use crate::exit::ErrorObject;
use crate::term;

/// The outcome of a call, for scripts.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Outcome<'a> {
    Result(&'a RawValue),
    Error(ErrorObject<'a>),
}

/// A result for people.
pub(super) fn shown(result: &RawValue) -> String {
    term::safe_json(&term::indented(result.get())).into_owned()
}
