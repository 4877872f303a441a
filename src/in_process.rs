//! A call of a service in the same process, signed and verified as on the bus, without one: for an application's own tests.
//! Never leaves out a check: the message goes through all that any message goes through.

use std::sync::Arc;
use std::time::Duration;

use async_nats::HeaderMap;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::client::{ClientError, Credentials, InvalidRequest, ProtocolError, decode, hint};
use crate::name::MethodName;
use crate::rpc::{Id, Limits, Request, Responses};
use crate::service::Service;
use crate::wire::{Delivery, Nonce, RequestSigner, Signed};

/// An agent that calls a service of its own process: whatever key ring, tokens, policy and methods say is what a caller on the bus gets.
/// For tests of a policy, and of methods with one result.
#[derive(Debug, Clone)]
pub struct InProcessClient {
    service: Service,
    credentials: Credentials,
}

impl InProcessClient {
    /// A client with these credentials, and tokens from their source.
    #[must_use]
    pub fn new(service: &Service, credentials: Credentials) -> Self {
        Self { service: service.clone(), credentials }
    }

    /// Calls a method and decodes its result. Waits first until the service's replay guard can vouch for messages: some seconds with a new
    /// [`GuardKind::Local`](crate::configure::GuardKind::Local).
    ///
    /// # Errors
    /// As [`Client::call`](crate::Client::call); [`ClientError::Remote`] is the service's own error, a denial included.
    ///
    /// Cancel safety: dropping the future drops the method where it waits.
    pub async fn call<R: DeserializeOwned>(&self, method: &str, params: impl Serialize) -> Result<R, ClientError> {
        let Self { service, credentials } = self;
        let endpoint = service.endpoint();
        // On the bus, nobody listens before that.
        while service.verifier().guard().not_ready().is_some() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        MethodName::new(method).map_err(InvalidRequest::from)?;
        let payload = Request::new(method, &params, Some(Id::from(1))).map_err(InvalidRequest::from)?.to_bytes();
        let token = credentials.tokens()?;
        let token = token.fetch().await.map_err(|fault| ClientError::Token(Arc::new(fault)))?;
        let audience = endpoint.audience().clone();
        let signer = RequestSigner::new(credentials.key(), audience, credentials.pinned(endpoint.service()));
        let signer = signer.map_err(InvalidRequest::from)?;
        let subject = endpoint.subject(credentials.agent());
        let reply = [endpoint.inbox(credentials.agent()), Nonce::random().to_text()].concat();
        let signed = signer.sign(&Signed {
            subject: &subject,
            reply: &reply,
            payload: &payload,
            token: token.trim(),
            now_ms: service.clock().now_ms(),
            valid_s: VALID.as_secs(),
            ..Signed::default()
        });
        let mut headers = HeaderMap::new();
        headers.insert("Authorization", signed.authorization.as_str());
        let Some(sealed) = service.handle(Delivery::new(&subject, &reply, headers, payload)).await else {
            return Err(ClientError::Timeout { service: endpoint.service().to_string(), after: VALID });
        };
        let headers = sealed.headers().cloned().unwrap_or_default();
        if let Err(error) = signed.expectation.accept(sealed.to(), headers, sealed.payload()) {
            return Err(match hint(sealed.payload()) {
                Some(hint) => ClientError::Hint { hint },
                None => ClientError::Unverifiable(error),
            });
        }
        match Responses::parse(sealed.payload(), &Limits::default()) {
            Ok(Responses::Single(response)) => decode(&response.outcome.map_err(ClientError::Remote)?),
            Ok(Responses::Batch(_)) => Err(ClientError::Protocol(ProtocolError::Shape)),
            Err(error) => Err(ClientError::Protocol(ProtocolError::Response(error))),
        }
    }
}

/// How long such a message is valid: as long as a client's.
const VALID: Duration = Duration::from_secs(30);
