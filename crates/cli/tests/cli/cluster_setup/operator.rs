//! What is particular to brokers in operator mode: keys and who holds them, JWTs that no scope makes, the store of `nsc`.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;
use std::time::Duration;

use nkeys::KeyPair;
use sealwire_testkit::desk::part;
use sealwire_testkit::operator::{creds, jwt, parts};
use sealwire_testkit::raw::RawConnection;
use sealwire_testkit::{NatsServer, SOON};
use serde_json::{Value, json};

use super::files;
use super::gate::{Gate, Kind, config, operator_cluster, owned};
use crate::shell::Shell;

fn pair(shell: &Shell, file: &str) -> KeyPair {
    KeyPair::from_seed(shell.read(file).trim()).unwrap()
}

/// Lines and texts that are nkey seeds.
fn seeds(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric());
    let is_seed = |word: &&str| word.len() == 58 && word.starts_with('S') && KeyPair::from_seed(word).is_ok();
    words.filter(is_seed).map(str::to_owned).collect()
}

#[test]
fn a_set_up_for_operator_mode_keeps_every_key_in_one_file_of_its_owner() {
    let shell = Shell::new();
    let said = shell.run("setup operator --out .").ok();
    assert!(said.stdout.contains("Put away ./put-away") && said.stdout.contains("Keep ./signing"), "{said:?}");
    let all = files(&shell);
    let mut count = 0;
    for (name, text) in &all {
        assert_eq!(shell.mode(name), 0o600, "{name}");
        for seed in seeds(text) {
            count += 1;
            let holders: Vec<&String> =
                all.iter().filter(|(_, text)| text.contains(&seed)).map(|(name, _)| name).collect();
            assert_eq!(holders, [name]);
            shell.never_said(&seed);
        }
    }
    // Put away: the operator and six accounts. To sign: the operator's, three roles of SEALWIRE, two of SYS, one of each guard and of
    // REVOCATION, three of FOLLOWERS. Users: five agents, tools, pusher, an operator who revokes and closes connections, the gateway's to
    // follow, three of each service.
    assert_eq!(count, 7 + (1 + 3 + 2 + 3 + 3) + 5 + 5 + 2 * 3);
    for folder in shell.files() {
        assert_eq!(shell.mode(&folder), 0o700, "{folder}");
        let here = all.iter().filter(|(name, _)| name.starts_with(&format!("{folder}/")));
        let keys = here.flat_map(|(_, text)| seeds(text)).filter(|seed| !seed.starts_with("SU"));
        assert_eq!(keys.count() > 0, ["put-away", "signing"].contains(&folder.as_str()), "{folder}");
    }
    // Brokers and users have public keys and JWTs; a user's says nothing of what it may do.
    let user = parts(&all["planner/planner.creds"]).0;
    let claims = part(&user, 1);
    let members: BTreeSet<&str> = claims["nats"].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(members, BTreeSet::from(["issuer_account", "type", "version"]));
    let jti = claims["jti"].as_str().unwrap();
    assert!(jti.len() == 52 && jti.chars().all(|c| matches!(c, 'A'..='Z' | '2'..='7')), "{jti}");

    // Nothing is done twice.
    shell.run("setup operator --out .").ok();
    let after = files(&shell);
    let changed: Vec<&String> = after.keys().filter(|name| after[*name] != all[*name]).collect();
    assert_eq!(changed, ["tokens/planner.jwt"]);
    shell.run("setup cluster --out .").fails(30, &["are in operator mode", "sealwire setup operator"]);
    // A folder that is lost is not made again.
    std::fs::rename(shell.path("signing"), shell.path("kept")).unwrap();
    shell.run("setup operator --out .").fails(30, &["is incomplete", "signing", "restore it from a backup"]);
    std::fs::rename(shell.path("kept"), shell.path("signing")).unwrap();
    let other = Shell::new();
    other.run("setup cluster --out .").ok();
    other.run("setup operator --out .").fails(30, &["have their users in their configuration", "setup cluster"]);
    other.run("setup push --out .").fails(30, &["are not in operator mode"]);
}

