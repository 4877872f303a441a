//! The configuration file of a service, and the service that it describes.
//! Never guesses: an unknown key, a missing file or a contradiction is an error with its place.

mod build;
mod issuer;
mod page;
mod reference;
mod schema;

use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use serde::Deserialize;

pub use issuer::{IssuerConfig, IssuerFault};
pub use reference::OutOfRange;

use crate::auth::{
    Caps, CapsError, Content, DenylistError, FileTrust, KeyRingError, KeySetError, OpenError, SecretFileError,
    ServiceKeyError, ServiceKeyMissing, SharedOpenError, WindowError, read_open,
};
use crate::bus::{BusConfig, BusError};
use crate::fault::{self, Fault};
use crate::name::Name;
#[cfg(doc)]
use crate::service::QuotaLimits;
use crate::service::{ServeOptions, ServiceLimits};
use crate::wire::{Endpoint, EndpointError, WireLimits};

/// The configuration of one service.
///
/// ```toml
/// environment = "prod"
/// service = "math"
///
/// [nats]
/// urls = ["tls://nats.example:4222"]
/// user = "svc-math"
/// password_file = "nats.password"
/// tls_ca = "ca.pem"
///
/// [keys]
/// ring = "math.ring.json"
///
/// [[tokens.issuer]]
/// issuer = "https://idp.example"
/// jwks = "jwks.json"
///
/// [policy]
/// folder = "policies"
///
/// [replay]
/// guard = "local"
/// state = "math.floor"
/// ```
///
/// Relative paths are relative to the file. Every section but `nats`, `keys`, `tokens` and `policy` may be left out.
/// docs/configuration.md has every key with unit, range and default; it is made from `config::reference`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Config {
    /// The environment, for example `prod`: a message for another one is refused.
    pub environment: Name,
    /// The service.
    pub service: Name,
    /// The RPC subject prefix; `rpc.v1`.
    #[serde(default = "default_prefix")]
    pub prefix: String,
    /// The inbox prefix; `_INBOX`.
    #[serde(default = "default_inbox_prefix")]
    pub inbox_prefix: String,
    /// The broker.
    pub nats: BusConfig,
    /// Whose proofs are accepted.
    pub keys: KeysConfig,
    /// Whose access tokens are accepted.
    pub tokens: TokensConfig,
    /// Who may do what.
    pub policy: PolicyConfig,
    /// How replays are recognized.
    #[serde(default)]
    pub replay: ReplayConfig,
    /// Bounds.
    #[serde(default)]
    pub limits: LimitsConfig,
    /// What happens when files cannot be read again.
    #[serde(default)]
    pub reload: ReloadConfig,
    /// Whose files are believed. This one itself must be root's or that of the user who runs the service.
    #[serde(default)]
    pub files: FileTrust,
}

fn default_prefix() -> String {
    Endpoint::PREFIX.to_owned()
}

fn default_inbox_prefix() -> String {
    Endpoint::INBOX_PREFIX.to_owned()
}

/// `[keys]`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct KeysConfig {
    /// The key ring, made by `sealwire keys new-agent`. Read again when it changes.
    pub ring: PathBuf,
    /// The key that Ed25519 requests are answered with, and that replicas sign with what they say about themselves; made by
    /// `sealwire keys new-service`. The shared guard needs one.
    pub service_key: Option<PathBuf>,
    /// Revoked tokens, subjects and keys. Read again when it changes.
    pub denylist: Option<PathBuf>,
}

/// `[tokens]`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct TokensConfig {
    /// Whose tokens.
    pub issuer: Vec<IssuerConfig>,
    /// What `aud` must name; `<environment>/<service>`.
    pub audience: Option<String>,
    /// How far the issuer's clock may differ, in seconds; 5.
    pub leeway_s: Option<u64>,
    /// The longest life of a token in seconds; 3600.
    pub max_lifetime_s: Option<u64>,
    /// Whether every token must be bound to its bearer's key (`cnf`), so that a stolen one is useless; false.
    #[serde(default)]
    pub require_cnf: bool,
    /// Whether `typ` may be `JWT` beside `at+jwt`, for issuers without a list of their own; false.
    #[serde(default)]
    pub accept_plain_jwt_typ: bool,
    /// Whether HS256 keys are taken: everybody who verifies such tokens can make them; false.
    #[serde(default)]
    pub accept_symmetric: bool,
}

