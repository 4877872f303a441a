//! Questions that wait to be answered: the newest goes first.
//! Never hands out one whose broker has given up waiting, and never holds more than fit.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sealwire::internal::LogLimiter;
use sealwire::internal::nats::Message;
use tokio::sync::Notify;

use super::counts::Counts;

/// Why the newest: when more come than can be answered, its broker still waits when it is answered. In the order in which they came, each
/// would get its turn just when its broker gives up, and whoever is refused asks again.
pub(super) struct Backlog {
    held: Mutex<Held>,
    changed: Notify,
    /// How long a broker waits for its answer.
    patience: Duration,
    counts: Arc<Counts>,
    trouble: LogLimiter,
}

#[derive(Default)]
struct Held {
    /// With the time at which they came, oldest first.
    questions: VecDeque<(Instant, Message)>,
    closed: bool,
}

/// Questions that wait. For each one more, the oldest is dropped, whose broker gives up first.
pub(super) const WAITING: usize = 4_096;

impl Backlog {
    pub(super) fn new(patience: Duration, counts: Arc<Counts>) -> Self {
        Self { held: Mutex::default(), changed: Notify::new(), patience, counts, trouble: LogLimiter::default() }
    }

    pub(super) fn push(&self, came: Instant, question: Message) {
        let mut held = self.held();
        let is_full = held.questions.len() >= WAITING;
        if is_full {
            held.questions.pop_front();
        }
        held.questions.push_back((came, question));
        drop(held);
        self.changed.notify_one();
        if is_full {
            self.dropped("queue", 1);
        }
    }

    /// The next question, and when it came; `None` once there will be no more.
    ///
    /// Cancel safety: nothing is lost.
    pub(super) async fn next(&self) -> Option<(Instant, Message)> {
        loop {
            // Made before looking, so that closing in between is not missed.
            let changed = self.changed.notified();
            if let Some(next) = self.pop(Instant::now()) {
                return Some(next);
            }
            if self.held().closed {
                return None;
            }
            changed.await;
        }
    }

    /// Takes the newest, if its broker still waits. Otherwise nobody waits for any of the others.
    fn pop(&self, now: Instant) -> Option<(Instant, Message)> {
        let mut held = self.held();
        let next = held.questions.pop_back()?;
        if now.saturating_duration_since(next.0) < self.patience {
            return Some(next);
        }
        let late = 1 + held.questions.len();
        held.questions.clear();
        drop(held);
        self.dropped("late", late);
        None
    }

    fn dropped(&self, reason: &'static str, count: usize) {
        self.counts.dropped(reason, count);
        if let Some(more) = self.trouble.check() {
            tracing::warn!(target: "sealwire::authd", more, "more questions than can be answered in time: run more of this");
        }
    }

    /// Nothing more comes: what waits is still handed out.
    pub(super) fn close(&self) {
        self.held().closed = true;
        self.changed.notify_waiters();
    }

    pub(super) fn len(&self) -> usize {
        self.held().questions.len()
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(2);

    fn backlog() -> Backlog {
        Backlog::new(PATIENCE, Arc::default())
    }

    fn question(number: usize) -> Message {
        Message {
            sid: 1,
            subject: number.to_string(),
            reply: None,
            headers: Default::default(),
            payload: Default::default(),
            oversized: false,
        }
    }

    fn popped(backlog: &Backlog, now: Instant) -> Option<usize> {
        backlog.pop(now).map(|(_, question)| question.subject.parse().unwrap())
    }

    #[test]
    fn the_newest_is_answered_first_and_none_for_which_its_broker_does_not_wait() {
        let (backlog, start) = (backlog(), Instant::now());
        let at = |ms: u64| start + Duration::from_millis(ms);
        for (number, ms) in [0, 500, 1_000, 2_400].into_iter().enumerate() {
            backlog.push(at(ms), question(number));
        }
        assert_eq!(popped(&backlog, at(2_500)), Some(3));
        assert_eq!(popped(&backlog, at(2_999)), Some(2));
        // From 3,000 on, nobody waits for the third, and for the first two even less.
        assert_eq!((backlog.len(), popped(&backlog, at(3_000))), (2, None));
        assert_eq!((backlog.len(), backlog.counts.of("dropped", "late")), (0, 2));
        // Whoever asks again gets an answer.
        backlog.push(at(3_000), question(4));
        assert_eq!(popped(&backlog, at(3_000)), Some(4));
        assert_eq!(backlog.counts.of("dropped", "queue"), 0);
    }

    #[test]
    fn a_question_too_many_takes_the_place_of_the_oldest() {
        let (backlog, now) = (backlog(), Instant::now());
        for number in 0..WAITING + 3 {
            backlog.push(now, question(number));
        }
        assert_eq!((backlog.len(), backlog.counts.of("dropped", "queue")), (WAITING, 3));
        let all: Vec<usize> = std::iter::from_fn(|| popped(&backlog, now)).collect();
        assert_eq!(all, (3..WAITING + 3).rev().collect::<Vec<_>>());
        assert_eq!(backlog.counts.of("dropped", "late"), 0);
    }

    #[tokio::test]
    async fn what_waits_when_it_is_closed_is_still_handed_out() {
        let backlog = Arc::new(backlog());
        let waiting = Arc::clone(&backlog);
        let idle = tokio::spawn(async move { waiting.next().await.is_none() });
        tokio::task::yield_now().await;
        backlog.close();
        assert!(idle.await.unwrap());
        backlog.push(Instant::now(), question(1));
        assert!(backlog.next().await.is_some() && backlog.next().await.is_none());
    }
}
