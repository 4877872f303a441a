//! How a service runs on a bus.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::watched::Watched;
use crate::policy::Packages;

/// How a service runs on a bus.
#[derive(Debug)]
#[non_exhaustive]
pub struct ServeOptions {
    /// How many accepted messages may wait; 4,096. Each agent has its own queue, and the queues are served in turn; an
    /// agent may have one more only while it has fewer than there are free places, so an agent alone gets half. A message
    /// that finds no place is answered with a hint.
    pub queue: usize,
    /// Bytes of messages that wait or are being handled, with subjects and headers; 64 MiB. Shared in the same way.
    pub queue_bytes: usize,
    /// How many messages are handled at a time; 1,024. Shared in the same way: an agent that has its share waits. Streams have a bound of
    /// their own: see [`StreamLimits`](crate::service::StreamLimits).
    pub in_flight: usize,
    /// How long stopping may take before work that still runs is given up; 30 s, the default window of a message.
    pub drain: Duration,
    /// Semantic version of the application, for the NATS tools.
    pub version: String,
    /// One line about the service, for the NATS tools.
    pub description: String,
    /// Whether `$SRV.STATS` has refusals by agent, which needs the feature `metrics`; no. Whoever may ask learns the agents' names.
    pub tell_agents: bool,
    /// Files that are read again when they change.
    pub watched: Vec<Watched>,
    /// How often those files are checked; 500 ms.
    pub watch_every: Duration,
    /// The policies that operators distribute, for the service that was built beginning with them.
    pub(crate) packages: Option<Arc<Packages>>,
    /// Why the methods are of no use at the moment, according to the application. While there is a reason, the state is
    /// [`State::Interrupted`](super::State::Interrupted), so that health checks fail; messages are taken all the same, and it is up to the
    /// methods how they answer.
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
            tell_agents: false,
            watched: Vec::new(),
            watch_every: Duration::from_millis(500),
            packages: None,
            interrupted: None,
        }
    }
}
