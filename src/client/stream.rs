//! Streams: what a method sends while it runs, as a [`Stream`] of items and then a result, and subscriptions.
//! Never gives out an item or a result that is not the next one of one signed stream.

mod answers;
mod driver;
mod parts;

use std::fmt;
use std::marker::PhantomData;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::Stream;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Client;
use super::attachment::serving;
use super::error::{ClientError, InvalidRequest};
use super::incoming::{Incoming, Limits};
use super::observe::Observation;
use super::places::StreamPlace;
use super::relay::Relay;
use super::request::{RequestBuilder, decode_part, request};
use super::sent::MessageId;
use super::stop_signal::StopSignal;
use crate::rpc::{Id, Request};
use driver::Driver;
use parts::{Part, Parts};

/// What a method sends while it runs: a [`Stream`] of items, and then the result. Made by [`Client::stream`] and
/// [`RequestBuilder::stream`].
///
/// The call is sent at once, not when it is first polled. Each item is given out once, in order, as soon as all before it have arrived; a
/// slow reader slows the method down. An error is the last thing that the stream yields, except for an item that is no `T`. Dropping it
/// cancels the call at the service; [`CallStream::cancel`] also waits until that is done.
///
/// ```no_run
/// use futures_util::StreamExt as _;
/// # use sealwire::{Client, ClientError};
/// # async fn example(client: Client) -> Result<(), ClientError> {
/// let mut words = client.stream::<String>("writer", "writer/tell", ["a story"]);
/// while let Some(word) = words.next().await {
///     print!("{}", word?);
/// }
/// let tokens_used: u64 = words.finish().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a stream that is dropped is cancelled"]
pub struct CallStream<T> {
    parts: Parts,
    item: PhantomData<fn() -> T>,
}

/// What a service pushes until nobody listens any more: a [`Stream`] of the parameters of its notifications. Made by
/// [`Client::subscribe`] and [`RequestBuilder::subscribe`].
///
/// It is held under a lease, which is renewed for as long as this exists, so a caller that dies does not keep the service working. It ends
/// when the service says so, for example when the service is stopped: it then yields `None`, and you can subscribe again. An error is the
/// last thing that it yields, except for a notification that is no `T`. Dropping it ends it at the service.
///
/// ```no_run
/// use futures_util::StreamExt as _;
/// # use sealwire::{Client, ClientError};
/// # #[derive(serde::Deserialize)]
/// # struct Tick { at: u64 }
/// # async fn example(client: Client) -> Result<(), ClientError> {
/// let mut ticks = client.subscribe::<Tick>("clock", "clock/ticks", ());
/// while let Some(tick) = ticks.next().await {
///     println!("{}", tick?.at);
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "a subscription that is dropped has ended"]
pub struct Subscription<T> {
    parts: Parts,
    missed: u64,
    item: PhantomData<fn() -> T>,
}

impl Client {
    /// Calls a method that sends items of type `T` while it runs; see [`RequestBuilder::stream`]. The deadline is that of the client's
    /// calls: [`Client::request`] gives more time.
    pub fn stream<T: DeserializeOwned>(&self, service: &str, method: &str, params: impl Serialize) -> CallStream<T> {
        self.request(service).stream(method, params)
    }

    /// Subscribes to what a method of a service pushes; see [`RequestBuilder::subscribe`].
    pub fn subscribe<T: DeserializeOwned>(
        &self,
        service: &str,
        method: &str,
        params: impl Serialize,
    ) -> Subscription<T> {
        self.request(service).subscribe(method, params)
    }
}

impl RequestBuilder {
    /// Calls a method that sends items of type `T` while it runs. Any method may be called like this: one that sends no
    /// items only gives its result, which may then be larger than a message.
    ///
    /// The deadline covers everything, to the last item. If the call cannot be sent, the stream's only item is an error.
    pub fn stream<T: DeserializeOwned>(self, method: &str, params: impl Serialize) -> CallStream<T> {
        CallStream { parts: self.parts(method, &params, None), item: PhantomData }
    }

    /// Subscribes to what a method pushes, under the [lease](RequestBuilder::lease); the deadline is ignored. If it
    /// cannot be sent, the subscription's only item is an error.
    pub fn subscribe<T: DeserializeOwned>(mut self, method: &str, params: impl Serialize) -> Subscription<T> {
        let lease = self.stream.lease;
        self = self.deadline(lease);
        Subscription { parts: self.parts(method, &params, Some(lease)), missed: 0, item: PhantomData }
    }

