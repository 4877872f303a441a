//! `sealwire policy drift`: whether a running broker enforces what policies compile to.
//! Never trusts a broker's configuration: it tries what each user may do, in a form that reaches nobody.

mod monitor;
mod probe;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use sealwire::internal::auth::TokenVerifier;
use sealwire::internal::policy::TokenRoles;
use sealwire::{BusConfig, Credentials, Name};
use sealwire_lab::permissions::Permissions;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use self::monitor::{Reflection, reflections};
use self::probe::{Direction, Field, Outcome, probe};
use super::compiled::{Compiled, Sources};
use crate::exit::{Exit, Failure, OrFail as _};
use crate::output::Output;
use crate::runtime::{Signals, block_on};
use crate::users::Kind;
use crate::{login, when};

/// Compare what a running broker enforces with what policies compile to
///
/// Logs in as each user and tries subjects that `policy compile` gives it, and others: methods and inboxes of other agents, and what
/// belongs to the broker. No probe reaches anybody: a published one names a reply subject that brokers refuse after they have checked the
/// permission, and what is subscribed to has a random token in it, or is the user's own. The broker logs each published probe as a
/// violation of the client `sealwire policy drift`. With --system, also looks for what could turn an agent's message into something else:
/// streams over its subjects, mappings, imports, exports and message tracing. See docs/broker.md.
///
/// Fails if anything differs, if a login is refused, or if something reflects.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire policy drift --creds agents --system sys.nats.json \\
      --config demo/sealwire.toml --config bank/sealwire.toml
  sealwire policy drift --creds ann.creds.json \\
      --login service:demo=demo.nats.json")]
pub(crate) struct Drift {
    #[command(flatten)]
    sources: Sources,
    /// Credentials of agents: a file, or a folder with `*.creds.json` in it or in its folders; repeat for several
    #[arg(long, value_name = "PATH", required_unless_present = "logins")]
    creds: Vec<PathBuf>,
    /// The login of another user, with its kind as `sealwire setup` lists it (agent, service, guard, tools and so on): a JSON file with the
    /// members of `nats` in credentials; repeat for several
    #[arg(long = "login", id = "logins", value_name = "KIND:NAME=FILE", value_parser = named_login)]
    logins: Vec<(Kind, Name, PathBuf)>,
    /// A login of the brokers' system account, in such a file
    #[arg(long, value_name = "FILE")]
    system: Option<PathBuf>,
    /// The account that agents are in
    #[arg(long, value_name = "NAME", default_value = crate::gate::ACCOUNT)]
    account: String,
    /// How long all of it may take
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = when::interval)]
    within: Duration,
}

/// The most users in one run.
const MAX_USERS: usize = 4_096;
/// Between two connections with access tokens: `sealwire authd` admits 50 a second from one host.
const PACE: Duration = Duration::from_millis(25);

fn named_login(text: &str) -> Result<(Kind, Name, PathBuf), String> {
    const HELP: &str = "write KIND:NAME=FILE, such as service:demo=demo.nats.json, with a kind of operator/users.json";
    let (user, file) = text.split_once('=').ok_or(HELP)?;
    let (kind, name) = user.split_once(':').ok_or(HELP)?;
    let kind = serde_json::from_value(kind.into()).map_err(|_| HELP)?;
    Ok((kind, Name::new(name).map_err(|error| error.to_string())?, file.into()))
}

/// Somebody who connects, and what compiling gave.
struct User {
    kind: Kind,
    name: Name,
    bus: BusConfig,
    by_token: bool,
    compiled: Permissions,
}

/// Something that the broker enforces otherwise.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Difference {
    who: String,
    direction: Direction,
    /// `*` stands for a random token. Absent for the connection itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<String>,
    compiled: &'static str,
    enforced: &'static str,
}

#[derive(Default, Serialize)]
struct Report {
    users: usize,
    probes: usize,
    differences: BTreeSet<Difference>,
    /// Whether the system account was asked.
    system: bool,
    reflections: BTreeSet<Reflection>,
}

