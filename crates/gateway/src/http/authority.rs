//! Names of hosts, as `Host`, `Origin` and addresses write them.
//! Never resolves a name.

use std::net::IpAddr;

use hyper::http::uri::Authority;

/// The name of an authority, in lower case and without the dot of the root at its end.
#[must_use]
pub fn authority_name(authority: &str) -> Option<String> {
    let parsed: Authority = authority.parse().ok().filter(|_| !authority.contains('@'))?;
    // The parser ignores what follows a closing bracket.
    let rest = authority.get(parsed.host().len()..)?;
    // RFC 3986 §3.2.3: the port may be empty.
    let is_port = rest.strip_prefix(':').is_some_and(|port| port.is_empty() || port.parse::<u16>().is_ok());
    let name = parsed.host().to_ascii_lowercase();
    (rest.is_empty() || is_port).then(|| name.strip_suffix('.').map_or(name.clone(), str::to_owned))
}

pub(super) fn is_loopback(name: &str) -> bool {
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name == "localhost" || address.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}
