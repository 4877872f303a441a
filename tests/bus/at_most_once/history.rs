//! What was offered, what was answered, and what was done to whom: all that the judge knows about a run. Data, and what
//! follows from it alone; never an opinion.

use sealwire::internal::wire::Nonce;

use super::replica::Said;

/// One process of a replica, from its start to its end.
#[derive(Debug, Clone)]
pub(crate) struct Life {
    pub(crate) replica: usize,
    pub(crate) started_ms: u64,
    pub(crate) killed_ms: Option<u64>,
    /// From just before SIGSTOP to just after SIGCONT.
    pub(crate) pauses: Vec<Span>,
    /// Cut off from every broker.
    pub(crate) cuts: Vec<Span>,
    /// Periods for which the process itself noticed that it had not been running.
    pub(crate) stalls: Vec<Span>,
    /// The error of the clock, and since when it has had it.
    pub(crate) clocks: Vec<(u64, i64)>,
    /// Whether the guard reported that it was ready, and since when.
    pub(crate) ready: Vec<(u64, bool)>,
    pub(crate) fences: Vec<(u64, u64)>,
    /// For a human reader.
    pub(crate) log: Vec<(u64, String)>,
}

pub(crate) type Span = (u64, u64);

/// Something was wrong with the brokers or the stream, and so with every replica.
#[derive(Debug, Clone)]
pub(crate) struct Trouble {
    pub(crate) what: &'static str,
    /// From just before the fault until it was over; its effects last longer.
    pub(crate) span: Span,
    /// The stream's memory was lost for certain, at this time or later.
    pub(crate) forgot_ms: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Message {
    pub(crate) nonce: Nonce,
    pub(crate) iat: u64,
    /// Issued and offered nine times while nothing was wrong.
    pub(crate) calm: bool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Offer {
    pub(crate) message: u32,
    pub(crate) life: u16,
    pub(crate) at_ms: u64,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Answer {
    pub(crate) message: u32,
    pub(crate) life: u16,
    pub(crate) said: Said,
    /// By the machine's clock, whatever the replica's own clock said.
    pub(crate) received_ms: u64,
    pub(crate) answered_ms: u64,
    /// The guard's fence before the check and after the answer.
    pub(crate) fences: (u32, u32),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Execution {
    pub(crate) message: u32,
    pub(crate) life: u16,
    pub(crate) at_ms: u64,
}

#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) lives: Vec<Life>,
    pub(crate) troubles: Vec<Trouble>,
    pub(crate) messages: Vec<Message>,
    pub(crate) offers: Vec<Offer>,
    pub(crate) answers: Vec<Answer>,
    pub(crate) executions: Vec<Execution>,
}

impl Life {
    pub(crate) fn new(replica: usize, started_ms: u64) -> Self {
        let (pauses, cuts, stalls) = (Vec::new(), Vec::new(), Vec::new());
        let (clocks, ready, fences, log) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { replica, started_ms, killed_ms: None, pauses, cuts, stalls, clocks, ready, fences, log }
    }

    pub(crate) fn is_ready_at(&self, at_ms: u64) -> bool {
        self.ready.iter().take_while(|(since_ms, _)| *since_ms <= at_ms).last().is_some_and(|(_, ready)| *ready)
    }

    /// The first time from `at_ms` on at which the guard reports that it is ready.
    pub(crate) fn ready_from(&self, at_ms: u64) -> u64 {
        if self.is_ready_at(at_ms) {
            return at_ms;
        }
        self.ready
            .iter()
            .find(|(since_ms, ready)| *ready && *since_ms > at_ms)
            .map_or(u64::MAX, |(since_ms, _)| *since_ms)
    }

    pub(crate) fn is_alive_at(&self, at_ms: u64) -> bool {
        self.started_ms <= at_ms && self.killed_ms.is_none_or(|killed_ms| at_ms < killed_ms)
    }

    /// What was wrong with this replica alone, and until it had recovered.
    pub(crate) fn troubles(&self) -> Vec<(&'static str, Span)> {
        let after = |end_ms: u64| self.ready_from(end_ms.saturating_add(REPLICA_SETTLES_MS));
        let mut found = vec![(START, (self.started_ms, self.ready_from(self.started_ms)))];
        found.extend(self.pauses.iter().map(|(from, to)| (PAUSED, (*from, after(*to)))));
        found.extend(self.stalls.iter().map(|(from, to)| (STALLED, (*from, after(*to)))));
        found.extend(self.cuts.iter().map(|(from, to)| (CUT_OFF, (*from, after(*to)))));
        for (index, (from, offset_ms)) in self.clocks.iter().enumerate() {
            let to = self.clocks.get(index + 1).map_or(u64::MAX, |(since_ms, _)| *since_ms);
            if *offset_ms != 0 {
                found.push((CLOCK, (*from, after(to))));
            }
        }
        found
    }

    /// The clock's error from `from` to `to`, if it did not change in that time.
    pub(crate) fn offset_during(&self, from: u64, to: u64) -> Option<i64> {
        if self.clocks.iter().any(|(since_ms, _)| (from..=to).contains(since_ms)) {
            return None;
        }
        Some(self.clocks.iter().take_while(|(since_ms, _)| *since_ms < from).last().map_or(0, |(_, offset)| *offset))
    }
}

impl Answer {
    pub(crate) fn span(&self) -> Span {
        (self.received_ms, self.answered_ms)
    }
}

pub(crate) fn overlap(one: Span, two: Span) -> bool {
    one.0 <= two.1 && two.0 <= one.1
}

pub(crate) const START: &str = "the replica had just started";
pub(crate) const PAUSED: &str = "the replica was paused";
pub(crate) const STALLED: &str = "the machine let the replica wait";
pub(crate) const NODE_PAUSED: &str = "a node was paused";
pub(crate) const NODE_CUT_OFF: &str = "a node was cut off";
pub(crate) const NODE_STALLED: &str = "the machine let a node wait";
pub(crate) const CUT_OFF: &str = "the replica was cut off from the brokers";
pub(crate) const CLOCK: &str = "the replica's clock was wrong";
pub(crate) const AGE: &str = "the stream has forgotten what is too old to matter";

/// A verification that was under way when a fault ended takes a second, and the next one begins half a second later.
const REPLICA_SETTLES_MS: u64 = 2_000;
