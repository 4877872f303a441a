//! Visits every reachable state, nearest first, and shows the path to the first bad one. Compares whole states, so
//! nothing is missed because two of them have the same hash.
//!
//! Not the crate `stateright`: it brings a web server and a third line of `rand` into the tree, keeps 64-bit fingerprints instead of
//! states, and all that is needed of it is this page.

use std::collections::HashMap;
use std::fmt::{Debug, Write as _};
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// What is explored: states, and the steps between them.
pub(crate) trait Model {
    type State: Clone + Eq + Hash + Debug;
    type Step: Clone + Debug;

    fn starts(&self) -> Vec<Self::State>;

    /// Every step that can be taken from `state`, and where it leads.
    fn steps(&self, state: &Self::State, next: &mut Vec<(Self::Step, Self::State)>);

    /// Whether this must never be seen.
    fn is_bad(&self, state: &Self::State) -> bool;

    /// Whether something is worth counting, so that a model in which nothing ever happens is noticed.
    fn is_notable(&self, state: &Self::State) -> bool;
}

/// How an exploration ended.
pub(crate) struct Explored {
    pub(crate) states: usize,
    /// The most steps from the start to a state.
    pub(crate) depth: usize,
    /// How many states are notable.
    pub(crate) notable: usize,
    /// The shortest path to a bad state, step by step.
    pub(crate) counterexample: Option<Vec<String>>,
}

impl Explored {
    pub(crate) fn story(&self) -> String {
        let mut story = String::new();
        for (number, step) in self.counterexample.iter().flatten().enumerate() {
            let _ = write!(story, "\n  {number:2} {step}");
        }
        story
    }
}

/// Visits all states, or those up to the first bad one.
///
/// # Panics
/// If there are more than `most`: the bounds of the model are wrong then, and nothing is known about it.
pub(crate) fn explore<M: Model>(model: &M, most: usize) -> Explored {
    // By state: its position in `met`.
    let mut known: HashMap<M::State, usize, BuildHasherDefault<Quick>> = HashMap::default();
    let mut met: Vec<Met<M>> = Vec::new();
    let mut notable = 0;
    for state in model.starts() {
        known.insert(state.clone(), met.len());
        met.push(Met { state, before: usize::MAX, step: None, depth: 0 });
    }
    let mut next = Vec::new();
    let mut at = 0;
    while at < met.len() {
        let (state, depth) = (met[at].state.clone(), met[at].depth);
        notable += usize::from(model.is_notable(&state));
        if model.is_bad(&state) {
            return Explored { states: met.len(), depth, notable, counterexample: Some(way::<M>(&met, at)) };
        }
        model.steps(&state, &mut next);
        for (step, state) in next.drain(..) {
            if !known.contains_key(&state) {
                known.insert(state.clone(), met.len());
                met.push(Met { state, before: at, step: Some(step), depth: depth + 1 });
            }
        }
        assert!(met.len() <= most, "more than {most} states");
        at += 1;
    }
    let depth = met.last().map_or(0, |last| last.depth);
    Explored { states: met.len(), depth, notable, counterexample: None }
}

/// FNV-1a, one byte for each value: states are many small numbers, and no attacker makes them.
struct Quick(u64);

impl Default for Quick {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Quick {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u8(*byte));
    }

    fn write_u8(&mut self, byte: u8) {
        self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    }

    /// The discriminant of an enum.
    fn write_isize(&mut self, number: isize) {
        self.write_u8(number.to_le_bytes()[0]);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A state, and how it was reached first.
struct Met<M: Model> {
    state: M::State,
    /// The position of the state before it.
    before: usize,
    step: Option<M::Step>,
    depth: usize,
}

fn way<M: Model>(met: &[Met<M>], mut at: usize) -> Vec<String> {
    let mut way = Vec::new();
    while let Some(Met { state, before, step, .. }) = met.get(at) {
        let step = step.as_ref().map_or_else(|| "start".to_owned(), |step| format!("{step:?}"));
        way.push(format!("{step}\n     {state:?}"));
        at = *before;
    }
    way.reverse();
    way
}
