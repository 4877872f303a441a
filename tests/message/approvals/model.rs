//! The life of a request at random: two replicas, clocks that differ and go back, a store that is silent or holds what it held before,
//! two calls at a time, calls that are given up at any point. What is told must never be exceeded by what runs.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde_json::{Value, json};

use super::stores::{Fault, Replicas};
use super::*;

/// Numbers that are the same in each run.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }

    /// One of the replicas.
    fn replica(&mut self) -> usize {
        usize::from(self.roll(2) == 1)
    }
}

/// What is known of one request, by its text.
#[derive(Debug, Default)]
struct Known {
    /// Who has signed for it, whether that was told or not.
    signed: BTreeSet<&'static str>,
    /// The replicas that told of a denial.
    denied: BTreeSet<usize>,
    /// By replica.
    runs: [usize; 2],
}

/// What goes on in a run of the model.
struct Model {
    replicas: Replicas,
    dice: Dice,
    requests: BTreeMap<String, Known>,
    /// What the store has held: somebody may write it back. Empty if nobody can.
    held: Option<Vec<Bytes>>,
    ran: usize,
    given_up: usize,
    together: usize,
}

/// Whatever fails, a request runs once, after two people have signed for it, and not after a denial.
#[tokio::test]
async fn whatever_fails_a_request_runs_once_and_only_approved() {
    let counts = play(0..32, false).await;
    // All of it happens often enough to mean something.
    let [ran, given_up, together] = counts;
    assert!(ran >= 60 && given_up >= 50 && together >= 50, "{counts:?}");
}

/// Whoever can write the store too has it run once by each replica that did not run it, and by none that was told of a denial.
#[tokio::test]
async fn whoever_writes_back_what_was_stored_has_no_replica_run_a_request_twice_or_unapproved() {
    let counts = play(100..132, true).await;
    assert!(counts[0] >= 60, "{counts:?}");
}

async fn play(seeds: std::ops::Range<u64>, is_attacked: bool) -> [usize; 3] {
    let mut counts = [0; 3];
    for seed in seeds {
        let mut model = Model {
            replicas: Replicas::new(),
            dice: Dice(seed),
            requests: BTreeMap::new(),
            held: is_attacked.then(Vec::new),
            ran: 0,
            given_up: 0,
            together: 0,
        };
        for step in 0..60 {
            model.step(&format!("seed {seed}, step {step}")).await;
        }
        for (count, more) in counts.iter_mut().zip([model.ran, model.given_up, model.together]) {
            *count += more;
        }
    }
    counts
}

impl Model {
    async fn step(&mut self, at: &str) {
        let faults = [Fault::None, Fault::None, Fault::None, Fault::StoredInSilence, Fault::LostInSilence];
        self.replicas.store.fail(&[faults[usize::try_from(self.dice.roll(5)).unwrap()]]);
        if let (Some(held), Some((_, _, content))) = (&mut self.held, self.replicas.store.content().await) {
            held.push(content);
        }
        let replica = self.dice.replica();
        match self.dice.roll(17) {
            0..=3 => self.calls(&[replica], at).await,
            4..=6 => {
                let other = self.dice.replica();
                self.together += 1;
                self.calls(&[replica, other], at).await;
            }
            7..=11 => {
                let name = ["tess", "tom", "trudy"][usize::try_from(self.dice.roll(3)).unwrap()];
                self.decides(name, "approve", replica).await;
            }
            12 if self.dice.roll(4) == 0 => self.decides("tess", "deny", replica).await,
            12 => self.replicas.advance_ms(self.dice.roll(90) * 1_000),
            13 => self.clocks(),
            14 => match &self.held {
                Some(held) if !held.is_empty() => {
                    let back = usize::try_from(self.dice.roll(12)).unwrap();
                    let content = held[held.len().saturating_sub(1 + back)].clone();
                    self.replicas.store.fail(&[]);
                    self.replicas.store.write(content).await;
                }
                Some(_) => {}
                // What a replica remembers serves only against whoever writes entries back.
                None => self.replicas.restart_second(),
            },
            15 => self.replicas.advance_ms(self.dice.roll(40) * 60_000),
            // Otherwise few requests would come as far as to be used up at two replicas at a time.
            _ => {
                self.calls(&[replica], at).await;
                for name in ["tess", "tom"] {
                    let replica = self.dice.replica();
                    self.decides(name, "approve", replica).await;
                }
                self.together += 1;
                self.calls(&[replica, 1 - replica], at).await;
                self.replicas.advance_ms(31 * 60_000);
            }
        }
    }

