//! JSON-RPC 2.0 over HTTP: signs what was posted byte for byte, and answers with what the service signed.
//! Never sends a message that it has not understood, nor a part of one.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, TryFutureExt as _};
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use sealwire::RpcError;
use sealwire::call::Catalogue;
use sealwire::errors::code;
use sealwire::internal::client::{MessageId, Receipt};
use sealwire::internal::rpc;
use sealwire::internal::rpc::{Id, Limits, Request, Responses};
use sealwire::{ClientError, RequestBuilder};
use tokio::time::timeout;

use super::config::Expose;
use super::connections::Body;
use super::log::log_call;
use super::pipeline::admission::Admitted;
use super::refusal::Refusal;
use super::response::{response, with_permit};
use crate::bus::BusLink;

/// The answer that a message expects.
pub(super) enum ExpectedAnswer {
    /// The answer to this call.
    Call(Id, Request),
    /// The answer to a batch with calls of these ids.
    Batch(Vec<Id>),
    /// None: these are notifications, each of which is sent as a message of its own.
    Nothing(Vec<Bytes>),
}

impl ExpectedAnswer {
    /// The id of a single call.
    pub(super) fn id(&self) -> Option<&Id> {
        match self {
            Self::Call(id, _) => Some(id),
            Self::Batch(_) | Self::Nothing(_) => None,
        }
    }

    /// The ids of all calls.
    pub(super) fn ids(&self) -> &[Id] {
        match self {
            Self::Call(id, _) => std::slice::from_ref(id),
            Self::Batch(ids) => ids,
            Self::Nothing(_) => &[],
        }
    }
}

/// `POST /rpc/<service>`.
pub(super) async fn call(admitted: Admitted, text: Bytes) -> Result<Response<Body>, Refusal> {
    let (id, mut requests) = (MessageId::default(), Requests::default());
    let answer = forward(&admitted, text, &id, &mut requests).await;
    let status = match &answer {
        Ok(answer) => answer.status(),
        Err(refusal) => refusal.status,
    };
    log_call!(
        admitted,
        id,
        status = status.as_u16(),
        code = answer.as_ref().err().map(|refusal| refusal.code),
        id = requests.id(),
        method = requests.method(),
        duration_ms = u64::try_from(admitted.since().elapsed().as_millis()).unwrap_or(u64::MAX),
        "request"
    );
    requests.log_entries(&admitted, &id);
    answer.map(|answer| with_permit(answer, admitted.into_permit()))
}

async fn forward(
    admitted: &Admitted,
    text: Bytes,
    id: &MessageId,
    requests: &mut Requests,
) -> Result<Response<Body>, Refusal> {
    let message = rpc::Body::parse(&text, &Limits::default()).map_err(|error| Refusal::of_text(&error))?;
    *requests = Requests::of(&message);
    let expected = classify(admitted, message, &text)?;
    let (request, link) = admitted.request().await.map_err(|_| Refusal::away().of(expected.id()))?;
    let mut request = request.relay().capture_id(id).request();
    let receipt = link.receipt();
    if let Some(receipt) = &receipt {
        request = request.relay().capture_receipt(receipt).request();
    }
    let sent = send(&link, request, admitted, &expected, text, id);
    let Some(SignedAnswer { text: answer, .. }) = sent.await? else {
        let mut answer = response(StatusCode::NO_CONTENT, "application/json", "");
        answer.headers_mut().remove(hyper::header::CONTENT_TYPE);
        return Ok(answer);
    };
    let mut answer = response(StatusCode::OK, "application/json", answer);
    answer.headers_mut().extend(receipt.iter().flat_map(proofs));
    Ok(answer)
}

/// Interprets a message as the service will, and charges for it.
pub(super) fn classify(admitted: &Admitted, message: rpc::Body, text: &[u8]) -> Result<ExpectedAnswer, Refusal> {
    let expose = admitted.expose();
    match message {
        rpc::Body::Single(Err(invalid)) => Err(Refusal::of_invalid(&invalid)),
        rpc::Body::Single(Ok(request)) => {
            let is_allowed = expose.allows(&request.method);
            if is_allowed {
                let check = admitted.check(&request.method);
                check.map_err(|refusal| refusal.asking(&request.method).of(request.id.as_ref()))?;
            }
            match request.id.clone() {
                Some(id) if is_allowed => Ok(ExpectedAnswer::Call(id, request)),
                Some(id) => Err(Refusal::no_method().asking(&request.method).of(Some(&id))),
                // JSON-RPC 2.0 §4.1: "The Server MUST NOT reply to a Notification".
                None if is_allowed => Ok(ExpectedAnswer::Nothing(vec![Bytes::copy_from_slice(text)])),
                None => Ok(ExpectedAnswer::Nothing(Vec::new())),
            }
        }
        rpc::Body::Batch(entries) => {
            // The first one has already been charged.
            admitted.charge_more(entries.len().saturating_sub(1))?;
            let requests = entries.iter().filter_map(|entry| entry.as_ref().ok());
            // The gateway signs the batch as a whole, so it cannot leave out a part.
            let is_allowed = requests.clone().all(|request| expose.allows(&request.method));
            if is_allowed {
                requests.clone().try_for_each(|request| admitted.check(&request.method))?;
            }
            let is_silent = entries.iter().all(|entry| entry.as_ref().is_ok_and(Request::is_notification));
            Ok(match is_silent {
                _ if !is_allowed && !is_silent => return Err(Refusal::no_method()),
                true if !is_allowed => ExpectedAnswer::Nothing(Vec::new()),
                // A batch of notifications has no answer to wait for, so each goes out as its own message.
                true => ExpectedAnswer::Nothing(requests.map(|request| request.to_bytes().into()).collect()),
                false => ExpectedAnswer::Batch(requests.filter_map(|request| request.id.clone()).collect()),
            })
        }
    }
}