/// `[policy]`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct PolicyConfig {
    /// The folder of policy files. Read again when something in it changes.
    pub folder: PathBuf,
}

/// `[reload]`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct ReloadConfig {
    /// For how many seconds, from 1, the key ring or the denylist may be missing, unreadable or wrong, before everything is
    /// refused (`-32014`) until it can be read. If left out, the one that was read last stays in force.
    pub fail_closed_after_s: Option<NonZeroU64>,
}

/// `[replay]`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct ReplayConfig {
    /// Who remembers nonces.
    pub guard: GuardKind,
    /// The longest life of a message in seconds, 30 to 300; 30, which is what clients sign for.
    pub window_s: u64,
    /// The tolerated difference of clocks in seconds, 0 to 30; 5.
    pub skew_s: u64,
    /// Where the latest time seen is kept across restarts; `<service>.floor` beside the configuration.
    pub state: Option<PathBuf>,
    /// The most live nonces of one agent; 35,000.
    pub per_agent: usize,
    /// The most live nonces of all agents together; 1,000,000.
    pub total: usize,
    /// The most agents with live nonces, and the most that the key ring may have; 10,000. Each has a reserve that no other
    /// agent can take: 32 nonces, or fewer if half of `total` is not enough for so many agents.
    pub agents: usize,
    /// Shared guard: how many copies its stream must have; 3 in a cluster and 1 on a single server if left out.
    pub replicas: Option<usize>,
    /// Shared guard: the most nonces that its stream holds; 1,000,000, which is 10,000 messages a second.
    pub stream_messages: Option<u32>,
    /// Shared guard: how long the broker may take to answer a check, in milliseconds; 250. Then it is asked again, for 2 s.
    pub answer_within_ms: Option<u64>,
    /// Shared guard: as whom it connects to the broker; as `[nats]` if left out. With a user of its own, the one that
    /// publishes answers, to subjects that callers choose, needs no right on the guard's stream.
    pub nats: Option<BusConfig>,
}

impl Default for ReplayConfig {
    fn default() -> Self {
        let caps = Caps::default();
        Self {
            guard: GuardKind::Local,
            window_s: 30,
            skew_s: 5,
            state: None,
            per_agent: caps.owner,
            total: caps.total,
            agents: caps.owners,
            replicas: None,
            stream_messages: None,
            answer_within_ms: None,
            nats: None,
        }
    }
}

/// Who remembers nonces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum GuardKind {
    /// This process, for itself: one replica.
    Local,
    /// A JetStream stream, for any number of replicas.
    Shared,
}

