//! Servers of the Model Context Protocol, over the lines of a process or over HTTP: their tools, resources and prompts as methods, in both
//! eras of the protocol.
//! Never sends arguments that the tool's own schema does not accept, and never the caller's token.
//!
//! A tool is a method of the same name. If it has an `outputSchema`, the method returns what that describes; see docs/backends.md.

mod config;
mod conversation;
mod entry;
mod exchange;
mod headers;
mod http;
mod listing;
mod naming;
mod options;
mod plain;
mod questions;
mod reach;
mod session;
mod shared;
mod subscription;
mod types;
mod upstream;
mod watches;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use hyper::header::HeaderMap;
use sealwire::internal::trace::{self, Span};
use sealwire::serve::Description;
use sealwire::{MethodName, Router, RpcError};
use sealwire_mcp::{Members, insert};
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

pub(crate) use self::config::{McpConfig, Place};
use self::exchange::{CallError, TOOL_ERROR};
pub use self::listing::{Definition, Listing};
pub(crate) use self::naming::owner;
use self::options::{START, known};
pub(crate) use self::options::{ServerOptions, offered};
use self::plain::{COMPLETE, GET_PROMPT, PLAIN, Plain, SUBSCRIBE};
pub(crate) use self::questions::Questions;
use self::session::{Capabilities, Session};
use self::shared::Shared;
use self::types::Refusal;
use crate::backend::{Backend, Call, Health};
use crate::config::BackendError;
use crate::pins::Kind;
use crate::schema::CheckError;
use crate::tally::{Tallied, Tally};
use crate::tool::Tool;

/// One server.
#[derive(Debug)]
pub(crate) struct Mcp {
    shared: Arc<Shared>,
    how: ServerOptions,
    /// Methods that are requests of the protocol itself.
    plain: BTreeMap<MethodName, Plain>,
    task: Mutex<Option<JoinHandle<()>>>,
    stop: watch::Sender<bool>,
    /// Long checks run one after the other, so that the tools of one server leave room for those of others.
    checks: Arc<Semaphore>,
    tally: Arc<Tally>,
}

/// How long the service waits for a server whose tools are known already.
const KNOWN: Duration = Duration::from_secs(10);

impl Mcp {
    /// Starts the server's process, or connects to its address, until [`Backend::stop`].
    pub(crate) fn start(place: &Place, how: ServerOptions) -> Self {
        let shared = Arc::new(Shared::new(&how));
        let stop = watch::Sender::new(false);
        let mut stopped = stop.subscribe();
        let stopped = async move { drop(stopped.wait_for(|stop| *stop).await) };
        let tally = match place {
            Place::Process(launch) => Arc::clone(&launch.tally),
            Place::Address(_) => Arc::default(),
        };
        let task = match place {
            Place::Process(launch) => tokio::spawn(reach::process(Arc::clone(&shared), launch.clone(), stopped)),
            Place::Address(server) => tokio::spawn(reach::address(Arc::clone(&shared), server.clone(), stopped)),
        };
        Self {
            shared,
            how,
            plain: BTreeMap::new(),
            task: Mutex::new(Some(task)),
            stop,
            checks: Arc::new(Semaphore::new(1)),
            tally,
        }
    }

    /// Waits until the server has said what it can do. A server with approved tools may come later, since its tools are known.
    ///
    /// # Errors
    /// Nothing is approved, and the server has not said it within a minute or the timeout of calls, whichever is longer, or has ended
    /// twice.
    pub(crate) async fn settled(&self) -> Result<(), BackendError> {
        let is_known = self.how.pins.lock().borrow().pins(self.name(), Kind::Tool).next().is_some();
        let there = self.is_up(if is_known { KNOWN } else { self.how.timeout.max(START) }).await;
        match there {
            Err(reason) if is_known => {
                let backend = self.name();
                tracing::warn!(target: "sealwire::backend", backend, reason, "the service starts without it");
                Ok(())
            }
            there => there.map_err(|fault| BackendError { backend: self.name().to_owned(), fault }),
        }
    }

