//! From a configuration to the service that it describes.
//! Never starts with an invalid file, and never reads a file before it is watched for changes.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::{Config, ConfigError, GuardKind, PolicySource, ReplayConfig};
use crate::auth::{
    Denylist, KeyRing, KeySet, KeySource, LocalGuard, NonceLimits, ReplayGuard, Revocations, ServiceKeyMissing,
    TimeFloor, TokenVerifier, Verifier, Window, read_trusted_service_key,
};
#[cfg(feature = "shared-guard")]
use crate::auth::{SharedConfig, SharedGuard};
use crate::clock::{Clock, SystemClock};
#[cfg(feature = "otel")]
use crate::export::TraceOptions;
use crate::files::{Content, Folder, SecretFileError, is_missing};
use crate::policy::Packages;
use crate::record::Recorder;
use crate::service::{
    AttachmentLimits, Builder, QuotaLimits, ServeOptions, Service, ServiceLimits, StreamLimits, TaskLimits,
    WantsMethods, Watched,
};
use crate::wire::{Audience, Endpoint, Nonce, ServiceKey, ServicePublicKey, WireLimits};

/// What is to be done soon so that the service stays connected, a sentence for each login that is about to end. Blocks.
#[must_use]
pub fn ending_logins(config: &Config) -> Vec<String> {
    let guard = config.replay.nats.iter().map(|nats| ("replay.nats", nats));
    let guard = guard.chain(config.revocation.iter().map(|revocation| ("revocation.nats", &revocation.nats)));
    let all = [("nats", &config.nats)].into_iter().chain(guard);
    all.filter_map(|(section, nats)| Some(format!("`[{section}]`: {}", nats.login_end()?.soon?))).collect()
}

impl Config {
    /// Where the service listens.
    ///
    /// # Errors
    /// [`ConfigError::Endpoint`].
    pub fn endpoint(&self) -> Result<Endpoint, ConfigError> {
        let limits = WireLimits { payload: self.limits.request_bytes, ..WireLimits::default() };
        Ok(Endpoint::new(self.environment.clone(), self.service.clone())
            .with_prefixes(&self.prefix, &self.inbox_prefix)?
            .with_limits(limits))
    }

    /// Where traces are sent, by `[telemetry]` and by OpenTelemetry's variables; `None` if nowhere.
    ///
    /// # Errors
    /// [`ConfigError::Trust`], [`ConfigError::Traces`].
    #[cfg(feature = "otel")]
    pub fn traces(&self) -> Result<Option<TraceOptions>, ConfigError> {
        self.telemetry.traces(self.service.as_str(), Some(self.environment.as_str()), &self.files)
    }

    fn token_keys(&self) -> Result<KeySet, ConfigError> {
        self.tokens.keys(&self.files)
    }

    /// Where keys are fetched from, for issuers whose keys are not in a file.
    fn key_sources(&self) -> Result<Vec<KeySource>, ConfigError> {
        self.tokens.key_sources(&self.files)
    }

    fn denylist(&self) -> Result<Denylist, ConfigError> {
        match &self.keys.denylist {
            // A configured file that is missing is an error: somebody may have deleted it to lift a revocation.
            Some(path) => Ok(Denylist::from_trusted_file(path, &self.files)?),
            None => Ok(Denylist::default()),
        }
    }

