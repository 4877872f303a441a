//! Single use of the proofs and tickets that callers present. The library's replay guard remembers them.
//! Never admits a value twice, nor one of which it cannot know whether it was used before.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use sealwire::errors::OpenError;
use sealwire::internal::auth::{
    AdmitError, LocalGuard, NonceLimits, Outage, ReplayGuard, SharedConfig, SharedGuard, TimeFloor, Window,
};
use sealwire::internal::settings::Setting;
use sealwire::internal::wire::Nonce;
use sealwire::{BusConfig, Clock as _, Name, SystemClock};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use tokio::time::{Instant, sleep, timeout};

/// The longest life of a value, in seconds. The memory needed is proportional to it.
pub const LIFE_S: u64 = 60;

/// How far ahead a caller's clock may be, in seconds.
pub const SKEW_S: u64 = 5;

/// What a value is for. The same text of another kind is another value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The `jti` of a DPoP proof (RFC 9449 §11.1).
    DpopProof,
    /// A ticket that opens a WebSocket.
    Ticket,
}

/// When a value was made, in seconds since the Unix epoch, and by whose clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IssuedAt {
    /// By the gateway's clock, which dates nothing in the future.
    Here(u64),
    /// By the caller's clock, which may be [`SKEW_S`] ahead; not before the first second, and not after the second.
    ByCaller(u64, u64),
}

/// Which memory a value is used up in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayScope {
    /// The memory that replicas share, or this replica's if they share none.
    Gateway,
    /// This replica's own: another one has used the value up, and has forwarded the message it came with.
    ThisReplica,
}

/// `[gateway.replay]`: the memory that replicas of a gateway share, with the same kind of replay guard as replicas of a service.
#[derive(Debug, Clone, Deserialize, Setting)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ReplayMemory {
    /// The environment.
    pub environment: Name,
    /// The gateway's name there; the same in all replicas, and not that of a service.
    pub name: Name,
    /// The guard's own broker user.
    pub nats: BusConfig,
    /// How many values the stream holds, each for 135 s. The same in all replicas.
    #[setting(unit = "values", min = 10_000)]
    #[serde(default = "usual_stream_messages")]
    pub stream_messages: u32,
    /// The number of copies of the stream.
    #[setting(unit = "copies", min = 1, max = 5, left_out = "3 in a cluster, 1 on a single server")]
    pub replicas: Option<usize>,
    /// How long the broker may take to answer.
    #[setting(unit = "milliseconds", min = 10, max = 1_000)]
    #[serde(default = "usual_answer_within_ms")]
    pub answer_within_ms: u64,
}

/// 1,480 a second, in 48 MB for each copy: as for the guard of a service in the Compose set-up.
fn usual_stream_messages() -> u32 {
    200_000
}

fn usual_answer_within_ms() -> u64 {
    250
}

/// How many values of all callers a process holds, of how many callers, and how many places are kept for each.
const OF_ALL: usize = 1_000_000;
const CALLERS: usize = 50_000;
const RESERVE: usize = 8;

/// How many values of one caller the guards hold. It does not depend on the configured rate, since replicas with different rates must
/// still share one stream. In the stream this is 48,215, or 357 a second, and at most a quarter of it.
const OF_ONE: usize = 25_000;

impl ReplayMemory {
    pub(crate) fn relative_to(&mut self, folder: &Path) {
        self.nats = std::mem::take(&mut self.nats).relative_to(folder);
    }

    fn config(&self) -> SharedConfig {
        let mut config = SharedConfig::new(self.environment.clone(), self.name.clone());
        config.window = Window { window_s: LIFE_S + SKEW_S, skew_s: SKEW_S };
        config.nonce_limits = limits(OF_ONE);
        config.max_messages = self.stream_messages.into();
        config.replicas = self.replicas;
        config.answer_within = Duration::from_millis(self.answer_within_ms);
        config
    }
}

/// The values that were used and have not expired yet.
#[derive(Debug)]
pub struct Once {
    here: LocalGuard,
    together: Option<SharedMemory>,
}

/// The memory that all replicas share.
#[derive(Debug)]
struct SharedMemory {
    memory: ReplayMemory,
    /// Set once the stream has been opened.
    guard: OnceLock<SharedGuard>,
    /// The rate of each caller: the stream keeps a value for longer than the gateway counts it.
    rate: DefaultKeyedRateLimiter<Name>,
    clock: DefaultClock,
    /// Sticky, because a later failure of the shared memory says nothing about this replica.
    was_ready: AtomicBool,
}

