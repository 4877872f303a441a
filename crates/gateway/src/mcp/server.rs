//! The part of an MCP server that does not depend on the transport: the services' offer, and the outcome of each request.
//! Never sends what the client has not declared it accepts, and never shows more of a service than the agent may call.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use sealwire::call::TaskMode;
use sealwire::internal::trace::{self, Span};
use sealwire_mcp::{
    ClientCapabilities, Implementation, InitializeParams, LogLevel, RequestParams, Revision, headers, json, members,
    raw, tasks,
};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use super::levels::Levels;
use super::message::{Fault, Outcome, complete_result, with_handshake};
use super::news::{Digests, told_of};
use super::offers::{Offers, RECENT, Source};
use super::open_questions::OpenQuestions;
use super::parked::ParkedCalls;
use super::peer::{Peer, Requester};
use super::results;
use super::sessions::{Heard, Parking, SessionStream, Sessions};
use super::watch::{SUBSCRIBE, Watch, WatchRequest};
use crate::caller::Caller;
use crate::catalogue::{Offer, Services, Tool};
use crate::seal::{Kind, Seal};
use crate::spans::RequestSpan;
use crate::tasks::TaskIds;

/// An MCP server, for any number of clients.
pub(crate) struct Server {
    pub(super) services: Arc<Services>,
    refresh: Duration,
    /// How old an offer may be for a list.
    listed: Duration,
    agent: String,
    offers: Offers,
    levels: Levels,
    pub(super) sessions: Sessions,
    pub(crate) parked: ParkedCalls,
    pub(super) tasks: TaskIds,
    pub(crate) questions: OpenQuestions,
}

/// How long `initialize` and `server/discover` wait for the services.
const ANNOUNCED: Duration = Duration::from_secs(2);
/// An offer younger than this is not asked for again.
pub(crate) const FRESH: Duration = Duration::from_secs(1);

impl Server {
    /// `listed`: how old an offer may be for a list. `seal` is for `requestState` and the ids of questions and tasks; `None` on standard input and
    /// output, where there is only one client. All addresses share `offers` and `parking`.
    pub(crate) fn new(
        services: Services,
        refresh: Duration,
        listed: Duration,
        seal: Option<Arc<Seal>>,
        (offers, parking): (Offers, Parking),
    ) -> Self {
        let agent = services.bus.agent();
        Self {
            services: Arc::new(services),
            refresh,
            listed,
            agent,
            offers,
            levels: Levels::default(),
            sessions: Sessions::new(parking),
            parked: ParkedCalls::new(seal.clone()),
            tasks: TaskIds::new(Kind::McpTask, seal.clone()),
            questions: OpenQuestions::new(seal),
        }
    }

    pub(crate) fn agent(&self) -> &str {
        &self.agent
    }

    pub(crate) fn refresh(&self) -> Duration {
        self.refresh
    }

    pub(crate) fn tidy(&self) {
        self.parked.tidy();
        self.sessions.tidy();
    }

    /// Clients that have no stream now come back to another replica, if there is one.
    pub(crate) fn leave(&self) {
        self.sessions.close();
    }

    /// How long the longest call may take.
    pub(crate) fn longest(&self) -> Duration {
        self.services.longest()
    }

    /// Whether any calls wait for their clients.
    pub(crate) fn waits(&self) -> bool {
        !self.parked.is_empty() || !self.questions.is_empty()
    }

    /// Cancels calls that wait for their clients.
    pub(crate) fn give_up(&self) {
        self.parked.clear();
    }

    /// The client will answer no more questions, open ones included.
    pub(super) fn nobody_answers(&self) {
        self.questions.close();
    }

    /// The same, and closes the connection to the broker.
    pub(super) async fn close(&self) {
        self.give_up();
        self.leave();
        self.services.bus.close().await;
    }

