//! A2A streams: each event is a JSON-RPC response with the id of the request.
//! Never sends anything after the end of a task, or in its place.

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
use sealwire::client::{CallStream, ClientError};
use sealwire::rpc::Id;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::fault::translated;
use super::run::HOLDS;
use super::task::Task;
use super::{SILENCE, text_of};
use crate::http::answered;
use crate::http::callers::Callers;
use crate::http::config::Expose;
use crate::http::connections::{Body, Within};
use crate::http::events::data;
use crate::http::principal::{Place, Principal};
use crate::http::refusal::Refusal;

/// A complete answer.
pub(super) fn whole(id: &Id, result: Box<RawValue>) -> Response<Body> {
    answered(StatusCode::OK, "application/json", text_of(id, result))
}

/// An answer that is a stream of events.
pub(super) fn streamed(events: impl Stream<Item = Bytes> + Send + 'static, within: Duration) -> Response<Body> {
    let body = StreamBody::new(events.map(|event| Ok(Frame::data(event))));
    let mut answer = Response::new(body.boxed_unsync());
    answer.extensions_mut().insert(Within(within));
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
    /// When to check whether the caller may still receive it.
    holds: Interval,
    callers: Arc<Callers>,
    principal: Principal,
    _place: Place,
}

impl Watch {
    fn new(id: Id, principal: Principal, callers: Arc<Callers>, place: Place) -> Self {
        let every = |time| {
            let mut every = interval_at(Instant::now() + time, time);
            every.set_missed_tick_behavior(MissedTickBehavior::Delay);
            every
        };
        Self { id, beat: every(SILENCE), holds: every(HOLDS), callers, principal, _place: place }
    }

    /// A comment, or as `Err` the last event.
    async fn interrupted(&mut self) -> Result<Bytes, Bytes> {
        loop {
            tokio::select! {
                _ = self.holds.tick() => {
                    if !self.callers.holds(&self.principal) {
                        return Err(self.error(Refusal::ended().of_a2a()));
                    }
                }
                _ = self.beat.tick() => return Ok(COMMENT),
            }
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
pub(super) struct Follow {
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

impl Follow {
    /// Follows a task from its current state.
    pub(super) fn of_task(task: Arc<Task>, id: Id, principal: Principal, callers: Arc<Callers>, place: Place) -> Self {
        let (first, at) = task.now();
        let watch = Watch::new(id, principal, callers, place);
        Self { task, at, first: Some(first), is_begun: true, is_over: false, _client: None, watch }
    }

    /// Follows a call from its beginning.
    pub(super) fn of_call(
        task: Arc<Task>,
        id: Id,
        principal: Principal,
        callers: Arc<Callers>,
        client: oneshot::Sender<()>,
        place: Place,
    ) -> Self {
        let watch = Watch::new(id, principal, callers, place);
        Self { task, at: 0, first: None, is_begun: false, is_over: false, _client: Some(client), watch }
    }

    pub(super) fn events(self) -> impl Stream<Item = Bytes> + Send {
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

/// The events of a service that is an agent itself.
pub(super) struct Native {
    call: Option<CallStream<Box<RawValue>>>,
    first: Option<Box<RawValue>>,
    /// Whether there were events, so that the result would only repeat them.
    has_events: bool,
    expose: Expose,
    /// Completes when the call has been without a broker for too long.
    away: Pin<Box<dyn Future<Output = bool> + Send>>,
    watch: Watch,
}

impl Native {
    pub(super) fn new(
        id: Id,
        principal: Principal,
        expose: &Expose,
        callers: Arc<Callers>,
        away: Pin<Box<dyn Future<Output = bool> + Send>>,
        place: Place,
    ) -> Self {
        let watch = Watch::new(id, principal, callers, place);
        Self { call: None, first: None, has_events: false, expose: expose.clone(), away, watch }
    }

    pub(super) fn begin(&mut self, first: Box<RawValue>) {
        self.first = Some(first);
        self.has_events = true;
    }

    pub(super) fn events(mut self, call: Option<CallStream<Box<RawValue>>>) -> impl Stream<Item = Bytes> + Send {
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
            // Unknown even if `away` says that it was not sent: the task that sends may just have done so.
            _ = &mut self.away => {
                self.call = None;
                Some(self.watch.error(Refusal::lost().of_a2a()))
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
        self.watch.error(translated(&self.expose, error))
    }
}
