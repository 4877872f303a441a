//! What the calls of one server share: how it is used, and whether it is available.
//! Never gives a server the caller's token.

use std::fmt::Write as _;
use std::time::Duration;

use hyper::Method;
use hyper::header::{ACCEPT, HeaderMap, HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use sealwire::RpcError;
use sealwire_http::Reply;
use sha2::{Digest as _, Sha256};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::config::HttpOptions;
use crate::backend::{Call, Health};
use crate::web::{Request, WebError, header_value};

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) used: HttpOptions,
    pub(super) health: watch::Sender<Health>,
    /// Notified when a call has not reached the server.
    missed: Notify,
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

impl Shared {
    pub(super) fn new(used: HttpOptions) -> Self {
        let health = Health::Down("it has not been reached yet".to_owned());
        Self { used, health: watch::Sender::new(health), missed: Notify::new() }
    }

    /// Keeps track of whether the server is available.
    pub(super) async fn watch(&self) {
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
                (Health::Up | Health::Limited(_), true) => {
                    tracing::info!(target: "sealwire::backend", backend, "the server is available")
                }
                (Health::Down(reason), true) => {
                    tracing::warn!(target: "sealwire::backend", backend, reason, "the server is unavailable");
                }
            }
            *known = health;
            changed
        });
    }
}

/// Makes the request of a call.
pub(super) async fn ask(shared: &Shared, call: &Call, mut request: Request) -> Result<Reply, RpcError> {
    if request.target.as_ref().is_some_and(|target| target.len() > LONGEST_TARGET) {
        return Err(RpcError::invalid_params(format!(
            "the parameters make the path longer than {LONGEST_TARGET} bytes"
        )));
    }
    about(&mut request.headers, call, shared.used.send_caller);
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
fn about(headers: &mut HeaderMap, Call { ctx, traceparent, .. }: &Call, send_caller: bool) {
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
    if let Some(trace) = traceparent {
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