    /// Handles any request but `initialize` and `subscriptions/listen`, within its span.
    pub(crate) async fn outcome(
        &self,
        peer: &Peer,
        revision: Revision,
        capabilities: ClientCapabilities,
        method: &str,
        asked: &mut RequestParams,
    ) -> Outcome {
        let (tracing, caller) = (self.services.bus.tracing(), peer.caller.name());
        let mut span = match asked.meta.traceparent {
            Some(_) => RequestSpan::begin_linked(tracing, &peer.around, &peer.trace, caller),
            None => RequestSpan::begin(tracing, &peer.around, &peer.trace, caller, Duration::ZERO),
        };
        if span.trace().is_empty() {
            span.ended(None);
            return self.handle(peer, revision, capabilities, method, asked).await;
        }
        let tool = asked.name.clone().filter(|_| method == "tools/call");
        let outcome = span.around(Box::pin(self.handle(peer, revision, capabilities, method, asked))).await;
        // Only a tool that the gateway knows by now has a name that is not the client's.
        let known = self.offers.last(&*peer.caller);
        let tool = tool.filter(|tool| known.is_some_and(|offer| offer.tool(tool).is_some()));
        describe(span.span(), revision, method, tool.as_deref());
        match &outcome {
            Ok(result) => span.ended(tasks::is_error(result).then_some("tool_error")),
            Err(fault) => {
                let code = fault.code.to_string();
                span.span().set(trace::RPC_STATUS, code.as_str());
                span.ended(Some(&code));
            }
        }
        outcome
    }

    async fn handle(
        &self,
        peer: &Peer,
        revision: Revision,
        capabilities: ClientCapabilities,
        method: &str,
        asked: &mut RequestParams,
    ) -> Outcome {
        let from = Requester { peer, revision, capabilities };
        match (method, revision.has_handshake()) {
            ("server/discover", false) => Ok(Box::pin(self.discover(&*peer.caller, revision)).await),
            ("ping", true) => Ok(raw(&json!({}))),
            ("logging/setLevel", true) => self.set_level(peer, asked),
            (SUBSCRIBE, true) => {
                let (uri, source) = (resource(peer, asked)?, self.source());
                Box::pin(self.sessions.subscribe(source, &peer.name, &peer.caller, uri)).await
            }
            ("resources/unsubscribe", true) => {
                self.sessions.unsubscribe(&peer.name, &resource(peer, asked)?);
                Ok(raw(&json!({})))
            }
            ("tools/list", _) => {
                let offer = Box::pin(self.listed(&*peer.caller)).await?;
                Ok(self.tools(&offer, revision, asked.cursor.as_deref()))
            }
            ("tools/call", _) => self.call(from, asked).await,
            ("tasks/get" | "tasks/cancel", _) | ("tasks/update", false) | ("tasks/result", true)
                if revision.has_tasks() =>
            {
                self.task(from, method, asked).await
            }
            (
                "resources/list"
                | "resources/templates/list"
                | "resources/read"
                | "prompts/list"
                | "prompts/get"
                | "completion/complete",
                _,
            ) => Box::pin(self.relay(from, method, asked)).await,
            _ => Err(Fault::new(-32601, "Method not found")),
        }
    }

    fn source(&self) -> Source {
        Source { services: Arc::clone(&self.services), offers: self.offers.clone() }
    }

    /// Begins to watch these resources.
    pub(crate) fn watch(&self, caller: &Arc<dyn Caller>, uris: BTreeSet<String>) -> Watch {
        Watch::begin(self.source(), WatchRequest::new(uris, Arc::clone(caller)), BTreeSet::new())
    }

    /// What this session hears on its newest stream. `knew`: the lists as they were at its beginning.
    pub(crate) fn heard(
        &self,
        name: &Arc<str>,
        caller: &Arc<dyn Caller>,
        heard: Heard<&str>,
        knew: Option<Digests>,
    ) -> SessionStream {
        self.sessions.heard(self.source(), name, caller, heard, knew)
    }

    /// `resources/subscribe`, which another replica is about to answer.
    pub(crate) async fn remember(&self, peer: &Peer, asked: &RequestParams) -> Outcome {
        self.sessions.remember(&peer.name, resource(peer, asked)?).await
    }

    /// The lists of this caller as they are known at the moment.
    pub(crate) fn last_digests(&self, caller: &dyn Caller) -> Option<Digests> {
        self.offers.last(caller).map(|offer| Digests::of(&offer))
    }

