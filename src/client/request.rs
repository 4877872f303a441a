//! A request being prepared: to whom, by when, and whether it may be repeated.
//! Never guesses: what the protocol cannot express is an error before anything is sent.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::{Instant, sleep};

use super::Client;
use super::answer::Answer;
use super::approval::{AwaitApproval, PendingApproval};
use super::attachment::Attachment;
use super::error::{ClientError, InvalidRequest, ProtocolError};
use super::exchange::OutgoingMessage;
use super::known_service::KnownService;
use super::relay_options::RelayOptions;
use super::spans::{Called, MessageSpans};
use super::stop_signal::{StopSignal, Stoppable};
use super::stream_options::{StreamOptions, asked};
use crate::name::MethodName;
use crate::rpc::{Id, Outcome, Params, Request, Responses, RpcError};
use crate::trace::Trace;
use crate::wire::is_idempotency_key;

impl Client {
    /// Calls a method of a service and decodes its result. `params` is a struct or a map (by name), a tuple or a sequence
    /// (by position), or `()` for none.
    ///
    /// # Errors
    /// See [`ClientError`]; [`ClientError::Remote`] is the service's own error.
    ///
    /// Cancel safety: dropping the future cancels the call at the service, unless it is
    /// [detached](RequestBuilder::detached). It may have been executed all the same.
    pub async fn call<R: DeserializeOwned>(
        &self,
        service: &str,
        method: &str,
        params: impl Serialize,
    ) -> Result<R, ClientError> {
        self.request(service).call(method, params).await
    }

    /// Sends a notification. Nothing tells whether it is executed, or even accepted. Returns once the broker has it.
    ///
    /// # Errors
    /// See [`ClientError`]. A notification that the broker forbids, or that nobody listens to, is not an error.
    ///
    /// Cancel safety: dropping the future leaves nothing behind. The notification may have been sent.
    pub async fn notify(&self, service: &str, method: &str, params: impl Serialize) -> Result<(), ClientError> {
        self.request(service).notify(method, params).await
    }

    /// Waits until somebody listens to calls of this service, for `limit` at most: a service that has just started does not listen yet, for
    /// some seconds. The probe executes nothing, so the call that follows needs to be sent only once.
    ///
    /// # Errors
    /// [`ClientError::NoResponders`] if nobody does within `limit`; see [`ClientError`] for the others.
    ///
    /// Cancel safety: dropping the future leaves nothing behind.
    pub async fn wait_for(&self, service: &str, limit: Duration) -> Result<(), ClientError> {
        wait_for(self, service, limit).await
    }

    /// A request with options: another deadline, repetition, an idempotency key, the method's own subject.
    pub fn request(&self, service: &str) -> RequestBuilder {
        RequestBuilder::new(self.clone(), service)
    }

    /// Signs these bytes as they are, sends them, and returns the text of the verified answer.
    ///
    /// # Errors
    /// See [`ClientError`], but never [`ClientError::Remote`]: if the service answers with an error, that is the text.
    ///
    /// Cancel safety: as for [`Client::call`].
    pub async fn send_raw(&self, service: &str, payload: impl Into<Bytes>) -> Result<String, ClientError> {
        self.request(service).send_raw(payload).await
    }
}

/// A request to one service, with options. Made by [`Client::request`].
///
/// ```no_run
/// # use sealwire::{Client, ClientError};
/// # use std::time::Duration;
/// # async fn example(client: Client) -> Result<(), ClientError> {
/// let sum: f64 = client
///     .request("math")
///     .deadline(Duration::from_secs(2))
///     .idempotent()
///     .on_method_subject()
///     .call("math/add", (2, 3))
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a request is sent by `call`, `notify`, `batch` or `send_raw`"]
pub struct RequestBuilder {
    pub(super) client: Client,
    pub(super) service: String,
    pub(super) deadline: Duration,
    idempotent: bool,
    pub(super) key: Option<String>,
    subject: Subject,
    detached: bool,
    /// It is a task, and how long that may run.
    pub(super) is_task: bool,
    pub(super) task_limit: Option<Duration>,
    pub(super) stop: Option<StopSignal>,
    pub(super) approval: AwaitApproval,
    pub(super) stream: StreamOptions,
    pub(super) relay: RelayOptions,
    capabilities: Option<Arc<str>>,
    /// What the method may fetch.
    pub(super) attached: Vec<Attachment>,
    /// What the call continues; empty for what surrounds it.
    within: Trace,
}

