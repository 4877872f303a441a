//! One attempt to connect to one broker: TCP, `INFO`, TLS, `CONNECT`, and the answer to it.
//! Never sends a secret before TLS if TLS is required, and never prints one.

use std::fmt;
use std::time::Duration;

use bytes::BytesMut;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::rustls;
use zeroize::Zeroizing;

use super::nkey::NKey;
use super::protocol::{Info, Op, Parser};
use super::servers::Address;
use super::tls::{self, TlsFiles};

/// How we log in.
#[derive(Clone, Default)]
pub(crate) struct Login {
    pub(crate) user: Option<(String, Zeroizing<String>)>,
    pub(crate) token: Option<Zeroizing<String>>,
    pub(crate) nkey_seed: Option<Zeroizing<String>>,
    pub(crate) tls: TlsFiles,
}

/// Omits the secrets.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("user", &self.user.as_ref().map(|(user, _)| user)).finish_non_exhaustive()
    }
}

/// Why an attempt failed.
#[derive(Debug)]
pub(crate) enum DialError {
    /// Nobody answers there, or something that does not speak the protocol.
    Unreachable(String),
    /// The broker refuses this user.
    Refused,
    /// The TLS connection could not be established.
    Tls(String),
}

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(cause) => f.write_str(cause),
            Self::Refused => f.write_str("the broker refuses this user"),
            Self::Tls(cause) => write!(f, "TLS: {cause}"),
        }
    }
}

/// A connection that has logged in, and what was read beyond the answer.
pub(super) struct Dialed {
    pub(super) stream: Box<dyn Stream>,
    pub(super) buffer: BytesMut,
    pub(super) parser: Parser,
    pub(super) info: Info,
    /// Whether everything the broker said arrived over TLS, or TLS is not required.
    pub(super) encrypted: bool,
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
    let late = |what: &str| DialError::Unreachable(format!("no {what} in time"));
    timeout(WITHIN, async {
        let greeted = async {
            let tcp = TcpStream::connect((address.host.as_str(), address.port)).await.map_err(unreachable)?;
            tcp.set_nodelay(true).map_err(unreachable)?;
            let mut dialing =
                Dialing { stream: Box::new(tcp), buffer: BytesMut::new(), parser: Parser::new(max_message) };
            match dialing.next().await? {
                Op::Info(info) => Ok((dialing, *info)),
                _ => Err(DialError::Unreachable("something answers there, but it is not a NATS server".to_owned())),
            }
        };
        let (dialing, info) = timeout(GREETED_WITHIN, greeted).await.map_err(|_| late("greeting"))??;
        dialing.log_in(info, address, login, name).await
    })
    .await
    .map_err(|_| late("answer to our login"))?
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
        login: &Login,
        name: &str,
    ) -> Result<Dialed, DialError> {
        let asked = address.tls || login.tls.ca.is_some() || login.tls.identity.is_some();
        let encrypted = asked || info.tls_required;
        if encrypted {
            self = self.encrypt(address, login).await?;
        }
        if !info.headers {
            return Err(DialError::Unreachable("the broker does not support headers: it is too old".to_owned()));
        }
        let connect = connect_line(&info, login, name, encrypted)?;
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
        Ok(Dialed { stream, buffer, parser, info, encrypted })
    }

    async fn encrypt(self, address: &Address, login: &Login) -> Result<Self, DialError> {
        // Otherwise data read before TLS would be taken for data that arrived over TLS.
        if !self.buffer.is_empty() {
            return Err(DialError::Tls("the broker sends more than its greeting before TLS begins".to_owned()));
        }
        let files = login.tls.clone();
        let connector = tokio::task::spawn_blocking(move || tls::connector(&files)).await;
        let connector = connector.map_err(|error| DialError::Tls(error.to_string()))?.map_err(DialError::Tls)?;
        let name = tls::server_name(&address.tls_name).map_err(DialError::Tls)?;
        let stream = connector.connect(name, self.stream).await.map_err(|error| DialError::Tls(error.to_string()))?;
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

/// `CONNECT` with our credentials, and a `PING`, which is answered if they are accepted.
fn connect_line(info: &Info, login: &Login, name: &str, encrypted: bool) -> Result<Zeroizing<Vec<u8>>, DialError> {
    let mut connect = json!({
        "verbose": false,
        "pedantic": false,
        "tls_required": encrypted,
        "lang": "rust",
        "version": env!("CARGO_PKG_VERSION"),
        "name": name,
        "protocol": 1,
        "echo": true,
        "headers": true,
        "no_responders": true,
    });
    if let serde_json::Value::Object(members) = &mut connect {
        let mut put = |name: &str, value: &str| members.insert(name.to_owned(), value.into());
        if let Some((user, password)) = &login.user {
            put("user", user);
            put("pass", password);
        }
        if let Some(token) = &login.token {
            put("auth_token", token);
        }
        if let (Some(seed), Some(nonce)) = (&login.nkey_seed, &info.nonce) {
            // Reveals neither the seed nor what is wrong with it.
            let unusable = || DialError::Unreachable("the nkey seed is invalid: a user's begins with SU".to_owned());
            let key = NKey::from_seed(seed).ok_or_else(unusable)?;
            put("nkey", &key.public());
            put("sig", &key.sign(nonce));
        }
    }
    let mut line = Zeroizing::new(Vec::with_capacity(1024));
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
        DialError::Tls(error.to_string())
    } else {
        unreachable(error)
    }
}
