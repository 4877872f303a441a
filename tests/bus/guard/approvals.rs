//! Approvals, kept for all replicas on a real server: SPEC.md §6.3.

mod faults;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use sealwire::configure::AgentKey;
use sealwire::internal::auth::{
    Claimed, IssueRequest, KeyEntry, OutcomeKey, OutcomeStoreError, ReplayGuard, SharedGuard, TokenRules, TokenVerifier,
};
use sealwire::{BusConfig, Clock as _, Ctx, Name, Router, RpcError, SystemClock};
use sealwire_testkit::cluster::Cluster;
use sealwire_testkit::desk::{Agent, Desk, Letter, Setup, call, digest};
use sealwire_testkit::{NatsServer, SOON, within};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::outcomes::{guard, store};

const MINUTE: Duration = Duration::from_secs(60);

const POLICY: &str = r#"
[method."desk/pay"]
params = [{ name = "amount", type = "integer" }]
[role.worker]
allow = ["desk/*"]
[role.treasurer]
allow = ["rpc.*"]
[approval.two-treasurers]
from = ["treasurer"]
count = 2
[rule.pay]
everyone = true
deny = ["desk/pay"]
unless_approved = "two-treasurers"
"#;

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

#[tokio::test]
async fn approvals_are_read_and_listed_everywhere_and_outcomes_are_not() {
    let server = NatsServer::start().await;
    let guards = join_all((0..2).map(|_| guard(BusConfig::open(&server.url()), |_| {}))).await;
    let stores = join_all(guards.iter().map(store)).await;
    let key = |agent, place| OutcomeKey::approval(name(agent), place).unwrap();
    let answered = async |number: usize, key: &OutcomeKey| {
        within(SOON, async {
            loop {
                if let Ok(found) = stores[number].read(key).await {
                    return found;
                }
                sleep(Duration::from_millis(50)).await;
            }
        })
        .await
    };
    assert_eq!(answered(1, &key("ann", "none")).await, None);
    let made = within(SOON, async {
        loop {
            match stores[0].claim(&key("ann", "a"), "asked".into(), MINUTE).await {
                Ok(Claimed::New { revision } | Claimed::Held { revision, .. }) => return revision,
                Err(_) => sleep(Duration::from_millis(50)).await,
            }
        }
    });
    let revision = made.await;
    assert_eq!(answered(1, &key("ann", "a")).await, Some((revision, "asked".into())));
    // An outcome of the same name is another entry.
    let outcome = OutcomeKey::new(name("ann"), b"a");
    assert!(!outcome.is_approval() && answered(0, &outcome).await.is_none());
    let listed = within(SOON, async {
        loop {
            let made = stores[1].claim(&key("bob", "b"), "asked, too".into(), MINUTE).await.is_ok();
            if let (true, Ok(mut keys)) = (made, stores[0].approvals().await) {
                keys.sort();
                return keys;
            }
            sleep(Duration::from_millis(50)).await;
        }
    });
    assert_eq!(listed.await, [key("ann", "a"), key("bob", "b")]);
    for unfit in ["", "a.b", "*", ">", "a b", &"x".repeat(65)] {
        assert_eq!(OutcomeKey::approval(name("ann"), unfit), None, "{unfit:?}");
    }
}

/// Their agent has far fewer places in flight than these.
#[tokio::test]
async fn many_approvals_of_one_agent_are_read_at_once() {
    let server = NatsServer::start().await;
    let guard = guard(BusConfig::open(&server.url()), |_| {}).await;
    let store = store(&guard).await;
    let keys: Vec<_> =
        (0..300).map(|number| OutcomeKey::approval(name("ann"), &format!("a{number}")).unwrap()).collect();
    within(SOON, async {
        loop {
            let read = join_all(keys.iter().map(|key| store.read(key))).await;
            for found in &read {
                let is_full = matches!(found, Err(OutcomeStoreError::AgentFull | OutcomeStoreError::Full));
                assert!(!is_full, "{found:?}");
            }
            // A broker that is slow to answer is another matter.
            if read.iter().all(|found| matches!(found, Ok(None))) {
                return;
            }
        }
    })
    .await;
    guard.close().await;
}

/// A service with two replicas on one broker, or on the nodes of one.
struct Replicas {
    desks: Vec<Desk>,
    guards: Vec<Arc<SharedGuard>>,
    runs: Arc<AtomicUsize>,
}

const APPROVERS: [(&str, u8); 2] = [("tess", 41), ("tom", 42)];

impl Replicas {
    async fn start(buses: Vec<BusConfig>) -> Self {
        let (mut desks, runs) = (Vec::<Desk>::new(), Arc::new(AtomicUsize::new(0)));
        let guards = join_all(buses.into_iter().map(|bus| guard(bus, |_| {}))).await;
        for guard in &guards {
            let router =
                Router::new(Arc::clone(&runs)).method("desk/pay", |ctx: Ctx<Arc<AtomicUsize>>, p: Value| async move {
                    ctx.state().fetch_add(1, Ordering::SeqCst);
                    Ok::<_, RpcError>(p)
                });
            // Tokens are those of the first replica's issuer.
            let keys = desks.first().map(|first| first.issuer.key_set().unwrap());
            let tokens = keys.map(|keys| TokenVerifier::new(TokenRules::new("test/desk"), keys));
            let guard = Some(Arc::clone(guard) as Arc<dyn ReplayGuard>);
            let setup = Setup { policy: POLICY, guard, tokens, ..Setup::default() };
            let desk = Desk::open_as(setup, |service| service.methods(router));
            with_treasurers(&desk);
            desks.push(desk);
        }
        join_all(guards.iter().map(store)).await;
        Self { desks, guards, runs }
    }