    /// Reads every file that the configuration names, except the policies, and connects to nothing.
    ///
    /// # Errors
    /// As for [`Config::builder`], for files.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.check_files()?;
        let endpoint = self.endpoint()?;
        let (ring, service_key) = self.keys(&endpoint)?;
        if ring.needs_service_key() && service_key.is_none() {
            return Err(ServiceKeyMissing.into());
        }
        self.key_sources()?;
        self.check_bus()?;
        self.token_verifier(&endpoint)?;
        self.packages()?;
        self.record.as_ref().map_or(Ok(()), Recorder::check)?;
        let window = Window::new(self.replay.window_s, self.replay.skew_s)?;
        Ok(LocalGuard::check(window, self.nonce_limits(), &self.floor())?)
    }

    /// Checks the files that connections to the broker need.
    fn check_bus(&self) -> Result<(), ConfigError> {
        let guard = self.replay.nats.iter().map(|nats| ("replay.nats", nats));
        let guard = guard.chain(self.revocation.iter().map(|revocation| ("revocation.nats", &revocation.nats)));
        for (section, nats) in [("nats", &self.nats)].into_iter().chain(guard) {
            nats.try_files().map_err(|error| ConfigError::Bus { section, error })?;
        }
        Ok(())
    }

    /// Checks that the configured files exist, and that nobody unauthorized could have written the policies.
    fn check_files(&self) -> Result<(), ConfigError> {
        let measures = [
            ("`listen` in `[telemetry]`", self.telemetry.listen.is_some()),
            ("`tell_agents` in `[discovery]`", self.discovery.tell_agents),
        ];
        if let Some((key, _)) = measures.into_iter().find(|(_, wanted)| cfg!(not(feature = "metrics")) && *wanted) {
            return Err(ConfigError::NoTelemetry(key));
        }
        #[cfg(feature = "otel")]
        self.traces()?;
        #[cfg(not(feature = "otel"))]
        if self.telemetry.otlp.is_some() {
            return Err(ConfigError::NoTraces);
        }
        let mut named = vec![("keys.ring".to_owned(), &self.keys.ring)];
        named.extend(self.keys.service_key.iter().map(|path| ("keys.service_key".to_owned(), path)));
        named.extend(self.keys.denylist.iter().map(|path| ("keys.denylist".to_owned(), path)));
        let issuers = self.tokens.issuer.iter().enumerate();
        named.extend(
            issuers.filter_map(|(position, issuer)| {
                Some((format!("tokens.issuer[{position}].jwks"), issuer.jwks.as_ref()?))
            }),
        );
        for (member, path) in named {
            if std::fs::metadata(path).is_err_and(|error| is_missing(&error)) {
                return Err(ConfigError::Missing { member });
            }
        }
        self.check_state()?;
        Ok(self.files.check_folder(&self.policy.folder)?)
    }

    /// Anybody who could write the guard's state could make old messages acceptable again. A missing or damaged file is left to the guard.
    fn check_state(&self) -> Result<(), ConfigError> {
        let Some(path) = self.replay.state.as_ref().filter(|_| self.replay.guard == GuardKind::Local) else {
            return Ok(());
        };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let judged = Folder::open(folder, Some(&self.files)).and_then(|_| self.files.check(path, Content::Public));
        match judged {
            Err(SecretFileError::Io { .. }) | Ok(()) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn token_verifier(&self, endpoint: &Endpoint) -> Result<TokenVerifier, ConfigError> {
        let audience = |template: &str| {
            template.replace("{environment}", self.environment.as_str()).replace("{service}", self.service.as_str())
        };
        let rules = self.tokens.rules(endpoint.audience().as_str(), audience);
        let revocations =
            self.revocation.as_ref().map(|revocation| Revocations::open(revocation, &self.environment, &self.files));
        let tokens = TokenVerifier::new(rules, self.token_keys()?)
            .with_revocations(Arc::new(revocations.transpose()?.unwrap_or_default()));
        tokens.replace_denylist(self.denylist()?);
        Ok(tokens)
    }

    /// A verifier of the access tokens that the service accepts, for whoever judges them besides it: keys that are not in a file are
    /// fetched, as described at [`TokenVerifier::fetch`].
    ///
    /// # Errors
    /// [`ConfigError`]: a key file or the denylist cannot be used.
    ///
    /// Cancel safety: dropping the future ends every fetch.
    pub async fn access_tokens(&self) -> Result<TokenVerifier, ConfigError> {
        let sources = self.key_sources()?;
        Ok(self.token_verifier(&self.endpoint()?)?.fetch(sources).await)
    }

    /// Has a verifier made by [`Config::access_tokens`] judge by the key files and the denylist as they are now.
    ///
    /// # Errors
    /// [`ConfigError`]; what cannot be read stays as it was.
    pub fn refresh(&self, tokens: &TokenVerifier) -> Result<(), ConfigError> {
        // Revocations first: they must not wait for a key file to be mended.
        tokens.replace_denylist(self.denylist()?);
        tokens.replace_keys(self.token_keys()?);
        Ok(())
    }

    fn service_key(&self, audience: &Audience) -> Result<Option<ServiceKey>, ConfigError> {
        let path = self.keys.service_key.as_deref();
        Ok(path.map(|path| read_trusted_service_key(path, audience, &self.files)).transpose()?)
    }

    /// The public keys for what replicas of the service sign about themselves; empty if the service has no key.
    ///
    /// # Errors
    /// [`ConfigError::Endpoint`] and [`ConfigError::ServiceKey`].
    pub fn service_keys(&self) -> Result<Vec<ServicePublicKey>, ConfigError> {
        let key = self.service_key(self.endpoint()?.audience())?;
        Ok(key.iter().map(ServiceKey::public).collect())
    }

    fn keys(&self, endpoint: &Endpoint) -> Result<(KeyRing, Option<ServiceKey>), ConfigError> {
        let audience = endpoint.audience();
        let ring = self.ring(audience)?;
        let service_key = self.service_key(audience)?;
        if self.replay.guard == GuardKind::Shared && service_key.is_none() {
            return Err(ConfigError::UnsignedReplicas(audience.to_string()));
        }
        Ok((ring, service_key))
    }

    /// The key ring. The replay guard must have room for its agents.
    fn ring(&self, audience: &Audience) -> Result<KeyRing, ConfigError> {
        let ring = KeyRing::load_trusted(&self.keys.ring, audience, &self.files)?;
        let (agents, room) = (ring.owners(), self.replay.agents);
        if agents > room {
            return Err(ConfigError::Agents { agents, room });
        }
        Ok(ring)
    }

    /// Where the local guard keeps the time; the shared one has a stream instead.
    fn floor(&self) -> TimeFloor {
        match self.replay.guard {
            GuardKind::Local => TimeFloor::File(self.replay.state.clone().unwrap_or_default()),
            GuardKind::Shared => TimeFloor::Ephemeral,
        }
    }

    /// The nonce limits, for either guard.
    fn nonce_limits(&self) -> NonceLimits {
        let ReplayConfig { per_agent: owner, total, agents: owners, .. } = self.replay;
        // The reserves of all agents together take at most half of the room; the other half is for agents that need more.
        let reserve = NonceLimits::default().reserve.min(owner).min(total / (2 * owners.max(1))).max(1);
        NonceLimits { owner, total, owners, reserve }
    }

    async fn verifier(&self, endpoint: &Endpoint, clock: &Arc<dyn Clock>) -> Result<Verifier, ConfigError> {
        let sources = self.key_sources()?;
        let tokens = self.token_verifier(endpoint)?.fetch(sources).await;
        let (ring, service_key) = self.keys(endpoint)?;
        let window = Window::new(self.replay.window_s, self.replay.skew_s)?;
        let guard = self.guard(window, clock).await?;
        Ok(Verifier::new(endpoint, window, ring, service_key, tokens, guard)?)
    }

    async fn guard(&self, window: Window, clock: &Arc<dyn Clock>) -> Result<Arc<dyn ReplayGuard>, ConfigError> {
        let nonce_limits = self.nonce_limits();
        match self.replay.guard {
            GuardKind::Local => Ok(Arc::new(LocalGuard::open(window, nonce_limits, Arc::clone(clock), &self.floor())?)),
            #[cfg(not(feature = "shared-guard"))]
            GuardKind::Shared => Err(crate::auth::SharedOpenError::NotBuilt.into()),
            #[cfg(feature = "shared-guard")]
            GuardKind::Shared => {
                let mut shared = SharedConfig::new(self.environment.clone(), self.service.clone());
                shared.window = window;
                shared.nonce_limits = nonce_limits;
                shared.replicas = self.replay.replicas;
                shared.max_messages = self.replay.stream_messages.map_or(shared.max_messages, i64::from);
                shared.max_outcomes = self.replay.outcomes.map_or(shared.max_outcomes, i64::from);
                let bytes = self.replay.outcome_bytes.and_then(|bytes| i64::try_from(bytes).ok());
                shared.outcome_bytes = bytes.unwrap_or(shared.outcome_bytes);
                shared.answer_within = self.replay.answer_within_ms.map_or(shared.answer_within, Duration::from_millis);
                let bus = self.replay.nats.as_ref().unwrap_or(&self.nats).clone();
                Ok(Arc::new(SharedGuard::open(shared, bus, Arc::clone(clock)).await?))
            }
        }
    }

    /// The service that this configuration describes, except for its methods, and how to run it. With the shared replay
    /// guard, this connects to the broker and verifies the guard's stream.
    ///
    /// # Errors
    /// [`ConfigError`]; the operator is to blame, and the message says what to do.
    ///
    /// Cancel safety: dropping the future leaves nothing behind except, perhaps, the guard's stream.
    pub async fn builder(&self) -> Result<(Builder<WantsMethods>, ServeOptions), ConfigError> {
        self.check_files()?;
        let endpoint = self.endpoint()?;
        // Watched before anything is read, so that a change during the reading is noticed later.
        let watched = self.watched();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let verifier = self.verifier(&endpoint, &clock).await?;
        let recorder = self.recorder(&endpoint, &verifier)?;
        let limits = ServiceLimits {
            batch: self.limits.batch,
            batch_concurrency: self.limits.batch_concurrency,
            response: self.limits.response_bytes,
            quota: QuotaLimits {
                per_second: self.limits.agent_per_second,
                burst: self.limits.agent_burst,
                in_flight: self.limits.agent_in_flight,
            },
            hints_per_second: self.limits.hints_per_second,
            streams: StreamLimits {
                per_agent: self.limits.agent_streams,
                in_all: self.limits.streams,
                bytes: self.limits.stream_bytes,
                response: self.limits.stream_response_bytes,
            },
            tasks: TaskLimits {
                per_agent: self.limits.agent_tasks,
                in_all: self.limits.tasks,
                bytes: self.limits.task_bytes,
                lease: Duration::from_secs(self.limits.task_lease_s),
            },
            attachments: AttachmentLimits {
                each: self.limits.attachment_bytes,
                in_all: self.limits.attachment_memory_bytes,
            },
        };
        let packages = self.packages()?;
        let options = ServeOptions {
            queue: self.limits.queue,
            queue_bytes: self.limits.queue_bytes,
            in_flight: self.limits.in_flight,
            drain: Duration::from_secs(self.limits.drain_s),
            watched,
            packages: packages.clone(),
            tell_agents: self.discovery.tell_agents,
            ..ServeOptions::default()
        };
        let builder = Service::builder().verifier(endpoint, verifier).policies(&self.policy.folder);
        let builder = builder.believing(self.files.clone()).beginning_with(packages).limits(limits);
        Ok((recorder.into_iter().fold(builder, Builder::record), options))
    }

    /// The policies that operators distribute, if they do.
    ///
    /// # Errors
    /// [`ConfigError::Packages`].
    pub fn packages(&self) -> Result<Option<Arc<Packages>>, ConfigError> {
        let Some(revocation) = self.revocation.as_ref().filter(|_| self.policy.source == PolicySource::Bucket) else {
            return Ok(None);
        };
        let state = self.policy.state.clone().unwrap_or_default();
        Ok(Some(Arc::new(Packages::open(revocation, (&self.environment, &self.service), state)?)))
    }

    /// The record, in a session with the name of the replica.
    fn recorder(&self, endpoint: &Endpoint, verifier: &Verifier) -> Result<Option<Recorder>, ConfigError> {
        let Some(record) = &self.record else { return Ok(None) };
        let session = verifier.guard().instance().map_or_else(|| Nonce::random().to_text(), str::to_owned);
        Ok(Some(Recorder::open(record, endpoint.audience().as_str(), &session)?))
    }

    /// The files that are read again when they change.
    fn watched(&self) -> Vec<Watched> {
        let mut watched = Vec::new();
        let bound = self.reload.fail_closed_after_s.map(|seconds| Duration::from_secs(seconds.get()));
        let config = self.clone();
        let ring = Watched::new("key ring", vec![self.keys.ring.clone()], move |service| {
            let ring = config.ring(service.endpoint().audience()).map_err(text)?;
            let keys = ring.len();
            service.verifier().replace_ring(ring).map_err(text)?;
            Ok(format!("{keys} keys"))
        });
        watched.push(ring.closes_after(bound));
        if let Some(path) = self.keys.service_key.clone() {
            let trust = self.files.clone();
            watched.push(Watched::new("service key", vec![path.clone()], move |service| {
                let key = read_trusted_service_key(&path, service.endpoint().audience(), &trust).map_err(text)?;
                let kid = key.kid().to_owned();
                service.verifier().replace_service_key(key);
                Ok(kid)
            }));
        }
        let config = self.clone();
        let jwks = self.tokens.issuer.iter().filter_map(|issuer| issuer.jwks.clone()).collect();
        watched.push(Watched::new("token keys", jwks, move |service| {
            let keys = config.token_keys().map_err(text)?;
            let count = keys.len();
            service.verifier().tokens().replace_keys(keys);
            Ok(format!("{count} keys"))
        }));
        if let Some(path) = self.keys.denylist.clone() {
            let config = self.clone();
            let denylist = Watched::new("denylist", vec![path], move |service| {
                service.verifier().tokens().replace_denylist(config.denylist().map_err(text)?);
                Ok("in force".to_owned())
            });
            watched.push(denylist.closes_after(bound));
        }
        if self.policy.source == PolicySource::Folder {
            watched.push(Watched::policy(self.policy.folder.clone(), self.files.clone()));
        }
        watched
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
