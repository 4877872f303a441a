//! The files of a new project.
//! Never leaves some of them without the others.

use std::fs;
use std::path::Path;

use sealwire::auth::{KeyRingFile, ProofAlgorithm, TokenIssuer, check_folder, write_secret, write_service_key};
use sealwire::client::Credentials;
use sealwire::wire::{AgentKey, Audience, ServiceKey};
use sealwire::{BusConfig, Name};

use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::{at, make_folder, restrict, write_public};
use crate::keys::add_to_ring;
use crate::parties::{ENVIRONMENT, named};
use crate::project::{Project, TOKEN_KEY};

/// What the templates call the service and the agent, and the address of their broker.
pub(super) const SERVICE: &str = "math";
pub(super) const AGENT: &str = "planner";
const URL: &str = "nats://127.0.0.1:4222";
const RUN: &str = "sealwire nats-server --port 4222\ncargo run --bin service\ncargo run --bin client";
/// The role in the policy, and the issuer in the configuration.
const ROLE: &str = "calculator";
const ISSUER: &str = "https://issuer.dev.invalid";

/// The files that do not depend on keys. `examples` builds the programs, so they are what the README shows.
const TEMPLATES: [(&str, &str); 6] = [
    ("README.md", include_str!("README.md")),
    ("sealwire.toml", include_str!("sealwire.toml")),
    ("policies/math.toml", include_str!("policy.toml")),
    ("policies/math.test.toml", include_str!("policy.test.toml")),
    ("src/bin/service.rs", include_str!("../../templates/service.rs")),
    ("src/bin/client.rs", include_str!("../../templates/client.rs")),
];

/// A project to be written.
pub(super) struct Files<'a> {
    pub(super) folder: &'a Path,
    pub(super) service: &'a Name,
    pub(super) agent: &'a Name,
    pub(super) url: &'a str,
    /// The commands to run, a line each.
    pub(super) run: &'a [String],
}

impl Files<'_> {
    /// Writes them all, or none.
    pub(super) fn write(&self) -> Result<(), Failure> {
        let sources = checkout(Path::new(env!("CARGO_MANIFEST_DIR")))?;
        let was_there = self.folder.exists();
        if was_there {
            self.check_empty()?;
        }
        make_folder(self.folder)?;
        let written = self.write_all(sources);
        if written.is_err() {
            // The folder was empty, so everything in it is ours. A file that cannot be removed does no harm.
            let entries = fs::read_dir(self.folder).into_iter().flatten().flatten().map(|entry| entry.path());
            for path in entries.filter(|path| !is_kept(path)) {
                let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
            }
            if !was_there {
                let _ = fs::remove_dir(self.folder);
            }
        }
        written
    }

    fn check_empty(&self) -> Result<(), Failure> {
        let entries = fs::read_dir(self.folder).map_err(|error| at(self.folder, &error))?;
        let Some(found) = entries.flatten().map(|entry| entry.path()).find(|path| !is_kept(path)) else {
            return Ok(());
        };
        let (folder, name) = (self.folder.display(), found.file_name().unwrap_or_default().display().to_string());
        let failure = Failure::input(format!("`{folder}` is not empty (`{name}` is in it), and nothing was written"));
        Err(failure.help("name a folder that is empty or does not exist yet: `sealwire init FOLDER`"))
    }

    fn write_all(&self, sources: Option<&Path>) -> Result<(), Failure> {
        for folder in ["policies", "src", "src/bin"].map(|folder| self.folder.join(folder)) {
            make_folder(&folder)?;
            restrict(&folder)?;
        }
        for (name, text) in TEMPLATES {
            self.public(&self.named(name), &self.named(text))?;
        }
        self.public("Cargo.toml", &manifest(self.service, sources))?;
        self.public(".gitignore", "/target\n*.creds.json\nring.json\nservice-key.json\ntoken-key.json\n")?;
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
        issuer.save(path(TOKEN_KEY)).or_fail(Exit::Input)?;
        self.public("jwks.json", &issuer.public_jwks())?;
        self.public("denylist.json", "{}\n")?;
        let service_key = ServiceKey::generate(&format!("svc:{audience}:1"), &audience).or_fail(Exit::Bug)?;
        write_service_key(&path("service-key.json"), &service_key).or_fail(Exit::Input)?;
        let ring = KeyRingFile { audience: audience.to_string(), keys: Vec::new() };
        let ring = serde_json::to_string(&ring).or_fail(Exit::Bug)?;
        write_secret(&path("ring.json"), &ring, false).or_fail(Exit::Input)?;

        let project = Project::open(&path("sealwire.toml"))?;
        let file = path(&format!("{}.creds.json", self.agent));
        let key = AgentKey::generate(&format!("{}.k1", self.agent), ProofAlgorithm::Hs256).or_fail(Exit::Bug)?;
        add_to_ring(&path("ring.json"), &key, self.agent)?;
        let token = project.token_command(self.agent, &[ROLE.to_owned()], &file)?;
        let command = token.map(|(command, _)| command).unwrap_or_default();
        let credentials = Credentials::new(environment, self.agent.clone(), key, BusConfig::open(self.url))
            .service_keys(self.service.clone(), vec![service_key.public()])
            .token_command(command.iter().map(String::as_str));
        credentials.save(&file, false).or_fail(Exit::Input)?;
        // Reports whatever the service would report when it starts.
        project.config.check().or_fail(Exit::Input)
    }

    fn named(&self, text: &str) -> String {
        // Via a placeholder, since the service may be named like the template's agent, and the agent like its service.
        let text = text
            .replace(RUN, &self.run.join("\n"))
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
fn is_kept(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == ".git")
}

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
         tokio = {{ version = \"1\", features = [\"macros\", \"rt-multi-thread\", \"signal\"] }}\n\
         # What the service logs, and where.\n\
         tracing = \"0.1\"\n\
         tracing-subscriber = {{ version = \"0.3\", default-features = false, features = [\"ansi\", \"fmt\"] }}\n\n\
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
