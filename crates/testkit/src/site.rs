//! A service on a real bus, set up from files as an operator has them, and a caller below the client library.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::StatusCode;
use futures_util::StreamExt as _;
use sealwire::configure::AgentKey;
use sealwire::internal::auth::{IssueRequest, KeyEntry, KeyRingFile, TokenIssuer, write_service_key};
use sealwire::internal::files::write_secret;
use sealwire::internal::wire::{Endpoint, Expectation, RequestSigner, ServiceKey, Signed, SignedRequest};
use sealwire::serve::State;
use sealwire::{
    BusConfig, Clock as _, Config, Ctx, Name, Router, RpcError, Running, ServeError, ServeOptions, SystemClock,
};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::{SOON, within};

/// A folder with everything that a service, `test/site` unless named, is configured from.
pub struct Site {
    pub folder: tempfile::TempDir,
    pub issuer: TokenIssuer,
    pub endpoint: Endpoint,
    url: String,
}

/// A service that runs, and how to stop it.
pub struct Served {
    pub service: sealwire::Service,
    pub running: Running,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), ServeError>>,
}

pub const POLICY: &str = "[role.worker]\nallow = [\"site/*\"]\n";

impl Site {
    pub fn new(url: &str) -> Self {
        Self::of_service(url, "site", &["ann", "bob"])
    }

    /// The same of another service, for other agents.
    pub fn of_service(url: &str, service: &str, agents: &[&str]) -> Self {
        let folder = in_memory();
        let endpoint = Endpoint::new(Name::new("test").unwrap(), Name::new(service).unwrap());
        let site = Self {
            folder,
            issuer: TokenIssuer::generate("https://issuer.test").unwrap(),
            endpoint,
            url: url.to_owned(),
        };
        site.write_ring(agents);
        std::fs::write(site.path("jwks.json"), site.issuer.public_jwks()).unwrap();
        std::fs::create_dir(site.path("policies")).unwrap();
        std::fs::write(site.path("policies/policy.toml"), POLICY).unwrap();
        let kid = format!("svc:{}:1", site.endpoint.audience());
        let key = ServiceKey::generate(&kid, site.endpoint.audience()).unwrap();
        write_service_key(&site.path("service-key.json"), &key).unwrap();
        site.write_config("");
        site
    }

    /// The same at a broker with users: the service logs in as this one, whose password is its name.
    pub fn logging_in_as(url: &str, user: &str) -> Self {
        let site = Self::new(url);
        let config = site.path("sealwire.toml");
        let login = format!("user = \"{user}\"\npassword = \"{user}\"\n[keys]");
        let text = std::fs::read_to_string(&config).unwrap().replace("[keys]", &login);
        write_secret(&config, &text, true).unwrap();
        site
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The configuration, with `more` at its end. A second of skew keeps starts short: the guard vouches for messages
    /// from a second after its start.
    pub fn write_config(&self, more: &str) {
        let text = format!(
            "environment = \"test\"\nservice = \"{}\"\n[nats]\nurls = [\"{}\"]\n[keys]\nring = \"ring.json\"\n\
             service_key = \"service-key.json\"\n[[tokens.issuer]]\nissuer = \"https://issuer.test\"\n\
             jwks = \"jwks.json\"\n[policy]\nfolder = \"policies\"\n[replay]\nskew_s = 1\n{more}",
            self.endpoint.service(),
            self.url
        );
        std::fs::write(self.path("sealwire.toml"), text).unwrap();
    }

    /// A ring of these agents.
    pub fn write_ring(&self, agents: &[&str]) {
        let audience = self.endpoint.audience();
        let keys = agents
            .iter()
            .map(|agent| {
                let key = agent_key(agent);
                KeyEntry::hmac(key.kid(), Name::new(agent).unwrap(), &key.derived(audience).unwrap())
            })
            .collect();
        let file = KeyRingFile { audience: audience.to_string(), keys };
        write_secret(&self.path("ring.json"), &serde_json::to_string(&file).unwrap(), true).unwrap();
    }

    pub fn config(&self) -> Config {
        Config::load(self.path("sealwire.toml")).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Starts the service and waits until it takes messages.
    pub async fn serve<S: Send + Sync + 'static>(&self, router: Router<S>) -> Served {
        let served = self.start(router).await;
        served.ready().await;
        served
    }

    /// Starts the service.
    pub async fn start<S: Send + Sync + 'static>(&self, router: Router<S>) -> Served {
        let config = self.config();
        let (builder, mut options) = config.builder().await.unwrap_or_else(|error| panic!("{error}"));
        options.watch_every = Duration::from_millis(50);
        let service = builder.methods(router).build().unwrap_or_else(|error| panic!("{error}"));
        Served::spawn(service, config.nats.clone(), options)
    }

