//! Calls that people approve from a browser: a page that signs with their own keys, and the relay that passes on what it has signed.
//! Never signs or changes a message, and never passes on any but the methods with which people look at requests and decide them.

mod relay;

use std::fmt;

use bytes::Bytes;
use hyper::header::{CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, REFERRER_POLICY, X_FRAME_OPTIONS};
use hyper::{Method, Response, StatusCode};
use sealwire::Credentials;
use sealwire::internal::nats::Message;
use sealwire::internal::rpc::{Body as Parsed, Limits};
use sealwire::internal::wire::{Endpoint, RelayedRequest};
use serde::{Deserialize, Serialize};

use self::relay::Relay;
use super::config::GatewayConfig;
use super::connections::Body;
use super::head::CheckedHead;
use super::pipeline::admission::Admitted;
use super::refusal::{Refusal, require_method};
use super::response::{response, with_permit};

/// The methods that are passed on. SPEC.md §6.3
const METHODS: [&str; 3] = ["rpc.approvals", "rpc.approval", "rpc.approve"];
/// The largest payload, twice what a service takes as an approval.
const PAYLOAD_BYTES: usize = 4 << 10;
/// The longest proof.
const PROOF_BYTES: usize = 4 << 10;

/// The page and its relay.
pub(super) struct Approvals {
    relay: Relay,
    /// Whose prefixes and environment the subjects have.
    credentials: Credentials,
}

/// The body of a request: what its sender has signed, and its proof. The token comes as with any request.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Relayed {
    proof: String,
    payload: String,
}

/// What came back, as it came.
#[derive(Serialize)]
struct Answered<'a> {
    headers: &'a str,
    payload: &'a str,
}

impl Approvals {
    /// `None` unless it is configured.
    pub(super) fn of(config: &GatewayConfig, credentials: &Credentials) -> Option<Self> {
        let relay = config.approvals.as_ref()?;
        // The prefixes are those of any service.
        let inbox = credentials.endpoint(credentials.agent().clone()).ok()?.inbox_prefix().to_owned();
        Some(Self { relay: Relay::new(relay.nats.clone(), &inbox), credentials: credentials.clone() })
    }

    /// Connects to the broker.
    pub(super) async fn open(&self) {
        self.relay.open().await;
    }

    pub(super) async fn close(&self) {
        self.relay.close().await;
    }

    /// `POST /approvals/<service>`: passes on one request that the caller has signed.
    pub(super) async fn relay(&self, admitted: Admitted, text: Bytes) -> Result<Response<Body>, Refusal> {
        let mut request = None;
        let answer = self.pass_on(&admitted, &text, &mut request).await;
        let refusal = answer.as_ref().err();
        let (principal, request) = (admitted.principal(), request.as_ref());
        tracing::info!(
            target: "sealwire::gateway",
            caller = principal.as_str(),
            peer = principal.peer(),
            service = %admitted.expose().service,
            agent = request.map(|request| request.agent().as_str()),
            method = request.map(RelayedRequest::method),
            message_id = request.map(RelayedRequest::id),
            status = refusal.map_or(StatusCode::OK, |refusal| refusal.status).as_u16(),
            reason = refusal.map(Refusal::message),
            "an approver's message"
        );
        Ok(with_permit(response(StatusCode::OK, "application/json", answer?), admitted.into_permit()))
    }

    /// What came back. `read` is set once the message is known to be one that is passed on.
    async fn pass_on(
        &self,
        admitted: &Admitted,
        text: &[u8],
        read: &mut Option<RelayedRequest>,
    ) -> Result<Vec<u8>, Refusal> {
        let (request, payload) = self.read(admitted, text)?;
        let request = read.insert(request);
        let mut hold = admitted.hold_if_followed(Some(request.method()));
        let lost = async {
            match &mut hold {
                Some(hold) => hold.lost().await,
                None => std::future::pending().await,
            }
        };
        let Message { headers, payload, .. } = tokio::select! {
            answer = self.relay.exchange(admitted, request, payload.as_bytes()) => answer?,
            loss = lost => return Err(Refusal::of_loss(loss)),
        };
        let (Ok(headers), Ok(payload)) = (std::str::from_utf8(&headers), std::str::from_utf8(&payload)) else {
            return Err(Refusal::unknown("the answer is not a text"));
        };
        // Cannot fail: both are strings.
        Ok(serde_json::to_vec(&Answered { headers, payload }).unwrap_or_default())
    }

