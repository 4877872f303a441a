//! Replicas as processes and a cluster, while both are killed, paused and cut off, the guard's stream is removed and
//! clocks are stepped. An oracle counts the executions of every message: more than one is the end of the test.
//!
//! By default it runs for half a minute. The long run:
//! `SEALWIRE_FAULT_SECONDS=600 SEALWIRE_FAULT_RATE=400 cargo test --release --test replay_faults -- --nocapture`
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

mod support;

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::process::Stdio;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sealwire::auth::{Nonce, Refused, ReplayGuard, SharedConfig, SharedGuard, Window};
use sealwire::{BusConfig, Clock, Name, SystemClock};
use support::cluster::Cluster;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

const WINDOW_S: u64 = 30;
const SKEW_S: u64 = 1;
const REPLICAS: usize = 3;
const OWNERS: u64 = 5;

/// What a replica must not know from the test: the broker's addresses come by the environment.
const URLS: &str = "SEALWIRE_TEST_REPLICA";

#[derive(Debug, Default)]
struct WrongClock(AtomicI64);

impl Clock for WrongClock {
    fn now_ms(&self) -> u64 {
        SystemClock.now_ms().saturating_add_signed(self.0.load(Ordering::SeqCst))
    }
}

/// A replica: reads offers from its standard input and says what came of them. Not a test of its own.
#[test]
#[ignore = "started by the fault test as a process"]
fn replica() {
    let Ok(urls) = std::env::var(URLS) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(serve(BusConfig { urls: urls.split(',').map(String::from).collect(), ..BusConfig::default() }));
}

async fn serve(bus: BusConfig) {
    let clock = Arc::new(WrongClock::default());
    let mut config = SharedConfig::new(Name::new("test").unwrap(), Name::new("math").unwrap());
    config.window = Window::new(WINDOW_S, SKEW_S).unwrap();
    let guard: Arc<Mutex<Option<Arc<SharedGuard>>>> = Arc::default();
    let opening = {
        let (guard, clock) = (guard.clone(), clock.clone());
        async move {
            loop {
                match SharedGuard::open(config.clone(), bus.clone(), clock.clone()).await {
                    Ok(opened) => break *guard.lock().unwrap() = Some(Arc::new(opened)),
                    Err(error) => eprintln!("replica: {error}"),
                }
            }
        }
    };
    tokio::spawn(opening);
    let (answers, mut to_write) = mpsc::unbounded_channel::<String>();
    tokio::spawn(async move {
        let mut out = tokio::io::stdout();
        while let Some(answer) = to_write.recv().await {
            out.write_all(answer.as_bytes()).await.unwrap();
            out.flush().await.unwrap();
        }
    });
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let words: Vec<_> = line.split(' ').collect();
        if words[0] == "clock" {
            clock.0.store(words[1].parse().unwrap(), Ordering::SeqCst);
            continue;
        }
        let received = Instant::now();
        let (owner, nonce, iat) = (Name::new(words[0]).unwrap(), words[1].to_owned(), words[2].parse().unwrap());
        let (guard, answers) = (guard.lock().unwrap().clone(), answers.clone());
        tokio::spawn(async move {
            let answer = match guard {
                Some(guard) => {
                    let parsed = Nonce::from_text(&nonce).unwrap();
                    guard.admit(&owner, parsed, iat, iat + WINDOW_S, received).await
                }
                None => return answers.send(format!("\n@ {nonce} not open\n")).unwrap(),
            };
            let said = match answer {
                Ok(()) => "executed".to_owned(),
                Err(Refused::Stale) => "stale".to_owned(),
                Err(Refused::Replayed) => "replayed".to_owned(),
                Err(Refused::OwnerFull { .. }) => "owner full".to_owned(),
                Err(Refused::Full { .. }) => "full".to_owned(),
                Err(Refused::Unavailable(outage)) => format!("unavailable: {outage:?}"),
            };
            answers.send(format!("\n@ {nonce} {said}\n")).unwrap();
        });
    }
}

