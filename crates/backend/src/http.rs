//! A server that is called over HTTP: JSON-RPC 2.0 over POST, a stream of events, or a plain request.
//! Never gives a server the caller's token, and never makes two requests for one call.

mod answer;
mod batch;
mod rest;
mod rpc;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use hyper::Method;
use hyper::header::{ACCEPT, HeaderMap, HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use sealwire::RpcError;
use sealwire::service::Ctx;
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use self::batch::Batches;
pub(crate) use self::rest::Rest;
use crate::backend::{Backend, Call, Health};
use crate::web::{Reply, Request, Web, WebError, header_value};

/// How a method is called.
#[derive(Debug)]
pub(crate) enum Way {
    /// JSON-RPC in a POST to the server's address.
    Post,
    /// JSON-RPC in the query of a GET of this path, answered by a stream of events.
    Stream(String),
    /// A request of its own.
    Rest(Box<Rest>),
}

/// How a server is used.
#[derive(Debug)]
pub(crate) struct Use {
    pub(crate) name: String,
    pub(crate) web: Web,
    /// By method name.
    pub(crate) ways: BTreeMap<String, Way>,
    pub(crate) in_flight: usize,
    pub(crate) timeout: Duration,
    pub(crate) send_caller: bool,
    /// Whether calls of one caller that arrive at the same time go in one `POST`.
    pub(crate) batch: bool,
    /// The path of the health check.
    pub(crate) probe: Option<String>,
}

/// One server.
#[derive(Debug)]
pub(crate) struct Http {
    shared: Arc<Shared>,
    next: AtomicU64,
    watching: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    used: Use,
    health: watch::Sender<Health>,
    /// Notified when a call has not reached the server.
    missed: Notify,
    batches: Batches,
}

/// The pause before an unavailable server is checked again: the first and the longest.
const AGAIN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// How long a server must have been available for the pauses to start over; until then they keep growing.
const SETTLED: Duration = Duration::from_secs(5);
/// How often an available server is checked, if it has a health path.
const LOOK: Duration = Duration::from_secs(10);
/// How long a check may take.
const PROBE: Duration = Duration::from_secs(10);
/// The longest path with its query, in bytes, that servers accept.
const LONGEST_TARGET: usize = 8 * 1024;

/// The media types that a server may answer with.
const ACCEPTED: &str = "application/json, text/event-stream";
/// Everything but visible ASCII, and `%`, so that no two texts become the same.
const VISIBLE: &AsciiSet = &CONTROLS.add(b' ').add(b'%');

impl Http {
    /// Keeps checking whether the server is available, until [`Backend::stop`].
    pub(crate) fn start(used: Use) -> Self {
        let health = Health::Down("it has not been reached yet".to_owned());
        let (health, missed, batches) = (watch::Sender::new(health), Notify::new(), Batches::default());
        let shared = Arc::new(Shared { used, health, missed, batches });
        let watching = Arc::clone(&shared);
        let watching = tokio::spawn(async move { watching.watch().await });
        Self { shared, next: AtomicU64::new(1), watching: Mutex::new(Some(watching)) }
    }

    async fn make(&self, call: Call) -> Result<Box<RawValue>, RpcError> {
        match self.shared.used.ways.get(call.tool.method.as_str()) {
            None => Err(RpcError::internal("no way to ask for it")),
            Some(Way::Post) => self.post(call).await,
            Some(Way::Stream(path)) => self.stream(&call, path).await,
            Some(Way::Rest(rest)) => self.rest(&call, rest).await,
        }
    }
}

/// Makes the request of a call.
async fn ask(shared: &Shared, call: &Call, mut request: Request) -> Result<Reply, RpcError> {
    if request.target.as_ref().is_some_and(|target| target.len() > LONGEST_TARGET) {
        return Err(RpcError::invalid_params(format!(
            "the parameters make the path longer than {LONGEST_TARGET} bytes"
        )));
    }
    about(&mut request.headers, &call.ctx, shared.used.send_caller);
    let reply = shared.used.web.send(&request, Some(call.ctx.caller())).await;
    reply.map_err(|error| {
        if matches!(error, WebError::Unreached { .. }) {
            shared.set(Err(error.to_string()));
            shared.missed.notify_one();
        }
        RpcError::dependency(error)
    })
}

/// Adds the header fields of every request for a call.
fn about(headers: &mut HeaderMap, ctx: &Ctx, send_caller: bool) {
    headers.entry(ACCEPT).or_insert(HeaderValue::from_static(ACCEPTED));
    let mut put = |name: &'static str, text: &str| {
        let text = utf8_percent_encode(text, VISIBLE).to_string();
        // After encoding, every text is a valid header value.
        if let Some(value) = header_value(&text) {
            headers.insert(HeaderName::from_static(name), value);
        }
    };
    let caller = ctx.caller();
    if send_caller {
        put("sealwire-agent", caller.agent.as_str());
        put("sealwire-subject", &caller.subject);
    }
    if let Some(trace) = ctx.traceparent() {
        put("traceparent", trace);
    }
    if let Some(key) = ctx.idempotency_key() {
        put("idempotency-key", &idempotency_key(&[caller.agent.as_str(), &caller.subject, ctx.method(), key]));
    }
}

