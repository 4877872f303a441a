//! From a permitted call to the function that the application registered for it.
//! Never sees a call that no policy allowed.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};

use super::attachment::{Attachment, AttachmentError};
use super::authorize::{Permit, Permitted};
use super::calls::Message;
use super::catalogue::{Answers, Catalogue, Entry};
use super::description::{Described, Description};
use super::idempotency::Idempotent;
use super::methods::{MethodFuture, Run};
use super::parts::{AskError, Parts, Sink, note};
use super::streams::{FrameError, subscription_end};
use super::topic::{Next, Topic, WhenFull};
use crate::auth::Caller;
use crate::name::MethodName;
use crate::policy::Param;
use crate::rpc::{Id, Params, RpcError, code};

/// The methods of a service, with the state they share.
///
/// ```
/// use sealwire::rpc::RpcError;
/// use sealwire::service::{Ctx, Router};
///
/// #[derive(serde::Deserialize)]
/// struct Add { a: f64, b: f64 }
///
/// async fn add(_ctx: Ctx, p: Add) -> Result<f64, RpcError> { Ok(p.a + p.b) }
///
/// let methods = Router::new(()).method("math/add", add);
/// assert_eq!(methods.names().collect::<Vec<_>>(), ["math/add"]);
/// ```
pub struct Router<S = ()> {
    state: Arc<S>,
    methods: BTreeMap<String, Method<S>>,
    declared: BTreeMap<String, Vec<Param>>,
    idempotent: BTreeMap<String, Idempotent>,
    described: BTreeMap<String, Described>,
    /// Streams and subscriptions.
    in_parts: BTreeMap<String, Answers>,
    wrong: Vec<RouterError>,
}

type Method<S> = Arc<dyn Fn(Ctx<S>, Option<Params>) -> MethodFuture + Send + Sync>;

/// How many notifications a subscriber missed because it was too slow.
#[derive(Serialize)]
struct Missed {
    n: u64,
}

/// Marks an error as the application's own.
fn of_application(error: impl Into<RpcError>) -> RpcError {
    error.into().of_application()
}

