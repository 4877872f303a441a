//! The Model Context Protocol: methods of services as tools, in revision 2026-07-28 and those with a handshake back to 2025-03-26.
//! Never knows how messages come and go: that is `lines`, or the door over HTTP.

mod call;
mod lines;
pub(crate) mod message;
pub(crate) mod offers;
pub(crate) mod outbox;
mod relay;
pub(crate) mod server;

use std::io;
use std::time::Duration;

pub use self::lines::serve;
pub use self::outbox::Line;

/// How a door to MCP is used.
#[derive(Debug, Clone)]
pub struct Options {
    /// The services whose methods are tools.
    pub services: Vec<String>,
    /// How long a call may take.
    pub deadline: Duration,
    /// How often services are asked whether something has changed.
    pub refresh: Duration,
}

/// Why a door has ended before its client did.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Ended {
    /// The input is no line of text, or cannot be read.
    #[error("what comes in cannot be read: {0}")]
    Input(#[from] io::Error),
    /// The client has read nothing for too long.
    #[error("the client has not read for 60 s what it was sent")]
    Stalled,
}

/// Of the message, and the ids in it, that say to which subscription it belongs.
pub(crate) const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";
pub(crate) const LIST_CHANGED: &str = "notifications/tools/list_changed";