/// The account's own key, and that of the operator, are where nothing runs; without them, services and agents still come and go.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_are_put_away_are_not_missed() {
    let gate = Gate::open_as(Kind::Operator).await;
    std::fs::rename(gate.shell.path("put-away"), gate.shell.path("safe")).unwrap();
    gate.shell.run("setup service ledger --out .").ok();
    gate.shell.run("setup remove-agent auditor --out .").ok();
    gate.update().await;
    assert!(gate.connect("guard ledger").await.is_ok() && gate.connect("planner").await.is_ok());
    assert!(gate.connect("auditor").await.is_err());
    assert_eq!(gate.shell.files_in("put-away"), ["GUARD_ledger.nk"]);
    // What signs is missed, and nothing takes its place.
    std::fs::rename(gate.shell.path("signing/operator.nk"), gate.shell.path("safe/signing.nk")).unwrap();
    gate.shell.run("setup service last --out .").fails(30, &["signing/operator.nk", "put it back"]);
    assert!(!gate.shell.path("signing/operator.nk").exists());
}

/// SPEC.md §19. Whoever cannot sign with a scoped key makes no user, and whoever can, none with more than the scope.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_that_no_scope_makes_are_refused() {
    let gate = Gate::open_as(Kind::Operator).await;
    let account = |name: &str| gate.account(name)["sub"].as_str().unwrap().to_owned();
    let own = account("SEALWIRE");
    let signer = |file: &str| pair(&gate.shell, file);
    let of = |issuer: &str, more: Value| {
        let mut nats = json!({ "type": "user", "version": 2 });
        if !issuer.is_empty() {
            nats["issuer_account"] = issuer.into();
        }
        nats.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        nats
    };
    let everything =
        json!({ "subs": -1, "data": -1, "payload": -1, "pub": { "allow": [">"] }, "sub": { "allow": [">"] } });
    let login = |signer: &KeyPair, nats: Value| {
        let user = KeyPair::new_user();
        let claims = json!({ "sub": user.public_key(), "name": "planner", "nats": nats });
        creds(&jwt(signer, &claims), &user.seed().unwrap())
    };
    let agents = signer("signing/SEALWIRE.agent.nk");
    let url = gate.server.url();
    let good = RawConnection::connect_with_creds(&url, &login(&agents, of(&own, json!({})))).await;
    assert!(good.is_ok(), "{:?}", good.err());
    for (what, signer, nats) in [
        ("the account's own key", signer("put-away/SEALWIRE.nk"), of("", everything.clone())),
        ("the account's own key, as if scoped", signer("put-away/SEALWIRE.nk"), of(&own, json!({}))),
        ("the operator's key", signer("signing/operator.nk"), of(&own, json!({}))),
        ("the operator's own key", signer("put-away/operator.nk"), of(&own, json!({}))),
        ("a key of nobody", KeyPair::new_account(), of(&own, json!({}))),
        ("a key of another account", signer("signing/GUARD_demo.guard.nk"), of(&own, json!({}))),
        ("agents' key for another account", agents, of(&account("GUARD_demo"), json!({}))),
        ("agents' key, with all permissions", signer("signing/SEALWIRE.agent.nk"), of(&own, everything)),
        (
            "agents' key, with one permission",
            signer("signing/SEALWIRE.agent.nk"),
            of(&own, json!({ "pub": { "allow": ["$SRV.>"] } })),
        ),
        ("agents' key, with a limit", signer("signing/SEALWIRE.agent.nk"), of(&own, json!({ "subs": 1000 }))),
        ("agents' key, for bearers", signer("signing/SEALWIRE.agent.nk"), of(&own, json!({ "bearer_token": true }))),
    ] {
        let refused = RawConnection::connect_with_creds(&url, &login(&signer, nats)).await;
        assert!(refused.is_err_and(|errors| errors[0].contains("Authorization Violation")), "{what}");
    }
    // Who pushes accounts can do that and no more, and only what the operator has signed.
    let may = gate
        .may(
            "pusher pusher",
            &["$SYS.REQ.CLAIMS.UPDATE", "$SYS.REQ.CLAIMS.DELETE", "$SYS.REQ.SERVER.PING", "x"],
            &["_INBOX.pusher.x", "$SYS.>", "_INBOX.>", ">"],
        )
        .await;
    assert_eq!(may, (owned(&["$SYS.REQ.CLAIMS.UPDATE"]), owned(&["_INBOX.pusher.x"])));
    let mut pusher = gate.raw("pusher pusher").await;
    let forged = jwt(&signer("put-away/SEALWIRE.nk"), &gate.account("SEALWIRE"));
    pusher.subscribe("_INBOX.pusher.x", None).await;
    pusher.publish("$SYS.REQ.CLAIMS.UPDATE", Some("_INBOX.pusher.x"), forged.as_bytes()).await;
    pusher.flush().await;
    assert!(gate.connect("planner").await.is_ok());
}

