//! What a relay adds to a request: whose it is, and what came of it.
//! Never changes what the request says.

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;

use super::answer::Answer;
use super::error::ClientError;
use super::observe::Observer;
use super::request::RequestBuilder;
use super::sent::{MessageId, Receipt};
use super::token::Tokens;
use crate::rpc::Responses;
use crate::trace::TraceContext;

/// A request that a program makes for somebody else, as a gateway does. Made by [`RequestBuilder::relay`].
#[derive(Debug, Clone)]
#[must_use = "a request is sent by `exchange`, `listen`, or what `request` gives back"]
pub struct Relay(pub(super) RequestBuilder);

impl Relay {
    /// Captures the id of each message that is sent, for looking it up in the service's log: a denial does not say why.
    pub fn capture_id(mut self, id: &MessageId) -> Self {
        self.0.relay.id = Some(id.clone());
        self
    }

    /// Captures the proofs of the request and of its answer; for a stream, that of the frame which ends it.
    pub fn capture_receipt(mut self, receipt: &Receipt) -> Self {
        self.0.relay.receipt = Some(receipt.clone());
        self
    }

    /// Makes the request with these tokens instead of the agent's own: for an agent that acts on behalf of others, each of whom has a token
    /// that names the agent as its actor. Whatever follows from the request, such as cancelling it, uses them, too.
    pub fn tokens(mut self, tokens: &Tokens) -> Self {
        self.0.relay.tokens = Some(tokens.clone());
        self
    }

    /// Names the principal for whom this client makes the request. Streams of one principal leave room for others among the client's 256:
    /// it gets another one only while it has fewer than are free, otherwise [`ClientError::TooManyStreams`]. Without a name there is no
    /// share.
    pub fn share(mut self, name: impl Into<Arc<str>>) -> Self {
        self.0.relay.share = Some(name.into());
        self
    }

    /// Makes the call part of somebody else's trace. No service bases a decision on it.
    pub fn trace(mut self, context: &TraceContext) -> Self {
        self.0.relay.trace = context.clone();
        self
    }

    /// Tells `observer` about each message of this request, and its outcome.
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.0.relay.observer = Some(observer);
        self
    }

    /// The request with these options, for everything that any request can do.
    pub fn request(self) -> RequestBuilder {
        self.0
    }

    /// As [`RequestBuilder::send_raw`], but returns both the bytes of the answer as the service signed them, and the responses in them.
    /// The message is made at once; nothing is signed or sent before the future is polled.
    ///
    /// # Errors
    /// As for [`RequestBuilder::send_raw`], and [`ClientError::Protocol`] for an answer that is not JSON-RPC.
    ///
    /// Cancel safety: as for [`RequestBuilder::call`].
    pub fn exchange<P: Into<Bytes>>(
        self,
        payload: P,
    ) -> impl Future<Output = Result<(Bytes, Responses), ClientError>> + Send + use<P> {
        let message = self.0.into_message(None, payload.into());
        async move {
            let (client, mut outgoing) = message?;
            let Answer { payload, responses, .. } = client.0.request(&mut outgoing).await?.whole()?;
            Ok((payload, responses.map_err(ClientError::Protocol)?))
        }
    }
}
