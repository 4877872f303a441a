//! A service without a socket, and the agents that write to it: keys, tokens, policies and a clock in the test's hands.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::HeaderMap;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{KeyInit as _, Mac as _};
use sealwire::configure::{AgentKey, ProofAlgorithm};
use sealwire::decide::Methods;
use sealwire::internal::auth::{
    IssueRequest, KeyEntry, KeyRing, KeyRingFile, LocalGuard, NonceLimits, ReplayGuard, TimeFloor, TokenIssuer,
    TokenRules, TokenVerifier, Verifier, Window,
};
use sealwire::internal::wire::{
    Endpoint, Expectation, HmacKey, ProofClaims, RequestSigner, ServiceKey, Signed, SignedRequest, WireLimits,
};
use sealwire::serve::{Builder, Delivery, Ready, Sealed, WantsMethods};
use sealwire::{
    BuildError, Clock as _, Ctx, ManualClock, MethodName, Name, PolicySet, Router, RpcError, Service, ServiceLimits,
    SystemClock,
};
use serde_json::Value;
use sha2::Digest as _;

/// When the desk opens: seconds since the Unix epoch.
pub const NOW: u64 = 1_790_000_000;

/// A service `test/desk`, and everything that is needed to write to it.
pub struct Desk {
    pub service: Service,
    pub clock: Arc<ManualClock>,
    pub issuer: TokenIssuer,
    pub endpoint: Endpoint,
    pub service_key: ServiceKey,
    policies: tempfile::TempDir,
}

/// What a test may set differently.
pub struct Setup {
    pub policy: &'static str,
    pub limits: ServiceLimits,
    pub wire: WireLimits,
    pub nonce_limits: NonceLimits,
    pub require_cnf: bool,
    /// Replaces the verifier that trusts the desk's own issuer.
    pub tokens: Option<TokenVerifier>,
    /// Replaces the local guard at the desk's own time. The desk's clock then shows the real time.
    pub guard: Option<Arc<dyn ReplayGuard>>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            policy: POLICY,
            limits: ServiceLimits::default(),
            wire: WireLimits::default(),
            nonce_limits: NonceLimits::default(),
            require_cnf: false,
            tokens: None,
            guard: None,
        }
    }
}

/// An agent with its key and token.
pub struct Agent {
    pub name: Name,
    pub key: AgentKey,
    pub token: String,
}

/// A signed message, ready to be offered any number of times.
#[derive(Clone)]
pub struct Letter {
    pub subject: String,
    pub reply: String,
    pub headers: HeaderMap,
    pub payload: Vec<u8>,
    pub expectation: Expectation,
}

impl Letter {
    pub fn delivery(&self) -> Delivery {
        Delivery::new(&self.subject, &self.reply, self.headers.clone(), self.payload.clone())
    }

    /// The token and the proof.
    pub fn credentials(&self) -> (String, String) {
        let value = self.headers.get("Authorization").unwrap().as_str();
        let (token, proof) = value.strip_prefix("NatsRpc ").unwrap().split_once('~').unwrap();
        (token.to_owned(), proof.to_owned())
    }

    /// The same message with another token or proof: what somebody on the way can make.
    pub fn with_credentials(&self, token: &str, proof: &str) -> Self {
        let mut letter = self.clone();
        letter.headers.insert("Authorization", format!("NatsRpc {token}~{proof}"));
        letter
    }

    /// The claims of the proof.
    pub fn claims(&self) -> ProofClaims {
        serde_json::from_value(part(&self.credentials().1, 1)).unwrap()
    }
}

/// One part of a JWS, as JSON.
pub fn part(jws: &str, position: usize) -> Value {
    serde_json::from_slice(&unb64(jws.split('.').nth(position).unwrap())).unwrap()
}

/// Workers may call everything that the desk offers; the vault is another matter.
pub const POLICY: &str = "[role.worker]\nallow = [\"desk/*\"]\n";

/// Workers may call every name, whether there is such a method or not.
pub const OPEN_POLICY: &str = "[role.worker]\nallow = [\"*\"]\n";

/// The agents that every desk knows.
pub fn agents() -> Vec<(Name, AgentKey)> {
    let name = |text| Name::new(text).unwrap();
    vec![
        (name("ann"), AgentKey::hmac("ann.k1", &[1; 32]).unwrap()),
        (name("bob"), AgentKey::hmac("bob.k1", &[2; 32]).unwrap()),
        (name("eve"), AgentKey::ed25519("eve.k1", [3; 32]).unwrap()),
    ]
}

