//! JSON-RPC 2.0 over WebSocket (RFC 6455): a socket carries several calls at a time, and their answers.
//! Never keeps a socket open that its caller would no longer be allowed to open.

mod calls;
mod frames;
mod handshake;
mod session;
mod tickets;

use std::sync::Arc;

use hyper::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_PROTOCOL, UPGRADE,
};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode};

use self::frames::Ending;
use self::session::Session;
pub(super) use self::tickets::{Granted, Ticket, Tickets};
use super::config::Expose;
use super::connections::{Body, Switch};
use super::gate::single;
use super::principal::Principal;
use super::refusal::Refusal;
use super::{Door, answered, only};

impl Door {
    /// `POST /rpc/<service>/ws/ticket`.
    pub(super) fn ticket(
        &self,
        principal: &Principal,
        expose: &Expose,
        head: &Parts,
    ) -> Result<Response<Body>, Refusal> {
        only(&head.method, Method::POST)?;
        if single(&head.headers, &CONTENT_LENGTH)?.is_some_and(|length| length != "0") {
            return Err(Refusal::bad(StatusCode::BAD_REQUEST, "a request for a ticket must not have a body").closing());
        }
        drop(self.admission.admit(principal, expose.service.as_str())?);
        let granted = self.callers.ticket(principal, expose, head)?;
        // Cannot fail: every part of it can be serialized.
        Ok(answered(StatusCode::OK, "application/json", serde_json::to_vec(&granted).unwrap_or_default()))
    }

    /// `GET /rpc/<service>/ws`.
    pub(super) fn socket(
        self: &Arc<Self>,
        principal: Principal,
        expose: &Expose,
        head: &Parts,
    ) -> Result<Response<Body>, Refusal> {
        let accepted = handshake::accept(head)?;
        if *self.stopping.borrow() {
            return Err(Refusal::stopping());
        }
        // Charged as a call, since opening a socket is as much work as one.
        drop(self.admission.admit(&principal, expose.service.as_str())?);
        let place = self.admission.open_socket(&principal, expose.service.as_str())?;
        let session = Session::new(Arc::clone(self), principal, expose.clone(), accepted.dialect);
        let switch = Switch::new(async move |socket, stopping| {
            let ending = frames::serve(socket, |incoming, outbox| session.run(incoming, outbox, stopping)).await;
            drop(place);
            if ending == Ending::CutOff {
                // Never completes, so the connection counts among those that did not end.
                std::future::pending().await
            }
        });
        let mut answer = answered(StatusCode::SWITCHING_PROTOCOLS, "text/plain", "");
        answer.extensions_mut().insert(switch);
        let headers = answer.headers_mut();
        headers.remove(CONTENT_TYPE);
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(SEC_WEBSOCKET_ACCEPT, accepted.key);
        if let Some(protocol) = accepted.protocol {
            headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol));
        }
        Ok(answer)
    }
}
