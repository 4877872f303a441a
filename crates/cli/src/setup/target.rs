//! The folders of a setup, one for each container, and what is written into each.
//! Never leaves a file that anybody but its owner may read.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use sealwire::configure::{AgentKey, ProofAlgorithm};
use sealwire::internal::auth::{Denylist, KeyEntry, KeyRingFile, KeyStatus, TokenIssuer, write_service_key};
use sealwire::internal::files::{read_secret, write_secret};
use sealwire::internal::wire::{Audience, ServiceKey};
use sealwire::{BusConfig, Credentials, Name};
use sealwire_gateway::http::new_seal_key;
use time::OffsetDateTime;

use super::authority::{Authority, PUT_AWAY};
use super::callout::callout;
use super::certificates::Certificates;
use super::mark::{AUTHD, Mark, SIGNING};
use super::nsc::Nsc;
use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::{self, Lock, at, read_if_there, restrict};
use crate::users::{Kind, Users};
use crate::when;
use sealwire_lab::layout::{self, CONFIG, DENYLIST, JWKS, RING, SERVICE_KEY, TOKEN_KEY};
use sealwire_lab::parties::{self, AGENTS, ENVIRONMENT, ISSUER};
use sealwire_lab::sandbox::command_to_add;

/// The brokers: their host names, which also name their folders.
const NODES: [&str; 3] = ["nats-1", "nats-2", "nats-3"];
/// The agent in a container of its own, which makes calls all the time.
const CALLER: &str = "planner";
pub(super) const OPERATOR: &str = "operator";
pub(super) const ISSUER_FOLDER: &str = "issuer";
/// The folder through which the issuer hands tokens to the caller.
const TOKENS: &str = "tokens";
/// The gateway, its agent, and its folder.
pub(super) const GATEWAY: &str = "gateway";
/// The gateway's public URL, which is also the issuer of the tokens with which it calls.
const GATEWAY_URL: &str = "https://localhost:8443";
/// The gateway's host names, for its certificate.
const GATEWAY_HOSTS: [&str; 3] = ["localhost", GATEWAY, "127.0.0.1"];
/// All folders except those of the services.
const FOLDERS: [&str; 8] = ["nats-1", "nats-2", "nats-3", CALLER, OPERATOR, ISSUER_FOLDER, TOKENS, GATEWAY];
/// Further names that a service cannot have, since they are used next to its folder.
const TAKEN: [&str; 8] = ["policies", "data-1", "data-2", "data-3", "node", SIGNING, PUT_AWAY, AUTHD];
/// The broker user of the operator's tools.
const TOOLS: &str = "tools";
const TOOLS_LOGIN: &str = "tools.nats.json";
/// The broker user that brings accounts to brokers in operator mode.
const PUSHER: &str = "pusher";
const PUSHER_LOGIN: &str = "pusher.nats.json";
/// The list of broker users, in the operator's folder.
pub(super) const USERS: &str = "users.json";
/// How long tokens are valid, in seconds. The issuer's container writes the next one long before that.
const TOKEN_S: u64 = 900;

/// The folder of a setup, locked until this is dropped: if two commands had read the same users, one would bring back those
/// that the other has removed.
pub(super) struct Target {
    pub(super) base: PathBuf,
    /// Who signs accounts and users, if the brokers are in operator mode.
    pub(super) authority: Option<Authority>,
    _lock: Lock,
}

impl Target {
    pub(super) fn take(base: PathBuf) -> Result<Self, Failure> {
        if !base.is_dir() {
            return Err(nothing_in(&base));
        }
        // Lock the inner folders, too: containers may share these as volumes, each below an outer folder of its own.
        let shared = FOLDERS.iter().map(|folder| base.join(folder)).filter(|folder| folder.is_dir());
        let lock = Lock::alone_in(std::iter::once(base.clone()).chain(shared))?;
        let authority = Authority::find(&base)?;
        Ok(Self { base, authority, _lock: lock })
    }

