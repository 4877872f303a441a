//! What is in a PEM file, and what is in it instead of what should be.
//! Never quotes the file, which may hold a key.

use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Why a file does not hold the certificates or the key that it should.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PemFault {
    /// Nothing at all.
    #[error("it is empty")]
    Empty,
    /// No PEM, where certificates belong.
    #[error("there is no certificate in it: PEM begins with -----BEGIN CERTIFICATE-----")]
    NoCertificate,
    /// No PEM, where a key belongs.
    #[error("there is no private key in it: PEM begins with -----BEGIN PRIVATE KEY-----")]
    NoKey,
    /// A private key, where certificates belong.
    #[error("it holds a private key, and certificates belong here: are two files swapped?")]
    KeyForCertificate,
    /// Certificates, where a private key belongs.
    #[error("it holds a certificate and no private key: are two files swapped?")]
    CertificateForKey,
    /// A key that needs a password.
    #[error(
        "the private key is encrypted, and nobody is there to type its password: `openssl pkey -in FILE -out FILE.plain` decrypts \
         it; protect that file with `chmod 600`"
    )]
    Encrypted,
    /// A public key.
    #[error("it holds a public key, not {0}")]
    PublicKey(Wanted),
    /// A request to an authority.
    #[error("it holds a certificate signing request, not {0}: the authority answers it with a certificate")]
    Request(Wanted),
    /// A key of OpenSSH.
    #[error(
        "it holds a key in OpenSSH's own format: `ssh-keygen -p -m PKCS8 -f FILE` converts it, but make one for TLS alone"
    )]
    OpenSsh,
    /// PEM of another kind.
    #[error("it holds PEM of another kind, not {0}")]
    Other(Wanted),
    /// The beginning or the end is missing, or what lies between is not base64.
    #[error("its PEM is damaged: the line -----END …----- is missing, or something between the lines is not base64")]
    Damaged,
}

/// What belongs in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// One certificate or more.
    Certificate,
    /// A private key.
    Key,
}

impl std::fmt::Display for Wanted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Certificate => "a certificate",
            Self::Key => "a private key",
        })
    }
}

/// The certificates of a PEM file, at least one.
pub(super) fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, PemFault> {
    let pem = with_line_ends(pem);
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(instead(&pem, Wanted::Certificate)),
        Err(_) => Err(PemFault::Damaged),
    }
}

/// The first private key of a PEM file.
pub(super) fn private_key(pem: &str) -> Result<PrivateKeyDer<'static>, PemFault> {
    // A copy would have to be wiped, and no tool ends the lines of a key with a lone CR.
    if is_encrypted(pem) {
        return Err(PemFault::Encrypted);
    }
    use tokio_rustls::rustls::pki_types::pem::Error;
    match PrivateKeyDer::from_pem_slice(pem.as_bytes()) {
        Ok(key) => Ok(key),
        Err(Error::NoItemsFound) => Err(instead(pem, Wanted::Key)),
        Err(_) => Err(PemFault::Damaged),
    }
}

/// RFC 7468 §3 lets a line end with CR alone, which the parser does not read.
fn with_line_ends(pem: &str) -> std::borrow::Cow<'_, str> {
    if pem.contains('\r') && !pem.contains('\n') { pem.replace('\r', "\n").into() } else { pem.into() }
}

/// What the file holds in place of what is wanted.
fn instead(pem: &str, wanted: Wanted) -> PemFault {
    let labels: Vec<&str> = labels(pem).collect();
    let has = |end: &str| labels.iter().any(|label| label.ends_with(end));
    let is = |name: &str| labels.contains(&name);
    match wanted {
        _ if pem.trim().is_empty() => PemFault::Empty,
        _ if is("OPENSSH PRIVATE KEY") => PemFault::OpenSsh,
        _ if is("NEW CERTIFICATE REQUEST") || is("CERTIFICATE REQUEST") => PemFault::Request(wanted),
        _ if has("PUBLIC KEY") => PemFault::PublicKey(wanted),
        Wanted::Certificate if has("PRIVATE KEY") => PemFault::KeyForCertificate,
        Wanted::Key if is("CERTIFICATE") => PemFault::CertificateForKey,
        _ if !labels.is_empty() => PemFault::Other(wanted),
        // A line of dashes that is not what it should be.
        _ if pem.contains("-----BEGIN") || pem.contains("-----END") => PemFault::Damaged,
        Wanted::Certificate => PemFault::NoCertificate,
        Wanted::Key => PemFault::NoKey,
    }
}

fn labels(pem: &str) -> impl Iterator<Item = &str> {
    pem.lines().filter_map(|line| line.trim().strip_prefix("-----BEGIN ")?.strip_suffix("-----"))
}

/// PKCS#8 (RFC 5958 §3), or the older format of OpenSSL (RFC 1421 §4.6.1.1).
fn is_encrypted(pem: &str) -> bool {
    labels(pem).any(|label| label == "ENCRYPTED PRIVATE KEY")
        || pem.lines().any(|line| line.trim_start().starts_with("Proc-Type:") && line.contains("ENCRYPTED"))
}