impl Drift {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let compiled = self.sources.open(out)?;
        let system = self.system.as_deref().map(login::read).transpose()?;
        let files = self.creds.iter().map(|path| credentials_in(path)).collect::<Result<Vec<_>, _>>()?.concat();
        if files.len() + self.logins.len() > MAX_USERS {
            let failure = Failure::input(format!("more users than {MAX_USERS}"));
            return Err(failure.help("run it several times, each with a part of them"));
        }
        let signals = Signals::listen(None)?;
        let _working = out.working("probing what the broker enforces");
        let work = async {
            let users = self.users(&compiled, &files).await?;
            let mut report = probed(&compiled, &users).await?;
            if let Some(bus) = &system {
                report.reflections.extend(reflections(bus, &self.account, &compiled).await?);
                report.system = true;
            }
            Ok::<_, Failure>(report)
        };
        let late = || {
            let failure = Failure::new(Exit::Transport, format!("not done within {} s", self.within.as_secs_f64()));
            failure.help("give it more time (--within), or fewer users")
        };
        let worked = block_on(async { signals.unless_stopped(tokio::time::timeout(self.within, work)).await })?;
        let Some(worked) = worked else { return Err(Failure::new(Exit::Interrupted, "interrupted")) };
        let report = worked.map_err(|_| late())??;
        out.verdict(&report, || report.to_text())?;
        Ok(if report.is_clean() { Exit::Ok } else { Exit::Drift })
    }

    async fn users(&self, compiled: &Compiled, files: &[PathBuf]) -> Result<Vec<User>, Failure> {
        let environment = compiled.environment();
        let mut users = Vec::new();
        let mut verifiers = None;
        for file in files {
            let credentials = Credentials::load(file).or_fail(Exit::Input)?;
            if credentials.environment().as_str() != environment {
                let (file, of) = (file.display(), credentials.environment());
                return Err(Failure::input(format!("`{file}` is for the environment {of}, not {environment}")));
            }
            let (name, mut bus) = (credentials.agent().clone(), credentials.bus());
            let by_token = std::mem::take(&mut bus.access_token);
            let compiled = if by_token {
                let fetched = credentials.tokens().or_fail(Exit::Input)?.fetch().await.or_fail(Exit::Input)?;
                let token = fetched.trim().to_owned();
                if verifiers.is_none() {
                    verifiers = Some(token_verifiers(compiled).await?);
                }
                let granted = granted(compiled, verifiers.as_deref().unwrap_or_default(), &name, &token);
                bus.token = Some(token.into());
                granted
            } else {
                compiled.grant(&name, &name)
            };
            users.push(User { kind: Kind::Agent, name, bus, by_token, compiled });
        }
        for (kind, name, file) in &self.logins {
            let permissions = match kind {
                Kind::Agent => compiled.grant(name, name),
                kind => kind.permissions(&environment, name.as_str()),
            };
            let (name, bus) = (name.clone(), login::read(file)?);
            users.push(User { kind: *kind, name, bus, by_token: false, compiled: permissions });
        }
        Ok(users)
    }
}

/// The file itself, or the credentials in a folder and in its folders, in the order of their names.
fn credentials_in(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = |folder: &Path| {
        let listed =
            std::fs::read_dir(folder).and_then(|all| all.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>, _>>());
        listed.map_err(|error| Failure::input(format!("`{}` cannot be listed: {error}", folder.display())))
    };
    let mut found = Vec::new();
    for entry in entries(path)? {
        found.extend(if entry.is_dir() { entries(&entry)? } else { vec![entry] });
    }
    found.retain(|file| file.to_string_lossy().ends_with(".creds.json"));
    found.sort();
    if found.is_empty() {
        let failure = Failure::input(format!("no credentials in `{}`", path.display()));
        return Err(failure.help("name a folder with files such as planner.creds.json"));
    }
    Ok(found)
}

async fn token_verifiers(compiled: &Compiled) -> Result<Vec<TokenVerifier>, Failure> {
    let mut verifiers = Vec::new();
    for service in &compiled.services {
        verifiers.push(service.config.access_tokens().await.or_fail(Exit::Input)?);
    }
    Ok(verifiers)
}

