//! `sealwire setup cluster`: all secrets and files of the compose set-up, in one folder for each of its containers.
//! Never gives a container more than it needs, and never replaces a set-up that is whole.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use nkeys::KeyPair;
use sealwire::BusConfig;
use sealwire::auth::{Nonce, TokenIssuer, write_secret, write_service_key};
use serde_json::json;
use time::OffsetDateTime;
use zeroize::Zeroizing;

use super::certificates::{self, Certificates};
use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::{read_if_there, write_public};
use crate::output::Output;
use crate::parties::{self, ENVIRONMENT, ISSUER, Parties, SERVICE};
use crate::permissions::Permissions;
use crate::when;

/// Write all that the compose set-up needs: three brokers, the demonstration service, its agents
///
/// Makes keys, broker users, certificates, tokens, credentials and configuration, each file in the folder of the one
/// container that may read it. A set-up that is there already stays as it is, but for a fresh token; one that is
/// incomplete, or whose certificates end within 30 days, is made anew.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire setup cluster --out /sealwire

docker-compose.yml does it so, with one volume mounted on each folder.")]
pub(crate) struct Cluster {
    /// Where the folders are, or are to be made
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
}

/// The brokers: host names, and names of their folders.
const NODES: [&str; 3] = ["nats-1", "nats-2", "nats-3"];
/// The agent that has a container of its own, and calls and calls.
const CALLER: &str = "planner";
/// The folders. Each is one container's, but the last two: `tokens` is where the issuer hands tokens to the caller.
const FOLDERS: [&str; 8] = ["nats-1", "nats-2", "nats-3", "service", CALLER, "operator", "issuer", "tokens"];
/// In every folder, with the same text: a folder that was lost or comes from elsewhere shows.
const MARK: &str = "set-up.json";
/// How long before their end certificates are made anew.
const RENEW_BEFORE_S: u64 = 30 * 86_400;
/// How long tokens live. The issuer's container writes the next one long before.
const TOKEN_S: u64 = 900;

impl Cluster {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let target = Target(self.out);
        let made = !target.is_whole()?;
        if made {
            target.write_all()?;
        } else {
            target.write_token(&TokenIssuer::load(target.file("issuer", TOKEN_KEY)).or_fail(Exit::Input)?)?;
        }
        out.result(&json!({ "folder": target.0, "made": made, "folders": FOLDERS }), || {
            let folder = target.0.display();
            if made { format!("made a new set-up in {folder}") } else { format!("the set-up in {folder} stays") }
        })?;
        Ok(Exit::Ok)
    }
}

/// The issuer's signing key.
const TOKEN_KEY: &str = "token-key.json";

/// The folder that holds the folders.
struct Target(PathBuf);

impl Target {
    fn file(&self, folder: &str, name: &str) -> PathBuf {
        self.0.join(folder).join(name)
    }

    /// Whether all folders were written in one go, and not too long ago.
    fn is_whole(&self) -> Result<bool, Failure> {
        let marks = FOLDERS.iter().map(|folder| read_if_there(&self.file(folder, MARK)));
        let marks = marks.collect::<Result<Vec<_>, _>>()?;
        let Some(Some(first)) = marks.first() else { return Ok(false) };
        let until = serde_json::from_str(first).ok().and_then(|mark: serde_json::Value| mark.get("until")?.as_u64());
        let fresh = until.is_some_and(|until| until > when::now_s().saturating_add(RENEW_BEFORE_S));
        Ok(fresh && marks.iter().all(|mark| mark.as_ref() == Some(first)))
    }

