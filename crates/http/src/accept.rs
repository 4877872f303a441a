//! What a request accepts (RFC 9110 §12.5.1).
//! Never guesses: a weight that cannot be read counts as none.

use hyper::HeaderMap;
use hyper::header::{ACCEPT, ToStrError};

/// The media ranges of all `Accept` fields, without parameters, each with its weight from 0 (not acceptable) to 1.
///
/// # Errors
/// A field is not visible ASCII.
pub fn media_ranges(headers: &HeaderMap) -> Result<Vec<(&str, f32)>, ToStrError> {
    let mut ranges = Vec::new();
    for value in headers.get_all(ACCEPT) {
        ranges.extend(value.to_str()?.split(',').map(|range| {
            let mut parts = range.split(';').map(str::trim);
            let media_type = parts.next().unwrap_or_default();
            // RFC 9110 §12.4.2: names of parameters are compared without case.
            let weight = parts.find_map(|part| part.strip_prefix(['q', 'Q'])?.strip_prefix('=')?.parse().ok());
            (media_type, weight.unwrap_or(1.0))
        }));
    }
    Ok(ranges)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn ranges_come_from_all_fields_with_their_weights() {
        let mut headers = HeaderMap::new();
        assert_eq!(media_ranges(&headers).unwrap(), []);
        for value in ["text/plain;version=0.0.4;q=0.5, */*;Q=0", "a/b; q=x", ""] {
            headers.append(ACCEPT, value.parse().unwrap());
        }
        assert_eq!(media_ranges(&headers).unwrap(), [("text/plain", 0.5), ("*/*", 0.0), ("a/b", 1.0), ("", 1.0)]);
        headers.append(ACCEPT, "é".parse().unwrap());
        assert!(media_ranges(&headers).is_err());
    }
}
