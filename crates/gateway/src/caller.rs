//! The caller on whose behalf the gateway queries and calls services.
//! Never authenticates: every caller here has already been let in.

use std::fmt;
use std::sync::Arc;

use sealwire::{Client, RequestBuilder};
use tokio::time::sleep;

use crate::revocation::{HOLDS, Hold, Loss, Revocation};

/// Someone the gateway makes requests for.
pub(crate) trait BusCaller: fmt::Debug + Send + Sync {
    /// A request to a service that the caller may use.
    fn request(&self, client: &Client, service: &str) -> RequestBuilder;
}

/// Someone who may use several services.
pub(crate) trait Caller: BusCaller {
    /// The caller's name; callers of the same name may call the same methods.
    fn name(&self) -> &Arc<str>;

    /// Whether the caller may use this service.
    fn admits(&self, service: &str) -> bool;

    /// What operators have revoked here.
    fn revocation(&self) -> &Arc<Revocation>;

    /// Why the caller may no longer receive what it has begun: a call of this service and method, or anything.
    fn loss(&self, call: Option<(&str, &str)>) -> Option<Loss>;
}

/// Completes when the caller may no longer receive what it has begun.
pub(crate) async fn until_lost(caller: &dyn Caller) {
    let mut changes = caller.revocation().changes();
    while caller.loss(None).is_none() {
        tokio::select! {
            () = sleep(HOLDS) => {}
            Ok(()) = changes.changed() => {}
        }
    }
}

/// What the caller has begun: a call of this service and method, or anything.
pub(crate) fn hold(caller: &Arc<dyn Caller>, call: Option<(&str, &str)>) -> Hold {
    let (held, call) = (Arc::clone(caller), call.map(|(service, method)| (service.to_owned(), method.to_owned())));
    Hold::new(caller.revocation(), call.is_some(), move || {
        held.loss(call.as_ref().map(|(service, method)| (&**service, &**method)))
    })
}
