//! The Model Context Protocol: services' methods as tools, in revision 2026-07-28 and the revisions with a handshake back to 2025-03-26.
//! Never deals with the transport: that is `lines`, or the gateway over HTTP.

mod call;
mod fault;
mod levels;
mod lines;
pub(crate) mod message;
pub(crate) mod mirrored;
pub(crate) mod news;
mod notifier;
pub(crate) mod offers;
mod ongoing;
mod open_questions;
pub(crate) mod outbox;
mod parked;
pub(crate) mod peer;
pub(crate) mod questions;
mod relay;
mod results;
pub(crate) mod server;
pub(crate) mod sessions;
pub(crate) mod tasks;
pub(crate) mod watch;

use std::io;
use std::time::Duration;

pub use self::lines::serve;
pub use self::outbox::Line;
pub(crate) use self::outbox::Outbox;

/// The settings of an MCP gateway.
#[derive(Debug, Clone)]
pub struct Options {
    /// The services whose methods are offered as tools.
    pub services: Vec<String>,
    /// How long a call may take.
    pub deadline: Duration,
    /// How often to ask the services whether the callable methods have changed.
    pub refresh: Duration,
}

/// Why a gateway ended before its client did.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Ended {
    /// A line is too long.
    #[error("the input cannot be read: a line is longer than 1 MiB")]
    TooLong,
    /// The input cannot be read.
    #[error("the input cannot be read: {0}")]
    Input(#[from] io::Error),
    /// The client has not read its output for too long.
    #[error("the client has read nothing for 60 s")]
    Stalled,
    /// The output cannot be written.
    #[error("the output cannot be written")]
    Closed,
}
