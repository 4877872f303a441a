//! Policies that operators push, over a real nats-server: in force at every replica, and nothing that operators have not signed.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use sealwire::internal::auth::{
    Bucket, BucketError, BucketSubjects, FollowerId, FollowerRole, MAX_PACKAGE_BYTES, OperatorKey, RevocationList,
    SignedList, Stage,
};
use sealwire::internal::policy::{Package, PackageReport, SignedPackage};
use sealwire::{BusConfig, Clock as _, Name, SystemClock};
use sealwire_testkit::site::{Answer, POLICY, Site, methods, sum};
use sealwire_testkit::{NatsServer, SOON, settle, within};

use crate::bucket_accounts;

/// No rule lets anybody call.
const NOTHING: &str = "[role.worker]\ndescription = \"nothing yet\"\n";
/// Not a method of the service.
const WRONG: &str = "[role.worker]\nallow = [\"site/ad\"]\n";

struct Operator {
    key: OperatorKey,
    bucket: Bucket,
    number: u64,
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

impl Operator {
    /// With both buckets, and a list in which nothing is revoked.
    async fn new(bus: &BusConfig) -> Self {
        let key = OperatorKey::generate("op-1").unwrap();
        let subjects = BucketSubjects::of(&name("test"));
        let mut lists = Bucket::open(bus, subjects, ("operator", "operator"), Vec::new()).await.unwrap();
        lists.create(1).await.unwrap();
        let list = RevocationList::first(name("test"), SystemClock.now_ms());
        lists.write(&SignedList::new(&list).signed(&key).to_text().unwrap(), None).await.unwrap();
        let subjects = BucketSubjects::policies(&name("test"), &name("site"), Stage::Active);
        let reports = subjects.reports();
        let mut bucket = Bucket::open(bus, subjects, ("operator", "operator"), vec![reports]).await.unwrap();
        bucket.create(1).await.unwrap();
        Self { key, bucket, number: 0 }
    }

    fn section(&self, url: &str, more: &str) -> String {
        format!(
            "[revocation]\noperator = [{{ kid = \"op-1\", x = \"{}\" }}]\nserve_stale = true\n[revocation.nats]\nurls = [\"{url}\"]\n{more}",
            self.key.x()
        )
    }

    fn package(&self, number: u64, policy: &str) -> SignedPackage {
        let files = BTreeMap::from([("policy.toml".to_owned(), policy.to_owned())]);
        let (environment, service) = (name("test"), name("site"));
        let package = Package { environment, service, stage: Stage::Active, number, at_ms: 0, files };
        SignedPackage::new(&package).unwrap()
    }

    fn signed(&self, number: u64, policy: &str) -> String {
        self.package(number, policy).signed(&self.key).to_text().unwrap()
    }

    async fn push(&mut self, policy: &str) {
        self.number += 1;
        let text = self.signed(self.number, policy);
        self.bucket.write(&text, None).await.unwrap();
    }

    /// Waits until so many replicas report what is wanted.
    async fn report(&mut self, replicas: usize, wanted: impl Fn(&PackageReport) -> bool) {
        let ask = self.bucket.subjects().ask();
        let mut reports: Vec<FollowerId> = Vec::new();
        let all = async {
            while reports.len() < replicas {
                // A report that came before we listened is asked for again.
                let Ok(message) = tokio::time::timeout(Duration::from_millis(500), self.bucket.next()).await else {
                    self.bucket.publish(&ask, b"").await.unwrap();
                    continue;
                };
                let report: PackageReport = serde_json::from_slice(&message.unwrap().payload).unwrap();
                if wanted(&report) && !reports.contains(&report.id) {
                    reports.push(report.id);
                }
            }
        };
        within(SOON, all).await;
    }

