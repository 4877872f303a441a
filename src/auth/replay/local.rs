//! The guard for a single replica: the nonces live in this process. Never admits at a time that a later run of the same service
//! would not fence; knows nothing of other replicas.
//!
//! Three things keep a message from running twice here, whatever the wall clock does:
//! - the time to judge by is read under the owner's lock and never goes back (see [`Lease`]), so there is no gap between forgetting
//!   a nonce and finding its message expired;
//! - a nonce is dropped at its expiry by that same time and for no other reason. A store that drops entries unused for a while
//!   counts real time: with the wall clock set back an hour, nonces must stay for that hour;
//! - what an earlier run admitted lies behind the fence, which the state file holds.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::counters::Counters;
use super::floor::{self, Lease, Renewal};
use super::nonce_limits::{LimitReached, Quota};
use super::nonce_table::{NonceTable, Poisoned};
use super::{
    AdmitError, GuardIdentity, GuardStats, NonceLimits, NonceLimitsError, Outage, ReplayGuard, TimeFloor,
    TimeFloorError, Window, WindowError,
};
use crate::auth::outcomes::{LocalOutcomes, OutcomeStore};
use crate::clock::Clock;
use crate::name::Name;
use crate::wire::Nonce;

/// Remembers admitted messages in this process, for a service with one replica.
///
/// Memory is bounded by [`NonceLimits`]. A thread of its own keeps the state file ahead of the clock and frees expired nonces.
/// Dropping the guard stops the thread but writes nothing, as a crash would; [`ReplayGuard::close`] makes the next start quicker.
pub struct LocalGuard {
    shared: Arc<Shared>,
    upkeep: Option<(mpsc::Sender<()>, JoinHandle<()>)>,
    outcomes: Arc<LocalOutcomes>,
}