/// `[limits]`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct LimitsConfig {
    /// See [`WireLimits::payload`]; bytes.
    pub request_bytes: usize,
    /// See [`ServiceLimits::response`]; bytes.
    pub response_bytes: usize,
    /// See [`ServiceLimits::batch`].
    pub batch: usize,
    /// See [`ServiceLimits::batch_concurrency`].
    pub batch_concurrency: usize,
    /// See [`QuotaLimits::per_second`].
    pub agent_per_second: u32,
    /// See [`QuotaLimits::burst`].
    pub agent_burst: u32,
    /// See [`QuotaLimits::in_flight`].
    pub agent_in_flight: u32,
    /// See [`ServiceLimits::hints_per_second`].
    pub hints_per_second: u32,
    /// See [`ServeOptions::queue`].
    pub queue: usize,
    /// See [`ServeOptions::queue_bytes`].
    pub queue_bytes: usize,
    /// See [`ServeOptions::in_flight`].
    pub in_flight: usize,
    /// See [`ServeOptions::drain`]; seconds.
    pub drain_s: u64,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        let (wire, service, serve) = (WireLimits::default(), ServiceLimits::default(), ServeOptions::default());
        Self {
            request_bytes: wire.payload,
            response_bytes: service.response,
            batch: service.batch,
            batch_concurrency: service.batch_concurrency,
            agent_per_second: service.quota.per_second,
            agent_burst: service.quota.burst,
            agent_in_flight: service.quota.in_flight,
            hints_per_second: service.hints_per_second,
            queue: serve.queue,
            queue_bytes: serve.queue_bytes,
            in_flight: serve.in_flight,
            drain_s: serve.drain.as_secs(),
        }
    }
}

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("`{}`: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system says.
        error: std::io::Error,
    },
    /// The file is not what it should be.
    #[error("`{}`, line {line}, column {column}: {reason}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
        /// Which member, and what was expected. Nothing of the file: it may hold a password.
        reason: String,
    },
    /// Others could have written a file, or could read a secret.
    #[error(transparent)]
    Trust(#[from] SecretFileError),
    /// A number is out of its range.
    #[error("`{}`: {error}", path.display())]
    Range {
        /// The file.
        path: PathBuf,
        /// Which number, and what its range is.
        error: OutOfRange,
    },
    /// A member names a file that is not there. Not the name: whoever mistook the member wrote the secret itself.
    #[error("`{member}` names a file that is not there")]
    Missing {
        /// The member.
        member: String,
    },
    /// The broker's settings.
    #[error("`[{section}]`: {error}")]
    Bus {
        /// `nats` or `replay.nats`.
        section: &'static str,
        /// What is wrong.
        error: BusError,
    },
    /// The prefixes.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The time window.
    #[error(transparent)]
    Window(#[from] WindowError),
    /// The nonce bounds.
    #[error(transparent)]
    Caps(#[from] CapsError),
    /// The replay guard.
    #[error(transparent)]
    Guard(#[from] OpenError),
    /// The shared replay guard.
    #[error(transparent)]
    SharedGuard(#[from] SharedOpenError),
    /// The key ring.
    #[error(transparent)]
    Ring(#[from] KeyRingError),
    /// The key ring has more agents than the replay guard has room for: some would be refused for no fault of theirs.
    #[error(
        "the key ring has {agents} agents and the replay guard room for {room}: raise `agents` in `[replay]`, and `total` \
         with it"
    )]
    Agents {
        /// In the ring.
        agents: usize,
        /// [`ReplayConfig::agents`].
        room: usize,
    },
    /// The service key.
    #[error(transparent)]
    ServiceKey(#[from] ServiceKeyError),
    /// The service key is missing.
    #[error(transparent)]
    ServiceKeyMissing(#[from] ServiceKeyMissing),
    /// The shared guard without a service key: what another replica says about its guard could not be believed.
    #[error(
        "`[replay] guard = \"shared\"` needs `service_key` in `[keys]`, with which replicas sign what they tell each other: \
         make one with `sealwire keys new-service {0}`"
    )]
    UnsignedReplicas(String),
    /// The token keys.
    #[error(transparent)]
    TokenKeys(#[from] KeySetError),
    /// The denylist.
    #[error(transparent)]
    Denylist(#[from] DenylistError),
    /// What is said about an issuer cannot be used.
    #[error(transparent)]
    Issuer(#[from] IssuerFault),
    /// No issuer.
    #[error("no `[[tokens.issuer]]`: without one, no access token can be accepted")]
    NoIssuer,
}

impl Config {
    /// Reads a configuration file. Relative paths in it are taken as relative to its folder.
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

    /// Whether a secret stands in the file itself.
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
        for issuer in &mut self.tokens.issuer {
            issuer.relative_to(folder);
        }
        self.policy.folder = folder.join(&self.policy.folder);
        self.replay.state = Some(folder.join(self.replay.state.unwrap_or_else(|| state.into())));
        self
    }
}
