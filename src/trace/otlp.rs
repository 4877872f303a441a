//! OpenTelemetry's protocol, of which we need eight messages: `opentelemetry/proto/collector/trace/v1` and what it refers to, 1.x, stable.
//! Never reads more of an answer than how many spans it refuses.

use super::context::Ids;
use super::data::{Kind, Value};

/// A span that has ended.
pub(super) struct Span<'a> {
    pub(super) ids: Ids,
    pub(super) id: [u8; 8],
    pub(super) link: Option<Ids>,
    pub(super) kind: Kind,
    pub(super) name: &'a str,
    pub(super) began_ns: u64,
    pub(super) ended_ns: u64,
    pub(super) attributes: &'a [(&'static str, Value<'static>)],
    pub(super) has_failed: bool,
}

/// `Span.flags`: sampled, and whether it is known that the parent is another program's.
const SAMPLED: u32 = 1;
const KNOWS_REMOTE: u32 = 0x100;
const IS_REMOTE: u32 = 0x200;

impl Span<'_> {
    /// `opentelemetry.proto.trace.v1.Span`.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut span = Message::with_capacity(512);
        span.bytes(1, &self.ids.trace).bytes(2, &self.id);
        if let Some(parent) = &self.ids.parent {
            span.bytes(4, parent);
        }
        span.bytes(5, self.name.as_bytes());
        span.number(
            6,
            match self.kind {
                Kind::Internal => 1,
                Kind::Server => 2,
                Kind::Client => 3,
            },
        );
        span.fixed64(7, self.began_ns).fixed64(8, self.ended_ns);
        for (key, value) in self.attributes {
            span.bytes(9, &attribute(key, value));
        }
        if let Some(Ids { trace, parent: Some(parent), is_sampled, is_remote }) = &self.link {
            let mut link = Message::default();
            link.bytes(1, trace).bytes(2, parent).fixed32(6, flags(*is_sampled, *is_remote));
            span.bytes(13, &link.0);
        }
        if self.has_failed {
            let mut status = Message::default();
            status.number(3, 2);
            span.bytes(15, &status.0);
        }
        span.fixed32(16, flags(true, self.ids.is_remote));
        span.0
    }
}

fn flags(is_sampled: bool, is_remote: bool) -> u32 {
    KNOWS_REMOTE | if is_sampled { SAMPLED } else { 0 } | if is_remote { IS_REMOTE } else { 0 }
}

/// `Resource`, with these attributes.
pub(crate) fn resource(attributes: &[(String, String)]) -> Vec<u8> {
    let mut resource = Message::default();
    for (key, value) in attributes {
        resource.bytes(1, &attribute(key, &Value::from(value.as_str())));
    }
    resource.0
}

/// `ExportTraceServiceRequest`, with these encoded spans.
pub(crate) fn request(resource: &[u8], spans: &[Vec<u8>]) -> Vec<u8> {
    let mut scope = Message::default();
    scope.bytes(1, env!("CARGO_PKG_NAME").as_bytes()).bytes(2, env!("CARGO_PKG_VERSION").as_bytes());
    let size = spans.iter().map(|span| span.len() + 6).sum::<usize>();
    let mut scope_spans = Message::with_capacity(size + scope.0.len() + 6);
    scope_spans.bytes(1, &scope.0);
    for span in spans {
        scope_spans.bytes(2, span);
    }
    let mut resource_spans = Message::with_capacity(scope_spans.0.len() + resource.len() + 12);
    resource_spans.bytes(1, resource).bytes(2, &scope_spans.0);
    let mut request = Message::with_capacity(resource_spans.0.len() + 6);
    request.bytes(1, &resource_spans.0);
    request.0
}

/// How many spans an `ExportTraceServiceResponse` says were refused; 0 for anything that is none.
pub(crate) fn refused_spans(response: &[u8]) -> u64 {
    let partial = field(response, 1).and_then(|found| if let Found::Bytes(bytes) = found { Some(bytes) } else { None });
    match partial.and_then(|partial| field(partial, 1)) {
        Some(Found::Number(refused)) => refused,
        _ => 0,
    }
}

/// `KeyValue`.
fn attribute(key: &str, value: &Value<'_>) -> Vec<u8> {
    let mut any = Message::default();
    match value {
        Value::Text(text) => any.bytes(1, text.as_bytes()),
        Value::Number(number) => any.number(3, number.cast_unsigned()),
    };
    let mut pair = Message::with_capacity(key.len() + any.0.len() + 8);
    pair.bytes(1, key.as_bytes()).bytes(2, &any.0);
    pair.0
}

/// A message of Protocol Buffers that is being written.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn with_capacity(bytes: usize) -> Self {
        Self(Vec::with_capacity(bytes))
    }

    fn bytes(&mut self, field: u32, bytes: &[u8]) -> &mut Self {
        self.tag(field, 2).varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    fn number(&mut self, field: u32, number: u64) -> &mut Self {
        self.tag(field, 0).varint(number)
    }

    fn fixed64(&mut self, field: u32, number: u64) -> &mut Self {
        self.tag(field, 1).0.extend_from_slice(&number.to_le_bytes());
        self
    }

    fn fixed32(&mut self, field: u32, number: u32) -> &mut Self {
        self.tag(field, 5).0.extend_from_slice(&number.to_le_bytes());
        self
    }

    fn tag(&mut self, field: u32, wire: u32) -> &mut Self {
        self.varint(u64::from(field << 3 | wire))
    }

    fn varint(&mut self, mut number: u64) -> &mut Self {
        while number >= 0x80 {
            #[expect(clippy::cast_possible_truncation, reason = "the lowest seven bits")]
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        #[expect(clippy::cast_possible_truncation, reason = "less than 128")]
        self.0.push(number as u8);
        self
    }
}

/// The value of a field.
enum Found<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The first value of a field of a message; `None` if there is none, or the bytes are no message.
fn field(mut message: &[u8], wanted: u64) -> Option<Found<'_>> {
    loop {
        let tag = varint(&mut message)?;
        let found = match tag & 7 {
            0 => Found::Number(varint(&mut message)?),
            1 => Found::Bytes(message.split_off(..8)?),
            2 => {
                let length = usize::try_from(varint(&mut message)?).ok()?;
                Found::Bytes(message.split_off(..length)?)
            }
            5 => Found::Bytes(message.split_off(..4)?),
            _ => return None,
        };
        if tag >> 3 == wanted {
            return Some(found);
        }
    }
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.split_off_first()?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The messages themselves are read by others' decoders in `tests/bus/traces.rs`.
    #[test]
    fn an_answer_says_how_many_spans_were_refused_and_anything_else_says_none() {
        let mut partial = Message::default();
        partial.bytes(2, b"too old").number(1, 300);
        let mut response = Message::default();
        response.fixed64(9, 1).fixed32(8, 1).bytes(1, &partial.0);
        assert_eq!(refused_spans(&response.0), 300);
        for end in 0..response.0.len() {
            assert_eq!(refused_spans(response.0.get(..end).unwrap_or_default()), 0, "{end}");
        }
        for garbage in [&b""[..], b"<html>", b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", &[0xff; 64], b"\x0b\x0c"]
        {
            assert_eq!(refused_spans(garbage), 0);
        }
    }
}
