//! The trace that a call belongs to: W3C Trace Context and Baggage, passed on from somebody else.
//! Never passes on more than the bounds below, or anything that a header could not hold.

use crate::wire::is_traceparent;

/// The tracing context of a message: `traceparent` in the proof (SPEC.md §6.2), `tracestate` and `baggage` as headers of these names, which
/// are not signed. No service bases a decision on any of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TraceContext {
    parent: Option<String>,
    state: Option<String>,
    baggage: Option<String>,
}

/// The most bytes of `tracestate`, and members in it (W3C Trace Context, 3.3).
const STATE: (usize, usize) = (512, 32);
/// The same for `baggage`: half of what W3C Baggage obliges everybody to pass on, so that token, proof and these fit into the headers that
/// a service accepts.
const BAGGAGE: (usize, usize) = (4_096, 64);

impl TraceContext {
    /// Keeps the values that are well-formed and within the bounds, and leaves out the rest. Without a `traceparent` of version 00 there is
    /// no `tracestate`.
    #[must_use]
    pub fn new(traceparent: Option<&str>, tracestate: Option<&str>, baggage: Option<&str>) -> Self {
        let parent = traceparent.map(str::trim).filter(|text| is_traceparent(text));
        let state = tracestate.filter(|text| parent.is_some() && is_list(text, STATE, is_state));
        let baggage = baggage.filter(|text| is_list(text, BAGGAGE, is_baggage));
        Self { parent: parent.map(str::to_owned), state: state.map(str::to_owned), baggage: baggage.map(str::to_owned) }
    }

    /// The trace id of `traceparent`, 32 hexadecimal digits.
    #[must_use]
    pub fn id(&self) -> Option<&str> {
        self.parent.as_deref()?.split('-').nth(1)
    }

    /// The `traceparent`.
    #[must_use]
    pub fn parent(&self) -> Option<&str> {
        self.parent.as_deref()
    }

    /// The same, for a span of ours in the same trace.
    pub(crate) fn with_parent(&self, parent: String) -> Self {
        Self { parent: Some(parent), ..self.clone() }
    }

    /// The header lines.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let lines = [("tracestate", &self.state), ("baggage", &self.baggage)];
        lines.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?)))
    }
}

/// White space in a header (RFC 9110 §5.6.3).
const BLANK: [char; 2] = [' ', '\t'];

/// Members of a comma-separated list; some may be empty.
fn is_list(text: &str, (bytes, members): (usize, usize), is_member: fn(&str) -> bool) -> bool {
    // Above all no line break: what follows it would be a header of its own.
    let is_plain = text.bytes().all(|byte| byte == b'\t' || (b' '..=b'~').contains(&byte));
    let mut all = text.split(',').map(|member| member.trim_matches(BLANK)).filter(|member| !member.is_empty());
    is_plain
        && text.len() <= bytes
        && text.split(',').count() <= members
        && all.clone().next().is_some()
        && all.all(is_member)
}

/// W3C Trace Context, 3.3.1.3.
fn is_state(member: &str) -> bool {
    let Some((key, value)) = member.split_once('=') else { return false };
    let first = key.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let rest = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-*/@".contains(&byte);
    let is_value = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b',' && byte != b'=';
    first
        && key.len() <= 256
        && key.bytes().all(rest)
        && (1..=256).contains(&value.len())
        && value.bytes().all(is_value)
}

/// W3C Baggage, 3.3.1: a name, its value, and properties.
fn is_baggage(member: &str) -> bool {
    let mut parts = member.split(';').map(|part| part.trim_matches(BLANK));
    let is_token = |text: &str| {
        let more = |byte: u8| b"!#$%&'*+-.^_`|~".contains(&byte);
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || more(byte))
    };
    let is_value = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic() && !b"\",;\\".contains(&byte));
    let is_pair = |text: &str| {
        text.split_once('=').is_some_and(|(name, value)| {
            is_token(name.trim_end_matches(BLANK)) && is_value(value.trim_start_matches(BLANK))
        })
    };
    parts.next().is_some_and(is_pair) && parts.all(|property| is_token(property) || is_pair(property))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    /// SPEC.md §6.2.
    #[test]
    fn what_is_well_formed_is_handed_on_and_the_rest_left_out() {
        let lines = |state: Option<&str>, baggage: Option<&str>| {
            let context = TraceContext::new(Some(PARENT), state, baggage);
            assert_eq!(context.parent.as_deref(), Some(PARENT));
            context.lines().map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>()
        };
        assert_eq!(
            lines(Some("a=1, t@v=x y"), Some("u=1;p;q=2 , w=%20")),
            ["tracestate: a=1, t@v=x y", "baggage: u=1;p;q=2 , w=%20"]
        );
        let many = |member: &str, times: usize| vec![member; times].join(",");
        assert_eq!((lines(Some(&many("a=1", 32)), None).len(), lines(None, Some(&many("a=1", 64))).len()), (1, 1));
        for wrong in [
            "",
            ",",
            "a",
            "A=1",
            "a=",
            "a=1\r\nX: y",
            "a=1,\nb=2",
            "a=\u{e4}",
            "a=b=c",
            &many("a=1", 33),
            &format!("a={}", "x".repeat(257)),
        ] {
            assert!(lines(Some(wrong), None).is_empty(), "{wrong}");
        }
        for wrong in [
            "",
            "a",
            "=1",
            "a=\"x\"",
            "a=1\r\nX: y",
            "a=\r\nNats-Msg-Id:x",
            "a=1\r\n;p",
            "a=1;\u{b}p",
            "a=\\",
            "a=1;=",
            &many("a=1", 65),
            &format!("a={}", "x".repeat(4_096)),
        ] {
            assert!(lines(None, Some(wrong)).is_empty(), "{wrong}");
        }
        for wrong in ["", "x", &PARENT.replace("00-4", "01-4"), &PARENT.replace('b', "B"), &format!("{PARENT}-x")] {
            assert_eq!(TraceContext::new(Some(wrong), Some("a=1"), None), TraceContext::default(), "{wrong}");
        }
    }
}
