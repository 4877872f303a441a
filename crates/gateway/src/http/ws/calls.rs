//! The open calls of one socket, by their ids, and the open questions of methods, by theirs.
//! Never answers a call twice, and never under another call's id.

use std::collections::{HashMap, HashSet};
use std::pin::Pin;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use sealwire::RpcError;
use sealwire::internal::client::MessageId;
use sealwire::internal::rpc;
use sealwire::internal::rpc::{Id, Outcome, Request};
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::sync::{Notify, oneshot, watch};

use super::frames::Outbox;
use super::messages::{array, say};
use crate::http::log::log_call;
use crate::http::parts::{Parts, StreamItem, StreamKind};
use crate::http::pipeline::admission::Admitted;
use crate::http::refusal::Refusal;
use crate::http::rpc::{ExpectedAnswer, Requests, SignedAnswer, send};

/// The open calls and questions of a socket.
#[derive(Debug, Default)]
pub(super) struct Open {
    /// Bounded by the caller's permits.
    calls: Mutex<HashMap<Id, Arc<Notify>>>,
    /// By the gateway's ids; at most eight for each call.
    questions: Mutex<Questions>,
}

#[derive(Debug, Default)]
struct Questions {
    asked: u64,
    open: HashMap<String, oneshot::Sender<Outcome>>,
}

/// The ids of a message, in use until this is dropped.
pub(super) struct Claim {
    open: Arc<Open>,
    ids: Vec<Id>,
    cancelled: Arc<Notify>,
}

/// A question to the client. Dropping it withdraws the question if it is still open.
struct Question {
    open: Arc<Open>,
    out: Outbox,
    id: String,
    was_sent: bool,
}

/// A message on its way to the service.
pub(super) struct Call {
    pub(super) out: Outbox,
    pub(super) claim: Claim,
}

/// A notification from the gateway or, with an id, a request.
#[derive(Serialize)]
struct Notification<'a, P> {
    jsonrpc: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    method: &'static str,
    params: P,
}

/// `rpc.part`.
#[derive(Serialize)]
struct Part<'a> {
    id: &'a Id,
    seq: u64,
    result: &'a RawValue,
}

/// `rpc.note` and, without `seq`, `rpc.ask`. They wrap what the method sends, which as a message of its own could be mistaken for
/// the gateway's or another call's.
#[derive(Serialize)]
struct Note<'a> {
    id: &'a Id,
    #[serde(skip_serializing_if = "Option::is_none")]
    seq: Option<u64>,
    method: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    params: Option<&'a RawValue>,
}

/// `rpc.cancel` of a question.
#[derive(Serialize)]
struct Withdrawal<'a> {
    id: &'a str,
}

/// Tells the service to cancel a call.
type Cancelling = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Waits for the future, if there is one.
async fn cancelled(what: &mut Option<Cancelling>) {
    match what {
        Some(what) => what.await,
        None => std::future::pending().await,
    }
}

/// Completes when the gateway stops.
async fn stopped(stopping: &mut watch::Receiver<bool>) {
    // Fails only when the sender is gone, because everything has ended.
    drop(stopping.wait_for(|stopping| *stopping).await);
}

