//! JSON-RPC 2.0 over HTTP: a request in a POST, or in the query of a GET that is answered by a stream of events.
//! Never sends a caller's own id.

use std::sync::Arc;

use bytes::Bytes;
use hyper::Method;
use percent_encoding::utf8_percent_encode;
use sealwire::RpcError;
use sealwire::internal::rpc::Id;
use serde::Serialize;
use serde_json::value::RawValue;

use super::answer::{self, StreamEnd};
use super::batch::Batches;
use super::server::{Shared, ask};
use super::target::VALUE;
use crate::backend::Call;
use crate::web::Request;

#[derive(Serialize)]
struct Message<'a> {
    jsonrpc: &'static str,
    method: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    params: Option<&'a RawValue>,
    id: &'a Id,
}

/// Makes a call by a `POST` of its own, or in one with others of its caller.
pub(super) async fn post(
    shared: &Arc<Shared>,
    batches: &Batches,
    id: Id,
    call: Call,
    ends: StreamEnd,
) -> Result<Box<RawValue>, RpcError> {
    let message = Message { jsonrpc: "2.0", method: &call.tool.name, params: call.params.as_deref(), id: &id };
    let body = serde_json::to_vec(&message).map_err(RpcError::internal)?;
    // A call that may be answered in parts, or has a key of its own, cannot share a request with others.
    let is_alone = ends != StreamEnd::Response || call.ctx.takes_frames() || call.ctx.idempotency_key().is_some();
    if shared.used.batch && !is_alone {
        return batches.make(shared, id, body, call).await;
    }
    let reply = ask(shared, &call, Request::post(Bytes::from(body))).await?;
    answer::of_rpc(reply, &call, &id, ends).await
}

/// Makes a call by a `GET` of this path, answered by a stream of events.
pub(super) async fn stream(shared: &Shared, id: &Id, call: &Call, path: &str) -> Result<Box<RawValue>, RpcError> {
    let encoded = |text: &str| utf8_percent_encode(text, VALUE).to_string();
    let mut target = format!("{path}?method={}&id={}", encoded(&call.tool.name), encoded(id.as_json()));
    if let Some(params) = &call.params {
        target.push_str("&params=");
        target.push_str(&encoded(params.get()));
    }
    let request = Request { target: Some(target), ..Request::bare(Method::GET) };
    let reply = ask(shared, call, request).await?;
    answer::of_rpc(reply, call, id, StreamEnd::Done).await
}
