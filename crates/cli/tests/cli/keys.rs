//! `sealwire keys`: from a new agent to a revoked key, with correct files and no secret on the screen.

use crate::shell::Shell;
use sealwire::Credentials;
use sealwire::internal::auth::{KeyRing, KeySet, Symmetric, read_service_key};
use sealwire::internal::wire::Audience;
use serde_json::Value;

fn ring(shell: &Shell, name: &str, audience: &str) -> KeyRing {
    KeyRing::load(&shell.path(name), &Audience::parse(audience).unwrap()).unwrap()
}

fn key<'a>(ring: &'a Value, kid: &str) -> &'a Value {
    ring["keys"].as_array().unwrap().iter().find(|key| key["kid"] == kid).unwrap_or_else(|| panic!("{kid}: {ring}"))
}

/// Anybody who may list a folder may lock it for as long as they like.
#[test]
fn a_folder_that_somebody_keeps_locked_keeps_nobody_from_revoking() {
    let shell = Shell::new();
    shell.run("keys new-agent planner --service dev/math=math.ring.json").ok();
    let folder = std::fs::File::open(shell.path("")).unwrap();
    folder.lock().unwrap();
    let ran = shell.run("keys revoke planner.k1 --ring math.ring.json").ok();
    assert!(ran.stderr.contains("locked") && ran.stderr.contains("fuser"), "{}", ran.stderr);
    assert!(!shell.read("math.ring.json").contains("\"active\""), "{}", shell.read("math.ring.json"));
}

/// An operator's folder may contain links to the files that services read.
#[test]
fn a_ring_changed_through_a_link_is_changed_where_services_read_it() {
    use std::os::unix::fs::symlink;
    let shell = Shell::new();
    for folder in ["real", "desk"] {
        std::fs::create_dir(shell.path(folder)).unwrap();
    }
    shell.run("keys new-agent a --service dev/math=real/ring.json --out real/a.creds.json").ok();
    shell.run("keys new-token-key https://dev.example --out real/key.json --jwks real/jwks.json").ok();
    shell.run("token revoke --denylist real/deny.json --sub nobody").ok();
    let names = ["ring.json", "a.creds.json", "jwks.json", "deny.json"];
    for name in names {
        symlink(format!("../real/{name}"), shell.path(&format!("desk/{name}"))).unwrap();
    }
    // A command on the file itself waits for one that uses the link.
    let folder = std::fs::File::open(shell.path("real")).unwrap();
    folder.lock().unwrap();
    let ran = shell.run("keys rotate desk/a.creds.json --ring desk/ring.json").ok();
    assert!(ran.stderr.contains("locked") && ran.stderr.contains("fuser"), "{}", ran.stderr);
    folder.unlock().unwrap();
    shell.run("keys revoke a.k2 --ring desk/ring.json --denylist desk/deny.json").ok();
    shell.run("token revoke --denylist desk/deny.json --sub planner").ok();
    shell.run("keys new-token-key https://dev.example --out next.json --jwks desk/jwks.json").ok();
    assert_eq!(shell.read_json("real/a.creds.json")["key"]["kid"], "a.k2");
    assert_eq!(key(&shell.read_json("real/ring.json"), "a.k2")["status"], "revoked");
    let list = shell.read_json("real/deny.json");
    assert_eq!((&list["keys"][0], &list["subjects"][1]["sub"]), (&"a.k2".into(), &"planner".into()));
    assert_eq!(shell.read_json("real/jwks.json")["keys"].as_array().unwrap().len(), 2);
    for name in names {
        assert!(shell.path(&format!("desk/{name}")).is_symlink(), "{name}");
        std::fs::remove_file(shell.path(&format!("real/{name}"))).unwrap();
    }
    let before = shell.files();
    for line in [
        "token revoke --denylist desk/deny.json --sub planner",
        "keys revoke a.k2 --denylist desk/deny.json",
        "keys new-agent b --service dev/math=desk/ring.json",
        "keys new-token-key https://dev.example --out third.json --jwks desk/jwks.json",
        "token issue --key next.json --subject a --audience dev/math --out desk/a.creds.json",
    ] {
        shell.run(line).fails(30, &["desk/", "leads nowhere"]);
    }
    assert_eq!(shell.files(), before);
}

