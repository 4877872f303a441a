//! What may be used once: proofs and tickets that callers show to a door. The library's replay guard remembers them.
//! Never says yes twice to one value, nor to one of which it cannot know whether it was used before.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sealwire::auth::{
    AdmitError, LocalGuard, Nonce, NonceLimits, OpenError, ReplayGuard, SharedConfig, SharedGuard, SharedOpenError,
    TimeFloor, Window,
};
use sealwire::{BusConfig, Name, SystemClock};
use sha2::{Digest as _, Sha256};
use tokio::time::{Instant, timeout};

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

/// The values that were used, and are not over yet.
#[derive(Debug)]
pub struct Once {
    guard: Arc<dyn ReplayGuard>,
    /// What the guard allows for by itself, in seconds.
    skew_s: u64,
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
        let guard = LocalGuard::open(window, limits(of_one), Arc::new(SystemClock), &TimeFloor::Ephemeral)?;
        Ok(Self { guard: Arc::new(guard), skew_s: 0 })
    }

    /// In all processes that are told the same: replicas of a door that is called `name`. What may have been used while none of them was
    /// there is refused.
    ///
    /// # Errors
    /// The broker cannot be reached within some seconds, or its stream is unfit.
    ///
    /// Cancel safe.
    pub async fn shared(
        of_one: usize,
        environment: Name,
        name: Name,
        nats: BusConfig,
    ) -> Result<Self, SharedOpenError> {
        let mut config = SharedConfig::new(environment, name);
        config.window = Window { window_s: LIFE_S + SKEW_S, skew_s: SKEW_S };
        config.nonce_limits = limits(of_one);
        let guard = SharedGuard::open(config, nats, Arc::new(SystemClock)).await?;
        Ok(Self { guard: Arc::new(guard), skew_s: SKEW_S })
    }

    /// Why nothing can be used now, if others have to be asked for it.
    #[must_use]
    pub fn not_ready(&self) -> Option<String> {
        (self.skew_s > 0).then(|| self.guard.not_ready()).flatten()
    }

    /// Nothing is used any more. Ends within a short time.
    pub async fn close(&self) {
        // A broker that is silent takes nothing.
        drop(timeout(Duration::from_secs(1), self.guard.close()).await);
    }

    /// Uses up a value of this caller. It is none any more [`LIFE_S`] after its date.
    ///
    /// # Errors
    /// `Replayed`: it was used. `Stale`: it is too old, or from ahead, or this memory may have begun after its use. `OwnerFull`: the
    /// caller has used too many. All others: nobody can know. Nothing may be done then, whichever it is.
    ///
    /// Cancel safety: a value whose future is dropped may be used up.
    pub async fn spend(&self, kind: Kind, principal: &str, value: &str, dated: Dated) -> Result<(), AdmitError> {
        let stale = AdmitError::Stale;
        let (from, to) = match dated {
            Dated::Here(at) => (at, at.checked_add(LIFE_S).ok_or(stale)?),
            Dated::ByCaller(at) => {
                (at.checked_sub(SKEW_S - self.skew_s).ok_or(stale)?, at.checked_add(LIFE_S).ok_or(stale)?)
            }
        };
        let owner = Name::new(&URL_SAFE_NO_PAD.encode(digest(&[principal]))).map_err(|_| stale)?;
        let value = digest(&[kind.as_str(), value]);
        let value = value.first_chunk::<16>().and_then(|value| Nonce::from_text(&URL_SAFE_NO_PAD.encode(value)));
        self.guard.admit(&owner, value.ok_or(stale)?, from, to, Instant::now()).await
    }
}

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
        let proof = |who, value, dated| once.spend(Kind::DpopProof, who, value, dated);
        assert_eq!(proof("ann", "1", Here(now)).await, Ok(()));
        for dated in [Here(now), ByCaller(now + SKEW_S)] {
            assert_eq!(proof("ann", "1", dated).await, Err(AdmitError::Replayed), "{dated:?}");
        }
        assert_eq!(once.spend(Kind::Ticket, "ann", "1", Here(now)).await, Ok(()), "of another kind");
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
        let all = (0..50).map(|_| once.spend(Kind::Ticket, "ann", "1", Here(now)));
        let all = futures_util::future::join_all(all).await;
        assert_eq!(all.iter().filter(|spent| spent.is_ok()).count(), 1, "{all:?}");
    }

    #[tokio::test]
    async fn a_caller_that_uses_too_many_leaves_room_for_others_and_is_refused() {
        let (once, now) = begun(100).await;
        for value in 0..100 {
            assert_eq!(once.spend(Kind::DpopProof, "ann", &value.to_string(), Here(now)).await, Ok(()));
        }
        let full = once.spend(Kind::DpopProof, "ann", "100", Here(now)).await;
        assert!(matches!(full, Err(AdmitError::OwnerFull { retry_after_ms }) if retry_after_ms <= 70_000), "{full:?}");
        assert_eq!(
            once.spend(Kind::DpopProof, "ann", "7", Here(now)).await,
            Err(AdmitError::Replayed),
            "none is forgotten"
        );
        assert_eq!(once.spend(Kind::DpopProof, "bob", "1", Here(now)).await, Ok(()));
    }
}