/// The login of something else opens no way, and says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_creds_file_of_another_account_and_one_that_others_can_read_are_refused() {
    let gate = Gate::open_as(Kind::Operator).await;
    let config = gate.shell.read(&gate.configure("demo"));
    gate.shell.write("demo/wrong.toml", &config.replace("service.creds", "guard.creds"));
    gate.shell.set_mode("demo/wrong.toml", 0o600);
    let mut served = gate.start("demo/wrong.toml", "wrong.json");
    assert_eq!(served.ends(3 * SOON), Some(20), "{}", gate.log("wrong.json"));
    assert!(gate.log("wrong.json").contains("the broker does not carry"), "{}", gate.log("wrong.json"));

    let refused = ["others", "chmod"];
    gate.shell.set_mode("demo/service.creds", 0o644);
    gate.shell.run("serve demo --config demo/here.toml --check").fails(30, &["service.creds", refused[1]]);
    for file in ["signing/operator.nk", "signing/GUARD_demo.guard.nk"] {
        gate.shell.set_mode(file, 0o640);
    }
    gate.shell.run("setup service more --out .").fails(30, &["signing/operator.nk", refused[1]]);
    let account = gate.account("GUARD_demo")["sub"].as_str().unwrap().to_owned();
    let user = format!("setup user demo --signing-key signing/GUARD_demo.guard.nk --account {account} --out x.creds");
    gate.shell.run(&user).fails(30, &["GUARD_demo.guard.nk", refused[1]]);
    gate.shell.set_mode("signing/GUARD_demo.guard.nk", 0o600);
    // It is made with the seed alone, and can do what the guard's own login can.
    gate.shell.run(&user).ok();
    assert_eq!(gate.shell.mode("x.creds"), 0o600);
    let made = RawConnection::connect_with_creds(&gate.server.url(), &gate.shell.read("x.creds")).await;
    assert!(made.is_ok(), "{:?}", made.err());
    gate.shell.run(&user).fails(30, &["x.creds"]);
    let own = format!("setup user demo --signing-key put-away/GUARD_demo.nk --account {account} --out y.creds");
    gate.shell.run(&own).fails(30, &["the account's own key", "scoped signing key"]);
    let key = KeyPair::new_user().public_key();
    let printed = gate.shell.run(&format!("{} --nkey {key} --for 1h --json", user.replace(" --out x.creds", ""))).ok();
    let claims = part(printed.json()["jwt"].as_str().unwrap(), 1);
    assert_eq!(claims["sub"], key);
    assert_eq!(claims["exp"].as_u64().unwrap(), claims["iat"].as_u64().unwrap() + 3600);
}

