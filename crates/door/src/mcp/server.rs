//! What is the same however messages come and go: the services' offer, and what each request comes to.
//! Never sends what the client has not declared that it takes, and never more of a service than the agent may call.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sealwire::client::{Client, Observer, RequestBuilder};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::{Mutex as AsyncMutex, oneshot};

use super::call::{self, Parked, QuestionReply};
use super::message::{
    Asked, Capabilities, Era, Fault, Id, Initialize, Legacy, MODERN, Outcome, members, raw, server_info,
};
use super::outbox::Outbox;
use crate::catalogue::{Offer, Services, Tool};
use crate::seal::Seal;

/// A server of MCP, for any number of clients.
pub(crate) struct Server {
    pub(super) services: Services,
    refresh: Duration,
    /// Where those who come back for a call need not be who was told how.
    pub(super) seal: Option<Arc<Seal>>,
    agent: String,
    /// When it began, in nanoseconds since the Unix epoch: names of its own are unlike those of another one.
    pub(super) started_ns: u128,
    offer: Mutex<Option<(Instant, Arc<Offer>)>>,
    waiting: Mutex<Waiting>,
    /// Held while services are asked.
    asking: AsyncMutex<()>,
}

/// Who wait for their client.
#[derive(Default)]
pub(super) struct Waiting {
    pub(super) parked: BTreeMap<String, Parked>,
    pub(super) questions: HashMap<String, Asker>,
    pub(super) asked: u64,
}

/// A question that is under way.
pub(super) struct Asker {
    /// Who may answer it.
    pub(super) peer: Arc<str>,
    pub(super) reply: oneshot::Sender<QuestionReply>,
}

/// Where a request came from.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    /// Who it is: answers to questions, and those who come back for a call, must be the same.
    pub(crate) name: Arc<str>,
    /// What goes to it before the response.
    pub(crate) out: Outbox,
    /// Who is told of its calls.
    pub(crate) observer: Option<Arc<dyn Observer>>,
}

impl Peer {
    /// A call of a method, of which others may be told.
    pub(super) fn request(&self, client: &Client, tool: &Tool) -> RequestBuilder {
        let request = client.request(&tool.service).deadline(tool.deadline);
        match &self.observer {
            Some(observer) => request.observer(Arc::clone(observer)),
            None => request,
        }
    }
}

/// What was asked just now is not asked again.
pub(crate) const FRESH: Duration = Duration::from_secs(1);

