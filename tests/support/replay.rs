//! What the tests of replay guards offer.
//! Never signed: a guard is asked after the proof has held.

use sealwire::auth::Nonce;
use sealwire::{Clock as _, SystemClock};

/// A message issued now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Message {
    pub(crate) nonce: Nonce,
    pub(crate) iat: u64,
}

impl Message {
    pub(crate) fn new() -> Self {
        Self { nonce: Nonce::random(), iat: SystemClock.now_s() }
    }
}
