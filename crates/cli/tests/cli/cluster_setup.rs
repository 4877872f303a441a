//! What `sealwire setup` writes, what each of its users can do at a real broker, and services that run from the same files.

mod agreement;
mod authd;
mod gate;
mod limits;
mod operator;
mod permissions;
mod revocation;
mod whole;

use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::shell::Shell;
use gate::{Gate, Kind, Served};
use sealwire::{Clock as _, SystemClock};
use sealwire_testkit::SOON;
use serde_json::Value;

/// All files, with their texts.
fn files(shell: &Shell) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    for folder in shell.files() {
        for entry in std::fs::read_dir(shell.path(&folder)).unwrap() {
            let name = format!("{folder}/{}", entry.unwrap().file_name().to_str().unwrap());
            files.insert(name.clone(), shell.read(&name));
        }
    }
    files
}

/// The secret texts in a file, by their names.
fn secrets(name: &str, text: &str) -> Vec<String> {
    let json = || serde_json::from_str::<Value>(text).unwrap();
    let at = |pointers: &[&str]| -> Vec<String> {
        let found = pointers.iter().filter_map(|pointer| Some(json().pointer(pointer)?.as_str()?.to_owned()));
        found.collect()
    };
    let name = name.rsplit('/').next().unwrap();
    match name {
        "key.pem" => vec![text.lines().nth(1).unwrap().to_owned()],
        "service.nkey" | "guard.nkey" | "follower.nkey" | "tools.nkey" | "revoker.nkey" | "closer.nkey" => {
            vec![text.trim().to_owned()]
        }
        "token-key.json" | "gateway-key.json" => at(&["/d"]),
        "op-1.json" => at(&["/seed"]),
        "seal.key" => vec![text.to_owned()],
        "service-key.json" => at(&["/seed"]),
        "planner.jwt" => vec![text.trim().to_owned()],
        "ring.json" => {
            json()["keys"].as_array().unwrap().iter().filter_map(|key| Some(key["key"].as_str()?.to_owned())).collect()
        }
        name if name.ends_with(".creds.json") => at(&["/key/secret", "/key/seed", "/nats/nkey_seed"]),
        _ => Vec::new(),
    }
}

#[test]
fn every_secret_is_in_one_file_that_only_its_owner_can_read() {
    let shell = Shell::new();
    shell.run("setup cluster --out .").ok();
    let files = files(&shell);
    let mut count = 0;
    for (name, text) in &files {
        for secret in secrets(name, text) {
            count += 1;
            assert!(secret.len() > 20, "{name}");
            let holders: Vec<&String> =
                files.iter().filter(|(_, text)| text.contains(&secret)).map(|(name, _)| name).collect();
            assert_eq!(holders, [name]);
            assert_eq!(shell.mode(name), 0o600, "{name}");
            shell.never_said(&secret);
        }
    }
    // Three brokers' keys; three users of each service, its key and three derived keys; five agents with a user each; the
    // tools; an operator with two users and a key; the issuer; one token; the gateway's second user, its certificate key, its token key and
    // its seal key.
    assert_eq!(count, 3 + 2 * (3 + 1 + 3) + 5 * 2 + 1 + 3 + 1 + 1 + 4);
    for folder in shell.files() {
        assert_eq!(shell.mode(&folder), 0o700, "{folder}");
    }
    assert!(files.keys().all(|name| shell.mode(name) == 0o600), "what is no secret has no other reader either");
    let users = &files["nats-1/users.conf"];
    assert!(!users.contains(" SU") && users.matches("nkey: U").count() == 15, "public keys only");
    assert!(!users.contains("allow_responses"));
    assert_eq!(users, &files["nats-3/users.conf"]);
    assert!(
        !files.values().any(|text| text.contains("BEGIN") && text.contains("PRIVATE") && text.contains("authority"))
    );
}

/// The files that differ between two states of a setup.
fn changed(before: &BTreeMap<String, String>, after: &BTreeMap<String, String>) -> Vec<String> {
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    names.into_iter().filter(|name| before.get(*name) != after.get(*name)).cloned().collect()
}

