//! Dialects that other packages add.
//! Never sees a request that was not admitted, except its head.

use std::fmt;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use hyper::Response;
use hyper::http::request::Parts;

use super::connections::Body;
use super::head::CheckedHead;
use super::pipeline::admission::{Admitted, Service};
use super::refusal::Refusal;

/// A dialect that is not part of this package.
pub trait Dialect: fmt::Debug + Send + Sync {
    /// Whether refusals of this request have the form of the dialect.
    fn is_for(&self, head: &Parts) -> bool;

    /// Puts a refusal into that form.
    fn translate(&self, refusal: Refusal) -> Refusal;

    /// The response to a request that needs no caller; `None` if it needs one.
    fn respond_to_anyone(&self, head: &CheckedHead) -> Option<Result<Response<Body>, Refusal>>;

    /// What a request is addressed to; `None` if its path is none of the dialect's.
    fn route(&self, head: &CheckedHead) -> Option<Result<Route<'_>, Refusal>>;

    /// Responds to a request, with the text of its body if its route has one.
    fn respond<'a>(
        &'a self,
        admitted: Admitted,
        text: Option<Bytes>,
        head: &'a CheckedHead,
    ) -> BoxFuture<'a, Result<Response<Body>, Refusal>>;

    /// Notes the port that the gateway listens on.
    fn set_port(&self, port: u16);

    /// Forgets what is no longer needed; every few seconds.
    fn tidy(&self);

    /// Drops all calls in progress, which cancels them at the services.
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// What a request is addressed to.
#[derive(Debug, Clone, Copy)]
pub struct Route<'a> {
    /// The service.
    pub service: &'a Service,
    /// Whether it is a `POST` whose body is read; anything else is a `GET`.
    pub has_body: bool,
}