/// Why a [`LocalGuard`] cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The window is out of its range.
    #[error(transparent)]
    Window(#[from] WindowError),
    /// The limits contradict each other.
    #[error(transparent)]
    NonceLimits(#[from] NonceLimitsError),
    /// The state file cannot be used.
    #[error(transparent)]
    Floor(#[from] TimeFloorError),
    /// The operating system could not start a thread.
    #[error("no thread for the replay guard: {0}")]
    Thread(std::io::Error),
}

impl LocalGuard {
    /// Opens a guard. Its fence is now plus the skew, or what the state file says if that is later, which is enough if no other
    /// replica executed messages before. [`ReplayGuard::serving`] raises it to a fence that holds whoever did. Blocks for a moment,
    /// to read and write the file.
    ///
    /// # Errors
    /// [`OpenError::Window`] and [`OpenError::NonceLimits`] blame the configuration, [`OpenError::Floor`] the state file or
    /// its folder, [`OpenError::Thread`] the machine.
    pub fn open(
        window: Window,
        nonce_limits: NonceLimits,
        clock: Arc<dyn Clock>,
        floor: &TimeFloor,
    ) -> Result<Self, OpenError> {
        Self::open_with(window, nonce_limits, clock, floor, true)
    }

    /// Reports what [`LocalGuard::open`] would refuse, except a state file that another process uses. Writes nothing.
    pub(crate) fn check(window: Window, nonce_limits: NonceLimits, floor: &TimeFloor) -> Result<(), OpenError> {
        Window::new(window.window_s, window.skew_s)?;
        Quota::new(nonce_limits)?;
        Ok(floor.check()?)
    }

    /// A guard that vouches for all times, as the first of two that must both agree. The other one has the fence.
    pub(super) fn unfenced(
        window: Window,
        nonce_limits: NonceLimits,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, OpenError> {
        Self::open_with(window, nonce_limits, clock, &TimeFloor::Ephemeral, false)
    }

    fn open_with(
        window: Window,
        nonce_limits: NonceLimits,
        clock: Arc<dyn Clock>,
        floor: &TimeFloor,
        fenced: bool,
    ) -> Result<Self, OpenError> {
        let window = Window::new(window.window_s, window.skew_s)?;
        let quota = Quota::new(nonce_limits)?;
        let (lease, fence) = Lease::open(floor, clock.as_ref(), window.skew_s)?;
        let fence = if fenced { fence } else { 0 };
        let shared = Arc::new(Shared {
            window,
            quota,
            clock,
            lease,
            fence: AtomicU64::new(fence),
            keeps_time: fenced,
            nonces: NonceTable::default(),
            renewing: tokio::sync::Mutex::new(()),
            counters: Counters::default(),
        });
        let (stop, stopped) = mpsc::channel();
        let kept = Arc::clone(&shared);
        let thread = thread::Builder::new().name("sealwire-replay".to_owned());
        let thread = thread.spawn(move || kept.keep_up(&stopped)).map_err(OpenError::Thread)?;
        Ok(Self { shared, upkeep: Some((stop, thread)), outcomes: Arc::default() })
    }

    /// As [`ReplayGuard::admit`], but immediate and not counted: for a guard without a state file, which waits for nothing.
    pub(super) fn admit_now(&self, owner: &Name, nonce: Nonce, iat: u64, exp: u64) -> Result<(), AdmitError> {
        let closed = AdmitError::Unavailable(Outage::Closed);
        self.shared.check(owner, nonce, iat, exp).unwrap_or(Err(closed))
    }

    /// The time to judge by, in seconds since the Unix epoch; it never goes back.
    pub(super) fn now_s(&self) -> u64 {
        self.shared.lease.now_ms(self.shared.clock.as_ref()) / 1000
    }

    /// Renews the lease for the time ahead, and frees expired nonces. Happens by itself every second. Blocks for a moment, to write
    /// the state file.
    pub fn sweep(&self) {
        if self.shared.keeps_time {
            // The next message shows whether it worked.
            let _ = self.shared.renew_lease();
        }
        self.shared.sweep();
    }
}

impl ReplayGuard for LocalGuard {
    fn fence(&self) -> u64 {
        self.shared.fence()
    }

    fn admit<'a>(
        &'a self,
        owner: &'a Name,
        nonce: Nonce,
        iat: u64,
        exp: u64,
        _received: Instant,
    ) -> BoxFuture<'a, Result<(), AdmitError>> {
        // When the message arrived does not matter here: the clock is read under the lock, after every wait.
        Box::pin(async move {
            let answer = self.shared.admit(owner, nonce, iat, exp).await;
            self.shared.counters.count(answer);
            answer
        })
    }

    fn has_seen(&self, owner: &Name, nonce: &Nonce) -> bool {
        self.shared.nonces.has_seen(owner, nonce)
    }

    fn kind(&self) -> &'static str {
        "local"
    }

    fn outcomes(&self) -> Option<Arc<dyn OutcomeStore>> {
        Some(Arc::clone(&self.outcomes) as Arc<dyn OutcomeStore>)
    }

    fn identity(&self) -> GuardIdentity {
        GuardIdentity::new(self.kind(), self.shared.window)
    }

    fn serving(&self) {
        self.shared.raise_fence(self.shared.lease.knows_of_late(self.shared.lease.floor_ms()));
    }

    fn outsider(&self) {
        self.shared.raise_fence(false);
    }

    fn not_ready(&self) -> Option<String> {
        self.shared.not_ready()
    }

    fn stats(&self) -> GuardStats {
        self.shared.stats()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let closed = tokio::task::spawn_blocking(move || shared.lease.close()).await;
            if let Ok(Err(error)) = closed {
                tracing::warn!(
                    target: "sealwire::replay",
                    %error,
                    "the replay guard's floor was not written; the next start waits a little longer"
                );
            }
        })
    }
}

impl Drop for LocalGuard {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.upkeep.take() {
            drop(stop);
            if thread.join().is_err() {
                tracing::error!(target: "sealwire::replay", "the replay guard's thread had panicked");
            }
        }
    }
}

impl fmt::Debug for LocalGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalGuard")
            .field("fence", &self.shared.fence())
            .field("lease", &self.shared.lease)
            .finish_non_exhaustive()
    }
}

