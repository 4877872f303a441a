//! The gateway over HTTP: one listener, with all protocols behind the same checks: limits, `Host` and `Origin`, caller, quota.
//! Never makes a decision that belongs to a service, and never forwards what it has read differently than the service will.

mod approvals;
mod arrival;
pub(crate) mod authority;
mod config;
pub(crate) mod connections;
pub(crate) mod dialect;
mod error;
pub(crate) mod events;
pub(crate) mod fields;
pub(crate) mod head;
pub(crate) mod identity;
mod log;
mod mcp;
mod meters;
mod page;
mod parts;
pub(crate) mod pipeline;
mod probe;
pub(crate) mod refusal;
mod reload;
mod replicas;
mod report;
pub(crate) mod response;
pub(crate) mod rpc;
pub(crate) mod task_modes;
mod tls;
mod ws;

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use hyper::Request;
use sealwire::Credentials;
use sealwire::internal::KeyedLogLimiter;
use sealwire::internal::trace::Tracer;
use sealwire::serve::Condition;
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep, timeout_at};

use self::approvals::Approvals;
pub use self::approvals::PAGE as APPROVALS_PAGE;
pub use self::config::{
    A2aAgent, ApprovalRelay, Dpop, Expose, GatewayConfig, GatewayConfigError, Identity, Replicas, keys,
};
use self::connections::RequestBody;
use self::dialect::Dialect;
pub use self::error::{CutOff, OpenError};
use self::head::FromReplica;
use self::identity::Callers;
pub use self::identity::CallersError;
use self::mcp::Mcp;
use self::meters::Meters;
use self::page::Page;
use self::pipeline::admission::{Admission, Service};
pub use self::probe::{NotReady, ready};
use self::reload::{RefusedFiles, Resource};
pub use self::report::show;
use self::task_modes::TaskModes;
use self::tls::Tls;
use crate::bus::Bus;
use crate::once::Once;
use crate::seal::Kind;
pub use crate::seal::{SealError, Unsealed, new_seal_key};
use crate::tasks::TaskIds;

/// A gateway over HTTP.
pub struct Gateway {
    config: GatewayConfig,
    bus: Arc<Bus>,
    mcp: Mcp,
    dialect: Option<Arc<dyn Dialect>>,
    /// Ends the streams of clients that only listen.
    stopping: watch::Sender<bool>,
    callers: Callers,
    exposed: Arc<[Service]>,
    admission: Arc<Admission>,
    page: Option<Arc<Page>>,
    approvals: Option<Approvals>,
    once: Arc<Once>,
    tls: Option<Tls>,
    /// Files that take rights away and whose present state is refused.
    refused: Arc<RefusedFiles>,
    meters: Meters,
    /// Limits the log lines about refused heads, by status.
    refused_heads: KeyedLogLimiter<u16>,
    /// Files that are read only at the start.
    at_start: Mutex<Vec<Resource>>,
}

/// How often to forget the rates of idle callers, and to try an unreachable broker.
const TIDY: Duration = Duration::from_secs(5);
/// How often the log warns about a certificate.
const DAILY: Duration = Duration::from_secs(86_400);

impl Gateway {
    /// The gateway of this configuration, with this agent. It connects to nothing yet except issuers whose keys it fetches.
    ///
    /// # Errors
    /// [`OpenError`].
    ///
    /// Cancel safe.
    pub async fn open(config: GatewayConfig, credentials: Credentials) -> Result<Self, OpenError> {
        // Watched before anything is read, so that a change during the reading is noticed later.
        let at_start = config.read_at_start().into_iter().map(|(name, path)| Resource::at_start(name, path)).collect();
        let tls = Tls::listening(&config).map_err(OpenError::Tls)?;
        let once = Once::local(config.proofs())?;
        let once = match config.replay.clone() {
            Some(memory) => once.shared(memory, config.quota()),
            None => once,
        };
        let once = Arc::new(once);
        let refused = Arc::<RefusedFiles>::default();
        let (callers, credentials) = Callers::new(&config, credentials, &once, &refused).await?;
        let approvals = Approvals::of(&config, &credentials);
        let bus = Arc::new(Bus::new(credentials));
        let admission = Arc::new(Admission::new(&config, &bus));
        let exposed: Arc<[Service]> = config.expose.iter().cloned().map(Arc::new).collect();
        let stopping = watch::Sender::new(false);
        let page = Page::of(&config, &bus, &admission, stopping.subscribe());
        let mcp = Mcp::new(&config, &bus, stopping.subscribe())?;
        Ok(Self {
            config,
            bus,
            mcp,
            dialect: None,
            stopping,
            callers,
            exposed,
            admission,
            page,
            approvals,
            once,
            tls,
            refused,
            meters: Meters::default(),
            refused_heads: KeyedLogLimiter::default(),
            at_start: Mutex::new(at_start),
        })
    }

