//! The folders of a set-up and what is written into each: one folder for each container.
//! Never leaves a file that others than its owner may read.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use sealwire::auth::{
    Denylist, KeyEntry, KeyRingFile, KeyStatus, TokenIssuer, read_secret, write_secret, write_service_key,
};
use sealwire::client::Credentials;
use sealwire::wire::{AgentKey, Audience, ServiceKey};
use sealwire::{BusConfig, Name};
use time::OffsetDateTime;

use super::certificates::Certificates;
use super::mark::Mark;
use super::users::{Kind, Users};
use crate::dev;
use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::{self, at, read_if_there, restrict};
use crate::parties::{self, AGENTS, ENVIRONMENT, ISSUER};

/// The brokers: host names, and names of their folders.
const NODES: [&str; 3] = ["nats-1", "nats-2", "nats-3"];
/// The agent that has a container of its own, and calls and calls.
const CALLER: &str = "planner";
const OPERATOR: &str = "operator";
const ISSUER_FOLDER: &str = "issuer";
/// Where the issuer hands tokens to the caller.
const TOKENS: &str = "tokens";
/// The folders beside the services'.
const FOLDERS: [&str; 7] = ["nats-1", "nats-2", "nats-3", CALLER, OPERATOR, ISSUER_FOLDER, TOKENS];
/// Names that a service cannot have: of what else there is beside its folder.
const TAKEN: [&str; 5] = ["policies", "data-1", "data-2", "data-3", "node"];
/// The operator's tools' user.
const TOOLS: &str = "tools";
/// The brokers' users, at the operator's.
const USERS: &str = "users.json";
/// The issuer's signing key.
const TOKEN_KEY: &str = "token-key.json";
/// How long tokens live. The issuer's container writes the next one long before.
const TOKEN_S: u64 = 900;

/// The folder that holds the folders.
pub(super) struct Target(PathBuf);

impl Target {
    pub(super) fn new(base: PathBuf) -> Self {
        Self(base)
    }

