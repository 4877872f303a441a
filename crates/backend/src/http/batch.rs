//! Calls of one caller that come at the same time, in one `POST` of JSON-RPC 2.0: `batch = true`.
//! Never puts two callers into one request, and never gives a call what was answered to another.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{ACCEPT, HeaderValue};
use sealwire::RpcError;
use sealwire::rpc::{Id, Limits, Outcome, Responses};
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::answer::{self, Ends};
use super::{Shared, ask};
use crate::backend::Call;
use crate::web::{MAX_BODY, Reply, Request};

/// The requests that others can still join.
#[derive(Debug, Default)]
pub(super) struct Batches {
    open: Mutex<HashMap<Whose, Open>>,
    sending: Mutex<JoinSet<()>>,
}

/// What the calls of a request have in common: all that its head says of them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Whose {
    agent: String,
    subject: String,
    traceparent: Option<String>,
}

/// One request that waits for others to join.
#[derive(Debug)]
struct Open {
    /// Of its first call: no other has it.
    first: Id,
    calls: usize,
    bytes: usize,
    join: mpsc::Sender<Entry>,
}

/// A call in it, with its place among the calls of the backend: until the server has answered, it works on it.
#[derive(Debug)]
struct Entry {
    id: Id,
    text: Vec<u8>,
    call: Call,
    tell: oneshot::Sender<Outcome>,
}

/// How long the first call waits for others: those of one message come within it.
const WINDOW: Duration = Duration::from_millis(5);
/// The most calls of a request ...
const MOST: usize = 32;
/// ... and bytes, unless a single one has more.
const BYTES: usize = MAX_BODY;

impl Batches {
    /// Makes a call together with others of its caller.
    pub(super) async fn make(&self, shared: &Arc<Shared>, id: Id, text: Vec<u8>, call: Call) -> Outcome {
        let over = || RpcError::dependency("the backend is being ended");
        let (tell, told) = oneshot::channel();
        self.join(shared, Entry { id, text, call, tell });
        told.await.unwrap_or_else(|_| Err(over()))
    }

    fn join(&self, shared: &Arc<Shared>, entry: Entry) {
        let caller = entry.call.ctx.caller();
        let whose = Whose {
            agent: caller.agent.to_string(),
            subject: caller.subject.clone(),
            traceparent: entry.call.ctx.traceparent().map(str::to_owned),
        };
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.get(&whose).is_some_and(|batch| batch.bytes + entry.text.len() > BYTES) {
            // It goes as it is, and another one begins.
            open.remove(&whose);
        }
        let batch = open.entry(whose.clone()).or_insert_with(|| {
            let (join, joined) = mpsc::channel(MOST);
            let first = entry.id.clone();
            let mut sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
            while sending.try_join_next().is_some() {}
            sending.spawn(send(Arc::clone(shared), whose.clone(), first.clone(), joined));
            Open { first, calls: 0, bytes: 0, join }
        });
        batch.calls += 1;
        batch.bytes += entry.text.len() + 1;
        let is_full = batch.calls >= MOST;
        // There is room for as many as are counted; where nobody takes it, whoever waits is told.
        drop(batch.join.try_send(entry));
        if is_full {
            open.remove(&whose);
        }
    }

    /// No other can join it.
    fn close(&self, whose: &Whose, first: &Id) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.get(whose).is_some_and(|batch| batch.first == *first) {
            open.remove(whose);
        }
    }

    /// Gives up what is under way.
    pub(super) async fn stop(&self) {
        let mut sending = std::mem::take(&mut *self.sending.lock().unwrap_or_else(PoisonError::into_inner));
        sending.shutdown().await;
    }
}

/// Waits for who joins, asks, and tells each what was answered to it. It goes on while one of them waits.
async fn send(shared: Arc<Shared>, whose: Whose, first: Id, mut joined: mpsc::Receiver<Entry>) {
    let mut entries = Vec::new();
    let gathered = async {
        while let Some(entry) = joined.recv().await {
            entries.push(entry);
        }
    };
    drop(tokio::time::timeout(WINDOW, gathered).await);
    shared.batches.close(&whose, &first);
    while let Ok(entry) = joined.try_recv() {
        entries.push(entry);
    }
    // Whoever has given up by now was never there.
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
    // Their places are free.
    drop(asked);
    for (tell, outcome) in waiting.into_iter().zip(outcomes) {
        // Who has given up meanwhile does not want it.
        drop(tell.send(outcome));
    }
}

async fn given_up(waiting: &mut [oneshot::Sender<Outcome>]) {
    futures_util::future::join_all(waiting.iter_mut().map(oneshot::Sender::closed)).await;
}

/// What becomes of each call, in their order.
async fn answered(shared: &Shared, asked: &[(Id, Vec<u8>, Call)]) -> Vec<Outcome> {
    let [(id, text, call), others @ ..] = asked else { return Vec::new() };
    if others.is_empty() {
        let reply = ask(shared, call, Request::post(Bytes::copy_from_slice(text))).await;
        return vec![match reply {
            Ok(reply) => answer::of_rpc(reply, call, id, Ends::Response).await,
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
    // A stream of events has no place for the answers to several: what prefers one would make the calls for nothing.
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

/// What a server says to several calls at once.
enum Answer {
    /// By their ids; `None` where there is more than one answer.
    Each(HashMap<Id, Option<Outcome>>),
    /// None of them was looked at.
    All(RpcError),
}

async fn read(reply: Reply, backend: &str) -> Result<Answer, RpcError> {
    let (status, media) = (reply.status(), reply.media_type());
    let unusable = |why: String| RpcError::dependency(format!("status {}: {why}", status.as_u16()));
    if !answer::is_json(&media) {
        return Err(unusable(format!("no JSON, but `{}`", media.escape_debug())));
    }
    let text = reply.text().await.map_err(RpcError::dependency)?;
    if !text.trim_start().starts_with('[') {
        return match Responses::parse(text.as_bytes(), &Limits::default()) {
            // What could not be read has no id (JSON-RPC 2.0 §6).
            Ok(Responses::Single(response)) if response.id.is_null() => match response.outcome {
                Err(error) => Ok(Answer::All(answer::of_server(error))),
                Ok(_) => Err(unusable("it answers what was not asked".to_owned())),
            },
            Ok(_) => Err(unusable("one answer to a batch".to_owned())),
            Err(error) => Err(unusable(format!("no response of JSON-RPC 2.0: {error}"))),
        };
    }
    let parts: Vec<&RawValue> =
        serde_json::from_str(&text).map_err(|_| unusable("its answer to the batch is no JSON".to_owned()))?;
    let (mut outcomes, mut useless) = (HashMap::new(), 0_usize);
    for part in parts {
        // Each by itself: what is wrong with one is no other's.
        let Ok(Responses::Single(response)) = Responses::parse(part.get().as_bytes(), &Limits::default()) else {
            useless += 1;
            continue;
        };
        let outcome = match response.outcome {
            Ok(_) if !status.is_success() => Err(unusable("and a result".to_owned())),
            outcome => outcome.map_err(answer::of_server),
        };
        outcomes.entry(response.id).and_modify(|known| *known = None).or_insert(Some(outcome));
    }
    if useless > 0 {
        tracing::warn!(target: "sealwire::backend", backend, useless, "a batch is answered with what is no response of JSON-RPC 2.0");
    }
    Ok(Answer::Each(outcomes))
}