/// Killed at any moment: what was made stays, and the next run makes the rest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_set_up_goes_on_with_the_keys_that_it_has() {
    let shell = Shell::new();
    let keys = |shell: &Shell| -> BTreeMap<String, String> {
        let folders = ["signing", "put-away"].into_iter().filter(|folder| shell.path(folder).is_dir());
        let names =
            folders.flat_map(|folder| shell.files_in(folder).into_iter().map(move |name| format!("{folder}/{name}")));
        names.filter(|name| name.ends_with(".nk")).map(|name| (name.clone(), shell.read(&name))).collect()
    };
    let mut known = BTreeMap::new();
    for moment_ms in (0..300).step_by(20) {
        let mut command = shell.command(&["setup", "operator", "--out", "."]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(moment_ms));
        let _ = child.kill();
        child.wait().unwrap();
        let now = keys(&shell);
        for (name, seed) in &known {
            assert_eq!(now.get(name), Some(seed), "{name} after {moment_ms} ms");
        }
        known = now;
    }
    shell.run("setup operator --out .").ok();
    let server = NatsServer::start_with(&config(&shell)).await;
    let gate = Gate { shell, server, kind: Kind::Operator };
    for user in ["planner", "auditor", "tools", "service demo", "guard bank", "follower demo", "revoker operator"] {
        assert!(gate.connect(user).await.is_ok(), "{user}");
    }
}

/// Three brokers with the full resolver; service and agent are at different ones, and the guard's stream at all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn brokers_in_operator_mode_carry_a_call_of_an_agent_with_nothing_but_a_creds_file() {
    let shell = Shell::new();
    shell.run("setup operator --out .").ok();
    let mut nodes = operator_cluster(&shell).await;
    let last = nodes.pop().unwrap();
    let gate = Gate { shell, server: nodes.remove(0), kind: Kind::Operator };
    let here = gate.configure("demo");
    let config = gate.shell.read(&here).replace("replicas = 1", "replicas = 3");
    gate.shell.write(&here, &config);
    gate.shell.set_mode(&here, 0o600);
    let _demo = gate.serve_with(&here, "demo.json");
    let mut credentials = gate.shell.read_json(&gate.planner());
    credentials["nats"]["urls"] = json!([last.url()]);
    assert_eq!(credentials["nats"], json!({ "urls": [last.url()], "creds_file": "planner.creds" }));
    gate.shell.write("planner/there.creds.json", &credentials.to_string());
    gate.shell.set_mode("planner/there.creds.json", 0o600);
    let said = gate.shell.run_args(&["call", "--creds", "planner/there.creds.json", "demo", "math/add", "[2, 3]"]).ok();
    assert_eq!(said.stdout.trim(), "5");
    // A new account gets to all of them.
    gate.shell.run("setup service ledger --out .").ok();
    let login = json!({ "urls": [last.url()], "creds_file": "pusher.creds" });
    gate.shell.write("operator/here.nats.json", &login.to_string());
    gate.shell.set_mode("operator/here.nats.json", 0o600);
    let pushed = gate.shell.run("setup push --out . --login operator/here.nats.json --brokers 3 --json").ok().json();
    assert_eq!(pushed["brokers"], json!(["n0", "n1", "n2"]));
    for server in [&gate.server, &last] {
        let login = gate.shell.read("ledger/guard.creds");
        assert!(RawConnection::connect_with_creds(&server.url(), &login).await.is_ok());
    }
}