    fn write_all(&self) -> Result<(), Failure> {
        for folder in FOLDERS {
            let path = self.0.join(folder);
            fs::create_dir_all(&path).map_err(|error| at(&path, &error))?;
            // Until all is written again, nothing is whole.
            remove(&self.file(folder, MARK))?;
        }
        let parties = Parties::generate()?;
        let users = Users::generate(&parties)?;
        self.write_brokers(&users)?;
        self.write_service(&parties, &users)?;
        self.write_agents(&parties, &users)?;
        let key = self.file("issuer", TOKEN_KEY);
        remove(&key)?;
        parties.issuer.save(&key).or_fail(Exit::Input)?;
        self.write_token(&parties.issuer)?;

        let until = when::now_s().saturating_add(certificates::DAYS.unsigned_abs().saturating_mul(86_400));
        let mark = json!({ "id": Nonce::random().to_text(), "until": until }).to_string();
        FOLDERS.iter().try_for_each(|folder| write_public(&self.file(folder, MARK), &mark))
    }

    /// Certificates, and who may connect and do what.
    fn write_brokers(&self, users: &Users) -> Result<(), Failure> {
        let certificates = Certificates::generate(&NODES, OffsetDateTime::now_utc())?;
        for (node, broker) in NODES.iter().zip(&certificates.brokers) {
            write_public(&self.file(node, "users.conf"), &users.config())?;
            write_public(&self.file(node, "cert.pem"), &broker.certificate)?;
            write_secret(&self.file(node, "key.pem"), &broker.key, true).or_fail(Exit::Input)?;
        }
        let clients = NODES.iter().chain(&["service", CALLER, "operator"]);
        clients.copied().try_for_each(|folder| write_public(&self.file(folder, "ca.pem"), &certificates.authority))
    }

    fn write_service(&self, parties: &Parties, users: &Users) -> Result<(), Failure> {
        let file = |name: &str| self.file("service", name);
        write_public(&file("sealwire.toml"), &service_config())?;
        write_secret(&file("service.nkey"), users.seed(SERVICE_USER)?, true).or_fail(Exit::Input)?;
        write_secret(&file("guard.nkey"), users.seed(GUARD_USER)?, true).or_fail(Exit::Input)?;
        write_secret(&file("ring.json"), &parties.ring()?, true).or_fail(Exit::Input)?;
        remove(&file("service-key.json"))?;
        write_service_key(&file("service-key.json"), &parties.service_key).or_fail(Exit::Input)?;
        write_public(&file("jwks.json"), &parties.issuer.public_jwks())?;
        write_public(&file("denylist.json"), "{}\n")
    }

    /// The caller has its own folder, and gets its tokens from the issuer. The other agents are the operator's, who
    /// holds the issuer's key too.
    fn write_agents(&self, parties: &Parties, users: &Users) -> Result<(), Failure> {
        for agent in &parties.agents {
            let name = agent.name.as_str();
            let bus =
                BusConfig { nkey_seed: Some(users.seed(name)?.clone()), tls_ca: Some("ca.pem".into()), ..brokers() };
            let credentials = parties.credentials(agent, bus)?;
            let (folder, credentials) = if name == CALLER {
                (CALLER, credentials.token_file(format!("../tokens/{CALLER}.jwt")))
            } else {
                let roles = agent.roles.iter().flat_map(|role| ["--role", role]);
                let audience = parties.audience.as_str();
                let command = ["sealwire", "token", "issue", "--key", "../issuer/token-key.json", "--subject", name];
                let command = command.into_iter().chain(["--audience", audience]).chain(roles);
                ("operator", credentials.token_command(command))
            };
            credentials.save(self.file(folder, &format!("{name}.creds.json")), true).or_fail(Exit::Input)?;
        }
        write_secret(&self.file("operator", "tools.nkey"), users.seed(TOOLS_USER)?, true).or_fail(Exit::Input)
    }

    /// A token for the caller.
    fn write_token(&self, issuer: &TokenIssuer) -> Result<(), Failure> {
        let roles = parties::AGENTS.iter().find(|(name, ..)| *name == CALLER).map_or(&[][..], |(_, roles, ..)| roles);
        let token = parties::token(issuer, CALLER, roles, TOKEN_S)?;
        let path = self.file("tokens", &format!("{CALLER}.jwt"));
        write_secret(&path, &format!("{token}\n"), true).or_fail(Exit::Input)
    }
}

