//! Asks from the gateway's own machine whether the gateway of a configuration is ready, for supervisors that cannot ask over HTTP.
//! Never mistakes another program on that port for the gateway, if there is a certificate.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{CONNECTION, HOST};
use hyper::{Request, StatusCode};
use sealwire::internal::tls::in_time;
use sealwire_http::{Connection, Endpoint};
use tokio::time::timeout;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error as TlsError, SignatureScheme};

use super::config::GatewayConfig;
use super::tls::certificates;

/// Why a gateway is not ready.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotReady {
    /// The configuration does not allow asking; why.
    #[error("{0}")]
    Config(String),
    /// Nothing answers there, or not as the gateway of this configuration would; why.
    #[error("no gateway of this configuration answers at {at}: {why}")]
    Unanswered {
        /// Where it was asked.
        at: SocketAddr,
        /// What went wrong.
        why: String,
    },
    /// It answers that it is not ready: its broker cannot be reached, the memory that replicas share is not open yet, a changed file is
    /// refused, or it is stopping.
    #[error(
        "the gateway at {0} is not ready: its broker cannot be reached, the memory of all replicas is not open yet, a changed denylist \
         or key set is refused, or it is being stopped"
    )]
    Unready(SocketAddr),
}

/// How long the answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Asks the gateway that runs with this configuration on this machine for `/readyz`. Takes at most 5 s.
///
/// # Errors
/// [`NotReady`].
///
/// Cancel safe.
pub async fn ready(config: &GatewayConfig) -> Result<(), NotReady> {
    let mut at = config.listen;
    match at.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => at.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => at.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    if at.port() == 0 {
        return Err(NotReady::Config(
            "`listen` has port 0: it is not known which one the gateway has picked".to_owned(),
        ));
    }
    let tls = tls(config).map_err(NotReady::Config)?;
    let unanswered = |why: String| NotReady::Unanswered { at, why };
    match timeout(PATIENCE, status(at, tls)).await {
        Ok(Ok(StatusCode::OK)) => Ok(()),
        Ok(Ok(StatusCode::SERVICE_UNAVAILABLE)) => Err(NotReady::Unready(at)),
        Ok(Ok(status)) => Err(unanswered(status.to_string())),
        Ok(Err(error)) => Err(unanswered(error.to_string())),
        Err(_) => Err(unanswered(format!("no answer for {} s", PATIENCE.as_secs()))),
    }
}

async fn status(at: SocketAddr, tls: Option<Arc<ClientConfig>>) -> Result<StatusCode, Box<dyn Error + Send + Sync>> {
    let (host, port, addresses) = (at.ip().to_string(), at.port(), vec![at]);
    let endpoint = Endpoint { host, port, addresses, tls, tls_failure: ToString::to_string };
    let request = Request::get("/readyz").header(HOST, "localhost").header(CONNECTION, "close").body(Bytes::new())?;
    Ok(Connection::open(&endpoint).await?.send(request).await?.status())
}

fn tls(config: &GatewayConfig) -> Result<Option<Arc<ClientConfig>>, String> {
    let Some(chain) = &config.tls_cert else { return Ok(None) };
    let own = certificates(chain)?.into_iter().next();
    let own = own.ok_or_else(|| format!("`tls_cert`: `{}` has no certificate", chain.display()))?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = Arc::new(PinnedCertificate { certificate: own, provider: Arc::clone(&provider) });
    let tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    Ok(Some(Arc::new(tls)))
}

/// Accepts only the certificate in the configuration, within its dates, whoever issued it.
#[derive(Debug)]
struct PinnedCertificate {
    certificate: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinnedCertificate {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        // Most likely the file was replaced after the gateway was started.
        if *end_entity != self.certificate {
            return Err(TlsError::InvalidCertificate(CertificateError::ApplicationVerificationFailure));
        }
        in_time(end_entity, now).map_err(TlsError::InvalidCertificate)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
