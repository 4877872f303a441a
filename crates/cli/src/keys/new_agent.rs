//! `sealwire keys new-agent`: creates an agent's credentials, and a record of its key for each service.
//! Never gives a service more than it needs: the derived key, or the public one.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use sealwire::configure::{AgentKey, ServicePublicKey};
use sealwire::internal::files::{locate_file, read_secret};
use sealwire::internal::wire::Audience;
use sealwire::{BusConfig, Credentials, Name, PolicySet};
use serde_json::json;
use zeroize::Zeroizing;

use super::audience::AudienceArg;
use super::ring::Ring;
use crate::alg::Alg;
use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::{Lock, absolute, all_shown, check_apart, context, shown};
use crate::output::Output;
use crate::policy;
use crate::project::Project;
use sealwire_lab::sandbox::command_to_add;

/// Create an agent: its credentials file, and a record in the key ring of each service that it may call
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire keys new-agent planner --service dev/math=math.ring.json
  sealwire keys new-agent planner --service dev/math=math.ring.json \\
      --service dev/bank=bank.ring.json --url tls://nats.example:4222 \\
      --tls-ca ca.pem --user planner --password-file planner.password
  sealwire keys new-agent planner --alg eddsa --service dev/math=math.ring.json
  sealwire keys new-agent planner --service dev/math=math.ring.json \\
      --token-command get-token --audience dev/math
  sealwire keys new-agent indexer --config sealwire.toml --role calculator")]
pub(crate) struct NewAgent {
    /// The agent's name
    #[arg(value_name = "NAME")]
    name: Name,
    /// A service that the agent may call, and its key ring, created if there is none; repeat for several
    #[arg(long = "service", value_name = "ENV/SVC=RING_FILE", required_unless_present = "config")]
    services: Vec<ServiceRing>,
    /// Instead of --service: the configuration of the one service that the agent may call, which names its ring and its brokers. If
    /// `token-key.json` is next to it, the agent gets new tokens by itself
    #[arg(long, value_name = "FILE", conflicts_with_all = ["services", "urls", "tls_ca"])]
    config: Option<PathBuf>,
    /// A role for those tokens; repeat for several
    #[arg(long = "role", value_name = "ROLE", requires = "config", conflicts_with_all = ["token_file", "token_command"])]
    roles: Vec<String>,
    /// The kind of key
    #[arg(long, value_enum, default_value_t)]
    alg: Alg,
    /// The key id [default: NAME.k1]
    #[arg(long, value_name = "KID")]
    kid: Option<String>,
    /// The credentials file to write (mode 0600) [default: NAME.creds.json]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The broker's address; repeat for the nodes of a cluster
    #[arg(long = "url", value_name = "URL", default_value = "nats://127.0.0.1:4222")]
    urls: Vec<String>,
    /// A context of the `nats` command, for the broker and the login, in place of `--url` and what follows: its name, or the path to its
    /// file, which ends in `.json`. The credentials name it, and programs read it when they start
    #[arg(long, value_name = "NAME", conflicts_with_all = ["urls", "user", "password_file", "nats_creds", "tls_ca", "config"])]
    context: Option<String>,
    /// The agent's broker user
    #[arg(long, value_name = "NAME", requires = "password_file")]
    user: Option<String>,
    /// A file (mode 0600) with that user's password, which is copied into the credentials
    #[arg(long, value_name = "FILE", requires = "user")]
    password_file: Option<PathBuf>,
    /// The `.creds` file (mode 0600) of the agent's user at a broker in operator mode; it stays where it is
    #[arg(long, value_name = "FILE", conflicts_with = "user")]
    nats_creds: Option<PathBuf>,
    /// The certificate authorities of the broker (PEM)
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// Allow sending the password to another machine in clear text, over a network where nobody else can listen
    #[arg(long, requires = "password_file")]
    allow_plaintext: bool,
    /// The file that will hold the access token, relative to the credentials [default: NAME.jwt]
    #[arg(long, value_name = "FILE", conflicts_with = "token_command")]
    token_file: Option<PathBuf>,
    /// A program that prints an access token, and its arguments; must come last
    #[arg(long, value_name = "PROGRAM", num_args = 1.., allow_hyphen_values = true)]
    token_command: Vec<String>,
}

/// `ENVIRONMENT/SERVICE=FILE` on the command line.
#[derive(Clone)]
pub(super) struct ServiceRing {
    pub(super) audience: Audience,
    pub(super) path: PathBuf,
}

