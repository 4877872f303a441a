//! Reads the lines of a program's output, one at a time.
//! Never holds more than one line, nor a line longer than allowed.

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
}

impl<R: AsyncRead + Unpin> Lines<R> {
    /// Reads lines from `reader`.
    #[must_use]
    pub fn new(reader: R) -> Self {
        Self { reader: BufReader::with_capacity(64 * 1024, reader), line: Vec::new(), whole: false }
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
            let end = buffer.iter().position(|byte| *byte == b'\n');
            let (part, used) = (end.map_or(buffer, |end| buffer.get(..end).unwrap_or(buffer)), end.map(|end| end + 1));
            if self.line.len() + part.len() > MAX_LINE {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a line without an end, above 1 MiB"));
            }
            self.line.extend_from_slice(part);
            let (used, is_end) = (used.unwrap_or(buffer.len()), buffer.is_empty());
            self.reader.consume(used);
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[tokio::test]
    async fn lines_come_whole_however_they_are_cut_and_never_too_long() {
        let (mut write, read) = tokio::io::duplex(3);
        tokio::spawn(async move {
            use tokio::io::AsyncWriteExt as _;
            write.write_all(b"one\n\ntwo\r\nthree").await.unwrap();
        });
        let mut lines = Lines::new(read);
        for expected in ["one", "", "two\r", "three"] {
            assert_eq!(lines.next().await.unwrap(), Some(expected.as_bytes()));
        }
        assert_eq!(lines.next().await.unwrap(), None);
        let longest = [vec![b'x'; MAX_LINE], vec![b'\n'], vec![b'x'; MAX_LINE + 1]].concat();
        let mut lines = Lines::new(longest.as_slice());
        assert_eq!(lines.next().await.unwrap().unwrap().len(), MAX_LINE);
        assert_eq!(lines.next().await.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
