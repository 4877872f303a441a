//! Whether a message is seen for the first time: one atomic question, asked once the caller is known.
//! Never answers "first" when it cannot be sure: whatever a guard cannot vouch for is refused.
//!
//! A message is identified by its owner (the agent whose key proved it) and its [`Nonce`]. A guard remembers the pair
//! for as long as the message could be valid. The start of that memory is marked by the *fence*: a message issued at or
//! before the fence is stale.
//!
//! | guard | remembers | replicas |
//! |---|---|---|
//! | [`LocalGuard`] | in the process, with a small state file | one |
//! | [`SharedGuard`] | in the process, then in a JetStream stream | any number |

mod counters;
mod floor;
mod guard;
mod identity;
mod latency;
mod local;
mod nonce_limits;
mod nonce_table;
#[cfg(feature = "shared-guard")]
mod shared;
mod shared_config;
mod window;

pub use floor::{TimeFloor, TimeFloorError};
pub use guard::{AdmitError, GuardStats, Outage, ReplayGuard, SharedStats};
pub use identity::GuardIdentity;
pub use latency::Latency;
pub use local::{LocalGuard, OpenError};
pub use nonce_limits::{NonceLimits, NonceLimitsError};
#[cfg(feature = "shared-guard")]
pub use shared::SharedGuard;
pub(crate) use shared_config::ANSWER_WITHIN;
pub use shared_config::{SharedConfig, SharedOpenError};
pub use window::{Window, WindowError};
