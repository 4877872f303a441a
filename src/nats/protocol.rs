//! The NATS client protocol, as a client reads it: bytes in, operations out. No socket, no clock.
//! Never looks into headers or payloads, and never holds more than one message of the allowed size.

use bytes::{Buf as _, Bytes, BytesMut};
use serde::Deserialize;

/// One operation sent by the broker.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// The broker's description of itself: sent first, and again whenever it changes.
    Info(Box<Info>),
    /// A message.
    Message(Message),
    /// The broker asks whether we are there.
    Ping,
    /// The answer to one of our `PING`s: everything sent before it has been handled.
    Pong,
    /// An operation was accepted; only in verbose mode.
    Ok,
    /// The text of an error.
    Error(String),
}

/// A message. Nothing in it has been checked.
#[derive(Clone, PartialEq, Eq)]
pub struct Message {
    /// The number of its subscription on this connection.
    pub sid: u64,
    /// The subject. Bytes that are not UTF-8 are replaced, so no rule for subjects accepts it.
    pub subject: String,
    /// The reply subject, likewise.
    pub reply: Option<String>,
    /// The header block as on the wire, including version line and closing empty line; empty if there is none.
    pub headers: Bytes,
    /// The payload.
    pub payload: Bytes,
    /// The message exceeded our limit. Its headers and payload were skipped, so both are empty here.
    pub oversized: bool,
}

/// Omits headers and payload: they hold tokens, parameters and results.
impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Message")
            .field("sid", &self.sid)
            .field("subject", &self.subject)
            .field("reply", &self.reply)
            .field("headers", &self.headers.len())
            .field("payload", &self.payload.len())
            .field("oversized", &self.oversized)
            .finish()
    }
}

/// A broker's description of itself, as far as we use it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Info {
    /// The broker's id, new after each start.
    pub server_id: String,
    /// The largest message, headers included, in bytes.
    pub max_payload: usize,
    /// The challenge to sign with an nkey.
    pub nonce: Option<String>,
    /// Whether the broker only accepts TLS.
    pub tls_required: bool,
    /// Whether the broker supports headers.
    pub headers: bool,
    /// `host:port` of brokers in the same cluster.
    pub connect_urls: Vec<String>,
    /// Whether the broker is in lame duck mode.
    pub ldm: bool,
}

/// The other end does not follow the protocol. Only the broker can be to blame: what peers send is inside its frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A line does not end.
    #[error("a line of the broker is longer than {MAX_LINE} bytes")]
    Line,
    /// Neither of the operations above.
    #[error("the broker sends something that is not an operation of the NATS client protocol")]
    Operation,
    /// `MSG` or `HMSG` with invalid fields.
    #[error("a message of the broker has invalid framing")]
    Frame,
    /// `INFO` with invalid JSON.
    #[error("the broker's INFO cannot be read")]
    Info,
}

/// The longest line. Brokers accept control lines of 4,096 bytes from clients and add a few bytes for the
/// subscription's number; their own `INFO` lists a cluster's addresses.
pub(super) const MAX_LINE: usize = 64 * 1024;

/// Parses operations from a buffer that the caller fills.
///
/// It never needs more than `max_message` bytes in the buffer, or the longest line if that is more: larger messages are
/// skipped piece by piece and reported as [oversized](Message::oversized).
#[derive(Debug)]
pub struct Parser {
    max_message: usize,
    state: State,
}

#[derive(Debug)]
enum State {
    /// A line is next; this many bytes of it contain no line end.
    Line(usize),
    /// Headers and payload of this message are next, then a line end.
    Body(Head),
    /// This many bytes of an oversized message are to be skipped, then a line end.
    Skip(Head, usize),
}

#[derive(Debug)]
struct Head {
    sid: u64,
    subject: String,
    reply: Option<String>,
    headers: usize,
    total: usize,
}

impl Parser {
    /// Accepts messages of up to `max_message` bytes, headers included.
    #[must_use]
    pub fn new(max_message: usize) -> Self {
        Self { max_message, state: State::Line(0) }
    }