impl FromStr for ServiceRing {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let help = "write ENVIRONMENT/SERVICE=RING_FILE, such as dev/math=math.ring.json";
        let (audience, path) = text.split_once('=').filter(|(_, path)| !path.is_empty()).ok_or(help)?;
        let AudienceArg(audience) = audience.parse().map_err(|_| help)?;
        Ok(Self { audience, path: path.into() })
    }
}

impl NewAgent {
    /// Completes the options from the service's configuration. Returns its policies, too, if the agent's tokens come from there.
    fn completed(mut self, path: &Path) -> Result<(Self, Option<Project>, Option<PolicySet>), Failure> {
        let Some(config) = &self.config else { return Ok((self, None, None)) };
        let project = Project::open(config)?;
        let mut policies = None;
        if self.token_file.is_none()
            && self.token_command.is_empty()
            && let Some((command, known)) = project.token_command(&self.name, &self.roles, path)?
        {
            self.token_command = command;
            policies = Some(known);
        }
        let Project { config, audience, .. } = &project;
        self.services = vec![ServiceRing { audience: audience.clone(), path: config.keys.ring.clone() }];
        let bus = config.nats.resolved().or_fail(Exit::Input)?;
        (self.urls, self.tls_ca) = (bus.urls.clone(), bus.tls_ca.clone());
        Ok((self, Some(project), policies))
    }

    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let path = self.out.clone().unwrap_or_else(|| format!("{}.creds.json", self.name).into());
        let (this, project, policies) = self.completed(&path)?;
        this.make(&path, project.as_ref(), policies.as_ref(), out)
    }

    fn make(
        self,
        path: &Path,
        project: Option<&Project>,
        policies: Option<&PolicySet>,
        out: &Output,
    ) -> Result<Exit, Failure> {
        self.check_folders()?;
        let rings = self.services.iter().map(|service| ("a key ring", service.path.as_path()));
        check_apart(rings.chain([("the credentials", path)]))?;
        let environment = environment(&self.services)?;
        let kid = self.kid.clone().unwrap_or_else(|| format!("{}.k1", self.name));
        let key = AgentKey::generate(&kid, self.alg.into()).or_fail(Exit::Input)?;

        let _lock = Lock::of(self.services.iter().map(|service| service.path.as_path()).chain([path]));
        let rings = granted(&self.services, &key, &self.name)?;
        let service_key = project.map(Project::service_key).transpose()?.flatten();
        let is_pinned = service_key.is_some();
        let mut credentials = self.credentials(environment, key, service_key)?;
        if let Some(Project { config, .. }) = project {
            credentials = credentials.prefixes(&config.prefix, &config.inbox_prefix).or_fail(Exit::Input)?;
        }
        // Write the secret first: if a ring cannot be written, `keys grant` can still add the key. The other way round, the
        // rings would know a key that nobody has.
        credentials.save(path, false).map_err(|error| {
            Failure::of(Exit::Input, &error).help(format!(
                "to let further services verify an agent that has credentials: sealwire keys grant {} --service …",
                path.display()
            ))
        })?;
        save(&rings).map_err(|failure| {
            failure.help(format!(
                "the credentials are in {}; grant them to the services that lack them: sealwire keys grant {} --service …",
                path.display(),
                path.display()
            ))
        })?;

        let files = all_shown(rings.iter().map(Ring::path));
        let result = json!({ "agent": self.name, "kid": kid, "alg": credentials.key().algorithm().as_str(),
                             "public_key": credentials.key().public(), "credentials": shown(path), "rings": files });
        out.result(&result, || {
            let mut text = format!("wrote the credentials of {} to {} (key {kid})\n", self.name, path.display());
            for ring in &rings {
                text.push_str(&format!("{} knows the key by {}\n", ring.audience(), ring.path().display()));
            }
            text.push('\n');
            text + &match project.zip(policies) {
                Some((Project { config, .. }, set)) => {
                    let (agent, service) = (&self.name, config.service.as_str());
                    let policies = &config.policy.folder;
                    policy::NewAgent { agent, roles: &self.roles, credentials: path, service, policies }.next_steps(set)
                }
                None => self.next_steps(path, &kid, is_pinned),
            }
        })?;
        Ok(Exit::Ok)
    }

    /// Refuses the folder of a `sealwire dev`: its broker admits only agents added by `sealwire dev add-agent`.
    fn check_folders(&self) -> Result<(), Failure> {
        let folders = self.services.iter().map(|service| service.path.parent().unwrap_or(Path::new("")));
        let Some((folder, command)) =
            folders.filter_map(|folder| Some((folder, command_to_add(folder, self.name.as_str())?))).next()
        else {
            return Ok(());
        };
        let message =
            format!("`{}` is the folder of a `sealwire dev`, whose broker would not know it", folder.display());
        Err(Failure::input(message).help(command))
    }

    fn credentials(
        &self,
        environment: Name,
        key: AgentKey,
        service_key: Option<ServicePublicKey>,
    ) -> Result<Credentials, Failure> {
        let mut bus =
            BusConfig { urls: self.urls.clone(), allow_plaintext: self.allow_plaintext, ..BusConfig::default() };
        bus.user.clone_from(&self.user);
        if let Some(file) = &self.password_file {
            let text = read_secret(file).or_fail(Exit::Input)?;
            bus.password = Some(Zeroizing::new(text.trim_end_matches(['\r', '\n']).to_owned()));
        }
        bus.creds_file = self.nats_creds.as_deref().map(absolute);
        bus.tls_ca = self.tls_ca.as_deref().map(absolute);
        if let Some(name) = &self.context {
            bus.urls.clear();
            bus.context = Some(context(name));
        }
        bus.check().or_fail(Exit::Input)?;
        let mut credentials = Credentials::new(environment, self.name.clone(), key, bus);
        if let (Some(service_key), Some(service)) = (service_key, self.services.first()) {
            let service = Name::new(service.audience.service()).or_fail(Exit::Input)?;
            credentials = credentials.service_keys(service, vec![service_key]);
        }
        Ok(if self.token_command.is_empty() {
            credentials.token_file(self.token_file.clone().unwrap_or_else(|| format!("{}.jwt", self.name).into()))
        } else {
            credentials.token_command(self.token_command.iter().map(String::as_str))
        })
    }

    fn next_steps(&self, path: &Path, kid: &str, is_pinned: bool) -> String {
        let mut text = "Next:\n".to_owned();
        if self.token_command.is_empty() {
            let file = self.token_file.clone().unwrap_or_else(|| format!("{}.jwt", self.name).into());
            let file = path.parent().unwrap_or(Path::new("")).join(file);
            let audiences: String =
                self.services.iter().map(|service| format!(" --audience {}", service.audience)).collect();
            text.push_str(&format!(
                "  sealwire token issue --key token-key.json --subject {} --role ROLE{audiences} --cnf-kid {kid} --out {}\n",
                self.name,
                file.display()
            ));
        }
        if matches!(self.alg, Alg::Eddsa) && !is_pinned {
            text.push_str(&format!(
                "  sealwire keys pin {} --service SVC --kid … --x …     # as `keys new-service` printed it\n",
                path.display()
            ));
        }
        let service = self.services.first().map_or("SVC", |service| service.audience.service());
        text + &format!("  sealwire call --creds {} {service} METHOD '{{…}}' --wait 10s", path.display())
    }
}

