//! The address of a backend's server, and which certificate authorities are trusted for it.
//! Never uses plain HTTP to another machine unless told to, and never shows a query, which may hold a secret.

use std::sync::Arc;

use sealwire::BackendConfig;
use sealwire::address::{Address, AddressFault, Plaintext, front};
use tokio_rustls::rustls::ClientConfig;

use crate::child::visible;

/// Parses an `https` address, or an `http` address of this machine; with `plain`, an `http` address of any machine.
pub(super) fn parse(url: &str, plain: bool) -> Result<Address, String> {
    Address::parse(url, if plain { Plaintext::Anywhere } else { Plaintext::ThisMachine }).map_err(|fault| {
        let wrong = |why: &str| format!("`url`: `{}` {why}", visible(front(url)));
        match fault {
            // Nothing of it is shown: it may contain a password.
            AddressFault::UserName => {
                "`url` has a user name: write it as a `credential`, in a file".to_owned()
            }
            AddressFault::Plain => wrong(
                "is not https: whoever is on the way could read and change everything; if the network itself is trusted, set \
                 `allow_plaintext = true`",
            ),
            fault => wrong(fault.why()),
        }
    })
}

/// TLS with the trust anchors of `tls_ca`, or with the system's.
pub(super) fn trusting(config: &BackendConfig) -> Result<Arc<ClientConfig>, String> {
    let pem = config.tls_ca.as_ref().map(|path| config.files.read_public(path)).transpose();
    let pem = pem.map_err(|error| format!("`tls_ca`: {error}"))?;
    let tls = sealwire::tls::trusting(pem.as_deref()).map_err(|fault| match &config.tls_ca {
        Some(path) => format!("`tls_ca`: `{}`: {fault}", path.display()),
        None => fault.to_string(),
    })?;
    Ok(Arc::new(tls.with_no_client_auth()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn only_https_and_plain_http_to_this_machine_are_addresses() {
        let good = parse("https://api.example:8443/rpc?app=secret", false).unwrap();
        assert_eq!((good.host.as_str(), good.port, good.target.as_str()), ("api.example", 8443, "/rpc?app=secret"));
        assert_eq!(good.to_string(), "https://api.example:8443/rpc");
        assert_eq!(good.authority, "api.example:8443");
        let short = parse("https://[2001:db8::1]", false).unwrap();
        assert_eq!((short.host.as_str(), short.port, short.target.as_str()), ("2001:db8::1", 443, "/"));
        for here in ["http://127.0.0.1:1/rpc", "http://[::1]:1", "http://localhost", "http://LOCALHOST:80/"] {
            assert!(!parse(here, false).unwrap().tls, "{here}");
        }
        assert_eq!(parse("http://localhost:1/", false).unwrap().hosts(), ["127.0.0.1", "::1"]);
        for remote in
            ["http://api.example/", "http://10.0.0.1/", "http://127.0.0.1.example/", "http://localhost.example"]
        {
            assert!(parse(remote, false).unwrap_err().contains("allow_plaintext"), "{remote}");
            assert!(parse(remote, true).is_ok(), "{remote}");
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
            assert!(parse(bad, true).is_err(), "{bad}");
        }
    }

    #[test]
    fn errors_show_neither_passwords_nor_queries() {
        for url in ["https://user:hunter2@api.example/", "http://api.example/rpc?code=hunter2", "x?hunter2"] {
            let error = parse(url, false).unwrap_err();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
