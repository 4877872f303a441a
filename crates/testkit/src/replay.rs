//! What the tests of replay guards offer.
//! Never signed: a guard is asked only after the proof was verified.

use sealwire::internal::wire::Nonce;
use sealwire::{Clock as _, SystemClock};

/// A message issued now.
#[derive(Debug, Clone, Copy)]
pub struct Message {
    pub nonce: Nonce,
    pub iat: u64,
}

impl Message {
    pub fn new() -> Self {
        Self { nonce: Nonce::random(), iat: SystemClock.now_s() }
    }
}
