//! What the clients of revisions with a handshake have said once for their whole session: the resources that they watch.
//! Never loses a change that comes while a client has no stream, if it comes back in time: what cannot be known is told.

mod event;
mod parking;
mod session;
mod store;
mod stream;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sealwire_mcp::raw;
use serde_json::json;

use self::event::EventNumbers;
pub(crate) use self::event::Heard;
pub(crate) use self::parking::Parking;
use self::session::Session;
use self::store::Store;
pub(crate) use self::stream::SessionStream;
use super::message::Outcome;
use super::news::Digests;
use super::offers::Source;
use crate::caller::Caller;

/// A replica answers its client after 5 s at the latest, whether the others have begun to watch or not.
const PROMPT: Duration = Duration::from_secs(2);

/// The sessions at one address.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    all: Mutex<Store>,
    parking: Parking,
    numbers: Arc<EventNumbers>,
}

impl Sessions {
    pub(super) fn new(parking: Parking) -> Self {
        Self { parking, ..Self::default() }
    }

    fn all(&self) -> MutexGuard<'_, Store> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, name: &Arc<str>) -> Arc<Session> {
        self.all().of(name)
    }

    /// `resources/subscribe`.
    pub(super) async fn subscribe(
        &self,
        source: Source,
        name: &Arc<str>,
        caller: &Arc<dyn Caller>,
        uri: String,
    ) -> Outcome {
        let asking = self.of(name).ask(&self.parking, source, caller, uri)?;
        asking.outcome().await?;
        asking.grant();
        // So that its weight counts.
        self.of(name);
        Ok(raw(&json!({})))
    }

    /// The same, of a client that another replica is about to answer that it is granted.
    pub(super) async fn remember(&self, name: &Arc<str>, uri: String) -> Outcome {
        let (since, asking) = (Instant::now(), self.of(name).remember(&self.parking, uri));
        if let Some(asking) = asking {
            // If it cannot be watched now, it is asked for again.
            drop(asking.outcome().await);
            if since.elapsed() > PROMPT {
                asking.repeat();
            }
        }
        self.of(name);
        Ok(raw(&json!({})))
    }

    /// `resources/unsubscribe`. Of what is not watched, there is nothing to refuse.
    pub(super) fn unsubscribe(&self, name: &Arc<str>, uri: &str) {
        self.of(name).forget(uri);
    }

    /// The client has asked for a list, and gets this one.
    pub(super) fn learn(&self, name: &Arc<str>, request: &str, now: &Digests) {
        self.of(name).learn(request, now);
    }

    /// What a session hears on its newest stream. `knew`: the lists as they were at its beginning.
    pub(super) fn heard(
        &self,
        source: Source,
        name: &Arc<str>,
        caller: &Arc<dyn Caller>,
        heard: Heard<&str>,
        knew: Option<Digests>,
    ) -> SessionStream {
        let heard = self.numbers.read(heard);
        let listener = self.of(name).listen(&self.parking, source, caller, heard, knew);
        SessionStream::new(listener, &self.numbers)
    }

    /// Forgets what is no longer needed.
    pub(super) fn tidy(&self) {
        self.all().tidy();
    }

    /// Nobody comes back.
    pub(super) fn close(&self) {
        self.parking.close();
        self.all().all().for_each(|session| session.end());
    }
}
