//! What the guard stream can be trusted to remember, and whether two clocks agree. Pure: never asks the broker.
//!
//! A message may be admitted only if the stream would still know it, had another replica admitted it before. The stream
//! cannot be asked that. What can be seen is how far back its memory reaches without a gap, and from that follows the
//! fence: whatever was issued up to then is stale. With skew `S`, a message whose check was stored at the broker's time
//! `t` was issued at most at `t + 2S`: the replica's clock is at most `S` ahead of the broker's, and the message at most
//! `S` ahead of the replica.
//!
//! - The memory does not reach back before the stream's creation, nor before the oldest message that it still holds:
//!   messages leave by age alone, from the old end. This matters because a memory stream whose nodes all die comes back
//!   *empty, under the same name and with the same creation time*.
//! - If the stream's leader and a follower die at once, the remaining node may lack the newest messages and still be
//!   elected. That takes seconds (an election time-out), so after a change of leader during which the stream was not seen
//!   to answer, the memory counts from the new leader's term. A leader that hands over in good order costs nothing.
//! - A probe that was stored and is not recognised, a sequence number that goes back, and a broker whose clock was wrong
//!   (it forgets by that clock) all say that ids were lost: the memory counts from now.

use std::time::Duration;

use tokio::time::Instant;

use super::super::Outage;

/// How the broker's clock related to ours when they were last compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Agreement {
    at: Instant,
    wall_ms: u64,
    broker_ms: u64,
    /// Half the round trip: the broker may have read its clock at any time in it.
    error_ms: u64,
}

impl Agreement {
    /// The broker said `broker_ms` in answer to a question asked at `asked`; the answer came at `at`, when the wall
    /// clock said `wall_ms`.
    pub(super) fn new(asked: Instant, at: Instant, wall_ms: u64, broker_ms: u64) -> Self {
        let half = at.saturating_duration_since(asked) / 2;
        // The broker's time at the moment of the answer.
        let broker_ms = broker_ms.saturating_add(whole_ms(half));
        Self { at, wall_ms, broker_ms, error_ms: whole_ms(half) + 1 }
    }

    /// How far the broker's clock is ahead of a wall clock that says `wall_ms` at `now`.
    pub(super) fn ahead_ms(&self, now: Instant, wall_ms: u64) -> i64 {
        let broker_ms = self.broker_ms.saturating_add(whole_ms(now.saturating_duration_since(self.at)));
        i64::try_from(i128::from(broker_ms) - i128::from(wall_ms)).unwrap_or(i64::MAX)
    }

    /// Whether a wall clock that says `wall_ms` at `now` is within `skew_ms` of the broker's. Between two comparisons
    /// the monotonic clock is trusted, so that a step of the wall clock is noticed by the very next message.
    pub(super) fn check(&self, now: Instant, wall_ms: u64, skew_ms: u64) -> Result<(), Outage> {
        if now.saturating_duration_since(self.at) > TRUSTED_FOR {
            return Err(Outage::Unverified);
        }
        let differs = self.ahead_ms(now, wall_ms).unsigned_abs().saturating_add(self.error_ms) > skew_ms;
        if differs { Err(Outage::ClockDiffers) } else { Ok(()) }
    }
}

/// What one verification saw of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sighting {
    /// When the verification began: everything below is at least as new.
    pub(super) began: Instant,
    /// When it ended.
    pub(super) ended: Instant,
    pub(super) stream: String,
    /// The broker's times, in milliseconds since the Unix epoch.
    pub(super) created_ms: u64,
    /// When the oldest message was stored; `None` if there is none.
    pub(super) first_ms: Option<u64>,
    pub(super) now_ms: u64,
    pub(super) last_sequence: u64,
    /// The leader and since when it leads; `None` outside a cluster.
    pub(super) leader: Option<(String, Option<u64>)>,
    /// An earlier probe was stored again as if it were new.
    pub(super) forgot: bool,
}

/// What follows from the sightings so far.
#[derive(Debug, Default)]
pub(super) struct Watch {
    last: Option<Sighting>,
    generation: u64,
    clocks_differed: bool,
}

/// What the stream vouches for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Vouched {
    /// Changes whenever the memory may have a gap: a check that saw it change proves nothing.
    pub(super) generation: u64,
    /// Messages issued up to this second are stale.
    pub(super) fence: u64,
}

