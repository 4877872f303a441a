//! A whole set-up in a folder, made anew: broker users, keys, tokens, policies, configuration, credentials.
//! Never anything but throw-away: nothing in it was known to anybody before, and nothing of it is worth keeping.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use sealwire::auth::{
    IssueRequest, KeyEntry, KeyRingFile, Nonce, ProofAlgorithm, TokenIssuer, write_secret, write_service_key,
};
use sealwire::client::Credentials;
use sealwire::wire::{AgentKey, Audience, ServiceKey};
use sealwire::{BusConfig, Config, Name};
use zeroize::Zeroizing;

use crate::exit::{Exit, Failure, OrFail as _};
use crate::when;

/// The environment of every sandbox.
pub(crate) const ENVIRONMENT: &str = "dev";
/// The service in it.
pub(crate) const SERVICE: &str = "demo";
/// The issuer of its tokens.
const ISSUER: &str = "https://issuer.sealwire.invalid";
/// How long its tokens live.
const TOKEN_S: u64 = 900;

/// The agents: name, roles of their tokens, algorithm of their keys, and what they are for.
pub(crate) const AGENTS: &[(&str, &[&str], ProofAlgorithm, &str)] = &[
    ("planner", &["calculator"], ProofAlgorithm::Hs256, "computes"),
    ("teller", &["teller"], ProofAlgorithm::Hs256, "moves money"),
    ("operator", &["operator"], ProofAlgorithm::EdDsa, "runs the service (an Ed25519 key)"),
    ("auditor", &["auditor"], ProofAlgorithm::Hs256, "reads what happened"),
];

/// The policies that the project ships.
const POLICIES: &[(&str, &str)] = &[
    ("README.md", include_str!("../../../policies/README.md")),
    ("methods.toml", include_str!("../../../policies/methods.toml")),
    ("math.toml", include_str!("../../../policies/math.toml")),
    ("math.test.toml", include_str!("../../../policies/math.test.toml")),
    ("bank.toml", include_str!("../../../policies/bank.toml")),
    ("bank.test.toml", include_str!("../../../policies/bank.test.toml")),
    ("admin.toml", include_str!("../../../policies/admin.toml")),
    ("admin.test.toml", include_str!("../../../policies/admin.test.toml")),
    ("audit.toml", include_str!("../../../policies/audit.toml")),
    ("audit.cedar", include_str!("../../../policies/audit.cedar")),
];

/// The folder, and the keys in it.
#[derive(Debug)]
pub(crate) struct Sandbox {
    folder: PathBuf,
    audience: Audience,
    issuer: TokenIssuer,
    service_key: ServiceKey,
    agents: Vec<Agent>,
    passwords: Vec<(&'static str, String)>,
}

#[derive(Debug)]
struct Agent {
    name: Name,
    roles: &'static [&'static str],
    key: AgentKey,
}

/// The broker's user for the service.
const SERVICE_USER: &str = "service";
/// The broker's user for the `nats` command.
pub(crate) const TOOLS_USER: &str = "tools";
/// A broker's user who may do anything there, as whoever runs the broker can.
pub(crate) const MALLORY: &str = "mallory";

impl Sandbox {
    /// Makes the keys, and the files that do not depend on where the broker is.
    pub(crate) fn new(folder: &Path) -> Result<Self, Failure> {
        let (environment, service) = (named(ENVIRONMENT)?, named(SERVICE)?);
        let audience = Audience::new(&environment, &service);
        let agents = AGENTS
            .iter()
            .map(|(name, roles, algorithm, _)| {
                let key = AgentKey::generate(&format!("{name}.k1"), *algorithm).or_fail(Exit::Bug)?;
                Ok(Agent { name: named(name)?, roles, key })
            })
            .collect::<Result<Vec<_>, Failure>>()?;
        let users = AGENTS.iter().map(|(name, ..)| *name).chain([SERVICE_USER, TOOLS_USER, MALLORY]);
        let sandbox = Self {
            folder: folder.to_owned(),
            issuer: TokenIssuer::generate(ISSUER).or_fail(Exit::Bug)?,
            service_key: ServiceKey::generate(&format!("svc:{audience}:1"), &audience).or_fail(Exit::Bug)?,
            passwords: users.map(|user| (user, Nonce::random().to_text())).collect(),
            agents,
            audience,
        };
        sandbox.issuer.save(sandbox.path("token-key.json")).or_fail(Exit::Input)?;
        sandbox.write("jwks.json", &sandbox.issuer.public_jwks())?;
        sandbox.write("denylist.json", "{}\n")?;
        write_service_key(&sandbox.path("service-key.json"), &sandbox.service_key).or_fail(Exit::Input)?;
        std::fs::create_dir(sandbox.path("policies")).map_err(|error| at(&sandbox.path("policies"), &error))?;
        for (name, text) in POLICIES {
            sandbox.write(&format!("policies/{name}"), text)?;
        }
        sandbox.write_ring()?;
        sandbox.refresh_tokens()?;
        Ok(sandbox)
    }