impl Once {
    /// A memory in this process, with room for `of_one` values of one caller, so that no caller can take the room of others. Values that
    /// may be older than this call are refused, since an earlier run may have seen them used.
    ///
    /// # Errors
    /// The operating system cannot start a thread.
    pub fn local(of_one: usize) -> Result<Self, OpenError> {
        // Without a skew, so that values dated by the gateway are accepted from its first second on.
        let window = Window { window_s: LIFE_S + SKEW_S, skew_s: 0 };
        let here = LocalGuard::open(window, limits(of_one), Arc::new(SystemClock), &TimeFloor::Ephemeral)?;
        Ok(Self { here, together: None })
    }

    /// The same, shared by all processes with the same `memory`, that is, the replicas of a gateway, once [`Self::open`] has opened it.
    /// `of_caller` limits what each caller may use at this replica.
    #[must_use]
    pub fn shared(mut self, memory: ReplayMemory, of_caller: Quota) -> Self {
        self.together = Some(SharedMemory {
            memory,
            guard: OnceLock::new(),
            rate: RateLimiter::dashmap(of_caller),
            clock: DefaultClock::default(),
            was_ready: AtomicBool::new(false),
        });
        self
    }

    /// Opens the shared memory, if there is one, however long that takes.
    ///
    /// Cancel safe.
    pub async fn open(&self) {
        let Some(together) = &self.together else { return };
        while together.guard.get().is_none() {
            let SharedMemory { memory, guard, .. } = together;
            match SharedGuard::open(memory.config(), memory.nats.clone(), Arc::new(SystemClock)).await {
                Ok(opened) => {
                    // So replicas that start later can rely on what this one has seen, whether or not anything was used here.
                    opened.serving();
                    let _ = guard.set(opened);
                }
                Err(error) => {
                    tracing::error!(target: "sealwire::gateway", %error, "`replay`: cannot open the shared memory");
                    sleep(AGAIN).await;
                }
            }
        }
    }

    /// Whether values can be judged. Stays true once it was: when the shared memory is unavailable, no other replica would do better.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.together.as_ref().is_none_or(|together| {
            let is_ready = || together.guard.get().is_some_and(|guard| guard.not_ready().is_none());
            let was_ready = together.was_ready.load(Ordering::Relaxed) || is_ready();
            together.was_ready.store(was_ready, Ordering::Relaxed);
            was_ready
        })
    }

    /// Forgets the rates of idle callers.
    pub fn tidy(&self) {
        if let Some(together) = &self.together {
            together.rate.retain_recent();
        }
    }

    /// Closes the shared memory, in at most 2.5 s. No value may be used after this.
    pub async fn close(&self) {
        if let Some(guard) = self.together.as_ref().and_then(|together| together.guard.get()) {
            // A silent broker would never take what is left to send.
            drop(timeout(CLOSE, guard.close()).await);
        }
    }

    /// Uses up a value of this caller. A value expires [`LIFE_S`] after its date.
    ///
    /// # Errors
    /// `Replayed`: it was used. `Stale`: it is too old, from the future, or may have been used before this memory began. `OwnerFull`: the
    /// caller has used too many. Any other: nobody can know. On any error, the request must not be carried out.
    ///
    /// Cancel safety: if the future is dropped, the value may have been used up.
    pub async fn spend(
        &self,
        at: ReplayScope,
        kind: Kind,
        principal: &str,
        value: &str,
        dated: IssuedAt,
    ) -> Result<(), AdmitError> {
        let stale = AdmitError::Stale;
        let owner = Name::new(&URL_SAFE_NO_PAD.encode(digest(&[principal]))).map_err(|_| stale)?;
        let value = digest(&[kind.as_str(), value]);
        let value = value.first_chunk::<16>().and_then(|value| Nonce::from_text(&URL_SAFE_NO_PAD.encode(value)));
        let value = value.ok_or(stale)?;
        // The shared guard allows for clock skew itself; it must not be allowed for twice.
        let (guard, ahead): (&dyn ReplayGuard, u64) = match &self.together {
            Some(together) if at == ReplayScope::Gateway => (together.admits(&owner, &value)?, 0),
            _ => (&self.here, SKEW_S),
        };
        let (from, to) = match dated {
            IssuedAt::Here(date) => (date, date.checked_add(LIFE_S).ok_or(stale)?),
            // A fraction of a second makes it good neither earlier nor for longer.
            IssuedAt::ByCaller(at, by) => (by.checked_sub(ahead).ok_or(stale)?, at.checked_add(LIFE_S).ok_or(stale)?),
        };
        match guard.admit(&owner, value, from, to, Instant::now()).await {
            // A value that the gateway dates now would pass. Only the shared memory can be behind a fence for longer than a moment.
            Err(AdmitError::Fenced { .. }) if guard.kind() == "local" || guard.fence() < SystemClock.now_s() => {
                Err(stale)
            }
            spent => spent,
        }
    }
}