    fn letter(&self, agent: &Agent, method: &str, params: &Value) -> Letter {
        // The guards judge by the real time.
        self.desks.iter().for_each(|desk| desk.clock.set_ms(SystemClock.now_ms()));
        self.desks[0].letter(agent, &call(method, &params.to_string()))
    }

    async fn send(&self, replica: usize, letter: &Letter) -> Value {
        let answer = within(SOON, self.desks[replica].answer(letter)).await.unwrap();
        serde_json::from_str(&answer).unwrap()
    }

    /// Until the store answers.
    async fn ask(&self, replica: usize, agent: &Agent, method: &str, params: &Value) -> Value {
        within(SOON, async {
            loop {
                let answer = self.send(replica, &self.letter(agent, method, params)).await;
                if answer["error"]["code"] != -32014 {
                    return answer;
                }
                sleep(Duration::from_millis(100)).await;
            }
        })
        .await
    }

    fn ann(&self) -> Agent {
        self.desks[0].agent("ann", &["worker"])
    }

    async fn pay(&self, replica: usize, amount: usize) -> Value {
        self.ask(replica, &self.ann(), "desk/pay", &json!({ "amount": amount })).await
    }

    /// Both treasurers, each at another replica.
    async fn approve(&self, id: &str) {
        for (replica, (owner, seed)) in APPROVERS.into_iter().enumerate() {
            let by = treasurer(&self.desks[0], owner, seed);
            let shown = self.ask(replica, &by, "rpc.approval", &json!({ "id": id })).await;
            let text = shown["result"]["text"].as_str().unwrap_or_else(|| panic!("{shown}"));
            let signed = digest(&[b"sealwire-approval-v1\0", text.as_bytes()].concat());
            let params = json!({ "id": id, "approval": "two-treasurers", "digest": signed, "decision": "approve" });
            let answer = self.ask(replica, &by, "rpc.approve", &params).await;
            assert_eq!(answer["result"]["needs"][0]["have"], replica + 1, "{answer}");
        }
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }
}

/// Puts the keys of the treasurers in force.
fn with_treasurers(desk: &Desk) {
    desk.change_ring(|keys| {
        for (owner, seed) in APPROVERS {
            keys.push(KeyEntry::ed25519(&format!("{owner}.k1"), name(owner), key(owner, seed).public().unwrap()));
        }
    });
}

/// One of them, with a token of this desk's issuer.
fn treasurer(desk: &Desk, owner: &str, seed: u8) -> Agent {
    let mut request = IssueRequest::new(owner, "test/desk", SystemClock.now_s());
    request.roles = ["treasurer".to_owned()].into();
    Agent { name: name(owner), key: key(owner, seed), token: desk.issuer.issue(&request).unwrap() }
}

fn key(owner: &str, seed: u8) -> AgentKey {
    AgentKey::ed25519(&format!("{owner}.k1"), [seed; 32]).unwrap()
}

fn pending(answer: &Value) -> String {
    assert_eq!(answer["error"]["data"]["state"], "pending", "{answer}");
    answer["error"]["data"]["approval"].as_str().unwrap().to_owned()
}

async fn one_run_for_one_approval(buses: Vec<BusConfig>) {
    let replicas = Replicas::start(buses).await;
    // A store that does not answer in time may have used an approval up, and then nothing runs: so another call is tried.
    for amount in 0..10 {
        let id = pending(&replicas.pay(0, amount).await);
        assert_eq!(pending(&replicas.pay(1, amount).await), id);
        replicas.approve(&id).await;
        let letter = |_| replicas.letter(&replicas.ann(), "desk/pay", &json!({ "amount": amount }));
        let letters: Vec<_> = (0..20).map(letter).collect();
        let calls = letters.iter().enumerate().map(|(number, letter)| replicas.send(number % 2, letter));
        let answers = join_all(calls).await;
        let told = answers.iter().filter(|answer| answer["result"]["amount"] == amount).count();
        let ran = replicas.runs();
        assert!(ran <= 1 && told <= ran, "{answers:?}");
        if ran == 1 {
            for replica in [0, 1] {
                let again = replicas.pay(replica, amount).await;
                assert_eq!(again["error"]["data"]["state"], "consumed", "{again}");
            }
            assert_eq!(replicas.runs(), 1);
            join_all(replicas.guards.iter().map(|guard| guard.close())).await;
            return;
        }
    }
    panic!("no approved call has run");
}

#[tokio::test]
async fn an_approved_call_runs_once_whichever_replica_gets_it() {
    let server = NatsServer::start().await;
    one_run_for_one_approval(vec![BusConfig::open(&server.url()), BusConfig::open(&server.url())]).await;
}

#[tokio::test]
async fn in_a_cluster_too() {
    let cluster = Cluster::start(3).await;
    one_run_for_one_approval(vec![cluster.bus(0), cluster.bus(2)]).await;
}
