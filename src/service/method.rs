//! A method with everything that is to be said of it, in one place.
//! Never says it twice: parameters come from the type that takes them.

use std::future::Future;

use futures_util::Stream;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::catalogue::Answers;
use super::ctx::Ctx;
use super::description::Description;
use super::handler::{self, Handler};
use super::idempotency::Idempotent;
use super::param_list::ParamList;
use super::parts::Sink;
use crate::policy::Param;
use crate::rpc::RpcError;

/// A method and its facts, for [`Router::add`](super::Router::add): the parameters by their type, which derives [`Params`](crate::Params),
/// the rest by the functions below.
///
/// ```
/// use std::time::Duration;
///
/// use sealwire::{Ctx, Params, Router, RpcError, method};
///
/// #[derive(serde::Deserialize, Params)]
/// struct Payment {
///     /// Whom to pay.
///     to: String,
///     /// Cents.
///     amount: i64,
/// }
///
/// async fn pay(_: Ctx, p: Payment) -> Result<i64, RpcError> { Ok(p.amount) }
///
/// let day = Duration::from_secs(24 * 3600);
/// let methods = Router::new(()).add("bank/pay", method(pay).describe("Pays somebody.").idempotent(day));
/// assert_eq!(methods.names().collect::<Vec<_>>(), ["bank/pay"]);
/// ```
#[must_use = "a method is registered by `Router::add`"]
pub struct Method<S = ()> {
    pub(super) handler: Handler<S>,
    pub(super) answers: Answers,
    pub(super) params: Vec<Param>,
    pub(super) about: Description,
    pub(super) idempotent: Option<Idempotent>,
}

/// `async fn(Ctx<S>, P) -> Result<R, E>` as a method with facts: see [`Method`].
pub fn method<S, P, R, E, F, Fut>(function: F) -> Method<S>
where
    P: ParamList + DeserializeOwned + Send + 'static,
    R: Serialize,
    E: Into<RpcError>,
    F: Fn(Ctx<S>, P) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<R, E>> + Send + 'static,
{
    Method::new(handler::method(function), Answers::Result, P::params())
}

impl<S> Method<S> {
    fn new(handler: Handler<S>, answers: Answers, params: Vec<Param>) -> Self {
        Self { handler, answers, params, about: Description::default(), idempotent: None }
    }

    /// A method whose result comes in parts: see [`Router::stream`](super::Router::stream).
    pub fn stream<P, T, E, St, F, Fut>(function: F) -> Self
    where
        P: ParamList + DeserializeOwned + Send + 'static,
        T: Serialize + Send,
        E: Into<RpcError> + Send,
        St: Stream<Item = Result<T, E>> + Send + 'static,
        F: Fn(Ctx<S>, P) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<St, E>> + Send + 'static,
    {
        Self::new(handler::stream(function), Answers::Stream, P::params())
    }

    /// A method with a result that sends parts of it on the way: see [`Router::method_with_sink`](super::Router::method_with_sink).
    pub fn with_sink<P, T, R, E, F, Fut>(function: F) -> Self
    where
        P: ParamList + DeserializeOwned + Send + 'static,
        T: Serialize,
        R: Serialize,
        E: Into<RpcError>,
        F: Fn(Ctx<S>, P, Sink<T>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
    {
        Self::new(handler::with_sink(function), Answers::Result, P::params())
    }

    /// A subscription: see [`Router::subscription`](super::Router::subscription).
    pub fn subscription<P, T, E, St, F, Fut>(function: F) -> Self
    where
        P: ParamList + DeserializeOwned + Send + 'static,
        T: Serialize + Send,
        E: Into<RpcError> + Send,
        St: Stream<Item = Result<T, E>> + Send + 'static,
        F: Fn(Ctx<S>, P) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<St, E>> + Send + 'static,
    {
        Self::new(handler::subscription(function), Answers::Subscription, P::params())
    }

    /// What it does, in a sentence or a few. With everything below, at most [`Description::MAX_BYTES`].
    pub fn describe(mut self, text: impl Into<String>) -> Self {
        self.about.text = Some(text.into());
        self
    }

    /// Its result, as a JSON Schema (2020-12).
    pub fn result(mut self, schema: impl Into<Value>) -> Self {
        self.about = self.about.result(schema);
        self
    }

    /// An example call, with its parameters by name and its result.
    pub fn example(mut self, params: impl Into<Value>, result: impl Into<Value>) -> Self {
        self.about = self.about.example(params, result);
        self
    }

    /// Runs once for each idempotency key: see [`Router::idempotent`](super::Router::idempotent).
    pub fn idempotent(mut self, declared: impl Into<Idempotent>) -> Self {
        self.idempotent = Some(declared.into());
        self
    }
}

impl<S> std::fmt::Debug for Method<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Method").field("params", &self.params).field("about", &self.about).finish_non_exhaustive()
    }
}
