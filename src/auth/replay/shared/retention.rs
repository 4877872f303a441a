//! What the guard stream can be trusted to remember, and whether two clocks agree. Pure: never asks the broker.
//!
//! A message may be admitted only if the stream would still know it, had another replica admitted it before. The stream
//! cannot be asked that. What can be seen is how far back its memory reaches without a gap, and the fence follows from that:
//! whatever was issued up to it is stale. With skew `S`, a message whose check was stored at the broker's time `t` was issued
//! at `t + 2S` at the latest: the replica's clock is at most `S` ahead of the broker's, and the message at most `S` ahead of
//! the replica.
//!
//! - The memory does not reach back before the stream's creation, nor before the oldest message that it still holds:
//!   messages leave by age alone, from the old end. This matters because a memory stream whose nodes all die comes back
//!   *empty, under the same name and with the same creation time*.
//! - If the stream's leader and a follower die at once, the remaining node may lack the newest messages and still be elected.
//!   That takes seconds (an election time-out), so after a change of leader during which the stream was not seen to answer,
//!   the memory counts from the new leader's term. An orderly handover costs nothing.
//! - A probe that was stored and is not recognized, a sequence number that goes back, and a broker whose clock was wrong (it
//!   forgets by that clock) all mean that ids were lost: the memory counts from now.
//!
//! All that is about the memory. Whether everything was *asked* there is another matter: while no replica with this guard
//! served, one with another guard may have. So a guard that starts to serve, or has not looked for a while, *enters*: what
//! was issued up to that moment is stale, unless another replica vouches for it. That replica vouches by a probe that says
//! how far back it does. It writes such a probe only while it serves, and after a look at the stream that came later than the
//! moment at which the entering replica could itself be seen. From then on one of the two was always there to be noticed by a
//! replica with another guard, which then does not start. A series of probes would not show that: a replica that is started
//! again and again beside another guard, and refuses to serve each time, leaves a series as well.

use std::time::Duration;

use tokio::time::Instant;

use super::super::Outage;
use super::probe::Claim;

/// How the broker's clock compared with ours when they were last compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ClockOffset {
    asked: Instant,
    at: Instant,
    wall_ms: u64,
    broker_ms: u64,
    /// Half the round trip: the broker may have read its clock at any time within it.
    error_ms: u64,
}

impl ClockOffset {
    /// The broker said `broker_ms` in answer to a question asked at `asked`; the answer came at `at`, when the wall
    /// clock said `wall_ms`.
    pub(super) fn new(asked: Instant, at: Instant, wall_ms: u64, broker_ms: u64) -> Self {
        let half = at.saturating_duration_since(asked) / 2;
        // The broker's time at the moment of the answer.
        let broker_ms = broker_ms.saturating_add(whole_ms(half));
        Self { asked, at, wall_ms, broker_ms, error_ms: whole_ms(half) + 1 }
    }

    /// Whether the comparison is so fresh that the stream cannot have changed its leader unseen since.
    pub(super) fn is_fresh(&self, now: Instant, wall_ms: u64) -> bool {
        // The monotonic clock stands still while a machine sleeps.
        let slept_ms = wall_ms.saturating_sub(self.wall_ms);
        now.saturating_duration_since(self.asked) <= UNSEEN && u128::from(slept_ms) <= UNSEEN.as_millis()
    }

    /// How far the broker's clock is ahead of a wall clock that says `wall_ms` at `now`.
    pub(super) fn ahead_ms(&self, now: Instant, wall_ms: u64) -> i64 {
        let broker_ms = self.broker_ms.saturating_add(whole_ms(now.saturating_duration_since(self.at)));
        i64::try_from(i128::from(broker_ms) - i128::from(wall_ms)).unwrap_or(i64::MAX)
    }

    /// Whether a wall clock that says `wall_ms` at `now` is within `skew_ms` of the broker's. Between two comparisons the
    /// monotonic clock is trusted, so the very next message notices a step of the wall clock.
    pub(super) fn check(&self, now: Instant, wall_ms: u64, skew_ms: u64) -> Result<(), Outage> {
        let differs = self.ahead_ms(now, wall_ms).unsigned_abs().saturating_add(self.error_ms) > skew_ms;
        match self.is_fresh(now, wall_ms) {
            _ if differs && now.saturating_duration_since(self.asked) <= UNSEEN => Err(Outage::ClockDiffers),
            true => Ok(()),
            false => Err(Outage::Unverified),
        }
    }
}

