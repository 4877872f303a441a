//! JSON-RPC 2.0 over HTTP: a request in a POST, or in the query of a GET that is answered by a stream of events.
//! Never sends a caller's own id.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use hyper::Method;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use sealwire::RpcError;
use sealwire::rpc::Id;
use serde::Serialize;
use serde_json::value::RawValue;

use super::answer::{self, Ends};
use super::{Http, Way, ask};
use crate::backend::Call;
use crate::web::Request;

/// Everything but the unreserved characters of RFC 3986 §2.3: nothing that could be anything but part of a value.
pub(super) const VALUE: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

#[derive(Serialize)]
struct Message<'a> {
    jsonrpc: &'static str,
    method: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    params: Option<&'a RawValue>,
    id: &'a Id,
}

impl Http {
    pub(super) async fn post(&self, call: Call) -> Result<Box<RawValue>, RpcError> {
        let id = self.id();
        let message = Message { jsonrpc: "2.0", method: &call.tool.name, params: call.params.as_deref(), id: &id };
        let body = serde_json::to_vec(&message).map_err(RpcError::internal)?;
        // A call that may be answered in parts, or has a key of its own, cannot share a request with others.
        let is_alone = call.ctx.takes_frames() || call.ctx.idempotency_key().is_some();
        if self.shared.used.batch && !is_alone {
            return self.shared.batches.make(&self.shared, id, body, call).await;
        }
        let reply = ask(&self.shared, &call, Request::post(Bytes::from(body))).await?;
        answer::of_rpc(reply, &call, &id, Ends::Response).await
    }

    pub(super) async fn stream(&self, call: &Call, path: &str) -> Result<Box<RawValue>, RpcError> {
        let id = self.id();
        let encoded = |text: &str| utf8_percent_encode(text, VALUE).to_string();
        let mut target = format!("{path}?method={}&id={}", encoded(&call.tool.name), encoded(id.as_json()));
        if let Some(params) = &call.params {
            target.push_str("&params=");
            target.push_str(&encoded(params.get()));
        }
        let request = Request { target: Some(target), ..Request::bare(Method::GET) };
        let reply = ask(&self.shared, call, request).await?;
        answer::of_rpc(reply, call, &id, Ends::Done).await
    }

    fn id(&self) -> Id {
        Id::from(self.next.fetch_add(1, Ordering::Relaxed))
    }
}

impl Way {
    /// Checks a path from the configuration.
    pub(crate) fn path(path: &str) -> Result<String, String> {
        let is_plain = path.starts_with('/') && path.chars().all(|c| c.is_ascii_graphic() && !matches!(c, '?' | '#'));
        if is_plain {
            Ok(path.to_owned())
        } else {
            Err(format!("`{}` is no path: write it as `/a/b`, without a query", path.escape_debug()))
        }
    }
}
