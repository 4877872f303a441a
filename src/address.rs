//! The address of a server that is queried over HTTP, parsed and checked.
//! Never shows a query or a user name, which may hold a secret, and never accepts plain HTTP unless the caller allows it.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use hyper::Uri;
use sealwire_http::Endpoint;
use tokio_rustls::rustls::ClientConfig;

use crate::name::shown;
use crate::{loopback, tls};

/// A parsed address.
#[derive(Debug, Clone)]
pub struct Address {
    /// Whether the scheme is `https`.
    pub tls: bool,
    /// The host, without brackets.
    pub host: String,
    /// The port; the scheme's default if the address names none.
    pub port: u16,
    /// As in the address: an IPv6 address in brackets, and the port if there is one.
    pub authority: String,
    /// Path and query.
    pub target: String,
}

/// Which servers may be reached over plain HTTP, where anybody on the path can read and change everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plaintext {
    /// None.
    Never,
    /// Literal loopback addresses only: a name would have to be looked up, and an attacker could answer.
    Loopback,
    /// Loopback addresses, and `localhost` with the names below it, which are then not looked up: see [`Address::hosts`].
    ThisMachine,
    /// All.
    Anywhere,
}

/// What is wrong with an address. Contains no part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.why())]
pub enum AddressFault {
    /// There is something before an `@`.
    UserName,
    /// Not a URI at all.
    NoAddress,
    /// No scheme or no host.
    Incomplete,
    /// `http` where it is not allowed.
    Plain,
    /// Another scheme.
    Scheme,
    /// No host, or a fragment, which is never sent.
    HostOrFragment,
    /// 0, above 65535, or nothing after the colon.
    Port,
}

impl AddressFault {
    /// What the address is or has, to follow its name in a sentence.
    #[must_use]
    pub fn why(self) -> &'static str {
        match self {
            Self::UserName => "has a user name",
            Self::NoAddress => "is not an address",
            Self::Incomplete => "is not an address: write https://host/path",
            Self::Plain => "is not https",
            Self::Scheme => "is neither https nor http",
            Self::HostOrFragment => "has no host, or a fragment",
            Self::Port => "has no valid port",
        }
    }
}

impl Address {
    /// Parses an `https` address, or an `http` one where `plain` allows it.
    ///
    /// # Errors
    /// [`AddressFault`].
    pub fn parse(url: &str, plain: Plaintext) -> Result<Self, AddressFault> {
        // What precedes an `@` is a user name and a password, whatever else is wrong.
        if front(url).contains('@') {
            return Err(AddressFault::UserName);
        }
        let uri: Uri = url.parse().map_err(|_| AddressFault::NoAddress)?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(AddressFault::Incomplete);
        };
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let may_be_plain = match plain {
            Plaintext::Never => false,
            Plaintext::Loopback => loopback::is_address(&host),
            Plaintext::ThisMachine => loopback::is_address(&host) || loopback::is_name(&host),
            Plaintext::Anywhere => true,
        };
        let tls = match scheme {
            "https" => true,
            "http" if may_be_plain => false,
            "http" => return Err(AddressFault::Plain),
            _ => return Err(AddressFault::Scheme),
        };
        if host.is_empty() || url.contains('#') {
            return Err(AddressFault::HostOrFragment);
        }
        let port = match authority.as_str().rsplit_once(':') {
            Some((_, port)) if !port.contains(']') => {
                port.parse().ok().filter(|port| *port != 0).ok_or(AddressFault::Port)?
            }
            _ if tls => 443,
            _ => 80,
        };
        let target = uri.path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string);
        Ok(Self { tls, host, port, authority: authority.to_string(), target })
    }

    /// Where to connect to, over TLS with this configuration if the scheme asks for it and there is one.
    #[must_use]
    pub fn endpoint(&self, tls: Option<&Arc<ClientConfig>>) -> Endpoint {
        let addresses = self.hosts().iter().filter_map(|host| host.parse().ok());
        Endpoint {
            host: self.host.clone(),
            port: self.port,
            addresses: addresses.map(|address| SocketAddr::new(address, self.port)).collect(),
            tls: tls.filter(|_| self.tls).cloned(),
            tls_failure: tls::failure,
        }
    }

    /// What to connect to instead of [`Address::host`], if anything: `localhost` and the names below it are this machine, whatever a
    /// resolver says.
    #[must_use]
    pub fn hosts(&self) -> &'static [&'static str] {
        if loopback::is_name(&self.host) { &loopback::ADDRESSES } else { &[] }
    }
}