    async fn in_force(&mut self, replicas: usize) {
        let number = self.number;
        self.report(replicas, |report| report.active.as_ref().is_some_and(|active| active.number == number)).await;
    }
}

/// `[policy]` of a site whose policies come from the bucket.
fn follow(site: &Site, more: &str) {
    site.write_config(more);
    let path = site.path("sealwire.toml");
    let config = std::fs::read_to_string(&path).unwrap();
    let folder = "folder = \"policies\"\n";
    assert!(config.contains(folder), "{config}");
    sealwire_testkit::site::write(&path, &config.replace(folder, &format!("{folder}source = \"bucket\"\n")));
}

fn denied(answer: &Answer) -> bool {
    matches!(answer, Answer::Signed(text) if text.contains("-32002"))
}

fn policy_is_refused(served: &sealwire_testkit::site::Served) -> bool {
    served.running.health().refused_reloads().iter().any(|refused| refused.what == "policy")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pushed_policies_are_in_force_at_every_replica_and_what_cannot_be_used_changes_nothing() {
    let server = NatsServer::start().await;
    let site = Site::new(&server.url());
    let mut operator = Operator::new(&BusConfig::open(&server.url())).await;
    follow(&site, &format!("guard = \"shared\"\n{}", operator.section(&server.url(), "")));
    let (one, two) = (site.serve(methods()).await, site.serve(methods()).await);
    let ann = site.caller("ann").await;
    assert_eq!(ann.add().await, sum(), "the folder decides until there is a package");
    // Whichever replica it meets.
    let all = async |wanted: fn(&Answer) -> bool| {
        for _ in 0..6 {
            let answer = ann.add().await;
            assert!(wanted(&answer), "{answer:?}");
        }
    };
    operator.push(NOTHING).await;
    operator.in_force(2).await;
    all(denied).await;
    // Files decide nothing any more.
    sealwire_testkit::site::write(&site.path("policies/policy.toml"), &format!("# changed\n{POLICY}"));
    operator.push(POLICY).await;
    operator.in_force(2).await;
    all(|answer| *answer == sum()).await;

    operator.push(WRONG).await;
    let number = operator.number;
    let cannot = |report: &PackageReport| {
        let refused = report.refused.as_ref();
        refused.is_some_and(|refused| refused.id.number == number && refused.reason.contains("site/ad"))
    };
    operator.report(2, cannot).await;
    all(|answer| *answer == sum()).await;
    assert!(policy_is_refused(&one) && policy_is_refused(&two));
    operator.push(NOTHING).await;
    operator.in_force(2).await;
    all(denied).await;
    assert!(!policy_is_refused(&one) && !policy_is_refused(&two));
    one.stop().await.unwrap();
    two.stop().await.unwrap();
}

/// Whoever can write the bucket and has no operator's key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_of_policies_that_is_forged_rolled_back_or_emptied_changes_nothing() {
    let server = NatsServer::start().await;
    let site = Site::new(&server.url());
    let mut operator = Operator::new(&BusConfig::open(&server.url())).await;
    follow(&site, &operator.section(&server.url(), ""));
    let served = site.serve(methods()).await;
    let ann = site.caller("ann").await;
    operator.push(POLICY).await;
    operator.in_force(1).await;
    operator.push(NOTHING).await;
    operator.in_force(1).await;
    let mallory = OperatorKey::generate("op-1").unwrap();
    let forged = operator.package(9, POLICY).signed(&mallory).to_text().unwrap();
    let unsigned = operator.package(9, POLICY).to_text().unwrap();
    for (wrong, problem) in [
        (operator.signed(1, POLICY), "holds package 1, and package 2 was seen"),
        (operator.signed(2, POLICY), "holds package 2, and package 2 was seen"),
        (forged, "signed by 0"),
        (unsigned, "signed by 0"),
        ("{}".to_owned(), "not a signed package"),
    ] {
        operator.bucket.write(&wrong, None).await.unwrap();
        operator.report(1, |report| report.problem.as_ref().is_some_and(|told| told.contains(problem))).await;
        assert!(denied(&ann.add().await), "{problem}");
    }
    // A restart remembers, while the bucket still lies, and while there is none.
    served.stop().await.unwrap();
    operator.bucket.write(&operator.signed(1, POLICY), None).await.unwrap();
    let served = site.serve(methods()).await;
    operator.report(1, |report| report.problem.as_ref().is_some_and(|told| told.contains("put back an old one"))).await;
    assert!(denied(&ann.add().await));
    let client = server.client().await;
    let gone = format!("$JS.API.STREAM.DELETE.{}", operator.bucket.subjects().stream());
    within(SOON, client.request(gone, "".into())).await.unwrap();
    operator.report(1, |report| report.problem.as_ref().is_some_and(|told| told.contains("there is no bucket"))).await;
    served.stop().await.unwrap();
    let served = site.serve(methods()).await;
    assert!(denied(&ann.add().await));
    operator.bucket.create(1).await.unwrap();
    operator.push(POLICY).await;
    operator.in_force(1).await;
    assert_eq!(ann.add().await, sum());
    served.stop().await.unwrap();
}

/// The place of the state file cannot be written for a while.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_kept_is_reported_and_kept_once_that_is_possible() {
    let server = NatsServer::start().await;
    let site = Site::new(&server.url());
    let mut operator = Operator::new(&BusConfig::open(&server.url())).await;
    follow(&site, &operator.section(&server.url(), ""));
    let served = site.serve(methods()).await;
    let metric = |name: &str, value: &str| {
        let mut registry = sealwire::metrics::Registry::default();
        sealwire::metrics::Report::report_to(&served.running, &mut registry);
        let mut text = String::new();
        prometheus_client::encoding::prometheus_text::encode(&mut text, &registry).unwrap();
        assert!(text.lines().any(|line| line == format!("{name} {value}")), "{name} {value}\n{text}");
    };
    let state = site.path("site.policy");
    std::fs::create_dir(&state).unwrap();
    operator.push(NOTHING).await;
    operator.report(1, |report| report.active.is_some() && report.unkept.is_some()).await;
    metric("sealwire_policy_package_unkept", "1.0");
    std::fs::remove_dir(&state).unwrap();
    operator.report(1, |report| report.active.is_some() && report.unkept.is_none()).await;
    metric("sealwire_policy_package_unkept", "0.0");
    metric("sealwire_policy_bucket_wrong", "0.0");
    // A bucket that is rolled back shows as well.
    operator.bucket.write("{}", None).await.unwrap();
    operator.report(1, |report| report.problem.is_some()).await;
    metric("sealwire_policy_bucket_wrong", "1.0");
    served.stop().await.unwrap();
    operator.bucket.write(&operator.signed(9, WRONG), None).await.unwrap();
    let served = site.serve(methods()).await;
    operator.report(1, |report| report.refused.is_some()).await;
    assert!(denied(&site.caller("ann").await.add().await), "the folder would let her");
    served.stop().await.unwrap();
}

