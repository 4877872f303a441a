//! Who a connection is, by its access token, and what it may do.
//! Never lets in a token that no service would accept, and never for longer than the token lives.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use sealwire::decide::{PolicyStore, Reload};
use sealwire::internal::LogLimiter;
use sealwire::internal::auth::{
    AccessToken, FollowerId, FollowerRole, KeySourceStatus, RevocationFollower, RevocationKind, Revocations,
    TokenVerifier,
};
use sealwire::internal::policy::{PackageEvent, PackageFollower, Packages, TokenRoles};
use sealwire::internal::wire::{Endpoint, Nonce};
use sealwire::{Config, Name, PolicySet};
use sealwire_lab::permissions::Permissions;
use sha2::{Digest as _, Sha256};

use super::request::Question;
use crate::exit::{Exit, Failure, OrFail as _};
use crate::gate::{Grant, marked};
use crate::policies;

/// Judges connections by the tokens and policies of services.
pub(super) struct Judge {
    services: Vec<Gated>,
    batches: bool,
    hosts: DefaultKeyedRateLimiter<String>,
}

/// One service: whose tokens it accepts, and what its policy allows.
struct Gated {
    config: Config,
    endpoint: Endpoint,
    tokens: TokenVerifier,
    policy: PolicyStore,
    /// What operators distribute, if policies come from there, and what of it is in force.
    packages: Option<Arc<Packages>>,
    pushed: Arc<Mutex<Option<Arc<PolicySet>>>>,
    /// When the files that `tokens` judges by were last changed.
    stamps: Mutex<Vec<Stamp>>,
    /// When these were last those that `tokens` judges by.
    looked: Mutex<Instant>,
    trouble: LogLimiter,
}

type Stamp = Option<(SystemTime, u64)>;

/// An agent that may connect.
pub(super) struct Admitted {
    pub(super) agent: Name,
    /// Its name at the broker.
    pub(super) user: String,
    pub(super) permissions: Permissions,
    /// When the token ends, and with it the connection.
    pub(super) until: u64,
    /// The policy revisions that the permissions were compiled from.
    pub(super) tags: Vec<String>,
}

/// Why a connection is denied, for the broker's log. The client is not told.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Denied {
    /// A name from a closed set, for metrics.
    pub(super) label: &'static str,
    pub(super) why: String,
}

impl Denied {
    fn new(label: &'static str, why: &str) -> Self {
        Self { label, why: why.to_owned() }
    }
}

/// How a service stands, as far as connections depend on it.
pub(super) struct Standing {
    pub(super) service: String,
    /// Why it lets nobody in, if so.
    pub(super) closed: Option<String>,
    /// For how long the files that tokens are judged by have not been known to be those in force, in seconds.
    pub(super) files_age_s: f64,
    /// How long ago the bucket of revocations was seen, in seconds.
    pub(super) revocations_age_s: Option<f64>,
    pub(super) token_keys: Vec<KeySourceStatus>,
}

/// Hosts of which the rate is known. When there are so many, those that ask no more are forgotten, and newer ones share one rate.
pub(super) const MAX_HOSTS: usize = 16_384;

impl Judge {
    pub(super) async fn open(
        configs: Vec<Config>,
        batches: bool,
        per_second: NonZeroU32,
        burst: NonZeroU32,
    ) -> Result<Self, Failure> {
        let mut services = Vec::new();
        for mut config in configs {
            if let Some(revocation) = &mut config.revocation {
                // The service may keep its own list beside it.
                revocation.state = revocation.state.take().map(|path| path.with_extension("authd.revocation"));
            }
            config.policy.state = config.policy.state.take().map(|path| path.with_extension("authd.policy"));
            let endpoint = config.endpoint().or_fail(Exit::Input)?;
            let stamps = stamps(&config);
            let tokens = config.access_tokens().await.or_fail(Exit::Input)?;
            let folder = &config.policy.folder;
            let opened = PolicyStore::open(folder, policies::known_methods(), Some(config.files.clone()));
            let (policy, _) = opened.map_err(|errors| policies::refused(folder, &errors))?;
            let packages = config.packages().or_fail(Exit::Input)?;
            let kept = packages.as_ref().and_then(|packages| packages.begin(&policies::known_methods()));
            if let (Some(packages), None, Some(why)) = (&packages, &kept, policy.current().revision().why()) {
                packages.denies(why);
            }
            let pushed = Arc::new(Mutex::new(kept.map(|(set, _)| Arc::new(set))));
            if let Some(why) = policy.current().revision().why().filter(|_| packages.is_none()) {
                return Err(Failure::new(Exit::PolicyInvalid, format!("`{}` cannot be used: {why}", folder.display())));
            }
            let (stamps, looked, trouble) = (Mutex::new(stamps), Mutex::new(Instant::now()), LogLimiter::default());
            services.push(Gated { config, endpoint, tokens, policy, packages, pushed, stamps, looked, trouble });
        }
        let hosts = RateLimiter::dashmap(Quota::per_second(per_second).allow_burst(burst));
        Ok(Self { services, batches, hosts })
    }

