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
        let operator = OperatorConfig { kid: "op-1".into(), x: self.key.x() };
        let config = RevocationConfig {
            operator: vec![operator],
            signatures: 1,
            refuse_after_s: 15,
            serve_stale: false,
            state: None,
            nats: BusConfig::open("nats://127.0.0.1:1"),
        };
        let (prod, bank) = (Name::new("prod").unwrap(), Name::new("bank").unwrap());
        Packages::open(&config, (&prod, &bank), self.folder.path().join("bank.policy"))
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
            packages.change(|standing| match loaded {
                Ok(_) => (standing.active, standing.refused) = (Some(id), None),
                Err(reason) => standing.refused = Some(RefusedPackage { id, reason }),
            });
            packages.keep(is_good.then_some(text)).unwrap();
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

    let path = desk.folder.path().join("bank.policy");
    let text = std::fs::read_to_string(&path).unwrap();
    let stranger = Desk { folder: tempfile::tempdir().unwrap(), key: OperatorKey::generate("op-1").unwrap() };
    let forged = serde_json::json!({ "highest": 2, "package": stranger.signed(&package(2, POLICY)) }).to_string();
    for wrong in [&text[1..], &forged, "{\"highest\":1,\"package\":null,\"more\":1}"] {
        write_secret(&path, wrong, true).unwrap();
        assert!(matches!(desk.open(), Err(PackagesError::State { .. })), "{wrong}");
    }
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
    let large = SignedPackage::new(&package(1, &"#".repeat(MAX_PACKAGE_BYTES))).unwrap();
    assert!(matches!(large.to_text(), Err(PackageError::TooLong(_))));
}
