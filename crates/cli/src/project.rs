//! The folder of a service in development: its configuration, and next to it the key that signs its tokens.
//! Never issues a token: it only composes the command that does.

use std::path::{Path, PathBuf};

use sealwire::configure::ServicePublicKey;
use sealwire::internal::auth::read_service_key;
use sealwire::internal::wire::Audience;
use sealwire::{Config, Name, PolicySet};
use sealwire_backend::BackendConfig;
use sealwire_lab::layout;

use crate::exit::{Exit, Failure, OrFail as _};
use crate::policies;

/// A configuration and its folder.
pub(crate) struct Project {
    pub(crate) config: Config,
    pub(crate) audience: Audience,
    folder: PathBuf,
}

impl Project {
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let (config, _) = load(path)?;
        let audience = config.endpoint().or_fail(Exit::Input)?.audience().clone();
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Ok(Self { config, audience, folder: folder.to_owned() })
    }

    /// The service's public key, which agents with Ed25519 keys pin, if it has one.
    pub(crate) fn service_key(&self) -> Result<Option<ServicePublicKey>, Failure> {
        let Some(path) = &self.config.keys.service_key else { return Ok(None) };
        Ok(Some(read_service_key(path, &self.audience).or_fail(Exit::Input)?.public()))
    }

    /// The command with which the agent of these credentials gets a token with these roles, and the policies that define the
    /// roles; `None` if the key that signs the service's tokens is not here.
    pub(crate) fn token_command(
        &self,
        agent: &Name,
        roles: &[String],
        credentials: &Path,
    ) -> Result<Option<(Vec<String>, PolicySet)>, Failure> {
        let key = self.folder.join(layout::TOKEN_KEY);
        if !key.exists() {
            if roles.is_empty() {
                return Ok(None);
            }
            let failure = Failure::input(format!("there is no `{}`, so roles cannot be given here", key.display()));
            return Err(failure.help("leave out `--role`: the issuer of the service's tokens assigns roles"));
        }
        let (policies, _) = policies::read(&self.config.policy.folder, &policies::known_methods())?;
        policies::check_roles(&policies, roles)?;
        // The command runs in the folder of the credentials. If that is this folder, a relative path lets both move together.
        let of =
            |path: &Path| path.parent().map(|folder| Path::new(".").join(folder)).and_then(|it| it.canonicalize().ok());
        let is_here = of(credentials) == self.folder.canonicalize().ok();
        let key = if is_here { PathBuf::from(layout::TOKEN_KEY) } else { key.canonicalize().unwrap_or(key) };
        let file = credentials.file_name().unwrap_or_default();
        let mut command = vec![program(), "token".into(), "issue".into(), "--key".into(), text(&key)?];
        let audience = self.config.tokens.audience.clone().unwrap_or_else(|| self.audience.to_string());
        command.extend(["--subject".to_owned(), agent.to_string(), "--audience".to_owned(), audience]);
        command.extend(roles.iter().flat_map(|role| ["--role".to_owned(), role.clone()]));
        command.extend(["--cnf-creds".to_owned(), text(Path::new(file))?]);
        Ok(Some((command, policies)))
    }
}

/// The configuration in a file, and its backends. If there is no such file, says how to get one.
pub(crate) fn load(path: &Path) -> Result<(Config, Vec<BackendConfig>), Failure> {
    sealwire_backend::load(path).or_fail(Exit::Input).map_err(|failure| {
        if path.exists() {
            return failure;
        }
        failure.help(
            "`sealwire init` makes a configuration with keys and a policy, in a new folder or beside your program; `--config FILE` names \
             one that is elsewhere",
        )
    })
}

/// How to run this command from elsewhere: by its name if PATH finds it, otherwise by its path.
pub(crate) fn program() -> String {
    const NAME: &str = "sealwire";
    let Ok(own) = std::env::current_exe().and_then(|path| path.canonicalize()) else { return NAME.to_owned() };
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&folders).map(|folder| folder.join(NAME)).find(|path| path.is_file());
    match found.and_then(|path| path.canonicalize().ok()) {
        Some(found) if found == own => NAME.to_owned(),
        _ => own.display().to_string(),
    }
}

fn text(path: &Path) -> Result<String, Failure> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| {
        Failure::input(format!("`{}` is not UTF-8, so it cannot be written to a JSON file", path.display()))
    })
}
