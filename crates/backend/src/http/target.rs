//! The path and the query of a request.
//! Never lets a text become more of either than the value that it stands for.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC};

/// Everything but the unreserved characters of RFC 3986 §2.3: nothing that could be anything but part of a value.
pub(super) const VALUE: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A path from the configuration, checked.
///
/// # Errors
/// What is wrong with it.
pub(super) fn path(path: &str) -> Result<String, String> {
    let is_plain = path.starts_with('/') && path.chars().all(|c| c.is_ascii_graphic() && !matches!(c, '?' | '#'));
    if is_plain {
        Ok(path.to_owned())
    } else {
        Err(format!("`{}` is no path: write it as `/a/b`, without a query", path.escape_debug()))
    }
}