/// Which of the service's subjects a message goes to.
#[derive(Debug, Clone)]
enum Subject {
    /// The agent's, for any message.
    Agent,
    /// That of the method that is called.
    OfMethod,
    /// That of this method, whatever the payload is.
    Of(String),
}

impl RequestBuilder {
    pub(super) fn new(client: Client, service: &str) -> Self {
        let deadline = client.0.options.deadline;
        let service = service.to_owned();
        Self {
            client,
            service,
            deadline,
            idempotent: false,
            key: None,
            subject: Subject::Agent,
            detached: false,
            is_task: false,
            task_limit: None,
            stop: None,
            approval: AwaitApproval::default(),
            stream: StreamOptions::default(),
            relay: RelayOptions::default(),
            capabilities: None,
            attached: Vec::new(),
            within: Trace::default(),
        }
    }

    /// How long the whole request may take: 1 ms to 600 s. Waiting for a connection, a token or a place counts, and so
    /// do repetitions. The service is told the deadline, and starts nothing after it.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Declares that running it twice does no harm. It is then sent again, under a new signature, while the deadline allows: after an
    /// unsigned refusal, when nobody listens, when the connection is lost, and when the service says that it is overloaded, that the
    /// caller's quota is used up, that the clocks differ, or that the call with the same idempotency key is still running. The pauses grow
    /// up to 2 s, or are as long as the service asks for; unless a service has signed that it is to wait, it is sent ten times at most. If
    /// no attempt has a result, the outcome is unknown as long as that of any of them is: [`ClientError::Repeated`]. In a batch this holds
    /// for each call.
    pub fn idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }

    /// A key by which the service recognizes repetitions: 1 to 128 characters of printable ASCII. It is signed and handed to the method; a
    /// service that declares the method idempotent runs it once for each key, and answers repetitions with the same outcome. All
    /// repetitions have the same key. The key alone repeats nothing: [`RequestBuilder::idempotent`] does, and is harmless with such a
    /// method.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Says what the caller can do beyond receiving a result, such as answer a question of this name: 1 to 16 names of 1 to 64 bytes of
    /// `[A-Za-z0-9._:/-]`. Other names are left out, with all of them. The method may adapt its answer, and decides nothing by it.
    pub fn capable_of<'n>(mut self, names: impl IntoIterator<Item = &'n str>) -> Self {
        let names = names.into_iter().collect::<Vec<_>>().join(" ");
        self.capabilities = (!names.is_empty()).then(|| names.into());
        self
    }

    /// Lets the call go on when nobody waits for it any more: dropping the future does not cancel it at the service. For work that must be
    /// done whether or not the caller stays to hear of it; it still ends at its deadline, and nobody hears of its outcome later, for which
    /// there is [`RequestBuilder::detach`]. Streams and subscriptions are always cancelled, since nobody would take their
    /// frames.
    pub fn detached(mut self) -> Self {
        self.detached = true;
        self
    }

    /// Cancels a call, a batch or a raw message at the service when `signal` completes, and waits up to 5 s for the service to confirm. The
    /// request ends with whatever the service answers: its error `-32016`, or a result that was faster; without an answer, with
    /// [`ClientError::Cancelled`]. Dropping the future cancels as well, but learns nothing. For streams there is
    /// [`CallStream::cancel`](super::CallStream::cancel).
    pub fn cancel_on(mut self, signal: impl Future<Output = ()> + Send + 'static) -> Self {
        self.stop = Some(StopSignal::new(signal));
        self
    }

    /// Waits for people, if they have to approve the call first: for `limit` at most, and at most until the deadline of the request for
    /// approval. Meanwhile the same call, with the same idempotency key, is sent again under a new signature when the service says that
    /// this may be worthwhile, every 0.5 to 30 s; each time [`RequestBuilder::deadline`] begins anew. The wait is over
    ///
    /// - with the result, or the method's own error, once the call was approved and has run;
    /// - with `-32002`, whose `data.state` is `denied`, if somebody has denied it;
    /// - with `-32018`, as without this option, if nobody has decided in time, or [`RequestBuilder::cancel_on`] has ended it. The call has
    ///   not run, and its request for approval remains: sent again later, it runs if it has been approved;
    /// - with any other error. If the answer to an approved call is lost, the outcome is unknown as with any call, and it is not sent again.
    ///   Whoever does that gets the result if it has an idempotency key and the method keeps outcomes; otherwise `-32017`, whose `data.state`
    ///   is `consumed`: it runs once for its approval.
    ///
    /// Only for a single call whose result comes in one message.
    pub fn await_approval(mut self, limit: Duration) -> Self {
        self.approval.limit = Some(limit);
        self
    }

    /// Is told what the call waits for: at first, and whenever that has changed, as when one of two has approved it. Only with
    /// [`RequestBuilder::await_approval`]. The handler must not block.
    pub fn on_pending(mut self, handler: impl Fn(&PendingApproval) + Send + Sync + 'static) -> Self {
        self.approval.on_pending = Some(Arc::new(handler));
        self
    }

    /// How many frames of a stream may be under way beyond those that the application has taken: 1 to 1024; 64 by
    /// default. A method that sends more has to wait.
    pub fn window(mut self, frames: u64) -> Self {
        self.stream.window = frames;
        self
    }

    /// The most bytes of a stream's final result; 16 MiB by default. A result that does not fit one message comes in
    /// pieces, and is given out once the digest of all of it was verified.
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.stream.max_bytes = bytes;
        self
    }

    /// How long a subscription lives without being renewed: 2 s to 600 s; 60 s by default. It is renewed at half of that, for as long as
    /// somebody holds the [`Subscription`](super::Subscription).
    pub fn lease(mut self, lease: Duration) -> Self {
        self.stream.lease = lease;
        self
    }

    /// Receives the notifications of a stream, such as progress, in order among its items, when the application reaches
    /// them. For a subscription, whose notifications are its items, it receives only those whose name begins with
    /// `rpc.`. The handler must not block.
    pub fn on_notification(mut self, handler: impl Fn(Request) + Send + Sync + 'static) -> Self {
        self.stream.on_notification = Some(Arc::new(handler));
        self
    }

    /// Answers the questions that the method asks while it runs, when the application reaches them in the stream; at most eight at a time.
    /// Without a handler they are answered with `-32601`: a service gets nothing that nobody meant to give.
    pub fn on_ask<F, A, R>(mut self, handler: F) -> Self
    where
        F: Fn(Request) -> A + Send + Sync + 'static,
        A: Future<Output = Result<R, RpcError>> + Send + 'static,
        R: Serialize,
    {
        self.stream.on_ask = Some(asked(handler));
        self
    }

    /// Makes the bytes of an argument available to the method of this call, which asks for them while it runs; the argument itself goes
    /// into the params, see [`Attachment`]. A call with attachments accepts frames as a stream does: [`RequestBuilder::window`] and
    /// [`RequestBuilder::max_bytes`] apply to it, and dropping it cancels it. In a stream, questions are answered when the application
    /// reaches them.
    pub fn attach(mut self, attachment: &Attachment) -> Self {
        self.attached.push(attachment.clone());
        self
    }

    /// Makes the call part of a trace: that of a method, from `Ctx::trace`, for a task that the method has spawned. Within the method's own
    /// future, calls are part of it anyway.
    pub fn in_trace(mut self, trace: &Trace) -> Self {
        self.within = trace.clone();
        self
    }

    /// The same request, made for somebody else.
    pub(super) fn relayed(mut self) -> Self {
        self.relay.is_relayed = true;
        self
    }

    /// Publishes on the method's own subject (`rpc.v1.math.planner.math.add`), for brokers that permit single methods.
    pub fn on_method_subject(mut self) -> Self {
        self.subject = Subject::OfMethod;
        self
    }

    /// Publishes on the subject of this method, whatever the payload says: for tests of what a service refuses.
    pub fn on_subject_of(mut self, method: impl Into<String>) -> Self {
        self.subject = Subject::Of(method.into());
        self
    }

    /// Calls a method and decodes its result.
    ///
    /// # Errors
    /// See [`ClientError`]; [`ClientError::Remote`] is the service's own error.
    ///
    /// Cancel safety: dropping the future cancels the call at the service, unless it is
    /// [detached](RequestBuilder::detached). It may have been executed all the same.
    pub async fn call<R: DeserializeOwned>(mut self, method: &str, params: impl Serialize) -> Result<R, ClientError> {
        if self.approval.limit.is_none() {
            return self.call_once(method, params).await;
        }
        let params = {
            let given = params;
            Params::encode(&given).map_err(InvalidRequest::from)?
        };
        let (approval, stop) = (std::mem::take(&mut self.approval), self.stop.clone());
        let now_ms = self.service_clock()?;
        // Boxed: it would enlarge the future of every call, and few wait.
        let decided = Box::pin(approval.until_decided(stop, now_ms, || self.clone().call_once(method, params.clone())));
        decode(&decided.await?)
    }

    /// Calls a method, whether or not it then waits for approval.
    async fn call_once<R: DeserializeOwned>(mut self, method: &str, params: impl Serialize) -> Result<R, ClientError> {
        if !self.attached.is_empty() {
            let stop = self.stop.take();
            let stream = self.stream::<IgnoredAny>(method, params);
            return match stop {
                Some(stop) => Box::pin(stream.finish_unless(&stop)).await,
                None => Box::pin(stream.finish()).await,
            };
        }
        let (client, id, mut outgoing) = self.call_message(method, params)?;
        let answer = client.0.request(&mut outgoing).await?;
        decode(&single(answer, &id)?.map_err(ClientError::Remote)?)
    }

    /// The message of a call, and its id.
    pub(super) fn call_message(
        self,
        method: &str,
        params: impl Serialize,
    ) -> Result<(Client, Id, Box<OutgoingMessage>), ClientError> {
        let id = Id::from(self.client.next_id());
        let request = request(method, &params, Some(id.clone()))?;
        drop(params);
        let (client, outgoing) = self.into_message(Some(method), request.to_bytes().into())?;
        Ok((client, id, outgoing))
    }

    /// The service's clock.
    pub(super) fn service_clock(&self) -> Result<impl Fn() -> u64 + Send + use<>, InvalidRequest> {
        let (service, clock) = (self.known_service()?, Arc::clone(&self.client.0.options.clock));
        Ok(move || service.now_ms(clock.now_ms()))
    }

    /// Sends a notification. Nothing tells whether it is executed, or even accepted. Returns once the broker has it.
    ///
    /// # Errors
    /// See [`ClientError`]. A notification that the broker forbids, or that nobody listens to, is not an error.
    ///
    /// Cancel safety: dropping the future leaves nothing behind. The notification may have been sent.
    pub async fn notify(self, method: &str, params: impl Serialize) -> Result<(), ClientError> {
        let request = request(method, &params, None)?;
        drop(params);
        let (client, mut outgoing) = self.into_message(Some(method), request.to_bytes().into())?;
        client.0.publish(&mut outgoing, false).await
    }

    /// Signs these bytes as they are, sends them, and returns the text of the verified answer: it may be an error, and
    /// is not examined further.
    ///
    /// # Errors
    /// See [`ClientError`], but never [`ClientError::Remote`]. A batch whose last attempt refuses an entry that an earlier one may have run
    /// is [`ClientError::Repeated`].
    ///
    /// Cancel safety: as for [`RequestBuilder::call`].
    pub async fn send_raw(self, payload: impl Into<Bytes>) -> Result<String, ClientError> {
        let (client, mut outgoing) = self.into_message(None, payload.into())?;
        let answer = client.0.request(&mut outgoing).await?.whole()?;
        let flaw = |_| ClientError::Protocol(ProtocolError::Response(crate::rpc::Flaw::NotUtf8.into()));
        String::from_utf8(answer.payload.to_vec()).map_err(flaw)
    }

    /// Signs these bytes as they are and sends them without a reply subject, so that no answer can come.
    ///
    /// # Errors
    /// As for [`RequestBuilder::notify`].
    ///
    /// Cancel safety: as for [`RequestBuilder::notify`].
    pub async fn publish_raw(self, payload: impl Into<Bytes>) -> Result<(), ClientError> {
        let (client, mut outgoing) = self.into_message(None, payload.into())?;
        client.0.publish(&mut outgoing, false).await
    }

    /// The message, and the client that sends it. Consumes the options, so that a call under way does not hold them as well.
    pub(super) fn into_message(
        self,
        method: Option<&str>,
        payload: Bytes,
    ) -> Result<(Client, Box<OutgoingMessage>), InvalidRequest> {
        let outgoing = Box::new(self.build(method, payload)?);
        Ok((self.client, outgoing))
    }

    /// The message, if all its options are valid.
    pub(super) fn build(&self, method: Option<&str>, payload: Bytes) -> Result<OutgoingMessage, InvalidRequest> {
        let inner = &self.client.0;
        let service = self.known_service()?;
        if self.deadline < Duration::from_millis(1) || self.deadline > MAX_DEADLINE {
            return Err(InvalidRequest::Deadline(self.deadline));
        }
        if self.key.as_deref().is_some_and(|key| !is_idempotency_key(key)) {
            return Err(InvalidRequest::IdempotencyKey);
        }
        // A single call has already taken it.
        if self.approval.limit.is_some() {
            return Err(InvalidRequest::AwaitApproval);
        }
        // A stream has already taken them.
        if !self.attached.is_empty() {
            return Err(InvalidRequest::Attachments);
        }
        let agent = inner.credentials.agent();
        let method = match &self.subject {
            Subject::Of(method) => Some(MethodName::new(method)?),
            Subject::OfMethod => method.map(MethodName::new).transpose()?,
            Subject::Agent if inner.credentials.has_method_subjects() => match method {
                Some(method) => Some(MethodName::new(method)?),
                None => method_in(&payload),
            },
            Subject::Agent => None,
        };
        let subject = match method {
            Some(method) => service.endpoint.method_subject(agent, &method),
            None => service.endpoint.subject(agent),
        };
        let around = if self.within.is_empty() { Trace::current() } else { self.within.clone() };
        let called = Called {
            audience: service.endpoint.audience().as_str(),
            agent: agent.as_str(),
            payload: &payload,
            is_relayed: self.relay.is_relayed,
        };
        // A trace that a relay's caller names is its own business, unless the relay has made it a trace of its own.
        let (spans, traceparent) = match around.is_empty() && self.relay.trace.parent().is_some() {
            true => (None, None),
            false => MessageSpans::begin(&inner.tracing, around, &called),
        };
        let trace = match traceparent {
            Some(parent) => self.relay.trace.with_parent(parent),
            None => self.relay.trace.clone(),
        };
        Ok(OutgoingMessage {
            service,
            subject,
            payload,
            deadline: self.deadline,
            idempotent: self.idempotent,
            idempotency_key: self.key.clone(),
            task: self.is_task.then(|| self.task_limit.unwrap_or(LONGEST_TASK)),
            window: None,
            detached: self.detached,
            stop: self.stop.clone().map(Stoppable::new),
            id: self.relay.id.clone(),
            receipt: self.relay.receipt.clone(),
            observer: self.relay.observer.clone(),
            trace,
            spans,
            capabilities: self.capabilities.clone(),
            tokens: Arc::clone(self.relay.tokens.as_ref().map_or(&inner.tokens, |tokens| &tokens.0)),
        })
    }

    fn known_service(&self) -> Result<Arc<KnownService>, InvalidRequest> {
        let inner = &self.client.0;
        inner.services.find(&inner.credentials, &self.service, inner.options.valid_s)
    }

    /// Whether it goes to the subject of a method, which batches do not have.
    pub(super) fn is_on_method_subject(&self) -> bool {
        !matches!(self.subject, Subject::Agent)
    }
}

