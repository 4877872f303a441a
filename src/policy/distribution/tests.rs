#![allow(clippy::unwrap_used, reason = "tests")]
use std::collections::BTreeMap;

use super::*;
use crate::auth::{
    MAX_PACKAGE_BYTES, OperatorConfig, OperatorKey, Revocation, RevocationKind, RevocationList, SignedList,
};
use crate::name::MethodName;
use crate::nats::BusConfig;

struct Desk {
    folder: tempfile::TempDir,
    key: OperatorKey,
}

const POLICY: &str = "[role.teller]\nallow = [\"bank/transfer\"]\n";

fn methods() -> Methods {
    Methods::new().with(MethodName::new("bank/transfer").unwrap())
}

impl Desk {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), key: OperatorKey::generate("op-1").unwrap() }
    }

    fn open(&self) -> Result<Packages, PackagesError> {
        self.believing(&[&self.key], 1)
    }

    /// With these operators, of whom so many must sign.
    fn believing(&self, operators: &[&OperatorKey], signatures: usize) -> Result<Packages, PackagesError> {
        let operator = operators.iter().map(|key| OperatorConfig { kid: key.kid().to_owned(), x: key.x() }).collect();
        let config = RevocationConfig {
            operator,
            signatures,
            refuse_after_s: 15,
            serve_stale: false,
            state: None,
            nats: BusConfig::open("nats://127.0.0.1:1"),
        };
        let (prod, bank) = (Name::new("prod").unwrap(), Name::new("bank").unwrap());
        Packages::open(&config, (&prod, &bank), self.state())
    }

    fn state(&self) -> PathBuf {
        self.folder.path().join("bank.policy")
    }

    fn signed(&self, package: &Package) -> String {
        SignedPackage::new(package).unwrap().signed(&self.key).to_text().unwrap()
    }
}

fn package(number: u64, policy: &str) -> Package {
    Package {
        environment: Name::new("prod").unwrap(),
        service: Name::new("bank").unwrap(),
        stage: Stage::Active,
        number,
        at_ms: 0,
        files: BTreeMap::from([("bank.toml".to_owned(), policy.to_owned())]),
    }
}

/// As a follower does it, without a bus.
fn take(packages: &Packages, text: &str) -> Result<Option<u64>, String> {
    match packages.offer(text.as_bytes()) {
        Offer::Known => Ok(None),
        Offer::Invalid(reason) => Err(reason),
        Offer::New(package, PackageChange { id, .. }) => {
            let number = id.number;
            let loaded = load(&package, &methods());
            let is_good = loaded.is_ok();
            match loaded {
                Ok(_) => packages.is_active(id, text.as_bytes()),
                Err(reason) => packages.change(|standing| standing.refused = Some(RefusedPackage { id, reason })),
            }
            // A state file that cannot be written shows in how they stand.
            drop(packages.keep());
            if is_good { Ok(Some(number)) } else { Err("cannot be used".to_owned()) }
        }
    }
}

fn active(packages: &Packages) -> Option<u64> {
    packages.standing().active.map(|active| active.number)
}

