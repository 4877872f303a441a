//! What a connection, or one request of an HTTP/2 connection, is doing, and when that has lasted too long.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::limits::{HEAD, UNREAD};

#[derive(Debug, Clone, Copy)]
pub(super) enum Phase {
    /// Between two requests, or before the first.
    Idle { until: Instant },
    /// The head of an HTTP/1.1 request has begun.
    Head { until: Instant },
    /// A request is being answered.
    Busy {
        /// Since when its client has read nothing of the answer.
        unread: Option<Instant>,
        /// By when all of it must be read.
        until: Option<Instant>,
    },
    /// The connection has to make room for another.
    Evicted,
}

impl Phase {
    pub(super) const BUSY: Self = Self::Busy { unread: None, until: None };

    /// When this phase has lasted too long.
    fn until(self) -> Option<Instant> {
        match self {
            Self::Idle { until } | Self::Head { until } => Some(until),
            Self::Busy { unread, until } => unread.map(|since| since + UNREAD).into_iter().chain(until).min(),
            Self::Evicted => None,
        }
    }
}

/// The current phase. Its task is woken only if the deadline becomes earlier than its next check: to wake it at each change would cost four
/// wake-ups and timers for each request.
#[derive(Debug)]
pub(super) struct Activity {
    now: Mutex<Now>,
    sooner: Notify,
}

#[derive(Debug)]
struct Now {
    phase: Phase,
    /// When the task will check by itself.
    next_check: Option<Instant>,
}

impl Activity {
    pub(super) fn new(phase: Phase) -> Self {
        Self { now: Mutex::new(Now { phase, next_check: None }), sooner: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set(&self, phase: Phase) {
        self.change(|_| Some(phase));
    }

    pub(super) fn change(&self, change: impl FnOnce(Phase) -> Option<Phase>) {
        let mut now = self.lock();
        let Some(phase) = change(now.phase) else { return };
        now.phase = phase;
        let is_sooner = match (phase, phase.until(), now.next_check) {
            (Phase::Evicted, ..) | (_, Some(_), None) => true,
            (_, Some(until), Some(next_check)) => until < next_check,
            (_, None, _) => false,
        };
        drop(now);
        if is_sooner {
            self.sooner.notify_one();
        }
    }

    /// Sets by when an answer that has begun must be read.
    pub(super) fn end_by(&self, at: Instant) {
        self.change(|phase| match phase {
            Phase::Busy { unread, .. } => Some(Phase::Busy { unread, until: Some(at) }),
            _ => None,
        });
    }

    /// Sets since when nothing of an answer has been read; `None` if some of it was.
    pub(super) fn unread_since(&self, unread: Option<Instant>) {
        self.change(|phase| match phase {
            Phase::Busy { until, .. } => Some(Phase::Busy { unread, until }),
            _ => None,
        });
    }

    /// Notes that some bytes of HTTP/1.1 have arrived.
    pub(super) fn note_read(&self) {
        self.change(|phase| matches!(phase, Phase::Idle { .. }).then(|| Phase::Head { until: Instant::now() + HEAD }));
    }

    /// Notes that some of an answer was written, or could not be.
    pub(super) fn note_write(&self, was_written: bool, is_http1: bool) {
        self.change(|phase| match phase {
            // The rest of an answer that was handed over; over HTTP/2 it may be a ping.
            Phase::Idle { until } if was_written && is_http1 => {
                Some(Phase::Idle { until: until.max(Instant::now() + UNREAD) })
            }
            Phase::Busy { unread: Some(_), until } if was_written => Some(Phase::Busy { unread: None, until }),
            Phase::Busy { unread: None, until } if !was_written => {
                Some(Phase::Busy { unread: Some(Instant::now()), until })
            }
            _ => None,
        });
    }

    /// Completes when the current phase has lasted too long, or the connection has to make room.
    pub(super) async fn overdue(&self) {
        loop {
            let until = {
                let mut now = self.lock();
                let until = now.phase.until();
                if matches!(now.phase, Phase::Evicted) || until.is_some_and(|until| until <= Instant::now()) {
                    return;
                }
                now.next_check = until;
                until
            };
            // `Notify` keeps a notification that comes in between for the next waiter.
            let sooner = self.sooner.notified();
            match until {
                Some(until) => drop(timeout_at(until, sooner).await),
                None => sooner.await,
            }
        }
    }
}