/// The method that a payload calls, if it is one call or notification.
fn method_in(payload: &[u8]) -> Option<MethodName> {
    #[derive(Deserialize)]
    struct Named {
        method: String,
    }
    MethodName::new(&serde_json::from_slice::<Named>(payload).ok()?.method).ok()
}

/// A request with a valid method name: no service knows a name outside the grammar, so one is not worth a message.
pub(super) fn request(method: &str, params: &impl Serialize, id: Option<Id>) -> Result<Request, InvalidRequest> {
    MethodName::new(method)?;
    Ok(Request::new(method, params, id)?)
}

/// How long one probe of [`Client::wait_for`] may take, and the pause before the next.
const ASK: Duration = Duration::from_secs(2);
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// Probes until somebody listens. The probe is signed but is not a JSON-RPC request, so neither it nor a copy of it runs anything.
async fn wait_for(client: &Client, service: &str, limit: Duration) -> Result<(), ClientError> {
    let started = Instant::now();
    let mut nobody = None;
    loop {
        let left = limit.saturating_sub(started.elapsed()).max(Duration::from_millis(1));
        let asked = client.request(service).deadline(left.min(ASK)).send_raw("{}").await;
        match asked {
            // Whatever the service thinks of us, it is there.
            Ok(_) | Err(ClientError::Hint { .. } | ClientError::Clock { .. }) => return Ok(()),
            Err(
                error @ (ClientError::NoResponders { .. }
                | ClientError::Timeout { .. }
                | ClientError::ConnectionLost
                | ClientError::Disconnected { .. }),
            ) if started.elapsed() + ASK_AGAIN < limit => {
                nobody = Some(error).filter(|error| matches!(error, ClientError::NoResponders { .. })).or(nobody);
                sleep(ASK_AGAIN).await;
            }
            // The last probe may have had a millisecond left for its answer.
            Err(error @ ClientError::Timeout { .. }) => return Err(nobody.unwrap_or(error)),
            Err(error) => return Err(error),
        }
    }
}