/// The environment, which must be the same for all services, since credentials are for one.
fn environment(services: &[ServiceRing]) -> Result<Name, Failure> {
    let environment = |service: &ServiceRing| service.audience.environment().to_owned();
    let mut environments = services.iter().map(environment);
    let first = environments.next().unwrap_or_default();
    if let Some(other) = environments.find(|other| *other != first) {
        let message = format!("the services are in two environments, `{first}` and `{other}`");
        return Err(Failure::input(message).help("credentials are for one environment: make an agent in each"));
    }
    Name::new(&first).or_fail(Exit::Input)
}

/// The rings of the services, with a record of this key added to each. Nothing is written yet.
pub(super) fn granted(services: &[ServiceRing], key: &AgentKey, owner: &Name) -> Result<Vec<Ring>, Failure> {
    let mut rings = opened(services)?;
    rings.iter_mut().try_for_each(|ring| ring.add(key, owner, None))?;
    Ok(rings)
}

/// The rings of the services. No two may be the same file, even under different names.
pub(super) fn opened(services: &[ServiceRing]) -> Result<Vec<Ring>, Failure> {
    let mut places = BTreeSet::new();
    let open = |service: &ServiceRing| {
        if !places.insert(locate_file(&service.path).or_fail(Exit::Input)?) {
            let message = format!("`{}` is named for two services", service.path.display());
            return Err(Failure::input(message).help("every service has a ring of its own"));
        }
        Ring::open_or_new(&service.path, &service.audience)
    };
    services.iter().map(open).collect()
}

pub(super) fn save(rings: &[Ring]) -> Result<(), Failure> {
    rings.iter().try_for_each(Ring::save)
}