impl Server {
    pub(crate) fn new(services: Services, refresh: Duration, seal: Option<Arc<Seal>>) -> Self {
        let started_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        let agent = services.bus.agent();
        let (offer, waiting, asking) = (Mutex::default(), Mutex::default(), AsyncMutex::new(()));
        Self { services, refresh, seal, agent, started_ns, offer, waiting, asking }
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

    fn known(&self) -> MutexGuard<'_, Option<(Instant, Arc<Offer>)>> {
        self.offer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cancels calls that nobody came back for.
    pub(crate) fn tidy(&self) {
        self.waiting().forget_parked();
    }

    /// Whether calls wait for their clients.
    pub(crate) fn waits(&self) -> bool {
        let waiting = self.waiting();
        !waiting.parked.is_empty() || !waiting.questions.is_empty()
    }

    /// Cancels calls that wait for their clients.
    pub(crate) fn give_up(&self) {
        self.waiting().parked.clear();
    }

    /// The same, and ends the connection.
    pub(super) async fn close(&self) {
        self.give_up();
        self.services.bus.close().await;
    }

    /// What a request comes to that is neither `initialize` nor `subscriptions/listen`.
    pub(crate) async fn outcome(
        &self,
        peer: &Peer,
        era: Era,
        capabilities: &Capabilities,
        method: &str,
        asked: Asked,
    ) -> Outcome {
        match (method, era) {
            ("server/discover", Era::Modern) => Ok(self.discover(era)),
            ("ping", Era::Legacy(_)) => Ok(raw(&json!({}))),
            ("tools/list", _) => {
                let offer = self.offer(FRESH).await?;
                Ok(self.tools(&offer, era, asked.cursor.as_deref()))
            }
            ("tools/call", _) => self.call(peer, era, asked, capabilities).await,
            ("resources/list" | "resources/templates/list" | "resources/read" | "prompts/list" | "prompts/get", _) => {
                self.relay(peer, era, method, &asked).await
            }
            _ => Err(Fault::new(-32601, "Method not found")),
        }
    }

    /// An answer to a question: by whom, and which. Others than who was asked are not heard.
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

    /// The result of `initialize`, and what was agreed on.
    pub(crate) fn initialize(&self, params: Option<&RawValue>) -> Result<(Legacy, Capabilities, Box<RawValue>), Fault> {
        let asked: Initialize = serde_json::from_str(params.map_or("null", RawValue::get))
            .map_err(|error| Fault::params(error.to_string()))?;
        let version = Legacy::negotiated(&asked.version);
        let result = members([
            ("protocolVersion", version.as_str().into()),
            ("capabilities", capabilities()),
            ("serverInfo", server_info()),
            ("instructions", self.instructions().into()),
        ]);
        Ok((version, asked.capabilities, Era::Legacy(version).result(result, None)))
    }

    fn discover(&self, era: Era) -> Box<RawValue> {
        let result = members([
            ("supportedVersions", json!([MODERN])),
            ("capabilities", capabilities()),
            ("instructions", self.instructions().into()),
        ]);
        era.result(result, Some(self.ttl_ms()))
    }

    fn instructions(&self) -> String {
        let services = self.services.names().collect::<Vec<_>>().join("`, `");
        format!("Tools are methods of the services `{services}`, which the agent `{}` may call.", self.agent)
    }

    pub(super) fn ttl_ms(&self) -> u64 {
        u64::try_from(self.refresh.as_millis()).unwrap_or(u64::MAX)
    }

    /// What the agent may call, not older than this.
    pub(crate) async fn offer(&self, age: Duration) -> Result<Arc<Offer>, Fault> {
        let known = || {
            let known = self.known();
            known.as_ref().filter(|(at, _)| at.elapsed() < age).map(|(_, offer)| Arc::clone(offer))
        };
        if let Some(offer) = known() {
            return Ok(offer);
        }
        let _asking = self.asking.lock().await;
        // Somebody else has asked meanwhile.
        if let Some(offer) = known() {
            return Ok(offer);
        }
        let offer = self.services.offer().await.map_err(Fault::internal)?;
        for missing in &offer.missing {
            tracing::warn!(target: "sealwire::door", "{missing}");
        }
        let offer = Arc::new(offer);
        *self.known() = Some((Instant::now(), Arc::clone(&offer)));
        Ok(offer)
    }

    /// A tool, as it was offered last.
    pub(super) fn offered(&self, name: &str) -> Option<Arc<Tool>> {
        self.known().as_ref().and_then(|(_, offer)| offer.tools.get(name).map(Arc::clone))
    }

    pub(crate) fn tools(&self, offer: &Offer, era: Era, cursor: Option<&str>) -> Box<RawValue> {
        // The name of the first tool of the page.
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

fn capabilities() -> Value {
    json!({ "tools": { "listChanged": true }, "resources": {}, "prompts": {} })
}

/// What clients are told when it differs.
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

/// Takes out what a server behind the bus wants to have in the head of its own requests: its backend writes that, and not the client here.
fn without_headers(schema: &mut Value) {
    let Some(members) = schema.as_object_mut() else { return };
    members.remove("x-mcp-header");
    if let Some(properties) = members.get_mut("properties").and_then(Value::as_object_mut) {
        properties.values_mut().for_each(without_headers);
    }
}

/// A tool, as the client sees it.
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
