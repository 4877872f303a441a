//! Bytes from a broker, in pieces, and the header blocks in them: what a connection of our own reads before anybody is authenticated.
//!
//! The first byte says how large the pieces are; everything after it is the stream.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use sealwire::internal::nats::{Message, Op, Parser, ProtocolError};
use sealwire::internal::wire::Envelope;
use sealwire::serve::Delivery;
use sealwire_fuzz::Service;

const MAX: usize = 4096;

fuzz_target!(|input: &[u8]| {
    let Some((size, stream)) = input.split_first() else { return };
    let whole = read(stream, stream.len().max(1));
    let pieces = read(stream, usize::from(*size).max(1));
    assert_eq!(whole, pieces, "the same operations, and the same end");
    for op in whole.0 {
        if let Op::Message(message) = op {
            judge(message);
        }
    }
});

fn read(stream: &[u8], size: usize) -> (Vec<Op>, Option<ProtocolError>) {
    let (mut parser, mut buffer, mut ops) = (Parser::new(MAX), BytesMut::new(), Vec::new());
    for piece in stream.chunks(size) {
        buffer.extend_from_slice(piece);
        loop {
            match parser.next(&mut buffer) {
                Ok(Some(op)) => ops.push(op),
                Ok(None) => break,
                Err(error) => return (ops, Some(error)),
            }
        }
    }
    (ops, None)
}

/// Whatever is in a message, it is refused or taken apart, and it is taken apart only if it has exactly the right form.
fn judge(message: Message) {
    assert!(message.headers.len() + message.payload.len() <= MAX);
    assert!(!message.oversized || message.headers.is_empty() && message.payload.is_empty());
    let headers = message.headers.clone();
    if Envelope::decode(Delivery::from(message), &Service::get().endpoint).is_err() {
        return;
    }
    let text = std::str::from_utf8(&headers).expect("a block that is taken is UTF-8");
    let lines = text.strip_prefix("NATS/1.0\r\n").and_then(|rest| rest.strip_suffix("\r\n\r\n")).expect("both ends");
    let mut found = 0;
    for line in lines.split("\r\n") {
        assert!(!line.chars().any(|c| c.is_ascii_control() && c != '\t'), "{line:?}");
        let (name, value) = line.split_once(':').expect("a name and a value");
        assert!(!name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic()), "{name:?}");
        if name.eq_ignore_ascii_case("authorization") {
            found += 1;
            let value = value.strip_prefix(' ').unwrap_or(value);
            let credentials = value.strip_prefix("NatsRpc ").expect("the scheme and one space, and nothing before it");
            assert!(credentials.bytes().all(|byte| byte.is_ascii_graphic()), "nothing was trimmed: {value:?}");
        }
    }
    assert_eq!(found, 1);
}
