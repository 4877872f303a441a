//! What the policy says of calls that nobody has made.
//! Never makes a permit: such an answer lets nothing through.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use serde_json::value::RawValue;

use crate::auth::Caller;
use crate::clock::Clock;
use crate::policy::{PolicySet, Question};

/// The policy in force, also after a newer one has replaced it, and the time by which it decides.
pub(super) struct PolicyInForce {
    policy: Arc<ArcSwap<PolicySet>>,
    clock: Arc<dyn Clock>,
}

impl PolicyInForce {
    pub(super) fn new(policy: &Arc<ArcSwap<PolicySet>>, clock: &Arc<dyn Clock>) -> Self {
        Self { policy: Arc::clone(policy), clock: Arc::clone(clock) }
    }

    /// Whether it would allow a call. That is no permit: the call is not made.
    pub(super) fn allows(&self, caller: &Caller, method: &str, params: Option<&RawValue>) -> bool {
        let now_ms = self.clock.now_ms();
        self.policy.load().decide(&Question { caller, method, params, now_ms }).is_allow()
    }
}

impl fmt::Debug for PolicyInForce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyInForce").field("revision", self.policy.load().revision()).finish_non_exhaustive()
    }
}
