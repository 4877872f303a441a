//! The framing of HTTP/1.1 requests, by their bytes: what hyper takes in silence, and somebody on the way may have read differently.
//! Never changes what is read: what is wrong with a request is told with it.

use std::collections::VecDeque;

/// In the extensions of a request: why its end, or that of a header, depends on who reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flaw(pub(crate) &'static str);

/// The requests of a connection.
#[derive(Debug, Default)]
pub(super) struct Framing {
    state: State,
    /// Of the requests whose heads have arrived, and that hyper has not passed on. Bounded by its buffer.
    heads: VecDeque<Option<Flaw>>,
}

#[derive(Debug)]
enum State {
    Head(Head),
    /// This many bytes of a body are still to come.
    Body(u64),
    /// The line with the size of a chunk, as far as it is a number.
    Size(u64),
    /// The rest of that line.
    Extension(u64),
    Chunk(u64),
    /// The end of the line after a chunk.
    Chunked,
    /// A line of the trailers.
    Trailer {
        has_any: bool,
        has_cr: bool,
    },
    /// What follows is not HTTP/1.1.
    Other,
    /// Where a body ends depends on who reads it.
    Ambiguous,
}

/// The head of a request, as far as it has arrived.
#[derive(Debug, Default)]
struct Head {
    /// Its request line has arrived.
    has_begun: bool,
    /// It is the preface of HTTP/2.
    is_http2: bool,
    /// The beginning of the current line, as long as the longest name below.
    name: Vec<u8>,
    /// How long the line is, and where its name ends.
    line: usize,
    named: Option<usize>,
    has_cr: bool,
    /// The digits of the last `Content-Length`.
    length: u64,
    lengths: usize,
    codings: usize,
    flaw: Option<Flaw>,
}

const LENGTH: &[u8] = b"content-length";
const CODING: &[u8] = b"transfer-encoding";
/// RFC 9113 §3.4, in lower case. hyper refuses it as a request line.
const PREFACE: &[u8] = b"pri * http/2.0";

impl Default for State {
    fn default() -> Self {
        Self::Head(Head::default())
    }
}

impl Framing {
    /// Bytes that have arrived. Returns how many of them can be read in one way only; where they end, so must the connection.
    pub(super) fn take(&mut self, all: &[u8]) -> usize {
        let mut bytes = all;
        while let Some((first, rest)) = bytes.split_first() {
            match &mut self.state {
                State::Other => break,
                State::Ambiguous => return all.len() - bytes.len(),
                State::Body(left) | State::Chunk(left) => {
                    let now = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                    *left -= now as u64;
                    bytes = bytes.get(now..).unwrap_or_default();
                    if *left == 0 {
                        self.state =
                            if matches!(self.state, State::Body(_)) { State::default() } else { State::Chunked };
                    }
                }
                State::Head(head) => {
                    bytes = rest;
                    if head.take(*first) {
                        self.heads.push_back(head.judged());
                        self.state = head.body();
                    } else if head.is_http2 {
                        self.end();
                    }
                }
                State::Size(size) | State::Extension(size) if *first == b'\n' => {
                    bytes = rest;
                    self.state = match *size {
                        0 => State::Trailer { has_any: false, has_cr: false },
                        size => State::Chunk(size),
                    };
                }
                State::Size(size) => {
                    bytes = rest;
                    match char::from(*first).to_digit(16) {
                        Some(digit) => *size = size.saturating_mul(16).saturating_add(digit.into()),
                        None => self.state = State::Extension(*size),
                    }
                }
                State::Trailer { has_any, has_cr } => {
                    if *first == b'\n' && !*has_cr {
                        // For hyper, the line goes on: what others take for the next request would be a part of it.
                        self.state = State::Ambiguous;
                        continue;
                    }
                    bytes = rest;
                    match first {
                        b'\n' if *has_any => (*has_any, *has_cr) = (false, false),
                        b'\n' => self.state = State::default(),
                        b'\r' => *has_cr = true,
                        _ => (*has_any, *has_cr) = (true, false),
                    }
                }
                State::Extension(_) => bytes = rest,
                State::Chunked => {
                    bytes = rest;
                    if *first == b'\n' {
                        self.state = State::Size(0);
                    }
                }
            }
        }
        all.len()
    }