    /// Waits until the server is available. It may end once: when it is asked in a way that it does not know.
    async fn is_up(&self, patience: Duration) -> Result<(), String> {
        let ends = &self.shared.ends;
        let mut health = self.shared.health.subscribe();
        let settled = health.wait_for(|health| health.takes_calls() || ends.load(Ordering::Relaxed) > 1);
        let settled = tokio::time::timeout(patience, settled).await.map(|settled| settled.map(|health| health.clone()));
        match settled {
            Ok(Ok(Health::Up | Health::Limited(_))) => Ok(()),
            Ok(Ok(Health::Down(reason))) => Err(reason),
            _ => Err(format!("it has not said within {} s what it can do", patience.as_secs())),
        }
    }

    /// What it offers, as methods, without those whose names are taken by now.
    pub(crate) fn offer(&mut self) -> Vec<Tool> {
        let (listed, capabilities) = {
            let mut state = self.shared.state();
            self.shared.judge(&mut state);
            // A server that is not available yet may offer anything.
            let capabilities = state.session.as_ref().map_or(Capabilities::ALL, |session| session.capabilities);
            (Arc::clone(&state.tools), capabilities)
        };
        let lock = self.how.pins.lock().borrow().clone();
        let (mut tools, mut methods) = (Vec::new(), BTreeMap::new());
        for definition in known(self.shared.name(), &lock, &listed).values() {
            match self.how.tool(definition) {
                Ok(tool) => {
                    methods.insert(tool.name.clone(), tool.method.clone());
                    tools.push(tool);
                }
                // It is reported with the listed tools.
                Err(_) if listed.contains_key(&definition.name) => {}
                Err(fault) => {
                    let (backend, tool) = (self.shared.name(), definition.name.escape_debug());
                    tracing::warn!(target: "sealwire::backend", backend, "the tool `{tool}` is left out: {fault}");
                }
            }
        }
        // They are set only here.
        drop(self.shared.methods.set(methods));
        let (resources, prompts) =
            (self.how.resources && capabilities.resources, self.how.prompts && capabilities.prompts);
        for plain in PLAIN.into_iter().filter(|plain| {
            plain.is_offered(resources, prompts) && (plain.name != COMPLETE || capabilities.completions)
        }) {
            match self.how.plain(plain) {
                Ok(tool) => {
                    self.plain.insert(tool.method.clone(), plain);
                    tools.push(tool);
                }
                Err(fault) => {
                    let (backend, method) = (self.shared.name(), plain.name);
                    tracing::warn!(
                        target: "sealwire::backend", backend,
                        "`{method}` is left out: {fault}; a `prefix` would keep it apart"
                    );
                }
            }
        }
        tools
    }

    /// The name of the backend.
    pub(crate) fn name(&self) -> &str {
        self.shared.name()
    }

    /// What the server lists now. Also finds tools that cannot be used because their schemas cannot be compiled.
    pub(crate) fn listing(&self) -> Listing {
        let mut state = self.shared.state();
        Arc::make_mut(&mut state.tools).values_mut().for_each(Definition::try_out);
        let definitions = state.tools.values().chain(state.prompts.values()).cloned().collect();
        let unprompted = state.unprompted.as_ref().map(|reason| format!("its prompts: {reason}"));
        Listing { definitions, nameless: state.nameless.iter().cloned().chain(unprompted).collect() }
    }

    /// A session other than `lost`, and the listing; for what is approved, only a listing that includes every change that the server has
    /// announced.
    async fn session(
        &self,
        lost: Option<&Arc<Session>>,
        is_pinned: bool,
    ) -> Result<(Arc<Session>, ToolsByName), RpcError> {
        let mut health = self.shared.health.subscribe();
        let mut listings = BTreeSet::new();
        loop {
            if !health.borrow_and_update().takes_calls() {
                return Err(session::gone());
            }
            {
                let state = self.shared.state();
                let session = state.session.clone();
                if let Some(session) = session.filter(|session| lost.is_none_or(|lost| !Arc::ptr_eq(lost, session))) {
                    if !is_pinned || session.conversation().changes() == state.changes {
                        return Ok((session, Arc::clone(&state.tools)));
                    }
                    if let Some(reason) = &state.unlisted {
                        return Err(RpcError::dependency(format!("its tools have changed: {reason}")));
                    }
                    listings.insert(state.changes);
                    if listings.len() > LISTINGS {
                        return Err(RpcError::dependency("its tools change all the time"));
                    }
                }
            }
            if health.changed().await.is_err() {
                return Err(session::gone());
            }
        }
    }

