//! How far a request for approval has come: a pure function of who approved what, when, and of the policy.
//! Never counts one approver twice, be it for two approvals.

use crate::auth::Window;
use crate::policy::Approval;

/// What a policy asks of one approval.
#[derive(Debug, Clone, Copy)]
pub(super) struct Need<'a> {
    pub(super) name: &'a str,
    pub(super) roles: &'a [String],
    pub(super) count: usize,
    pub(super) within_s: u64,
    pub(super) valid_s: u64,
}

impl<'a> From<&'a Approval> for Need<'a> {
    fn from(approval: &'a Approval) -> Self {
        Self {
            name: approval.name(),
            roles: approval.roles(),
            count: approval.count(),
            within_s: approval.within().as_secs(),
            valid_s: approval.valid().as_secs(),
        }
    }
}

/// One approval that somebody has given.
#[derive(Debug, Clone)]
pub(super) struct Vote<'a> {
    pub(super) approval: &'a str,
    pub(super) agent: &'a str,
    pub(super) subject: &'a str,
    /// As whom the agent decides, by each approval that the request needs: who are one person by any of them, are one.
    pub(super) persons: Vec<&'a str>,
    /// When it was signed, in seconds since the Unix epoch.
    pub(super) at: u64,
}

impl Vote<'_> {
    /// Whether both count as one.
    pub(super) fn is_of_same(&self, other: &Vote<'_>) -> bool {
        let is_one_person = self.persons.iter().zip(&other.persons).any(|(one, other)| one == other);
        self.agent == other.agent || self.subject == other.subject || is_one_person
    }
}

/// How far a request has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// Approvals are missing, and may come before this second of the Unix epoch.
    Pending { deadline: u64 },
    /// The call may begin before this second of the Unix epoch.
    Approved { until: u64 },
    /// Too late.
    Expired,
}

