//! A model of the shared replay guard's protocol, and of its hand-over to and from the local one. Every state is visited: no message is
//! executed twice. If a rule is taken out, one is: each rule has such a test, so that neither the rules nor the model can rot unnoticed.
//!
//! The model covers the code's decisions; `rules.rs` names the function of each. One message, with W = 1 and S = 1, is offered to every
//! replica at every time, in every order with everything else: others' messages, looks at the stream, questions that reach the broker late,
//! answers that are lost or judged late (a slow process just takes no step), starts and stops, faults of the brokers, and clocks that show
//! at each reading anything that they may. The bounds: three machines, two or three processes at a time; at most two starts, one fault of a
//! broker, and one process that nobody hears from for a while; two brokers; the time from the first moment at which the message can be
//! admitted until the stream has forgotten it.
//!
//! The assumptions: a look at the stream is one step; an election takes longer than a look is trusted; what a backup lacks is not made up
//! for by others' messages within that time; brokers tell the truth, and the right time; serving replicas hear each other on the bus in
//! less time than a guard waits that has begun to serve, and one that was not heard for a while does not stop before that; machines that
//! take over from each other with a local guard have clocks within S of each other. Seconds are not divided, and a local guard never knows
//! how recently its predecessor ran, which would only let it wait for less (`Lease::knows_of_late`).
//!
//! Only tests, in a package of their own so that they alone are optimized, which makes them eight times as fast.

#![cfg(test)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

mod explore;
mod rules;
mod steps;
mod stream;
mod tidy;
mod world;

use explore::{Explored, Model, explore};
use rules::Rules;
use steps::{begin, steps};
use world::{Bounds, Fault, Guard, Replica, Step, World};

struct Guards<'a> {
    rules: Rules,
    bounds: &'a Bounds,
}

impl Model for Guards<'_> {
    type State = World;
    type Step = Step;

    fn starts(&self) -> Vec<World> {
        vec![begin(self.bounds)]
    }

    fn steps(&self, state: &World, next: &mut Vec<(Step, World)>) {
        steps(state, &self.rules, self.bounds, next);
    }

    fn is_bad(&self, state: &World) -> bool {
        state.executed > 1
    }

    fn is_notable(&self, state: &World) -> bool {
        state.executed == 1
    }
}

/// Visits every state with all rules: at least `least` of them, or the model has lost some of its behaviour.
fn never_twice(bounds: &Bounds, least: usize) {
    let all = explore(&Guards { rules: Rules::ALL, bounds }, MOST);
    assert!(all.counterexample.is_none(), "executed twice:{}", all.story());
    let Explored { states, notable, depth, .. } = all;
    println!("{states} states, up to {depth} steps away; in {notable} of them the message was executed");
    assert!(states >= least && notable > least / 20, "{states} states, {notable} in which it was executed");
}

/// Without some of the rules, the message is executed twice. Prints how.
fn twice(bounds: &Bounds, rules: Rules) {
    let found = explore(&Guards { rules, bounds }, MOST);
    assert!(found.counterexample.is_some(), "never executed twice in {} states", found.states);
    println!("{} states;{}", found.states, found.story());
}

/// Without either of two rules the message is not executed twice; without both it is.
fn stand_in(bounds: &Bounds, one: Rules, other: Rules, neither: Rules) {
    for rules in [one, other] {
        let all = explore(&Guards { rules, bounds }, MOST);
        assert!(all.counterexample.is_none(), "executed twice:{}", all.story());
    }
    twice(bounds, neither);
}

const MOST: usize = 400_000;
const ALL: Rules = Rules::ALL;

/// Two replicas of a cluster with three copies of the stream.
fn cluster() -> Bounds {
    Bounds {
        replicas: [Replica::shared(0), Replica::shared(0), Replica::down()],
        brokers: 1,
        at_once: 2,
        clustered: true,
        starts: 0,
        may_start: vec![],
        pauses: 0,
        faults: 1,
        may_fail: vec![Fault::LeaderLost, Fault::HandedOver, Fault::Emptied, Fault::Removed],
        ahead: world::S,
    }
}