#[test]
fn new_agent_makes_private_files_that_library_and_service_accept() {
    let shell = Shell::new();
    let ran =
        shell.run("keys new-agent planner --service dev/math=math.ring.json --service dev/bank=bank.ring.json").ok();
    assert_eq!(ran.stderr, "");
    assert_eq!(shell.files(), ["bank.ring.json", "math.ring.json", "planner.creds.json"]);
    for file in shell.files() {
        assert_eq!(shell.mode(&file), 0o600, "{file}");
    }
    let credentials = Credentials::load(shell.path("planner.creds.json")).unwrap();
    assert_eq!((credentials.agent().as_str(), credentials.kid()), ("planner", "planner.k1"));
    assert_eq!(
        (ring(&shell, "math.ring.json", "dev/math").len(), ring(&shell, "bank.ring.json", "dev/bank").len()),
        (1, 1)
    );

    let creds = shell.read_json("planner.creds.json");
    assert_eq!(
        (&creds["token_file"], &creds["nats"]["urls"][0]),
        (&"planner.jwt".into(), &"nats://127.0.0.1:4222".into())
    );
    let master = creds["key"]["secret"].as_str().unwrap();
    let (math, bank) = (shell.read_json("math.ring.json"), shell.read_json("bank.ring.json"));
    let derived = |ring: &Value| key(ring, "planner.k1")["key"].as_str().unwrap().to_owned();
    assert_ne!(derived(&math), derived(&bank), "each service has its own derived key");
    assert!(!shell.read("math.ring.json").contains(master), "no service has the master secret");
    shell.never_said(master);
    shell.never_said(&derived(&math));
}

/// Otherwise the second would overwrite the first, or the command would end half-way.
#[test]
fn outputs_that_are_one_file_are_refused_before_anything_is_written() {
    let shell = Shell::new();
    std::fs::create_dir(shell.path("folder")).unwrap();
    std::os::unix::fs::symlink("folder", shell.path("link")).unwrap();
    for line in [
        "keys new-agent a --service dev/math=x --out x",
        "keys new-agent a --service dev/bank=y --service dev/math=folder/x --out link/x",
        "keys request a --environment dev --out x --request ./x",
        "keys request a --environment dev --out link/x --request folder/x",
        "keys new-token-key https://dev.example --out link/x --jwks folder/x",
    ] {
        shell.run(line).fails(30, &["x` is named for ", "name two files"]);
        assert_eq!(shell.files(), ["folder", "link"], "{line}");
        assert_eq!(std::fs::read_dir(shell.path("folder")).unwrap().count(), 0, "{line}");
    }

    shell.run("keys new-service dev/math").ok();
    let thumbprint = shell.run("keys request r2 --environment dev --json").ok().json()["thumbprint"].clone();
    let enrol = format!("keys enrol r2 r2.request --thumbprint {}", thumbprint.as_str().unwrap());
    let before = shell.files();
    for (ring, out) in [("x", "x"), ("folder/x", "link/x")] {
        let line = format!("{enrol} --service dev/math={ring} --pin-from math.service-key.json --out {out}");
        shell.run(&line).fails(30, &["x` is named for a key ring and for the enrolment"]);
        assert_eq!(shell.files(), before, "{line}");
        assert_eq!(std::fs::read_dir(shell.path("folder")).unwrap().count(), 0, "{line}");
    }
}