impl Desk {
    pub fn open<S: Send + Sync + 'static>(router: Router<S>) -> Self {
        Self::open_with(router, POLICY, ServiceLimits::default())
    }

    pub fn open_with<S: Send + Sync + 'static>(router: Router<S>, policy: &'static str, limits: ServiceLimits) -> Self {
        Self::open_as(Setup { policy, limits, ..Setup::default() }, |service| service.methods(router))
    }

    pub fn open_as(setup: Setup, methods: impl FnOnce(Builder<WantsMethods>) -> Builder<Ready>) -> Self {
        Self::try_open_as(setup, methods).unwrap_or_else(|error| panic!("{error}"))
    }

    pub fn try_open<S: Send + Sync + 'static>(router: Router<S>) -> Result<Self, BuildError> {
        Self::try_open_as(Setup::default(), |service| service.methods(router))
    }

    pub fn try_open_as(
        setup: Setup,
        methods: impl FnOnce(Builder<WantsMethods>) -> Builder<Ready>,
    ) -> Result<Self, BuildError> {
        let Setup { policy, limits, wire, nonce_limits, require_cnf, tokens, guard } = setup;
        // The guard was opened long ago, so its fence is past.
        let clock = Arc::new(ManualClock::at(NOW - 1_000));
        let window = Window::new(30, 5).unwrap();
        let own = || LocalGuard::open(window, nonce_limits, clock.clone(), &TimeFloor::Ephemeral).unwrap();
        let (guard, now_ms) = match guard {
            Some(guard) => (guard, SystemClock.now_ms()),
            None => (Arc::new(own()) as Arc<dyn ReplayGuard>, NOW * 1000),
        };
        clock.set_ms(now_ms);
        let endpoint = Endpoint::new(Name::new("test").unwrap(), Name::new("desk").unwrap()).with_limits(wire);
        let audience = endpoint.audience();
        let ring = ring_of(&endpoint, |_| {});
        let issuer = TokenIssuer::generate("https://issuer.test").unwrap();
        let mut rules = TokenRules::new(audience.as_str());
        rules.require_cnf = require_cnf;
        let tokens = tokens.unwrap_or_else(|| TokenVerifier::new(rules, issuer.key_set().unwrap()));
        let service_key = ServiceKey::new("svc:test/desk:1", audience, [9; 32]).unwrap();
        let again = ServiceKey::new("svc:test/desk:1", audience, [9; 32]).unwrap();
        let verifier = Verifier::new(&endpoint, window, ring, Some(again), tokens, guard).unwrap();
        let policies = tempfile::tempdir().unwrap();
        std::fs::write(policies.path().join("policy.toml"), policy).unwrap();
        let builder = Service::builder().verifier(endpoint.clone(), verifier).policies(policies.path());
        let service = methods(builder.limits(limits)).clock(clock.clone()).build()?;
        Ok(Self { service, clock, issuer, endpoint, service_key, policies })
    }

    /// Writes other policies and puts them in force.
    pub fn change_policy(&self, text: &str) {
        std::fs::write(self.policies.path().join("policy.toml"), text).unwrap();
        self.service.replace_policy(self.load_policy(self.policies.path()).unwrap_or_else(|error| panic!("{error}")));
    }

    /// Loads a folder against the service's methods.
    pub fn load_policy(&self, folder: &Path) -> Result<PolicySet, sealwire::errors::PolicyErrors> {
        let names = self.service.counters().methods().map(|(name, _)| MethodName::new(name).unwrap());
        PolicySet::load(folder, &names.fold(Methods::new(), Methods::with)).map(|(set, _)| set)
    }

    /// Puts another key ring in force: the usual one, after `change`.
    pub fn change_ring(&self, change: impl FnOnce(&mut Vec<KeyEntry>)) {
        self.service.verifier().replace_ring(ring_of(&self.endpoint, change)).unwrap();
    }

    /// How many nonces the guard holds.
    pub fn burnt(&self) -> usize {
        self.service.verifier().guard().stats().live
    }

    /// A known agent with a token of these roles.
    pub fn agent(&self, name: &str, roles: &[&str]) -> Agent {
        self.agent_with(name, |request| request.roles = roles.iter().map(ToString::to_string).collect())
    }

    /// A known agent with a token that `change` describes.
    pub fn agent_with(&self, name: &str, change: impl FnOnce(&mut IssueRequest)) -> Agent {
        let (name, key) = agents().into_iter().find(|(known, _)| known.as_str() == name).unwrap();
        let mut request = IssueRequest::new(name.as_str(), self.endpoint.audience().as_str(), self.clock.now_s());
        request.roles = ["worker".to_owned()].into();
        change(&mut request);
        Agent { token: self.issuer.issue(&request).unwrap(), name, key }
    }

    pub fn signer(&self, agent: &Agent) -> RequestSigner {
        RequestSigner::new(&agent.key, self.endpoint.audience().clone(), vec![self.service_key.public()]).unwrap()
    }

    /// A message with a reply subject.
    pub fn letter(&self, agent: &Agent, payload: &str) -> Letter {
        let reply = format!("{}r1", self.endpoint.inbox(&agent.name));
        self.letter_to(agent, &self.endpoint.subject(&agent.name), &reply, payload, None)
    }

    pub fn letter_to(
        &self,
        agent: &Agent,
        subject: &str,
        reply: &str,
        payload: &str,
        timeout: Option<Duration>,
    ) -> Letter {
        let signed = self.signer(agent).sign(&Signed {
            subject,
            reply,
            payload: payload.as_bytes(),
            token: &agent.token,
            now_ms: self.clock.now_ms(),
            valid_s: 30,
            timeout_ms: timeout.map(|timeout| u64::try_from(timeout.as_millis()).unwrap()),
            ..Signed::default()
        });
        envelope(subject, reply, payload, signed)
    }

    /// A message with a reply subject and the claims as `change` leaves them, signed with the agent's key.
    pub fn letter_claiming(&self, agent: &Agent, payload: &str, change: impl FnOnce(&mut ProofClaims)) -> Letter {
        let letter = self.letter(agent, payload);
        let mut claims = letter.claims();
        change(&mut claims);
        let signed = self.signer(agent).sign_claims(&claims, &agent.token);
        envelope(&letter.subject, &letter.reply, payload, signed)
    }

    /// A message with an idempotency key.
    pub fn keyed(&self, agent: &Agent, key: &str, payload: &str) -> Letter {
        self.letter_claiming(agent, payload, |claims| claims.idk = Some(key.to_owned()))
    }

    /// The key that this service holds for an agent that signs with HMAC.
    pub fn derived(&self, agent: &Agent) -> HmacKey {
        agent.key.derived(self.endpoint.audience()).unwrap()
    }

    /// Offers a letter and checks that the answer, if there is one, is signed and bound to it.
    pub async fn answer(&self, letter: &Letter) -> Option<String> {
        let sealed = self.service.handle(letter.delivery()).await?;
        letter
            .expectation
            .accept(sealed.to(), sealed.headers().unwrap_or(&HeaderMap::new()), sealed.payload())
            .unwrap_or_else(|error| panic!("{error}: {}", text(&sealed)));
        Some(text(&sealed))
    }

    /// Offers an invalid letter and returns the code of the answer; `None` for silence.
    ///
    /// Unsigned answers must be one of the fixed hints, byte for byte.
    pub async fn offer(&self, letter: &Letter) -> Option<i64> {
        let sealed = self.service.handle(letter.delivery()).await?;
        assert_eq!(sealed.to(), letter.reply, "an answer goes to the reply subject only");
        assert_eq!(sealed.headers().is_none(), HINTS.contains(&text(&sealed).as_str()), "{}", text(&sealed));
        code(&text(&sealed))
    }

    /// Signs `payload` and offers it.
    pub async fn ask(&self, agent: &Agent, payload: &str) -> Option<String> {
        self.answer(&self.letter(agent, payload)).await
    }
}

