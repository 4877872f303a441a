//! Budgets, counted for all replicas on a real server: SPEC.md §6.4.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use sealwire::internal::auth::{ReplayGuard, SharedGuard, TokenRules, TokenVerifier};
use sealwire::{BusConfig, Clock as _, Ctx, Router, RpcError, SystemClock};
use sealwire_testkit::cluster::Cluster;
use sealwire_testkit::desk::{Desk, Setup, call};
use sealwire_testkit::{NatsServer, SOON, within};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::outcomes::{guard, store};

const POLICY: &str = r#"
[method."desk/pay"]
params = [{ name = "amount", type = "integer" }]
[role.worker]
allow = ["desk/*"]
[budget.daily]
methods = ["desk/pay"]
per = "agent"
sum = "amount"
at_most = "1000/d"
shared = true
"#;

const AT_MOST: u64 = 1_000;
const AMOUNT: u64 = 5;

/// Replicas of one service.
struct Replicas {
    desks: Vec<Desk>,
    guards: Vec<Arc<SharedGuard>>,
    /// The sum of what has run.
    paid: Arc<AtomicU64>,
    unconfirmed: AtomicUsize,
}

impl Replicas {
    async fn start(buses: Vec<BusConfig>) -> Self {
        let (mut desks, paid) = (Vec::<Desk>::new(), Arc::new(AtomicU64::new(0)));
        let guards = join_all(buses.into_iter().map(|bus| guard(bus, |_| {}))).await;
        for guard in &guards {
            let router =
                Router::new(Arc::clone(&paid)).method("desk/pay", |ctx: Ctx<Arc<AtomicU64>>, p: Value| async move {
                    let amount = p["amount"].as_u64().unwrap();
                    ctx.state().fetch_add(amount, Ordering::SeqCst);
                    Ok::<_, RpcError>(p)
                });
            // Tokens are those of the first replica's issuer.
            let keys = desks.first().map(|first| first.issuer.key_set().unwrap());
            let tokens = keys.map(|keys| TokenVerifier::new(TokenRules::new("test/desk"), keys));
            let guard = Some(Arc::clone(guard) as Arc<dyn ReplayGuard>);
            let setup = Setup { policy: POLICY, guard, tokens, ..Setup::default() };
            desks.push(Desk::open_as(setup, |service| service.methods(router)));
        }
        join_all(guards.iter().map(store)).await;
        Self { desks, guards, paid, unconfirmed: AtomicUsize::new(0) }
    }

    async fn pay(&self, replica: usize) -> Value {
        // The guards judge by the real time.
        self.desks.iter().for_each(|desk| desk.clock.set_ms(SystemClock.now_ms()));
        let ann = self.desks[0].agent("ann", &["worker"]);
        let letter = self.desks[0].letter(&ann, &call("desk/pay", &json!({ "amount": AMOUNT }).to_string()));
        let answer = within(SOON, self.desks[replica].answer(&letter)).await.unwrap();
        serde_json::from_str(&answer).unwrap()
    }

    /// Pays again and again, until the budget has no room, or `enough` has run.
    async fn pay_on(&self, replica: usize, enough: u64) {
        while self.paid() < enough {
            let answer = self.pay(replica).await;
            assert!(self.paid() <= AT_MOST, "{}", self.paid());
            match answer["error"]["code"].as_i64() {
                None => {}
                Some(-32013) => {
                    assert_eq!(answer["error"]["data"]["budget"], "daily", "{answer}");
                    return;
                }
                // Stale on a loaded machine, or refused by the guard or the store.
                Some(-32011 | -32014) => {
                    self.unconfirmed.fetch_add(1, Ordering::SeqCst);
                    sleep(Duration::from_millis(50)).await;
                }
                Some(_) => panic!("{answer}"),
            }
        }
    }

    /// Several callers at each replica.
    async fn pay_all(&self, enough: u64) {
        let callers = (0..self.desks.len() * 6).map(|caller| self.pay_on(caller % self.desks.len(), enough));
        within(2 * SOON, join_all(callers)).await;
    }

    fn paid(&self) -> u64 {
        self.paid.load(Ordering::SeqCst)
    }

    /// All of it was used, except what was charged and did not run.
    async fn end(self) {
        let (paid, unconfirmed) = (self.paid(), self.unconfirmed.load(Ordering::SeqCst));
        let lost = AMOUNT * u64::try_from(unconfirmed).unwrap();
        assert!(paid <= AT_MOST && paid + lost >= AT_MOST, "{paid} were paid, {unconfirmed} not confirmed");
        join_all(self.guards.iter().map(|guard| guard.close())).await;
    }
}

#[tokio::test]
async fn replicas_use_a_budget_up_together_and_no_more_of_it() {
    let server = NatsServer::start().await;
    let replicas = Replicas::start(vec![BusConfig::open(&server.url()), BusConfig::open(&server.url())]).await;
    replicas.pay_all(u64::MAX).await;
    replicas.end().await;
}

#[tokio::test]
async fn a_broker_that_is_killed_meanwhile_gives_no_room_for_more() {
    let mut cluster = Cluster::start(3).await;
    let replicas = Replicas::start((0..3).map(|node| cluster.bus(node)).collect()).await;
    let have_paid = async |sum: u64| {
        while replicas.paid() < sum {
            sleep(Duration::from_millis(1)).await;
        }
    };
    let killed = async {
        have_paid(AT_MOST / 4).await;
        cluster.nodes[0].kill().await;
        have_paid(AT_MOST / 2).await;
        cluster.nodes[0].restart().await;
    };
    futures_util::future::join(replicas.pay_all(u64::MAX), within(2 * SOON, killed)).await;
    replicas.end().await;
}

/// The stream is in its memory.
#[tokio::test]
async fn a_count_that_the_only_broker_has_lost_is_not_begun_anew() {
    let mut server = NatsServer::start().await;
    let replicas = Replicas::start(vec![BusConfig::open(&server.url()), BusConfig::open(&server.url())]).await;
    replicas.pay_all(AT_MOST / 4).await;
    // Each has seen some of it.
    for replica in [0, 1] {
        within(SOON, async { while !replicas.pay(replica).await["error"].is_null() {} }).await;
    }
    server.restart().await;
    let paid = replicas.paid();
    for (replica, desk) in replicas.desks.iter().enumerate() {
        within(2 * SOON, async {
            while !desk.service.counters().refusals().contains_key("budget_unknown") {
                assert!(replicas.pay(replica).await["result"].is_null());
                sleep(Duration::from_millis(100)).await;
            }
        })
        .await;
    }
    assert_eq!(replicas.paid(), paid);
    join_all(replicas.guards.iter().map(|guard| guard.close())).await;
}