    /// Whether nothing more may be read.
    pub(super) fn is_ambiguous(&self) -> bool {
        matches!(self.state, State::Ambiguous)
    }

    /// What is wrong with the next request.
    pub(super) fn next(&mut self) -> Option<Flaw> {
        // Fails only if this file reads heads differently than hyper.
        self.heads.pop_front().unwrap_or(Some(Flaw("the head of the request is ambiguous")))
    }

    /// Whether what arrives is HTTP/1.1, as far as is known.
    pub(super) fn is_http1(&self) -> bool {
        !matches!(self.state, State::Other)
    }

    /// From now on the connection carries something else.
    pub(super) fn end(&mut self) {
        *self = Self { state: State::Other, heads: VecDeque::new() };
    }
}

impl Head {
    /// Takes a byte. Returns whether it is the last.
    fn take(&mut self, byte: u8) -> bool {
        if byte == b'\n' {
            return self.line_ends();
        }
        if self.has_cr {
            self.flaw = Some(Flaw("a line of the head has a carriage return in it"));
        }
        self.has_cr = byte == b'\r';
        if self.has_cr {
            return false;
        }
        match self.named {
            None if byte == b':' => self.named = Some(self.line),
            None if self.name.len() <= CODING.len() => self.name.push(byte.to_ascii_lowercase()),
            Some(end) if byte.is_ascii_digit() && self.is(LENGTH, end) => {
                self.length = self.length.saturating_mul(10).saturating_add(u64::from(byte - b'0'));
            }
            _ => {}
        }
        self.line += 1;
        false
    }

    fn is(&self, name: &[u8], end: usize) -> bool {
        end == name.len() && self.name == name && self.has_begun
    }

    fn line_ends(&mut self) -> bool {
        let is_empty = self.line == 0;
        // RFC 9112 §2.2 lets a recipient take it as the end of a line, and some on the way do not.
        if !std::mem::take(&mut self.has_cr) {
            self.flaw = Some(Flaw("a line of the head ends without a carriage return"));
        }
        // RFC 9112 §2.2: empty lines before a request are ignored.
        if is_empty && !self.has_begun {
            return false;
        }
        if let Some(end) = self.named {
            self.lengths += usize::from(self.is(LENGTH, end));
            self.codings += usize::from(self.is(CODING, end));
        }
        self.is_http2 = !self.has_begun && self.name == PREFACE;
        self.has_begun = true;
        (self.line, self.named) = (0, None);
        self.name.clear();
        is_empty
    }

    fn judged(&self) -> Option<Flaw> {
        match (self.lengths, self.codings) {
            (2.., _) => Some(Flaw("`content-length` occurs more than once")),
            // RFC 9112 §6.3: the length is ignored, but an intermediary may have gone by it.
            (1, 1..) => Some(Flaw("a body has `Content-Length` or `Transfer-Encoding`, and not both")),
            _ => self.flaw,
        }
    }