/// A method that cannot be registered. Reported when the service is built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RouterError {
    /// The name is outside the grammar.
    #[error(transparent)]
    Name(#[from] crate::name::NameError),
    /// Names whose first token is `rpc` belong to JSON-RPC itself (JSON-RPC 2.0 §4.1).
    #[error("method `{0}`: names that begin with `rpc` are reserved")]
    Reserved(String),
    /// Parameters are declared for a method that is not registered.
    #[error("parameters are declared for `{0}`, which is not registered: register the method first")]
    Undeclared(String),
    /// A description of a method that is not registered.
    #[error("`{0}` is described, but not registered: register the method first")]
    NothingDescribed(String),
    /// A description that cannot be given to callers.
    #[error("the description of `{0}` cannot be given: {1}")]
    Description(String, &'static str),
    /// An idempotent method that is not registered.
    #[error("`{0}` is declared idempotent, but not registered: register the method first")]
    Unregistered(String),
    /// An idempotent method that is a stream or a subscription.
    #[error("`{0}` answers in parts, and parts are not kept: only a method with one result can be declared idempotent")]
    InParts(String),
    /// Outcomes would be kept for less than a second or more than a week.
    #[error("outcomes of `{0}` are kept for 1 s to 7 days: declare a time in that range")]
    Keep(String),
    /// Two names that are the same in a subject, where `/` is written as `.`.
    #[error("methods `{0}` and `{1}` are the same in a subject: rename one")]
    Ambiguous(String, String),
}

impl<S: Send + Sync + 'static> Router<S> {
    /// A router without methods, over a state that every method can reach with [`Ctx::state`].
    #[must_use]
    pub fn new(state: S) -> Self {
        Self {
            state: Arc::new(state),
            methods: BTreeMap::new(),
            declared: BTreeMap::new(),
            idempotent: BTreeMap::new(),
            described: BTreeMap::new(),
            in_parts: BTreeMap::new(),
            wrong: Vec::new(),
        }
    }

    /// Registers `async fn(Ctx<S>, P) -> Result<R, E>` under a name.
    ///
    /// `P` takes named and positional parameters alike when it is a derived struct. A name that cannot be registered is
    /// reported when the service is built.
    #[must_use]
    pub fn method<P, R, E, F, Fut>(self, name: &str, function: F) -> Self
    where
        P: DeserializeOwned + Send + 'static,
        R: Serialize,
        E: Into<RpcError>,
        F: Fn(Ctx<S>, P) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
    {
        self.register(name, move |ctx, params| {
            let params = Params::decode::<P>(params.as_ref());
            let result = params.map(|params| function(ctx, params));
            async move {
                let result = result?.await.map_err(of_application)?;
                to_raw_value(&result).map_err(RpcError::internal)
            }
        })
    }

    /// Registers `async fn(Ctx<S>, P) -> Result<impl Stream<Item = Result<T, E>>, E>` under a name: a result that comes in
    /// parts.
    ///
    /// A caller that accepts frames gets each part as soon as it is there, several of them together if they come faster than
    /// they leave, and finally null as the result. The stream is polled for the next part only when the caller has room for
    /// it, so nothing piles up. Any other caller gets all parts at once, as an array; above
    /// [`ServiceLimits::response`](super::ServiceLimits::response) that is `-32015`. The first error ends the stream.
    ///
    /// The stream is dropped if its call ends first; see [`Ctx::cancelled`].
    ///
    /// ```
    /// use futures_util::stream;
    /// use sealwire::rpc::RpcError;
    /// use sealwire::service::{Ctx, Router};
    ///
    /// let methods = Router::new(()).stream("math/count", |_ctx: Ctx, to: (u64,)| async move {
    ///     Ok::<_, RpcError>(stream::iter((1..=to.0).map(Ok::<_, RpcError>)))
    /// });
    /// assert_eq!(methods.names().collect::<Vec<_>>(), ["math/count"]);
    /// ```
    #[must_use]
    pub fn stream<P, T, E, St, F, Fut>(mut self, name: &str, function: F) -> Self
    where
        P: DeserializeOwned + Send + 'static,
        T: Serialize + Send,
        E: Into<RpcError> + Send,
        St: Stream<Item = Result<T, E>> + Send + 'static,
        F: Fn(Ctx<S>, P) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<St, E>> + Send + 'static,
    {
        self.in_parts.insert(name.to_owned(), Answers::Stream);
        self.register(name, move |ctx, params| {
            let params = Params::decode::<P>(params.as_ref());
            let parts = ctx.parts();
            let items = params.map(|params| function(ctx, params));
            async move {
                let items = items?.await.map_err(of_application)?;
                parts.all(items.map(|item| item.map_err(of_application))).await
            }
        })
    }

    /// Registers `async fn(Ctx<S>, P, Sink<T>) -> Result<R, E>` under a name: a method with a result of its own that sends
    /// parts of it on the way.
    ///
    /// A caller that accepts no frames gets only the result, so that should be complete.
    #[must_use]
    pub fn method_with_sink<P, T, R, E, F, Fut>(self, name: &str, function: F) -> Self
    where
        P: DeserializeOwned + Send + 'static,
        T: Serialize,
        R: Serialize,
        E: Into<RpcError>,
        F: Fn(Ctx<S>, P, Sink<T>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
    {
        let function = Arc::new(function);
        self.method(name, move |ctx: Ctx<S>, params: P| {
            let sink = Sink::new(ctx.parts());
            function(ctx, params, sink)
        })
    }

    /// Registers `async fn(Ctx<S>, P) -> Result<impl Stream<Item = Result<T, E>>, E>` under a name: a subscription, which
    /// has no result of its own. Each item, an object or an array, is sent as the parameters of a JSON-RPC notification
    /// with the subscription's own name.
    ///
    /// It goes on until the caller cancels it or its lease runs out. It ends with `{"closed":"draining"}` when the service
    /// stops, and with null when the stream ends. The stream is polled for the next item only when the caller has room for
    /// it. A caller that accepts no frames gets `-32600`.
    #[must_use]
    pub fn subscription<P, T, E, St, F, Fut>(mut self, name: &str, function: F) -> Self
    where
        P: DeserializeOwned + Send + 'static,
        T: Serialize + Send,
        E: Into<RpcError> + Send,
        St: Stream<Item = Result<T, E>> + Send + 'static,
        F: Fn(Ctx<S>, P) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<St, E>> + Send + 'static,
    {
        self.in_parts.insert(name.to_owned(), Answers::Subscription);
        self.register(name, move |ctx, params| {
            let (parts, method) = (ctx.parts(), Arc::clone(&ctx.method));
            let params = ctx.listen().and_then(|()| Params::decode::<P>(params.as_ref()));
            let items = params.map(|params| function(ctx, params));
            async move {
                let items = items?.await.map_err(of_application)?;
                let notes = items.map(|item| Ok(note(&method, &item.map_err(of_application)?)?));
                parts.notify_all(notes).await?;
                to_raw_value(&()).map_err(RpcError::internal)
            }
        })
    }

    /// Registers a topic under a name: a subscription, as made by [`Router::subscription`], to everything published from then
    /// on. At most `room` notifications wait for each subscriber; `when_full` says what happens then.
    ///
    /// ```
    /// use sealwire::service::{Router, Topic, WhenFull};
    ///
    /// let prices = Topic::by_key(|(product, _): &(String, u32)| product.clone());
    /// let methods = Router::new(()).topic("shop/prices", &prices, 100, WhenFull::DropOldest);
    /// prices.publish(&("lamp".to_owned(), 25)).unwrap();
    /// assert_eq!(methods.names().collect::<Vec<_>>(), ["shop/prices"]);
    /// ```
    #[must_use]
    pub fn topic<T: Serialize + 'static>(
        mut self,
        name: &str,
        topic: &Topic<T>,
        room: usize,
        when_full: WhenFull,
    ) -> Self {
        let topic = topic.clone();
        self.in_parts.insert(name.to_owned(), Answers::Subscription);
        self.register(name, move |ctx, params| {
            let topic = topic.clone();
            async move {
                ctx.listen()?;
                Params::decode::<()>(params.as_ref())?;
                let (subscriber, method) = (topic.subscribe(room, when_full), &ctx.method);
                let notes = stream::unfold(subscriber, |subscriber| async move {
                    let note = match subscriber.next().await {
                        Next::Item(item) => note(method, &item),
                        Next::Missed(n) => note("rpc.missed", &Missed { n }),
                        Next::Full => return None,
                    };
                    Some((note.map_err(RpcError::from), subscriber))
                });
                ctx.parts().notify_all(notes).await?;
                subscription_end("full")
            }
        })
    }

    fn register<F, Fut>(mut self, name: &str, function: F) -> Self
    where
        F: Fn(Ctx<S>, Option<Params>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Box<RawValue>, RpcError>> + Send + 'static,
    {
        let method: Method<S> = Arc::new(move |ctx, params| Box::pin(function(ctx, params)));
        match self.checked(name) {
            Ok(()) => drop(self.methods.insert(name.to_owned(), method)),
            Err(wrong) => self.wrong.push(wrong),
        }
        self
    }

    /// Declares the parameters of a registered method, in the order of their positions, for rules on arguments. Policy
    /// files may declare them, too; both must agree.
    ///
    /// A method that is not registered is reported when the service is built.
    #[must_use]
    pub fn params(mut self, name: &str, params: impl IntoIterator<Item = Param>) -> Self {
        if self.methods.contains_key(name) {
            self.declared.insert(name.to_owned(), params.into_iter().collect());
        } else {
            self.wrong.push(RouterError::Undeclared(crate::name::shown(name)));
        }
        self
    }

    /// Declares a registered method idempotent: a call with an idempotency key runs once, in all replicas together, and gets the stored
    /// outcome if it comes again within the declared time; a [`Duration`], or an [`Idempotent`]. Calls without a key run as usual.
    ///
    /// The same call is one by the same agent, on behalf of the same subject, of this method, with the same key and, byte for byte, the
    /// same params. The result or the method's own error is stored, but no parts or notifications on the way. Streams and subscriptions
    /// cannot be declared idempotent. See SPEC.md §6 for what other calls with the key are told.
    ///
    /// A method that is not registered is reported when the service is built.
    ///
    /// ```
    /// use std::time::Duration;
    /// # use sealwire::RpcError;
    /// # use sealwire::service::{Ctx, Router};
    /// # async fn pay(_: Ctx, (amount,): (u64,)) -> Result<u64, RpcError> { Ok(amount) }
    ///
    /// let methods = Router::new(()).method("bank/pay", pay).idempotent("bank/pay", Duration::from_secs(24 * 3600));
    /// ```
    #[must_use]
    pub fn idempotent(mut self, name: &str, declared: impl Into<Idempotent>) -> Self {
        let declared = declared.into();
        if !self.methods.contains_key(name) {
            self.wrong.push(RouterError::Unregistered(crate::name::shown(name)));
        } else if self.in_parts.contains_key(name) {
            self.wrong.push(RouterError::InParts(name.to_owned()));
        } else if declared.is_valid() {
            self.idempotent.insert(name.to_owned(), declared);
        } else {
            self.wrong.push(RouterError::Keep(name.to_owned()));
        }
        self
    }

    /// Tells callers what a registered method does; see [`Description`].
    ///
    /// A method that is not registered is reported when the service is built, and so is a description above
    /// [`Description::MAX_BYTES`].
    #[must_use]
    pub fn describe(mut self, name: &str, description: Description) -> Self {
        match description.fault() {
            Some(fault) => self.wrong.push(RouterError::Description(crate::name::shown(name), fault)),
            None => self = self.described_by(name, Described::Once(Arc::new(description))),
        }
        self
    }

    /// Like [`Router::describe`], for descriptions that change while the service runs: `describe` is called for each caller that asks, and
    /// must not wait. While it returns `None`, the method is not listed; an invalid description is left out.
    #[must_use]
    pub fn describe_with(
        self,
        name: &str,
        describe: impl Fn() -> Option<Arc<Description>> + Send + Sync + 'static,
    ) -> Self {
        self.described_by(name, Described::Now(Arc::new(describe)))
    }

    fn described_by(mut self, name: &str, described: Described) -> Self {
        if self.methods.contains_key(name) {
            self.described.insert(name.to_owned(), described);
        } else {
            self.wrong.push(RouterError::NothingDescribed(crate::name::shown(name)));
        }
        self
    }

    /// All methods, as described to callers.
    pub(super) fn catalogue(&self) -> Catalogue {
        Catalogue::new(self.methods.keys().map(|name| {
            let entry = Entry {
                described: self.described.get(name).cloned(),
                answers: self.in_parts.get(name).copied().unwrap_or_default(),
                is_idempotent: self.idempotent.contains_key(name),
                bytes: AtomicUsize::default(),
            };
            (name.clone(), entry)
        }))
    }

    /// The methods that are declared idempotent.
    pub(super) fn idempotent_methods(&self) -> &BTreeMap<String, Idempotent> {
        &self.idempotent
    }

    /// The declared parameters of a method.
    pub(super) fn declared(&self, name: &str) -> Option<&[Param]> {
        self.declared.get(name).map(Vec::as_slice)
    }

    fn checked(&self, name: &str) -> Result<(), RouterError> {
        let name = MethodName::new(name)?;
        if name.is_reserved() {
            return Err(RouterError::Reserved(name.to_string()));
        }
        match self.methods.keys().find(|known| known.replace('/', ".") == name.in_subject()) {
            Some(known) => Err(RouterError::Ambiguous(known.clone(), name.to_string())),
            None => Ok(()),
        }
    }

    /// The registered names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.methods.keys().map(String::as_str)
    }

    /// What is wrong with the registrations.
    pub(super) fn wrong(&self) -> &[RouterError] {
        &self.wrong
    }
}