/// A key that no other caller can produce. To the server, all callers are the service, so it would answer one with what it has kept for
/// another.
fn idempotency_key(parts: &[&str]) -> String {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update(part.len().to_le_bytes());
        digest.update(part);
    }
    digest.finalize().iter().take(16).fold(String::new(), |mut text, byte| {
        // Writing to a text cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

impl Shared {
    /// Keeps track of whether the server is available.
    async fn watch(&self) {
        let mut pause = AGAIN.0;
        loop {
            let found = tokio::time::timeout(PROBE, self.probe()).await;
            let found = found.unwrap_or_else(|_| Err(format!("no answer within {} s", PROBE.as_secs())));
            let is_there = found.is_ok();
            self.set(found);
            if is_there {
                let since = Instant::now();
                match &self.used.probe {
                    Some(_) => drop(tokio::time::timeout(LOOK, self.missed.notified()).await),
                    None => self.missed.notified().await,
                }
                if since.elapsed() >= SETTLED {
                    pause = AGAIN.0;
                }
                if *self.health.borrow() == Health::Up {
                    continue;
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(AGAIN.1);
        }
    }

    async fn probe(&self) -> Result<(), String> {
        let Some(path) = &self.used.probe else {
            return self.used.web.reach().await.map_err(|error| error.to_string());
        };
        let request = Request { target: Some(path.clone()), ..Request::bare(Method::GET) };
        let reply = self.used.web.send(&request, None).await.map_err(|error| error.to_string())?;
        let status = reply.status();
        // Read to its end, so that the connection can be reused.
        drop(reply.text().await);
        if status.is_success() { Ok(()) } else { Err(format!("`{path}` answers with {}", status.as_u16())) }
    }

    fn set(&self, found: Result<(), String>) {
        let backend = &self.used.name;
        let health = match found {
            Ok(()) => Health::Up,
            Err(reason) => Health::Down(reason),
        };
        self.health.send_if_modified(|known| {
            let changed = *known != health;
            match (&health, changed) {
                (_, false) => {}
                (Health::Up, true) => tracing::info!(target: "sealwire::backend", backend, "the server is available"),
                (Health::Down(reason), true) => {
                    tracing::warn!(target: "sealwire::backend", backend, reason, "the server is unavailable");
                }
            }
            *known = health;
            changed
        });
    }
}

impl Backend for Http {
    fn call(&self, call: Call) -> BoxFuture<'_, Result<Box<RawValue>, RpcError>> {
        async move {
            let timeout = self.shared.used.timeout;
            let late = || RpcError::dependency(format!("no answer within {} s", timeout.as_secs()));
            tokio::time::timeout_at(call.until, self.make(call)).await.unwrap_or_else(|_| Err(late()))
        }
        .boxed()
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.shared.health.subscribe()
    }

    /// Calls have ended by now; connections close with the last of them.
    fn stop(&self) -> BoxFuture<'_, ()> {
        async move {
            let watching = self.watching.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(watching) = watching {
                watching.abort();
                drop(watching.await);
            }
            self.shared.batches.stop().await;
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idempotency_key_belongs_to_its_caller_and_method() {
        let key = idempotency_key(&["a", "s", "m", "k"]);
        assert_eq!(key.len(), 32);
        for other in [
            ["as", "", "m", "k"],
            ["b", "s", "m", "k"],
            ["a", "t", "m", "k"],
            ["a", "s", "n", "k"],
            ["a", "s", "mk", ""],
        ] {
            assert_ne!(idempotency_key(&other), key, "{other:?}");
        }
    }
}
