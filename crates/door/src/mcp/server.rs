//! The part of an MCP server that does not depend on the transport: the services' offer, and the outcome of each request.
//! Never sends what the client has not declared it accepts, and never shows more of a service than the agent may call.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sealwire::client::{Client, Observer, RequestBuilder, TraceContext};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::call::{self, Parked, QuestionReply};
use super::message::{
    Asked, Capabilities, Era, Fault, Id, Initialize, Legacy, MODERN, Outcome, members, raw, server_info,
};
use super::offers::Offers;
use super::outbox::Outbox;
use crate::caller::Caller;
use crate::catalogue::{NoOffer, Offer, Services, Tool};
use crate::json;
use crate::seal::Seal;

/// An MCP server, for any number of clients.
pub(crate) struct Server {
    pub(super) services: Services,
    refresh: Duration,
    /// How old an offer may be for a list.
    listed: Duration,
    /// Seals `requestState` and question ids; `None` on standard input and output, where there is only one client.
    pub(super) seal: Option<Arc<Seal>>,
    agent: String,
    /// When it started, in nanoseconds since the Unix epoch. Makes its names differ from those of another process.
    pub(super) started_ns: u128,
    offers: Offers,
    waiting: Mutex<Waiting>,
}

/// Calls and questions that wait for their client.
#[derive(Default)]
pub(super) struct Waiting {
    pub(super) parked: BTreeMap<String, Parked>,
    pub(super) questions: HashMap<String, Asker>,
    pub(super) asked: u64,
}

/// An open question.
pub(super) struct Asker {
    /// Who may answer it.
    pub(super) peer: Arc<str>,
    pub(super) reply: oneshot::Sender<QuestionReply>,
}

/// The client that sent a request.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    /// Identifies the client: an answer to a question, or a request that resumes a call, must come from the same.
    pub(crate) name: Arc<str>,
    /// The caller on whose behalf services are called.
    pub(crate) caller: Arc<dyn Caller>,
    /// For messages to the client before the response.
    pub(crate) out: Outbox,
    /// The trace context of its request: see [`Meta::trace`](super::message::Meta::trace).
    pub(crate) trace: TraceContext,
    /// Observes its calls.
    pub(crate) observer: Option<Arc<dyn Observer>>,
}

impl Peer {
    /// A request for a tool's method, observed if there is an observer.
    pub(super) fn request(&self, client: &Client, tool: &Tool) -> RequestBuilder {
        let request = self.caller.request(client, &tool.service).deadline(tool.deadline).trace(&self.trace);
        match &self.observer {
            Some(observer) => request.observer(Arc::clone(observer)),
            None => request,
        }
    }
}

/// An offer younger than this is not asked for again.
pub(crate) const FRESH: Duration = Duration::from_secs(1);

impl Server {
    /// `listed`: how old an offer may be for a list.
    pub(crate) fn new(
        services: Services,
        refresh: Duration,
        listed: Duration,
        seal: Option<Arc<Seal>>,
        offers: Offers,
    ) -> Self {
        let started_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        let agent = services.bus.agent();
        Self { services, refresh, listed, seal, agent, started_ns, offers, waiting: Mutex::default() }
    }

    pub(crate) fn agent(&self) -> &str {
        &self.agent
    }

    pub(crate) fn refresh(&self) -> Duration {
        self.refresh
    }

    pub(super) fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cancels waiting calls that nobody resumed in time, or whose caller may no longer do so.
    pub(crate) fn tidy(&self) {
        let mut waiting = self.waiting();
        waiting.forget_parked();
        waiting.parked.retain(|_, parked| parked.holds());
    }

    /// How long the longest call may take.
    pub(crate) fn longest(&self) -> Duration {
        self.services.longest()
    }

    /// Whether any calls wait for their clients.
    pub(crate) fn waits(&self) -> bool {
        let waiting = self.waiting();
        !waiting.parked.is_empty() || !waiting.questions.is_empty()
    }

    /// Cancels calls that wait for their clients.
    pub(crate) fn give_up(&self) {
        self.waiting().parked.clear();
    }

    /// The same, and closes the connection to the broker.
    pub(super) async fn close(&self) {
        self.give_up();
        self.services.bus.close().await;
    }

