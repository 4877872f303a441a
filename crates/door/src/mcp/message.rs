//! MCP messages as they appear on a line, and the differences between the revisions of the protocol.
//! Never reads more of parameters or results than the door itself needs.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use sealwire::client::{TokenFault, TraceContext};
use sealwire::rpc::RpcError;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};

use crate::json;

/// The revision without a handshake.
pub(crate) const MODERN: &str = "2026-07-28";

/// Revisions that begin with `initialize`, the oldest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Legacy {
    #[serde(rename = "2025-03-26")]
    V2025_03_26,
    #[serde(rename = "2025-06-18")]
    V2025_06_18,
    #[serde(rename = "2025-11-25")]
    V2025_11_25,
}

impl Legacy {
    /// The requested revision if it is known, otherwise the newest.
    pub(crate) fn negotiated(asked: &str) -> Self {
        Self::of(asked).unwrap_or(Self::V2025_11_25)
    }

    pub(crate) fn of(version: &str) -> Option<Self> {
        let known = [Self::V2025_11_25, Self::V2025_06_18, Self::V2025_03_26];
        known.into_iter().find(|known| known.as_str() == version)
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::V2025_11_25 => "2025-11-25",
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_03_26 => "2025-03-26",
        }
    }
}

/// The revision of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Era {
    Modern,
    Legacy(Legacy),
}

impl Era {
    /// Whether tools have an `outputSchema`, and results a `structuredContent`.
    pub(crate) fn has_structured_content(self) -> bool {
        self != Self::Legacy(Legacy::V2025_03_26)
    }

    /// Whether `structuredContent` must be an object.
    pub(crate) fn wants_objects(self) -> bool {
        self != Self::Modern
    }

    /// A result in the form of this revision; `ttl_ms` says how long callers may cache it.
    pub(crate) fn result(self, mut members: Members, ttl_ms: Option<u64>) -> Box<RawValue> {
        for member in ["resultType", "ttlMs", "cacheScope"] {
            members.remove(member);
        }
        if self == Self::Modern {
            members.insert("resultType".to_owned(), raw("complete"));
            if let Some(ttl_ms) = ttl_ms {
                members.insert("ttlMs".to_owned(), raw(&ttl_ms));
                // It depends on what this agent may call.
                members.insert("cacheScope".to_owned(), raw("private"));
            }
            let meta = members.get("_meta").and_then(|meta| serde_json::from_str::<Members>(meta.get()).ok());
            let mut meta = meta.unwrap_or_default();
            meta.insert("io.modelcontextprotocol/serverInfo".to_owned(), raw(&server_info()));
            members.insert("_meta".to_owned(), raw(&meta));
        }
        raw(&members)
    }
}

/// The members of an object, with their values left unparsed.
pub(crate) type Members = BTreeMap<String, Box<RawValue>>;

/// The value as JSON; null if it cannot be serialized, which does not happen here.
pub(crate) fn raw<T: Serialize + ?Sized>(value: &T) -> Box<RawValue> {
    to_raw_value(value).unwrap_or_default()
}

/// An object with these members.
pub(crate) fn members<const N: usize>(pairs: [(&str, Value); N]) -> Members {
    pairs.into_iter().map(|(name, value)| (name.to_owned(), raw(&value))).collect()
}

pub(crate) fn server_info() -> Value {
    json!({ "name": "sealwire", "version": env!("CARGO_PKG_VERSION") })
}

/// A JSON-RPC message, as it stands on a line.
#[derive(Deserialize)]
pub(crate) struct Message<'a> {
    #[serde(borrow)]
    pub(crate) jsonrpc: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(crate) id: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(crate) params: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) result: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) error: Option<&'a RawValue>,
}

/// A member that is present, even if it is null.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// The id of a request: a string or an integer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Id {
    Number(i64),
    Text(String),
}

/// The request parameters that the door itself reads.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Asked {
    #[serde(rename = "_meta", default, deserialize_with = "json::member")]
    pub(crate) meta: Meta,
    #[serde(default)]
    pub(crate) cursor: Option<String>,
    #[serde(default)]
    pub(crate) name: Option<String>,
    #[serde(default)]
    pub(crate) uri: Option<String>,
    #[serde(default)]
    pub(crate) arguments: Option<Box<RawValue>>,
    #[serde(rename = "inputResponses", default)]
    pub(crate) responses: Option<Map<String, Value>>,
    #[serde(rename = "requestState", default)]
    pub(crate) state: Option<String>,
    #[serde(default, deserialize_with = "json::member")]
    pub(crate) notifications: Wanted,
}

impl Asked {
    pub(crate) fn read(params: Option<&RawValue>) -> Result<Self, Fault> {
        let asked = params.map_or_else(|| Ok(Self::default()), |params| json::object(params.get()));
        asked.map_err(|error: serde_json::Error| Fault::params(error.to_string()))
    }
}

