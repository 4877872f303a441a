//! Reads the file: who could have written it, whether it is TOML of the right shape, and what its paths are relative to.
//! Never trusts a file that holds secrets and is open to others.

use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::ranges::check_ranges;
use super::{Config, ConfigError, PolicySource};
use crate::fault::{self, Fault};
use crate::files::{Content, FileTrust, SecretFileError, read_open};
use crate::nats::BusConfig;
use crate::settings::Setting;

impl Config {
    /// Reads a configuration file. Relative paths in it are relative to its folder.
    ///
    /// # Errors
    /// [`ConfigError::Read`], [`ConfigError::Format`] with line and column, [`ConfigError::Range`], [`ConfigError::Trust`],
    /// [`ConfigError::Bus`] and [`ConfigError::Telemetry`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        Ok(load_with::<Nothing>(path.as_ref())?.0)
    }

    /// Whether the file itself contains a secret.
    fn holds_secrets(&self) -> bool {
        let holds = |bus: &BusConfig| bus.password.is_some() || bus.token.is_some() || bus.nkey_seed.is_some();
        let others = [self.replay.nats.as_ref(), self.revocation.as_ref().map(|revocation| &revocation.nats)];
        holds(&self.nats) || others.into_iter().flatten().any(holds)
    }

    fn relative_to(mut self, folder: &Path) -> Self {
        self.nats.files = self.files.clone();
        if let Some(nats) = &mut self.replay.nats {
            nats.files = self.files.clone();
        }
        let state = format!("{}.floor", self.service);
        self.nats = self.nats.relative_to(folder);
        if let Some(record) = &mut self.record {
            record.folder = folder.join(&record.folder);
        }
        self.replay.nats = self.replay.nats.map(|nats| nats.relative_to(folder));
        self.revocation =
            self.revocation.map(|revocation| revocation.relative_to(folder, &self.files, self.service.as_str()));
        self.keys.ring = folder.join(&self.keys.ring);
        self.keys.service_key = self.keys.service_key.map(|path| folder.join(path));
        self.keys.denylist = self.keys.denylist.map(|path| folder.join(path));
        self.tokens.relative_to(folder);
        self.telemetry.relative_to(folder);
        self.policy.folder = folder.join(&self.policy.folder);
        let kept = format!("{}.policy", self.service);
        self.policy.state = Some(folder.join(self.policy.state.unwrap_or_else(|| kept.into())));
        self.replay.state = Some(folder.join(self.replay.state.unwrap_or_else(|| state.into())));
        self
    }
}

/// What a file has beside the keys of a service, unless somebody else reads it, too.
#[derive(Deserialize, Setting)]
struct Nothing {}

/// As [`Config::load`], for a file with further keys at the top: those of `T`, which are taken out before the service's are read. Paths in
/// them are left as they are.
///
/// # Errors
/// As for [`Config::load`].
pub fn load_with<T: DeserializeOwned + Setting>(path: &Path) -> Result<(Config, T), ConfigError> {
    let trust = FileTrust::default();
    let opened = trust.open(path, Content::Public).and_then(|file| Ok((read_open(path, &file)?, file)));
    let (text, file) = opened.map_err(|error| match error {
        SecretFileError::Io { path, error } => ConfigError::Read { path, error },
        error => error.into(),
    })?;
    let (config, beside) = fault::toml::<Config, T>(&text).map_err(|Fault { line, column, reason }| {
        let path = path.to_owned();
        ConfigError::Format { path, line, column, reason }
    })?;
    check_ranges::<Config>(&text)
        .and_then(|()| check_ranges::<T>(&text))
        .map_err(|error| ConfigError::Range { path: path.to_owned(), error })?;
    if config.holds_secrets() {
        trust.judge(path, &file, Content::Secret)?;
    }
    config.nats.check_without_calls().map_err(|error| ConfigError::Bus { section: "nats", error })?;
    if let Some(nats) = &config.replay.nats {
        nats.check_without_calls().map_err(|error| ConfigError::Bus { section: "replay.nats", error })?;
    }
    if let Some(revocation) = &config.revocation {
        revocation.nats.check().map_err(|error| ConfigError::Bus { section: "revocation.nats", error })?;
    }
    if config.policy.source == PolicySource::Bucket && config.revocation.is_none() {
        return Err(ConfigError::NoBucket);
    }
    config.telemetry.check().map_err(|reason| ConfigError::Telemetry { path: path.to_owned(), reason })?;
    let folder = path.parent().unwrap_or_else(|| Path::new(""));
    Ok((config.relative_to(folder), beside))
}