impl Watch {
    /// The broker's clock and ours differed: ids may have been forgotten early.
    pub(super) fn clocks_differed(&mut self) {
        self.clocks_differed = true;
    }

    /// Judges a new sighting; `highest` is the highest sequence number that any answer had before it began.
    pub(super) fn see(&mut self, sighting: Sighting, highest: u64, skew_s: u64) -> Vouched {
        let led_since_ms = match &sighting.leader {
            None => 0,
            // A server that does not tell since when it leads: as of now.
            Some((_, since_ms)) => since_ms.unwrap_or(sighting.now_ms),
        };
        let reach_ms = sighting.first_ms.unwrap_or(sighting.now_ms).max(sighting.created_ms);
        let gap_ms = match &self.last {
            _ if self.clocks_differed => Some(sighting.now_ms),
            Some(last) if last.stream == sighting.stream && last.created_ms == sighting.created_ms => {
                let lost = sighting.forgot || sighting.last_sequence < highest.max(last.last_sequence);
                if lost {
                    Some(sighting.now_ms)
                } else if last.leader != sighting.leader && sighting.began - last.ended > HANDOVER {
                    Some(led_since_ms)
                } else {
                    None
                }
            }
            // Another stream, or the first one this process sees: it did not watch the latest change of leader.
            _ => Some(led_since_ms),
        };
        if gap_ms.is_some() {
            self.generation += 1;
        }
        self.clocks_differed = false;
        self.last = Some(sighting);
        let vouched_ms = reach_ms.max(gap_ms.unwrap_or(0));
        Vouched { generation: self.generation, fence: vouched_ms / 1000 + 2 * skew_s }
    }
}

fn whole_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// How long a comparison of the clocks holds. Several verifications long; without one, nothing is vouched for.
const TRUSTED_FOR: Duration = Duration::from_secs(5);