    /// The options of a request that is made for somebody else, such as [`Relay::listen`].
    #[doc(hidden)]
    pub fn relay(self) -> Relay {
        Relay(self.relayed())
    }

    fn parts(mut self, method: &str, params: &impl Serialize, lease: Option<Duration>) -> Parts {
        let on_ask = serving(std::mem::take(&mut self.attached), self.stream.on_ask.clone());
        let id = Id::from(self.client.next_id());
        let now = Instant::now();
        let limits = Limits { window: self.stream.window, lease };
        let deadline = now + lease.unwrap_or(self.deadline);
        let incoming = Arc::new(Incoming::new(limits, &self.service, deadline, now));
        let (stop, stopped) = oneshot::channel();
        let (client, message_id) = (self.client.clone(), self.relay.id.clone().unwrap_or_default());
        let observation = Observation::of_method(self.relay.observer.as_ref(), &self.service, method);
        let mut parts = Parts {
            observation,
            spans: None,
            incoming: Arc::clone(&incoming),
            id: id.clone(),
            message_id: message_id.clone(),
            on_notification: self.stream.on_notification.clone(),
            max_bytes: self.stream.max_bytes,
            place: None,
            stop: Some((stop, client.clone())),
            ready: Default::default(),
            text: Vec::new(),
            outcome: None,
            is_over: false,
        };
        match self.prepare(method, params, id, lease, &message_id) {
            Ok((place, mut outgoing)) => {
                parts.place = Some(place);
                parts.spans = outgoing.spans.take();
                let inner = &client.0;
                let driver = Box::new(Driver::new(inner, incoming, outgoing, stopped, on_ask));
                // Boxed separately: spawning moves its argument several times.
                drop(inner.runtime.spawn(Box::pin(driver.run())));
            }
            Err(error) => incoming.finish(Err(error), true),
        }
        parts
    }

    fn prepare(
        &self,
        method: &str,
        params: &impl Serialize,
        id: Id,
        lease: Option<Duration>,
        message_id: &MessageId,
    ) -> Result<(StreamPlace, super::exchange::OutgoingMessage), ClientError> {
        let window = self.stream.window;
        if !(1..=MAX_WINDOW).contains(&window) {
            return Err(InvalidRequest::Window(window).into());
        }
        if let Some(lease) = lease.filter(|lease| !LEASES.contains(lease)) {
            return Err(InvalidRequest::Lease(lease).into());
        }
        let request = request(method, params, Some(id))?;
        let mut outgoing = self.build(Some(method), request.to_bytes().into())?;
        outgoing.window = Some(window);
        outgoing.detached = false;
        outgoing.id = Some(message_id.clone());
        Ok((self.client.0.streams.take(self.relay.share.as_ref())?, outgoing))
    }
}

impl Relay {
    /// Calls a method as [`RequestBuilder::stream`] does, but under the [lease](RequestBuilder::lease) and without a deadline: for relaying
    /// a subscription as it comes. All of its notifications go to [`RequestBuilder::on_notification`].
    pub fn listen<T: DeserializeOwned>(self, method: &str, params: impl Serialize) -> CallStream<T> {
        let lease = self.0.stream.lease;
        CallStream { parts: self.0.deadline(lease).parts(method, &params, Some(lease)), item: PhantomData }
    }
}

impl<T> CallStream<T> {
    /// The id of its message, as in the service's log; `None` until it is sent.
    #[must_use]
    pub fn message_id(&self) -> Option<String> {
        self.parts.message_id.get()
    }

    /// Waits for the result, and decodes it. Items that were not taken are skipped; notifications and questions among them are not.
    ///
    /// # Errors
    /// See [`ClientError`]; [`ClientError::Remote`] is the service's own error, [`ClientError::Ended`] stands for the error that the stream
    /// yielded as its last item.
    ///
    /// Cancel safety: dropping the future drops the stream, and so cancels the call.
    pub async fn finish<R: DeserializeOwned>(mut self) -> Result<R, ClientError> {
        self.parts.finish().await
    }

    /// As [`CallStream::finish`]. If it is stopped before, the call is cancelled at the service, whose answer is awaited.
    pub(super) async fn finish_unless<R: DeserializeOwned>(mut self, stop: &StopSignal) -> Result<R, ClientError> {
        let (id, cancelling) = (self.parts.message_id.clone(), self.cancelling());
        let mut finishing = pin!(self.parts.finish());
        tokio::select! {
            biased;
            outcome = &mut finishing => return outcome,
            () = stop.came() => {}
        }
        if id.get().is_none() {
            return Err(ClientError::Cancelled { sent: false });
        }
        tokio::select! {
            biased;
            outcome = finishing => outcome,
            () = cancelling => Err(ClientError::Cancelled { sent: true }),
        }
    }