#[test]
fn second_agent_joins_the_ring_and_an_existing_one_is_not_overwritten() {
    let shell = Shell::new();
    shell.run("keys new-agent a --service dev/math=math.ring.json").ok();
    shell.run("keys new-agent b --service dev/math=math.ring.json").ok();
    assert_eq!(ring(&shell, "math.ring.json", "dev/math").owners(), 2);
    let (creds, before) = (shell.read("a.creds.json"), shell.read("math.ring.json"));
    shell
        .run("keys new-agent a --service dev/math=math.ring.json")
        .fails(30, &["math.ring.json", "a.k1", "keys rotate"]);
    shell.run("keys new-agent a --service dev/other=other.ring.json").fails(30, &["a.creds.json", "exists"]);
    shell.run("keys new-agent c --service dev/bank=math.ring.json").fails(30, &["dev/math", "dev/bank"]);
    shell.run("keys new-agent c --service dev/math=m --service prod/math=p").fails(30, &["two environments"]);
    for other in ["m", "./m"] {
        let line = format!("keys new-agent c --service dev/math=m --service dev/bank={other}");
        shell.run(&line).fails(30, &["named for two services", "ring of its own"]);
    }
    std::os::unix::fs::symlink("math.ring.json", shell.path("link")).unwrap();
    let line = "keys grant b.creds.json --service dev/bank=link --service dev/math=math.ring.json";
    shell.run(line).fails(30, &["dev/math", "dev/bank"]);
    std::fs::remove_file(shell.path("link")).unwrap();
    assert_eq!((shell.read("a.creds.json"), shell.read("math.ring.json")), (creds, before));
    assert_eq!(shell.files(), ["a.creds.json", "b.creds.json", "math.ring.json"], "nothing was left behind");
}

#[test]
fn a_ring_with_more_agents_than_services_take_by_default_is_told() {
    let shell = Shell::new();
    shell.run("keys new-agent a --service dev/math=math.ring.json").ok();
    let mut ring = shell.read_json("math.ring.json");
    let one = ring["keys"][0].clone();
    let more = (1..10_000).map(|n| {
        let mut key = one.clone();
        (key["kid"], key["owner"]) = (format!("a{n}.k1").into(), format!("a{n}").into());
        key
    });
    ring["keys"].as_array_mut().unwrap().extend(more);
    shell.write("math.ring.json", &ring.to_string());
    let ran = shell.run("keys rotate a.creds.json --ring math.ring.json").ok();
    assert_eq!(ran.stderr, "", "10,000 agents are not too many, whatever keys they have");
    let ran = shell.run("keys new-agent b --service dev/math=math.ring.json").ok();
    assert!(ran.stderr.contains("`agents` in `[replay]`") && ran.stderr.contains("10001"), "{}", ran.stderr);
}

#[test]
fn agents_made_at_the_same_time_are_all_in_the_ring() {
    let shell = Shell::new();
    let children: Vec<_> = (0..8)
        .map(|n| {
            let name = format!("agent-{n}");
            shell.command(&["keys", "new-agent", &name, "--service", "dev/math=math.ring.json"]).spawn().unwrap()
        })
        .collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(ring(&shell, "math.ring.json", "dev/math").len(), 8);
}

#[test]
fn grant_gives_another_service_its_own_derived_key() {
    let shell = Shell::new();
    shell.run("keys new-agent a --service dev/math=math.ring.json").ok();
    shell.run("keys grant a.creds.json --service dev/bank=bank.ring.json").ok();
    let both = ["math.ring.json", "bank.ring.json"].map(|name| shell.read_json(name)["keys"][0]["key"].clone());
    assert_ne!(both[0], both[1]);
    shell.run("keys grant a.creds.json --service dev/bank=bank.ring.json").fails(30, &["a.k1", "already"]);
    shell.run("keys grant a.creds.json --service prod/bank=prod.ring.json").fails(30, &["prod/bank", "new-agent"]);
}

#[test]
fn files_that_others_can_read_are_refused_and_say_what_to_do() {
    let shell = Shell::new();
    shell.run("keys new-agent a --service dev/math=math.ring.json").ok();
    shell.run("keys new-token-key https://dev.example").ok();
    for (file, command) in [
        ("math.ring.json", "keys list math.ring.json"),
        ("math.ring.json", "keys new-agent b --service dev/math=math.ring.json"),
        ("a.creds.json", "keys grant a.creds.json --service dev/bank=bank.ring.json"),
        ("a.creds.json", "keys rotate a.creds.json --ring math.ring.json"),
        ("token-key.json", "token issue --key token-key.json --subject a --audience dev/math"),
    ] {
        shell.set_mode(file, 0o644);
        shell.run(command).fails(30, &[file, "chmod 600"]);
        shell.set_mode(file, 0o600);
    }
    assert_eq!(shell.files(), ["a.creds.json", "jwks.json", "math.ring.json", "token-key.json"]);
}

