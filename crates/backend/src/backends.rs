//! All backends of a service: validated together, started together and ended together.
//! Never starts one while the description of another is wrong.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sealwire::internal::service::FairSemaphore;
use sealwire::metrics::{Registry, Report};
use sealwire::{MethodName, Router, WhenFull};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::backend::{Backend, Health, Share, Transport, routed};
use crate::checked::{CheckedBackend, check};
use crate::child::found::{fault, path_of};
use crate::config::{BackendError, limited};
use crate::exec::{Exec, ExecConfig};
use crate::http::{Http, HttpConfig};
pub use crate::mcp::Listing;
use crate::mcp::{self, Mcp, McpConfig, Place};
use crate::names::Names;
use crate::pins::{Lock, LockError, Pins};
use crate::report::{Reported, Served};
use crate::stdio::{PeerConfig, PeerOptions, Pushes, Sessions, StdioConfig};
use crate::tables::{BackendConfig, BackendKind};
use crate::tool::Tool;
use crate::ws::{self, WsConfig};

/// What a configuration offers before anything is started; for MCP servers, what the lock file says.
///
/// # Errors
/// [`BackendError`]: the operator's mistake.
pub fn offered(configs: &[BackendConfig], lock: &Lock) -> Result<Vec<Tool>, BackendError> {
    let (all, names) = named(configs, lock)?;
    let mut offered = Vec::new();
    let mut servers = false;
    for checked in all {
        match checked {
            CheckedBackend::Stdio(StdioConfig { peer, .. }) | CheckedBackend::Ws(WsConfig { peer, .. }) => {
                offered.extend(peer.tools.into_iter().chain(peer.pushes));
            }
            CheckedBackend::Exec(ExecConfig { tools, .. }) | CheckedBackend::Http(HttpConfig { tools, .. }) => {
                offered.extend(tools)
            }
            CheckedBackend::Mcp(described) => {
                servers = true;
                offered
                    .extend(mcp::offered(&mcp::ServerOptions::new(&described, Arc::new(Pins::none()), &names), lock));
            }
        }
    }
    offered.extend(servers.then(changes).flatten());
    Ok(offered)
}

/// Programs of a configuration that cannot be started here, and why: `backend: why`. Nothing is started.
#[must_use]
pub fn missing(configs: &[BackendConfig]) -> Vec<String> {
    let mut missing = Vec::new();
    for config in configs {
        let commands = std::iter::once(&config.command).chain(config.credential.iter().map(|one| &one.command));
        for program in commands.filter_map(|command| command.first()) {
            // A configuration with a mistake is refused elsewhere.
            let Ok(launch) = limited(config, std::slice::from_ref(program)) else { continue };
            let path = path_of(&launch.env);
            if let Some(why) = fault(program, launch.dir.as_deref(), path.as_deref()) {
                missing.push(format!("backend `{}`: {why}", config.name));
            }
        }
    }
    missing
}

/// Validates the descriptions and claims their names; approved tools have precedence over what servers list.
fn named(configs: &[BackendConfig], lock: &Lock) -> Result<(Vec<CheckedBackend>, Arc<Names>), BackendError> {
    let (checked, names) = check(configs)?;
    let names = Arc::new(names);
    let servers = || checked.iter().filter_map(CheckedBackend::server);
    if let (Some(first), Some(changes)) = (servers().next(), changes()) {
        let wrong = |fault| BackendError { backend: first.name.clone(), fault: format!("{fault}: rename that") };
        names.claim(&changes.method, "the topic of tool changes").map_err(wrong)?;
    }
    for server in servers() {
        mcp::ServerOptions::new(server, Arc::new(Pins::none()), &names).naming.claim_approved(lock);
    }
    Ok((checked, names))
}

/// The topic on which subscribers hear of tools that are approved or change.
const CHANGES: &str = "tools/changes";

