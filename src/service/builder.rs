//! Puts a service together in an order that leaves nothing out: verifier, then policy, then methods.
//! Never builds a service that lacks one of them: only the last stage has `build`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use arc_swap::ArcSwap;
use serde_json::value::RawValue;
use tower::Layer;

use super::approvals::Approvals;
use super::attachment::AttachmentMemory;
use super::authorize::Permitted;
use super::budgets::Budgets;
use super::catalogue::Catalogue;
use super::counters::Counters;
use super::idempotency::{Idempotency, Idempotent};
use super::lines::Lines;
use super::meters::Meters;
use super::methods::MethodService;
use super::quota::{HintRate, Quotas};
use super::router::{Dispatch, Router, RouterError};
use super::shadow::Comparing;
use super::spans::Spans;
use super::streams::OpenCalls;
use super::tasks::Tasks;
use super::{Inner, Service, ServiceLimits, builtin};
use crate::auth::Verifier;
use crate::clock::{Clock, SystemClock};
use crate::files::FileTrust;
use crate::policy::{Finding, Methods, Packages, PolicyErrors, PolicySet};
use crate::record::Recorder;
use crate::rpc::RpcError;
use crate::wire::{Endpoint, KeyError, random_bytes};

impl Service {
    /// Starts a service: first its verifier, then its policy, then its methods.
    #[must_use]
    pub fn builder() -> Builder<WantsVerifier> {
        Builder::new()
    }
}

/// A service under construction. See [`Service::builder`].
#[derive(Debug)]
pub struct Builder<Stage> {
    stage: Stage,
}

/// Next: [`Builder::verifier`].
#[derive(Debug)]
pub struct WantsVerifier(());

/// Next: [`Builder::policy`] or [`Builder::policies`].
#[derive(Debug)]
pub struct WantsPolicy {
    endpoint: Endpoint,
    verifier: Verifier,
}

/// Next: [`Builder::methods`].
#[derive(Debug)]
pub struct WantsMethods {
    before: WantsPolicy,
    policy: Source,
    packages: Option<Arc<Packages>>,
    limits: ServiceLimits,
    recorder: Option<Recorder>,
}

#[derive(Debug)]
enum Source {
    Folder(PathBuf, FileTrust),
    Set(Box<PolicySet>),
}

/// Ready for [`Builder::build`].
pub struct Ready {
    before: WantsMethods,
    methods: MethodService,
    registered: Methods,
    idempotent: BTreeMap<String, Idempotent>,
    catalogue: Catalogue,
    wrong: Vec<RouterError>,
    names: Vec<String>,
    clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for Ready {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ready").field("methods", &self.names).finish_non_exhaustive()
    }
}

/// The service cannot be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Methods that cannot be registered.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Methods(Vec<RouterError>),
    /// A method is declared idempotent, but the replay guard cannot keep outcomes.
    #[error(
        "method `{0}` is declared idempotent, and the replay guard keeps no outcomes: use `LocalGuard` or `SharedGuard`"
    )]
    NoOutcomes(String),
    /// A method is declared idempotent, but the replicas have no common key by which to verify each other's outcomes.
    #[error(
        "method `{0}` is declared idempotent, and with a shared replay guard that needs a service key: make one with `sealwire \
         keys new-service`"
    )]
    NoKeyForOutcomes(String),
    /// The operating system provides no random numbers.
    #[error(transparent)]
    Random(#[from] KeyError),
    /// The policy files are wrong.
    #[error("{0}")]
    Policy(#[from] PolicyErrors),
}

impl Builder<WantsVerifier> {
    pub(super) fn new() -> Self {
        Self { stage: WantsVerifier(()) }
    }

    /// Who is let in: the verifier for `endpoint`.
    #[must_use]
    pub fn verifier(self, endpoint: Endpoint, verifier: Verifier) -> Builder<WantsPolicy> {
        Builder { stage: WantsPolicy { endpoint, verifier } }
    }
}

impl Builder<WantsPolicy> {
    /// Who may do what: a folder of policy files, loaded against the methods when the service is built. The files must
    /// be ours or root's, see [`FileTrust`]: files that others could have written are not read, and everything is
    /// denied.
    #[must_use]
    pub fn policies(self, folder: impl Into<PathBuf>) -> Builder<WantsMethods> {
        Builder {
            stage: WantsMethods {
                before: self.stage,
                policy: Source::Folder(folder.into(), FileTrust::default()),
                packages: None,
                limits: ServiceLimits::default(),
                recorder: None,
            },
        }
    }

    /// Who may do what: a policy that was loaded before.
    #[must_use]
    pub fn policy(self, policy: PolicySet) -> Builder<WantsMethods> {
        Builder {
            stage: WantsMethods {
                before: self.stage,
                policy: Source::Set(Box::new(policy)),
                packages: None,
                limits: ServiceLimits::default(),
                recorder: None,
            },
        }
    }
}

impl Builder<WantsMethods> {
    /// Whose policy files are trusted besides our own and root's.
    #[must_use]
    pub fn believing(mut self, files: FileTrust) -> Self {
        if let Source::Folder(_, trust) = &mut self.stage.policy {
            *trust = files;
        }
        self
    }

    /// Begins with the policy that operators have distributed last, if one was kept.
    #[must_use]
    pub(crate) fn beginning_with(mut self, packages: Option<Arc<Packages>>) -> Self {
        self.stage.packages = packages;
        self
    }

    /// Replaces the default limits.
    #[must_use]
    pub fn limits(mut self, limits: ServiceLimits) -> Self {
        self.stage.limits = limits;
        self
    }

    /// Records decisions and outcomes: see [`Recorder`].
    #[must_use]
    pub fn record(mut self, recorder: Recorder) -> Self {
        self.stage.recorder = Some(recorder);
        self
    }

    /// What can be called.
    #[must_use]
    pub fn methods<S: Send + Sync + 'static>(self, router: Router<S>) -> Builder<Ready> {
        let names: Vec<String> = router.names().map(str::to_owned).collect();
        let registered = builtin::with_builtin_methods(router.policy_methods());
        let wrong = router.wrong().to_vec();
        let idempotent = router.idempotent_methods().clone();
        let catalogue = router.catalogue();
        Builder {
            stage: Ready {
                before: self.stage,
                methods: MethodService::new(Dispatch(Arc::new(router))),
                registered,
                idempotent,
                catalogue,
                wrong,
                names,
                clock: Arc::new(SystemClock),
            },
        }
    }
}