/// What `sealwire authd` gives for this token.
fn granted(compiled: &Compiled, verifiers: &[TokenVerifier], agent: &Name, token: &str) -> Permissions {
    let digest = Sha256::digest(token.as_bytes()).into();
    let verified: Vec<_> = verifiers.iter().map(|tokens| tokens.verify(token, &digest, when::now_s()).ok()).collect();
    compiled.grant_with(agent, agent, |service| {
        let position = compiled.services.iter().position(|other| std::ptr::eq(other, service))?;
        let token = verified.get(position)?.as_ref()?;
        Some(TokenRoles::Exactly(token.roles.clone()))
    })
}

/// Probes one user after the other.
async fn probed(compiled: &Compiled, users: &[User]) -> Result<Report, Failure> {
    let field = Field::new(compiled, users.iter().filter(|user| user.kind == Kind::Agent).map(|user| &user.name));
    let mut report = Report { users: users.len(), ..Report::default() };
    for user in users {
        if user.by_token {
            tokio::time::sleep(PACE).await;
        }
        let who = format!("{} {}", user.kind.as_str(), user.name);
        let probes = field.probes(&user.name, &user.compiled);
        match probe(&user.bus, &probes).await.map_err(|failure| failure.cause(format!("while probing as {who}")))? {
            Outcome::Refused => {
                let (compiled, enforced) = ("allowed", "denied");
                report.differences.insert(Difference {
                    who,
                    direction: Direction::Connect,
                    subject: None,
                    compiled,
                    enforced,
                });
            }
            Outcome::Enforced { allowed, mapped } => {
                report.probes += probes.len();
                for (probe, enforced) in probes.iter().zip(allowed) {
                    let compiled = probe.is_compiled(&user.compiled);
                    if compiled != enforced {
                        let word = |allowed| if allowed { "allowed" } else { "denied" };
                        let (direction, subject) = (probe.direction, Some(field.shown(&probe.subject)));
                        let (compiled, enforced) = (word(compiled), word(enforced));
                        report.differences.insert(Difference {
                            who: who.clone(),
                            direction,
                            subject,
                            compiled,
                            enforced,
                        });
                    }
                }
                let mapped = mapped.iter().map(|(from, to)| Reflection::mapping(&field.shown(from), &field.shown(to)));
                report.reflections.extend(mapped);
            }
        }
    }
    Ok(report)
}

impl Report {
    fn is_clean(&self) -> bool {
        self.differences.is_empty() && self.reflections.is_empty()
    }

    fn to_text(&self) -> String {
        let subject = |row: &'_ Difference| row.subject.clone().unwrap_or_else(|| "-".to_owned());
        let rows = || self.differences.iter();
        let who = rows().map(|row| row.who.len()).max().unwrap_or(0).max(3);
        let on = rows().map(|row| subject(row).len()).max().unwrap_or(0).max(7);
        let mut text = String::new();
        // Writing to a string cannot fail.
        if !self.differences.is_empty() {
            let _ = writeln!(text, "{:who$}  DIRECTION  {:on$}  COMPILED  ENFORCED", "WHO", "SUBJECT");
        }
        for row in rows() {
            let (direction, subject) = (row.direction.as_str(), subject(row));
            let _ =
                writeln!(text, "{:who$}  {direction:9}  {subject:on$}  {:8}  {}", row.who, row.compiled, row.enforced);
        }
        for reflection in &self.reflections {
            let _ = writeln!(text, "{reflection}");
        }
        let verdict = if self.is_clean() { "no drift" } else { "drift" };
        let looked = if self.system { "" } else { " (streams, imports and so on unknown: no --system)" };
        let (differences, reflections) = (self.differences.len(), self.reflections.len());
        let _ = write!(
            text,
            "{verdict}: users {}, probes {}, differences {differences}, reflections {reflections}{looked}",
            self.users, self.probes
        );
        text
    }
}