fn changes() -> Option<Tool> {
    let mut tool = Tool::new(CHANGES, MethodName::new(CHANGES).ok()?);
    tool.description = Some("Tells subscribers what becomes of tools.".to_owned());
    Some(tool)
}

/// The MCP servers, in the order of the file, in which they then offer their tools.
fn started(checked: &[CheckedBackend], pins: &Arc<Pins>, names: &Arc<Names>) -> Vec<Mcp> {
    let described = checked.iter().filter_map(CheckedBackend::server);
    described.map(|it| Mcp::start(&it.place, mcp::ServerOptions::new(it, Arc::clone(pins), names))).collect()
}

/// Starts the MCP servers concurrently, and waits until each has said what it can do. If one of them cannot be used, none is left running.
async fn servers(checked: &[CheckedBackend], pins: &Arc<Pins>, names: &Arc<Names>) -> Result<Vec<Mcp>, BackendError> {
    let servers = started(checked, pins, names);
    match futures_util::future::try_join_all(servers.iter().map(Mcp::settled)).await {
        Ok(_) => Ok(servers),
        Err(fault) => {
            end(&servers).await;
            Err(fault)
        }
    }
}

/// What an MCP server said when it was asked, or why it could not be.
#[derive(Debug)]
#[non_exhaustive]
pub struct ServerListing {
    /// The backend's name.
    pub backend: String,
    /// What it lists.
    pub listing: Result<Listing, BackendError>,
}

/// How a configuration's MCP servers describe their tools and prompts now. Starts each server, asks it and ends it.
///
/// # Errors
/// [`BackendError`]: the operator's mistake. What is wrong with a server is said beside what the others list.
pub async fn described(configs: &[BackendConfig], lock: &Lock) -> Result<Vec<ServerListing>, BackendError> {
    let (checked, names) = named(configs, lock)?;
    let mut servers = started(&checked, &Arc::new(Pins::none()), &names);
    let settled = futures_util::future::join_all(servers.iter().map(Mcp::settled)).await;
    let asked = servers.iter_mut().zip(settled).map(|(server, settled)| {
        let listing = settled.map(|()| {
            server.offer();
            // What cannot be used must not be approved.
            server.listing()
        });
        ServerListing { backend: server.name().to_owned(), listing }
    });
    let asked = asked.collect();
    end(&servers).await;
    Ok(asked)
}

/// What each backend offers now, as a service would offer it, by its name: its methods, or why it could not be asked. MCP servers are
/// started, asked and ended.
///
/// # Errors
/// [`BackendError`]: the operator's mistake.
pub async fn catalogue(
    configs: &[BackendConfig],
    lock: &Lock,
) -> Result<Vec<(String, Result<Vec<Tool>, BackendError>)>, BackendError> {
    let (checked, names) = named(configs, lock)?;
    let mut servers = started(&checked, &Arc::new(Pins::none()), &names);
    let settled = futures_util::future::join_all(servers.iter().map(Mcp::settled)).await;
    let (mut all, mut changes, mut asked) = (Vec::new(), changes(), servers.iter_mut().zip(settled));
    for (checked, config) in checked.into_iter().zip(configs) {
        let tools = match checked {
            CheckedBackend::Stdio(StdioConfig { peer, .. }) | CheckedBackend::Ws(WsConfig { peer, .. }) => {
                Ok(peer.tools.into_iter().chain(peer.pushes).collect())
            }
            CheckedBackend::Exec(ExecConfig { tools, .. }) | CheckedBackend::Http(HttpConfig { tools, .. }) => {
                Ok(tools)
            }
            CheckedBackend::Mcp(_) => match asked.next() {
                None => Ok(Vec::new()),
                Some((_, Err(fault))) => Err(fault),
                Some((server, Ok(()))) => {
                    server.listing();
                    // All servers together have one method for news of their tools.
                    Ok(server.offer().into_iter().chain(changes.take()).collect())
                }
            },
        };
        all.push((config.name.to_string(), tools));
    }
    end(&servers).await;
    Ok(all)
}

