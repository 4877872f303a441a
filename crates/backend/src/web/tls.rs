//! Whom a server's certificate must come from.
//! Never takes a certificate unchecked: there is no switch for that.

use std::fmt::Display;
use std::sync::Arc;

use sealwire::BackendConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// TLS 1.2 and 1.3, under the trust anchors of `tls_ca`, or the system's.
pub(super) fn trusting(config: &BackendConfig) -> Result<Arc<ClientConfig>, String> {
    let mut roots = RootCertStore::empty();
    match &config.tls_ca {
        Some(path) => {
            let wrong = |error: &dyn Display| format!("`tls_ca`: `{}`: {error}", path.display());
            let pem = config.files.read_public(path).map_err(|error| format!("`tls_ca`: {error}"))?;
            for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
                roots.add(certificate.map_err(|error| wrong(&error))?).map_err(|error| wrong(&error))?;
            }
            if roots.is_empty() {
                return Err(wrong(&"there is no certificate in it"));
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                return Err("the system has no trust anchors; name a file with `tls_ca`".to_owned());
            }
        }
    }
    // Named, so that another provider in the program does not matter.
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
}
