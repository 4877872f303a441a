#![allow(clippy::unwrap_used, reason = "tests")]
use proptest::prelude::*;

use super::*;

const MAX: usize = 1024;

/// All operations in `bytes`, offered in pieces of these sizes (and then of one byte), and how parsing ended.
fn parse(bytes: &[u8], pieces: &[usize]) -> (Vec<Op>, Result<(), ProtocolError>) {
    let (mut parser, mut buffer, mut ops) = (Parser::new(MAX), BytesMut::new(), Vec::new());
    let mut rest = bytes;
    let mut pieces = pieces.iter();
    while !rest.is_empty() {
        let size = pieces.next().copied().unwrap_or(1).clamp(1, rest.len());
        buffer.extend_from_slice(&rest[..size]);
        rest = &rest[size..];
        loop {
            match parser.next(&mut buffer) {
                Ok(Some(op)) => ops.push(op),
                Ok(None) => break,
                Err(error) => return (ops, Err(error)),
            }
        }
        assert!(buffer.len() <= MAX.max(MAX_LINE) + 2, "{} bytes are held", buffer.len());
    }
    (ops, Ok(()))
}

fn one(bytes: &[u8]) -> Result<Op, ProtocolError> {
    let (mut ops, end) = parse(bytes, &[bytes.len()]);
    end.map(|()| ops.pop().unwrap())
}

fn message(bytes: &[u8]) -> Message {
    match one(bytes) {
        Ok(Op::Message(message)) => message,
        other => panic!("{other:?}"),
    }
}

#[test]
fn operations_are_read() {
    assert_eq!(one(b"PING\r\n"), Ok(Op::Ping));
    assert_eq!(one(b"pong\r\n"), Ok(Op::Pong));
    assert_eq!(one(b"+OK\r\n"), Ok(Op::Ok));
    assert_eq!(one(b"-ERR 'Stale Connection'\r\n"), Ok(Op::Error("Stale Connection".into())));
    let Ok(Op::Info(info)) = one(b"INFO {\"server_id\":\"S\",\"max_payload\":5,\"ldm\":true,\"x\":[1]} \r\n") else {
        panic!()
    };
    assert!(info.server_id == "S" && info.max_payload == 5 && info.ldm && !info.headers);
}

#[test]
fn messages_are_taken_apart_and_not_looked_into() {
    let plain = message(b"MSG a.b 7 3\r\nx\r\n\r\n");
    assert_eq!((plain.sid, plain.subject.as_str(), plain.reply.as_deref()), (7, "a.b", None));
    assert_eq!((plain.headers.as_ref(), plain.payload.as_ref()), (&b""[..], &b"x\r\n"[..]));
    let full = message(b"HMSG a  7\tr 4 6\r\n\xff\r\n\0ok\r\n");
    assert_eq!(full.reply.as_deref(), Some("r"));
    assert_eq!((full.headers.as_ref(), full.payload.as_ref()), (&b"\xff\r\n\0"[..], &b"ok"[..]));
    assert_eq!(message(b"HMSG a 7 0 0\r\n\r\n").payload.len(), 0);
    // No rule for subjects accepts it, and it does no harm either.
    assert_eq!(message(b"MSG a.\xff 7 0\r\n\r\n").subject, "a.\u{fffd}");
}

#[test]
fn an_oversized_message_is_passed_over_and_told() {
    let mut bytes = b"HMSG big 1 r 10 5000\r\n".to_vec();
    bytes.extend(std::iter::repeat_n(b'\n', 5000));
    bytes.extend_from_slice(b"\r\nMSG next 2 1\r\nx\r\n");
    for size in [1, 2, 100, 5000, 10_000] {
        let (ops, end) = parse(&bytes, &vec![size; 10_000]);
        assert_eq!((ops.len(), end), (2, Ok(())), "{size}");
        let Op::Message(big) = &ops[0] else { panic!() };
        assert!(big.oversized && big.payload.is_empty() && big.reply.as_deref() == Some("r"));
        assert!(matches!(&ops[1], Op::Message(next) if next.subject == "next" && !next.oversized));
    }
    let mut broken = b"MSG big 1 5000\r\n".to_vec();
    broken.extend(std::iter::repeat_n(b'x', 5002));
    assert_eq!(one(&broken), Err(ProtocolError::Frame));
}

