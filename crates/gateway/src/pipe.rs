//! JSON-RPC 2.0 on standard input and output, one message on each line, for programs that start a child and talk to it.
//! Never sends a message that it has not understood, and never leaves a call without its one answer.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt as _;
use sealwire::internal::client::{MessageId, TraceContext};
use sealwire::internal::rpc;
use sealwire::internal::rpc::{Body, Id, Limits, Request, Response};
use sealwire::internal::trace::Trace;
use sealwire::{ClientError, RequestBuilder};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::{JoinSet, unconstrained};

use crate::agent::Agent;
use crate::bus::{Away, Bus, BusLink};
use crate::http::refusal::Refusal;
use crate::http::rpc::{SignedAnswer, logged_id, to_call};
use crate::mcp::{Line, Outbox};
use crate::spans::RequestSpan;

/// What the client may call.
#[derive(Debug, Clone)]
pub struct Options {
    /// The service.
    pub service: String,
    /// How long each message may take.
    pub deadline: Duration,
}

/// How it went until the input ended, or until it was told to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Served {
    /// Calls and batches that had no answer when it was told to stop, and were cancelled.
    pub cancelled: usize,
    /// Notifications that were not sent, or perhaps not. Nothing in the output says so.
    pub unsent: u64,
}

/// Why it ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Ended {
    /// The input cannot be read.
    #[error("the input cannot be read: {0}")]
    Input(#[from] io::Error),
    /// The client reads nothing. Its calls were cancelled.
    #[error("the client has read no answer for 60 s")]
    Stalled,
    /// The client has closed the output. Its calls were cancelled.
    #[error("the client has closed the output")]
    Closed,
}

/// The most messages under way. No further line is read meanwhile.
const RUNNING: usize = 32;
/// How long calls may take to end, and their answers to be read, once it is time to stop.
pub const LAST: Duration = Duration::from_secs(2);
/// Some programs write it before the first line (U+FEFF in UTF-8).
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// One client, and the service that it calls.
struct Pipe<S> {
    bus: Bus,
    agent: Agent,
    options: Options,
    out: Outbox,
    /// Completes when the process is told to stop.
    stop: S,
    unsent: AtomicU64,
    /// Calls and batches that had no answer so far, or none when it was time to stop.
    open: AtomicUsize,
}

/// Serves one client until its input ends, and answers what came before that. `input` has `None` in place of a line that is too long.
///
/// `stop` makes futures that complete when it is time to end: nothing more is read then, and calls under way are cancelled at the service
/// and answered.
///
/// # Errors
/// [`Ended`].
///
/// Cancel safety: dropping the future cancels the calls under way, which are then not answered.
pub async fn serve<S, F>(
    bus: Bus,
    options: Options,
    mut input: mpsc::Receiver<io::Result<Option<Vec<u8>>>>,
    stop: S,
    write: impl FnOnce(mpsc::Receiver<Line>),
) -> Result<Served, Ended>
where
    S: Fn() -> F + Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let (out, lines) = Outbox::new();
    write(lines);
    let (mut stopped, stopped_too, at_end) = (pin!(stop()), stop(), stop());
    let agent = Agent::of(&bus);
    let pipe = Arc::new(Pipe { bus, agent, options, out, stop, unsent: AtomicU64::new(0), open: AtomicUsize::new(0) });
    let (places, mut tasks) = (Arc::new(Semaphore::new(RUNNING)), JoinSet::new());
    let mut is_first = true;
    let mut ended = loop {
        let place = tokio::select! {
            biased;
            () = &mut stopped => break Ok(()),
            () = pipe.out.stalled() => break Err(pipe.unread()),
            Ok(place) = Arc::clone(&places).acquire_owned() => place,
        };
        let line = tokio::select! {
            biased;
            () = &mut stopped => break Ok(()),
            () = pipe.out.stalled() => break Err(pipe.unread()),
            Some(done) = tasks.join_next() => {
                panicked(done);
                continue;
            }
            line = input.recv() => line,
        };
        match line {
            None => break Ok(()),
            Some(Err(error)) => break Err(Ended::Input(error)),
            Some(Ok(None)) => {
                let long = Refusal::too_long("a line is longer than 1 MiB, and was not sent");
                pipe.out.send_text(long.text()).await;
            }
            Some(Ok(Some(line))) => {
                let line = if is_first { line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&line) } else { &line };
                pipe.take(line, place, &mut tasks).await;
            }
        }
        is_first = false;
    };
    let mut last = pin!(async {
        stopped_too.await;
        tokio::time::sleep(LAST).await;
    });
    // What has come is answered, unless nobody reads it.
    while !matches!(ended, Err(Ended::Stalled | Ended::Closed)) {
        tokio::select! {
            biased;
            () = pipe.out.stalled() => ended = Err(pipe.unread()),
            () = &mut last => break,
            done = tasks.join_next() => match done {
                Some(done) => panicked(done),
                None => break,
            },
        }
    }
    tasks.shutdown().await;
    pipe.bus.close().await;
    let cancelled = if has_come(at_end) { pipe.open.load(Ordering::Relaxed) } else { 0 };
    ended.map(|()| Served { cancelled, unsent: pipe.unsent.load(Ordering::Relaxed) })
}

