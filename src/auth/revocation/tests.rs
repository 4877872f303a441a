#![allow(clippy::unwrap_used, reason = "tests")]
use std::time::Duration;

use super::*;
use crate::nats::BusConfig;

struct Desk {
    folder: tempfile::TempDir,
    key: OperatorKey,
    config: RevocationConfig,
}

impl Desk {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let key = OperatorKey::generate("op-1").unwrap();
        let config = RevocationConfig {
            operator: vec![OperatorConfig { kid: "op-1".into(), x: key.x() }],
            signatures: 1,
            refuse_after_s: 15,
            serve_stale: false,
            state: Some(folder.path().join("state")),
            nats: BusConfig::open("nats://127.0.0.1:1"),
        };
        Self { folder, key, config }
    }

    fn open(&self) -> Result<Revocations, RevocationError> {
        Revocations::open(&self.config, &prod(), &FileTrust::default())
    }

    fn signed(&self, list: &RevocationList) -> String {
        SignedList::new(list).signed(&self.key).to_text().unwrap()
    }
}

fn prod() -> Name {
    Name::new("prod").unwrap()
}

fn agent(name: &str) -> Revocation {
    Revocation { kind: Kind::Agent, name: name.into(), until: None, at_ms: 0, reason: String::new() }
}

fn holds(revocations: &Revocations) -> bool {
    revocations.revokes([(Kind::Agent, "planner")], 0).is_some()
}

fn refused(offered: ListVerdict) -> String {
    let ListVerdict::Invalid(reason) = offered else { unreachable!("{offered:?}") };
    reason
}

#[test]
fn only_a_newer_signed_list_of_this_environment_changes_anything() {
    let desk = Desk::new();
    let revocations = desk.open().unwrap();
    let first = RevocationList::first(prod(), 0);
    let second = first.revoke(agent("planner")).unwrap();
    let (old, new) = (desk.signed(&first), desk.signed(&second));
    assert!(matches!(revocations.offer(old.as_bytes()), ListVerdict::Newer(_)));
    assert!(!holds(&revocations));
    // Whoever can write the bucket adds names of others.
    let embellished = new.replace("\"signatures\":[", "\"signatures\":[{\"kid\":\"ciso\",\"sig\":\"x\"},");
    let ListVerdict::Newer(applied) = revocations.offer(embellished.as_bytes()) else { panic!("{embellished}") };
    assert_eq!(applied.signers, ["op-1"]);
    assert_eq!((applied.number, applied.revoked, applied.restored), (2, vec!["agent planner".into()], vec![]));
    assert!(holds(&revocations));
    assert_eq!(revocations.offer(new.as_bytes()), ListVerdict::Current);

    assert!(refused(revocations.offer(old.as_bytes())).contains("put back an old one"), "rolled back");
    let other = RevocationList { number: 2, at_ms: 9, revoked: Vec::new(), ..first.clone() };
    assert!(refused(revocations.offer(desk.signed(&other).as_bytes())).contains("signed at once"), "the same number");
    assert!(refused(revocations.offer(b"")).contains("not a signed list"), "deleted");
    let mallory = OperatorKey::generate("op-1").unwrap();
    let restored = second.restore(Kind::Agent, "planner", 0).unwrap();
    let forged = SignedList::new(&restored).signed(&mallory).to_text().unwrap();
    assert!(refused(revocations.offer(forged.as_bytes())).contains("signed by 0"));
    let elsewhere = RevocationList { environment: Name::new("test").unwrap(), ..restored.clone() };
    assert!(refused(revocations.offer(desk.signed(&elsewhere).as_bytes())).contains("environment test"));
    assert!(holds(&revocations));

    assert!(matches!(revocations.offer(desk.signed(&restored).as_bytes()), ListVerdict::Newer(_)));
    assert!(!holds(&revocations));
}

#[test]
fn a_restart_remembers_what_was_seen() {
    let desk = Desk::new();
    let second = RevocationList::first(prod(), 0).revoke(agent("planner")).unwrap();
    let old = desk.signed(&RevocationList::first(prod(), 0));
    let revocations = desk.open().unwrap();
    assert!(revocations.stale().is_some(), "nothing was seen yet");
    revocations.offer(desk.signed(&second).as_bytes());
    revocations.keep().unwrap();

    let again = desk.open().unwrap();
    assert!(holds(&again) && again.stale().is_some(), "in force, and not confirmed");
    assert!(refused(again.offer(old.as_bytes())).contains("list 2 was seen before"));

    // Another process with the same file has seen more, and keeps that.
    let third = second.revoke(agent("bob")).unwrap();
    let ahead = desk.open().unwrap();
    ahead.offer(desk.signed(&third).as_bytes());
    ahead.keep().unwrap();
    again.keep().unwrap();
    assert_eq!(desk.open().unwrap().in_force().0, 3);

    let path = desk.folder.path().join("state");
    write_secret(&path, &std::fs::read_to_string(&path).unwrap()[1..], true).unwrap();
    let error = desk.open().unwrap_err().to_string();
    assert!(error.contains("not a signed list") && error.contains("sealwire revocations"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn without_sight_of_the_bucket_everything_is_refused_after_the_bound() {
    let desk = Desk::new();
    let revocations = desk.open().unwrap();
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(revocations.stale().unwrap().contains("not been seen yet"));
    revocations.saw(Instant::now());
    tokio::time::advance(Duration::from_millis(14_900)).await;
    assert_eq!(revocations.stale(), None);
    tokio::time::advance(Duration::from_millis(200)).await;
    assert!(revocations.stale().unwrap().contains("too long"));
    revocations.saw(Instant::now());
    assert_eq!(revocations.stale(), None);

    let careless = Desk { config: RevocationConfig { serve_stale: true, ..desk.config.clone() }, ..desk };
    let revocations = careless.open().unwrap();
    assert!(revocations.stale().is_some(), "without any list, nothing is known");
    revocations.offer(careless.signed(&RevocationList::first(prod(), 0)).as_bytes());
    revocations.keep().unwrap();
    assert!(careless.open().unwrap().stale().is_none());
    assert!(Revocations::default().stale().is_none(), "nothing is followed");
}