#[test]
fn only_a_newer_package_that_operators_signed_for_this_service_is_taken() {
    let desk = Desk::new();
    let packages = desk.open().unwrap();
    let (first, second) = (desk.signed(&package(1, POLICY)), desk.signed(&package(2, POLICY)));
    assert_eq!(take(&packages, &first), Ok(Some(1)));
    assert_eq!(take(&packages, &first), Ok(None));
    assert_eq!(take(&packages, &second), Ok(Some(2)));
    assert!(take(&packages, &first).unwrap_err().contains("put back an old one"));
    let other = desk.signed(&Package { at_ms: 1, ..package(2, POLICY) });
    assert!(take(&packages, &other).unwrap_err().contains("package 2 was seen before"));
    let mallory = OperatorKey::generate("op-1").unwrap();
    let unsigned = SignedPackage::new(&package(3, POLICY)).unwrap();
    for text in [unsigned.to_text().unwrap(), unsigned.signed(&mallory).to_text().unwrap()] {
        assert!(take(&packages, &text).unwrap_err().contains("signed by 0"), "{text}");
    }
    let elsewhere = |change: fn(&mut Package)| {
        let mut package = package(3, POLICY);
        change(&mut package);
        desk.signed(&package)
    };
    for text in [
        elsewhere(|package| package.environment = Name::new("test").unwrap()),
        elsewhere(|package| package.service = Name::new("math").unwrap()),
        elsewhere(|package| package.stage = Stage::Shadow),
    ] {
        assert!(take(&packages, &text).unwrap_err().contains("and this is prod/bank (active)"), "{text}");
    }
    // Half of it, more than it, and what a later version of the program might write.
    for text in [&second[..second.len() / 2], "", "{}", "{\"package\":\"\",\"signatures\":[],\"more\":1}"] {
        assert!(take(&packages, text).unwrap_err().contains("not a signed package"), "{text}");
    }
    assert!(take(&packages, &" ".repeat(MAX_PACKAGE_BYTES + 1)).unwrap_err().contains("is the most"));
    // An operator's signature of a list of revocations is none of a package.
    let entry =
        Revocation { kind: RevocationKind::Agent, name: "a".into(), until: None, at_ms: 0, reason: String::new() };
    let list = RevocationList::first(Name::new("prod").unwrap(), 0).revoke(entry).unwrap();
    let list = SignedList::new(&list).signed(&desk.key).to_text().unwrap().replace("\"list\"", "\"package\"");
    assert!(take(&packages, &list).unwrap_err().contains("signed by 0"));
    assert_eq!(active(&packages), Some(2));
    // The way back is a new number.
    assert_eq!(take(&packages, &desk.signed(&package(3, POLICY))), Ok(Some(3)));
}

#[test]
fn a_package_that_cannot_be_used_leaves_the_one_in_force_and_counts_as_seen() {
    let desk = Desk::new();
    let packages = desk.open().unwrap();
    take(&packages, &desk.signed(&package(1, POLICY))).unwrap();
    let wrong = desk.signed(&package(3, "[role.teller]\nallow = [\"bank/trasfer\"]\n"));
    assert!(take(&packages, &wrong).is_err());
    let standing = packages.standing();
    assert_eq!(active(&packages), Some(1));
    let refused = standing.refused.unwrap();
    assert!(refused.id.number == 3 && refused.reason.contains("bank/trasfer"), "{refused:?}");
    assert_eq!(take(&packages, &wrong), Ok(None), "it is not tried again and again");
    assert!(take(&packages, &desk.signed(&package(2, POLICY))).unwrap_err().contains("package 3 was seen before"));
    // Also after a restart, in which the program may have become able to use it.
    let again = desk.open().unwrap();
    assert!(again.begin(&methods()).unwrap().0.revision().why().is_none());
    assert_eq!(active(&again), Some(1));
    assert!(take(&again, &desk.signed(&package(2, POLICY))).unwrap_err().contains("package 3 was seen before"));
    assert_eq!(take(&again, &wrong), Err("cannot be used".to_owned()));
    assert_eq!(take(&again, &desk.signed(&package(4, POLICY))), Ok(Some(4)));
    assert_eq!(again.standing().refused, None);
}

