//! The faults of a run: which, when, on whom, and how they end. Never forgets one that it began, and ends them all.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sealwire::{Clock, SystemClock};
use tokio::time::{Instant, sleep};

use super::fleet::{Fleet, REPLICAS};
use super::history::Trouble;
use super::replica::{SKEW_S, WINDOW_S};
use super::support::cluster::{Cluster, Link};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    LeaderKilled,
    NodeKilled,
    TwoNodesKilled,
    AllNodesKilled,
    NodePaused,
    NodeCutOff,
    StreamRemoved,
    ReplicaKilled,
    ReplicaPaused,
    /// For longer than any message lives.
    ReplicaPausedLong,
    ReplicaCutOff,
    ClockStepped,
    /// By less than the skew, so that the guard goes on by it.
    ClockNudged,
}

use Fault::{
    AllNodesKilled, ClockNudged, ClockStepped, LeaderKilled, NodeCutOff, NodeKilled, NodePaused, ReplicaCutOff,
    ReplicaKilled, ReplicaPaused, ReplicaPausedLong, StreamRemoved, TwoNodesKilled,
};

/// What replicas alone suffer. Nodes and stream are well.
pub(crate) const REPLICAS_ONLY: [Fault; 6] =
    [ReplicaKilled, ReplicaPaused, ReplicaCutOff, ClockStepped, ClockNudged, ReplicaKilled];

pub(crate) const EVERYTHING: [Fault; 16] = [
    ReplicaPausedLong,
    LeaderKilled,
    NodeKilled,
    TwoNodesKilled,
    AllNodesKilled,
    NodePaused,
    NodePaused,
    NodeCutOff,
    NodeCutOff,
    StreamRemoved,
    StreamRemoved,
    ReplicaKilled,
    ReplicaPaused,
    ReplicaCutOff,
    ClockStepped,
    ClockNudged,
];

/// SplitMix64, so that a seed repeats the order of faults (not their effect).
#[derive(Debug, Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % end
    }
}

/// What is wrong with a node or a replica at the moment, and until when.
#[derive(Debug, Clone, Copy)]
struct Ill {
    how: How,
    until: Instant,
    /// Its entry in [`Chaos::troubles`], for a node.
    trouble: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Killed,
    Paused,
    CutOff,
    WrongClock,
}

pub(crate) struct Chaos {
    pub(crate) random: Random,
    pub(crate) cluster: Cluster,
    /// Each replica's own ways to the nodes.
    pub(crate) doors: Vec<Vec<Link>>,
    pub(crate) fleet: Arc<Mutex<Fleet>>,
    nodes: Vec<Option<Ill>>,
    replicas: Vec<Option<Ill>>,
    pub(crate) troubles: Vec<Trouble>,
    pub(crate) counts: BTreeMap<Fault, u32>,
    deck: Vec<Fault>,
    /// How often the whole deck was dealt.
    pub(crate) decks: u32,
}

impl Chaos {
    pub(crate) fn new(seed: u64, cluster: Cluster, doors: Vec<Vec<Link>>, fleet: Arc<Mutex<Fleet>>) -> Self {
        let nodes = vec![None; cluster.nodes.len()];
        let replicas = vec![None; REPLICAS];
        let (troubles, counts, deck) = (Vec::new(), BTreeMap::new(), Vec::new());
        Self { random: Random(seed), cluster, doors, fleet, nodes, replicas, troubles, counts, deck, decks: 0 }
    }

    /// Starts on a new set of faults: each of them happens before any happens once more.
    pub(crate) fn shuffle(&mut self, faults: &[Fault]) {
        self.deck = faults.to_vec();
        for index in (1..self.deck.len()).rev() {
            let other = self.random.below(index as u64 + 1) as usize;
            self.deck.swap(index, other);
        }
        // It takes as long as all the others together.
        self.deck.sort_by_key(|fault| *fault == ReplicaPausedLong);
    }