/// Two replicas and one broker.
fn single() -> Bounds {
    Bounds { clustered: false, may_fail: vec![Fault::Emptied, Fault::Removed, Fault::Restored], ..cluster() }
}

/// A replica serves with the shared guard; the kind of guard is changed, and changed back.
fn kinds() -> Bounds {
    Bounds {
        replicas: [Replica::shared(0), Replica::down(), Replica::down()],
        starts: 2,
        may_start: vec![Guard::Local, Guard::Shared(0)],
        faults: 0,
        may_fail: vec![],
        ahead: 0,
        ..single()
    }
}

/// A replica serves with the local guard, and up to two others are started beside it or after it.
fn from_local() -> Bounds {
    Bounds { replicas: [Replica::local(), Replica::down(), Replica::down()], at_once: 3, ..kinds() }
}

/// A replica is started whose guard may be at another broker.
fn brokers() -> Bounds {
    Bounds { brokers: 2, starts: 1, may_start: vec![Guard::Shared(0), Guard::Shared(1)], ahead: world::S, ..kinds() }
}

/// A replica stands still, unheard, and another one with any guard takes its place before it goes on.
fn replaced(before: Replica) -> Bounds {
    Bounds { replicas: [before, Replica::down(), Replica::down()], starts: 1, pauses: 1, ..kinds() }
}

#[test]
fn guards_never_admit_twice_when_one_stands_still_and_is_replaced() {
    never_twice(&replaced(Replica::local()), 500);
    never_twice(&replaced(Replica::shared(0)), 5_000);
}

#[test]
fn with_a_local_guard_that_does_not_notice_its_pause_what_its_successor_ran_runs_twice() {
    twice(&replaced(Replica::local()), Rules { lapse_fence: false, ..ALL });
}

#[test]
fn guards_of_a_cluster_never_admit_twice_whatever_its_stream_loses() {
    never_twice(&cluster(), 30_000);
}

#[test]
fn guards_of_one_broker_never_admit_twice_whatever_its_stream_loses() {
    never_twice(&single(), 40_000);
}

#[test]
fn guards_never_admit_twice_when_their_kind_is_changed_and_changed_back() {
    never_twice(&kinds(), 30_000);
}

#[test]
fn guards_never_admit_twice_when_local_ones_are_replaced() {
    never_twice(&from_local(), 5_000);
}

#[test]
fn guards_at_two_brokers_never_admit_twice() {
    never_twice(&brokers(), 30_000);
}

/// Shared, local, shared within one life of a message: the second shared run found the stream as the first had left it, and
/// vouched for what the local one had executed.
#[test]
fn without_a_fence_at_the_start_a_change_of_guard_and_back_executes_twice() {
    twice(&kinds(), Rules { fence_at_start: false, ..ALL });
}

#[test]
fn with_a_fence_from_when_the_guard_was_opened_what_others_ran_since_runs_twice() {
    twice(&kinds(), Rules { fence_when_serving: false, ..ALL });
    twice(&from_local(), Rules { fence_when_serving: false, ..ALL });
}

/// A replica that is started again and again beside a local one, and refuses each time, leaves a row of probes.
#[test]
fn with_probes_of_replicas_that_do_not_serve_taken_for_word_it_executes_twice() {
    twice(&from_local(), Rules { serving_vouches: false, ..ALL });
}

#[test]
fn with_a_peers_look_from_before_taken_for_word_it_executes_twice() {
    twice(&single(), Rules { fresh_word: false, ..ALL });
}

#[test]
fn with_a_local_fence_of_the_skew_alone_another_machines_messages_run_twice() {
    twice(&kinds(), Rules { handover_margin: false, ..ALL });
    twice(&from_local(), Rules { handover_margin: false, ..ALL });
}

/// Two replicas whose guards are at two brokers, or are of two kinds.
#[test]
fn without_agreement_replicas_that_share_nothing_execute_twice() {
    twice(&brokers(), Rules { agreement_check: false, ..ALL });
    twice(&kinds(), Rules { agreement_check: false, ..ALL });
    twice(&from_local(), Rules { agreement_check: false, ..ALL });
}

