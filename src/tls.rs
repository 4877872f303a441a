//! Which certificates a TLS server may present.
//! Never accepts a certificate unchecked, and never falls back to the system's trust anchors if others were configured.

use std::sync::Arc;

use tokio_rustls::rustls::client::WantsClientCert;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::{ClientConfig, ConfigBuilder, RootCertStore};

/// Unusable trust anchors, or an unusable certificate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TlsFault {
    /// What rustls says about one of them.
    #[error("{0}")]
    Certificate(String),
    /// The PEM text contains no certificate.
    #[error("there is no certificate in it")]
    Empty,
    /// None were configured, and the system has none.
    #[error("the system has no trust anchors: name a file with `tls_ca`")]
    NoneOfSystem,
}

/// TLS 1.2 and 1.3 with these trust anchors (PEM), or the system's.
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
    // Named explicitly: otherwise rustls would use the process-wide default, which is the program's to choose.
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
