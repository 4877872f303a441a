//! What operators revoke, over a real nats-server: in force everywhere within a second, and never lifted by whoever can write the bucket.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::{FutureExt as _, StreamExt as _, stream};
use sealwire::errors::code;
use sealwire::internal::auth::{
    Bucket, BucketSubjects, FollowerId, FollowerReport, FollowerRole, OperatorKey, Revocation, RevocationKind as Kind,
    RevocationList, SignedList,
};
use sealwire::serve::State;
use sealwire::{
    BusConfig, CallStream, Client, ClientError, Clock as _, Credentials, Ctx, Name, Router, RpcError, SystemClock,
};
use sealwire_testkit::site::{Answer, Served, Site, agent_key, methods, sum};
use sealwire_testkit::{NatsServer, SOON, within};

use crate::bucket_accounts;

/// For how many seconds a replica goes on without having seen the list, where it is not the test's matter: longer than any machine
/// stands still.
const UNSEEN_S: u64 = 60;

/// An operator, and the list as it was signed last.
struct Operator {
    key: OperatorKey,
    bucket: Bucket,
    list: RevocationList,
    /// When it was about to be written.
    began: Instant,
}

impl Operator {
    async fn new(bus: &BusConfig) -> Self {
        let environment = Name::new("test").unwrap();
        let reports = BucketSubjects::of(&environment).reports();
        let mut bucket =
            Bucket::open(bus, BucketSubjects::of(&environment), ("operator", "operator"), vec![reports]).await.unwrap();
        bucket.create(1).await.unwrap();
        let list = RevocationList::first(environment, SystemClock.now_ms());
        let mut operator = Self { key: OperatorKey::generate("op-1").unwrap(), bucket, list, began: Instant::now() };
        operator.write(operator.list.clone()).await;
        operator
    }

    /// `[revocation]` of a service that believes this operator.
    fn section(&self, url: &str, refuse_after_s: u64, more: &str) -> String {
        format!(
            "[revocation]\noperator = [{{ kid = \"op-1\", x = \"{}\" }}]\nrefuse_after_s = {refuse_after_s}\n[revocation.nats]\nurls = [\"{url}\"]\n{more}",
            self.key.x()
        )
    }

    fn text(&self, list: &RevocationList) -> String {
        SignedList::new(list).signed(&self.key).to_text().unwrap()
    }

    async fn write(&mut self, list: RevocationList) {
        let text = self.text(&list);
        self.began = Instant::now();
        self.bucket.write(&text, None).await.unwrap();
        self.list = list;
    }

    async fn revoke(&mut self, kind: Kind, name: &str) {
        let entry = Revocation { kind, name: name.into(), until: None, at_ms: 0, reason: String::new() };
        self.write(self.list.revoke(entry).unwrap()).await;
    }

    async fn restore(&mut self, kind: Kind, name: &str) {
        self.write(self.list.restore(kind, name, 0).unwrap()).await;
    }

    /// Waits until so many replicas report the present list; how long each took.
    async fn in_force(&mut self, replicas: usize) -> Vec<(Duration, FollowerReport)> {
        let (began, number, ask) = (self.began, self.list.number, self.bucket.subjects().ask());
        let mut reports: Vec<(Duration, FollowerReport)> = Vec::new();
        let all = async {
            while reports.len() < replicas {
                // A report that came before we listened is asked for again.
                let Ok(message) = tokio::time::timeout(Duration::from_millis(500), self.bucket.next()).await else {
                    self.bucket.publish(&ask, b"").await.unwrap();
                    continue;
                };
                let report: FollowerReport = serde_json::from_slice(&message.unwrap().payload).unwrap();
                if report.number == number && !reports.iter().any(|(_, known)| known.id == report.id) {
                    reports.push((began.elapsed(), report));
                }
            }
        };
        within(SOON, all).await;
        reports
    }
}