    /// Takes the next operation out of the buffer. `None` means that more bytes are needed.
    ///
    /// # Errors
    /// [`ProtocolError`]: nothing that follows can be parsed.
    pub fn next(&mut self, input: &mut BytesMut) -> Result<Option<Op>, ProtocolError> {
        loop {
            match &mut self.state {
                State::Line(scanned) => {
                    let fresh = input.get(*scanned..).unwrap_or_default();
                    let Some(end) = fresh.iter().position(|byte| *byte == b'\n') else {
                        *scanned = input.len();
                        return if input.len() > MAX_LINE { Err(ProtocolError::Line) } else { Ok(None) };
                    };
                    let end = *scanned + end;
                    if end > MAX_LINE {
                        return Err(ProtocolError::Line);
                    }
                    *scanned = 0;
                    let line = input.get(..end).unwrap_or_default();
                    let parsed = parse_line(line.strip_suffix(b"\r").unwrap_or(line));
                    input.advance(end + 1);
                    match parsed? {
                        Line::Op(op) => return Ok(Some(op)),
                        Line::Head(head) if head.total > self.max_message => {
                            let left = head.total;
                            self.state = State::Skip(head, left);
                        }
                        Line::Head(head) => self.state = State::Body(head),
                    }
                }
                State::Body(head) => {
                    let Some((body, rest)) = input.split_at_checked(head.total) else { return Ok(None) };
                    match rest {
                        [b'\r', b'\n', ..] => {}
                        [] | [b'\r'] => return Ok(None),
                        _ => return Err(ProtocolError::Frame),
                    }
                    // Copied: a slice would keep the whole buffer alive for as long as the message waits.
                    let body = Bytes::copy_from_slice(body);
                    let message = head.message(body.slice(..head.headers), body.slice(head.headers..), false);
                    input.advance(head.total + 2);
                    self.state = State::Line(0);
                    return Ok(Some(Op::Message(message)));
                }
                State::Skip(head, left) => {
                    let now = input.len().min(*left);
                    input.advance(now);
                    *left -= now;
                    match input.as_ref() {
                        [b'\r', b'\n', ..] if *left == 0 => {}
                        [] | [b'\r'] => return Ok(None),
                        _ => return Err(ProtocolError::Frame),
                    }
                    let message = head.message(Bytes::new(), Bytes::new(), true);
                    input.advance(2);
                    self.state = State::Line(0);
                    return Ok(Some(Op::Message(message)));
                }
            }
        }
    }
}

impl Head {
    fn message(&mut self, headers: Bytes, payload: Bytes, oversized: bool) -> Message {
        let (subject, reply) = (std::mem::take(&mut self.subject), self.reply.take());
        Message { sid: self.sid, subject, reply, headers, payload, oversized }
    }
}

enum Line {
    Op(Op),
    Head(Head),
}

fn parse_line(line: &[u8]) -> Result<Line, ProtocolError> {
    let end = line.iter().position(|byte| is_blank(*byte)).unwrap_or(line.len());
    let (name, rest) = line.split_at_checked(end).unwrap_or((line, &[]));
    let is = |operation: &str| name.eq_ignore_ascii_case(operation.as_bytes());
    let op = if is("MSG") {
        return head(rest, false).map(Line::Head).ok_or(ProtocolError::Frame);
    } else if is("HMSG") {
        return head(rest, true).map(Line::Head).ok_or(ProtocolError::Frame);
    } else if is("PING") {
        Op::Ping
    } else if is("PONG") {
        Op::Pong
    } else if is("+OK") {
        Op::Ok
    } else if is("-ERR") {
        let text = String::from_utf8_lossy(rest);
        Op::Error(text.trim().trim_matches('\'').to_owned())
    } else if is("INFO") {
        Op::Info(serde_json::from_slice(rest).map_err(|_| ProtocolError::Info)?)
    } else {
        return Err(ProtocolError::Operation);
    };
    Ok(Line::Op(op))
}

/// Parses `MSG <subject> <sid> [reply] <bytes>` or `HMSG <subject> <sid> [reply] <header bytes> <total bytes>`.
fn head(rest: &[u8], with_headers: bool) -> Option<Head> {
    let mut fields = rest.split(|byte| is_blank(*byte)).filter(|field| !field.is_empty());
    let (subject, sid) = (fields.next()?, fields.next()?);
    let total = number(fields.next_back()?)?;
    let headers = if with_headers { number(fields.next_back()?)? } else { 0 };
    let reply = fields.next();
    if fields.next().is_some() || headers > total {
        return None;
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Some(Head {
        sid: u64::try_from(number(sid)?).ok()?,
        subject: text(subject),
        reply: reply.map(text),
        headers,
        total,
    })
}

/// Field separators. Other white space may be part of a subject.
fn is_blank(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

/// A number of at most ten digits. Brokers use 32-bit sizes.
fn number(digits: &[u8]) -> Option<usize> {
    if digits.is_empty() || digits.len() > 10 {
        return None;
    }
    digits.iter().try_fold(0_usize, |number, digit| {
        let digit = char::from(*digit).to_digit(10)?;
        number.checked_mul(10)?.checked_add(usize::try_from(digit).ok()?)
    })
}

#[cfg(test)]
mod tests;