#[test]
fn rotation_overlaps_and_ends_with_retirement() {
    let shell = Shell::new();
    shell.run("keys new-agent a --service dev/math=math.ring.json --service dev/bank=bank.ring.json").ok();
    let old = shell.read_json("a.creds.json")["key"]["secret"].clone();
    let ran =
        shell.run("keys rotate a.creds.json --ring math.ring.json --ring bank.ring.json --overlap 10m --json").ok();
    assert_eq!((&ran.json()["kid"], &ran.json()["old_kid"]), (&"a.k2".into(), &"a.k1".into()));

    let creds = shell.read_json("a.creds.json");
    assert_eq!((&creds["key"]["kid"], &creds["token_file"]), (&"a.k2".into(), &"a.jwt".into()));
    assert_ne!(creds["key"]["secret"], old);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    for name in ["math.ring.json", "bank.ring.json"] {
        let ring = shell.read_json(name);
        let until = key(&ring, "a.k1")["not_after"].as_u64().unwrap();
        assert!((now + 590..=now + 600).contains(&until), "{ring}");
        assert!(key(&ring, "a.k2")["not_before"].as_u64().unwrap() <= now, "usable at once");
        assert_eq!((shell.mode(name), shell.mode("a.creds.json")), (0o600, 0o600));
    }

    shell.run("keys retire a.k1 --ring math.ring.json --ring bank.ring.json").ok();
    let listed = shell.run("keys list math.ring.json --json").ok().json();
    assert_eq!((&key(&listed, "a.k1")["state"], &key(&listed, "a.k2")["state"]), (&"retired".into(), &"active".into()));
    shell.never_said(creds["key"]["secret"].as_str().unwrap());
}

/// A lost key must stay recognizable.
#[test]
fn a_revoked_key_stays_revoked_and_rotation_does_not_say_that_it_holds() {
    let shell = Shell::new();
    shell.run("keys new-agent a --service dev/math=math.ring.json --service dev/bank=bank.ring.json").ok();
    shell.run("keys revoke a.k1 --ring math.ring.json").ok();
    let before = ["math.ring.json", "bank.ring.json"].map(|name| shell.read(name));
    let both = "--ring math.ring.json --ring bank.ring.json";
    shell
        .run(&format!("keys retire a.k1 {both}"))
        .fails(30, &["`a.k1` is revoked in `math.ring.json`", "leave that ring"]);
    assert_eq!(["math.ring.json", "bank.ring.json"].map(|name| shell.read(name)), before);

    let said = shell.run(&format!("keys rotate a.creds.json {both}")).ok().stdout;
    assert!(
        said.contains("a.k1 is valid until") && said.ends_with("keys retire a.k1 --ring bank.ring.json\n"),
        "{said}"
    );
    shell.run("keys retire a.k1 --ring bank.ring.json").ok();
    shell.run("keys revoke a.k2 --ring math.ring.json --ring bank.ring.json").ok();
    let said = shell.run(&format!("keys rotate a.creds.json {both}")).ok().stdout;
    assert!(said.contains("a.k2 is no longer valid: it was revoked") && !said.contains("keys retire"), "{said}");
    shell.run("keys revoke a.k3 --ring math.ring.json --ring bank.ring.json").ok();
    assert_eq!(shell.run(&format!("keys rotate a.creds.json {both} --json")).ok().json()["old_until"], Value::Null);
    assert_eq!(key(&shell.read_json("math.ring.json"), "a.k1")["status"], "revoked");
}

#[test]
fn rotation_that_cannot_finish_changes_nothing() {
    let shell = Shell::new();
    shell.run("keys new-agent a --service dev/math=math.ring.json").ok();
    shell.run("keys new-agent b --service dev/bank=bank.ring.json").ok();
    let files = || ["a.creds.json", "math.ring.json", "bank.ring.json"].map(|name| shell.read(name));
    let before = files();
    let ran = shell.run("keys rotate a.creds.json --ring math.ring.json --ring bank.ring.json");
    ran.fails(30, &["bank.ring.json", "a.k1", "keys grant"]);
    assert_eq!(files(), before);
}

