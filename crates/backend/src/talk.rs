//! Both directions of the conversation with a process: JSON-RPC messages, one per line.
//! Never decides to whom a message belongs, and never goes on listening to a peer that says nothing useful.

use std::future::Future;
use std::time::{Duration, Instant};

use sealwire_http::Waste;
use sealwire_mcp::{Lines, MAX_LINE, line};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::child::{CLOSED, Rate, UNREAD, visible};
use crate::pace::Pace;

/// How many messages may wait to be written.
pub(crate) const WRITES: usize = 64;

/// How long a program may be silent in the middle of a message over several lines: one that it does not finish must not hold up what is
/// behind it.
const UNFINISHED: Duration = Duration::from_secs(2);

/// What a message of use was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MessageKind {
    /// Something that somebody waits for: there is only so much of it.
    Asked,
    /// Something that nobody has asked for, of which the peer can say as much as it likes.
    Unasked,
}

/// Writes each message when the process has read what is ahead of it, until the process stops reading; returns why.
pub(crate) async fn write(mut messages: mpsc::Receiver<Vec<u8>>, mut stdin: impl AsyncWrite + Unpin) -> String {
    while let Some(message) = messages.recv().await {
        if let Err(error) = stdin.write_all(&line(&message)).await {
            return format!("{UNREAD}: {error}");
        }
    }
    std::future::pending().await
}

/// Hands each message to `take`, which says why one is useless, and reads on when `room` completes. Ends with the output, or after too much
/// without use; returns why.
///
/// A message is a line. If a line is the beginning of one, the lines up to its end are read as one message: some programs print JSON with
/// line breaks.
pub(crate) async fn read<R: Future<Output = ()>>(
    backend: &str,
    stdout: impl AsyncRead + Unpin,
    mut take: impl FnMut(&[u8]) -> Result<MessageKind, &'static str>,
    mut room: impl FnMut() -> R,
) -> String {
    let (mut lines, mut listener, mut spread) = (Lines::new(stdout), Listener::new(backend), LongMessage::default());
    loop {
        let next = match spread.is_open() {
            true => timeout(UNFINISHED, lines.next()).await,
            false => Ok(lines.next().await),
        };
        let line = match next {
            Ok(Err(error)) => return format!("its output cannot be read: {error}"),
            Ok(Ok(None)) => return CLOSED.to_owned(),
            Ok(Ok(Some(line))) => Some(plain(line)),
            Err(_) => None,
        };
        let piece = match line {
            Some(line) => spread.add(line),
            None => spread.give_up(),
        };
        let heard = match piece {
            Piece::Open => continue,
            Piece::Message => listener.hear(line.unwrap_or_default(), &mut take),
            Piece::Last(whole) => listener.hear(&whole, &mut take),
            Piece::Broken(begun) => match (listener.hear(&begun, &mut take), line.map(|line| (line, spread.add(line))))
            {
                (Err(why), _) => Err(why),
                (heard, None | Some((_, Piece::Open))) => heard,
                (_, Some((_, Piece::Last(whole) | Piece::Broken(whole)))) => listener.hear(&whole, &mut take),
                (_, Some((line, Piece::Message))) => listener.hear(line, &mut take),
            },
        };
        match heard {
            Err(why) => return why,
            Ok(Some(MessageKind::Unasked)) => listener.pace.step(backend).await,
            Ok(_) => {}
        }
        room().await;
    }
}

/// Hears the messages of one peer, and knows how much of them was useless.
#[derive(Debug)]
pub(crate) struct Listener<'a> {
    backend: &'a str,
    waste: Waste,
    rate: Rate,
    pub(crate) pace: Pace,
}

impl<'a> Listener<'a> {
    pub(crate) fn new(backend: &'a str) -> Self {
        Self { backend, waste: Waste::new(), rate: Rate::new(Instant::now()), pace: Pace::new() }
    }

    /// Hands a message to `take`. Returns what it was if it was of use; an error says why the peer is not listened to any longer.
    pub(crate) fn hear(
        &mut self,
        message: &[u8],
        take: impl FnOnce(&[u8]) -> Result<MessageKind, &'static str>,
    ) -> Result<Option<MessageKind>, String> {
        let why = match take(message) {
            Ok(said) => {
                self.waste.forgive();
                return Ok(Some(said));
            }
            Err(why) => why,
        };
        // Some programs write blank lines between messages.
        if message.trim_ascii().is_empty() {
            return self.waste.add_blank().map(|()| None);
        }
        if let Some(left_out) = self.rate.check(Instant::now()) {
            let (backend, start) =
                (self.backend, visible(&String::from_utf8_lossy(message.get(..200).unwrap_or(message))));
            tracing::warn!(target: "sealwire::backend::line", backend, why, left_out, "a line was dropped: {start}");
        }
        let lines = message.split(|byte| *byte == b'\n').count();
        self.waste.add(u64::try_from(lines).unwrap_or(u64::MAX), bytes(message)).map(|()| None)
    }

