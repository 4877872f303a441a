//! A caller at the HTTP door, on whose behalf services are called.
//! Never a caller that has not been let in.

use std::sync::Arc;

use sealwire::client::{Client, RequestBuilder};

use crate::caller::Caller;
use crate::http::callers::Callers;
use crate::http::config::Expose;
use crate::http::principal::Principal;

#[derive(Debug)]
pub(super) struct AtDoor {
    pub(super) callers: Arc<Callers>,
    pub(super) principal: Principal,
    /// Includes the token, since another token of the same caller may have different rights.
    pub(super) name: Arc<str>,
    pub(super) exposed: Arc<[Expose]>,
}

impl AtDoor {
    fn exposed(&self, service: &str) -> Option<&Expose> {
        self.exposed.iter().find(|expose| expose.service.as_str() == service)
    }
}

impl Caller for AtDoor {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn admits(&self, service: &str) -> bool {
        self.exposed(service).is_some_and(|expose| self.callers.admits(&self.principal, expose).is_ok())
    }

    fn holds(&self) -> bool {
        self.callers.holds(&self.principal)
    }

    fn request(&self, client: &Client, service: &str) -> RequestBuilder {
        match self.exposed(service) {
            Some(expose) => self.callers.request(client, &self.principal, expose),
            // Does not happen. If callers have tokens, this client has none of its own, so the call would fail.
            None => client.request(service),
        }
    }
}