#[test]
fn a_whole_set_up_stays() {
    let shell = Shell::new();
    let made = |shell: &Shell| shell.run("setup cluster --out . --json").ok().json()["made"] == true;
    assert!(made(&shell));
    let first = files(&shell);
    assert!(!made(&shell), "nothing to do");
    assert_eq!(
        changed(&first, &files(&shell)),
        ["tokens/planner.jwt"],
        "a fresh token, for a start after a long pause"
    );
}

/// New keys would have the ids of keys that may be revoked, and the denylist would be empty.
#[test]
fn a_set_up_that_lost_a_folder_is_refused_and_left_alone() {
    let shell = Shell::new();
    shell.run("setup cluster --out .").ok();
    let other = Shell::new();
    other.run("setup cluster --out .").ok();
    for lost in ["demo", "planner", "gateway", "nats-3"] {
        std::fs::rename(shell.path(lost), shell.path("kept")).unwrap();
        let before = files(&shell);
        let refused =
            shell.run("setup cluster --out .").fails(30, &["is incomplete", lost, "restore it from a backup"]);
        shell.run("setup service ledger --out .").fails(30, &["is incomplete", lost]);
        assert_eq!(changed(&before, &files(&shell)), [""; 0], "{refused:?}");
        // Another setup's folder does not fill the gap.
        let status = std::process::Command::new("cp").arg("-R").arg(other.path(lost)).arg(shell.path(lost)).status();
        assert!(status.unwrap().success());
        shell.run("setup cluster --out .").fails(30, &["is incomplete", lost]);
        std::fs::remove_dir_all(shell.path(lost)).unwrap();
        std::fs::rename(shell.path("kept"), shell.path(lost)).unwrap();
        shell.run("setup cluster --out .").ok();
    }
    // All but one service's folder: that one's keys and denylist are not overwritten.
    for folder in shell.files().iter().filter(|folder| *folder != "demo") {
        std::fs::remove_dir_all(shell.path(folder)).unwrap();
    }
    let kept = shell.read("demo/ring.json");
    shell.run("setup cluster --out .").fails(30, &["`demo` belongs to another setup"]);
    assert_eq!(shell.read("demo/ring.json"), kept);
}

#[test]
fn renewed_certificates_leave_keys_key_ids_and_denylists_alone() {
    let shell = Shell::new();
    shell.run("setup cluster --out .").ok();
    // Revoked keys stay revoked.
    shell.run("keys revoke teller.k1 --ring demo/ring.json --denylist demo/denylist.json").ok();
    shell.run("token revoke --sub auditor --denylist bank/denylist.json").ok();
    let before = files(&shell);
    let now = SystemClock.now_s();
    for folder in shell.files() {
        let mut mark: Value = shell.read_json(&format!("{folder}/set-up.json"));
        mark["until"] = (now + 29 * 86_400).into();
        shell.write(&format!("{folder}/set-up.json"), &mark.to_string());
    }
    let said = shell.run("setup cluster --out . --json").ok().json();
    assert_eq!((&said["made"], &said["renewed"]), (&false.into(), &true.into()));
    let after = files(&shell);
    let expected = |name: &&String| {
        let file = name.rsplit('/').next().unwrap();
        ["cert.pem", "key.pem", "ca.pem", "callers-ca.pem", "set-up.json"].contains(&file)
            || *name == "tokens/planner.jwt"
    };
    let changed = changed(&before, &after);
    assert!(changed.iter().all(|name| expected(&name)), "{changed:?}");
    assert_eq!(changed.iter().filter(|name| name.ends_with("cert.pem")).count(), 4);
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
    assert!(shell.read_json("nats-1/set-up.json")["until"].as_u64().unwrap() > now + 300 * 86_400);
    // The previous authority is still trusted, so that brokers and clients can be restarted one by one; the one before it is not.
    let authority = &after["demo/ca.pem"];
    assert!(authority.ends_with(&before["demo/ca.pem"]) && authority.matches("BEGIN").count() == 2, "{authority}");
    assert!(shell.run("setup cluster --out . --json").ok().json()["renewed"] == false);
}

