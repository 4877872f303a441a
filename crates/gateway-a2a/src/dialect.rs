//! Which requests are A2A, and what each is addressed to.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use hyper::Response;
use hyper::http::request::Parts;
use sealwire_gateway::dialect::{Admitted, Body, CheckedHead, Dialect, Refusal, Route};

use crate::agents::A2a;
use crate::fault::ToA2a as _;

impl Dialect for A2a {
    fn is_for(&self, head: &Parts) -> bool {
        head.uri.path().starts_with("/a2a/")
    }

    fn translate(&self, refusal: Refusal) -> Refusal {
        refusal.to_a2a()
    }

    fn respond_to_anyone(&self, head: &CheckedHead) -> Option<Result<Response<Body>, Refusal>> {
        self.public_card(head)
    }

    fn route(&self, head: &CheckedHead) -> Option<Result<Route<'_>, Refusal>> {
        let mut steps = head.uri.path().split('/').skip(1);
        match (steps.next(), steps.next(), steps.next()) {
            (Some("a2a"), Some(service), None) => {
                Some(self.agent(service).map(|service| Route { service, has_body: true }))
            }
            (Some("a2a" | ".well-known"), ..) => {
                Some(self.agent_of_card(head).map(|service| Route { service, has_body: false }))
            }
            _ => None,
        }
    }

    fn respond<'a>(
        &'a self,
        admitted: Admitted,
        text: Option<Bytes>,
        head: &'a CheckedHead,
    ) -> BoxFuture<'a, Result<Response<Body>, Refusal>> {
        match text {
            Some(text) => Box::pin(async move { self.respond_to_message(admitted, &text, head).await }),
            None => Box::pin(self.card(admitted, head)),
        }
    }

    fn set_port(&self, port: u16) {
        self.port.get_or_init(|| port);
    }

    fn tidy(&self) {
        self.forget_old();
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.cancel_all())
    }
}