/// What is known of all messages. It never forgets.
#[derive(Debug, Default)]
struct Oracle {
    executions: Mutex<HashMap<String, u32>>,
    answers: Mutex<BTreeMap<String, u64>>,
    twice: Mutex<Vec<String>>,
    offers: AtomicU64,
}

impl Oracle {
    fn hear(&self, line: &str, replica: usize) {
        let Some((nonce, said)) = line.strip_prefix("@ ").and_then(|rest| rest.split_once(' ')) else { return };
        *self.answers.lock().unwrap().entry(said.to_owned()).or_default() += 1;
        if said == "executed" {
            let mut executions = self.executions.lock().unwrap();
            let count = executions.entry(nonce.to_owned()).or_default();
            *count += 1;
            if *count > 1 {
                self.twice.lock().unwrap().push(format!("{nonce} by replica {replica} at {}", SystemClock.now_ms()));
            }
        }
    }
}

/// A replica's process. Its standard input goes on while it is paused, and is read when it is resumed.
struct Replica {
    index: usize,
    child: Child,
    offers: mpsc::Sender<String>,
}

impl Replica {
    fn start(index: usize, urls: &str, oracle: &Arc<Oracle>) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "replica", "--ignored", "--nocapture", "--test-threads", "1"])
            .env(URLS, urls)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let (mut stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (offers, mut to_write) = mpsc::channel::<String>(200_000);
        tokio::spawn(async move {
            while let Some(line) = to_write.recv().await {
                if stdin.write_all(line.as_bytes()).await.is_err() {
                    break;
                }
            }
        });
        let oracle = oracle.clone();
        tokio::spawn(async move {
            let mut lines = BufReader::new(stdout).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                oracle.hear(&line, index);
            }
        });
        Self { index, child, offers }
    }
}

