//! The functions that an application registers, in the one form in which they are called.
//! Never decides whether one is called.

use std::future::Future;
use std::sync::Arc;

use futures_util::{Stream, StreamExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};

use super::ctx::Ctx;
use super::methods::MethodFuture;
use super::parts::{Sink, note};
use crate::rpc::{Params, RpcError};

/// A registered function.
pub(super) type Handler<S> = Arc<dyn Fn(Ctx<S>, Option<Params>) -> MethodFuture + Send + Sync>;

/// A function on undecoded parameters.
pub(super) fn raw<S, F, Fut>(function: F) -> Handler<S>
where
    F: Fn(Ctx<S>, Option<Params>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Box<RawValue>, RpcError>> + Send + 'static,
{
    Arc::new(move |ctx, params| Box::pin(function(ctx, params)))
}

/// See [`Router::method`](super::Router::method).
pub(super) fn method<S, P, R, E, F, Fut>(function: F) -> Handler<S>
where
    P: DeserializeOwned + Send + 'static,
    R: Serialize,
    E: Into<RpcError>,
    F: Fn(Ctx<S>, P) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<R, E>> + Send + 'static,
{
    raw(move |ctx, params| {
        let params = Params::decode::<P>(params.as_ref());
        let result = params.map(|params| function(ctx, params));
        async move {
            let result = result?.await.map_err(of_application)?;
            to_raw_value(&result).map_err(RpcError::internal)
        }
    })
}

/// See [`Router::stream`](super::Router::stream).
pub(super) fn stream<S, P, T, E, St, F, Fut>(function: F) -> Handler<S>
where
    P: DeserializeOwned + Send + 'static,
    T: Serialize + Send,
    E: Into<RpcError> + Send,
    St: Stream<Item = Result<T, E>> + Send + 'static,
    F: Fn(Ctx<S>, P) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<St, E>> + Send + 'static,
{
    raw(move |ctx, params| {
        let params = Params::decode::<P>(params.as_ref());
        let parts = ctx.parts();
        let items = params.map(|params| function(ctx, params));
        async move {
            let items = items?.await.map_err(of_application)?;
            parts.all(items.map(|item| item.map_err(of_application))).await
        }
    })
}

/// See [`Router::method_with_sink`](super::Router::method_with_sink).
pub(super) fn with_sink<S, P, T, R, E, F, Fut>(function: F) -> Handler<S>
where
    P: DeserializeOwned + Send + 'static,
    T: Serialize,
    R: Serialize,
    E: Into<RpcError>,
    F: Fn(Ctx<S>, P, Sink<T>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<R, E>> + Send + 'static,
{
    method(move |ctx: Ctx<S>, params: P| {
        let sink = Sink::new(ctx.parts());
        function(ctx, params, sink)
    })
}

/// See [`Router::subscription`](super::Router::subscription).
pub(super) fn subscription<S, P, T, E, St, F, Fut>(function: F) -> Handler<S>
where
    P: DeserializeOwned + Send + 'static,
    T: Serialize + Send,
    E: Into<RpcError> + Send,
    St: Stream<Item = Result<T, E>> + Send + 'static,
    F: Fn(Ctx<S>, P) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<St, E>> + Send + 'static,
{
    raw(move |ctx: Ctx<S>, params| {
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

/// Marks an error as the application's own.
fn of_application(error: impl Into<RpcError>) -> RpcError {
    error.into().of_application()
}