/// The running backends of a service.
#[derive(Debug)]
pub struct Backends {
    router: Router,
    running: Vec<Served>,
    down: watch::Receiver<Option<String>>,
    watching: Vec<JoinHandle<()>>,
}

impl Backends {
    /// Starts all backends and keeps them running. `lock` is the file of approved tool definitions.
    ///
    /// # Errors
    /// [`BackendError`]: the operator's mistake, or an MCP server without approved tools does not say what it can do. Nothing is left
    /// running.
    pub async fn start(configs: &[BackendConfig], lock: &Path) -> Result<Self, BackendError> {
        let mut router = Router::new(());
        let (mut running, mut names) = (Vec::new(), Vec::new());
        // A service without MCP servers needs no approvals.
        let pins = match configs.iter().find(|config| config.kind == BackendKind::Mcp) {
            Some(config) => {
                let wrong =
                    |error: LockError| BackendError { backend: config.name.to_string(), fault: error.to_string() };
                Some(Arc::new(Pins::load(lock).map_err(wrong)?))
            }
            None => None,
        };
        let pinned = pins.clone().unwrap_or_else(|| Arc::new(Pins::none()));
        // Programs that run all the time say it themselves, and so do those of calls, but only when there is one.
        for why in missing(configs) {
            tracing::warn!(target: "sealwire::backend", "{why}");
        }
        let (checked, claimed) = named(configs, &pinned.lock().borrow())?;
        let mut servers = servers(&checked, &pinned, &claimed).await?.into_iter();
        for (checked, config) in checked.into_iter().zip(configs) {
            let (backend, turns);
            ((router, turns), backend) = match checked {
                CheckedBackend::Stdio(config) => stdio(router, config),
                CheckedBackend::Exec(config) => exec(router, config),
                CheckedBackend::Http(config) => http(router, config),
                CheckedBackend::Ws(config) => ws(router, config),
                CheckedBackend::Mcp(config) => match servers.next() {
                    Some(server) => mcp(router, &config, server),
                    None => continue,
                },
            };
            names.push((config.name.to_string(), backend.health()));
            running.push(Served { name: config.name.to_string(), backend, turns });
        }
        let (tell, down) = watch::channel(None);
        let mut watching = vec![tokio::spawn(watch_all(names, tell))];
        if let Some(pins) = pins {
            router = router.topic(CHANGES, &pins.changes, PUSHED, WhenFull::DropOldest);
            watching.push(tokio::spawn(async move { pins.follow().await }));
        }
        Ok(Self { router, running, down, watching })
    }

    /// Their methods.
    #[must_use]
    pub fn router(&self) -> Router {
        self.router.clone()
    }

    /// Which backend is unavailable, if any, for [`ServeOptions::interrupted`](sealwire::ServeOptions::interrupted).
    #[must_use]
    pub fn down(&self) -> watch::Receiver<Option<String>> {
        self.down.clone()
    }

    /// How long [`Backends::stop`] takes at most.
    pub const STOPPING: Duration = Duration::from_secs(12);

    /// Ends them all concurrently.
    pub async fn stop(self) {
        self.watching.iter().for_each(JoinHandle::abort);
        end(self.running.iter().map(|served| &*served.backend)).await;
    }
}

impl Report for Backends {
    fn report_to(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(Reported(self.running.clone())));
    }
}

async fn end<'a, B: Backend + ?Sized + 'a>(running: impl IntoIterator<Item = &'a B>) {
    futures_util::future::join_all(running.into_iter().map(Backend::stop)).await;
}

/// A router with the tools of one more backend, whose calls take these turns.
type Routed = (Router, Arc<FairSemaphore>);

