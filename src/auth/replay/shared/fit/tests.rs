#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
use super::*;
use crate::name::Name;

fn config() -> SharedConfig {
    SharedConfig::new(Name::new("prod").unwrap(), Name::new("math").unwrap())
}

/// What nats-server 2.15.1 reports for the stream that we create.
fn found() -> Map<String, Value> {
    let mut found = wanted(&config(), 3).as_object().unwrap().clone();
    let answered = json!({
        "compression": "none", "allow_direct": false, "mirror_direct": false, "sealed": false,
        "allow_rollup_hdrs": false, "consumer_limits": {}, "allow_msg_ttl": false,
    });
    found.extend(answered.as_object().unwrap().clone());
    let metadata = found["metadata"].as_object_mut().unwrap();
    for (key, value) in [("_nats.level", "5"), ("_nats.req.level", "0"), ("_nats.ver", "2.15.1")] {
        metadata.insert(key.to_owned(), json!(value));
    }
    found
}

fn wrong(change: impl FnOnce(&mut Map<String, Value>)) -> Vec<String> {
    let mut found = found();
    change(&mut found);
    differences(&found, &config(), 3)
}

#[test]
fn the_stream_that_is_made_fits() {
    assert_eq!(wrong(|_| ()), Vec::<String>::new());
    let one = wanted(&config(), 1);
    assert_eq!(differences(one.as_object().unwrap(), &config(), 1), Vec::<String>::new());
}

/// Each member, with the closest other value, and absent.
#[test]
fn a_stream_that_differs_in_any_member_is_refused_by_that_member() {
    for (member, value) in [
        ("description", json!("nonces")),
        ("subjects", json!(["rg.prod.math.>", "rpc.v1.math.>"])),
        ("subjects", json!(["rg.>"])),
        ("storage", json!("file")),
        ("num_replicas", json!(1)),
        ("num_replicas", json!(5)),
        ("retention", json!("workqueue")),
        ("discard", json!("old")),
        ("discard_new_per_subject", json!(false)),
        ("duplicate_window", json!(99_999_999_999_u64)),
        ("duplicate_window", json!(100_000_000_001_u64)),
        ("max_age", json!(0)),
        ("max_age", json!(200_000_000_000_u64)),
        ("max_msgs", json!(60)),
        ("max_msgs", json!(-1)),
        ("max_bytes", json!(-1)),
        ("max_msgs_per_subject", json!(-1)),
        ("max_msg_size", json!(-1)),
        ("max_consumers", json!(0)),
        ("deny_delete", json!(false)),
        ("deny_purge", json!(false)),
    ] {
        let says = format!("`{member}` is {value} and should be ");
        let differs = wrong(|found| drop(found.insert(member.to_owned(), value)));
        assert!(differs.len() == 1 && differs[0].starts_with(&says), "{says}: {differs:?}");
        let absent = wrong(|found| drop(found.remove(member)));
        assert!(absent.len() == 1 && absent[0].starts_with(&format!("`{member}` is absent")), "{absent:?}");
    }
    assert_eq!(wrong(|found| drop(found.remove("metadata"))).len(), 2);
}

#[test]
fn what_a_stream_of_ours_never_sets_is_refused_when_it_is_set() {
    for (member, value) in [
        ("republish", json!({"src": ">", "dest": "rpc.v1.demo.planner"})),
        ("mirror", json!({"name": "x"})),
        ("sources", json!([{"name": "x"}])),
        ("subject_transform", json!({"src": ">", "dest": "x"})),
        ("placement", json!({"cluster": "x"})),
        ("persist_mode", json!("async")),
        ("compression", json!("s2")),
        ("allow_direct", json!(true)),
        ("mirror_direct", json!(true)),
        ("sealed", json!(true)),
        ("no_ack", json!(true)),
        ("allow_rollup_hdrs", json!(true)),
        ("consumer_limits", json!({"max_ack_pending": 1})),
        ("allow_msg_ttl", json!(true)),
        ("allow_atomic", json!(true)),
        ("allow_batched", json!(true)),
        ("allow_msg_counter", json!(true)),
        ("allow_msg_schedules", json!(true)),
        ("subject_delete_marker_ttl", json!(1)),
        ("first_seq", json!(1_000_000)),
        ("template_owner", json!("x")),
    ] {
        let differs = wrong(|found| drop(found.insert(member.to_owned(), value)));
        assert!(differs.len() == 1 && differs[0].contains("should not be set"), "{member}: {differs:?}");
        let absent = wrong(|found| drop(found.remove(member)));
        assert_eq!(absent, Vec::<String>::new(), "{member}");
    }
    assert_eq!(UNSET.len(), 21, "each is tried above");
    let unknown = wrong(|found| drop(found.insert("forgets".to_owned(), json!(false))));
    assert_eq!(unknown, ["`forgets` is not known to this version"]);
}

#[test]
fn metadata_is_ours_and_the_brokers_and_nobody_elses() {
    let with = |key: &str, value: &str| {
        wrong(|found| drop(found["metadata"].as_object_mut().unwrap().insert(key.to_owned(), json!(value))))
    };
    assert_eq!(with("_nats.ver", "2.16.0"), Vec::<String>::new());
    assert_eq!(with("sealwire.window_s", "31"), [r#"metadata `sealwire.window_s` is "31" and should be "30""#]);
    assert_eq!(with("sealwire.skew_s", "4"), [r#"metadata `sealwire.skew_s` is "4" and should be "5""#]);
    assert_eq!(with("owner", "x"), [r#"metadata `owner` is "x" and should be absent"#]);
}

#[test]
fn only_names_of_our_making_are_taken() {
    let config = config();
    for name in ["RG_prod_math_0aZ", "RG_prod_math_0123456789ab"] {
        assert!(is_own(name, &config), "{name}");
    }
    for name in [
        "SQUAT",
        "",
        "RG_prod_math_",
        "RG_prod_math_0123456789abc",
        "RG_prod_math_x_y",
        "RG_prod_mathx",
        "RG_dev_math_x",
    ] {
        assert!(!is_own(name, &config), "{name}");
        let differs = wrong(|found| drop(found.insert("name".to_owned(), json!(name))));
        assert_eq!(differs, ["its name is not `RG_prod_math_` and 12 letters or digits"], "{name}");
    }
    let names: std::collections::HashSet<_> = (0..50).map(|_| wanted(&config, 3)["name"].to_string()).collect();
    assert_eq!(names.len(), 50);
}

/// The bounds of SPEC.md §9: an owner's share follows from what the local guard allows it, and no owner gets all.
#[test]
fn the_share_of_one_owner_follows_from_its_cap_and_never_is_the_whole_stream() {
    let mut config = config();
    assert_eq!(config.owner_share(), 100_000, "35,000 in 35 s, for 100 s");
    config.max_messages = 200_000;
    assert_eq!(config.owner_share(), 50_000, "a quarter");
    config.nonce_limits.owner = 70;
    assert_eq!(config.owner_share(), 500, "an instance's probes, five a second, have room");
    config.nonce_limits.owner = 7_000;
    assert_eq!(config.owner_share(), 20_000);
    config.nonce_limits.owner = 7_001;
    assert_eq!(config.owner_share(), 20_003, "rounded up");
}