/// `GET /rpc/<service>/openrpc.json`: what the agent may call there.
pub(super) async fn openrpc(admitted: Admitted) -> Result<Response<Body>, Refusal> {
    let expose = admitted.expose();
    let mut catalogue = discover(&admitted).await?.map_err(|error| failed(expose, &error))?;
    catalogue.methods.retain(|method| expose.allows(&method.name));
    // Cannot fail: every part of it is JSON.
    let answer =
        response(StatusCode::OK, "application/json", serde_json::to_vec(&catalogue.document()).unwrap_or_default());
    Ok(with_permit(answer, admitted.into_permit()))
}

/// What the caller may call at the service. Discovery sends several requests, and takes no longer than a call.
///
/// # Errors
/// The broker is away; or else, the call of the service failed.
pub async fn discover(admitted: &Admitted) -> Result<Result<Catalogue, ClientError>, Refusal> {
    let (request, _) = admitted.request().await.map_err(|_| Refusal::away())?;
    let expose = admitted.expose();
    let late = |_| ClientError::Timeout { service: expose.service.to_string(), after: expose.timeout() };
    Ok(timeout(expose.timeout(), request.discover()).await.map_err(late).flatten())
}

/// An answer that a service has signed.
pub(crate) struct SignedAnswer {
    /// The text as it came.
    pub(crate) text: Vec<u8>,
    /// The error, if it refuses a whole message without any id.
    pub(crate) refused: Option<RpcError>,
}

/// What the log says of the requests in a message.
#[derive(Debug, Default)]
pub(super) struct Requests {
    all: Vec<(Option<String>, String)>,
    is_batch: bool,
}

impl Requests {
    pub(super) fn of(message: &rpc::Body) -> Self {
        let shown = |request: &Result<Request, rpc::Response>| match request {
            Ok(request) => (request.id.as_ref().map(logged_id), shown(&request.method, METHOD)),
            Err(invalid) => (Some(logged_id(&invalid.id)), String::new()),
        };
        match message {
            rpc::Body::Single(request) => Self { all: vec![shown(request)], is_batch: false },
            rpc::Body::Batch(entries) => Self { all: entries.iter().map(shown).collect(), is_batch: true },
        }
    }

    fn single(&self) -> Option<&(Option<String>, String)> {
        self.all.first().filter(|_| !self.is_batch)
    }

    /// The id of a single call.
    pub(super) fn id(&self) -> Option<&str> {
        self.single()?.0.as_deref()
    }

    /// The method of a single request.
    pub(super) fn method(&self) -> Option<&str> {
        self.single().map(|(_, method)| method.as_str())
    }

    /// Logs the entries of a batch, which have one message id.
    pub(super) fn log_entries(&self, admitted: &Admitted, message_id: &MessageId) {
        for (entry, (id, method)) in self.all.iter().enumerate().filter(|_| self.is_batch) {
            tracing::info!(
                target: "sealwire::gateway",
                caller = admitted.principal().as_str(),
                service = %admitted.expose().service,
                entry,
                id,
                method,
                message_id = message_id.get(),
                "entry of a batch"
            );
        }
    }
}

/// The most characters of a method's name in the log.
const METHOD: usize = 128;
/// The most characters of an id in the log: callers choose it.
const ID: usize = 64;

/// An id as it is logged.
pub(crate) fn logged_id(id: &Id) -> String {
    shown(id.as_json(), ID)
}

fn shown(text: &str, most: usize) -> String {
    text.chars().flat_map(char::escape_debug).take(most).collect()
}