    /// Has brokers in operator mode, if this is a new setup. Fails if the existing one has others.
    pub(super) fn with_operator(&mut self, nsc: Option<Nsc>) -> Result<(), Failure> {
        let of_servers = self.mark()?.is_some_and(|mark| !mark.operator);
        match &self.authority {
            _ if of_servers => {
                let message = format!(
                    "the brokers of the setup in `{}` have their users in their configuration",
                    self.base.display()
                );
                Err(Failure::input(message).help("it is kept up with: sealwire setup cluster. Give another folder"))
            }
            Some(authority) if nsc.is_some() && authority.nsc() != nsc.as_ref() => {
                let message =
                    format!("the setup in `{}` was made with another store of nsc, or without", self.base.display());
                Err(Failure::input(message).help("run this without --nsc-store: the setup knows what it was made with"))
            }
            Some(_) => Ok(()),
            None => {
                self.authority = Some(Authority::make(&self.base, nsc)?);
                Ok(())
            }
        }
    }

    /// Fails if the brokers are in operator mode.
    pub(super) fn without_operator(&self) -> Result<(), Failure> {
        if self.authority.is_none() {
            return Ok(());
        }
        let failure =
            Failure::input(format!("the brokers of the setup in `{}` are in operator mode", self.base.display()));
        Err(failure.help("it is kept up with: sealwire setup operator"))
    }

    pub(super) fn is_in_operator_mode(&self) -> bool {
        self.authority.is_some()
    }

    /// What brings a change of users to the brokers.
    pub(super) fn step(&self) -> String {
        match &self.authority {
            None => "let each broker reload its users (SIGHUP)".to_owned(),
            Some(authority) if authority.nsc().is_some() => "give it to the brokers: nsc push --all".to_owned(),
            Some(_) => format!("give it to the brokers: sealwire setup push --out {}", self.base.display()),
        }
    }

    /// What has brokers ask `authd`. They take a callout in their configuration only when they start.
    pub(super) fn step_to_callout(&self) -> String {
        match &self.authority {
            None => "restart each broker".to_owned(),
            Some(_) => format!("{}, then let each broker reload (SIGHUP)", self.step()),
        }
    }

    /// The login with which accounts are pushed, unless the system's account is somebody else's.
    pub(super) fn pusher(&self) -> Option<PathBuf> {
        let is_ours = self.authority.as_ref().is_some_and(|authority| authority.nsc().is_none());
        is_ours.then(|| self.file(OPERATOR, PUSHER_LOGIN))
    }

    /// The JWTs of accounts for brokers in operator mode, each with its public key.
    pub(super) fn accounts(&mut self) -> Result<Vec<(String, String)>, Failure> {
        self.found()?;
        let users = Users::load(&self.file(OPERATOR, USERS))?;
        let Some(authority) = &mut self.authority else {
            let message = format!("the brokers of the setup in `{}` are not in operator mode", self.base.display());
            return Err(Failure::input(message).help("they take new users from their configuration: SIGHUP"));
        };
        authority.accounts(&users)
    }

