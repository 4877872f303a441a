//! Who decided about calls that waited, and how soon after these were made.
//! Never says that somebody looked, or did not: only how long it took.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::calls::Call;

/// What one approver decided.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Approver {
    agent: String,
    approved: u64,
    denied: u64,
    /// Half of the decisions came within this time after the request, as far as the record has both; in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    median_ms: Option<u64>,
    /// Nine of ten did.
    #[serde(skip_serializing_if = "Option::is_none")]
    p90_ms: Option<u64>,
    /// Approvals that came sooner than anybody reads.
    quick: u64,
}

/// Requests, and decisions about them, in whichever order the record has them.
#[derive(Debug, Default)]
pub(super) struct Decisions {
    /// When each was first recorded, in milliseconds since the Unix epoch: by its id, and when it was made.
    asked: BTreeMap<(String, u64), u64>,
    /// When, by whom, of which request; whether it was approved.
    made: BTreeSet<(u64, String, String, bool)>,
}

/// The most requests, and the most decisions, that are kept; others are not reported.
const MOST: usize = 100_000;
/// An approval that comes sooner was hardly read.
const QUICK_MS: u64 = 5_000;
/// How far the clocks of two replicas may be apart.
const SKEW_MS: u64 = 10_000;

impl Decisions {
    /// Takes note of the request that a call belongs to.
    pub(super) fn note(&mut self, call: &Call) {
        let Some(approval) = &call.approval else { return };
        if let (Some(id), Some(asked_at)) = (&approval.id, approval.asked_at)
            && self.asked.len() < MOST
        {
            let first = self.asked.entry((id.clone(), asked_at)).or_insert(call.at_ms);
            *first = call.at_ms.min(*first);
        }
    }

    /// Adds a call if it was a decision that counted. A caller that withdraws its own request decides nothing.
    pub(super) fn add(&mut self, call: &Call) {
        let text = |name: &str| call.params.as_ref()?.get(name)?.as_str();
        let (Some(id), Some(decision)) = (text("id"), text("decision")) else { return };
        let is_approval = decision == "approve";
        let is_own = id.split('.').next() == Some(&*call.agent);
        if call.method == "rpc.approve" && call.outcome == "ok" && (is_approval || !is_own) && self.made.len() < MOST {
            self.made.insert((call.at_ms, call.agent.clone(), id.to_owned(), is_approval));
        }
    }

    /// All who decided, by name.
    pub(super) fn approvers(self) -> Vec<Approver> {
        let mut known = BTreeSet::new();
        let mut found: BTreeMap<String, (Approver, Vec<u64>)> = BTreeMap::new();
        for (at_ms, agent, id, is_approval) in self.made {
            let latest = (id.clone(), at_ms.saturating_add(SKEW_MS) / 1_000);
            let request = self.asked.range((id.clone(), 0)..=latest).next_back();
            let asked_at = request.map(|((_, asked_at), _)| *asked_at);
            // Who sends a decision once more has decided once.
            if !known.insert((agent.clone(), id, asked_at, is_approval)) {
                continue;
            }
            let (approver, times) = found.entry(agent).or_default();
            *(if is_approval { &mut approver.approved } else { &mut approver.denied }) += 1;
            if let Some((_, asked_ms)) = request {
                let took_ms = at_ms.saturating_sub(*asked_ms);
                approver.quick += u64::from(is_approval && took_ms < QUICK_MS);
                times.push(took_ms);
            }
        }
        let all = found.into_iter().map(|(agent, (approver, mut times))| {
            times.sort_unstable();
            // The smallest time within which so many of a hundred came.
            let within = |percent: usize| times.get((times.len() * percent).div_ceil(100).saturating_sub(1)).copied();
            Approver { agent, median_ms: within(50), p90_ms: within(90), ..approver }
        });
        all.collect()
    }
}

impl Approver {
    pub(super) fn to_line(&self) -> String {
        let Self { agent, approved, denied, median_ms, p90_ms, quick } = self;
        let seconds = |ms: u64| format!("{}.{} s", ms / 1_000, ms % 1_000 / 100);
        let took = median_ms
            .zip(*p90_ms)
            .map(|(median, p90)| format!("; after {} (median), {} (90 %)", seconds(median), seconds(p90)));
        let hint = format!("; {quick} approved within {} s", QUICK_MS / 1_000);
        let hint = if *quick > 0 { hint } else { String::new() };
        format!("  {agent:<20}  {approved:>6} approved, {denied} denied{}{hint}", took.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decisions(asked: &[(&str, u64)], made: &[(u64, &str, &str, bool)]) -> Vec<Approver> {
        let asked = asked.iter().map(|(id, at)| (((*id).to_owned(), at / 1_000), *at)).collect();
        let made = made.iter().map(|(at, who, id, is)| (*at, (*who).to_owned(), (*id).to_owned(), *is)).collect();
        Decisions { asked, made }.approvers()
    }

    #[test]
    fn times_are_those_from_the_latest_request_of_the_same_call() {
        let of = |agent: &str, [approved, denied, quick]: [u64; 3], times: Option<(u64, u64)>| Approver {
            agent: agent.to_owned(),
            approved,
            denied,
            median_ms: times.map(|(median, _)| median),
            p90_ms: times.map(|(_, p90)| p90),
            quick,
        };
        // The same call waits twice; the second decision is sent twice.
        let asked = [("ann.x", 10_500), ("ann.x", 100_000), ("ann.y", 20_000)];
        let made = [
            (12_000, "tina", "ann.x", true),
            (190_000, "tina", "ann.x", true),
            (195_000, "tina", "ann.x", true),
            (21_000, "tina", "ann.y", false),
            (30_000, "tom", "ann.unknown", true),
        ];
        let expected = [of("tina", [2, 1, 1], Some((1_500, 90_000))), of("tom", [1, 0, 0], None)];
        assert_eq!(decisions(&asked, &made), expected);
        assert_eq!(
            expected[0].to_line(),
            "  tina                       2 approved, 1 denied; after 1.5 s (median), 90.0 s (90 %); 1 approved within 5 s"
        );
        let ten: Vec<_> = (1..=10).map(|n| (n * 1_000, "tina", "ann.z", true)).collect();
        assert_eq!(decisions(&[], &ten)[0], of("tina", [1, 0, 0], None));
    }
}
