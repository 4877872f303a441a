//! What Python answers with, as the library takes it: a result as JSON, or an error object.
//! Never lets anything but an error object that was meant for the other side become its text.

use pyo3::prelude::*;
use sealwire::RpcError;
use sealwire::errors::code;
use sealwire::internal::rpc::{Flaw, strict_value};
use serde_json::value::RawValue;

/// A result, or an error object.
pub(crate) type Answer = Result<Box<RawValue>, RpcError>;

/// A result, or an error as `(code, message, data)`. The message of an internal error and of a failed dependency is logged, not sent.
///
/// # Errors
/// What is wrong with the JSON.
pub(crate) fn answer(result: Option<String>, error: Option<(i32, String, Option<String>)>) -> Result<Answer, String> {
    match error {
        None => value(result.as_deref().unwrap_or("null")).map(Ok),
        Some((number, message, data)) => {
            let made = match number {
                code::INVALID_PARAMS => RpcError::invalid_params(message),
                code::VALIDATION_FAILED => RpcError::validation(message),
                code::INTERNAL_ERROR => RpcError::internal(message),
                code::DEPENDENCY_FAILED => RpcError::dependency(message),
                number => RpcError::application(number, message),
            };
            let data = data.as_deref().map(value).transpose()?;
            Ok(Err(data.map_or(made.clone(), |data| made.with_data(&data))))
        }
    }
}

/// A value that the other side will accept: it refuses a whole batch because of one bad value.
pub(crate) fn value(text: &str) -> Result<Box<RawValue>, String> {
    strict_value(text).map(ToOwned::to_owned).map_err(|flaw| format!("the JSON {flaw}"))
}

/// Why the other side would refuse a text, if it would: whether it is no JSON at all, and a reason that continues "the text …".
#[pyfunction]
pub(crate) fn json_flaw(text: &str) -> Option<(bool, String)> {
    strict_value(text).err().map(|flaw| (flaw == Flaw::Syntax, flaw.to_string()))
}