    /// The same, with a dialect of another package.
    #[must_use]
    pub fn with_dialect(self, dialect: impl Dialect + 'static) -> Self {
        Self { dialect: Some(Arc::new(dialect)), ..self }
    }

    /// Records the traces of requests from now on, as this says.
    pub fn trace(&self, tracer: &Tracer) {
        self.bus.trace(tracer);
    }

    /// Its configuration.
    #[must_use]
    pub fn config(&self) -> &GatewayConfig {
        &self.config
    }

    /// The services that it exposes.
    #[must_use]
    pub fn exposed(&self) -> &Arc<[Service]> {
        &self.exposed
    }

    /// Whether callers present tokens.
    #[must_use]
    pub fn callers_have_tokens(&self) -> bool {
        self.callers.have_tokens()
    }

    /// Whether its tokens for the bus are signed with the key of this id.
    #[must_use]
    pub fn signs_tokens_with(&self, kid: &str) -> bool {
        self.callers.sign_with(kid)
    }

    /// The ids of tasks of A2A, which no other dialect opens. Gateways with the same `seal_key` open each other's.
    #[must_use]
    pub fn task_ids(&self) -> TaskIds {
        TaskIds::new(Kind::A2aTask, Some(Arc::clone(self.mcp.seal())))
    }

    /// Which methods its callers may call as tasks.
    #[must_use]
    pub fn task_modes(&self) -> TaskModes {
        self.mcp.task_modes()
    }

    /// Tells when it is being stopped.
    #[must_use]
    pub fn stopping(&self) -> watch::Receiver<bool> {
        self.stopping.subscribe()
    }

