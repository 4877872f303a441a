//! Approved payments while brokers and replicas are killed and started again: none runs twice, and none without both of its approvals.
//!
//! By default, 400 payments in about a minute. The long run:
//! `SEALWIRE_APPROVED_CALLS=10000 cargo test --release --test bus approvals::faults -- --nocapture`

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, RwLock};

use futures_util::future::join;
use sealwire::ServiceLimits;
use sealwire::internal::auth::SharedConfig;
use sealwire::serve::QuotaLimits;
use sealwire_testkit::admits::Admits;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::*;

const REPLICAS: usize = 3;
/// Payments under way.
const WORKERS: usize = 32;

/// Both treasurers within 30 seconds, and the payment within 20 of the last.
const POLICY: &str = r#"
[method."desk/pay"]
params = [{ name = "number", type = "integer" }]
[role.worker]
allow = ["desk/*"]
delegated = "also"
[role.treasurer]
allow = ["rpc.*"]
[approval.two-treasurers]
from = ["treasurer"]
count = 2
within = "30s"
valid = "20s"
[rule.pay]
everyone = true
deny = ["desk/pay"]
delegated = "also"
unless_approved = "two-treasurers"
"#;

/// What is known of one payment.
#[derive(Debug, Default)]
struct Payment {
    /// Who has signed for it, whether that was told or not.
    signed: BTreeSet<&'static str>,
    runs: usize,
    /// Runs before both had signed.
    unapproved: usize,
}

/// All payments, by number.
type Ledger = Arc<Vec<Mutex<Payment>>>;

/// A replica until it is killed.
struct Replica {
    desk: Desk,
    /// Keeps its connection.
    _guard: SharedGuard,
    killed: watch::Receiver<bool>,
}

impl Replica {
    /// Nobody hears the answer of a replica that is killed, and what it was doing ends where it was.
    async fn answer(&self, letter: &Letter) -> Option<Value> {
        let mut killed = self.killed.clone();
        tokio::select! {
            biased;
            _ = killed.wait_for(|killed| *killed) => None,
            sealed = self.desk.service.handle(letter.delivery()) => serde_json::from_slice(sealed?.payload()).ok(),
        }
    }
}

/// Everything that is killed, and what goes on meanwhile.
struct Site {
    slots: Vec<RwLock<Arc<Replica>>>,
    kill: Vec<Mutex<watch::Sender<bool>>>,
    buses: Vec<BusConfig>,
    /// Issues all tokens, and signs.
    office: Desk,
    ledger: Ledger,
    next: AtomicUsize,
    settled: AtomicUsize,
    told: AtomicUsize,
    /// Their approvals were used up, and nothing ran, as far as anybody was told.
    lost: AtomicUsize,
    asked_anew: AtomicUsize,
    dice: AtomicU64,
    is_over: AtomicBool,
    has_failed: AtomicBool,
}

/// Ends the test when a worker fails, which nobody waits for before the end.
struct Worker(Arc<Site>);

impl Drop for Worker {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.has_failed.store(true, Ordering::SeqCst);
        }
    }
}

async fn replica(bus: BusConfig, office: &Desk, ledger: &Ledger) -> (Arc<Replica>, watch::Sender<bool>) {
    let mut config = SharedConfig::new(name("test"), name("desk"));
    config.answer_within = Duration::from_secs(1);
    // Whatever ran in the last 30 seconds is kept, and all of it is of one agent.
    config.outcome_bytes = 256 << 20;
    let guard = within(SOON, SharedGuard::open(config, bus, Arc::new(SystemClock))).await.unwrap();
    guard.serving();
    let router = Router::new(Arc::clone(ledger)).method("desk/pay", |ctx: Ctx<Ledger>, p: (usize,)| async move {
        let mut payment = ctx.state()[p.0].lock().unwrap();
        payment.runs += 1;
        payment.unapproved += usize::from(payment.signed.len() < APPROVERS.len());
        Ok::<_, RpcError>(p.0)
    });
    let quota = QuotaLimits { per_second: 100_000, burst: 100_000, in_flight: 10_000 };
    let setup = Setup {
        policy: POLICY,
        limits: ServiceLimits { quota, ..ServiceLimits::default() },
        // Replays are another matter.
        guard: Some(Admits::over(guard.outcomes().unwrap())),
        tokens: Some(TokenVerifier::new(TokenRules::new("test/desk"), office.issuer.key_set().unwrap())),
        ..Setup::default()
    };
    let desk = Desk::open_as(setup, |service| service.methods(router));
    // Its clock is right from its first message on.
    desk.clock.set_ms(SystemClock.now_ms());
    with_treasurers(&desk);
    let (kill, killed) = watch::channel(false);
    (Arc::new(Replica { desk, _guard: guard, killed }), kill)
}