/// Sends a message, and waits for its answer if it has one. `id` is set once the message is signed.
pub(super) fn send<'c>(
    link: &'c BusLink,
    request: RequestBuilder,
    admitted: &'c Admitted,
    expected: &'c ExpectedAnswer,
    text: Bytes,
    id: &'c MessageId,
) -> impl Future<Output = Result<Option<SignedAnswer>, Refusal>> + Send + 'c {
    let expose = admitted.expose();
    // Both are boxed so that the future around them stays below 1 KiB; the allocator takes far longer for larger ones.
    let sending: BoxFuture<'c, _> = match expected {
        ExpectedAnswer::Nothing(messages) => Box::pin(send_notifications(request, expose, messages).map_ok(|()| None)),
        ExpectedAnswer::Call(..) | ExpectedAnswer::Batch(_) => {
            Box::pin(request.relay().exchange(text).map(move |answer| match answer {
                Ok(answer) => to_call(answer, expected.id()).map(Some),
                Err(ClientError::Protocol(_)) => Err(mismatched_answer()),
                Err(error) => Err(failed(expose, &error)),
            }))
        }
    };
    let method = match expected {
        ExpectedAnswer::Call(_, request) => Some(request.method.as_str()),
        // Of those in a batch, each service ends its own.
        ExpectedAnswer::Batch(_) | ExpectedAnswer::Nothing(_) => None,
    };
    let mut hold = admitted.hold_if_followed(method);
    let lost = async move {
        match &mut hold {
            Some(hold) => hold.lost().await,
            None => std::future::pending().await,
        }
    };
    async move {
        let outcome = tokio::select! {
            outcome = sending => outcome,
            loss = lost => Err(Refusal::of_loss(loss)),
            sent = link.lost(id) => Err(match sent {
                true => Refusal::lost(),
                false => Refusal::away(),
            }),
        };
        outcome.map_err(|refusal| refusal.of(expected.id()))
    }
}

/// The signed answer, unless it refuses the gateway's own message rather than the caller's.
pub(crate) fn to_call((text, responses): (Bytes, Responses), call: Option<&Id>) -> Result<SignedAnswer, Refusal> {
    let refused = match responses {
        Responses::Single(response) => match response.outcome {
            Err(error) if is_not_taken(&error) => return Err(Refusal::not_taken()),
            _ if call.is_some_and(|call| *call == response.id) => None,
            // A refusal of the whole message has no id.
            Err(error) if response.id.is_null() => Some(error),
            _ => return Err(mismatched_answer()),
        },
        Responses::Batch(_) if call.is_none() => None,
        Responses::Batch(_) => return Err(mismatched_answer()),
    };
    // A copy, so that a client that reads slowly does not keep the whole buffer it came in.
    Ok(SignedAnswer { text: text.to_vec(), refused })
}

/// Whether the service refuses the gateway's own message rather than the caller's.
pub(super) fn is_not_taken(error: &RpcError) -> bool {
    matches!(error.profile_code(), Some(code::UNAUTHENTICATED | code::STALE | code::REPLAYED))
}

fn mismatched_answer() -> Refusal {
    Refusal::unknown("the service's answer is for another request")
}

/// The proofs with which a caller can check, without trusting the gateway, what was asked and what the service answered.
fn proofs(receipt: &Receipt) -> impl Iterator<Item = (HeaderName, HeaderValue)> + use<> {
    let named = [(REQUEST_PROOF, receipt.request()), (ANSWER_PROOF, receipt.answer())];
    named.into_iter().filter_map(|(name, proof)| Some((name, HeaderValue::try_from(proof?).ok()?)))
}

/// The headers of the answer that hold the proofs of a call.
pub(super) const REQUEST_PROOF: HeaderName = HeaderName::from_static("sealwire-request");
pub(super) const ANSWER_PROOF: HeaderName = HeaderName::from_static("sealwire-answer");

/// The shortest deadline.
const LEAST: Duration = Duration::from_millis(1);

/// Sends notifications, one after the other.
async fn send_notifications(request: RequestBuilder, expose: &Expose, messages: &[Bytes]) -> Result<(), Refusal> {
    let deadline = Instant::now() + expose.timeout();
    for (sent, message) in messages.iter().enumerate() {
        let left = deadline.saturating_duration_since(Instant::now()).max(LEAST);
        let published = request.clone().deadline(left).publish_raw(message.clone()).await;
        published.map_err(|error| match (failed(expose, &error), sent) {
            (refusal, 0) => refusal,
            // The rest are not sent; those already sent cannot be taken back.
            _ => Refusal::unknown(format!("of {} notifications, {sent} were sent", messages.len())),
        })?;
    }
    Ok(())
}

/// The refusal for a failed call. The log gets the details that callers are not told.
#[must_use]
pub fn failed(expose: &Expose, error: &ClientError) -> Refusal {
    tracing::warn!(target: "sealwire::gateway", service = %expose.service, %error, "no answer");
    Refusal::of_call(error)
}
