//! Puts in force the policies that operators distribute, for as long as a service is on the bus.
//! Never stays silent about one that was refused.

use std::sync::{Arc, PoisonError};
use std::time::SystemTime;

use tokio::task::JoinHandle;

use super::shared::Shared;
use super::state::RefusedReload;
use crate::auth::{FollowerId, FollowerRole};
use crate::policy::{PackageEvent, PackageFollower};

/// Follows the bucket until it is aborted, if policies come from there.
pub(super) fn start(shared: Arc<Shared>) -> Option<JoinHandle<()>> {
    let packages = Arc::clone(shared.options.packages.as_ref()?);
    if packages.standing().refused.is_some() {
        refused(&shared);
    }
    if let Some(why) = shared.service.policy().revision().why() {
        packages.denies(why);
    }
    let endpoint = shared.service.endpoint();
    let (role, name) = (FollowerRole::Service, endpoint.service().clone());
    let id = FollowerId { role, name, instance: shared.instance.clone() };
    let follower = PackageFollower::new(packages, id, shared.service.policy().methods());
    Some(tokio::spawn(async move {
        let following = Following(shared);
        follower.run(|event| handle(&following.0, event)).await;
    }))
}

/// With the end of it, nothing is compared any more.
struct Following(Arc<Shared>);

impl Drop for Following {
    fn drop(&mut self) {
        self.0.service.compare_with(None);
    }
}

fn handle(shared: &Shared, event: PackageEvent) {
    match event {
        PackageEvent::New(set) => {
            shared.service.replace_policy(set);
            shared.health.tries.count(WHAT, |tried| tried.applied += 1);
            shared.health.reloads.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&POSITION);
        }
        PackageEvent::Refused => refused(shared),
        PackageEvent::Shadow(shadow) => shared.service.compare_with(shadow),
    }
}

fn refused(shared: &Shared) {
    shared.service.counters().refused("reload");
    shared.health.tries.count(WHAT, |tried| tried.refused += 1);
    let new = RefusedReload { what: WHAT, since: SystemTime::now(), closed: false };
    shared.health.reloads.0.lock().unwrap_or_else(PoisonError::into_inner).entry(POSITION).or_insert(new);
}

/// As a folder of policies is called, which is not watched then.
pub(super) const WHAT: &str = "policy";
/// Behind all files that are watched.
const POSITION: usize = usize::MAX;