    /// Follows what operators revoke and which policies they distribute, for each service that does, until it is dropped.
    pub(super) fn follow(&self) -> impl Future<Output = ()> + Send + 'static {
        let follower = |service: &Gated| {
            let (role, name) = (FollowerRole::Authd, service.endpoint.service().clone());
            let id = FollowerId { role, name, instance: Nonce::random().to_text() };
            let revocations = RevocationFollower::new(Arc::clone(service.tokens.revocations()), id.clone()).run(|_| ());
            let (packages, pushed) = (service.packages.clone(), Arc::clone(&service.pushed));
            let policies = async move {
                let Some(packages) = packages else { return };
                let follower = PackageFollower::new(packages, id, &policies::known_methods());
                let tell = |event| {
                    if let PackageEvent::New(set) = event {
                        *pushed.lock().unwrap_or_else(PoisonError::into_inner) = Some(set);
                    }
                };
                follower.run(tell).await;
            };
            async move { tokio::join!(revocations, policies) }
        };
        let all: Vec<_> = self.services.iter().map(follower).collect();
        async move { drop(futures_util::future::join_all(all).await) }
    }

    /// Judges a connection now.
    pub(super) fn judge(&self, question: &Question, now_s: u64) -> Result<Admitted, Denied> {
        let denied = |label, why| Err(Denied::new(label, why));
        if !self.within_rate(&question.host) {
            return denied("host_rate", "too many connections from its host");
        }
        if !question.is_client {
            return denied("not_a_client", "no plain client");
        }
        let Some(token) = &question.token else { return denied("no_token", "it shows no access token") };
        let digest = Sha256::digest(token.as_bytes()).into();
        let mut found: Option<(Name, Grant, u64, Vec<String>)> = None;
        let mut names: BTreeSet<(RevocationKind, String)> = BTreeSet::new();
        let mut why: Option<Denied> = None;
        for service in &self.services {
            let token = match service.tokens.verify(token, &digest, now_s) {
                Ok(token) => token,
                Err(error) => {
                    why.get_or_insert_with(|| Denied::new(error.label(), &error.to_string()));
                    continue;
                }
            };
            let agent = match service.owner(&token, now_s) {
                Ok(agent) => agent,
                Err(error) => {
                    why = Some(error);
                    continue;
                }
            };
            let (known, grant, until, tags) =
                found.get_or_insert_with(|| (agent.clone(), Grant::default(), token.expires_at, Vec::new()));
            // Services may read the name from different claims; a connection has one.
            if *known != agent {
                return denied("agents", "it is not the same agent to all services");
            }
            let key = token.cnf.as_ref().and_then(|cnf| cnf.kid.as_deref()).map(|kid| (RevocationKind::Key, kid));
            names.extend(token.names().chain(key).map(|(kind, name)| (kind, name.to_owned())));
            let policy = service.policy();
            let scope = policy.method_scope(&agent, &TokenRoles::Exactly(token.roles.clone()));
            grant.add(&service.endpoint, &agent, &scope, self.batches);
            *until = token.expires_at.min(*until);
            tags.push(format!("rev:{}:{}", service.endpoint.service(), policy.revision()));
        }
        match found {
            None => Err(why.unwrap_or_else(|| Denied::new("no_service", "no service judges tokens"))),
            Some((_, grant, ..)) if grant.is_empty() => denied("policy", "no policy lets it call anything"),
            Some((agent, grant, until, tags)) => {
                let user = marked(&agent, names.iter().map(|(kind, name)| (*kind, name.as_str())));
                Ok(Admitted { agent, user, permissions: grant.permissions(), until, tags })
            }
        }
    }

    fn within_rate(&self, host: &str) -> bool {
        if self.hosts.len() >= MAX_HOSTS {
            self.hosts.retain_recent();
        }
        let host = if self.hosts.len() < MAX_HOSTS { host.to_owned() } else { String::new() };
        self.hosts.check_key(&host).is_ok()
    }

    /// How each service stands.
    pub(super) fn standings(&self) -> Vec<Standing> {
        self.services.iter().map(Gated::standing).collect()
    }

    /// How many hosts have a rate of their own.
    pub(super) fn hosts(&self) -> usize {
        self.hosts.len()
    }

    /// Reads again what has changed. What cannot be read stays as it was. Blocks.
    pub(super) fn refresh(&self, now_ms: u64) {
        for service in &self.services {
            service.refresh(now_ms);
        }
    }
}

