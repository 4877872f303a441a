//! Enrolment by public key: the agent's key never leaves the agent, and the operator enrols nothing unintended.

use crate::shell::Shell;
use sealwire::internal::auth::KeyRing;
use sealwire::internal::wire::{Audience, KeyRequest};
use sealwire::{Credentials, Name};
use serde_json::Value;

/// The folder of an agent, and that of an operator whose service has a key.
fn parties() -> (Shell, Shell, Value) {
    let (agent, operator) = (Shell::new(), Shell::new());
    let asked = agent.run("keys request robot --environment dev --nkey --url nats://old:4222 --json").ok().json();
    operator.run("keys new-service dev/math").ok();
    operator.write("robot.request", &agent.read("robot.request"));
    (agent, operator, asked)
}

#[test]
fn an_agent_is_enrolled_by_its_public_key_and_the_operator_never_sees_the_private_one() {
    let (agent, operator, asked) = parties();
    assert_eq!(agent.files(), ["robot.creds.json", "robot.request"]);
    assert_eq!(agent.mode("robot.creds.json"), 0o600);
    let creds = agent.read_json("robot.creds.json");
    let (seed, nkey) = (creds["key"]["seed"].as_str().unwrap(), creds["nats"]["nkey_seed"].as_str().unwrap());
    for secret in [seed, nkey] {
        assert!(!agent.read("robot.request").contains(secret));
        agent.never_said(secret);
    }
    let thumbprint = asked["thumbprint"].as_str().unwrap();
    let enrol = format!("keys enrol robot robot.request --thumbprint {thumbprint} --service dev/math=math.ring.json");
    let line = format!("{enrol} --pin-from math.service-key.json --url nats://new:4222 --json");
    let enrolled = operator.run(&line).ok().json();
    assert_eq!((&enrolled["agent"], &enrolled["kid"]), (&"robot".into(), &"robot.k1".into()));
    assert_eq!(enrolled["nkey"], asked["nkey"]);
    let ring = operator.read_json("math.ring.json");
    assert_eq!(ring["keys"][0]["x"].as_str().unwrap(), KeyRequest::verify(&agent.read("robot.request")).unwrap().x);
    assert_eq!(
        KeyRing::load(&operator.path("math.ring.json"), &Audience::parse("dev/math").unwrap()).unwrap().len(),
        1
    );
    let service_seed = operator.read_json("math.service-key.json")["seed"].as_str().unwrap().to_owned();
    assert!(!operator.read("robot.enrolment.json").contains(&service_seed));

    agent.write("robot.enrolment.json", &operator.read("robot.enrolment.json"));
    agent.run("keys accept robot.creds.json robot.enrolment.json").ok();
    let accepted = agent.read_json("robot.creds.json");
    assert_eq!((&accepted["key"], &accepted["nats"]["nkey_seed"]), (&creds["key"], &creds["nats"]["nkey_seed"]));
    assert_eq!(accepted["nats"]["urls"][0], "nats://new:4222");
    let pinned = Credentials::load(agent.path("robot.creds.json")).unwrap().pinned(&Name::new("math").unwrap());
    assert_eq!(pinned.len(), 1);
    assert_eq!(pinned[0].kid(), "svc:dev/math:1");

    // The key is added only once; the enrolment may be requested again.
    let before = (operator.read("math.ring.json"), operator.read("robot.enrolment.json"));
    std::fs::remove_file(operator.path("robot.enrolment.json")).unwrap();
    for line in [line.clone(), format!("{line} --another-key")] {
        assert_eq!(operator.run(&line).ok().json(), enrolled);
        assert_eq!((operator.read("math.ring.json"), operator.read("robot.enrolment.json")), before);
    }
    // A revoked key stays revoked.
    operator.run("keys revoke robot.k1 --ring math.ring.json").ok();
    let before = operator.read("math.ring.json");
    operator.run(&line).fails(30, &["has a key of `robot` already", "--another-key"]);
    operator.run(&format!("{line} --another-key")).fails(30, &["has a key `robot.k1` already"]);
    assert_eq!(operator.read("math.ring.json"), before);
}

#[test]
fn a_ring_is_of_one_service_however_it_is_named() {
    let (_, operator, asked) = parties();
    let before = operator.files();
    for other in ["r.json", "./r.json"] {
        let line = format!(
            "keys enrol robot robot.request --thumbprint {} --service dev/math=r.json --service dev/bank={other} \
             --pin-from math.service-key.json --pin svc:dev/bank:1=11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",
            asked["thumbprint"].as_str().unwrap()
        );
        operator.run(&line).fails(30, &["named for two services", "ring of its own"]);
        assert_eq!(operator.files(), before);
    }
}

