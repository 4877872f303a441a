//! What is waiting to be written to one connection, and who is waiting for its answers.
//! Never outlives the connection: what was not written when it ended is never sent.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};

/// Why a message was not handed to the connection. In every case it is not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// The connection has ended.
    #[error("the connection to the broker is lost")]
    Gone,
    /// The message is larger than the broker accepts.
    #[error("the message is larger than the broker's max_payload of {limit} bytes")]
    TooLarge {
        /// The broker's `max_payload` in bytes.
        limit: usize,
    },
    /// A subject that would break the framing.
    #[error("a subject has 1 to 2,000 bytes of printable ASCII")]
    Subject,
}

/// A queue of whole frames. Publishers wait for room; what keeps the connection alive does not.
#[derive(Debug, Default)]
pub(super) struct Outbound {
    queue: Mutex<Queue>,
    /// Notified when there is something to write, or when there never will be again.
    filled: Notify,
    /// Notified when there may be room.
    emptied: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    bytes: Vec<u8>,
    /// One entry for each unanswered `PING`: who waits for its answer, if anybody.
    pings: VecDeque<Option<oneshot::Sender<()>>>,
    /// Nothing more is accepted; what is queued is still written.
    finishing: bool,
    closed: bool,
}

/// The most bytes that wait. A message is accepted if it fits, or if nothing else is waiting.
const MOST_BYTES: usize = 4 << 20;
/// The most unanswered pings. A silent broker is left long before that.
const MOST_PINGS: usize = 64 << 10;
/// By how much control lines, which keep the connection alive, may exceed the limit.
const SLACK: usize = 64 << 10;

impl Outbound {
    /// Adds a message once there is room. Frames are whole: dropping the future adds all of it or nothing.
    pub(super) async fn publish(&self, frame: &[&[u8]]) -> Result<(), PublishError> {
        while !self.publish_now(frame)? {
            let mut emptied = std::pin::pin!(self.emptied.notified());
            // Registered before checking again, so that room made right afterwards is not missed.
            emptied.as_mut().enable();
            if self.publish_now(frame)? {
                break;
            }
            emptied.await;
        }
        Ok(())
    }

    /// Adds a message if there is room.
    pub(super) fn publish_now(&self, frame: &[&[u8]]) -> Result<bool, PublishError> {
        let size: usize = frame.iter().map(|part| part.len()).sum();
        let mut queue = self.lock();
        if queue.closed || queue.finishing {
            return Err(PublishError::Gone);
        }
        let fits = queue.bytes.is_empty() || queue.bytes.len() + size <= MOST_BYTES;
        // If the queue was not empty, the writer has already been notified.
        let is_first = queue.bytes.is_empty();
        if fits {
            queue.bytes.reserve(size);
            frame.iter().for_each(|part| queue.bytes.extend_from_slice(part));
        }
        drop(queue);
        if fits && is_first {
            self.filled.notify_one();
        }
        Ok(fits)
    }

    /// Adds a control line; `false` if the connection has ended, or if a broker makes us write more than it reads.
    pub(super) fn control(&self, line: &str) -> bool {
        let mut queue = self.lock();
        let taken = !queue.closed && queue.bytes.len() < MOST_BYTES + SLACK;
        if taken {
            queue.bytes.extend_from_slice(line.as_bytes());
        }
        drop(queue);
        self.filled.notify_one();
        taken
    }

    /// Adds a `PING`. Its answer means that everything added before has been handled.
    pub(super) fn ping(&self, waiter: Option<oneshot::Sender<()>>) {
        let mut queue = self.lock();
        if !queue.closed && queue.pings.len() < MOST_PINGS {
            queue.bytes.extend_from_slice(b"PING\r\n");
            queue.pings.push_back(waiter);
        }
        drop(queue);
        self.filled.notify_one();
    }

    /// The broker has answered the oldest `PING`.
    pub(super) fn pong(&self) {
        if let Some(Some(waiter)) = self.lock().pings.pop_front() {
            // The waiter may have given up.
            let _ = waiter.send(());
        }
    }

