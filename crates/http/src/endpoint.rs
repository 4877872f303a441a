//! Where a server is, and a connection to it: TCP, and TLS if that is configured.
//! Never looks up a name that stands for this machine.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

/// Where a server is.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// The host, without brackets, to which its certificate belongs.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The addresses to connect to instead of looking `host` up; empty for a host that is looked up.
    pub addresses: Vec<SocketAddr>,
    /// TLS, with whom to trust; `None` for plain HTTP.
    pub tls: Option<Arc<ClientConfig>>,
    /// Says what went wrong with TLS.
    pub tls_failure: fn(&std::io::Error) -> String,
}

/// There is no connection, so the server has received nothing. Holds what the system, TLS or hyper said.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConnectError(pub String);

/// A connection with or without TLS.
pub(crate) trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Socket for T {}

impl Endpoint {
    pub(crate) async fn connect(&self) -> Result<Box<dyn Socket>, ConnectError> {
        let socket = self.dial().await.map_err(|error| ConnectError(error.to_string()))?;
        // A request is written in one piece: delaying small packets gains nothing.
        drop(socket.set_nodelay(true));
        let Some(tls) = &self.tls else { return Ok(Box::new(socket)) };
        let name = ServerName::try_from(self.host.clone()).map_err(|error| ConnectError(error.to_string()))?;
        let stream = TlsConnector::from(Arc::clone(tls)).connect(name, socket).await;
        Ok(Box::new(stream.map_err(|error| ConnectError((self.tls_failure)(&error)))?))
    }

    async fn dial(&self) -> std::io::Result<TcpStream> {
        let mut failed = None;
        for address in &self.addresses {
            match TcpStream::connect(address).await {
                Ok(socket) => return Ok(socket),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        match failed {
            Some(error) => Err(error),
            None => TcpStream::connect((self.host.as_str(), self.port)).await,
        }
    }
}