async fn until(wanted: impl AsyncFn() -> bool) {
    let reached = async {
        while !wanted().await {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    within(2 * SOON, reached).await;
}

async fn client(site: &Site, url: &str, agent: &str) -> Client {
    let bus = BusConfig::open(url);
    let (environment, name) = (Name::new("test").unwrap(), Name::new(agent).unwrap());
    let credentials = Credentials::new(environment, name, agent_key(agent), bus).token(site.token(agent, &["worker"]));
    Client::connect(credentials).await.unwrap()
}

fn denied(answer: &Answer) -> bool {
    matches!(answer, Answer::Signed(text) if text.contains("-32002") && text.contains("revoked by an operator"))
}

fn unknown(answer: &Answer) -> bool {
    matches!(answer, Answer::Hint(text) if text.contains("-32010"))
}

/// Counts runs, and has a method and a stream that go on until they are ended.
fn endless() -> (Router<Arc<AtomicU64>>, Arc<AtomicU64>) {
    let running = Arc::<AtomicU64>::default();
    let router = Router::new(Arc::clone(&running))
        .method("site/add", |_: Ctx<Arc<AtomicU64>>, (a, b): (i64, i64)| async move { Ok::<_, RpcError>(a + b) })
        .method("site/wait", |ctx: Ctx<Arc<AtomicU64>>, (): ()| async move {
            ctx.state().fetch_add(1, Ordering::SeqCst);
            std::future::pending::<()>().await;
            Ok::<_, RpcError>(())
        })
        .stream("site/count", |_: Ctx<Arc<AtomicU64>>, (): ()| async move {
            Ok::<_, RpcError>(stream::iter(1_u64..).then(|number| async move {
                tokio::time::sleep(Duration::from_millis(10)).await;
                Ok::<_, RpcError>(number)
            }))
        });
    (router, running)
}

async fn three(site: &Site) -> (Vec<Served>, Vec<Arc<AtomicU64>>) {
    let (mut served, mut running) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let (router, count) = endless();
        served.push(site.serve(router).await);
        running.push(count);
    }
    (served, running)
}

/// Three replicas with one guard. Streams and calls under way are ended, everywhere, and nothing of another agent is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_agent_is_refused_and_cut_off_at_every_replica() {
    let server = NatsServer::start().await;
    let site = Site::new(&server.url());
    let mut operator = Operator::new(&BusConfig::open(&server.url())).await;
    site.write_config(&format!("guard = \"shared\"\n{}", operator.section(&server.url(), UNSEEN_S, "")));
    let (served, running) = three(&site).await;
    let (ann, bob) = (site.caller("ann").await, site.caller("bob").await);
    let wait = |caller: &sealwire_testkit::site::Caller| {
        let caller = caller.clone();
        tokio::spawn(async move { caller.call("site/wait", "[]", 2 * SOON).await })
    };
    let (cut, kept) = (wait(&ann), wait(&bob));
    until(async || running.iter().map(|count| count.load(Ordering::SeqCst)).sum::<u64>() == 2).await;
    let client = client(&site, &server.url(), "ann").await;
    let mut numbers: CallStream<u64> = client.stream("site", "site/count", ());
    assert_eq!(within(SOON, numbers.next()).await.unwrap().unwrap(), 1);

    operator.revoke(Kind::Agent, "ann").await;
    let reports = operator.in_force(3).await;
    println!("in force after {:?}", reports.iter().map(|(took, _)| *took).collect::<Vec<_>>());
    let answer = within(SOON, cut).await.unwrap();
    assert!(denied(&answer) && matches!(&answer, Answer::Signed(text) if text.contains("\"unknown\"")), "{answer:?}");
    let ended = loop {
        match within(SOON, numbers.next()).await.unwrap() {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(&ended, ClientError::Remote(error) if error.code() == code::PERMISSION_DENIED), "{ended:?}");
    for _ in 0..6 {
        assert!(unknown(&ann.add().await), "whichever replica it meets");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(bob.add().await, sum());
    assert!(!kept.is_finished(), "another agent's call goes on");
    let ask = operator.bucket.subjects().ask();
    // A report that was made earlier may be read first.
    let began = Instant::now();
    loop {
        operator.bucket.publish(&ask, b"").await.unwrap();
        let cut_off: u64 = operator.in_force(3).await.iter().map(|(_, report)| report.cut_off).sum();
        if cut_off == 2 {
            break;
        }
        assert!(cut_off < 2 && began.elapsed() < SOON, "{cut_off}");
    }

    operator.restore(Kind::Agent, "ann").await;
    operator.in_force(3).await;
    assert_eq!(ann.add().await, sum());

    // Each of the other kinds, until it is restored.
    for (kind, name, refused) in [
        (Kind::Key, "ann.k1", unknown as fn(&Answer) -> bool),
        (Kind::Key, site.issuer.kid(), unknown),
        (Kind::Subject, "ann", unknown),
        (Kind::Method, "site/*", denied),
        (Kind::Service, "site", denied),
        (Kind::Everything, "*", denied),
    ] {
        operator.revoke(kind, name).await;
        operator.in_force(3).await;
        assert!(refused(&ann.add().await), "{kind}");
        let of_bob = bob.add().await;
        assert_eq!(
            of_bob == sum(),
            matches!((kind, name), (Kind::Key, "ann.k1") | (Kind::Subject, _)),
            "{kind} {of_bob:?}"
        );
        operator.restore(kind, name).await;
        operator.in_force(3).await;
    }
    operator.revoke(Kind::Service, "other").await;
    operator.in_force(3).await;
    assert_eq!(ann.add().await, sum(), "another service");
    kept.abort();
    for served in served {
        served.kill().await;
    }
}

/// Whoever can write the bucket and has no operator's key: nothing is lifted, and nothing goes on unseen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_that_is_forged_rolled_back_or_emptied_lifts_nothing() {
    let server = NatsServer::start().await;
    let site = Site::new(&server.url());
    let mut operator = Operator::new(&BusConfig::open(&server.url())).await;
    site.write_config(&operator.section(&server.url(), 5, ""));
    let served = site.serve(methods()).await;
    let (ann, bob) = (site.caller("ann").await, site.caller("bob").await);
    let old = operator.text(&operator.list);
    operator.revoke(Kind::Agent, "ann").await;
    operator.in_force(1).await;
    let restored = operator.list.restore(Kind::Agent, "ann", 0).unwrap();
    let mallory = OperatorKey::generate("op-1").unwrap();
    let forged = SignedList::new(&restored).signed(&mallory).to_text().unwrap();
    let unsigned = SignedList::new(&restored).to_text().unwrap();
    let good = operator.text(&operator.list);
    for wrong in [old.as_str(), &forged, &unsigned, "{}"] {
        operator.bucket.write(wrong, None).await.unwrap();
        // It never counts as seen, so everything is refused once the bound has passed, and nothing is lifted before.
        served.reaches(|state| matches!(state, State::Interrupted(reason) if reason.contains("out of sight"))).await;
        assert!(unknown(&ann.add().await));
        assert!(matches!(bob.add().await, Answer::Signed(text) if text.contains("-32014")), "fails closed");
        operator.bucket.write(&good, None).await.unwrap();
        served.ready().await;
        assert!(unknown(&ann.add().await));
        assert_eq!(bob.add().await, sum());
    }
    // A restart remembers, too.
    served.stop().await.unwrap();
    operator.bucket.write(&old, None).await.unwrap();
    let served = site.start(methods()).await;
    served.reaches(|state| matches!(state, State::Starting(reason) if reason.contains("not been seen"))).await;
    assert!(matches!(ann.add().await, Answer::NoResponders));
    operator.bucket.write(&good, None).await.unwrap();
    served.ready().await;
    assert!(unknown(&ann.add().await));
    served.stop().await.unwrap();
}

/// The bucket is at a broker of its own here, so that the service itself stays connected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_cannot_see_the_bucket_refuses_and_recovers() {
    let (server, mut vault) = (NatsServer::start().await, NatsServer::start().await);
    let site = Site::new(&server.url());
    let operator = Operator::new(&BusConfig::open(&vault.url())).await;
    site.write_config(&operator.section(&vault.url(), 5, ""));
    let served = site.serve(methods()).await;
    let ann = site.caller("ann").await;
    assert_eq!(ann.add().await, sum());
    for silent in [true, false] {
        if silent {
            vault.pause().await;
        } else {
            vault.kill().await;
        }
        served.reaches(|state| matches!(state, State::Interrupted(reason) if reason.contains("out of sight"))).await;
        assert!(matches!(ann.add().await, Answer::Signed(text) if text.contains("-32014")), "{silent}");
        if silent {
            vault.resume().await;
        } else {
            vault.restart().await;
        }
        served.ready().await;
        assert_eq!(ann.add().await, sum());
    }
    served.stop().await.unwrap();
}

