//! The files of a new project.
//! Never leaves some of them without the others.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use clap::ValueEnum;
use sealwire::configure::{AgentKey, ProofAlgorithm};
use sealwire::internal::auth::{KeyRingFile, TokenIssuer};
use sealwire::internal::files::check_folder;
use sealwire::internal::wire::{Audience, ServiceKey};
use sealwire::{BusConfig, Credentials, Name};

use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::{at, make_folder, restrict, write_public};
use crate::keys::add_to_ring;
use crate::project::Project;
use sealwire_lab::layout;
use sealwire_lab::parties::{ENVIRONMENT, named};

/// What a project begins with.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Language {
    /// A Cargo project
    Rust,
    /// Two Python programs, with the package `sealwire`
    Python,
    /// A Python program that needs no package: `sealwire serve` runs it, and it reads requests from its standard input
    Stdio,
    /// Configuration, keys and policy only, for a program of your own; the folder need not be empty
    None,
}

/// What the templates call the service and the agent, and the address of their broker.
pub(super) const SERVICE: &str = "math";
pub(super) const AGENT: &str = "planner";
const URL: &str = "nats://127.0.0.1:4222";
const RUN: [&str; 3] = [
    "sealwire nats-server --port 4222\ncargo run --bin service\ncargo run --bin client",
    "sealwire nats-server --port 4222\npython3 service.py\npython3 client.py",
    "sealwire nats-server --port 4222\nsealwire serve\n\
     sealwire call --creds planner.creds.json math math/add '[2, 3]' --wait 10s",
];
/// The issuer in the configuration.
const ISSUER: &str = "https://issuer.dev.invalid";

const CONFIG: &str = include_str!("sealwire.toml");
const TESTED_POLICY: [(&str, &str); 2] = [
    ("policies/math.toml", include_str!("policy.toml")),
    ("policies/math.test.toml", include_str!("policy.test.toml")),
];
/// `examples` builds the programs, so they are what the README shows.
const RUST: [(&str, &str); 3] = [
    ("README.md", include_str!("README.md")),
    ("src/bin/service.rs", include_str!("../../templates/service.rs")),
    ("src/bin/client.rs", include_str!("../../templates/client.rs")),
];
const PYTHON: [(&str, &str); 4] = [
    ("README.md", include_str!("python.md")),
    ("service.py", include_str!("service.py")),
    ("client.py", include_str!("client.py")),
    ("requirements.txt", "sealwire\n"),
];
const STDIO: [(&str, &str); 2] = [("README.md", include_str!("stdio.md")), ("service.py", include_str!("stdio.py"))];

impl Language {
    /// The files that do not depend on keys.
    fn templates(self) -> Vec<(&'static str, &'static str)> {
        match self {
            Self::Rust => [&TESTED_POLICY[..], &RUST].concat(),
            Self::Python => [&TESTED_POLICY[..], &PYTHON].concat(),
            Self::Stdio => [&TESTED_POLICY[..], &STDIO].concat(),
            Self::None => vec![("policies/math.toml", include_str!("open.toml"))],
        }
    }

    fn config(self) -> String {
        match self {
            Self::Rust | Self::Python | Self::None => CONFIG.to_owned(),
            Self::Stdio => format!("{CONFIG}{}", include_str!("backend.toml")),
        }
    }

    /// The role in the policy that the first agent has.
    fn role(self) -> &'static str {
        match self {
            Self::Rust | Self::Python | Self::Stdio => "calculator",
            Self::None => "user",
        }
    }
}

/// What a folder calls for: whoever has a Python program there does not want one in Rust beside it.
pub(super) fn language(folder: &Path) -> Language {
    let names: Vec<_> = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name()).collect();
    let has = |name: &str| names.iter().any(|found| found == name);
    let is_python = |name: &OsString| Path::new(name).extension().is_some_and(|end| end == "py" || end == "ipynb");
    let python = names.iter().any(is_python) || ["pyproject.toml", "requirements.txt"].into_iter().any(has);
    if python && !has("Cargo.toml") { Language::None } else { Language::Rust }
}

/// A project to be written.
pub(super) struct Files<'a> {
    pub(super) folder: &'a Path,
    pub(super) language: Language,
    pub(super) service: &'a Name,
    pub(super) agent: &'a Name,
    pub(super) url: &'a str,
    /// The commands to run, a line each.
    pub(super) run: &'a [String],
}