impl Site {
    async fn open(cluster: &Cluster, payments: usize) -> Arc<Self> {
        let office = Desk::open_as(Setup { policy: POLICY, ..Setup::default() }, |service| {
            service.methods(Router::new(()).method("desk/pay", |_: Ctx, (): ()| async { Ok::<_, RpcError>(()) }))
        });
        office.clock.set_ms(SystemClock.now_ms());
        let ledger: Ledger = Arc::new((0..payments).map(|_| Mutex::default()).collect());
        let buses: Vec<_> = (0..REPLICAS).map(|node| cluster.bus(node)).collect();
        let replicas = join_all(buses.iter().map(|bus| replica(bus.clone(), &office, &ledger))).await;
        let (slots, kill) =
            replicas.into_iter().map(|(replica, kill)| (RwLock::new(replica), Mutex::new(kill))).unzip();
        Arc::new(Self {
            slots,
            kill,
            buses,
            office,
            ledger,
            next: AtomicUsize::new(0),
            settled: AtomicUsize::new(0),
            told: AtomicUsize::new(0),
            lost: AtomicUsize::new(0),
            asked_anew: AtomicUsize::new(0),
            dice: AtomicU64::new(SystemClock.now_ms()),
            is_over: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
        })
    }

    /// The desks' clocks show the real time.
    fn tick(self: &Arc<Self>) -> JoinHandle<()> {
        let site = Arc::clone(self);
        tokio::spawn(async move {
            while !site.is_over.load(Ordering::SeqCst) {
                for slot in &site.slots {
                    slot.read().unwrap().desk.clock.set_ms(SystemClock.now_ms());
                }
                site.office.clock.set_ms(SystemClock.now_ms());
                sleep(Duration::from_millis(20)).await;
            }
        })
    }

