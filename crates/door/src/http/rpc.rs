//! JSON-RPC 2.0 over HTTP: signs what was posted byte for byte, and answers with what the service signed.
//! Never sends a message that it has not understood, nor a part of one.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, TryFutureExt as _};
use hyper::header::{HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Response, StatusCode};
use sealwire::client::{Client, ClientError, MessageId, Receipt, RequestBuilder};
use sealwire::rpc::{self, Id, Limits, Request, Responses, RpcError, code};
use tokio::time::timeout;

use super::config::Expose;
use super::connections::{Body, Received};
use super::principal::Principal;
use super::refusal::Refusal;
use super::{Door, answered, body, holding};
use crate::bus::{self, gone};

/// The answer that a message expects.
pub(super) enum Asked {
    /// The answer to this call.
    Call(Id, Request),
    /// The answer to a batch with calls of these ids.
    Batch(Vec<Id>),
    /// None: these are notifications, each of which is sent as a message of its own.
    Nothing(Vec<Bytes>),
}

impl Asked {
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

impl Door {
    /// `POST /rpc/<service>`.
    pub(super) async fn call(
        &self,
        principal: Principal,
        expose: &Expose,
        head: &Parts,
        incoming: Received,
    ) -> Result<Response<Body>, Refusal> {
        let started = Instant::now();
        let admitted = self.admission.admit(&principal, expose.service.as_str())?;
        let text = body::json(head, incoming).await?;
        let id = MessageId::default();
        let answer = self.handed_on(&principal, expose, text, &id).await;
        let status = match &answer {
            Ok(answer) => answer.status(),
            Err(refusal) => refusal.status,
        };
        tracing::info!(
            target: "sealwire::door",
            caller = principal.as_str(),
            service = %expose.service,
            status = status.as_u16(),
            code = answer.as_ref().err().map(|refusal| refusal.code),
            message_id = id.get(),
            duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
            "request"
        );
        answer.map(|answer| holding(answer, admitted))
    }

    async fn handed_on(
        &self,
        principal: &Principal,
        expose: &Expose,
        text: Bytes,
        id: &MessageId,
    ) -> Result<Response<Body>, Refusal> {
        let message = rpc::Body::parse(&text, &Limits::default()).map_err(|error| Refusal::of_text(&error))?;
        let asked = self.judged(principal, expose, message, &text)?;
        let client = self.bus.client().await.map_err(|_| Refusal::away().of(asked.id()))?;
        let mut request = self.callers.request(&client, principal, expose).note_id(id);
        let receipt = bus::receipt(&client);
        if let Some(receipt) = &receipt {
            request = request.note_receipt(receipt);
        }
        let Some(Answered { text: answer, .. }) = sent(&client, request, expose, &asked, text, id).await? else {
            let mut answer = answered(StatusCode::NO_CONTENT, "application/json", "");
            answer.headers_mut().remove(hyper::header::CONTENT_TYPE);
            return Ok(answer);
        };
        let mut answer = answered(StatusCode::OK, "application/json", answer);
        answer.headers_mut().extend(receipt.iter().flat_map(proofs));
        Ok(answer)
    }

    /// Interprets a message as the service will, and charges for it.
    pub(super) fn judged(
        &self,
        principal: &Principal,
        expose: &Expose,
        message: rpc::Body,
        text: &[u8],
    ) -> Result<Asked, Refusal> {
        match message {
            rpc::Body::Single(Err(invalid)) => Err(Refusal::of_invalid(&invalid)),
            rpc::Body::Single(Ok(request)) => {
                let is_allowed = expose.allows(&request.method);
                match request.id.clone() {
                    Some(id) if is_allowed => Ok(Asked::Call(id, request)),
                    Some(id) => Err(Refusal::no_method().asking(&request.method).of(Some(&id))),
                    // JSON-RPC 2.0 §4.1: "The Server MUST NOT reply to a Notification".
                    None if is_allowed => Ok(Asked::Nothing(vec![Bytes::copy_from_slice(text)])),
                    None => Ok(Asked::Nothing(Vec::new())),
                }
            }
            rpc::Body::Batch(entries) => {
                // The first one has already been charged.
                self.admission.charge_more(principal, entries.len().saturating_sub(1))?;
                let requests = entries.iter().filter_map(|entry| entry.as_ref().ok());
                // The door signs the batch as a whole, so it cannot leave out a part.
                let is_allowed = requests.clone().all(|request| expose.allows(&request.method));
                let is_silent = entries.iter().all(|entry| entry.as_ref().is_ok_and(Request::is_notification));
                Ok(match is_silent {
                    _ if !is_allowed && !is_silent => return Err(Refusal::no_method()),
                    true if !is_allowed => Asked::Nothing(Vec::new()),
                    // A batch of notifications has no answer to wait for, so each goes out as its own message.
                    true => Asked::Nothing(requests.map(|request| request.to_bytes().into()).collect()),
                    false => Asked::Batch(requests.filter_map(|request| request.id.clone()).collect()),
                })
            }
        }
    }

