//! The frames of a socket: reads and writes messages in order, sends pings, and does the closing handshake.
//! Never holds more than its bounds: messages without room wait, and so do their senders.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use sealwire::internal::{BudgetedStream, ReadBudget};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, sleep_until, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message, Utf8Bytes, error::ProtocolError};

use crate::http::pipeline::body;

/// How often a client is pinged.
const PING: Duration = Duration::from_secs(20);
/// How long a client may be silent, pongs included.
const SILENT: Duration = Duration::from_secs(60);
/// How long the last messages and the closing handshake may take.
const LEAVING: Duration = Duration::from_secs(2);
/// How much is read and discarded after the close frame: closing a connection with unread data resets it, and the client may not see
/// why.
const UNREAD: u64 = 4 << 20;
/// The most messages and bytes that may wait for a client to read them.
const MESSAGES: usize = 256;
const BYTES: usize = 1 << 20;
/// How many bytes to read and write at a time, and how many messages.
const BUFFER: usize = 8 << 10;
const TOGETHER: usize = 16;
/// The most bytes of pongs that may wait for a client to read them. With more, nothing is read from it.
const PONG_BYTES: usize = 8 << 10;
/// The most pings and pongs of a client in a second. Further ones are read later, and what follows them as well.
const CONTROLS: u32 = 256;
/// The most bytes that one message may have on the wire: twice its own, since a client may send it in many frames.
const MESSAGE_BYTES: usize = 384 << 10;
/// The most bytes of a control frame's head: two, and the mask.
const CONTROL_HEAD: usize = 6;
/// The most bytes that may be on their way to the socket: the largest message of any broker (`max_payload`), and what else goes with it.
const WRITE_BYTES: usize = (64 << 20) + 2 * BUFFER + 2 * PONG_BYTES;

/// Why a socket ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// Its client has closed it, or has gone.
    Gone,
    /// The gateway closes it, with a status code (RFC 6455 §7.4) and a reason.
    Closed(u16, &'static str),
    /// The gateway ends before all calls have ended.
    CutOff,
}

/// Messages for a client.
#[derive(Debug, Clone)]
pub(super) struct Outbox {
    lines: mpsc::Sender<Line>,
    room: Arc<Semaphore>,
}

#[derive(Debug)]
struct Line {
    text: Utf8Bytes,
    _room: OwnedSemaphorePermit,
}

impl Outbox {
    fn new() -> (Self, mpsc::Receiver<Line>) {
        let (lines, queued) = mpsc::channel(MESSAGES);
        (Self { lines, room: Arc::new(Semaphore::new(BYTES)) }, queued)
    }

    /// Queues a message as soon as there is room for it.
    pub(super) async fn send(&self, text: impl Into<Utf8Bytes>) {
        let text = text.into();
        if let Ok(room) = Arc::clone(&self.room).acquire_many_owned(permits(text.len())).await {
            // Fails only if the socket has ended.
            drop(self.lines.send(Line { text, _room: room }).await);
        }
    }

    /// Queues a message if there is room for it now; otherwise drops it.
    pub(super) fn send_now(&self, text: impl Into<Utf8Bytes>) {
        let text = text.into();
        if let Ok(room) = Arc::clone(&self.room).try_acquire_many_owned(permits(text.len())) {
            drop(self.lines.try_send(Line { text, _room: room }));
        }
    }
}

/// Pongs that may not have gone out yet. tungstenite adds one for each ping that it reads, however many wait already.
#[derive(Debug, Default)]
struct Pongs {
    bytes: watch::Sender<usize>,
    /// They are to be written, since nothing is read before.
    due: Notify,
}

impl Pongs {
    fn are_too_many(&self) -> bool {
        *self.bytes.borrow() > PONG_BYTES
    }

    /// Notes the answer to a ping of this many bytes, and waits until there is room for another.
    async fn add(&self, ping: usize) {
        // With its head.
        self.bytes.send_modify(|bytes| *bytes += ping + 2);
        if self.are_too_many() {
            self.due.notify_one();
            // Cannot fail: the sender is `self`.
            drop(self.bytes.subscribe().wait_for(|bytes| *bytes <= PONG_BYTES).await);
        }
    }

    fn have_gone(&self) {
        self.bytes.send_if_modified(|bytes| std::mem::take(bytes) > 0);
    }
}

/// How many control frames have come in this second.
struct Rate {
    since: Instant,
    count: u32,
}

impl Rate {
    fn new() -> Self {
        Self { since: Instant::now(), count: 0 }
    }

    /// Notes one more, and waits if it was the last of this second.
    async fn add(&mut self) {
        const SECOND: Duration = Duration::from_secs(1);
        if self.since.elapsed() >= SECOND {
            *self = Self::new();
        }
        self.count += 1;
        if self.count >= CONTROLS {
            sleep_until(self.since + SECOND).await;
            *self = Self::new();
        }
    }
}

