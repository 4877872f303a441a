//! Who sent this, and is it the first time we see it. Knows nothing of methods.

mod caller;

pub use caller::{Caller, ProofAlgorithm, TokenFacts};
