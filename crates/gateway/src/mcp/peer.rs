//! The client that sent a request, and on whose behalf it calls.

use std::sync::Arc;

use sealwire::RequestBuilder;
use sealwire::internal::client::{Observer, TraceContext};
use sealwire::internal::trace::Trace;
use sealwire_mcp::{ClientCapabilities, Revision};

use super::outbox::Outbox;
use crate::bus::{Away, Bus, BusLink};
use crate::caller::Caller;
use crate::catalogue::Tool;

/// The client that sent a request.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    /// Identifies the client: an answer to a question, or a request that resumes a call, must come from the same.
    pub(crate) name: Arc<str>,
    /// Identifies the caller, in whichever session and with whichever token: its tasks are the same.
    pub(crate) principal: Arc<str>,
    /// Whether other requests of the same client have the same name, and no others.
    pub(crate) has_session: bool,
    /// The caller on whose behalf services are called.
    pub(crate) caller: Arc<dyn Caller>,
    /// For messages to the client before the response.
    pub(crate) out: Outbox,
    /// The trace context of its request: see [`trace`](super::message::trace).
    pub(crate) trace: TraceContext,
    /// The request over HTTP that it came with.
    pub(crate) around: Trace,
    /// Observes its calls.
    pub(crate) observer: Option<Arc<dyn Observer>>,
}

impl Peer {
    /// A request for a tool's method, observed if there is an observer.
    pub(super) async fn request(&self, bus: &Bus, tool: &Tool) -> Result<(RequestBuilder, BusLink), Away> {
        let (request, link) = bus.request(&*self.caller, &tool.service).await?;
        let relay = request.deadline(tool.deadline).relay().trace(&self.trace);
        Ok(match &self.observer {
            Some(observer) => (relay.observer(Arc::clone(observer)).request(), link),
            None => (relay.request(), link),
        })
    }
}

/// The client of a request, and what it can be asked for.
#[derive(Clone, Copy)]
pub(super) struct Requester<'a> {
    pub(super) peer: &'a Peer,
    pub(super) revision: Revision,
    pub(super) capabilities: ClientCapabilities,
}
