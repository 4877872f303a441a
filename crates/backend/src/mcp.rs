//! Servers of the Model Context Protocol, over the lines of a process or over HTTP: their tools, resources and prompts as methods, in both
//! eras of the protocol.
//! Never sends arguments that the tool's own schema does not accept, and never the caller's token.
//!
//! A tool is a method of the same name. If it has an `outputSchema`, the method returns what that describes; see docs/backends.md.

mod conversation;
mod exchange;
mod headers;
mod http;
mod listing;
mod naming;
mod reach;
mod session;
mod shared;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use hyper::header::HeaderMap;
use sealwire::policy::{Param, ParamType};
use sealwire::service::Description;
use sealwire::{MethodName, RpcError};
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use self::conversation::Refusal;
use self::exchange::End;
pub use self::listing::Definition;
use self::naming::Naming;
pub(crate) use self::naming::owner;
use self::session::{Capabilities, Members, Session};
use self::shared::Shared;
use crate::backend::{Backend, Call, Health};
use crate::config::{BackendFault, McpConfig, Place};
use crate::names::Names;
use crate::pins::{Lock, Pin, Pins};
use crate::schema::Unfit;
use crate::tool::Tool;

/// One server.
#[derive(Debug)]
pub(crate) struct Mcp {
    shared: Arc<Shared>,
    how: Use,
    /// Methods that are requests of the protocol itself.
    plain: BTreeMap<MethodName, Plain>,
    task: Mutex<Option<JoinHandle<()>>>,
    stop: watch::Sender<bool>,
    /// Long checks run one after the other, so that the tools of one server leave room for those of others.
    checks: Arc<Semaphore>,
}

/// How a server is used.
#[derive(Debug, Clone)]
pub(crate) struct Use {
    pub(crate) naming: Naming,
    pub(crate) timeout: Duration,
    pub(crate) send_caller: bool,
    /// The approved definitions.
    pub(crate) pins: Arc<Pins>,
}

impl Use {
    pub(crate) fn new(config: &McpConfig, pins: Arc<Pins>, names: &Arc<Names>) -> Self {
        let McpConfig { name, prefix, aliases, timeout, send_caller, .. } = config;
        let (backend, prefix, aliases) = (name.clone(), prefix.clone(), aliases.clone());
        let naming = Naming { backend, prefix, aliases, names: Arc::clone(names) };
        Self { naming, timeout: *timeout, send_caller: *send_caller, pins }
    }

    /// The method of the tool with this definition.
    fn tool(&self, definition: &Definition) -> Result<Tool, String> {
        let mut tool = Tool::new(definition.name.clone(), self.naming.claim(&definition.name)?);
        tool.description.clone_from(&definition.description);
        tool.remarks = definition.remarks();
        let schemas = definition.usable.as_ref().ok();
        tool.declared = schemas.map(|schemas| schemas.arguments.declared().to_vec());
        Ok(tool)
    }

    fn plain(&self, plain: Plain) -> Result<Tool, String> {
        let mut tool = Tool::new(plain.name, self.naming.claim_plain(plain.name)?);
        tool.declared = Some(plain.params.iter().map(|(name, required)| declared(name, *required)).collect());
        Ok(tool)
    }
}

/// What a server that is not started offers: its approved tools, and whatever it may have besides tools.
pub(crate) fn offered(how: &Use, lock: &Lock) -> Vec<Tool> {
    let tools = known(&how.naming.backend, lock, &BTreeMap::new())
        .into_values()
        .filter_map(|definition| how.tool(&definition).ok());
    tools.chain(PLAIN.into_iter().filter_map(|plain| how.plain(plain).ok())).collect()
}

/// How long a server may take to start, at least: it may have to be downloaded first.
const START: Duration = Duration::from_secs(60);
/// How long the service waits for a server whose tools are known already.
const KNOWN: Duration = Duration::from_secs(10);

/// A request that is a method of the same name.
#[derive(Debug, Clone, Copy)]
struct Plain {
    name: &'static str,
    /// Its parameters, and whether each is required.
    params: &'static [(&'static str, bool)],
}

