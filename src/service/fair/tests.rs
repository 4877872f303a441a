#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
use proptest::prelude::*;

use super::*;

const ROOMY: Bounds = Bounds { waiting: 1_000, running: 100, bytes: usize::MAX };

fn agent(number: usize) -> Name {
    Name::new(&format!("a{number}")).unwrap()
}

/// Offers items until there is no room, and returns how many were taken.
fn fill(queue: &mut FairQueue<usize>, number: usize, bytes: usize) -> usize {
    (0..100_000).take_while(|item| queue.push(agent(number), *item, bytes).is_ok()).count()
}

/// Takes out all items as if no work ever took time, and returns who was served, in order.
fn served(queue: &mut FairQueue<usize>) -> Vec<String> {
    std::iter::from_fn(|| {
        let next = queue.next()?;
        queue.done(&next.agent, next.bytes);
        Some(next.agent.to_string())
    })
    .collect()
}

#[test]
fn agent_with_one_message_is_served_within_one_round_whatever_others_have_waiting() {
    let mut queue = FairQueue::new(ROOMY);
    for greedy in 0..5 {
        assert!(fill(&mut queue, greedy, 1) > 10);
    }
    queue.push(agent(9), 0, 1).unwrap();
    let order = served(&mut queue);
    assert!(order[..6].contains(&"a9".to_owned()), "{:?}", &order[..10]);
    // And all others are served once in each round, as long as they have something.
    assert_eq!(order[..5].iter().collect::<std::collections::BTreeSet<_>>().len(), 5, "{:?}", &order[..10]);
}

#[test]
fn greedy_agents_leave_room_for_the_next_in_places_and_in_bytes() {
    for (waiting, bytes, size) in [(1_000, usize::MAX, 1), (usize::MAX / 2, 100_000, 100)] {
        let mut queue = FairQueue::new(Bounds { waiting, running: 10, bytes });
        let mut took = Vec::new();
        for number in 0..30 {
            // Each of them tries again and again, even after the others have come.
            took.push(fill(&mut queue, number % 8, size));
        }
        assert_eq!(took[0], 500, "one alone has half");
        assert!(took[..8].iter().all(|took| *took > 0), "{took:?}");
        assert!(queue.push(agent(8), 0, size).is_ok(), "and so has the next");
    }
}

#[test]
fn agents_with_slow_work_leave_places_for_work_of_others() {
    let mut queue = FairQueue::new(ROOMY);
    for number in 0..4 {
        fill(&mut queue, number, 1);
    }
    let mut under_way = Vec::new();
    while let Some(next) = queue.next() {
        under_way.push(next);
    }
    assert!(under_way.len() < 100 && under_way.len() >= 75, "{}", under_way.len());
    // Nobody gives anything back, and yet a fifth agent is served at once.
    queue.push(agent(5), 7, 1).unwrap();
    let next = queue.next().unwrap();
    assert_eq!((next.agent, next.item), (agent(5), 7));
    // An agent alone gets half of the places.
    let mut queue = FairQueue::new(ROOMY);
    fill(&mut queue, 0, 1);
    assert_eq!(std::iter::from_fn(|| queue.next()).count(), 50);
}

#[test]
fn agent_that_holds_nothing_costs_nothing_and_the_smallest_bounds_work() {
    let mut queue = FairQueue::new(Bounds { waiting: 1, running: 1, bytes: 10 });
    assert_eq!(queue.push(agent(0), 1, 11), Err(1), "larger than all room");
    assert_eq!(queue.agents.len(), 0);
    for round in 0..3 {
        queue.push(agent(round), round, 10).unwrap();
        assert_eq!(queue.push(agent(9), 1, 0), Err(1));
        let next = queue.next().unwrap();
        assert!(queue.next().is_none());
        assert_eq!(queue.push(agent(9), 1, 1), Err(1), "what is worked on still takes its bytes");
        queue.done(&next.agent, next.bytes);
        assert_eq!((queue.agents.len(), queue.turns.len(), queue.bytes), (0, 0, 0));
    }
}

