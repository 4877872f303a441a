//! What became of calls: counts, and latencies in bounded memory.
//! Never counts the time of a call without a result among those with one.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use sealwire::ClientError;
use sealwire::errors::ErrorKind;

use crate::bench::span::Span;

/// How long calls with a result took.
#[derive(Debug, Clone)]
pub struct Latency(Histogram<u64>);

/// 1 µs to an hour, in nanoseconds; longer times count as an hour.
const BOUNDS: (u64, u64) = (1_000, 3_600_000_000_000);
/// Values are kept to less than one in a thousand.
const DIGITS: u8 = 3;

impl Latency {
    #[expect(clippy::expect_used, reason = "the bounds are constants that the library takes")]
    pub(crate) fn new() -> Self {
        Self(Histogram::new_with_bounds(BOUNDS.0, BOUNDS.1, DIGITS).expect("the bounds are in order"))
    }

    pub(crate) fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    fn add(&mut self, other: &Self) {
        // Histograms with equal bounds always fit.
        let _ = self.0.add(&other.0);
    }

    /// The number of calls.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The latency that a share of the calls, 0 to 1, did not exceed; `None` if there are none.
    #[must_use]
    pub fn at(&self, share: f64) -> Option<Duration> {
        (self.count() > 0).then(|| Duration::from_nanos(self.0.value_at_quantile(share)))
    }

    /// The longest, as [`Latency::at`].
    #[must_use]
    pub fn max(&self) -> Option<Duration> {
        (self.count() > 0).then(|| Duration::from_nanos(self.0.max()))
    }
}

/// Why a call has no result.
#[derive(Debug)]
pub enum Fault {
    /// The client's error.
    Call(Box<ClientError>),
    /// The error of a bare request.
    Bare(String),
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Call(error) => error.fmt(f),
            Self::Bare(error) => f.write_str(error),
        }
    }
}

impl From<ClientError> for Fault {
    fn from(error: ClientError) -> Self {
        Self::Call(Box::new(error))
    }
}

impl Fault {
    /// Faults with the same key are counted together.
    fn key(&self) -> Key {
        match self {
            Self::Call(error) => {
                (Some(error.kind()), error.remote().map(|remote| (remote.code(), remote.is_application())))
            }
            Self::Bare(_) => (None, None),
        }
    }

    /// Whether somebody answered: if so, the next call costs no more than this one did.
    pub(crate) fn is_answer(&self) -> bool {
        matches!(self, Self::Call(error) if error.remote().is_some())
    }
}

type Key = (Option<ErrorKind>, Option<(i32, bool)>);

/// Calls that failed in the same way.
#[derive(Debug)]
pub struct Failed {
    key: Key,
    /// The first of them.
    pub fault: Fault,
    /// How many.
    pub count: u64,
}

/// The most kinds of errors that are told apart: codes are a service's own choice. Later kinds are counted with the last.
const MAX_KINDS: usize = 64;

/// What became of one message.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Calls with a result.
    pub(crate) results: u64,
    /// Items that they sent besides.
    pub(crate) items: u64,
    /// Why other calls have no result, and how many.
    pub(crate) faults: Vec<(Fault, u64)>,
}

/// What became of many messages.
#[derive(Debug)]
pub(crate) struct Tally {
    /// Calls, results and items of the window: of messages that were begun, or due, in it.
    pub(crate) calls: u64,
    pub(crate) results: u64,
    pub(crate) items: u64,
    pub(crate) failed: Vec<Failed>,
    /// Of messages whose calls all have a result.
    pub(crate) latency: Latency,
    /// Calls before the window.
    pub(crate) warmup: u64,
    /// Results and items that came in the window, whenever they were asked for.
    pub(crate) in_window: u64,
    pub(crate) items_in_window: u64,
    /// Calls that were due in the window and never begun.
    pub(crate) not_begun: u64,
    /// Calls that were given up because of a signal.
    pub(crate) given_up: u64,
}

impl Tally {
    pub(crate) fn new() -> Self {
        Self {
            calls: 0,
            results: 0,
            items: 0,
            failed: Vec::new(),
            latency: Latency::new(),
            warmup: 0,
            in_window: 0,
            items_in_window: 0,
            not_begun: 0,
            given_up: 0,
        }
    }

    /// Counts a message that was begun, or due, at `from` and over at `to`.
    pub(crate) fn record(&mut self, span: &Span, from: Instant, to: Instant, outcome: Outcome) {
        let Outcome { results, items, faults } = outcome;
        if span.has(to) {
            self.in_window += results;
            self.items_in_window += items;
        }
        let failed: u64 = faults.iter().map(|(_, count)| count).sum();
        if !span.has(from) {
            self.warmup += results + failed;
            return;
        }
        self.calls += results + failed;
        self.results += results;
        self.items += items;
        if failed == 0 {
            self.latency.record(to.saturating_duration_since(from));
        }
        for (fault, count) in faults {
            self.fail(Failed { key: fault.key(), fault, count });
        }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.calls += other.calls;
        self.results += other.results;
        self.items += other.items;
        self.latency.add(&other.latency);
        self.warmup += other.warmup;
        self.in_window += other.in_window;
        self.items_in_window += other.items_in_window;
        self.not_begun += other.not_begun;
        self.given_up += other.given_up;
        other.failed.into_iter().for_each(|failed| self.fail(failed));
    }

    fn fail(&mut self, failed: Failed) {
        let is_full = self.failed.len() >= MAX_KINDS;
        match self.failed.iter_mut().find(|known| known.key == failed.key) {
            Some(known) => known.count += failed.count,
            None if is_full => {
                if let Some(last) = self.failed.last_mut() {
                    last.count += failed.count;
                }
            }
            None => self.failed.push(failed),
        }
    }
}

#[cfg(test)]
mod tests {
    use sealwire::RpcError;

    use super::*;

    fn failing(code: i32) -> Outcome {
        let fault = ClientError::Remote(RpcError::application(code, "no")).into();
        Outcome { faults: vec![(fault, 1)], ..Outcome::default() }
    }

    #[test]
    fn calls_without_a_result_have_no_latency_and_are_all_counted() {
        let span = Span::begin_at(Instant::now(), Duration::from_secs(1), Duration::from_secs(1));
        let mut tally = Tally::new();
        let begun = span.from() + Duration::from_millis(100);
        for code in 1..=100 {
            tally.record(&span, begun, begun, failing(code));
        }
        tally.record(&span, begun, begun + Duration::from_millis(7), Outcome { results: 1, ..Outcome::default() });
        assert_eq!((tally.calls, tally.results, tally.latency.count()), (101, 1, 1));
        assert_eq!((tally.failed.len(), tally.failed.iter().map(|f| f.count).sum::<u64>()), (MAX_KINDS, 100));
        assert!(tally.latency.at(0.0).is_some_and(|least| least > Duration::from_millis(6)));
    }

    #[test]
    fn a_call_belongs_to_the_window_by_its_begin_and_its_result_by_its_end() {
        let span = Span::begin_at(Instant::now(), Duration::from_secs(1), Duration::from_secs(1));
        let one = || Outcome { results: 1, ..Outcome::default() };
        let (from, to) = (span.from(), span.to());
        let second = Duration::from_secs(1);
        let mut tally = Tally::new();
        // From the warm-up into the window, and out of the window.
        tally.record(&span, from - second, from, one());
        tally.record(&span, from, to + second, one());
        assert_eq!((tally.warmup, tally.calls, tally.in_window), (1, 1, 1));
        assert_eq!(tally.latency.max().map(|max| max.as_secs()), Some(2));
    }
}
