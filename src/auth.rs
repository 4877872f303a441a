//! Who sent this, and is it the first time we see it. Knows nothing of methods.

mod caller;
mod replay;

pub use caller::{Caller, ProofAlgorithm, TokenFacts};
pub use replay::{
    Caps, CapsError, Floor, FloorError, GuardStats, LocalGuard, Nonce, OpenError, Outage, Refused, ReplayGuard, Window,
    WindowError,
};
