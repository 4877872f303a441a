//! TLS to the broker: whom we trust, and who we are. The files are read for each connection, so renewed ones take effect.
//! Never falls back to the system's trust anchors if the operator configured others.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};

use crate::files::{Content, FileTrust, read_trusted};
use crate::tls;

/// PEM files. If any is set, TLS is required, whatever the broker says.
#[derive(Debug, Clone, Default)]
pub(crate) struct TlsFiles {
    /// Whose files are trusted.
    pub(crate) trust: FileTrust,
    /// Certificate authorities, instead of the system's.
    pub(crate) ca: Option<PathBuf>,
    /// Our certificate and its key.
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
}

/// Reads the files. Blocks.
pub(super) fn connector(files: &TlsFiles) -> Result<TlsConnector, String> {
    let anchors = files.ca.as_ref().map(|ca| read_trusted(ca, Content::Public, &files.trust)).transpose();
    let anchors = anchors.map_err(|error| error.to_string())?;
    let config = tls::trusting(anchors.as_deref().map(String::as_str)).map_err(|fault| match &files.ca {
        Some(ca) => format!("`{}`: {fault}", ca.display()),
        None => fault.to_string(),
    })?;
    let config = match &files.identity {
        None => config.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = certificates(certificate, &files.trust)?;
            let pem = read_trusted(key, Content::Secret, &files.trust).map_err(|error| error.to_string())?;
            // rustls' errors about PEM say what is missing, and quote nothing.
            let private = PrivateKeyDer::from_pem_slice(pem.as_bytes());
            let private = private.map_err(|error| format!("`{}`: {error}", key.display()))?;
            config.with_client_auth_cert(chain, private).map_err(|error| error.to_string())?
        }
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Reads the files only to check whether they can be used. Blocks.
pub(crate) fn try_files(files: &TlsFiles) -> Result<(), String> {
    connector(files).map(drop)
}

/// The name that the broker's certificate must have.
pub(super) fn server_name(host: &str) -> Result<ServerName<'static>, String> {
    ServerName::try_from(host.to_owned()).map_err(|_| format!("`{}` is not a host name", crate::name::shown(host)))
}

fn certificates(path: &Path, trust: &FileTrust) -> Result<Vec<CertificateDer<'static>>, String> {
    let pem = read_trusted(path, Content::Public, trust).map_err(|error| error.to_string())?;
    tls::certificates(&pem).map_err(|fault| format!("`{}`: {fault}", path.display()))
}
