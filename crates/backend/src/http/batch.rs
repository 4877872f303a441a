//! Puts calls of one caller that arrive at the same time into one `POST` of JSON-RPC 2.0: `batch = true`.
//! Never puts two callers into one request, and never gives a call another's answer.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{ACCEPT, HeaderValue};
use sealwire::RpcError;
use sealwire::internal::rpc::{Id, Limits, Outcome, Response, Responses};
use sealwire_http::{MAX_BODY, Reply};
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::answer::{self, StreamEnd};
use super::server::{Shared, ask};
use crate::backend::Call;
use crate::form::{self, Malformed};
use crate::web::Request;

/// Requests that further calls can still join.
#[derive(Debug, Default)]
pub(super) struct Batches {
    open: OpenBatches,
    sending: Mutex<JoinSet<()>>,
}

/// By what their calls have in common.
type OpenBatches = Arc<Mutex<HashMap<BatchKey, OpenBatch>>>;

/// What the calls of a request have in common: everything that its head says about them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct BatchKey {
    agent: String,
    subject: String,
    /// The trace: each of its calls has a span of its own.
    trace: Option<String>,
}

/// A request that further calls can join.
#[derive(Debug)]
struct OpenBatch {
    /// The id of its first call, which no other request has.
    first: Id,
    calls: usize,
    bytes: usize,
    join: mpsc::Sender<Entry>,
}

/// A call in a request. It keeps its place among the calls of the backend until the server has answered.
#[derive(Debug)]
struct Entry {
    id: Id,
    text: Vec<u8>,
    call: Call,
    tell: oneshot::Sender<Outcome>,
}

/// How long the first call waits for others; the calls of one message arrive within this time.
const WINDOW: Duration = Duration::from_millis(5);
/// The most calls in a request ...
const MOST: usize = 32;
/// ... and bytes, unless a single one has more.
const BYTES: usize = MAX_BODY;

impl Batches {
    /// Makes a call together with others of its caller.
    pub(super) async fn make(&self, shared: &Arc<Shared>, id: Id, text: Vec<u8>, call: Call) -> Outcome {
        let over = || RpcError::dependency("the backend is being stopped");
        let (tell, told) = oneshot::channel();
        self.join(shared, Entry { id, text, call, tell });
        told.await.unwrap_or_else(|_| Err(over()))
    }

    fn join(&self, shared: &Arc<Shared>, entry: Entry) {
        let caller = entry.call.ctx.caller();
        let whose = BatchKey {
            agent: caller.agent.to_string(),
            subject: caller.subject.clone(),
            trace: entry.call.traceparent.as_deref().and_then(|parent| Some(parent.split('-').nth(1)?.to_owned())),
        };
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.get(&whose).is_some_and(|batch| batch.bytes + entry.text.len() > BYTES) {
            // The open request goes as it is, and another begins.
            open.remove(&whose);
        }
        let batch = open.entry(whose.clone()).or_insert_with(|| {
            let (join, joined) = mpsc::channel(MOST);
            let first = entry.id.clone();
            let mut sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
            while sending.try_join_next().is_some() {}
            sending.spawn(send(Arc::clone(shared), Arc::clone(&self.open), whose.clone(), first.clone(), joined));
            OpenBatch { first, calls: 0, bytes: 0, join }
        });
        batch.calls += 1;
        batch.bytes += entry.text.len() + 1;
        let is_full = batch.calls >= MOST;
        // There is room for as many as are counted. If the task is gone, dropping the entry tells whoever waits.
        drop(batch.join.try_send(entry));
        if is_full {
            open.remove(&whose);
        }
    }

    /// Gives up everything under way.
    pub(super) async fn stop(&self) {
        let mut sending = std::mem::take(&mut *self.sending.lock().unwrap_or_else(PoisonError::into_inner));
        sending.shutdown().await;
    }
}

/// Waits for calls to join, makes the request, and tells each call its outcome. Goes on for as long as one of them waits.
async fn send(shared: Arc<Shared>, open: OpenBatches, whose: BatchKey, first: Id, mut joined: mpsc::Receiver<Entry>) {
    let mut entries = Vec::new();
    let gathered = async {
        while let Some(entry) = joined.recv().await {
            entries.push(entry);
        }
    };
    drop(tokio::time::timeout(WINDOW, gathered).await);
    close(&open, &whose, &first);
    while let Ok(entry) = joined.try_recv() {
        entries.push(entry);
    }
    // Calls that were given up by now are left out.
    entries.retain(|entry| !entry.tell.is_closed());
    let (mut waiting, mut asked) = (Vec::new(), Vec::new());
    for Entry { id, text, call, tell } in entries {
        waiting.push(tell);
        asked.push((id, text, call));
    }
    let outcomes = tokio::select! {
        outcomes = answered(&shared, &asked) => outcomes,
        () = given_up(&mut waiting) => return,
    };
    // Frees their places.
    drop(asked);
    for (tell, outcome) in waiting.into_iter().zip(outcomes) {
        // A call that was given up meanwhile does not want it.
        drop(tell.send(outcome));
    }
}