impl<S> Clone for Router<S> {
    fn clone(&self) -> Self {
        Self {
            state: Arc::clone(&self.state),
            methods: self.methods.clone(),
            declared: self.declared.clone(),
            idempotent: self.idempotent.clone(),
            described: self.described.clone(),
            in_parts: self.in_parts.clone(),
            wrong: self.wrong.clone(),
        }
    }
}

impl<S> fmt::Debug for Router<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router").field("methods", &self.methods.keys()).finish_non_exhaustive()
    }
}

/// The inner seam: an application may put its own [`tower::Layer`]s around this. They see permitted calls only.
#[derive(Debug)]
pub(super) struct Dispatch<S>(pub(super) Arc<Router<S>>);

impl<S: Send + Sync + 'static> Run for Dispatch<S> {
    fn run(&self, permitted: Permitted) -> MethodFuture {
        let (call, permit) = permitted.into_parts();
        let Some(method) = self.0.methods.get(&*call.method) else {
            // The policy knows the registered methods, so a layer or a policy made this one up.
            let unknown = RpcError::with_code(code::METHOD_NOT_FOUND, "Method not found");
            return Box::pin(std::future::ready(Err(unknown)));
        };
        let ctx = Ctx {
            state: Arc::clone(&self.0.state),
            message: call.message,
            id: call.id,
            method: call.method,
            permit: Arc::new(permit),
        };
        method(ctx, call.params)
    }
}

