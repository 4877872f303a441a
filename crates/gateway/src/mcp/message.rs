//! What the gateway answers: results in the form of each revision, errors, and responses.
//! Never says in an error what only the gateway's log may say.

use std::sync::Arc;

use sealwire::RpcError;
use sealwire::errors::TokenFault;
use sealwire::internal::client::TraceContext;
use sealwire_mcp::{ClientCapabilities, Id, Implementation, Members, Meta, Revision, code, insert, raw};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// The revision with a handshake of this name, if the gateway speaks it.
pub(crate) fn with_handshake(version: &str) -> Option<Revision> {
    Revision::parse(version).filter(|revision| revision.has_handshake() && *revision != Revision::V2024_11_05)
}

/// A result in the form of this revision; `ttl_ms` says how long callers may cache it.
pub(crate) fn complete_result(revision: Revision, mut members: Members, ttl_ms: Option<u64>) -> Box<RawValue> {
    for member in ["resultType", "ttlMs", "cacheScope"] {
        members.remove(member);
    }
    if let Some(ttl_ms) = ttl_ms.filter(|_| !revision.has_handshake()) {
        insert(&mut members, "ttlMs", &ttl_ms);
        // It depends on what this agent may call.
        insert(&mut members, "cacheScope", &"private");
    }
    result_of_type(revision, "complete", members)
}

/// A result of this type in the form of this revision.
pub(super) fn result_of_type(revision: Revision, kind: &str, mut members: Members) -> Box<RawValue> {
    if !revision.has_handshake() {
        insert(&mut members, "resultType", &kind);
        let meta = members.get("_meta").and_then(|meta| serde_json::from_str::<Members>(meta.get()).ok());
        let mut meta = meta.unwrap_or_default();
        insert(&mut meta, "io.modelcontextprotocol/serverInfo", &Implementation::SEALWIRE);
        insert(&mut members, "_meta", &meta);
    }
    raw(&members)
}

/// The error for an unsupported revision. It does not list the revisions with a handshake, which a request cannot name in `_meta`.
pub(crate) fn unsupported(version: &str) -> Fault {
    let data = json!({ "supported": [Revision::V2026_07_28], "requested": version });
    Fault::new(code::UNSUPPORTED_VERSION, "Unsupported protocol version").with(data)
}

/// What the request's client can be asked for, if the request names the revision without a handshake; `None` if it names none.
pub(crate) fn declared(meta: &Meta) -> Result<Option<ClientCapabilities>, Fault> {
    match (&meta.version, &meta.capabilities) {
        (Some(version), _) if version != Revision::V2026_07_28.as_str() => Err(unsupported(version)),
        (Some(_), Some(capabilities)) => Ok(Some(*capabilities)),
        (Some(_), None) => Err(Fault::params("`io.modelcontextprotocol/clientCapabilities` is missing in `_meta`")),
        (None, _) => Ok(None),
    }
}

/// The trace context of a request: its own has priority over the HTTP request's.
pub(crate) fn trace(Meta { traceparent, tracestate, baggage, .. }: &Meta, head: &TraceContext) -> TraceContext {
    if traceparent.is_none() && baggage.is_none() {
        return head.clone();
    }
    TraceContext::new(traceparent.as_deref(), tracestate.as_deref(), baggage.as_deref())
}

/// A JSON-RPC error.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Fault {
    pub(crate) code: i32,
    pub(crate) message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) data: Option<Value>,
    /// Set if there was no token to call with. Its text is for the gateway's log, not for callers.
    #[serde(skip)]
    pub(crate) token: Option<Arc<TokenFault>>,
}

impl Fault {
    pub(crate) fn new(code: i32, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None, token: None }
    }

    pub(crate) fn with(mut self, data: Value) -> Self {
        self.data = Some(data);
        self
    }

    pub(crate) fn params(message: impl Into<String>) -> Self {
        Self::new(-32602, message)
    }

    /// The parameters cannot be read.
    pub(crate) fn of_params(error: serde_json::Error) -> Self {
        Self::params(error.to_string())
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(-32603, message)
    }

    /// There was no token to call with. The log says why.
    pub(crate) fn of_token(fault: &Arc<TokenFault>) -> Self {
        tracing::warn!(target: "sealwire::gateway", error = %fault, "no token");
        let fault = Some(Arc::clone(fault));
        let told = Self::internal("no token for the service, nothing was sent").with(json!({ "outcome": "not_sent" }));
        Self { token: fault, ..told }
    }

    /// A service's error. Sealwire's own codes lie in the range that MCP reserves, so they lose their sign.
    pub(crate) fn of_service(error: &RpcError) -> Self {
        let code = match error.profile_code() {
            Some(code @ -32099..=-32000) => -code,
            _ => error.code(),
        };
        let data = error.data().and_then(|data| serde_json::from_str(data.get()).ok());
        Self { data, ..Self::new(code, error.message()) }
    }
}

/// What a request ends with.
pub(crate) type Outcome = Result<Box<RawValue>, Fault>;

#[derive(Serialize)]
pub(crate) struct Response<'a> {
    jsonrpc: &'static str,
    /// Left out if no id could be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a Id>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a Fault>,
}

impl<'a> Response<'a> {
    pub(crate) fn new(id: Option<&'a Id>, outcome: &'a Outcome) -> Self {
        Self { jsonrpc: "2.0", id, result: outcome.as_deref().ok(), error: outcome.as_ref().err() }
    }
}

impl Response<'_> {
    /// The response as text.
    pub(crate) fn text(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}
