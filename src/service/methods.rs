//! The methods of a service behind one type, whatever layers are around them.
//! Never accepts anything but a permitted call.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use serde_json::value::RawValue;
use tower::ServiceExt as _;

use super::authorize::Permitted;
use crate::rpc::RpcError;

/// Runs permitted calls: the router, with the layers that were put around it so far.
///
/// Clones share it.
#[derive(Clone)]
pub struct MethodService(Arc<dyn Run>);

/// The future of a method that runs.
pub(super) type MethodFuture = BoxFuture<'static, Result<Box<RawValue>, RpcError>>;

/// Not tower's own trait, which would require a clone for each call and box its future once more.
pub(super) trait Run: Send + Sync {
    fn run(&self, permitted: Permitted) -> MethodFuture;
}

/// What a layer returned.
struct Layered<S>(S);

impl MethodService {
    pub(super) fn new(methods: impl Run + 'static) -> Self {
        Self(Arc::new(methods))
    }

    /// Wraps the service that a layer returned.
    pub(super) fn layered<S>(service: S) -> Self
    where
        S: tower::Service<Permitted, Response = Box<RawValue>> + Clone + Send + Sync + 'static,
        S::Error: Into<RpcError>,
        S::Future: Send + 'static,
    {
        Self::new(Layered(service))
    }

    /// Starts the method. A panic in here counts as the method's, like one in the future.
    pub(super) fn run(&self, permitted: Permitted) -> MethodFuture {
        self.0.run(permitted)
    }
}

impl<S> Run for Layered<S>
where
    S: tower::Service<Permitted, Response = Box<RawValue>> + Clone + Send + Sync + 'static,
    S::Error: Into<RpcError>,
    S::Future: Send + 'static,
{
    fn run(&self, permitted: Permitted) -> MethodFuture {
        let run = self.0.clone().oneshot(permitted);
        Box::pin(async move { run.await.map_err(|error| error.into().of_layer()) })
    }
}

impl tower::Service<Permitted> for MethodService {
    type Response = Box<RawValue>;
    type Error = RpcError;
    type Future = MethodFuture;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), RpcError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, permitted: Permitted) -> Self::Future {
        self.run(permitted)
    }
}

impl fmt::Debug for MethodService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MethodService(..)")
    }
}
