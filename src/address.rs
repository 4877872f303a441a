//! Where a server is that is asked over HTTP.
//! Never shows a query or a user name, which may hold a secret, and never takes plain HTTP where it was not said that it may be.

use std::fmt;
use std::net::IpAddr;

use hyper::Uri;

use crate::name::shown;

/// An address, taken apart.
#[derive(Debug, Clone)]
pub struct Address {
    /// `https`.
    pub tls: bool,
    /// Without brackets.
    pub host: String,
    /// That of the scheme if the address has none.
    pub port: u16,
    /// As in the address: with brackets if it is an IPv6 address, with the port if there is one.
    pub authority: String,
    /// Path and query.
    pub target: String,
}

/// Which servers may be asked over plain HTTP, where whoever is on the way can read and change everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plaintext {
    /// None.
    Never,
    /// Those at a literal loopback address: a name would have to be looked up, and somebody could answer.
    Loopback,
    /// These, and `localhost`, which is not looked up then: see [`Address::hosts`].
    ThisMachine,
    /// All.
    Anywhere,
}

/// What is wrong with an address. Holds nothing of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.why())]
pub enum AddressFault {
    /// There is something in front of an `@`.
    UserName,
    /// No URI at all.
    NoAddress,
    /// A part of one.
    Incomplete,
    /// `http`, where that may not be.
    Plain,
    /// Another scheme.
    Scheme,
    /// Nobody to ask, or a part that is never sent.
    HostOrFragment,
    /// 0, above 65535, or nothing after the colon.
    Port,
}

impl AddressFault {
    /// What the address is, or has.
    #[must_use]
    pub fn why(self) -> &'static str {
        match self {
            Self::UserName => "has a user name",
            Self::NoAddress => "is no address",
            Self::Incomplete => "is no address: write https://host/path",
            Self::Plain => "is not https",
            Self::Scheme => "is neither https nor http",
            Self::HostOrFragment => "has no host, or a fragment",
            Self::Port => "has no port that can be",
        }
    }
}

impl Address {
    /// Reads an `https` address, or an `http` one where that may be.
    ///
    /// # Errors
    /// [`AddressFault`].
    pub fn parse(url: &str, plain: Plaintext) -> Result<Self, AddressFault> {
        // What stands before an `@` is a name and a password, however the rest is wrong.
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
            Plaintext::Loopback => is_loopback(&host),
            Plaintext::ThisMachine => is_loopback(&host) || is_localhost(&host),
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

    /// What to connect to in place of [`Address::host`], if anything: `localhost` is this machine, whatever a resolver would say.
    #[must_use]
    pub fn hosts(&self) -> &'static [&'static str] {
        if is_localhost(&self.host) { &["127.0.0.1", "::1"] } else { &[] }
    }
}

/// What of an address may be shown, unless it has a user name.
#[must_use]
pub fn front(url: &str) -> &str {
    url.split(['?', '#']).next().unwrap_or_default()
}

fn is_localhost(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
}

fn is_loopback(host: &str) -> bool {
    host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
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
