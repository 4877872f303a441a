//! Why a service cannot start, or did not stop in time.

use crate::nats::BusError;

/// A service cannot start, or did not stop in time.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The broker.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// Another replica answers on the bus, and the two do not remember nonces in one place: a captured message would run
    /// once in each. This replica does not start; or, if it already serves and started later than the other, it stops.
    #[error(
        "another replica of `{audience}` (instance {instance}, replay guard `{guard}`) answers on the bus, and this one's \
         guard is `{own}`, and they cannot serve beside each other: {why}; stop the other one first, or give all replicas \
         the same shared guard"
    )]
    AnotherReplica {
        /// `<environment>/<service>`.
        audience: String,
        /// The other instance's id.
        instance: String,
        /// Its guard.
        guard: String,
        /// Ours.
        own: &'static str,
        /// What differs.
        why: String,
    },
    /// Whether there is another replica cannot be determined.
    #[error(
        "cannot look for other replicas of `{audience}`: the broker does not carry `{subject}` from this user and back. \
         Permit it to publish and subscribe `{below}.>`, and nobody else"
    )]
    Blind {
        /// `<environment>/<service>`.
        audience: String,
        /// Where replicas ask each other.
        subject: String,
        /// The prefix of all those subjects.
        below: String,
    },
    /// The replay guard's name for this replica cannot be part of a subject.
    #[error("the replay guard names this instance so that callers cannot address it: {0}")]
    Instance(String),
    /// The broker does not let this user subscribe.
    #[error("the broker forbids this user to subscribe to `{0}`: permit it")]
    Subscribe(String),
    /// Accepted work did not end within the time for draining.
    #[error("{0} accepted messages were not finished within the time for draining")]
    Drain(usize),
}
