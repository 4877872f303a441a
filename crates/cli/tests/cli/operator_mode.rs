//! Commands at a broker in operator mode: each logs in with a `.creds` file, and says when it ends.

use sealwire_testkit::NatsServer;
use sealwire_testkit::operator::{Operator, UserClaims};
use sealwire_testkit::site::{Site, agent_key, methods};

use crate::shell::Shell;

/// A service and an agent whose login is beside the credentials.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_join_with_a_creds_file() {
    let operator = Operator::new();
    let server = NatsServer::start_with(&operator.config()).await;
    let site = Site::new(&server.url());
    operator.write_creds(&site.path("service.creds"), &UserClaims::lasting("service", 3600));
    let text = site_config(&site).replace("[keys]", "creds_file = \"service.creds\"\n[keys]");
    std::fs::write(site.path("sealwire.toml"), text).unwrap();
    let served = site.serve(methods()).await;

    let shell = Shell::new();
    operator.write_creds(&shell.path("ann.creds"), &UserClaims::new("ann"));
    let file = serde_json::json!({
        "version": 1, "environment": "test", "agent": "ann", "token": site.token("ann", &["worker"]),
        "key": { "kid": "ann.k1", "alg": "HS256", "secret": sealwire_testkit::idp::b64(agent_key("ann").expose()) },
        "nats": { "urls": [server.url()], "creds_file": "ann.creds" },
    });
    shell.write("ann.creds.json", &file.to_string());
    let login = serde_json::json!({ "urls": [server.url()], "creds_file": "ann.creds" });
    shell.write("tools.nats.json", &login.to_string());
    for file in ["ann.creds.json", "tools.nats.json"] {
        shell.set_mode(file, 0o600);
    }
    let run = |line: &str| shell.run(line);
    assert_eq!(run("call site site/add [1,2] --creds ann.creds.json").ok().stdout.trim(), "3");
    run("bench site site/add [1,2] --creds ann.creds.json --duration 200ms --warmup 0s --against bare").ok();
    let top = run("top --once --login tools.nats.json --within 5s").ok();
    assert!(top.stdout.contains("site"), "{top:?}");
    let config = site.path("sealwire.toml");
    let ping = shell.run_args(&["ping", "--config", config.to_str().unwrap(), "--within", "5s"]).ok();
    assert!(ping.stdout.contains("ready"), "{ping:?}");

    // The end is near, and then it has come.
    operator
        .write_creds(&site.path("service.creds"), &UserClaims { age_s: 1000, ..UserClaims::lasting("service", 60) });
    let policy = "[method.\"site/add\"]\ndescription = \"Adds.\"\n[role.worker]\nallow = [\"site/add\"]\n";
    std::fs::write(site.path("policies/policy.toml"), policy).unwrap();
    let check = shell.run_args(&["serve", "--config", config.to_str().unwrap(), "--check"]).ok();
    assert!(
        check.stderr.contains("`[nats]`: the user JWT ends in") && check.stderr.contains("`creds_file`"),
        "{check:?}"
    );
    for (name, user) in [("service.creds", "service"), ("ann.creds", "ann")] {
        let path = if user == "ann" { shell.path(name) } else { site.path(name) };
        operator.write_creds(&path, &UserClaims::lasting(user, -5));
    }
    let words = ["`creds_file`", "expired", "get a new file"];
    shell.run_args(&["serve", "--config", config.to_str().unwrap(), "--check"]).fails(30, &words);
    shell.run("call site site/add [1,2] --creds ann.creds.json").fails(30, &words);
    for secret in std::fs::read_to_string(shell.path("ann.creds")).unwrap().lines().filter(|line| line.len() > 50) {
        shell.never_said(secret);
    }
    served.kill().await;
}

fn site_config(site: &Site) -> String {
    std::fs::read_to_string(site.path("sealwire.toml")).unwrap()
}

#[test]
fn credentials_name_a_creds_file_where_it_is() {
    let shell = Shell::new();
    shell.run("keys new-agent ann --service test/site=ring.json --nats-creds later/ann.creds").ok();
    let named = shell.read_json("ann.creds.json")["nats"]["creds_file"].clone();
    assert_eq!(named.as_str(), shell.path("later/ann.creds").to_str());
    shell.run("keys request bob --environment test --nats-creds bob.creds").ok();
    let named = shell.read_json("bob.creds.json")["nats"]["creds_file"].clone();
    assert_eq!(named.as_str(), shell.path("bob.creds").to_str());
    shell.run("keys request eve --environment test --nats-creds a --nkey").fails(2, &["cannot be used with"]);
}
