//! The folder of `sealwire dev`: used by one process at a time, filled once, and used again by later runs.
//! Never changes a complete setup before its replacement is complete.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use clap::Args;
use sealwire::internal::auth::TokenIssuer;
use sealwire::internal::files::{check_folder, read_public, read_secret, write_secret};
use sealwire::internal::wire::Nonce;
use sealwire::{BusConfig, Config, Credentials, Name};
use serde::{Deserialize, Serialize};

use crate::call::bench::BARE_LOGIN;
use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::{at, make_folder, restrict, write_public};
use sealwire_lab::layout;
use sealwire_lab::parties::{self, AGENTS};
use sealwire_lab::sandbox::{
    BENCH_USER, FOLDER, MARK, SERVICE_USER, STATE, Sandbox, TOKEN_S, TOOLS_USER, broker_config, is_marked,
};

/// The folder. After [`Folder::take`], locked until this is dropped.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    _lock: Option<File>,
}

/// An agent of the setup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Member {
    pub(super) agent: Name,
    /// The roles in its tokens.
    pub(super) roles: Vec<String>,
}

/// The agents. Written last: if this file exists, so does everything else.
const MEMBERS: &str = "agents.json";
/// The broker login of tools, such as `sealwire top`.
const TOOLS_LOGIN: &str = "tools.nats.json";
/// Where a new setup is built.
const BESIDE: &str = ".new";

/// The folder of the setup.
#[derive(Args)]
pub(super) struct Place {
    /// The folder to write everything into; what an earlier run left there is used again
    #[arg(long, value_name = "FOLDER", default_value = FOLDER)]
    pub(super) folder: PathBuf,
}

impl Folder {
    /// Checks that the folder can be taken, and creates it if there is none.
    pub(super) fn check(path: &Path) -> Result<(), Failure> {
        make_folder(path)?;
        if !is_marked(path) && fs::read_dir(path).map_err(|error| at(path, &error))?.next().is_some() {
            return Err(Failure::input(format!(
                "`{}` has files in it that an earlier `sealwire dev` did not write: give another `--folder`",
                path.display()
            )));
        }
        Ok(())
    }

