//! Who serves a service at the moment: asks on the bus and lists who answers.
//! Never a ground for any decision on messages: these answers are not signed.

use std::time::Duration;

use async_nats::StatusCode;
use futures_util::StreamExt as _;
use serde::Deserialize;
use tokio::time::Instant;

use super::serve::{AUDIENCE, GUARD, POLICY, STATE, ping};
use crate::auth::Nonce;
use crate::bus::{BusConfig, BusError};
use crate::name::shown;
use crate::wire::Endpoint;

/// A replica, as it describes itself.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Replica {
    /// Its id on the bus, which is [`Running::instance`](super::Running::instance) there.
    pub instance: String,
    /// Its state, as [`State::as_str`](super::State::as_str) says it: `ready` if it takes messages.
    pub state: String,
    /// Its replay guard.
    pub guard: String,
    /// The revision of its policy.
    pub policy: String,
    /// How long it took to answer.
    pub after: Duration,
}

/// Asks all replicas of a service whether they are there.
///
/// Listens for `within`, or until `enough` says so of those that have answered; to at most 1,024. The connection is as
/// the service's own: its user may ask, see the table of permissions in the specification.
///
/// # Errors
/// [`BusError`]: the broker cannot be reached or does not let us in. A user that may not ask hears nobody.
///
/// Cancel safe: nothing is left behind.
pub async fn replicas(
    bus: &BusConfig,
    endpoint: &Endpoint,
    within: Duration,
    enough: impl Fn(&[Replica]) -> bool,
) -> Result<Vec<Replica>, BusError> {
    #[derive(Deserialize)]
    struct Answer {
        id: String,
        metadata: std::collections::BTreeMap<String, String>,
    }
    let inbox = format!("{}.replica.{}", endpoint.service_inbox(), Nonce::random().to_text());
    let name = format!("sealwire-ping {}", endpoint.audience());
    let client = bus.connect(&name, &inbox, MOST, |_| ()).await?;
    let mut found: Vec<Replica> = Vec::new();
    let (asked, until) = (Instant::now(), Instant::now() + within);
    let ask = async {
        let Ok(mut answers) = client.subscribe(format!("{inbox}.all")).await else { return };
        if client.publish_with_reply(ping(endpoint), format!("{inbox}.all"), "".into()).await.is_err() {
            return;
        }
        while let Some(message) = answers.next().await {
            // Nobody listens there.
            if message.status == Some(StatusCode::NO_RESPONDERS) {
                return;
            }
            let Ok(Answer { id, metadata }) = serde_json::from_slice(&message.payload) else { continue };
            if metadata.get(AUDIENCE).is_none_or(|audience| audience != endpoint.audience().as_str()) {
                continue;
            }
            let said = |key| shown(metadata.get(key).map_or("", String::as_str));
            let (instance, after) = (shown(&id), asked.elapsed());
            found.push(Replica { instance, state: said(STATE), guard: said(GUARD), policy: said(POLICY), after });
            if found.len() >= MOST || enough(&found) {
                return;
            }
        }
    };
    // Silence is an answer, too: whoever has not answered by then is not there.
    drop(tokio::time::timeout_at(until, ask).await);
    drop(client.drain().await);
    Ok(found)
}

/// The most answers that are listened to.
const MOST: usize = 1_024;
