//! A collector of traces: it keeps what it is sent, or misbehaves as it is told.
//! Reads OTLP with the messages that OpenTelemetry publishes, never with our own code.

use std::io::Write as _;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::python::python;
use crate::{root, within};

/// What a collector does with a request.
pub enum Answer {
    /// Takes it.
    Taken,
    /// Answers with these bytes.
    Raw(String),
    /// Says nothing, ever.
    Silence,
    /// Begins with these bytes, and goes on for ever.
    Endless(&'static str),
}

/// A request.
#[derive(Clone)]
pub struct Received {
    pub head: String,
    pub body: Vec<u8>,
    /// When it was there, before it was answered.
    pub at: Instant,
}

/// A collector on a port of its own.
pub struct Collector {
    at: SocketAddr,
    received: watch::Receiver<Vec<Received>>,
    task: JoinHandle<()>,
}

impl Collector {
    /// One that takes everything.
    pub async fn start() -> Self {
        Self::answering(|_| Answer::Taken).await
    }

    /// One that answers each request like this, by its number.
    pub async fn answering(answer: impl Fn(usize) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let at = listener.local_addr().unwrap();
        let (tell, received) = watch::channel(Vec::new());
        let (tell, answer) = (Arc::new(tell), Arc::new(answer));
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                let (tell, answer) = (Arc::clone(&tell), Arc::clone(&answer));
                connections.spawn(async move { drop(converse(socket, &tell, &*answer).await) });
            }
        });
        Self { at, received, task }
    }

    /// Its address.
    pub fn url(&self) -> String {
        format!("http://{}", self.at)
    }

    /// What it was sent so far.
    pub fn received(&self) -> Vec<Received> {
        self.received.borrow().clone()
    }

    /// Waits until it was sent so many requests.
    pub async fn has_received(&self, requests: usize) {
        let mut received = self.received.clone();
        drop(within(Duration::from_secs(60), received.wait_for(|all| all.len() >= requests)).await.unwrap());
    }

    /// The spans of all requests, as OpenTelemetry's own messages have them; `None` without Python.
    pub fn spans(&self) -> Option<Vec<Value>> {
        decoded(&self.received())
    }

    /// Waits until it has a span for which this holds, and returns all; `None` without Python.
    pub async fn spans_until(&self, is_there: impl Fn(&[Value]) -> bool) -> Option<Vec<Value>> {
        let mut received = self.received.clone();
        loop {
            let all = received.borrow_and_update().clone();
            let spans = decoded(&all)?;
            if is_there(&spans) {
                return Some(spans);
            }
            let more = tokio::time::timeout(Duration::from_secs(60), received.changed()).await;
            assert!(more.is_ok(), "{spans:#?}");
        }
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn decoded(received: &[Received]) -> Option<Vec<Value>> {
    let script = root().join("tests/interop/otlp.py");
    let mut command = Command::new(python()?);
    command.arg("-B").arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut decoder = command.spawn().unwrap();
    let mut stdin = decoder.stdin.take().unwrap();
    for Received { body, .. } in received {
        let line: String = body.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(stdin, "{line}").unwrap();
    }
    drop(stdin);
    let output = decoder.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

async fn converse(
    mut socket: TcpStream,
    tell: &watch::Sender<Vec<Received>>,
    answer: &(impl Fn(usize) -> Answer + Send + Sync),
) -> std::io::Result<()> {
    let mut read = Vec::new();
    loop {
        let end = loop {
            if let Some(end) = read.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                break end + 4;
            }
            if socket.read_buf(&mut read).await? == 0 {
                return Ok(());
            }
        };
        let head = String::from_utf8(read.drain(..end).collect()).unwrap();
        let length =
            head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
        let length: usize = length.unwrap_or_default();
        while read.len() < length {
            if socket.read_buf(&mut read).await? == 0 {
                return Ok(());
            }
        }
        let body = read.drain(..length).collect();
        let number = tell.borrow().len();
        tell.send_modify(|all| all.push(Received { head, body, at: Instant::now() }));
        match answer(number) {
            Answer::Taken => {
                let taken = "HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n";
                socket.write_all(taken.as_bytes()).await?;
            }
            Answer::Raw(text) => socket.write_all(text.as_bytes()).await?,
            Answer::Silence => return std::future::pending().await,
            Answer::Endless(text) => {
                socket.write_all(text.as_bytes()).await?;
                loop {
                    socket.write_all(&[b'x'; 4_096]).await?;
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        }
    }
}