    async fn make(&self, call: Call) -> Result<Box<RawValue>, RpcError> {
        // Nobody approves resources.
        let is_pinned = !self.plain.get(&call.tool.method).is_some_and(|plain| plain.name.starts_with("resources/"));
        let (session, listed) = self.session(None, is_pinned).await?;
        match self.make_with(&session, &listed, &call).await {
            Err(CallError::Lost) => {}
            Err(CallError::Error(error)) => return Err(error),
            Ok(result) => return Ok(result),
        }
        // The request was refused before anything was done. A server that ends each session at once is not asked forever.
        let (session, listed) = self.session(Some(&session), is_pinned).await?;
        self.make_with(&session, &listed, &call).await.map_err(|end| match end {
            CallError::Lost => RpcError::dependency(Refusal::Lost.to_string()),
            CallError::Error(error) => error,
        })
    }

    async fn make_with(
        &self,
        session: &Session,
        listed: &ToolsByName,
        call: &Call,
    ) -> Result<Box<RawValue>, CallError> {
        let send_caller = self.how.send_caller;
        if let Some(plain) = self.plain.get(&call.tool.method) {
            return self.make_plain(session, plain, call).await;
        }
        let definition = listed.get(&call.tool.name);
        let definition = definition.ok_or_else(|| RpcError::dependency("the server has no such tool now"))?;
        self.shared.is_approved(definition)?;
        let schemas = definition.schemas().map_err(RpcError::dependency)?;
        let arguments = named(call.params.as_deref())?;
        schemas.arguments.fits(&arguments, &self.checks).await.map_err(|unfit| match unfit {
            CheckError::Value(mismatch) => {
                self.tally.unfit_arguments();
                RpcError::invalid_params(mismatch.to_string())
            }
            unfit => RpcError::dependency(format!("`inputSchema`: {unfit}")),
        })?;
        let headers = headers::fields(&schemas.mirrored, &arguments)?;
        let mut request = Members::new();
        insert(&mut request, "name", &call.tool.name);
        request.insert("arguments".to_owned(), arguments);
        let may_go_on = || self.shared.is_same(session, definition);
        let result = exchange::make(session, call, "tools/call", request, &headers, send_caller, may_go_on).await?;
        let unfit = || self.tally.unfit_result();
        Ok(exchange::of_tool(&call.ctx, &result, schemas.result.as_ref(), &self.checks, unfit).await?)
    }
}

impl Mcp {
    /// Makes a request of the protocol that is no tool call.
    async fn make_plain(&self, session: &Session, plain: &Plain, call: &Call) -> Result<Box<RawValue>, CallError> {
        let Plain { name, params: known } = plain;
        let mut params: Members =
            serde_json::from_str(named(call.params.as_deref())?.get()).map_err(RpcError::internal)?;
        if let Some(other) = params.keys().find(|name| !known.iter().any(|(known, _)| known == name)) {
            let other: String = other.chars().take(80).flat_map(char::escape_debug).collect();
            return Err(RpcError::invalid_params(format!("there is no parameter `{other}`")).into());
        }
        let (send_caller, none) = (self.how.send_caller, HeaderMap::new());
        let (list, uri) = match *name {
            "prompts/list" => return Ok(self.list_prompts(params.get("cursor").map(|cursor| &**cursor))?),
            GET_PROMPT => {
                let prompt = self.prompt(&params)?;
                let may_go_on = || self.shared.is_same(session, &prompt);
                return exchange::make(session, call, name, params, &none, send_caller, may_go_on).await;
            }
            COMPLETE => {
                let prompt = self.completed(&params)?;
                let may_go_on = || prompt.as_ref().map_or(Ok(()), |prompt| self.shared.is_same(session, prompt));
                return exchange::make(session, call, name, params, &none, send_caller, may_go_on).await;
            }
            "resources/list" => ("resources", "uri"),
            "resources/templates/list" => ("resourceTemplates", "uriTemplate"),
            _ => return exchange::make(session, call, name, params, &none, send_caller, || Ok(())).await,
        };
        if let Some(cursor) = params.get("cursor").and_then(|cursor| entry::meant(cursor)) {
            params.insert("cursor".to_owned(), cursor);
        }
        let answer = exchange::make(session, call, name, params, &none, send_caller, || Ok(())).await?;
        let (answer, wrong) = entry::good(&answer, list, uri).map_err(RpcError::internal)?;
        self.shared.complain(&wrong);
        Ok(answer)
    }

