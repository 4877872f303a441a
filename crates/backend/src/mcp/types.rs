//! What a peer and the way to its server say to each other: what a message is about, and why a request has no result.
//! Never holds a connection.

use std::fmt;

use sealwire::RpcError;
use serde_json::value::RawValue;

use crate::child::visible;
use crate::talk::MessageKind;

/// Takes what comes from a server.
pub(super) trait Inbox: Send + Sync + 'static {
    /// The backend's name.
    fn name(&self) -> &str;

    /// An id that no request has.
    fn id(&self) -> u64;

    /// Whether a request waits for its answer.
    fn is_open(&self, id: u64) -> bool;

    /// Takes one message of the server. Returns whether anybody has asked for it; an error says why it is useless.
    fn take(&self, message: &[u8], of: Correlation) -> Result<MessageKind, &'static str>;

    /// Ends a request without a result.
    fn refuse(&self, id: u64, refusal: Refusal);

    /// Has the tools listed again.
    fn list_again(&self);
}

/// What a message can be about, depending on how it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Correlation {
    /// Anything: a process says everything on one stream.
    Any,
    /// This request.
    Request(u64),
    /// Nothing that was asked.
    Nobody,
}

/// What a request is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A caller, who can get notifications and questions.
    Caller,
    /// The service itself.
    Us,
    /// To learn of changes: there is no answer to wait for.
    News,
}

/// The stream for what a server says unasked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UnaskedStream {
    /// The server has not answered.
    Unknown,
    /// It has opened one; sent again when it has opened the next.
    Open,
    /// It has none.
    Refused,
}

/// Why a request has no result.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The server's own error.
    Server(RpcError),
    /// An HTTP status without such an error.
    Status(u16),
    /// The server cannot be reached, and has received nothing.
    Unreached(String),
    /// The server had ended the session before, and has done nothing.
    Lost,
    /// The connection has ended.
    Broken(String),
    /// What came is unusable.
    Failed(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(error) => {
                let message: String = error.message().chars().take(SHOWN).collect();
                write!(f, "error {}: {}", error.code(), visible(&message))
            }
            Self::Status(401 | 403) => f.write_str("it does not take the credentials that it is shown"),
            Self::Status(status) => write!(f, "HTTP status {status}"),
            Self::Lost => f.write_str("it has ended the session"),
            Self::Unreached(reason) | Self::Broken(reason) | Self::Failed(reason) => f.write_str(reason),
        }
    }
}

impl Refusal {
    /// Whether the server may be gone.
    pub(super) fn is_doubtful(&self) -> bool {
        matches!(self, Self::Unreached(_) | Self::Broken(_) | Self::Status(401 | 403 | 500..))
    }

    /// Whether the server has said no, and not only that it cannot do it now.
    pub(super) fn is_final(&self) -> bool {
        matches!(self, Self::Server(_) | Self::Status(_)) && !self.is_doubtful() && !matches!(self, Self::Status(429))
    }
}

/// What becomes of a request.
pub(super) type Answer = Result<Box<RawValue>, Refusal>;

/// How many characters of a server's error message are shown.
const SHOWN: usize = 200;