/// docs/cluster.md: nothing listens unless it is asked for.
#[test]
fn metrics_are_served_only_if_they_are_wanted() {
    let shell = Shell::new();
    shell.run("setup cluster --out .").ok();
    let configs = ["demo/sealwire.toml", "bank/sealwire.toml", "gateway/gateway.toml"];
    for config in configs {
        assert!(!shell.read(config).contains("telemetry"), "{config}");
    }
    shell.write("bank/sealwire.toml", &(shell.read("bank/sealwire.toml") + "[telemetry]\n"));
    shell.set_mode("bank/sealwire.toml", 0o600);
    let said = shell.run("setup cluster --out . --metrics on --json").ok().json();
    assert_eq!(said["metrics_added"], serde_json::json!(["demo", "gateway"]));
    let telling = "[telemetry]\nlisten = \"0.0.0.0:9464\"\nallow_remote = true\n";
    assert_eq!(configs.map(|config| shell.read(config).contains(telling)), [true, false, true]);
    std::fs::create_dir(shell.path("policies")).unwrap();
    shell.run("serve demo --config demo/sealwire.toml --check").ok();
    shell.run("gateway --config gateway/gateway.toml --check").ok();
    let said = shell.run("setup cluster --out . --metrics on --json").ok().json();
    assert_eq!(said["metrics_added"], serde_json::json!([]));
}

#[test]
fn a_service_is_added_and_nobody_elses_keys_are_touched() {
    let shell = Shell::new();
    shell.run("setup service ledger --out .").fails(30, &["there is no setup", "sealwire setup cluster"]);
    shell.run("setup cluster --out .").ok();
    shell.run("keys revoke teller.k1 --ring demo/ring.json --denylist bank/denylist.json").ok();
    let before = files(&shell);
    let said = shell.run("setup service ledger --out .").ok();
    assert!(said.stdout.contains("added the service ledger"), "{said:?}");
    let after = files(&shell);
    let kept = |name: &&String| {
        let file = name.rsplit('/').next().unwrap();
        name.starts_with("ledger/")
            || file.ends_with(".creds.json")
            || file.starts_with("users.")
            || file == "set-up.json"
    };
    let changed = changed(&before, &after);
    assert!(changed.iter().all(|name| kept(&name)), "{changed:?}");
    for agent in ["planner/planner", "operator/teller", "operator/operator"] {
        let name = format!("{agent}.creds.json");
        let (old, new): (Value, Value) =
            (serde_json::from_str(&before[&name]).unwrap(), serde_json::from_str(&after[&name]).unwrap());
        assert_eq!((&old["key"], &old["nats"]), (&new["key"], &new["nats"]), "{name}");
        assert_eq!(old["service_keys"]["demo"], new["service_keys"]["demo"], "{name}");
        assert_eq!(new["service_keys"]["ledger"][0]["kid"], "svc:dev/ledger:1", "{name}");
    }
    // The brokers know its two users, in the right accounts, in addition to the old ones.
    let (old, new) = (&before["nats-1/users.conf"], &after["nats-2/users.conf"]);
    assert!(old.lines().all(|line| new.contains(line)) && new.contains("GUARD_ledger {"), "{new}");
    // The next service does not admit an agent's key that another has revoked, and denies a key that another denies.
    let ring = shell.read_json("ledger/ring.json");
    let kids: Vec<&str> = ring["keys"].as_array().unwrap().iter().map(|key| key["kid"].as_str().unwrap()).collect();
    assert_eq!(kids, ["planner.k1", "operator.k1", "auditor.k1", "gateway.k1"]);
    assert!(after["ledger/denylist.json"].contains("teller.k1"));

    shell.run("setup service ledger --out .").fails(30, &["has a service ledger already"]);
    for taken in ["tokens", "nats-1", "policies", "gateway"] {
        shell.run(&format!("setup service {taken} --out .")).fails(30, &["cannot be named"]);
    }
    // The next start of the setup does not know about it, and leaves it alone.
    assert!(!shell.run("setup cluster --out .").ok().stdout.contains("new"));
    assert_eq!(after["ledger/ring.json"], shell.read("ledger/ring.json"));
    let more = shell.run("setup cluster --out . --service demo --service fourth").ok();
    assert!(more.stdout.contains("the service fourth is new"), "{more:?}");
}

