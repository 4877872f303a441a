//! The shared guard's connection, kept by the client library, because it needs JetStream.
//! Never connects as anyone but the configured user.

use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::{ConnectErrorKind, Event, ReconnectToServer};

use super::stream::StreamApi;
use crate::nats::{BusConfig, BusError, library_options, pause};

/// Connects the shared guard through the client library, for JetStream. `name` shows in the broker's list of
/// connections, `inbox` is our inbox prefix, `events` is told of every event.
///
/// Continues the rotation of earlier connections with this `turn`. The first attempt tries one broker; later ones are
/// made as long as the client lives, with a growing pause of at most two seconds and some jitter.
///
/// # Errors
/// [`BusError`]; nothing is left behind.
pub(super) async fn connect<F>(
    bus: &BusConfig,
    name: &str,
    inbox: &str,
    capacity: usize,
    manner: ConnectionOptions,
    events: F,
) -> Result<StreamApi, BusError>
where
    F: Fn(Event) + Send + Sync + 'static,
{
    let bus = &*bus.resolved()?;
    let (options, addresses) = library_options(bus)?;
    let events = Arc::new(events);
    let options = options
        .name(name)
        .custom_inbox_prefix(inbox)
        .subscription_capacity(capacity)
        .connection_timeout(Duration::from_secs(3))
        .ping_interval(manner.ping_every)
        .max_reconnects(None)
        .reconnect_delay_callback(|attempt| pause(attempt, 1, 0))
        .event_callback(move |event| {
            let events = Arc::clone(&events);
            async move { events(event) }
        })
        .reconnect_to_server_callback(move |pool, _| {
            ready(
                pool.get(manner.turn.next(pool.len()))
                    .map(|server| ReconnectToServer { addr: server.addr.clone(), delay: None }),
            )
        });
    let client = options.connect(addresses).await.map_err(|error| {
        let urls = bus.shown();
        let cause = error.to_string();
        match error.kind() {
            ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => BusError::Refused { urls },
            ConnectErrorKind::Tls => BusError::Tls { urls, cause },
            _ => BusError::Unreachable { urls, cause },
        }
    })?;
    Ok(StreamApi::new(client, bus.jetstream_domain.as_deref()))
}

/// How the client library keeps a connection.
#[derive(Debug, Clone)]
pub(super) struct ConnectionOptions {
    pub(super) turn: Arc<ServerRotation>,
    /// How often the broker is pinged.
    pub(super) ping_every: Duration,
}

/// Takes the brokers in turn, so that the one that was just lost is tried last. If its machine is gone, an attempt
/// takes seconds, and looking up its name may take ten; the client library would choose at random.
#[derive(Debug)]
pub(super) struct ServerRotation {
    /// The index of the broker that was tried last.
    tried: AtomicUsize,
}

impl ServerRotation {
    /// Begins after the broker with this index.
    pub(super) fn after(number: usize) -> Self {
        Self { tried: AtomicUsize::new(number) }
    }

    /// The index of the next of `count` brokers.
    fn next(&self, count: usize) -> usize {
        let count = count.max(1);
        let next = (self.tried.load(Ordering::Relaxed) % count + 1) % count;
        self.tried.store(next, Ordering::Relaxed);
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_broker_that_was_lost_is_tried_last() {
        let turn = ServerRotation::after(1);
        let tried: Vec<_> = (0..4).map(|_| turn.next(3)).collect();
        assert_eq!(tried, [2, 0, 1, 2]);
        assert_eq!(
            (ServerRotation::after(7).next(3), ServerRotation::after(0).next(1), ServerRotation::after(5).next(0)),
            (2, 0, 0)
        );
    }
}
