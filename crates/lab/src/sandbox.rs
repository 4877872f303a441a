//! Creates a complete throw-away setup in a folder: broker users, keys, tokens, policies, configuration, credentials.
//! Never reuses a secret: all of them are new.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use sealwire::configure::AgentKey;
use sealwire::internal::files::{write_public, write_secret};
use sealwire::internal::wire::{Audience, Nonce, ServiceKey};
use sealwire::{BusConfig, Config};

use crate::error::{Blame, LabError, OrFail as _, at};
use crate::layout;
use crate::parties;
use crate::parties::{AGENTS, ENVIRONMENT, ISSUER, Parties, SERVICE};
use crate::permissions::Permissions;

/// How long its tokens are valid, in seconds.
pub const TOKEN_S: u64 = 900;

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
pub struct Sandbox {
    folder: PathBuf,
    parties: Parties,
    passwords: Vec<(&'static str, String)>,
}

/// Where the service's replay guard keeps its state.
pub const STATE: &str = "demo.floor";
/// The broker's user for the service.
pub const SERVICE_USER: &str = "service";
/// The broker's user for the `nats` command.
pub const TOOLS_USER: &str = "tools";
/// The broker's user for the bare requests of `sealwire bench`. No agent has its name: it has a dot.
pub const BENCH_USER: &str = "sealwire.bench";
/// A broker user with all permissions, like those of the broker's operator.
pub const MALLORY: &str = "mallory";

/// Where `sealwire dev` makes a setup if it is not told.
pub const FOLDER: &str = "sealwire-dev";
/// Marks a folder as ours. The process that uses the folder locks this file and writes its process id into it.
pub const MARK: &str = ".sealwire-dev";

/// Whether a folder belongs to `sealwire dev`. A symbolic link is no mark: writing to it would write elsewhere.
pub fn is_marked(folder: &Path) -> bool {
    std::fs::symlink_metadata(folder.join(MARK)).is_ok_and(|mark| mark.is_file())
}

/// The command that adds an agent to the setup in this folder, if it is one of `sealwire dev`, whose broker admits no others.
pub fn command_to_add(folder: &Path, agent: &str) -> Option<String> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let elsewhere = if folder == Path::new(FOLDER) { String::new() } else { format!(" --folder {}", folder.display()) };
    is_marked(folder).then(|| format!("sealwire dev add-agent {agent} --role ROLE{elsewhere}"))
}

impl Sandbox {
    /// Creates the keys, and the files that do not depend on the broker's address.
    pub fn new(folder: &Path) -> Result<Self, LabError> {
        let users = AGENTS.iter().map(|(name, ..)| *name).chain([SERVICE_USER, TOOLS_USER, MALLORY]);
        let sandbox = Self {
            folder: folder.to_owned(),
            parties: Parties::generate()?,
            passwords: users.map(|user| (user, Nonce::random().to_text())).collect(),
        };
        let parties = &sandbox.parties;
        layout::write_keys(folder, &parties.issuer, &parties.service_key, &parties.ring()?)?;
        let policies = sandbox.path(layout::POLICIES);
        std::fs::create_dir(&policies).map_err(|error| at(&policies, &error))?;
        for (name, text) in POLICIES {
            write_public(&policies.join(name), text).or_fail(Blame::Input)?;
        }
        sandbox.refresh_tokens()?;
        Ok(sandbox)
    }

    /// The broker's users: each agent may publish its own subjects and read its own inbox, and nothing else.
    pub fn broker_config(&self) -> String {
        broker_config(self.passwords.iter().map(|(user, password)| (*user, password.as_str())))
    }

    /// Writes the files that depend on the broker's address: the configuration and the credentials.
    pub fn connect_to(&self, url: &str) -> Result<(), LabError> {
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
        write_public(&self.path(layout::CONFIG), &config).or_fail(Blame::Input)?;
        write_secret(&self.path("nats.password"), self.password(SERVICE_USER), true).or_fail(Blame::Input)?;
        for agent in &self.parties.agents {
            let bus = self.bus(url, agent.name.as_str());
            let credentials = self.parties.credentials(agent, bus)?.token_file(format!("{}.jwt", agent.name));
            credentials.save(self.credentials_file(agent.name.as_str()), true).or_fail(Blame::Input)?;
        }
        Ok(())
    }

    /// Writes new tokens for all agents, valid for 15 minutes.
    pub fn refresh_tokens(&self) -> Result<(), LabError> {
        for agent in &self.parties.agents {
            let token = self.token(agent.name.as_str(), agent.roles, TOKEN_S)?;
            let path = layout::token(&self.folder, agent.name.as_str());
            write_secret(&path, &format!("{token}\n"), true).or_fail(Blame::Input)?;
        }
        Ok(())
    }

    /// A token of the sandbox's issuer.
    pub fn token(&self, subject: &str, roles: &[&str], ttl_s: u64) -> Result<String, LabError> {
        parties::token(&self.parties.issuer, subject, roles, ttl_s)
    }

    /// A copy of an agent's key.
    pub fn key(&self, agent: &str) -> Result<AgentKey, LabError> {
        self.parties.key(agent)
    }

    /// The broker login of a user.
    pub fn bus(&self, url: &str, user: &str) -> BusConfig {
        BusConfig {
            user: Some(user.to_owned()),
            password: Some(self.password(user).to_owned().into()),
            ..BusConfig::open(url)
        }
    }

    /// The broker password of a user.
    pub fn password(&self, user: &str) -> &str {
        self.passwords.iter().find(|(known, _)| *known == user).map_or("", |(_, password)| password)
    }

    /// The service, as messages name it.
    pub fn audience(&self) -> &Audience {
        &self.parties.audience
    }

    /// The service's own key.
    pub fn service_key(&self) -> &ServiceKey {
        &self.parties.service_key
    }

    /// The service's configuration.
    pub fn config(&self) -> Result<Config, LabError> {
        Config::load(self.path(layout::CONFIG)).or_fail(Blame::Bug)
    }

    /// An agent's credentials.
    pub fn credentials_file(&self, agent: &str) -> PathBuf {
        layout::credentials(&self.folder, agent)
    }

    /// A file of the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

/// The broker's configuration with these users, given by name and password.
pub fn broker_config<'a>(all: impl Iterator<Item = (&'a str, &'a str)>) -> String {
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
