//! The settings of a shared guard, and why it cannot be opened. Data only.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::{NonceLimits, OpenError, Window};
use crate::name::Name;
use crate::wire::Nonce;

/// The settings of a [`SharedGuard`](crate::auth::SharedGuard). All replicas of a service must agree on all but `instance` and the waiting
/// times.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SharedConfig {
    /// The environment, such as `prod`.
    pub environment: Name,
    /// The service whose replicas share the guard.
    pub service: Name,
    /// The name by which the other replicas know this one, in the form of a [`Name`]; default 128 random bits. Never the same for two that
    /// run, nor for two runs.
    pub instance: String,
    /// The time window. The skew must be at least a second: it also bounds how far clocks may differ.
    pub window: Window,
    /// How many copies the stream must have. Default `None`: 3 in a cluster, 1 on a single server.
    pub replicas: Option<usize>,
    /// The most ids that the stream has room for; default 1,000,000, which is 10,000 messages a second. An id takes about 650 bytes of the
    /// broker's memory (measured), and stays for the window, twice the skew, and a minute. One owner can have a quarter of them at most,
    /// see [`SharedConfig::owner_share`].
    pub max_messages: i64,
    /// The most outcomes of idempotent calls that the service keeps; default 32,768. An agent on its own gets half of them.
    pub max_outcomes: i64,
    /// The most bytes of their stream, as the broker counts them, on each broker with a copy; default 16 MiB, which are reserved when the
    /// first service with an idempotent method starts. An agent on its own gets half of them.
    pub outcome_bytes: i64,
    /// Bounds on the nonces in this process.
    pub nonce_limits: NonceLimits,
    /// The most checks in flight; default 4,096. More are refused as [`AdmitError::Full`](crate::auth::AdmitError::Full).
    pub in_flight: usize,
    /// The most checks in flight of one owner; default 256. More are refused as
    /// [`AdmitError::OwnerFull`](crate::auth::AdmitError::OwnerFull).
    pub in_flight_per_owner: usize,
    /// How long the broker may take to answer a check, 10 ms to 1 s; default 250 ms. After that it is asked again, for two seconds.
    pub answer_within: Duration,
    /// How long [`SharedGuard::open`](crate::auth::SharedGuard::open) tries to reach the broker and the stream; default 10 s.
    pub open_within: Duration,
}

impl SharedConfig {
    /// The default of [`SharedConfig::max_messages`].
    pub const MAX_MESSAGES: i64 = 1_000_000;
    /// The default of [`SharedConfig::max_outcomes`].
    pub const MAX_OUTCOMES: i64 = 32_768;
    /// The default of [`SharedConfig::outcome_bytes`]: with three copies it fits, beside the guard's stream, into what `sealwire
    /// setup` grants a guard.
    pub const OUTCOME_BYTES: i64 = 16 << 20;
    /// The default of [`SharedConfig::answer_within`].
    pub const ANSWER_WITHIN: Duration = Duration::from_millis(250);

    /// The defaults for a service.
    #[must_use]
    pub fn new(environment: Name, service: Name) -> Self {
        Self {
            environment,
            service,
            instance: Nonce::random().to_text(),
            window: Window::default(),
            replicas: None,
            max_messages: Self::MAX_MESSAGES,
            max_outcomes: Self::MAX_OUTCOMES,
            outcome_bytes: Self::OUTCOME_BYTES,
            nonce_limits: NonceLimits::default(),
            in_flight: 4096,
            in_flight_per_owner: 256,
            answer_within: Self::ANSWER_WITHIN,
            open_within: Duration::from_secs(10),
        }
    }

    /// How long the stream must remember an id: a message may be admitted from `iat - 2S` to `exp + S` by the broker's clock, and the
    /// minute allows for brokers whose clocks differ.
    pub(super) fn memory(&self) -> Duration {
        Duration::from_secs(self.window.window_s + 2 * self.window.skew_s + 60)
    }

