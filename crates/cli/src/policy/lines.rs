//! The lines of a recording, one at a time.
//! Never keeps more than one line, and of that no more than the length of a record.

use std::io::{self, BufRead as _, BufReader, Read};

use sealwire::internal::record::MAX_LINE;

/// One byte more than a line may have, to detect longer ones.
const MOST: u64 = MAX_LINE as u64 + 1;

#[derive(Debug)]
pub(super) struct Lines<R> {
    reader: BufReader<R>,
    line: Vec<u8>,
    number: usize,
}

impl<R: Read> Lines<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { reader: BufReader::new(reader), line: Vec::new(), number: 0 }
    }

    /// The next line without its line end, and its number, counted from 1. A line that is longer than a record can be is cut off.
    pub(super) fn next(&mut self) -> io::Result<Option<(usize, &[u8])>> {
        self.line.clear();
        if self.reader.by_ref().take(MOST).read_until(b'\n', &mut self.line)? == 0 {
            return Ok(None);
        }
        if !self.line.ends_with(b"\n") {
            self.reader.skip_until(b'\n')?;
        }
        self.number += 1;
        let line = self.line.strip_suffix(b"\n").unwrap_or(&self.line);
        // Editors put a byte-order mark before the first one.
        let line = if self.number == 1 { line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(line) } else { line };
        Ok(Some((self.number, line)))
    }
}