    /// Does the next one, if it can be done now.
    pub(crate) async fn step(&mut self, faults: &[Fault]) {
        self.heal(Instant::now()).await;
        if self.deck.is_empty() {
            self.shuffle(faults);
        }
        let fault = self.deck.pop().unwrap();
        if self.inflict(fault).await {
            *self.counts.entry(fault).or_default() += 1;
            self.decks += u32::from(self.deck.is_empty());
        } else {
            self.deck.insert(0, fault);
        }
    }

    async fn inflict(&mut self, fault: Fault) -> bool {
        let count = self.nodes.len();
        let well = self.nodes.iter().filter(|ill| ill.is_none()).count();
        let node = self.random.below(count as u64) as usize;
        let others = [(node + 1) % count, (node + 2) % count];
        // Seldom more than one node at a time: then there is no quorum, and little happens.
        let may_fall_ill = self.nodes[node].is_none() && (well == count || self.random.below(4) == 0);
        match fault {
            LeaderKilled if well == count => match self.leader().await {
                Some(leader) => self.kill_nodes(&[leader], fault).await,
                None => return false,
            },
            NodeKilled if may_fall_ill => self.kill_nodes(&[node], fault).await,
            TwoNodesKilled if well == count => self.kill_nodes(&[node, others[0]], fault).await,
            AllNodesKilled if well == count => self.kill_nodes(&[node, others[0], others[1]], fault).await,
            NodePaused if may_fall_ill => {
                let trouble = self.begin("a node was paused");
                self.cluster.nodes[node].pause().await;
                self.nodes[node] = Some(self.ill(How::Paused, 500..8_000, trouble));
            }
            NodeCutOff if may_fall_ill => {
                let trouble = self.begin("a node was cut off");
                self.cluster.isolate(node, true);
                self.nodes[node] = Some(self.ill(How::CutOff, 500..10_000, trouble));
            }
            StreamRemoved => return self.remove_stream().await,
            _ => return self.inflict_on_replica(fault),
        }
        true
    }

    fn inflict_on_replica(&mut self, fault: Fault) -> bool {
        let index = self.random.below(REPLICAS as u64) as usize;
        if self.replicas[index].is_some() {
            return false;
        }
        let longer = (WINDOW_S + 2 * SKEW_S) * 1000;
        let (how, lasts) = match fault {
            ReplicaKilled => (How::Killed, 20..2_500),
            ReplicaPaused => (How::Paused, 300..8_000),
            ReplicaPausedLong => (How::Paused, longer + 500..longer + 3_000),
            ReplicaCutOff => (How::CutOff, 300..6_000),
            ClockStepped | ClockNudged => (How::WrongClock, 300..5_000),
            _ => return false,
        };
        let mut fleet = self.fleet.lock().unwrap();
        match how {
            How::Killed => fleet.doom(index),
            How::Paused => fleet.pause(index, true),
            How::CutOff => {
                fleet.note_cut(index, true);
                self.doors[index].iter().for_each(|door| door.cut(true));
            }
            How::WrongClock => {
                let most = if fault == ClockNudged { SKEW_S * 700 } else { 60_000 };
                let by = i64::try_from(self.random.below(2 * most)).unwrap() - i64::try_from(most).unwrap();
                fleet.set_clock(index, if by == 0 { 1 } else { by });
            }
        }
        drop(fleet);
        self.replicas[index] = Some(self.ill(how, lasts, 0));
        true
    }

    fn ill(&mut self, how: How, lasts_ms: std::ops::Range<u64>, trouble: usize) -> Ill {
        let ms = lasts_ms.start + self.random.below(lasts_ms.end - lasts_ms.start);
        Ill { how, until: Instant::now() + Duration::from_millis(ms), trouble }
    }

    fn begin(&mut self, what: &'static str) -> usize {
        self.troubles.push(Trouble { what, span: (SystemClock.now_ms(), u64::MAX), forgot_ms: None });
        self.troubles.len() - 1
    }

