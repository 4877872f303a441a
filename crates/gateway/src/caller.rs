//! The caller on whose behalf the gateway queries and calls services.
//! Never authenticates: every caller here has already been let in.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sealwire::{Client, RequestBuilder};
use tokio::time::sleep;

/// How often to check whether a caller may still receive what it has begun.
pub(crate) const HOLDS: Duration = Duration::from_secs(2);

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

    /// Whether the caller may still receive what it has begun.
    fn is_still_valid(&self) -> bool;
}

/// Completes when the caller may no longer receive what it has begun.
pub(crate) async fn until_token_invalid(caller: &dyn Caller) {
    while caller.is_still_valid() {
        sleep(HOLDS).await;
    }
}