    /// What follows. hyper refuses any other coding than chunked.
    fn body(&self) -> State {
        match (self.codings, self.length) {
            (0, 0) => State::default(),
            (0, length) => State::Body(length),
            _ => State::Size(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWICE: &str = "`content-length` occurs more than once";
    const BOTH: &str = "a body has `Content-Length` or `Transfer-Encoding`, and not both";
    const BARE: &str = "a line of the head ends without a carriage return";
    const CR: &str = "a line of the head has a carriage return in it";

    /// What is wrong with each request of these bytes, whether they come at once or one by one.
    fn flaws(bytes: &str) -> Vec<Option<&'static str>> {
        let read = |size: usize| {
            let mut framing = Framing::default();
            bytes.as_bytes().chunks(size).for_each(|some| assert_eq!(framing.take(some), some.len(), "{bytes:?}"));
            framing.heads.into_iter().map(|flaw| flaw.map(|Flaw(why)| why)).collect::<Vec<_>>()
        };
        let all = read(usize::MAX);
        assert!(read(1) == all && read(3) == all, "{bytes:?}");
        all
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_told() {
        let head = |lines: &str| format!("POST / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
        for (lines, flaw) in [
            ("", None),
            ("Content-Length: 0\r\n", None),
            ("X-Content-Length: 1\r\nContent-Lengths: 2\r\nContent-Lengt: 3\r\n", None),
            ("X: content-length: 1\r\nY: transfer-encoding\r\n", None),
            ("Content-Length: 0\r\nContent-Length: 0\r\n", Some(TWICE)),
            ("Content-Length: 0\r\nX: y\r\ncontent-LENGTH:0\r\n", Some(TWICE)),
            ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", Some(BOTH)),
            ("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", Some(BOTH)),
            ("transfer-encoding:chunked\r\nContent-Length: 0\r\n", Some(BOTH)),
            ("X: y\n", Some(BARE)),
            ("X: y\n\r\n", Some(BARE)),
            ("X: a\rb\r\n", Some(CR)),
            ("X: a\r\r\n", Some(CR)),
        ] {
            assert_eq!(flaws(&head(lines)).first(), Some(&flaw), "{lines:?}");
        }
        assert_eq!(flaws("GET / HTTP/1.1\nHost: a\n\n"), [Some(BARE)]);
        assert_eq!(flaws("\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"), [None]);
        assert_eq!(flaws("GET / HTTP/1.1\r\nHost: a\r\n"), [], "not all of it");
    }

    #[test]
    fn a_body_is_not_taken_for_a_head() {
        let twice = "POST /x HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n";
        let next = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        let length = twice.len();
        let plain = format!("POST / HTTP/1.1\r\nContent-Length: {length}\r\n\r\n{twice}{next}");
        assert_eq!(flaws(&plain), [None, None]);
        for chunks in [
            format!("{length:x}\r\n{twice}\r\n0\r\n\r\n"),
            format!("{length:X};a=b;c=\"0\"\r\n{twice}\r\n00;x\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n"),
            format!("1\r\n{{\r\n{length:x} \r\n{twice}\r\n0\r\nX-T: y\r\n\r\n"),
        ] {
            let head = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
            assert_eq!(flaws(&format!("{head}{chunks}{next}")), [None, None], "{chunks:?}");
            assert_eq!(flaws(&format!("{head}{chunks}{twice}")), [None, Some(TWICE)], "{chunks:?}");
        }
    }

    /// hyper reads on for a carriage return, and so would take the next request for a trailer.
    #[test]
    fn trailers_end_where_everybody_sees_it() {
        let head = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n";
        for (end, good) in [
            ("\r\n", 2),
            ("A: b\r\n\r\n", 8),
            ("A: b\r\nC:\r\n\r\n", 12),
            ("\n", 0),
            ("A: b\n\r\n", 4),
            ("A: b\n\n", 4),
            ("A: b\r\n\n", 6),
            ("A: b\rc\n\r\n", 6),
        ] {
            let bytes = format!("{head}{end}");
            for size in [1, usize::MAX] {
                let mut framing = Framing::default();
                let read: usize = bytes.as_bytes().chunks(size).map(|some| framing.take(some)).sum();
                assert_eq!((read - head.len(), framing.is_ambiguous()), (good, good < end.len()), "{end:?}");
            }
        }
    }

    #[test]
    fn nothing_is_kept_of_another_protocol() {
        for (preface, is_http1) in [("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", false), ("PRI * HTTP/2.00\r\n\r\n", true)] {
            let mut framing = Framing::default();
            framing.take(preface.as_bytes());
            assert_eq!((framing.is_http1(), framing.heads.len()), (is_http1, usize::from(is_http1)));
        }
        let mut framing = Framing::default();
        framing.take(b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n\r\n");
        assert_eq!(framing.next(), None);
        framing.end();
        framing.take(&b"x\n\n".repeat(1_000));
        assert!(framing.heads.is_empty());
    }
}