#[test]
fn what_is_kept_is_verified_again_and_what_cannot_be_used_denies_everything() {
    let desk = Desk::new();
    assert!(desk.open().unwrap().begin(&methods()).is_none());
    take(&desk.open().unwrap(), &desk.signed(&package(2, POLICY))).unwrap();
    let packages = desk.open().unwrap();
    let (set, _) = packages.begin(&methods()).unwrap();
    assert_eq!(set.revision(), &package(2, POLICY).revision());
    assert!(take(&packages, &desk.signed(&package(1, POLICY))).unwrap_err().contains("put back an old one"));
    // The program has lost the method.
    let (set, _) = desk.open().unwrap().begin(&Methods::new()).unwrap();
    assert!(set.revision().why().unwrap().contains("cannot be used any more"));

    let text = std::fs::read_to_string(desk.state()).unwrap();
    let elsewhere = desk.signed(&Package { service: Name::new("math").unwrap(), ..package(2, POLICY) });
    let elsewhere = serde_json::json!({ "highest": 2, "package": elsewhere }).to_string();
    let broken = serde_json::json!({ "highest": 2, "package": "{}" }).to_string();
    for wrong in [&text[1..], &elsewhere, &broken, "{\"highest\":1,\"package\":null,\"more\":1}"] {
        write_secret(&desk.state(), wrong, true).unwrap();
        assert!(matches!(desk.open(), Err(PackagesError::State { .. })), "{wrong}");
    }
}

/// Everything is denied from the start, and why.
fn denies(packages: &Packages) -> String {
    let (set, _) = packages.begin(&methods()).unwrap();
    assert!(set.revision().why().is_some() && active(packages).is_none());
    packages.standing().denies.unwrap()
}

#[test]
fn a_restart_takes_what_was_in_force_whatever_became_of_the_state_file_meanwhile() {
    let wrong = "[role.teller]\nallow = [\"bank/trasfer\"]\n";
    for spoiled in [None, Some("{"), Some("{\"highest\":0,\"package\":null}")] {
        let desk = Desk::new();
        let packages = desk.open().unwrap();
        take(&packages, &desk.signed(&package(6, POLICY))).unwrap();
        let old = std::fs::read_to_string(desk.state()).unwrap();
        // As if the disk were full.
        std::fs::remove_file(desk.state()).unwrap();
        std::fs::create_dir(desk.state()).unwrap();
        assert_eq!(take(&packages, &desk.signed(&package(7, POLICY))), Ok(Some(7)));
        assert!(packages.standing().unkept.is_some());
        std::fs::remove_dir(desk.state()).unwrap();
        write_secret(&desk.state(), spoiled.unwrap_or(&old), true).unwrap();
        take(&packages, &desk.signed(&package(8, wrong))).unwrap_err();
        assert_eq!(packages.standing().unkept, None);

        let again = desk.open().unwrap();
        let (set, _) = again.begin(&methods()).unwrap();
        assert_eq!((set.revision().why(), active(&again)), (None, Some(7)));
        assert!(take(&again, &desk.signed(&package(6, POLICY))).unwrap_err().contains("package 8 was seen"));
    }
}

/// Whoever saw a package and knows of none that was in force must not go back to a folder.
#[test]
fn a_replica_that_saw_packages_and_kept_none_denies_everything() {
    let desk = Desk::new();
    let packages = desk.open().unwrap();
    assert!(packages.begin(&methods()).is_none());
    take(&packages, &desk.signed(&package(1, "[role.teller]\nallow = [\"bank/trasfer\"]\n"))).unwrap_err();
    let packages = desk.open().unwrap();
    assert!(denies(&packages).contains("package 1 of the policies was seen"));
    assert_eq!(take(&packages, &desk.signed(&package(2, POLICY))), Ok(Some(2)));
    assert_eq!(packages.standing().denies, None);
}