/// If two commands had read the same users, one would bring back the user that the other has removed.
#[test]
fn commands_on_one_set_up_take_turns() {
    let shell = Shell::new();
    let at_once = |lines: &[&str]| {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let start =
            |line: &&str| shell.command(&words(line).iter().map(String::as_str).collect::<Vec<_>>()).spawn().unwrap();
        let started: Vec<_> = lines.iter().map(start).collect();
        let ended = started.into_iter().map(|child| child.wait_with_output().unwrap());
        ended
            .map(|ran| {
                assert!(ran.status.success(), "{ran:?}");
                String::from_utf8(ran.stdout).unwrap()
            })
            .collect::<Vec<_>>()
    };
    // One creates the setup, the other finds it.
    let said = at_once(&["setup cluster --out s"; 2]).concat();
    assert!(said.contains("made a new setup") && said.contains("the setup in s stays"), "{said}");
    assert_eq!(shell.read("s/planner/ca.pem"), shell.read("s/demo/ca.pem"));
    assert_eq!(shell.read("s/operator/ca.pem"), shell.read("s/nats-2/ca.pem"));
    at_once(&[
        "setup service one --out s",
        "setup remove-agent auditor --out s",
        "setup service two --out s",
        "setup remove-agent teller --out s",
    ]);
    let users = shell.read("s/nats-3/users.conf");
    assert!(users.contains("GUARD_one {") && users.contains("GUARD_two {"), "{users}");
    assert!(!users.contains("auditor") && !users.contains("teller"), "{users}");
    // No matter which came first.
    let services = &shell.read_json("s/issuer/set-up.json")["services"];
    let all = [["demo", "bank", "one", "two"], ["demo", "bank", "two", "one"]];
    assert!(all.iter().any(|all| *services == serde_json::json!(all)), "{services}");

    // Nothing changes while another command hangs. The two need to share only one folder: each container has its own base folder.
    let held = "s/operator";
    let lock = std::fs::File::open(shell.path(held)).unwrap();
    lock.try_lock().unwrap();
    let before = shell.read("s/operator/users.json");
    let why = ["another command is changing", held, "run this again"];
    shell.run("setup remove-agent planner --out s").fails(30, &why);
    assert_eq!(shell.read("s/operator/users.json"), before);
}

/// Its tools are the methods, none of them approved yet.
#[test]
fn a_service_in_front_of_a_server_of_mcp_is_set_up_as_the_others_are() {
    let shell = Shell::new();
    for wrong in ["wiki", "wiki=wiki-mcp:8000", "wi.ki=http://wiki-mcp:8000/mcp", "wiki=file:///etc/passwd"] {
        shell.run(&format!("setup cluster --out . --mcp {wrong}")).fails(2, &["--mcp"]);
    }
    let said =
        shell.run("setup cluster --out . --json --mcp bank=https://bank-mcp/mcp --mcp wiki=http://wiki-mcp:8000/mcp");
    assert_eq!(said.ok().json()["services"], serde_json::json!(["demo", "bank", "wiki"]));
    let config = |name: &str| shell.read(&format!("{name}/sealwire.toml"));
    assert!(!config("demo").contains("[[backend]]"));
    assert!(config("bank").contains("url = \"https://bank-mcp/mcp\"") && !config("bank").contains("allow_plaintext"));
    assert!(config("wiki").contains("prefix = \"wiki\"") && config("wiki").contains("allow_plaintext = true"));
    shell.run("setup service more --out . --mcp https://more-mcp/mcp").ok();
    assert!(config("more").contains("url = \"https://more-mcp/mcp\""));
    shell.run("setup service last --out . --mcp more-mcp").fails(2, &["--mcp"]);
    // The gateway exposes the services it was created with; the operator's changes stay.
    let gateway = shell.read("gateway/gateway.toml");
    assert_eq!(gateway.matches("[[gateway.expose]]").count(), 3, "{gateway}");
    // Each service takes the gateway's tokens for other callers; the gateway has none for itself.
    for name in ["demo", "bank", "wiki", "more"] {
        assert!(config(name).contains("require = { \"act.sub\" = \"gateway\" }"), "{name}");
    }
    shell.run("gateway --config gateway/gateway.toml --check").ok();
}