/// An empty folder, and a broker with the bucket that is not there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn before_the_first_package_an_empty_folder_denies_everything() {
    let (server, mut vault) = (NatsServer::start().await, NatsServer::start().await);
    let site = Site::new(&server.url());
    let mut operator = Operator::new(&BusConfig::open(&vault.url())).await;
    follow(&site, &operator.section(&vault.url(), ""));
    std::fs::remove_file(site.path("policies/policy.toml")).unwrap();
    let served = site.serve(methods()).await;
    let ann = site.caller("ann").await;
    assert!(denied(&ann.add().await));
    let condition =
        || served.running.conditions().into_iter().find(|condition| condition.name == "policy").unwrap().unmet;
    assert!(condition().is_some());
    operator.push(POLICY).await;
    operator.in_force(1).await;
    assert_eq!((ann.add().await, condition()), (sum(), None));
    served.stop().await.unwrap();
    // What was kept is in force again although nothing can be asked.
    vault.pause().await;
    let served = site.serve(methods()).await;
    assert_eq!(ann.add().await, sum());
    served.stop().await.unwrap();
    vault.resume().await;
}

/// At a broker with the accounts of docs/revocation.md, a service's login at the bucket is stolen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stolen_login_of_a_service_cannot_push_policies() {
    let server = bucket_accounts::start().await;
    let mut operator = Operator::new(&bucket_accounts::login(&server, "operator")).await;
    let site = Site::new(&server.url());
    follow(&site, &operator.section(&server.url(), "user = \"site\"\npassword = \"secret\"\n"));
    std::fs::set_permissions(site.path("sealwire.toml"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let served = site.serve(methods()).await;
    let ann = site.caller("ann").await;
    operator.push(NOTHING).await;
    operator.in_force(1).await;
    assert!(denied(&ann.add().await));

    let before = operator.bucket.read().await.unwrap().unwrap();
    let names = operator.bucket.subjects().clone();
    let thief = async_nats::ConnectOptions::with_user_and_password("site".into(), "secret".into());
    let thief = within(SOON, thief.connect(server.url())).await.unwrap();
    let body = format!("{{\"last_by_subj\":\"{}\"}}", names.key());
    // JetStream answers wherever it is told to, with its own rights.
    thief.publish_with_reply(names.api("MSG.GET", None), names.key(), body.into()).await.unwrap();
    let older = operator.signed(7, POLICY);
    for subject in [names.key(), names.told(), names.ask(), format!("$JS.API.STREAM.PURGE.{}", names.stream())] {
        thief.publish(subject, older.clone().into()).await.unwrap();
    }
    let other = FollowerId { role: FollowerRole::Service, name: name("other"), instance: "x".into() };
    thief.publish(names.report(&other), "{}".into()).await.unwrap();
    within(SOON, thief.flush()).await.unwrap();
    settle(&within(SOON, async_nats::connect(server.url())).await.unwrap()).await;
    while let Some(Some(message)) = operator.bucket.next().now_or_never() {
        assert!(message.subject.contains(".report.service.site."), "{}", message.subject);
    }
    assert_eq!(operator.bucket.read().await.unwrap().unwrap(), before);
    assert!(denied(&ann.add().await));
    served.stop().await.unwrap();
}

/// What JetStream can be made to say on these subjects is not what the bucket says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_merely_said_of_the_bucket_is_no_problem_of_it_and_is_answered_rarely() {
    let server = NatsServer::start().await;
    let site = Site::new(&server.url());
    let mut operator = Operator::new(&BusConfig::open(&server.url())).await;
    follow(&site, &operator.section(&server.url(), ""));
    let served = site.serve(methods()).await;
    operator.push(POLICY).await;
    operator.in_force(1).await;
    let (client, names) = (server.client().await, operator.bucket.subjects().clone());
    let shadow = BucketSubjects::policies(&name("test"), &name("site"), Stage::Shadow);
    let (mut reports, began) = (client.subscribe(names.reports()).await.unwrap(), std::time::Instant::now());
    for _ in 0..1_000 {
        for subject in [names.told(), shadow.told(), names.ask()] {
            client.publish(subject, "{\"type\":\"io.nats.jetstream.api.v1\"}".into()).await.unwrap();
        }
    }
    settle(&client).await;
    let is_well = |report: &PackageReport| report.problem.is_none() && report.shadow.problem.is_none();
    operator.report(1, is_well).await;
    settle(&client).await;
    let mut many = 0;
    while let Some(Some(message)) = reports.next().now_or_never() {
        assert!(is_well(&serde_json::from_slice(&message.payload).unwrap()));
        many += 1;
    }
    let most = began.elapsed().as_millis() / 50 + 1;
    assert!(many >= 1 && many <= most, "{many} reports, and {most} are the most");
    served.stop().await.unwrap();
}

