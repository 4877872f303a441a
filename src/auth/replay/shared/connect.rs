//! The shared guard's connection, kept by the client library, because it needs JetStream.
//! Never connects as anyone but the configured user.

use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event, ReconnectToServer};

use crate::nats::{BusConfig, BusError, Door, Login, pause};

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
) -> Result<Client, BusError>
where
    F: Fn(Event) + Send + Sync + 'static,
{
    let Door { login, follow, .. } = bus.door()?;
    let events = Arc::new(events);
    let mut options = ConnectOptions::new()
        .name(name)
        .custom_inbox_prefix(inbox)
        .subscription_capacity(capacity)
        .connection_timeout(Duration::from_secs(3))
        .ping_interval(manner.ping_every)
        .max_reconnects(None)
        .reconnect_delay_callback(|attempt| pause(attempt, 1))
        .event_callback(move |event| {
            let events = Arc::clone(&events);
            async move { events(event) }
        });
    if bus.urls.len() > 1 || !follow {
        // With other names of the same brokers, the one that was lost would be tried again too soon.
        options = options.ignore_discovered_servers();
    }
    options = options.reconnect_to_server_callback(move |pool, _| {
        ready(
            pool.get(manner.turn.next(pool.len()))
                .map(|server| ReconnectToServer { addr: server.addr.clone(), delay: None }),
        )
    });
    let Login { user, token, nkey_seed, .. } = login;
    if let Some((user, password)) = user {
        options = options.user_and_password(user, password.to_string());
    }
    if let Some(token) = token {
        options = options.token(token.to_string());
    }
    if let Some(seed) = nkey_seed {
        options = options.nkey(seed.to_string());
    }
    // The client library reads these files by name, for each connection, so that renewed ones take effect. Nobody else
    // can replace them after they were judged above: every folder on the path to them is closed to others.
    if let Some(ca) = &bus.tls_ca {
        options = options.add_root_certificates(ca.clone());
    }
    if let (Some(cert), Some(key)) = (&bus.tls_cert, &bus.tls_key) {
        options = options.add_client_certificate(cert.clone(), key.clone());
    }
    // Also for the brokers that a broker announces, whose addresses do not ask for TLS.
    options = options.require_tls(bus.demands_tls());
    let mut addresses = Vec::with_capacity(bus.urls.len());
    for (position, url) in bus.urls.iter().enumerate() {
        let wrong = |_| BusError::Member { member: format!("urls[{position}]"), reason: "is no broker address" };
        addresses.push(url.parse::<async_nats::ServerAddr>().map_err(wrong)?);
    }
    options.connect(addresses).await.map_err(|error| {
        let urls = bus.shown();
        let cause = error.to_string();
        match error.kind() {
            ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => BusError::Refused { urls },
            ConnectErrorKind::Tls => BusError::Tls { urls, cause },
            _ => BusError::Unreachable { urls, cause },
        }
    })
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
