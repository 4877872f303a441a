//! Where replicas ask about each other, and what they say about themselves there and on `$SRV`.

use crate::wire::Endpoint;

/// Metadata: `<environment>/<service>`.
pub(super) const AUDIENCE: &str = "sealwire.audience";
/// Metadata: what the service subscribes to.
pub(super) const SUBJECT: &str = "sealwire.subject";
/// Metadata: the replay guard, `local` or `shared`.
pub(super) const GUARD: &str = "sealwire.guard";
/// Metadata: what must be the same for all replicas, see `GuardIdentity`.
pub(super) const GUARD_IDENTITY: &str = "sealwire.guard.identity";
/// Metadata: whether the guard would judge a message now, `true` or `false`.
pub(super) const GUARD_READY: &str = "sealwire.guard.ready";
/// Metadata: when the replica started, milliseconds since the Unix epoch.
pub(super) const STARTED: &str = "sealwire.started";
/// Metadata: the state.
pub(super) const STATE: &str = "sealwire.state";
/// Metadata: the kinds of files whose present state is refused, separated by `, `; absent if there are none.
pub(super) const REFUSED: &str = "sealwire.refused";
/// Metadata: the policy's revision.
pub(super) const POLICY: &str = "sealwire.policy";

/// The subject on which replicas ask each other. Only the service's own user may publish or listen there.
pub(super) fn peers(endpoint: &Endpoint) -> String {
    format!("{}.replica.peers", endpoint.service_inbox())
}