fn locked<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Open {
    /// Claims the ids; `None` if one of them is in use, or occurs twice.
    pub(super) fn claim(self: &Arc<Self>, ids: &[Id]) -> Option<Claim> {
        let mut claim = Claim { open: Arc::clone(self), ids: Vec::new(), cancelled: Arc::default() };
        for id in ids {
            let mut calls = locked(&self.calls);
            if calls.contains_key(id) {
                drop(calls);
                // Dropping `claim` frees the ids it already has.
                return None;
            }
            calls.insert(id.clone(), Arc::clone(&claim.cancelled));
            claim.ids.push(id.clone());
        }
        Some(claim)
    }

    /// Cancels the message that contains this call; `false` if there is none.
    pub(super) fn cancel(&self, id: &Id) -> bool {
        let found = locked(&self.calls).get(id).cloned();
        if let Some(cancelled) = &found {
            cancelled.notify_one();
        }
        found.is_some()
    }

    /// Whether one of these ids is in use, or occurs twice. Several `null` are allowed, since nobody could tell them apart anyway.
    pub(super) fn has_one_of(&self, ids: &[Id]) -> bool {
        let (calls, mut seen) = (locked(&self.calls), HashSet::new());
        ids.iter().any(|id| calls.contains_key(id) || (!id.is_null() && !seen.insert(id)))
    }

    /// Passes an answer to its question, if that is still open.
    pub(super) fn answered(&self, answer: rpc::Response) {
        let Ok(id) = serde_json::from_str::<String>(answer.id.as_json()) else { return };
        let asked = locked(&self.questions).open.remove(&id);
        if let Some(asked) = asked {
            // The call may have just ended.
            drop(asked.send(answer.outcome));
        }
    }

    /// Asks the client a method's question.
    async fn ask(self: Arc<Self>, out: Outbox, call: Id, asked: Request) -> Result<Box<RawValue>, RpcError> {
        let (reply, replied) = oneshot::channel();
        let mut question = {
            let mut questions = locked(&self.questions);
            questions.asked += 1;
            let id = format!("ask-{}", questions.asked);
            questions.open.insert(id.clone(), reply);
            Question { open: Arc::clone(&self), out: out.clone(), id, was_sent: false }
        };
        let params = asked.params.as_ref().map(rpc::Params::raw);
        let note = Note { id: &call, seq: None, method: &asked.method, params };
        say(&out, Notification::new(Some(&question.id), "rpc.ask", note).text()).await;
        question.was_sent = true;
        replied.await.unwrap_or_else(|_| Err(RpcError::application(1, "the client did not answer")))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut calls = locked(&self.open.calls);
        for id in &self.ids {
            calls.remove(id);
        }
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        let was_open = locked(&self.open.questions).open.remove(&self.id).is_some();
        if was_open && self.was_sent {
            let withdrawn = Notification::new(None, "rpc.cancel", Withdrawal { id: &self.id }).text();
            if let Ok(text) = tokio_tungstenite::tungstenite::Utf8Bytes::try_from(withdrawn) {
                self.out.send_now(text);
            }
        }
    }
}

impl<'a, P: Serialize> Notification<'a, P> {
    fn new(id: Option<&'a str>, method: &'static str, params: P) -> Self {
        Self { jsonrpc: "2.0", id, method, params }
    }

