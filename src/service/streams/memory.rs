//! How much all streams of a replica hold together, by agent; and, in an account of their own, all attachments. Only
//! counts.
//! Never lets one agent take the last of it: an agent may take more only if it then holds no more than what is left free.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::name::Name;

/// The bytes kept for unacknowledged frames, or for attachments.
#[derive(Debug)]
pub(in crate::service) struct FrameMemory {
    bound: usize,
    held: Mutex<Held>,
    /// Notified when something was given back.
    freed: Notify,
}

#[derive(Debug, Default)]
struct Held {
    total: usize,
    /// INVARIANT: only agents that hold something.
    agents: HashMap<Name, usize>,
}

impl FrameMemory {
    pub(in crate::service) fn new(bound: usize) -> Self {
        Self { bound, held: Mutex::default(), freed: Notify::new() }
    }

    /// Takes `bytes` for `agent`, if it may have that much.
    pub(in crate::service) fn try_take(&self, agent: &Name, bytes: usize) -> bool {
        let mut held = self.held();
        let own = held.agents.get(agent).copied().unwrap_or(0);
        // Measured as if they were taken: otherwise one large request could take all that is left.
        let (own, total) = (own.saturating_add(bytes), held.total.saturating_add(bytes));
        let may = own <= self.bound.saturating_sub(total);
        if may {
            held.add(agent, bytes);
        }
        may
    }

    pub(in crate::service) fn give(&self, agent: &Name, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.held().remove(agent, bytes);
        self.freed.notify_waiters();
    }

    /// Whether `agent` holds more than what is free.
    pub(super) fn is_beyond_its_share(&self, agent: &Name) -> bool {
        let held = self.held();
        held.agents.get(agent).is_some_and(|own| *own > self.bound.saturating_sub(held.total))
    }

    /// Replaces `before` bytes that were taken with `after`. May exceed the bound, for what a stream cannot end without.
    pub(super) fn correct(&self, agent: &Name, before: usize, after: usize) {
        let mut held = self.held();
        held.remove(agent, before);
        held.add(agent, after);
    }

    /// Notified when there is more room.
    pub(in crate::service) fn freed(&self) -> &Notify {
        &self.freed
    }

    /// How much all agents hold.
    pub(in crate::service) fn total(&self) -> usize {
        self.held().total
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn add(&mut self, agent: &Name, bytes: usize) {
        if bytes > 0 {
            self.total = self.total.saturating_add(bytes);
            *self.agents.entry(agent.clone()).or_insert(0) += bytes;
        }
    }

    fn remove(&mut self, agent: &Name, bytes: usize) {
        self.total = self.total.saturating_sub(bytes);
        if let Some(own) = self.agents.get_mut(agent) {
            *own = own.saturating_sub(bytes);
            if *own == 0 {
                self.agents.remove(agent);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn one_agent_gets_half_and_leaves_room_for_the_next() {
        let memory = FrameMemory::new(1_000);
        let (a, b) = (Name::new("a").unwrap(), Name::new("b").unwrap());
        assert!(memory.try_take(&a, 500));
        assert!(!memory.try_take(&a, 1), "as much as is still free");
        assert!(memory.try_take(&b, 250) && !memory.try_take(&b, 1));
        assert!(!memory.is_beyond_its_share(&b));
        memory.correct(&b, 0, 300);
        assert!(memory.is_beyond_its_share(&b), "an end goes beyond what is free");
        memory.give(&b, 300);
        memory.give(&a, 500);
        memory.give(&b, 250);
        assert_eq!(memory.total(), 0);
        assert!(memory.held().agents.is_empty());
    }
}
