//! JSON-RPC 2.0 over HTTP: what is posted is signed as it is, byte for byte, and what the service has signed is the answer.
//! Never sends a message that it has not understood, and never a part of one.

use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::header::{HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Response, StatusCode};
use sealwire::auth::ProofAlgorithm;
use sealwire::client::{ClientError, MessageId, Receipt, RequestBuilder};
use sealwire::rpc::{self, Id, Limits, Request, Responses, code};
use tokio::time::timeout;

use super::config::Expose;
use super::connections::{Body, Received};
use super::principal::Principal;
use super::refusal::Refusal;
use super::{Door, answered, body, holding};
use crate::bus::gone;

/// What a message asks for.
enum Asked {
    /// An answer: to the call of this id, or to a batch.
    Answer(Option<Id>),
    /// Nothing. Each of these is a message of its own.
    Nothing(Vec<Bytes>),
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
        let asked = self.judged(principal, expose, &text)?;
        let call = match &asked {
            Asked::Answer(call) => call.as_ref(),
            Asked::Nothing(_) => None,
        };
        let client =
            self.bus.client().await.map_err(|_| {
                Refusal::unavailable("the broker cannot be reached, nothing was sent: try again").of(call)
            })?;
        let sending = async {
            match &asked {
                Asked::Answer(call) => {
                    let mut request = self.callers.request(&client, principal, expose).note_id(id);
                    // Under HMAC nobody else could check it.
                    let is_public = client.credentials().key().algorithm() == ProofAlgorithm::EdDsa;
                    let receipt = is_public.then(Receipt::default);
                    if let Some(receipt) = &receipt {
                        request = request.note_receipt(receipt);
                    }
                    let answer = request.send_raw(text).await.map_err(|error| failed(expose, &error))?;
                    let mut answer = verified(answer, call.as_ref())?;
                    answer.headers_mut().extend(receipt.iter().flat_map(proofs));
                    Ok(answer)
                }
                Asked::Nothing(messages) => {
                    notified(&self.callers.request(&client, principal, expose).note_id(id), expose, messages).await
                }
            }
        };
        let outcome = tokio::select! {
            outcome = sending => outcome,
            sent = gone(&client, id) => Err(match sent {
                true => Refusal::lost(),
                false => Refusal::away(),
            }),
        };
        outcome.map_err(|refusal| refusal.of(call))
    }

    /// Reads a message as the service will, and charges for it.
    fn judged(&self, principal: &Principal, expose: &Expose, text: &[u8]) -> Result<Asked, Refusal> {
        match rpc::Body::parse(text, &Limits::default()).map_err(|error| Refusal::of_text(&error))? {
            rpc::Body::Single(Err(invalid)) => Err(Refusal::of_invalid(&invalid)),
            rpc::Body::Single(Ok(request)) => {
                let is_allowed = expose.allows(&request.method);
                match request.id {
                    Some(id) if is_allowed => Ok(Asked::Answer(Some(id))),
                    Some(id) => Err(Refusal::no_method().asking(&request.method).of(Some(&id))),
                    // JSON-RPC 2.0 §4.1: "The Server MUST NOT reply to a Notification".
                    None if is_allowed => Ok(Asked::Nothing(vec![Bytes::copy_from_slice(text)])),
                    None => Ok(Asked::Nothing(Vec::new())),
                }
            }
            rpc::Body::Batch(entries) => {
                // The first one is charged already.
                self.admission.charge_more(principal, entries.len().saturating_sub(1))?;
                let requests = entries.iter().filter_map(|entry| entry.as_ref().ok());
                // What is signed is the whole of it, so no part can be left out.
                let is_allowed = requests.clone().all(|request| expose.allows(&request.method));
                let is_silent = entries.iter().all(|entry| entry.as_ref().is_ok_and(Request::is_notification));
                Ok(match is_silent {
                    _ if !is_allowed && !is_silent => return Err(Refusal::no_method()),
                    true if !is_allowed => Asked::Nothing(Vec::new()),
                    // Nobody would answer all of it, and nobody could be waited for.
                    true => Asked::Nothing(requests.map(|request| request.to_bytes().into()).collect()),
                    false => Asked::Answer(None),
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
        // It asks more than once.
        let found = timeout(expose.timeout(), discovering).await.map_err(late).flatten();
        let mut catalogue = found.map_err(|error| failed(expose, &error))?;
        catalogue.methods.retain(|method| expose.allows(&method.name));
        // Every part of it is JSON.
        let answer =
            answered(StatusCode::OK, "application/json", serde_json::to_vec(&catalogue.document()).unwrap_or_default());
        Ok(holding(answer, admitted))
    }
}

/// The answer that a service has signed, unless it speaks of the door's message and not of the caller's.
fn verified(answer: String, call: Option<&Id>) -> Result<Response<Body>, Refusal> {
    let is_of_call = match Responses::parse(answer.as_bytes(), &Limits::default()) {
        Ok(Responses::Single(response)) => {
            let refused = response.outcome.as_ref().err().map(sealwire::RpcError::code);
            if matches!(refused, Some(code::UNAUTHENTICATED | code::STALE | code::REPLAYED)) {
                return Err(Refusal::not_taken());
            }
            // A refusal of the whole message has no id.
            call.is_some_and(|call| *call == response.id) || (refused.is_some() && response.id.is_null())
        }
        Ok(Responses::Batch(_)) => call.is_none(),
        Err(_) => false,
    };
    if is_of_call {
        Ok(answered(StatusCode::OK, "application/json", answer))
    } else {
        Err(Refusal::unknown("the service's answer is no answer to this"))
    }
}

/// What a caller needs to check without the door that its bytes were asked, and that the service answered these.
fn proofs(receipt: &Receipt) -> impl Iterator<Item = (HeaderName, HeaderValue)> + use<> {
    let named = [(REQUEST_PROOF, receipt.request()), (ANSWER_PROOF, receipt.answer())];
    named.into_iter().filter_map(|(name, proof)| Some((name, HeaderValue::try_from(proof?).ok()?)))
}

/// Where the proofs of a call stand in the head of its answer.
pub(super) const REQUEST_PROOF: HeaderName = HeaderName::from_static("sealwire-request");
pub(super) const ANSWER_PROOF: HeaderName = HeaderName::from_static("sealwire-answer");

/// The shortest deadline.
const LEAST: Duration = Duration::from_millis(1);

/// Sends what nobody answers, one after the other.
async fn notified(request: &RequestBuilder, expose: &Expose, messages: &[Bytes]) -> Result<Response<Body>, Refusal> {
    let deadline = Instant::now() + expose.timeout();
    for (sent, message) in messages.iter().enumerate() {
        let left = deadline.saturating_duration_since(Instant::now()).max(LEAST);
        let published = request.clone().deadline(left).publish_raw(message.clone()).await;
        published.map_err(|error| match (failed(expose, &error), sent) {
            (refusal, 0) => refusal,
            // The next ones are not sent, and those before are not to be had back.
            _ => Refusal::unknown(format!("of {} notifications {sent} were sent", messages.len())),
        })?;
    }
    let mut answer = answered(StatusCode::NO_CONTENT, "application/json", "");
    answer.headers_mut().remove(hyper::header::CONTENT_TYPE);
    Ok(answer)
}

/// What callers are not told, the log has.
pub(super) fn failed(expose: &Expose, error: &ClientError) -> Refusal {
    tracing::warn!(target: "sealwire::door", service = %expose.service, %error, "no answer");
    Refusal::of_call(error)
}