    /// A request of a session is about to be answered with a list. It is remembered how it was before that.
    pub(crate) async fn learn(&self, peer: &Peer, request: &str) {
        // As old as the offer that the list is made from, or forwarded by.
        let age = if request == "tools/list" { self.listed } else { RECENT };
        if let Ok(offer) = self.offer(&*peer.caller, age).await {
            self.sessions.learn(&peer.name, request, &Digests::of(&offer));
        }
    }

    fn set_level(&self, peer: &Peer, asked: &RequestParams) -> Outcome {
        if !peer.has_session {
            return Err(Fault::new(-32600, "a level is for a session: begin with `initialize`"));
        }
        let Some(level) = asked.level else { return Err(Fault::params("`level` is missing")) };
        self.levels.set(&peer.name, level);
        Ok(raw(&json!({})))
    }

    /// The lowest level of log messages that a client wants before the response to a request.
    pub(crate) fn level(&self, name: &Arc<str>, revision: Revision, asked: Option<LogLevel>) -> Option<LogLevel> {
        if revision.has_handshake() { self.levels.of(name) } else { asked }
    }

    /// The result of `initialize`, and what was negotiated.
    pub(crate) async fn initialize(
        &self,
        caller: &dyn Caller,
        params: Option<&RawValue>,
    ) -> Result<(Revision, ClientCapabilities, Box<RawValue>), Fault> {
        let asked: InitializeParams =
            json::object(params.map_or("null", RawValue::get)).map_err(|error| Fault::params(error.to_string()))?;
        let version = with_handshake(&asked.version).unwrap_or(Revision::NEWEST_WITH_HANDSHAKE);
        let result = members([
            ("protocolVersion", version.as_str().into()),
            ("capabilities", self.capabilities(caller, version).await),
            ("serverInfo", json!(Implementation::SEALWIRE)),
            ("instructions", self.instructions(caller).into()),
        ]);
        Ok((version, asked.capabilities, complete_result(version, result, None)))
    }

    async fn discover(&self, caller: &dyn Caller, revision: Revision) -> Box<RawValue> {
        let result = members([
            ("supportedVersions", json!([Revision::V2026_07_28])),
            ("capabilities", self.capabilities(caller, revision).await),
            ("instructions", self.instructions(caller).into()),
        ]);
        complete_result(revision, result, Some(self.ttl_ms()))
    }