/// A command that failed half-way can simply be repeated.
#[test]
fn an_enrolment_that_could_not_be_written_is_made_again() {
    let (_, operator, asked) = parties();
    let enrol = format!(
        "keys enrol robot robot.request --thumbprint {} --service dev/math=math.ring.json --pin-from math.service-key.json",
        asked["thumbprint"].as_str().unwrap()
    );
    operator.run(&format!("{enrol} --out nowhere/e.json")).fails(30, &["`nowhere/e.json`", "its folder"]);
    assert!(!operator.path("math.ring.json").exists(), "nothing was enrolled");
    // The ring has the key, but the enrolment on stdout is lost.
    operator.run(&format!("{enrol} --out -")).ok();
    let ring = operator.read("math.ring.json");
    let bank = "--service dev/bank=bank.ring.json --pin svc:dev/bank:1=11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";
    operator.run(&format!("{enrol} {bank}")).ok();
    assert_eq!(operator.read("math.ring.json"), ring);
    assert_eq!(operator.read_json("bank.ring.json")["keys"], operator.read_json("math.ring.json")["keys"]);
    assert_eq!(operator.read_json("robot.enrolment.json")["service_keys"].as_array().unwrap().len(), 2);
}

#[test]
fn a_key_is_enrolled_for_the_agent_that_the_operator_means_and_once() {
    let (agent, operator, _) = parties();
    let rest = "--service dev/math=math.ring.json --pin-from math.service-key.json";
    let enrol = |name: &str, file: &str, more: &str| {
        let thumbprint = KeyRequest::verify(&operator.read(file)).unwrap().thumbprint();
        operator.run(&format!("keys enrol {name} {file} --thumbprint {thumbprint} {rest} {more}"))
    };
    enrol("robot", "robot.request", "").ok();
    // Another agent asks for a key in the name of the first, and tells its own thumbprint truthfully.
    let mallory = Shell::new();
    mallory.run("keys request robot --environment dev --kid robot.backup").ok();
    operator.write("mallory.request", &mallory.read("robot.request"));
    enrol("mallory", "mallory.request", "").fails(30, &["a key of `robot`, and not of `mallory`"]);
    enrol("robot", "mallory.request", "").fails(30, &["has a key of `robot` already"]);
    enrol("robot", "mallory.request", "--another-key").ok();
    // A revoked key does not come back under another id.
    operator.run("keys revoke robot.k1 --ring math.ring.json").ok();
    let mut ring = operator.read_json("math.ring.json");
    let again = ring["keys"].as_array().unwrap().iter().find(|key| key["kid"] == "robot.k1").unwrap().clone();
    ring["keys"].as_array_mut().unwrap().push(again);
    ring["keys"][2]["kid"] = "robot.k3".into();
    ring["keys"][2]["status"] = "active".into();
    let ring = serde_json::from_value(ring).unwrap();
    let error = KeyRing::new(ring, &Audience::parse("dev/math").unwrap()).unwrap_err();
    assert!(error.to_string().contains("appears twice"), "{error}");
    drop(agent);
}

