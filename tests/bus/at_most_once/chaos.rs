//! The faults of a run: which, when, to whom, and how they end. Never forgets a fault that it began: it ends them all.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use sealwire::{Clock, SystemClock};
use tokio::time::{Instant, sleep};

use super::fleet::{Fleet, Memory, REPLICAS};
use super::history::{NODE_CUT_OFF, NODE_PAUSED, Trouble};
use super::replica::{SKEW_S, WINDOW_S};
use sealwire_testkit::NatsServer;
use sealwire_testkit::cluster::{Cluster, Link};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    LeaderKilled,
    NodeKilled,
    TwoNodesKilled,
    AllNodesKilled,
    NodePaused,
    NodeCutOff,
    StreamRemoved,
    /// Somebody else's stream takes its place for a while.
    StreamSquatted,
    /// A stream of the same name and configuration takes its place, with only its first few ids.
    StreamRolledBack,
    /// To a local one and back.
    GuardChanged,
    /// To a stream at another broker and back.
    GuardMoved,
    ReplicaKilled,
    ReplicaPaused,
    /// For longer than the life of any message.
    ReplicaPausedLong,
    ReplicaCutOff,
    ClockStepped,
    /// By less than the skew, so that the guard goes on with the wrong time.
    ClockNudged,
}

use Fault::{
    AllNodesKilled, ClockNudged, ClockStepped, GuardChanged, GuardMoved, LeaderKilled, NodeCutOff, NodeKilled,
    NodePaused, ReplicaCutOff, ReplicaKilled, ReplicaPaused, ReplicaPausedLong, StreamRemoved, StreamRolledBack,
    StreamSquatted, TwoNodesKilled,
};

/// Faults of replicas alone: nodes and stream are well.
pub(crate) const REPLICAS_ONLY: [Fault; 6] =
    [ReplicaKilled, ReplicaPaused, ReplicaCutOff, ClockStepped, ClockNudged, ReplicaKilled];

