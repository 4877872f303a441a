//! Messages as lines: reads a program's output, whichever line ends it writes (LF, CR LF or CR), and writes what every reader takes for one
//! line.
//! Never holds more than one line of an output, nor a line longer than allowed.

use std::io;

use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};

/// The longest line in bytes, without its line break: 1 MiB.
pub const MAX_LINE: usize = 1 << 20;

/// The lines of a reader.
#[derive(Debug)]
pub struct Lines<R> {
    reader: BufReader<R>,
    line: Vec<u8>,
    /// Whether the line was handed out.
    whole: bool,
    /// The last line ended with CR: a LF that follows belongs to that end.
    after_cr: bool,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    /// Reads lines from `reader`.
    #[must_use]
    pub fn new(reader: R) -> Self {
        Self { reader: BufReader::with_capacity(64 * 1024, reader), line: Vec::new(), whole: false, after_cr: false }
    }

    /// The next line, without its line break; `None` at the end. Text after the last line break is a line, too.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] for a line above [`MAX_LINE`], after which reading cannot go on; any error of the reader.
    ///
    /// Cancel safe.
    pub async fn next(&mut self) -> io::Result<Option<&[u8]>> {
        if std::mem::take(&mut self.whole) {
            // One long line is no reason to keep that much memory.
            if self.line.capacity() > 64 * 1024 {
                self.line = Vec::new();
            }
            self.line.clear();
        }
        loop {
            let buffer = self.reader.fill_buf().await?;
            if std::mem::take(&mut self.after_cr) && buffer.first() == Some(&b'\n') {
                self.reader.consume(1);
                continue;
            }
            let end = buffer.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let is_cr = end.and_then(|end| buffer.get(end)) == Some(&b'\r');
            let (part, used) = (end.map_or(buffer, |end| buffer.get(..end).unwrap_or(buffer)), end.map(|end| end + 1));
            if self.line.len() + part.len() > MAX_LINE {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a line without an end, above 1 MiB"));
            }
            self.line.extend_from_slice(part);
            let (used, is_end) = (used.unwrap_or(buffer.len()), buffer.is_empty());
            self.reader.consume(used);
            self.after_cr = is_cr;
            if end.is_some() || is_end {
                if is_end && self.line.is_empty() {
                    return Ok(None);
                }
                self.whole = true;
                return Ok(Some(&self.line));
            }
        }
    }
}

/// A message as one line, for every reader. A line break inside it can only be white space between tokens, since JSON strings have none. A
/// caller's text reaches the program as it came, and must not become a message of its own there. Some readers end a line at U+0085,
/// U+2028 and U+2029, too (Python's `codecs` and `splitlines`): JSON has them only in strings, where an escape means the same. What else
/// they take for line ends, JSON has in strings as escapes alone (RFC 8259 §7).
#[must_use]
pub fn line(message: &[u8]) -> Vec<u8> {
    let (mut line, mut rest) = (Vec::with_capacity(message.len() + 1), message);
    while let Some((first, others)) = rest.split_first() {
        let escape = match rest {
            [0xC2, 0x85, ..] => Some((2, "\\u0085")),
            [0xE2, 0x80, 0xA8, ..] => Some((3, "\\u2028")),
            [0xE2, 0x80, 0xA9, ..] => Some((3, "\\u2029")),
            _ => None,
        };
        rest = match escape {
            Some((used, escape)) => {
                line.extend_from_slice(escape.as_bytes());
                rest.get(used..).unwrap_or_default()
            }
            None => {
                line.push(if matches!(first, b'\n' | b'\r') { b' ' } else { *first });
                others
            }
        };
    }
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[tokio::test]
    async fn lines_come_whole_however_they_are_cut_and_never_too_long() {
        let (mut write, read) = tokio::io::duplex(3);
        tokio::spawn(async move {
            use tokio::io::AsyncWriteExt as _;
            write.write_all(b"one\n\ntwo\r\nthree\r\rfour\n\r\nfive").await.unwrap();
        });
        let mut lines = Lines::new(read);
        for expected in ["one", "", "two", "three", "", "four", "", "five"] {
            assert_eq!(lines.next().await.unwrap(), Some(expected.as_bytes()));
        }
        assert_eq!(lines.next().await.unwrap(), None);
        let longest = [vec![b'x'; MAX_LINE], vec![b'\n'], vec![b'x'; MAX_LINE + 1]].concat();
        let mut lines = Lines::new(longest.as_slice());
        assert_eq!(lines.next().await.unwrap().unwrap().len(), MAX_LINE);
        assert_eq!(lines.next().await.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
