//! Messages waiting to be written to the client.
//! Never holds more than its bounds: senders wait, and a client that reads nothing is given up.

use std::sync::Arc;
use std::time::Duration;

use sealwire_mcp::line;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::timeout;

/// The most messages and bytes that may wait.
const MESSAGES: usize = 256;
const BYTES: usize = 16 << 20;
/// The same for one request over HTTP. Progress, of about a thousand characters, and log messages are left out if there is no room.
/// Only one question is asked at a time, and like any message it has at most 1 MiB.
const MESSAGES_OF_REQUEST: usize = 16;
const BYTES_OF_REQUEST: usize = 1 << 20;
/// How long the client may read nothing at all.
const STALLED: Duration = Duration::from_secs(60);

/// A line for the client. Dropping it frees its room.
#[derive(Debug)]
pub struct Line {
    text: Vec<u8>,
    _room: OwnedSemaphorePermit,
}

impl Line {
    /// The text, with its line break.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        &self.text
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Outbox(Option<Open>);

#[derive(Debug, Clone)]
struct Open {
    lines: mpsc::Sender<Line>,
    /// The free room, and the total, in bytes.
    room: Arc<Semaphore>,
    most: usize,
    stalled: watch::Sender<bool>,
}

impl Outbox {
    /// For a client that accepts nothing but its response; messages are discarded.
    pub(crate) fn closed() -> Self {
        Self(None)
    }

    pub(crate) fn new() -> (Self, mpsc::Receiver<Line>) {
        Self::of(MESSAGES, BYTES)
    }

    /// For the messages that precede the response to one request.
    pub(crate) fn of_request() -> (Self, mpsc::Receiver<Line>) {
        Self::of(MESSAGES_OF_REQUEST, BYTES_OF_REQUEST)
    }

    fn of(messages: usize, most: usize) -> (Self, mpsc::Receiver<Line>) {
        let (lines, written) = mpsc::channel(messages);
        let open = Open { lines, room: Arc::new(Semaphore::new(most)), most, stalled: watch::Sender::new(false) };
        (Self(Some(open)), written)
    }

    /// Queues a message as soon as there is room for it.
    pub(crate) async fn send(&self, message: &impl Serialize) {
        // Only maps whose keys are not strings cannot be serialized, and there are none here.
        self.send_text(serde_json::to_vec(message).unwrap_or_default()).await;
    }

    /// The same, with a message as text.
    pub(crate) async fn send_text(&self, text: Vec<u8>) {
        let Self(Some(Open { lines, room, most, stalled })) = self else { return };
        let text = line(&text);
        let sending = async {
            let room = Arc::clone(room).acquire_many_owned(permits(text.len(), *most)).await;
            if let Ok(room) = room {
                // Fails only if the reader is gone because the gateway is closing.
                drop(lines.send(Line { text, _room: room }).await);
            }
        };
        if timeout(STALLED, sending).await.is_err() {
            stalled.send_replace(true);
        }
    }

    /// Queues a message if there is room for it now; otherwise drops it.
    pub(crate) fn send_now(&self, message: &impl Serialize) {
        let Self(Some(Open { lines, room, most, .. })) = self else { return };
        let text = line(&serde_json::to_vec(message).unwrap_or_default());
        if let Ok(room) = Arc::clone(room).try_acquire_many_owned(permits(text.len(), *most)) {
            drop(lines.try_send(Line { text, _room: room }));
        }
    }

    /// Whether the client has closed its output.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.as_ref().is_some_and(|open| open.lines.is_closed())
    }

    /// Completes when the client has read nothing for too long, or its output has been closed.
    pub(crate) async fn stalled(&self) {
        let Self(Some(Open { lines, stalled, .. })) = self else { return };
        let mut stalled = stalled.subscribe();
        tokio::select! {
            _ = stalled.wait_for(|stalled| *stalled) => {}
            () = lines.closed() => {}
        }
    }
}

/// A message larger than the total room takes all of it.
fn permits(bytes: usize, most: usize) -> u32 {
    u32::try_from(bytes.min(most)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_nothing_is_given_up_and_holds_no_more_than_the_bounds() {
        let (outbox, mut lines) = Outbox::new();
        for _ in 0..MESSAGES {
            outbox.send(&"x").await;
        }
        outbox.send_now(&"left out");
        // Nothing is read for a minute.
        outbox.send(&"waits").await;
        outbox.stalled().await;
        assert!(!outbox.is_closed());
        assert_eq!(lines.recv().await.unwrap().text(), b"\"x\"\n");

        let (outbox, mut lines) = Outbox::new();
        let half = "x".repeat(BYTES / 2);
        outbox.send(&half).await;
        outbox.send_now(&half);
        let waiting = tokio::spawn({
            let outbox = outbox.clone();
            async move { outbox.send(&half).await }
        });
        tokio::time::sleep(STALLED / 2).await;
        assert!(!waiting.is_finished(), "there is room for one of them only");
        assert!(lines.recv().await.unwrap().text().len() > BYTES / 2);
        waiting.await.unwrap();
        drop(lines);
        outbox.stalled().await;
        assert!(outbox.is_closed());
    }

    #[tokio::test]
    async fn a_result_over_several_lines_is_one_message() {
        let (outbox, mut lines) = Outbox::new();
        let result = serde_json::value::RawValue::from_string("{\"a\":1,\r\n\"b\":\"\\n\"}".to_owned());
        outbox.send(&result.unwrap()).await;
        assert_eq!(lines.recv().await.unwrap().text(), b"{\"a\":1,  \"b\":\"\\n\"}\n");
    }

    /// docs/bounds.md: messages ahead of a response, in bytes.
    #[tokio::test]
    async fn log_messages_beyond_what_waits_before_a_response_are_left_out() {
        let (outbox, mut lines) = Outbox::of_request();
        for _ in 0..4 {
            outbox.send_now(&"x".repeat(BYTES_OF_REQUEST / 3));
        }
        drop(outbox);
        let mut bytes = 0;
        while let Some(line) = lines.recv().await {
            bytes += line.text().len();
        }
        assert!((BYTES_OF_REQUEST / 2..=BYTES_OF_REQUEST).contains(&bytes), "{bytes}");
    }

    /// docs/bounds.md: messages ahead of a response.
    #[tokio::test(start_paused = true)]
    async fn progress_beyond_what_waits_before_a_response_is_left_out_and_a_question_waits() {
        let (outbox, mut lines) = Outbox::of_request();
        for said in 0..=MESSAGES_OF_REQUEST {
            outbox.send_now(&said);
        }
        let asking = tokio::spawn({
            let outbox = outbox.clone();
            async move { outbox.send(&"question").await }
        });
        tokio::time::sleep(STALLED / 2).await;
        assert!(!asking.is_finished());
        let mut heard = vec![String::from_utf8(lines.recv().await.unwrap().text().to_vec()).unwrap()];
        asking.await.unwrap();
        outbox.send_now(&"left out, too");
        while let Ok(line) = lines.try_recv() {
            heard.push(String::from_utf8(line.text().to_vec()).unwrap());
        }
        let told = (0..16).map(|said| format!("{said}\n")).chain(["\"question\"\n".to_owned()]);
        assert_eq!(heard, told.collect::<Vec<_>>());
    }
}
