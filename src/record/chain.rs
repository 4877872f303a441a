//! Numbers the lines of one session and chains them.
//! Never skips a number.

use std::io::Write as _;

use serde::Serialize;

use super::line::{FIRST, Kind, VERSION};
use crate::jose::{b64, sha256};

/// The end of a session's chain.
#[derive(Debug, Clone)]
pub struct Chain {
    session: String,
    seq: u64,
    prev: String,
}

impl Chain {
    /// A session without lines. Its name consists of letters, digits, `-` and `_`.
    #[must_use]
    pub fn new(session: &str) -> Self {
        Self { session: session.to_owned(), seq: 0, prev: FIRST.to_owned() }
    }

    /// The next line, with its line end. `body` is a struct.
    ///
    /// # Errors
    /// If it cannot be serialized.
    pub fn line(&mut self, kind: Kind, body: &impl Serialize) -> Result<Vec<u8>, serde_json::Error> {
        let mut text = Vec::new();
        self.append(kind, &serde_json::to_vec(body)?, &mut text);
        Ok(text)
    }

    /// Appends the next line to `text`. `body` is a JSON object with at least one member.
    pub(super) fn append(&mut self, kind: Kind, body: &[u8], text: &mut Vec<u8>) {
        self.seq += 1;
        let from = text.len();
        let (session, seq, prev) = (&self.session, self.seq, &self.prev);
        let _ = write!(
            text,
            "{{\"v\":{VERSION},\"session\":\"{session}\",\"seq\":{seq},\"prev\":\"{prev}\",\"kind\":\"{}\",",
            kind.as_str()
        );
        text.extend_from_slice(body.get(1..).unwrap_or_default());
        self.prev = b64(sha256(text.get(from..).unwrap_or_default()));
        text.push(b'\n');
    }

    /// More than a line's head takes.
    pub(super) const HEAD: usize = 256;
}
