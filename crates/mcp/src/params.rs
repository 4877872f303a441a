//! The parameters of requests, as far as the protocol defines them.
//! Never reads more of them than a server of the protocol needs.

use std::collections::BTreeSet;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::capabilities::ClientCapabilities;
use super::headers::Fields;
use super::json;
use super::message::Id;

/// The parameters that a server of the protocol itself reads.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct RequestParams {
    /// About the request.
    #[serde(rename = "_meta", deserialize_with = "json::member")]
    pub meta: Meta,
    /// Where a list goes on.
    pub cursor: Option<String>,
    /// That of a tool or prompt.
    pub name: Option<String>,
    /// That of a task.
    #[serde(rename = "taskId")]
    pub task_id: Option<String>,
    /// In 2025-11-25: a call is to be a task, kept for a while.
    pub task: Option<Box<RawValue>>,
    /// That of a resource.
    pub uri: Option<String>,
    /// Those of a tool or prompt.
    pub arguments: Option<Box<RawValue>>,
    /// The answers to the questions of the last round.
    #[serde(rename = "inputResponses")]
    pub responses: Option<Map<String, Value>>,
    /// What the server has kept with its client.
    #[serde(rename = "requestState")]
    pub state: Option<String>,
    /// What a completion is about, ...
    #[serde(rename = "ref")]
    pub about: Option<Map<String, Value>>,
    /// ... the argument to complete, ...
    pub argument: Option<Value>,
    /// ... and what is known already.
    pub context: Option<Value>,
    /// That of `logging/setLevel`.
    pub level: Option<LogLevel>,
    /// What a subscription is for.
    #[serde(deserialize_with = "json::member")]
    pub notifications: SubscriptionFilter,
    /// Over HTTP in 2026-07-28: the fields of the head that repeat arguments.
    #[serde(skip)]
    pub fields: Option<Fields>,
}

impl RequestParams {
    /// Reads them.
    ///
    /// # Errors
    /// A member is not what the protocol says, or they are no object.
    pub fn read(params: Option<&RawValue>) -> Result<Self, serde_json::Error> {
        params.map_or_else(|| Ok(Self::default()), |params| json::object(params.get()))
    }
}

/// What a request says about itself.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Meta {
    /// The revision, in 2026-07-28.
    #[serde(rename = "io.modelcontextprotocol/protocolVersion", skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Who the client is.
    #[serde(
        rename = "io.modelcontextprotocol/clientInfo",
        skip_deserializing,
        skip_serializing_if = "Option::is_none"
    )]
    pub client: Option<Implementation>,
    /// What the client can be asked for.
    #[serde(
        rename = "io.modelcontextprotocol/clientCapabilities",
        deserialize_with = "json::optional",
        skip_serializing_if = "Option::is_none"
    )]
    pub capabilities: Option<ClientCapabilities>,
    /// The lowest level of log messages that the client wants.
    #[serde(rename = "io.modelcontextprotocol/logLevel", skip_serializing_if = "Option::is_none")]
    pub level: Option<LogLevel>,
    /// What progress is reported under, if the client wants any.
    #[serde(rename = "progressToken", skip_serializing_if = "Option::is_none")]
    pub progress: Option<Id>,
    /// The trace context (W3C) to continue.
    #[serde(deserialize_with = "text", skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// The same.
    #[serde(deserialize_with = "text", skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<String>,
    /// The same.
    #[serde(deserialize_with = "text", skip_serializing_if = "Option::is_none")]
    pub baggage: Option<String>,
    /// Who calls, for servers that are told.
    #[serde(rename = "dev.sealwire/caller", skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub caller: Option<CallerInfo>,
}

/// A program, and its version.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Implementation {
    /// Its name.
    pub name: &'static str,
    /// Its version.
    pub version: &'static str,
}

impl Implementation {
    /// Ours.
    pub const SEALWIRE: Self = Self { name: "sealwire", version: env!("CARGO_PKG_VERSION") };
}

/// A caller. Never the token.
#[derive(Debug, Clone, Serialize)]
pub struct CallerInfo {
    /// The agent.
    pub agent: String,
    /// For whom it acts.
    pub subject: String,
}

/// The severity of a log message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names of RFC 5424")]
pub enum LogLevel {
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
    /// Whether the client wants progress before the response.
    #[must_use]
    pub fn wants_progress(&self) -> bool {
        self.progress.is_some()
    }

    /// The `_meta` of a message whose other parameters are not read.
    #[must_use]
    pub fn of(params: Option<&RawValue>) -> Self {
        #[derive(Default, Deserialize)]
        struct Only {
            #[serde(rename = "_meta", default, deserialize_with = "json::member")]
            meta: Meta,
        }
        params.and_then(|params| json::object::<Only>(params.get()).ok()).unwrap_or_default().meta
    }
}

/// What a subscription is for.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SubscriptionFilter {
    /// Changes of the list of tools.
    #[serde(rename = "toolsListChanged", skip_serializing_if = "is_false")]
    pub tools: bool,
    /// Changes of the list of prompts.
    #[serde(rename = "promptsListChanged", skip_serializing_if = "is_false")]
    pub prompts: bool,
    /// Changes of the list of resources.
    #[serde(rename = "resourcesListChanged", skip_serializing_if = "is_false")]
    pub resources: bool,
    /// The URIs of resources to watch.
    #[serde(rename = "resourceSubscriptions", skip_serializing_if = "BTreeSet::is_empty")]
    pub uris: BTreeSet<String>,
    /// The ids of tasks to watch.
    #[serde(rename = "taskIds", skip_serializing_if = "BTreeSet::is_empty")]
    pub tasks: BTreeSet<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// The parameters of `initialize`.
#[derive(Debug, Deserialize)]
pub struct InitializeParams {
    /// The revision that the client would like.
    #[serde(rename = "protocolVersion")]
    pub version: String,
    /// What it can be asked for.
    #[serde(default, deserialize_with = "json::member")]
    pub capabilities: ClientCapabilities,
}
