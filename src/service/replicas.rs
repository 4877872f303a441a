//! Who serves a service at the moment: asks on the bus and lists who answers, and whether the service signed the answer.
//! Never a ground for any decision on messages.

use std::collections::BTreeMap;
use std::time::Duration;

use async_nats::{Client, StatusCode};
use futures_util::StreamExt as _;
use serde::Deserialize;
use tokio::time::Instant;

use super::serve::{AUDIENCE, GUARD, GUARD_IDENTITY, GUARD_READY, POLICY, STARTED, STATE, SUBJECT, ping};
use crate::auth::{GuardIdentity, Nonce};
use crate::bus::{BusConfig, BusError};
use crate::name::shown;
use crate::wire::{Endpoint, Question, ServicePublicKey, Unverifiable};

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
    /// Whether the answer is signed by the service, for this question. If not, anybody could have sent it who may publish
    /// where it arrived.
    pub verified: bool,
}

/// Asks all replicas of a service whether they are there, or only the one whose id is `instance`.
///
/// Answers are verified under `keys`, the service's public keys. Listens for `within`, or until `enough` says so of those
/// that have answered; to at most 1,024. The connection is as the service's own: its user may ask, see the table of
/// permissions in the specification.
///
/// # Errors
/// [`BusError`]: the broker cannot be reached or does not let us in. A user that may not ask hears nobody.
///
/// Cancel safe: nothing is left behind.
pub async fn replicas(
    bus: &BusConfig,
    endpoint: &Endpoint,
    keys: &[ServicePublicKey],
    instance: Option<&str>,
    within: Duration,
    enough: impl Fn(&[Replica]) -> bool,
) -> Result<Vec<Replica>, BusError> {
    let inbox = format!("{}.replica.{}", endpoint.service_inbox(), Nonce::random().to_text());
    let name = format!("sealwire-ping {}", endpoint.audience());
    let client = bus.connect(&name, &inbox, MOST, |_| ()).await?;
    let mut found: Vec<Replica> = Vec::new();
    let subject = match instance {
        Some(instance) => format!("{}.{instance}", ping(endpoint)),
        None => ping(endpoint),
    };
    let asking = Asking { client: &client, endpoint, keys, inbox: &inbox };
    let asked = asking.round(subject, within, |said| {
        if said.audience() != endpoint.audience().as_str() {
            return false;
        }
        found.push(Replica {
            instance: shown(&said.instance),
            state: shown(said.text(STATE)),
            guard: shown(said.text(GUARD)),
            policy: shown(said.text(POLICY)),
            after: said.after,
            verified: said.proof.is_ok(),
        });
        found.len() >= MOST || enough(&found)
    });
    // A question that could not be asked is answered by nobody.
    let _ = asked.await;
    drop(client.drain().await);
    Ok(found)
}

/// The most answers that are listened to.
const MOST: usize = 1_024;

/// Who is asking, and what is believed.
#[derive(Debug)]
pub(super) struct Asking<'a> {
    pub(super) client: &'a Client,
    pub(super) endpoint: &'a Endpoint,
    pub(super) keys: &'a [ServicePublicKey],
    /// Below which the answers arrive.
    pub(super) inbox: &'a str,
}

/// What a replica says, and whether it is proved.
#[derive(Debug)]
pub(super) struct Said {
    pub(super) instance: String,
    metadata: BTreeMap<String, String>,
    pub(super) proof: Result<(), Unverifiable>,
    after: Duration,
}

/// The question could not be asked.
#[derive(Debug)]
pub(super) struct NotAsked;

impl Asking<'_> {
    /// Asks once on `subject` and listens for `within`, or until `each` has heard enough.
    pub(super) async fn round(
        &self,
        subject: String,
        within: Duration,
        mut each: impl FnMut(Said) -> bool,
    ) -> Result<(), NotAsked> {
        #[derive(Deserialize)]
        struct Answer {
            id: String,
            metadata: BTreeMap<String, String>,
        }
        let question = Question::new(self.endpoint.audience().clone());
        // One inbox for each question: what comes late is not taken for a wrong answer to the next one.
        let inbox = format!("{}.{}", self.inbox, Nonce::random().to_text());
        let asked = Instant::now();
        let mut answers = self.client.subscribe(inbox.clone()).await.map_err(|_| NotAsked)?;
        let payload = question.payload().into_bytes().into();
        self.client.publish_with_reply(subject, inbox, payload).await.map_err(|_| NotAsked)?;
        let listen = async {
            while let Some(message) = answers.next().await {
                // Nobody listens there.
                if message.status == Some(StatusCode::NO_RESPONDERS) {
                    return;
                }
                let Ok(Answer { id, metadata }) = serde_json::from_slice(&message.payload) else { continue };
                let (subject, headers) = (message.subject.as_str(), message.headers.as_ref());
                let proof = question.accept(subject, &id, headers, &message.payload, self.keys);
                if each(Said { instance: id, metadata, proof, after: asked.elapsed() }) {
                    return;
                }
            }
        };
        // Silence is an answer, too: whoever has not answered by then is not there.
        drop(tokio::time::timeout(within, listen).await);
        Ok(())
    }
}

impl Said {
    fn text(&self, key: &str) -> &str {
        self.metadata.get(key).map_or("", String::as_str)
    }

    pub(super) fn audience(&self) -> &str {
        self.text(AUDIENCE)
    }

    pub(super) fn subject(&self) -> &str {
        self.text(SUBJECT)
    }

    pub(super) fn state(&self) -> &str {
        self.text(STATE)
    }

    /// `local` or `shared`.
    pub(super) fn guard(&self) -> &str {
        self.text(GUARD)
    }

    /// `None` where the replica does not tell, being of an older version.
    pub(super) fn identity(&self) -> Option<GuardIdentity> {
        serde_json::from_str(self.text(GUARD_IDENTITY)).ok()
    }

    pub(super) fn guard_is_ready(&self) -> bool {
        self.text(GUARD_READY) == "true"
    }

    /// When it started, in milliseconds since the Unix epoch.
    pub(super) fn started_ms(&self) -> u64 {
        self.text(STARTED).parse().unwrap_or(0)
    }
}
