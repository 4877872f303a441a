//! What every line of a record begins with, and how a line is read.
//! Never looks at what only one kind of line has.

use serde::{Deserialize, Serialize};

/// The longest line, in bytes, its line end not included.
pub const MAX_LINE: usize = 16 * 1024;

/// The only version of the format so far. Members may be added to it; a change of what one means gets another number.
pub(super) const VERSION: u64 = 1;

/// The `prev` of a session's first line: 32 zero bytes.
pub const FIRST: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

/// What a line is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A session begins.
    Start,
    /// A call was decided.
    Decision,
    /// A call ended.
    Outcome,
    /// How many messages were refused before they became calls, by refusal.
    Beat,
    /// A list of revocations came into force.
    Revocation,
    /// Lines were lost.
    Lost,
    /// A session ended in good order.
    Stop,
    /// Another kind, of a later version of the program.
    #[serde(other)]
    Unknown,
}

impl Kind {
    /// As in a line.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Decision => "decision",
            Self::Outcome => "outcome",
            Self::Beat => "beat",
            Self::Revocation => "revocation",
            Self::Lost => "lost",
            Self::Stop => "stop",
            Self::Unknown => "unknown",
        }
    }
}

/// What every line has.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Head {
    /// The version of the format.
    pub v: u64,
    /// The session: one run of one replica.
    pub session: String,
    /// The line's number in its session, from 1, without gaps.
    pub seq: u64,
    /// The SHA-256 of the line before, without its line end, in base64url; [`FIRST`] in a session's first line.
    pub prev: String,
    /// What it is about.
    pub kind: Kind,
    /// When that happened, in milliseconds since the Unix epoch.
    pub at_ms: u64,
}

/// Reads what every line has.
///
/// # Errors
/// What is wrong with the line.
pub fn read_head(line: &[u8]) -> Result<Head, String> {
    if line.len() > MAX_LINE {
        return Err(format!("longer than {MAX_LINE} bytes"));
    }
    let head: Head = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    if head.v == VERSION { Ok(head) } else { Err(format!("version {} of the format is not known", head.v)) }
}
