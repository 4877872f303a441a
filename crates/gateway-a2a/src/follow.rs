//! A2A streams: each event is a JSON-RPC response with the id of the request.
//! Never sends anything after the end of a task, or in its place.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use sealwire::internal::rpc::{self, Id};
use sealwire::{CallStream, ClientError};
use sealwire_gateway::dialect::{Admitted, AnswerDeadline, Body, Hold, Pauses, Refusal, data, response};
use serde_json::value::RawValue;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep};

use crate::fault::{ToA2a as _, translated};
use crate::service_task::{AskError, Condition, ServiceTask};
use crate::task::Task;

/// How long an answer may take before it becomes a stream with comments.
pub(crate) const SILENCE: Duration = Duration::from_secs(15);

/// A complete answer.
pub(crate) fn whole(id: &Id, result: Box<RawValue>) -> Response<Body> {
    response(StatusCode::OK, "application/json", text_of(id, result))
}

/// A response with this result, as JSON.
fn text_of(id: &Id, result: Box<RawValue>) -> Vec<u8> {
    rpc::Response::new(id.clone(), Ok(result)).to_bytes()
}

/// An answer that is a stream of events of a call that takes no longer than this.
pub(crate) fn streamed(events: impl Stream<Item = Bytes> + Send + 'static, within: Duration) -> Response<Body> {
    let mut answer = unbounded(events);
    answer.extensions_mut().insert(AnswerDeadline(within));
    answer
}

/// An answer that is a stream of events, for as long as there are any.
pub(crate) fn unbounded(events: impl Stream<Item = Bytes> + Send + 'static) -> Response<Body> {
    let body = StreamBody::new(events.map(|event| Ok(Frame::data(event))));
    let mut answer = Response::new(body.boxed_unsync());
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    // Otherwise nginx would buffer the events.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    answer
}

const COMMENT: Bytes = Bytes::from_static(b":\n\n");

/// Interrupts a stream that waits, for comments and to check the caller.
struct Watch {
    id: Id,
    beat: Interval,
    /// Whether the caller may still receive it.
    hold: Hold,
    admitted: Arc<Admitted>,
}

impl Watch {
    fn new(id: Id, admitted: impl Into<Arc<Admitted>>, hold: Hold) -> Self {
        let admitted = admitted.into();
        let mut beat = interval_at(Instant::now() + SILENCE, SILENCE);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { id, beat, hold, admitted }
    }

    /// A comment, or as `Err` the last event.
    async fn interrupted(&mut self) -> Result<Bytes, Bytes> {
        tokio::select! {
            loss = self.hold.lost() => Err(self.error(Refusal::of_loss(loss).to_a2a())),
            _ = self.beat.tick() => Ok(COMMENT),
        }
    }

    fn result(&self, result: Box<RawValue>) -> Bytes {
        data(&text_of(&self.id, result))
    }

    fn error(&self, refusal: Refusal) -> Bytes {
        data(&refusal.of(Some(&self.id)).text())
    }
}

/// The events of a task.
pub(crate) struct TaskFollower {
    task: Arc<Task>,
    /// The index of the next event.
    at: usize,
    /// What is sent before it.
    first: Option<Box<RawValue>>,
    /// Whether the call has become a task.
    is_begun: bool,
    is_over: bool,
    /// Dropping it cancels a call that is not a task yet.
    _client: Option<oneshot::Sender<()>>,
    watch: Watch,
}

impl TaskFollower {
    /// Follows a task from its current state.
    pub(crate) fn of_task(task: Arc<Task>, id: Id, admitted: Admitted) -> Self {
        let (first, at) = task.now();
        let hold = admitted.hold(None);
        let watch = Watch::new(id, admitted, hold);
        Self { task, at, first: Some(first), is_begun: true, is_over: false, _client: None, watch }
    }

    /// Follows a call from its beginning.
    pub(crate) fn of_call(task: Arc<Task>, id: Id, admitted: Admitted, client: oneshot::Sender<()>) -> Self {
        let hold = admitted.hold(None);
        let watch = Watch::new(id, admitted, hold);
        Self { task, at: 0, first: None, is_begun: false, is_over: false, _client: Some(client), watch }
    }

    pub(crate) fn events(self) -> impl Stream<Item = Bytes> + Send {
        stream::unfold(self, async |mut follow| {
            let event = follow.next().await?;
            Some((event, follow))
        })
    }

    async fn next(&mut self) -> Option<Bytes> {
        while !self.is_over {
            if let Some(first) = self.first.take() {
                return Some(self.watch.result(first));
            }
            if self.is_begun {
                if let Some((event, ends)) = self.task.event(self.at) {
                    self.at += 1;
                    self.is_over = ends;
                    return Some(self.watch.result(event));
                }
                if self.task.is_over() && self.task.events() <= self.at {
                    return None;
                }
            }
            tokio::select! {
                () = self.task.begun(), if !self.is_begun => {
                    self.is_begun = true;
                    match self.task.take_outcome() {
                        Some(outcome) => {
                            self.is_over = true;
                            return Some(match outcome {
                                Ok(result) => self.watch.result(self.task.message_of(&result)),
                                Err(refusal) => self.watch.error(refusal),
                            });
                        }
                        None => self.first = Some(self.task.as_submitted()),
                    }
                }
                () = self.task.more(self.at), if self.is_begun => {}
                interrupted = self.watch.interrupted() => {
                    self.is_over = interrupted.is_err();
                    return Some(interrupted.unwrap_or_else(|last| last));
                }
            }
        }
        None
    }
}

