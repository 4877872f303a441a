//! Which span in which trace: W3C Trace Context, version 00.
//! Never takes a text that another implementation would read differently.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::wire::is_traceparent;

/// A span, as others name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanContext {
    /// Its trace.
    pub trace: [u8; 16],
    /// The span.
    pub span: [u8; 8],
    /// Whether it is recorded.
    pub is_sampled: bool,
}

impl SpanContext {
    /// Reads a `traceparent` of version 00.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if !is_traceparent(text) {
            return None;
        }
        let flags = u8::from_str_radix(text.get(53..)?, 16).ok()?;
        Some(Self { trace: bytes(text.get(3..35)?)?, span: bytes(text.get(36..52)?)?, is_sampled: flags & 1 == 1 })
    }

    /// The `traceparent` that names it.
    #[must_use]
    pub fn to_text(self) -> String {
        let mut text = String::with_capacity(55);
        text.push_str("00-");
        hex(&self.trace, &mut text);
        text.push('-');
        hex(&self.span, &mut text);
        text.push_str(if self.is_sampled { "-01" } else { "-00" });
        text
    }
}

/// A trace, and the span in it that is continued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ids {
    pub(super) trace: [u8; 16],
    /// `None` for a trace that has no span yet.
    pub(super) parent: Option<[u8; 8]>,
    pub(super) is_sampled: bool,
    /// Whether the span is another program's.
    pub(super) is_remote: bool,
}

impl Ids {
    /// Those of a span of another program.
    pub(super) fn of(context: SpanContext) -> Self {
        let SpanContext { trace, span, is_sampled } = context;
        Self { trace, parent: Some(span), is_sampled, is_remote: true }
    }

    pub(super) fn context(self) -> Option<SpanContext> {
        Some(SpanContext { trace: self.trace, span: self.parent?, is_sampled: self.is_sampled })
    }
}

/// A new id of a trace.
pub(crate) fn new_trace() -> [u8; 16] {
    let mut id = [0; 16];
    for (part, random) in id.chunks_exact_mut(8).zip([random(), random()]) {
        part.copy_from_slice(&random.to_be_bytes());
    }
    id
}

/// A new id of a span.
pub(super) fn new_span() -> [u8; 8] {
    random().to_be_bytes()
}

/// Random, and not 0, which names nothing. SipHash of a counter under a secret key: ids have to differ, and need not be secret.
fn random() -> u64 {
    static KEYS: LazyLock<[RandomState; 2]> = LazyLock::new(|| [RandomState::new(), RandomState::new()]);
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let [first, second] = &*KEYS;
    match first.hash_one(count) {
        0 => second.hash_one(count) | 1,
        random => random,
    }
}

/// Appends lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8], text: &mut String) {
    let digit = |value: u8| char::from(if value < 10 { b'0' + value } else { b'a' + value - 10 });
    for byte in bytes {
        text.push(digit(byte >> 4));
        text.push(digit(byte & 15));
    }
}

fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    /// SPEC.md §6.2.
    #[test]
    fn a_traceparent_is_read_and_written() {
        let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let context = SpanContext::parse(text).unwrap();
        assert_eq!((context.trace[0], context.span[7], context.is_sampled), (0x4b, 0xb7, true));
        assert_eq!(context.to_text(), text);
        // Other flags are not passed on: they would speak of what we do not do.
        let other = SpanContext::parse(&text.replace("-01", "-fe")).unwrap();
        assert_eq!((other.is_sampled, other.to_text()), (false, text.replace("-01", "-00")));
        for wrong in ["", "00", &text.replace("00-4", "01-4"), &text.replace('b', "B"), &format!("{text}-")] {
            assert_eq!(SpanContext::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn new_ids_differ_and_are_never_zero() {
        let ids: std::collections::HashSet<_> = (0..10_000).map(|_| new_span()).collect();
        assert!(ids.len() == 10_000 && !ids.contains(&[0; 8]));
        assert!(new_trace() != new_trace());
    }
}