impl Gated {
    /// The agent that a token is of, if that may connect.
    fn owner(&self, token: &AccessToken, now_s: u64) -> Result<Name, Denied> {
        let denied = |label, why| Err(Denied::new(label, why));
        // Calls are accepted for some seconds more, since clocks differ. A connection is not worth that.
        if token.expires_at <= now_s {
            return denied("expired", "its access token has expired");
        }
        let revocations = self.tokens.revocations();
        if revocations.stale().is_some() {
            return denied("revocations_unknown", "what is revoked is not known");
        }
        let key = token.cnf.as_ref().and_then(|cnf| cnf.kid.as_deref());
        if key.is_some_and(|kid| self.tokens.denylist().denies_key(kid)) {
            return denied("key_denied", "its access token is bound to a key that is revoked");
        }
        let agent = Name::new(token.owner()).map_err(|_| Denied::new("agent", "its access token names no agent"))?;
        let service = (RevocationKind::Service, self.endpoint.service().as_str());
        let names = [Revocations::ALL, service, (RevocationKind::Agent, agent.as_str())];
        let names = names.into_iter().chain(key.map(|kid| (RevocationKind::Key, kid)));
        if revocations.revokes(names, now_s).is_some() {
            return denied("revoked", "operators have revoked it");
        }
        Ok(agent)
    }

    /// The policy in force: what was pushed, or the folder's.
    fn policy(&self) -> Arc<PolicySet> {
        let pushed = self.pushed.lock().unwrap_or_else(PoisonError::into_inner).clone();
        pushed.unwrap_or_else(|| self.policy.current())
    }

    fn standing(&self) -> Standing {
        let revocations = self.tokens.revocations();
        let policy = self.policy();
        let no_keys = || self.tokens.keys().is_empty().then_some("no key of an issuer is known");
        let closed = revocations.stale().or_else(|| policy.revision().why()).or_else(no_keys);
        #[expect(clippy::cast_precision_loss, reason = "milliseconds of an age")]
        let revocations_age_s = revocations.seen_ago_ms().map(|ms| ms as f64 / 1_000.0);
        Standing {
            service: self.endpoint.service().to_string(),
            closed: closed.map(str::to_owned),
            files_age_s: self.looked.lock().unwrap_or_else(PoisonError::into_inner).elapsed().as_secs_f64(),
            revocations_age_s,
            token_keys: self.tokens.key_sources(),
        }
    }

    fn refresh(&self, now_ms: u64) {
        let service = self.endpoint.service();
        let now = stamps(&self.config);
        let mut known = self.stamps.lock().unwrap_or_else(PoisonError::into_inner);
        if *known != now {
            match self.config.refresh(&self.tokens) {
                Ok(()) => {
                    tracing::info!(target: "sealwire::authd", %service, "token keys and denylist are in force as they are now");
                    known.clone_from(&now);
                }
                // Tried again at the next look: a revocation must not be missed because it was read halfway.
                Err(error) => {
                    if let Some(more) = self.trouble.check() {
                        tracing::warn!(target: "sealwire::authd", %service, %error, more, "token keys or denylist cannot be read again");
                    }
                }
            }
        }
        if *known == now {
            *self.looked.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        }
        drop(known);
        if self.packages.is_some() {
            return;
        }
        match self.policy.poll(now_ms) {
            Reload::Unchanged | Reload::Waiting => {}
            Reload::Loaded { revision, .. } => {
                tracing::info!(target: "sealwire::authd", %service, %revision, "policies loaded")
            }
            Reload::Refused { errors, kept } => {
                tracing::warn!(target: "sealwire::authd", %service, %kept, %errors, "policies cannot be used");
            }
        }
    }
}

/// What the files look like that say which tokens are good.
fn stamps(config: &Config) -> Vec<Stamp> {
    let keys = config.tokens.issuer.iter().filter_map(|issuer| issuer.jwks.as_ref());
    let files: Vec<&PathBuf> = keys.chain(&config.keys.denylist).collect();
    let stamp = |path: &PathBuf| {
        let metadata = std::fs::metadata(path).ok()?;
        Some((metadata.modified().ok()?, metadata.len()))
    };
    files.into_iter().map(stamp).collect()
}