/// The events of a task at its service. The client is there for as long as it reads them, so a call that waits for people is sent again.
pub(crate) struct ServiceFollower {
    task: Arc<ServiceTask>,
    /// How the task was when the client was last told.
    told: Condition,
    ready: VecDeque<Box<RawValue>>,
    is_over: bool,
    pauses: Pauses,
    asking: Option<Asking>,
    /// The client goes on at another replica.
    stopping: watch::Receiver<bool>,
    watch: Watch,
}

type Asking = Pin<Box<dyn Future<Output = Result<Condition, AskError>> + Send>>;

impl ServiceFollower {
    /// Follows a task that was just asked for.
    pub(crate) fn new(
        task: ServiceTask,
        now: Condition,
        id: Id,
        admitted: Admitted,
        stopping: watch::Receiver<bool>,
    ) -> Self {
        let hold = admitted.hold(Some(task.method()));
        let watch = Watch::new(id, admitted, hold);
        let (ready, is_over) = ([task.as_result(&now)].into(), now.has_ended());
        let pauses = Pauses::default();
        Self { task: Arc::new(task), told: now, ready, is_over, pauses, asking: None, stopping, watch }
    }

    pub(crate) fn events(self) -> impl Stream<Item = Bytes> + Send {
        stream::unfold(self, async |mut follow| {
            let event = follow.next().await?;
            Some((event, follow))
        })
    }

    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(self.watch.result(event));
            }
            if self.is_over {
                return None;
            }
            let asking = self.asking.get_or_insert_with(|| {
                let (task, admitted) = (Arc::clone(&self.task), Arc::clone(&self.watch.admitted));
                let pause = self.pauses.next(self.told.poll);
                Box::pin(async move {
                    sleep(pause).await;
                    task.ask(&admitted).await
                })
            });
            tokio::select! {
                answer = asking => {
                    self.asking = None;
                    match answer {
                        Ok(now) => {
                            self.ready.extend(self.task.changes(&self.told, &now));
                            self.is_over = now.has_ended();
                            self.told = now;
                        }
                        Err(error) if error.is_temporary => {}
                        Err(error) => {
                            self.is_over = true;
                            // Its issuer or the service has noticed first.
                            let has_ended = self.watch.admitted.principal().is_expired();
                            let refusal = if has_ended { Refusal::ended().to_a2a() } else { error.refusal };
                            return Some(self.watch.error(refusal));
                        }
                    }
                }
                _ = self.stopping.wait_for(|stopping| *stopping) => self.is_over = true,
                interrupted = self.watch.interrupted() => {
                    self.is_over = interrupted.is_err();
                    return Some(interrupted.unwrap_or_else(|last| last));
                }
            }
        }
    }
}

/// The events of a service that is an agent itself.
pub(crate) struct NativeStream {
    call: Option<CallStream<Box<RawValue>>>,
    first: Option<Box<RawValue>>,
    /// Whether there were events, so that the result would only repeat them.
    has_events: bool,
    /// Completes when the call has been without a broker for too long.
    lost: Pin<Box<dyn Future<Output = bool> + Send>>,
    watch: Watch,
}

impl NativeStream {
    pub(crate) fn new(
        id: Id,
        (admitted, hold): (Admitted, Hold),
        lost: Pin<Box<dyn Future<Output = bool> + Send>>,
    ) -> Self {
        let watch = Watch::new(id, admitted, hold);
        Self { call: None, first: None, has_events: false, lost, watch }
    }

    pub(crate) fn begin(&mut self, first: Box<RawValue>) {
        self.first = Some(first);
        self.has_events = true;
    }

    pub(crate) fn events(mut self, call: Option<CallStream<Box<RawValue>>>) -> impl Stream<Item = Bytes> + Send {
        self.call = call;
        stream::unfold(self, async |mut native| {
            let event = native.next().await?;
            Some((event, native))
        })
    }

    async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.take() {
            return Some(self.watch.result(first));
        }
        let call = self.call.as_mut()?;
        tokio::select! {
            part = call.next() => match part {
                Some(Ok(part)) => {
                    self.has_events = true;
                    Some(self.watch.result(part))
                }
                Some(Err(error)) => Some(self.failed(&error)),
                None => match self.call.take()?.finish().await {
                    Ok(_) if self.has_events => None,
                    Ok(result) => Some(self.watch.result(result)),
                    Err(error) => Some(self.failed(&error)),
                },
            },
            // Unknown even if `lost` says that it was not sent: the task that sends may just have done so.
            _ = &mut self.lost => {
                self.call = None;
                Some(self.watch.error(Refusal::lost().to_a2a()))
            }
            interrupted = self.watch.interrupted() => {
                if interrupted.is_err() {
                    self.call = None;
                }
                Some(interrupted.unwrap_or_else(|last| last))
            }
        }
    }

    fn failed(&mut self, error: &ClientError) -> Bytes {
        self.call = None;
        self.watch.error(translated(self.watch.admitted.expose(), error))
    }
}