/// A process that stood still between its question and the answer.
#[test]
fn without_a_second_look_at_the_clock_what_the_stream_forgot_runs_twice() {
    twice(&cluster(), Rules { clock_reread: false, ..ALL });
}

#[test]
fn with_clocks_that_nobody_compares_it_executes_twice() {
    twice(&cluster(), Rules { clock_compared: false, ..ALL });
}

/// A process that stood still for an election goes on with what it saw before.
#[test]
fn with_a_look_trusted_for_longer_than_an_election_it_executes_twice() {
    twice(&cluster(), Rules { short_trust: false, ..ALL });
}

#[test]
fn without_entering_again_after_a_silence_a_restored_backup_executes_twice() {
    twice(&single(), Rules { silence_enters: false, ..ALL });
}

/// Two rules that stand in for each other: a replica that missed a change of leader was silent for as long.
#[test]
fn without_a_fence_for_the_leader_nor_for_silence_an_election_executes_twice() {
    let (leader, silence) = (Rules { leader_fence: false, ..ALL }, Rules { silence_enters: false, ..ALL });
    stand_in(&cluster(), leader, silence, Rules { leader_fence: false, ..silence });
}

/// Two more: an emptied stream holds neither the guard's own probe nor anything old.
#[test]
fn without_probes_nor_the_memorys_reach_an_emptied_stream_executes_twice() {
    let (probes, reach) = (Rules { probe_check: false, ..ALL }, Rules { reach_fence: false, ..ALL });
    stand_in(&single(), probes, reach, Rules { probe_check: false, ..reach });
}

#[test]
fn with_streams_of_one_name_an_answer_of_the_next_one_executes_twice() {
    twice(&cluster(), Rules { epoch_name: false, ..ALL });
    twice(&single(), Rules { epoch_name: false, ..ALL });
}

#[test]
fn without_sequence_numbers_a_restored_backup_executes_twice() {
    twice(&single(), Rules { sequence_check: false, ..ALL });
}

#[test]
fn with_answers_over_a_broken_connection_an_emptied_stream_executes_twice() {
    twice(&cluster(), Rules { line_check: false, ..ALL });
    twice(&single(), Rules { line_check: false, ..ALL });
}

/// A check that was not answered in time is asked again. The others' answers are known ids, too.
#[test]
fn with_any_known_id_taken_for_ones_own_it_executes_twice() {
    twice(&cluster(), Rules { own_content: false, ..ALL });
    twice(&single(), Rules { own_content: false, ..ALL });
}

#[test]
fn with_ones_own_id_taken_under_any_number_it_executes_twice() {
    twice(&single(), Rules { own_number: false, ..ALL });
}

/// The promise needs this assumption, as the model shows.
#[test]
fn with_machines_whose_clocks_differ_by_twice_the_skew_local_guards_execute_twice() {
    twice(&Bounds { ahead: world::S, ..kinds() }, ALL);
}

/// The explorer on its own: a grid of 4 x 3 with one corner that is bad.
#[test]
fn the_explorer_visits_every_state_once_and_shows_the_shortest_way() {
    struct Grid(Option<(u8, u8)>);
    impl Model for Grid {
        type State = (u8, u8);
        type Step = &'static str;

        fn starts(&self) -> Vec<(u8, u8)> {
            vec![(0, 0)]
        }

        fn steps(&self, (x, y): &(u8, u8), next: &mut Vec<(&'static str, (u8, u8))>) {
            next.push(("right", ((x + 1).min(3), *y)));
            next.push(("up", (*x, (y + 1).min(2))));
        }

        fn is_bad(&self, state: &(u8, u8)) -> bool {
            Some(*state) == self.0
        }

        fn is_notable(&self, (x, _): &(u8, u8)) -> bool {
            *x == 3
        }
    }
    let all = explore(&Grid(None), 12);
    assert_eq!((all.states, all.depth, all.notable, all.counterexample), (12, 5, 3, None));
    let way = explore(&Grid(Some((1, 2))), 12).counterexample.unwrap();
    assert_eq!(way.len(), 4);
    assert!(way[0].starts_with("start") && way[3].contains("(1, 2)"), "{way:?}");
}
