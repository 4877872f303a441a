//! The configuration file of a service, and the service that it describes.
//! Never guesses: an unknown key, a missing file or a contradiction is an error that says where it is.

mod build;
mod error;
mod issuer;
mod load;
mod ranges;
mod telemetry;
mod tokens;

use std::num::NonZeroU64;
use std::path::PathBuf;

use serde::Deserialize;

pub use build::ending_logins;
pub use error::ConfigError;
pub use issuer::{IssuerConfig, IssuerFault};
pub use load::load_with;
pub use ranges::{OutOfRange, check_ranges};
pub use telemetry::TelemetryConfig;

use crate::auth::{ANSWER_WITHIN, NonceLimits, RevocationConfig, SharedConfig, TokenRules};
use crate::files::FileTrust;
use crate::name::Name;
use crate::nats::BusConfig;
use crate::record::RecordConfig;
use crate::rpc::MAX_BATCH;
use crate::service::{ServeOptions, ServiceLimits};
use crate::settings::{Kind, Setting};
use crate::wire::{Endpoint, WireLimits};

/// The largest `max_payload` that nats-server allows.
const MOST_PAYLOAD: u64 = 64 * 1024 * 1024;

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
/// docs/configuration.md lists every key with its unit, range and default; it is generated from these structs.
#[derive(Debug, Clone, Deserialize, Setting)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Config {
    /// The environment, such as `prod`: a message for another one is refused.
    pub environment: Name,
    /// The service.
    pub service: Name,
    /// What the subjects of requests begin with.
    #[serde(default = "default_prefix")]
    #[setting(kind = Kind::Prefix)]
    pub prefix: String,
    /// What callers' reply subjects begin with.
    #[serde(default = "default_inbox_prefix")]
    #[setting(kind = Kind::Prefix)]
    pub inbox_prefix: String,
    /// The broker, and how to log in there.
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
    /// What is recorded of calls: who called which method, what the policy decided, and with what outcome (docs/records.md).
    #[setting(left_out = "nothing is recorded, and methods with `audit = \"before\"` are refused")]
    pub record: Option<RecordConfig>,
    /// What operators revoke by `sealwire revoke`, in force within a second (docs/revocation.md).
    #[setting(left_out = "only files revoke")]
    pub revocation: Option<RevocationConfig>,
    /// Limits on sizes, rates and queues.
    #[serde(default)]
    pub limits: LimitsConfig,
    /// What happens when a file cannot be read again.
    #[serde(default)]
    pub reload: ReloadConfig,
    /// Whose files are trusted besides root's and those of the user who runs the service (docs/files.md). The configuration file itself
    /// must belong to one of these two.
    #[serde(default)]
    pub files: FileTrust,
    /// Where metrics and health are served over HTTP (docs/observability.md). A program of your own that does not call `Config::serve`
    /// starts a listener itself.
    #[serde(default)]
    pub telemetry: TelemetryConfig,
    /// What a replica says of itself to whoever may ask on `$SRV`, beside what NATS micro services and section 18 of SPEC.md say.
    #[serde(default)]
    pub discovery: DiscoveryConfig,
}

fn default_prefix() -> String {
    Endpoint::PREFIX.to_owned()
}

fn default_inbox_prefix() -> String {
    Endpoint::INBOX_PREFIX.to_owned()
}

/// `[keys]`
#[derive(Debug, Clone, Deserialize, Setting)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct KeysConfig {
    /// The key ring, made by `sealwire keys new-agent`. Read again when it changes.
    pub ring: PathBuf,
    /// The key that signs answers to Ed25519 requests, and what replicas say about themselves; made by `sealwire keys new-service`. Read
    /// again when it changes.
    #[setting(left_out = "Ed25519 requests and the shared guard are refused")]
    pub service_key: Option<PathBuf>,
    /// Revoked tokens, subjects and keys, written by `sealwire token revoke`. Read again when it changes.
    #[setting(left_out = "nothing but keys can be revoked")]
    pub denylist: Option<PathBuf>,
}

/// `[tokens]`
#[derive(Debug, Clone, Deserialize, Setting)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct TokensConfig {
    /// An issuer of access tokens; there may be several. Exactly one of `jwks`, `jwks_url`, `discovery` and `openid_configuration` says
    /// where its keys are (docs/identity-providers.md).
    pub issuer: Vec<IssuerConfig>,
    /// What `aud` must name.
    #[setting(left_out = "`<environment>/<service>`")]
    pub audience: Option<String>,
    /// How far the issuer's clock may differ.
    #[setting(unit = "seconds", max = TokenRules::MAX_LEEWAY_S, default = TokenRules::new("").leeway_s)]
    pub leeway_s: Option<u64>,
    /// The longest lifetime of a token, from `iat` to `exp`.
    #[setting(unit = "seconds", min = 1, max = TokenRules::MAX_LIFETIME_S, default = TokenRules::new("").max_lifetime_s)]
    pub max_lifetime_s: Option<u64>,
    /// Whether every token must be bound to its bearer's key (`cnf`), so that a stolen one is useless.
    #[serde(default)]
    pub require_cnf: bool,
    /// Whether `typ` may be `JWT` as well as `at+jwt`, for issuers without a `typ` of their own.
    #[serde(default)]
    pub accept_plain_jwt_typ: bool,
    /// Whether HS256 keys are accepted: everybody who can verify such tokens can also issue them.
    #[serde(default)]
    pub accept_symmetric: bool,
}

