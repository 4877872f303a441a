//! TLS to the broker: whom we trust, and who we are. The files are read for each connection, so renewed ones count.
//! Never falls back to the system's trust anchors where the operator named others.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::files::{Content, FileTrust, read_trusted};

/// PEM files. Either of them asks for TLS, whatever the broker says.
#[derive(Debug, Clone, Default)]
pub(crate) struct TlsFiles {
    /// Who may have written them.
    pub(crate) trust: FileTrust,
    /// Certificate authorities, instead of the system's.
    pub(crate) ca: Option<PathBuf>,
    /// Our certificate and its key.
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
}

/// Reads the files. Blocks.
pub(super) fn connector(files: &TlsFiles) -> Result<TlsConnector, String> {
    let mut roots = RootCertStore::empty();
    if let Some(ca) = &files.ca {
        for certificate in certificates(ca, &files.trust)? {
            roots.add(certificate).map_err(|error| format!("`{}`: {error}", ca.display()))?;
        }
    } else {
        let native = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(native.certs);
        if roots.is_empty() {
            return Err("this machine has no trust anchors: name the broker's in `tls_ca`".to_owned());
        }
    }
    // Named here: rustls would ask for a process-wide choice, which belongs to the program.
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots);
    let config = match &files.identity {
        None => config.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = certificates(certificate, &files.trust)?;
            let pem = read_trusted(key, Content::Secret, &files.trust).map_err(|error| error.to_string())?;
            // rustls' errors on PEM say what is missing, and nothing of what is there.
            let private = PrivateKeyDer::from_pem_slice(pem.as_bytes());
            let private = private.map_err(|error| format!("`{}`: {error}", key.display()))?;
            config.with_client_auth_cert(chain, private).map_err(|error| error.to_string())?
        }
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Reads the files for nothing but to see whether they can be used. Blocks.
pub(crate) fn try_files(files: &TlsFiles) -> Result<(), String> {
    connector(files).map(drop)
}

/// The name that the broker's certificate must have.
pub(super) fn server_name(host: &str) -> Result<ServerName<'static>, String> {
    ServerName::try_from(host.to_owned()).map_err(|_| format!("`{}` is no host name", crate::name::shown(host)))
}

fn certificates(path: &Path, trust: &FileTrust) -> Result<Vec<CertificateDer<'static>>, String> {
    let pem = read_trusted(path, Content::Public, trust).map_err(|error| error.to_string())?;
    let certificates = CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|error| format!("`{}`: {error}", path.display()))?;
    if certificates.is_empty() {
        return Err(format!("`{}` holds no certificate", path.display()));
    }
    Ok(certificates)
}