/// At a broker with the accounts of docs/revocation.md, a service's login at the bucket is stolen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stolen_login_of_a_service_cannot_write_the_bucket() {
    let server = bucket_accounts::start().await;
    let mut operator = Operator::new(&bucket_accounts::login(&server, "operator")).await;
    let site = Site::new(&server.url());
    site.write_config(&operator.section(&server.url(), UNSEEN_S, "user = \"site\"\npassword = \"secret\"\n"));
    std::fs::set_permissions(site.path("sealwire.toml"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let served = site.serve(methods()).await;
    let ann = site.caller("ann").await;
    assert_eq!(ann.add().await, sum());
    operator.revoke(Kind::Agent, "ann").await;
    operator.in_force(1).await;
    assert!(unknown(&ann.add().await));

    let before = operator.bucket.read().await.unwrap().unwrap();
    let names = BucketSubjects::of(&Name::new("test").unwrap());
    let thief = async_nats::ConnectOptions::with_user_and_password("site".into(), "secret".into());
    let thief = within(SOON, thief.connect(server.url())).await.unwrap();
    let body = format!("{{\"last_by_subj\":\"{}\"}}", names.key());
    // JetStream answers wherever it is told to, with its own rights: it must not be in the bucket's account.
    thief.publish_with_reply(names.api("MSG.GET", None), names.key(), body.clone().into()).await.unwrap();
    for subject in [names.key(), names.told(), names.ask(), format!("$JS.API.STREAM.PURGE.{}", names.stream())] {
        thief.publish(subject, "{}".into()).await.unwrap();
    }
    // It learns nothing of the brokers either, and closes no connection.
    let inbox = "_SVC.site.revocation.x";
    let mut answers = within(SOON, thief.subscribe(inbox)).await.unwrap();
    let id = thief.server_info().server_id;
    for verb in ["PING.CONNZ".to_owned(), format!("{id}.CONNZ"), format!("{id}.KICK")] {
        thief.publish_with_reply(format!("$SYS.REQ.SERVER.{verb}"), inbox, "{\"cid\":1}".into()).await.unwrap();
    }
    // Nor does it report for others, or as something else.
    let forged = FollowerId { role: FollowerRole::Service, name: Name::new("other").unwrap(), instance: "x".into() };
    let gateway = FollowerId { role: FollowerRole::Gateway, name: Name::new("site").unwrap(), ..forged.clone() };
    for id in [&forged, &gateway] {
        thief.publish(names.report(id), "{}".into()).await.unwrap();
    }
    within(SOON, thief.flush()).await.unwrap();
    sealwire_testkit::settle(&within(SOON, async_nats::connect(server.url())).await.unwrap()).await;
    assert!(answers.next().now_or_never().is_none());
    while let Ok(Some(message)) = tokio::time::timeout(Duration::from_millis(100), operator.bucket.next()).await {
        assert!(message.subject.contains(".report.service.site."), "{}", message.subject);
    }
    assert_eq!(operator.bucket.read().await.unwrap().unwrap(), before);
    assert!(unknown(&ann.add().await));
    served.stop().await.unwrap();
}
