//! What a replay guard is, and what it answers. Never answers "admitted" for a message that it could not look up.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::identity::GuardIdentity;
use super::latency::Latency;
use crate::auth::outcomes::OutcomeStore;
use crate::name::Name;
use crate::wire::Nonce;

/// Remembers which messages were admitted.
///
/// One call to [`admit`](Self::admit) is one atomic check-and-store: of any number of simultaneous calls with the same
/// owner and nonce, at most one ever gets `Ok`, in this process or, for a shared guard, in all of them.
/// The answer is asynchronous, so that a guard may ask others; callers await many answers at once and hold no lock.
pub trait ReplayGuard: Send + Sync + Debug + 'static {
    /// The last second, since the Unix epoch, that this guard cannot vouch for: a message with `iat <= fence` is stale.
    ///
    /// It may grow while the guard is in use. While it lies ahead, `admit` refuses everything; only then may it go back, if
    /// another replica vouches for more.
    fn fence(&self) -> u64;

    /// Admits a message once.
    ///
    /// Call it only for a message whose proof holds, with the owner of the key that proved it: otherwise anyone could fill the
    /// memory or burn other agents' nonces. `iat` and `exp` are the proof's claims, in seconds since the Unix epoch; `received`
    /// is when the message arrived here. The guard reads the clock itself and judges the time window again, because time has
    /// passed since the caller did.
    ///
    /// Not undone by cancellation: if the future is dropped, the nonce may or may not be burnt.
    ///
    /// # Errors
    /// See [`AdmitError`]. Only `Ok` permits execution.
    fn admit<'a>(
        &'a self,
        owner: &'a Name,
        nonce: Nonce,
        iat: u64,
        exp: u64,
        received: Instant,
    ) -> BoxFuture<'a, Result<(), AdmitError>>;

    /// Whether this process remembers that the nonce was admitted, or that its admission was requested. Stores nothing, asks
    /// nobody, and decides nothing: a `false` may be wrong, now or a moment later.
    fn has_seen(&self, _owner: &Name, _nonce: &Nonce) -> bool {
        false
    }

    /// `local` or `shared`: whether its answers hold for this process only, or for all replicas.
    fn kind(&self) -> &'static str;

    /// What must be the same for all replicas that serve side by side.
    fn identity(&self) -> GuardIdentity;

    /// The name under which this guard leaves traces where other replicas look for them; `None` if it leaves none.
    fn instance(&self) -> Option<&str> {
        None
    }

    /// The other instances whose traces were found in *this* guard's memory, and how long ago each left its last one. A replica
    /// that claims to share this memory and is not found here does not share it.
    fn peers_seen(&self) -> BTreeMap<String, Duration> {
        BTreeMap::new()
    }

    /// Announces that this replica is about to accept messages: others can see it, and it has made sure that no replica with
    /// another guard is serving.
    ///
    /// A guard that was opened earlier cannot know what others executed since, so the fence counts from this call, unless another
    /// replica of the same guard vouches for that time. Without this call, it counts from when the guard was opened.
    fn serving(&self) {}

    /// Reports that a replica with another guard is serving: whatever was issued until now may have been executed.
    fn outsider(&self) {}

    /// Where the outcomes of idempotent calls are kept, visible to all replicas for which this guard decides. `None` if it has no
    /// such store: then no method can be declared idempotent.
    fn outcomes(&self) -> Option<Arc<dyn OutcomeStore>> {
        None
    }

    /// `None` if a message issued now would be judged on its merits; otherwise why it would be refused, for readiness.
    fn not_ready(&self) -> Option<String>;

    /// What the guard holds and what it has answered.
    fn stats(&self) -> GuardStats;

    /// Stops admitting and saves what makes the next start quick. Every later [`admit`](Self::admit) is refused.
    ///
    /// Skipping it is safe: the next start just waits a little longer. Idempotent.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(ready(()))
    }
}

/// Why a message was not admitted. Nothing in here permits execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AdmitError {
    /// Outside the time window, or issued so long before the fence that it can only be a copy that somebody kept.
    #[error("outside the time window")]
    Stale,
    /// Issued at a time for which the guard does not vouch, and so would be what its caller signs now. That is no fault of the message.
    #[error("the guard does not vouch for messages yet")]
    Fenced {
        /// When what the caller signs then passes the fence, in milliseconds from now.
        retry_after_ms: u64,
    },
    /// The nonce was admitted before, or is being admitted right now.
    #[error("the nonce was seen before")]
    Replayed,
    /// The owner has as many live nonces, nonces in the guard's stream, or checks in flight as one owner may have.
    #[error("the caller has too many live nonces")]
    OwnerFull {
        /// When the first of them expires or is answered, in milliseconds from now.
        retry_after_ms: u64,
    },
    /// The guard has as many live nonces, owners or checks in flight as it may have.
    #[error("the replay guard is full")]
    Full {
        /// When to try again, in milliseconds from now.
        retry_after_ms: u64,
    },
    /// The guard cannot do its work. Retrying takes a new nonce: this one may have been stored.
    #[error("the replay guard is unavailable: {0}")]
    Unavailable(Outage),
}