#[test]
fn a_request_that_was_exchanged_or_does_not_fit_is_refused_and_nothing_is_written() {
    let (agent, operator, asked) = parties();
    let thumbprint = asked["thumbprint"].as_str().unwrap();
    let enrol = "--service dev/math=math.ring.json --pin-from math.service-key.json";
    let before = operator.files();

    // Somebody else's request under the agent's name.
    let thief = Shell::new();
    thief.run("keys request robot --environment dev").ok();
    operator.write("robot.request", &thief.read("robot.request"));
    let line = format!("keys enrol robot robot.request --thumbprint {thumbprint} {enrol}");
    operator.run(&line).fails(30, &["is for another key", "ask the agent's owner"]);
    // The right key under another's signature.
    let (own, other) = (agent.read("robot.request"), thief.read("robot.request"));
    let mixed = format!("{}.{}", own.trim().rsplit_once('.').unwrap().0, other.trim().rsplit_once('.').unwrap().1);
    operator.write("robot.request", &mixed);
    operator.run(&line).fails(30, &["does not hold that key"]);
    operator.write("robot.request", "robot");
    operator.run(&line).fails(30, &["not a request of `sealwire keys request`"]);

    operator.write("robot.request", &own);
    let start = format!("keys enrol robot robot.request --thumbprint {thumbprint}");
    operator
        .run(&format!("{start} --service prod/math=math.ring.json --pin-from math.service-key.json"))
        .fails(30, &["not in the request's environment"]);
    operator.run(&format!("{start} --service dev/math=math.ring.json")).fails(30, &["must pin the key of `dev/math`"]);
    operator
        .run(&format!("{start} --service dev/bank=math.ring.json --pin-from math.service-key.json"))
        .fails(30, &["not the key of one of these services"]);
    assert_eq!(operator.files(), before);

    // Key ids are unique in a ring, so nobody has one that another agent will want.
    thief
        .run("keys request thief --environment dev --kid robot.k1")
        .fails(30, &["begin with the agent's name", "--kid"]);
    thief.run("keys request thief --environment dev --url nats://thief:hunter2@a").fails(30, &["`urls[0]`"]);
    assert_eq!(thief.files(), ["robot.creds.json", "robot.request"]);

    // An enrolment for another agent.
    operator.run(&format!("{start} {enrol}")).ok();
    thief.write("robot.enrolment.json", &operator.read("robot.enrolment.json").replace("robot.k1", "robot.k2"));
    thief.run("keys accept robot.creds.json robot.enrolment.json").fails(30, &["for the key robot.k2 of another"]);
}

/// Anybody who can write the enrolment file could answer in the services' place.
#[test]
fn an_enrolment_is_taken_only_if_nobody_else_could_have_written_it_and_it_fits() {
    let (agent, operator) = (Shell::new(), Shell::new());
    let asked = agent.run("keys request robot --environment dev --url tls://old:4222 --json").ok().json();
    operator.run("keys new-service dev/math").ok();
    let thumbprint = asked["thumbprint"].as_str().unwrap();
    let enrol = format!("keys enrol robot - --thumbprint {thumbprint} --service dev/math=math.ring.json --out -");
    let line = format!("{enrol} --pin-from math.service-key.json --url tls://new:4222");
    let request = agent.read("robot.request");
    let enrolled = operator.run_with_stdin(&line.split(' ').collect::<Vec<_>>(), request.as_bytes()).ok();
    assert!(enrolled.stderr.contains("enrolled robot with the key robot.k1"), "{enrolled:?}");
    assert!(!operator.path("robot.enrolment.json").exists());
    let good = enrolled.stdout;

    let before = agent.read("robot.creds.json");
    let accept = |text: &str| {
        agent.write("back.json", text);
        agent.run("keys accept robot.creds.json back.json")
    };
    let (own, other) = ("svc:dev/math:1", "svc:dev/bank:1");
    accept(&good.replace(own, other))
        .fails(30, &["`svc:dev/bank:1` is not a key of the service math", "`svc:dev/math:`"]);
    accept(&good.replace("tls://new", "nats://new")).fails(30, &["without TLS", "ask the operator"]);
    accept(&good.replace("tls://new", "tls://me:hunter2@new")).fails(30, &["back.json", "`urls[0]`"]);
    accept("{}").fails(30, &["is not what `sealwire keys enrol` wrote"]);
    agent.write("back.json", &good);
    agent.set_mode("back.json", 0o666);
    agent.run("keys accept robot.creds.json back.json").fails(30, &["chmod go-w"]);
    agent.set_mode("back.json", 0o644);
    if std::os::unix::fs::chown(agent.path("back.json"), Some(12_345), None).is_ok() {
        agent.run("keys accept robot.creds.json back.json").fails(30, &["belongs to user 12345", "chown"]);
        std::os::unix::fs::chown(agent.path("back.json"), Some(0), None).unwrap();
    }
    assert_eq!(agent.read("robot.creds.json"), before);

    agent.run("keys accept robot.creds.json back.json").ok();
    assert_eq!(agent.read_json("robot.creds.json")["nats"]["urls"][0], "tls://new:4222");
    // Another key under the pinned id.
    let x = agent.read_json("robot.creds.json")["service_keys"]["math"][0]["x"].as_str().unwrap().to_owned();
    let changed = good.replace(&x, "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo");
    accept(&changed).fails(30, &["another key is pinned as `svc:dev/math:1`"]);
}