#[test]
fn revocation_reaches_rings_and_deny_list_or_none_of_them() {
    let shell = Shell::new();
    shell.run("keys new-agent a --service dev/math=math.ring.json").ok();
    shell.run("keys revoke a.k9 --ring math.ring.json --denylist deny.json").fails(30, &["a.k9", "keys list"]);
    assert!(!shell.path("deny.json").exists());
    shell.run("keys revoke a.k1 --ring math.ring.json --denylist deny.json").ok();
    assert_eq!(key(&shell.read_json("math.ring.json"), "a.k1")["status"], "revoked");
    assert_eq!(shell.read_json("deny.json")["keys"][0], "a.k1");
    shell.run("keys revoke idp-1 --denylist deny.json").ok();
    assert_eq!(shell.read_json("deny.json")["keys"], serde_json::json!(["a.k1", "idp-1"]));
    shell.run("keys revoke a.k1").fails(2, &["--ring", "--denylist"]);
}

#[test]
fn ed25519_agents_share_no_secret_and_pin_the_service() {
    let shell = Shell::new();
    shell.run("keys new-agent eve --alg eddsa --service dev/math=math.ring.json").ok();
    let service = shell.run("keys new-service dev/math --json").ok().json();
    let (kid, x) = (service["kid"].as_str().unwrap(), service["x"].as_str().unwrap());
    assert_eq!(kid, "svc:dev/math:1");
    assert_eq!(shell.mode("math.service-key.json"), 0o600);
    let key = read_service_key(&shell.path("math.service-key.json"), &Audience::parse("dev/math").unwrap()).unwrap();
    assert_eq!((key.kid(), key.public().x().as_str()), (kid, x));
    shell.run("keys new-service dev/math").fails(30, &["exists"]);

    let pin = |rest: &str| shell.run(&format!("keys pin eve.creds.json --service math {rest}"));
    pin(&format!("--kid {kid} --x {x}")).ok();
    let second = shell.run("keys new-service dev/math --number 2 --out second.json --json").ok().json();
    let second = second["x"].as_str().unwrap();
    pin(&format!("--kid svc:dev/math:2 --x {second}")).ok();
    pin(&format!("--kid svc:dev/math:2 --x {x}")).fails(30, &["another key", "--only"]);
    pin(&format!("--kid svc:dev/bank:1 --x {x}")).fails(30, &["svc:dev/math:"]);
    pin("--kid svc:dev/math:3 --x nonsense").fails(30, &["Ed25519"]);
    let pinned = |shell: &Shell| shell.read_json("eve.creds.json")["service_keys"]["math"].as_array().unwrap().len();
    assert_eq!(pinned(&shell), 2);
    pin(&format!("--kid svc:dev/math:2 --x {second} --only")).ok();
    assert_eq!(pinned(&shell), 1);

    let ring = shell.read_json("math.ring.json");
    let seed = shell.read_json("eve.creds.json")["key"]["seed"].as_str().unwrap().to_owned();
    assert!(ring["keys"][0].get("key").is_none() && !ring.to_string().contains(&seed));
    shell.never_said(&seed);
    shell.never_said(shell.read_json("math.service-key.json")["seed"].as_str().unwrap());
}

#[test]
fn a_window_shorter_than_clients_sign_for_is_refused() {
    let shell = Shell::new();
    shell.run("keys new-token-key https://issuer.example").ok();
    shell.run("keys new-agent a --service dev/math=math.ring.json").ok();
    let config = |window_s: u64| {
        let text = format!(
            "environment = \"dev\"\nservice = \"math\"\n[nats]\nurls = [\"nats://127.0.0.1:4222\"]\n[keys]\n\
             ring = \"math.ring.json\"\n[[tokens.issuer]]\nissuer = \"https://issuer.example\"\njwks = \"jwks.json\"\n\
             [policy]\nfolder = \"policies\"\n[replay]\nwindow_s = {window_s}\n"
        );
        std::fs::write(shell.path("sealwire.toml"), text).unwrap();
        shell.run("serve --config sealwire.toml --check")
    };
    std::fs::create_dir(shell.path("policies")).unwrap();
    config(29).fails(30, &["replay.window_s", "30 to 300"]);
    config(301).fails(30, &["301"]);
    // It gets as far as the policies, which do not exist.
    let fits = config(30);
    assert!(!fits.stderr.contains("window_s"), "{}", fits.stderr);
}

