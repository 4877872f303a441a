//! Header fields that a configuration may set.
//! Never one that belongs to the connection, and never a value that could end its field early.

use hyper::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, HeaderName, HeaderValue, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};

/// A header field that the configuration adds to requests.
///
/// # Errors
/// What is wrong with it.
pub fn header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), String> {
    let field = header_name(name)?;
    let value = header_value(value).ok_or_else(|| format!("the value of header `{field}` has a control character"))?;
    Ok((field, value))
}

/// The name of a header field that may be set: none that belongs to the connection.
///
/// # Errors
/// What is wrong with it.
pub fn header_name(name: &str) -> Result<HeaderName, String> {
    let field: HeaderName = name.parse().map_err(|_| format!("`{}` is not a header name", name.escape_debug()))?;
    let ours =
        [HOST, CONTENT_LENGTH, TRANSFER_ENCODING, CONNECTION, TE, TRAILER, UPGRADE, EXPECT, COOKIE, ACCEPT_ENCODING];
    if ours.contains(&field) || ["keep-alive", "proxy-connection", "proxy-authorization"].contains(&field.as_str()) {
        return Err(format!("header `{field}` cannot be set: it belongs to the connection"));
    }
    Ok(field)
}

/// A header value without anything that could end it early.
#[must_use]
pub fn header_value(text: &str) -> Option<HeaderValue> {
    let is_plain = text.trim() == text && !text.chars().any(char::is_control);
    is_plain.then(|| HeaderValue::from_bytes(text.as_bytes()).ok()).flatten()
}
