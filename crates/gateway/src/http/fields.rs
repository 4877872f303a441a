//! Header fields: those that may occur once, and lists.
//! Never picks one of several values.

use hyper::StatusCode;
use hyper::header::{HeaderMap, HeaderName};

use super::refusal::Refusal;

/// The value of a field that may occur once.
///
/// # Errors
/// It occurs more than once, or is not ASCII text.
pub fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Refusal> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Refusal::bad(StatusCode::BAD_REQUEST, format!("`{name}` occurs more than once")).closing());
    }
    match value.to_str() {
        Ok(value) => Ok(Some(value)),
        Err(_) => Err(Refusal::bad(StatusCode::BAD_REQUEST, format!("`{name}` is not ASCII text"))),
    }
}

/// The members of a list header, which may occur several times.
pub(super) fn list<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
}
