//! Asks from the door's own machine whether the door of a configuration is ready, for supervisors that cannot ask over HTTP.
//! Never mistakes another program on that port for the door, if there is a certificate.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, HOST};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error as TlsError, SignatureScheme};

use super::config::DoorConfig;
use super::tls::{certificates, in_time};

/// Why a door is not ready.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotReady {
    /// The configuration does not allow asking; why.
    #[error("{0}")]
    Config(String),
    /// Nothing answers there, or not as the door of this configuration would; why.
    #[error("no door of this configuration answers at {at}: {why}")]
    Unanswered {
        /// Where it was asked.
        at: SocketAddr,
        /// What went wrong.
        why: String,
    },
    /// It answers that it is not ready: its broker cannot be reached, the memory that replicas share is not open yet, or it is stopping.
    #[error(
        "the door at {0} accepts no requests: its broker cannot be reached, the memory of all replicas is not open yet, or it is \
         being stopped"
    )]
    Unready(SocketAddr),
}

/// How long the answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Asks the door that runs with this configuration on this machine for `/readyz`. Takes at most 5 s.
///
/// # Errors
/// [`NotReady`].
///
/// Cancel safe.
pub async fn ready(config: &DoorConfig) -> Result<(), NotReady> {
    let mut at = config.listen;
    match at.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => at.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => at.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    if at.port() == 0 {
        return Err(NotReady::Config("`listen` has port 0: it is not known which one the door has picked".to_owned()));
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

async fn status(
    at: SocketAddr,
    tls: Option<TlsConnector>,
) -> Result<StatusCode, Box<dyn std::error::Error + Send + Sync>> {
    let socket = TcpStream::connect(at).await?;
    match tls {
        None => asked(socket).await,
        Some(tls) => asked(tls.connect(ServerName::from(at.ip()), socket).await?).await,
    }
}

async fn asked(
    socket: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> Result<StatusCode, Box<dyn std::error::Error + Send + Sync>> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await?;
    let request =
        Request::get("/readyz").header(HOST, "localhost").header(CONNECTION, "close").body(Empty::<Bytes>::new())?;
    let answer = sender.send_request(request);
    tokio::pin!(answer);
    // The request is not sent unless the connection is polled, too.
    let driving = async {
        drop(connection.await);
        std::future::pending::<()>().await;
    };
    tokio::select! {
        answer = &mut answer => Ok(answer?.status()),
        () = driving => Err("the connection has ended".into()),
    }
}

fn tls(config: &DoorConfig) -> Result<Option<TlsConnector>, String> {
    let Some(chain) = &config.tls_cert else { return Ok(None) };
    let own = certificates(chain)?.into_iter().next();
    let own = own.ok_or_else(|| format!("`tls_cert`: `{}` has no certificate", chain.display()))?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = Arc::new(Own { certificate: own, provider: Arc::clone(&provider) });
    let tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    Ok(Some(TlsConnector::from(Arc::new(tls))))
}

/// Accepts only the certificate in the configuration, within its dates, whoever issued it.
#[derive(Debug)]
struct Own {
    certificate: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Own {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        // Most likely the file was replaced after the door was started.
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