fn envelope(subject: &str, reply: &str, payload: &str, signed: SignedRequest) -> Letter {
    let mut headers = HeaderMap::new();
    headers.insert("Authorization", signed.authorization.as_str());
    Letter {
        subject: subject.to_owned(),
        reply: reply.to_owned(),
        headers,
        payload: payload.as_bytes().to_vec(),
        expectation: signed.expectation,
    }
}

/// The ring of the known agents, after `change`.
pub fn ring_of(endpoint: &Endpoint, change: impl FnOnce(&mut Vec<KeyEntry>)) -> KeyRing {
    let audience = endpoint.audience();
    let entry = |(owner, key): &(Name, AgentKey)| match key.derived(audience) {
        Some(derived) => KeyEntry::hmac(key.kid(), owner.clone(), &derived),
        None => KeyEntry::ed25519(key.kid(), owner.clone(), key.public().unwrap()),
    };
    let mut keys = agents().iter().map(entry).collect();
    change(&mut keys);
    KeyRing::new(KeyRingFile { audience: audience.to_string(), keys }, audience).unwrap()
}

/// Everything that may be sent unsigned.
pub const HINTS: [&str; 3] = [
    r#"{"jsonrpc":"2.0","error":{"code":-32010,"message":"unauthenticated"},"id":null}"#,
    r#"{"jsonrpc":"2.0","error":{"code":-32014,"message":"overloaded"},"id":null}"#,
    r#"{"jsonrpc":"2.0","error":{"code":-32015,"message":"too large"},"id":null}"#,
];

