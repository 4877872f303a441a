//! The caller on whose behalf the door queries and calls services.
//! Never authenticates: every caller here has already been let in.

use std::fmt;
use std::sync::Arc;

use sealwire::client::{Client, RequestBuilder};

/// Someone the door makes calls for.
pub(crate) trait Caller: fmt::Debug + Send + Sync {
    /// The caller's name; callers of the same name may call the same methods.
    fn name(&self) -> &Arc<str>;

    /// Whether the caller may use this service.
    fn admits(&self, service: &str) -> bool;

    /// Whether the caller may still receive what it has begun.
    fn holds(&self) -> bool;

    /// A request to a service that the caller may use.
    fn request(&self, client: &Client, service: &str) -> RequestBuilder;
}

/// The door's agent itself, by name.
#[derive(Debug)]
pub(crate) struct Agent(pub(crate) Arc<str>);

impl Caller for Agent {
    fn name(&self) -> &Arc<str> {
        &self.0
    }

    fn admits(&self, _: &str) -> bool {
        true
    }

    fn holds(&self) -> bool {
        true
    }

    fn request(&self, client: &Client, service: &str) -> RequestBuilder {
        client.request(service)
    }
}
