//! How a request arrived: from which address, and as part of which trace.
//! Never decisive: an address may be a proxy's, and anyone can write a trace id. Both are for logs and for whoever traces calls.

use std::net::SocketAddr;
use std::sync::OnceLock;

use hyper::header::HeaderName;
use hyper::http::request::Parts;
use sealwire::internal::client::TraceContext;

use super::connections::Peer;
use super::fields::single;

/// The headers of W3C Trace Context and W3C Baggage.
const TRACE: [HeaderName; 3] =
    [HeaderName::from_static("traceparent"), HeaderName::from_static("tracestate"), HeaderName::from_static("baggage")];

/// How a request arrived.
#[derive(Debug, Default)]
pub(crate) struct Arrival {
    peer: Option<SocketAddr>,
    trace: TraceContext,
    /// The trace that its message names, if it is another one.
    inner: OnceLock<TraceContext>,
}

impl Arrival {
    /// A header that occurs twice is ignored.
    pub(super) fn of(head: &Parts) -> Self {
        let [parent, state, baggage] = TRACE.map(|name| single(&head.headers, &name).ok().flatten());
        let peer = head.extensions.get::<Peer>().map(|peer| peer.0);
        Self { peer, trace: TraceContext::new(parent, state, baggage), inner: OnceLock::new() }
    }

    /// For the log.
    pub(super) fn peer(&self) -> Option<tracing::field::DisplayValue<SocketAddr>> {
        self.peer.map(tracing::field::display)
    }

    /// The trace in the head.
    pub(super) fn trace(&self) -> &TraceContext {
        &self.trace
    }

    /// Notes the trace of the message.
    pub(super) fn names(&self, trace: &TraceContext) {
        if *trace != self.trace {
            // A batch is named by its first message.
            let _ = self.inner.set(trace.clone());
        }
    }

    /// For the log.
    pub(super) fn trace_id(&self) -> Option<&str> {
        self.inner.get().unwrap_or(&self.trace).id()
    }
}