    /// `GET /rpc/<service>/openrpc.json`: what the agent may call there.
    pub(super) async fn openrpc(&self, principal: Principal, expose: &Expose) -> Result<Response<Body>, Refusal> {
        let admitted = self.admission.admit(&principal, expose.service.as_str())?;
        let client = self.bus.client().await.map_err(|_| Refusal::away())?;
        let discovering = self.callers.request(&client, &principal, expose).discover();
        let late = |_| ClientError::Timeout { service: expose.service.to_string(), after: expose.timeout() };
        // Discovery sends several requests.
        let found = timeout(expose.timeout(), discovering).await.map_err(late).flatten();
        let mut catalogue = found.map_err(|error| failed(expose, &error))?;
        catalogue.methods.retain(|method| expose.allows(&method.name));
        // Cannot fail: every part of it is JSON.
        let answer =
            answered(StatusCode::OK, "application/json", serde_json::to_vec(&catalogue.document()).unwrap_or_default());
        Ok(holding(answer, admitted))
    }
}

/// An answer that a service has signed.
pub(super) struct Answered {
    /// The text as it came.
    pub(super) text: Vec<u8>,
    /// The error, if it refuses a whole message without any id.
    pub(super) refused: Option<RpcError>,
}

/// Sends a message, and waits for its answer if it has one. `id` is set once the message is signed.
pub(super) fn sent<'c>(
    client: &'c Client,
    request: RequestBuilder,
    expose: &'c Expose,
    asked: &'c Asked,
    text: Bytes,
    id: &'c MessageId,
) -> impl Future<Output = Result<Option<Answered>, Refusal>> + Send + 'c {
    // Both are boxed so that the future around them stays below 1 KiB; the allocator takes far longer for larger ones.
    let sending: BoxFuture<'c, _> = match asked {
        Asked::Nothing(messages) => Box::pin(notified(request, expose, messages).map_ok(|()| None)),
        Asked::Call(..) | Asked::Batch(_) => Box::pin(request.exchange(text).map(move |answer| match answer {
            Ok(answer) => to_call(answer, asked.id()).map(Some),
            Err(ClientError::Protocol(_)) => Err(stray()),
            Err(error) => Err(failed(expose, &error)),
        })),
    };
    async move {
        let outcome = tokio::select! {
            outcome = sending => outcome,
            sent = gone(client, id) => Err(match sent {
                true => Refusal::lost(),
                false => Refusal::away(),
            }),
        };
        outcome.map_err(|refusal| refusal.of(asked.id()))
    }
}

/// The signed answer, unless it refuses the door's own message rather than the caller's.
fn to_call((text, responses): (Bytes, Responses), call: Option<&Id>) -> Result<Answered, Refusal> {
    let refused = match responses {
        Responses::Single(response) => match response.outcome {
            Err(error) if matches!(error.code(), code::UNAUTHENTICATED | code::STALE | code::REPLAYED) => {
                return Err(Refusal::not_taken());
            }
            _ if call.is_some_and(|call| *call == response.id) => None,
            // A refusal of the whole message has no id.
            Err(error) if response.id.is_null() => Some(error),
            _ => return Err(stray()),
        },
        Responses::Batch(_) if call.is_none() => None,
        Responses::Batch(_) => return Err(stray()),
    };
    // A copy, so that a client that reads slowly does not keep the whole buffer it came in.
    Ok(Answered { text: text.to_vec(), refused })
}

fn stray() -> Refusal {
    Refusal::unknown("the service's answer is for another request")
}

/// The proofs with which a caller can check, without trusting the door, what was asked and what the service answered.
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
async fn notified(request: RequestBuilder, expose: &Expose, messages: &[Bytes]) -> Result<(), Refusal> {
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
pub(super) fn failed(expose: &Expose, error: &ClientError) -> Refusal {
    tracing::warn!(target: "sealwire::door", service = %expose.service, %error, "no answer");
    Refusal::of_call(error)
}
