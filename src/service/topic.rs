//! One source of notifications for many subscribers, each at its own pace.
//! Never waits for a subscriber, and never holds more for one than its ring has room for.

use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::Notify;

use super::streams::FrameError;

/// A source of notifications: what is published goes to all who are subscribed at that moment. Clones share it. Register
/// it with [`Router::topic`](super::Router::topic).
pub struct Topic<T>(Arc<Shared<T>>);

/// Which items replace each other.
type Key<T> = Box<dyn Fn(&T) -> String + Send + Sync>;

struct Shared<T> {
    subscribers: Mutex<Vec<Weak<Ring>>>,
    key: Option<Key<T>>,
    items: PhantomData<fn(T)>,
}

/// What happens when a subscriber takes its notifications more slowly than they come, and its ring is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenFull {
    /// The oldest is dropped, and the subscriber is told how many it missed: `rpc.missed {"n": 12}`. In a [`Topic::by_key`],
    /// a newer item replaces a waiting one with the same key, whether the ring is full or not.
    DropOldest,
    /// The subscription ends with `{"closed":"full"}`.
    End,
}

/// What waits for one subscriber.
#[derive(Debug)]
struct Ring {
    state: Mutex<RingState>,
    more: Notify,
    room: usize,
    when_full: WhenFull,
}

#[derive(Debug, Default)]
struct RingState {
    waiting: VecDeque<(Option<Arc<str>>, Arc<RawValue>)>,
    bytes: usize,
    missed: u64,
    is_over: bool,
}

/// One subscriber. It leaves when this is dropped.
#[derive(Debug)]
pub(super) struct Subscriber(Arc<Ring>);

/// What a subscriber gets next.
#[derive(Debug)]
pub(super) enum Next {
    Item(Arc<RawValue>),
    /// This many were dropped before the next one.
    Missed(u64),
    /// The ring was full, which ends the subscription.
    Full,
}

/// The most bytes that wait for one subscriber, however many items they are.
const MAX_BYTES: usize = 1 << 20;

impl<T: Serialize> Topic<T> {
    /// A topic of which every item counts.
    #[must_use]
    pub fn new() -> Self {
        Self::with(None)
    }

    /// A topic of which only the latest item per key matters: it replaces one that waits.
    #[must_use]
    pub fn by_key(key: impl Fn(&T) -> String + Send + Sync + 'static) -> Self {
        Self::with(Some(Box::new(key)))
    }

    fn with(key: Option<Key<T>>) -> Self {
        Self(Arc::new(Shared { subscribers: Mutex::default(), key, items: PhantomData }))
    }

    /// Publishes `item`, an object or an array, to all subscribers. Waits for none of them.
    ///
    /// # Errors
    /// [`FrameError::Json`] if it cannot be the parameters of a notification, [`FrameError::TooLarge`] above 64 KiB.
    pub fn publish(&self, item: &T) -> Result<(), FrameError> {
        let text = to_raw_value(item).map_err(|error| FrameError::Json(error.to_string()))?;
        if !text.get().starts_with(['{', '[']) {
            return Err(FrameError::Json("a notification's parameters are an object or an array".to_owned()));
        }
        let bytes = text.get().len();
        if bytes > MAX_BYTES / 16 {
            return Err(FrameError::TooLarge { bytes, limit: MAX_BYTES / 16 });
        }
        let (text, key): (Arc<RawValue>, _) = (text.into(), self.0.key.as_ref().map(|key| Arc::from(key(item))));
        lock(&self.0.subscribers).retain(|ring| match ring.upgrade() {
            None => false,
            Some(ring) => ring.push(key.as_ref(), &text),
        });
        Ok(())
    }

    /// How many subscribe at the moment.
    #[must_use]
    pub fn subscribers(&self) -> usize {
        lock(&self.0.subscribers).iter().filter(|ring| ring.strong_count() > 0).count()
    }

    /// Adds a subscriber, for whom at most `room` items, at least 1, wait.
    pub(super) fn subscribe(&self, room: usize, when_full: WhenFull) -> Subscriber {
        let ring = Ring { state: Mutex::default(), more: Notify::new(), room: room.max(1), when_full };
        let ring = Arc::new(ring);
        let mut subscribers = lock(&self.0.subscribers);
        // Subscribers that left are dropped here as well: perhaps nothing is ever published.
        subscribers.retain(|ring| ring.strong_count() > 0);
        subscribers.push(Arc::downgrade(&ring));
        drop(subscribers);
        Subscriber(ring)
    }
}

