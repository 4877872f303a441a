//! HTTP as bytes on a socket: what no client library would send, and what comes back.

use std::net::SocketAddr;

use sealwire_testkit::within;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::backends::stage::LONG;

/// A connection.
pub(super) struct Wire {
    socket: TcpStream,
    read: Vec<u8>,
}

/// What came back.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    head: String,
    pub(super) body: Vec<u8>,
}

impl Wire {
    pub(super) async fn open(door: SocketAddr) -> Self {
        Self { socket: within(LONG, TcpStream::connect(door)).await.unwrap(), read: Vec::new() }
    }

    pub(super) async fn write(&mut self, bytes: impl AsRef<[u8]>) {
        // The door may have closed the connection: then the answer says why.
        drop(within(LONG, self.socket.write_all(bytes.as_ref())).await);
    }

    /// The next answer; `None` if the connection ends without one.
    pub(super) async fn answer(&mut self) -> Option<Answer> {
        let end = loop {
            if let Some(end) = self.read.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                break end;
            }
            if !self.more().await {
                assert!(self.read.is_empty(), "half an answer: {}", String::from_utf8_lossy(&self.read));
                return None;
            }
        };
        let head = String::from_utf8(self.read.drain(..end + 4).take(end).collect()).unwrap().to_lowercase();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut answer = Answer { status, head, body: Vec::new() };
        let length: usize = answer.header("content-length").map_or(0, |length| length.parse().unwrap());
        while self.read.len() < length {
            assert!(self.more().await, "half a body");
        }
        answer.body = self.read.drain(..length).collect();
        Some(answer)
    }

    /// Whether the door closes the connection, and says nothing before.
    pub(super) async fn is_closed(&mut self) -> bool {
        self.read.is_empty() && !self.more().await
    }

    async fn more(&mut self) -> bool {
        let mut some = [0; 4_096];
        let read = within(LONG, self.socket.read(&mut some)).await.unwrap_or(0);
        self.read.extend_from_slice(&some[..read]);
        read > 0
    }

    pub(super) async fn ask(&mut self, bytes: impl AsRef<[u8]>) -> Answer {
        self.write(bytes).await;
        self.answer().await.expect("the door closed the connection")
    }

    /// Posts JSON-RPC.
    pub(super) async fn post(&mut self, body: &str) -> Answer {
        self.ask(post("/rpc/tools", "", body)).await
    }
}

impl Answer {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        lines.find(|(found, _)| *found == name).map(|(_, value)| value)
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Status, and code of the error.
    #[track_caller]
    pub(super) fn is(&self, status: u16, code: i32) {
        assert_eq!((self.status, &self.json()["error"]["code"]), (status, &code.into()), "{self:?}");
    }
}

/// A request that posts a body, with more lines in its head.
pub(super) fn post(path: &str, lines: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n{lines}\r\n{body}"
    )
}

pub(super) fn call(id: u64, method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)
}
