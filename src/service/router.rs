//! From a permitted call to the function that the application registered for it.
//! Never sees a call that no policy allowed.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};

use super::calls::Message;
use crate::auth::Caller;
use crate::name::MethodName;
use crate::policy::{Param, Permit, Permitted};
use crate::rpc::{Params, RpcError, code};

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
    wrong: Vec<RouterError>,
}

type Method<S> =
    Arc<dyn Fn(Ctx<S>, Option<Params>) -> BoxFuture<'static, Result<Box<RawValue>, RpcError>> + Send + Sync>;

/// A method that cannot be registered. Reported when the service is built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RouterError {
    /// The name is outside the grammar.
    #[error(transparent)]
    Name(#[from] crate::name::NameError),
    /// A first token `rpc` belongs to JSON-RPC itself (JSON-RPC 2.0 §4.1).
    #[error("method `{0}`: names that begin with `rpc` are reserved")]
    Reserved(String),
    /// Parameters of a method that is not registered.
    #[error("parameters are declared for `{0}`, which is not registered: register the method first")]
    Undeclared(String),
    /// Two names that are one in a subject, where `/` is written as `.`.
    #[error("methods `{0}` and `{1}` are the same in a subject: rename one")]
    Ambiguous(String, String),
}

impl<S: Send + Sync + 'static> Router<S> {
    /// A router without methods, over a state that every method can reach with [`Ctx::state`].
    #[must_use]
    pub fn new(state: S) -> Self {
        Self { state: Arc::new(state), methods: BTreeMap::new(), declared: BTreeMap::new(), wrong: Vec::new() }
    }

    /// Registers `async fn(Ctx<S>, P) -> Result<R, E>` under a name.
    ///
    /// `P` takes named and positional parameters alike when it is a derived struct. A name that cannot be registered is
    /// reported when the service is built.
    #[must_use]
    pub fn method<P, R, E, F, Fut>(mut self, name: &str, function: F) -> Self
    where
        P: DeserializeOwned + Send + 'static,
        R: Serialize,
        E: Into<RpcError>,
        F: Fn(Ctx<S>, P) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
    {
        let function = Arc::new(function);
        let method: Method<S> = Arc::new(move |ctx, params| {
            let function = Arc::clone(&function);
            Box::pin(async move {
                let params = Params::decode::<P>(params.as_ref())?;
                let result = function(ctx, params).await.map_err(|error| error.into().of_application())?;
                to_raw_value(&result).map_err(RpcError::internal)
            })
        });
        match self.checked(name) {
            Ok(()) => drop(self.methods.insert(name.to_owned(), method)),
            Err(wrong) => self.wrong.push(wrong),
        }
        self
    }

    /// Declares the parameters of a registered method, in the order of their positions, for rules on arguments. Policy
    /// files may declare them as well; both must agree.
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

impl<S> Clone for Dispatch<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: Send + Sync + 'static> tower::Service<Permitted> for Dispatch<S> {
    type Response = Box<RawValue>;
    type Error = RpcError;
    type Future = BoxFuture<'static, Result<Box<RawValue>, RpcError>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), RpcError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, permitted: Permitted) -> Self::Future {
        let (call, permit) = permitted.into_parts();
        let Some(method) = self.0.methods.get(&call.method).map(Arc::clone) else {
            // The policy knows the registered methods, so this is a method that a layer or a policy made up.
            return Box::pin(async { Err(RpcError::with_code(code::METHOD_NOT_FOUND, "Method not found")) });
        };
        let ctx = Ctx {
            state: Arc::clone(&self.0.state),
            message: call.message,
            method: call.method.into(),
            permit: Arc::new(permit),
        };
        // The function is called inside the future, so that a panic in it is caught with the others.
        Box::pin(async move { method(ctx, call.params).await })
    }
}

/// What a method knows about the call it serves.
///
/// Cloning shares everything; it does not make a second permit, and nothing can be dispatched with it.
pub struct Ctx<S = ()> {
    state: Arc<S>,
    message: Arc<Message>,
    method: Arc<str>,
    permit: Arc<Permit>,
}

impl<S> Ctx<S> {
    /// The state given to [`Router::new`].
    #[must_use]
    pub fn state(&self) -> &S {
        &self.state
    }

    /// Who calls: the agent, on whose behalf, with which roles of the token.
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

    /// When the caller stops waiting, in milliseconds since the Unix epoch. The method is cancelled then.
    #[must_use]
    pub fn deadline_ms(&self) -> u64 {
        self.message.deadline_ms
    }

    /// The time left at `now_ms` (milliseconds since the Unix epoch).
    #[must_use]
    pub fn remaining(&self, now_ms: u64) -> Duration {
        Duration::from_millis(self.message.deadline_ms.saturating_sub(now_ms))
    }

    /// The caller's idempotency key, if it sent one. The library does not deduplicate by it.
    #[must_use]
    pub fn idempotency_key(&self) -> Option<&str> {
        self.message.idempotency_key.as_deref()
    }

    /// The message's nonce as text. Together with the agent it names this message in every log line.
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

/// What a layer around the methods failed with. An [`RpcError`] inside is handed on; anything else is internal.
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