    fn text(&self) -> Vec<u8> {
        // Cannot fail: every part of it can be serialized.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// The ids under which a message is answered; `null` for a batch of which no entry has one.
fn answered_under(expected: &ExpectedAnswer) -> &[Id] {
    static NONE: LazyLock<[Id; 1]> = LazyLock::new(|| [Id::null()]);
    match expected {
        ExpectedAnswer::Batch(ids) if ids.is_empty() => NONE.as_slice(),
        expected => expected.ids(),
    }
}

impl Call {
    /// Forwards a message as it came, and returns its answer as it was signed.
    pub(super) async fn plain(self, expected: ExpectedAnswer, requests: Requests, text: Bytes, admitted: Admitted) {
        let (started, message_id) = (Instant::now(), MessageId::default());
        let answer = self.answer(&admitted, &expected, text, &message_id).await;
        log_call!(
            admitted,
            message_id,
            code = answer.as_ref().err().map(|refusal| refusal.code),
            id = requests.id(),
            method = requests.method(),
            duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
            "request"
        );
        requests.log_entries(&admitted, &message_id);
        let texts = match answer {
            Ok(None) => return,
            Ok(Some(SignedAnswer { text, refused: None })) => {
                drop(self.claim);
                say(&self.out, text).await;
                return drop(admitted);
            }
            // An error about the whole message has no id, so on a socket the client would not know which message it is about.
            Ok(Some(SignedAnswer { refused: Some(error), .. })) => answered_under(&expected)
                .iter()
                .map(|id| rpc::Response::new(id.clone(), Err(error.clone())).to_bytes())
                .collect(),
            Err(refusal) => {
                let mut texts = Vec::new();
                let mut refusal = refusal;
                for id in answered_under(&expected) {
                    refusal = refusal.of(Some(id));
                    texts.push(refusal.text());
                }
                texts
            }
        };
        drop(self.claim);
        match (&expected, texts.as_slice()) {
            (_, []) => {}
            (ExpectedAnswer::Call(..), [text]) => say(&self.out, text.clone()).await,
            (_, texts) => say(&self.out, array(texts)).await,
        }
        // A client that does not read its answers has no room for other calls.
        drop(admitted);
    }

    async fn answer(
        &self,
        admitted: &Admitted,
        expected: &ExpectedAnswer,
        text: Bytes,
        id: &MessageId,
    ) -> Result<Option<SignedAnswer>, Refusal> {
        let (request, link) = admitted.request().await.map_err(|_| Refusal::away())?;
        let cancelled = Arc::clone(&self.claim.cancelled);
        let request = request.relay().capture_id(id).request().cancel_on(async move { cancelled.notified().await });
        send(&link, request, admitted, expected, text, id).await
    }

    /// Makes a call, and forwards everything that the method sends.
    pub(super) async fn parts(
        self,
        request: Request,
        held: StreamKind,
        admitted: Admitted,
        streaming: Admitted,
        mut stopping: watch::Receiver<bool>,
    ) {
        let Some(id) = request.id.clone() else { return };
        let Ok((builder, link)) = streaming.request().await else {
            drop(self.claim);
            say(&self.out, Refusal::away().of(Some(&id)).text()).await;
            return drop((admitted, streaming));
        };
        drop(admitted);
        let (open, out, call) = (Arc::clone(&self.claim.open), self.out.clone(), id.clone());
        let builder = builder.on_ask(move |asked| Arc::clone(&open).ask(out.clone(), call.clone(), asked));
        let mut parts = Parts::begin(streaming, (builder, link), id.clone(), &request, held);
        let last = self.forward_parts(&mut parts, &id, held, &mut stopping).await;
        drop(self.claim);
        say(&self.out, last).await;
        // Frees the permit only now: a client that does not read its answers has no room for other calls.
        drop(parts);
    }

    /// Forwards everything before the end, and returns the response.
    async fn forward_parts(
        &self,
        parts: &mut Parts,
        id: &Id,
        held: StreamKind,
        stopping: &mut watch::Receiver<bool>,
    ) -> Vec<u8> {
        let mut seq = 0;
        let mut cancelling: Option<Cancelling> = None;
        loop {
            let said = tokio::select! {
                biased;
                () = self.claim.cancelled.notified(), if cancelling.is_none() => {
                    // The call may still end in another way before the service cancels it.
                    cancelling = Some(Box::pin(parts.cancelling()));
                    continue;
                }
                // Calls get time to end; a listener is ended at once.
                () = stopped(stopping), if held == StreamKind::Listening => {
                    parts.cancel().await;
                    return Refusal::stopped().of(Some(id)).text();
                }
                // Checked before parts, since there may always be another part.
                () = cancelled(&mut cancelling) => {
                    parts.leave();
                    return Refusal::cancelled().of(Some(id)).text();
                }
                said = parts.next() => said,
            };
            seq += 1;
            let text = match said {
                Some(StreamItem::Part(part)) => {
                    Notification::new(None, "rpc.part", Part { id, seq, result: &part }).text()
                }
                Some(StreamItem::Note(note)) => {
                    let params = note.params.as_ref().map(rpc::Params::raw);
                    let note = Note { id, seq: Some(seq), method: &note.method, params };
                    Notification::new(None, "rpc.note", note).text()
                }
                Some(StreamItem::End(response)) => return response.to_bytes(),
                Some(StreamItem::Refused(refusal)) => return refusal.text(),
                None => return Refusal::unknown("the call has ended without an answer").of(Some(id)).text(),
            };
            // While there is no room for it, nothing more is taken, and the method waits.
            say(&self.out, text).await;
        }
    }
}
