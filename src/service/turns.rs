//! Places for work on something scarce, such as a program behind a service, given to agents in turn.
//! Never gives one agent the last place, however much it asks for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::fair::{Bounds, FairQueue};
use crate::name::Name;

/// Places that agents take in turn: one that asks for a thousand waits behind itself, and not in front of everybody
/// else.
///
/// ```
/// use sealwire::Name;
/// use sealwire::service::{TurnBounds, Turns};
///
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let turns = Turns::new(TurnBounds { running: 8, waiting: 1_000, bytes: 1 << 20 });
/// let turn = turns.take(&Name::new("planner")?, 120).await?;
/// // … the work …
/// drop(turn);
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Turns {
    queue: Mutex<FairQueue<Waiting>>,
    next: AtomicU64,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    begin: oneshot::Sender<()>,
}

/// A place, until it is dropped.
#[derive(Debug)]
#[must_use = "dropping it gives the place back"]
pub struct Turn {
    turns: Arc<Turns>,
    agent: Name,
    bytes: usize,
    number: u64,
}

/// There is no room to wait, at least for this agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too much is waiting already")]
pub struct NoRoom;

impl Turns {
    /// This many places and this much room to wait, shared between all agents.
    #[must_use]
    pub fn new(bounds: Bounds) -> Arc<Self> {
        Arc::new(Self { queue: Mutex::new(FairQueue::new(bounds)), next: AtomicU64::new(0) })
    }

    /// Waits for this agent's turn. `bytes` are held until the place is given back.
    ///
    /// # Errors
    /// [`NoRoom`], at once: the agent already waits for more than its share, or all agents together for too much.
    ///
    /// Cancel safe: a dropped future no longer waits.
    pub async fn take(self: &Arc<Self>, agent: &Name, bytes: usize) -> Result<Turn, NoRoom> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (begin, begun) = oneshot::channel();
        let turn = {
            let mut queue = self.queue();
            queue.push(agent.clone(), Waiting { number, begin }, bytes).map_err(|_| NoRoom)?;
            call(&mut queue);
            Turn { turns: Arc::clone(self), agent: agent.clone(), bytes, number }
        };
        // The sender is in the queue, or has sent: only `turn` takes it out.
        begun.await.map_err(|_| NoRoom)?;
        Ok(turn)
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

impl Drop for Turn {
    fn drop(&mut self) {
        let mut queue = self.turns.queue();
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

    fn turns(running: usize, waiting: usize, bytes: usize) -> Arc<Turns> {
        Turns::new(Bounds { waiting, running, bytes })
    }

    fn agent(name: &str) -> Name {
        Name::new(name).unwrap()
    }

    #[test]
    fn quiet_agent_begins_at_once_beside_one_that_waits_for_hundreds() {
        let (turns, loud, quiet) = (turns(4, 1_000, usize::MAX), agent("loud"), agent("quiet"));
        let mut asked: Vec<_> = (0..400).map(|_| Box::pin(turns.take(&loud, 1))).collect();
        let under_way: Vec<Turn> = asked.iter_mut().filter_map(|asked| asked.now_or_never()?.ok()).collect();
        assert_eq!(under_way.len(), 2, "one alone gets half of the places");
        let turn = turns.take(&quiet, 1).now_or_never().unwrap().unwrap();
        // Its next request waits for its own turn, and comes before the hundreds.
        let mut next = Box::pin(turns.take(&quiet, 1));
        drop(turn);
        drop(next.as_mut().now_or_never().unwrap().unwrap());
        drop(under_way);
        asked.drain(..2);
        let begun: Vec<_> = asked.iter_mut().filter_map(FutureExt::now_or_never).collect();
        assert_eq!(begun.len(), 2);
        assert!(begun.iter().all(Result::is_ok));
    }

    #[test]
    fn who_no_longer_waits_holds_no_room_and_no_place() {
        let (turns, one, other) = (turns(1, 4, 100), agent("a"), agent("b"));
        let held = turns.take(&one, 10).now_or_never().unwrap().unwrap();
        for _ in 0..100 {
            let mut waits = Box::pin(turns.take(&one, 10));
            assert!(waits.as_mut().now_or_never().is_none());
        }
        let mut waits = Box::pin(turns.take(&other, 10));
        assert!(waits.as_mut().now_or_never().is_none());
        drop(held);
        // It has its place, but is dropped before it knows.
        drop(waits);
        assert!(turns.take(&one, 10).now_or_never().unwrap().is_ok());
        let queue = turns.queue();
        assert_eq!((queue.waiting(), queue.running()), (0, 0));
    }

    #[test]
    fn full_line_is_told_at_once_and_another_agent_still_has_room() {
        for (waiting, bytes, size) in [(8, usize::MAX, 1), (usize::MAX, 80, 10)] {
            let (turns, loud, quiet) = (turns(1, waiting, bytes), agent("loud"), agent("quiet"));
            let mut asked: Vec<_> = (0..20).map(|_| Box::pin(turns.take(&loud, size))).collect();
            let begun: Vec<_> = asked.iter_mut().filter_map(FutureExt::now_or_never).collect();
            assert!(begun.iter().filter(|begun| begun.is_err()).count() > 10);
            assert!(turns.take(&quiet, size).now_or_never().is_none(), "it waits");
        }
    }
}
