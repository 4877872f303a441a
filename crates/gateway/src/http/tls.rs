//! TLS of the listener: versions 1.2 and 1.3, with the configured certificate.
//! Never reads a key that other users can read, and never starts with a certificate that every client refuses.

use std::fmt::Display;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use sealwire::internal::files::{Watch, read_public, read_secret};
use sealwire::internal::tls::{CertificateValidity, Half, TlsFault, identity, in_time};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;

use super::config::GatewayConfig;
use super::reload::Resource;

/// The listener's TLS.
pub(super) struct Tls {
    pub(super) acceptor: TlsAcceptor,
    shown: Arc<CurrentCertificate>,
    files: Mutex<Option<Resource>>,
}

/// The certificate that clients are shown. Connections that are open keep the one they began with.
#[derive(Debug)]
struct CurrentCertificate(RwLock<Pair>);

/// A certificate chain with its key.
#[derive(Debug, Clone)]
struct Pair {
    key: Arc<CertifiedKey>,
    dates: CertificateValidity,
}

impl CurrentCertificate {
    fn pair(&self) -> Pair {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ResolvesServerCert for CurrentCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.pair().key)
    }
}

impl Tls {
    /// The warning for the log, if a certificate has expired, expires soon, or is not valid yet.
    pub(super) fn ending(&self) -> Option<&'static str> {
        let (now, CertificateValidity { from, until }) = (UnixTime::now().as_secs(), self.shown.pair().dates);
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

    /// When the first certificate of the chain ends, in seconds since the Unix epoch.
    pub(super) fn until(&self) -> u64 {
        self.shown.pair().dates.until
    }

    /// The files of the certificate, to be read again when they change. `None` from the second time on.
    pub(super) fn resource(&self) -> Option<Resource> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The listener's TLS, if the configuration names a certificate.
    pub(super) fn listening(config: &GatewayConfig) -> Result<Option<Self>, String> {
        let (Some(chain), Some(key)) = (config.tls_cert.clone(), config.tls_key.clone()) else { return Ok(None) };
        let watch = Watch::new(vec![chain.clone(), key.clone()]);
        let shown = Arc::new(CurrentCertificate(RwLock::new(Pair::read(&chain, &key)?)));
        // Set explicitly, so that another provider in the program does not matter.
        let mut tls = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_no_client_auth()
            .with_cert_resolver(Arc::<CurrentCertificate>::clone(&shown));
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let showing = Arc::clone(&shown);
        let apply = move || {
            let pair = Pair::read(&chain, &key)?;
            *showing.0.write().unwrap_or_else(PoisonError::into_inner) = pair;
            Ok("in force for new connections".to_owned())
        };
        let poll = Box::new(move || watch.poll(&apply));
        let files = Mutex::new(Some(Resource { name: "certificate", takes_away: false, poll }));
        Ok(Some(Self { acceptor: TlsAcceptor::from(Arc::new(tls)), shown, files }))
    }
}

/// How long before a certificate expires the log warns of it.
const SOON: Duration = Duration::from_secs(14 * 86_400);

impl Pair {
    fn read(chain: &Path, key: &Path) -> Result<Self, String> {
        let pem = read_public(chain).map_err(|error| format!("`tls_cert`: {error}"))?;
        let key_pem = read_secret(key).map_err(|error| format!("`tls_key`: {error}"))?;
        let (certificates, private) = identity(&pem, &key_pem).map_err(|(half, fault)| match half {
            Half::Certificates => wrong("tls_cert", chain, &fault),
            Half::Key => wrong("tls_key", key, &fault),
        })?;
        // Only the listener's own: clients may know another chain of trust than the rest of the file.
        if let Some(own) = certificates.first() {
            let why = |error| wrong("tls_cert", chain, &TlsFault::Date(error));
            in_time(own, UnixTime::now()).map_err(why)?;
        }
        let dates = CertificateValidity::of(&certificates);
        let pair = CertifiedKey::from_der(certificates, private, &aws_lc_rs::default_provider());
        Ok(Self { key: Arc::new(pair.map_err(|error| wrong("tls_cert", chain, &error))?), dates })
    }
}

/// The certificates in the `tls_cert` file, the listener's first.
pub(super) fn certificates(chain: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let pem = read_public(chain).map_err(|error| format!("`tls_cert`: {error}"))?;
    sealwire::internal::tls::certificates(&pem).map_err(|error| wrong("tls_cert", chain, &error))
}

fn wrong(member: &str, path: &Path, error: &dyn Display) -> String {
    format!("`{member}`: `{}`: {error}", path.display())
}