/// What one verification saw of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StreamSnapshot {
    /// When the stream's state was asked for, and when the answer came.
    pub(super) asked: Instant,
    pub(super) ended: Instant,
    pub(super) stream: String,
    /// The broker's times, in milliseconds since the Unix epoch.
    pub(super) created_ms: u64,
    /// When the oldest message was stored; `None` if there is none.
    pub(super) first_ms: Option<u64>,
    pub(super) now_ms: u64,
    pub(super) last_sequence: u64,
    /// The leader and since when it has led; `None` outside a cluster.
    pub(super) leader: Option<(String, Option<u64>)>,
    /// Whether an earlier probe was stored again as if it were new.
    pub(super) forgot: bool,
}

/// What follows from the snapshots so far.
#[derive(Debug, Default)]
pub(super) struct RetentionTracker {
    last: Option<StreamSnapshot>,
    generation: u64,
    doubted: bool,
    /// What is stale because of what was seen of the memory. Only grows.
    memory_fence: u64,
    entry: Entry,
}

/// Since when some replica with this guard is known to have been there.
#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    /// When this replica entered, by the broker's clock.
    at_ms: u64,
    fence: u64,
    vouched: bool,
}

/// What the stream vouches for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Retention {
    /// Changes whenever the memory may have a gap: a check during which it changed proves nothing.
    pub(super) generation: u64,
    /// Messages issued up to this second are stale.
    pub(super) fence: u64,
}

impl RetentionTracker {
    /// Notes what no look at the stream shows: the broker's clock and ours differed, so that ids may have been forgotten
    /// early; or a replica with another guard served beside us. What was issued before the next look is stale, and nobody can
    /// vouch for it.
    pub(super) fn doubt(&mut self) {
        self.doubted = true;
    }

    /// Judges a new snapshot; `highest` is the highest sequence number of any answer before it began. `enters` if this
    /// replica has begun to serve, or must enter anew, since the last one.
    pub(super) fn observe(&mut self, snapshot: StreamSnapshot, highest: u64, skew_s: u64, enters: bool) -> Retention {
        let led_since_ms = match &snapshot.leader {
            None => 0,
            // If the server does not say since when it has led, assume since now.
            Some((_, since_ms)) => since_ms.unwrap_or(snapshot.now_ms),
        };
        let reach_ms = snapshot.first_ms.unwrap_or(snapshot.now_ms).max(snapshot.created_ms);
        let mut unseen = true;
        let gap_ms = match &self.last {
            _ if self.doubted => Some(snapshot.now_ms),
            Some(last) if last.stream == snapshot.stream && last.created_ms == snapshot.created_ms => {
                let lost = snapshot.forgot || snapshot.last_sequence < highest.max(last.last_sequence);
                let unseen_ms = snapshot.now_ms.saturating_sub(last.now_ms);
                unseen = snapshot.ended - last.asked > UNSEEN || u128::from(unseen_ms) > UNSEEN.as_millis();
                // A term that is not reported may be a new one.
                let same_term = last.leader == snapshot.leader && !matches!(snapshot.leader, Some((_, None)));
                if lost {
                    Some(snapshot.now_ms)
                } else if unseen && !same_term {
                    Some(led_since_ms)
                } else {
                    None
                }
            }
            // Another stream, or the first one this process sees: it did not watch the latest change of leader.
            _ => Some(led_since_ms),
        };
        let after = |ms: u64| ms / 1000 + 2 * skew_s;
        let enters = enters || unseen;
        if enters {
            self.entry = Entry { at_ms: snapshot.now_ms, fence: after(snapshot.now_ms), vouched: false };
        }
        if enters || gap_ms.is_some() {
            self.generation += 1;
        }
        self.doubted = false;
        self.last = Some(snapshot);
        self.memory_fence = self.memory_fence.max(after(reach_ms.max(gap_ms.unwrap_or(0))));
        self.vouched()
    }

    /// Takes what another replica's probe says. It counts once, and only if that replica looked after this one had entered.
    pub(super) fn apply_claim(&mut self, claim: Claim) {
        if let Some(fence) = claim.fence
            && self.awaits_claim()
            && claim.looked_ms > self.entry.at_ms
        {
            self.entry.vouched = true;
            self.entry.fence = self.entry.fence.min(fence);
        }
    }

    /// Whether another replica's word can still shorten the wait.
    pub(super) fn awaits_claim(&self) -> bool {
        let now_ms = self.last.as_ref().map_or(0, |last| last.now_ms);
        !self.entry.vouched && self.entry.fence >= now_ms / 1000
    }