    pub fn token(&self, agent: &str, roles: &[&str]) -> String {
        let mut request = IssueRequest::new(agent, self.endpoint.audience().as_str(), SystemClock.now_s());
        request.roles = roles.iter().map(ToString::to_string).collect();
        self.issuer.issue(&request).unwrap()
    }

    pub async fn caller(&self, agent: &str) -> Caller {
        Caller::connect(self, agent, &["worker"]).await
    }
}

impl Served {
    pub fn spawn(service: sealwire::Service, bus: BusConfig, options: ServeOptions) -> Self {
        let (stop, stopped) = oneshot::channel();
        let slot: Arc<Mutex<Option<Running>>> = Arc::default();
        let started = Arc::clone(&slot);
        let serves = service.clone();
        // `serve` calls back before it first waits, so one poll is enough to have the handle.
        let mut serving = Box::pin(async move {
            serves
                .serve(&bus, options, move |running| *started.lock().unwrap() = Some(running), async {
                    drop(stopped.await)
                })
                .await
        });
        let waker = futures_util::task::noop_waker();
        assert!(serving.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_pending());
        let running = slot.lock().unwrap().take().unwrap();
        Self { service, running, stop, task: tokio::spawn(serving) }
    }

    pub async fn reaches(&self, wanted: impl Fn(&State) -> bool) {
        let mut state = self.running.state();
        drop(within(SOON, state.wait_for(wanted)).await.unwrap_or_else(|_| panic!("the service has ended")));
    }

    pub async fn ready(&self) {
        self.reaches(|state| *state == State::Ready).await;
    }

    pub async fn stop(self) -> Result<(), ServeError> {
        drop(self.stop);
        within(3 * SOON, self.task).await.unwrap()
    }

    /// Ends it as a crash does: nobody is told.
    pub async fn kill(self) {
        self.task.abort();
        drop(self.task.await);
        drop(self.stop);
    }

    /// Waits for the service to end by itself.
    pub async fn ended(self) -> Result<(), ServeError> {
        let ended = within(SOON, self.task).await.unwrap();
        drop(self.stop);
        ended
    }
}

/// A folder that a busy disk does not hold up, if the system has one: the local guard writes its lease every moment, and accepts nothing
/// once that took seconds.
pub fn in_memory() -> tempfile::TempDir {
    const SHARED_MEMORY: &str = "/dev/shm";
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    // Programs are run from it, and brokers keep their streams there. In containers it often has only 64 MiB.
    let fits = |options: &str| {
        options.split(',').all(|option| match option.split_once('=') {
            Some(("size", size)) => {
                size.strip_suffix('k').and_then(|k| k.parse().ok()).is_some_and(|k: u64| k >= 4 << 20)
            }
            _ => option != "noexec" && option != "ro",
        })
    };
    let is_fit = mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .any(|fields| matches!(fields[..], [_, SHARED_MEMORY, "tmpfs", options, ..] if fits(options)));
    if is_fit { tempfile::tempdir_in(SHARED_MEMORY) } else { tempfile::tempdir() }.unwrap()
}

pub fn agent_key(agent: &str) -> AgentKey {
    let mut master = [0x5a; 32];
    for (to, from) in master.iter_mut().zip(agent.bytes()) {
        *to = from;
    }
    AgentKey::hmac(&format!("{agent}.k1"), &master).unwrap()
}

/// Signs a message now, for half a minute.
pub fn sign(signer: &RequestSigner, subject: &str, reply: &str, payload: &str, token: &str) -> SignedRequest {
    signer.sign(&signed_now(subject, reply, payload.as_bytes(), token))
}

/// What is signed now, for half a minute, without anything optional.
pub fn signed_now<'a>(subject: &'a str, reply: &'a str, payload: &'a [u8], token: &'a str) -> Signed<'a> {
    Signed { subject, reply, payload, token, now_ms: SystemClock.now_ms(), valid_s: 30, ..Signed::default() }
}

/// What became of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// A signed answer, bound to the call.
    Signed(String),
    /// An unsigned answer.
    Hint(String),
    /// The broker knows of nobody who listens.
    NoResponders,
    /// Nothing came in time.
    Nothing,
}

/// An agent on the bus.
#[derive(Clone)]
pub struct Caller(Arc<CallerInner>);