#[derive(Debug, Clone)]
enum Step {
    Push { agent: usize, bytes: usize },
    Next,
    Done(usize),
    Remove { agent: usize, at: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..6_usize, 0..40_usize).prop_map(|(agent, bytes)| Step::Push { agent, bytes }),
        2 => Just(Step::Next),
        1 => any::<usize>().prop_map(Step::Done),
        1 => (0..6_usize, 0..4_usize).prop_map(|(agent, at)| Step::Remove { agent, at }),
    ];
    proptest::collection::vec(step, 0..400)
}

proptest! {
    #[test]
    fn bounds_hold_nothing_is_lost_and_each_line_keeps_its_order(
        steps in steps(), waiting in 1..20_usize, running in 1..10_usize, bytes in 1..400_usize,
    ) {
        let bounds = Bounds { waiting, running, bytes };
        let mut queue = FairQueue::new(bounds);
        let mut lines: HashMap<Name, VecDeque<usize>> = HashMap::new();
        let mut under_way: Vec<Next<usize>> = Vec::new();
        let (mut held, mut sizes) = (0, HashMap::new());
        for (item, step) in steps.into_iter().enumerate() {
            match step {
                Step::Remove { agent: number, at } => {
                    let line = lines.entry(agent(number)).or_default();
                    let meant = line.get(at).copied();
                    let removed = queue.remove(&agent(number), |item| Some(*item) == meant);
                    prop_assert_eq!(removed, meant);
                    if let Some(item) = meant {
                        line.remove(at);
                        held -= sizes[&item];
                    }
                }
                Step::Push { agent: number, bytes: size } => {
                    let idle = !queue.agents.contains_key(&agent(number));
                    let room = queue.waiting() < waiting && held + size <= bytes;
                    match queue.push(agent(number), item, size) {
                        Ok(()) => {
                            held += size;
                            sizes.insert(item, size);
                            lines.entry(agent(number)).or_default().push_back(item);
                        }
                        Err(back) => {
                            prop_assert_eq!(back, item);
                            prop_assert!(!(idle && room), "who holds nothing is taken wherever there is room");
                        }
                    }
                }
                Step::Next => {
                    let turns = queue.turns.clone();
                    if let Some(next) = queue.next() {
                        prop_assert_eq!(lines.get_mut(&next.agent).unwrap().pop_front(), Some(next.item));
                        under_way.push(next);
                    } else {
                        let free = running - under_way.len();
                        prop_assert!(turns.iter().all(|agent| queue.agents[agent].running >= free));
                    }
                }
                Step::Done(which) => {
                    if !under_way.is_empty() {
                        let next = under_way.swap_remove(which % under_way.len());
                        held -= next.bytes;
                        queue.done(&next.agent, next.bytes);
                    }
                }
            }
            prop_assert!(queue.waiting() <= waiting && queue.running() <= running && queue.bytes <= bytes);
            prop_assert_eq!((queue.bytes, queue.running()), (held, under_way.len()));
            prop_assert_eq!(queue.waiting(), lines.values().map(VecDeque::len).sum::<usize>());
            let with_turn = lines.values().filter(|line| !line.is_empty()).count();
            prop_assert_eq!(queue.turns.len(), with_turn);
            prop_assert!(queue.agents.len() <= queue.waiting() + queue.running());
        }
        // Everything that was taken comes out.
        for next in under_way {
            queue.done(&next.agent, next.bytes);
        }
        let left = lines.values().map(VecDeque::len).sum::<usize>();
        prop_assert_eq!(served(&mut queue).len(), left);
        prop_assert_eq!((queue.agents.len(), queue.turns.len(), queue.bytes, queue.waiting()), (0, 0, 0, 0));
    }
}
