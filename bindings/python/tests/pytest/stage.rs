//! A broker with users, a service on it or none, and the files that callers and services read.
//! Never shared: what one file of tests does to its stage, no other sees.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sealwire::internal::auth::IssueRequest;
use sealwire::internal::files::write_secret;
use sealwire::{Clock as _, SystemClock};
use sealwire_testkit::scripted::Scripted;
use sealwire_testkit::site::{Served, Site, agent_key};
use sealwire_testkit::{NatsServer, free_port};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::{methods, package};

/// What is on the stage.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Serves {
    /// `test/site`, made with the library, and `test/liar`.
    Methods,
    /// `test/liar`: Python serves `test/site`.
    Nothing,
    /// Nothing: the examples serve `test/math`, for `planner`.
    Examples,
}

/// A broker, and everything that Python needs to know.
pub(crate) struct Stage {
    server: NatsServer,
    site: Site,
    _served: Option<Served>,
    liar: Option<JoinHandle<()>>,
}

impl Stage {
    pub(crate) async fn open(serves: Serves) -> Self {
        let server = NatsServer::start_with(USERS).await;
        let site = match serves {
            // A broker takes whoever gives no name for its user `svc`.
            Serves::Examples => Site::of_service(&server.url(), "math", &["planner"]),
            _ => Site::logging_in_as(&server.url(), "svc"),
        };
        if serves == Serves::Examples {
            write_credentials(&site, "planner", &json!({ "urls": [server.url()] }));
        } else {
            for agent in ["ann", "bob"] {
                let nats = json!({ "urls": [server.url()], "user": agent, "password": agent });
                write_credentials(&site, agent, &nats);
            }
        }
        site.issuer.save(site.path("token-key.json")).unwrap();
        let mut delegated = IssueRequest::new("alice", site.endpoint.audience().as_str(), SystemClock.now_s());
        delegated.actor = Some("ann".to_owned());
        delegated.roles.insert("worker".to_owned());
        let token = site.issuer.issue(&delegated).unwrap();
        write_secret(&site.path("alice.jwt"), &token, true).unwrap();
        let (mut served, mut liar) = (None, None);
        let policy = if serves == Serves::Examples { EXAMPLES } else { POLICY };
        std::fs::write(site.path("policies/policy.toml"), policy).unwrap();
        if serves == Serves::Methods {
            served = Some(site.serve(methods::router()).await);
        }
        if serves != Serves::Examples {
            let key = agent_key("ann");
            let scripted = Scripted::start(&server, "test/liar", "ann", key.kid(), key.expose()).await;
            liar = Some(tokio::spawn(methods::lie(scripted)));
        }
        Self { server, site, _served: served, liar }
    }

    /// Where the files are.
    pub(crate) fn folder(&self) -> PathBuf {
        self.site.path("")
    }

    /// Runs a file of Python's tests on this stage.
    pub(crate) async fn pytest(self, file: &'static str) {
        if let Some(python) = package::interpreter() {
            self.pytest_with(python, file).await;
        }
    }

    /// The same, with another interpreter.
    pub(crate) async fn pytest_with(self, python: package::Interpreter, file: &'static str) {
        let (folder, url) = (self.folder(), self.server.url());
        let unused = free_port();
        // Beside the tests, if everything is built.
        let command = std::env::current_exe().unwrap().with_file_name("../sealwire");
        let run = move || {
            let env = [
                ("SEALWIRE_STAGE", folder.to_str().unwrap()),
                ("SEALWIRE_STAGE_URL", url.as_str()),
                ("SEALWIRE_STAGE_UNUSED_PORT", &unused.to_string()),
                ("SEALWIRE_STAGE_COMMAND", command.to_str().unwrap()),
            ];
            package::pytest_with(&python, file, &env);
        };
        if let Err(error) = tokio::task::spawn_blocking(run).await {
            std::panic::resume_unwind(error.into_panic());
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Some(liar) = &self.liar {
            liar.abort();
        }
    }
}

fn write_credentials(site: &Site, agent: &str, nats: &Value) {
    let key = agent_key(agent);
    let credentials = json!({
        "version": 1,
        "environment": "test",
        "agent": agent,
        "key": { "kid": key.kid(), "alg": "HS256", "secret": URL_SAFE_NO_PAD.encode(key.expose()) },
        "token_file": format!("{agent}.jwt"),
        "nats": nats,
        "service_keys": {},
    });
    let write = |name: String, text: &str| write_secret(Path::new(&site.path(&name)), text, true).unwrap();
    write(format!("{agent}.jwt"), &site.token(agent, &["worker"]));
    write(format!("{agent}.creds.json"), &credentials.to_string());
}

/// `ann` may not write to `vault`; the scripted service connects without a user.
const USERS: &str = r#"
no_auth_user: svc
authorization { users: [
  { user: svc, password: svc }
  { user: ann, password: ann, permissions: { publish: { allow: ["rpc.v1.>", "rpc.v1-ctl.>"], deny: ["rpc.v1.vault.>"] } } }
  { user: bob, password: bob }
] }
"#;

const POLICY: &str = r#"
[role.worker]
allow = ["site/*", "rpc.discover"]
"#;

/// As `sealwire init --language none` writes it, in effect.
const EXAMPLES: &str = r#"
[role.worker]
allow = ["*"]
"#;