/// What a method knows about the call it serves.
///
/// Clones share everything; a clone is not a second permit, and nothing can be dispatched with it.
pub struct Ctx<S = ()> {
    state: Arc<S>,
    message: Arc<Message>,
    id: Option<Id>,
    method: Arc<str>,
    permit: Arc<Permit>,
}

impl<S> Ctx<S> {
    /// The state given to [`Router::new`].
    #[must_use]
    pub fn state(&self) -> &S {
        &self.state
    }

    /// Who calls: the agent, on whose behalf, and with which roles of the token.
    #[must_use]
    pub fn caller(&self) -> &Caller {
        &self.message.caller
    }

    /// The name under which the method was called.
    #[must_use]
    pub fn method(&self) -> &str {
        &self.method
    }

    /// Which rule of which policy revision allowed this call.
    #[must_use]
    pub fn permit(&self) -> &Permit {
        &self.permit
    }

    /// When the caller stops waiting, in milliseconds since the Unix epoch. The method is cancelled then. A caller that
    /// accepts frames may move the deadline while the method runs.
    #[must_use]
    pub fn deadline_ms(&self) -> u64 {
        self.message.open.deadline_ms()
    }

    /// The time left at `now_ms` (milliseconds since the Unix epoch).
    #[must_use]
    pub fn remaining(&self, now_ms: u64) -> Duration {
        Duration::from_millis(self.deadline_ms().saturating_sub(now_ms))
    }