/// The standing at `now` of what was asked for at `asked_at` (seconds since the Unix epoch), how many approvals count for each need, and
/// which these are. Messages are accepted within `window`.
pub(super) fn standing<'v>(
    needs: &[Need<'_>],
    votes: impl Iterator<Item = Vote<'v>>,
    asked_at: u64,
    now: u64,
    window: Window,
) -> (Standing, Vec<usize>, Vec<Vote<'v>>) {
    let mut votes: Vec<_> = votes.collect();
    votes.sort_by_key(|vote| vote.at);
    let mut counted: Vec<Vote<'v>> = Vec::new();
    let mut deadline = u64::MAX;
    let mut have = Vec::with_capacity(needs.len());
    for need in needs {
        let end = asked_at.saturating_add(need.within_s);
        deadline = deadline.min(end);
        let mut of_need = 0;
        for vote in votes.iter().filter(|vote| vote.approval == need.name) {
            // What is signed names the request, so no vote is older than that; this bounds only clocks. Whose message is accepted may be
            // behind the replica that got it by the window, and that one behind the replica that made the request.
            let earliest = asked_at.saturating_sub(window.window_s + 2 * window.skew_s);
            let in_time = vote.at >= earliest && vote.at < end;
            let is_known = counted.iter().any(|known| known.is_of_same(vote));
            // A clock that went back would make it last longer.
            let is_future = vote.at > now.saturating_add(window.skew_s);
            if of_need < need.count && in_time && !is_known && !is_future {
                counted.push(vote.clone());
                of_need += 1;
            }
        }
        have.push(of_need);
    }
    // A further approval does not make it last longer: it is not counted.
    let last = counted.iter().map(|vote| vote.at).max().unwrap_or_default();
    let until = last.saturating_add(needs.iter().map(|need| need.valid_s).min().unwrap_or_default());
    let is_complete = !needs.is_empty() && needs.iter().zip(&have).all(|(need, have)| *have >= need.count.max(1));
    let standing = match is_complete {
        true if now < until => Standing::Approved { until },
        false if now < deadline => Standing::Pending { deadline },
        true | false => Standing::Expired,
    };
    (standing, have, counted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(name: &str, count: usize) -> Need<'_> {
        Need { name, roles: &[], count, within_s: 600, valid_s: 60 }
    }

    fn vote<'a>(approval: &'a str, agent: &'a str, at: u64) -> Vote<'a> {
        Vote { approval, agent, subject: agent, persons: vec![agent], at }
    }

    fn at(needs: &[Need<'_>], votes: &[Vote<'_>], now: u64) -> (Standing, Vec<usize>) {
        let (standing, have, _) = standing(needs, votes.iter().cloned(), 1_000, now, Window::default());
        (standing, have)
    }

    #[test]
    fn the_last_approval_that_was_needed_starts_the_clock_and_further_ones_do_not() {
        let needs = [need("a", 2)];
        let (one, two) = (|| vote("a", "ann", 1_100), || vote("a", "bob", 1_200));
        assert_eq!(at(&needs, &[one()], 1_200), (Standing::Pending { deadline: 1_600 }, vec![1]));
        let approved = (Standing::Approved { until: 1_260 }, vec![2]);
        assert_eq!(at(&needs, &[two(), one()], 1_200), approved);
        assert_eq!(at(&needs, &[one(), two(), vote("a", "eve", 1_250)], 1_259), approved);
        assert_eq!(at(&needs, &[one(), two(), vote("a", "eve", 1_250)], 1_260).0, Standing::Expired);
        assert_eq!(at(&needs, &[one()], 1_599).0, Standing::Pending { deadline: 1_600 });
        assert_eq!(at(&needs, &[one()], 1_600).0, Standing::Expired);
    }

    #[test]
    fn nobody_counts_twice() {
        let two = [need("a", 2)];
        assert_eq!(at(&two, &[vote("a", "ann", 1_100), vote("a", "ann", 1_101)], 1_110).1, [1]);
        let of_ann = Vote { persons: vec!["ann"], ..vote("a", "ann-2", 1_101) };
        for same in [Vote { subject: "ann", ..vote("a", "ann-2", 1_101) }, of_ann] {
            assert_eq!(at(&two, &[vote("a", "ann", 1_100), same], 1_110).1, [1]);
        }
        // Nor for two approvals of one request.
        let both = [need("a", 1), need("b", 1)];
        assert_eq!(at(&both, &[vote("a", "ann", 1_100), vote("b", "ann", 1_100)], 1_110).1, [1, 0]);
        let phone = Vote { persons: vec!["ann", "phone"], ..vote("b", "phone", 1_100) };
        let laptop = Vote { persons: vec!["ann", "laptop"], ..vote("a", "laptop", 1_100) };
        assert_eq!(at(&both, &[laptop, phone], 1_110).1, [1, 0]);
        let approved = at(&both, &[vote("a", "ann", 1_100), vote("b", "bob", 1_105)], 1_110);
        assert_eq!(approved, (Standing::Approved { until: 1_165 }, vec![1, 1]));
    }

    #[test]
    fn what_was_signed_too_early_too_late_or_in_the_future_does_not_count() {
        let needs = [need("a", 1)];
        for (signed, now, counts) in [(959, 1_000, 0), (960, 1_000, 1), (1_599, 1_600, 1), (1_600, 1_600, 0)] {
            assert_eq!(at(&needs, &[vote("a", "ann", signed)], now).1, [counts], "{signed}");
        }
        // The clock went back.
        assert_eq!(at(&needs, &[vote("a", "ann", 1_100)], 1_094).1, [0]);
        assert_eq!(at(&needs, &[vote("a", "ann", 1_100)], 1_095).1, [1]);
    }

    #[test]
    fn without_needs_nothing_is_approved() {
        assert_eq!(at(&[], &[vote("a", "ann", 1_100)], u64::MAX - 1).0, Standing::Pending { deadline: u64::MAX });
        assert_eq!(at(&[need("a", 0)], &[], 1_100).0, Standing::Pending { deadline: 1_600 });
    }
}
