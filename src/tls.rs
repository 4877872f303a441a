//! Which certificates a TLS server may present, and which one we show.
//! Never accepts a certificate unchecked, and never falls back to the system's trust anchors if others were configured.

mod handshake;
mod pem;

use std::sync::Arc;
use std::time::Duration;

use tokio_rustls::rustls::client::{WantsClientCert, verify_server_cert_signed_by_trust_anchor};
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{CertificateError, ClientConfig, ConfigBuilder, Error, InconsistentKeys, RootCertStore};

pub use handshake::failure;
pub use pem::{PemFault, Wanted};

/// Unusable trust anchors, or an unusable certificate.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TlsFault {
    /// What rustls says about one of them.
    #[error("{0}")]
    Certificate(String),
    /// The text is not the PEM that it should be.
    #[error(transparent)]
    Pem(#[from] PemFault),
    /// The private key is none that TLS can use.
    #[error(
        "the private key cannot be used: RSA needs 2048 to 8192 bits; ECDSA with P-256, P-384 or P-521, and Ed25519, are the others"
    )]
    Key,
    /// The private key is that of another certificate.
    #[error("the private key is not that of the first certificate: certificate and key belong to different pairs")]
    Pair,
    /// The certificate is outside its dates.
    #[error("the certificate is not valid now: {0}")]
    Date(CertificateError),
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
/// [`TlsFault::Pem`].
pub fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, TlsFault> {
    Ok(pem::certificates(pem)?)
}

/// What we show the other side: certificates, our own first, and the key of that one.
pub type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Which of the two files is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Half {
    /// That with the certificates.
    Certificates,
    /// That with the key.
    Key,
}

/// Reads our certificates and their key from PEM, and checks that they can be used together. Their dates are not checked: see [`in_time`].
///
/// # Errors
/// [`TlsFault`], and which of the two texts is wrong.
pub fn identity(chain: &str, key: &str) -> Result<Identity, (Half, TlsFault)> {
    let of_chain = |fault| (Half::Certificates, fault);
    let of_key = |fault| (Half::Key, fault);
    let chain = certificates(chain).map_err(of_chain)?;
    let key = pem::private_key(key).map_err(|fault| of_key(fault.into()))?;
    let signing = aws_lc_rs::sign::any_supported_type(&key).map_err(|_| of_key(TlsFault::Key))?;
    match CertifiedKey::new(chain.clone(), signing).keys_match() {
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok((chain, key)),
        Err(Error::InconsistentKeys(_)) => Err(of_key(TlsFault::Pair)),
        Err(error) => Err(of_chain(TlsFault::Certificate(error.to_string()))),
    }
}

/// Refuses a certificate outside its dates. Who issued it is for the other side to check.
///
/// # Errors
/// The date, and the limit that it exceeds.
pub fn in_time(certificate: &CertificateDer<'_>, at: UnixTime) -> Result<(), CertificateError> {
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

/// When all of several certificates are valid, in seconds since the Unix epoch.
#[derive(Debug, Clone, Copy)]
pub struct CertificateValidity {
    /// From when on.
    pub from: u64,
    /// Until when.
    pub until: u64,
}

impl CertificateValidity {
    /// Of these certificates.
    #[must_use]
    pub fn of(certificates: &[CertificateDer<'_>]) -> Self {
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

#[cfg(test)]
mod tests;
