//! The steps of a message's way whose durations are reported.
//! Never more of them than a diagram can show.

/// A step of a message's way, as its duration is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::service) enum Stage {
    /// Sizes, subject, the security header.
    Shape,
    /// Proof and token, with the wait for a turn at an Ed25519 check; and the caller's rate.
    Auth,
    /// The replay guard.
    Guard,
    /// The body, and a place among the calls.
    Parse,
    /// The decision on one entry.
    Policy,
    /// The method, for one entry.
    Method,
    /// The signature of the answer.
    Seal,
}