    /// The request and its payload, if it is one that is passed on.
    fn read(&self, admitted: &Admitted, text: &[u8]) -> Result<(RelayedRequest, String), Refusal> {
        let bad = |message: String| Refusal::bad(StatusCode::BAD_REQUEST, message).not_sent();
        let Relayed { proof, payload } = serde_json::from_slice(text)
            .map_err(|_| bad("the body must be an object with the strings `proof` and `payload`".to_owned()))?;
        if proof.len() > PROOF_BYTES || payload.len() > PAYLOAD_BYTES {
            return Err(Refusal::too_long("`proof` and `payload` may have 4 KiB each"));
        }
        let token = admitted.principal().token().ok_or_else(|| Refusal::not_found("not found"))?;
        let endpoint = self.endpoint(admitted)?;
        let request = RelayedRequest::read(&endpoint, token, &proof, payload.as_bytes())
            .map_err(|error| Refusal::bad(StatusCode::FORBIDDEN, error.to_string()).not_sent())?;
        if admitted.principal().owner() != Some(request.agent().as_str()) {
            let message = "the message is not on the subjects of the token's agent (`to`)";
            return Err(Refusal::bad(StatusCode::FORBIDDEN, message).not_sent());
        }
        // The service compares the two as well.
        let parsed = Parsed::parse(payload.as_bytes(), &Limits::default()).map_err(|error| Refusal::of_text(&error))?;
        let Parsed::Single(Ok(call)) = parsed else {
            return Err(bad("`payload` must be one call".to_owned()));
        };
        if !METHODS.contains(&request.method()) || call.method != request.method() || call.id.is_none() {
            let message = "only calls of `rpc.approvals`, `rpc.approval` and `rpc.approve` are passed on";
            return Err(Refusal::bad(StatusCode::FORBIDDEN, message).not_sent());
        }
        admitted.check(&call.method)?;
        Ok((request, payload))
    }

    fn endpoint(&self, admitted: &Admitted) -> Result<Endpoint, Refusal> {
        let endpoint = self.credentials.endpoint(admitted.expose().service.clone());
        endpoint.map_err(|error| Refusal::unavailable(error.to_string()))
    }
}

/// The page's file at this path.
fn file(path: &str) -> Option<(&'static str, &'static str)> {
    Some(match path {
        "/approvals" => ("text/html; charset=utf-8", HTML),
        "/approvals.css" => ("text/css; charset=utf-8", CSS),
        "/approvals.js" => ("text/javascript; charset=utf-8", JS),
        _ => return None,
    })
}

/// The response to a request for a file of the page, which is the same for everybody; `None` for any other request. The listener for
/// replicas has no page.
pub(super) fn page(head: &CheckedHead) -> Option<Result<Response<Body>, Refusal>> {
    let (kind, file) = file(head.uri.path()).filter(|_| !head.is_from_replica())?;
    let found = require_method(&head.method, Method::GET).map(|()| {
        let mut found = response(StatusCode::OK, kind, file);
        for (name, value) in [
            (CONTENT_SECURITY_POLICY, POLICY),
            (X_FRAME_OPTIONS, "DENY"),
            (REFERRER_POLICY, "no-referrer"),
            (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
            (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
            (HeaderName::from_static("permissions-policy"), "clipboard-read=()"),
        ] {
            found.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        found
    });
    Some(found)
}

/// The files of the page, by the names under which another web server has to serve them.
pub const PAGE: [(&str, &str); 3] = [("index.html", HTML), ("approvals.css", CSS), ("approvals.js", JS)];

const HTML: &str = include_str!("approvals/page.html");
const CSS: &str = include_str!("approvals/page.css");
const JS: &str = include_str!("approvals/page.js");

/// Allows only the page's own script, nothing from elsewhere, no framing, and no text that becomes markup. It calls this gateway alone.
const POLICY: &str = "default-src 'none'; img-src data:; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

impl fmt::Debug for Approvals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Approvals").field("relay", &self.relay).finish_non_exhaustive()
    }
}
