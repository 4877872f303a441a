//! Which methods of a service the agent may call, according to the service: `rpc.discover`.
//! Never accepts more from a service than its bounds allow, whatever the service says.

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::Client;
use super::error::{ClientError, ProtocolError};
use super::request::RequestBuilder;

/// The methods of a service that an agent may call.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Catalogue {
    /// The service's audience.
    pub title: String,
    /// Changes when the service's policy does.
    pub version: String,
    /// The methods, by name.
    pub methods: Vec<MethodInfo>,
}

/// One method, as [`Client::discover`] returns it.
#[derive(Debug, Clone, Deserialize)]
#[non_exhaustive]
pub struct MethodInfo {
    /// The method's name.
    pub name: String,
    /// What it does, in its author's words.
    #[serde(default)]
    pub description: Option<String>,
    /// The parameters by name, as the JSON Schema (2020-12) of an object, narrowed to what the policy allows. The policy decides again when
    /// the method is called.
    #[serde(rename = "x-params")]
    pub params: Box<RawValue>,
    /// The result.
    pub result: MethodResult,
    /// Whether the result comes in parts, for callers that accept frames.
    #[serde(rename = "x-stream", default)]
    pub is_stream: bool,
    /// Whether this is a subscription, which has no result.
    #[serde(rename = "x-subscription", default)]
    pub is_subscription: bool,
    /// Whether a call with an idempotency key runs only once.
    #[serde(rename = "x-idempotent", default)]
    pub is_idempotent: bool,
    /// Whether it may, or must, be called as a task ([`RequestBuilder::detach`]): `optional` or `required`; `None` if it cannot. A word of a
    /// newer service is `None`, too.
    #[serde(rename = "x-task", default, deserialize_with = "task_mode")]
    pub task: Option<TaskMode>,
    /// The method's whole OpenRPC object, as received.
    #[serde(skip)]
    pub document: Option<Box<RawValue>>,
}

/// How a method may be called as a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TaskMode {
    /// As a task, or waiting for its outcome.
    Optional,
    /// As a task only.
    Required,
}

fn task_mode<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<TaskMode>, D::Error> {
    Ok(match &*String::deserialize(deserializer)? {
        "optional" => Some(TaskMode::Optional),
        "required" => Some(TaskMode::Required),
        _ => None,
    })
}

/// What a method returns.
#[derive(Debug, Clone, Deserialize)]
#[non_exhaustive]
pub struct MethodResult {
    /// Its JSON Schema (2020-12).
    pub schema: Box<RawValue>,
}

#[derive(Serialize)]
struct Asked<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<&'a str>,
}

#[derive(Deserialize)]
struct Page {
    info: Info,
    methods: Vec<Box<RawValue>>,
    #[serde(rename = "x-next", default)]
    next: Option<String>,
}

#[derive(Deserialize)]
struct Info {
    title: String,
    version: String,
}

/// All pages as one document.
#[derive(Serialize)]
struct Document<'a> {
    openrpc: &'static str,
    info: Title<'a>,
    methods: Vec<&'a RawValue>,
}

#[derive(Serialize)]
struct Title<'a> {
    title: &'a str,
    version: &'a str,
}

impl Catalogue {
    /// The whole catalogue as an OpenRPC 1.3 document, its methods as received.
    #[must_use]
    pub fn document(&self) -> impl Serialize {
        Document {
            openrpc: "1.3.2",
            info: Title { title: &self.title, version: &self.version },
            methods: self.methods.iter().filter_map(|method| method.document.as_deref()).collect(),
        }
    }
}

impl Client {
    /// The most methods of a service that [`Client::discover`] accepts.
    pub const DISCOVERED: usize = 10_000;
    /// The most bytes that they may have.
    pub const DISCOVERED_BYTES: usize = 16 << 20;

    /// The methods of a service that this agent may call: always, or with some parameters. Each page has the deadline of the client's
    /// calls.
    ///
    /// # Errors
    /// See [`ClientError`]. [`ProtocolError::Catalogue`] if the answer is not a catalogue, or exceeds the bounds.
    ///
    /// Cancel safe.
    pub async fn discover(&self, service: &str) -> Result<Catalogue, ClientError> {
        self.request(service).discover().await
    }
}

impl RequestBuilder {
    /// As [`Client::discover`], with the options of this request; its deadline applies to each page.
    ///
    /// # Errors
    /// As for [`Client::discover`].
    ///
    /// Cancel safe.
    pub async fn discover(self) -> Result<Catalogue, ClientError> {
        let wrong = || ClientError::Protocol(ProtocolError::Catalogue);
        let mut catalogue = Catalogue::default();
        let (mut cursor, mut bytes) = (None::<String>, 0);
        loop {
            // With frames, a page may be larger than a message.
            let asked = Asked { cursor: cursor.as_deref() };
            let page = self.clone().stream::<IgnoredAny>("rpc.discover", asked);
            let Page { info, methods, next } = page.finish().await?;
            (catalogue.title, catalogue.version) = (info.title, info.version);
            for document in methods {
                let mut method: MethodInfo = serde_json::from_str(document.get()).map_err(|_| wrong())?;
                bytes += document.get().len();
                let in_order = catalogue.methods.last().is_none_or(|last| last.name < method.name);
                if !in_order || bytes > Client::DISCOVERED_BYTES || catalogue.methods.len() >= Client::DISCOVERED {
                    return Err(wrong());
                }
                method.document = Some(document);
                catalogue.methods.push(method);
            }
            // The cursor must be the last name, so that it advances and paging ends.
            if next.is_some() && next.as_deref() != catalogue.methods.last().map(|last| last.name.as_str()) {
                return Err(wrong());
            }
            if next.is_none() || next == cursor {
                return Ok(catalogue);
            }
            cursor = next;
        }
    }
}
