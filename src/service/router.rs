//! From a permitted call to the function that the application registered for it.
//! Never sees a call that no policy allowed.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use futures_util::{Stream, stream};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::authorize::Permitted;
use super::catalogue::{Answers, Catalogue, Entry};
use super::ctx::Ctx;
use super::description::{Described, Description};
use super::handler::{self, Handler};
use super::idempotency::Idempotent;
use super::method::Method;
use super::methods::{MethodFuture, Run};
use super::parts::{Sink, note};
use super::streams::subscription_end;
use super::topic::{Next, Topic, WhenFull};
use crate::name::MethodName;
use crate::policy::{Methods, Param};
use crate::rpc::{Params, RpcError, code};

/// The methods of a service, with the state they share.
///
/// ```
/// use sealwire::RpcError;
/// use sealwire::{Ctx, Router};
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
    methods: BTreeMap<String, Handler<S>>,
    declared: BTreeMap<String, Declared>,
    idempotent: BTreeMap<String, Idempotent>,
    described: BTreeMap<String, Described>,
    /// Streams and subscriptions.
    in_parts: BTreeMap<String, Answers>,
    wrong: Vec<RouterError>,
}

/// The parameters of a method.
#[derive(Debug, Clone)]
struct Declared {
    params: Vec<Param>,
    /// Whether they have no positions.
    by_name: bool,
}

/// How many notifications a subscriber missed because it was too slow.
#[derive(Serialize)]
struct Missed {
    n: u64,
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
    /// Outcomes would be kept, or tasks would run, for less than a second or more than a week.
    #[error("outcomes of `{0}` are kept, and its tasks run, for 1 s to 7 days: declare times in that range")]
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
        self.register(name, handler::method(function))
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
    /// use sealwire::RpcError;
    /// use sealwire::{Ctx, Router};
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
        self.register(name, handler::stream(function))
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
        self.register(name, handler::with_sink(function))
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
        self.register(name, handler::subscription(function))
    }

    /// Registers a topic under a name: a subscription, as made by [`Router::subscription`], to everything published from then
    /// on. At most `room` notifications wait for each subscriber; `when_full` says what happens then.
    ///
    /// ```
    /// use sealwire::{Router, Topic, WhenFull};
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
        let handler = handler::raw(move |ctx: Ctx<S>, params| {
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
        });
        self.register(name, handler)
    }

    /// Registers a method with its facts: its parameters, of which [`Router::params`] tells, what [`Router::describe`] tells callers, and
    /// whether it is idempotent. See [`Method`].
    #[must_use]
    pub fn add(mut self, name: &str, method: Method<S>) -> Self {
        let Method { handler, answers, params, about, idempotent } = method;
        let known = self.wrong.len();
        if answers != Answers::Result {
            self.in_parts.insert(name.to_owned(), answers);
        }
        self = self.register(name, handler);
        if self.wrong.len() > known {
            // What is wrong with the name is wrong once.
            return self;
        }
        self = self.params(name, params).describe(name, about);
        match idempotent {
            Some(declared) => self.idempotent(name, declared),
            None => self,
        }
    }

    fn register(mut self, name: &str, handler: Handler<S>) -> Self {
        match self.checked(name) {
            Ok(()) => drop(self.methods.insert(name.to_owned(), handler)),
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
        self.declare(name, Declared { params: params.into_iter().collect(), by_name: false });
        self
    }

    /// The same for a method that takes its parameters by name only: their order says nothing, and policy files may declare them in any.
    #[must_use]
    pub fn named_params(mut self, name: &str, params: impl IntoIterator<Item = Param>) -> Self {
        self.declare(name, Declared { params: params.into_iter().collect(), by_name: true });
        self
    }

    fn declare(&mut self, name: &str, declared: Declared) {
        if self.methods.contains_key(name) {
            self.declared.insert(name.to_owned(), declared);
        } else {
            self.wrong.push(RouterError::Undeclared(crate::name::shown(name)));
        }
    }

    /// Declares a registered method idempotent: a call with an idempotency key runs once, in all replicas together, and gets the stored
    /// outcome if it comes again within the declared time; a [`Duration`](std::time::Duration), or an [`Idempotent`]. Calls without a
    /// key run as usual.
    ///
    /// The same call is one by the same agent, on behalf of the same subject, of this method, with the same key and, byte for byte, the
    /// same params. The result or the method's own error is stored, but no parts or notifications on the way. Streams and subscriptions
    /// cannot be declared idempotent. See SPEC.md §6.1 for what other calls with the key are told.
    ///
    /// A method that is not registered is reported when the service is built.
    ///
    /// ```
    /// use std::time::Duration;
    /// # use sealwire::RpcError;
    /// # use sealwire::{Ctx, Router};
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
                task: self.idempotent.get(name).and_then(Idempotent::task),
                bytes: AtomicUsize::default(),
            };
            (name.clone(), entry)
        }))
    }

    /// The methods that are declared idempotent.
    pub(super) fn idempotent_methods(&self) -> &BTreeMap<String, Idempotent> {
        &self.idempotent
    }

    /// The methods with their declared parameters, as a policy is checked against them. Those of Sealwire itself (`rpc.…`) are added when
    /// the service is built.
    #[must_use]
    pub fn policy_methods(&self) -> Methods {
        self.methods.keys().filter_map(|name| MethodName::new(name).ok()).fold(Methods::new(), |methods, name| {
            match self.declared.get(name.as_str()) {
                Some(Declared { params, by_name: false }) => methods.with_params(name, params.iter().cloned()),
                Some(Declared { params, by_name: true }) => methods.with_named_params(name, params.iter().cloned()),
                None => methods.with(name),
            }
        })
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
            trace: call.trace,
        };
        method(ctx, call.params)
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

    /// SPEC.md §3, SPEC.md §3.1.
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