/// Two operators write over the same package, and the longest one that there can be gets to a replica, at a broker as `sealwire setup` makes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_written_over_what_was_not_read_and_the_longest_package_is_put_in_force() {
    let server = NatsServer::start_with("max_payload: 262144").await;
    let site = Site::new(&server.url());
    let mut operator = Operator::new(&BusConfig::open(&server.url())).await;
    follow(&site, &operator.section(&server.url(), ""));
    let served = site.serve(methods()).await;
    let longest = {
        let text = |more: usize| {
            let package = operator.package(1, &format!("{NOTHING}# {}", "x".repeat(more)));
            package.signed(&operator.key).to_text()
        };
        let length = |more: usize| text(more).unwrap().len();
        let more = (MAX_PACKAGE_BYTES - length(0)) * 3_000 / (length(4_000) - length(1_000));
        (0..40).find_map(|less| text(more + 20 - less).ok()).unwrap()
    };
    assert!(longest.len() > MAX_PACKAGE_BYTES - 16, "{}", longest.len());
    operator.number = 1;
    operator.bucket.write(&longest, Some(0)).await.unwrap();
    operator.in_force(1).await;
    let other = operator.signed(2, POLICY);
    let overtaken = operator.bucket.write(&other, Some(0)).await;
    assert!(matches!(overtaken, Err(BucketError::Overtaken)), "{overtaken:?}");
    assert_eq!(operator.bucket.read().await.unwrap().unwrap().text, longest.as_bytes());
    assert!(denied(&site.caller("ann").await.add().await));
    // Also at a start, from the bucket alone.
    served.stop().await.unwrap();
    std::fs::remove_file(site.path("site.policy")).unwrap();
    let served = site.serve(methods()).await;
    operator.in_force(1).await;
    served.stop().await.unwrap();
}