/// A message larger than the total room takes all of it.
fn permits(bytes: usize) -> u32 {
    u32::try_from(bytes.min(BYTES)).unwrap_or(u32::MAX)
}

/// Passes incoming messages to `session`, and sends what it queues, until the session or the socket ends.
pub(super) async fn serve<S, F>(socket: S, session: impl FnOnce(mpsc::Receiver<Utf8Bytes>, Outbox) -> F) -> Ending
where
    S: AsyncRead + AsyncWrite + Unpin,
    F: Future<Output = Ending>,
{
    let limits = WebSocketConfig::default()
        .read_buffer_size(BUFFER)
        .write_buffer_size(BUFFER)
        .max_write_buffer_size(WRITE_BYTES)
        .max_message_size(Some(body::BYTES))
        .max_frame_size(Some(body::BYTES));
    // An empty frame makes no message too long, and is read without end.
    let budget = ReadBudget::new(MESSAGE_BYTES);
    let socket = BudgetedStream::new(socket, &budget);
    let socket = WebSocketStream::from_raw_socket(socket, Role::Server, Some(limits)).await;
    let (mut sink, mut stream) = socket.split();
    let (outbox, mut lines) = Outbox::new();
    // One at a time: a client that sends faster than the session takes messages is not read.
    let (tell, incoming) = mpsc::channel(1);
    let heard = watch::Sender::new(Instant::now());
    let pongs = Pongs::default();
    let ending = {
        let reading = async {
            let mut rate = Rate::new();
            loop {
                let ending = match stream.next().await {
                    Some(Ok(message)) => {
                        heard.send_replace(Instant::now());
                        match message {
                            // Fails only if the session has ended.
                            Message::Text(text) => {
                                budget.restart();
                                drop(tell.send(text).await);
                            }
                            Message::Binary(_) => break Ending::Closed(1003, "messages must be text"),
                            Message::Close(_) => break Ending::Gone,
                            Message::Ping(ping) => {
                                budget.refund(ping.len() + CONTROL_HEAD);
                                rate.add().await;
                                pongs.add(ping.len()).await;
                                heard.send_replace(Instant::now());
                            }
                            Message::Pong(pong) => {
                                budget.refund(pong.len() + CONTROL_HEAD);
                                rate.add().await;
                            }
                            Message::Frame(_) => rate.add().await,
                        }
                        continue;
                    }
                    Some(Err(_)) if budget.is_spent() => Ending::Closed(1009, "too many frames for one message"),
                    Some(Err(error)) => flawed(&error),
                    None => Ending::Gone,
                };
                break ending;
            }
        };
        let silent = async {
            loop {
                // Nobody listens: whether this client is still there shows by what it reads.
                if pongs.are_too_many() {
                    sleep(PING).await;
                    continue;
                }
                let until = *heard.borrow() + SILENT;
                if until <= Instant::now() {
                    break Ending::Closed(1011, "nothing was heard for 60 s");
                }
                sleep_until(until).await;
            }
        };
        let mut writing = pin!(async {
            let mut pings = interval_at(Instant::now() + PING, PING);
            pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                let message = tokio::select! {
                    biased;
                    _ = pings.tick() => Some(Message::Ping(Default::default())),
                    () = pongs.due.notified() => None,
                    line = lines.recv() => match line {
                        // This frees its room for the next message.
                        Some(line) => Some(Message::Text(line.text)),
                        None => break Ending::Gone,
                    },
                };
                let (mut size, mut sent) = (0, Ok(()));
                if let Some(message) = message {
                    size = message.len();
                    sent = sink.feed(message).await;
                }
                // Messages already queued go along in the same write.
                for _ in 1..TOGETHER {
                    let Some(line) = (sent.is_ok() && size < BUFFER).then(|| lines.try_recv().ok()).flatten() else {
                        break;
                    };
                    size += line.text.len();
                    sent = sink.feed(Message::Text(line.text)).await;
                }
                if sent.is_err() || sink.flush().await.is_err() {
                    break Ending::Gone;
                }
                pongs.have_gone();
            }
        });
        let (ending, has_more) = {
            let session = pin!(session(incoming, outbox));
            tokio::select! {
                ending = session => (ending, true),
                ending = reading => (ending, false),
                ending = silent => (ending, false),
                ending = &mut writing => (ending, false),
            }
        };
        // Sends the session's last messages.
        if has_more {
            drop(timeout(LEAVING, &mut writing).await);
        }
        ending
    };
    let leaving = async {
        let said = match ending {
            // Sends the answer to the client's own close frame.
            Ending::Gone => sink.flush().await,
            Ending::Closed(code, reason) => sink.send(closed(code, reason)).await,
            Ending::CutOff => sink.send(closed(1001, "the gateway has stopped")).await,
        };
        if let (Ok(()) | Err(Error::ConnectionClosed), Ok(socket)) = (said, sink.reunite(stream)) {
            let mut socket = socket.into_inner().into_inner();
            if socket.shutdown().await.is_ok() {
                drop(tokio::io::copy(&mut socket.take(UNREAD), &mut tokio::io::sink()).await);
            }
        }
    };
    drop(timeout(LEAVING, leaving).await);
    ending
}