#[test]
fn what_breaks_the_framing_is_an_error() {
    for (bytes, error) in [
        (&b"MSG a 7 3\r\nabcd\r\n"[..], ProtocolError::Frame),
        (b"MSG a 7\r\n\r\n", ProtocolError::Frame),
        (b"MSG a x 0\r\n\r\n", ProtocolError::Frame),
        (b"MSG a 7 r s 0\r\n\r\n", ProtocolError::Frame),
        (b"MSG a 7 -1\r\n\r\n", ProtocolError::Frame),
        (b"MSG a 7 99999999999\r\n\r\n", ProtocolError::Frame),
        (b"HMSG a 7 3\r\nabc\r\n", ProtocolError::Frame),
        (b"HMSG a 7 4 3\r\nabc\r\n", ProtocolError::Frame),
        (b"INFO {\r\n", ProtocolError::Info),
        (b"INFO\r\n", ProtocolError::Info),
        (b"HELLO\r\n", ProtocolError::Operation),
        (b"\r\n", ProtocolError::Operation),
        (b"PINGPONG\r\n", ProtocolError::Operation),
    ] {
        assert_eq!(one(bytes), Err(error), "{}", String::from_utf8_lossy(bytes));
        assert_eq!(parse(bytes, &[]).1, Err(error), "byte by byte");
    }
    let endless = vec![b'x'; MAX_LINE + 1];
    assert_eq!(parse(&endless, &[endless.len()]).1, Err(ProtocolError::Line));
    assert_eq!(parse(&[&endless[..], b"\r\n"].concat(), &[endless.len() + 2]).1, Err(ProtocolError::Line));
}

#[test]
fn a_waiting_message_keeps_nothing_but_itself_alive() {
    let mut buffer = BytesMut::from(&b"MSG a 1 2\r\nhi\r\n"[..]);
    buffer.reserve(1 << 20);
    let start = buffer.as_ptr();
    let Ok(Some(Op::Message(message))) = Parser::new(MAX).next(&mut buffer) else { panic!() };
    assert!(!(start..start.wrapping_add(64)).contains(&message.payload.as_ptr()), "it is a copy");
    assert!(message.payload.try_into_mut().is_ok_and(|payload| payload.capacity() < 64));
}

fn op() -> impl Strategy<Value = Vec<u8>> {
    let body = prop::collection::vec(prop::sample::select(&b"\r\n \tMSG{}'\xff\0"[..]), 0..40);
    let headers = prop::collection::vec(any::<u8>(), 0..40);
    let frame = |name: &str, sizes: String, parts: &[&[u8]]| {
        [format!("{name} a.b 3 {sizes}\r\n").as_bytes(), &parts.concat(), b"\r\n"].concat()
    };
    prop_oneof![
        Just(b"PING\r\n".to_vec()),
        Just(b"PONG\r\n".to_vec()),
        Just(b"-ERR 'x y'\r\n".to_vec()),
        Just(b"INFO {\"nonce\":\"n\"}\r\n".to_vec()),
        body.clone().prop_map(move |body| frame("MSG", format!("r {}", body.len()), &[&body])),
        (headers, body).prop_map(move |(head, body)| {
            frame("HMSG", format!("{} {}", head.len(), head.len() + body.len()), &[&head, &body])
        }),
        (MAX..2 * MAX).prop_map(move |size| frame("MSG", size.to_string(), &[&vec![b'\r'; size]])),
    ]
}

proptest! {
    #[test]
    fn pieces_of_any_size_give_the_same_operations(
        ops in prop::collection::vec(op(), 0..12),
        pieces in prop::collection::vec(1..200_usize, 0..200),
    ) {
        let bytes = ops.concat();
        let whole = parse(&bytes, &[bytes.len()]);
        prop_assert_eq!(whole.0.len(), ops.len());
        prop_assert_eq!(&whole.1, &Ok(()));
        prop_assert_eq!(&parse(&bytes, &pieces), &whole);
        prop_assert_eq!(&parse(&bytes, &[]), &whole);
    }

    #[test]
    fn arbitrary_bytes_in_pieces_of_any_size_end_alike(
        bytes in prop::collection::vec(prop::sample::select(&b"MSGHPINO+-ERK {}\r\n0123\xff"[..]), 0..300),
        pieces in prop::collection::vec(1..50_usize, 0..50),
    ) {
        prop_assert_eq!(parse(&bytes, &pieces), parse(&bytes, &[bytes.len()]));
    }
}
