//! One attempt to connect to one broker: TCP, `INFO`, TLS, `CONNECT`, and the answer to it.
//! Never sends a secret before TLS if TLS is required, and never prints one.

use std::fmt;
use std::time::Duration;

use bytes::BytesMut;
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::rustls;
use zeroize::Zeroizing;

use super::creds::Life;
use super::error::BusError;
use super::login::{Credential, Login, Proof};
use super::protocol::{Info, Op, Parser};
use super::servers::Address;
use super::tls::{self, TlsFiles};
#[cfg(feature = "websockets")]
use super::websocket;
use crate::loopback;
use crate::tls::failure;

/// Why an attempt failed.
#[derive(Debug)]
pub(crate) enum DialError {
    /// Nobody answers there, or something that does not speak the protocol.
    Unreachable(String),
    /// The broker refuses this user.
    Refused,
    /// The TLS connection could not be established.
    Tls(String),
    /// What we log in with cannot be used, or not with this broker.
    Login(BusError),
}

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(cause) => f.write_str(cause),
            Self::Refused => f.write_str("the broker refuses this user"),
            Self::Tls(cause) => write!(f, "TLS: {cause}"),
            Self::Login(error) => error.fmt(f),
        }
    }
}

/// A connection that has logged in, and what was read beyond the answer.
pub(super) struct Dialed {
    pub(super) stream: Box<dyn Stream>,
    pub(super) buffer: BytesMut,
    pub(super) parser: Parser,
    pub(super) info: Info,
    /// Whether TLS began after the greeting, which anybody on the path can have written.
    pub(super) greeted_plainly: bool,
    /// When the broker will end the connection, if our login says so.
    pub(super) life: Option<Life>,
}

/// A socket, with TLS or without.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// How long a broker may take to send `INFO`. If it hangs, its kernel still accepts connections.
const GREETED_WITHIN: Duration = Duration::from_secs(3);
/// How long the whole attempt may take; a broker with an auth callout waits two seconds for it.
const WITHIN: Duration = Duration::from_secs(8);

/// Makes one attempt. The broker's listings show `name`.
pub(super) async fn dial(
    address: &Address,
    login: &Login,
    name: &str,
    max_message: usize,
) -> Result<Dialed, DialError> {
    let late = |what: &str| DialError::Unreachable(format!("no {what}"));
    // A file that cannot be used costs the broker no connection.
    let credential = login.credential().await.map_err(DialError::Login)?;
    timeout(WITHIN, async {
        let greeted = async {
            let tcp = connect(address).await.map_err(unreachable)?;
            tcp.set_nodelay(true).map_err(unreachable)?;
            let mut dialing =
                Dialing { stream: Box::new(tcp), buffer: BytesMut::new(), parser: Parser::new(max_message) };
            if login.tls.first || address.path.is_some() && address.tls {
                dialing = dialing.encrypt(address, &login.tls).await?;
            }
            #[cfg(feature = "websockets")]
            if let Some(path) = &address.path {
                let socket = websocket::open(dialing.stream, &address.authority(), path).await.map_err(failed)?;
                dialing = Dialing { stream: Box::new(socket), ..dialing };
            }
            match dialing.next().await? {
                Op::Info(info) => Ok((dialing, *info)),
                _ => Err(DialError::Unreachable("something answers there, but it is not a NATS server".to_owned())),
            }
        };
        // A broker that waits for TLS first says nothing, either.
        let (dialing, info) = timeout(GREETED_WITHIN, greeted)
            .await
            .map_err(|_| late("greeting in time; if the broker is set to `handshake_first`, set `tls_first` here"))??;
        dialing.log_in(info, address, &login.tls, credential, name).await
    })
    .await
    .map_err(|_| late("answer to our login in time"))?
}

/// `localhost` is this machine, whatever a resolver says: passwords may go there in clear text.
async fn connect(address: &Address) -> std::io::Result<TcpStream> {
    if !loopback::is_name(&address.host) {
        return TcpStream::connect((address.host.as_str(), address.port)).await;
    }
    let [first, second] = loopback::ADDRESSES;
    match TcpStream::connect((first, address.port)).await {
        Ok(tcp) => Ok(tcp),
        Err(error) => TcpStream::connect((second, address.port)).await.map_err(|_| error),
    }
}

struct Dialing {
    stream: Box<dyn Stream>,
    buffer: BytesMut,
    parser: Parser,
}

