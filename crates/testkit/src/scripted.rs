//! A service below the library: it signs whatever a test wants, well-formed or not, for calls under one agent's HMAC key.

use async_nats::{Client, HeaderMap, Message, Subscriber};
use futures_util::StreamExt as _;
use sealwire::internal::wire::{Audience, HmacKey};
use sealwire::{Clock as _, SystemClock};
use serde_json::{Value, json};

use crate::desk::{b64, digest, jws};
use crate::{NatsServer, SOON, settle, within};

/// Takes the calls of one agent to one service.
pub struct Scripted {
    client: Client,
    audience: Audience,
    kid: String,
    key: HmacKey,
    requests: Subscriber,
    control: Subscriber,
}

/// One call, and how far its stream has come.
pub struct ScriptedCall {
    client: Client,
    audience: Audience,
    header: Value,
    key: HmacKey,
    /// The claims of the request's proof.
    pub claims: Value,
    /// What was called.
    pub body: Value,
    reply: String,
    /// The digest of the request's proof, which control names.
    pub request: String,
    acc: [u8; 32],
    /// The number of the next frame.
    pub next: u64,
}

/// A control message.
#[derive(Debug)]
pub struct Control {
    /// The claims of its proof.
    pub claims: Value,
    pub payload: Vec<u8>,
}

impl Scripted {
    /// Listens for calls of `agent` to the service of this audience; `master` is the key's secret.
    pub async fn start(server: &NatsServer, audience: &str, agent: &str, kid: &str, master: &[u8]) -> Self {
        let client = server.client().await;
        let audience = Audience::parse(audience).unwrap();
        let service = audience.as_str().rsplit('/').next().unwrap().to_owned();
        let key = HmacKey::derive(master, &audience, kid);
        let requests = within(SOON, client.subscribe(format!("rpc.v1.{service}.{agent}"))).await.unwrap();
        let control = within(SOON, client.subscribe(format!("rpc.v1-ctl.{service}.{agent}.>"))).await.unwrap();
        settle(&client).await;
        Self { client, audience, kid: kid.to_owned(), key, requests, control }
    }

    /// The next call.
    pub async fn call(&mut self) -> ScriptedCall {
        within(SOON, self.call_whenever()).await
    }

    /// The next call, however long it takes.
    pub async fn call_whenever(&mut self) -> ScriptedCall {
        let message = self.requests.next().await.expect("the connection is up");
        let (claims, proof) = proved(&message);
        ScriptedCall {
            client: self.client.clone(),
            audience: self.audience.clone(),
            header: json!({ "alg": "HS256", "kid": self.kid, "typ": "" }),
            key: self.key.clone(),
            claims,
            body: serde_json::from_slice(&message.payload).unwrap(),
            reply: message.reply.unwrap().to_string(),
            request: digest(proof.as_bytes()),
            acc: hash(proof.as_bytes()),
            next: 0,
        }
    }

    /// The next control message.
    pub async fn control(&mut self) -> Control {
        let message = within(SOON, self.control.next()).await.expect("the connection is up");
        Control { claims: proved(&message).0, payload: message.payload.to_vec() }
    }

    /// The next control message with this operation.
    pub async fn control_that(&mut self, op: &str) -> Control {
        loop {
            let control = self.control().await;
            if control.claims["op"] == op {
                return control;
            }
        }
    }
}

impl ScriptedCall {
    /// The request's id.
    pub fn id(&self) -> &Value {
        &self.body["id"]
    }

    /// Answers in the ordinary way.
    pub async fn answer(&self, payload: &str) {
        self.answer_at(SystemClock.now_s(), payload).await;
    }

    /// Answers as if it were this time: seconds since the Unix epoch.
    pub async fn answer_at(&self, now_s: u64, payload: &str) {
        let claims = json!({
            "iss": self.audience.as_str(), "to": self.reply, "iat": now_s, "req": self.request,
            "dig": digest(payload.as_bytes()),
        });
        self.send("nats-rpc-v1-reply+jwt", &claims.to_string(), payload).await;
    }

    /// Answers without a signature.
    pub async fn answer_unsigned(&self, payload: &str) {
        let sent = self.client.publish(self.reply.clone(), payload.to_owned().into());
        within(SOON, sent).await.unwrap();
        within(SOON, self.client.flush()).await.unwrap();
    }

    /// Sends the next frame, and returns the digest of its proof.
    pub async fn frame(&mut self, kind: &str, payload: &str) -> String {
        let claims = self.claims(kind, payload).to_string();
        self.advance(kind, payload);
        self.send("nats-rpc-v1-frame+jwt", &claims, payload).await
    }

    /// The claims that the next frame would have.
    pub fn claims(&self, kind: &str, payload: &str) -> Value {
        let mut claims = json!({
            "iss": self.audience.as_str(), "to": self.reply, "iat": SystemClock.now_s(), "req": self.request,
            "dig": digest(payload.as_bytes()), "seq": self.next, "knd": kind, "rep": "r1",
        });
        if kind == "end" {
            claims["acc"] = b64(&self.digest_with(payload)).into();
        }
        claims
    }

    /// Sends a frame with exactly these claims, which do not count as the next one's.
    pub async fn frame_of(&self, claims: &str, payload: &str) -> String {
        self.send("nats-rpc-v1-frame+jwt", claims, payload).await
    }

    fn digest_with(&self, payload: &str) -> [u8; 32] {
        hash(&[self.acc, hash(payload.as_bytes())].concat())
    }

    fn advance(&mut self, kind: &str, payload: &str) {
        if kind == "beat" {
            return;
        }
        if kind != "open" {
            self.acc = self.digest_with(payload);
        }
        self.next += 1;
    }

    async fn send(&self, typ: &str, claims: &str, payload: &str) -> String {
        let mut header = self.header.clone();
        header["typ"] = typ.into();
        let proof = jws(&self.key, &header.to_string(), claims);
        let mut headers = HeaderMap::new();
        headers.insert("Authentication-Info", format!("NatsRpc {proof}").as_str());
        let sent = self.client.publish_with_headers(self.reply.clone(), headers, payload.to_owned().into());
        within(SOON, sent).await.unwrap();
        within(SOON, self.client.flush()).await.unwrap();
        digest(proof.as_bytes())
    }
}

fn proved(message: &Message) -> (Value, String) {
    let value = message.headers.as_ref().unwrap().get("Authorization").unwrap().as_str();
    let proof = value.split_once('~').unwrap().1.to_owned();
    (crate::desk::part(&proof, 1), proof)
}

fn hash(bytes: &[u8]) -> [u8; 32] {
    use sha2::Digest as _;
    sha2::Sha256::digest(bytes).into()
}
