//! The sender of a request whose head was checked.
//! Never made of anything but what the caller has proved.

use std::sync::Arc;

use sealwire::internal::client::Observer;

use crate::http::arrival::Arrival;
use crate::http::head::CheckedHead;
use crate::http::identity::{Callers, Principal};
use crate::http::refusal::Refusal;

/// An authenticated caller, which has not been let in yet.
#[derive(Debug)]
pub(in crate::http) struct Authenticated(Principal);

impl Authenticated {
    /// Authenticates the sender of a request.
    pub(super) async fn sender(callers: &Callers, head: &CheckedHead) -> Result<Self, Refusal> {
        let principal = callers.authenticate(head).await.map_err(Refusal::anonymous)?;
        Ok(Self(principal.with_arrival(Arrival::of(head))))
    }

    pub(super) fn principal(&self) -> &Principal {
        &self.0
    }

    pub(super) fn into_principal(self) -> Principal {
        self.0
    }

    /// The same, with an observer of its calls.
    pub(super) fn with_observer(self, observer: Arc<dyn Observer>) -> Self {
        Self(self.0.with_observer(observer))
    }
}
