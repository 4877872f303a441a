//! The Model Context Protocol: services' methods as tools, in revision 2026-07-28 and the revisions with a handshake back to 2025-03-26.
//! Never deals with the transport: that is `lines`, or the door over HTTP.

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

/// The settings of an MCP door.
#[derive(Debug, Clone)]
pub struct Options {
    /// The services whose methods are offered as tools.
    pub services: Vec<String>,
    /// How long a call may take.
    pub deadline: Duration,
    /// How often to ask the services whether the callable methods have changed.
    pub refresh: Duration,
}

/// Why a door ended before its client did.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Ended {
    /// A line is too long, or the input cannot be read.
    #[error("the input cannot be read: {0}")]
    Input(#[from] io::Error),
    /// The client has not read its output for too long.
    #[error("the client has read nothing for 60 s")]
    Stalled,
}

/// The `_meta` member of a message that says which subscription it belongs to.
pub(crate) const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";
pub(crate) const LIST_CHANGED: &str = "notifications/tools/list_changed";