    pub(super) fn display(&self) -> std::path::Display<'_> {
        self.0.display()
    }

    /// All folders of a set-up.
    pub(super) fn folders(mark: &Mark) -> Vec<&str> {
        FOLDERS.into_iter().chain(mark.services.iter().map(Name::as_str)).collect()
    }

    /// What is there; `None` if nothing is.
    pub(super) fn mark(&self) -> Result<Option<Mark>, Failure> {
        Mark::find(&self.0, &FOLDERS)
    }

    /// A set-up without services. It is marked when it has some: until then, nothing is there.
    pub(super) fn make(&self) -> Result<Mark, Failure> {
        FOLDERS.into_iter().try_for_each(|folder| self.make_folder(folder))?;
        let mut users = Users::default();
        for (agent, _, algorithm, _) in AGENTS {
            let name = parties::named(agent)?;
            let key = AgentKey::generate(&format!("{agent}.k1"), *algorithm).or_fail(Exit::Bug)?;
            let seed = users.make(Kind::Agent, &name)?;
            let bus = BusConfig { nkey_seed: Some(seed), tls_ca: Some("ca.pem".into()), ..brokers() };
            let credentials = Credentials::new(parties::named(ENVIRONMENT)?, name, key, bus);
            self.save_credentials(credentials, agent, &[])?;
        }
        let tools = users.make(Kind::Tools, &parties::named(TOOLS)?)?;
        self.write(OPERATOR, "tools.nkey", &tools)?;
        self.write(OPERATOR, USERS, &users.to_json()?)?;
        let key = self.file(ISSUER_FOLDER, TOKEN_KEY);
        remove(&key)?;
        TokenIssuer::generate(ISSUER).or_fail(Exit::Bug)?.save(&key).or_fail(Exit::Input)?;
        let mark = Mark::new();
        self.write_certificates(&mark)?;
        Ok(mark)
    }

    /// New certificates, and nothing else. The authority of the last ones stays trusted, so that the brokers and their
    /// clients can be restarted one by one.
    pub(super) fn renew_certificates(&self, mark: Mark) -> Result<Mark, Failure> {
        self.write_certificates(&mark)?;
        let mark = mark.renewed();
        mark.write(&self.0, &Self::folders(&mark))?;
        Ok(mark)
    }

    fn write_certificates(&self, mark: &Mark) -> Result<(), Failure> {
        let certificates = Certificates::generate(&NODES, OffsetDateTime::now_utc())?;
        let last = read_if_there(&self.file(OPERATOR, "ca.pem"))?.and_then(|text| first_certificate(&text));
        let trusted = certificates.authority.clone() + last.as_deref().unwrap_or_default();
        let trusting = Self::folders(mark).into_iter().filter(|folder| ![ISSUER_FOLDER, TOKENS].contains(folder));
        for folder in trusting {
            self.write(folder, "ca.pem", &trusted)?;
        }
        for (node, broker) in NODES.iter().zip(&certificates.brokers) {
            self.write(node, "key.pem", &broker.key)?;
            self.write(node, "cert.pem", &broker.certificate)?;
        }
        Ok(())
    }

    /// Adds services, tells the brokers, and marks the set-up. What an interrupted run left of them is replaced.
    pub(super) fn add_services(&self, mut mark: Mark, names: &[Name]) -> Result<Mark, Failure> {
        if names.is_empty() {
            return Ok(mark);
        }
        if let Some(taken) = names.iter().find(|name| FOLDERS.iter().chain(&TAKEN).any(|taken| name.as_str() == *taken))
        {
            return Err(Failure::input(format!("a service cannot be named `{taken}`: that is another folder's name")));
        }
        let mut users = Users::load(&self.file(OPERATOR, USERS))?;
        let denied = self.denied(&mark)?;
        for name in names {
            if !mark.services.contains(name) {
                self.add_service(name, &mark, &mut users, &denied)?;
                mark.services.push(name.clone());
            }
        }
        for agent in self.agents(&mark)? {
            let (credentials, _) = agent;
            let name = credentials.agent().to_string();
            self.save_credentials(credentials, &name, &mark.services)?;
        }
        self.write_users(&users)?;
        // The new folders first: as long as only they say so, they are no part of it.
        let mut folders = Self::folders(&mark);
        folders.reverse();
        mark.write(&self.0, &folders)?;
        Ok(mark)
    }

    /// A set-up that is there.
    pub(super) fn found(&self) -> Result<Mark, Failure> {
        self.mark()?.ok_or_else(|| {
            let failure = Failure::input(format!("there is no set-up in `{}`", self.display()));
            match dev::adds_agents(&self.0, "NAME") {
                Some(command) => failure.help(format!("it is the folder of a `sealwire dev`: {command}")),
                None => failure.help("make one: sealwire setup cluster --out FOLDER"),
            }
        })
    }

    /// A broker user for an agent that made its key pair itself; with `replace`, in the place of the one that it has.
    pub(super) fn add_agent(&self, name: &Name, nkey: &str, replace: bool) -> Result<(), Failure> {
        self.found()?;
        let mut users = Users::load(&self.file(OPERATOR, USERS))?;
        if replace {
            users.forget(Kind::Agent, name);
        }
        users.admit(Kind::Agent, name, nkey)?;
        self.write_users(&users)
    }

    /// Takes an agent's broker user out. The result is the records of its keys, with the ring of each.
    pub(super) fn remove_agent(&self, name: &Name) -> Result<Vec<(PathBuf, KeyEntry)>, Failure> {
        let mark = self.found()?;
        let mut users = Users::load(&self.file(OPERATOR, USERS))?;
        if !users.forget(Kind::Agent, name) {
            return Err(Failure::input(format!("the brokers know no agent {name}")));
        }
        self.write_users(&users)?;
        let entries = self.entries(&mark)?.into_iter();
        Ok(entries.filter(|(_, entry)| entry.owner == *name && entry.status != KeyStatus::Revoked).collect())
    }

    /// The keys of agents that the set-up did not make, as any service knows them: by key id.
    pub(super) fn enrolled(&self, mark: &Mark) -> Result<BTreeMap<String, KeyEntry>, Failure> {
        let made = |entry: &KeyEntry| AGENTS.iter().any(|(name, ..)| *name == entry.owner.as_str());
        let entries = self.entries(mark)?.into_iter().map(|(_, entry)| entry);
        let enrolled = entries.filter(|entry| !made(entry) && entry.status == KeyStatus::Active);
        Ok(enrolled.map(|entry| (entry.kid.clone(), entry)).collect())
    }

    /// Every record of every ring, with the ring's file.
    fn entries(&self, mark: &Mark) -> Result<Vec<(PathBuf, KeyEntry)>, Failure> {
        let mut entries = Vec::new();
        for service in &mark.services {
            let ring = self.ring(service);
            if ring.exists() {
                let text = read_secret(&ring).or_fail(Exit::Input)?;
                let wrong = |_| Failure::input(format!("`{}` is not a key ring", ring.display()));
                let file: KeyRingFile = serde_json::from_str(&text).map_err(wrong)?;
                entries.extend(file.keys.into_iter().map(|entry| (ring.clone(), entry)));
            }
        }
        Ok(entries)
    }

    /// A service's key ring.
    pub(super) fn ring(&self, service: &Name) -> PathBuf {
        self.file(service.as_str(), "ring.json")
    }

    /// A service's own key.
    pub(super) fn service_key(&self, service: &Name) -> PathBuf {
        self.file(service.as_str(), SERVICE_KEY)
    }

    fn write_users(&self, users: &Users) -> Result<(), Failure> {
        self.write(OPERATOR, USERS, &users.to_json()?)?;
        NODES.iter().try_for_each(|node| self.write(node, "users.conf", &users.config()))
    }

    fn add_service(&self, name: &Name, mark: &Mark, users: &mut Users, denied: &Denylist) -> Result<(), Failure> {
        let folder = name.as_str();
        let audience = audience(name)?;
        mark.check_unmarked(&self.0, folder)?;
        self.make_folder(folder)?;
        for (kind, file) in [(Kind::Service, "service.nkey"), (Kind::Guard, "guard.nkey")] {
            users.forget(kind, name);
            self.write(folder, file, &users.make(kind, name)?)?;
        }
        let key = ServiceKey::generate(&format!("svc:{audience}:1"), &audience).or_fail(Exit::Bug)?;
        remove(&self.file(folder, SERVICE_KEY))?;
        write_service_key(&self.file(folder, SERVICE_KEY), &key).or_fail(Exit::Input)?;
        let agents = self.agents(mark)?;
        let admitted = agents.iter().filter(|(_, admitted)| *admitted);
        let ring = parties::ring(&audience, admitted.map(|(agent, _)| (agent.agent(), agent.key())))?;
        self.write(folder, "ring.json", &ring)?;
        let issuer = TokenIssuer::load(self.file(ISSUER_FOLDER, TOKEN_KEY)).or_fail(Exit::Input)?;
        self.write(folder, "jwks.json", &issuer.public_jwks())?;
        self.write(folder, "denylist.json", &denied.to_json())?;
        self.write(folder, "ca.pem", &read_if_there(&self.file(OPERATOR, "ca.pem"))?.unwrap_or_default())?;
        self.write(folder, "sealwire.toml", &service_config(name))
    }

    /// The agents of the set-up, each with whether every service still admits its key: a key that one of them has
    /// retired or revoked does not come back with the next service.
    fn agents(&self, mark: &Mark) -> Result<Vec<(Credentials, bool)>, Failure> {
        let entries = self.entries(mark)?.into_iter().map(|(_, entry)| entry);
        let refused: Vec<_> = entries.filter(|entry| entry.status != KeyStatus::Active).collect();
        let load = |(agent, ..): &(&str, _, _, _)| {
            let credentials = Credentials::load(self.credentials(agent)).or_fail(Exit::Input)?;
            let admitted = !refused.iter().any(|entry| entry.kid == credentials.kid());
            Ok((credentials, admitted))
        };
        AGENTS.iter().map(load).collect()
    }

    /// What any service of the set-up denies.
    fn denied(&self, mark: &Mark) -> Result<Denylist, Failure> {
        mark.services.iter().try_fold(Denylist::default(), |all, service| {
            let list = Denylist::from_file(self.file(service.as_str(), "denylist.json")).or_fail(Exit::Input)?;
            Ok(all.merge(list))
        })
    }

    /// The caller has its own folder, and gets its tokens from the issuer. The other agents are the operator's, who
    /// holds the issuer's key too. All pin the services' keys.
    fn save_credentials(&self, credentials: Credentials, agent: &str, services: &[Name]) -> Result<(), Failure> {
        let mut credentials = credentials;
        for service in services {
            let key = sealwire::auth::read_service_key(&self.service_key(service), &audience(service)?);
            let mut keys = credentials.pinned(service);
            let key = key.or_fail(Exit::Input)?.public();
            if !keys.contains(&key) {
                keys.push(key);
            }
            credentials = credentials.service_keys(service.clone(), keys);
        }
        let credentials = if agent == CALLER {
            credentials.token_file(format!("../{TOKENS}/{CALLER}.jwt"))
        } else {
            let command = ["sealwire", "token", "issue", "--key", "../issuer/token-key.json", "--subject", agent];
            let mut command: Vec<String> = command.map(ToOwned::to_owned).into();
            for service in services {
                command.extend(["--audience".to_owned(), audience(service)?.to_string()]);
            }
            for role in roles(agent) {
                command.extend(["--role".to_owned(), (*role).to_owned()]);
            }
            command.extend(["--cnf-creds".to_owned(), format!("{agent}.creds.json")]);
            credentials.token_command(command)
        };
        credentials.save(self.credentials(agent), true).or_fail(Exit::Input)
    }

    /// A token for the caller, bound to its key, for the first service; and the key's id, for who issues the next one.
    pub(super) fn write_token(&self, mark: &Mark) -> Result<(), Failure> {
        let issuer = TokenIssuer::load(self.file(ISSUER_FOLDER, TOKEN_KEY)).or_fail(Exit::Input)?;
        let kid = Credentials::load(self.credentials(CALLER)).or_fail(Exit::Input)?.kid().to_owned();
        self.write(TOKENS, &format!("{CALLER}.kid"), &format!("{kid}\n"))?;
        let Some(service) = mark.services.first() else { return Ok(()) };
        let token = parties::bound_token(&issuer, CALLER, &audience(service)?, roles(CALLER), TOKEN_S, &kid)?;
        self.write(TOKENS, &format!("{CALLER}.jwt"), &format!("{token}\n"))
    }

    fn credentials(&self, agent: &str) -> PathBuf {
        self.file(if agent == CALLER { CALLER } else { OPERATOR }, &format!("{agent}.creds.json"))
    }

    fn file(&self, folder: &str, name: &str) -> PathBuf {
        self.0.join(folder).join(name)
    }

    fn make_folder(&self, folder: &str) -> Result<(), Failure> {
        let path = self.0.join(folder);
        files::make_folder(&path)?;
        restrict(&path)
    }

    /// Each container is its files' owner: nobody else has to read them, also what is no secret.
    fn write(&self, folder: &str, name: &str, text: &str) -> Result<(), Failure> {
        write_secret(&self.file(folder, name), text, true).or_fail(Exit::Input)
    }
}