/// What the guard, its thread and a renewal in flight share.
struct Shared {
    window: Window,
    quota: Quota,
    clock: Arc<dyn Clock>,
    lease: Lease,
    fence: AtomicU64,
    /// Whether the thread reads the clock, too. In a shared guard, which knows when the clock is wrong, only messages move the
    /// floor, and only when it is right: a short leap ahead then does not hold the floor for as long as the leap.
    keeps_time: bool,
    nonces: NonceTable,
    /// Held by the one message that renews the lease for all that are waiting.
    renewing: tokio::sync::Mutex<()>,
    counters: Counters,
}

/// Only the lease is missing; with it, the message would be admitted.
struct RenewalNeeded;

impl Shared {
    fn fence(&self) -> u64 {
        self.fence.load(Ordering::SeqCst)
    }

    /// From now on, whatever may have been executed before is stale: by a predecessor with this state file only, or by anybody.
    fn raise_fence(&self, predecessor_only: bool) {
        let skew_s = self.window.skew_s;
        let ahead_s = if predecessor_only { skew_s } else { (2 * skew_s).max(QUIET_S) };
        let now_ms = self.lease.now_ms(self.clock.as_ref());
        self.fence.fetch_max((now_ms + ahead_s * 1000) / 1000, Ordering::SeqCst);
    }

    async fn admit(self: &Arc<Self>, owner: &Name, nonce: Nonce, iat: u64, exp: u64) -> Result<(), AdmitError> {
        // A second renewal is needed only if the clock leaps while the disk writes.
        for _ in 0..3 {
            match self.check(owner, nonce, iat, exp) {
                Ok(answer) => return answer,
                Err(RenewalNeeded) => match self.renew().await {
                    Renewal::Granted => {}
                    Renewal::Failed => break,
                    Renewal::Closed => return Err(AdmitError::Unavailable(Outage::Closed)),
                },
            }
        }
        Err(AdmitError::Unavailable(Outage::FloorNotWritten))
    }

    fn check(&self, owner: &Name, nonce: Nonce, iat: u64, exp: u64) -> Result<Result<(), AdmitError>, RenewalNeeded> {
        let live = match self.nonces.live(owner, self.quota.owners()) {
            Ok(Some(live)) => live,
            Ok(None) => return Ok(Err(AdmitError::Full { retry_after_ms: SWEEP_MS })),
            Err(Poisoned) => return Ok(Err(AdmitError::Unavailable(Outage::Interrupted))),
        };
        let Ok(mut live) = live.lock() else { return Ok(Err(AdmitError::Unavailable(Outage::Interrupted))) };
        // INVARIANT: the time is read under the owner's lock. A thread that read it before could be overtaken by one
        // that forgets the nonce, and would then still find the message in time.
        let now_ms = self.lease.now_ms(self.clock.as_ref());
        let now = now_ms / 1000;
        let fence = self.fence();
        if !self.window.holds(iat, exp, now, 0) {
            return Ok(Err(AdmitError::Stale));
        }
        live.forget_expired(now, &self.quota);
        if live.contains(&nonce) {
            return Ok(Err(AdmitError::Replayed));
        }
        // A message dated ahead has to wait for the fence as well: if it ran before the fence is past, there would have been no
        // quiet time.
        if let Some(wait_s) = self.window.fenced_s(iat, now, fence) {
            return Ok(Err(AdmitError::Fenced { retry_after_ms: wait_s.saturating_mul(1000) }));
        }
        if iat <= fence {
            return Ok(Err(AdmitError::Stale));
        }
        if !self.lease.covers(now_ms) {
            return Err(RenewalNeeded);
        }
        if let Err(reached) = self.quota.take(live.len()) {
            let first_ms = live.first_expiry().unwrap_or(now).saturating_mul(1000);
            let retry_after_ms = first_ms.saturating_sub(now_ms).max(1);
            return Ok(Err(match reached {
                LimitReached::Owner => AdmitError::OwnerFull { retry_after_ms },
                LimitReached::Total => AdmitError::Full { retry_after_ms: retry_after_ms.min(SWEEP_MS) },
            }));
        }
        live.insert(nonce, exp);
        Ok(Ok(()))
    }

    /// Renews the lease. If it has lapsed, this process or its machine stood still, and others may have served meanwhile.
    fn renew_lease(&self) -> Renewal {
        if self.lease.has_lapsed(self.clock.as_ref()) {
            self.raise_fence(false);
        }
        self.lease.renew(self.clock.as_ref())
    }

