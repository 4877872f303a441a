//! Spans that wait to be sent, encoded.
//! Never holds more than its bounds, and never makes anybody wait: a span that finds no room is counted.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Spans that wait to be sent.
#[derive(Debug)]
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    /// Woken when there is enough for a request.
    enough: Notify,
    most: usize,
    batch: usize,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Waiting {
    spans: VecDeque<Vec<u8>>,
    bytes: usize,
}

/// What became of spans.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// The collector has them.
    pub(crate) exported: AtomicU64,
    /// They found no room.
    pub(crate) dropped: AtomicU64,
    /// They could not be sent.
    pub(crate) failed: AtomicU64,
    /// The collector did not want them.
    pub(crate) refused: AtomicU64,
    /// Sampled flags of callers that did not count.
    pub(crate) flags: AtomicU64,
}

/// The most bytes of spans that wait.
const MAX_BYTES: usize = 4 << 20;
/// The most bytes of spans in one request: collectors take 4 MiB or more.
const MAX_REQUEST: usize = 1 << 20;

impl Queue {
    /// At most `most` spans wait; a request has `batch` of them.
    pub(crate) fn new(most: usize, batch: usize) -> Self {
        let (waiting, enough, counts) = (Mutex::default(), Notify::new(), Counts::default());
        Self { waiting, enough, most, batch: batch.min(most), counts }
    }

    pub(crate) fn put(&self, span: Vec<u8>) {
        let is_enough = {
            let mut waiting = self.lock();
            if waiting.spans.len() >= self.most || waiting.bytes.saturating_add(span.len()) > MAX_BYTES {
                drop(waiting);
                self.counts.dropped.fetch_add(1, Ordering::Relaxed);
                return;
            }
            waiting.bytes += span.len();
            waiting.spans.push_back(span);
            waiting.spans.len() == self.batch || waiting.bytes >= MAX_REQUEST
        };
        if is_enough {
            self.enough.notify_one();
        }
    }

    /// Completes when there is enough for a request.
    pub(crate) async fn has_enough(&self) {
        while !self.is_enough() {
            self.enough.notified().await;
        }
    }

    /// Whether there is enough for a request.
    pub(crate) fn is_enough(&self) -> bool {
        let waiting = self.lock();
        waiting.spans.len() >= self.batch || waiting.bytes >= MAX_REQUEST
    }

    /// The spans of the next request, the oldest first.
    pub(crate) fn take(&self) -> Vec<Vec<u8>> {
        let mut waiting = self.lock();
        let (mut taken, mut bytes) = (Vec::new(), 0);
        while taken.len() < self.batch
            && let Some(span) = waiting.spans.pop_front_if(|span| taken.is_empty() || bytes + span.len() <= MAX_REQUEST)
        {
            bytes += span.len();
            taken.push(span);
        }
        waiting.bytes -= bytes;
        taken
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().spans.len()
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    pub(crate) fn flag_ignored(&self) {
        self.flags.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_finds_no_room_is_counted_and_the_rest_leaves_in_order() {
        let queue = Queue::new(10, 4);
        for number in 0..25 {
            queue.put(vec![number]);
        }
        assert_eq!((queue.len(), queue.counts().dropped.load(Ordering::Relaxed)), (10, 15));
        let left: Vec<_> = std::iter::repeat_with(|| queue.take().len()).take(4).collect();
        assert_eq!(left, [4, 4, 2, 0]);
        assert_eq!(queue.lock().bytes, 0);
    }

    #[test]
    fn large_spans_are_bounded_by_their_bytes() {
        let queue = Queue::new(1_000, 1_000);
        for _ in 0..100 {
            queue.put(vec![0; MAX_BYTES / 10]);
        }
        assert_eq!(queue.len(), 10);
        assert_eq!(queue.take().len(), MAX_REQUEST / (MAX_BYTES / 10));
        let one = Queue::new(10, 10);
        one.put(vec![0; 2 * MAX_REQUEST]);
        one.put(vec![0; 1]);
        assert_eq!((one.take().len(), one.take().len()), (1, 1));
    }
}
