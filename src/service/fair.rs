//! Decides which agent is served next: a queue for each agent, in turn. Only counts: knows nothing of tasks, time or
//! the bus.
//! Never lets one agent take the last place, whatever it sends and however slow its calls are.
//!
//! All bounds are shared by *dynamic thresholds* (Choudhury and Hahne, 1998): an agent may take one more only while it
//! holds less than what is still free. So an agent alone gets half of the room; any number of greedy agents settle at
//! equal shares and leave one such share free for the next. Nothing is kept for agents that hold nothing.

use std::collections::{HashMap, VecDeque};

use crate::name::Name;

/// Items that wait or are being processed, by agent.
#[derive(Debug)]
pub(in crate::service) struct FairQueue<T> {
    bounds: Bounds,
    /// INVARIANT: only agents that hold something, so no more agents than items.
    agents: HashMap<Name, Line<T>>,
    /// INVARIANT: the agents with waiting items, each once, in the order in which they are served.
    turns: VecDeque<Name>,
    waiting: usize,
    running: usize,
    bytes: usize,
}

/// The bounds of a queue. An agent may take one more only while it holds less than what is still free, so one alone gets half.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Items that wait.
    pub waiting: usize,
    /// Items being processed.
    pub running: usize,
    /// Bytes of both.
    pub bytes: usize,
}

#[derive(Debug)]
struct Line<T> {
    waiting: VecDeque<(T, usize)>,
    running: usize,
    bytes: usize,
}

/// An item whose turn it is. It counts as being processed until [`FairQueue::done`].
#[derive(Debug, PartialEq, Eq)]
pub(in crate::service) struct Next<T> {
    pub(in crate::service) agent: Name,
    pub(in crate::service) bytes: usize,
    pub(in crate::service) item: T,
}

impl<T> FairQueue<T> {
    pub(in crate::service) fn new(bounds: Bounds) -> Self {
        Self { bounds, agents: HashMap::new(), turns: VecDeque::new(), waiting: 0, running: 0, bytes: 0 }
    }

    /// Puts an item of `bytes` at the end of its agent's queue, or returns it if there is no room.
    pub(in crate::service) fn push(&mut self, agent: Name, item: T, bytes: usize) -> Result<(), T> {
        let (held, held_bytes) = self.agents.get(&agent).map_or((0, 0), |line| (line.waiting.len(), line.bytes));
        let free = self.bounds.waiting.saturating_sub(self.waiting);
        let free_bytes = self.bounds.bytes.saturating_sub(self.bytes);
        if held >= free || held_bytes.saturating_add(bytes) > free_bytes {
            return Err(item);
        }
        let line =
            self.agents.entry(agent.clone()).or_insert_with(|| Line { waiting: VecDeque::new(), running: 0, bytes: 0 });
        if line.waiting.is_empty() {
            self.turns.push_back(agent);
        }
        line.waiting.push_back((item, bytes));
        line.bytes += bytes;
        self.waiting += 1;
        self.bytes += bytes;
        Ok(())
    }

    /// The first item of the next agent that may have one more processed.
    pub(in crate::service) fn next(&mut self) -> Option<Next<T>> {
        let free = self.bounds.running.saturating_sub(self.running);
        // An agent that has its share under way keeps its turn. There are never more such agents than items under way.
        let may = |agent| self.agents.get(agent).is_some_and(|line: &Line<T>| line.running < free);
        let position = self.turns.iter().position(may)?;
        let agent = self.turns.remove(position)?;
        let line = self.agents.get_mut(&agent)?;
        let (item, bytes) = line.waiting.pop_front()?;
        line.running += 1;
        self.waiting -= 1;
        self.running += 1;
        if !line.waiting.is_empty() {
            self.turns.push_back(agent.clone());
        }
        Some(Next { agent, bytes, item })
    }

    /// Takes a waiting item out of its agent's queue; `None` if none matches.
    pub(in crate::service) fn remove(&mut self, agent: &Name, mut is_meant: impl FnMut(&T) -> bool) -> Option<T> {
        let line = self.agents.get_mut(agent)?;
        let position = line.waiting.iter().position(|(item, _)| is_meant(item))?;
        let (item, bytes) = line.waiting.remove(position)?;
        line.bytes = line.bytes.saturating_sub(bytes);
        let (is_empty, is_idle) = (line.waiting.is_empty(), line.running == 0);
        self.waiting -= 1;
        self.bytes = self.bytes.saturating_sub(bytes);
        if is_empty {
            self.turns.retain(|waiting| waiting != agent);
        }
        if is_empty && is_idle {
            self.agents.remove(agent);
            self.shrink();
        }
        Some(item)
    }

    /// The work on an item has ended.
    pub(in crate::service) fn done(&mut self, agent: &Name, bytes: usize) {
        let Some(line) = self.agents.get_mut(agent) else { return };
        line.running = line.running.saturating_sub(1);
        line.bytes = line.bytes.saturating_sub(bytes);
        if line.running == 0 && line.waiting.is_empty() {
            self.agents.remove(agent);
        }
        self.running = self.running.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
        self.shrink();
    }

    /// Releases the memory of agents that are gone.
    fn shrink(&mut self) {
        if self.agents.is_empty() && self.agents.capacity() > KEPT_ROOM {
            self.agents.shrink_to(KEPT_ROOM);
            self.turns.shrink_to(KEPT_ROOM);
        }
    }

    /// How many items wait.
    pub(in crate::service) fn waiting(&self) -> usize {
        self.waiting
    }

    /// How many are being processed.
    pub(in crate::service) fn running(&self) -> usize {
        self.running
    }
}

/// Memory for this many agents is kept.
const KEPT_ROOM: usize = 256;

#[cfg(test)]
mod tests;
