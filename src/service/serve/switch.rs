//! Puts in force what operators revoke, for as long as a service is on the bus.
//! Never lets a revoked call go on, and never stays silent while it cannot know what is revoked.

use std::sync::Arc;

use tokio::task::JoinHandle;

use super::shared::{Interruption, Shared};
use crate::auth::{Applied, Change, Follower, Who};
use crate::record::{Body, Kind, SwitchRecord};

/// Follows the bucket until it is aborted; does nothing without a switch.
pub(super) fn start(shared: Arc<Shared>) -> JoinHandle<()> {
    tokio::spawn(async move {
        let Some(config) = shared.options.switch.clone() else { return };
        let endpoint = shared.service.endpoint();
        let who = Who { name: endpoint.service().clone(), instance: shared.instance.clone() };
        let switch = Arc::clone(shared.service.verifier().switch());
        Follower::new(switch, config, who).run(|change| put(&shared, change)).await;
    })
}

fn put(shared: &Shared, change: Change<'_>) {
    match change {
        Change::Applied(applied) => {
            // Other calls end by themselves: each waits for the switch beside its method.
            shared.service.review();
            record(shared, applied);
        }
        Change::Blind(reason) => {
            shared.interrupt(Interruption::Blind, reason);
            shared.service.review();
        }
    }
}

fn record(shared: &Shared, applied: &Applied) {
    let Some(recorder) = shared.service.recorder() else { return };
    let Applied { number, digest, signers, revoked, restored } = applied.clone();
    let at_ms = shared.service.clock().now_ms();
    let line = SwitchRecord { at_ms, number, digest, signers, revoked, restored }.within_bounds();
    recorder.put(Kind::Switch, Body::new(&line));
}