impl SharedMemory {
    /// The shared guard, if it is open and this caller may use another value.
    fn admits(&self, owner: &Name, value: &Nonce) -> Result<&SharedGuard, AdmitError> {
        let guard = self.guard.get().ok_or(AdmitError::Unavailable(Outage::Unverified))?;
        // A copy of a used value does not count against its owner's rate.
        if !guard.has_seen(owner, value)
            && let Err(early) = self.rate.check_key(owner)
        {
            let wait = early.wait_time_from(self.clock.now());
            return Err(AdmitError::OwnerFull { retry_after_ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX) });
        }
        Ok(guard)
    }
}

/// How long after a failure to try to open the stream again.
const AGAIN: Duration = Duration::from_secs(5);
/// How long the guard's own tasks may take to end.
const CLOSE: Duration = Duration::from_millis(2_500);

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Self::DpopProof => "dpop proof",
            Self::Ticket => "ticket",
        }
    }
}

/// 100 MB when full: about 70 bytes for each value.
fn limits(of_one: usize) -> NonceLimits {
    NonceLimits { owner: of_one.clamp(RESERVE, OF_ALL / 10), total: OF_ALL, owners: CALLERS, reserve: RESERVE }
}

/// A digest of several texts, each with its length, so that different lists never have the same input.
fn digest(texts: &[&str]) -> [u8; 32] {
    let mut digest = Sha256::new();
    for text in texts {
        digest.update((text.len() as u64).to_be_bytes());
        digest.update(text);
    }
    digest.finalize().into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    use IssuedAt::Here;

    /// Without a fraction.
    fn by_caller(date: u64) -> IssuedAt {
        IssuedAt::ByCaller(date, date)
    }

    /// A memory, and the first second after it began.
    async fn begun(of_one: usize) -> (Once, u64) {
        let once = Once::local(of_one).unwrap();
        let began = SystemClock.now_s();
        while SystemClock.now_s() == began {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        (once, SystemClock.now_s())
    }

    #[tokio::test]
    async fn a_value_is_used_once_by_one_caller_for_one_purpose_and_in_its_time() {
        let (once, now) = begun(100).await;
        let proof = |who, value, dated| once.spend(ReplayScope::Gateway, Kind::DpopProof, who, value, dated);
        assert_eq!(proof("ann", "1", Here(now)).await, Ok(()));
        for dated in [Here(now), by_caller(now + SKEW_S)] {
            assert_eq!(proof("ann", "1", dated).await, Err(AdmitError::Replayed), "{dated:?}");
        }
        assert_eq!(
            once.spend(ReplayScope::Gateway, Kind::Ticket, "ann", "1", Here(now)).await,
            Ok(()),
            "of another kind"
        );
        assert_eq!(proof("bob", "1", Here(now)).await, Ok(()), "another's");
        // Values that an earlier run may have seen, expired ones, and ones dated in the future.
        let old = [Here(now - 3), by_caller(now), by_caller(now + SKEW_S - 3), by_caller(now - LIFE_S), by_caller(0)];
        let ahead = [Here(now + 60), by_caller(now + 60), by_caller(u64::MAX), Here(u64::MAX)];
        let between = [IssuedAt::ByCaller(now, now + 60), IssuedAt::ByCaller(now - LIFE_S, now)];
        for dated in old.into_iter().chain(ahead).chain(between) {
            assert_eq!(proof("ann", "2", dated).await, Err(AdmitError::Stale), "{dated:?}");
        }
        assert_eq!(proof("ann", "2", by_caller(now + SKEW_S)).await, Ok(()), "no refusal has used it up");
    }

    #[tokio::test]
    async fn of_many_who_use_one_value_at_once_one_may() {
        let (once, now) = begun(100).await;
        let all = (0..50).map(|_| once.spend(ReplayScope::Gateway, Kind::Ticket, "ann", "1", Here(now)));
        let all = futures_util::future::join_all(all).await;
        assert_eq!(all.iter().filter(|spent| spent.is_ok()).count(), 1, "{all:?}");
    }

    #[tokio::test]
    async fn a_caller_that_uses_too_many_leaves_room_for_others_and_is_refused() {
        let (once, now) = begun(100).await;
        for value in 0..100 {
            assert_eq!(
                once.spend(ReplayScope::Gateway, Kind::DpopProof, "ann", &value.to_string(), Here(now)).await,
                Ok(())
            );
        }
        let full = once.spend(ReplayScope::Gateway, Kind::DpopProof, "ann", "100", Here(now)).await;
        assert!(matches!(full, Err(AdmitError::OwnerFull { retry_after_ms }) if retry_after_ms <= 70_000), "{full:?}");
        assert_eq!(
            once.spend(ReplayScope::Gateway, Kind::DpopProof, "ann", "7", Here(now)).await,
            Err(AdmitError::Replayed),
            "none is forgotten"
        );
        assert_eq!(once.spend(ReplayScope::Gateway, Kind::DpopProof, "bob", "1", Here(now)).await, Ok(()));
    }
}
