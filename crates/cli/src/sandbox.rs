//! Creates a complete throw-away setup in a folder: broker users, keys, tokens, policies, configuration, credentials.
//! Never reuses a secret: all of them are new.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use sealwire::auth::{Nonce, write_secret, write_service_key};
use sealwire::wire::{AgentKey, Audience, ServiceKey};
use sealwire::{BusConfig, Config};

use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::at;
use crate::parties;
pub(crate) use crate::parties::{AGENTS, ENVIRONMENT, SERVICE};
use crate::parties::{ISSUER, Parties};
use crate::permissions::Permissions;

/// How long its tokens are valid, in seconds.
pub(crate) const TOKEN_S: u64 = 900;

/// The policies that the project ships.
const POLICIES: &[(&str, &str)] = &[
    ("README.md", include_str!("../policies/README.md")),
    ("methods.toml", include_str!("../policies/methods.toml")),
    ("math.toml", include_str!("../policies/math.toml")),
    ("math.test.toml", include_str!("../policies/math.test.toml")),
    ("bank.toml", include_str!("../policies/bank.toml")),
    ("bank.test.toml", include_str!("../policies/bank.test.toml")),
    ("admin.toml", include_str!("../policies/admin.toml")),
    ("admin.test.toml", include_str!("../policies/admin.test.toml")),
    ("audit.toml", include_str!("../policies/audit.toml")),
    ("audit.cedar", include_str!("../policies/audit.cedar")),
    ("streams.toml", include_str!("../policies/streams.toml")),
    ("streams.test.toml", include_str!("../policies/streams.test.toml")),
    ("rpc.toml", include_str!("../policies/rpc.toml")),
    ("rpc.test.toml", include_str!("../policies/rpc.test.toml")),
];

/// A setup: its folder, and the keys in it.
#[derive(Debug)]
pub(crate) struct Sandbox {
    folder: PathBuf,
    parties: Parties,
    passwords: Vec<(&'static str, String)>,
}

/// Where the service's replay guard keeps its state.
pub(crate) const STATE: &str = "demo.floor";
/// The broker's user for the service.
pub(crate) const SERVICE_USER: &str = "service";
/// The broker's user for the `nats` command.
pub(crate) const TOOLS_USER: &str = "tools";
/// The broker's user for the bare requests of `sealwire bench`. No agent has its name: it has a dot.
pub(crate) const BENCH_USER: &str = "sealwire.bench";
/// A broker user with all permissions, like those of the broker's operator.
pub(crate) const MALLORY: &str = "mallory";

impl Sandbox {
    /// Creates the keys, and the files that do not depend on the broker's address.
    pub(crate) fn new(folder: &Path) -> Result<Self, Failure> {
        let users = AGENTS.iter().map(|(name, ..)| *name).chain([SERVICE_USER, TOOLS_USER, MALLORY]);
        let sandbox = Self {
            folder: folder.to_owned(),
            parties: Parties::generate()?,
            passwords: users.map(|user| (user, Nonce::random().to_text())).collect(),
        };
        sandbox.parties.issuer.save(sandbox.path("token-key.json")).or_fail(Exit::Input)?;
        sandbox.write("jwks.json", &sandbox.parties.issuer.public_jwks())?;
        sandbox.write("denylist.json", "{}\n")?;
        write_service_key(&sandbox.path("service-key.json"), sandbox.service_key()).or_fail(Exit::Input)?;
        std::fs::create_dir(sandbox.path("policies")).map_err(|error| at(&sandbox.path("policies"), &error))?;
        for (name, text) in POLICIES {
            sandbox.write(&format!("policies/{name}"), text)?;
        }
        write_secret(&sandbox.path("ring.json"), &sandbox.parties.ring()?, false).or_fail(Exit::Input)?;
        sandbox.refresh_tokens()?;
        Ok(sandbox)
    }

    /// The broker's users: each agent may publish its own subjects and read its own inbox, and nothing else.
    pub(crate) fn broker_config(&self) -> String {
        broker_config(self.passwords.iter().map(|(user, password)| (*user, password.as_str())))
    }

