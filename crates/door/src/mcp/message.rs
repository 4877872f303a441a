//! Messages of MCP as they are on a line, and what differs between the revisions of the protocol.
//! Never reads parameters or results beyond what the door itself has to know.

use std::borrow::Cow;
use std::collections::BTreeMap;

use sealwire::rpc::RpcError;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};

/// The revision without a handshake.
pub(super) const MODERN: &str = "2026-07-28";

/// Revisions that begin with `initialize`, the newest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Legacy {
    V2025_03_26,
    V2025_06_18,
    V2025_11_25,
}

impl Legacy {
    /// The one that is asked for, or the newest.
    pub(super) fn negotiated(asked: &str) -> Self {
        let known = [Self::V2025_11_25, Self::V2025_06_18, Self::V2025_03_26];
        known.into_iter().find(|version| version.as_str() == asked).unwrap_or(Self::V2025_11_25)
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::V2025_11_25 => "2025-11-25",
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_03_26 => "2025-03-26",
        }
    }
}

/// The revision that one request is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Era {
    Modern,
    Legacy(Legacy),
}

impl Era {
    /// Whether a tool may say what its result is like, and give it as JSON.
    pub(super) fn has_structured_content(self) -> bool {
        self != Self::Legacy(Legacy::V2025_03_26)
    }

    /// Whether such a result has to be an object.
    pub(super) fn wants_objects(self) -> bool {
        self != Self::Modern
    }

    /// A result, as this revision has it; `ttl_ms`: of one that callers may keep for so long.
    pub(super) fn result(self, mut members: Members, ttl_ms: Option<u64>) -> Box<RawValue> {
        for member in ["resultType", "ttlMs", "cacheScope"] {
            members.remove(member);
        }
        if self == Self::Modern {
            members.insert("resultType".to_owned(), raw("complete"));
            if let Some(ttl_ms) = ttl_ms {
                members.insert("ttlMs".to_owned(), raw(&ttl_ms));
                // It is what this agent may do.
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

/// The members of an object whose values nobody here reads.
pub(super) type Members = BTreeMap<String, Box<RawValue>>;

/// As JSON. What cannot be written is null, and there is no such thing here.
pub(super) fn raw<T: Serialize + ?Sized>(value: &T) -> Box<RawValue> {
    to_raw_value(value).unwrap_or_default()
}

/// An object of these members.
pub(super) fn members<const N: usize>(pairs: [(&str, Value); N]) -> Members {
    pairs.into_iter().map(|(name, value)| (name.to_owned(), raw(&value))).collect()
}

pub(super) fn server_info() -> Value {
    json!({ "name": "sealwire", "version": env!("CARGO_PKG_VERSION") })
}

/// A line.
#[derive(Deserialize)]
pub(super) struct Message<'a> {
    #[serde(borrow)]
    pub(super) jsonrpc: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) id: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) params: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) result: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) error: Option<&'a RawValue>,
}

/// The id of a request: a string or an integer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Id {
    Number(i64),
    Text(String),
}

/// What the door itself reads of a request's parameters.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Asked {
    #[serde(rename = "_meta", default)]
    pub(super) meta: Meta,
    #[serde(default)]
    pub(super) cursor: Option<String>,
    #[serde(default)]
    pub(super) name: Option<String>,
    #[serde(default)]
    pub(super) uri: Option<String>,
    #[serde(default)]
    pub(super) arguments: Option<Box<RawValue>>,
    #[serde(rename = "inputResponses", default)]
    pub(super) responses: Option<Map<String, Value>>,
    #[serde(rename = "requestState", default)]
    pub(super) state: Option<String>,
    #[serde(default)]
    pub(super) notifications: Wanted,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Meta {
    #[serde(rename = "io.modelcontextprotocol/protocolVersion", default)]
    pub(super) version: Option<String>,
    #[serde(rename = "io.modelcontextprotocol/clientCapabilities", default)]
    pub(super) capabilities: Option<Capabilities>,
    #[serde(rename = "progressToken", default)]
    pub(super) progress: Option<Id>,
}

#[derive(Debug, Default, Clone, Deserialize)]
pub(super) struct Capabilities {
    #[serde(default)]
    elicitation: Option<Map<String, Value>>,
}

impl Capabilities {
    /// Whether people there can be shown a form. An empty object means just that.
    pub(super) fn forms(&self) -> bool {
        self.elicitation.as_ref().is_some_and(|modes| modes.is_empty() || modes.contains_key("form"))
    }
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Wanted {
    #[serde(rename = "toolsListChanged", default)]
    pub(super) tools: bool,
}

#[derive(Debug, Deserialize)]
pub(super) struct Initialize {
    #[serde(rename = "protocolVersion")]
    pub(super) version: String,
    #[serde(default)]
    pub(super) capabilities: Capabilities,
}

#[derive(Debug, Deserialize)]
pub(super) struct Cancelled {
    #[serde(rename = "requestId")]
    pub(super) request: Id,
}

/// An error of JSON-RPC.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Fault {
    pub(super) code: i32,
    pub(super) message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) data: Option<Value>,
}

impl Fault {
    pub(super) fn new(code: i32, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    pub(super) fn with(mut self, data: Value) -> Self {
        self.data = Some(data);
        self
    }

    pub(super) fn params(message: impl Into<String>) -> Self {
        Self::new(-32602, message)
    }

    pub(super) fn internal(message: impl Into<String>) -> Self {
        Self::new(-32603, message)
    }

    /// As a service said it, in a code that MCP leaves to others.
    pub(super) fn of_service(error: &RpcError) -> Self {
        let code = match error.code() {
            code @ -32099..=-32000 => -code,
            code => code,
        };
        let data = error.data().and_then(|data| serde_json::from_str(data.get()).ok());
        Self { code, message: error.message().to_owned(), data }
    }
}

/// What a request comes to.
pub(super) type Outcome = Result<Box<RawValue>, Fault>;

#[derive(Serialize)]
pub(super) struct Response<'a> {
    jsonrpc: &'static str,
    id: Option<&'a Id>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a Fault>,
}

impl<'a> Response<'a> {
    pub(super) fn new(id: Option<&'a Id>, outcome: &'a Outcome) -> Self {
        Self { jsonrpc: "2.0", id, result: outcome.as_deref().ok(), error: outcome.as_ref().err() }
    }
}

pub(super) fn notification(method: &str, params: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "method": method, "params": params })
}
