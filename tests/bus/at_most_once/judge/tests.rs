//! What the judge must convict, and what it must accept. A judge that finds a reason for everything proves nothing.

use sealwire::internal::wire::Nonce;

use super::super::history::*;
use super::super::replica::Cause;
use super::*;

const T: u64 = 1_790_000_000;
const T_MS: u64 = T * 1000;
/// As a guard reports it.
const FENCE: u32 = 1_790_000_000 - 100;

/// Three replicas that are ready, and one message, offered to the first at `T` and to the second a second later.
fn calm() -> History {
    let life = |replica| Life { ready: vec![(T_MS - 50_000, true)], ..Life::new(replica, T_MS - 60_000) };
    let mut history = History { lives: (0..3).map(life).collect(), ..History::default() };
    history.messages.push(Message { nonce: Nonce::random(), iat: T, calm: false });
    say(&mut history, 0, 10, Said::Executed);
    history.executions.push(Execution { message: 0, life: 0, at_ms: T_MS + 11 });
    say(&mut history, 1, 1_000, Said::Replayed);
    history
}

/// Offers the message `after_ms` after its `iat`; the answer comes two milliseconds later.
fn say(history: &mut History, life: u16, after_ms: u64, said: Said) {
    let (received_ms, answered_ms) = (T_MS + after_ms, T_MS + after_ms + 2);
    history.offers.push(Offer { message: 0, life, at_ms: received_ms });
    let fences = (FENCE, FENCE);
    history.answers.push(Answer { message: 0, life, said, received_ms, answered_ms, fences });
}

fn guilty(history: &History) -> bool {
    !judge(history).convictions.is_empty()
}

fn trouble(from_ms: u64, to_ms: u64) -> Trouble {
    Trouble { what: "test", span: (T_MS + from_ms, T_MS + to_ms), forgot_ms: None }
}

#[test]
fn one_execution_and_a_replay_pass() {
    let verdict = judge(&calm());
    assert!(verdict.convictions.is_empty(), "{:?}", verdict.convictions);
    assert_eq!(verdict.reasons[&("replayed", "it was executed")], 1);
}

#[test]
fn a_second_execution_is_convicted_even_if_only_the_ledger_knows_it() {
    let mut history = calm();
    say(&mut history, 2, 3_000, Said::Executed);
    history.executions.push(Execution { message: 0, life: 2, at_ms: T_MS + 3_001 });
    assert!(guilty(&history));
    let mut history = calm();
    history.lives[2].killed_ms = Some(T_MS + 3_002);
    history.executions.push(Execution { message: 0, life: 2, at_ms: T_MS + 3_001 });
    assert!(guilty(&history));
}

#[test]
fn replayed_needs_somebody_who_may_have_burnt_the_nonce_before() {
    let replayed_only = || {
        let mut history = calm();
        history.executions.clear();
        history.answers.remove(0);
        history.offers.remove(0);
        history
    };
    assert!(guilty(&replayed_only()));
    let mut history = replayed_only();
    history.troubles.push(trouble(0, 5));
    say(&mut history, 0, 10, Said::Unavailable(Cause::Unanswered));
    assert!(!guilty(&history));
    let mut history = replayed_only();
    history.troubles.push(trouble(1_500, 2_500));
    say(&mut history, 0, 2_000, Said::Unavailable(Cause::Unanswered));
    assert!(guilty(&history), "that was later");
    let mut history = replayed_only();
    history.lives[2].killed_ms = Some(T_MS + 700);
    history.offers.push(Offer { message: 0, life: 2, at_ms: T_MS + 600 });
    assert!(!guilty(&history), "a check of a killed replica");
}

#[test]
fn copies_that_all_met_another_one_need_two_leaders() {
    let all_replayed = |second_after_ms: u64, what: Option<&'static str>| {
        let mut history = calm();
        history.executions.clear();
        history.answers.clear();
        history.offers.clear();
        history.troubles.extend(what.map(|what| Trouble { what, ..trouble(0, 5) }));
        say(&mut history, 0, 10, Said::Replayed);
        say(&mut history, 1, second_after_ms, Said::Replayed);
        history
    };
    for what in [NODE_PAUSED, NODE_CUT_OFF, NODE_STALLED] {
        assert!(!guilty(&all_replayed(11, Some(what))), "{what}");
        assert!(guilty(&all_replayed(1_000, Some(what))), "{what}: the copies were not under way at once");
    }
    assert!(guilty(&all_replayed(11, None)));
    assert!(guilty(&all_replayed(11, Some("the stream was removed"))), "there is one leader");
    let mut history = all_replayed(11, Some(NODE_PAUSED));
    history.messages[0].calm = true;
    assert!(guilty(&history), "in a calm time");
}

