//! Several calls and notifications in one message, and their answers, matched by id.
//! Never matches an answer with a call by its position.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Client;
use super::answer::{Answer, is_refused_by_now, repeated};
use super::error::{ClientError, InvalidRequest, ProtocolError};
use super::request::{RequestBuilder, decode, request};
use crate::rpc::{Id, MAX_BATCH, Outcome, Request, Responses, RpcError};

/// A batch being put together. Made by [`Client::batch`] and [`RequestBuilder::batch`].
///
/// ```no_run
/// # use sealwire::{Client, ClientError};
/// # async fn example(client: Client) -> Result<(), ClientError> {
/// let mut batch = client.batch("math");
/// let sum = batch.call("math/add", (2, 3));
/// let product = batch.call("math/mul", (2, 3));
/// batch.notify("math/log", ["both"]);
/// let mut answers = batch.send().await?;
/// let sum: f64 = answers.take(sum)?;
/// let product: f64 = answers.take(product)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a batch is sent by `send`"]
pub struct Batch {
    request: RequestBuilder,
    entries: Vec<Request>,
    calls: usize,
    /// The first entry that cannot be sent.
    invalid: Option<InvalidRequest>,
}

/// One call of a batch: the key to its answer in that batch's [`BatchAnswers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BatchCall(usize);

impl Client {
    /// Several calls and notifications in one message.
    pub fn batch(&self, service: &str) -> Batch {
        self.request(service).batch()
    }
}

impl RequestBuilder {
    /// Several calls and notifications in one message, under one signature.
    pub fn batch(self) -> Batch {
        Batch::new(self)
    }
}

impl Batch {
    fn new(request: RequestBuilder) -> Self {
        Self { request, entries: Vec::new(), calls: 0, invalid: None }
    }

    /// Adds a call. A name that no method can have, or parameters that cannot be written as JSON, make [`Batch::send`] fail.
    pub fn call(&mut self, method: &str, params: impl Serialize) -> BatchCall {
        let call = BatchCall(self.calls);
        self.calls += 1;
        // Ids count from 1 in each batch: the signature ties the answers to this message.
        self.push(request(method, &params, Some(Id::from(call.id()))));
        call
    }

    /// Adds a notification, with the same conditions as [`Batch::call`].
    pub fn notify(&mut self, method: &str, params: impl Serialize) {
        self.push(request(method, &params, None));
    }

    /// The number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the batch has no entries, so that it cannot be sent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Sends the batch and waits for the answers, unless it contains only notifications. Entries may be executed in any
    /// order, and each fails on its own.
    ///
    /// # Errors
    /// [`ClientError::Invalid`] for a batch with no entries or more than 50, [`ClientError::Remote`] if the service
    /// refuses the whole message, [`ClientError::Protocol`] if it answers something that was not asked; see
    /// [`ClientError`] for the others.
    ///
    /// Cancel safety: dropping the future cancels the batch at the service, unless it is
    /// [detached](RequestBuilder::detached). The entries may have been executed all the same.
    pub async fn send(self) -> Result<BatchAnswers, ClientError> {
        if let Some(invalid) = self.invalid {
            return Err(invalid.into());
        }
        if self.request.is_on_method_subject() {
            return Err(InvalidRequest::BatchOnMethodSubject.into());
        }
        let payload = Request::batch_to_bytes(&self.entries).filter(|_| self.entries.len() <= MAX_BATCH);
        let payload = payload.ok_or(InvalidRequest::BatchSize(self.entries.len()))?;
        let mut outgoing = self.request.build(None, payload.into())?;
        let inner = &self.request.client.0;
        if self.calls == 0 {
            inner.publish(&mut outgoing, true).await?;
            return Ok(BatchAnswers { outcomes: Vec::new(), earlier: None });
        }
        BatchAnswers::pair(inner.request(&mut outgoing).await?, self.calls)
    }

    fn push(&mut self, entry: Result<Request, InvalidRequest>) {
        match entry {
            Ok(entry) => self.entries.push(entry),
            Err(invalid) => self.invalid = self.invalid.take().or(Some(invalid)),
        }
    }
}

impl BatchCall {
    fn id(self) -> u64 {
        u64::try_from(self.0).unwrap_or(u64::MAX).saturating_add(1)
    }
}

/// The answers to a batch.
#[derive(Debug)]
pub struct BatchAnswers {
    outcomes: Vec<Option<Outcome>>,
    /// The outcome of an earlier attempt that may have run.
    earlier: Option<Arc<ClientError>>,
}

impl BatchAnswers {
    /// Matches answers with calls by id.
    fn pair(answer: Answer, calls: usize) -> Result<Self, ClientError> {
        let Answer { responses, earlier, .. } = answer;
        let responses = match responses.map_err(ClientError::Protocol)? {
            Responses::Batch(responses) => responses,
            Responses::Single(response) => {
                return Err(match response.outcome {
                    Err(error) if response.id.is_null() => ClientError::Remote(error),
                    _ => ClientError::Protocol(ProtocolError::Shape),
                });
            }
        };
        let ids: Vec<Id> = (0..calls).map(|index| Id::from(BatchCall(index).id())).collect();
        let mut outcomes: Vec<Option<Outcome>> = ids.iter().map(|_| None).collect();
        for response in responses {
            let place = ids.iter().position(|id| *id == response.id).and_then(|index| outcomes.get_mut(index));
            let place = place.ok_or(ClientError::Protocol(ProtocolError::UnknownId))?;
            if place.replace(response.outcome).is_some() {
                return Err(ClientError::Protocol(ProtocolError::RepeatedId));
            }
        }
        Ok(Self { outcomes, earlier })
    }

    /// Takes out the result of one call.
    ///
    /// # Errors
    /// [`ClientError::Remote`] if that call failed, [`ClientError::Repeated`] if it was refused after an attempt that may have run it,
    /// [`ClientError::Decode`] if its result is not an `R`, and [`ClientError::Protocol`] if the service left it unanswered or it was taken
    /// before.
    pub fn take<R: DeserializeOwned>(&mut self, call: BatchCall) -> Result<R, ClientError> {
        let outcome = self.outcomes.get_mut(call.0).and_then(Option::take);
        match (outcome.ok_or(ClientError::Protocol(ProtocolError::Missing))?, &self.earlier) {
            (Ok(result), _) => decode(&result),
            (Err(error), Some(earlier)) if is_refused_by_now(&error) => {
                Err(repeated(earlier, ClientError::Remote(error)))
            }
            (Err(error), _) => Err(ClientError::Remote(error)),
        }
    }

    /// The error of one call, if it failed; after several attempts, that of the last. [`BatchAnswers::take`] tells whether an earlier one
    /// may have run.
    #[must_use]
    pub fn error(&self, call: BatchCall) -> Option<&RpcError> {
        self.outcomes.get(call.0)?.as_ref()?.as_ref().err()
    }
}

#[cfg(test)]
mod tests;
