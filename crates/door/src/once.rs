//! What may be used once: proofs and tickets that callers show to a door. The library's replay guard remembers them.
//! Never says yes twice to one value, nor to one of which it cannot know whether it was used before.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use sealwire::auth::{
    AdmitError, LocalGuard, Nonce, NonceLimits, OpenError, Outage, ReplayGuard, SharedConfig, SharedGuard, TimeFloor,
    Window,
};
use sealwire::{BusConfig, Name, SystemClock};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use tokio::time::{Instant, sleep, timeout};

/// The longest life of a value, in seconds. What is remembered is in proportion to it.
pub const LIFE_S: u64 = 60;

/// How far the clock of whoever dated a value may be ahead, in seconds.
pub const SKEW_S: u64 = 5;

/// What a value is for: one of a kind is none of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The `jti` of a DPoP proof (RFC 9449 §11.1).
    DpopProof,
    /// What opens a WebSocket.
    Ticket,
}

/// When a value was made, in seconds since the Unix epoch, and by whose clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dated {
    /// By the door, which dates nothing ahead.
    Here(u64),
    /// By the caller, whose clock may be [`SKEW_S`] ahead.
    ByCaller(u64),
}

/// Where a value is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// Wherever replicas remember together, or here if they do not.
    Door,
    /// At this replica alone: another one has used it up, and has handed on what it came with.
    ThisReplica,
}

/// `[door.replay]`: where replicas of a door remember together, by the replay guard that replicas of a service share.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ReplayMemory {
    /// The environment.
    pub environment: Name,
    /// What the door is called there; the same in all replicas, and no service's name.
    pub name: Name,
    /// The guard's own user of the broker.
    pub nats: BusConfig,
    /// How many values the stream holds, each for 135 s. The same in all replicas.
    #[serde(default = "usual_stream_messages")]
    pub stream_messages: u32,
    /// How many copies of the stream there are; 3 in a cluster, 1 on a single server.
    pub replicas: Option<usize>,
    /// How long the broker may take to answer, in milliseconds.
    #[serde(default = "usual_answer_within_ms")]
    pub answer_within_ms: u64,
}

/// 1,480 a second, in 48 MB of each copy: as the guard of a service in the compose set-up.
fn usual_stream_messages() -> u32 {
    200_000
}

fn usual_answer_within_ms() -> u64 {
    250
}

/// As many values of one caller as the guards hold, whatever its rate is: replicas whose rates differ must have one stream nevertheless.
/// In the stream these are 48,215, 357 a second, and a quarter of it at most.
const OF_ONE: usize = 25_000;

impl ReplayMemory {
    pub(crate) fn check(&self) -> Result<(), String> {
        let BusConfig { password, token, nkey_seed, .. } = &self.nats;
        if password.is_some() || token.is_some() || nkey_seed.is_some() {
            return Err(
                "`nats` of `replay` has a secret, and this file is none: write `password_file` or `nkey_seed_file`"
                    .to_owned(),
            );
        }
        self.nats.check().map_err(|error| format!("`nats` of `replay`: {error}"))?;
        if self.stream_messages < 10_000 {
            return Err("`stream_messages` of `replay`: write 10000 or more".to_owned());
        }
        if self.replicas.is_some_and(|copies| !(1..=5).contains(&copies)) {
            return Err("`replicas` of `replay`: write 1 to 5".to_owned());
        }
        if !(10..=1_000).contains(&self.answer_within_ms) {
            return Err("`answer_within_ms` of `replay`: write 10 to 1000".to_owned());
        }
        Ok(())
    }

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

/// The values that were used, and are not over yet.
#[derive(Debug)]
pub struct Once {
    here: LocalGuard,
    together: Option<Together>,
}

/// The memory of all replicas.
#[derive(Debug)]
struct Together {
    memory: ReplayMemory,
    /// Once its stream was found.
    guard: OnceLock<SharedGuard>,
    /// Of each caller: what it uses is kept for longer than it is counted at the door.
    rate: DefaultKeyedRateLimiter<Name>,
    clock: DefaultClock,
    /// That it is not any more says nothing of this replica.
    was_ready: AtomicBool,
}

impl Once {
    /// In this process, and with room for so many values of one caller: others can have theirs whatever it does. What may have been
    /// there before now is refused, since an earlier run may have seen it used.
    ///
    /// # Errors
    /// The machine gives no thread.
    pub fn local(of_one: usize) -> Result<Self, OpenError> {
        // Without a skew, so that what the door has dated holds from its first second on.
        let window = Window { window_s: LIFE_S + SKEW_S, skew_s: 0 };
        let here = LocalGuard::open(window, limits(of_one), Arc::new(SystemClock), &TimeFloor::Ephemeral)?;
        Ok(Self { here, together: None })
    }

