//! A semaphore that is fair among agents, for work on something scarce such as a program behind a service.
//! Never gives one agent the last place, however much it asks for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::fair::{Bounds, FairQueue};
use crate::name::Name;

/// A semaphore whose permits agents get in turn: one that asks for a thousand waits behind itself, and not in front of
/// everybody else.
///
/// ```
/// use sealwire::Name;
/// use sealwire::internal::service::{FairBounds, FairSemaphore};
///
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let places = FairSemaphore::new(FairBounds { running: 8, waiting: 1_000, bytes: 1 << 20 });
/// let permit = places.acquire(&Name::new("planner")?, 120).await?;
/// // … the work …
/// drop(permit);
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct FairSemaphore {
    queue: Mutex<FairQueue<Waiting>>,
    next: AtomicU64,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    begin: oneshot::Sender<()>,
}

/// A permit of a [`FairSemaphore`], until it is dropped.
#[derive(Debug)]
#[must_use = "dropping it gives the place back"]
pub struct FairPermit {
    semaphore: Arc<FairSemaphore>,
    agent: Name,
    bytes: usize,
    number: u64,
}

/// There is no room to wait, at least for this agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too much is waiting already")]
pub struct QueueFull;

impl FairSemaphore {
    /// This many permits and this much room to wait, shared between all agents.
    #[must_use]
    pub fn new(bounds: Bounds) -> Arc<Self> {
        Arc::new(Self { queue: Mutex::new(FairQueue::new(bounds)), next: AtomicU64::new(0) })
    }

    /// Waits for this agent's turn. `bytes` are held until the place is given back.
    ///
    /// # Errors
    /// [`QueueFull`], at once: the agent already waits for more than its share, or all agents together for too much.
    ///
    /// Cancel safe: a dropped future no longer waits.
    pub async fn acquire(self: &Arc<Self>, agent: &Name, bytes: usize) -> Result<FairPermit, QueueFull> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (begin, begun) = oneshot::channel();
        let permit = {
            let mut queue = self.queue();
            queue.push(agent.clone(), Waiting { number, begin }, bytes).map_err(|_| QueueFull)?;
            call(&mut queue);
            FairPermit { semaphore: Arc::clone(self), agent: agent.clone(), bytes, number }
        };
        // The sender is in the queue, or has sent: only the permit takes it out.
        begun.await.map_err(|_| QueueFull)?;
        Ok(permit)
    }

    /// How many wait, and how many have a place.
    #[must_use]
    pub fn levels(&self) -> (usize, usize) {
        let queue = self.queue();
        (queue.waiting(), queue.running())
    }

    fn queue(&self) -> MutexGuard<'_, FairQueue<Waiting>> {
        // Nothing between lock and unlock can panic halfway.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells everybody whose turn it is. A waiter that is gone gives its place back itself.
fn call(queue: &mut FairQueue<Waiting>) {
    while let Some(next) = queue.next() {
        let _ = next.item.begin.send(());
    }
}

impl Drop for FairPermit {
    fn drop(&mut self) {
        let mut queue = self.semaphore.queue();
        if queue.remove(&self.agent, |waiting| waiting.number == self.number).is_none() {
            queue.done(&self.agent, self.bytes);
        }
        call(&mut queue);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use futures_util::FutureExt;

    use super::*;

    fn semaphore(running: usize, waiting: usize, bytes: usize) -> Arc<FairSemaphore> {
        FairSemaphore::new(Bounds { waiting, running, bytes })
    }

    fn agent(name: &str) -> Name {
        Name::new(name).unwrap()
    }

    #[test]
    fn quiet_agent_begins_at_once_beside_one_that_waits_for_hundreds() {
        let (semaphore, loud, quiet) = (semaphore(4, 1_000, usize::MAX), agent("loud"), agent("quiet"));
        let mut asked: Vec<_> = (0..400).map(|_| Box::pin(semaphore.acquire(&loud, 1))).collect();
        let under_way: Vec<FairPermit> = asked.iter_mut().filter_map(|asked| asked.now_or_never()?.ok()).collect();
        assert_eq!(under_way.len(), 2, "one alone gets half of the places");
        let permit = semaphore.acquire(&quiet, 1).now_or_never().unwrap().unwrap();
        // Its next request waits for its own turn, and comes before the hundreds.
        let mut next = Box::pin(semaphore.acquire(&quiet, 1));
        drop(permit);
        drop(next.as_mut().now_or_never().unwrap().unwrap());
        drop(under_way);
        asked.drain(..2);
        let begun: Vec<_> = asked.iter_mut().filter_map(FutureExt::now_or_never).collect();
        assert_eq!(begun.len(), 2);
        assert!(begun.iter().all(Result::is_ok));
    }

    #[test]
    fn who_no_longer_waits_holds_no_room_and_no_place() {
        let (semaphore, one, other) = (semaphore(1, 4, 100), agent("a"), agent("b"));
        let held = semaphore.acquire(&one, 10).now_or_never().unwrap().unwrap();
        for _ in 0..100 {
            let mut waits = Box::pin(semaphore.acquire(&one, 10));
            assert!(waits.as_mut().now_or_never().is_none());
        }
        let mut waits = Box::pin(semaphore.acquire(&other, 10));
        assert!(waits.as_mut().now_or_never().is_none());
        drop(held);
        // It has its place, but is dropped before it knows.
        drop(waits);
        assert!(semaphore.acquire(&one, 10).now_or_never().unwrap().is_ok());
        let queue = semaphore.queue();
        assert_eq!((queue.waiting(), queue.running()), (0, 0));
    }

    #[test]
    fn full_line_is_told_at_once_and_another_agent_still_has_room() {
        for (waiting, bytes, size) in [(8, usize::MAX, 1), (usize::MAX, 80, 10)] {
            let (semaphore, loud, quiet) = (semaphore(1, waiting, bytes), agent("loud"), agent("quiet"));
            let mut asked: Vec<_> = (0..20).map(|_| Box::pin(semaphore.acquire(&loud, size))).collect();
            let begun: Vec<_> = asked.iter_mut().filter_map(FutureExt::now_or_never).collect();
            assert!(begun.iter().filter(|begun| begun.is_err()).count() > 10);
            assert!(semaphore.acquire(&quiet, size).now_or_never().is_none(), "it waits");
        }
    }
}
