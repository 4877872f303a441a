//! The configuration file of a service, and the service that it describes.
//! Never guesses: an unknown key, a missing file or a contradiction is an error that says where it is.

mod backend;
mod build;
mod error;
mod issuer;
mod load;
mod page;
mod reference;
mod schema;
mod tokens;

use std::num::NonZeroU64;
use std::path::PathBuf;

use serde::Deserialize;

pub use backend::{
    BackendConfig, BackendCredentialConfig, BackendHttpConfig, BackendKind, BackendMethodConfig, BackendOutput,
    BackendParamConfig, BackendParamType, BackendVerb, CredentialOwner,
};
pub use error::ConfigError;
pub use issuer::{IssuerConfig, IssuerFault};
pub use reference::OutOfRange;

use crate::auth::NonceLimits;
use crate::files::FileTrust;
use crate::name::Name;
use crate::nats::BusConfig;
#[cfg(doc)]
use crate::service::{AttachmentLimits, QuotaLimits, StreamLimits};
use crate::service::{ServeOptions, ServiceLimits};
use crate::wire::{Endpoint, WireLimits};

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
/// Relative paths are relative to the file. Only `nats`, `keys`, `tokens` and `policy` are required sections.
/// docs/configuration.md lists every key with its unit, range and default; it is generated from `config::reference`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Config {
    /// The environment, such as `prod`: a message for another one is refused.
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
    /// Limits.
    #[serde(default)]
    pub limits: LimitsConfig,
    /// What happens when a file cannot be read again.
    #[serde(default)]
    pub reload: ReloadConfig,
    /// Whose files are trusted. The configuration file itself must belong to root or to the user who runs the service.
    #[serde(default)]
    pub files: FileTrust,
    /// Programs that `sealwire serve` puts behind the bus. The command takes them out before it builds the service: a service
    /// built from a configuration that still has some would run without them, so building it fails ([`ConfigError::Backends`]).
    #[serde(default)]
    pub backend: Vec<BackendConfig>,
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
    /// The key that signs answers to Ed25519 requests and what replicas say about themselves; made by `sealwire keys
    /// new-service`. The shared guard needs one.
    pub service_key: Option<PathBuf>,
    /// Revoked tokens, subjects and keys. Read again when it changes.
    pub denylist: Option<PathBuf>,
}

/// `[tokens]`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct TokensConfig {
    /// The issuers whose tokens are accepted.
    pub issuer: Vec<IssuerConfig>,
    /// What `aud` must name; `<environment>/<service>`.
    pub audience: Option<String>,
    /// How far the issuer's clock may differ, in seconds; 5.
    pub leeway_s: Option<u64>,
    /// The longest lifetime of a token in seconds; 3600.
    pub max_lifetime_s: Option<u64>,
    /// Whether every token must be bound to its bearer's key (`cnf`), so that a stolen one is useless; false.
    #[serde(default)]
    pub require_cnf: bool,
    /// Whether `typ` may be `JWT` as well as `at+jwt`, for issuers without a list of their own; false.
    #[serde(default)]
    pub accept_plain_jwt_typ: bool,
    /// Whether HS256 keys are accepted; false. Everybody who can verify such tokens can also issue them.
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
    /// For how many seconds, from 1, the key ring or the denylist may be missing, unreadable or invalid before
    /// everything is refused (`-32014`) until it can be read. If left out, the last version read stays in force.
    pub fail_closed_after_s: Option<NonZeroU64>,
}

/// `[replay]`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct ReplayConfig {
    /// Where nonces are remembered.
    pub guard: GuardKind,
    /// The longest lifetime of a message in seconds, 30 to 300; 30, which is what clients sign for.
    pub window_s: u64,
    /// The tolerated clock difference in seconds, 0 to 30; 5.
    pub skew_s: u64,
    /// Where the latest time seen is kept across restarts; `<service>.floor` beside the configuration. It must be in a
    /// folder where nobody else can write: they could make old messages acceptable again.
    pub state: Option<PathBuf>,
    /// The most live nonces of one agent; 35,000.
    pub per_agent: usize,
    /// The most live nonces of all agents together; 1,000,000.
    pub total: usize,
    /// The most agents with live nonces, and the most agents in the key ring; 10,000. Each has a reserve that no other
    /// agent can use: 32 nonces, or fewer if half of `total` does not suffice for so many agents.
    pub agents: usize,
    /// Shared guard: how many copies its stream must have; if left out, 3 in a cluster and 1 on a single server.
    pub replicas: Option<usize>,
    /// Shared guard: the most nonces that its stream holds; 1,000,000, enough for 10,000 messages a second.
    pub stream_messages: Option<u32>,
    /// Shared guard: the most outcomes of idempotent calls that are kept, at least 2; 32,768. A single agent gets at
    /// most half of them. The same in all replicas.
    pub outcomes: Option<u32>,
    /// Shared guard: the most bytes of those outcomes on each broker with a copy, 1 MiB to 1 TiB; 16 MiB. The same in all
    /// replicas.
    pub outcome_bytes: Option<u64>,
    /// Shared guard: how long the broker may take to answer a check, in milliseconds; 250. After that it is asked again, for up to 2 s.
    pub answer_within_ms: Option<u64>,
    /// Shared guard: how it logs in at the broker; as `[nats]` if left out. With a user of its own, the user that
    /// publishes answers, to subjects that callers choose, needs no right on the guard's stream.
    pub nats: Option<BusConfig>,
}

impl Default for ReplayConfig {
    fn default() -> Self {
        let nonce_limits = NonceLimits::default();
        Self {
            guard: GuardKind::Local,
            window_s: 30,
            skew_s: 5,
            state: None,
            per_agent: nonce_limits.owner,
            total: nonce_limits.total,
            agents: nonce_limits.owners,
            replicas: None,
            stream_messages: None,
            outcomes: None,
            outcome_bytes: None,
            answer_within_ms: None,
            nats: None,
        }
    }
}

/// Where nonces are remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum GuardKind {
    /// In this process: one replica only.
    Local,
    /// In a JetStream stream, for any number of replicas.
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
    /// See [`StreamLimits::per_agent`].
    pub agent_streams: usize,
    /// See [`StreamLimits::in_all`].
    pub streams: usize,
    /// See [`StreamLimits::bytes`].
    pub stream_bytes: usize,
    /// See [`StreamLimits::response`]; bytes.
    pub stream_response_bytes: usize,
    /// See [`AttachmentLimits::each`]; bytes.
    pub attachment_bytes: usize,
    /// See [`AttachmentLimits::in_all`]; bytes.
    pub attachment_memory_bytes: usize,
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
            agent_streams: service.streams.per_agent,
            streams: service.streams.in_all,
            stream_bytes: service.streams.bytes,
            stream_response_bytes: service.streams.response,
            attachment_bytes: service.attachments.each,
            attachment_memory_bytes: service.attachments.in_all,
            hints_per_second: service.hints_per_second,
            queue: serve.queue,
            queue_bytes: serve.queue_bytes,
            in_flight: serve.in_flight,
            drain_s: serve.drain.as_secs(),
        }
    }
}
