//! What all replicas together say that a package would decide otherwise.
//! Never counts what is said of another package.

use std::collections::BTreeMap;

use sealwire::internal::policy::{Comparison, Difference};
use serde::Serialize;

use super::reported::clean;

/// The differences of all replicas.
#[derive(Debug, Default, Serialize)]
pub(in crate::policy) struct Merged {
    pub(in crate::policy) compared: u64,
    pub(in crate::policy) differ: u64,
    skipped: u64,
    /// The most frequent first.
    differences: Vec<Row>,
    /// Calls that differ and are in none of the rows.
    further: u64,
}

#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    difference: Difference,
    calls: u64,
    /// How many replicas have counted such calls.
    replicas: usize,
}

impl Merged {
    pub(in crate::policy) fn of<'c>(comparisons: impl Iterator<Item = &'c Comparison>) -> Self {
        let (mut merged, mut rows) = (Self::default(), BTreeMap::<&Difference, (u64, usize)>::new());
        for comparison in comparisons {
            let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
            add(&mut merged.compared, comparison.compared);
            add(&mut merged.differ, comparison.differ());
            add(&mut merged.skipped, comparison.skipped);
            add(&mut merged.further, comparison.further);
            for row in &comparison.differences {
                let (calls, replicas) = rows.entry(&row.difference).or_default();
                add(calls, row.calls);
                *replicas += 1;
            }
        }
        let row = |(difference, (calls, replicas)): (&Difference, (u64, usize))| Row {
            difference: difference.clone(),
            calls,
            replicas,
        };
        merged.differences = rows.into_iter().map(row).collect();
        merged.differences.sort_by_key(|row| std::cmp::Reverse(row.calls));
        merged
    }

    pub(in crate::policy) fn lines(&self) -> Vec<String> {
        let Self { compared, differ, skipped, differences, further } = self;
        let mut lines = vec![match (compared, differ) {
            (0, _) => "no call was compared yet".to_owned(),
            (_, 0) => format!("{compared} calls, none of which would come out otherwise"),
            _ => format!("{differ} of {compared} calls would come out otherwise:"),
        }];
        lines.extend(differences.iter().map(|Row { difference, calls, .. }| {
            let Difference { agent, method, now, would, reason, rule } = difference;
            let (now, would) = (now.as_str(), would.as_str());
            let (agent, method, reason, rule) = (clean(agent), clean(method), clean(reason), clean(rule));
            format!("  {calls:>8}  {now:<5} -> {would:<5}  {agent} {method}  {reason} {rule}").trim_end().to_owned()
        }));
        if *further > 0 {
            lines.push(format!("  {further:>8}  others, for which there was no room"));
        }
        if *skipped > 0 {
            lines.push(format!("{skipped} more calls were not compared, for want of time or room"));
        }
        lines
    }
}