fn mcp(router: Router, config: &McpConfig, mut server: Mcp) -> (Routed, Arc<dyn Backend>) {
    let (watches, tools): (Vec<_>, Vec<_>) = server.offer().into_iter().partition(|tool| server.is_watch(tool));
    let server = Arc::new(server);
    let router = watches.into_iter().fold(router, |router, tool| server.watched(router, tool));
    let backend: Arc<dyn Backend> = server;
    let transport = if matches!(config.place, Place::Process(_)) { Transport::Pipe } else { Transport::Tcp };
    let share =
        Share { name: config.name.as_str().into(), transport, in_flight: config.in_flight, timeout: config.timeout };
    (routed(router, &backend, share, tools), backend)
}

fn http(router: Router, config: HttpConfig) -> (Routed, Arc<dyn Backend>) {
    let HttpConfig { how, tools } = config;
    let name = how.name.as_str().into();
    let share = Share { name, transport: Transport::Tcp, in_flight: how.in_flight, timeout: how.timeout };
    let backend: Arc<dyn Backend> = Arc::new(Http::start(how));
    (routed(router, &backend, share, tools), backend)
}

fn exec(router: Router, config: ExecConfig) -> (Routed, Arc<dyn Backend>) {
    let ExecConfig { launch, commands, in_flight, timeout, tools } = config;
    let share = Share { name: launch.name.as_str().into(), transport: Transport::Pipe, in_flight, timeout };
    let backend: Arc<dyn Backend> = Arc::new(Exec::new(launch, commands, timeout));
    (routed(router, &backend, share, tools), backend)
}

fn stdio(router: Router, config: StdioConfig) -> (Routed, Arc<dyn Backend>) {
    let StdioConfig { launch, processes, peer } = config;
    let reached = (launch.name.as_str().into(), Transport::Pipe);
    peers(router, reached, peer, processes, |how| Sessions::start(&launch, how))
}

fn ws(router: Router, config: WsConfig) -> (Routed, Arc<dyn Backend>) {
    let WsConfig { name, web, peer } = config;
    peers(router, (name.as_str().into(), Transport::Tcp), peer, 1, |how| ws::start(&name, web, how))
}

fn peers(
    router: Router,
    (name, transport): (Arc<str>, Transport),
    config: PeerConfig,
    processes: usize,
    start: impl FnOnce(PeerOptions) -> Sessions,
) -> (Routed, Arc<dyn Backend>) {
    let PeerConfig { in_flight, timeout, send_caller, questions, tools, pushes } = config;
    let (router, pushes) = topics(router, pushes);
    let backend: Arc<dyn Backend> = Arc::new(start(PeerOptions { processes, timeout, send_caller, questions, pushes }));
    (routed(router, &backend, Share { name, transport, in_flight, timeout }, tools), backend)
}

/// The topics of methods that only push.
fn topics(mut router: Router, pushes: Vec<Tool>) -> (Router, Pushes) {
    let mut topics = Pushes::new();
    for push in pushes {
        let topic = topics.entry(push.name).or_default();
        router = router.topic(push.method.as_str(), topic, PUSHED, WhenFull::DropOldest);
    }
    (router, topics)
}

/// How many notifications may wait for a slow subscriber.
const PUSHED: usize = 256;

/// Tells which backend is down, and when all are available again.
async fn watch_all(mut names: Vec<(String, watch::Receiver<Health>)>, tell: watch::Sender<Option<String>>) {
    loop {
        let down = names.iter_mut().find_map(|(name, health)| match &*health.borrow_and_update() {
            Health::Up => None,
            // The log has the reason already.
            Health::Limited(_) => Some(format!("nothing of backend `{name}` can be used")),
            Health::Down(_) => Some(format!("backend `{name}` is unavailable")),
        });
        tell.send_if_modified(|known| {
            let changed = *known != down;
            *known = down;
            changed
        });
        let changes = names.iter_mut().map(|(_, health)| Box::pin(health.changed()));
        let (changed, ..) = futures_util::future::select_all(changes).await;
        if changed.is_err() {
            // The backend has been stopped.
            return;
        }
    }
}
