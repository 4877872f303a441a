//! A service without a socket, and the agents that write to it: keys, tokens, policies and a clock in the test's hands.

use std::sync::Arc;
use std::time::Duration;

use async_nats::HeaderMap;
use sealwire::auth::{
    Caps, Floor, IssueRequest, KeyEntry, KeyRing, KeyRingFile, LocalGuard, ProofAlgorithm, TokenIssuer, TokenRules,
    TokenVerifier, Verifier, Window,
};
use sealwire::rpc::RpcError;
use sealwire::service::{Ctx, Router, Service, ServiceLimits};
use sealwire::wire::{AgentKey, Delivery, Endpoint, Expectation, RequestSigner, Sealed, ServiceKey, Signed};
use sealwire::{Clock as _, ManualClock, Name};

/// When the desk opens: seconds since the Unix epoch.
pub(crate) const NOW: u64 = 1_790_000_000;

/// A service `test/desk` and all that is needed to write to it.
pub(crate) struct Desk {
    pub(crate) service: Service,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) issuer: TokenIssuer,
    pub(crate) endpoint: Endpoint,
    pub(crate) service_key: ServiceKey,
    _policies: tempfile::TempDir,
}

/// An agent with its key and token.
pub(crate) struct Agent {
    pub(crate) name: Name,
    pub(crate) key: AgentKey,
    pub(crate) token: String,
}

/// A signed message, ready to be offered any number of times.
pub(crate) struct Letter {
    pub(crate) subject: String,
    pub(crate) reply: String,
    pub(crate) headers: HeaderMap,
    pub(crate) payload: Vec<u8>,
    pub(crate) expectation: Expectation,
}

impl Letter {
    pub(crate) fn delivery(&self) -> Delivery {
        Delivery::new(&self.subject, &self.reply, self.headers.clone(), self.payload.clone())
    }
}

pub(crate) const POLICY: &str = r#"
[role.worker]
description = "Everything the desk offers but the vault."
allow = ["desk/*", "subtract", "sum", "get_data", "update", "notify_hello", "notify_sum", "foobar", "foo.get"]
"#;

/// The agents that every desk knows.
pub(crate) fn agents() -> Vec<(Name, AgentKey)> {
    let name = |text| Name::new(text).unwrap();
    vec![
        (name("ann"), AgentKey::hmac("ann.k1", &[1; 32]).unwrap()),
        (name("bob"), AgentKey::hmac("bob.k1", &[2; 32]).unwrap()),
        (name("eve"), AgentKey::ed25519("eve.k1", [3; 32]).unwrap()),
    ]
}

impl Desk {
    pub(crate) fn open<S: Send + Sync + 'static>(router: Router<S>) -> Self {
        Self::open_with(router, POLICY, ServiceLimits::default())
    }

    pub(crate) fn open_with<S: Send + Sync + 'static>(router: Router<S>, policy: &str, limits: ServiceLimits) -> Self {
        // The guard was opened long ago, so its fence is past.
        let clock = Arc::new(ManualClock::at(NOW - 1_000));
        let window = Window::new(30, 5).unwrap();
        let guard = LocalGuard::open(window, Caps::default(), clock.clone(), &Floor::Ephemeral).unwrap();
        clock.set_ms(NOW * 1000);
        let endpoint = Endpoint::new(Name::new("test").unwrap(), Name::new("desk").unwrap());
        let audience = endpoint.audience();
        let keys = agents()
            .iter()
            .map(|(owner, key)| match key.derived(audience) {
                Some(derived) => KeyEntry::hmac(key.kid(), owner.clone(), &derived),
                None => KeyEntry::ed25519(key.kid(), owner.clone(), key.public().unwrap()),
            })
            .collect();
        let ring = KeyRing::new(KeyRingFile { audience: audience.to_string(), keys }, audience).unwrap();
        let issuer = TokenIssuer::generate("https://issuer.test").unwrap();
        let tokens = TokenVerifier::new(TokenRules::new(audience.as_str()), issuer.key_set().unwrap());
        let service_key = ServiceKey::new("svc:test/desk:1", audience, [9; 32]).unwrap();
        let again = ServiceKey::new("svc:test/desk:1", audience, [9; 32]).unwrap();
        let verifier = Verifier::new(&endpoint, window, ring, Some(again), tokens, Arc::new(guard)).unwrap();
        let policies = tempfile::tempdir().unwrap();
        std::fs::write(policies.path().join("policy.toml"), policy).unwrap();
        let service = Service::builder()
            .verifier(endpoint.clone(), verifier)
            .policies(policies.path())
            .limits(limits)
            .methods(router)
            .clock(clock.clone())
            .build()
            .unwrap_or_else(|error| panic!("{error}"));
        Self { service, clock, issuer, endpoint, service_key, _policies: policies }
    }

    /// A known agent with a token of these roles.
    pub(crate) fn agent(&self, name: &str, roles: &[&str]) -> Agent {
        let (name, key) = agents().into_iter().find(|(known, _)| known.as_str() == name).unwrap();
        let mut request = IssueRequest::new(name.as_str(), self.endpoint.audience().as_str(), self.clock.now_s());
        request.roles = roles.iter().map(ToString::to_string).collect();
        Agent { token: self.issuer.issue(&request).unwrap(), name, key }
    }

    pub(crate) fn signer(&self, agent: &Agent) -> RequestSigner {
        RequestSigner::new(&agent.key, self.endpoint.audience().clone(), vec![self.service_key.public()]).unwrap()
    }

    /// A message with a reply subject.
    pub(crate) fn letter(&self, agent: &Agent, payload: &str) -> Letter {
        let reply = format!("{}r1", self.endpoint.inbox(&agent.name));
        self.letter_to(agent, &self.endpoint.subject(&agent.name), &reply, payload, None)
    }

    pub(crate) fn letter_to(
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
            idempotency_key: None,
        });
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

    /// Offers a letter and checks that the answer, if there is one, is signed and bound to it.
    pub(crate) async fn answer(&self, letter: &Letter) -> Option<String> {
        let sealed = self.service.handle(letter.delivery()).await?;
        letter
            .expectation
            .accept(sealed.to(), sealed.headers().unwrap_or(&HeaderMap::new()), sealed.payload(), 5)
            .unwrap_or_else(|error| panic!("{error}: {}", text(&sealed)));
        Some(text(&sealed))
    }

    /// Signs `payload` and offers it.
    pub(crate) async fn ask(&self, agent: &Agent, payload: &str) -> Option<String> {
        self.answer(&self.letter(agent, payload)).await
    }
}

pub(crate) fn text(sealed: &Sealed) -> String {
    String::from_utf8(sealed.payload().to_vec()).unwrap()
}

/// The code of the error object in an answer.
pub(crate) fn code(answer: &str) -> Option<i64> {
    let answer: serde_json::Value = serde_json::from_str(answer).unwrap();
    answer.pointer("/error/code").and_then(serde_json::Value::as_i64)
}

/// What JSON-RPC's own examples call.
pub(crate) fn specification_methods() -> Router {
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
pub(crate) fn algorithm(agent: &Agent) -> ProofAlgorithm {
    agent.key.algorithm()
}
