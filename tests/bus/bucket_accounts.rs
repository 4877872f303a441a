//! A broker with the accounts of docs/revocation.md, where operators write what services follow.

use sealwire::BusConfig;
use sealwire_testkit::NatsServer;

/// For the service `site` in the environment `test`. Whoever shows no login may do everything with agents' subjects.
pub(crate) async fn start() -> NatsServer {
    let page = std::fs::read_to_string(sealwire_testkit::root().join("docs/revocation.md")).unwrap();
    let accounts = page.split("```conf\n").nth(1).unwrap().split("```").next().unwrap();
    let accounts = accounts.replace("prod", "test").replace("math", "site").replace("…", "secret");
    let accounts = accounts.replacen('{', "{ AGENTS { users: [{ user: all, password: all }] }", 1);
    NatsServer::start_with(&format!("{accounts}\nno_auth_user: all\n")).await
}

/// How a user of these accounts connects.
pub(crate) fn login(server: &NatsServer, name: &str) -> BusConfig {
    BusConfig { user: Some(name.into()), password: Some("secret".to_owned().into()), ..BusConfig::open(&server.url()) }
}