    /// Takes the folder, and creates it if there is none.
    pub(super) fn take(path: &Path) -> Result<Self, Failure> {
        let fail = |error: std::io::Error| at(path, &error);
        Self::check(path)?;
        restrict(path)?;
        let mark = File::options().read(true).write(true).create(true).truncate(false).open(path.join(MARK));
        let mut mark = mark.map_err(fail)?;
        match mark.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut process = String::new();
                // The process id is only for the message.
                let _ = mark.take(20).read_to_string(&mut process);
                let message =
                    format!("a `sealwire dev` (process {}) uses `{}` already", process.trim(), path.display());
                return Err(Failure::input(message).help("end it first, or give another `--folder`"));
            }
            Err(TryLockError::Error(error)) => return Err(fail(error)),
        }
        let own = format!("{}\n", std::process::id());
        let written = mark.set_len(0).and_then(|()| mark.rewind()).and_then(|()| mark.write_all(own.as_bytes()));
        written.map_err(fail)?;
        Ok(Self { path: path.to_owned(), _lock: Some(mark) })
    }

    /// Opens a complete folder, whether a process uses it or not.
    pub(super) fn visit(path: &Path) -> Result<Self, Failure> {
        let folder = Self { path: path.to_owned(), _lock: None };
        if is_marked(path) && folder.is_complete() {
            check_folder(path).or_fail(Exit::Input)?;
            return Ok(folder);
        }
        let failure = Failure::input(format!("`{}` is not the folder of a `sealwire dev`", path.display()));
        Err(failure.help("start `sealwire dev` first, or name its `--folder`"))
    }

    /// Whether a process uses it.
    pub(super) fn is_used(&self) -> bool {
        let mark = File::open(self.file(MARK));
        mark.is_ok_and(|mark| matches!(mark.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// Whether it contains a complete setup.
    pub(super) fn is_complete(&self) -> bool {
        self.file(MEMBERS).exists()
    }

    /// Creates a new setup. With `fresh`, it replaces an earlier one, once all of the new one is there; files that were never
    /// part of a setup stay.
    pub(super) fn fill(&self, fresh: bool) -> Result<(), Failure> {
        let beside = self.file(BESIDE);
        let fail = |error: std::io::Error| at(&self.path, &error);
        let names = |folder: &Path| -> std::io::Result<Vec<OsString>> {
            fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name())).collect()
        };
        if !fresh && names(&self.path).map_err(fail)?.iter().any(|name| name != MARK && name != BESIDE) {
            let message = format!("the setup in `{}` is incomplete: `{MEMBERS}` is missing", self.path.display());
            return Err(Failure::input(message).help(
                "restore it, or start afresh with `--fresh`, which replaces keys, agents and all policies there",
            ));
        }
        if beside.exists() {
            fs::remove_dir_all(&beside).map_err(fail)?;
        }
        fs::create_dir(&beside).map_err(fail)?;
        let sandbox = Sandbox::new(&beside)?;
        // A placeholder: each start sets the address.
        sandbox.connect_to("nats://127.0.0.1:4222")?;
        let tools = beside.join(format!("{TOOLS_USER}.password"));
        write_secret(&tools, sandbox.password(TOOLS_USER), true).or_fail(Exit::Input)?;
        let members = AGENTS.iter().map(|(name, roles, ..)| {
            let roles = roles.iter().map(ToString::to_string).collect();
            Ok(Member { agent: parties::named(name)?, roles })
        });
        let members = members.collect::<Result<Vec<_>, Failure>>()?;

        // Files of agents that were added, as far as known, and files that `sealwire dev` and the service wrote at run time.
        let agents = self.members().unwrap_or_default();
        let of_agents =
            agents.iter().flat_map(|Member { agent, .. }| [format!("{agent}.creds.json"), format!("{agent}.jwt")]);
        let of_state = ["", ".lock", ".new"].map(|end| format!("{STATE}{end}"));
        let old = of_agents.chain(of_state).chain([BENCH_PASSWORD, BARE_LOGIN, TOOLS_LOGIN].map(str::to_owned));
        let new = names(&beside).map_err(fail)?;

        // From here on, the folder counts as incomplete until the new setup is in place.
        remove(&self.file(MEMBERS)).map_err(fail)?;
        for old in old {
            remove(&self.file(&old)).map_err(fail)?;
        }
        for name in new {
            let path = self.path.join(&name);
            remove(&path).and_then(|()| fs::rename(beside.join(&name), &path)).map_err(fail)?;
        }
        fs::remove_dir(&beside).map_err(fail)?;
        self.write_members(&members)
    }

    /// The agents.
    pub(super) fn members(&self) -> Result<Vec<Member>, Failure> {
        let path = self.file(MEMBERS);
        let text = read_public(&path).or_fail(Exit::Input)?;
        serde_json::from_str(&text).map_err(|error| Failure::input(format!("`{}`: {error}", path.display())))
    }

    /// Adds an agent whose other files are already written.
    pub(super) fn add(&self, member: Member) -> Result<(), Failure> {
        let mut members = self.members()?;
        members.push(member);
        self.write_members(&members)
    }

    fn write_members(&self, members: &[Member]) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(members).map_err(|error| Failure::of(Exit::Bug, &error))?;
        write_public(&self.file(MEMBERS), &(text + "\n"))
    }

    /// The broker's users: the service, the tools, and every agent with the password of its credentials.
    pub(super) fn broker_config(&self) -> Result<String, Failure> {
        let mut users = Vec::new();
        let tools = format!("{TOOLS_USER}.password");
        for (user, file) in [(SERVICE_USER, "nats.password"), (TOOLS_USER, &tools), (BENCH_USER, BENCH_PASSWORD)] {
            let password = read_secret(&self.file(file)).or_fail(Exit::Input)?;
            users.push((user.to_owned(), password.trim().to_owned()));
        }
        for Member { agent, .. } in self.members()? {
            let bus = self.credentials(&agent)?.bus();
            // Accept only what we wrote ourselves: it becomes part of the broker's configuration.
            let ours = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
            match bus.password {
                Some(password) if ours(&password) => users.push((agent.to_string(), password.to_string())),
                _ => {
                    return Err(Failure::input(format!(
                        "the credentials of `{agent}` lack the password that `sealwire dev` gave it"
                    )));
                }
            }
        }
        Ok(broker_config(users.iter().map(|(user, password)| (user.as_str(), password.as_str()))))
    }

    /// Creates the password for the bare requests of `sealwire bench` if it is missing, as in folders of earlier versions.
    pub(super) fn admit_bench(&self) -> Result<(), Failure> {
        let file = self.file(BENCH_PASSWORD);
        if file.exists() {
            return Ok(());
        }
        write_secret(&file, &Nonce::random().to_text(), false).or_fail(Exit::Input)
    }

    /// Writes the broker logins of bare requests, and of tools.
    pub(super) fn write_logins(&self, url: &str) -> Result<(), Failure> {
        let tools = format!("{TOOLS_USER}.password");
        for (user, password, file) in [(BENCH_USER, BENCH_PASSWORD, BARE_LOGIN), (TOOLS_USER, &tools, TOOLS_LOGIN)] {
            let login =
                BusConfig { user: Some(user.to_owned()), password_file: Some(password.into()), ..BusConfig::open(url) };
            let text = serde_json::to_string_pretty(&login).map_err(|error| Failure::of(Exit::Bug, &error))?;
            write_secret(&self.file(file), &(text + "\n"), true).or_fail(Exit::Input)?;
        }
        Ok(())
    }

    /// Writes the broker's address into the configuration and the credentials if it has changed. Everything else in them
    /// stays as it is.
    pub(super) fn connect_to(&self, url: &str) -> Result<(), Failure> {
        let before = self.config()?.nats.urls.first().cloned().unwrap_or_default();
        if before == url {
            return Ok(());
        }
        let (before, now) = (format!("\"{before}\""), format!("\"{url}\""));
        let config = self.file(layout::CONFIG);
        let text = read_public(&config).or_fail(Exit::Input)?;
        write_public(&config, &text.replace(&before, &now))?;
        for Member { agent, .. } in self.members()? {
            let file = self.credentials_file(&agent);
            let text = read_secret(&file).or_fail(Exit::Input)?;
            let text = zeroize::Zeroizing::new(text.replace(&before, &now));
            write_secret(&file, &text, true).or_fail(Exit::Input)?;
        }
        Ok(())
    }

    /// The port of the last run.
    pub(super) fn port(&self) -> Option<u16> {
        let url = self.is_complete().then(|| self.config().ok())??.nats.urls.first().cloned()?;
        url.rsplit_once(':')?.1.parse().ok()
    }

    /// Writes new tokens for all agents.
    pub(super) fn refresh_tokens(&self) -> Result<(), Failure> {
        let issuer = self.issuer()?;
        self.members()?.iter().try_for_each(|member| self.write_token(&issuer, member))
    }

    /// Writes a new token for an agent.
    pub(super) fn write_token(&self, issuer: &TokenIssuer, member: &Member) -> Result<(), Failure> {
        let roles: Vec<&str> = member.roles.iter().map(String::as_str).collect();
        let token = parties::token(issuer, member.agent.as_str(), &roles, TOKEN_S)?;
        let path = layout::token(&self.path, member.agent.as_str());
        write_secret(&path, &format!("{token}\n"), true).or_fail(Exit::Input)
    }

    pub(super) fn issuer(&self) -> Result<TokenIssuer, Failure> {
        TokenIssuer::load(self.file(layout::TOKEN_KEY)).or_fail(Exit::Input)
    }

    /// The service's configuration.
    pub(super) fn config(&self) -> Result<Config, Failure> {
        Config::load(self.file(layout::CONFIG)).or_fail(Exit::Input)
    }

    fn credentials(&self, agent: &Name) -> Result<Credentials, Failure> {
        Credentials::load(self.credentials_file(agent)).or_fail(Exit::Input)
    }

    pub(super) fn credentials_file(&self, agent: &Name) -> PathBuf {
        layout::credentials(&self.path, agent.as_str())
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

/// The file with the password of bare requests.
const BENCH_PASSWORD: &str = "bench.password";

fn remove(path: &Path) -> std::io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
    }
}
