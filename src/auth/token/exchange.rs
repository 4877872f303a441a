//! Token exchange (RFC 8693): trades a subject's token for one in which an actor acts on its behalf, at the issuer of both.
//! Never follows a redirect, never shows a token or a secret, and never assumes that it was given what it asked for.

use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::header::HeaderValue;
use tokio_rustls::rustls::ClientConfig;
use zeroize::Zeroizing;

use super::fetch::FetchError;
use super::fetch::http;
use super::{decode_untrusted, json};
use crate::address::Address;
use crate::jose::numeric_date;
use crate::name::shown;

/// A client of one token endpoint.
pub struct TokenExchange {
    address: Address,
    tls: Arc<ClientConfig>,
    client: HeaderValue,
    timeout: Duration,
}

/// What is asked for.
#[derive(Clone, Copy)]
pub struct ExchangeRequest<'a> {
    /// The token of the subject, for whom the actor acts.
    pub subject_token: &'a str,
    /// The token of the actor.
    pub actor_token: &'a str,
    /// The audience of the new token.
    pub audience: &'a str,
    /// What `sub` of the new token must be.
    pub subject: &'a str,
    /// What `act.sub` of the new token must be.
    pub actor: &'a str,
    /// Now, in seconds since the Unix epoch.
    pub now_s: u64,
}

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// The endpoint cannot be asked, or answers something else.
    #[error("the token endpoint: {0}")]
    Endpoint(#[from] FetchError),
    /// The client id or secret cannot be sent.
    #[error("the client's secret is empty")]
    Client,
    /// The endpoint refused; holds the OAuth error.
    #[error("the token endpoint refuses: `{}`", shown(.0))]
    Refused(String),
    /// The endpoint gave something other than what was asked for.
    #[error("the token endpoint gave a token that was not asked for: {0}")]
    Other(&'static str),
}

/// The most bytes of an answer.
const MAX_ANSWER: usize = 16 << 10;
/// How long an answer may take.
const WITHIN: Duration = Duration::from_secs(5);

const ACCESS_TOKEN: &str = "urn:ietf:params:oauth:token-type:access_token";
const JWT: &str = "urn:ietf:params:oauth:token-type:jwt";

impl TokenExchange {
    /// The endpoint at an `https` address, for a client with a secret. `anchors`: PEM trust anchors to use instead of the system's.
    /// `plain`: the address may be `http://`, to a loopback address, for development.
    ///
    /// # Errors
    /// `Endpoint`, `Client`; whoever configured them is to blame.
    pub fn new(
        url: &str,
        (id, secret): (&str, &str),
        anchors: Option<&str>,
        plain: bool,
    ) -> Result<Self, ExchangeError> {
        // RFC 6749 §2.3.1: both are encoded before they are joined.
        let both = Zeroizing::new(format!("{}:{}", encoded(id), encoded(secret.trim())));
        let text = Zeroizing::new(format!("Basic {}", STANDARD.encode(both.as_bytes())));
        let mut client = HeaderValue::from_str(&text).map_err(|_| ExchangeError::Client)?;
        if secret.trim().is_empty() {
            return Err(ExchangeError::Client);
        }
        client.set_sensitive(true);
        Ok(Self { address: http::address(url, plain)?, tls: http::trusting(anchors)?, client, timeout: WITHIN })
    }

    /// Requests a token for the audience, in which the actor acts for the subject. The audience verifies its signature; here only its
    /// contents are compared with the request.
    ///
    /// # Errors
    /// `Endpoint`, `Refused`, `Other`.
    ///
    /// Cancel safety: a token that nobody reads may have been issued.
    pub async fn ask(&self, request: ExchangeRequest<'_>) -> Result<String, ExchangeError> {
        let mut form = Zeroizing::new(String::new());
        for (name, value) in [
            ("grant_type", "urn:ietf:params:oauth:grant-type:token-exchange"),
            ("subject_token", request.subject_token),
            ("subject_token_type", ACCESS_TOKEN),
            ("actor_token", request.actor_token),
            ("actor_token_type", ACCESS_TOKEN),
            ("requested_token_type", ACCESS_TOKEN),
            ("audience", request.audience),
        ] {
            let and = if form.is_empty() { "" } else { "&" };
            // Writing to a string cannot fail.
            let _ = write!(form, "{and}{name}={}", encoded(value));
        }
        let asking = http::post(&self.address, &self.tls, &form, &self.client, MAX_ANSWER);
        let (status, text) = match tokio::time::timeout(self.timeout, asking).await {
            Ok(answer) => answer?,
            Err(_) => {
                return Err(FetchError::Slow { url: self.address.to_string(), limit: self.timeout }.into());
            }
        };
        self.read(status, &text, &request)
    }

    fn read(&self, status: u16, text: &str, request: &ExchangeRequest<'_>) -> Result<String, ExchangeError> {
        let url = || self.address.to_string();
        let answer = json::object(text.as_bytes());
        let member = |name: &str| answer.as_ref().ok().and_then(|answer| answer.get(name)?.as_str());
        if status != 200 {
            // RFC 6749 §5.2.
            return Err(match member("error") {
                Some(error) if matches!(status, 400 | 401 | 403) => ExchangeError::Refused(error.to_owned()),
                _ => FetchError::Status { url: url(), status }.into(),
            });
        }
        if let Err(fault) = answer {
            return Err(FetchError::Document { url: url(), fault }.into());
        }
        let token = member("access_token").ok_or(ExchangeError::Other("there is no `access_token`"))?;
        if !member("issued_token_type").is_some_and(|kind| kind == ACCESS_TOKEN || kind == JWT) {
            return Err(ExchangeError::Other("`issued_token_type` is not an access token's"));
        }
        if !member("token_type").is_some_and(|kind| ["bearer", "n_a"].contains(&kind.to_ascii_lowercase().as_str())) {
            return Err(ExchangeError::Other("`token_type` is neither `Bearer` nor `N_A`"));
        }
        let claims = decode_untrusted(token).map_err(|_| ExchangeError::Other("it is not a JWT"))?.claims;
        let is_for = |aud: &serde_json::Value| match aud.as_array() {
            Some(all) => all.iter().any(|one| one == request.audience),
            None => aud == request.audience,
        };
        let wrong = if !claims.get("aud").is_some_and(is_for) {
            "its `aud`"
        } else if claims.get("sub").is_none_or(|sub| sub != request.subject) {
            "its `sub`"
        } else if claims.get("act").and_then(|act| act.get("sub")).is_none_or(|sub| sub != request.actor) {
            "its `act`"
        } else if claims.get("exp").and_then(numeric_date).is_none_or(|exp| exp <= request.now_s) {
            "its `exp`"
        } else {
            return Ok(token.to_owned());
        };
        Err(ExchangeError::Other(wrong))
    }
}

/// `application/x-www-form-urlencoded`; a space, which has two spellings, becomes `%20`.
fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

impl fmt::Debug for TokenExchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenExchange").field("address", &self.address.to_string()).finish_non_exhaustive()
    }
}

impl fmt::Debug for ExchangeRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExchangeRequest").field("audience", &self.audience).finish_non_exhaustive()
    }
}