/// `[policy]`
#[derive(Debug, Clone, Deserialize, Setting)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct PolicyConfig {
    /// The folder of policy files. Read again when something in it changes. With `source = "bucket"`, it is read once and decides only until
    /// there is a package, and an empty one denies everything until then.
    pub folder: PathBuf,
    /// Where policies come from: the folder, or what operators push to the bucket of `[revocation]` (docs/policy-push.md).
    #[serde(default)]
    pub source: PolicySource,
    /// With `source = "bucket"`: where the last package is kept across restarts. It is verified again, and one with a lower number is
    /// refused then. A service does not start if anybody else could write the file or its folder.
    #[setting(left_out = "`<service>.policy`")]
    pub state: Option<PathBuf>,
}

/// Where policies come from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Setting)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum PolicySource {
    /// The folder.
    #[default]
    Folder,
    /// What operators push, signed.
    Bucket,
}

/// `[reload]`
#[derive(Debug, Clone, Default, Deserialize, Setting)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct ReloadConfig {
    /// For how long the key ring or the denylist may be missing, unreadable or invalid before everything is refused (`-32014`) until it
    /// can be read.
    #[setting(unit = "seconds", min = 1, left_out = "the last version read stays in force")]
    pub fail_closed_after_s: Option<NonZeroU64>,
}

/// `[discovery]`
#[derive(Debug, Clone, Default, Deserialize, Setting)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct DiscoveryConfig {
    /// Whether it says how many messages of each agent it has refused, by reason, for `sealwire top`. Whoever may ask then learns the names
    /// of these agents, and whether a message that was overheard had been genuine.
    pub tell_agents: bool,
}

/// `[replay]`
#[derive(Debug, Clone, Deserialize, Setting)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct ReplayConfig {
    /// Where nonces are remembered: in this process, for one replica, or in a JetStream stream, for any number of them
    /// (docs/reliability.md).
    pub guard: GuardKind,
    /// The longest lifetime of a message. Clients sign for 30 s, so a shorter window would refuse all messages; for an earlier end, a
    /// caller sets a deadline.
    #[setting(unit = "seconds", min = 30, max = 300)]
    pub window_s: u64,
    /// The tolerated clock difference. The shared guard needs at least 1.
    #[setting(unit = "seconds", max = 30)]
    pub skew_s: u64,
    /// Local guard: where the latest time seen is kept across restarts. A service does not start if anybody else could write the file or
    /// its folder.
    // They could make old messages acceptable again.
    #[setting(left_out = "`<service>.floor`")]
    pub state: Option<PathBuf>,
    /// The most live nonces of one agent.
    #[setting(unit = "nonces", min = 1)]
    pub per_agent: usize,
    /// The most live nonces of all agents together, about 70 bytes each.
    #[setting(unit = "nonces", min = 2)]
    pub total: usize,
    /// The most agents with live nonces, and the most agents in the key ring. Each has a reserve that no other agent can use: 32 nonces,
    /// or fewer if half of `total` does not suffice for so many agents.
    #[setting(unit = "agents", min = 1)]
    pub agents: usize,
    /// Shared guard: how many copies its stream must have.
    #[setting(unit = "copies", min = 1, max = 5, left_out = "3 in a cluster, 1 on a single server")]
    pub replicas: Option<usize>,
    /// Shared guard: the most nonces that its stream holds; a million is enough for 10,000 messages a second.
    #[setting(unit = "nonces", min = 1, max = u32::MAX, default = SharedConfig::MAX_MESSAGES)]
    pub stream_messages: Option<u32>,
    /// Shared guard: the most outcomes of idempotent calls that are kept; each method declares for how long. A single agent gets at most
    /// half of them. The same in all replicas.
    #[setting(unit = "outcomes", min = 2, max = u32::MAX, default = SharedConfig::MAX_OUTCOMES)]
    pub outcomes: Option<u32>,
    /// Shared guard: the most bytes of those outcomes, reserved in the memory of each broker with a copy when the first service with an
    /// idempotent method starts. The same in all replicas. The memory that `sealwire setup cluster` grants a guard suffices for the
    /// default.
    #[setting(unit = "bytes", min = 1 << 20, max = 1_u64 << 40, default = SharedConfig::OUTCOME_BYTES)]
    pub outcome_bytes: Option<u64>,
    /// Shared guard: how long the broker may take to answer a check. After that it is asked again, for up to 2 s.
    #[setting(
        unit = "milliseconds",
        min = ANSWER_WITHIN.start().as_millis(),
        max = ANSWER_WITHIN.end().as_millis(),
        default = SharedConfig::ANSWER_WITHIN.as_millis() as u64
    )]
    pub answer_within_ms: Option<u64>,
    /// Shared guard: how it logs in at the broker. With a user of its own, the user that publishes answers, to subjects that callers
    /// choose, needs no right on the guard's stream.
    #[setting(left_out = "that of `[nats]`")]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Setting)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum GuardKind {
    /// In this process: one replica only.
    Local,
    /// In a JetStream stream, for any number of replicas.
    Shared,
}