pub(crate) const EVERYTHING: [Fault; 20] = [
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
    StreamSquatted,
    StreamRolledBack,
    GuardChanged,
    GuardMoved,
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
    elsewhere: Option<NatsServer>,
    /// Each replica's own connections to the nodes.
    pub(crate) proxies: Vec<Vec<Link>>,
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
    pub(crate) fn new(seed: u64, cluster: Cluster, proxies: Vec<Vec<Link>>, fleet: Arc<Mutex<Fleet>>) -> Self {
        let nodes = vec![None; cluster.nodes.len()];
        let replicas = vec![None; REPLICAS];
        let (troubles, counts, deck) = (Vec::new(), BTreeMap::new(), Vec::new());
        Self {
            random: Random(seed),
            cluster,
            elsewhere: None,
            proxies,
            fleet,
            nodes,
            replicas,
            troubles,
            counts,
            deck,
            decks: 0,
        }
    }

    /// Starts a new set of faults: each of them happens once before any happens again.
    pub(crate) fn shuffle(&mut self, faults: &[Fault]) {
        self.deck = faults.to_vec();
        for index in (1..self.deck.len()).rev() {
            let other = self.random.below(index as u64 + 1) as usize;
            self.deck.swap(index, other);
        }
        // Last, because it takes as long as all the others together.
        self.deck.sort_by_key(|fault| *fault == ReplicaPausedLong);
    }

    /// Causes the next fault, if that is possible now.
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
        // Rarely more than one node at a time: without a quorum, little happens.
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
                let trouble = self.begin(NODE_PAUSED);
                self.cluster.nodes[node].pause().await;
                self.nodes[node] = Some(self.ill(How::Paused, 500..8_000, trouble));
            }
            NodeCutOff if may_fall_ill => {
                let trouble = self.begin(NODE_CUT_OFF);
                self.cluster.isolate(node, true);
                self.nodes[node] = Some(self.ill(How::CutOff, 500..10_000, trouble));
            }
            StreamRemoved => return self.remove_stream(Then::Nothing).await,
            StreamSquatted => return self.remove_stream(Then::Squat).await,
            StreamRolledBack => return self.remove_stream(Then::RollBack).await,
            GuardChanged => self.change_guard(Memory::Local).await,
            GuardMoved => {
                let url = self.elsewhere().await;
                self.change_guard(Memory::Elsewhere(url)).await;
            }
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
                self.proxies[index].iter().for_each(|proxy| proxy.cut(true));
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
            // The nodes keep the stream in memory, and none of them has it any more.
            self.troubles[trouble].forgot_ms = Some(SystemClock.now_ms());
        }
    }

    /// Ends the faults that have lasted long enough.
    pub(crate) async fn heal(&mut self, now: Instant) {
        for node in 0..self.nodes.len() {
            let Some(ill) = self.nodes[node].take_if(|ill| ill.until <= now) else { continue };
            match ill.how {
                How::Killed => self.cluster.nodes[node].restart().await,
                How::Paused => self.cluster.nodes[node].resume().await,
                How::CutOff | How::WrongClock => self.cluster.isolate(node, false),
            }
            // If several nodes were ill, the last one to recover counts.
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
                    self.proxies[index].iter().for_each(|proxy| proxy.cut(false));
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

    /// Waits until all nodes are well and every replica that is not ill itself is ready.
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
            if began.elapsed() > RECOVERED_WITHIN {
                panic!("no recovery within {RECOVERED_WITHIN:?}\n{}", self.account().await);
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Everything that shows why there is no progress: what was done, what the replicas say, and what each node says about
    /// the streams and has logged.
    async fn account(&self) -> String {
        let mut account =
            format!("now {}, nodes {:?}, replicas {:?}\n", SystemClock.now_ms(), self.nodes, self.replicas);
        for trouble in &self.troubles[self.troubles.len().saturating_sub(12)..] {
            let _ = writeln!(account, "{trouble:?}");
        }
        account += &self.fleet.lock().unwrap().last_words();
        for node in &self.cluster.nodes {
            let _ = writeln!(account, "node {} says", node.url());
            match tokio::time::timeout(Duration::from_secs(1), Broker::connect(node.url())).await {
                Ok(Ok(broker)) => {
                    // The cluster's leader answers the first request, each stream's leader the second.
                    let names = broker.api("NAMES", "").await;
                    let _ = writeln!(account, "  streams: {names:?}");
                    for name in names.iter().flat_map(|names| names["streams"].as_array()).flatten() {
                        let info = broker.api(&format!("INFO.{}", name.as_str().unwrap()), "").await;
                        let _ = writeln!(account, "  {name}: {}", info.unwrap_or_default());
                    }
                }
                other => _ = writeln!(account, "  nothing: {:?}", other.map(|asked| asked.err())),
            }
            let log = node.log();
            // Hundreds of routes come and go while a node is cut off.
            let lines: Vec<_> = log.lines().filter(|line| !line.contains(" - rid:")).collect();
            let _ = writeln!(account, "  {}", lines[lines.len().saturating_sub(60)..].join("\n  "));
        }
        account
    }

    async fn leader(&self) -> Option<usize> {
        self.cluster.leader_of(&self.stream().await?, 0).await
    }

    /// The stream's name, according to a healthy node.
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

    /// A broker outside the cluster, which keeps its data from one use to the next.
    async fn elsewhere(&mut self) -> String {
        if self.elsewhere.is_none() {
            self.elsewhere = Some(NatsServer::start().await);
        }
        self.elsewhere.as_ref().unwrap().url()
    }

    /// Runs one replica alone, with another guard; then all of them with the shared guard again.
    async fn change_guard(&mut self, memory: Memory) {
        self.recover().await;
        let index = self.random.below(REPLICAS as u64) as usize;
        self.fleet.lock().unwrap().change_guard(index, &memory);
        let began = Instant::now();
        while !self.fleet.lock().unwrap().state(index).is_some_and(|state| state.1) {
            if began.elapsed() > RECOVERED_WITHIN {
                panic!("the other guard is not ready\n{}", self.account().await);
            }
            sleep(Duration::from_millis(20)).await;
        }
        sleep(Duration::from_millis(1_000 + self.random.below(2_000))).await;
        let mut fleet = self.fleet.lock().unwrap();
        fleet.kill(index);
        (0..REPLICAS).for_each(|index| fleet.start(index));
    }

    async fn remove_stream(&mut self, then: Then) -> bool {
        let Some(name) = self.stream().await else { return false };
        let Some(node) = self.nodes.iter().position(Option::is_none) else { return false };
        let url = self.cluster.nodes[node].url();
        let Ok(Ok(broker)) = tokio::time::timeout(Duration::from_secs(1), Broker::connect(url)).await else {
            return false;
        };
        let Some(backup) = broker.backup(&name).await else { return false };
        let trouble = self.begin(match then {
            Then::Nothing => "the stream was removed",
            Then::Squat => "the stream was squatted",
            Then::RollBack => "the stream was rolled back",
        });
        let began_ms = SystemClock.now_ms();
        self.remove(&broker, &name).await;
        let done = match then {
            Then::Nothing => true,
            Then::Squat => self.squat(&broker, backup.config).await,
            Then::RollBack => self.make(&broker, &name, &backup.config).await && broker.restore(&backup).await,
        };
        self.troubles[trouble].span.1 = SystemClock.now_ms();
        self.troubles[trouble].forgot_ms = Some(began_ms);
        done
    }

    /// Makes a stream with room for 60 ids, under a name that a guard could have chosen. If a guard is quicker, there is none.
    async fn squat(&mut self, broker: &Broker, mut config: serde_json::Value) -> bool {
        config["name"] = SQUATTER.into();
        config["max_msgs"] = 60.into();
        let made = self.make(broker, SQUATTER, &config).await;
        if made {
            sleep(Duration::from_secs(3)).await;
        }
        self.remove(broker, SQUATTER).await;
        made
    }

    async fn remove(&mut self, broker: &Broker, name: &str) {
        // An earlier request may already have removed it.
        self.decided(broker, &format!("DELETE.{name}"), "", &[NOT_FOUND]).await;
    }

    /// Whether the stream was made; a guard may have been quicker.
    async fn make(&mut self, broker: &Broker, name: &str, config: &serde_json::Value) -> bool {
        self.decided(broker, &format!("CREATE.{name}"), &config.to_string(), &[OVERLAP, NAME_IN_USE]).await
    }

    /// Whether the brokers have done it; `false` if they refused it for one of these reasons. A request without an answer may
    /// still be carried out once the brokers are well again, so it is repeated until they have decided.
    async fn decided(&mut self, broker: &Broker, verb: &str, body: &str, refusals: &[u64]) -> bool {
        let began = Instant::now();
        loop {
            let answer = broker.api(verb, body).await.unwrap_or_default();
            match answer["error"]["err_code"].as_u64() {
                None if answer.is_object() => return true,
                Some(code) if refusals.contains(&code) => return false,
                _ => {}
            }
            if began.elapsed() > RECOVERED_WITHIN {
                panic!("{verb} is not decided: {answer}\n{}", self.account().await);
            }
            // There is no quorum while too many nodes are ill.
            self.heal(Instant::now()).await;
            sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Enough for many elections and fences on a slow machine.
const RECOVERED_WITHIN: Duration = Duration::from_secs(120);

const SQUATTER: &str = "RG_test_math_squat";

/// `JSStreamNotFoundErr`, `JSStreamSubjectOverlapErr`, `JSStreamNameExistErr`.
const NOT_FOUND: u64 = 10_059;
const OVERLAP: u64 = 10_065;
const NAME_IN_USE: u64 = 10_058;

/// What becomes of a stream that was removed.
#[derive(Debug, Clone, Copy)]
enum Then {
    Nothing,
    Squat,
    RollBack,
}

/// A broker, through a connection that may do everything.
struct Broker(async_nats::Client);

struct Backup {
    config: serde_json::Value,
    /// Subjects and ids of the oldest messages.
    ids: Vec<(String, String)>,
}

impl Broker {
    async fn connect(url: String) -> Result<Self, async_nats::ConnectError> {
        Ok(Self(async_nats::connect(url).await?))
    }

    /// The answer, or `None` if there is none in time.
    async fn api(&self, verb: &str, body: &str) -> Option<serde_json::Value> {
        let asked = self.0.request(format!("$JS.API.STREAM.{verb}"), body.to_owned().into());
        let answer = tokio::time::timeout(Duration::from_secs(1), asked).await.ok()?.ok()?;
        serde_json::from_slice(&answer.payload).ok()
    }

    async fn backup(&self, name: &str) -> Option<Backup> {
        let info = self.api(&format!("INFO.{name}"), "").await?;
        let (config, mut next) = (info.get("config")?.clone(), info["state"]["first_seq"].as_u64()?);
        let mut ids = Vec::new();
        while ids.len() < 100 {
            let body = format!(r#"{{"seq":{next},"next_by_subj":"rg.>"}}"#);
            let got = self.api(&format!("MSG.GET.{name}"), &body).await?;
            let Some(message) = got.get("message") else { break };
            next = message["seq"].as_u64()? + 1;
            let headers = base64::engine::general_purpose::STANDARD.decode(message["hdrs"].as_str()?).ok()?;
            let headers = String::from_utf8(headers).ok()?;
            let id = headers.lines().find_map(|line| line.strip_prefix("Nats-Msg-Id: "))?.to_owned();
            ids.push((message["subject"].as_str()?.to_owned(), id));
        }
        Some(Backup { config, ids })
    }

    async fn restore(&self, backup: &Backup) -> bool {
        for (subject, id) in &backup.ids {
            let mut headers = async_nats::HeaderMap::new();
            headers.insert("Nats-Msg-Id", id.as_str());
            if self.0.publish_with_headers(subject.clone(), headers, "".into()).await.is_err() {
                return false;
            }
        }
        self.0.flush().await.is_ok()
    }
}
