//! The life of a request at random: two replicas, clocks that differ, a store that is silent, calls that are given up at any point.
//! What is told must never be exceeded by what runs.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::stores::{Fault, Replicas};
use super::*;

/// Numbers that are the same in each run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// What is known of one request, by its text.
#[derive(Debug, Default)]
struct Known {
    /// Who has signed for it, whether that was told or not.
    signed: BTreeSet<&'static str>,
    /// A denial that was told.
    is_denied: bool,
    runs: usize,
}

/// Whatever happens: a request runs once, after two people have signed for it, and not after a denial.
#[tokio::test]
async fn whatever_fails_a_request_runs_once_and_only_approved() {
    let (mut ran, mut given_up) = (0, 0);
    for seed in 0..20 {
        let (replicas, mut dice) = (Replicas::new(), Dice(seed));
        // The clocks differ by what is allowed.
        replicas.desks[1].clock.advance_ms(dice.roll(5) * 1_000);
        let mut requests = BTreeMap::<String, Known>::new();
        for _ in 0..60 {
            let fault = [Fault::None, Fault::None, Fault::None, Fault::StoredInSilence, Fault::LostInSilence];
            replicas.store.fail(&[fault[usize::try_from(dice.roll(5)).unwrap()]]);
            let replica = usize::from(dice.roll(2) == 1);
            match dice.roll(12) {
                0..=4 => {
                    let before = replicas.runs();
                    let shown = shown(&replicas).await;
                    let letter = replicas.letter();
                    let call = replicas.desks[replica].answer(&letter);
                    // Given up at one of its first waits, or not at all.
                    let polls = dice.roll(10);
                    given_up += usize::from(!polled(call, polls).await);
                    let runs = replicas.runs() - before;
                    ran += runs;
                    if runs > 0 {
                        let (text, _) = shown.unwrap_or_else(|| panic!("{seed}: it ran without a request"));
                        let known = requests.entry(text).or_default();
                        known.runs += runs;
                        assert!(known.runs == 1 && known.signed.len() >= 2 && !known.is_denied, "{seed}: {known:?}");
                    }
                }
                5..=9 => {
                    let name = ["tess", "tom", "trudy"][usize::try_from(dice.roll(3)).unwrap()];
                    decides(&replicas, &mut requests, name, "approve", replica).await;
                }
                10 if dice.roll(4) == 0 => decides(&replicas, &mut requests, "tess", "deny", replica).await,
                10 => replicas.advance_ms(dice.roll(90) * 1_000),
                _ => replicas.advance_ms(dice.roll(40) * 60_000),
            }
        }
    }
    // Both happen often enough to mean something.
    assert!(ran >= 10 && given_up >= 50, "{ran} ran, {given_up} were given up");
}

/// Polls a future this often, and drops it if it is not done then; from 6 on, it is finished. Whether it was.
async fn polled<F: Future>(future: F, polls: u64) -> bool {
    let mut future = std::pin::pin!(future);
    for _ in 0..polls.min(6) {
        if futures_util::poll!(future.as_mut()).is_ready() {
            return true;
        }
    }
    if polls >= 6 {
        future.await;
    }
    polls >= 6
}

/// The text and the id of the request, if there is one.
async fn shown(replicas: &Replicas) -> Option<(String, String)> {
    let desk = &replicas.desks[0];
    let trudy = approver(desk, "trudy");
    let listed = ask(desk, &trudy, "rpc.approvals", "{}").await;
    let id = listed["result"]["approvals"][0]["id"].as_str()?.to_owned();
    Some((text(desk, &trudy, &id).await, id))
}

async fn decides(
    replicas: &Replicas,
    requests: &mut BTreeMap<String, Known>,
    name: &'static str,
    decision: &str,
    replica: usize,
) {
    let Some((text, id)) = shown(replicas).await else { return };
    let params = match decision {
        "deny" => json!({ "id": id, "digest": digest(&text), "decision": "deny" }),
        _ => json!({ "id": id, "approval": "two-treasurers", "digest": digest(&text), "decision": "approve" }),
    };
    // Tokens are those of the first replica's issuer, times those of the replica that is asked.
    let by = approver(&replicas.desks[0], name);
    let letter = replicas.desks[0].letter(&by, &call("rpc.approve", &params.to_string()));
    let answer: Value = send(&replicas.desks[replica], &letter).await;
    let known = requests.entry(text).or_default();
    match decision {
        "deny" => known.is_denied |= answer["result"]["state"] == "denied",
        _ => drop(known.signed.insert(name)),
    }
}