/// The error for an unsupported revision. It does not list the revisions with a handshake, which a request cannot name in `_meta`.
pub(crate) fn unsupported(version: &str) -> Fault {
    let data = json!({ "supported": [MODERN], "requested": version });
    Fault::new(-32022, "Unsupported protocol version").with(data)
}

/// The capabilities of the request's client, if the request names the revision without a handshake; `None` if it names none.
pub(crate) fn modern(meta: &Meta) -> Result<Option<Capabilities>, Fault> {
    match (&meta.version, &meta.capabilities) {
        (Some(version), _) if version != MODERN => Err(unsupported(version)),
        (Some(_), Some(capabilities)) => Ok(Some(capabilities.clone())),
        (Some(_), None) => Err(Fault::params("`io.modelcontextprotocol/clientCapabilities` is missing in `_meta`")),
        (None, _) => Ok(None),
    }
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct Meta {
    #[serde(rename = "io.modelcontextprotocol/protocolVersion", default)]
    pub(crate) version: Option<String>,
    #[serde(rename = "io.modelcontextprotocol/clientCapabilities", default, deserialize_with = "json::optional")]
    pub(crate) capabilities: Option<Capabilities>,
    #[serde(rename = "progressToken", default)]
    pub(crate) progress: Option<Id>,
    /// The lowest level of log messages that the client wants.
    #[serde(rename = "io.modelcontextprotocol/logLevel", default)]
    pub(crate) level: Option<Level>,
    #[serde(default, deserialize_with = "text")]
    traceparent: Option<String>,
    #[serde(default, deserialize_with = "text")]
    tracestate: Option<String>,
    #[serde(default, deserialize_with = "text")]
    baggage: Option<String>,
}

/// The severity of a log message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    Debug,
    Info,
    Notice,
    Warning,
    Error,
    Critical,
    Alert,
    Emergency,
}

/// A string; any other value is ignored.
fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::String(text) => Some(text),
        _ => None,
    })
}

impl Meta {
    /// Whether the client wants progress or log messages before the response.
    pub(crate) fn is_told(&self) -> bool {
        self.progress.is_some() || self.level.is_some()
    }

    /// The trace context of the request: its own has priority over the HTTP request's.
    pub(crate) fn trace(&self, head: &TraceContext) -> TraceContext {
        let Self { traceparent, tracestate, baggage, .. } = self;
        if traceparent.is_none() && baggage.is_none() {
            return head.clone();
        }
        TraceContext::new(traceparent.as_deref(), tracestate.as_deref(), baggage.as_deref())
    }

    /// The `_meta` of a message whose other parameters are not read.
    pub(crate) fn of(params: Option<&RawValue>) -> Self {
        #[derive(Default, Deserialize)]
        struct Only {
            #[serde(rename = "_meta", default, deserialize_with = "json::member")]
            meta: Meta,
        }
        params.and_then(|params| json::object::<Only>(params.get()).ok()).unwrap_or_default().meta
    }
}

#[derive(Debug, Default, Clone, Deserialize)]
pub(crate) struct Capabilities {
    #[serde(default)]
    elicitation: Option<Map<String, Value>>,
}

impl Capabilities {
    /// As negotiated by `initialize`.
    pub(crate) fn of_forms(forms: bool) -> Self {
        Self { elicitation: forms.then(Map::new) }
    }

    /// Whether the client can show people a form. An empty `elicitation` means that it can.
    pub(crate) fn forms(&self) -> bool {
        self.elicitation.as_ref().is_some_and(|modes| modes.is_empty() || modes.contains_key("form"))
    }
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct Wanted {
    #[serde(rename = "toolsListChanged", default)]
    pub(crate) tools: bool,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Initialize {
    #[serde(rename = "protocolVersion")]
    pub(crate) version: String,
    #[serde(default, deserialize_with = "json::member")]
    pub(crate) capabilities: Capabilities,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Cancelled {
    #[serde(rename = "requestId")]
    pub(crate) request: Id,
}

/// A JSON-RPC error.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Fault {
    pub(crate) code: i32,
    pub(crate) message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) data: Option<Value>,
    /// Set if there was no token to call with. Its text is for the door's log, not for callers.
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

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(-32603, message)
    }

    /// There was no token to call with. The log says why.
    pub(crate) fn of_token(fault: &Arc<TokenFault>) -> Self {
        tracing::warn!(target: "sealwire::door", error = %fault, "no token");
        let fault = Some(Arc::clone(fault));
        let told = Self::internal("no token for the service, nothing was sent").with(json!({ "outcome": "not_sent" }));
        Self { token: fault, ..told }
    }

    /// A service's error, with a code outside the range that MCP reserves.
    pub(crate) fn of_service(error: &RpcError) -> Self {
        let code = match error.code() {
            code @ -32099..=-32000 => -code,
            code => code,
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

pub(crate) fn notification(method: &str, params: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "method": method, "params": params })
}
