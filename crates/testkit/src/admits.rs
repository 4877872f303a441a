//! A replay guard that admits everything, for tests of what a guard keeps besides nonces.
//! Never stands in a test of replays.

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use sealwire::Name;
use sealwire::internal::auth::{AdmitError, GuardIdentity, GuardStats, OutcomeStore, ReplayGuard, Window};
use sealwire::internal::wire::Nonce;
use tokio::time::Instant;

/// Admits every message, and keeps outcomes and approvals in a store that a test has in its hands.
#[derive(Debug)]
pub struct Admits(Arc<dyn OutcomeStore>);

impl Admits {
    /// Over a store that several replicas may share.
    pub fn over(outcomes: Arc<dyn OutcomeStore>) -> Arc<dyn ReplayGuard> {
        Arc::new(Self(outcomes))
    }
}

impl ReplayGuard for Admits {
    fn fence(&self) -> u64 {
        0
    }

    fn admit<'a>(
        &'a self,
        _owner: &'a Name,
        _nonce: Nonce,
        _iat: u64,
        _exp: u64,
        _received: Instant,
    ) -> BoxFuture<'a, Result<(), AdmitError>> {
        async { Ok(()) }.boxed()
    }

    fn kind(&self) -> &'static str {
        "shared"
    }

    fn identity(&self) -> GuardIdentity {
        GuardIdentity::new("shared", Window::default())
    }

    fn outcomes(&self) -> Option<Arc<dyn OutcomeStore>> {
        Some(Arc::clone(&self.0))
    }

    fn not_ready(&self) -> Option<String> {
        None
    }

    fn stats(&self) -> GuardStats {
        GuardStats::default()
    }
}