/// The broker's user for the service.
const SERVICE_USER: &str = "service";
/// The broker's user for the service's replay guard.
const GUARD_USER: &str = "guard";
/// The broker's user for the `nats` command.
const TOOLS_USER: &str = "tools";

/// The broker's users. They have key pairs, so what the brokers know is of no use to a thief.
struct Users(Vec<User>);

struct User {
    name: String,
    public_key: String,
    seed: Zeroizing<String>,
    permissions: Permissions,
}

impl Users {
    fn generate(parties: &Parties) -> Result<Self, Failure> {
        let agents = parties.agents.iter().map(|agent| agent.name.as_str());
        let agents = agents.map(|name| (name, Permissions::agent(name)));
        let others = [
            (SERVICE_USER, Permissions::service(SERVICE)),
            (GUARD_USER, Permissions::guard(ENVIRONMENT, SERVICE)),
            (TOOLS_USER, Permissions::tools(TOOLS_USER)),
        ];
        let user = |(name, permissions): (&str, Permissions)| {
            let pair = KeyPair::new_user();
            let seed = Zeroizing::new(pair.seed().or_fail(Exit::Bug)?);
            Ok(User { name: name.to_owned(), public_key: pair.public_key(), seed, permissions })
        };
        Ok(Self(agents.chain(others).map(user).collect::<Result<_, Failure>>()?))
    }

    fn seed(&self, name: &str) -> Result<&Zeroizing<String>, Failure> {
        let user = self.0.iter().find(|user| user.name == name);
        user.map(|user| &user.seed).ok_or_else(|| Failure::new(Exit::Bug, format!("no broker user {name}")))
    }

    /// As nats-server reads it.
    fn config(&self) -> String {
        let mut text = "# Written by `sealwire setup cluster`. The keys are public ones.\n\
                        system_account: SYS\naccounts {\n  SYS {}\n  SEALWIRE {\n    jetstream: enabled\n    users: [\n"
            .to_owned();
        for User { name, public_key, permissions, .. } in &self.0 {
            // Writing to a string cannot fail.
            let _ = write!(text, "      # {name}\n      {{ nkey: {public_key}, permissions: {permissions} }}\n");
        }
        text + "    ]\n  }\n}\n"
    }
}

fn brokers() -> BusConfig {
    BusConfig { urls: NODES.iter().map(|node| format!("tls://{node}:4222")).collect(), ..BusConfig::default() }
}

fn service_config() -> String {
    let urls: Vec<String> = brokers().urls.iter().map(|url| format!("\"{url}\"")).collect();
    let urls = urls.join(", ");
    format!(
        "# The demonstration service. Written by `sealwire setup cluster`.\n\
         environment = \"{ENVIRONMENT}\"\nservice = \"{SERVICE}\"\n\n\
         [nats]\nurls = [{urls}]\nnkey_seed_file = \"service.nkey\"\ntls_ca = \"ca.pem\"\n\n\
         [keys]\nring = \"ring.json\"\nservice_key = \"service-key.json\"\ndenylist = \"denylist.json\"\n\n\
         [[tokens.issuer]]\nissuer = \"{ISSUER}\"\njwks = \"jwks.json\"\n\n\
         [policy]\nfolder = \"../policies\"\n\n\
         # All containers have one clock: the less it may be off, the sooner a new guard vouches for messages. A machine\n\
         # that does all this and your work, too, may stall for longer than a quarter of a second.\n\
         [replay]\nguard = \"shared\"\nreplicas = {copies}\nskew_s = 2\nanswer_within_ms = 1000\n\n\
         [replay.nats]\nurls = [{urls}]\nnkey_seed_file = \"guard.nkey\"\ntls_ca = \"ca.pem\"\n",
        copies = NODES.len(),
    )
}

fn remove(path: &Path) -> Result<(), Failure> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(at(path, &error)),
        _ => Ok(()),
    }
}

fn at(path: &Path, error: &std::io::Error) -> Failure {
    Failure::input(format!("`{}`: {error}", path.display()))
}
