//! Which texts of an answer may become labels: what ADR-32 lets names be, and a length.
//! Never changes a text, since two would become one: what does not fit is left out.

/// A service's or an endpoint's name, by ADR-32.
pub(crate) fn is_name(text: &str, most: usize) -> bool {
    is_of(text, most, |byte| byte == b'_' || byte == b'-')
}

/// The id of a replica: ADR-32 says nothing about it; nuids, UUIDs and host names fit.
pub(crate) fn is_id(text: &str) -> bool {
    is_of(text, MAX_ID, |byte| b"_-.:@".contains(&byte))
}

/// The subject of an endpoint, wildcards included. NATS allows more, but nothing that needs a quote in a label or hides on a terminal.
pub(crate) fn is_subject(text: &str) -> bool {
    (1..=MAX_SUBJECT).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"'\\`".contains(&byte))
}

/// A version, state or revision: one word, or two separated by punctuation.
pub(crate) fn is_word(text: &str) -> bool {
    is_of(text, MAX_WORD, |byte| b"_-.+".contains(&byte))
}

/// The longest name of a service.
pub(crate) const MAX_SERVICE: usize = 64;
/// The longest name of an endpoint: that of a method, at most.
pub(crate) const MAX_ENDPOINT: usize = 128;
/// The longest id.
const MAX_ID: usize = 64;
/// The longest subject: of a method, with prefix, service and agent.
const MAX_SUBJECT: usize = 255;
/// The longest word.
const MAX_WORD: usize = 64;

fn is_of(text: &str, most: usize, besides: impl Fn(u8) -> bool) -> bool {
    (1..=most).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || besides(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_could_end_a_label_or_move_a_cursor_is_taken() {
        for byte in 0..=255_u8 {
            let text = format!("a{}", char::from(byte));
            let is_plain = byte.is_ascii_graphic() && !b"\"'\\`".contains(&byte);
            for taken in [is_name(&text, 64), is_id(&text), is_subject(&text), is_word(&text)] {
                assert!(!taken || is_plain, "{text:?}");
            }
            assert_eq!(is_subject(&text), is_plain, "{text:?}");
        }
        assert!(is_name("math-2_x", 64) && !is_name("a.b", 64) && !is_name("", 64));
        assert!(is_id("S2PJ9ZUHNOZZHBXPKBWM3G") && is_id("e3c8b7a0-8b7a-4f9d-9f8c-7f1f0a1c2d3e") && is_id("host:1"));
        assert!(is_subject("rpc.v1.math.*.math.add") && is_subject("orders.>") && is_word("1.2.3-rc.1+build"));
        for (most, is_taken) in [(MAX_ID, is_id as fn(&str) -> bool), (MAX_SUBJECT, is_subject), (MAX_WORD, is_word)] {
            assert!(is_taken(&"x".repeat(most)) && !is_taken(&"x".repeat(most + 1)));
        }
    }
}