impl Dialing {
    async fn log_in(
        mut self,
        mut info: Info,
        address: &Address,
        files: &TlsFiles,
        credential: Credential,
        name: &str,
    ) -> Result<Dialed, DialError> {
        // Below a WebSocket TLS has begun, or there is none.
        let begins_now = address.path.is_none() && !files.first;
        let encrypted = address.tls || begins_now && (files.are_asked_for() || info.tls_required) || files.first;
        if encrypted && begins_now {
            self = self.encrypt(address, files).await?;
        }
        if !info.headers {
            return Err(DialError::Unreachable("the broker does not support headers: it is too old".to_owned()));
        }
        let life = credential.life();
        let proof = credential.prove(info.nonce.as_deref()).map_err(DialError::Login)?;
        let connect = connect_line(&proof, name, encrypted)?;
        self.stream.write_all(&connect).await.map_err(failed)?;
        self.stream.flush().await.map_err(failed)?;
        loop {
            match self.next().await? {
                Op::Pong => break,
                Op::Ping => {
                    self.stream.write_all(b"PONG\r\n").await.map_err(failed)?;
                    self.stream.flush().await.map_err(failed)?;
                }
                Op::Info(newer) => info = *newer,
                Op::Error(text) => return Err(refused(&text)),
                Op::Ok | Op::Message(_) => {}
            }
        }
        let Self { stream, buffer, parser } = self;
        let greeted_plainly = encrypted && begins_now;
        Ok(Dialed { stream, buffer, parser, info, greeted_plainly, life })
    }

    async fn encrypt(self, address: &Address, files: &TlsFiles) -> Result<Self, DialError> {
        // Otherwise data read before TLS would be taken for data that arrived over TLS.
        if !self.buffer.is_empty() {
            return Err(DialError::Tls("the broker sends more than its greeting before TLS begins".to_owned()));
        }
        let files = files.clone();
        let connector = tokio::task::spawn_blocking(move || tls::connector(&files)).await;
        let connector = connector.map_err(|error| DialError::Tls(error.to_string()))?.map_err(DialError::Tls)?;
        let name = tls::server_name(&address.tls_name).map_err(DialError::Tls)?;
        let stream = connector.connect(name, self.stream).await.map_err(|error| DialError::Tls(failure(&error)))?;
        Ok(Self { stream: Box::new(stream), ..self })
    }

    async fn next(&mut self) -> Result<Op, DialError> {
        loop {
            match self.parser.next(&mut self.buffer) {
                Ok(Some(op)) => return Ok(op),
                Ok(None) => {}
                Err(error) => return Err(DialError::Unreachable(error.to_string())),
            }
            if self.stream.read_buf(&mut self.buffer).await.map_err(failed)? == 0 {
                return Err(DialError::Unreachable("the broker closed the connection".to_owned()));
            }
        }
    }
}

#[derive(Serialize)]
struct Connect<'c> {
    verbose: bool,
    pedantic: bool,
    tls_required: bool,
    lang: &'static str,
    version: &'static str,
    name: &'c str,
    protocol: u8,
    echo: bool,
    headers: bool,
    no_responders: bool,
    #[serde(flatten)]
    proof: &'c Proof,
}

/// `CONNECT` with our credentials, and a `PING`, which is answered if they are accepted.
fn connect_line(proof: &Proof, name: &str, encrypted: bool) -> Result<Zeroizing<Vec<u8>>, DialError> {
    let connect = Connect {
        verbose: false,
        pedantic: false,
        tls_required: encrypted,
        lang: "rust",
        version: env!("CARGO_PKG_VERSION"),
        name,
        protocol: 1,
        echo: true,
        headers: true,
        no_responders: true,
        proof,
    };
    let mut line = Zeroizing::new(Vec::with_capacity(4096));
    line.extend_from_slice(b"CONNECT ");
    serde_json::to_writer(&mut *line, &connect).map_err(|error| DialError::Unreachable(error.to_string()))?;
    line.extend_from_slice(b"\r\nPING\r\n");
    Ok(line)
}

/// The broker's reason for not accepting us. Anything except a refusal of our credentials may be temporary.
fn refused(text: &str) -> DialError {
    let lower = text.to_ascii_lowercase();
    if lower.contains("authorization") || lower.contains("authentication") {
        DialError::Refused
    } else {
        DialError::Unreachable(crate::name::shown(text))
    }
}

fn unreachable(error: std::io::Error) -> DialError {
    DialError::Unreachable(error.to_string())
}

/// With TLS 1.3, a broker reports that it rejects our certificate only after the handshake.
fn failed(error: std::io::Error) -> DialError {
    if error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()) {
        DialError::Tls(failure(&error))
    } else {
        unreachable(error)
    }
}