    async fn kill_nodes(&mut self, victims: &[usize], fault: Fault) {
        let trouble = self.begin(match fault {
            LeaderKilled => "the leader was killed",
            TwoNodesKilled => "two nodes were killed",
            AllNodesKilled => "all nodes were killed",
            _ => "a node was killed",
        });
        let ill = self.ill(How::Killed, 0..4_000, trouble);
        for victim in victims {
            self.cluster.nodes[*victim].kill().await;
            self.nodes[*victim] = Some(ill);
        }
        if fault == AllNodesKilled {
            // They keep the stream in memory, and none of them has any now.
            self.troubles[trouble].forgot_ms = Some(SystemClock.now_ms());
        }
    }

    /// Ends what has lasted long enough.
    pub(crate) async fn heal(&mut self, now: Instant) {
        for node in 0..self.nodes.len() {
            let Some(ill) = self.nodes[node].take_if(|ill| ill.until <= now) else { continue };
            match ill.how {
                How::Killed => self.cluster.nodes[node].restart().await,
                How::Paused => self.cluster.nodes[node].resume().await,
                How::CutOff | How::WrongClock => self.cluster.isolate(node, false),
            }
            // The last of several nodes is the one that counts.
            self.troubles[ill.trouble].span.1 = SystemClock.now_ms();
        }
        for index in 0..REPLICAS {
            let Some(ill) = self.replicas[index].take_if(|ill| ill.until <= now) else { continue };
            let mut fleet = self.fleet.lock().unwrap();
            match ill.how {
                How::Killed => fleet.start(index),
                How::Paused => fleet.pause(index, false),
                How::WrongClock => fleet.set_clock(index, 0),
                How::CutOff => {
                    self.doors[index].iter().for_each(|door| door.cut(false));
                    fleet.note_cut(index, false);
                }
            }
        }
    }

    /// Ends everything, and waits until every guard is ready.
    pub(crate) async fn recover(&mut self) {
        self.heal(Instant::now() + Duration::from_secs(3600)).await;
        self.ready().await;
    }

    /// Waits until all nodes are well and each replica that has nothing else to suffer from is ready.
    pub(crate) async fn ready(&mut self) {
        let began = Instant::now();
        loop {
            self.heal(Instant::now()).await;
            let ready = |index: usize| {
                self.replicas[index].is_some() || self.fleet.lock().unwrap().state(index).is_some_and(|state| state.1)
            };
            if self.nodes.iter().all(Option::is_none) && (0..REPLICAS).all(ready) {
                return;
            }
            assert!(
                began.elapsed() < Duration::from_secs(120),
                "no recovery: {:?}",
                self.fleet.lock().unwrap().last_words()
            );
            sleep(Duration::from_millis(50)).await;
        }
    }

    async fn leader(&self) -> Option<usize> {
        self.cluster.leader_of(&self.stream().await?, 0).await
    }

    /// The stream's name, as a node that is well knows it.
    async fn stream(&self) -> Option<String> {
        let node = self.nodes.iter().position(Option::is_none)?;
        let asked = async {
            let client = async_nats::connect(self.cluster.nodes[node].url()).await.ok()?;
            let names = client.request("$JS.API.STREAM.NAMES", "".into()).await.ok()?;
            let names: serde_json::Value = serde_json::from_slice(&names.payload).ok()?;
            Some(names["streams"][0].as_str()?.to_owned())
        };
        tokio::time::timeout(Duration::from_secs(1), asked).await.ok()?
    }

    async fn remove_stream(&mut self) -> bool {
        let Some(name) = self.stream().await else { return false };
        let Some(node) = self.nodes.iter().position(Option::is_none) else { return false };
        let url = self.cluster.nodes[node].url();
        let trouble = self.begin("the stream was removed");
        let began_ms = SystemClock.now_ms();
        let removed = async {
            let client = async_nats::connect(url).await.ok()?;
            let answer = client.request(format!("$JS.API.STREAM.DELETE.{name}"), "".into()).await.ok()?;
            let answer: serde_json::Value = serde_json::from_slice(&answer.payload).ok()?;
            (answer["success"] == true).then_some(())
        };
        let removed =
            tokio::time::timeout(Duration::from_secs(1), removed).await.is_ok_and(|removed| removed.is_some());
        self.troubles[trouble].span.1 = SystemClock.now_ms();
        self.troubles[trouble].forgot_ms = removed.then_some(began_ms);
        removed
    }
}