/// A key is replaced, or a second one is asked for, while a replica is down.
#[test]
fn a_kept_package_of_operators_that_no_longer_count_denies_everything_until_there_is_a_newer_one() {
    let (second, stranger) = (OperatorKey::generate("op-2").unwrap(), OperatorKey::generate("op-1").unwrap());
    for replaced in [true, false] {
        let desk = Desk::new();
        let old = desk.signed(&package(2, POLICY));
        take(&desk.open().unwrap(), &old).unwrap();
        let open = || {
            let keys = if replaced { vec![&stranger, &second] } else { vec![&desk.key, &second] };
            desk.believing(&keys, 2).unwrap()
        };
        let sign = |package: &Package| {
            let first = if replaced { &stranger } else { &desk.key };
            SignedPackage::new(package).unwrap().signed(first).signed(&second).to_text().unwrap()
        };
        let packages = open();
        assert!(denies(&packages).contains("does not count any more: signed by"));
        assert!(take(&packages, &old).unwrap_err().contains("signed by"));
        let other = Package { at_ms: 1, ..package(2, POLICY) };
        for older in [&package(1, POLICY), &other] {
            assert!(take(&packages, &sign(older)).unwrap_err().contains("package 2 was seen before"));
        }
        // The same again at the next start, and with a refused one in between.
        take(&packages, &sign(&package(3, "[role.teller]\nallow = [\"bank/trasfer\"]\n"))).unwrap_err();
        let packages = open();
        denies(&packages);
        assert!(take(&packages, &sign(&package(2, POLICY))).is_err());
        assert_eq!(take(&packages, &sign(&package(4, POLICY))), Ok(Some(4)));
        let packages = open();
        assert!(packages.begin(&methods()).unwrap().0.revision().why().is_none());
        assert_eq!(active(&packages), Some(4));
    }
    // The very same package counts again once enough have signed it.
    let desk = Desk::new();
    take(&desk.open().unwrap(), &desk.signed(&package(2, POLICY))).unwrap();
    let packages = desk.believing(&[&desk.key, &second], 2).unwrap();
    denies(&packages);
    let both = SignedPackage::new(&package(2, POLICY)).unwrap().signed(&desk.key).signed(&second).to_text().unwrap();
    assert_eq!(take(&packages, &both), Ok(Some(2)));
}

#[test]
fn after_a_restart_a_refused_package_is_tried_again_and_no_other_with_its_number() {
    let desk = Desk::new();
    let packages = desk.open().unwrap();
    take(&packages, &desk.signed(&package(1, POLICY))).unwrap();
    let wrong = desk.signed(&package(2, "[role.teller]\nallow = [\"bank/trasfer\"]\n"));
    take(&packages, &wrong).unwrap_err();
    let packages = desk.open().unwrap();
    packages.begin(&methods()).unwrap();
    assert!(take(&packages, &desk.signed(&package(2, POLICY))).unwrap_err().contains("package 2 was seen before"));
    assert_eq!(take(&packages, &wrong), Err("cannot be used".to_owned()));
    // A file that somebody has put together by hand: the package says more than the number beside it.
    let kept = serde_json::json!({ "highest": 0, "package": desk.signed(&package(5, POLICY)) }).to_string();
    write_secret(&desk.state(), &kept, true).unwrap();
    assert!(take(&desk.open().unwrap(), &desk.signed(&package(4, POLICY))).unwrap_err().contains("package 5 was seen"));
}

#[test]
fn only_operators_whose_signature_holds_are_named_as_signers() {
    let desk = Desk::new();
    let second = OperatorKey::generate("op-2").unwrap();
    let packages = desk.believing(&[&desk.key, &second], 1).unwrap();
    // Whoever can write the bucket adds names.
    let forged = desk.signed(&package(1, POLICY)).replace(
        "\"signatures\":[",
        "\"signatures\":[{\"kid\":\"op-2\",\"sig\":\"x\"},{\"kid\":\"ciso\",\"sig\":\"x\"},",
    );
    let Offer::New(_, change) = packages.offer(forged.as_bytes()) else { panic!("{forged}") };
    assert_eq!(change.signers, ["op-1"]);
}

/// Whoever can write the bucket chooses what an error quotes.
#[test]
fn what_is_wrong_with_a_package_is_said_in_one_short_line() {
    let desk = Desk::new();
    let long = format!("{{\"{}\":1}}", "\\u0001".repeat(MAX_PACKAGE_BYTES / 8));
    let reason = take(&desk.open().unwrap(), &long).unwrap_err();
    assert!(reason.chars().count() < 1_100 && !reason.chars().any(char::is_control), "{reason}");
    let rule = "x".repeat(100_000);
    let policy = format!("[rule.\"{rule}\"]\nallow = [\"bank/transfer\"]\neveryone = 1\n");
    let reason = load(&package(1, &policy), &methods()).unwrap_err();
    assert!(reason.chars().count() < 1_100, "{reason}");
}