    /// What this caller can use. What depends on servers behind the bus is announced only if they say so in time: a client must not wait
    /// for a service to learn what the gateway is.
    async fn capabilities(&self, caller: &dyn Caller, revision: Revision) -> Value {
        let offer = timeout(ANNOUNCED, self.offer(caller, RECENT)).await.ok().and_then(Result::ok);
        let offer = offer.or_else(|| self.offers.last(caller)).unwrap_or_default();
        let lists = told_of(&offer);
        let subscribe =
            offer.relayed.iter().any(|tool| tool.mcp.request.as_deref() == Some(SUBSCRIBE) && tool.mcp.announced);
        let flags = |all: &[(&str, bool)]| -> Map<String, Value> {
            all.iter().filter(|(_, is_set)| *is_set).map(|(name, _)| ((*name).to_owned(), true.into())).collect()
        };
        let resources = flags(&[("subscribe", subscribe), ("listChanged", lists.resources)]);
        let prompts = flags(&[("listChanged", lists.prompts)]);
        let tools = json!({ "listChanged": true });
        let mut all =
            json!({ "tools": tools, "resources": resources, "prompts": prompts, "completions": {}, "logging": {} });
        if let (Some(all), Some((name, tasks))) = (all.as_object_mut(), tasks::capability(revision)) {
            all.insert(name.to_owned(), tasks);
        }
        all
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
        self.source().offer(caller, age).await
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

    /// The tool of a method, in the same way.
    pub(super) async fn tool_of(
        &self,
        caller: &dyn Caller,
        service: &str,
        method: &str,
    ) -> Result<Option<Arc<Tool>>, Fault> {
        let find = |offer: &Offer| {
            offer.tools.values().find(|tool| tool.service == service && tool.method.name == method).cloned()
        };
        if let Some(tool) = self.offers.last(caller).and_then(|offer| find(&offer)) {
            return Ok(Some(tool));
        }
        Ok(find(&*Box::pin(self.offer(caller, FRESH)).await?))
    }

    /// Whether a method may be called as a task, by an offer that is no older than what clients are told of changes.
    pub(crate) async fn task_mode(&self, caller: &dyn Caller, service: &str, method: &str) -> Option<TaskMode> {
        let offer = Box::pin(self.offer(caller, self.refresh)).await.ok()?;
        let of_method = |tool: &&Arc<Tool>| tool.service == service && tool.method.name == method;
        offer.tools.values().find(of_method)?.method.task
    }

    pub(crate) fn tools(&self, offer: &Offer, revision: Revision, cursor: Option<&str>) -> Box<RawValue> {
        // The cursor is the name of the first tool of the page.
        let rest = offer.tools.iter().skip_while(|(name, _)| cursor.is_some_and(|cursor| name.as_str() < cursor));
        let (mut page, mut bytes, mut next) = (Vec::new(), 0, None);
        for (name, tool) in rest {
            let tool = described(revision, name, tool);
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
        complete_result(revision, result, Some(self.ttl_ms()))
    }
}

/// Says in a span what a client of MCP has asked for.
fn describe(span: &mut Span, revision: Revision, method: &str, tool: Option<&str>) {
    let known = METHODS.iter().find(|known| **known == method).copied().unwrap_or(trace::OTHER_METHOD);
    match tool {
        Some(tool) => span.name(&format!("{known} {tool}")),
        None => span.name(known),
    }
    span.set(trace::MCP_METHOD, known);
    span.set(trace::MCP_VERSION, revision.as_str());
    if let Some(tool) = tool {
        span.set(trace::GEN_AI_OPERATION, "execute_tool");
        span.set(trace::GEN_AI_TOOL, tool);
    }
}

/// The methods that a client of MCP may ask for.
const METHODS: [&str; 17] = [
    "server/discover",
    "ping",
    "logging/setLevel",
    SUBSCRIBE,
    "resources/unsubscribe",
    "tools/list",
    "tools/call",
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "prompts/list",
    "prompts/get",
    "completion/complete",
    "tasks/get",
    "tasks/result",
    "tasks/update",
    "tasks/cancel",
];

/// The resource that a session asks about.
fn resource(peer: &Peer, asked: &RequestParams) -> Result<String, Fault> {
    match &asked.uri {
        _ if !peer.has_session => Err(Fault::new(-32600, "a subscription is for a session: begin with `initialize`")),
        Some(uri) => Ok(uri.clone()),
        None => Err(Fault::params("`uri` is missing")),
    }
}

/// The most bytes of tools on a page.
const PAGE: usize = 1 << 20;

/// Removes `x-mcp-header`, which says what to repeat in HTTP headers, from a schema where it stands wrong.
fn without_headers(schema: &mut Value) {
    let Some(members) = schema.as_object_mut() else { return };
    members.remove(headers::KEYWORD);
    if let Some(properties) = members.get_mut("properties").and_then(Value::as_object_mut) {
        properties.values_mut().for_each(without_headers);
    }
}

/// A tool as the client sees it.
fn described(revision: Revision, name: &str, tool: &Tool) -> Value {
    let method = &tool.method;
    let mut input: Value = serde_json::from_str(method.params.get()).unwrap_or_default();
    if tool.mirrored.is_err() {
        // Clients refuse such a tool.
        without_headers(&mut input);
    }
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
        members.extend(tool.mcp.icons.clone().map(|icons| ("icons".to_owned(), icons.into())));
        if revision == Revision::V2025_11_25 && method.task.is_some() {
            // Never `required`: the gateway itself waits for clients that do not.
            members.insert("execution".to_owned(), json!({ "taskSupport": "optional" }));
        }
        if revision.has_structured_content() {
            members.extend(tool.mcp.title.clone().map(|title| ("title".to_owned(), title.into())));
            members.extend(results::output_schema(revision, tool).map(|schema| ("outputSchema".to_owned(), schema)));
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
    fn what_stands_wrong_is_removed_and_the_rest_of_a_schema_stays() {
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
