//! Tells a program about the requests that are made through its client: for a status page, or for counts.
//! Never tells parameters, results or tokens.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use super::answer::{Answer, is_refused_by_now};
use super::error::{ClientError, leaves_open};
use crate::rpc::{Body, Limits, Response, Responses, RpcError};

/// An observer of requests, given to [`Relay::observer`](super::Relay::observer). It must not block.
pub trait Observer: fmt::Debug + Send + Sync {
    /// These methods of a service are about to be called or notified, in one message. There is exactly one, except in a batch or a message
    /// that was made elsewhere. `is_stream`: the result may come in parts.
    fn begun(&self, service: &str, methods: &[Cow<'_, str>], is_stream: bool) -> Box<dyn Observed>;
}

/// Is told what becomes of one message. If it is dropped before [`Observed::ended`], the caller has given up.
pub trait Observed: Send {
    /// A part of a stream was taken, which `replica` sent.
    fn part(&mut self, replica: Option<&str>);
    /// The request has ended. `replica` answered it, if frames have said so.
    fn ended(&mut self, ended: &CallEnd<'_>, replica: Option<&str>);
}

/// The outcome of a request.
#[derive(Debug)]
#[non_exhaustive]
pub enum CallEnd<'a> {
    /// It expects no answer, and the broker has it.
    Sent,
    /// The service signed an answer: what each response in it says.
    Answered(&'a [ReportedEvent]),
    /// The service signed an answer that is not JSON-RPC.
    Unreadable,
    /// There is no answer.
    Failed(&'a ClientError),
}

/// What a response says about its call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportedEvent {
    /// It has a result.
    Result,
    /// It failed, or was refused, with this code: what became of it is known.
    Error(i32),
    /// It failed with this code of the application, which only looks like one of SPEC.md §14.
    Application(i32),
    /// The same, but it may have run: see [`ClientError::is_outcome_unknown`].
    Unknown(i32),
}

impl ReportedEvent {
    fn of(error: &RpcError) -> Self {
        match error.profile_code() {
            Some(code) if leaves_open(error) => Self::Unknown(code),
            None if error.is_marked() => Self::Application(error.code()),
            _ => Self::Error(error.code()),
        }
    }

    /// `has_earlier`: an earlier attempt may have run.
    fn by(response: &Response, has_earlier: bool) -> Self {
        match &response.outcome {
            Ok(_) => Self::Result,
            Err(error) if has_earlier && is_refused_by_now(error) => Self::Unknown(error.code()),
            Err(error) => Self::of(error),
        }
    }
}

/// Reports on one message, if there is an observer.
pub(super) struct Observation(Option<Box<dyn Observed>>);

impl Observation {
    /// About a call of this method.
    pub(super) fn of_method(observer: Option<&Arc<dyn Observer>>, service: &str, method: &str) -> Self {
        Self(observer.map(|observer| observer.begun(service, &[Cow::Borrowed(method)], true)))
    }

    /// About a message, whatever is in it.
    pub(super) fn of_message(observer: Option<&Arc<dyn Observer>>, service: &str, payload: &[u8]) -> Self {
        Self(observer.map(|observer| {
            let methods: Vec<Cow<'_, str>> = match Body::parse(payload, &Limits::default()) {
                Ok(Body::Single(entry)) => entry.into_iter().map(|request| Cow::Owned(request.method)).collect(),
                Ok(Body::Batch(entries)) => {
                    entries.into_iter().flatten().map(|request| Cow::Owned(request.method)).collect()
                }
                Err(_) => Vec::new(),
            };
            observer.begun(service, &methods, false)
        }))
    }

    pub(super) fn part(&mut self, replica: impl FnOnce() -> Option<String>) {
        if let Some(observed) = &mut self.0 {
            observed.part(replica().as_deref());
        }
    }

    /// It ended with an answer in one message, or without one.
    pub(super) fn answered(mut self, outcome: &Result<Answer, ClientError>) {
        let Some(mut observed) = self.0.take() else { return };
        match outcome {
            Ok(Answer { responses: Ok(Responses::Single(response)), .. }) => {
                observed.ended(&CallEnd::Answered(&[ReportedEvent::by(response, false)]), None);
            }
            Ok(Answer { responses: Ok(Responses::Batch(responses)), earlier, .. }) => {
                let said: Vec<_> =
                    responses.iter().map(|response| ReportedEvent::by(response, earlier.is_some())).collect();
                observed.ended(&CallEnd::Answered(&said), None);
            }
            Ok(Answer { responses: Err(_), .. }) => observed.ended(&CallEnd::Unreadable, None),
            Err(error) => observed.ended(&CallEnd::Failed(error), None),
        }
    }

    /// A stream has ended.
    pub(super) fn streamed<T>(&mut self, outcome: &Result<T, ClientError>, replica: impl FnOnce() -> Option<String>) {
        let Some(mut observed) = self.0.take() else { return };
        let replica = replica();
        let ended = match outcome {
            Ok(_) => CallEnd::Answered(&[ReportedEvent::Result]),
            Err(ClientError::Remote(error)) => {
                return observed.ended(&CallEnd::Answered(&[ReportedEvent::of(error)]), replica.as_deref());
            }
            Err(error) => CallEnd::Failed(error),
        };
        observed.ended(&ended, replica.as_deref());
    }

    /// A message was sent that expects no answer, or could not be sent.
    pub(super) fn sent(mut self, outcome: &Result<(), ClientError>) {
        if let Some(mut observed) = self.0.take() {
            observed.ended(&outcome.as_ref().map_or_else(CallEnd::Failed, |()| CallEnd::Sent), None);
        }
    }
}