    /// The broker's users: each agent may publish its own subjects and read its own inbox, and nothing else.
    pub(crate) fn broker_config(&self) -> String {
        let mut users = String::new();
        for (user, password) in &self.passwords {
            let permissions = match *user {
                SERVICE_USER => format!(
                    "publish: [\"_INBOX.>\", \"$SRV.PING.{SERVICE}\"], \
                     subscribe: [\"rpc.v1.{SERVICE}.>\", \"$SRV.>\", \"_INBOX.svc:{SERVICE}.>\"]"
                ),
                TOOLS_USER => "publish: [\"$SRV.>\"], subscribe: [\"_INBOX.>\"]".to_owned(),
                MALLORY => "publish: [\">\"], subscribe: [\">\"]".to_owned(),
                agent => format!(
                    "publish: [\"rpc.v1.*.{agent}\", \"rpc.v1.*.{agent}.>\"], subscribe: [\"_INBOX.{agent}.>\"]"
                ),
            };
            // Writing to a string cannot fail.
            let _ =
                writeln!(users, "  {{ user: \"{user}\", password: \"{password}\", permissions: {{ {permissions} }} }}");
        }
        format!("max_payload: 262144\nauthorization {{ users: [\n{users}] }}\n")
    }

    /// Writes what depends on the broker's address: the configuration and the credentials.
    pub(crate) fn connect_to(&self, url: &str) -> Result<(), Failure> {
        // A second of skew instead of five: all clocks are one here, and the guard vouches for messages the sooner.
        let config = format!(
            "# A throw-away set-up of the demonstration service.\n\
             environment = \"{ENVIRONMENT}\"\nservice = \"{SERVICE}\"\n\n\
             [nats]\nurls = [\"{url}\"]\nuser = \"{SERVICE_USER}\"\npassword_file = \"nats.password\"\n\n\
             [keys]\nring = \"ring.json\"\nservice_key = \"service-key.json\"\ndenylist = \"denylist.json\"\n\n\
             [[tokens.issuer]]\nissuer = \"{ISSUER}\"\njwks = \"jwks.json\"\n\n\
             [policy]\nfolder = \"policies\"\n\n\
             [replay]\nguard = \"local\"\nskew_s = 1\nstate = \"demo.floor\"\n"
        );
        self.write("sealwire.toml", &config)?;
        write_secret(&self.path("nats.password"), self.password(SERVICE_USER), true).or_fail(Exit::Input)?;
        for agent in &self.agents {
            let credentials = self.credentials(agent, url)?.token_file(format!("{}.jwt", agent.name));
            credentials.save(self.credentials_file(agent.name.as_str()), true).or_fail(Exit::Input)?;
        }
        Ok(())
    }

    /// An agent's credentials, still without a token.
    fn credentials(&self, agent: &Agent, url: &str) -> Result<Credentials, Failure> {
        let key = copy(&agent.key)?;
        Ok(Credentials::new(named(ENVIRONMENT)?, agent.name.clone(), key, self.bus(url, agent.name.as_str()))
            .service_keys(named(SERVICE)?, vec![self.service_key.public()]))
    }

    /// Writes new tokens for all agents. They live for 15 minutes.
    pub(crate) fn refresh_tokens(&self) -> Result<(), Failure> {
        for agent in &self.agents {
            let token = self.token(agent.name.as_str(), agent.roles, TOKEN_S)?;
            let path = self.path(&format!("{}.jwt", agent.name));
            write_secret(&path, &format!("{token}\n"), true).or_fail(Exit::Input)?;
        }
        Ok(())
    }

    /// A token of the sandbox's issuer.
    pub(crate) fn token(&self, subject: &str, roles: &[&str], ttl_s: u64) -> Result<String, Failure> {
        let mut request = IssueRequest::new(subject, self.audience.as_str(), when::now_s());
        request.roles = roles.iter().map(ToString::to_string).collect();
        request.ttl_s = ttl_s;
        self.issuer.issue(&request).or_fail(Exit::Bug)
    }

    /// The key of an agent, once more.
    pub(crate) fn key(&self, agent: &str) -> Result<AgentKey, Failure> {
        let found = self.agents.iter().find(|known| known.name.as_str() == agent);
        copy(&found.ok_or_else(|| Failure::new(Exit::Bug, format!("no agent {agent}")))?.key)
    }

    /// As whom a user connects to the broker.
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
        &self.audience
    }

    pub(crate) fn service_key(&self) -> &ServiceKey {
        &self.service_key
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

    fn write_ring(&self) -> Result<(), Failure> {
        let entry = |agent: &Agent| match (agent.key.derived(&self.audience), agent.key.public()) {
            (Some(derived), _) => Ok(KeyEntry::hmac(agent.key.kid(), agent.name.clone(), &derived)),
            (None, Some(public)) => Ok(KeyEntry::ed25519(agent.key.kid(), agent.name.clone(), public)),
            (None, None) => Err(Failure::new(Exit::Bug, "a key of neither kind")),
        };
        let keys = self.agents.iter().map(entry).collect::<Result<Vec<_>, _>>()?;
        let file = KeyRingFile { audience: self.audience.to_string(), keys };
        let text = Zeroizing::new(serde_json::to_string_pretty(&file).or_fail(Exit::Bug)?);
        write_secret(&self.path("ring.json"), &text, false).or_fail(Exit::Input)
    }

    fn write(&self, name: &str, text: &str) -> Result<(), Failure> {
        let path = self.path(name);
        std::fs::write(&path, text).map_err(|error| at(&path, &error))
    }
}

fn copy(key: &AgentKey) -> Result<AgentKey, Failure> {
    let copied = match (key.algorithm(), <[u8; 32]>::try_from(key.expose())) {
        (ProofAlgorithm::EdDsa, Ok(seed)) => AgentKey::ed25519(key.kid(), seed),
        _ => AgentKey::hmac(key.kid(), key.expose()),
    };
    copied.or_fail(Exit::Bug)
}

fn named(text: &str) -> Result<Name, Failure> {
    Name::new(text).or_fail(Exit::Bug)
}

fn at(path: &Path, error: &std::io::Error) -> Failure {
    Failure::input(format!("`{}`: {error}", path.display()))
}