    /// Cancels the call at the service while the future is polled, which completes after 5 s, or at once if nothing can be cancelled. The
    /// stream goes on meanwhile, and says how the call ended: with `-32016`, or as it would have anyway if that was faster. If it has said
    /// nothing by then, the outcome is unknown.
    ///
    /// Cancel safety: dropping the future stops the cancelling, not the call.
    pub fn cancelling(&self) -> impl Future<Output = ()> + Send + use<T> {
        self.parts.cancelling()
    }

    /// Cancels the call at the service, and waits up to 5 s until the service says that it has ended. `false` if the service has not: it
    /// then continues to be told until the deadline, as after a drop. How the call ended is not reported: it may have given its result
    /// before, see [`CallStream::cancelling`].
    ///
    /// Cancel safety: dropping the future cancels all the same.
    pub async fn cancel(mut self) -> bool {
        self.parts.cancel().await
    }
}

impl<T: DeserializeOwned> Stream for CallStream<T> {
    type Item = Result<T, ClientError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let parts = &mut self.parts;
        loop {
            return match std::task::ready!(parts.poll_part(context)) {
                Some(Part::Item(item)) => Poll::Ready(Some(decode_part(&item))),
                Some(Part::Note(note)) => {
                    parts.notify(note);
                    continue;
                }
                None => Poll::Ready(parts.take_error().map(Err)),
            };
        }
    }
}

impl<T> Subscription<T> {
    /// The id of its message, as in the service's log; `None` until it is sent.
    #[must_use]
    pub fn message_id(&self) -> Option<String> {
        self.parts.message_id.get()
    }

    /// How many notifications the service says it has left out so far, because they came faster than they were taken.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Waits for the end, and decodes the service's final result. What was not taken is skipped.
    ///
    /// # Errors
    /// As for [`CallStream::finish`].
    ///
    /// Cancel safety: dropping the future drops the subscription, and so ends it.
    pub async fn finish<R: DeserializeOwned>(mut self) -> Result<R, ClientError> {
        self.parts.finish().await
    }

    /// Ends the subscription while the future is polled, and lets it say how; see [`CallStream::cancelling`].
    ///
    /// Cancel safety: dropping the future stops that, and ends nothing.
    pub fn cancelling(&self) -> impl Future<Output = ()> + Send + use<T> {
        self.parts.cancelling()
    }

    /// Ends the subscription; see [`CallStream::cancel`].
    ///
    /// Cancel safety: dropping the future ends it all the same.
    pub async fn cancel(mut self) -> bool {
        self.parts.cancel().await
    }

    /// A notification that is about the subscription itself.
    fn told(&mut self, note: Request) {
        #[derive(serde::Deserialize)]
        struct Missed {
            n: u64,
        }
        if note.method == "rpc.missed" {
            let missed = note.params.as_ref().and_then(|params| serde_json::from_str(params.raw().get()).ok());
            self.missed = self.missed.saturating_add(missed.map_or(0, |Missed { n }| n));
        }
        self.parts.notify(note);
    }
}

impl<T: DeserializeOwned> Stream for Subscription<T> {
    type Item = Result<T, ClientError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            return match std::task::ready!(self.parts.poll_part(context)) {
                Some(Part::Item(item)) => Poll::Ready(Some(decode_part(&item))),
                Some(Part::Note(note)) if note.method.starts_with("rpc.") => {
                    self.told(note);
                    continue;
                }
                Some(Part::Note(note)) => {
                    let params = note.params.as_ref().map_or(RawValue::NULL, |params| params.raw());
                    Poll::Ready(Some(decode_part(params)))
                }
                None => Poll::Ready(self.parts.take_error().map(Err)),
            };
        }
    }
}

impl<T> fmt::Debug for CallStream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallStream").field("message_id", &self.message_id()).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Subscription<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("message_id", &self.message_id()).finish_non_exhaustive()
    }
}

/// The protocol's largest window.
const MAX_WINDOW: u64 = 1024;

/// From the shortest lease that leaves time to renew it, to the protocol's longest deadline.
const LEASES: std::ops::RangeInclusive<Duration> = Duration::from_secs(2)..=Duration::from_secs(600);