/// Why a guard cannot do its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Outage {
    /// The floor could not be written ahead of the clock; see [`TimeFloor`](crate::auth::TimeFloor).
    #[error("the state file cannot be written")]
    FloorNotWritten,
    /// A panic interrupted an earlier check; its leftovers are not trusted.
    #[error("an earlier check was interrupted")]
    Interrupted,
    /// [`ReplayGuard::close`] was called.
    #[error("it is closed")]
    Closed,
    /// The broker does not answer the guard.
    #[error("the broker does not answer")]
    Unreachable,
    /// The check was not answered in time, although it was repeated. It may have been stored.
    #[error("the check was not answered in time")]
    Unanswered,
    /// There is no guard stream, or it is not the one that this guard verified.
    #[error("the guard stream is missing or was replaced")]
    StreamReplaced,
    /// The guard stream keeps less than the time window needs, or is another kind of stream.
    #[error("the guard stream is not set up as needed")]
    StreamUnfit,
    /// The guard stream accepts no more messages.
    #[error("the guard stream is full")]
    StreamFull,
    /// After an interruption, the guard is verifying what the stream still remembers.
    #[error("the guard stream is being verified")]
    Unverified,
    /// The broker gave an answer that the guard does not understand.
    #[error("the broker gave an answer that is not understood")]
    Unexpected,
    /// This machine's clock and the broker's differ by more than the skew.
    #[error("the clocks of this machine and of the broker differ by more than the allowed skew")]
    ClockDiffers,
}

impl Outage {
    /// A name from a closed set, for what the log tells apart.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::FloorNotWritten => "floor_not_written",
            Self::Interrupted => "interrupted",
            Self::Closed => "closed",
            Self::Unreachable => "unreachable",
            Self::Unanswered => "unanswered",
            Self::StreamReplaced => "stream_replaced",
            Self::StreamUnfit => "stream_unfit",
            Self::StreamFull => "stream_full",
            Self::Unverified => "unverified",
            Self::Unexpected => "unexpected",
            Self::ClockDiffers => "clock_differs",
        }
    }
}

/// What a guard holds and has answered since it was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GuardStats {
    /// Nonces held, including those that have expired and were not swept yet.
    pub live: usize,
    /// Owners with at least one nonce held, or that had one a moment ago.
    pub owners: usize,
    /// The latest wall-clock time seen, in milliseconds since the Unix epoch: messages are judged at this time or later.
    pub floor_ms: u64,
    /// How far the wall clock is behind `floor_ms`, in milliseconds. More than a second means that the clock was
    /// stepped back, and that messages are refused early until it has caught up.
    pub lag_ms: u64,
    /// Messages admitted.
    pub admitted: u64,
    /// Refused as [`AdmitError::Stale`].
    pub stale: u64,
    /// Refused as [`AdmitError::Replayed`].
    pub replayed: u64,
    /// Refused as [`AdmitError::OwnerFull`].
    pub owner_full: u64,
    /// Refused as [`AdmitError::Full`].
    pub full: u64,
    /// Refused as [`AdmitError::Unavailable`] or [`AdmitError::Fenced`].
    pub unavailable: u64,
    /// Further figures of a shared guard; `None` for a local one.
    pub shared: Option<SharedStats>,
}

/// Further figures of a [`SharedGuard`](crate::auth::SharedGuard).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedStats {
    /// The verified stream; empty while there is none.
    pub stream: String,
    /// Checks in flight.
    pub in_flight: usize,
    /// The checks sent to the stream and how long they took.
    pub latency: Latency,
    /// Questions that were not answered in time. A check asks three times at most.
    pub unanswered: u64,
    /// How often the guard had to stop admitting because of the broker, the stream or the clock.
    pub interruptions: u64,
    /// How far the broker's clock was ahead of this machine's when last compared, in milliseconds.
    pub broker_ahead_ms: i64,
    /// When the JWT ends with which the guard's own connection logs in, in seconds since the Unix epoch.
    pub login_until: Option<u64>,
}
