//! A server that speaks JSON-RPC 2.0 over a WebSocket (RFC 6455), in both directions, an object a message.
//! Never keeps more than one message of it, never follows it elsewhere, and never shows it anything of one caller: all share the connection.

mod config;

use std::hash::{BuildHasher as _, RandomState};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use futures_util::{SinkExt as _, StreamExt as _};
use hyper::Method;
use hyper::header::{
    CONNECTION, HeaderMap, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_EXTENSIONS, SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use sealwire::internal::{BudgetedStream, ReadBudget};
use sealwire_http::MAX_BODY;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message, Utf8Bytes};

pub(crate) use self::config::WsConfig;
use crate::child::{brief, visible};
use crate::stdio::session::Session;
use crate::stdio::{PeerOptions, Sessions, Shared};
use crate::talk::{Listener, MessageKind, plain};
use crate::web::{Request, Web};

/// The pause before the server is tried again: the first, doubled each time, and the longest.
const AGAIN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// A connection that has lasted this long gets a fresh start.
const SETTLED: Duration = Duration::from_secs(5);
/// How long a new connection must last before calls go over it: some servers accept one and close it at once.
const REST: Duration = Duration::from_millis(100);
/// How often the server is pinged ...
const PING: Duration = Duration::from_secs(20);
/// ... and how long it may be silent, pongs included.
const SILENT: Duration = Duration::from_secs(60);
/// How long the last message and the close frame may take.
const LEAVING: Duration = Duration::from_secs(1);
/// How many bytes are read and written at a time ...
const BUFFER: usize = 8 << 10;
/// ... and the most that may wait to be written: some messages, and what they are answered with. tungstenite leaves out pongs above that.
const UNREAD: usize = 4 << 20;

/// The most bytes that one message may have on the wire: twice its own, since a server may send it in many frames.
const MESSAGE_BYTES: usize = 2 << 20;
/// The bytes of a control frame's head.
const CONTROL_HEAD: usize = 2;

type Socket = WebSocketStream<BudgetedStream<TokioIo<Upgraded>>>;

/// Stays in touch with the server until it is stopped.
pub(crate) fn start(name: &str, web: Web, how: PeerOptions) -> Sessions {
    let (of, timeout) = (name.to_owned(), how.timeout);
    Sessions::keep(name, timeout, move |shared, stop| keep(of, web, how, shared, stop))
}

async fn keep(name: String, web: Web, how: PeerOptions, shared: Arc<Shared>, mut stop: watch::Receiver<bool>) {
    let PeerOptions { timeout, send_caller, questions, pushes, .. } = how;
    let (pushes, mut pause, mut logged) = (Arc::new(pushes), AGAIN.0, String::new());
    loop {
        let began = Instant::now();
        let (session, messages) = Session::new(&name, timeout, send_caller, questions, Arc::clone(&pushes));
        let connected = tokio::select! {
            biased;
            () = told(&mut stop) => return,
            connected = connect(&web) => connected,
        };
        let reason = match connected {
            Err(reason) => reason,
            Ok(socket) => {
                let stopped = stop.clone();
                let mut talking = pin!(session.during(converse(socket, &session, messages, stopped)));
                match tokio::time::timeout(REST, &mut talking).await {
                    Ok(reason) => reason,
                    Err(_) => {
                        tracing::info!(target: "sealwire::backend", backend = name, "the server is available");
                        logged.clear();
                        shared.set(0, Ok(Arc::clone(&session)));
                        talking.await
                    }
                }
            }
        };
        shared.set(0, Err(reason.clone()));
        if *stop.borrow() {
            return;
        }
        if logged != reason {
            tracing::warn!(target: "sealwire::backend", backend = name, reason, "the server is unavailable");
            logged = reason;
        }
        pause = if began.elapsed() >= SETTLED { AGAIN.0 } else { pause };
        drop(tokio::time::timeout(pause, told(&mut stop)).await);
        pause = (pause * 2).min(AGAIN.1);
    }
}

/// Completes when the backend is told to stop.
async fn told(stop: &mut watch::Receiver<bool>) {
    drop(stop.wait_for(|stop| *stop).await);
}

