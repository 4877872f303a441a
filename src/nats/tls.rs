//! TLS to the broker: whom we trust, and who we are. The files are read for each connection, so renewed ones take effect.
//! Never falls back to the system's trust anchors if the operator configured others.

use std::path::PathBuf;
use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::{ServerName, UnixTime};

use crate::files::{Content, FileTrust, read_trusted};
use crate::tls::{self, Half, TlsFault};

/// PEM files. If any is set, TLS is required, whatever the broker says.
#[derive(Debug, Clone, Default)]
pub(crate) struct TlsFiles {
    /// Whose files are trusted.
    pub(crate) trust: FileTrust,
    /// Certificate authorities, instead of the system's.
    pub(crate) ca: Option<PathBuf>,
    /// Our certificate and its key.
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
    /// Whether TLS begins before the broker's greeting. It is required then as well.
    pub(crate) first: bool,
}

impl TlsFiles {
    /// Whether TLS is required, whatever the address and the broker say.
    pub(super) fn are_asked_for(&self) -> bool {
        self.first || self.ca.is_some() || self.identity.is_some()
    }
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
            let read = |path, content| read_trusted(path, content, &files.trust).map_err(|error| error.to_string());
            let (chain, private) = (read(certificate, Content::Public)?, read(key, Content::Secret)?);
            let (chain, private) = tls::identity(&chain, &private).map_err(|(half, fault)| {
                let path = if half == Half::Key { key } else { certificate };
                format!("`{}`: {fault}", path.display())
            })?;
            if let Some(own) = chain.first() {
                let why = |error| format!("`{}`: {}", certificate.display(), TlsFault::Date(error));
                tls::in_time(own, UnixTime::now()).map_err(why)?;
            }
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