impl Files<'_> {
    /// Writes them all, or none.
    pub(super) fn write(&self) -> Result<(), Failure> {
        let sources = match self.language {
            Language::Rust => checkout(Path::new(env!("CARGO_MANIFEST_DIR")))?,
            Language::Python | Language::Stdio | Language::None => None,
        };
        let was_there = self.folder.exists();
        let before = if was_there { self.before()? } else { BTreeSet::new() };
        make_folder(self.folder)?;
        let written = self.write_all(sources);
        if written.is_err() {
            // None of our names was there before, so whatever is new is ours. A file that cannot be removed does no harm.
            let entries = fs::read_dir(self.folder).into_iter().flatten().flatten();
            for path in entries.filter(|entry| !before.contains(&entry.file_name())).map(|entry| entry.path()) {
                let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
            }
            if !was_there {
                let _ = fs::remove_dir(self.folder);
            }
        }
        written
    }

    /// The names in the folder, which must leave room for ours.
    fn before(&self) -> Result<BTreeSet<OsString>, Failure> {
        let entries = fs::read_dir(self.folder).map_err(|error| at(self.folder, &error))?;
        let names: BTreeSet<OsString> = entries.flatten().map(|entry| entry.file_name()).collect();
        let credentials = format!("{}.creds.json", self.agent);
        let is_ours = |name: &OsString| OURS.iter().any(|own| name == own) || *name == *credentials;
        let in_the_way = match self.language {
            Language::None => names.iter().find(|name| is_ours(name)),
            Language::Rust | Language::Python | Language::Stdio => names.iter().find(|name| !is_kept(name)),
        };
        let Some(name) = in_the_way else { return Ok(names) };
        let (folder, name) = (self.folder.display(), name.display());
        if self.language == Language::None {
            let failure = Failure::input(format!("`{name}` is in `{folder}` already, and nothing was written"));
            return Err(failure.help("name another folder: `sealwire init FOLDER`"));
        }
        let failure = Failure::input(format!("`{folder}` is not empty (`{name}` is in it), and nothing was written"));
        Err(failure.help(
            "name a folder that is empty or does not exist yet: `sealwire init FOLDER`; for a program that is there already: \
             `sealwire init FOLDER --language none`",
        ))
    }

    fn write_all(&self, sources: Option<&Path>) -> Result<(), Failure> {
        let folders: &[&str] =
            if self.language == Language::Rust { &["policies", "src", "src/bin"] } else { &["policies"] };
        for folder in folders.iter().map(|folder| self.folder.join(folder)) {
            make_folder(&folder)?;
            restrict(&folder)?;
        }
        self.public(layout::CONFIG, &self.named(&self.language.config()))?;
        for (name, text) in self.language.templates() {
            self.public(&self.named(name), &self.named(text))?;
        }
        if self.language == Language::Rust {
            self.public("Cargo.toml", &manifest(self.service, sources))?;
        }
        let target = if self.language == Language::Rust { "/target\n" } else { "" };
        // Somebody else's stays as it is; the secrets are readable for their owner alone in any case.
        if !self.folder.join(".gitignore").exists() {
            self.public(".gitignore", &format!("{target}*.creds.json\nring.json\nservice-key.json\ntoken-key.json\n"))?;
        }
        if let Some(lock) = sources.and_then(|folder| fs::read_to_string(folder.join("Cargo.lock")).ok()) {
            // These versions are the tested ones, and Cargo need not resolve any.
            self.public("Cargo.lock", &lock)?;
        }
        self.keys()
    }

    fn keys(&self) -> Result<(), Failure> {
        let path = |name: &str| self.folder.join(name);
        let environment = named(ENVIRONMENT)?;
        let audience = Audience::new(&environment, self.service);
        let issuer = TokenIssuer::generate(ISSUER).or_fail(Exit::Bug)?;
        let service_key = ServiceKey::generate(&format!("svc:{audience}:1"), &audience).or_fail(Exit::Bug)?;
        let ring = KeyRingFile { audience: audience.to_string(), keys: Vec::new() };
        let ring = serde_json::to_string(&ring).or_fail(Exit::Bug)?;
        layout::write_keys(self.folder, &issuer, &service_key, &ring)?;

        let project = Project::open(&path(layout::CONFIG))?;
        let file = layout::credentials(self.folder, self.agent.as_str());
        let key = AgentKey::generate(&format!("{}.k1", self.agent), ProofAlgorithm::Hs256).or_fail(Exit::Bug)?;
        add_to_ring(&path(layout::RING), &key, self.agent)?;
        let token = project.token_command(self.agent, &[self.language.role().to_owned()], &file)?;
        let command = token.map(|(command, _)| command).unwrap_or_default();
        let credentials = Credentials::new(environment, self.agent.clone(), key, BusConfig::open(self.url))
            .service_keys(self.service.clone(), vec![service_key.public()])
            .token_command(command.iter().map(String::as_str));
        credentials.save(&file, false).or_fail(Exit::Input)?;
        // Reports whatever the service would report when it starts, apart from its programs.
        project.config.check().or_fail(Exit::Input)
    }

    fn named(&self, text: &str) -> String {
        // Via a placeholder, since the service may be named like the template's agent, and the agent like its service.
        let run = self.run.join("\n");
        let text = RUN
            .iter()
            .fold(text.to_owned(), |text, template| text.replace(template, &run))
            .replace(URL, self.url)
            .replace(SERVICE, "\0")
            .replace(AGENT, self.agent.as_str());
        text.replace('\0', self.service.as_str())
    }

    fn public(&self, name: &str, text: &str) -> Result<(), Failure> {
        write_public(&self.folder.join(name), text)
    }
}

