//! Whether a host is this machine, so that what is sent there stays on it.
//! Never looks a name up.

use std::net::IpAddr;

/// Whether this is a loopback address: 127.0.0.0/8, `::1`, or one of the first written as an IPv6 address. Brackets are not part of it.
pub(crate) fn is_address(host: &str) -> bool {
    host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

/// Whether this is `localhost` or a name below it, with or without the dot at the end. RFC 6761 §6.3 gives these names to loopback addresses,
/// but a resolver may say otherwise, so connect to [`ADDRESSES`] instead of asking one.
pub(crate) fn is_name(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    let label = host.rsplit('.').next().unwrap_or_default();
    label.eq_ignore_ascii_case("localhost") && host.split('.').all(|label| !label.is_empty())
}

/// What to connect to for a name of this machine.
pub(crate) const ADDRESSES: [&str; 2] = ["127.0.0.1", "::1"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_these_names_and_addresses_and_no_others() {
        for host in
            ["127.0.0.1", "127.0.0.2", "127.1.2.3", "127.255.255.255", "::1", "0:0:0:0:0:0:0:1", "::ffff:127.0.0.1"]
        {
            assert!(is_address(host) && !is_name(host), "{host}");
        }
        for host in
            ["localhost", "LOCALHOST", "LocalHost", "localhost.", "app.localhost", "a.b.LOCALHOST", "app.localhost."]
        {
            assert!(is_name(host) && !is_address(host), "{host}");
        }
        for host in [
            "",
            ".",
            "0.0.0.0",
            "::",
            "10.0.0.1",
            "128.0.0.1",
            "126.255.255.255",
            "::ffff:10.0.0.1",
            "fe80::1",
            // Forms that only some resolvers read as 127.0.0.1.
            "127.1",
            "127",
            "2130706433",
            "0x7f.0.0.1",
            "0177.0.0.1",
            "127.0.0.1.",
            "127.0.0.01",
            "[::1]",
            "::1%lo",
            "localhost..",
            ".localhost",
            "a..localhost",
            "localhost.example",
            "localhost.localdomain",
            "localhost4",
            "notlocalhost",
            "ip6-localhost",
            "127.0.0.1.example",
            "localhost:80",
            " localhost",
            "l\u{f6}calhost",
        ] {
            assert!(!is_address(host) && !is_name(host), "{host}");
        }
    }
}