#[test]
fn stale_needs_the_end_of_the_life_or_a_fence_that_has_a_reason() {
    let stale_at = |after_ms: u64| {
        let mut history = calm();
        say(&mut history, 2, after_ms, Said::Stale);
        history
    };
    assert!(!guilty(&stale_at(WINDOW_S * 1000)));
    assert!(guilty(&stale_at(WINDOW_S * 1000 - 500)));
    let mut fenced = stale_at(5_000);
    fenced.answers.last_mut().unwrap().fences = (FENCE, FENCE + 102);
    assert!(guilty(&fenced), "a fence for no reason");
    fenced.troubles.push(trouble(900, 950));
    fenced.troubles[0].span.0 = T_MS + 500;
    assert!(!guilty(&fenced));
}

#[test]
fn a_copy_that_is_under_way_at_the_same_replica_explains_a_replay_and_nothing_else_does() {
    // Executed by the first replica from `T` + 10 on; the second one gets two copies a moment before.
    let early = |life: u16, first_ends_ms: u64| {
        let mut history = calm();
        for (at, ends) in [(8, 8), (8, first_ends_ms)] {
            say(&mut history, life, at, Said::Replayed);
            history.answers.last_mut().unwrap().answered_ms = T_MS + ends;
        }
        history
    };
    assert!(!guilty(&early(1, 12)));
    assert!(guilty(&early(1, 9)), "before anybody had executed it");
    let mut history = early(1, 12);
    history.answers.last_mut().unwrap().life = 2;
    history.offers.last_mut().unwrap().life = 2;
    assert!(guilty(&history), "another replica's copy");
}

#[test]
fn fenced_needs_a_fence_that_lies_ahead_and_has_a_reason() {
    let fenced_at = |after_ms: u64, has_reason: bool| {
        let mut history = calm();
        say(&mut history, 2, after_ms, Said::Unavailable(Cause::Fenced));
        history.answers.last_mut().unwrap().fences = (FENCE, FENCE + 102);
        history.troubles.extend(has_reason.then(|| trouble(500, 950)));
        history
    };
    assert!(!guilty(&fenced_at(1_100, true)));
    assert!(guilty(&fenced_at(1_100, false)));
    assert!(!guilty(&fenced_at(3_100, true)), "it was passed within the skew");
    assert!(guilty(&fenced_at(4_100, true)), "it lay behind");
    let mut history = fenced_at(1_100, true);
    history.executions.clear();
    history.answers.remove(0);
    history.offers.remove(0);
    history.answers[0].received_ms = T_MS + 2_000;
    history.answers[0].answered_ms = T_MS + 2_002;
    assert!(!guilty(&history), "a fence that came in between leaves the nonce burnt");
    history.answers.last_mut().unwrap().fences.0 = FENCE + 102;
    assert!(guilty(&history), "a check that was not made burns no nonce");
}

#[test]
fn a_clock_within_the_skew_explains_a_second_and_not_more() {
    let stale_at = |before_end_ms: u64| {
        let mut history = calm();
        let at_ms = T_MS + WINDOW_S * 1000 - before_end_ms;
        history.lives[2].clocks = vec![(at_ms - 3_000, 700), (at_ms + 1_000, 0)];
        say(&mut history, 2, WINDOW_S * 1000 - before_end_ms, Said::Stale);
        history
    };
    assert!(!guilty(&stale_at(600)));
    assert!(guilty(&stale_at(SKEW_S * 1000 + 600)));
}

#[test]
fn unavailable_needs_a_fault_of_all_or_of_this_replica() {
    let unanswered = |life| {
        let mut history = calm();
        history.lives[1].pauses.push((T_MS + 2_000, T_MS + 4_000));
        say(&mut history, life, 4_500, Said::Unavailable(Cause::Unanswered));
        history
    };
    assert!(!guilty(&unanswered(1)));
    assert!(guilty(&unanswered(2)), "another one was paused");
    let mut history = unanswered(2);
    history.troubles.push(trouble(0, 3_000));
    assert!(!guilty(&history));
    let mut history = calm();
    history.troubles.push(trouble(0, 3_000));
    say(&mut history, 2, 4_500, Said::Unavailable(Cause::ClockDiffers));
    assert!(guilty(&history), "brokers do not change a replica's clock");
    history.lives[2].clocks = vec![(T_MS + 3_000, -30_000), (T_MS + 4_000, 0)];
    assert!(!guilty(&history));
    let mut history = calm();
    history.troubles.push(trouble(0, 3_000));
    say(&mut history, 2, 4_500, Said::Unavailable(Cause::Other));
    assert!(guilty(&history), "nothing leads to these");
    let mut history = calm();
    say(&mut history, 2, 4_500, Said::Full);
    assert!(guilty(&history), "there is room");
    let mut history = calm();
    say(&mut history, 2, 4_500, Said::NotOpen);
    assert!(guilty(&history), "it was opened long ago");
}

