//! TLS of the listener: 1.2 and 1.3, with the configured certificate.
//! Never reads a key that others can read.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use sealwire::auth::{read_public, read_secret};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::config::DoorConfig;

/// What connections begin with, if the configuration names a certificate.
pub(super) fn acceptor(config: &DoorConfig) -> Result<Option<TlsAcceptor>, String> {
    let (Some(chain), Some(key)) = (&config.tls_cert, &config.tls_key) else { return Ok(None) };
    let certificates = certificates(chain)?;
    let pem = read_secret(key).map_err(|error| format!("`tls_key`: {error}"))?;
    let private = PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|error| wrong("tls_key", key, &error))?;
    // Named, so that another provider in the program does not matter.
    let mut tls = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_no_client_auth()
        .with_single_cert(certificates, private)
        .map_err(|error| wrong("tls_cert", chain, &error))?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Some(TlsAcceptor::from(Arc::new(tls))))
}

/// Those of the file that `tls_cert` names, the listener's first.
pub(super) fn certificates(chain: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let pem = read_public(chain).map_err(|error| format!("`tls_cert`: {error}"))?;
    let certificates = CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<Vec<_>, _>>();
    certificates.map_err(|error| wrong("tls_cert", chain, &error))
}

fn wrong(member: &str, path: &Path, error: &dyn Display) -> String {
    format!("`{member}`: `{}`: {error}", path.display())
}
