//! All backends of a service: validated together, started together and ended together.
//! Never starts one while the description of another is wrong.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sealwire::service::{Router, WhenFull};
use sealwire::{BackendConfig, BackendKind, MethodName};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::backend::{Backend, Health, Share, routed};
use crate::config::{BackendFault, ExecConfig, HttpConfig, Judged, McpConfig, StdioConfig, judge};
use crate::exec::Exec;
use crate::http::Http;
use crate::mcp::{self, Definition, Mcp};
use crate::names::Names;
use crate::pins::{Lock, LockError, Pins};
use crate::stdio::{Pushes, Stdio, Use};
use crate::tool::Tool;

/// What a configuration offers before anything is started; for MCP servers, what the lock file says.
///
/// # Errors
/// [`BackendFault`]: the operator's mistake.
pub fn offered(configs: &[BackendConfig], lock: &Lock) -> Result<Vec<Tool>, BackendFault> {
    let (all, names) = named(configs, lock)?;
    let mut offered = Vec::new();
    let mut servers = false;
    for judged in all {
        match judged {
            Judged::Stdio(StdioConfig { tools, pushes, .. }) => offered.extend(tools.into_iter().chain(pushes)),
            Judged::Exec(ExecConfig { tools, .. }) | Judged::Http(HttpConfig { tools, .. }) => offered.extend(tools),
            Judged::Mcp(described) => {
                servers = true;
                offered.extend(mcp::offered(&mcp::Use::new(&described, Arc::new(Pins::none()), &names), lock));
            }
        }
    }
    offered.extend(servers.then(changes).flatten());
    Ok(offered)
}

/// Validates the descriptions and claims their names; approved tools have precedence over what servers list.
fn named(configs: &[BackendConfig], lock: &Lock) -> Result<(Vec<Judged>, Arc<Names>), BackendFault> {
    let (judged, names) = judge(configs)?;
    let names = Arc::new(names);
    let servers = || judged.iter().filter_map(Judged::server);
    if let (Some(first), Some(changes)) = (servers().next(), changes()) {
        let wrong = |fault| BackendFault { backend: first.name.clone(), fault: format!("{fault}: rename that") };
        names.claim(&changes.method, "the topic of tool changes").map_err(wrong)?;
    }
    for server in servers() {
        mcp::Use::new(server, Arc::new(Pins::none()), &names).naming.claim_approved(lock);
    }
    Ok((judged, names))
}

/// The topic on which subscribers hear of tools that are approved or change.
const CHANGES: &str = "tools/changes";

fn changes() -> Option<Tool> {
    let mut tool = Tool::new(CHANGES, MethodName::new(CHANGES).ok()?);
    tool.description = Some("Tells subscribers what becomes of tools.".to_owned());
    Some(tool)
}

/// Starts the MCP servers concurrently, and waits until each has said what it can do. Returns them in the order of the file, in which they
/// then offer their tools. If one of them cannot be used, none is left running.
async fn servers(judged: &[Judged], pins: &Arc<Pins>, names: &Arc<Names>) -> Result<Vec<Mcp>, BackendFault> {
    let described = judged.iter().filter_map(Judged::server);
    let started = described.map(|it| Mcp::start(&it.place, mcp::Use::new(it, Arc::clone(pins), names)));
    let servers: Vec<Mcp> = started.collect();
    match futures_util::future::try_join_all(servers.iter().map(Mcp::settled)).await {
        Ok(_) => Ok(servers),
        Err(fault) => {
            end(&servers).await;
            Err(fault)
        }
    }
}

/// How a configuration's MCP servers describe their tools now, by backend name. Starts each server, asks it and ends it.
///
/// # Errors
/// [`BackendFault`]: the operator's or the server's mistake.
pub async fn described(
    configs: &[BackendConfig],
    lock: &Lock,
) -> Result<BTreeMap<String, Vec<Definition>>, BackendFault> {
    let (judged, names) = named(configs, lock)?;
    let mut servers = servers(&judged, &Arc::new(Pins::none()), &names).await?;
    let described = servers.iter_mut().map(|server| {
        server.offer();
        (server.name().to_owned(), server.definitions())
    });
    let mut described: BTreeMap<String, Vec<Definition>> = described.collect();
    end(&servers).await;
    // What cannot be used must not be approved.
    described.values_mut().flatten().for_each(Definition::try_out);
    Ok(described)
}

