//! Replicas as processes and a cluster of brokers. Both are killed, paused, cut off and restarted; the guard's stream is
//! removed, squatted and rolled back; clocks are stepped; and the service is moved to a local guard, or to a guard at another
//! broker, and back. Every message is offered three times to each replica. An oracle that never forgets counts executions
//! from the replicas' own ledgers: more than one execution of a message fails the test. A judge looks for the reason of every
//! refusal among the faults: a refusal without a reason fails the test, too.
//!
//! By default, 200,000 messages in about two and a half minutes. The long run:
//! `SEALWIRE_FAULT_MESSAGES=2000000 cargo test --release --test bus at_most_once -- --nocapture`

mod chaos;
mod fleet;
mod history;
mod judge;
mod load;
mod replica;
mod stall;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chaos::{Chaos, EVERYTHING, Fault, REPLICAS_ONLY};
use fleet::{Fleet, REPLICAS};
use history::{History, Trouble};
use judge::Verdict;
use load::Load;
use sealwire::{Clock, SystemClock};
use sealwire_testkit::NatsServer;
use sealwire_testkit::cluster::Cluster;
use stall::Attendants;
use tokio::time::{Instant, sleep};

/// A replica: reads offers from its standard input and reports what came of them. Not a test of its own.
#[test]
#[ignore = "started by the fault test as a process"]
fn replica() {
    let (Ok(urls), Ok(ledger)) = (std::env::var(fleet::URLS), std::env::var(fleet::LEDGER)) else { return };
    let floor = std::env::var(fleet::FLOOR).ok();
    replica::run(&urls, Path::new(&ledger), floor.as_deref().map(Path::new));
}

/// `cargo test -- --skip takes_minutes` leaves it out.
mod takes_minutes {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_message_executes_twice_and_every_refusal_has_a_reason() {
        let (messages, rate) = (number("SEALWIRE_FAULT_MESSAGES", 205_000), number("SEALWIRE_FAULT_RATE", 1_500));
        let seed = number("SEALWIRE_FAULT_SEED", SystemClock.now_ms());
        println!("seed {seed}, {messages} messages, {rate} a second");
        let mut run = Run::start(seed, rate).await;

        let part = |percent: u64| messages * percent / 100;
        run.calm(part(12)).await;
        run.storm(&REPLICAS_ONLY, part(20)).await;
        // What remains after this storm has a fixed share, so that the total is reached.
        let now = run.load.issued();
        run.storm(&EVERYTHING, messages.saturating_sub(now + part(18))).await;
        run.recover().await;
        let mut more = (messages - run.load.issued().min(messages)).max(part(8));
        // What a machine does that stands still cannot be told from faults. It is given some more stretches to keep quiet in.
        for _ in 0..6 {
            let from_ms = SystemClock.now_ms();
            run.calm(more).await;
            if !run.has_stalled_since(from_ms) {
                break;
            }
            more = part(8);
        }
        run.end(messages);
    }
}

/// One run, from starting its cluster to its verdict.
struct Run {
    seed: u64,
    began: Instant,
    chaos: Chaos,
    fleet: Arc<Mutex<Fleet>>,
    load: Load,
    attendants: Attendants,
}

impl Run {
    /// Starts everything, and waits until every guard vouches for messages issued from now on.
    async fn start(seed: u64, rate: u64) -> Self {
        let (began, began_ms) = (Instant::now(), SystemClock.now_ms());
        let cluster = Cluster::start(3).await;
        let (mut urls, mut proxies) = (Vec::new(), Vec::new());
        for _ in 0..REPLICAS {
            let (mut ways, mut links) = (Vec::new(), Vec::new());
            for node in 0..cluster.nodes.len() {
                let (bus, link) = cluster.proxy(node).await;
                ways.extend(bus.urls);
                links.push(link);
            }
            urls.push(ways.join(","));
            proxies.push(links);
        }
        let attendants = Attendants::of(cluster.nodes.iter().map(NatsServer::port));
        let fleet = Arc::new(Mutex::new(Fleet::new(urls)));
        (0..REPLICAS).for_each(|index| fleet.lock().unwrap().start(index));
        let load = Load::start(rate, seed, fleet.clone());
        let mut chaos = Chaos::new(seed, cluster, proxies, fleet.clone());
        chaos.ready().await;
        let span = (began_ms, SystemClock.now_ms());
        chaos.troubles.push(Trouble { what: "the cluster had just started", span, forgot_ms: None });
        Self { seed, began, chaos, fleet, load, attendants }
    }

    fn say(&self, what: &str) {
        println!("{:6.1} s: {what}, {} messages so far", self.began.elapsed().as_secs_f64(), self.load.issued());
    }

    /// A phase without faults. Ends when all copies were offered and answered.
    async fn calm(&mut self, more: u64) {
        self.say("calm");
        self.load.issue_until(self.load.issued() + more, true);
        let mut patience = Patience::new();
        while !(self.load.is_done() && self.behind() == 0) {
            patience.check(self.load.issued(), "a calm stretch does not end");
            self.once().await;
        }
    }

    /// Whether the machine did not let a node or a replica run at some time from then on.
    fn has_stalled_since(&self, from_ms: u64) -> bool {
        let fleet = self.fleet.lock().unwrap();
        let record = fleet.record.lock().unwrap();
        let mut stalls = record.lives.iter().flat_map(|life| &life.stalls);
        stalls.any(|(_, to_ms)| *to_ms >= from_ms) || self.attendants.have_seen_one_since(from_ms)
    }