/// docs/broker.md: typed as they stand. The files lead to the brokers of the compose setup; here, to one of this machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_s_commands_set_up_operator_mode() {
    let text = std::fs::read_to_string(sealwire_testkit::root().join("docs/broker.md")).unwrap();
    let section = text.split("\n## ").find(|section| section.starts_with("Operator mode")).unwrap();
    let blocks: Vec<_> = sealwire_testkit::page::blocks(section).filter(|block| block.info == "sh").collect();
    let lines: Vec<&str> = blocks.iter().flat_map(|block| block.lines.iter().copied()).collect();
    assert_eq!(lines.len(), 6, "{lines:?}");
    let typed = |shell: &Shell, line: &str| {
        tokio::task::block_in_place(|| shell.run(line.strip_prefix("sealwire ").unwrap()).ok());
    };
    let outer = Shell::new();
    typed(&outer, lines[0]);
    let config = outer.read("sealwire/nats-1/users.conf");
    let accounts = outer.path("accounts");
    let server = NatsServer::start_with(&config.replace("/sealwire/data/accounts", accounts.to_str().unwrap())).await;
    for file in ["sealwire/operator/revocation.toml", "sealwire/operator/pusher.nats.json"] {
        let text = outer.read(file).replace("tls_ca = \"ca.pem\"\n", "").replace(",\n  \"tls_ca\": \"ca.pem\"", "");
        let text = text.replace("tls://nats-1:4222", &server.url());
        let others = |line: &&str| !line.contains("\"tls://nats-");
        let text = text.replace(", \"tls://nats-2:4222\", \"tls://nats-3:4222\"", "");
        let text = text.replace(&format!("\"{}\",", server.url()), &format!("\"{}\"", server.url()));
        outer.write(file, &text.lines().filter(others).collect::<Vec<_>>().join("\n"));
        outer.set_mode(file, 0o600);
    }
    lines[1..].iter().for_each(|line| typed(&outer, line));
    let login = |file: &str| outer.read(&format!("sealwire/{file}"));
    for file in ["ledger/service.creds", "ledger/guard.creds", "planner/planner.creds"] {
        assert!(RawConnection::connect_with_creds(&server.url(), &login(file)).await.is_ok(), "{file}");
    }
    assert!(RawConnection::connect_with_creds(&server.url(), &login("operator/auditor.creds")).await.is_err());
}

