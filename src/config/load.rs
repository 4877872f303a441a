//! Reads the file: who could have written it, whether it is TOML of the right shape, and what its paths are relative to.
//! Never trusts a file that holds secrets and is open to others.

use std::path::Path;

use super::{Config, ConfigError, reference};
use crate::fault::{self, Fault};
use crate::files::{Content, FileTrust, SecretFileError, read_open};
use crate::nats::BusConfig;

impl Config {
    /// Reads a configuration file. Relative paths in it are relative to its folder.
    ///
    /// # Errors
    /// [`ConfigError::Read`], [`ConfigError::Format`] with line and column, [`ConfigError::Range`], [`ConfigError::Trust`] and
    /// [`ConfigError::Bus`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let path = path.as_ref();
        let trust = FileTrust::default();
        let opened = trust.open(path, Content::Public).and_then(|file| Ok((read_open(path, &file)?, file)));
        let (text, file) = opened.map_err(|error| match error {
            SecretFileError::Io { path, error } => ConfigError::Read { path, error },
            error => error.into(),
        })?;
        let config: Self = fault::toml(&text).map_err(|Fault { line, column, reason }| {
            let path = path.to_owned();
            ConfigError::Format { path, line, column, reason }
        })?;
        reference::check_ranges(&text).map_err(|error| ConfigError::Range { path: path.to_owned(), error })?;
        if config.holds_secrets() {
            trust.judge(path, &file, Content::Secret)?;
        }
        config.nats.check().map_err(|error| ConfigError::Bus { section: "nats", error })?;
        if let Some(nats) = &config.replay.nats {
            nats.check().map_err(|error| ConfigError::Bus { section: "replay.nats", error })?;
        }
        let folder = path.parent().unwrap_or_else(|| Path::new(""));
        Ok(config.relative_to(folder))
    }

    /// Whether the file itself contains a secret.
    fn holds_secrets(&self) -> bool {
        let holds = |bus: &BusConfig| bus.password.is_some() || bus.token.is_some() || bus.nkey_seed.is_some();
        holds(&self.nats) || self.replay.nats.as_ref().is_some_and(holds)
    }

    fn relative_to(mut self, folder: &Path) -> Self {
        self.nats.files = self.files.clone();
        if let Some(nats) = &mut self.replay.nats {
            nats.files = self.files.clone();
        }
        let state = format!("{}.floor", self.service);
        self.nats = self.nats.relative_to(folder);
        self.replay.nats = self.replay.nats.map(|nats| nats.relative_to(folder));
        self.keys.ring = folder.join(&self.keys.ring);
        self.keys.service_key = self.keys.service_key.map(|path| folder.join(path));
        self.keys.denylist = self.keys.denylist.map(|path| folder.join(path));
        self.tokens.relative_to(folder);
        for backend in &mut self.backend {
            backend.files = self.files.clone();
            backend.relative_to(folder);
        }
        self.policy.folder = folder.join(&self.policy.folder);
        self.replay.state = Some(folder.join(self.replay.state.unwrap_or_else(|| state.into())));
        self
    }
}
