#![allow(clippy::unwrap_used, reason = "tests")]
use super::*;
use crate::nats::BusConfig;

struct Desk {
    folder: tempfile::TempDir,
    key: OperatorKey,
    config: SwitchConfig,
}

impl Desk {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let key = OperatorKey::generate("op-1").unwrap();
        let config = SwitchConfig {
            operator: vec![OperatorConfig { kid: "op-1".into(), x: key.x() }],
            signatures: 1,
            refuse_after_s: 15,
            serve_blind: false,
            state: Some(folder.path().join("state")),
            nats: BusConfig::open("nats://127.0.0.1:1"),
        };
        Self { folder, key, config }
    }

    fn open(&self) -> Result<Switch, SwitchError> {
        Switch::open(&self.config, &prod(), &FileTrust::default())
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

fn holds(switch: &Switch) -> bool {
    switch.revokes([(Kind::Agent, "planner")], 0).is_some()
}

fn refused(offered: Offered) -> String {
    let Offered::Refused(reason) = offered else { unreachable!("{offered:?}") };
    reason
}

#[test]
fn only_a_newer_signed_list_of_this_environment_changes_anything() {
    let desk = Desk::new();
    let switch = desk.open().unwrap();
    let first = RevocationList::first(prod(), 0);
    let second = first.revoke(agent("planner")).unwrap();
    let (old, new) = (desk.signed(&first), desk.signed(&second));
    assert!(matches!(switch.offer(old.as_bytes()), Offered::Applied(_)));
    assert!(!holds(&switch));
    let Offered::Applied(applied) = switch.offer(new.as_bytes()) else { unreachable!() };
    assert_eq!((applied.number, applied.revoked, applied.restored), (2, vec!["agent planner".into()], vec![]));
    assert!(holds(&switch));
    assert_eq!(switch.offer(new.as_bytes()), Offered::Same);

    assert!(refused(switch.offer(old.as_bytes())).contains("put back an old one"), "rolled back");
    let other = RevocationList { number: 2, at_ms: 9, revoked: Vec::new(), ..first.clone() };
    assert!(refused(switch.offer(desk.signed(&other).as_bytes())).contains("signed at once"), "the same number");
    assert!(refused(switch.offer(b"")).contains("not a signed list"), "deleted");
    let mallory = OperatorKey::generate("op-1").unwrap();
    let restored = second.restore(Kind::Agent, "planner", 0).unwrap();
    let forged = SignedList::new(&restored).signed(&mallory).to_text().unwrap();
    assert!(refused(switch.offer(forged.as_bytes())).contains("signed by 0"));
    let elsewhere = RevocationList { environment: Name::new("test").unwrap(), ..restored.clone() };
    assert!(refused(switch.offer(desk.signed(&elsewhere).as_bytes())).contains("environment test"));
    assert!(holds(&switch));

    assert!(matches!(switch.offer(desk.signed(&restored).as_bytes()), Offered::Applied(_)));
    assert!(!holds(&switch));
}

#[test]
fn a_restart_remembers_what_was_seen() {
    let desk = Desk::new();
    let trust = FileTrust::default();
    let second = RevocationList::first(prod(), 0).revoke(agent("planner")).unwrap();
    let old = desk.signed(&RevocationList::first(prod(), 0));
    let switch = desk.open().unwrap();
    assert!(switch.is_blind(), "nothing was seen yet");
    switch.offer(desk.signed(&second).as_bytes());
    switch.keep(&trust).unwrap();

    let again = desk.open().unwrap();
    assert!(holds(&again) && again.is_blind(), "in force, and not confirmed");
    assert!(refused(again.offer(old.as_bytes())).contains("list 2 was seen before"));

    // Another process with the same file has seen more, and keeps that.
    let third = second.revoke(agent("bob")).unwrap();
    let ahead = desk.open().unwrap();
    ahead.offer(desk.signed(&third).as_bytes());
    ahead.keep(&trust).unwrap();
    again.keep(&trust).unwrap();
    assert_eq!(desk.open().unwrap().in_force().0, 3);

    let path = desk.folder.path().join("state");
    write_secret(&path, &std::fs::read_to_string(&path).unwrap()[1..], true).unwrap();
    let error = desk.open().unwrap_err().to_string();
    assert!(error.contains("not a signed list") && error.contains("sealwire revocations"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn without_sight_of_the_bucket_everything_is_refused_after_the_bound() {
    let desk = Desk::new();
    let switch = desk.open().unwrap();
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(switch.blind().unwrap().contains("not been seen yet"));
    switch.saw(Instant::now());
    tokio::time::advance(Duration::from_millis(14_900)).await;
    assert_eq!(switch.blind(), None);
    tokio::time::advance(Duration::from_millis(200)).await;
    assert!(switch.blind().unwrap().contains("too long"));
    switch.saw(Instant::now());
    assert_eq!(switch.blind(), None);

    let careless = Desk { config: SwitchConfig { serve_blind: true, ..desk.config.clone() }, ..desk };
    let switch = careless.open().unwrap();
    assert!(switch.is_blind(), "without any list, nothing is known");
    switch.offer(careless.signed(&RevocationList::first(prod(), 0)).as_bytes());
    switch.keep(&FileTrust::default()).unwrap();
    assert!(!careless.open().unwrap().is_blind());
    assert!(!Switch::default().is_blind(), "no switch");
}