/// What each backend offers now, as a service would offer it: its name and its methods. MCP servers are started, asked and ended.
///
/// # Errors
/// [`BackendFault`]: the operator's or the server's mistake.
pub async fn catalogue(configs: &[BackendConfig], lock: &Lock) -> Result<Vec<(String, Vec<Tool>)>, BackendFault> {
    let (judged, names) = named(configs, lock)?;
    let mut servers = servers(&judged, &Arc::new(Pins::none()), &names).await?;
    let (mut all, mut changes, mut asked) = (Vec::new(), changes(), servers.iter_mut());
    for (judged, config) in judged.into_iter().zip(configs) {
        let tools = match judged {
            Judged::Stdio(StdioConfig { tools, pushes, .. }) => tools.into_iter().chain(pushes).collect(),
            Judged::Exec(ExecConfig { tools, .. }) | Judged::Http(HttpConfig { tools, .. }) => tools,
            Judged::Mcp(_) => {
                // All servers together have one method for news of their tools.
                asked.next().map(Mcp::offer).into_iter().flatten().chain(changes.take()).collect()
            }
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
    running: Vec<Arc<dyn Backend>>,
    down: watch::Receiver<Option<String>>,
    watching: Vec<JoinHandle<()>>,
}

impl Backends {
    /// Starts all backends and keeps them running. `lock` is the file of approved tool definitions.
    ///
    /// # Errors
    /// [`BackendFault`]: the operator's mistake, or an MCP server without approved tools does not say what it can do. Nothing is left
    /// running.
    pub async fn start(configs: &[BackendConfig], lock: &Path) -> Result<Self, BackendFault> {
        let mut router = Router::new(());
        let (mut running, mut names) = (Vec::<Arc<dyn Backend>>::new(), Vec::new());
        // A service without MCP servers needs no approvals.
        let pins = match configs.iter().find(|config| config.kind == BackendKind::Mcp) {
            Some(config) => {
                let wrong =
                    |error: LockError| BackendFault { backend: config.name.to_string(), fault: error.to_string() };
                Some(Arc::new(Pins::load(lock).map_err(wrong)?))
            }
            None => None,
        };
        let pinned = pins.clone().unwrap_or_else(|| Arc::new(Pins::none()));
        let (judged, claimed) = named(configs, &pinned.lock().borrow())?;
        let mut servers = servers(&judged, &pinned, &claimed).await?.into_iter();
        for (judged, config) in judged.into_iter().zip(configs) {
            let backend;
            (router, backend) = match judged {
                Judged::Stdio(config) => stdio(router, config),
                Judged::Exec(config) => exec(router, config),
                Judged::Http(config) => http(router, config),
                Judged::Mcp(config) => match servers.next() {
                    Some(server) => mcp(router, &config, server),
                    None => continue,
                },
            };
            names.push((config.name.to_string(), backend.health()));
            running.push(backend);
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

    /// Which backend is unavailable, if any, for [`ServeOptions::interrupted`](sealwire::service::ServeOptions::interrupted).
    #[must_use]
    pub fn down(&self) -> watch::Receiver<Option<String>> {
        self.down.clone()
    }

    /// How long [`Backends::stop`] takes at most.
    pub const STOPPING: Duration = Duration::from_secs(12);

    /// Ends them all concurrently.
    pub async fn stop(self) {
        self.watching.iter().for_each(JoinHandle::abort);
        end(self.running.iter().map(AsRef::as_ref)).await;
    }
}

async fn end<'a, B: Backend + ?Sized + 'a>(running: impl IntoIterator<Item = &'a B>) {
    futures_util::future::join_all(running.into_iter().map(Backend::stop)).await;
}

fn mcp(router: Router, config: &McpConfig, mut server: Mcp) -> (Router, Arc<dyn Backend>) {
    let tools = server.offer();
    let backend: Arc<dyn Backend> = Arc::new(server);
    let share = Share { in_flight: config.in_flight, timeout: config.timeout };
    (routed(router, &backend, share, tools), backend)
}

fn http(router: Router, config: HttpConfig) -> (Router, Arc<dyn Backend>) {
    let HttpConfig { how, tools } = config;
    let share = Share { in_flight: how.in_flight, timeout: how.timeout };
    let backend: Arc<dyn Backend> = Arc::new(Http::start(how));
    (routed(router, &backend, share, tools), backend)
}

fn exec(router: Router, config: ExecConfig) -> (Router, Arc<dyn Backend>) {
    let ExecConfig { launch, commands, in_flight, timeout, tools } = config;
    let backend: Arc<dyn Backend> = Arc::new(Exec::new(launch, commands, timeout));
    (routed(router, &backend, Share { in_flight, timeout }, tools), backend)
}

fn stdio(mut router: Router, config: StdioConfig) -> (Router, Arc<dyn Backend>) {
    let StdioConfig { launch, processes, in_flight, timeout, send_caller, tools, pushes } = config;
    let mut topics = Pushes::new();
    for push in pushes {
        let topic = topics.entry(push.name).or_default();
        router = router.topic(push.method.as_str(), topic, PUSHED, WhenFull::DropOldest);
    }
    let how = Use { processes, timeout, send_caller, pushes: topics };
    let backend: Arc<dyn Backend> = Arc::new(Stdio::start(&launch, how));
    (routed(router, &backend, Share { in_flight, timeout }, tools), backend)
}

/// How many notifications may wait for a slow subscriber.
const PUSHED: usize = 256;

/// Tells which backend is down, and when all are available again.
async fn watch_all(mut names: Vec<(String, watch::Receiver<Health>)>, tell: watch::Sender<Option<String>>) {
    loop {
        let down = names.iter_mut().find_map(|(name, health)| match &*health.borrow_and_update() {
            Health::Up => None,
            // The log has the reason already.
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