    /// Handles any request but `initialize` and `subscriptions/listen`.
    pub(crate) async fn outcome(
        &self,
        peer: &Peer,
        era: Era,
        capabilities: &Capabilities,
        method: &str,
        asked: &mut Asked,
    ) -> Outcome {
        match (method, era) {
            ("server/discover", Era::Modern) => Ok(self.discover(&*peer.caller, era)),
            ("ping", Era::Legacy(_)) => Ok(raw(&json!({}))),
            ("tools/list", _) => {
                let offer = Box::pin(self.listed(&*peer.caller)).await?;
                Ok(self.tools(&offer, era, asked.cursor.as_deref()))
            }
            ("tools/call", _) => self.call(peer, era, asked, capabilities).await,
            ("resources/list" | "resources/templates/list" | "resources/read" | "prompts/list" | "prompts/get", _) => {
                Box::pin(self.relay(peer, era, method, asked)).await
            }
            _ => Err(Fault::new(-32601, "Method not found")),
        }
    }

    /// Takes an answer to a question. Only the client that was asked may answer it. Returns whether anything was waiting for it.
    pub(crate) fn answered(
        &self,
        peer: &str,
        id: &RawValue,
        result: Option<&RawValue>,
        error: Option<&RawValue>,
    ) -> bool {
        let Ok(Id::Text(id)) = serde_json::from_str(id.get()) else { return false };
        let asker = {
            let mut waiting = self.waiting();
            match waiting.questions.get(&id) {
                Some(asker) if &*asker.peer == peer => waiting.questions.remove(&id),
                _ => None,
            }
        };
        let Some(asker) = asker else { return false };
        let reply = match (result, error) {
            (Some(result), None) => Ok(result.to_owned()),
            (_, error) => Err(error.map(|error| error.get().to_owned()).unwrap_or_default()),
        };
        asker.reply.send(reply).is_ok()
    }

    /// The result of `initialize`, and what was negotiated.
    pub(crate) fn initialize(
        &self,
        caller: &dyn Caller,
        params: Option<&RawValue>,
    ) -> Result<(Legacy, Capabilities, Box<RawValue>), Fault> {
        let asked: Initialize =
            json::object(params.map_or("null", RawValue::get)).map_err(|error| Fault::params(error.to_string()))?;
        let version = Legacy::negotiated(&asked.version);
        let result = members([
            ("protocolVersion", version.as_str().into()),
            ("capabilities", capabilities(Era::Legacy(version))),
            ("serverInfo", server_info()),
            ("instructions", self.instructions(caller).into()),
        ]);
        Ok((version, asked.capabilities, Era::Legacy(version).result(result, None)))
    }

    fn discover(&self, caller: &dyn Caller, era: Era) -> Box<RawValue> {
        let result = members([
            ("supportedVersions", json!([MODERN])),
            ("capabilities", capabilities(era)),
            ("instructions", self.instructions(caller).into()),
        ]);
        era.result(result, Some(self.ttl_ms()))
    }

    fn instructions(&self, caller: &dyn Caller) -> String {
        let services = self.services.names().filter(|service| caller.admits(service));
        let services = services.collect::<Vec<_>>().join("`, `");
        format!("Tools are methods of the services `{services}`, which you may call as the agent `{}`.", self.agent)
    }

    pub(super) fn ttl_ms(&self) -> u64 {
        u64::try_from(self.refresh.as_millis()).unwrap_or(u64::MAX)
    }

    /// What the caller may call; the offer is not older than `age`.
    pub(crate) async fn offer(&self, caller: &dyn Caller, age: Duration) -> Result<Arc<Offer>, Fault> {
        self.offers.get(&self.services, caller, age).await.map_err(|none| match none {
            NoOffer::Token(fault) => Fault::of_token(&fault),
            NoOffer::Silent(why) => Fault::internal(why),
        })
    }

    /// The offer that lists are made from.
    pub(crate) async fn listed(&self, caller: &dyn Caller) -> Result<Arc<Offer>, Fault> {
        self.offer(caller, self.listed).await
    }

    /// A tool from the last offer, however old: the service decides. For an unknown tool, which may be new, the services are asked again.
    pub(super) async fn tool(&self, caller: &dyn Caller, name: &str) -> Result<Arc<Tool>, Fault> {
        let last = self.offers.last(caller);
        if let Some(tool) = last.and_then(|offer| offer.tool(name).cloned()) {
            return Ok(tool);
        }
        let unknown = || Fault::params(format!("Unknown tool: {}", name.chars().take(128).collect::<String>()));
        Box::pin(self.offer(caller, FRESH)).await?.tool(name).cloned().ok_or_else(unknown)
    }

