//! One request over TLS, bounded in every direction.
//! Never follows a redirect, never keeps a connection, never speaks plain HTTP to another machine.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, USER_AGENT};
use hyper::rt::{Read, Write};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use super::error::FetchError;
use crate::address::{Address, AddressFault, Plaintext, front};
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
    let plain = if plain { Plaintext::Loopback } else { Plaintext::Never };
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
    let request = request.body(Full::default()).map_err(|error| connection(address, &error))?;
    let answer = send(address, tls, request, limit, |status| status == 200).await?;
    let age = max_age(answer.headers());
    Ok(Got { text: answer.into_body(), age })
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
    let request = request.body(Full::from(form.to_owned())).map_err(|error| connection(address, &error))?;
    let answer = send(address, tls, request, limit, |status| matches!(status, 200 | 400 | 401 | 403)).await?;
    Ok((answer.status().as_u16(), answer.into_body()))
}

async fn send(
    address: &Address,
    tls: &Arc<ClientConfig>,
    request: Request<Full<Bytes>>,
    limit: usize,
    is_read: fn(u16) -> bool,
) -> Result<Response<String>, FetchError> {
    let failed = |cause: &dyn fmt::Display| connection(address, cause);
    let socket = TcpStream::connect((address.host.as_str(), address.port)).await.map_err(|error| failed(&error))?;
    if !address.tls {
        return exchange(TokioIo::new(socket), address, request, limit, is_read).await;
    }
    let name = ServerName::try_from(address.host.clone()).map_err(|error| failed(&error))?;
    let stream = TlsConnector::from(Arc::clone(tls)).connect(name, socket).await.map_err(|error| failed(&error))?;
    exchange(TokioIo::new(stream), address, request, limit, is_read).await
}

async fn exchange<T>(
    io: T,
    address: &Address,
    mut request: Request<Full<Bytes>>,
    limit: usize,
    is_read: fn(u16) -> bool,
) -> Result<Response<String>, FetchError>
where
    T: Read + Write + Unpin + Send + 'static,
{
    let failed = |cause: &dyn fmt::Display| connection(address, cause);
    let builder = {
        let mut builder = http1::Builder::new();
        builder.max_buf_size(64 * 1024).max_headers(100);
        builder
    };
    let (mut sender, link) = builder.handshake(io).await.map_err(|error| failed(&error))?;
    // Ends with this future, however that ends.
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { drop(link.await) });
    let host = HeaderValue::from_str(&address.authority).map_err(|error| failed(&error))?;
    request.headers_mut().insert(HOST, host);
    request.headers_mut().insert(USER_AGENT, HeaderValue::from_static(concat!("sealwire/", env!("CARGO_PKG_VERSION"))));
    let response = sender.send_request(request).await.map_err(|error| failed(&error))?;
    let status = response.status().as_u16();
    if !is_read(status) {
        return Err(FetchError::Status { url: address.to_string(), status });
    }
    let (head, body) = response.into_parts();
    let body = Limited::new(body, limit).collect().await.map_err(|error| {
        match error.downcast_ref::<http_body_util::LengthLimitError>() {
            Some(_) => FetchError::Body { url: address.to_string() },
            None => failed(&error),
        }
    })?;
    let text = String::from_utf8(body.to_bytes().into()).map_err(|_| FetchError::Body { url: address.to_string() })?;
    Ok(Response::from_parts(head, text))
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
    fn only_https_and_plain_http_to_this_machine_are_addresses() {
        let good = address("https://idp.example:8443/keys?app=secret", false).unwrap();
        assert_eq!((good.host.as_str(), good.port, good.target.as_str()), ("idp.example", 8443, "/keys?app=secret"));
        assert_eq!(good.to_string(), "https://idp.example:8443/keys");
        assert_eq!(address("https://[2001:db8::1]/", false).unwrap().host, "2001:db8::1");
        assert!(address("http://127.0.0.1:1/keys", true).is_ok() && address("http://[::1]/", true).is_ok());
        for bad in [
            "http://127.0.0.1:1/keys",
            "ftp://idp.example/",
            "idp.example/keys",
            "/keys",
            "",
            "https://",
            "https://idp.example/#a",
            "https:// idp.example/",
            "file:///etc/passwd",
        ] {
            assert!(address(bad, false).is_err(), "{bad}");
        }
        for remote in ["http://idp.example/", "http://localhost/", "http://10.0.0.1/", "http://127.0.0.1.example/"] {
            assert!(address(remote, true).is_err(), "{remote}");
        }
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
