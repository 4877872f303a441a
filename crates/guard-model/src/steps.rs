//! Every step that can happen in a world. Never one that the rules rule out.

use super::rules::Rules;
use super::world::{Bounds, Broker, END, EXP, Fault, Run, S, Step, Stream, World};

/// The world before anything happens.
pub(crate) fn begin(bounds: &Bounds) -> World {
    let stream = Stream { created: 0, first: Some(0), term: 0, last: 1, id: None };
    let broker = Broker { stream: Some(stream), ..Broker::default() };
    World {
        now: 1,
        executed: 0,
        starts: bounds.starts,
        pauses: bounds.pauses,
        faults: bounds.faults,
        brokers: [broker, if bounds.brokers > 1 { broker } else { Broker::default() }],
        replicas: bounds.replicas,
    }
    .tidied()
}

/// Every step from here.
pub(crate) fn steps(world: &World, rules: &Rules, bounds: &Bounds, next: &mut Vec<(Step, World)>) {
    let mut take = |step: Step, happens: &dyn Fn(&mut World) -> bool| {
        let mut world = *world;
        if happens(&mut world) {
            next.push((step, world.tidied()));
        }
    };
    let is_over = world.executed == 0 && world.now >= EXP + S;
    if is_over {
        return;
    }
    // Replicas find each other in less time than a guard waits that has begun to serve.
    if world.now < END && !(rules.agreement_check && world.is_to_yield()) {
        take(Step::Tick, &|world| {
            world.tick();
            true
        });
    }
    for broker in (0..world.brokers.len()).filter(|broker| world.is_used(*broker)) {
        take(Step::Others(broker), &|world| world.store(broker, false).is_some());
        take(Step::BackedUp(broker), &|world| bounds.may_fail.contains(&Fault::Restored) && world.backs_up(broker));
        for &fault in &bounds.may_fail {
            take(Step::Fails(broker, fault), &|world| world.fails(broker, fault, bounds.clustered));
        }
        for kept in 0..=world.brokers[broker].stream.map_or(0, |stream| stream.last) {
            take(Step::Elected { broker, kept }, &|world| world.elects(broker, kept));
        }
    }
    let room = world.replicas.iter().filter(|replica| replica.run != Run::Down).count() < bounds.at_once;
    for replica in 0..world.replicas.len() {
        if world.replicas[replica].still.is_some() {
            take(Step::GoesOn(replica), &|world| world.goes_on(replica, rules));
            continue;
        }
        take(Step::StandsStill(replica), &|world| world.stands_still(replica));
        take(Step::Yields(replica), &|world| rules.agreement_check && world.yields(replica));
        for &guard in bounds.may_start.iter().filter(|_| room) {
            take(Step::Opens(replica, guard), &|world| world.opens(replica, guard));
        }
        take(Step::Serves(replica), &|world| world.serves(replica, rules));
        take(Step::Stops(replica), &|world| !world.is_to_yield() && world.stops(replica));
        take(Step::Verifies(replica), &|world| world.verifies(replica, rules, bounds.clustered));
        take(Step::Offered(replica), &|world| world.offered(replica, rules, bounds.ahead));
        take(Step::Asked(replica), &|world| world.asked(replica, rules));
        take(Step::Unheard(replica), &|world| world.unheard(replica));
        take(Step::Judged(replica), &|world| world.judged(replica, rules, bounds.ahead));
    }
}