    /// Writes the files that depend on the broker's address: the configuration and the credentials.
    pub(crate) fn connect_to(&self, url: &str) -> Result<(), Failure> {
        // A second of skew instead of five: there is only one clock here, and the guard can vouch for messages sooner.
        let config = format!(
            "# A throw-away setup of the demonstration service.\n\
             environment = \"{ENVIRONMENT}\"\nservice = \"{SERVICE}\"\n\n\
             [nats]\nurls = [\"{url}\"]\nuser = \"{SERVICE_USER}\"\npassword_file = \"nats.password\"\n\n\
             [keys]\nring = \"ring.json\"\nservice_key = \"service-key.json\"\ndenylist = \"denylist.json\"\n\n\
             [[tokens.issuer]]\nissuer = \"{ISSUER}\"\njwks = \"jwks.json\"\n\n\
             [policy]\nfolder = \"policies\"\n\n\
             [replay]\nguard = \"local\"\nskew_s = 1\nstate = \"{STATE}\"\n\
             # High limits, so that `sealwire bench` measures the service and not the limits for one agent.\n\
             per_agent = 1000000\ntotal = 2000000\n\n\
             [limits]\nagent_per_second = 1000000\nagent_burst = 1000000\nagent_in_flight = 4096\n"
        );
        self.write("sealwire.toml", &config)?;
        write_secret(&self.path("nats.password"), self.password(SERVICE_USER), true).or_fail(Exit::Input)?;
        for agent in &self.parties.agents {
            let bus = self.bus(url, agent.name.as_str());
            let credentials = self.parties.credentials(agent, bus)?.token_file(format!("{}.jwt", agent.name));
            credentials.save(self.credentials_file(agent.name.as_str()), true).or_fail(Exit::Input)?;
        }
        Ok(())
    }

    /// Writes new tokens for all agents, valid for 15 minutes.
    pub(crate) fn refresh_tokens(&self) -> Result<(), Failure> {
        for agent in &self.parties.agents {
            let token = self.token(agent.name.as_str(), agent.roles, TOKEN_S)?;
            let path = self.path(&format!("{}.jwt", agent.name));
            write_secret(&path, &format!("{token}\n"), true).or_fail(Exit::Input)?;
        }
        Ok(())
    }

    /// A token of the sandbox's issuer.
    pub(crate) fn token(&self, subject: &str, roles: &[&str], ttl_s: u64) -> Result<String, Failure> {
        parties::token(&self.parties.issuer, subject, roles, ttl_s)
    }

    /// A copy of an agent's key.
    pub(crate) fn key(&self, agent: &str) -> Result<AgentKey, Failure> {
        self.parties.key(agent)
    }

    /// The broker login of a user.
    pub(crate) fn bus(&self, url: &str, user: &str) -> BusConfig {
        BusConfig {
            user: Some(user.to_owned()),
            password: Some(self.password(user).to_owned().into()),
            ..BusConfig::open(url)
        }
    }

    pub(crate) fn password(&self, user: &str) -> &str {
        self.passwords.iter().find(|(known, _)| *known == user).map_or("", |(_, password)| password)
    }

    pub(crate) fn audience(&self) -> &Audience {
        &self.parties.audience
    }

    pub(crate) fn service_key(&self) -> &ServiceKey {
        &self.parties.service_key
    }

    /// The service's configuration.
    pub(crate) fn config(&self) -> Result<Config, Failure> {
        Config::load(self.path("sealwire.toml")).or_fail(Exit::Bug)
    }

    pub(crate) fn credentials_file(&self, agent: &str) -> PathBuf {
        self.path(&format!("{agent}.creds.json"))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn write(&self, name: &str, text: &str) -> Result<(), Failure> {
        let path = self.path(name);
        std::fs::write(&path, text).map_err(|error| at(&path, &error))
    }
}

/// The broker's configuration with these users, given by name and password.
pub(crate) fn broker_config<'a>(all: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut users = String::new();
    for (user, password) in all {
        let permissions = match user {
            SERVICE_USER => Permissions::service(SERVICE),
            TOOLS_USER => Permissions::tools(TOOLS_USER),
            BENCH_USER => Permissions::bench(),
            MALLORY => Permissions::all(),
            agent => Permissions::agent(agent),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(users, "  {{ user: \"{user}\", password: \"{password}\", permissions: {permissions} }}");
    }
    // The users get their own account, so that they cannot reach JetStream, which the server's default account has.
    format!(
        "max_payload: 262144\nmax_subscriptions: 64\nmax_connections: 256\n\
         accounts {{ SEALWIRE {{ users: [\n{users}] }} }}\n"
    )
}