    /// The caller's idempotency key, if it sent one. The library deduplicates by it for methods declared idempotent
    /// ([`Router::idempotent`]), and for no others.
    #[must_use]
    pub fn idempotency_key(&self) -> Option<&str> {
        self.message.idempotency_key.as_deref()
    }

    /// The caller's W3C `traceparent` (version 00), if it sent one. No decision depends on it.
    #[must_use]
    pub fn traceparent(&self) -> Option<&str> {
        self.message.traceparent.as_deref()
    }

    /// Waits until nobody waits for the method any more: the caller cancels the call, a new policy forbids it, its token or
    /// key is revoked, its frames are not acknowledged, or, for a subscription, the service stops. Also completes when the
    /// message is answered or given up, so that a task that the method left behind can end with it.
    ///
    /// A method that uses this, or has called [`Ctx::is_cancelled`], gets one more second to clean up; what it returns is
    /// not sent. After that second, its future is dropped wherever it waits. The future of any other method is dropped at
    /// once, and so is every future when the deadline passes.
    ///
    /// Cancel safe.
    pub async fn cancelled(&self) {
        self.message.open.watch();
        self.message.open.over().await;
        self.message.open.notice();
    }

    /// Whether nobody waits for the method any more; see [`Ctx::cancelled`]. For methods that compute for long without awaiting.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        let open = &self.message.open;
        open.watch();
        if open.is_over() {
            open.notice();
        }
        open.is_over()
    }

    /// Whether the caller accepts notifications and questions while its call runs.
    #[must_use]
    pub fn takes_frames(&self) -> bool {
        self.message.open.frames().is_some()
    }

    /// Tells the caller how far the method is: `done`, of `total` if that is known, and a few words. Sent as the
    /// notification `rpc.progress`; does nothing if the caller accepts no frames. While the caller has no room, up to 50
    /// wait and leave together; beyond that the oldest is dropped, since the next one says more.
    pub fn progress(&self, done: f64, total: Option<f64>, message: Option<&str>) {
        self.parts().progress(done, total, message);
    }

    /// Sends a notification to the caller; `params` is an object or an array. Waits while the caller has no room. Does
    /// nothing if the caller accepts no frames.
    ///
    /// # Errors
    /// [`FrameError`]; nothing is sent. [`FrameError::Ended`] is not the method's fault.
    ///
    /// Cancel safety: a dropped future has sent nothing.
    pub fn notify<T: Serialize + ?Sized>(
        &self,
        method: &str,
        params: &T,
    ) -> impl Future<Output = Result<(), FrameError>> + Send + use<S, T> {
        self.parts().notify(method, params)
    }

    /// Asks the caller a question, and waits for its answer; `params` is an object or an array. The calling program must be
    /// prepared for it.
    ///
    /// # Errors
    /// [`AskError`].
    ///
    /// Cancel safety: a dropped future may have asked; the answer is ignored.
    pub async fn ask<R: DeserializeOwned>(
        &self,
        method: &str,
        params: &(impl Serialize + ?Sized),
    ) -> Result<R, AskError> {
        self.parts().ask(method, params).await
    }

    /// Fetches an argument that the call names by its digest: the bytes, once they are complete and their size and digest are verified.
    /// Waits for room, 30 s at most; see [`AttachmentLimits`](super::AttachmentLimits). The bytes count until their last clone is dropped.
    ///
    /// # Errors
    /// [`AttachmentError`]. `?` turns it into an answer that tells the caller what is wrong.
    ///
    /// Cancel safety: a dropped future gives its room back.
    pub async fn attachment(&self, attachment: &Attachment) -> Result<Bytes, AttachmentError> {
        let message = &*self.message;
        message.attachments.fetch(&message.caller.agent, &self.parts(), attachment).await
    }

    /// Marks the call as a subscription, for which the caller must accept frames.
    fn listen(&self) -> Result<(), RpcError> {
        let open = &self.message.open;
        open.is_a_subscription();
        if open.frames().is_none() {
            // The call may be part of a batch: the other calls go on.
            return Err(RpcError::with_code(
                code::INVALID_REQUEST,
                "invalid request: this method is a subscription: call it with a window for frames (`win`)",
            ));
        }
        Ok(())
    }

    fn parts(&self) -> Parts {
        Parts::new(Arc::clone(&self.message.open), self.id.clone())
    }

    /// The message's nonce as text. Together with the agent, it identifies this message in every log line.
    #[must_use]
    pub fn message_id(&self) -> &str {
        &self.message.id
    }
}

