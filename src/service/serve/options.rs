//! How a service runs on a bus.

use std::time::Duration;

use tokio::sync::watch;

use super::watched::Watched;

/// How a service runs on a bus.
#[derive(Debug)]
#[non_exhaustive]
pub struct ServeOptions {
    /// How many accepted messages may wait; 4,096. Each agent has a line of its own, and the lines are served in turn; an
    /// agent may have one more only while it has fewer than there are free places, so that one alone gets half. What finds
    /// no place is answered with a hint.
    pub queue: usize,
    /// The bytes of messages that wait or are handled, with subjects and headers; 64 MiB. Shared in the same way.
    pub queue_bytes: usize,
    /// How many messages are handled at a time; 1,024. Shared in the same way: an agent that has its share waits. Streams have a
    /// bound of their own: see [`StreamLimits`](crate::service::StreamLimits).
    pub in_flight: usize,
    /// How long stopping may take before what is still running is given up; 30 s, the default window of a message.
    pub drain: Duration,
    /// Semantic version of the application, for the NATS tools.
    pub version: String,
    /// One line about the service, for the NATS tools.
    pub description: String,
    /// Files that are read again when they change.
    pub watched: Vec<Watched>,
    /// How often those files are looked at; 500 ms.
    pub watch_every: Duration,
    /// Why the methods are of no use at the moment, as the application tells. While it does, the state is
    /// [`State::Interrupted`](super::State::Interrupted), so that health checks fail; messages are taken all the same, and what
    /// they get is the methods' matter.
    pub interrupted: Option<watch::Receiver<Option<String>>>,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            queue: 4_096,
            queue_bytes: 64 * 1024 * 1024,
            in_flight: 1_024,
            drain: Duration::from_secs(30),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            description: String::new(),
            watched: Vec::new(),
            watch_every: Duration::from_millis(500),
            interrupted: None,
        }
    }
}