pub fn text(sealed: &Sealed) -> String {
    String::from_utf8(sealed.payload().to_vec()).unwrap()
}

/// The code of the error object in an answer.
pub fn code(answer: &str) -> Option<i64> {
    let answer: serde_json::Value = serde_json::from_str(answer).unwrap();
    answer.pointer("/error/code").and_then(serde_json::Value::as_i64)
}

/// What ran: the methods in order, as their names and parameters.
#[derive(Default)]
pub struct Runs(Mutex<Vec<String>>);

impl Runs {
    pub fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

/// Methods that leave a trace: `desk/echo` answers its parameters, `desk/note` nothing, and `vault/open` is not for
/// workers.
pub fn recording() -> (Router<Arc<Runs>>, Arc<Runs>) {
    let runs = Arc::new(Runs::default());
    let run = |ctx: &Ctx<Arc<Runs>>, p: &Value| ctx.state().0.lock().unwrap().push(format!("{} {p}", ctx.method()));
    let router = Router::new(Arc::clone(&runs))
        .method("desk/echo", move |ctx: Ctx<Arc<Runs>>, p: Value| async move {
            run(&ctx, &p);
            Ok::<_, RpcError>(p)
        })
        .method("desk/note", move |ctx: Ctx<Arc<Runs>>, p: Value| async move {
            run(&ctx, &p);
            Ok::<_, RpcError>(())
        })
        .method("vault/open", move |ctx: Ctx<Arc<Runs>>, p: Value| async move {
            run(&ctx, &p);
            Ok::<_, RpcError>("gold")
        });
    (router, runs)
}

pub fn call(method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params},"id":1}}"#)
}

pub fn b64(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

pub fn unb64(text: &str) -> Vec<u8> {
    URL_SAFE_NO_PAD.decode(text).unwrap()
}

/// base64url(SHA-256(bytes)).
pub fn digest(bytes: &[u8]) -> String {
    b64(&sha2::Sha256::digest(bytes))
}

/// A JWS over any header and any claims: what a holder of the key can make with tools other than ours.
pub fn jws(key: &HmacKey, header: &str, claims: &str) -> String {
    let input = format!("{}.{}", b64(header.as_bytes()), b64(claims.as_bytes()));
    let mut mac = hmac::Hmac::<sha2::Sha256>::new_from_slice(key.expose()).unwrap();
    mac.update(input.as_bytes());
    format!("{input}.{}", b64(&mac.finalize().into_bytes()))
}

/// What JSON-RPC's own examples call.
pub fn specification_methods() -> Router {
    #[derive(serde::Deserialize)]
    struct Subtract {
        minuend: i64,
        subtrahend: i64,
    }
    Router::new(())
        .method("subtract", |_: Ctx, p: Subtract| async move { Ok::<_, RpcError>(p.minuend - p.subtrahend) })
        .method("sum", |_: Ctx, p: Vec<i64>| async move { Ok::<_, RpcError>(p.iter().sum::<i64>()) })
        .method("get_data", |_: Ctx, (): ()| async { Ok::<_, RpcError>(("hello", 5)) })
        .method("update", |_: Ctx, _: Vec<i64>| async { Ok::<_, RpcError>(()) })
        .method("notify_hello", |_: Ctx, _: Vec<i64>| async { Ok::<_, RpcError>(()) })
        .method("notify_sum", |_: Ctx, _: Vec<i64>| async { Ok::<_, RpcError>(()) })
}

/// Which proof algorithm an agent of the desk signs with.
pub fn algorithm(agent: &Agent) -> ProofAlgorithm {
    agent.key.algorithm()
}

/// The same under an Ed25519 key.
pub fn jws_ed25519(seed: &[u8; 32], header: &str, claims: &str) -> String {
    let input = format!("{}.{}", b64(header.as_bytes()), b64(claims.as_bytes()));
    let pair = aws_lc_rs::signature::Ed25519KeyPair::from_seed_unchecked(seed).unwrap();
    format!("{input}.{}", b64(pair.sign(input.as_bytes()).as_ref()))
}