impl Ring {
    /// `false` if nothing more is wanted.
    fn push(&self, key: Option<&Arc<str>>, item: &Arc<RawValue>) -> bool {
        let mut state = lock(&self.state);
        if key.is_some()
            && let Some(same) = state.waiting.iter().position(|(waiting, _)| waiting.as_ref() == key)
            && let Some((_, old)) = state.waiting.remove(same)
        {
            state.bytes = state.bytes.saturating_sub(old.get().len());
        }
        let bytes = item.get().len();
        while state.waiting.len() >= self.room || state.bytes.saturating_add(bytes) > MAX_BYTES {
            if self.when_full == WhenFull::End {
                *state = RingState { is_over: true, ..RingState::default() };
                self.more.notify_one();
                return false;
            }
            let Some((_, oldest)) = state.waiting.pop_front() else { break };
            state.bytes = state.bytes.saturating_sub(oldest.get().len());
            state.missed = state.missed.saturating_add(1);
        }
        state.bytes = state.bytes.saturating_add(bytes);
        state.waiting.push_back((key.cloned(), Arc::clone(item)));
        self.more.notify_one();
        true
    }
}

impl Subscriber {
    /// Cancel safe.
    pub(super) async fn next(&self) -> Next {
        loop {
            {
                let mut state = lock(&self.0.state);
                if state.is_over {
                    return Next::Full;
                }
                if state.missed > 0 {
                    return Next::Missed(std::mem::take(&mut state.missed));
                }
                if let Some((_, item)) = state.waiting.pop_front() {
                    state.bytes = state.bytes.saturating_sub(item.get().len());
                    return Next::Item(item);
                }
            }
            self.0.more.notified().await;
        }
    }
}

impl<T: Serialize> Default for Topic<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Clone for Topic<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> fmt::Debug for Topic<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Topic").finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing between lock and unlock can panic halfway.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    async fn items(subscriber: &Subscriber, count: usize) -> Vec<String> {
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(match subscriber.next().await {
                Next::Item(item) => item.get().to_owned(),
                Next::Missed(number) => format!("missed {number}"),
                Next::Full => "full".to_owned(),
            });
        }
        items
    }

    /// SPEC.md §25: a slow subscriber is told what it missed, and ends or catches up as was chosen.
    #[tokio::test]
    async fn a_slow_subscriber_holds_up_nobody_and_learns_what_it_missed() {
        let topic = Topic::new();
        let (slow, quick, strict) = (
            topic.subscribe(3, WhenFull::DropOldest),
            topic.subscribe(100, WhenFull::DropOldest),
            topic.subscribe(3, WhenFull::End),
        );
        for number in 0..8 {
            topic.publish(&[number]).unwrap();
        }
        assert_eq!(items(&slow, 4).await, ["missed 5", "[5]", "[6]", "[7]"]);
        assert_eq!(items(&quick, 8).await.last().unwrap(), "[7]");
        assert_eq!(items(&strict, 1).await, ["full"]);
        assert_eq!(topic.subscribers(), 2);
        drop(slow);
        assert_eq!(topic.subscribers(), 1);
        assert!(matches!(Topic::new().publish(&1), Err(FrameError::Json(_))));
    }

    #[tokio::test]
    async fn of_each_key_the_latest_is_what_waits() {
        let topic = Topic::by_key(|(key, _): &(u8, u8)| key.to_string());
        let subscriber = topic.subscribe(2, WhenFull::DropOldest);
        for item in [(1, 1), (2, 1), (1, 2), (2, 2), (1, 3)] {
            topic.publish(&item).unwrap();
        }
        assert_eq!(items(&subscriber, 2).await, ["[2,2]", "[1,3]"], "nothing is missing");
    }

    #[tokio::test]
    async fn waiting_items_are_bounded_in_bytes() {
        let topic = Topic::new();
        let subscriber = topic.subscribe(1_000, WhenFull::DropOldest);
        for _ in 0..40 {
            topic.publish(&["x".repeat(60_000)]).unwrap();
        }
        assert!(lock(&subscriber.0.state).bytes <= MAX_BYTES);
        assert!(matches!(topic.publish(&["x".repeat(70_000)]), Err(FrameError::TooLarge { .. })));
    }
}