    pub(crate) fn tools(&self, offer: &Offer, era: Era, cursor: Option<&str>) -> Box<RawValue> {
        // The cursor is the name of the first tool of the page.
        let rest = offer.tools.iter().skip_while(|(name, _)| cursor.is_some_and(|cursor| name.as_str() < cursor));
        let (mut page, mut bytes, mut next) = (Vec::new(), 0, None);
        for (name, tool) in rest {
            let tool = described(era, name, tool);
            let length = tool.to_string().len();
            if !page.is_empty() && bytes + length > PAGE {
                next = Some(name);
                break;
            }
            bytes += length;
            page.push(tool);
        }
        let mut result = members([("tools", page.into())]);
        if let Some(next) = next {
            result.insert("nextCursor".to_owned(), raw(next));
        }
        era.result(result, Some(self.ttl_ms()))
    }
}

/// The most bytes of tools on a page.
const PAGE: usize = 1 << 20;

fn capabilities(era: Era) -> Value {
    let tools = json!({ "listChanged": true });
    match era {
        Era::Modern => json!({ "tools": tools, "resources": {}, "prompts": {}, "logging": {} }),
        // The door would have to store the level for each client.
        Era::Legacy(_) => json!({ "tools": tools, "resources": {}, "prompts": {} }),
    }
}

/// A digest of the tools. Clients are notified when it changes.
pub(crate) fn fingerprint(offer: &Offer) -> Vec<u8> {
    use sha2::Digest as _;
    let mut digest = sha2::Sha256::new();
    for (name, tool) in &offer.tools {
        digest.update(name);
        digest.update([0]);
        digest.update(tool.method.document.as_deref().map_or("", RawValue::get));
        digest.update([0]);
    }
    digest.finalize().to_vec()
}

/// Removes `x-mcp-header`, which says what to repeat in HTTP headers: the backend does that, not the client here.
fn without_headers(schema: &mut Value) {
    let Some(members) = schema.as_object_mut() else { return };
    members.remove("x-mcp-header");
    if let Some(properties) = members.get_mut("properties").and_then(Value::as_object_mut) {
        properties.values_mut().for_each(without_headers);
    }
}

/// A tool as the client sees it.
fn described(era: Era, name: &str, tool: &Tool) -> Value {
    let method = &tool.method;
    let mut input: Value = serde_json::from_str(method.params.get()).unwrap_or_default();
    without_headers(&mut input);
    match input.as_object_mut() {
        Some(members) => drop(members.insert("type".to_owned(), "object".into())),
        None => input = json!({ "type": "object" }),
    }
    let origin = format!("Method {} of the service {}.", method.name, tool.service);
    let description = method.description.clone().filter(|text| !text.is_empty()).unwrap_or(origin);
    let mut described = json!({ "name": name, "description": description, "inputSchema": input });
    if let Some(members) = described.as_object_mut() {
        let annotations = tool.mcp.annotations.clone().map(Value::Object);
        members.extend(annotations.map(|annotations| ("annotations".to_owned(), annotations)));
        if era.has_structured_content() {
            members.extend(tool.mcp.title.clone().map(|title| ("title".to_owned(), title.into())));
            members.extend(call::output_schema(era, tool).map(|schema| ("outputSchema".to_owned(), schema)));
        }
    }
    described
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("services", &self.services).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_13_no_tool_asks_its_client_for_fields_of_the_head() {
        let mut schema = json!({
            "type": "object",
            "properties": {
                "region": { "type": "string", "x-mcp-header": "Region" },
                "in": { "type": "object", "properties": { "n": { "type": "integer", "x-mcp-header": "N" } } },
                "x-mcp-header": { "type": "boolean", "x-mcp-header": "Flag" },
            },
        });
        without_headers(&mut schema);
        let expected = json!({
            "type": "object",
            "properties": {
                "region": { "type": "string" },
                "in": { "type": "object", "properties": { "n": { "type": "integer" } } },
                "x-mcp-header": { "type": "boolean" },
            },
        });
        assert_eq!(schema, expected);
    }
}
