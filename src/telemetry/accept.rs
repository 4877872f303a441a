//! Which format of metrics a request asks for (RFC 9110 §12.5.1).
//! Never refuses: who asks for nothing that there is gets the older format.

use hyper::HeaderMap;
use sealwire_http::media_ranges;

/// Whether OpenMetrics is asked for, and nothing else is preferred.
pub(super) fn prefers_openmetrics(head: &HeaderMap) -> bool {
    let (mut openmetrics, mut plain) = (0.0_f32, 0.0_f32);
    for (media_type, weight) in media_ranges(head).unwrap_or_default() {
        if media_type.eq_ignore_ascii_case("application/openmetrics-text") {
            openmetrics = openmetrics.max(weight);
        } else if media_type.eq_ignore_ascii_case("text/plain") {
            plain = plain.max(weight);
        }
    }
    openmetrics > 0.0 && openmetrics >= plain
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use hyper::header::ACCEPT;

    use super::*;

    #[test]
    fn format_is_the_one_with_the_greater_weight() {
        let prefers = |accept: &str| {
            let mut head = HeaderMap::new();
            head.insert(ACCEPT, accept.parse().unwrap());
            prefers_openmetrics(&head)
        };
        // What Prometheus 2.42 sends.
        assert!(prefers(
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
        ));
        assert!(prefers("application/openmetrics-text"));
        for plain in [
            "*/*",
            "text/plain",
            "",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text; q=0.2, text/plain",
        ] {
            assert!(!prefers(plain), "{plain}");
        }
        assert!(!prefers_openmetrics(&HeaderMap::new()));
    }
}