/// A running broker reloads its users; then the new service serves, with its own guard.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_is_added_while_the_brokers_run() {
    for gate in Gate::of_both_kinds().await {
        let _demo = gate.serve("demo", "demo.json");
        gate.shell.run("setup service ledger --out .").ok();
        // In operator mode, the scoped key of services lets it in at once; the guard's account is new.
        let user = if gate.kind == Kind::Server { "service ledger" } else { "guard ledger" };
        let before = gate.connect(user).await;
        assert!(before.unwrap_err()[0].contains("Authorization Violation"));
        gate.update().await;
        let _ledger = gate.serve("ledger", "ledger.json");
        let creds = gate.planner();
        gate.shell.run_args(&["call", "--creds", &creds, "demo", "math/add", "[2, 3]"]).ok();
        let issue = "token issue --key issuer/token-key.json --subject planner --audience dev/ledger --role calculator";
        gate.shell.run(&format!("{issue} --cnf-kid-file tokens/planner.kid --out tokens/planner.jwt")).ok();
        gate.shell.run_args(&["call", "--creds", &creds, "ledger", "math/add", "[2, 3]"]).ok();
    }
}

/// What it may do is tested with the gateway; here, that the brokers of a setup come to know it, and keep it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_relay_of_approvals_gets_a_broker_user_that_may_do_nothing_else() {
    for gate in Gate::of_both_kinds().await {
        let shell = &gate.shell;
        let made = shell.run("setup relay --out . --json").ok().json();
        let config: toml::Table = made["config"].as_str().unwrap().parse().unwrap();
        let nats = &config["gateway"]["approvals"]["nats"];
        let of_relay = |users: &Value| -> Vec<String> {
            let all = users["users"].as_array().unwrap().iter();
            all.filter(|user| user["kind"] == "relay").map(|user| user["nkey"].as_str().unwrap().to_owned()).collect()
        };
        let first = of_relay(&shell.read_json("operator/users.json"));
        assert_eq!(first.len(), 1);
        match gate.kind {
            Kind::Server => {
                assert_eq!(nats["nkey_seed_file"].as_str(), Some("relay.nkey"));
                assert!(shell.read("gateway/relay.nkey").starts_with("SU"));
                let permissions = sealwire_lab::permissions::Permissions::relay().to_string();
                let users = shell.read("nats-1/users.conf");
                let line = users.lines().find(|line| line.contains(&first[0])).unwrap();
                assert!(line.contains(&permissions), "{line}");
            }
            Kind::Operator => {
                assert_eq!(nats["creds_file"].as_str(), Some("relay.creds"));
                assert!(shell.read("gateway/relay.creds").contains("BEGIN NATS USER JWT"));
            }
        }
        // Adding a service keeps it, and another run replaces it.
        shell.run("setup service ledger --out .").ok();
        assert_eq!(of_relay(&shell.read_json("operator/users.json")), first);
        shell.run("setup relay --out .").ok().says("[gateway.approvals.nats]");
        let second = of_relay(&shell.read_json("operator/users.json"));
        assert!(second.len() == 1 && second != first);
        if gate.kind == Kind::Operator {
            assert!(shell.read_json("operator/users.json")["revoked"].get(&first[0]).is_some());
        }
    }
}