    /// What an MCP gateway needs to know of such a request.
    fn plain_extension(&self, plain: &Plain) -> Value {
        let mut extension = serde_json::Map::from_iter([("request".to_owned(), plain.name.into())]);
        // Whoever looks at these sees when the lists change.
        let digest = match plain.name {
            "resources/list" => self.shared.state().resources.clone(),
            "prompts/list" => Some(listing::digest_of(&self.shared.good_prompts())),
            _ => None,
        };
        if let Some(digest) = digest {
            extension.insert("digest".to_owned(), digest.into());
        }
        if plain.name == SUBSCRIBE {
            let state = self.shared.state();
            let announced = state.session.as_ref().is_some_and(|one| one.tells_of_resources());
            extension.insert("announced".to_owned(), announced.into());
        }
        extension.into()
    }

    /// Whether this is the method by which resources are watched.
    pub(crate) fn is_watch(&self, tool: &Tool) -> bool {
        self.plain.get(&tool.method).is_some_and(|plain| plain.name == SUBSCRIBE)
    }

    /// Adds that method to a router.
    pub(crate) fn watched(self: &Arc<Self>, router: Router, tool: Tool) -> Router {
        let Some(read) = self.how.naming.read_resource() else { return router };
        let (server, described) = (Arc::clone(self), tool.clone());
        subscription::routed(router, &self.shared, read, &tool, move || server.description(&described))
    }

    /// The prompt of this name, if it can be used and was approved.
    fn prompt(&self, params: &Members) -> Result<Definition, RpcError> {
        let name = params.get("name").and_then(|name| serde_json::from_str::<String>(name.get()).ok());
        let Some(name) = name else { return Err(RpcError::invalid_params("`name` must be a text")) };
        let (prompts, unprompted) = {
            let state = self.shared.state();
            (Arc::clone(&state.prompts), state.unprompted.clone())
        };
        if let Some(reason) = unprompted {
            return Err(RpcError::dependency(format!("its prompts: {reason}")));
        }
        let prompt = prompts.get(&name).ok_or_else(|| RpcError::invalid_params("Unknown prompt"))?;
        self.shared.is_approved(prompt)?;
        match prompt.fault() {
            Some(reason) => Err(RpcError::dependency(reason.to_owned())),
            None => Ok(prompt.clone()),
        }
    }

    /// The prompt whose argument is to be completed; `None` for a template of resources. Both must be offered.
    fn completed(&self, params: &Members) -> Result<Option<Definition>, RpcError> {
        let of = params.get("ref").map(|of| serde_json::from_str::<Members>(of.get()).unwrap_or_default());
        let of = of.unwrap_or_default();
        let kind = of.get("type").and_then(|kind| serde_json::from_str::<String>(kind.get()).ok());
        match kind.as_deref() {
            Some("ref/prompt") if self.how.prompts => self.prompt(&of).map(Some),
            Some("ref/resource") if self.how.resources => Ok(None),
            _ => Err(RpcError::invalid_params("`ref` is neither a prompt nor a resource that is offered")),
        }
    }