    pub(super) fn display(&self) -> std::path::Display<'_> {
        self.base.display()
    }

    /// All folders of a setup.
    pub(super) fn folders(mark: &Mark) -> Vec<&str> {
        FOLDERS.into_iter().chain(mark.more_folders()).chain(mark.services.iter().map(Name::as_str)).collect()
    }

    /// The mark of the setup that is there; `None` if there is none.
    pub(super) fn mark(&self) -> Result<Option<Mark>, Failure> {
        Mark::find(&self.base, &FOLDERS)
    }

    /// Creates a setup without services. It is marked once it has some; until then it does not count as a setup. With `authd`, agents
    /// log in with their access tokens.
    pub(super) fn make(&mut self, authd: bool) -> Result<Mark, Failure> {
        FOLDERS.into_iter().try_for_each(|folder| self.make_folder(folder))?;
        let mut users = Users::default();
        for (agent, algorithm) in agents() {
            let name = parties::named(agent)?;
            let key = AgentKey::generate(&format!("{agent}.k1"), algorithm).or_fail(Exit::Bug)?;
            let folder = folder_of(agent);
            // The gateway has no token of its own: it mints one for each call.
            let by_token = authd && agent != GATEWAY;
            let mut bus = if by_token {
                BusConfig { access_token: true, tls_ca: Some("ca.pem".into()), ..brokers() }
            } else {
                self.login(&mut users, Kind::Agent, &name, folder, agent)?
            };
            if let Some(file) = bus.nkey_seed_file.take() {
                // In the credentials themselves.
                let file = self.file(folder, &file.to_string_lossy());
                bus.nkey_seed = Some(read_secret(&file).or_fail(Exit::Input)?);
                remove(&file)?;
            }
            let credentials = Credentials::new(parties::named(ENVIRONMENT)?, name, key, bus).method_subjects(by_token);
            self.save_credentials(credentials, agent, &[])?;
        }
        let mut logins = vec![(Kind::Tools, TOOLS, TOOLS_LOGIN)];
        // The system's account of `nsc` has users of its own.
        let is_ours = self.authority.as_ref().is_some_and(|authority| authority.nsc().is_none());
        logins.extend(is_ours.then_some((Kind::Pusher, PUSHER, PUSHER_LOGIN)));
        for (kind, name, file) in logins {
            let login = self.login(&mut users, kind, &parties::named(name)?, OPERATOR, name)?;
            self.write(OPERATOR, file, &(serde_json::to_string_pretty(&login).or_fail(Exit::Bug)? + "\n"))?;
        }
        self.make_revoker(&mut users)?;
        if authd {
            self.make_authd(&mut users)?;
        }
        self.write(OPERATOR, USERS, &users.to_json()?)?;
        let key = self.file(ISSUER_FOLDER, TOKEN_KEY);
        remove(&key)?;
        let issuer = TokenIssuer::generate(ISSUER).or_fail(Exit::Bug)?;
        issuer.save(&key).or_fail(Exit::Input)?;
        self.make_gateway(&issuer)?;
        let mark = Mark::new(self.authority.is_some(), authd);
        self.write_certificates(&mark)?;
        Ok(mark)
    }

    /// Makes a broker user, and the file with which it logs in. Returns the login of whatever has that file in its folder.
    pub(super) fn login(
        &mut self,
        users: &mut Users,
        kind: Kind,
        name: &Name,
        folder: &str,
        file: &str,
    ) -> Result<BusConfig, Failure> {
        users.forget(kind, name);
        let seed = users.make(kind, name)?;
        let bus = BusConfig { tls_ca: Some("ca.pem".into()), ..brokers() };
        let Some(authority) = &mut self.authority else {
            let file = format!("{file}.nkey");
            self.write(folder, &file, &seed)?;
            return Ok(BusConfig { nkey_seed_file: Some(file.into()), ..bus });
        };
        let text = authority.creds(users, kind, name.as_str(), &seed)?;
        let file = format!("{file}.creds");
        self.write(folder, &file, &text)?;
        Ok(BusConfig { creds_file: Some(file.into()), ..bus })
    }

    /// Writes the gateway's own files, except its configuration, which names the services.
    fn make_gateway(&self, issuer: &TokenIssuer) -> Result<(), Failure> {
        let key = self.file(GATEWAY, GATEWAY_KEY);
        remove(&key)?;
        TokenIssuer::generate(GATEWAY_URL).or_fail(Exit::Bug)?.save(&key).or_fail(Exit::Input)?;
        self.write(GATEWAY, "seal.key", &new_seal_key().or_fail(Exit::Bug)?)?;
        self.write(GATEWAY, JWKS, &issuer.public_jwks())?;
        self.write(GATEWAY, DENYLIST, &Denylist::default().to_json())?;
        remove(&self.file(GATEWAY, GATEWAY_CONFIG))
    }

    /// Renews the certificates, and nothing else. The previous authority stays trusted, so that the brokers and their clients
    /// can be restarted one by one.
    pub(super) fn renew_certificates(&self, mark: Mark) -> Result<Mark, Failure> {
        self.write_certificates(&mark)?;
        let mark = mark.renewed();
        mark.write(&self.base, &Self::folders(&mark))?;
        Ok(mark)
    }

    fn write_certificates(&self, mark: &Mark) -> Result<(), Failure> {
        let now = OffsetDateTime::now_utc();
        let certificates = Certificates::of_brokers(&NODES, now)?;
        let last = read_if_there(&self.file(OPERATOR, "ca.pem"))?.and_then(|text| first_certificate(&text));
        let trusted = certificates.authority.clone() + last.as_deref().unwrap_or_default();
        let trusting = Self::folders(mark).into_iter();
        let trusting = trusting.filter(|folder| ![ISSUER_FOLDER, TOKENS, SIGNING].contains(folder));
        for folder in trusting {
            self.write(folder, "ca.pem", &trusted)?;
        }
        let of_gateway = Certificates::of_gateway(&GATEWAY_HOSTS, now)?;
        self.write(GATEWAY, "callers-ca.pem", &of_gateway.authority)?;
        for (folder, own) in NODES.iter().zip(&certificates.each).chain(std::iter::once(&GATEWAY).zip(&of_gateway.each))
        {
            self.write(folder, "key.pem", &own.key)?;
            self.write(folder, "cert.pem", &own.certificate)?;
        }
        Ok(())
    }

    /// Adds services, writes the brokers' users, and marks the setup. Replaces what an interrupted run left of these services.
    pub(super) fn add_services(&mut self, mut mark: Mark, services: &[NewService]) -> Result<Mark, Failure> {
        if services.is_empty() {
            return Ok(mark);
        }
        let is_taken = |name: &Name| FOLDERS.iter().chain(&TAKEN).any(|taken| name.as_str() == *taken);
        if let Some(taken) = services.iter().map(|service| &service.name).find(|name| is_taken(name)) {
            return Err(Failure::input(format!("a service cannot be named `{taken}`: that is another folder's name")));
        }
        let mut users = Users::load(&self.file(OPERATOR, USERS))?;
        let denied = self.denied(&mark)?;
        for service in services {
            if !mark.services.contains(&service.name) {
                self.add_service(service, &mark, &mut users, &denied)?;
                mark.services.push(service.name.clone());
            }
        }
        for agent in self.agents(&mark)? {
            let (credentials, _) = agent;
            let name = credentials.agent().to_string();
            self.save_credentials(credentials, &name, &mark.services)?;
        }
        // The operator may have changed it.
        if !self.file(GATEWAY, GATEWAY_CONFIG).exists() {
            self.write(GATEWAY, GATEWAY_CONFIG, &gateway_config(&mark.services))?;
        }
        self.write_users(&users)?;
        // Mark the new folders first: they belong to the setup only once the others say so, too.
        let mut folders = Self::folders(&mark);
        folders.reverse();
        mark.write(&self.base, &folders)?;
        Ok(mark)
    }

    /// Has services and gateway serve metrics, unless their configuration says something about it. Returns the folders of those that it
    /// has changed.
    pub(super) fn add_metrics(&self, mark: &Mark) -> Result<Vec<String>, Failure> {
        let services = mark.services.iter().map(|service| (service.as_str(), CONFIG));
        let mut changed = Vec::new();
        for (folder, name) in services.chain(std::iter::once((GATEWAY, GATEWAY_CONFIG))) {
            let text = read_if_there(&self.file(folder, name))?.unwrap_or_default();
            let said: toml::Table = text
                .parse()
                .map_err(|_| Failure::input(format!("`{}` is not TOML", self.file(folder, name).display())))?;
            if !said.contains_key("telemetry") {
                self.write(folder, name, &format!("{text}{TELEMETRY}"))?;
                changed.push(folder.to_owned());
            }
        }
        Ok(changed)
    }

    /// The mark of the setup, which must exist.
    pub(super) fn found(&self) -> Result<Mark, Failure> {
        self.mark()?.ok_or_else(|| nothing_in(&self.base))
    }

    /// Adds a broker user for an agent that created its own key pair; with `replace`, replaces the one it has.
    /// In operator mode, returns its JWT.
    pub(super) fn add_agent(&mut self, name: &Name, nkey: &str, replace: bool) -> Result<Option<String>, Failure> {
        self.found()?;
        let mut users = Users::load(&self.file(OPERATOR, USERS))?;
        if replace {
            self.forget_agent(&mut users, name);
        }
        users.admit(Kind::Agent, name, nkey)?;
        let authority = self.authority.as_mut();
        let jwt = authority.map(|authority| authority.user(&users, Kind::Agent, name.as_str(), nkey)).transpose()?;
        self.write_users(&users)?;
        Ok(jwt)
    }

    /// A user in a configuration is gone with its line; a JWT has to be revoked.
    fn forget_agent(&self, users: &mut Users, name: &Name) -> bool {
        if self.authority.is_some() {
            users.revoke(Kind::Agent, name, when::now_s());
        }
        users.forget(Kind::Agent, name)
    }

    /// Removes an agent's broker user. Returns the records of its keys that are not revoked, with the ring of each.
    pub(super) fn remove_agent(&mut self, name: &Name) -> Result<Vec<(PathBuf, KeyEntry)>, Failure> {
        let mark = self.found()?;
        let mut users = Users::load(&self.file(OPERATOR, USERS))?;
        if !self.forget_agent(&mut users, name) {
            let failure = Failure::input(format!("the brokers know no agent {name}"));
            return Err(if mark.authd {
                failure.help(format!("its access token lets it in: sealwire revoke agent {name}"))
            } else {
                failure
            });
        }
        self.write_users(&users)?;
        let entries = self.entries(&mark)?.into_iter();
        Ok(entries.filter(|(_, entry)| entry.owner == *name && entry.status != KeyStatus::Revoked).collect())
    }

    /// The active keys, in any service's ring, of agents that were enrolled later, by key id.
    pub(super) fn enrolled(&self, mark: &Mark) -> Result<BTreeMap<String, KeyEntry>, Failure> {
        let made = |entry: &KeyEntry| agents().any(|(name, _)| name == entry.owner.as_str());
        let entries = self.entries(mark)?.into_iter().map(|(_, entry)| entry);
        let enrolled = entries.filter(|entry| !made(entry) && entry.status == KeyStatus::Active);
        Ok(enrolled.map(|entry| (entry.kid.clone(), entry)).collect())
    }

    /// All records of all rings, with the ring's file.
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
        self.file(service.as_str(), RING)
    }

    /// A service's own key.
    pub(super) fn service_key(&self, service: &Name) -> PathBuf {
        self.file(service.as_str(), SERVICE_KEY)
    }

    fn service_config(&self, NewService { name: service, mcp }: &NewService) -> String {
        let (own, guard) = (self.login_of(Kind::Service), self.login_of(Kind::Guard));
        let urls = urls();
        let (what, backend) = match mcp {
            None => ("the demonstration methods", String::new()),
            Some(url) => {
                let plaintext = if url.starts_with("http:") {
                    "# Nobody else is on the network between the service and the server.\nallow_plaintext = true\n"
                } else {
                    ""
                };
                let url = toml::Value::from(url.as_str());
                let backend = format!(
                    "\n[[backend]]\nname = \"{service}\"\nkind = \"mcp\"\nurl = {url}\nprefix = \"{service}\"\n{plaintext}"
                );
                ("the tools of an MCP server", backend)
            }
        };
        format!(
            "# A service with {what}. Written by `sealwire setup`.\n\
             environment = \"{ENVIRONMENT}\"\nservice = \"{service}\"\n\n\
             [nats]\nurls = [{urls}]\n{own}\ntls_ca = \"ca.pem\"\n\n\
             [keys]\nring = \"{RING}\"\nservice_key = \"{SERVICE_KEY}\"\ndenylist = \"{DENYLIST}\"\n\n\
             {tokens}\
             # The gateway speaks for its callers, and for nobody else.\n\
             [[tokens.issuer]]\nissuer = \"{GATEWAY_URL}\"\njwks = \"gateway-jwks.json\"\n\
             require = {{ \"act.sub\" = \"{GATEWAY}\" }}\n\
             may = {{ agents = [\"{GATEWAY}\"], roles = [\"*\"], subjects = [\"*\"] }}\n\n\
             [policy]\nfolder = \"../policies\"\n\n\
             # All containers share one clock, so a small skew is enough; the smaller it is, the sooner a new guard vouches for\n\
             # messages. A machine that also does your work may stall for longer than a quarter of a second.\n\
             [replay]\nguard = \"shared\"\nreplicas = {copies}\nstream_messages = 200000\nskew_s = 2\nanswer_within_ms = 1000\n\n\
             # The guard has its own account.\n\
             [replay.nats]\nurls = [{urls}]\n{guard}\ntls_ca = \"ca.pem\"\n{backend}",
            tokens = token_rules(),
            copies = NODES.len(),
        )
    }

    pub(super) fn write_users(&mut self, users: &Users) -> Result<(), Failure> {
        self.write(OPERATOR, USERS, &users.to_json()?)?;
        let agents = |agent: &Name| Kind::Agent.permissions(ENVIRONMENT, agent.as_str());
        let config = match &mut self.authority {
            None => {
                let callout = callout(&self.base, users)?;
                users.config("setup", ENVIRONMENT, callout.as_ref(), agents)
            }
            Some(authority) => authority.config(users)?,
        };
        NODES.iter().try_for_each(|node| self.write(node, "users.conf", &config))
    }

    fn add_service(
        &mut self,
        added: &NewService,
        mark: &Mark,
        users: &mut Users,
        denied: &Denylist,
    ) -> Result<(), Failure> {
        let name = &added.name;
        let folder = name.as_str();
        let audience = audience(name)?;
        mark.check_unmarked(&self.base, folder)?;
        self.make_folder(folder)?;
        for kind in [Kind::Service, Kind::Guard, Kind::Follower] {
            self.login(users, kind, name, folder, kind.as_str())?;
        }
        let key = ServiceKey::generate(&format!("svc:{audience}:1"), &audience).or_fail(Exit::Bug)?;
        remove(&self.file(folder, SERVICE_KEY))?;
        write_service_key(&self.file(folder, SERVICE_KEY), &key).or_fail(Exit::Input)?;
        let agents = self.agents(mark)?;
        let admitted = agents.iter().filter(|(_, admitted)| *admitted);
        let ring = parties::ring(&audience, admitted.map(|(agent, _)| (agent.agent(), agent.key())))?;
        self.write(folder, RING, &ring)?;
        let issuer = TokenIssuer::load(self.file(ISSUER_FOLDER, TOKEN_KEY)).or_fail(Exit::Input)?;
        self.write(folder, JWKS, &issuer.public_jwks())?;
        let gateway = TokenIssuer::load(self.file(GATEWAY, GATEWAY_KEY)).or_fail(Exit::Input)?;
        self.write(folder, "gateway-jwks.json", &gateway.public_jwks())?;
        self.write(folder, DENYLIST, &denied.to_json())?;
        self.write(folder, "ca.pem", &read_if_there(&self.file(OPERATOR, "ca.pem"))?.unwrap_or_default())?;
        self.write(folder, CONFIG, &self.service_config(added))?;
        if mark.authd { self.add_to_authd(name) } else { Ok(()) }
    }

    /// The agents of the setup, each with whether every service still accepts its key: a key that one service has retired or
    /// revoked must not come back with the next service.
    fn agents(&self, mark: &Mark) -> Result<Vec<(Credentials, bool)>, Failure> {
        let entries = self.entries(mark)?.into_iter().map(|(_, entry)| entry);
        let refused: Vec<_> = entries.filter(|entry| entry.status != KeyStatus::Active).collect();
        let load = |(agent, _)| {
            let credentials = Credentials::load(self.credentials(agent)).or_fail(Exit::Input)?;
            let admitted = !refused.iter().any(|entry| entry.kid == credentials.kid());
            Ok((credentials, admitted))
        };
        agents().map(load).collect()
    }

    /// The deny lists of all services, merged.
    pub(super) fn denied(&self, mark: &Mark) -> Result<Denylist, Failure> {
        mark.services.iter().try_fold(Denylist::default(), |all, service| {
            let list = Denylist::from_file(self.file(service.as_str(), DENYLIST)).or_fail(Exit::Input)?;
            Ok(all.merge(list))
        })
    }

    /// Saves an agent's credentials, with the services' keys pinned. The caller has its own folder and gets its tokens from the
    /// issuer; the gateway has its own folder and mints its tokens. The other agents are the operator's, who has the issuer's key, too.
    fn save_credentials(&self, credentials: Credentials, agent: &str, services: &[Name]) -> Result<(), Failure> {
        let mut credentials = credentials;
        for service in services {
            let key = sealwire::internal::auth::read_service_key(&self.service_key(service), &audience(service)?);
            let mut keys = credentials.pinned(service);
            let key = key.or_fail(Exit::Input)?.public();
            if !keys.contains(&key) {
                keys.push(key);
            }
            credentials = credentials.service_keys(service.clone(), keys);
        }
        let credentials = if agent == CALLER {
            credentials.token_file(format!("../{TOKENS}/{CALLER}.jwt"))
        } else if agent == GATEWAY {
            // Credentials must name a source of tokens. The gateway mints its own, so this file is never read.
            credentials.token_file(format!("{GATEWAY}.jwt"))
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

    /// Writes a token for the caller, bound to its key, for the first service; and the key's id, for the issuer of the next one.
    pub(super) fn write_token(&self, mark: &Mark) -> Result<(), Failure> {
        let issuer = TokenIssuer::load(self.file(ISSUER_FOLDER, TOKEN_KEY)).or_fail(Exit::Input)?;
        let kid = Credentials::load(self.credentials(CALLER)).or_fail(Exit::Input)?.kid().to_owned();
        self.write(TOKENS, &format!("{CALLER}.kid"), &format!("{kid}\n"))?;
        let Some(service) = mark.services.first() else { return Ok(()) };
        let token = parties::bound_token(&issuer, CALLER, &audience(service)?, roles(CALLER), TOKEN_S, &kid)?;
        self.write(TOKENS, &format!("{CALLER}.jwt"), &format!("{token}\n"))
    }

    fn credentials(&self, agent: &str) -> PathBuf {
        layout::credentials(&self.base.join(folder_of(agent)), agent)
    }

    /// How a configuration names the login of a service.
    pub(super) fn login_of(&self, kind: Kind) -> String {
        let kind = kind.as_str();
        match self.authority {
            None => format!("nkey_seed_file = \"{kind}.nkey\""),
            Some(_) => format!("creds_file = \"{kind}.creds\""),
        }
    }

    pub(super) fn file(&self, folder: &str, name: &str) -> PathBuf {
        self.base.join(folder).join(name)
    }

    pub(super) fn make_folder(&self, folder: &str) -> Result<(), Failure> {
        let path = self.base.join(folder);
        files::make_folder(&path)?;
        restrict(&path)
    }

    /// Writes a file that only its owner can read, even if it is not secret: each container owns its files.
    pub(super) fn write(&self, folder: &str, name: &str, text: &str) -> Result<(), Failure> {
        write_secret(&self.file(folder, name), text, true).or_fail(Exit::Input)
    }
}

fn nothing_in(base: &Path) -> Failure {
    let failure = Failure::input(format!("there is no setup in `{}`", base.display()));
    match command_to_add(base, "NAME") {
        Some(command) => failure.help(format!("it is the folder of a `sealwire dev`: {command}")),
        None => failure.help("create one: sealwire setup cluster --out FOLDER"),
    }
}

/// Whose tokens count at a service, and at the brokers for it.
pub(super) fn token_rules() -> String {
    format!(
        "# The brokers see every token, so a token that is not bound to the caller's key is refused.\n\
         [tokens]\nrequire_cnf = true\n\n\
         [[tokens.issuer]]\nissuer = \"{ISSUER}\"\njwks = \"{JWKS}\"\n\
         may = {{ agents = [\"*\"], roles = [\"*\"] }}\n\n"
    )
}

/// Where a container tells how it is doing. Each has its own address, so there is none to name here.
const TELEMETRY: &str = "\n# Metrics and health. All containers on its networks learn the names of its methods, agents, rules and keys.\n\
    [telemetry]\nlisten = \"0.0.0.0:9464\"\nallow_remote = true\n";

/// The key with which the gateway signs tokens.
const GATEWAY_KEY: &str = "gateway-key.json";
pub(super) const GATEWAY_CONFIG: &str = "gateway.toml";

/// A service to be added.
#[derive(Debug, Clone)]
pub(super) struct NewService {
    pub(super) name: Name,
    /// The MCP server whose tools become its methods; without one, it serves the demonstration methods.
    pub(super) mcp: Option<String>,
}

/// The agents of a setup, with the algorithms of their keys. The gateway's is Ed25519, so that anybody can check its receipts.
fn agents() -> impl Iterator<Item = (&'static str, ProofAlgorithm)> {
    let of_demo = AGENTS.iter().map(|(name, _, algorithm, _)| (*name, *algorithm));
    of_demo.chain(std::iter::once((GATEWAY, ProofAlgorithm::EdDsa)))
}

fn audience(service: &Name) -> Result<Audience, Failure> {
    Ok(Audience::new(&parties::named(ENVIRONMENT)?, service))
}

fn roles(agent: &str) -> &'static [&'static str] {
    AGENTS.iter().find(|(name, ..)| *name == agent).map_or(&[], |(_, roles, ..)| roles)
}

