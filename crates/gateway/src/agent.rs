//! The gateway's agent as a caller of its own: behind standard input, and for the page.
//! Never stands for a caller over HTTP.

use std::sync::Arc;

use sealwire::{Client, RequestBuilder};

use crate::bus::Bus;
use crate::caller::{BusCaller, Caller};
use crate::revocation::{Loss, Revocation};

/// The gateway's agent itself, by name. Services alone judge it.
#[derive(Debug)]
pub(crate) struct Agent(Arc<str>, Arc<Revocation>);

impl Agent {
    /// The agent of this connection.
    pub(crate) fn of(bus: &Bus) -> Self {
        Self(bus.agent().into(), Arc::default())
    }
}

impl BusCaller for Agent {
    fn request(&self, client: &Client, service: &str) -> RequestBuilder {
        client.request(service)
    }
}

impl Caller for Agent {
    fn name(&self) -> &Arc<str> {
        &self.0
    }

    fn admits(&self, _: &str) -> bool {
        true
    }

    fn revocation(&self) -> &Arc<Revocation> {
        &self.1
    }

    fn loss(&self, _: Option<(&str, &str)>) -> Option<Loss> {
        None
    }
}
