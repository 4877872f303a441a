//! Puts in force what operators revoke, for as long as a service is on the bus.
//! Never lets a revoked call go on, and never stays silent while it cannot know what is revoked.

use std::sync::Arc;

use tokio::task::JoinHandle;

use super::shared::{Interruption, Shared};
use crate::auth::{FollowerId, FollowerRole, ListChange, RevocationEvent, RevocationFollower};
use crate::record::{Body, Kind, RevocationRecord};

/// Follows the bucket until it is aborted; does nothing without a configuration.
pub(super) fn start(shared: Arc<Shared>) -> JoinHandle<()> {
    tokio::spawn(async move {
        let endpoint = shared.service.endpoint();
        let id = FollowerId {
            role: FollowerRole::Service,
            name: endpoint.service().clone(),
            instance: shared.instance.clone(),
        };
        let revocations = Arc::clone(shared.service.verifier().revocations());
        RevocationFollower::new(revocations, id).run(|event| handle(&shared, event)).await;
    })
}

fn handle(shared: &Shared, event: RevocationEvent<'_>) {
    match event {
        RevocationEvent::NewList(change) => {
            // Other calls end by themselves: each waits for a new list beside its method.
            shared.service.review();
            record(shared, change);
        }
        RevocationEvent::Stale(reason) => {
            shared.interrupt(Interruption::Stale, reason.map(str::to_owned));
            shared.service.review();
        }
    }
}

fn record(shared: &Shared, change: &ListChange) {
    let Some(recorder) = shared.service.recorder() else { return };
    let ListChange { number, digest, signers, revoked, restored } = change.clone();
    let at_ms = shared.service.clock().now_ms();
    let line = RevocationRecord { at_ms, number, digest, signers, revoked, restored }.within_bounds();
    recorder.put(Kind::Revocation, Body::new(&line));
}