/// One message, offered three times to every replica within its life.
async fn offer(replicas: Arc<Mutex<Vec<Replica>>>, oracle: Arc<Oracle>, message: u64, hurry: u64) {
    let (nonce, iat) = (Nonce::random(), SystemClock.now_s());
    let line = format!("o{} {} {iat}\n", message % OWNERS, nonce.to_text());
    let random = u64::from_le_bytes(Nonce::random().to_text().as_bytes()[..8].try_into().unwrap());
    for pause_ms in [0, 500 + random % 9_500, 2_000 + random / 7 % 17_000] {
        sleep(Duration::from_millis(pause_ms / hurry)).await;
        let first = (message as usize + pause_ms as usize) % REPLICAS;
        let senders: Vec<_> = replicas.lock().unwrap().iter().map(|replica| replica.offers.clone()).collect();
        for step in 0..REPLICAS {
            if senders[(first + step) % REPLICAS].try_send(line.clone()).is_ok() {
                oracle.offers.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// What is wrong with a node or a replica at the moment, and until when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ill {
    Killed,
    Paused,
    CutOff,
    WrongClock,
}

/// SplitMix64, so that a seed repeats the order of faults (not their effect).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % end
    }
}

struct Chaos {
    random: Random,
    cluster: Cluster,
    urls: Vec<String>,
    replicas: Arc<Mutex<Vec<Replica>>>,
    oracle: Arc<Oracle>,
    nodes: Vec<Option<(Ill, Instant)>>,
    processes: Vec<Option<(Ill, Instant)>>,
    log: BTreeMap<&'static str, u32>,
}

impl Chaos {
    async fn step(&mut self) {
        self.heal(Instant::now()).await;
        let healthy = self.nodes.iter().filter(|ill| ill.is_none()).count() as u64;
        let node = self.random.below(3) as usize;
        let replica = self.random.below(REPLICAS as u64) as usize;
        match self.random.below(100) {
            // Seldom more than one node at a time: then there is no quorum, and little happens.
            0..12 if healthy == 3 || self.random.below(4) == 0 => self.kill_node(node).await,
            12..20 if healthy == 3 || self.random.below(4) == 0 => self.pause_node(node).await,
            20..28 if healthy == 3 || self.random.below(4) == 0 => self.cut_off(node),
            28..31 => {
                self.kill_node(node).await;
                self.kill_node((node + 1) % 3).await;
            }
            31..33 => {
                for node in 0..3 {
                    self.kill_node(node).await;
                }
            }
            33..37 => self.remove_stream().await,
            37..47 => self.kill_replica(replica),
            47..55 => self.pause_replica(replica).await,
            55..65 => self.step_clock(replica),
            _ => {}
        }
    }

    /// Ends what has lasted long enough.
    async fn heal(&mut self, now: Instant) {
        for node in 0..3 {
            let Some((ill, _)) = self.nodes[node].take_if(|(_, until)| *until <= now) else { continue };
            match ill {
                Ill::Killed => self.cluster.nodes[node].restart().await,
                Ill::Paused => self.cluster.nodes[node].resume().await,
                Ill::CutOff => self.cluster.isolate(node, false),
                Ill::WrongClock => {}
            }
        }
        for index in 0..REPLICAS {
            let Some((ill, _)) = self.processes[index].take_if(|(_, until)| *until <= now) else { continue };
            if ill == Ill::WrongClock {
                self.tell(index, "clock 0\n");
            } else {
                let pid = self.replicas.lock().unwrap()[index].child.id().unwrap();
                let _ = Command::new("kill").args(["-s", "CONT", &pid.to_string()]).status().await;
            }
        }
    }

    fn note(&mut self, what: &'static str) {
        *self.log.entry(what).or_default() += 1;
    }

    fn for_up_to(&mut self, ms: u64) -> Instant {
        Instant::now() + Duration::from_millis(self.random.below(ms))
    }

    async fn kill_node(&mut self, node: usize) {
        if self.nodes[node].is_none() {
            self.cluster.nodes[node].kill().await;
            self.nodes[node] = Some((Ill::Killed, self.for_up_to(4_000)));
            self.note("node killed");
        }
    }

    async fn pause_node(&mut self, node: usize) {
        if self.nodes[node].is_none() {
            self.cluster.nodes[node].pause().await;
            self.nodes[node] = Some((Ill::Paused, self.for_up_to(8_000)));
            self.note("node paused");
        }
    }

    fn cut_off(&mut self, node: usize) {
        if self.nodes[node].is_none() {
            self.cluster.isolate(node, true);
            self.nodes[node] = Some((Ill::CutOff, self.for_up_to(10_000)));
            self.note("node cut off");
        }
    }

    async fn remove_stream(&mut self) {
        let Some(node) = (0..3).find(|node| self.nodes[*node].is_none()) else { return };
        let removed = async {
            let client = async_nats::connect(self.cluster.nodes[node].url()).await.ok()?;
            let names = client.request("$JS.API.STREAM.NAMES", "".into()).await.ok()?;
            let names: serde_json::Value = serde_json::from_slice(&names.payload).ok()?;
            let name = names["streams"][0].as_str()?.to_owned();
            client.request(format!("$JS.API.STREAM.DELETE.{name}"), "".into()).await.ok()
        };
        if tokio::time::timeout(Duration::from_secs(1), removed).await.is_ok_and(|removed| removed.is_some()) {
            self.note("stream removed");
        }
    }

    fn kill_replica(&mut self, index: usize) {
        let urls = self.urls.iter().cycle().skip(index).take(3).cloned().collect::<Vec<_>>().join(",");
        let fresh = Replica::start(index, &urls, &self.oracle);
        // Dropping the old one kills it (SIGKILL), paused or not.
        let old = std::mem::replace(&mut self.replicas.lock().unwrap()[index], fresh);
        assert_eq!(old.index, index);
        self.processes[index] = None;
        self.note("replica killed");
    }

    async fn pause_replica(&mut self, index: usize) {
        if self.processes[index].is_none() {
            let pid = self.replicas.lock().unwrap()[index].child.id().unwrap();
            let _ = Command::new("kill").args(["-s", "STOP", &pid.to_string()]).status().await;
            self.processes[index] = Some((Ill::Paused, self.for_up_to(12_000)));
            self.note("replica paused");
        }
    }

    fn step_clock(&mut self, index: usize) {
        if self.processes[index].is_none() {
            let by = i64::try_from(self.random.below(100_000)).unwrap() - 60_000;
            self.tell(index, &format!("clock {by}\n"));
            self.processes[index] = Some((Ill::WrongClock, self.for_up_to(5_000)));
            self.note("clock stepped");
        }
    }

    fn tell(&self, index: usize, line: &str) {
        let _ = self.replicas.lock().unwrap()[index].offers.try_send(line.to_owned());
    }
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |value| value.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_message_executes_twice_whatever_dies() {
    let (seconds, rate) = (number("SEALWIRE_FAULT_SECONDS", 20), number("SEALWIRE_FAULT_RATE", 100));
    // A short run has no time for copies that come late.
    let hurry = if seconds < 60 { 3 } else { 1 };
    let seed = number("SEALWIRE_FAULT_SEED", SystemClock.now_ms());
    println!("seed {seed}, {seconds} s, {rate} messages/s");
    let cluster = Cluster::start(3).await;
    let urls: Vec<_> = cluster.nodes.iter().map(support::NatsServer::url).collect();
    let oracle = Arc::new(Oracle::default());
    let started = (0..REPLICAS).map(|index| Replica::start(index, &urls.join(","), &oracle)).collect();
    let replicas = Arc::new(Mutex::new(started));
    let mut chaos = Chaos {
        random: Random(seed),
        cluster,
        urls,
        replicas: replicas.clone(),
        oracle: oracle.clone(),
        nodes: vec![None; 3],
        processes: vec![None; REPLICAS],
        log: BTreeMap::new(),
    };
    sleep(Duration::from_secs(4)).await;

    let mut tick = tokio::time::interval(Duration::from_millis(10));
    let (began, mut messages, mut next_fault) = (Instant::now(), 0, Instant::now() + Duration::from_secs(3));
    while began.elapsed() < Duration::from_secs(seconds) {
        tick.tick().await;
        while messages < began.elapsed().as_millis() as u64 * rate / 1000 {
            tokio::spawn(offer(replicas.clone(), oracle.clone(), messages, hurry));
            messages += 1;
        }
        if Instant::now() >= next_fault {
            chaos.step().await;
            next_fault = Instant::now() + Duration::from_millis(200 + chaos.random.below(3_000));
        }
        assert!(oracle.twice.lock().unwrap().is_empty(), "seed {seed}: {:?}", oracle.twice.lock().unwrap());
    }
    chaos.heal(Instant::now() + Duration::from_secs(60)).await;
    // The last message is offered for the last time, and a replica that was paused reads what waits.
    sleep(Duration::from_secs(30 / hurry)).await;
    for replica in &*replicas.lock().unwrap() {
        assert!(replica.child.id().is_some(), "replica {} ended by itself", replica.index);
    }
    let executed = oracle.executions.lock().unwrap().len();
    let offers = oracle.offers.load(Ordering::Relaxed);
    println!("{messages} messages, {offers} offers, {executed} executed");
    println!("answers: {:?}", oracle.answers.lock().unwrap());
    println!("faults: {:?}", chaos.log);
    assert!(oracle.twice.lock().unwrap().is_empty(), "seed {seed}: {:?}", oracle.twice.lock().unwrap());
    assert!(executed as u64 > messages / 10, "faults or not, much is admitted");
    assert!(offers > 6 * messages);
}