    /// Serves callers on `listener`, and other replicas on `others`, until `stop`. Requests in progress then have [`GatewayConfig::drain`]
    /// to end; whatever is left is cancelled at the services.
    ///
    /// # Errors
    /// [`CutOff`].
    ///
    /// Cancel safety: dropping the future cuts off all connections.
    pub async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        others: Option<TcpListener>,
        stop: impl Future<Output = ()>,
    ) -> Result<(), CutOff> {
        let handle = |is_replica: bool| {
            let gateway = Arc::clone(&self);
            move |mut request: Request<RequestBody>| {
                if is_replica {
                    request.extensions_mut().insert(FromReplica);
                }
                Arc::clone(&gateway).handle(request)
            }
        };
        if let (Some(dialect), Ok(at)) = (&self.dialect, listener.local_addr()) {
            dialect.set_port(at.port());
        }
        let acceptor = || self.tls.as_ref().map(|tls| tls.acceptor.clone());
        let (leave, left) = oneshot::channel();
        let most = self.config.connections;
        let serving = async {
            let ends = OnceLock::new();
            let stop = async {
                stop.await;
                self.stopping.send_replace(true);
                self.mcp.leave();
                sleep(self.config.leave()).await;
                *ends.get_or_init(|| Instant::now() + self.config.drain())
            };
            let cut_off = connections::serve(listener, acceptor(), most, stop, handle(false)).await;
            let until = ends.get().copied().unwrap_or_else(Instant::now);
            // People's answers now arrive through the other replicas.
            if self.config.replicas.is_some() {
                drop(timeout_at(until, self.mcp.waited()).await);
            }
            // Fails if there are no other replicas.
            let _ = leave.send(until);
            cut_off
        };
        let for_others = async {
            let left = async { left.await.unwrap_or_else(|_| Instant::now()) };
            match others {
                Some(others) => connections::serve(others, acceptor(), most, left, handle(true)).await,
                None => 0,
            }
        };
        let cut_off = tokio::select! {
            (callers, others) = async { tokio::join!(serving, for_others) } => callers + others,
            () = self.tidy() => 0,
            () = self.keep_page() => 0,
            () = self.keep_memory() => 0,
            () = self.keep_approvals() => 0,
            () = self.keep_files() => 0,
            () = self.keep_revocation() => 0,
        };
        self.mcp.close().await;
        if let Some(dialect) = &self.dialect {
            dialect.close().await;
        }
        if let Some(approvals) = &self.approvals {
            approvals.close().await;
        }
        self.once.close().await;
        self.bus.close().await;
        if cut_off == 0 { Ok(()) } else { Err(CutOff(cut_off)) }
    }

    /// Keeps the broker connected even before the first call, and forgets what is no longer needed.
    async fn tidy(&self) {
        let mut was_away = false;
        let mut told: Option<Instant> = None;
        loop {
            if told.is_none_or(|told| told.elapsed() >= DAILY)
                && let Some(ending) = self.tls.as_ref().and_then(Tls::ending)
            {
                told = Some(Instant::now());
                tracing::warn!(target: "sealwire::gateway", "{ending}: replace it, and restart the gateway");
            }
            let away = self.bus.connect().await.err();
            if let Some(away) = away.as_ref().filter(|_| !was_away) {
                tracing::warn!(target: "sealwire::gateway", %away, "not ready");
            }
            was_away = away.is_some();
            sleep(TIDY).await;
            self.admission.tidy();
            self.once.tidy();
            self.mcp.tidy();
            if let Some(dialect) = &self.dialect {
                dialect.tidy();
            }
        }
    }

    /// Opens the memory that the replicas share, if they have one.
    async fn keep_memory(&self) {
        self.once.open().await;
        std::future::pending().await
    }

    /// Connects to the broker for what approvers have signed.
    async fn keep_approvals(&self) {
        if let Some(approvals) = &self.approvals {
            approvals.open().await;
        }
        std::future::pending().await
    }

    /// Looks at the files that may change.
    async fn keep_files(&self) {
        let mut all = std::mem::take(&mut *self.at_start.lock().unwrap_or_else(PoisonError::into_inner));
        all.extend(self.tls.as_ref().and_then(Tls::resource));
        all.extend(self.callers.resources());
        let bound = self.config.reload.fail_closed_after_s.map(|seconds| Duration::from_secs(seconds.get()));
        self.refused.keep(all, bound).await;
    }

    /// Follows what operators revoke.
    async fn keep_revocation(&self) {
        self.callers.revocation().follow(self.bus.credentials()).await;
        std::future::pending().await
    }

    /// Everything that must hold for the gateway to be of use.
    fn conditions(&self) -> Vec<Condition> {
        let condition = |name, is_met: bool, why: &str| Condition { name, unmet: (!is_met).then(|| why.to_owned()) };
        let refused = self.refused.names();
        vec![
            condition("running", !self.is_stopping(), "it is being stopped"),
            condition("connected", self.bus.is_up(), "the broker cannot be reached"),
            condition("memory", self.once.is_ready(), "the memory of all replicas is not open yet"),
            condition("files", refused.is_empty(), &format!("refused: {}", refused.join(", "))),
            Condition { name: "revocation", unmet: self.callers.revocation().list().stale().map(str::to_owned) },
        ]
    }

    fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    async fn keep_page(&self) {
        match &self.page {
            Some(page) => page.keep().await,
            None => std::future::pending().await,
        }
    }
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway").field("config", &self.config).finish_non_exhaustive()
    }
}