    pub(super) fn vouched(&self) -> Retention {
        Retention { generation: self.generation, fence: self.memory_fence.max(self.entry.fence) }
    }
}

fn whole_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// How long the stream may go unseen. One that loses its leader has another after at least 3 s (its election time-out is 4 s
/// or more, counted from the last heartbeat); an orderly handover takes 0.25 s (measured, SIGTERM and lame duck, nats-server
/// 2.15.1). So nothing that was known less than this ago can have been lost with a leader since.
const UNSEEN: Duration = Duration::from_millis(2_500);

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: u64 = 1_790_000_000_000;
    const SKEW_S: u64 = 5;

    fn snapshot(began: Instant) -> StreamSnapshot {
        StreamSnapshot {
            asked: began,
            ended: began + Duration::from_millis(2),
            stream: "RG_1".into(),
            created_ms: NOW_MS - 3_600_000,
            first_ms: Some(NOW_MS - 100_000),
            now_ms: NOW_MS,
            last_sequence: 1000,
            leader: Some(("n1".into(), Some(NOW_MS - 1_800_000))),
            forgot: false,
        }
    }

    fn fence(ms: u64) -> u64 {
        ms / 1000 + 2 * SKEW_S
    }

    /// Another replica's word, given after a look at that time, vouching for everything.
    fn word(looked_ms: u64) -> Claim {
        Claim { looked_ms, fence: Some(0) }
    }

    /// A tracker that has seen one snapshot and has another replica's word; and the time of the next snapshot.
    fn watching() -> (RetentionTracker, Instant, Retention) {
        let start = Instant::now();
        let mut retention = RetentionTracker::default();
        retention.observe(snapshot(start), 0, SKEW_S, true);
        retention.apply_claim(word(NOW_MS + 1));
        let vouched = retention.vouched();
        (retention, start + Duration::from_secs(1), vouched)
    }

    /// What a first look shows of the memory alone.
    fn memory(snapshot: StreamSnapshot) -> u64 {
        let mut retention = RetentionTracker::default();
        let after = word(snapshot.now_ms + 1);
        retention.observe(snapshot, 0, SKEW_S, true);
        retention.apply_claim(after);
        retention.vouched().fence
    }

    #[test]
    fn a_replica_that_nobody_vouches_for_begins_behind_its_own_start() {
        let start = Instant::now();
        let mut retention = RetentionTracker::default();
        let alone = retention.observe(snapshot(start), 0, SKEW_S, true);
        assert_eq!(alone, Retention { generation: 1, fence: fence(NOW_MS) }, "however old the stream is");
        let later = StreamSnapshot { now_ms: NOW_MS + 1000, ..snapshot(start + Duration::from_secs(1)) };
        assert_eq!(retention.observe(later.clone(), 1000, SKEW_S, false), alone, "and stays there");
        let again = StreamSnapshot { now_ms: NOW_MS + 2000, ..snapshot(start + Duration::from_secs(2)) };
        let serving = retention.observe(again, 1000, SKEW_S, true);
        assert_eq!(serving, Retention { generation: 2, fence: fence(NOW_MS + 2000) }, "counted from when it serves");
    }

    #[test]
    fn another_replica_vouches_by_a_look_after_the_start_and_by_nothing_else() {
        let start = Instant::now();
        let entered = || {
            let mut retention = RetentionTracker::default();
            retention.observe(snapshot(start), 0, SKEW_S, true);
            retention
        };
        let said = |claim| {
            let mut retention = entered();
            retention.apply_claim(claim);
            retention.vouched().fence
        };
        assert_eq!(said(word(NOW_MS + 1)), fence(NOW_MS - 100_000), "as far back as the memory reaches");
        let since = NOW_MS / 1000 - 7;
        assert_eq!(said(Claim { looked_ms: NOW_MS + 1, fence: Some(since) }), since, "and as the other vouches itself");
        assert_eq!(said(word(NOW_MS)), fence(NOW_MS), "a look from before proves nothing");
        assert_eq!(said(Claim { looked_ms: NOW_MS + 9000, fence: None }), fence(NOW_MS), "nor one that does not serve");
        assert_eq!(said(Claim { looked_ms: NOW_MS + 1, fence: Some(u64::MAX) }), fence(NOW_MS));

        let mut retention = entered();
        let late = StreamSnapshot { now_ms: NOW_MS + 11_000, ..snapshot(start + Duration::from_secs(1)) };
        retention.last = Some(late);
        retention.apply_claim(word(NOW_MS + 11_000));
        assert_eq!(retention.vouched().fence, fence(NOW_MS), "a fence that is past does not go back");
    }

    #[test]
    fn a_replica_that_was_away_enters_anew_whoever_leads() {
        let (mut retention, next, before) = watching();
        let paused = retention.observe(snapshot(next + Duration::from_secs(60)), 1000, SKEW_S, false);
        assert_eq!(paused, Retention { generation: 2, fence: fence(NOW_MS) });
        retention.apply_claim(word(NOW_MS + 1));
        assert_eq!(retention.vouched().fence, before.fence, "the others were there");
        // A machine that slept: only the broker's clock went on.
        let (mut retention, next, _) = watching();
        let slept = StreamSnapshot { now_ms: NOW_MS + 3_000, ..snapshot(next) };
        assert_eq!(retention.observe(slept, 1000, SKEW_S, false).fence, fence(NOW_MS + 3_000));
        // A slow look: what it reports may be as old as the question, and so may the last one's.
        let (mut retention, next, _) = watching();
        let slow = StreamSnapshot { ended: next + Duration::from_millis(1_600), ..snapshot(next) };
        assert_eq!(retention.observe(slow, 1000, SKEW_S, false).fence, fence(NOW_MS));
    }

    #[test]
    fn a_first_look_counts_from_creation_oldest_message_and_term_of_the_leader() {
        let start = Instant::now();
        assert_eq!(memory(snapshot(start)), fence(NOW_MS - 100_000));
        assert_eq!(memory(StreamSnapshot { created_ms: NOW_MS - 20_000, ..snapshot(start) }), fence(NOW_MS - 20_000));
        assert_eq!(memory(StreamSnapshot { first_ms: Some(NOW_MS - 10), ..snapshot(start) }), fence(NOW_MS - 10));
        assert_eq!(memory(StreamSnapshot { first_ms: None, ..snapshot(start) }), fence(NOW_MS), "empty");
        let new_leader = Some(("n2".into(), Some(NOW_MS - 3000)));
        assert_eq!(memory(StreamSnapshot { leader: new_leader, ..snapshot(start) }), fence(NOW_MS - 3000));
        let unknown_term = Some(("n2".into(), None));
        assert_eq!(memory(StreamSnapshot { leader: unknown_term, ..snapshot(start) }), fence(NOW_MS));
        assert_eq!(memory(StreamSnapshot { leader: None, ..snapshot(start) }), fence(NOW_MS - 100_000), "one server");
    }

    #[test]
    fn a_stream_that_came_back_empty_is_fenced_although_name_and_creation_are_the_same() {
        let (mut retention, next, _) = watching();
        let empty = StreamSnapshot { first_ms: Some(NOW_MS - 50), last_sequence: 1, ..snapshot(next) };
        assert_eq!(retention.observe(empty, 0, SKEW_S, false), Retention { generation: 2, fence: fence(NOW_MS) });
    }

    #[test]
    fn a_recreated_stream_is_entered_anew_and_nobody_vouches_for_what_was_before_it() {
        let (mut retention, next, _) = watching();
        let renamed = StreamSnapshot { stream: "RG_2".into(), created_ms: NOW_MS - 7, ..snapshot(next) };
        assert_eq!(
            retention.observe(renamed.clone(), 0, SKEW_S, false),
            Retention { generation: 2, fence: fence(NOW_MS) }
        );
        retention.apply_claim(word(NOW_MS + 1));
        assert_eq!(retention.vouched().fence, fence(NOW_MS - 7));
        let recreated = StreamSnapshot { created_ms: NOW_MS - 3, ..renamed };
        assert_eq!(retention.observe(recreated, 0, SKEW_S, false).generation, 3);
        retention.apply_claim(word(NOW_MS + 1));
        assert_eq!(retention.vouched().fence, fence(NOW_MS - 3));
    }

    #[test]
    fn a_probe_or_sequence_that_was_lost_means_that_ids_were_lost() {
        for (forgot, last_sequence, highest) in [(true, 1001, 1000), (false, 999, 0), (false, 1001, 1002)] {
            let (mut retention, next, _) = watching();
            let lossy = StreamSnapshot { forgot, last_sequence, ..snapshot(next) };
            let vouched = Retention { generation: 2, fence: fence(NOW_MS) };
            assert_eq!(retention.observe(lossy, highest, SKEW_S, false), vouched);
            retention.apply_claim(word(NOW_MS + 1));
            assert_eq!(retention.vouched(), vouched, "nobody can vouch for what was lost");
        }
    }

    #[test]
    fn a_new_leader_after_a_silence_is_fenced_and_one_that_took_over_smoothly_is_not() {
        let leader = Some(("n2".into(), Some(NOW_MS - 700)));
        let (mut retention, next, before) = watching();
        let smooth =
            retention.observe(StreamSnapshot { leader: leader.clone(), ..snapshot(next) }, 1000, SKEW_S, false);
        assert_eq!(smooth, before);
        for (leader, counts_from) in [(leader, NOW_MS - 700), (Some(("n2".into(), None)), NOW_MS)] {
            let (mut retention, next, _) = watching();
            let silence = next + Duration::from_secs(4);
            retention.observe(StreamSnapshot { leader, ..snapshot(silence) }, 1000, SKEW_S, false);
            retention.apply_claim(word(NOW_MS + 1));
            assert_eq!(retention.vouched(), Retention { generation: 2, fence: fence(counts_from) });
        }
        // If the leader does not report its term, there may have been another one in between.
        let untold = || Some(("n1".into(), None));
        let (mut retention, next, _) = watching();
        retention.observe(StreamSnapshot { leader: untold(), ..snapshot(next) }, 1000, SKEW_S, false);
        retention.observe(
            StreamSnapshot { leader: untold(), ..snapshot(next + Duration::from_secs(4)) },
            1000,
            SKEW_S,
            false,
        );
        retention.apply_claim(word(NOW_MS + 1));
        assert_eq!(retention.vouched().fence, fence(NOW_MS));
    }

    #[test]
    fn after_a_doubt_the_memory_counts_from_now_once_and_nobody_can_vouch_for_more() {
        let (mut retention, next, _) = watching();
        retention.doubt();
        let counted = Retention { generation: 2, fence: fence(NOW_MS) };
        assert_eq!(retention.observe(snapshot(next), 1000, SKEW_S, true), counted);
        retention.apply_claim(word(NOW_MS + 1));
        let later = StreamSnapshot { now_ms: NOW_MS + 1000, ..snapshot(next + Duration::from_secs(1)) };
        assert_eq!(retention.observe(later, 1000, SKEW_S, false), counted);
    }

    #[test]
    fn clocks_agree_within_the_skew_less_what_the_round_trip_hides() {
        let asked = Instant::now();
        let at = asked + Duration::from_millis(100);
        let check = |broker_ms: u64| ClockOffset::new(asked, at, NOW_MS, broker_ms).check(at, NOW_MS, 5000);
        assert_eq!(check(NOW_MS - 50), Ok(()));
        assert_eq!(check(NOW_MS - 50 + 4949), Ok(()));
        assert_eq!(check(NOW_MS - 50 + 4950), Err(Outage::ClockDiffers));
        assert_eq!(check(NOW_MS - 50 - 4949), Ok(()));
        assert_eq!(check(NOW_MS - 50 - 4950), Err(Outage::ClockDiffers));
        assert_eq!(check(0), Err(Outage::ClockDiffers));
        assert_eq!(check(u64::MAX), Err(Outage::ClockDiffers));
    }

    #[test]
    fn a_step_of_the_wall_clock_is_noticed_before_the_next_comparison() {
        let at = Instant::now();
        let clock_offset = ClockOffset::new(at, at, NOW_MS, NOW_MS);
        let later = at + Duration::from_secs(2);
        assert_eq!(clock_offset.check(later, NOW_MS + 2000, 5000), Ok(()));
        assert_eq!(clock_offset.check(later, NOW_MS + 2000 + 6000, 5000), Err(Outage::ClockDiffers));
        assert_eq!(clock_offset.check(later, NOW_MS + 2000 - 6000, 5000), Err(Outage::ClockDiffers));
        assert_eq!(clock_offset.ahead_ms(later, NOW_MS), 2000);
    }

    /// A stream may have another leader three seconds after a look, and have lost what was stored last.
    #[test]
    fn a_look_at_the_stream_is_trusted_for_less_than_an_election_takes() {
        let asked = Instant::now();
        let answered = asked + Duration::from_secs(1);
        let clock_offset = ClockOffset::new(asked, answered, NOW_MS, NOW_MS - 500);
        let check =
            |after_ms, wall_ms| clock_offset.check(asked + Duration::from_millis(after_ms), NOW_MS + wall_ms, 5000);
        assert_eq!(check(2_500, 1_500), Ok(()));
        assert_eq!(check(2_501, 1_501), Err(Outage::Unverified), "counted from the question");
        assert_eq!(check(1_500, 3_000), Err(Outage::Unverified), "the machine slept, and its monotonic clock, too");
    }
}
