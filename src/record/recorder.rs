//! Where a service puts its lines.
//! Never waits for the disk, unless the caller asks for it.

use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::body::Body;
use super::folder::Output;
use super::line::Kind;
use super::options::{RecordConfig, RecordError};
use super::salt::Salt;
use super::writer::{Shared, Writer};
use crate::clock::{Clock as _, SystemClock};

/// Takes the lines of one session, which a thread of its own writes. Clones are handles of the same session; it ends with the last one,
/// or with [`Recorder::finish`].
#[derive(Debug, Clone)]
pub struct Recorder(Arc<Session>);

#[derive(Debug)]
struct Session {
    name: String,
    shared: Arc<Shared>,
    /// Nothing is sent on it: it is disconnected when the writer has ended.
    ended: Mutex<Receiver<()>>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.shared.end();
    }
}

/// A line is not on disk.
#[derive(Debug, thiserror::Error)]
#[error("the call cannot be recorded")]
pub(crate) struct Unrecorded;

/// How long the end of a session waits for the disk.
const FINISH: Duration = Duration::from_secs(5);
/// How long a call waits for its line to be on disk.
const DURABLE: Duration = Duration::from_secs(2);

impl Recorder {
    /// Begins a session in the record's folder. `session` is the id of the replica, of letters, digits, `-` and `_`; `audience` its
    /// service.
    ///
    /// # Errors
    /// [`RecordError`]: the folder cannot be written to, or others could. The operator is to blame.
    pub fn open(config: &RecordConfig, audience: &str, session: &str) -> Result<Self, RecordError> {
        let output = Output::open(config.clone(), session)?;
        let salt = Salt::open(&config.folder, SystemClock.now_ms())?;
        let shared = Arc::new(Shared::new(salt));
        let (alive, ended) = sync_channel(0);
        let (name, audience, writes) = (session.to_owned(), audience.to_owned(), Arc::clone(&shared));
        let begin = move || {
            Writer::new(output, &name, &audience, writes).run();
            drop(alive);
        };
        std::thread::Builder::new().name("record".to_owned()).spawn(begin).map_err(RecordError::Thread)?;
        tracing::info!(
            target: "sealwire::record",
            folder = %config.folder.display(),
            session,
            "decisions and outcomes are recorded, with declared parameters"
        );
        Ok(Self(Arc::new(Session { name: session.to_owned(), shared, ended: Mutex::new(ended) })))
    }

    /// Whether [`Recorder::open`] could begin a session: the folder, or the one that it would be made in, can be written to by us and by
    /// nobody else. Writes nothing.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn check(config: &RecordConfig) -> Result<(), RecordError> {
        Output::check(config)
    }

    /// The name of the session.
    #[must_use]
    pub fn session(&self) -> &str {
        &self.0.name
    }

    /// How many lines were lost so far.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.0.shared.lost()
    }

    /// How many lines were lost so far, by a word for the reason.
    #[cfg(feature = "metrics")]
    pub(crate) fn lost_by(&self) -> [(&'static str, u64); 3] {
        self.0.shared.lost_by()
    }

    /// The salt in use.
    pub(crate) fn salt(&self) -> Arc<Salt> {
        Arc::clone(&self.0.shared.salt.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes a line. What does not fit the queue is lost, and counted.
    pub(crate) fn put(&self, kind: Kind, body: Body) {
        self.0.shared.put(kind, body, None);
    }

    /// Takes a line, and waits until it is on disk.
    ///
    /// # Errors
    /// [`Unrecorded`] if it cannot be written, or not within 2 s.
    ///
    /// Cancel safety: the line may be written although nobody waits any more.
    pub(crate) async fn put_durably(&self, kind: Kind, body: Body) -> Result<(), Unrecorded> {
        let (waits, written) = oneshot::channel();
        if !self.0.shared.put(kind, body, Some(waits)) {
            return Err(Unrecorded);
        }
        match tokio::time::timeout(DURABLE, written).await {
            Ok(Ok(true)) => Ok(()),
            _ => Err(Unrecorded),
        }
    }

    /// Counts a message that was refused before it became a call.
    pub(crate) fn refused(&self, label: &'static str) {
        self.0.shared.refused(label);
    }

    /// Ends the session: waits until everything that was taken is written, for 5 s at most. Returns the number of lost lines; those that
    /// come later are lost, too. Blocks.
    pub fn finish(&self) -> u64 {
        self.finish_within(FINISH)
    }

    pub(super) fn finish_within(&self, patience: Duration) -> u64 {
        self.0.shared.end();
        let ended = self.0.ended.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(patience);
        if ended == Err(RecvTimeoutError::Timeout) {
            tracing::warn!(target: "sealwire::record", "the disk takes no more data: the end of the record is missing");
        }
        let lost = self.lost();
        if lost > 0 {
            tracing::warn!(target: "sealwire::record", lost, "lines of the record were lost");
        }
        lost
    }
}