    /// Faults, until this many more messages were issued and each fault has happened.
    async fn storm(&mut self, faults: &[Fault], more: u64) {
        self.say(&format!("faults {faults:?}"));
        let until = self.load.issued() + more;
        // The load does not stop before the faults.
        self.load.issue_until(u64::MAX, false);
        self.chaos.decks = 0;
        self.chaos.shuffle(faults);
        let nodes_too = faults.contains(&Fault::NodeKilled);
        let (mut next, mut left, mut patience) = (Instant::now(), 4_u64, Patience::new());
        while self.load.issued() < until || self.chaos.decks == 0 {
            patience.check(self.load.issued(), "nothing is issued");
            if Instant::now() >= next {
                self.chaos.step(faults).await;
                left = left.saturating_sub(1);
                next = Instant::now() + Duration::from_millis(200 + self.chaos.random.below(2_500));
                if nodes_too && left == 0 {
                    // Brokers that never come to rest admit nothing, and a message that is not executed cannot be executed twice.
                    self.chaos.ready().await;
                    left = 3 + self.chaos.random.below(4);
                    next = Instant::now() + Duration::from_millis(2_000 + self.chaos.random.below(3_000));
                }
            }
            self.chaos.heal(Instant::now()).await;
            self.once().await;
        }
        if !nodes_too {
            self.chaos.recover().await;
        }
    }

    /// Ends all faults, and waits until their effects are over.
    async fn recover(&mut self) {
        self.say("recovery");
        self.chaos.recover().await;
        let calm_from = Instant::now() + Duration::from_secs(11);
        while Instant::now() < calm_from {
            self.once().await;
        }
        self.chaos.ready().await;
    }

    /// Checks what must not wait for the end.
    async fn once(&self) {
        let (ended, twice) = {
            let mut fleet = self.fleet.lock().unwrap();
            let ended = fleet.ended_by_itself();
            let twice = fleet.record.lock().unwrap().twice.first().cloned();
            (ended, twice)
        };
        assert!(ended.is_none(), "replica {ended:?} ended by itself");
        assert!(twice.is_none(), "seed {}: executed twice: {twice:?}, {:?}", self.seed, self.chaos.troubles);
        sleep(Duration::from_millis(20)).await;
    }

    /// Offers that are not answered yet.
    fn behind(&self) -> u64 {
        let fleet = self.fleet.lock().unwrap();
        (0..REPLICAS).filter_map(|index| fleet.state(index)).map(|(behind, _)| behind).sum()
    }

    fn end(mut self, messages: u64) {
        self.say("over");
        let made = self.load.stop();
        let fleet = self.fleet.lock().unwrap();
        let executions = fleet.executions();
        let (lives, answers) = {
            // The replicas still run, and keep reporting their readiness.
            let mut record = fleet.record.lock().unwrap();
            (record.lives.clone(), std::mem::take(&mut record.answers))
        };
        let mut troubles = self.chaos.troubles;
        troubles.extend(self.attendants.troubles(&troubles, judge::NODES_SETTLE_MS));
        let history = History { lives, troubles, messages: made.messages, offers: made.offers, answers, executions };
        let verdict = judge::judge(&history);
        report(&history, &verdict, made.nobody, &self.chaos.counts);
        let issued = history.messages.len() as u64;
        assert!(verdict.convictions.is_empty(), "seed {}: {}", self.seed, verdict.convictions.join("\n"));
        assert!(issued >= messages);
        let calm = history.messages.iter().filter(|message| message.calm).count() as u64;
        assert!(calm - verdict.spared >= issued / 50, "this machine stalls too often to tell calm from faults");
        // Each message three times to each of three replicas, less the offers that found a dead replica.
        assert_eq!(history.offers.len() as u64 + made.nobody, 9 * issued);
        assert_eq!(history.answers.len() as u64 + verdict.lost, history.offers.len() as u64);
        // While the guard is a local one, all replicas but one are dead.
        assert!(made.nobody < 2 * issued, "replicas are seldom dead");
        assert!(history.executions.len() as u64 > issued / 10, "faults or not, much is admitted");
        for fault in EVERYTHING {
            assert!(self.chaos.counts.contains_key(&fault), "{fault:?} did not happen");
        }
    }
}

fn report(history: &History, verdict: &Verdict, nobody: u64, faults: &std::collections::BTreeMap<Fault, u32>) {
    println!(
        "messages {}, of these {} in calm times ({} spared)",
        history.messages.len(),
        history.messages.iter().filter(|message| message.calm).count(),
        verdict.spared
    );
    println!("offers {}, found nobody {nobody}", history.offers.len());
    println!("answers {}, lost with a killed replica {}", history.answers.len(), verdict.lost);
    println!("executions {}", history.executions.len());
    for ((said, reason), count) in &verdict.reasons {
        println!("{said:>16} {count:>9}  {reason}");
    }
    println!("fences: {:?}", verdict.fences);
    println!("faults: {faults:?}");
}

/// For waits that must make progress, however slow the machine is.
struct Patience {
    last: u64,
    since: Instant,
}

impl Patience {
    fn new() -> Self {
        Self { last: 0, since: Instant::now() }
    }

    fn check(&mut self, progress: u64, what: &str) {
        if progress != self.last {
            (self.last, self.since) = (progress, Instant::now());
        }
        assert!(self.since.elapsed() < Duration::from_secs(120), "{what}");
    }
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |value| value.parse().unwrap())
}
