//! Whether two texts name the same audience.
//! Never takes one resource for another: only texts that RFC 3986 calls equivalent are the same.

/// Whether an audience in a token is the one wanted here.
///
/// Names are compared byte for byte. Clients that ask for a token by the address of a resource (RFC 8707, RFC 9728) write it in several
/// ways, and issuers copy what they were asked for: `https://Gateway.example:443/` is `https://gateway.example`.
pub(super) fn is_same(named: &str, own: &str) -> bool {
    named == own || canonical(named).is_some_and(|named| canonical(own).as_ref() == Some(&named))
}

/// An `http` or `https` address in one form (RFC 3986 §6.2.2.1 and §6.2.3): scheme and host in lower case, no port if it is the scheme's own, and
/// `/` for an empty path. Path and query stay as they are. `None` for anything else, and for what no resource has: a fragment (RFC 8707 §2),
/// a user name, a character that no address has.
fn canonical(text: &str) -> Option<String> {
    let (scheme, rest) = text.split_once("://")?;
    let scheme = scheme.to_ascii_lowercase();
    let usual = match scheme.as_str() {
        "https" => "443",
        "http" => "80",
        _ => return None,
    };
    if !rest.bytes().all(|byte| byte.is_ascii_graphic()) || rest.contains(['#', '@', '\\', '"', '<', '>']) {
        return None;
    }
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    // A colon within brackets is part of an IPv6 address.
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port),
        _ => (authority, ""),
    };
    let is_one_host = !host.contains(':') || (host.starts_with('[') && host.ends_with(']'));
    if host.is_empty() || !is_one_host || !port.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let host = host.to_ascii_lowercase();
    let port = if port.is_empty() || port == usual { String::new() } else { format!(":{port}") };
    let slash = if path.starts_with('/') { "" } else { "/" };
    Some(format!("{scheme}://{host}{port}{slash}{path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 8707 §2, RFC 9728 §3.3, RFC 3986 §6.2; SPEC.md §7.
    #[test]
    fn a_resource_is_recognized_as_clients_write_it_and_no_other_is() {
        for (own, named, is_its) in [
            // Names that are no addresses.
            ("prod/math", "prod/math", true),
            ("prod/math", "prod/math/", false),
            ("prod/math", "PROD/math", false),
            ("urn:math", "urn:math", true),
            ("urn:math", "URN:math", false),
            ("api://math", "api://Math", false),
            // The same resource.
            ("https://gateway.example", "https://gateway.example", true),
            ("https://gateway.example", "https://gateway.example/", true),
            ("https://gateway.example/", "https://gateway.example", true),
            ("https://gateway.example", "https://GATEWAY.example", true),
            ("https://gateway.example", "HTTPS://gateway.example", true),
            ("https://gateway.example", "https://gateway.example:443", true),
            ("https://gateway.example", "https://gateway.example:443/", true),
            ("https://gateway.example", "https://gateway.example:", true),
            ("https://Gateway.Example:8443", "https://gateway.example:8443/", true),
            ("http://127.0.0.1:8480", "http://127.0.0.1:8480/", true),
            ("http://localhost", "http://LOCALHOST:80/", true),
            ("https://[2001:DB8::1]:443", "https://[2001:db8::1]/", true),
            ("https://a.example/mcp", "https://A.example/mcp", true),
            ("https://a.example/?x=1", "https://a.example?x=1", true),
            // Another one.
            ("https://gateway.example", "http://gateway.example", false),
            ("https://gateway.example", "https://gateway.example:8443", false),
            ("https://gateway.example", "https://gateway.example:80", false),
            ("https://gateway.example", "https://gateway.example.", false),
            ("https://gateway.example", "https://gateway.example//", false),
            ("https://gateway.example", "https://gateway.example/mcp", false),
            ("https://gateway.example", "https://gateway.example/mcp/math", false),
            ("https://gateway.example", "https://gateway.example/?x", false),
            ("https://a.example/mcp", "https://a.example/mcp/", false),
            ("https://a.example/mcp", "https://a.example/MCP", false),
            ("https://a.example/mcp", "https://a.example/%6dcp", false),
            ("https://a.example/mcp", "https://a.example", false),
            ("https://gateway.example", "https://gateway.example.attacker.example", false),
            ("https://gateway.example", "https://attacker.example/https://gateway.example", false),
            // What no resource may have.
            ("https://gateway.example", "https://gateway.example#x", false),
            ("https://gateway.example", "https://gateway.example/#", false),
            ("https://gateway.example", "https://me@gateway.example", false),
            ("https://gateway.example", "https://gateway.example@attacker.example", false),
            ("https://gateway.example", "https:/gateway.example", false),
            ("https://gateway.example", "https:gateway.example", false),
            ("https://gateway.example", "//gateway.example", false),
            ("https://gateway.example", "gateway.example", false),
            ("https://gateway.example", " https://gateway.example", false),
            ("https://gateway.example", "https://gateway.example ", false),
            ("https://gateway.example", "https://gateway.example\\", false),
            ("https://gateway.example", "https://", false),
            ("https://gateway.example", "https://:443", false),
            ("https://gateway.example", "https://gateway.example:443a", false),
            // Two ports, of which the last one would be left out.
            ("http://gateway.example:8480", "http://gateway.example:8480:80", false),
            ("http://gateway.example:8480", "http://gateway.example:8480:", false),
            ("https://gateway.example:8443", "https://gateway.example:8443:443/", false),
            ("https://[2001:db8::1]:8443", "https://[2001:db8::1]:8443:443", false),
            ("https://gateway.example", "", false),
        ] {
            assert_eq!(is_same(named, own), is_its, "{named} for {own}");
        }
    }
}