/// Whether an entry may be in a folder that counts as empty.
fn is_kept(name: &OsString) -> bool {
    name == ".git"
}

/// What is written beside a program that is there already, besides the agent's credentials.
const OURS: [&str; 7] = [
    layout::CONFIG,
    layout::POLICIES,
    layout::TOKEN_KEY,
    layout::JWKS,
    layout::DENYLIST,
    layout::SERVICE_KEY,
    layout::RING,
];

fn manifest(service: &Name, sources: Option<&Path>) -> String {
    let sealwire = match sources {
        Some(folder) => format!("path = {}", toml::Value::from(folder.display().to_string())),
        None => format!("version = {:?}", env!("CARGO_PKG_VERSION")),
    };
    format!(
        "[package]\nname = \"sealwire-{service}\"\nversion = \"0.1.0\"\nedition = \"2024\"\npublish = false\n\n\
         [dependencies]\n\
         # With the shared guard, the service can have any number of replicas.\n\
         sealwire = {{ {sealwire}, features = [\"shared-guard\"] }}\nserde = {{ version = \"1\", features = [\"derive\"] }}\n\
         tokio = {{ version = \"1\", features = [\"macros\", \"rt-multi-thread\"] }}\n\
         # What the service logs, and where.\n\
         tracing-subscriber = {{ version = \"0.3\", default-features = false, features = [\"fmt\"] }}\n\n\
         # Not a member of any workspace that the folder may be in.\n[workspace]\n"
    )
}

/// The sources that this command was built from, if its package is in a checkout that still exists. A package from a registry is
/// not: the folders above it, for example where it is vendored, are somebody else's.
///
/// Whoever can write there can run code as the user who builds the project, and by now the folder may be somebody else's. Hence
/// the check of its permissions.
fn checkout(package: &Path) -> Result<Option<&Path>, Failure> {
    let workspace = package.ancestors().nth(2).filter(|_| package.ends_with("crates/cli"));
    let Some(folder) = workspace.filter(|folder| folder.join("Cargo.toml").exists()) else { return Ok(None) };
    check_folder(folder).or_fail(Exit::Input)?;
    Ok(Some(folder))
}

#[cfg(all(test, unix))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn sources_that_others_can_write_are_not_built_from() {
        let folder = tempfile::tempdir().unwrap();
        let package = folder.path().join("crates/cli");
        assert_eq!(checkout(&package).unwrap(), None, "no sources");
        fs::write(folder.path().join("Cargo.toml"), "").unwrap();
        assert_eq!(checkout(&package).unwrap(), Some(folder.path()));
        assert_eq!(checkout(&folder.path().join("vendor/sealwire-cli")).unwrap(), None, "somebody's project");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(checkout(&package).is_err());
    }
}