    /// Waits for something to write and swaps it with the empty `written`. `None` once there will be nothing more.
    ///
    /// Cancel safety: nothing is lost.
    pub(super) async fn next(&self, written: &mut Vec<u8>) -> Option<()> {
        loop {
            {
                let mut queue = self.lock();
                if queue.closed {
                    return None;
                }
                if !queue.bytes.is_empty() {
                    written.clear();
                    std::mem::swap(&mut queue.bytes, written);
                    drop(queue);
                    self.emptied.notify_waiters();
                    return Some(());
                }
                if queue.finishing {
                    return None;
                }
            }
            self.filled.notified().await;
            // Whoever was first has woken this task, which would run next and write one message. Those that are about to add theirs have
            // their turn before it, so that one write takes them all.
            tokio::task::yield_now().await;
        }
    }

    /// Accepts nothing more, and ends when the queue has been written.
    pub(super) fn finish(&self) {
        self.lock().finishing = true;
        self.filled.notify_one();
        self.emptied.notify_waiters();
    }

    /// The connection has ended: nothing more is written, and nobody gets an answer.
    pub(super) fn close(&self) {
        let mut queue = self.lock();
        queue.closed = true;
        queue.bytes = Vec::new();
        queue.pings.clear();
        drop(queue);
        self.filled.notify_one();
        self.emptied.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    const SHORT: Duration = Duration::from_millis(50);

    #[tokio::test]
    async fn publishers_wait_for_room_and_what_keeps_alive_does_not() {
        let out = Arc::new(Outbound::default());
        let large = vec![b'x'; MOST_BYTES + 1];
        out.publish(&[&large]).await.unwrap();
        assert!(timeout(SHORT, out.publish(&[b"more"])).await.is_err(), "nothing else fits");
        assert!(out.control("PONG\r\n"));
        assert!((0..SLACK).any(|_| !out.control("PONG\r\n")), "within a bound");
        let waiting = tokio::spawn({
            let out = Arc::clone(&out);
            async move { out.publish(&[b"a", b"b"]).await }
        });
        let mut written = Vec::new();
        out.next(&mut written).await.unwrap();
        assert!(written.len() > MOST_BYTES && written.len() <= MOST_BYTES + 1 + SLACK + 6);
        timeout(SHORT * 20, waiting).await.unwrap().unwrap().unwrap();
        out.next(&mut written).await.unwrap();
        assert_eq!(written, b"ab");
    }

    #[test]
    fn one_write_takes_what_tasks_that_are_ready_add() {
        // On one thread, a task that another one has woken runs next, before those that were ready earlier.
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let out = Arc::new(Outbound::default());
        let written = runtime.block_on(async {
            let writer = tokio::spawn({
                let out = Arc::clone(&out);
                async move {
                    let mut written = Vec::new();
                    // It waits from now on.
                    let publishers = async {
                        for _ in 0..8 {
                            let out = Arc::clone(&out);
                            tokio::spawn(async move { out.publish(&[b"x"]).await });
                        }
                    };
                    let (taken, ()) = tokio::join!(out.next(&mut written), publishers);
                    taken.unwrap();
                    written
                }
            });
            writer.await.unwrap()
        });
        assert_eq!(written, [b'x'; 8]);
    }

    #[tokio::test]
    async fn nothing_outlives_the_connection() {
        let out = Outbound::default();
        let (sender, mut answered) = oneshot::channel();
        out.publish(&[b"PUB"]).await.unwrap();
        out.ping(Some(sender));
        out.close();
        assert!(answered.try_recv().is_err());
        assert_eq!(out.publish(&[b"PUB"]).await, Err(PublishError::Gone));
        assert_eq!(out.next(&mut Vec::new()).await, None);
    }

    #[tokio::test]
    async fn what_is_there_is_written_before_the_end() {
        let out = Outbound::default();
        out.publish(&[b"PUB"]).await.unwrap();
        out.finish();
        assert_eq!(out.publish(&[b"PUB"]).await, Err(PublishError::Gone));
        let mut written = Vec::new();
        assert_eq!(out.next(&mut written).await, Some(()));
        assert_eq!(written, b"PUB");
        assert_eq!(out.next(&mut written).await, None);
    }

    #[tokio::test]
    async fn pongs_answer_pings_in_their_order() {
        let out = Outbound::default();
        let (first, mut one) = oneshot::channel();
        let (second, mut two) = oneshot::channel();
        out.ping(Some(first));
        out.ping(None);
        out.ping(Some(second));
        out.pong();
        out.pong();
        assert!(one.try_recv().is_ok() && two.try_recv().is_err());
        out.pong();
        out.pong();
        assert!(two.try_recv().is_ok());
    }
}