/// A store as `nsc add operator --sys --generate-signing-key` leaves it.
fn store(shell: &Shell, name: &str) -> KeyPair {
    let (operator, signer, system) = (KeyPair::new_operator(), KeyPair::new_operator(), KeyPair::new_account());
    let nats = json!({ "type": "operator", "version": 2, "signing_keys": [signer.public_key()], "system_account": system.public_key() });
    let claims = json!({ "sub": operator.public_key(), "name": name, "nats": nats });
    let folder = format!("stores/{name}");
    shell.write(
        &format!("{folder}/.nsc"),
        &json!({ "managed": false, "name": name, "kind": "operator", "version": "1" }).to_string(),
    );
    shell.write(&format!("{folder}/{name}.jwt"), &jwt(&operator, &claims));
    let limits = json!({ "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1 });
    let claims = json!({ "sub": system.public_key(), "name": "SYS", "nats": { "type": "account", "version": 2, "limits": limits } });
    shell.write(&format!("{folder}/accounts/SYS/SYS.jwt"), &jwt(&signer, &claims));
    for key in [&operator, &signer, &system] {
        let public = key.public_key();
        let file = format!("keys/keys/{}/{}/{public}.nk", &public[..1], &public[1..3]);
        shell.write(&file, &key.seed().unwrap());
        shell.set_mode(&file, 0o600);
    }
    signer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accounts_and_users_are_where_nsc_finds_them_and_what_it_has_stays() {
    let shell = Shell::new();
    let signer = store(&shell, "acme");
    let setup = "setup operator --out . --nsc-store=stores --nsc-keys keys";
    // An account of this name that somebody else has made.
    let other = jwt(
        &signer,
        &json!({ "sub": KeyPair::new_account().public_key(), "name": "SEALWIRE", "nats": { "type": "account", "version": 2 } }),
    );
    shell.write("stores/acme/accounts/SEALWIRE/SEALWIRE.jwt", &other);
    shell.run(setup).fails(30, &["nsc has an account SEALWIRE already", "nothing was changed"]);
    assert_eq!(shell.read("stores/acme/accounts/SEALWIRE/SEALWIRE.jwt"), other);
    std::fs::remove_dir_all(shell.path("stores/acme/accounts/SEALWIRE")).unwrap();
    shell.run(setup).ok();

    let jwts = |name: &str| part(&shell.read(&format!("stores/acme/accounts/{name}.jwt")), 1);
    let account = jwts("SEALWIRE/SEALWIRE");
    assert_eq!([&account["name"], &account["iss"]], [&json!("SEALWIRE"), &json!(signer.public_key())]);
    let planner = jwts("SEALWIRE/users/planner");
    assert_eq!(planner["nats"]["issuer_account"], account["sub"]);
    assert_eq!(shell.read("keys/creds/acme/SEALWIRE/planner.creds"), shell.read("planner/planner.creds"));
    assert_eq!(jwts("GUARD_demo/users/demo")["name"], "demo");
    for key in [&account["sub"], &planner["iss"], &planner["sub"]] {
        let key = key.as_str().unwrap();
        let file = format!("keys/keys/{}/{}/{key}.nk", &key[..1], &key[1..3]);
        assert_eq!(KeyPair::from_seed(&shell.read(&file)).unwrap().public_key(), key);
        assert_eq!(shell.mode(&file), 0o600);
    }
    assert!(!shell.path("signing/operator.nk").exists(), "the operator's key stays where nsc has it");

    // Somebody changes the account with nsc, and adds a user: both stay, also in what brokers get.
    let mut changed = account.clone();
    changed["nats"]["description"] = "ours".into();
    changed["nats"]["limits"]["conn"] = 7.into();
    changed["nats"]["signing_keys"].as_array_mut().unwrap().push(KeyPair::new_account().public_key().into());
    shell.write("stores/acme/accounts/SEALWIRE/SEALWIRE.jwt", &jwt(&signer, &changed));
    let users = "stores/acme/accounts/SEALWIRE/users";
    let theirs =
        jwt(&KeyPair::new_account(), &json!({ "sub": KeyPair::new_user().public_key(), "name": "ledger", "nats": {} }));
    shell.write(&format!("{users}/ledger.jwt"), &theirs);
    shell.run("setup service ledger --out .").fails(30, &["nsc has a user ledger in SEALWIRE already"]);
    assert_eq!(shell.read(&format!("{users}/ledger.jwt")), theirs);
    std::fs::rename(shell.path(&format!("{users}/ledger.jwt")), shell.path(&format!("{users}/theirs.jwt"))).unwrap();
    shell.run("setup service ledger --out .").ok();
    shell.run("setup remove-agent auditor --out .").ok();
    let after = jwts("SEALWIRE/SEALWIRE");
    assert_eq!([&after["nats"]["description"], &after["nats"]["limits"]["conn"]], [&json!("ours"), &json!(7)]);
    assert_eq!(after["nats"]["signing_keys"].as_array().unwrap().len(), 4);
    assert_eq!(after["nats"]["revocations"].as_object().unwrap().len(), 1);
    assert!(shell.path(&format!("{users}/theirs.jwt")).exists());
    shell.run("setup operator --out . --nsc-store=elsewhere").fails(30, &["holds no operator", "nsc add operator"]);

    let server = NatsServer::start_with(&config(&shell)).await;
    let gate = Gate { shell, server, kind: Kind::Operator };
    for user in ["planner", "service ledger", "guard ledger", "follower ledger"] {
        assert!(gate.connect(user).await.is_ok(), "{user}");
    }
    assert!(gate.connect("auditor").await.is_err());
    assert_eq!(gate.account("SEALWIRE")["nats"]["limits"]["conn"], 7);
}

#[test]
fn the_store_of_nsc_is_found_as_nsc_finds_it() {
    let shell = Shell::new();
    store(&shell, "acme");
    store(&shell, "beta");
    let home = shell.path("");
    let run = |variables: &[(&str, &str)], more: &[&str]| {
        let args = ["setup", "operator", "--out", "new", "--nsc-store"].into_iter().chain(more.iter().copied());
        let mut command = shell.command(&args.collect::<Vec<_>>());
        command
            .env("HOME", &home)
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("XDG_DATA_HOME")
            .env_remove("NSC_HOME")
            .env_remove("NKEYS_PATH");
        for (name, value) in variables {
            command.env(name, home.join(value));
        }
        let ran = command.output().unwrap();
        let said = String::from_utf8_lossy(&[ran.stdout, ran.stderr].concat()).into_owned();
        let used = shell.path("new/operator/accounts.json").exists().then(|| {
            shell.read_json("new/operator/accounts.json")["nsc"]["operator"]
                .as_str()
                .unwrap()
                .rsplit('/')
                .next()
                .unwrap()
                .to_owned()
        });
        let _ = std::fs::remove_dir_all(shell.path("new"));
        for name in ["acme", "beta"] {
            for account in ["SEALWIRE", "GUARD_demo", "GUARD_bank", "REVOCATION", "FOLLOWERS"] {
                for place in ["stores", ".local/share/nats/nsc/stores", "data/nats/nsc/stores"] {
                    let _ = std::fs::remove_dir_all(shell.path(&format!("{place}/{name}/accounts/{account}")));
                }
            }
        }
        used.ok_or(said)
    };
    // Nothing where it would be.
    assert!(run(&[], &[]).unwrap_err().contains(".local/share/nats/nsc/stores"));
    std::fs::create_dir_all(shell.path(".local/share/nats/nsc")).unwrap();
    for folder in ["stores", "keys"] {
        std::fs::rename(shell.path(folder), shell.path(&format!(".local/share/nats/nsc/{folder}"))).unwrap();
    }
    assert!(run(&[], &[]).unwrap_err().contains("several operators"));
    assert_eq!(run(&[], &["--nsc-operator", "beta"]).as_deref(), Ok("beta"));
    assert!(run(&[], &["--nsc-operator", "../beta"]).unwrap_err().contains("no `/`"));
    // What nsc works on now.
    let selected =
        |name: &str| json!({ "store_root": shell.path(".local/share/nats/nsc/stores"), "operator": name }).to_string();
    shell.write(".config/nats/nsc/nsc.json", &selected("acme"));
    assert_eq!(run(&[], &[]).as_deref(), Ok("acme"));
    shell.write("ci/nsc.json", &selected("beta"));
    assert_eq!(run(&[("NSC_HOME", "ci")], &[]).as_deref(), Ok("beta"));
    // The folders of others.
    std::fs::create_dir_all(shell.path("data")).unwrap();
    std::fs::rename(shell.path(".local/share/nats"), shell.path("data/nats")).unwrap();
    std::fs::remove_file(shell.path(".config/nats/nsc/nsc.json")).unwrap();
    assert_eq!(run(&[("XDG_DATA_HOME", "data")], &["--nsc-operator", "acme"]).as_deref(), Ok("acme"));
    // An operator whose keys are somewhere else.
    assert!(
        run(&[("XDG_DATA_HOME", "data"), ("NKEYS_PATH", "nowhere")], &["--nsc-operator", "acme"])
            .unwrap_err()
            .contains("--nsc-keys")
    );
    // One that is hosted.
    shell.write("data/nats/nsc/stores/acme/.nsc", r#"{"managed":true,"name":"acme","kind":"operator","version":"1"}"#);
    assert!(run(&[("XDG_DATA_HOME", "data")], &["--nsc-operator", "acme"]).unwrap_err().contains("--hosted"));
}

/// A real server takes what is printed for an operator that somebody else hosts.
#[test]
fn what_to_create_at_a_hosted_operator_is_what_a_set_up_of_ones_own_has() {
    let shell = Shell::new();
    let printed = shell.run("setup operator --hosted --service demo --service bank --json").ok().json();
    assert!(shell.files().is_empty(), "nothing is written");
    let text = shell.run("setup operator --hosted --service demo").ok().stdout;
    for line in [
        "nsc add account SEALWIRE",
        "--sk generate --role agent --subs 32 --payload 262144",
        "--allow-pub 'rpc.v1.*.{{name()}}'",
        "nsc edit account GUARD_demo --js-mem-storage 384mib --js-disk-storage 0mib --js-streams 4 --js-consumer 0",
        "sealwire setup user NAME --signing-key SEED-FILE --account A… --out NAME.creds",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(!text.contains("GUARD_bank") && !text.contains("account SYS"), "{text}");
    assert!(!text.contains("authcallout") && !text.contains("account AUTH"), "{text}");
    is_as_in_a_set_up(&shell, &printed, "own", "");

    let printed = shell.run("setup operator --hosted --authd on --service demo --service bank --json").ok().json();
    let text = shell.run("setup operator --hosted --authd on --service demo").ok().stdout;
    for line in [
        "nsc edit account AUTH --conns -1 --leaf-conns 0 --subscriptions 16 --exports 0 --imports 0\n",
        "--role sentinel --subs 16 --payload -1 --conn-type STANDARD,WEBSOCKET --bearer \\\n    --deny-pub '>' \\\n    --deny-sub '>'\n",
        "--role responder --subs 16 --payload -1 --conn-type STANDARD,WEBSOCKET \\\n    --allow-pub '$SYS._INBOX.>' \\\n    --allow-sub '$SYS.REQ.USER.AUTH'\n",
        "nsc edit authcallout --account AUTH --auth-user U… --allowed-account A… --curve X…",
        "`default_sentinel`",
        "cannot",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    is_as_in_a_set_up(&shell, &printed, "own-authd", "--authd on");
}

/// Compares with the accounts that `setup operator` makes.
fn is_as_in_a_set_up(shell: &Shell, printed: &Value, folder: &str, more: &str) {
    shell.run(&format!("setup operator --out {folder} {more}")).ok();
    let users = shell.read(&format!("{folder}/nats-1/users.conf"));
    let made: BTreeMap<String, Value> = users
        .lines()
        .filter_map(|line| Some(part(line.trim().strip_prefix('A')?.split_once(": ")?.1, 1)))
        .map(|claims| (claims["name"].as_str().unwrap().to_owned(), claims["nats"].clone()))
        .collect();
    assert_eq!(printed.as_array().unwrap().len() + 1, made.len());
    for account in printed.as_array().unwrap() {
        let own = &made[account["account"].as_str().unwrap()];
        assert_eq!(account["limits"], own["limits"]);
        let scopes = own["signing_keys"].as_array().unwrap();
        assert_eq!(account["unscoped_signing_key"] == true, scopes.iter().any(Value::is_string), "{own}");
        let asked = &own["authorization"];
        assert_eq!(account["authorization"].is_object(), asked.is_object(), "{own}");
        assert!(asked.is_null() || asked["allowed_accounts"].as_array().unwrap().len() == 1, "{own}");
        for role in account["signing_keys"].as_array().unwrap() {
            let scope = scopes.iter().find(|scope| scope["role"] == role["role"]).unwrap();
            assert_eq!(role["template"], scope["template"]);
        }
        for shares in ["exports", "imports"] {
            let count = own[shares].as_array().map_or(0, Vec::len);
            assert_eq!(account[shares].as_array().unwrap().len(), count, "{shares}");
            let of_both = own[shares].as_array().into_iter().flatten();
            let mut closed = of_both.map(|share| share["token_req"] == true || share["token"].is_string());
            assert!(closed.all(|closed| closed), "only the other account may import: {own}");
        }
    }
}
