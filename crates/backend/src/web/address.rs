//! Where a server is.
//! Never plain HTTP to another machine unasked, and never shows a query, which may hold a secret.

use std::fmt;

use hyper::Uri;
use hyper::header::HeaderValue;

use super::error::WebError;
use crate::child::visible;

/// The address of a server, taken apart.
#[derive(Debug, Clone)]
pub(super) struct Address {
    pub(super) tls: bool,
    /// Without brackets.
    pub(super) host: String,
    pub(super) port: u16,
    /// As in the address: with brackets if it is an IPv6 address, with the port if there is one.
    authority: String,
    /// Path and query.
    pub(super) target: String,
}

impl Address {
    /// Reads an `https` address, or an `http` one of this machine; with `plain`, an `http` one of any.
    pub(super) fn parse(url: &str, plain: bool) -> Result<Self, String> {
        let front = url.split(['?', '#']).next().unwrap_or_default();
        // Before anything that shows it: what stands before an `@` is a name and a password.
        if front.contains('@') {
            return Err("`url` has a user name: write it as a `credential`, in a file".to_owned());
        }
        let wrong = |why: &str| format!("`url`: `{}` {why}", visible(front));
        let uri: Uri = url.parse().map_err(|_| wrong("is no address"))?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(wrong("is no address: write https://host/path"));
        };
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let tls = match scheme {
            "https" => true,
            "http" if plain || is_this_machine(&host) => false,
            "http" => {
                return Err(wrong(
                    "is not https: whoever is on the way could read and change everything; if the network itself is trusted, set \
                     `allow_plaintext = true`",
                ));
            }
            _ => return Err(wrong("is neither https nor http")),
        };
        if host.is_empty() || url.contains('#') {
            return Err(wrong("has no host, or a fragment"));
        }
        let port = match authority.as_str().rsplit_once(':') {
            Some((_, port)) if !port.contains(']') => {
                port.parse().ok().filter(|port| *port != 0).ok_or_else(|| wrong("has no port that can be"))?
            }
            _ if tls => 443,
            _ => 80,
        };
        let target = uri.path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string);
        Ok(Self { tls, host, port, authority: authority.to_string(), target })
    }

    /// What to connect to. `localhost` is this machine, whatever a resolver would say.
    pub(super) fn hosts(&self) -> &[&str] {
        if self.host.eq_ignore_ascii_case(LOCALHOST) { &["127.0.0.1", "::1"] } else { &[] }
    }

    pub(super) fn host_header(&self) -> Result<HeaderValue, WebError> {
        self.authority.parse().map_err(|_| WebError::Target)
    }
}

const LOCALHOST: &str = "localhost";

/// A literal address, or `localhost`, which is not looked up.
fn is_this_machine(host: &str) -> bool {
    host.eq_ignore_ascii_case(LOCALHOST) || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.target.split('?').next().unwrap_or_default();
        write!(f, "{}://{}{}", if self.tls { "https" } else { "http" }, visible(&self.authority), visible(path))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn only_https_and_plain_http_to_this_machine_are_addresses() {
        let good = Address::parse("https://api.example:8443/rpc?app=secret", false).unwrap();
        assert_eq!((good.host.as_str(), good.port, good.target.as_str()), ("api.example", 8443, "/rpc?app=secret"));
        assert_eq!(good.to_string(), "https://api.example:8443/rpc");
        assert_eq!(good.host_header().unwrap(), "api.example:8443");
        let short = Address::parse("https://[2001:db8::1]", false).unwrap();
        assert_eq!((short.host.as_str(), short.port, short.target.as_str()), ("2001:db8::1", 443, "/"));
        for here in ["http://127.0.0.1:1/rpc", "http://[::1]:1", "http://localhost", "http://LOCALHOST:80/"] {
            assert!(!Address::parse(here, false).unwrap().tls, "{here}");
        }
        assert_eq!(Address::parse("http://localhost:1/", false).unwrap().hosts(), ["127.0.0.1", "::1"]);
        for remote in
            ["http://api.example/", "http://10.0.0.1/", "http://127.0.0.1.example/", "http://localhost.example"]
        {
            assert!(Address::parse(remote, false).unwrap_err().contains("allow_plaintext"), "{remote}");
            assert!(Address::parse(remote, true).is_ok(), "{remote}");
        }
        for bad in [
            "ftp://api.example/",
            "api.example/rpc",
            "/rpc",
            "",
            "https://",
            "https://api.example/#a",
            "https:// api.example/",
            "file:///etc/passwd",
            "https://api.example:0/",
            "https://api.example:99999/",
            "https://api.example:/",
            "unix:///run/x.sock",
        ] {
            assert!(Address::parse(bad, true).is_err(), "{bad}");
        }
    }

    #[test]
    fn errors_show_neither_passwords_nor_queries() {
        for url in ["https://user:hunter2@api.example/", "http://api.example/rpc?code=hunter2", "x?hunter2"] {
            let error = Address::parse(url, false).unwrap_err();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