impl<S> Clone for Ctx<S> {
    fn clone(&self) -> Self {
        Self {
            state: Arc::clone(&self.state),
            message: Arc::clone(&self.message),
            id: self.id.clone(),
            method: Arc::clone(&self.method),
            permit: Arc::clone(&self.permit),
        }
    }
}

impl<S> fmt::Debug for Ctx<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ctx")
            .field("agent", &self.message.caller.agent)
            .field("method", &self.method)
            .field("permit", &self.permit)
            .finish_non_exhaustive()
    }
}

impl From<Infallible> for RpcError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// An error from a layer around the methods. An [`RpcError`] inside is passed on; anything else is internal.
impl From<Box<dyn std::error::Error + Send + Sync>> for RpcError {
    fn from(error: Box<dyn std::error::Error + Send + Sync>) -> Self {
        match error.downcast::<Self>() {
            Ok(error) => *error,
            Err(error) => Self::internal(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn nothing(_: Ctx, (): ()) -> Result<(), RpcError> {
        Ok(())
    }

    /// SPEC.md §3.
    #[test]
    fn ambiguous_reserved_and_malformed_names_are_reported() {
        let router = Router::new(())
            .method("math/add", nothing)
            .method("math.add", nothing)
            .method("rpc.can", nothing)
            .method("a//b", nothing);
        assert!(matches!(router.wrong(), [RouterError::Ambiguous(..), RouterError::Reserved(_), RouterError::Name(_)]));
        assert_eq!(router.names().collect::<Vec<_>>(), ["math/add"]);
    }
}