/// The opening handshake (RFC 6455 §4.1).
async fn connect(web: &Web) -> Result<(Socket, Arc<ReadBudget>), String> {
    // "A nonce consisting of a randomly selected 16-byte value": no secret.
    let nonce = [RandomState::new().hash_one(0), RandomState::new().hash_one(1)].map(u64::to_be_bytes).concat();
    let key = BASE64_STANDARD.encode(nonce);
    let value = |text: &str| HeaderValue::from_str(text).map_err(|error| error.to_string());
    let headers = HeaderMap::from_iter([
        (CONNECTION, value("Upgrade")?),
        (UPGRADE, value("websocket")?),
        (SEC_WEBSOCKET_VERSION, value("13")?),
        (SEC_WEBSOCKET_KEY, value(&key)?),
    ]);
    let request = Request { headers, ..Request::bare(Method::GET) };
    let (head, upgraded) = web.upgrade(&request).await.map_err(|error| error.to_string())?;
    let field = |name| head.get(name).map(HeaderValue::as_bytes);
    if !field(UPGRADE).is_some_and(|name| name.eq_ignore_ascii_case(b"websocket"))
        || field(SEC_WEBSOCKET_ACCEPT) != Some(accept(&key).as_bytes())
    {
        return Err(
            "its answer is none to the handshake of a WebSocket: `Sec-WebSocket-Accept` does not fit".to_owned()
        );
    }
    // "If the response includes a |Sec-WebSocket-Extensions| header field [..] not present in the client's handshake".
    if field(SEC_WEBSOCKET_EXTENSIONS).is_some() {
        return Err("it uses an extension that was not offered".to_owned());
    }
    // The same holds for a subprotocol, of which the configuration may offer some.
    if let Some(chosen) = field(SEC_WEBSOCKET_PROTOCOL)
        && !web.offers(&SEC_WEBSOCKET_PROTOCOL, chosen)
    {
        return Err("it uses a subprotocol that was not offered".to_owned());
    }
    let limits = WebSocketConfig::default()
        .read_buffer_size(BUFFER)
        .write_buffer_size(BUFFER)
        .max_write_buffer_size(UNREAD)
        .max_message_size(Some(MAX_BODY))
        .max_frame_size(Some(MAX_BODY));
    // An empty frame makes no message too long, and is read without end.
    let budget = ReadBudget::new(MESSAGE_BYTES);
    let socket = BudgetedStream::new(TokioIo::new(upgraded), &budget);
    Ok((WebSocketStream::from_raw_socket(socket, Role::Client, Some(limits)).await, budget))
}

/// What a server must answer to a key (RFC 6455 §4.2.2).
fn accept(key: &str) -> String {
    const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    BASE64_STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, format!("{key}{GUID}").as_bytes()))
}

/// Carries messages in both directions until the connection ends or must be ended; returns why.
async fn converse(
    (socket, budget): (Socket, Arc<ReadBudget>),
    session: &Session,
    mut messages: mpsc::Receiver<Vec<u8>>,
    mut stopped: watch::Receiver<bool>,
) -> String {
    let (mut sink, mut stream) = socket.split();
    let heard = Mutex::new(Instant::now());
    let alive = || *heard.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    let reading = async {
        let mut listener = Listener::new(&session.name);
        loop {
            let message = match stream.next().await {
                Some(Ok(message)) => message,
                Some(Err(_)) if budget.is_spent() => return "it has sent too many frames for one message".to_owned(),
                Some(Err(error)) => return flawed(&error),
                None => return "it has closed the connection".to_owned(),
            };
            alive();
            match &message {
                Message::Ping(data) | Message::Pong(data) => budget.refund(data.len() + CONTROL_HEAD),
                _ => budget.restart(),
            }
            let said = match message {
                Message::Text(text) => listener.hear(plain(text.as_bytes()), |text| session.hear(text)),
                // Some servers send JSON as bytes.
                Message::Binary(bytes) => listener.hear(plain(&bytes), |text| session.hear(text)),
                Message::Ping(data) | Message::Pong(data) => listener.useless(data.len()).map(|()| None),
                Message::Close(frame) => return closed(frame.as_ref()),
                Message::Frame(_) => Ok(None),
            };
            match said {
                Err(why) => return why,
                Ok(Some(MessageKind::Unasked)) => listener.pace.step(&session.name).await,
                Ok(_) => {}
            }
            session.room().await;
            alive();
        }
    };
    let writing = async {
        let mut pings = interval_at(Instant::now() + PING, PING);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let message = tokio::select! {
                biased;
                () = told(&mut stopped) => {
                    let reason = Utf8Bytes::from_static("the service has stopped");
                    let close = Message::Close(Some(CloseFrame { code: CloseCode::Away, reason }));
                    drop(tokio::time::timeout(LEAVING, sink.send(close)).await);
                    return "the service has stopped".to_owned();
                }
                _ = pings.tick() => Message::Ping(Default::default()),
                message = messages.recv() => match message.map(Utf8Bytes::try_from) {
                    Some(Ok(text)) => Message::Text(text),
                    // What we write is JSON.
                    Some(Err(_)) => continue,
                    None => std::future::pending().await,
                },
            };
            if let Err(error) = sink.send(message).await {
                return flawed(&error);
            }
        }
    };
    let silence = async {
        loop {
            // A server that waits for room says nothing, and that is our doing.
            if session.is_held_up() {
                alive();
            }
            let until = *heard.lock().unwrap_or_else(PoisonError::into_inner) + SILENT;
            if until <= Instant::now() {
                return format!("nothing was heard for {} s", SILENT.as_secs());
            }
            tokio::time::sleep_until(until).await;
        }
    };
    tokio::select! {
        reason = reading => reason,
        reason = writing => reason,
        reason = silence => reason,
    }
}

fn closed(frame: Option<&CloseFrame>) -> String {
    match frame {
        Some(frame) => format!("it has closed the connection: {} {}", u16::from(frame.code), brief(&frame.reason)),
        None => "it has closed the connection".to_owned(),
    }
}

/// How an error ends the connection.
fn flawed(error: &Error) -> String {
    match error {
        Error::Capacity(_) => "it has sent a message of more than 1 MiB".to_owned(),
        Error::ConnectionClosed | Error::AlreadyClosed => "it has closed the connection".to_owned(),
        error => format!("the connection broke: {}", visible(&error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The example of RFC 6455 §1.3.
    #[test]
    fn a_key_has_one_answer() {
        assert_eq!(accept("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}