#[test]
fn a_package_has_policy_files_and_not_too_many() {
    for (files, error) in [(0, PackageError::Files(0)), (257, PackageError::Files(257))] {
        let files = (0..files).map(|number| (format!("{number}.toml"), String::new())).collect();
        assert_eq!(SignedPackage::new(&Package { files, ..package(1, "") }), Err(error));
    }
    for name in ["a.test.toml", "a.md", "a\n.toml", &format!("{}.toml", "x".repeat(200))] {
        let files = BTreeMap::from([(name.to_owned(), String::new())]);
        let made = SignedPackage::new(&Package { files, ..package(1, "") });
        assert!(matches!(made, Err(PackageError::FileName(_))), "{name}");
    }
    for number in [0, 1 << 53, u64::MAX] {
        assert_eq!(SignedPackage::new(&package(number, POLICY)), Err(PackageError::Number(number)));
    }
    let large = SignedPackage::new(&package(1, &"#".repeat(MAX_PACKAGE_BYTES))).unwrap();
    assert!(matches!(large.to_text(), Err(PackageError::TooLong(_))));
}

/// As a follower does it, without a bus.
fn take_shadow(packages: &Packages, text: &str) -> Result<Option<u64>, String> {
    match packages.offer_shadow(text.as_bytes()) {
        Offer::Known => Ok(None),
        Offer::Invalid(reason) => Err(reason),
        Offer::New(package, PackageChange { id, .. }) => {
            let (number, set) = (id.number, load(&package, &methods()).unwrap().0);
            let compared = Some(Arc::new(ShadowPolicy::new(id, Arc::new(set))));
            packages.change(|standing| standing.shadow = ShadowStanding { compared, ..ShadowStanding::default() });
            packages.keep().unwrap();
            Ok(Some(number))
        }
    }
}

/// Whoever can write the bucket puts back an earlier one, or one of another stage, service or signer.
#[test]
fn only_a_newer_shadow_that_operators_signed_for_this_service_is_compared() {
    let desk = Desk::new();
    let packages = desk.open().unwrap();
    let shadow = |number| Package { stage: Stage::Shadow, ..package(number, POLICY) };
    let (first, second) = (desk.signed(&shadow(1)), desk.signed(&shadow(2)));
    assert_eq!(take_shadow(&packages, &first), Ok(Some(1)));
    assert_eq!(take_shadow(&packages, &first), Ok(None));
    assert_eq!(take_shadow(&packages, &second), Ok(Some(2)));
    let other = desk.signed(&Package { at_ms: 1, ..shadow(2) });
    let mallory = OperatorKey::generate("op-1").unwrap();
    let wrong = [
        (&first, "shadow package 2 was seen before"),
        (&other, "shadow package 2 was seen before"),
        (&SignedPackage::new(&shadow(3)).unwrap().signed(&mallory).to_text().unwrap(), "signed by 0"),
        (&desk.signed(&package(3, POLICY)), "and this is prod/bank (shadow)"),
        (&desk.signed(&Package { service: Name::new("math").unwrap(), ..shadow(3) }), "and this is prod/bank (shadow)"),
    ];
    for (text, reason) in wrong {
        assert!(take_shadow(&packages, text).unwrap_err().contains(reason), "{text}");
    }
    assert_eq!(packages.standing().shadow.compared.unwrap().id.number, 2);
    // A shadow is never put in force, and has numbers of its own.
    assert!(take(&packages, &second).unwrap_err().contains("and this is prod/bank (active)"));
    assert_eq!(take(&packages, &desk.signed(&package(1, POLICY))), Ok(Some(1)));
    // After a restart, the same is compared again, and no earlier one.
    let again = desk.open().unwrap();
    assert!(take_shadow(&again, &first).unwrap_err().contains("shadow package 2 was seen before"));
    assert_eq!(take_shadow(&again, &second), Ok(Some(2)));
}