fn closed(code: u16, reason: &'static str) -> Message {
    Message::Close(Some(CloseFrame { code: CloseCode::from(code), reason: Utf8Bytes::from_static(reason) }))
}

/// How a client's error ends the socket.
fn flawed(error: &Error) -> Ending {
    match error {
        Error::Capacity(_) => Ending::Closed(1009, "a message may have at most 192 KiB"),
        Error::Utf8(_) => Ending::Closed(1007, "a text must be UTF-8"),
        Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => Ending::Gone,
        Error::Protocol(_) => Ending::Closed(1002, "the frame is not allowed by RFC 6455"),
        _ => Ending::Gone,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
    use tokio::io::{DuplexStream, duplex};
    use tokio::task::JoinHandle;

    use super::*;

    /// A client's frame, masked with zeros.
    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let length = u16::try_from(payload.len()).unwrap().to_be_bytes();
        let head = match payload.len() {
            0..126 => vec![first, 0x80 | length[1]],
            _ => vec![first, 0xfe, length[0], length[1]],
        };
        [&head, &[0; 4][..], payload].concat()
    }

    /// A socket that echoes messages.
    fn echo() -> (DuplexStream, JoinHandle<Ending>) {
        let (client, socket) = duplex(1 << 20);
        let session = async |mut incoming: mpsc::Receiver<Utf8Bytes>, out: Outbox| {
            while let Some(text) = incoming.recv().await {
                out.send(text).await;
            }
            Ending::Gone
        };
        (client, tokio::spawn(async move { serve(socket, session).await }))
    }

    async fn read(client: &mut DuplexStream) -> (u8, Vec<u8>) {
        let mut head = [0; 2];
        client.read_exact(&mut head).await.unwrap();
        let mut payload = vec![0; head[1].into()];
        client.read_exact(&mut payload).await.unwrap();
        (head[0], payload)
    }

    #[tokio::test(start_paused = true)]
    async fn messages_come_in_frames_as_rfc_6455_has_them_or_end_the_socket() {
        let large = [&[0x81, 0xff][..], &(1_u64 << 20).to_be_bytes(), &[0; 4]].concat();
        let endless = [&[0x81, 0xff][..], &u64::MAX.to_be_bytes(), &[0; 4]].concat();
        let fragments = [frame(0x01, &[b' '; 60_000]), frame(0x00, &[b' '; 60_000]).repeat(3)].concat();
        for (bytes, code) in [
            (frame(0x82, b"{}"), 1003),
            (frame(0x81, b"\xff"), 1007),
            ([frame(0x01, b"\xc3"), frame(0x80, b"(")].concat(), 1007),
            // Not masked.
            (b"\x81\x01x".to_vec(), 1002),
            // Compressed without negotiation; reserved bits and opcodes.
            (frame(0xc1, b"x"), 1002),
            (frame(0xa1, b"x"), 1002),
            (frame(0x91, b"x"), 1002),
            (frame(0x83, b"x"), 1002),
            (frame(0x8b, b"x"), 1002),
            // Control frames: too long, fragmented, malformed.
            (frame(0x89, &[b'x'; 126]), 1002),
            (frame(0x8a, &[b'x'; 126]), 1002),
            (frame(0x09, b"x"), 1002),
            (frame(0x88, b"x"), 1002),
            // A continuation of nothing, and a message in the middle of another.
            (frame(0x80, b"x"), 1002),
            ([frame(0x01, b"x"), frame(0x81, b"x")].concat(), 1002),
            (large, 1009),
            (endless, 1009),
            (fragments, 1009),
            // Frames that add nothing to their message, and those that add little, with pings between them or not.
            ([frame(0x01, b""), frame(0x00, b"").repeat(2 * MESSAGE_BYTES / 6)].concat(), 1009),
            ([frame(0x01, b""), frame(0x00, b"x").repeat(2 * MESSAGE_BYTES / 7)].concat(), 1009),
        ] {
            let (mut client, served) = echo();
            client.write_all(&bytes).await.unwrap();
            let (first, payload) = read(&mut client).await;
            let start = &bytes[..bytes.len().min(20)];
            assert_eq!((first, u16::from_be_bytes([payload[0], payload[1]])), (0x88, code), "{start:x?}");
            drop(client);
            assert!(matches!(served.await.unwrap(), Ending::Closed(said, _) if said == code), "{start:x?}");
        }

        // Valid, sent byte by byte: fragments with a ping between them, and an empty message.
        let (mut client, served) = echo();
        for byte in
            [frame(0x01, b"on"), frame(0x89, b"?"), frame(0x00, b""), frame(0x80, b"e"), frame(0x81, b"")].concat()
        {
            client.write_all(&[byte]).await.unwrap();
            tokio::task::yield_now().await;
        }
        assert_eq!(read(&mut client).await, (0x8a, b"?".to_vec()));
        assert_eq!(read(&mut client).await, (0x81, b"one".to_vec()));
        assert_eq!(read(&mut client).await, (0x81, Vec::new()));
        client.write_all(&frame(0x88, &1000_u16.to_be_bytes())).await.unwrap();
        assert_eq!(read(&mut client).await, (0x88, 1000_u16.to_be_bytes().to_vec()));
        assert_eq!(served.await.unwrap(), Ending::Gone);
    }

    #[tokio::test(start_paused = true)]
    async fn who_says_nothing_is_asked_and_then_left() {
        let (mut client, served) = echo();
        let began = Instant::now();
        for asked in [20, 40] {
            assert_eq!(read(&mut client).await, (0x89, Vec::new()));
            assert_eq!(began.elapsed().as_secs(), asked);
        }
        client.write_all(&frame(0x8a, b"")).await.unwrap();
        for asked in [60, 80, 100] {
            // At 100 s both the ping and the close are due.
            if let (0x88, _) = read(&mut client).await {
                break;
            }
            assert_eq!(began.elapsed().as_secs(), asked);
        }
        drop(client);
        assert_eq!(served.await.unwrap(), Ending::Closed(1011, "nothing was heard for 60 s"));
        assert_eq!(began.elapsed().as_secs(), 100);
    }

    /// As much as the client can send while it reads nothing. In the end the socket is closed.
    #[tokio::test(start_paused = true)]
    async fn pings_of_a_client_that_reads_nothing_are_not_read_either() {
        const PIPE: usize = 1 << 10;
        for size in [0, 1, 125] {
            let (client, socket) = duplex(PIPE);
            let session = async |mut incoming: mpsc::Receiver<Utf8Bytes>, _: Outbox| {
                while incoming.recv().await.is_some() {}
                Ending::Gone
            };
            let served = tokio::spawn(async move { serve(socket, session).await });
            let (unread, mut client) = tokio::io::split(client);
            let flood = frame(0x89, &vec![b'x'; size]).repeat(100);
            let mut sent = 0;
            while let Ok(written) = timeout(SILENT / 2, client.write(&flood[sent % flood.len()..])).await {
                sent += written.unwrap();
                assert!(sent < 1 << 20, "{size}: it is read without end");
            }
            // Each ping has six bytes more than its payload, and each pong two; what tungstenite has read ahead comes on top.
            let most = (PONG_BYTES + 2 * PIPE) * (size + 6) / (size + 2) + 2 * BUFFER;
            assert!((PONG_BYTES..=most).contains(&sent), "{size}: {sent}, at most {most}");
            drop((unread, client));
            assert_eq!(served.await.unwrap(), Ending::Gone);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn pings_are_answered_one_by_one_at_a_rate() {
        for (first, answered) in [(0x89, true), (0x8a, false)] {
            let (mut client, served) = echo();
            let began = Instant::now();
            client.write_all(&frame(first, b"?").repeat(1_000)).await.unwrap();
            client.write_all(&frame(0x81, b"last")).await.unwrap();
            let mut pongs = 0;
            loop {
                match read(&mut client).await {
                    (0x8a, payload) => pongs += usize::from(payload == b"?"),
                    (0x81, text) => break assert_eq!(text, b"last"),
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!((pongs, began.elapsed().as_secs()), (if answered { 1_000 } else { 0 }, 3), "{first:x}");
            drop(client);
            assert_eq!(served.await.unwrap(), Ending::Gone);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_client_does_not_read_waits_within_bounds() {
        for (size, most) in [(1, MESSAGES), (BYTES / 4, 4), (3 * BYTES, 1)] {
            let (client, socket) = duplex(16);
            let (tell, mut said) = mpsc::unbounded_channel();
            let session = async move |_: mpsc::Receiver<Utf8Bytes>, out: Outbox| {
                loop {
                    out.send("x".repeat(size)).await;
                    let _ = tell.send(());
                }
            };
            let served = tokio::spawn(async move { serve(socket, session).await });
            tokio::time::sleep(Duration::from_secs(1)).await;
            let waiting = std::iter::from_fn(|| said.try_recv().ok()).count();
            // One message, or the few of one write, may be on their way.
            assert!((most..most + 20).contains(&waiting), "{size}: {waiting}");
            drop(client);
            assert_eq!(served.await.unwrap(), Ending::Gone);
        }
    }
}