/// The part of an address that may be shown, provided it has no user name.
#[must_use]
pub fn front(url: &str) -> &str {
    url.split(['?', '#']).next().unwrap_or_default()
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", shown(&self.authority), shown(front(&self.target)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn an_address_is_taken_apart() {
        let good = Address::parse("https://api.example:8443/rpc?app=secret", Plaintext::Never).unwrap();
        assert_eq!((good.host.as_str(), good.port, good.target.as_str()), ("api.example", 8443, "/rpc?app=secret"));
        assert_eq!((good.tls, good.authority.as_str()), (true, "api.example:8443"));
        assert_eq!(good.to_string(), "https://api.example:8443/rpc");
        let short = Address::parse("https://[2001:db8::1]", Plaintext::Never).unwrap();
        assert_eq!((short.host.as_str(), short.port, short.target.as_str()), ("2001:db8::1", 443, "/"));
        assert_eq!(Address::parse("http://LOCALHOST/", Plaintext::ThisMachine).unwrap().hosts(), ["127.0.0.1", "::1"]);
        assert!(Address::parse("http://127.0.0.1/", Plaintext::ThisMachine).unwrap().hosts().is_empty());
    }

    #[test]
    fn plain_http_is_only_where_it_may_be() {
        use Plaintext::{Anywhere, Loopback, Never, ThisMachine};
        for (url, allowed) in [
            ("http://127.0.0.1:1/keys", &[Loopback, ThisMachine, Anywhere][..]),
            ("http://[::1]:1", &[Loopback, ThisMachine, Anywhere]),
            ("http://localhost", &[ThisMachine, Anywhere]),
            ("http://LOCALHOST:80/", &[ThisMachine, Anywhere]),
            ("http://localhost.:80/", &[ThisMachine, Anywhere]),
            ("http://idp.localhost/", &[ThisMachine, Anywhere]),
            ("http://127.9.8.7/", &[Loopback, ThisMachine, Anywhere]),
            ("http://[::ffff:127.0.0.1]/", &[Loopback, ThisMachine, Anywhere]),
            ("http://0.0.0.0/", &[Anywhere]),
            ("http://[::]/", &[Anywhere]),
            ("http://127.1/", &[Anywhere]),
            ("http://api.example/", &[Anywhere]),
            ("http://10.0.0.1/", &[Anywhere]),
            ("http://127.0.0.1.example/", &[Anywhere]),
            ("http://localhost.example", &[Anywhere]),
        ] {
            for plain in [Never, Loopback, ThisMachine, Anywhere] {
                let found = Address::parse(url, plain).map(|address| address.tls);
                let expected = if allowed.contains(&plain) { Ok(false) } else { Err(AddressFault::Plain) };
                assert_eq!(found, expected, "{url} {plain:?}");
            }
        }
    }

    #[test]
    fn what_is_no_address_is_told_without_what_is_in_it() {
        for (bad, fault) in [
            ("ftp://api.example/", AddressFault::Scheme),
            ("unix:///run/x.sock", AddressFault::NoAddress),
            ("file:///etc/passwd", AddressFault::NoAddress),
            ("api.example/rpc", AddressFault::NoAddress),
            ("/rpc", AddressFault::Incomplete),
            ("", AddressFault::NoAddress),
            ("https://", AddressFault::NoAddress),
            ("https:// api.example/", AddressFault::NoAddress),
            ("https://api.example/#a", AddressFault::HostOrFragment),
            ("https://api.example:0/", AddressFault::Port),
            ("https://api.example:99999/", AddressFault::Port),
            ("https://api.example:/", AddressFault::Port),
            ("https://user:hunter2@api.example/", AddressFault::UserName),
            ("hunter2@", AddressFault::UserName),
        ] {
            assert_eq!(Address::parse(bad, Plaintext::Anywhere).unwrap_err(), fault, "{bad}");
        }
    }
}
