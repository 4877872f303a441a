//! Whom a server's certificate must come from.
//! Never takes a certificate unchecked, and never falls back to the system's trust anchors where others were named.

use std::sync::Arc;

use tokio_rustls::rustls::client::WantsClientCert;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::{ClientConfig, ConfigBuilder, RootCertStore};

/// Trust anchors, or a certificate, cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TlsFault {
    /// What rustls says of one of them.
    #[error("{0}")]
    Certificate(String),
    /// No PEM of a certificate.
    #[error("there is no certificate in it")]
    Empty,
    /// None were named, and the system has none.
    #[error("the system has no trust anchors: name a file with `tls_ca`")]
    NoneOfSystem,
}

/// TLS 1.2 and 1.3 under these trust anchors (PEM), or the system's.
///
/// # Errors
/// [`TlsFault`].
pub fn trusting(anchors: Option<&str>) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, TlsFault> {
    let unusable = |error: tokio_rustls::rustls::Error| TlsFault::Certificate(error.to_string());
    let mut roots = RootCertStore::empty();
    match anchors {
        Some(pem) => {
            for certificate in certificates(pem)? {
                roots.add(certificate).map_err(unusable)?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                return Err(TlsFault::NoneOfSystem);
            }
        }
    }
    // Named: rustls would ask for a process-wide choice, which belongs to the program.
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
    Ok(config.with_safe_default_protocol_versions().map_err(unusable)?.with_root_certificates(roots))
}

/// The certificates of a PEM file, at least one.
///
/// # Errors
/// [`TlsFault`].
pub fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, TlsFault> {
    let certificates = CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|error| TlsFault::Certificate(error.to_string()))?;
    if certificates.is_empty() { Err(TlsFault::Empty) } else { Ok(certificates) }
}
