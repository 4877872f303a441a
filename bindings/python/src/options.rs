//! What a request has beyond service, method and parameters.
//! Never guesses: what the library would not take is an error before anything is sent.

use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use sealwire::internal::client::{MessageId, Receipt as Proofs, Tokens as Inner, TraceContext};
use sealwire::{Client, RequestBuilder};

use crate::attachment::Attachment;
use crate::runtime::Owned;

/// The options of a request.
#[pyclass(frozen, module = "sealwire._core")]
pub(crate) struct Options {
    deadline: Option<Duration>,
    idempotency_key: Option<String>,
    idempotent: bool,
    detached: bool,
    task_limit: Option<Duration>,
    wait_approval: Option<Duration>,
    on_method_subject: bool,
    window: Option<u64>,
    max_bytes: Option<usize>,
    lease: Option<Duration>,
    capable_of: Vec<String>,
    trace: Option<TraceContext>,
    tokens: Option<Inner>,
    receipt: Option<(MessageId, Proofs)>,
    attached: Vec<sealwire::call::Attachment>,
}

/// The proofs of a request and of its answer, with which others can check, without any secret, that exactly these bytes were asked and
/// answered. Under an HMAC key only the two parties can.
#[pyclass(frozen, module = "sealwire")]
#[derive(Default)]
pub(crate) struct Receipt {
    id: MessageId,
    proofs: Proofs,
}

/// Tokens for requests that are not made with the agent's own.
#[pyclass(frozen, module = "sealwire._core")]
pub(crate) struct Tokens(Owned<Inner>);

#[pymethods]
impl Options {
    #[new]
    #[pyo3(signature = (*, deadline=None, idempotency_key=None, idempotent=false, detached=false, task_limit=None, wait_approval=None,
                        on_method_subject=false, window=None, max_bytes=None, lease=None, capable_of=Vec::new(), trace=None, tokens=None, receipt=None, attached=Vec::new()))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn new(
        py: Python<'_>,
        deadline: Option<f64>,
        idempotency_key: Option<String>,
        idempotent: bool,
        detached: bool,
        task_limit: Option<f64>,
        wait_approval: Option<f64>,
        on_method_subject: bool,
        window: Option<u64>,
        max_bytes: Option<usize>,
        lease: Option<f64>,
        capable_of: Vec<String>,
        trace: Option<(Option<String>, Option<String>, Option<String>)>,
        tokens: Option<&Tokens>,
        receipt: Option<&Receipt>,
        attached: Vec<PyRef<'_, Attachment>>,
    ) -> PyResult<Self> {
        let trace = trace
            .map(|(parent, state, baggage)| TraceContext::new(parent.as_deref(), state.as_deref(), baggage.as_deref()));
        Ok(Self {
            deadline: deadline.map(|seconds| duration("deadline", seconds)).transpose()?,
            idempotency_key,
            idempotent,
            detached,
            task_limit: task_limit.map(|seconds| duration("task_limit", seconds)).transpose()?,
            wait_approval: wait_approval.map(|seconds| duration("wait_approval", seconds)).transpose()?,
            on_method_subject,
            window,
            max_bytes,
            lease: lease.map(|seconds| duration("lease", seconds)).transpose()?,
            capable_of,
            trace,
            tokens: tokens.map(|tokens| tokens.0.get(py).cloned()).transpose()?,
            receipt: receipt.map(|receipt| (receipt.id.clone(), receipt.proofs.clone())),
            attached: attached.iter().map(|attachment| attachment.inner(py)).collect::<PyResult<_>>()?,
        })
    }
}

impl Options {
    /// A request with these options, and where its id will stand.
    pub(crate) fn request(&self, client: &Client, service: &str) -> (RequestBuilder, MessageId) {
        let mut relay = client.request(service).relay();
        let id = match &self.receipt {
            Some((id, proofs)) => {
                relay = relay.capture_receipt(proofs);
                id.clone()
            }
            None => MessageId::default(),
        };
        relay = relay.capture_id(&id);
        if let Some(tokens) = &self.tokens {
            relay = relay.tokens(tokens);
        }
        if let Some(trace) = &self.trace {
            relay = relay.trace(trace);
        }
        let mut request = relay.request();
        if let Some(deadline) = self.deadline {
            request = request.deadline(deadline);
        }
        if let Some(key) = &self.idempotency_key {
            request = request.idempotency_key(key.as_str());
        }
        if self.idempotent {
            request = request.idempotent();
        }
        if self.detached {
            request = request.detached();
        }
        if let Some(limit) = self.task_limit {
            request = request.task_limit(limit);
        }
        if let Some(limit) = self.wait_approval {
            request = request.await_approval(limit);
        }
        if self.on_method_subject {
            request = request.on_method_subject();
        }
        if let Some(window) = self.window {
            request = request.window(window);
        }
        if let Some(bytes) = self.max_bytes {
            request = request.max_bytes(bytes);
        }
        if let Some(lease) = self.lease {
            request = request.lease(lease);
        }
        if !self.capable_of.is_empty() {
            request = request.capable_of(self.capable_of.iter().map(String::as_str));
        }
        for attachment in &self.attached {
            request = request.attach(attachment);
        }
        (request, id)
    }
}

#[pymethods]
impl Receipt {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// The id of the message that was sent last, as the service's log has it.
    #[getter]
    fn message_id(&self) -> Option<String> {
        self.id.get()
    }

    /// The proof of the request that was sent last, without the token.
    #[getter]
    fn request(&self) -> Option<String> {
        self.proofs.request()
    }

    /// The proof of the verified answer that the request ended with.
    #[getter]
    fn answer(&self) -> Option<String> {
        self.proofs.answer()
    }

    fn __repr__(&self) -> String {
        self.id.get().map_or_else(|| "Receipt()".to_owned(), |id| format!("Receipt(message_id='{id}')"))
    }
}

impl Tokens {
    pub(crate) fn new(tokens: Inner) -> Self {
        Self(Owned::new(tokens))
    }
}

/// # Errors
/// `ValueError` for what is no length of time.
pub(crate) fn duration(what: &str, seconds: f64) -> PyResult<Duration> {
    let found = Duration::try_from_secs_f64(seconds);
    found.map_err(|_| PyValueError::new_err(format!("`{what}` is a number of seconds, not {seconds}")))
}