#[test]
fn listing_shows_owners_states_and_thumbprints_but_no_symmetric_key() {
    let shell = Shell::new();
    shell.run("keys new-agent a --service dev/math=math.ring.json").ok();
    shell.run("keys new-agent eve --alg eddsa --service dev/math=math.ring.json").ok();
    let text = shell.run("keys list math.ring.json").ok().stdout;
    for word in ["dev/math", "a.k1", "eve.k1", "HS256", "EdDSA", "active", "thumbprint"] {
        assert!(text.contains(word), "{text}");
    }
    let listed = shell.run("keys list math.ring.json --json").ok().json();
    assert_eq!(key(&listed, "eve.k1")["thumbprint"].as_str().unwrap().len(), 43);
    shell.never_said(shell.read_json("math.ring.json")["keys"][0]["key"].as_str().unwrap());
    shell.run("keys list nowhere.json").fails(30, &["nowhere.json"]);
    shell.write("math.ring.json", "{\"audience\": 1}");
    shell.set_mode("math.ring.json", 0o600);
    shell.run("keys list math.ring.json").fails(30, &["not a key ring", "line 1", "new-agent"]);
}

#[test]
fn token_keys_gather_in_one_set_and_are_not_overwritten() {
    let shell = Shell::new();
    shell.run("keys new-token-key https://dev.example").ok();
    assert_eq!((shell.mode("token-key.json"), shell.mode("jwks.json") & 0o600), (0o600, 0o600));
    shell.run("keys new-token-key https://dev.example").fails(30, &["token-key.json", "exists", "--out"]);
    shell.run("keys new-token-key https://dev.example --out next.json").ok();
    let set = KeySet::from_jwks(&shell.read("jwks.json"), "https://dev.example", "test", Symmetric::Refused).unwrap();
    assert_eq!(set.len(), 2, "the failed attempt added nothing");
    shell.never_said(shell.read_json("token-key.json")["d"].as_str().unwrap());
    shell.write("jwks.json", "{}");
    shell.run("keys new-token-key https://dev.example --out third.json").fails(30, &["jwks.json", "keys"]);
    assert!(!shell.path("third.json").exists());
    shell.run("keys new-token-key https://dev.example --out third.json --jwks nowhere/j.json").fails(30, &["nowhere"]);
    // If the set cannot be written after the key, no key without a set is left behind.
    std::fs::remove_file(shell.path("jwks.json")).unwrap();
    let name = "j".repeat(250);
    shell.run(&format!("keys new-token-key https://dev.example --out third.json --jwks {name}")).fails(30, &[&name]);
    assert_eq!(shell.files(), ["next.json", "token-key.json"]);
}

#[test]
fn passwords_come_from_private_files_and_go_into_private_files() {
    let shell = Shell::new();
    shell.write("planner.password", "correct-horse-battery-staple\n");
    let command =
        "keys new-agent planner --service dev/math=math.ring.json --user planner --password-file planner.password";
    shell.run(command).fails(30, &["planner.password", "chmod 600"]);
    assert_eq!(shell.files(), ["planner.password"]);
    shell.set_mode("planner.password", 0o600);
    shell.run(command).ok();
    assert_eq!(shell.read_json("planner.creds.json")["nats"]["password"], "correct-horse-battery-staple");
    shell.never_said("correct-horse-battery-staple");
}

#[test]
fn a_ring_is_named_alike_to_all_commands() {
    let shell = Shell::new();
    shell.run("keys new-agent planner --service dev/math=math.ring.json").ok();
    let listed = shell.run("keys list math.ring.json").ok().stdout;
    assert_eq!(shell.run("keys list --ring math.ring.json").ok().stdout, listed);
    shell.run("keys list").fails(2, &["RING"]);
    shell.run("keys list math.ring.json --ring math.ring.json").fails(2, &["cannot be used"]);
}
