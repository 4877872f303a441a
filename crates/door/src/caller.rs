//! On whose behalf services are asked and called.
//! Never what makes a caller known: whoever is here has been let in.

use std::fmt;
use std::sync::Arc;

use sealwire::client::{Client, RequestBuilder};

/// One for whom the door calls.
pub(crate) trait Caller: fmt::Debug + Send + Sync {
    /// Who is named the same may call the same.
    fn name(&self) -> &Arc<str>;

    /// Whether it may come in for this service.
    fn admits(&self, service: &str) -> bool;

    /// Whether it may still have what it has begun.
    fn holds(&self) -> bool;

    /// A request to a service that it may come in for.
    fn request(&self, client: &Client, service: &str) -> RequestBuilder;
}

/// The door's agent itself, by its name.
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
