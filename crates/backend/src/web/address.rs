//! The address of a backend's server, and which certificate authorities are trusted for it.
//! Never uses plain HTTP to another machine unless told to, and never shows a query, which may hold a secret.

use std::sync::Arc;

use sealwire::internal::address::{Address, AddressFault, Plaintext, front};
use tokio_rustls::rustls::ClientConfig;

use crate::child::visible;
use crate::tables::BackendConfig;

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
    let tls = sealwire::internal::tls::trusting(pem.as_deref()).map_err(|fault| match &config.tls_ca {
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
    fn plain_http_to_another_machine_must_be_allowed() {
        assert!(parse("https://api.example/", false).is_ok() && !parse("http://localhost:1/", false).unwrap().tls);
        assert!(parse("http://api.example/", false).unwrap_err().contains("allow_plaintext"));
        assert!(parse("http://api.example/", true).is_ok() && parse("ftp://api.example/", true).is_err());
    }

    #[test]
    fn errors_show_neither_passwords_nor_queries() {
        for url in ["https://user:hunter2@api.example/", "http://api.example/rpc?code=hunter2", "x?hunter2"] {
            let error = parse(url, false).unwrap_err();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