#[test]
fn an_offer_that_a_living_replica_does_not_answer_is_convicted() {
    let mut history = calm();
    history.offers.push(Offer { message: 0, life: 2, at_ms: T_MS + 600 });
    assert!(guilty(&history));
    history.lives[2].killed_ms = Some(T_MS + 700);
    let verdict = judge(&history);
    assert!(verdict.convictions.is_empty() && verdict.lost == 1, "{:?}", verdict.convictions);
}

#[test]
fn in_calm_times_nine_offers_are_one_execution_and_eight_replays() {
    let mut history = calm();
    history.messages[0].calm = true;
    assert!(guilty(&history), "two offers");
    for after_ms in 0..7 {
        say(&mut history, 2, 2_000 + after_ms, Said::Replayed);
    }
    assert!(!guilty(&history));
    history.answers[8].said = Said::Stale;
    history.answers[8].answered_ms = T_MS + WINDOW_S * 1000;
    assert!(guilty(&history), "stale would be right at another time");
    history.lives[2].stalls.push((T_MS + 1_000, T_MS + 1_800));
    let verdict = judge(&history);
    assert!(verdict.convictions.is_empty() && verdict.spared == 1, "{:?}", verdict.convictions);
    history.lives[2].stalls.clear();
    assert!(guilty(&history));
    history.troubles.push(Trouble { what: NODE_STALLED, span: (T_MS + 1_000, T_MS + 1_800), forgot_ms: None });
    let verdict = judge(&history);
    assert!(verdict.convictions.is_empty() && verdict.spared == 1, "{:?}", verdict.convictions);
}

#[test]
fn an_execution_that_a_fence_a_clock_or_the_end_forbids_is_convicted() {
    let mut history = calm();
    history.answers[0].fences = (FENCE + 100, FENCE + 100);
    assert!(guilty(&history), "behind the fence");
    history.answers[0].fences.1 = FENCE;
    assert!(!guilty(&history), "the fence lay ahead, and went back: {:?}", judge(&history).convictions);
    (history.answers[0].received_ms, history.answers[0].answered_ms) = (T_MS + 5_000, T_MS + 5_001);
    (history.answers[1].received_ms, history.answers[1].answered_ms) = (T_MS + 5_010, T_MS + 5_011);
    assert!(guilty(&history), "a fence that is past does not go back");
    let mut history = calm();
    history.lives[0].clocks = vec![(T_MS - 500, 2_000)];
    assert!(guilty(&history), "by a wrong clock");
    let mut history = calm();
    (history.answers[0].received_ms, history.answers[0].answered_ms) = (T_MS + 21_000, T_MS + 21_001);
    (history.answers[1].received_ms, history.answers[1].answered_ms) = (T_MS + 21_010, T_MS + 21_011);
    assert!(guilty(&history), "after its life");
}

#[test]
fn a_lost_memory_that_did_not_move_the_fence_is_convicted() {
    let mut history = calm();
    history.troubles.push(trouble(0, 0));
    history.troubles[0].span = (T_MS - 30_000, T_MS - 29_000);
    history.troubles[0].forgot_ms = Some(T_MS - 30_000);
    assert!(guilty(&history), "the fence is older than the loss");
    history.answers[0].fences = (FENCE + 72, FENCE + 72);
    assert!(!guilty(&history));
}

/// A starting replica's fence is at its own start, or was reported by another replica; any other value needs a fault.
#[test]
fn a_fence_at_the_start_is_the_replicas_own_or_one_that_another_told() {
    let begun = |fence_s: u64, at_ms: u64| {
        let mut history = calm();
        history.lives[1].started_ms = T_MS + 5_000;
        history.lives[1].ready = vec![(T_MS + 7_500, true)];
        history.lives[1].fences.push((at_ms, fence_s));
        history.answers.retain(|answer| answer.life == 0);
        history.offers.retain(|offer| offer.life == 0);
        history
    };
    assert!(!guilty(&begun(T + 6 + 2 * SKEW_S, T_MS + 6_000)), "its own start");
    assert!(guilty(&begun(T + 1 + 2 * SKEW_S, T_MS + 6_000)), "nothing happened then");
    let mut told = begun(T - 55 + 2 * SKEW_S, T_MS + 7_000);
    assert!(guilty(&told), "nobody told it");
    told.lives[0].fences.push((T_MS - 54_000, T - 55 + 2 * SKEW_S));
    assert!(!guilty(&told), "{:?}", judge(&told).convictions);
    told.lives[0].fences[0].0 = T_MS + 8_000;
    assert!(guilty(&told), "told later");
}