/// `[limits]`
#[derive(Debug, Clone, Deserialize, Setting)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct LimitsConfig {
    /// The largest payload of a request.
    #[setting(unit = "bytes", min = 1_024, max = MOST_PAYLOAD)]
    pub request_bytes: usize,
    /// The largest payload of an answer; less if the broker's `max_payload` leaves less room.
    #[setting(unit = "bytes", min = 1_024, max = MOST_PAYLOAD)]
    pub response_bytes: usize,
    /// The most entries of a batch.
    #[setting(unit = "entries", min = 1, max = MAX_BATCH)]
    pub batch: usize,
    /// How many entries of one batch run at a time.
    #[setting(unit = "entries", min = 1)]
    pub batch_concurrency: usize,
    /// An agent's sustained rate in each replica; each entry of a batch counts. The subjects that it acts for share this limit and the
    /// next three: one of them may have one more only while it has fewer than are free.
    #[setting(unit = "calls per second", min = 1, max = u32::MAX)]
    pub agent_per_second: u32,
    /// How many calls an agent may make at once.
    #[setting(unit = "calls", min = 1, max = u32::MAX)]
    pub agent_burst: u32,
    /// How many of an agent's messages may be in flight, not counting open streams.
    #[setting(unit = "messages", min = 1, max = u32::MAX)]
    pub agent_in_flight: u32,
    /// How many of an agent's calls that accept frames (streams, subscriptions) may be open in each replica.
    #[setting(unit = "calls", min = 1)]
    pub agent_streams: usize,
    /// How many calls that accept frames may be open in each replica, for all agents together. An agent may have one more only while it
    /// has fewer than are free.
    #[setting(unit = "calls", min = 1)]
    pub streams: usize,
    /// The memory for the requests of all streams together, and for frames that callers have not acknowledged; a stream has at most 1 MiB
    /// of frames. An agent gets more only if it then has no more than what is left free.
    #[setting(unit = "bytes", min = 2 << 20)]
    pub stream_bytes: usize,
    /// The largest response of a call that accepts frames; a response that does not fit one message is sent in pieces. Callers accept
    /// 16 MiB unless configured otherwise.
    #[setting(unit = "bytes", min = 1_024)]
    pub stream_response_bytes: usize,
    /// How many of an agent's tasks, calls for which nobody waits, may run in each replica.
    #[setting(unit = "tasks", min = 1)]
    pub agent_tasks: usize,
    /// How many tasks may run in each replica, for all agents together. An agent may have one more only while it has fewer than are free.
    #[setting(unit = "tasks", min = 1)]
    pub tasks: usize,
    /// The memory for the parameters of all tasks together. An agent gets more only if it then has no more than what is left free.
    #[setting(unit = "bytes", min = 1 << 20)]
    pub task_bytes: usize,
    /// For how long a replica has a task before it must have said again, to the store, that it runs; it says so six times as often. A task
    /// whose replica cannot reach the store for that long is stopped, and one whose replica died is known to be lost 12 s after that.
    #[setting(unit = "seconds", min = 5, max = 600)]
    pub task_lease_s: u64,
    /// The largest attachment: an argument larger than a message, which a method fetches from its caller. Half of
    /// `attachment_memory_bytes` if that is less.
    #[setting(unit = "bytes", min = 1_024)]
    pub attachment_bytes: usize,
    /// The memory for all attachments that are being fetched or that methods hold. An agent gets more only if it then has no more than
    /// what is left free; otherwise its methods wait, for up to 30 s.
    #[setting(unit = "bytes", min = 1_024)]
    pub attachment_memory_bytes: usize,
    /// Unsigned refusals, for all callers together. Beyond that, the service stays silent.
    #[setting(unit = "answers per second", min = 1, max = u32::MAX)]
    pub hints_per_second: u32,
    /// How many accepted messages may wait, in a queue for each agent. A message that finds no place is refused with a hint.
    #[setting(unit = "messages", min = 1)]
    pub queue: usize,
    /// The total size of the messages that wait or are handled.
    #[setting(unit = "bytes", min = 1_024)]
    pub queue_bytes: usize,
    /// How many messages are handled at a time, not counting open streams.
    #[setting(unit = "messages", min = 1)]
    pub in_flight: usize,
    /// How long stopping may take before calls that are still running are given up.
    #[setting(unit = "seconds", max = 86_400)]
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
            agent_tasks: service.tasks.per_agent,
            tasks: service.tasks.in_all,
            task_bytes: service.tasks.bytes,
            task_lease_s: service.tasks.lease.as_secs(),
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
