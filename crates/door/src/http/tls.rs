//! TLS of the listener: versions 1.2 and 1.3, with the configured certificate.
//! Never reads a key that other users can read, and never starts with a certificate that every client refuses.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sealwire::auth::{read_public, read_secret};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::client::verify_server_cert_signed_by_trust_anchor;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{CertificateError, Error, RootCertStore, ServerConfig};

use super::config::DoorConfig;

/// The listener's TLS.
pub(super) struct Tls {
    pub(super) acceptor: TlsAcceptor,
    dates: Dates,
}

/// When all certificates of the chain are valid, in seconds since the Unix epoch.
#[derive(Debug, Clone, Copy)]
struct Dates {
    from: u64,
    until: u64,
}

impl Tls {
    /// The warning for the log, if a certificate has expired, expires soon, or is not valid yet.
    pub(super) fn ending(&self) -> Option<&'static str> {
        let (now, Dates { from, until }) = (UnixTime::now().as_secs(), self.dates);
        if now > until {
            return Some("a certificate in `tls_cert` has expired: clients refuse it, or use another chain of trust");
        }
        if now < from {
            return Some(
                "a certificate in `tls_cert` is not valid yet: clients refuse it, or use another chain of trust",
            );
        }
        (now.saturating_add(SOON.as_secs()) > until).then_some("a certificate in `tls_cert` expires within 14 days")
    }
}

impl Dates {
    fn of(certificates: &[CertificateDer<'_>]) -> Self {
        let at = |secs| UnixTime::since_unix_epoch(Duration::from_secs(secs));
        let mut dates = Self { from: 0, until: u64::MAX };
        for certificate in certificates {
            // The error that refuses a certificate for its date contains that date.
            if let Err(CertificateError::NotValidYetContext { not_before, .. }) = in_time(certificate, at(0)) {
                dates.from = dates.from.max(not_before.as_secs());
            }
            if let Err(CertificateError::ExpiredContext { not_after, .. }) = in_time(certificate, at(u64::MAX)) {
                dates.until = dates.until.min(not_after.as_secs());
            }
        }
        dates
    }
}

/// How long before a certificate expires the log warns of it.
const SOON: Duration = Duration::from_secs(14 * 86_400);

/// Refuses a certificate outside its validity dates. Who issued it is for clients to check.
pub(super) fn in_time(certificate: &CertificateDer<'_>, at: UnixTime) -> Result<(), CertificateError> {
    use CertificateError::{Expired, ExpiredContext, NotValidYet, NotValidYetContext};
    let Ok(parsed) = ParsedCertificate::try_from(certificate) else { return Ok(()) };
    // webpki checks the dates before the issuer, and no issuer is trusted here.
    let algorithms = aws_lc_rs::default_provider().signature_verification_algorithms.all;
    let judged = verify_server_cert_signed_by_trust_anchor(&parsed, &RootCertStore::empty(), &[], at, algorithms);
    match judged {
        Err(Error::InvalidCertificate(
            error @ (Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. }),
        )) => Err(error),
        _ => Ok(()),
    }
}

/// The listener's TLS, if the configuration names a certificate.
pub(super) fn listening(config: &DoorConfig) -> Result<Option<Tls>, String> {
    let (Some(chain), Some(key)) = (&config.tls_cert, &config.tls_key) else { return Ok(None) };
    let certificates = certificates(chain)?;
    // Only the listener's own: clients may know another chain of trust than the rest of the file.
    if let Some(own) = certificates.first() {
        let why = |error| wrong("tls_cert", chain, &format!("the certificate is not valid now: {error}"));
        in_time(own, UnixTime::now()).map_err(why)?;
    }
    let dates = Dates::of(&certificates);
    let pem = read_secret(key).map_err(|error| format!("`tls_key`: {error}"))?;
    let private = PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|error| wrong("tls_key", key, &error))?;
    // Set explicitly, so that another provider in the program does not matter.
    let mut tls = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_no_client_auth()
        .with_single_cert(certificates, private)
        .map_err(|error| wrong("tls_cert", chain, &error))?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Some(Tls { acceptor: TlsAcceptor::from(Arc::new(tls)), dates }))
}

/// The certificates in the `tls_cert` file, the listener's first.
pub(super) fn certificates(chain: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let pem = read_public(chain).map_err(|error| format!("`tls_cert`: {error}"))?;
    let certificates = CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<Vec<_>, _>>();
    certificates.map_err(|error| wrong("tls_cert", chain, &error))
}

fn wrong(member: &str, path: &Path, error: &dyn Display) -> String {
    format!("`{member}`: `{}`: {error}", path.display())
}
