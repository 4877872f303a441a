//! One GET over TLS, bounded in every direction.
//! Never follows, never keeps a connection, never speaks plain HTTP to another machine.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, CACHE_CONTROL, HOST, HeaderMap, USER_AGENT};
use hyper::rt::{Read, Write};
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::error::FetchError;
use crate::name::shown;

/// Where to ask.
#[derive(Debug, Clone)]
pub(super) struct Address {
    tls: bool,
    /// As in the address: with brackets if it is an IPv6 address, with the port if there is one.
    authority: String,
    host: String,
    port: u16,
    /// With the query, which may hold a secret and is never shown.
    path: String,
}

/// What came.
#[derive(Debug)]
pub(super) struct Got {
    pub(super) text: String,
    /// `max-age` of `Cache-Control`.
    pub(super) age: Option<Duration>,
}

impl Address {
    /// Reads an `https` address; with `plain`, also an `http` one of this machine.
    pub(super) fn parse(url: &str, plain: bool) -> Result<Self, FetchError> {
        let shown = || shown(url.split(['?', '#']).next().unwrap_or_default());
        let wrong = |why| FetchError::Address { url: shown(), why };
        // Before anything that shows it: what stands before an `@` is a name and a password.
        if url.split(['?', '#']).next().is_some_and(|front| front.contains('@')) {
            return Err(FetchError::Address { url: "…".to_owned(), why: "has a user name, which keys need not" });
        }
        let uri: Uri = url.parse().map_err(|_| wrong("is no address"))?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(wrong("is no address: write https://host/path"));
        };
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let tls = match scheme {
            "https" => true,
            "http" if plain && is_this_machine(&host) => false,
            "http" => return Err(wrong("is not https: whoever is on the way could put his own keys in")),
            _ => return Err(wrong("is not https")),
        };
        if url.contains('#') {
            return Err(wrong("has a fragment"));
        }
        let port = authority.port_u16().unwrap_or(if tls { 443 } else { 80 });
        let path = uri.path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string);
        Ok(Self { tls, authority: authority.to_string(), host, port, path })
    }
}

/// A literal address: a name would have to be looked up, and somebody could answer.
fn is_this_machine(host: &str) -> bool {
    host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.split('?').next().unwrap_or_default();
        write!(f, "{}://{}{}", if self.tls { "https" } else { "http" }, shown(&self.authority), shown(path))
    }
}

/// TLS 1.2 and 1.3 under these trust anchors (PEM), or the system's.
pub(super) fn trusting(anchors: Option<&str>) -> Result<Arc<ClientConfig>, FetchError> {
    let mut roots = RootCertStore::empty();
    match anchors {
        Some(pem) => {
            let wrong = |error: &dyn fmt::Display| FetchError::Anchors(error.to_string());
            for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
                roots.add(certificate.map_err(|error| wrong(&error))?).map_err(|error| wrong(&error))?;
            }
            if roots.is_empty() {
                return Err(wrong(&"there is no certificate among them"));
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                return Err(FetchError::Anchors("the system has none; name a file with `tls_ca`".to_owned()));
            }
        }
    }
    // Named, so that another provider in a program that uses this library does not matter.
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| FetchError::Anchors(error.to_string()))?;
    Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
}

/// Asks once. The caller bounds the time.
pub(super) async fn get(address: &Address, tls: &Arc<ClientConfig>, limit: usize) -> Result<Got, FetchError> {
    let failed = |cause: &dyn fmt::Display| connection(address, cause);
    let socket = TcpStream::connect((address.host.as_str(), address.port)).await.map_err(|error| failed(&error))?;
    if !address.tls {
        return exchange(TokioIo::new(socket), address, limit).await;
    }
    let name = ServerName::try_from(address.host.clone()).map_err(|error| failed(&error))?;
    let stream = TlsConnector::from(Arc::clone(tls)).connect(name, socket).await.map_err(|error| failed(&error))?;
    exchange(TokioIo::new(stream), address, limit).await
}

async fn exchange<T>(io: T, address: &Address, limit: usize) -> Result<Got, FetchError>
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
    let request = Request::get(&address.path)
        .header(HOST, &address.authority)
        .header(ACCEPT, "application/json, application/jwk-set+json")
        .header(USER_AGENT, concat!("sealwire/", env!("CARGO_PKG_VERSION")))
        .body(Empty::<Bytes>::new())
        .map_err(|error| failed(&error))?;
    let response = sender.send_request(request).await.map_err(|error| failed(&error))?;
    let status = response.status().as_u16();
    if status != 200 {
        return Err(FetchError::Status { url: address.to_string(), status });
    }
    let age = max_age(response.headers());
    let body = Limited::new(response.into_body(), limit).collect().await.map_err(|error| {
        match error.downcast_ref::<http_body_util::LengthLimitError>() {
            Some(_) => FetchError::Body { url: address.to_string() },
            None => failed(&error),
        }
    })?;
    let text = String::from_utf8(body.to_bytes().into()).map_err(|_| FetchError::Body { url: address.to_string() })?;
    Ok(Got { text, age })
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
        let good = Address::parse("https://idp.example:8443/keys?app=secret", false).unwrap();
        assert_eq!((good.host.as_str(), good.port, good.path.as_str()), ("idp.example", 8443, "/keys?app=secret"));
        assert_eq!(good.to_string(), "https://idp.example:8443/keys");
        assert_eq!(Address::parse("https://[2001:db8::1]/", false).unwrap().host, "2001:db8::1");
        assert!(
            Address::parse("http://127.0.0.1:1/keys", true).is_ok() && Address::parse("http://[::1]/", true).is_ok()
        );
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
            assert!(Address::parse(bad, false).is_err(), "{bad}");
        }
        for remote in ["http://idp.example/", "http://localhost/", "http://10.0.0.1/", "http://127.0.0.1.example/"] {
            assert!(Address::parse(remote, true).is_err(), "{remote}");
        }
    }

    #[test]
    fn errors_show_neither_passwords_nor_queries() {
        for url in ["https://user:hunter2@idp.example/keys", "http://idp.example/keys?code=hunter2", "x?hunter2"] {
            let error = Address::parse(url, true).unwrap_err();
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