/// The outcome of the one call `id`, or of its whole message.
pub(super) fn single(answer: Answer, id: &Id) -> Result<Outcome, ClientError> {
    match answer.responses.map_err(ClientError::Protocol)? {
        Responses::Single(response) if response.id == *id => Ok(response.outcome),
        // A refusal of the whole message.
        Responses::Single(response) if response.id.is_null() && response.outcome.is_err() => Ok(response.outcome),
        Responses::Single(_) => Err(ClientError::Protocol(ProtocolError::UnknownId)),
        Responses::Batch(_) => Err(ClientError::Protocol(ProtocolError::Shape)),
    }
}

pub(crate) fn decode<R: DeserializeOwned>(result: &RawValue) -> Result<R, ClientError> {
    decode_as(result, false)
}

/// An item or a notification of a stream.
pub(super) fn decode_part<R: DeserializeOwned>(part: &RawValue) -> Result<R, ClientError> {
    decode_as(part, true)
}

fn decode_as<R: DeserializeOwned>(value: &RawValue, is_part: bool) -> Result<R, ClientError> {
    let wanted = std::any::type_name::<R>();
    serde_json::from_str(value.get()).map_err(|cause| ClientError::Decode { is_part, wanted, cause })
}

/// The protocol's longest time for a task.
const LONGEST_TASK: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The protocol's longest deadline.
const MAX_DEADLINE: Duration = Duration::from_secs(600);
