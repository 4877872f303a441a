//! One request over TLS, bounded in every direction.
//! Never follows a redirect, never keeps a connection, never speaks plain HTTP to another machine.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::Request;
use hyper::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, USER_AGENT,
};
use sealwire_http::{Connection, HttpError};
use tokio_rustls::rustls::ClientConfig;
use zeroize::Zeroizing;

use super::error::FetchError;
use crate::address::{Address, AddressFault, Plaintext, front};
use crate::files::decode_text;
use crate::name::shown;
use crate::tls;

/// The answer.
#[derive(Debug)]
pub(in crate::auth::token) struct Got {
    pub(in crate::auth::token) text: String,
    /// `max-age` of `Cache-Control`.
    pub(in crate::auth::token) age: Option<Duration>,
}

/// The address to ask: an `https` address; with `plain`, also an `http` one of this machine.
pub(in crate::auth::token) fn address(url: &str, plain: bool) -> Result<Address, FetchError> {
    let plain = if plain { Plaintext::ThisMachine } else { Plaintext::Never };
    Address::parse(url, plain).map_err(|fault| {
        let why = match fault {
            // Nothing of it is shown: it may contain a password.
            AddressFault::UserName => {
                return FetchError::Address { url: "…".to_owned(), why: "has a user name, which is not supported" };
            }
            AddressFault::Plain => "is not https: anyone on the way could put in keys of their own",
            AddressFault::Scheme => "is not https",
            fault => fault.why(),
        };
        FetchError::Address { url: shown(front(url)), why }
    })
}

/// TLS under these trust anchors (PEM), or the system's.
pub(in crate::auth::token) fn trusting(anchors: Option<&str>) -> Result<Arc<ClientConfig>, FetchError> {
    let config = tls::trusting(anchors).map_err(|fault| FetchError::Anchors(fault.to_string()))?;
    Ok(Arc::new(config.with_no_client_auth()))
}

/// Asks once. The caller bounds the time.
pub(in crate::auth::token) async fn get(
    address: &Address,
    tls: &Arc<ClientConfig>,
    limit: usize,
) -> Result<Got, FetchError> {
    let request = Request::get(&address.target).header(ACCEPT, "application/json, application/jwk-set+json");
    let request = request.body(Bytes::new()).map_err(|error| connection(address, &error))?;
    let (_, headers, text) = send(address, tls, request, limit, |status| status == 200).await?;
    Ok(Got { text, age: max_age(&headers) })
}

/// Posts a form once, as this client; returns status and text of the answer, even of a refusal. The caller bounds the
/// time.
pub(in crate::auth::token) async fn post(
    address: &Address,
    tls: &Arc<ClientConfig>,
    form: &str,
    client: &HeaderValue,
    limit: usize,
) -> Result<(u16, String), FetchError> {
    let request = Request::post(&address.target)
        .header(ACCEPT, "application/json")
        .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
        .header(AUTHORIZATION, client.clone());
    let request = request.body(form.to_owned().into()).map_err(|error| connection(address, &error))?;
    let (status, _, text) =
        send(address, tls, request, limit, |status| matches!(status, 200 | 400 | 401 | 403)).await?;
    Ok((status, text))
}

async fn send(
    address: &Address,
    tls: &Arc<ClientConfig>,
    mut request: Request<Bytes>,
    limit: usize,
    is_read: fn(u16) -> bool,
) -> Result<(u16, HeaderMap, String), FetchError> {
    let failed = |cause: &dyn fmt::Display| connection(address, cause);
    let host = HeaderValue::from_str(&address.authority).map_err(|error| failed(&error))?;
    request.headers_mut().insert(HOST, host);
    request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    request.headers_mut().insert(USER_AGENT, HeaderValue::from_static(concat!("sealwire/", env!("CARGO_PKG_VERSION"))));
    let link = Connection::open(&address.endpoint(Some(tls))).await.map_err(|error| failed(&error))?;
    let reply = link.send(request).await.map_err(|error| failed(&error))?;
    let status = reply.status().as_u16();
    if !is_read(status) {
        return Err(FetchError::Status { url: address.to_string(), status });
    }
    // Some servers compress whatever was asked for.
    if let Some(encoding) = reply.encoding() {
        let encoding = shown(&String::from_utf8_lossy(encoding.as_bytes()));
        return Err(FetchError::Encoding { url: address.to_string(), encoding });
    }
    let headers = reply.headers().clone();
    let body = reply.bytes(limit).await.map_err(|error| match error {
        HttpError::TooLarge => FetchError::Long { url: address.to_string(), limit },
        error => failed(&error),
    })?;
    let text = decode_text(Zeroizing::new(body));
    let text = text.map_err(|fault| FetchError::Text { url: address.to_string(), fault })?.to_string();
    if text.trim_start().starts_with('<') {
        return Err(FetchError::Page { url: address.to_string() });
    }
    Ok((status, headers, text))
}

fn connection(address: &Address, cause: &dyn fmt::Display) -> FetchError {
    FetchError::Connection { url: address.to_string(), cause: shown(&cause.to_string()) }
}

/// RFC 9111 §5.2.2.1.
fn max_age(headers: &HeaderMap) -> Option<Duration> {
    let directives = headers.get_all(CACHE_CONTROL).iter().filter_map(|value| value.to_str().ok());
    let mut directives = directives.flat_map(|value| value.split(',')).map(|directive| directive.trim());
    let seconds = directives.find_map(|directive| {
        let (name, value) = directive.split_once('=')?;
        name.eq_ignore_ascii_case("max-age").then(|| value.trim_matches('"').parse::<u64>().ok())?
    });
    seconds.map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn keys_come_over_https_or_if_allowed_from_this_machine() {
        for here in ["http://127.0.0.1:1/keys", "http://localhost/", "http://idp.localhost/"] {
            assert!(address(here, true).is_ok() && address(here, false).is_err(), "{here}");
        }
        assert!(address("https://idp.example/keys", false).is_ok() && address("http://idp.example/", true).is_err());
    }

    #[test]
    fn errors_show_neither_passwords_nor_queries() {
        for url in ["https://user:hunter2@idp.example/keys", "http://idp.example/keys?code=hunter2", "x?hunter2"] {
            let error = address(url, true).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn max_age_is_read_as_caches_read_it() {
        let age = |texts: &[&str]| {
            let mut headers = HeaderMap::new();
            for text in texts {
                headers.append(CACHE_CONTROL, text.parse().unwrap());
            }
            max_age(&headers).map(|age| age.as_secs())
        };
        assert_eq!(age(&["public, max-age=3600, must-revalidate"]), Some(3600));
        assert_eq!(age(&["public", "Max-Age=\"60\""]), Some(60));
        for none in ["no-store", "s-maxage=5", "max-age=-1", "max-age=soon", "max-age"] {
            assert_eq!(age(&[none]), None, "{none}");
        }
    }
}