const PLAIN: [Plain; 5] = [
    Plain { name: "resources/list", params: &[("cursor", false)] },
    Plain { name: "resources/templates/list", params: &[("cursor", false)] },
    Plain { name: "resources/read", params: &[("uri", true)] },
    Plain { name: "prompts/list", params: &[("cursor", false)] },
    Plain { name: "prompts/get", params: &[("name", true), ("arguments", false)] },
];

impl Mcp {
    /// Starts the server's process, or connects to its address, until [`Backend::stop`].
    pub(crate) fn start(place: &Place, how: Use) -> Self {
        let shared = Arc::new(Shared::new(how.naming.clone(), how.timeout, Arc::clone(&how.pins)));
        let stop = watch::Sender::new(false);
        let mut stopped = stop.subscribe();
        let stopped = async move { drop(stopped.wait_for(|stop| *stop).await) };
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
        }
    }

    /// Waits until the server has said what it can do. A server with approved tools may come later, since its tools are known.
    ///
    /// # Errors
    /// Nothing is approved, and the server has not said it within a minute or the timeout of calls, whichever is longer, or has ended
    /// twice.
    pub(crate) async fn settled(&self) -> Result<(), BackendFault> {
        let is_known = self.how.pins.lock().borrow().pins(self.name()).next().is_some();
        let there = self.is_up(if is_known { KNOWN } else { self.how.timeout.max(START) }).await;
        match there {
            Err(reason) if is_known => {
                let backend = self.name();
                tracing::warn!(target: "sealwire::backend", backend, reason, "the service starts without it");
                Ok(())
            }
            there => there.map_err(|fault| BackendFault { backend: self.name().to_owned(), fault }),
        }
    }

    /// Waits until the server is available. It may end once: when it is asked in a way that it does not know.
    async fn is_up(&self, patience: Duration) -> Result<(), String> {
        let ends = &self.shared.ends;
        let mut health = self.shared.health.subscribe();
        let settled = health.wait_for(|health| *health == Health::Up || ends.load(Ordering::Relaxed) > 1);
        let settled = tokio::time::timeout(patience, settled).await.map(|settled| settled.map(|health| health.clone()));
        match settled {
            Ok(Ok(Health::Up)) => Ok(()),
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
        for plain in PLAIN {
            let offered =
                if plain.name.starts_with("resources/") { capabilities.resources } else { capabilities.prompts };
            if !offered {
                continue;
            }
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

    /// The server's current definitions of its tools.
    pub(crate) fn definitions(&self) -> Vec<Definition> {
        self.shared.state().tools.values().cloned().collect()
    }

    /// A session other than `lost`, and the listing; for a tool, only a listing that includes every change that the server has announced.
    async fn session(&self, lost: Option<&Arc<Session>>, is_tool: bool) -> Result<(Arc<Session>, Listed), RpcError> {
        let mut health = self.shared.health.subscribe();
        loop {
            if *health.borrow_and_update() != Health::Up {
                return Err(session::gone());
            }
            {
                let state = self.shared.state();
                let session = state.session.clone();
                if let Some(session) = session.filter(|session| lost.is_none_or(|lost| !Arc::ptr_eq(lost, session))) {
                    if !is_tool || session.conversation().changes() == state.changes {
                        return Ok((session, Arc::clone(&state.tools)));
                    }
                    if let Some(reason) = &state.unlisted {
                        return Err(RpcError::dependency(format!("its tools have changed: {reason}")));
                    }
                }
            }
            if health.changed().await.is_err() {
                return Err(session::gone());
            }
        }
    }

    async fn make(&self, call: Call) -> Result<Box<RawValue>, RpcError> {
        let is_tool = !self.plain.contains_key(&call.tool.method);
        let (session, listed) = self.session(None, is_tool).await?;
        match self.make_with(&session, &listed, &call).await {
            Err(End::Lost) => {}
            Err(End::Error(error)) => return Err(error),
            Ok(result) => return Ok(result),
        }
        // The request was refused before anything was done. A server that ends each session at once is not asked forever.
        let (session, listed) = self.session(Some(&session), is_tool).await?;
        self.make_with(&session, &listed, &call).await.map_err(|end| match end {
            End::Lost => RpcError::dependency(Refusal::Lost.to_string()),
            End::Error(error) => error,
        })
    }

    async fn make_with(&self, session: &Session, listed: &Listed, call: &Call) -> Result<Box<RawValue>, End> {
        let send_caller = self.how.send_caller;
        if let Some(Plain { name, params: known }) = self.plain.get(&call.tool.method) {
            let params: Members =
                serde_json::from_str(named(call.params.as_deref())?.get()).map_err(RpcError::internal)?;
            if let Some(other) = params.keys().find(|name| !known.iter().any(|(known, _)| known == name)) {
                let other: String = other.chars().take(80).flat_map(char::escape_debug).collect();
                return Err(RpcError::invalid_params(format!("there is no parameter `{other}`")).into());
            }
            return exchange::make(session, call, name, params, &HeaderMap::new(), send_caller, || Ok(())).await;
        }
        let definition = listed.get(&call.tool.name);
        let definition = definition.ok_or_else(|| RpcError::dependency("the server has no such tool now"))?;
        self.shared.is_approved(definition)?;
        let schemas = definition.usable.as_ref().map_err(|reason| RpcError::dependency(reason.clone()))?;
        let arguments = named(call.params.as_deref())?;
        schemas.arguments.fits(&arguments, &self.checks).await.map_err(|unfit| match unfit {
            Unfit::Value(mismatch) => RpcError::invalid_params(mismatch.to_string()),
            unfit => RpcError::dependency(format!("`inputSchema`: {unfit}")),
        })?;
        let headers = headers::fields(&schemas.mirrored, &arguments)?;
        let mut request = Members::new();
        session::insert(&mut request, "name", &call.tool.name);
        request.insert("arguments".to_owned(), arguments);
        let may_go_on = || self.shared.is_same(session, definition);
        let result = exchange::make(session, call, "tools/call", request, &headers, send_caller, may_go_on).await?;
        Ok(exchange::of_tool(&result, schemas.result.as_ref(), &self.checks).await?)
    }
}

/// Tools by name.
type Listed = Arc<BTreeMap<String, Definition>>;

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

    fn description(&self, tool: &Tool) -> Option<Arc<Description>> {
        if let Some(plain) = self.plain.get(&tool.method) {
            return Some(Arc::new(Description::default().extension("x-mcp", json!({ "request": plain.name }))));
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

/// All tools that are listed or approved. The approved definition has precedence, since policies were written for its parameters.
fn known(backend: &str, lock: &Lock, listed: &BTreeMap<String, Definition>) -> BTreeMap<String, Definition> {
    let approved = lock.pins(backend).filter_map(|(name, pin)| Some((name.clone(), of_pin(pin)?)));
    let mut known: BTreeMap<String, Definition> = approved.collect();
    for (name, definition) in listed {
        known.entry(name.clone()).or_insert_with(|| definition.clone());
    }
    known
}

fn of_pin(pin: &Pin) -> Option<Definition> {
    listing::read(&RawValue::from_string(pin.definition.clone()).ok()?, false).ok()
}

fn declared(name: &str, required: bool) -> Param {
    let kind = if name == "arguments" { ParamType::Any } else { ParamType::String };
    let param = Param::new(name, kind);
    if required { param } else { param.optional() }
}

/// The parameters of a call by name: MCP has no others.
fn named(params: Option<&RawValue>) -> Result<Box<RawValue>, RpcError> {
    match params {
        None => RawValue::from_string("{}".to_owned()).map_err(RpcError::internal),
        Some(params) if params.get().starts_with('{') => Ok(params.to_owned()),
        Some(_) => Err(RpcError::invalid_params("parameters are given by name, as an object")),
    }
}
