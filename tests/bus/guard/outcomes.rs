//! Outcomes of idempotent calls, stored for all replicas on a real server: SPEC.md §6.1.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, join_all};
use sealwire::internal::auth::{
    Claimed, OutcomeKey, OutcomeStore, OutcomeStoreError, ReplayGuard, SharedConfig, SharedGuard, Window, Withdrawal,
};
use sealwire::{BusConfig, Clock as _, Ctx, ManualClock, Name, Router, RpcError, SystemClock};
use sealwire_testkit::admits::Admits;
use sealwire_testkit::cluster::Cluster;
use sealwire_testkit::desk::{Desk, Setup, call};
use sealwire_testkit::{NatsServer, SOON, settle, within};
use serde_json::{Value, json};
use tokio::time::sleep;

const MINUTE: Duration = Duration::from_secs(60);

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub(super) async fn guard(bus: BusConfig, change: impl FnOnce(&mut SharedConfig)) -> Arc<SharedGuard> {
    let mut config = SharedConfig::new(name("test"), name("desk"));
    config.window = Window::new(30, 1).unwrap();
    // These tests are not about loaded machines.
    config.answer_within = Duration::from_secs(1);
    change(&mut config);
    let guard = within(SOON, SharedGuard::open(config, bus, Arc::new(SystemClock))).await.unwrap();
    guard.serving();
    within(SOON, async {
        while guard.not_ready().is_some() {
            sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    Arc::new(guard)
}

/// The guard's store, once it answers.
pub(super) async fn store(guard: &Arc<SharedGuard>) -> Arc<dyn OutcomeStore> {
    let store = guard.outcomes().unwrap();
    store.enable();
    let probe = OutcomeKey::new(name("nobody"), b"probe");
    within(SOON, async {
        while store.claim(&probe, "probe".into(), Duration::from_secs(1)).await.is_err() {
            sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    store
}

fn key(agent: &str, scope: &str) -> OutcomeKey {
    OutcomeKey::new(name(agent), scope.as_bytes())
}

async fn one_of_many_claims(buses: Vec<BusConfig>) {
    let guards = join_all(buses.into_iter().map(|bus| guard(bus, |_| {}))).await;
    let stores = join_all(guards.iter().map(store)).await;
    let mut whole = 0;
    for race in 0..200 {
        let key = key("ann", &format!("race {race}"));
        let claims = (0..24).map(|claim| {
            let (store, key) = (&stores[claim % stores.len()], &key);
            async move { store.claim(key, format!("claim {claim}").into(), MINUTE).await }
        });
        let claims = join_all(claims).await;
        let new: Vec<_> = claims.iter().filter(|claim| matches!(claim, Ok(Claimed::New { .. }))).collect();
        assert!(new.len() <= 1, "{claims:?}");
        // The store gives no answer while its stream has no leader, or if the machine stands still.
        if claims.iter().any(is_unanswered) {
            continue;
        }
        assert_eq!(new.len(), 1, "{claims:?}");
        let Ok(Claimed::New { revision }) = *new[0] else { unreachable!() };
        let held: Vec<_> = claims.iter().filter(|claim| matches!(claim, Ok(Claimed::Held { .. }))).collect();
        assert_eq!(held.len(), 23, "{claims:?}");

        // The outcome replaces the claim, once.
        let ends = stores.iter().map(|store| store.replace(&key, revision, "outcome".into(), MINUTE));
        let ends = join_all(ends).await;
        if ends.iter().any(is_unanswered) {
            continue;
        }
        assert!(ends.iter().any(Result::is_ok), "{ends:?}");
        for store in &stores {
            let late = within(SOON, async {
                loop {
                    let late = store.claim(&key, "late".into(), MINUTE).await;
                    if !is_unanswered(&late) {
                        return late;
                    }
                    sleep(Duration::from_millis(50)).await;
                }
            });
            let late = late.await;
            let Ok(Claimed::Held { content, .. }) = late else { panic!("{late:?}") };
            assert_eq!(content, "outcome");
        }
        whole += 1;
        if whole == 20 {
            return;
        }
    }
    panic!("only {whole} races without an interruption");
}

fn is_unanswered<T>(answer: &Result<T, OutcomeStoreError>) -> bool {
    matches!(answer, Err(OutcomeStoreError::Unanswered | OutcomeStoreError::Unavailable))
}

#[tokio::test]
async fn of_all_claims_of_a_key_one_is_told_that_it_is_new() {
    let server = NatsServer::start().await;
    one_of_many_claims(vec![BusConfig::open(&server.url()), BusConfig::open(&server.url())]).await;
}

#[tokio::test]
async fn in_a_cluster_too() {
    let cluster = Cluster::start(3).await;
    one_of_many_claims(vec![cluster.bus(0), cluster.bus(1), cluster.bus(2)]).await;
}

#[tokio::test]
async fn an_entry_ends_by_its_own_time_and_large_ones_are_read_back_whole() {
    let server = NatsServer::start().await;
    let guard = guard(BusConfig::open(&server.url()), |_| {}).await;
    let store = store(&guard).await;
    let key = key("ann", "k");
    let Ok(Claimed::New { revision }) = store.claim(&key, "claim".into(), MINUTE).await else { panic!() };
    let large = vec![b'x'; 192 * 1024];
    let revision = store.replace(&key, revision, large.clone().into(), MINUTE).await.unwrap();
    let Ok(Claimed::Held { content, .. }) = store.claim(&key, "again".into(), MINUTE).await else { panic!() };
    assert_eq!(content, large);
    let too_large = store.replace(&key, revision, vec![b'x'; 250 * 1024].into(), MINUTE).await;
    assert_eq!(too_large, Err(OutcomeStoreError::TooLarge));
    // Far less than the store's own bound.
    store.replace(&key, revision, large.into(), Duration::from_secs(2)).await.unwrap();
    let ends = async {
        while !matches!(store.claim(&key, "anew".into(), MINUTE).await, Ok(Claimed::New { .. })) {
            sleep(Duration::from_millis(200)).await;
        }
    };
    within(SOON, ends).await;
}

/// An agent that stores as much as it can leaves room for others, and no stored outcome is lost for it.
async fn a_full_store(bus: BusConfig) {
    let guard = guard(bus, |config| (config.max_outcomes, config.outcome_bytes) = (16, 1 << 20)).await;
    let store = store(&guard).await;
    let (mut revisions, mut unanswered) = (Vec::new(), 0);
    let refused = loop {
        match store.claim(&key("ann", &revisions.len().to_string()), "claim".into(), MINUTE).await {
            Ok(Claimed::New { revision }) => revisions.push(revision),
            // Stored all the same: its answer came too late. It counts, and can be replaced.
            Ok(Claimed::Held { revision, .. }) if unanswered > 0 => revisions.push(revision),
            Err(OutcomeStoreError::Unanswered | OutcomeStoreError::Unavailable) if unanswered < 100 => {
                unanswered += 1;
                sleep(Duration::from_millis(100)).await;
            }
            other => break other,
        }
    };
    assert_eq!(refused, Err(OutcomeStoreError::AgentFull));
    assert!((7..=8).contains(&revisions.len()), "{}", revisions.len());
    assert!(matches!(store.claim(&key("bob", "b"), "claim".into(), MINUTE).await, Ok(Claimed::New { .. })));
    assert!(matches!(store.claim(&key("ann", "0"), "again".into(), MINUTE).await, Ok(Claimed::Held { .. })));
    // Even when the store is full to the last entry, existing entries can be replaced.
    let mut others = 0;
    for agent in 0..40 {
        others += usize::from(store.claim(&key(&format!("other-{agent}"), "o"), "claim".into(), MINUTE).await.is_ok());
    }
    assert!(revisions.len() + 1 + others <= 16, "{others}");
    store.replace(&key("ann", "0"), revisions[0], "end".into(), MINUTE).await.unwrap();
}

#[tokio::test]
async fn a_full_store_refuses_and_forgets_nothing() {
    let server = NatsServer::start().await;
    a_full_store(BusConfig::open(&server.url())).await;
}

#[tokio::test]
async fn a_full_store_of_a_cluster_too() {
    let cluster = Cluster::start(3).await;
    a_full_store(cluster.bus(0)).await;
}

type Runs = Arc<AtomicUsize>;

/// Replicas of one service without sockets of their own, sharing one guard's stream.
async fn replicas(server: &NatsServer, runs: &Runs) -> (Vec<Desk>, Vec<Arc<SharedGuard>>) {
    replicas_judged_by(server, runs, |guard| guard).await
}

async fn replicas_judged_by(
    server: &NatsServer,
    runs: &Runs,
    judge: impl Fn(Arc<dyn ReplayGuard>) -> Arc<dyn ReplayGuard>,
) -> (Vec<Desk>, Vec<Arc<SharedGuard>>) {
    let (mut desks, mut guards) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let guard = guard(BusConfig::open(&server.url()), |_| {}).await;
        let router = Router::new(Arc::clone(runs)).method(
            "desk/pay",
            |ctx: Ctx<Runs>, (amount, wait): (u64, bool)| async move {
                ctx.state().fetch_add(1, Ordering::SeqCst);
                if wait {
                    std::future::pending::<()>().await;
                }
                Ok::<_, RpcError>(amount)
            },
        );
        let router = router.idempotent("desk/pay", MINUTE);
        let setup = Setup { guard: Some(judge(Arc::clone(&guard) as Arc<dyn ReplayGuard>)), ..Setup::default() };
        desks.push(Desk::open_as(setup, |service| service.methods(router)));
        store(&guard).await;
        guards.push(guard);
    }
    (desks, guards)
}

async fn pay(desk: &Desk, key: &str, params: &str) -> Value {
    let ann = desk.agent("ann", &["worker"]);
    let answer = within(SOON, desk.answer(&desk.keyed(&ann, key, &call("desk/pay", params)))).await.unwrap();
    serde_json::from_str(&answer).unwrap()
}

#[tokio::test]
async fn a_call_that_comes_again_to_another_replica_runs_once() {
    let server = NatsServer::start().await;
    let runs = Runs::default();
    let (desks, _guards) = replicas(&server, &runs).await;
    assert_eq!(pay(&desks[0], "k", "[5,false]").await, json!({"jsonrpc": "2.0", "result": 5, "id": 1}));
    let again = json!({"jsonrpc": "2.0", "result": 5, "idempotent_replay": true, "id": 1});
    assert_eq!(pay(&desks[1], "k", "[5,false]").await, again);
    assert_eq!(pay(&desks[1], "k", "[6,false]").await["error"]["data"]["idempotency"], "other_params");
    desks[1].change_policy("[role.worker]\nallow = [\"desk/*\"]\ndeny = [\"desk/pay\"]\n");
    assert_eq!(pay(&desks[1], "k", "[5,false]").await["error"]["code"], -32002);
    assert_eq!(runs.load(Ordering::SeqCst), 1);

    // A replica that dies while it runs the call leaves its claim behind.
    let ann = desks[0].agent("ann", &["worker"]);
    let letter = desks[0].keyed(&ann, "dies", &call("desk/pay", "[5,true]"));
    let begins = async {
        while runs.load(Ordering::SeqCst) < 2 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        answer = desks[0].answer(&letter) => panic!("it never returns: {answer:?}"),
        () = within(SOON, begins) => {}
    }
    desks[1].change_policy("[role.worker]\nallow = [\"desk/*\"]\n");
    assert_eq!(pay(&desks[1], "dies", "[5,true]").await["error"]["data"]["idempotency"], "running");
    desks[1].clock.advance_ms(20 * 1000);
    assert_eq!(runs.load(Ordering::SeqCst), 2);
}

/// The leading node dies between claim and outcome: the caller learns what is known, and the call never runs again.
#[tokio::test]
async fn an_outcome_is_kept_or_unknown_when_the_leader_dies_in_between() {
    let mut cluster = Cluster::start(3).await;
    let runs = Runs::default();
    let guards = join_all((0..2).map(|node| guard(cluster.bus(node), |_| {}))).await;
    let (gate, opened) = tokio::sync::watch::channel(false);
    let router = || {
        let opened = opened.clone();
        let router = Router::new(Arc::clone(&runs)).method("desk/pay", move |ctx: Ctx<Runs>, (amount,): (u64,)| {
            let mut opened = opened.clone();
            async move {
                ctx.state().fetch_add(1, Ordering::SeqCst);
                drop(opened.wait_for(|opened| *opened).await);
                Ok::<_, RpcError>(amount)
            }
        });
        router.idempotent("desk/pay", MINUTE)
    };
    let desks: Vec<Arc<Desk>> = guards
        .iter()
        .map(|guard| {
            let setup = Setup { guard: Some(Arc::clone(guard) as Arc<dyn ReplayGuard>), ..Setup::default() };
            Arc::new(Desk::open_as(setup, |service| service.methods(router())))
        })
        .collect();
    join_all(guards.iter().map(store)).await;

    let first = tokio::spawn({
        let desk = Arc::clone(&desks[0]);
        async move { desk.answer(&desk.keyed(&desk.agent("ann", &["worker"]), "k", &call("desk/pay", "[5]"))).await }
    });
    within(SOON, async {
        while runs.load(Ordering::SeqCst) == 0 {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let stream = outcome_stream(&cluster.nodes[0].client().await).await;
    let leader = cluster.leader_of(&stream, 0).await.unwrap();
    cluster.nodes[leader].kill().await;
    gate.send_replace(true);
    let answer: Value = serde_json::from_str(&within(3 * SOON, first).await.unwrap().unwrap()).unwrap();
    assert_eq!(answer["result"], 5, "the caller is answered, whether the outcome was stored or not: {answer}");

    // Replicas refuse until the stream has a leader, and then vouch only for messages issued after that.
    let again = within(6 * SOON, async {
        loop {
            // The desk's clock stands still, so its signatures would be older than the new leader.
            desks[1].clock.advance_ms(SystemClock.now_ms().saturating_sub(desks[1].clock.now_ms()));
            let answer = pay(&desks[1], "k", "[5]").await;
            if !matches!(answer["error"]["code"].as_i64(), Some(-32011 | -32013 | -32014)) {
                return answer;
            }
            sleep(Duration::from_millis(200)).await;
        }
    })
    .await;
    println!("the leader died between claim and outcome: {again}");
    let kept = again["result"] == 5 && again["idempotent_replay"] == true;
    let unknown = matches!(again["error"]["data"]["idempotency"].as_str(), Some("running" | "unknown"));
    assert!(kept || unknown, "{again}");
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

/// The name of the stream that outcomes are in.
async fn outcome_stream(client: &async_nats::Client) -> String {
    let names = r#"{"subject":"rg.test.desk.$outcome.>"}"#;
    let names = within(SOON, client.request("$JS.API.STREAM.NAMES", names.into())).await.unwrap();
    let names: Value = serde_json::from_slice(&names.payload).unwrap();
    names["streams"][0].as_str().unwrap_or_else(|| panic!("{names}")).to_owned()
}

/// A broker can lose what is stored, but it cannot invent anything.
#[tokio::test]
async fn what_the_service_did_not_sign_is_no_outcome() {
    let server = NatsServer::start().await;
    let runs = Runs::default();
    let (desks, guards) = replicas(&server, &runs).await;
    pay(&desks[0], "k", "[5,false]").await;
    let client = async_nats::connect(server.url()).await.unwrap();
    let mut entries = client.subscribe("rg.test.desk.$outcome.>").await.unwrap();
    // The entries come over another connection.
    settle(&client).await;
    pay(&desks[0], "l", "[7,false]").await;
    let mut seen = Vec::new();
    while seen.len() < 2 {
        seen.push(within(SOON, futures_util::StreamExt::next(&mut entries)).await.unwrap());
    }
    while let Ok(Some(entry)) =
        tokio::time::timeout(Duration::from_secs(1), futures_util::StreamExt::next(&mut entries)).await
    {
        seen.push(entry);
    }
    let [claim, outcome] = seen.as_slice() else { panic!("{seen:?}") };
    assert!(!claim.subject.contains("[7") && claim.subject == outcome.subject);
    // The genuine outcome with another result in it, in its place.
    let forged = String::from_utf8_lossy(&outcome.payload).contains("\"result\":7");
    assert!(forged);
    let position = outcome.payload.windows(10).position(|bytes| bytes == b"\"result\":7").unwrap();
    let mut bytes = outcome.payload.to_vec();
    bytes[position + 9] = b'9';
    // The acknowledgement confirms that it is stored.
    within(SOON, client.request(outcome.subject.clone(), bytes.into())).await.unwrap();
    sleep(Duration::from_millis(500)).await;
    assert_eq!(pay(&desks[1], "l", "[7,false]").await["error"]["data"]["idempotency"], "unknown");
    assert_eq!((runs.load(Ordering::SeqCst), guards.len()), (2, 2));
}

/// So that only the store of outcomes is asked.
fn admits(guard: Arc<dyn ReplayGuard>) -> Arc<dyn ReplayGuard> {
    Admits::over(guard.outcomes().unwrap())
}

/// SPEC.md §6.1: a refused call has not run, so a repetition runs it, on whichever replica.
#[tokio::test]
async fn a_claim_that_is_stored_after_it_was_refused_does_not_keep_its_key() {
    let mut server = NatsServer::start().await;
    let runs = Runs::default();
    let (desks, _guards) = replicas_judged_by(&server, &runs, admits).await;
    server.pause().await;
    assert_eq!(pay(&desks[0], "k", "[5,false]").await["error"]["code"], -32014);
    server.resume().await;
    // On the other replica, which has no memory of its own of the claim.
    let again = paid(&desks[1], "k").await;
    assert_eq!((again, runs.load(Ordering::SeqCst)), (json!({"jsonrpc": "2.0", "result": 5, "id": 1}), 1));
    assert_eq!(paid(&desks[0], "k").await["idempotent_replay"], true);
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

/// The answer for the key once the call is neither refused nor reported as running.
async fn paid(desk: &Desk, key: &str) -> Value {
    within(2 * SOON, async {
        loop {
            let again = pay(desk, key, "[5,false]").await;
            if again["error"]["code"] != -32014 && again["error"]["data"]["idempotency"] != "running" {
                return again;
            }
            sleep(Duration::from_millis(100)).await;
        }
    })
    .await
}

/// SPEC.md §6.1: a call that is given up before it began does not run.
#[tokio::test]
async fn a_claim_whose_call_is_given_up_does_not_keep_its_key() {
    let mut server = NatsServer::start().await;
    let runs = Runs::default();
    let (desks, _guards) = replicas_judged_by(&server, &runs, admits).await;
    for number in 0..20 {
        let key = format!("k{number}");
        server.pause().await;
        let given_up = tokio::time::timeout(Duration::from_millis(500), pay(&desks[0], &key, "[5,false]")).await;
        server.resume().await;
        // On a busy machine, it may be refused before it is given up. Neither runs it.
        if let Ok(answer) = &given_up {
            assert_eq!(answer["error"]["code"], -32014, "{answer}");
        }
        assert_eq!(paid(&desks[1], &key).await["result"], 5);
        assert_eq!(paid(&desks[1], &key).await["idempotent_replay"], true);
        assert_eq!(runs.load(Ordering::SeqCst), number + 1);
        if given_up.is_err() {
            return;
        }
    }
    panic!("refused each time");
}

/// A store whose claims take longer than their calls may wait, and which does not answer when they are given back.
#[derive(Debug)]
struct Late {
    store: Arc<dyn OutcomeStore>,
    clock: OnceLock<Arc<ManualClock>>,
}

impl OutcomeStore for Late {
    fn held(&self) -> (usize, usize) {
        self.store.held()
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn room_for_subjects(&self) -> usize {
        self.store.room_for_subjects()
    }

    fn claim<'a>(
        &'a self,
        key: &'a OutcomeKey,
        content: Bytes,
        keep: Duration,
    ) -> BoxFuture<'a, Result<Claimed, OutcomeStoreError>> {
        let claim = self.store.claim(key, content, keep);
        claim.inspect(|_| self.clock.get().unwrap().advance_ms(60_000)).boxed()
    }

    fn replace<'a>(
        &'a self,
        _key: &'a OutcomeKey,
        _revision: u64,
        _content: Bytes,
        _keep: Duration,
    ) -> BoxFuture<'a, Result<u64, OutcomeStoreError>> {
        async { Err(OutcomeStoreError::Unanswered) }.boxed()
    }

    fn read<'a>(&'a self, key: &'a OutcomeKey) -> BoxFuture<'a, Result<Option<(u64, Bytes)>, OutcomeStoreError>> {
        self.store.read(key)
    }

    fn approvals(&self) -> BoxFuture<'_, Result<Vec<OutcomeKey>, OutcomeStoreError>> {
        self.store.approvals()
    }

    fn withdraw(&self, change: Withdrawal) {
        self.store.withdraw(change);
    }
}

/// SPEC.md §6.1: nor does a call that was too late to begin.
#[tokio::test]
async fn a_key_that_cannot_be_given_back_at_once_is_given_back_later() {
    let server = NatsServer::start().await;
    let (runs, late) = (Runs::default(), Mutex::new(Vec::new()));
    let judge = |guard: Arc<dyn ReplayGuard>| -> Arc<dyn ReplayGuard> {
        let store = Arc::new(Late { store: guard.outcomes().unwrap(), clock: OnceLock::new() });
        let mut all = late.lock().unwrap();
        all.push(Arc::clone(&store));
        let is_first = all.len() == 1;
        Admits::over(if is_first { store } else { guard.outcomes().unwrap() })
    };
    let (desks, _guards) = replicas_judged_by(&server, &runs, judge).await;
    late.lock().unwrap()[0].clock.set(Arc::clone(&desks[0].clock)).unwrap();
    assert_eq!(pay(&desks[0], "k", "[5,false]").await["error"]["code"], -32003);
    // At once, unless the machine stood still and the store was asked again meanwhile.
    let first = pay(&desks[1], "k", "[5,false]").await;
    if first["result"] != 5 {
        let error = &first["error"];
        assert!(error["data"]["idempotency"] == "running" || error["code"] == -32014, "{first}");
        assert_eq!(paid(&desks[1], "k").await["result"], 5);
    }
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn what_is_withdrawn_goes_when_it_comes_and_nothing_else_does() {
    let server = NatsServer::start().await;
    let guard = guard(BusConfig::open(&server.url()), |_| {}).await;
    let store = store(&guard).await;
    let withdraw = |key: &OutcomeKey, revision| {
        let (content, instead) = ("withdrawn".into(), "instead".into());
        store.withdraw(Withdrawal { key: key.clone(), revision, content, instead, keep: MINUTE });
    };
    let claim = async |key, content: &'static str| store.claim(key, content.into(), MINUTE).await;
    let held = async |key| match claim(key, "late").await {
        Ok(Claimed::Held { content, .. }) => content,
        other => panic!("{other:?}"),
    };
    let [stored, absent, others, coming] = ["stored", "absent", "others", "coming"].map(|scope| key("ann", scope));
    claim(&stored, "withdrawn").await.unwrap();
    claim(&others, "running").await.unwrap();
    let Ok(Claimed::New { revision }) = claim(&coming, "before").await else { panic!() };
    for (key, revision) in [(&stored, 0), (&absent, 0), (&others, 0), (&coming, revision)] {
        withdraw(key, revision);
    }
    // The store looks for all of them once a second.
    within(SOON, async {
        while held(&stored).await != "instead" {
            sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    sleep(Duration::from_millis(2_500)).await;
    assert_eq!([held(&stored).await, held(&absent).await], ["instead", "instead"]);
    assert_eq!([held(&others).await, held(&coming).await], ["running", "before"]);
    store.replace(&coming, revision, "withdrawn".into(), MINUTE).await.unwrap();
    within(SOON, async {
        while held(&coming).await != "instead" {
            sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    assert_eq!(held(&others).await, "running");
}