/// From its own key to its first answer, with nothing secret passed on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_was_enrolled_by_its_public_keys_is_answered() {
    for gate in Gate::of_both_kinds().await {
        let _demo = gate.serve("demo", "demo.json");
        let shell = &gate.shell;
        let asked =
            shell.run(&format!("keys request robot --environment dev --nkey --url {} --json", gate.server.url()));
        let asked = asked.ok().json();
        let thumbprint = asked["thumbprint"].as_str().unwrap();
        let enrol =
            format!("keys enrol robot robot.request --thumbprint {thumbprint} --service dev/demo=demo/ring.json");
        shell.run(&format!("{enrol} --pin-from demo/service-key.json")).ok();
        shell.run("keys accept robot.creds.json robot.enrolment.json").ok();
        let other = format!("setup agent robot.request --thumbprint {}x --out .", &thumbprint[1..]);
        shell.run(&other).fails(30, &["is for another key"]);
        let known = format!("setup agent robot.request --thumbprint {thumbprint} --out .");
        match gate.kind {
            Kind::Server => {
                shell.run(&format!("{known} --jwt robot.user.jwt")).fails(2, &["not in operator mode"]);
                shell.run(&known).ok();
            }
            Kind::Operator => {
                shell.run(&format!("{known} --jwt robot.user.jwt")).ok();
                let accept = "keys accept robot.creds.json robot.enrolment.json --nats-jwt";
                let other = sealwire_testkit::operator::parts(&shell.read("planner/planner.creds")).0;
                shell.write("other.jwt", &other);
                shell.run(&format!("{accept} other.jwt")).fails(30, &["not the JWT of the user", "ask the operator"]);
                let seed = shell.read_json("robot.creds.json")["nats"]["nkey_seed"].as_str().unwrap().to_owned();
                shell.run(&format!("{accept} robot.user.jwt")).ok();
                assert!(!shell.read("robot.creds.json").contains(&seed) && shell.read("robot.creds").contains(&seed));
                assert_eq!([shell.mode("robot.creds"), shell.mode("robot.creds.json")], [0o600; 2]);
                // Once more changes nothing.
                shell.run(&format!("{accept} robot.user.jwt")).ok();
            }
        }
        shell.run(&known).fails(30, &["already"]);
        gate.update().await;
        let issue = "token issue --key issuer/token-key.json --subject robot --audience dev/demo --role calculator";
        shell.run(&format!("{issue} --cnf-jkt {thumbprint} --out robot.jwt")).ok();
        let call = ["call", "--creds", "robot.creds.json", "demo", "math/add", "[2, 3]"];
        let deadline = Instant::now() + SOON;
        while shell.run_args(&call).code != 0 {
            assert!(Instant::now() < deadline, "{:?}", shell.run_args(&call));
            std::thread::sleep(Duration::from_millis(100));
        }
        // Adding the next service keeps the agent's user, and prints how to let the agent in.
        let said = shell.run("setup service ledger --out .").ok().stdout;
        let (first, second) = (asked["nkey"].as_str().unwrap(), "replaced");
        let knows = |nkey: &str| match gate.kind {
            Kind::Server => shell.read("nats-1/users.conf").contains(nkey),
            Kind::Operator => shell.read_json("operator/users.json")["users"].to_string().contains(nkey),
        };
        assert!(knows(first));
        let line = said
            .lines()
            .find_map(|line| line.trim().strip_prefix("sealwire keys enrol"))
            .unwrap_or_else(|| panic!("{said}"));
        shell.run(&format!("keys enrol {line}")).ok();
        let owners = |ring: &str| {
            let ring = shell.read_json(ring);
            ring["keys"]
                .as_array()
                .unwrap()
                .iter()
                .map(|key| key["owner"].as_str().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        assert!(owners("ledger/ring.json").contains(&"robot".to_owned()));
        shell.run("setup service audit --out . --json").ok();

        // A new key pair for the broker replaces the first.
        let again =
            format!("keys request robot --environment dev --nkey --out {second}.creds.json --request {second}.request");
        let again = shell.run(&format!("{again} --json")).ok().json();
        let replace = format!("setup agent - --thumbprint {} --out .", again["thumbprint"].as_str().unwrap());
        let request = shell.read("replaced.request");
        let with_request = |line: &str| shell.run_with_stdin(&line.split(' ').collect::<Vec<_>>(), request.as_bytes());
        with_request(&replace).fails(30, &["already"]);
        with_request(&format!("{replace} --replace")).ok();
        assert!(knows(again["nkey"].as_str().unwrap()) && !knows(first));
        // Without its user, the agent is disconnected and cannot come back.
        let removed = shell.run("setup remove-agent robot --out .").ok();
        for service in ["demo", "ledger"] {
            assert!(
                removed.stdout.contains(&format!("sealwire keys revoke robot.k1 --ring ./{service}/ring.json")),
                "{removed:?}"
            );
        }
        shell.run("setup remove-agent robot --out .").fails(30, &["know no agent robot"]);
        assert!(!knows(again["nkey"].as_str().unwrap()));
        gate.update().await;
        assert_ne!(shell.run_args(&call).code, 0);
    }
}

#[test]
fn an_agent_of_another_environment_gets_no_user() {
    let shell = Shell::new();
    shell.run("setup cluster --out .").ok();
    let before = files(&shell);
    let asked =
        shell.run("keys request robot --environment prod --nkey --out r.creds --request r.request --json").ok().json();
    std::fs::remove_file(shell.path("r.creds")).unwrap();
    let thumbprint = asked["thumbprint"].as_str().unwrap();
    let request = shell.read("r.request");
    std::fs::remove_file(shell.path("r.request")).unwrap();
    let args = ["setup", "agent", "-", "--thumbprint", thumbprint, "--out", "."];
    shell.run_with_stdin(&args, request.as_bytes()).fails(30, &["for the environment `prod`", "`dev`"]);
    assert_eq!(changed(&before, &files(&shell)), [""; 0]);
}

/// The brokers see every token, so a stolen one must be useless.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clusters_tokens_are_bound_to_keys_and_others_are_refused() {
    let gate = Gate::open().await;
    let _demo = gate.serve("demo", "demo.json");
    let creds = gate.planner();
    let call = ["call", "--creds", creds.as_str(), "demo", "math/add", "[2, 3]"];
    gate.shell.run_args(&call).ok();
    let issue = "token issue --key issuer/token-key.json --subject planner --audience dev/demo --role calculator";
    gate.shell.run(&format!("{issue} --out tokens/planner.jwt")).ok();
    assert_eq!(gate.shell.run_args(&call).code, 22, "a token that anybody could use");
    gate.shell.run(&format!("{issue} --cnf-kid teller.k1 --out tokens/planner.jwt")).ok();
    assert_eq!(gate.shell.run_args(&call).code, 22, "a token of another key");
    // After a rotation, the issuer of the tokens learns the new key's id, and nothing else.
    let rings = "--ring demo/ring.json --ring bank/ring.json";
    gate.shell.run(&format!("keys rotate planner/planner.creds.json {rings} --kid-file tokens/planner.kid")).ok();
    assert_eq!(gate.shell.read("tokens/planner.kid"), "planner.k2\n");
    gate.shell.run(&format!("{issue} --cnf-kid-file tokens/planner.kid --out tokens/planner.jwt")).ok();
    let creds = gate.planner();
    let call = ["call", "--creds", creds.as_str(), "demo", "math/add", "[2, 3]"];
    let deadline = Instant::now() + SOON;
    while gate.shell.run_args(&call).code != 0 {
        assert!(Instant::now() < deadline, "{:?}", gate.shell.run_args(&call));
        std::thread::sleep(Duration::from_millis(100));
    }
    gate.shell.run(&format!("{issue} --cnf-kid-file tokens/none")).fails(30, &["holds no key id"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_are_listed_and_a_health_check_follows_its_own() {
    let gate = Gate::open().await;
    let (one, mut two) = (gate.serve("demo", "one.json"), gate.serve("demo", "two.json"));
    let listed = gate.shell.run("ping --config demo/here.toml --at-least 2 --within 5s --json").ok().json();
    assert_eq!((&listed["audience"], &listed["ready"]), (&"dev/demo".into(), &2.into()));
    let instance = |state: &str| gate.shell.read_json(state)["instance"].as_str().unwrap().to_owned();
    let mut expected = [instance("one.json"), instance("two.json")];
    let mut found: Vec<&str> =
        listed["replicas"].as_array().unwrap().iter().map(|r| r["instance"].as_str().unwrap()).collect();
    expected.sort();
    found.sort_unstable();
    assert_eq!(found, expected);
    let replica = &listed["replicas"][0];
    assert_eq!((&replica["state"], &replica["guard"]), (&"ready".into(), &"shared".into()));

    let creds = gate.planner();
    let calls = ["call", "--creds", &creds, "demo", "math/add", "[2, 3]", "--every", "10ms", "--times", "20", "--json"];
    let ran = gate.shell.run_args(&calls).ok();
    let results = ran.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    assert_eq!(results.filter(|line| line["result"] == 5 && line["ms"].is_f64()).count(), 20);

    two.terminate();
    assert!(!gate.shell.path("two.json").exists(), "gone with the replica");
    gate.shell.run("ping --config demo/here.toml --own two.json").fails(20, &["no replica keeps its state"]);
    gate.shell.write("gone.json", r#"{"instance":"AAAA"}"#);
    let ran = gate.shell.run("ping --config demo/here.toml --own gone.json");
    assert!(ran.code == 20 && ran.stderr.contains("does not take messages"), "{ran:?}");
    gate.shell.run("ping --config demo/here.toml --own one.json --within 30s").ok();
    let ran = gate.shell.run("ping --config demo/here.toml --at-least 2 --within 5s");
    assert!(ran.code == 20 && ran.stderr.contains("1 replicas of dev/demo take messages, not 2"), "{ran:?}");

    drop(one);
    let calls = ["call", "--creds", &creds, "demo", "math/add", "[2, 3]", "--every", "10ms", "--times", "2"];
    let ran = gate.shell.run_args(&calls);
    assert_eq!(ran.code, 20, "{ran:?}");
    assert!(ran.stderr.contains("2 calls: 0 with a result, 2 without"), "{ran:?}");
}

#[test]
fn tokens_are_issued_again_and_again_until_told_to_stop() {
    let shell = Shell::new();
    shell.run("keys new-token-key https://issuer.example").ok();
    let issue = "token issue --key token-key.json --subject planner --audience dev/demo --out planner.jwt";
    let line = format!("{issue} --ttl 10s --every 10s");
    shell.run(&line).fails(30, &["a token would expire before the next one is issued"]);
    let args: Vec<&str> = issue.split(' ').chain(["--every", "50ms"]).collect();
    let mut issuing = Served(shell.command(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let mut seen = std::collections::BTreeSet::new();
    let deadline = Instant::now() + SOON;
    while seen.len() < 3 {
        assert!(Instant::now() < deadline, "{seen:?}");
        seen.extend(std::fs::read_to_string(shell.path("planner.jwt")).ok());
        std::thread::sleep(Duration::from_millis(10));
    }
    issuing.terminate();
}

/// Tokens expire if nobody issues the next ones.
#[test]
fn a_file_that_is_wrong_for_a_moment_ends_no_issuer_of_tokens() {
    use std::io::{BufRead as _, BufReader};
    let shell = Shell::new();
    shell.run("keys new-token-key https://issuer.example").ok();
    let args =
        "token issue --key token-key.json --subject planner --audience dev/demo --cnf-kid-file kid --out planner.jwt";
    let args: Vec<&str> = args.split(' ').chain(["--every", "50ms"]).collect();
    // A failure of the first token is an error.
    shell.run_args(&args).fails(30, &["`kid` holds no key id"]);
    shell.write("kid", "planner.k1\n");
    let mut issuing = shell.command(&args).stdout(Stdio::null()).spawn().unwrap();
    let mut log = BufReader::new(issuing.stderr.take().unwrap()).lines();
    let mut issuing = Served(issuing);
    let deadline = Instant::now() + SOON;
    let until_issued = || {
        while !shell.path("planner.jwt").exists() {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    until_issued();
    shell.write("kid", "");
    let said = log.next().unwrap().unwrap();
    assert!(said.contains("cannot issue a token") && said.contains("`kid` holds no key id"), "{said}");
    shell.write("kid", "planner.k2\n");
    // One that began before may still be in progress.
    std::thread::sleep(Duration::from_millis(200));
    std::fs::remove_file(shell.path("planner.jwt")).unwrap();
    until_issued();
    let token = shell.read("planner.jwt");
    shell.run_with_stdin(&["token", "inspect"], token.as_bytes()).ok().says("planner.k2");
    issuing.terminate();
    assert_eq!(log.count(), 0, "once");
}