    /// The same for all processes that are told the same, once it was opened: replicas of a door. Each caller may use so much here.
    #[must_use]
    pub fn shared(mut self, memory: ReplayMemory, of_caller: Quota) -> Self {
        self.together = Some(Together {
            memory,
            guard: OnceLock::new(),
            rate: RateLimiter::dashmap(of_caller),
            clock: DefaultClock::default(),
            was_ready: AtomicBool::new(false),
        });
        self
    }

    /// Opens the memory of all replicas, if they have one, however long that takes.
    ///
    /// Cancel safe.
    pub async fn open(&self) {
        let Some(together) = &self.together else { return };
        while together.guard.get().is_none() {
            let Together { memory, guard, .. } = together;
            match SharedGuard::open(memory.config(), memory.nats.clone(), Arc::new(SystemClock)).await {
                Ok(opened) => {
                    // Others that begin later can rely on what this one has seen, whether anything was used here or not.
                    opened.serving();
                    let _ = guard.set(opened);
                }
                Err(error) => {
                    tracing::error!(target: "sealwire::door", %error, "`replay`: nothing that is good once is taken");
                    sleep(AGAIN).await;
                }
            }
        }
    }

    /// Whether what is used can be judged; from then on, a memory of all that is away is no reason to send callers to another replica.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.together.as_ref().is_none_or(|together| {
            let is_ready = || together.guard.get().is_some_and(|guard| guard.not_ready().is_none());
            let was_ready = together.was_ready.load(Ordering::Relaxed) || is_ready();
            together.was_ready.store(was_ready, Ordering::Relaxed);
            was_ready
        })
    }

    /// Forgets the rates of callers that are quiet.
    pub fn tidy(&self) {
        if let Some(together) = &self.together {
            together.rate.retain_recent();
        }
    }

    /// Nothing is used any more. Ends within a short time.
    pub async fn close(&self) {
        if let Some(guard) = self.together.as_ref().and_then(|together| together.guard.get()) {
            // A broker that is silent takes nothing.
            drop(timeout(CLOSE, guard.close()).await);
        }
    }

    /// Uses up a value of this caller. It is none any more [`LIFE_S`] after its date.
    ///
    /// # Errors
    /// `Replayed`: it was used. `Stale`: it is too old, or from ahead, or this memory may have begun after its use. `OwnerFull`: the
    /// caller has used too many. All others: nobody can know. Nothing may be done then, whichever it is.
    ///
    /// Cancel safety: a value whose future is dropped may be used up.
    pub async fn spend(
        &self,
        at: At,
        kind: Kind,
        principal: &str,
        value: &str,
        dated: Dated,
    ) -> Result<(), AdmitError> {
        let stale = AdmitError::Stale;
        let owner = Name::new(&URL_SAFE_NO_PAD.encode(digest(&[principal]))).map_err(|_| stale)?;
        let value = digest(&[kind.as_str(), value]);
        let value = value.first_chunk::<16>().and_then(|value| Nonce::from_text(&URL_SAFE_NO_PAD.encode(value)));
        let value = value.ok_or(stale)?;
        // What the guard allows for by itself is not allowed for twice.
        let (guard, ahead): (&dyn ReplayGuard, u64) = match &self.together {
            Some(together) if at == At::Door => (together.admits(&owner, &value)?, 0),
            _ => (&self.here, SKEW_S),
        };
        let (from, to) = match dated {
            Dated::Here(date) => (date, date.checked_add(LIFE_S).ok_or(stale)?),
            Dated::ByCaller(date) => (date.checked_sub(ahead).ok_or(stale)?, date.checked_add(LIFE_S).ok_or(stale)?),
        };
        guard.admit(&owner, value, from, to, Instant::now()).await
    }
}