/// A leader that hands over in good order does it in 0.25 s (measured, SIGTERM and lame duck, nats-server 2.15.1); one
/// that is missed is replaced after at least 3 s (its election time-out is 4 s or more, counted from the last beat).
const HANDOVER: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: u64 = 1_790_000_000_000;
    const SKEW_S: u64 = 5;

    fn sighting(began: Instant) -> Sighting {
        Sighting {
            began,
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

    /// A watch that has seen one sighting, and the time of the next.
    fn watching() -> (Watch, Instant, Vouched) {
        let start = Instant::now();
        let mut watch = Watch::default();
        let vouched = watch.see(sighting(start), 0, SKEW_S);
        (watch, start + Duration::from_secs(1), vouched)
    }

    #[test]
    fn an_old_stream_with_old_messages_vouches_at_once() {
        let (mut watch, next, vouched) = watching();
        assert_eq!(vouched, Vouched { generation: 1, fence: fence(NOW_MS - 100_000) });
        let again = watch.see(sighting(next), 1000, SKEW_S);
        assert_eq!(again, vouched);
    }

    #[test]
    fn a_first_look_counts_from_creation_oldest_message_and_term_of_the_leader() {
        let start = Instant::now();
        let see = |sighting| Watch::default().see(sighting, 0, SKEW_S).fence;
        assert_eq!(see(Sighting { created_ms: NOW_MS - 20_000, ..sighting(start) }), fence(NOW_MS - 20_000));
        assert_eq!(see(Sighting { first_ms: Some(NOW_MS - 10), ..sighting(start) }), fence(NOW_MS - 10));
        assert_eq!(see(Sighting { first_ms: None, ..sighting(start) }), fence(NOW_MS), "empty");
        let new_leader = Some(("n2".into(), Some(NOW_MS - 3000)));
        assert_eq!(see(Sighting { leader: new_leader, ..sighting(start) }), fence(NOW_MS - 3000));
        let unknown_term = Some(("n2".into(), None));
        assert_eq!(see(Sighting { leader: unknown_term, ..sighting(start) }), fence(NOW_MS));
        assert_eq!(see(Sighting { leader: None, ..sighting(start) }), fence(NOW_MS - 100_000), "one server");
    }

    #[test]
    fn a_stream_that_came_back_empty_is_fenced_although_name_and_creation_are_the_same() {
        let (mut watch, next, _) = watching();
        let empty = Sighting { first_ms: Some(NOW_MS - 50), last_sequence: 1, ..sighting(next) };
        assert_eq!(watch.see(empty, 0, SKEW_S), Vouched { generation: 2, fence: fence(NOW_MS) });
    }

    #[test]
    fn a_recreated_stream_is_a_new_generation() {
        let (mut watch, next, _) = watching();
        let renamed = Sighting { stream: "RG_2".into(), created_ms: NOW_MS - 7, ..sighting(next) };
        assert_eq!(watch.see(renamed.clone(), 0, SKEW_S), Vouched { generation: 2, fence: fence(NOW_MS - 7) });
        let recreated = Sighting { created_ms: NOW_MS - 3, began: next + HANDOVER, ended: next + HANDOVER, ..renamed };
        assert_eq!(watch.see(recreated, 0, SKEW_S), Vouched { generation: 3, fence: fence(NOW_MS - 3) });
    }

    #[test]
    fn a_probe_or_sequence_that_was_lost_means_that_ids_were_lost() {
        for (forgot, last_sequence, highest) in [(true, 1001, 1000), (false, 999, 0), (false, 1001, 1002)] {
            let (mut watch, next, _) = watching();
            let lossy = Sighting { forgot, last_sequence, ..sighting(next) };
            assert_eq!(watch.see(lossy, highest, SKEW_S), Vouched { generation: 2, fence: fence(NOW_MS) });
        }
    }

    #[test]
    fn a_new_leader_after_a_silence_is_fenced_and_one_that_took_over_smoothly_is_not() {
        let leader = Some(("n2".into(), Some(NOW_MS - 700)));
        let (mut watch, next, before) = watching();
        let smooth = watch.see(Sighting { leader: leader.clone(), ..sighting(next) }, 1000, SKEW_S);
        assert_eq!(smooth, before);
        let (mut watch, next, _) = watching();
        let silence = next + Duration::from_secs(4);
        let after = watch.see(Sighting { leader, ..sighting(silence) }, 1000, SKEW_S);
        assert_eq!(after, Vouched { generation: 2, fence: fence(NOW_MS - 700) });
        let (mut watch, next, before) = watching();
        let same_leader = watch.see(sighting(next + Duration::from_secs(60)), 1000, SKEW_S);
        assert_eq!(same_leader, before, "a pause of ours, not of the stream");
        let (mut watch, next, _) = watching();
        let unknown_term = Some(("n2".into(), None));
        let after = watch.see(Sighting { leader: unknown_term, ..sighting(next + HANDOVER * 2) }, 1000, SKEW_S);
        assert_eq!(after.fence, fence(NOW_MS));
    }

    #[test]
    fn after_clocks_that_differed_the_memory_counts_from_now_once() {
        let (mut watch, next, before) = watching();
        watch.clocks_differed();
        assert_eq!(watch.see(sighting(next), 1000, SKEW_S), Vouched { generation: 2, fence: fence(NOW_MS) });
        let later = watch.see(sighting(next + Duration::from_secs(1)), 1000, SKEW_S);
        assert_eq!(later, Vouched { generation: 2, ..before }, "the guard keeps the highest fence");
    }

    #[test]
    fn clocks_agree_within_the_skew_less_what_the_round_trip_hides() {
        let asked = Instant::now();
        let at = asked + Duration::from_millis(100);
        let check = |broker_ms: u64| Agreement::new(asked, at, NOW_MS, broker_ms).check(at, NOW_MS, 5000);
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
        let agreement = Agreement::new(at, at, NOW_MS, NOW_MS);
        let later = at + Duration::from_secs(3);
        assert_eq!(agreement.check(later, NOW_MS + 3000, 5000), Ok(()));
        assert_eq!(agreement.check(later, NOW_MS + 3000 + 6000, 5000), Err(Outage::ClockDiffers));
        assert_eq!(agreement.check(later, NOW_MS + 3000 - 6000, 5000), Err(Outage::ClockDiffers));
        assert_eq!(agreement.ahead_ms(later, NOW_MS), 3000);
        let much_later = at + TRUSTED_FOR + Duration::from_millis(1);
        assert_eq!(agreement.check(much_later, NOW_MS + 5001, 5000), Err(Outage::Unverified));
    }
}
