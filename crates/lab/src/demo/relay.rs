//! A man in the middle of one agent's connection to the broker, who drops, repeats and reorders frames.
//! Never touches anything else on that connection, and never holds more than two messages.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{
    AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader, copy,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::frame::Frame;
use crate::error::{Blame, LabError, OrFail as _};

/// A relay between an agent and the broker. Ends when dropped.
#[derive(Debug)]
pub(super) struct Relay {
    url: String,
    doing: Arc<Mutex<Progress>>,
    task: JoinHandle<()>,
}

/// What the relay does to the frames for the agent.
#[derive(Debug, Clone, Copy)]
pub(super) enum Tampering {
    /// Drops the frame with this number, once.
    LoseOnce(u64),
    /// Drops the frame with this number, however often it is sent.
    Cut(u64),
    /// Drops the last frame, however often it is sent.
    CutEnd,
    /// Swaps the frame with this number and the next one.
    Swap(u64),
    /// Delivers each frame three times.
    Triple,
}

#[derive(Debug)]
struct Progress {
    tampering: Tampering,
    is_done: bool,
    /// A message held back until after the next frame.
    held: Option<Vec<u8>>,
}

impl Relay {
    /// Listens on a free port of this machine.
    pub(super) async fn start(broker: &str, tampering: Tampering) -> Result<Self, LabError> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.or_fail(Blame::Transport)?;
        let url = format!("nats://{}", listener.local_addr().or_fail(Blame::Transport)?);
        let doing = Arc::new(Mutex::new(Progress { tampering, is_done: false, held: None }));
        let (broker, shared) = (broker.trim_start_matches("nats://").to_owned(), Arc::clone(&doing));
        // One connection at a time: an agent has only one.
        let task = tokio::spawn(async move {
            while let Ok((agent, _)) = listener.accept().await {
                drop(relay(agent, &broker, &shared).await);
            }
        });
        Ok(Self { url, doing, task })
    }

    /// The URL that the agent takes for the broker's.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Changes the tampering, from the next frame on.
    pub(super) fn now(&self, tampering: Tampering) {
        *lock(&self.doing) = Progress { tampering, is_done: false, held: None };
    }

    /// Whether the tampering has taken place.
    pub(super) fn is_done(&self) -> bool {
        lock(&self.doing).is_done
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Relays everything; what comes from the broker, message by message.
async fn relay(agent: TcpStream, broker: &str, doing: &Mutex<Progress>) -> std::io::Result<()> {
    let broker = TcpStream::connect(broker).await?;
    let ((mut from_agent, to_agent), (from_broker, mut to_broker)) = (agent.into_split(), broker.into_split());
    tokio::select! {
        ended = copy(&mut from_agent, &mut to_broker) => ended.map(drop),
        ended = tamper(BufReader::new(from_broker), to_agent, doing) => ended,
    }
}

async fn tamper(
    mut from: impl AsyncBufRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    doing: &Mutex<Progress>,
) -> std::io::Result<()> {
    loop {
        let mut message = Vec::new();
        (&mut from).take(LONGEST).read_until(b'\n', &mut message).await?;
        if !message.ends_with(b"\n") {
            return Ok(());
        }
        let line = String::from_utf8_lossy(&message);
        if line.starts_with("MSG ") || line.starts_with("HMSG ") {
            // The length covers headers and payload; a line end follows.
            let length = line.split_ascii_whitespace().last().and_then(|length| length.parse::<u64>().ok());
            let length = length.filter(|length| *length < LONGEST).map_or(0, |length| length + 2);
            if (&mut from).take(length).read_to_end(&mut message).await? == 0 {
                return Ok(());
            }
        }
        let out = lock(doing).handle(message);
        for message in out {
            to.write_all(&message).await?;
        }
    }
}

impl Progress {
    /// What the agent gets in place of a message.
    fn handle(&mut self, message: Vec<u8>) -> Vec<Vec<u8>> {
        let Some(frame) = Frame::in_text(&String::from_utf8_lossy(&message)) else { return vec![message] };
        let (was_done, held) = (self.is_done, self.held.take());
        let (is_meant, out) = match self.tampering {
            Tampering::LoseOnce(seq) if frame.seq == seq && !was_done => (true, vec![]),
            Tampering::Cut(seq) if frame.seq == seq => (true, vec![]),
            Tampering::CutEnd if frame.is_end() => (true, vec![]),
            Tampering::Swap(seq) if frame.seq == seq && !was_done => {
                self.held = Some(message);
                (true, vec![])
            }
            Tampering::Triple => (true, vec![message.clone(), message.clone(), message]),
            _ => (false, std::iter::once(message).chain(held).collect()),
        };
        self.is_done |= is_meant;
        out
    }
}

fn lock(doing: &Mutex<Progress>) -> std::sync::MutexGuard<'_, Progress> {
    // No change can be left half done, so a poisoned lock is fine.
    doing.lock().unwrap_or_else(PoisonError::into_inner)
}

/// More than the broker's `max_payload`, in bytes.
const LONGEST: u64 = 512 << 10;
