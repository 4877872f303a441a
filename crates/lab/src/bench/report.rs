//! What was measured, as numbers. Never rounds, and never says more than was counted.

use std::time::Duration;

use crate::bench::span::Side;
use crate::bench::tally::{Failed, Latency, Tally};

/// Everything that was measured.
#[derive(Debug, Default)]
pub struct Report {
    /// Calls of the service.
    pub sealwire: Option<SideReport>,
    /// Bare requests beside them.
    pub bare: Option<SideReport>,
    /// Whether it was stopped before its end.
    pub stopped: bool,
}

/// What was measured of one side.
#[derive(Debug)]
pub struct SideReport {
    tally: Tally,
    window: Duration,
    cpu: Vec<Cpu>,
    /// The calls that the processor time was spent on, including those of the warm-up.
    cpu_calls: u64,
    /// Of each turn: calls a second, and the median latency in seconds.
    turns: Vec<(f64, Option<f64>)>,
}

/// A ratio of the two sides, over pairs of consecutive turns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// The median of all pairs.
    pub median: f64,
    /// The lowest.
    pub min: f64,
    /// The highest.
    pub max: f64,
    /// How many pairs there are.
    pub pairs: usize,
}

/// One turn of one side.
pub(crate) struct Sample {
    pub(crate) tally: Tally,
    pub(crate) window: Duration,
    pub(crate) cpu: Vec<Cpu>,
}

/// Processor time of one participant; `None` if it is not known.
#[derive(Debug)]
pub(crate) struct Cpu {
    pub(crate) name: String,
    pub(crate) spent: Option<Duration>,
}

impl Report {
    pub(crate) fn add(&mut self, side: Side, sample: Sample) {
        let measured = match side {
            Side::Sealwire => &mut self.sealwire,
            Side::Bare => &mut self.bare,
        };
        measured.get_or_insert_with(SideReport::new).add(sample);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sealwire.as_ref().is_none_or(|measured| measured.window.is_zero())
    }

    /// Calls a second, as a share of bare requests a second.
    #[must_use]
    pub fn throughput(&self) -> Option<Spread> {
        self.ratio(|turn| Some(turn.0))
    }

    /// The median latency, as a multiple of that of bare requests.
    #[must_use]
    pub fn p50(&self) -> Option<Spread> {
        self.ratio(|turn| turn.1)
    }

    fn ratio(&self, of: impl Fn(&(f64, Option<f64>)) -> Option<f64>) -> Option<Spread> {
        let (sealwire, bare) = (&self.sealwire.as_ref()?.turns, &self.bare.as_ref()?.turns);
        let pairs = sealwire.iter().zip(bare).filter_map(|(one, other)| Some((of(one)?, of(other)?)));
        Spread::of(pairs.filter(|(_, bare)| *bare > 0.0).map(|(sealwire, bare)| sealwire / bare).collect())
    }
}

impl SideReport {
    fn new() -> Self {
        Self { tally: Tally::new(), window: Duration::ZERO, cpu: Vec::new(), cpu_calls: 0, turns: Vec::new() }
    }

    fn add(&mut self, sample: Sample) {
        let Sample { tally, window, cpu } = sample;
        if !window.is_zero() {
            let p50 = tally.latency.at(0.5).map(|p50| p50.as_secs_f64());
            self.turns.push((tally.in_window as f64 / window.as_secs_f64(), p50));
        }
        self.window += window;
        self.cpu_calls += tally.calls + tally.warmup;
        self.tally.add(tally);
        if self.cpu.is_empty() {
            self.cpu = cpu;
            return;
        }
        for (sum, more) in self.cpu.iter_mut().zip(cpu) {
            sum.spent = sum.spent.zip(more.spent).map(|(sum, more)| sum + more);
        }
    }

    /// Calls that were begun, or due, in the time that counts, and have ended.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.tally.calls
    }

    /// Calls with a result.
    #[must_use]
    pub fn results(&self) -> u64 {
        self.tally.results
    }

    /// What streams sent besides their results.
    #[must_use]
    pub fn items(&self) -> u64 {
        self.tally.items
    }

    /// The failures of calls without a result, the most frequent first.
    #[must_use]
    pub fn failed(&self) -> Vec<&Failed> {
        let mut failed: Vec<&Failed> = self.tally.failed.iter().collect();
        failed.sort_by_key(|failed| std::cmp::Reverse(failed.count));
        failed
    }

    /// Calls that began before the time that counts, and have ended.
    #[must_use]
    pub fn warmup(&self) -> u64 {
        self.tally.warmup
    }

    /// Calls that were due but never begun, because the limit of calls under way was reached until the end.
    #[must_use]
    pub fn not_begun(&self) -> u64 {
        self.tally.not_begun
    }

    /// Calls under way that were given up because of a signal.
    #[must_use]
    pub fn given_up(&self) -> u64 {
        self.tally.given_up
    }

    /// The length of the time that counts.
    #[must_use]
    pub fn window(&self) -> Duration {
        self.window
    }

    /// Results a second.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        rate(self.tally.in_window, self.window)
    }

    /// Items of streams a second.
    #[must_use]
    pub fn items_per_second(&self) -> f64 {
        rate(self.tally.items_in_window, self.window)
    }

    /// The latency of messages whose calls all have a result.
    #[must_use]
    pub fn latency(&self) -> &Latency {
        &self.tally.latency
    }

    /// Processor time for each call, warm-up included, by participant; `None` where it is not known.
    pub fn cpu_per_call(&self) -> impl Iterator<Item = (&str, Option<Duration>)> {
        self.cpu.iter().map(|Cpu { name, spent }| {
            let each = spent.filter(|_| self.cpu_calls > 0).map(|spent| spent.div_f64(self.cpu_calls as f64));
            (name.as_str(), each)
        })
    }
}

fn rate(count: u64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (min, max, pairs) = (*values.first()?, *values.last()?, values.len());
        let at = |index: usize| values.get(index).copied();
        // For an even number, halfway between the two in the middle.
        let median = (at((pairs - 1) / 2)? + at(pairs / 2)?) / 2.0;
        Some(Self { median, min, max, pairs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_of_turns_that_followed_each_other_and_says_how_far_it_spreads() {
        let side = |rates: [f64; 4]| SideReport {
            turns: rates.map(|rate| (rate, Some(1.0 / rate))).into(),
            window: Duration::from_secs(4),
            ..SideReport::new()
        };
        let report = Report {
            sealwire: Some(side([10.0, 20.0, 30.0, 50.0])),
            bare: Some(side([20.0, 40.0, 40.0, 100.0])),
            stopped: false,
        };
        assert_eq!(report.throughput(), Some(Spread { median: 0.5, min: 0.5, max: 0.75, pairs: 4 }));
        assert_eq!(report.p50().map(|p50| (p50.median, p50.pairs)), Some((2.0, 4)));
        assert_eq!(Report::default().throughput(), None);
    }
}
