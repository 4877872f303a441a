//! What a program is told of the requests that it makes through others: for a page, or for counts.
//! Never told parameters, results or tokens.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use super::answer::Answer;
use super::error::ClientError;
use crate::rpc::{Body, Limits, Responses};

/// Is told of requests, when it was given to [`RequestBuilder::observer`](super::RequestBuilder::observer). It must not block.
pub trait Observer: fmt::Debug + Send + Sync {
    /// These methods of a service are about to be called or notified, in one message: more than one, or none, only in a batch or a
    /// message that was made elsewhere. `is_stream` is one whose result may come in parts.
    fn begun(&self, service: &str, methods: &[Cow<'_, str>], is_stream: bool) -> Box<dyn Observed>;
}

/// Is told what becomes of one of them. Dropped before [`Observed::ended`], it was given up by its caller.
pub trait Observed: Send {
    /// A part of a stream was taken. The replica that sent it.
    fn part(&mut self, replica: Option<&str>);
    /// It has ended; by which replica, if frames have said so.
    fn ended(&mut self, ended: &Ended<'_>, replica: Option<&str>);
}

/// What a request has come to.
#[derive(Debug)]
#[non_exhaustive]
pub enum Ended<'a> {
    /// Nobody answers it, and the broker has it.
    Sent,
    /// The service has signed an answer: of each response in it the code of its error, `None` for a result.
    Answered(&'a [Option<i32>]),
    /// The service has signed an answer, which is none of JSON-RPC.
    Unreadable,
    /// There is no answer.
    Failed(&'a ClientError),
}

/// What is to be told of one message; nothing if nobody wants to hear it.
pub(super) struct Observation(Option<Box<dyn Observed>>);

impl Observation {
    /// Of a call of this method.
    pub(super) fn of_method(observer: Option<&Arc<dyn Observer>>, service: &str, method: &str) -> Self {
        Self(observer.map(|observer| observer.begun(service, &[Cow::Borrowed(method)], true)))
    }

    /// Of a message, whatever it has.
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

    /// An answer in one message, or none.
    pub(super) fn answered(mut self, outcome: &Result<Answer, ClientError>) {
        let Some(mut observed) = self.0.take() else { return };
        let code = |response: &crate::rpc::Response| response.outcome.as_ref().err().map(crate::rpc::RpcError::code);
        match outcome {
            Ok(Answer { responses: Ok(Responses::Single(response)), .. }) => {
                observed.ended(&Ended::Answered(&[code(response)]), None);
            }
            Ok(Answer { responses: Ok(Responses::Batch(responses)), .. }) => {
                let codes: Vec<_> = responses.iter().map(code).collect();
                observed.ended(&Ended::Answered(&codes), None);
            }
            Ok(Answer { responses: Err(_), .. }) => observed.ended(&Ended::Unreadable, None),
            Err(error) => observed.ended(&Ended::Failed(error), None),
        }
    }

    /// The end of a stream.
    pub(super) fn streamed<T>(&mut self, outcome: &Result<T, ClientError>, replica: impl FnOnce() -> Option<String>) {
        let Some(mut observed) = self.0.take() else { return };
        let replica = replica();
        let ended = match outcome {
            Ok(_) => Ended::Answered(&[None]),
            Err(ClientError::Remote(error)) => {
                return observed.ended(&Ended::Answered(&[Some(error.code())]), replica.as_deref());
            }
            Err(error) => Ended::Failed(error),
        };
        observed.ended(&ended, replica.as_deref());
    }

    /// A message that nobody answers.
    pub(super) fn sent(mut self, outcome: &Result<(), ClientError>) {
        if let Some(mut observed) = self.0.take() {
            observed.ended(&outcome.as_ref().map_or_else(Ended::Failed, |()| Ended::Sent), None);
        }
    }
}