impl Builder<Ready> {
    /// Puts a layer around the methods. It sees permitted calls only, and cannot make one.
    #[must_use]
    pub fn layer<L>(mut self, layer: L) -> Self
    where
        L: Layer<MethodService>,
        L::Service: tower::Service<Permitted, Response = Box<RawValue>> + Clone + Send + Sync + 'static,
        <L::Service as tower::Service<Permitted>>::Error: Into<RpcError>,
        <L::Service as tower::Service<Permitted>>::Future: Send + 'static,
    {
        self.stage.methods = MethodService::layered(layer.layer(self.stage.methods));
        self
    }

    /// Uses another clock than the system's.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.stage.clock = clock;
        self
    }

    /// The service.
    ///
    /// # Errors
    /// [`BuildError::Methods`] for names that cannot be registered (the author's mistake), [`BuildError::NoOutcomes`] and
    /// [`BuildError::NoKeyForOutcomes`] for idempotent methods without a place for outcomes, [`BuildError::Policy`] for
    /// policy files with errors (the operator's mistake). An empty or missing folder is no error: it denies everything and
    /// says so.
    pub fn build(self) -> Result<Service, BuildError> {
        let Ready { before, methods, registered, idempotent, catalogue, wrong, names, clock } = self.stage;
        if !wrong.is_empty() {
            return Err(BuildError::Methods(wrong));
        }
        let WantsMethods { before: WantsPolicy { endpoint, verifier }, policy, packages, limits, recorder } = before;
        let kept = packages.and_then(|packages| packages.begin(&registered));
        let policy = match (kept, policy) {
            (Some((set, findings)), _) => {
                findings.iter().for_each(Finding::log);
                set
            }
            (None, Source::Set(set)) => *set,
            (None, Source::Folder(folder, trust)) => {
                let (set, findings) = PolicySet::open_trusted(&folder, Some(&trust), &registered)?;
                findings.iter().for_each(Finding::log);
                set
            }
        };
        let idempotency = match idempotent.keys().next() {
            None => None,
            Some(first) => {
                let store = verifier.guard().outcomes().ok_or_else(|| BuildError::NoOutcomes(first.clone()))?;
                if store.is_shared() && verifier.service_key().is_none() {
                    return Err(BuildError::NoKeyForOutcomes(first.clone()));
                }
                let audience = endpoint.audience().clone();
                Some(Idempotency::new(store, idempotent, audience, random_bytes()?))
            }
        };
        let approvals = match verifier.guard().outcomes() {
            Some(store) => Some(Approvals::new(store, endpoint.clone(), random_bytes()?)),
            None => None,
        };
        let budgets = Budgets::new(verifier.guard().outcomes(), endpoint.audience().clone(), random_bytes()?);
        let inner = Inner {
            idempotency,
            approvals,
            budgets,
            catalogue,
            quotas: Quotas::new(&limits.quota),
            open: Arc::new(OpenCalls::new(limits.streams.clone())),
            tasks: Arc::new(Tasks::new(limits.tasks.clone())),
            attachments: Arc::new(AttachmentMemory::new(limits.attachments.clone())),
            hints: HintRate::new(limits.hints_per_second),
            counters: Counters::new(names.iter().map(String::as_str).chain(builtin::BUILTIN_METHODS)),
            meters: Meters::default(),
            spans: Spans::default(),
            lines: Lines::default(),
            policy: Arc::new(ArcSwap::from_pointee(policy)),
            comparing: Comparing::default(),
            endpoint,
            verifier,
            methods,
            limits,
            room: AtomicUsize::new(usize::MAX),
            recorder,
            clock,
        };
        inner.prepare(&inner.policy.load());
        Ok(Service(Arc::new(inner)))
    }
}