    /// Renews the lease on a blocking thread, once for all messages that wait for it.
    async fn renew(self: &Arc<Self>) -> Renewal {
        let _one_at_a_time = self.renewing.lock().await;
        if self.lease.is_failing() {
            // The upkeep thread retries every second; messages do not hammer the disk.
            return Renewal::Failed;
        }
        if self.lease.covers(self.lease.floor_ms()) {
            return Renewal::Granted;
        }
        let shared = Arc::clone(self);
        tokio::task::spawn_blocking(move || shared.renew_lease()).await.unwrap_or(Renewal::Failed)
    }

    /// The thread's work, until the sender of `stopped` is gone.
    fn keep_up(&self, stopped: &mpsc::Receiver<()>) {
        let mut was_failing = false;
        let mut was_behind = false;
        while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(Duration::from_millis(floor::RENEW_EVERY_MS)) {
            let failing = self.keeps_time && self.renew_lease() == Renewal::Failed;
            if failing && !was_failing {
                let reason = self.lease.failure().unwrap_or_default();
                tracing::error!(
                    target: "sealwire::replay",
                    reason,
                    "every message is refused until the replay guard's floor can be written"
                );
            }
            let lag_ms = self.lag_ms();
            let behind = lag_ms > ALARM_MS;
            if behind && !was_behind {
                tracing::error!(
                    target: "sealwire::replay",
                    lag_ms,
                    "the clock was stepped back; messages are refused early until it has caught up"
                );
            } else if was_behind && !behind {
                tracing::info!(target: "sealwire::replay", "the clock has caught up");
            }
            (was_failing, was_behind) = (failing, behind);
            self.sweep();
        }
    }

    fn sweep(&self) {
        let now_ms = || if self.keeps_time { self.lease.now_ms(self.clock.as_ref()) } else { self.lease.floor_ms() };
        self.nonces.sweep(|| now_ms() / 1000, &self.quota);
    }

    fn lag_ms(&self) -> u64 {
        self.lease.floor_ms().saturating_sub(self.clock.now_ms())
    }

    fn not_ready(&self) -> Option<String> {
        if self.lease.is_closed() {
            return Some(Outage::Closed.to_string());
        }
        if self.lease.is_failing() {
            return Some(self.lease.failure().unwrap_or_else(|| Outage::FloorNotWritten.to_string()));
        }
        let (now, fence) = (self.clock.now_s(), self.fence());
        if now <= fence {
            let wait_s = fence - now + 1;
            let usual_s = (2 * self.window.skew_s).max(QUIET_S) + 1 + 2 * floor::RENEW_EVERY_MS / 1000;
            return Some(if wait_s <= usual_s {
                format!("messages issued before this start are not vouched for: ready in {wait_s} s")
            } else {
                format!(
                    "the clock is {wait_s} s behind what this service has already seen: ready when it has caught up. \
                     Set the clock if it is wrong; if it was ahead earlier and is right now, keep the service stopped \
                     for six minutes and delete the state file"
                )
            });
        }
        let lag_ms = self.lag_ms();
        (lag_ms > ALARM_MS).then(|| {
            format!("the clock was stepped back by {lag_ms} ms: messages are refused early until it has caught up")
        })
    }

    fn stats(&self) -> GuardStats {
        let mut stats = GuardStats {
            live: self.quota.live(),
            owners: self.nonces.len(),
            floor_ms: self.lease.floor_ms(),
            lag_ms: self.lag_ms(),
            ..GuardStats::default()
        };
        self.counters.fill(&mut stats);
        stats
    }
}

/// A replica with a shared guard that was paused for up to 2.5 s carries on with what it knew before (see `shared/retention.rs`).
/// So nothing is executed here until such a replica would have been noticed again.
const QUIET_S: u64 = 3;

/// A clock this far behind the floor is reported: an NTP client slews smaller errors.
const ALARM_MS: u64 = 1000;

/// When to retry if room depends on others: expired nonces are freed as often as the lease is renewed.
const SWEEP_MS: u64 = floor::RENEW_EVERY_MS;

#[cfg(test)]
mod tests;