impl Together {
    /// The memory, if it is there and this caller may use another value.
    fn admits(&self, owner: &Name, value: &Nonce) -> Result<&SharedGuard, AdmitError> {
        let guard = self.guard.get().ok_or(AdmitError::Unavailable(Outage::Unverified))?;
        // A copy is not charged to whose it was.
        if !guard.has_seen(owner, value)
            && let Err(early) = self.rate.check_key(owner)
        {
            let wait = early.wait_time_from(self.clock.now());
            return Err(AdmitError::OwnerFull { retry_after_ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX) });
        }
        Ok(guard)
    }
}

/// How long after a failure the stream is looked for again.
const AGAIN: Duration = Duration::from_secs(5);
/// What the guard's own tasks may take to end.
const CLOSE: Duration = Duration::from_millis(2_500);

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Self::DpopProof => "dpop proof",
            Self::Ticket => "ticket",
        }
    }
}

/// 100 MB when it is full: about 70 bytes for each value.
fn limits(of_one: usize) -> NonceLimits {
    let (total, owners, reserve) = (1_000_000, 50_000, 8);
    NonceLimits { owner: of_one.clamp(reserve, total / 10), total, owners, reserve }
}

/// Of several texts, of which none can be taken for a part of another.
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
    use sealwire::Clock as _;

    use super::*;

    use Dated::{ByCaller, Here};

    /// A memory that has begun, and the first time after it.
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
        let proof = |who, value, dated| once.spend(At::Door, Kind::DpopProof, who, value, dated);
        assert_eq!(proof("ann", "1", Here(now)).await, Ok(()));
        for dated in [Here(now), ByCaller(now + SKEW_S)] {
            assert_eq!(proof("ann", "1", dated).await, Err(AdmitError::Replayed), "{dated:?}");
        }
        assert_eq!(once.spend(At::Door, Kind::Ticket, "ann", "1", Here(now)).await, Ok(()), "of another kind");
        assert_eq!(proof("bob", "1", Here(now)).await, Ok(()), "another's");
        // What a run before this one may have seen, what is over, and what is from ahead.
        let old = [Here(now - 3), ByCaller(now), ByCaller(now + SKEW_S - 3), ByCaller(now - LIFE_S), ByCaller(0)];
        let ahead = [Here(now + 60), ByCaller(now + 60), ByCaller(u64::MAX), Here(u64::MAX)];
        for dated in old.into_iter().chain(ahead) {
            assert_eq!(proof("ann", "2", dated).await, Err(AdmitError::Stale), "{dated:?}");
        }
        assert_eq!(proof("ann", "2", ByCaller(now + SKEW_S)).await, Ok(()), "no refusal has used it up");
    }

    #[tokio::test]
    async fn of_many_who_use_one_value_at_once_one_may() {
        let (once, now) = begun(100).await;
        let all = (0..50).map(|_| once.spend(At::Door, Kind::Ticket, "ann", "1", Here(now)));
        let all = futures_util::future::join_all(all).await;
        assert_eq!(all.iter().filter(|spent| spent.is_ok()).count(), 1, "{all:?}");
    }

    #[tokio::test]
    async fn a_caller_that_uses_too_many_leaves_room_for_others_and_is_refused() {
        let (once, now) = begun(100).await;
        for value in 0..100 {
            assert_eq!(once.spend(At::Door, Kind::DpopProof, "ann", &value.to_string(), Here(now)).await, Ok(()));
        }
        let full = once.spend(At::Door, Kind::DpopProof, "ann", "100", Here(now)).await;
        assert!(matches!(full, Err(AdmitError::OwnerFull { retry_after_ms }) if retry_after_ms <= 70_000), "{full:?}");
        assert_eq!(
            once.spend(At::Door, Kind::DpopProof, "ann", "7", Here(now)).await,
            Err(AdmitError::Replayed),
            "none is forgotten"
        );
        assert_eq!(once.spend(At::Door, Kind::DpopProof, "bob", "1", Here(now)).await, Ok(()));
    }
}