struct CallerInner {
    pub client: async_nats::Client,
    signer: RequestSigner,
    token: String,
    subject: String,
    inbox: String,
    waiting: Mutex<HashMap<String, oneshot::Sender<async_nats::Message>>>,
}

impl Caller {
    pub async fn connect(site: &Site, agent: &str, roles: &[&str]) -> Self {
        let name = Name::new(agent).unwrap();
        let client = within(SOON, async_nats::connect(site.url.as_str())).await.unwrap();
        let inbox =
            format!("{}{}", site.endpoint.inbox(&name), async_nats::Client::new_inbox(&client).replace('.', "-"));
        let mut answers = client.subscribe(format!("{inbox}.*")).await.unwrap();
        let inner = Arc::new(CallerInner {
            client,
            signer: RequestSigner::new(&agent_key(agent), site.endpoint.audience().clone(), vec![]).unwrap(),
            token: site.token(agent, roles),
            subject: site.endpoint.subject(&name),
            inbox,
            waiting: Mutex::default(),
        });
        let reader = Arc::downgrade(&inner);
        tokio::spawn(async move {
            while let Some(message) = answers.next().await {
                let Some(inner) = reader.upgrade() else { return };
                if let Some(waiting) = inner.waiting.lock().unwrap().remove(message.subject.as_str()) {
                    drop(waiting.send(message));
                }
            }
        });
        Self(inner)
    }

    /// Signs a payload; the reply subject is new each time.
    pub fn sign(&self, payload: &str) -> (String, HeaderMap, Expectation) {
        let reply = format!("{}.{}", self.0.inbox, sealwire::internal::wire::Nonce::random().to_text());
        let signed = sign(&self.0.signer, &self.0.subject, &reply, payload, &self.0.token);
        let mut headers = HeaderMap::new();
        headers.insert("Authorization", signed.authorization.as_str());
        (reply, headers, signed.expectation)
    }

    pub async fn call(&self, method: &str, params: &str, limit: Duration) -> Answer {
        self.exchange(format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params},"id":1}}"#), limit).await
    }

    /// Sends a body and waits for its answer.
    pub async fn exchange(&self, payload: String, limit: Duration) -> Answer {
        let (reply, headers, expectation) = self.sign(&payload);
        let (send, receive) = oneshot::channel();
        self.0.waiting.lock().unwrap().insert(reply.clone(), send);
        let subject = self.0.subject.clone();
        self.0.client.publish_with_reply_and_headers(subject, reply.clone(), headers, payload.into()).await.unwrap();
        let Ok(answer) = tokio::time::timeout(limit, receive).await else {
            self.0.waiting.lock().unwrap().remove(&reply);
            return Answer::Nothing;
        };
        let answer = answer.unwrap();
        if answer.status == Some(StatusCode::NO_RESPONDERS) {
            return Answer::NoResponders;
        }
        let text = String::from_utf8(answer.payload.to_vec()).unwrap();
        match expectation.accept(&answer.subject, answer.headers.unwrap_or_default(), &answer.payload) {
            Ok(_) => Answer::Signed(text),
            Err(_) => Answer::Hint(text),
        }
    }

    pub async fn add(&self) -> Answer {
        self.call("site/add", "[1,2]", SOON / 2).await
    }

    pub fn client(&self) -> &async_nats::Client {
        &self.0.client
    }

    pub fn subject(&self) -> &str {
        &self.0.subject
    }
}

pub fn sum() -> Answer {
    Answer::Signed(r#"{"jsonrpc":"2.0","result":3,"id":1}"#.to_owned())
}

/// `site/add`, `site/sleep` (milliseconds), `site/count` (how often the two ran).
pub fn methods() -> Router<Arc<std::sync::atomic::AtomicU64>> {
    use std::sync::atomic::{AtomicU64, Ordering};
    type State = Arc<AtomicU64>;
    Router::new(State::default())
        .method("site/add", |ctx: Ctx<State>, (a, b): (i64, i64)| async move {
            ctx.state().fetch_add(1, Ordering::SeqCst);
            Ok::<_, RpcError>(a + b)
        })
        .method("site/sleep", |ctx: Ctx<State>, (ms,): (u64,)| async move {
            ctx.state().fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(ms)).await;
            Ok::<_, RpcError>(ms)
        })
        .method(
            "site/count",
            |ctx: Ctx<State>, (): ()| async move { Ok::<_, RpcError>(ctx.state().load(Ordering::SeqCst)) },
        )
}

pub fn write(path: &Path, text: &str) {
    let beside = path.with_extension("new");
    std::fs::write(&beside, text).unwrap();
    std::fs::rename(&beside, path).unwrap();
}