const SERVICE_KEY: &str = "service-key.json";

fn audience(service: &Name) -> Result<Audience, Failure> {
    Ok(Audience::new(&parties::named(ENVIRONMENT)?, service))
}

fn roles(agent: &str) -> &'static [&'static str] {
    AGENTS.iter().find(|(name, ..)| *name == agent).map_or(&[], |(_, roles, ..)| roles)
}

fn brokers() -> BusConfig {
    BusConfig { urls: NODES.iter().map(|node| format!("tls://{node}:4222")).collect(), ..BusConfig::default() }
}

fn service_config(service: &Name) -> String {
    let urls: Vec<String> = brokers().urls.iter().map(|url| format!("\"{url}\"")).collect();
    let urls = urls.join(", ");
    format!(
        "# A service with the demonstration methods. Written by `sealwire setup`.\n\
         environment = \"{ENVIRONMENT}\"\nservice = \"{service}\"\n\n\
         [nats]\nurls = [{urls}]\nnkey_seed_file = \"service.nkey\"\ntls_ca = \"ca.pem\"\n\n\
         [keys]\nring = \"ring.json\"\nservice_key = \"{SERVICE_KEY}\"\ndenylist = \"denylist.json\"\n\n\
         # The brokers see every token: one that is not bound to its bearer's key is refused.\n\
         [tokens]\nrequire_cnf = true\n\n\
         [[tokens.issuer]]\nissuer = \"{ISSUER}\"\njwks = \"jwks.json\"\n\n\
         [policy]\nfolder = \"../policies\"\n\n\
         # All containers have one clock: the less it may be off, the sooner a new guard vouches for messages. A machine\n\
         # that does all this and your work, too, may stall for longer than a quarter of a second.\n\
         [replay]\nguard = \"shared\"\nreplicas = {copies}\nstream_messages = 200000\nskew_s = 2\nanswer_within_ms = 1000\n\n\
         # In an account of its own.\n\
         [replay.nats]\nurls = [{urls}]\nnkey_seed_file = \"guard.nkey\"\ntls_ca = \"ca.pem\"\n",
        copies = NODES.len(),
    )
}

/// The first certificate of a PEM file, with what ends it.
fn first_certificate(text: &str) -> Option<String> {
    const END: &str = "-----END CERTIFICATE-----\n";
    text.split_inclusive(END).next().filter(|first| first.ends_with(END)).map(ToOwned::to_owned)
}

fn remove(path: &Path) -> Result<(), Failure> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(at(path, &error)),
        _ => Ok(()),
    }
}
