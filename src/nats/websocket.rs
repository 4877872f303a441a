//! The bytes of the NATS protocol inside a WebSocket (RFC 6455), for brokers behind a proxy that only lets HTTP pass.
//! Never interprets them, and never begins TLS: that is below it, or nowhere.

use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use aws_lc_rs::rand;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf as _, Bytes, BytesMut};
use futures_util::{Sink, Stream as _};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};

/// The largest frame and message that is read, in bytes. A broker puts everything that waits for us into one frame, and lets no more wait
/// than this (`max_pending`).
const MOST: usize = 64 << 20;
/// The largest message that is sent, in bytes.
const MOST_SENT: usize = 64 << 10;
/// The longest answer to our request, in bytes.
const MOST_HEAD: usize = 16 << 10;

/// Turns the connection into a WebSocket. `host` is for the request's `Host`, and `path` where a proxy expects it.
pub(super) async fn open<S>(mut stream: S, host: &str, path: &str) -> io::Result<Socket<S>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut nonce = [0; 16];
    rand::fill(&mut nonce).map_err(|_| io::Error::other("no random bytes"))?;
    let key = STANDARD.encode(nonce);
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n\
         Sec-WebSocket-Version: 13\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    let mut bytes = BytesMut::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
        if bytes.len() > MOST_HEAD || stream.read_buf(&mut bytes).await? == 0 {
            return Err(refused("no answer of a web server came"));
        }
    };
    let head = bytes.split_to(end + 4);
    check(&head, &key)?;
    let config = WebSocketConfig::default().max_message_size(Some(MOST)).max_frame_size(Some(MOST));
    let socket = WebSocketStream::from_partially_read(stream, bytes.to_vec(), Role::Client, Some(config)).await;
    Ok(Socket { socket, rest: Bytes::new() })
}

/// Whether the answer accepts our request. RFC 6455 §4.1.
fn check(head: &[u8], key: &str) -> io::Result<()> {
    let head = std::str::from_utf8(head).map_err(|_| refused("the answer is not of a web server"))?;
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap_or_default();
    match status.strip_prefix("HTTP/1.1 ").and_then(|status| status.get(..3)) {
        Some("101") => {}
        Some(status) if status.bytes().all(|byte| byte.is_ascii_digit()) => {
            return Err(refused(&format!(
                "it was answered with status {status}; is the path right, and does the proxy pass WebSockets?"
            )));
        }
        _ => return Err(refused("the answer is not of a web server")),
    }
    let fields: Vec<_> = lines.filter_map(|line| line.split_once(':')).collect();
    let of = |wanted: &str| {
        let mut values = fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case(wanted));
        let value = values.next().map(|(_, value)| value.trim());
        value.filter(|_| values.next().is_none())
    };
    let accepted = STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, [key, GUID].concat().as_bytes()));
    let upgrades = of("upgrade").is_some_and(|value| value.eq_ignore_ascii_case("websocket"));
    if !upgrades || of("sec-websocket-accept") != Some(&*accepted) {
        return Err(refused("the answer is to no request of ours"));
    }
    // We asked for neither.
    if of("sec-websocket-extensions").is_some() || of("sec-websocket-protocol").is_some() {
        return Err(refused("the answer chooses what was not offered"));
    }
    Ok(())
}

/// RFC 6455 §1.3.
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

fn refused(why: &str) -> io::Error {
    invalid(&format!("no WebSocket: {why}"))
}

/// The content of binary messages, as one stream. Pings are answered, and pongs are taken, by the library.
pub(super) struct Socket<S> {
    socket: WebSocketStream<S>,
    /// What of the latest message has not been read.
    rest: Bytes,
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Socket<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        while self.rest.is_empty() {
            match ready!(Pin::new(&mut self.socket).poll_next(cx)) {
                Some(Ok(Message::Binary(bytes))) => self.rest = bytes,
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
                Some(Ok(Message::Text(_))) => {
                    return Poll::Ready(Err(invalid("the broker sends text in its WebSocket")));
                }
                Some(Ok(Message::Close(_))) | None => return Poll::Ready(Ok(())),
                Some(Err(error)) => return Poll::Ready(Err(of(error))),
            }
        }
        let length = self.rest.len().min(buffer.remaining());
        buffer.put_slice(self.rest.get(..length).unwrap_or_default());
        self.rest.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Socket<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(Pin::new(&mut self.socket).poll_ready(cx)).map_err(of)?;
        let sent = bytes.get(..MOST_SENT).unwrap_or(bytes);
        let message = Message::Binary(Bytes::copy_from_slice(sent));
        Poll::Ready(Pin::new(&mut self.socket).start_send(message).map(|()| sent.len()).map_err(of))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx).map_err(of)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_close(cx).map_err(of)
    }
}

fn of(error: Error) -> io::Error {
    match error {
        Error::Io(error) => error,
        Error::ConnectionClosed | Error::AlreadyClosed => ErrorKind::ConnectionAborted.into(),
        error => invalid(&error.to_string()),
    }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why)
}