/// Whether it is time to stop, now.
fn has_come(stop: impl Future<Output = ()>) -> bool {
    unconstrained(stop).now_or_never().is_some()
}

fn panicked(done: Result<(), tokio::task::JoinError>) {
    if done.is_err_and(|error| error.is_panic()) {
        tracing::error!(target: "sealwire::gateway", "a message panicked");
    }
}

impl<S, F> Pipe<S>
where
    S: Fn() -> F + Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    fn unread(&self) -> Ended {
        if self.out.is_closed() { Ended::Closed } else { Ended::Stalled }
    }

    /// Handles one line. What has no answer is sent before the next line is read, so that notifications arrive in order.
    async fn take(self: &Arc<Self>, line: &[u8], place: OwnedSemaphorePermit, tasks: &mut JoinSet<()>) {
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        let ids = match Body::parse(line, &Limits::default()) {
            Err(error) => return self.out.send_text(Refusal::of_text(&error).text()).await,
            Ok(Body::Single(Err(invalid))) => return self.out.send_text(invalid.to_bytes()).await,
            Ok(Body::Single(Ok(Request { id: Some(id), .. }))) => AwaitedIds::Call(id),
            Ok(Body::Single(Ok(_))) => return self.notify(line.to_vec().into()).await,
            Ok(Body::Batch(entries)) => {
                if entries.iter().all(|entry| entry.as_ref().is_ok_and(Request::is_notification)) {
                    for notification in entries.iter().flatten() {
                        self.notify(notification.to_bytes().into()).await;
                    }
                    return;
                }
                AwaitedIds::Batch(entries.into_iter().flatten().filter_map(|request| request.id).collect())
            }
        };
        let (pipe, text) = (Arc::clone(self), Bytes::copy_from_slice(line));
        self.open.fetch_add(1, Ordering::Relaxed);
        tasks.spawn(async move {
            let span = pipe.span();
            let answer = span.around(Box::pin(pipe.answer(&ids, text))).await;
            span.ended(None);
            // Told here, before the client can know of the answer and end this process. Whether a call was cancelled, only its own task
            // can say: it may hear of the signal, and have its answer, before anybody else has heard of it.
            if !has_come((pipe.stop)()) {
                pipe.open.fetch_sub(1, Ordering::Relaxed);
            }
            pipe.out.send_text(answer).await;
            drop(place);
        });
    }

    /// The span of a message, if anybody wants one.
    fn span(&self) -> RequestSpan {
        let (around, context) = (Trace::default(), TraceContext::default());
        let mut span = RequestSpan::begin(self.bus.tracing(), &around, &context, "", Duration::ZERO);
        span.span().name("message");
        span
    }

    async fn request(&self, id: &MessageId) -> Result<(RequestBuilder, BusLink), Away> {
        let (request, link) = self.bus.request(&self.agent, &self.options.service).await?;
        Ok((request.deadline(self.options.deadline).relay().capture_id(id).request(), link))
    }

    async fn notify(&self, text: Bytes) {
        let id = MessageId::default();
        let sent = async {
            let (request, link) = self.request(&id).await.map_err(|away| away.to_string())?;
            tokio::select! {
                sent = request.publish_raw(text) => sent.map_err(|error| error.to_string()),
                _ = link.lost(&id) => Err("the broker is away".to_owned()),
                () = (self.stop)() => Err("stopped by a signal".to_owned()),
            }
        };
        if let Err(error) = sent.await {
            self.unsent.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(target: "sealwire::gateway", service = self.options.service, error, "a notification was not sent");
        }
    }

    /// The answer to a call or a batch, as the service has signed it, or an error that says whether anything was sent.
    async fn answer(&self, asked: &AwaitedIds, text: Bytes) -> Vec<u8> {
        let (started, id) = (Instant::now(), MessageId::default());
        let answer = self.exchanged(asked, text, &id).await;
        tracing::info!(
            target: "sealwire::gateway",
            service = self.options.service,
            id = asked.call().map(logged_id),
            code = answer.as_ref().err().map(|refusal| refusal.code),
            message_id = id.get(),
            duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
            "request"
        );
        match answer {
            Ok(SignedAnswer { text, refused: None }) => text,
            // An error about the whole message has no id, and the client could not tell which of its messages it is about.
            Ok(SignedAnswer { refused: Some(error), .. }) => {
                asked.under_each(|id| Response::new(id.clone(), Err(error.clone())).to_bytes())
            }
            Err(refusal) => {
                let mut refusal = Some(refusal);
                asked.under_each(|id| {
                    let told = refusal.take().map(|refusal| refusal.of(Some(id)));
                    let text = told.as_ref().map(Refusal::text).unwrap_or_default();
                    refusal = told;
                    text
                })
            }
        }
    }

    async fn exchanged(&self, asked: &AwaitedIds, text: Bytes, id: &MessageId) -> Result<SignedAnswer, Refusal> {
        let (request, link) = self.request(id).await.map_err(|away| {
            tracing::warn!(target: "sealwire::gateway", error = %away, "no connection");
            Refusal::away()
        })?;
        let exchange = request.cancel_on((self.stop)()).relay().exchange(text);
        tokio::select! {
            answer = exchange => match answer {
                Ok(answer) => to_call(answer, asked.call()),
                Err(error) => Err(self.failed(&error)),
            },
            sent = link.lost(id) => Err(if sent { Refusal::lost() } else { Refusal::away() }),
        }
    }

    fn failed(&self, error: &ClientError) -> Refusal {
        tracing::warn!(target: "sealwire::gateway", service = self.options.service, %error, "no answer");
        Refusal::of_call(error)
    }
}

/// What waits for an answer.
enum AwaitedIds {
    Call(Id),
    /// Of the calls in it, the ids.
    Batch(Vec<Id>),
}

impl AwaitedIds {
    fn call(&self) -> Option<&Id> {
        match self {
            Self::Call(id) => Some(id),
            Self::Batch(_) => None,
        }
    }

    /// The same response to each call.
    fn under_each(&self, mut response: impl FnMut(&Id) -> Vec<u8>) -> Vec<u8> {
        match self {
            Self::Call(id) => response(id),
            Self::Batch(ids) if ids.is_empty() => response(&rpc::Id::null()),
            Self::Batch(ids) => {
                let responses: Vec<Vec<u8>> = ids.iter().map(response).collect();
                [b"[", responses.join(&b","[..]).as_slice(), b"]"].concat()
            }
        }
    }
}