    /// The approved prompts from the place on that the cursor names, as they were approved and in the server's order.
    fn list_prompts(&self, cursor: Option<&RawValue>) -> Result<Box<RawValue>, RpcError> {
        let place = cursor.map(|cursor| serde_json::from_str::<String>(cursor.get()).ok()?.parse::<usize>().ok());
        let Some(first) = place.unwrap_or(Some(0)) else {
            return Err(RpcError::invalid_params("unknown `cursor`"));
        };
        if let Some(reason) = &self.shared.state().unprompted {
            return Err(RpcError::dependency(format!("its prompts: {reason}")));
        }
        let (mut page, mut bytes, mut next) = (Vec::new(), 0, None::<String>);
        let mut prompts = self.shared.good_prompts();
        prompts.sort_by_key(|prompt| prompt.place);
        let mut rest = prompts.iter().filter(|prompt| prompt.place >= first).peekable();
        while let Some(prompt) = rest.next() {
            let Ok(pin) = &prompt.pin else { continue };
            bytes += pin.definition.len();
            page.push(RawValue::from_string(pin.definition.clone()).map_err(RpcError::internal)?);
            if let Some(after) = rest.peek().filter(|_| bytes >= PAGE) {
                next = Some(after.place.to_string());
                break;
            }
        }
        let mut answer = Members::new();
        insert(&mut answer, "prompts", &page);
        if let Some(next) = next {
            insert(&mut answer, "nextCursor", &next);
        }
        serde_json::value::to_raw_value(&answer).map_err(RpcError::internal)
    }
}

/// How many listings a call waits for.
const LISTINGS: usize = 2;
/// The bytes of prompts after which a page ends.
const PAGE: usize = 256 * 1024;

/// Tools by name.
type ToolsByName = Arc<BTreeMap<String, Definition>>;

impl Backend for Mcp {
    fn call(&self, call: Call) -> BoxFuture<'_, Result<Box<RawValue>, RpcError>> {
        async move {
            let late = || RpcError::dependency(format!("no answer within {} s", self.how.timeout.as_secs()));
            tokio::time::timeout_at(call.until, self.make(call)).await.unwrap_or_else(|_| Err(late()))
        }
        .boxed()
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.shared.health.subscribe()
    }

    /// MCP's conventions, by which tools of models are shown as such.
    fn describe_span(&self, span: &mut Span, tool: &Tool) {
        match self.plain.get(&tool.method) {
            Some(plain) => {
                span.name(plain.name);
                span.set(trace::MCP_METHOD, plain.name);
            }
            None => {
                span.name(&format!("tools/call {}", tool.name));
                span.set(trace::MCP_METHOD, "tools/call");
                span.set(trace::GEN_AI_OPERATION, "execute_tool");
                span.set(trace::GEN_AI_TOOL, tool.name.as_str());
            }
        }
    }

    fn error_type(&self, error: &RpcError) -> Cow<'static, str> {
        match error.is_application() && error.code() == TOOL_ERROR {
            true => "tool_error".into(),
            false => error.code().to_string().into(),
        }
    }

    fn tallied(&self) -> Tallied {
        self.tally.read()
    }

    fn description(&self, tool: &Tool) -> Option<Arc<Description>> {
        if let Some(plain) = self.plain.get(&tool.method) {
            return Some(Arc::new(Description::default().extension("x-mcp", self.plain_extension(plain))));
        }
        // Nobody must read a definition that was not approved, least of all a model.
        let listed = Arc::clone(&self.shared.state().tools);
        let definition = listed.get(&tool.name)?;
        self.shared.is_approved(definition).ok()?;
        definition.about().map(Arc::new)
    }

    fn stop(&self) -> BoxFuture<'_, ()> {
        async move {
            self.stop.send_replace(true);
            let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(task) = task {
                // A task that has panicked has ended as well.
                drop(task.await);
            }
        }
        .boxed()
    }
}

/// The parameters of a call by name: MCP has no others.
fn named(params: Option<&RawValue>) -> Result<Box<RawValue>, RpcError> {
    match params {
        None => RawValue::from_string("{}".to_owned()).map_err(RpcError::internal),
        Some(params) if params.get().starts_with('{') => Ok(params.to_owned()),
        Some(_) => Err(RpcError::invalid_params("parameters are given by name, as an object")),
    }
}