    /// How many ids of one owner the stream holds: as many as [`NonceLimits::owner`] allows in the window and the skew, scaled to the time
    /// for which the stream remembers; but at most a quarter of all, and at least what an instance needs for its probes.
    #[must_use]
    pub fn owner_share(&self) -> i64 {
        let (Window { window_s, skew_s }, memory_s) = (self.window, self.memory().as_secs());
        let cap = u128::try_from(self.nonce_limits.owner).unwrap_or(u128::MAX);
        let share = cap.saturating_mul(memory_s.into()).div_ceil((window_s + skew_s).max(1).into());
        let share = i64::try_from(share).unwrap_or(i64::MAX).min(self.max_messages / 4);
        share.max(i64::try_from(PROBES_PER_S * memory_s).unwrap_or(i64::MAX))
    }

    /// The most bytes of the stream, as the broker counts them and reserves them when it is created: enough for all ids with the longest
    /// names.
    #[must_use]
    pub fn stream_bytes(&self) -> i64 {
        let subject = self.subjects().len() + 64;
        let longest = i64::try_from(subject).unwrap_or(i64::MAX).saturating_add(ENTRY_BYTES);
        longest.saturating_mul(self.max_messages)
    }

    /// All subjects of the guard: of its stream, and of the one that keeps outcomes. Agents must not be allowed to publish there.
    #[must_use]
    pub fn subjects(&self) -> String {
        format!("rg.{}.{}.>", self.environment, self.service)
    }

    /// The subjects of the guard's stream.
    pub(super) fn guard_subjects(&self) -> [String; 2] {
        [format!("rg.{}.{}.*", self.environment, self.service), self.probe_subject("*")]
    }

    /// The subjects of the stream that keeps outcomes: of one agent and one key, or of all with `>`.
    pub(super) fn outcome_subject(&self, rest: &str) -> String {
        format!("rg.{}.{}.$outcome.{rest}", self.environment, self.service)
    }

    /// The subject under which this owner's checks are stored.
    pub(super) fn subject(&self, owner: &Name) -> String {
        format!("rg.{}.{}.{owner}", self.environment, self.service)
    }

    /// The subject of an instance's probes, or of all of them with `*`. No agent can be called `$probe`: names have no `$`.
    pub(super) fn probe_subject(&self, instance: &str) -> String {
        format!("rg.{}.{}.$probe.{instance}", self.environment, self.service)
    }
}

/// Why a [`SharedGuard`](crate::auth::SharedGuard) cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum SharedOpenError {
    /// The guard's part in this process cannot be opened.
    #[error(transparent)]
    Local(#[from] OpenError),
    /// The cargo feature `shared-guard` is off.
    #[error("this program was built without the shared replay guard: build `sealwire` with the feature `shared-guard`")]
    NotBuilt,
    /// Clocks on two machines are never equal.
    #[error("a shared replay guard needs a clock skew of at least 1 s")]
    NoSkew,
    /// The instance is a subject token.
    #[error("the instance `{}` is not of 1 to 64 characters A-Z a-z 0-9 _ -", crate::name::shown(.0))]
    Instance(String),
    /// Zero would mean no bound.
    #[error("the guard's streams must have room for at least one message")]
    NoRoom,
    /// With less, no broker answers in time; with more, a pause is noticed too late.
    #[error("a check may take {min} ms to {max} ms, not {0:?}", min = ANSWER_WITHIN.start().as_millis(), max = ANSWER_WITHIN.end().as_millis())]
    AnswerWithin(Duration),
    /// The stream cannot do the work: the broker's setup or the configuration is to blame.
    #[error("{0}")]
    Unfit(String),
    /// The broker, or the stream, was not ready in time, or cannot become so by itself.
    #[error("the replay guard is not ready: {0}")]
    NotReady(String),
}

/// An instance stores at most four probes a second.
const PROBES_PER_S: u64 = 5;

/// What the broker counts besides the subject: 16 bytes, and `NATS/1.0`, `Nats-Msg-Id: ` with an id of at most 64 + 1 + 22 bytes, line
/// ends, and 22 bytes of content. Rounded up, for probes.
const ENTRY_BYTES: i64 = 160;

/// The monitor verifies with the same patience, every 750 ms, and what it found is trusted for 2.5 s.
pub(crate) const ANSWER_WITHIN: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(1);