/// The folder that an agent has its files in: the caller and the gateway have their own.
fn folder_of(agent: &str) -> &str {
    if [CALLER, GATEWAY].contains(&agent) { agent } else { OPERATOR }
}

/// The brokers' addresses, as a list of TOML.
pub(super) fn urls() -> String {
    let urls: Vec<String> = brokers().urls.iter().map(|url| format!("\"{url}\"")).collect();
    urls.join(", ")
}

/// How many brokers there are.
pub(super) const BROKERS: usize = NODES.len();

fn brokers() -> BusConfig {
    BusConfig { urls: NODES.iter().map(|node| format!("tls://{node}:4222")).collect(), ..BusConfig::default() }
}

fn gateway_config(services: &[Name]) -> String {
    let exposed: String = services
        .iter()
        .map(|service| format!("\n[[gateway.expose]]\nservice = \"{service}\"\ntimeout_s = 30\n"))
        .collect();
    format!(
        "# The gateway: it calls for callers that do not speak Sealwire, each identified by its token. Written by `sealwire setup`.\n\
         [gateway]\nlisten = \"0.0.0.0:8443\"\ntls_cert = \"cert.pem\"\ntls_key = \"key.pem\"\n\
         # Where callers find it. Their tokens must be for this URL (`aud`), and name a service (`scope`).\n\
         public_url = \"{GATEWAY_URL}\"\ncredentials = \"{GATEWAY}.creds.json\"\n\
         identity = {{ mode = \"mint\", key = \"{GATEWAY_KEY}\" }}\n\
         denylist = \"denylist.json\"\nseal_key = \"seal.key\"\n\n\
         [[gateway.tokens.issuer]]\nissuer = \"{ISSUER}\"\njwks = \"jwks.json\"\n{exposed}"
    )
}

/// The first certificate of a PEM file, including its end line.
fn first_certificate(text: &str) -> Option<String> {
    const END: &str = "-----END CERTIFICATE-----\n";
    text.split_inclusive(END).next().filter(|first| first.ends_with(END)).map(ToOwned::to_owned)
}

pub(super) fn remove(path: &Path) -> Result<(), Failure> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(at(path, &error)),
        _ => Ok(()),
    }
}