/// Lets no further call join.
fn close(open: &OpenBatches, whose: &BatchKey, first: &Id) {
    let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
    if open.get(whose).is_some_and(|batch| batch.first == *first) {
        open.remove(whose);
    }
}

async fn given_up(waiting: &mut [oneshot::Sender<Outcome>]) {
    futures_util::future::join_all(waiting.iter_mut().map(oneshot::Sender::closed)).await;
}

/// The outcome of each call, in order.
async fn answered(shared: &Shared, asked: &[(Id, Vec<u8>, Call)]) -> Vec<Outcome> {
    let [(id, text, call), others @ ..] = asked else { return Vec::new() };
    if others.is_empty() {
        let reply = ask(shared, call, Request::post(Bytes::copy_from_slice(text))).await;
        return vec![match reply {
            Ok(reply) => answer::of_rpc(reply, call, id, StreamEnd::Response).await,
            Err(error) => Err(error),
        }];
    }
    let mut body = vec![b'['];
    for (_, text, _) in asked {
        body.extend_from_slice(if body.len() > 1 { b"," } else { b"" });
        body.extend_from_slice(text);
    }
    body.push(b']');
    let all = |error: &RpcError| asked.iter().map(|_| Err(error.clone())).collect();
    let mut request = Request::post(Bytes::from(body));
    // A stream of events cannot answer several calls: a server that prefers one would run the calls for nothing.
    request.headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    let reply = match ask(shared, call, request).await {
        Ok(reply) => reply,
        Err(error) => return all(&error),
    };
    match read(reply, &shared.used.name).await {
        Ok(Answer::Each(mut outcomes)) => {
            let of = |(id, ..): &(Id, Vec<u8>, Call)| match outcomes.remove(id) {
                Some(Some(outcome)) => outcome,
                Some(None) => Err(RpcError::dependency("its answer to the batch has this call twice")),
                None => Err(RpcError::dependency("its answer to the batch lacks this call")),
            };
            asked.iter().map(of).collect()
        }
        Ok(Answer::All(error)) | Err(error) => all(&error),
    }
}

/// How a server answers several calls at once.
enum Answer {
    /// By id; `None` if an id has more than one answer.
    Each(HashMap<Id, Option<Outcome>>),
    /// One error for all of them: none was looked at.
    All(RpcError),
}

async fn read(reply: Reply, backend: &str) -> Result<Answer, RpcError> {
    let (status, media) = (reply.status(), reply.media_type());
    let unusable = |why, cause: &dyn Display| form::unusable(why, format!("status {}: {cause}", status.as_u16()));
    if !answer::is_json(&media) {
        return Err(unusable(form::NO_MEDIA, &format!("its content type is `{}`", media.escape_debug())));
    }
    let text = reply.text().await.map_err(answer::no_body)?;
    if !text.trim_start().starts_with('[') {
        return match Responses::parse(text.as_bytes(), &Limits::default()) {
            // The answer to something that could not be parsed has no id (JSON-RPC 2.0 §6).
            Ok(Responses::Single(response)) if response.id.is_null() => match response.outcome {
                Err(error) => Ok(Answer::All(error)),
                Ok(_) => Err(unusable(form::NO_ID, &form::NO_ID)),
            },
            Ok(_) => Err(unusable(form::OTHER_ID, &"one answer to a batch")),
            Err(error) => Err(unusable(form::fault(text.as_bytes(), &error), &error)),
        };
    }
    let parts: Vec<&RawValue> = serde_json::from_str(&text).map_err(|error| {
        let why = Responses::parse(text.as_bytes(), &Limits::default()).err();
        unusable(why.map_or(form::NO_JSON, |error| form::fault(text.as_bytes(), &error)), &error)
    })?;
    let (mut outcomes, mut useless) = (HashMap::new(), 0_usize);
    for part in parts {
        // Each on its own: a fault in one does not affect the others.
        let (id, outcome) = match Responses::parse(part.get().as_bytes(), &Limits::default()) {
            Ok(Responses::Single(Response { id, outcome, .. })) => match (form::number_in(&id), outcome) {
                (Some(id), _) => (Id::from(id), Err(unusable(form::TEXT_ID, &form::TEXT_ID))),
                (None, Ok(_)) if !status.is_success() => (id, Err(unusable(form::BAD_STATUS, &form::BAD_STATUS))),
                (None, outcome) => (id, outcome),
            },
            Ok(Responses::Batch(_)) => {
                useless += 1;
                continue;
            }
            Err(error) => match form::malformed(part.get().as_bytes(), &error) {
                Some(Malformed { id: Some(id), why, .. }) => (Id::from(id), Err(unusable(why, &error))),
                _ => {
                    useless += 1;
                    continue;
                }
            },
        };
        outcomes.entry(id).and_modify(|known| *known = None).or_insert(Some(outcome));
    }
    if useless > 0 {
        tracing::warn!(target: "sealwire::backend", backend, useless, "parts of the answer to a batch are not JSON-RPC 2.0 responses");
    }
    Ok(Answer::Each(outcomes))
}