    /// Counts something that is no message at all.
    pub(crate) fn useless(&mut self, size: usize) -> Result<(), String> {
        self.waste.add(1, u64::try_from(size).unwrap_or(u64::MAX))
    }
}

fn bytes(message: &[u8]) -> u64 {
    u64::try_from(message.len()).unwrap_or(u64::MAX)
}

/// Without a byte-order mark: RFC 8259 §8.1 allows parsers to ignore it, and what writes files writes it here, too.
pub(crate) fn plain(text: &[u8]) -> &[u8] {
    // What UTF-16 leaves of its line end comes ahead of the next line.
    let text = text.get(text.iter().take_while(|byte| **byte == 0).count()..).unwrap_or_default();
    text.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(text)
}

/// A message that began on an earlier line.
#[derive(Debug, Default)]
struct LongMessage {
    text: Vec<u8>,
    depth: Depth,
}

/// What a line is.
enum Piece {
    /// A message, or none.
    Message,
    /// A part of a message that is not at its end.
    Open,
    /// The end of this one.
    Last(Vec<u8>),
    /// A message of its own: the one that was begun has no end.
    Broken(Vec<u8>),
}

impl LongMessage {
    fn is_open(&self) -> bool {
        !self.text.is_empty()
    }

    /// What was begun has no end.
    fn give_up(&mut self) -> Piece {
        self.depth = Depth::default();
        Piece::Broken(std::mem::take(&mut self.text))
    }

    fn add(&mut self, line: &[u8]) -> Piece {
        let is_begun = !self.text.is_empty();
        let mut alone = Depth::default();
        alone.add(line);
        let begins = matches!(line.trim_ascii_start().first(), Some(b'{' | b'['));
        let is_beginning = begins && alone.is_open() && is_prefix(line);
        if !is_begun && !is_beginning {
            return Piece::Message;
        }
        let is_message = begins && !alone.is_open() && line.windows(9).any(|word| word == b"\"jsonrpc\"");
        // A value stands behind one of these, or at the beginning.
        let is_misplaced = is_beginning && !matches!(self.text.trim_ascii_end().last(), Some(b':' | b',' | b'['));
        if is_begun && (is_message || is_misplaced || self.text.len() + line.len() > MAX_LINE) {
            self.depth = Depth::default();
            return Piece::Broken(std::mem::take(&mut self.text));
        }
        self.text.extend_from_slice(line);
        // A line break inside of a string is none of JSON, and stays one.
        self.text.push(b'\n');
        self.depth.add(line);
        if self.depth.is_open() {
            return Piece::Open;
        }
        self.depth = Depth::default();
        Piece::Last(std::mem::take(&mut self.text))
    }
}

/// Whether JSON can begin with this line: a line of a log that ends with a brace is no beginning. Of an object, the name of a member may
/// stand in quotes of another kind, which shows when its end is there.
fn is_prefix(line: &[u8]) -> bool {
    match line.trim_ascii().split_first() {
        Some((b'{', rest)) => matches!(rest.trim_ascii_start().first(), None | Some(b'"' | b'\'')),
        Some(_) => serde_json::from_slice::<serde::de::IgnoredAny>(line).is_err_and(|error| error.is_eof()),
        None => false,
    }
}

/// How deep in objects and arrays a text has come.
#[derive(Debug, Default)]
struct Depth {
    level: usize,
    in_string: bool,
    is_escaped: bool,
}

impl Depth {
    fn add(&mut self, text: &[u8]) {
        for byte in text {
            match byte {
                _ if std::mem::take(&mut self.is_escaped) => {}
                b'\\' if self.in_string => self.is_escaped = true,
                b'"' => self.in_string = !self.in_string,
                b'{' | b'[' if !self.in_string => self.level += 1,
                b'}' | b']' if !self.in_string => self.level = self.level.saturating_sub(1),
                _ => {}
            }
        }
    }

    fn is_open(&self) -> bool {
        self.level > 0
    }
}

#[cfg(test)]
mod tests;
