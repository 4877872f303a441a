//! JSON-RPC 2.0 over WebSocket (RFC 6455): a socket carries several calls at a time, and their answers.
//! Never keeps a socket open that its caller would no longer be allowed to open.

mod calls;
mod frames;
mod handshake;
mod messages;
mod session;

use std::sync::Arc;
use std::time::Duration;

use hyper::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_PROTOCOL,
    TRANSFER_ENCODING, UPGRADE,
};
use hyper::{Method, Response, StatusCode};

use self::frames::Ending;
pub(super) use self::handshake::{Accepted, accept};
use self::session::Session;
use super::connections::{Body, UpgradeHandler};
use super::fields::single;
use super::head::CheckedHead;
use super::pipeline::admission::{Admitted, AdmittedSocket};
use super::refusal::{Refusal, require_method};
use super::response::response;

/// Refuses a request for a ticket with another method, or with a body.
pub(super) fn check_ticket_request(head: &CheckedHead) -> Result<(), Refusal> {
    require_method(&head.method, Method::POST)?;
    if head.headers.contains_key(TRANSFER_ENCODING)
        || single(&head.headers, &CONTENT_LENGTH)?.is_some_and(|length| length != "0")
    {
        return Err(Refusal::bad(StatusCode::BAD_REQUEST, "a request for a ticket must not have a body").closing());
    }
    Ok(())
}

/// `POST /rpc/<service>/ws/ticket`.
pub(super) fn ticket(admitted: &Admitted, head: &CheckedHead) -> Result<Response<Body>, Refusal> {
    let granted = admitted.principal().grant_ticket(admitted.expose(), head)?;
    // Cannot fail: every part of it can be serialized.
    Ok(response(StatusCode::OK, "application/json", serde_json::to_vec(&granted).unwrap_or_default()))
}

/// `GET /rpc/<service>/ws`. Once the gateway stops, calls have `drain` to end.
pub(super) fn open(socket: AdmittedSocket, accepted: Accepted, drain: Duration) -> Response<Body> {
    let socket = Arc::new(socket);
    let session = Session::new(Arc::clone(&socket), accepted.dialect, drain);
    let handler = UpgradeHandler::new(async move |connection, stopping| {
        let ending = frames::serve(connection, |incoming, outbox| session.run(incoming, outbox, stopping)).await;
        drop(socket);
        if ending == Ending::CutOff {
            // Never completes, so the connection counts among those that did not end.
            std::future::pending().await
        }
    });
    let mut answer = response(StatusCode::SWITCHING_PROTOCOLS, "text/plain", "");
    answer.extensions_mut().insert(handler);
    let headers = answer.headers_mut();
    headers.remove(CONTENT_TYPE);
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_ACCEPT, accepted.key);
    if let Some(protocol) = accepted.protocol {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol));
    }
    answer
}