    /// The second clock is anywhere within what is allowed, and both may go back.
    fn clocks(&mut self) {
        let back_ms = self.dice.roll(3) * self.dice.roll(20) * 1_000;
        let [first, second] = &self.replicas.desks;
        first.clock.set_ms(first.clock.now_ms() - back_ms);
        second.clock.set_ms(first.clock.now_ms() + self.dice.roll(11) * 1_000 - 5_000);
    }

    /// Calls at these replicas at the same time, each given up at one of its first waits, or not at all.
    async fn calls(&mut self, at_replicas: &[usize], at: &str) {
        let before = self.replicas.runs_of_each();
        let shown = shown(&self.replicas).await;
        let letters: Vec<_> = at_replicas.iter().map(|_| self.replicas.letter()).collect();
        let calls = at_replicas.iter().zip(&letters).map(|(replica, letter)| {
            let polls = self.dice.roll(10);
            Some((Box::pin(self.replicas.desks[*replica].answer(letter)), polls))
        });
        let mut calls: Vec<_> = calls.collect();
        while calls.iter().any(Option::is_some) {
            let call = usize::try_from(self.dice.roll(calls.len() as u64)).unwrap();
            let Some((answer, polls)) = &mut calls[call] else { continue };
            let is_done = futures_util::poll!(answer.as_mut()).is_ready();
            // From 6 on, it goes on to its end.
            *polls -= u64::from(*polls <= 6 && *polls > 0);
            if is_done || *polls == 0 {
                self.given_up += usize::from(!is_done);
                calls[call] = None;
            }
        }
        drop(calls);
        let ran = self.replicas.runs_of_each();
        for (replica, (ran, before)) in ran.into_iter().zip(before).enumerate() {
            for _ in before..ran {
                let (text, _) = shown.as_ref().unwrap_or_else(|| panic!("{at}: it ran without a request"));
                let known = self.requests.entry(text.clone()).or_default();
                known.runs[replica] += 1;
                self.ran += 1;
                let (runs, is_denied) = match self.held {
                    None => (known.runs.iter().sum(), !known.denied.is_empty()),
                    Some(_) => (known.runs[replica], known.denied.contains(&replica)),
                };
                assert!(runs == 1 && known.signed.len() >= 2 && !is_denied, "{at}: {known:?}");
            }
        }
    }

    async fn decides(&mut self, name: &'static str, decision: &str, replica: usize) {
        let Some((text, id)) = shown(&self.replicas).await else { return };
        let params = match decision {
            "deny" => json!({ "id": id, "digest": digest(&text), "decision": "deny" }),
            _ => json!({ "id": id, "approval": "two-treasurers", "digest": digest(&text), "decision": "approve" }),
        };
        // Tokens are those of the first replica's issuer.
        let desks = &self.replicas.desks;
        let letter = desks[0].letter(&approver(&desks[0], name), &call("rpc.approve", &params.to_string()));
        // A replica whose clock is too far off gives no answer.
        let answer = desks[replica].service.handle(letter.delivery()).await;
        let answer: Value = answer.map_or(Value::Null, |sealed| serde_json::from_slice(sealed.payload()).unwrap());
        let known = self.requests.entry(text).or_default();
        match decision {
            "deny" if answer["result"]["state"] == "denied" => drop(known.denied.insert(replica)),
            "deny" => {}
            _ => drop(known.signed.insert(name)),
        }
    }
}

/// The text and the id of the request, if there is one.
async fn shown(replicas: &Replicas) -> Option<(String, String)> {
    let desk = &replicas.desks[0];
    let trudy = approver(desk, "trudy");
    let listed = ask(desk, &trudy, "rpc.approvals", "{}").await;
    let listed = listed["result"]["approvals"].as_array().unwrap_or_else(|| panic!("{listed}"));
    let id = listed.first()?["id"].as_str().unwrap().to_owned();
    Some((text(desk, &trudy, &id).await, id))
}