    /// One of the replicas.
    fn any(&self) -> Arc<Replica> {
        let step =
            |state: u64| Some(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
        let state = self.dice.fetch_update(Ordering::SeqCst, Ordering::SeqCst, step).unwrap();
        let slot = usize::try_from((state >> 33) % REPLICAS as u64).unwrap();
        Arc::clone(&self.slots[slot].read().unwrap())
    }

    async fn ask(&self, agent: &Agent, method: &str, params: &Value) -> Value {
        let letter = self.office.letter(agent, &call(method, &params.to_string()));
        self.any().answer(&letter).await.unwrap_or_default()
    }

    /// Replaces a replica by another, which knows nothing of what this one did.
    async fn kill_replica(&self, slot: usize) {
        self.kill[slot].lock().unwrap().send_replace(true);
        let (replica, kill) = replica(self.buses[slot].clone(), &self.office, &self.ledger).await;
        *self.kill[slot].lock().unwrap() = kill;
        *self.slots[slot].write().unwrap() = replica;
    }

    async fn work(self: Arc<Self>) {
        let _worker = Worker(Arc::clone(&self));
        loop {
            let number = self.next.fetch_add(1, Ordering::SeqCst);
            if number >= self.ledger.len() {
                return;
            }
            self.pay(number).await;
            self.settled.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Until the payment was told to have run, or to have used its approvals up.
    async fn pay(&self, number: usize) {
        let ann = self.office.agent_with("ann", |request| {
            request.subject = format!("user-{}", number % 500);
            request.actor = Some("ann".to_owned());
        });
        let params = json!([number]);
        let mut requests = BTreeSet::new();
        loop {
            // The same call at two replicas, or twice at one.
            let (one, other) = join(self.ask(&ann, "desk/pay", &params), self.ask(&ann, "desk/pay", &params)).await;
            for answer in [&one, &other] {
                if !answer["result"].is_null() {
                    self.told.fetch_add(1, Ordering::SeqCst);
                    return;
                }
                if answer["error"]["data"]["state"] == "consumed" && self.ledger[number].lock().unwrap().runs == 0 {
                    // Perhaps the other one has not begun yet. It has been answered by now, or its replica was killed.
                    self.lost.fetch_add(1, Ordering::SeqCst);
                    return;
                }
                if answer["error"]["data"]["state"] == "consumed" {
                    return;
                }
            }
            let waits = [&one, &other].into_iter().find(|answer| answer["error"]["code"] == -32018);
            match waits {
                Some(waits) => {
                    let id = waits["error"]["data"]["approval"].as_str().unwrap();
                    if let Some(text) = self.approve(number, id).await
                        && requests.insert(text)
                        && requests.len() > 1
                    {
                        self.asked_anew.fetch_add(1, Ordering::SeqCst);
                    }
                }
                // No replica, no store, or no room just now.
                None => {
                    for answer in [&one, &other] {
                        let code = &answer["error"]["code"];
                        assert!(answer.is_null() || code == -32014 || code == -32013 || code == -32003, "{answer}");
                    }
                    sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    /// Both treasurers sign what one of them was shown.
    async fn approve(&self, number: usize, id: &str) -> Option<String> {
        let [tess, tom] = APPROVERS.map(|(owner, seed)| treasurer(&self.office, owner, seed));
        let shown = self.ask(&tess, "rpc.approval", &json!({ "id": id })).await;
        let text = shown["result"]["text"].as_str()?;
        let digest = digest(&[b"sealwire-approval-v1\0", text.as_bytes()].concat());
        let params = json!({ "id": id, "approval": "two-treasurers", "digest": digest, "decision": "approve" });
        for (by, (owner, _)) in [tess, tom].iter().zip(APPROVERS) {
            self.ledger[number].lock().unwrap().signed.insert(owner);
            self.ask(by, "rpc.approve", &params).await;
        }
        Some(text.to_owned())
    }

    /// Waits until so many payments are settled.
    async fn progress(&self, payments: usize) {
        within(10 * SOON, async {
            while self.settled.load(Ordering::SeqCst) < payments {
                assert!(!self.has_failed.load(Ordering::SeqCst), "a worker has failed");
                sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    }
}

/// `cargo test -- --skip takes_minutes` leaves it out.
mod takes_minutes {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_approved_call_runs_twice_or_without_its_approvals_whatever_is_killed() {
        let payments = std::env::var("SEALWIRE_APPROVED_CALLS").map_or(400, |payments| payments.parse().unwrap());
        let mut cluster = Cluster::start(3).await;
        let site = Site::open(&cluster, payments).await;
        let ticking = site.tick();
        let workers: Vec<_> = (0..WORKERS).map(|_| tokio::spawn(Arc::clone(&site).work())).collect();
        // Each node and each replica at least once. Between two of them, work goes on.
        let kills = REPLICAS + payments / 1_000;
        for kill in 0..kills {
            site.progress((2 * kill + 1) * payments / (2 * kills + 2)).await;
            let node = kill % cluster.nodes.len();
            cluster.nodes[node].kill().await;
            // For as long as an election takes.
            sleep(Duration::from_secs(1)).await;
            cluster.nodes[node].restart().await;
            site.progress((2 * kill + 2) * payments / (2 * kills + 2)).await;
            site.kill_replica(kill % REPLICAS).await;
        }
        site.progress(payments).await;
        join_all(workers).await.into_iter().for_each(Result::unwrap);
        site.is_over.store(true, Ordering::SeqCst);
        ticking.await.unwrap();

        let (mut ran, mut twice, mut unapproved) = (0, Vec::new(), Vec::new());
        for (number, payment) in site.ledger.iter().enumerate() {
            let payment = payment.lock().unwrap();
            ran += usize::from(payment.runs > 0);
            twice.extend((payment.runs > 1).then_some(number));
            unapproved.extend((payment.unapproved > 0).then_some(number));
        }
        let count = |counter: &AtomicUsize| counter.load(Ordering::SeqCst);
        println!(
            "{payments} payments: {ran} ran, of which {} were told; {} used up their approvals and did not run; {} requests were made \
             anew; {kills} brokers and {kills} replicas were killed",
            count(&site.told),
            count(&site.lost),
            count(&site.asked_anew)
        );
        assert!(twice.is_empty() && unapproved.is_empty(), "ran twice: {twice:?}; without approvals: {unapproved:?}");
        assert!(ran <= payments && 2 * ran > payments, "{ran} of {payments} ran");
    }
}
