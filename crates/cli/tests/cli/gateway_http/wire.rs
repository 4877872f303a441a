//! HTTP as bytes on a socket: what no client library would send, and what comes back.

use std::net::SocketAddr;
use std::sync::{LazyLock, Mutex, PoisonError};

use sealwire_testkit::within;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use crate::backends::stage::LONG;
use crate::gateway::raw::{Schemas, result_of};

/// A connection.
pub(super) struct Wire {
    socket: TcpStream,
    read: Vec<u8>,
    /// What was asked of `/mcp`, if anything.
    asked: Option<Asked>,
    /// The id of the last event that had one.
    pub(super) last_event: Option<String>,
}

/// The requests to `/mcp`, to check answers against the schema of their revision.
struct Asked {
    legacy: bool,
    /// By id.
    methods: Vec<(Value, String)>,
}

static SCHEMAS: LazyLock<Mutex<Schemas>> = LazyLock::new(Mutex::default);

impl Asked {
    /// `None` for a request to another address.
    fn of(request: &str) -> Option<Self> {
        let (head, body) = request.split_once("\r\n\r\n").unwrap_or((request, ""));
        let path = head.split(' ').nth(1).unwrap_or_default();
        // A body in chunks is not put together here.
        if !path.starts_with("/mcp") || head.contains("Transfer-Encoding") {
            return None;
        }
        let legacy =
            !body.contains("io.modelcontextprotocol/protocolVersion") && !head.contains("MCP-Protocol-Version: 2026");
        let messages = match serde_json::from_str(body) {
            Ok(Value::Array(messages)) => messages,
            Ok(message) => vec![message],
            Err(_) => Vec::new(),
        };
        let method = |message: &Value| Some((message["id"].clone(), message["method"].as_str()?.to_owned()));
        Some(Self { legacy, methods: messages.iter().filter_map(method).collect() })
    }

    fn judge(&self, message: &Value) {
        let mut schemas = SCHEMAS.lock().unwrap_or_else(PoisonError::into_inner);
        let mut fit = |kind: &str, value: &Value| schemas.fit(self.legacy, kind, value);
        match message {
            Value::Array(messages) => {
                drop(schemas);
                messages.iter().for_each(|message| self.judge(message));
            }
            message if message.get("error").is_some() => fit("JSONRPCErrorResponse", message),
            message if message.get("result").is_some() => {
                fit("JSONRPCResultResponse", message);
                let asked = self.methods.iter().find(|(id, _)| *id == message["id"]);
                let (_, method) = asked.unwrap_or_else(|| panic!("nobody has asked for {message}"));
                let result = &message["result"];
                fit(result_of(method, result).unwrap_or_else(|| panic!("{method}: {result}")), result);
            }
            message if message.get("id").is_some() => fit("ServerRequest", message),
            message => fit("ServerNotification", message),
        }
    }
}

/// What came back.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    head: String,
    pub(super) body: Vec<u8>,
}

impl Wire {
    pub(super) async fn open(gateway: SocketAddr) -> Self {
        Self::of(within(LONG, TcpStream::connect(gateway)).await.unwrap())
    }

    fn of(socket: TcpStream) -> Self {
        Self { socket, read: Vec::new(), asked: None, last_event: None }
    }

    pub(super) fn gateway(&self) -> SocketAddr {
        self.socket.peer_addr().unwrap()
    }

    pub(super) async fn write(&mut self, bytes: impl AsRef<[u8]>) {
        self.asked = Asked::of(&String::from_utf8_lossy(bytes.as_ref()));
        // The gateway may have closed the connection: then the answer says why.
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
        let head = String::from_utf8(self.read.drain(..end + 4).take(end).collect()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut answer = Answer { status, head, body: Vec::new() };
        let length: usize = answer.header("content-length").map_or(0, |length| length.parse().unwrap());
        while self.read.len() < length {
            assert!(self.more().await, "half a body");
        }
        answer.body = self.read.drain(..length).collect();
        if let Some(asked) = self.asked.as_ref().filter(|_| length > 0) {
            match answer.header("content-type") {
                Some("application/json") => asked.judge(&answer.json()),
                Some("text/event-stream") => asked.judge(&answer.whole_event()),
                _ => {}
            }
        }
        Some(answer)
    }

    /// The same, with a small receive buffer.
    pub(super) async fn narrow(gateway: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4_096).unwrap();
        Self::of(within(LONG, socket.connect(gateway)).await.unwrap())
    }

    /// Reads the head of an answer whose body has no length; its chunks follow, one at a time.
    pub(super) async fn head(&mut self) -> Answer {
        let answer = self.answer().await.unwrap();
        assert_eq!(answer.header("transfer-encoding"), Some("chunked"), "{answer:?}");
        answer
    }

    /// The next event of a stream; `None` at its end. Comments are skipped.
    pub(super) async fn event(&mut self) -> Option<String> {
        loop {
            let mut chunk = self.chunk().await?;
            if let Some((id, rest)) = chunk.strip_prefix("id: ").and_then(|rest| rest.split_once('\n')) {
                self.last_event = Some(id.to_owned());
                chunk = rest.to_owned();
            }
            if let Some(data) = chunk.trim_start_matches('\n').strip_prefix("data: ") {
                let event = data.trim_end_matches("\n\n").replace("\ndata: ", "\n");
                if let Some(asked) = &self.asked {
                    asked.judge(&serde_json::from_str(&event).unwrap());
                }
                return Some(event);
            }
            assert_eq!(chunk, ":\n\n");
        }
    }

    pub(super) async fn chunk(&mut self) -> Option<String> {
        let (line, length) = loop {
            if let Some(end) = self.read.windows(2).position(|bytes| bytes == b"\r\n") {
                let line = std::str::from_utf8(&self.read[..end]).unwrap();
                break (end + 2, usize::from_str_radix(line, 16).unwrap());
            }
            if !self.more().await {
                return None;
            }
        };
        while self.read.len() < line + length + 2 {
            if !self.more().await {
                return None;
            }
        }
        let chunk: Vec<u8> = self.read.drain(..line + length + 2).skip(line).take(length).collect();
        (length > 0).then(|| String::from_utf8(chunk).unwrap())
    }

    /// The next frame of a WebSocket, its first byte and what it holds; `None` at the end.
    pub(super) async fn frame(&mut self) -> Option<(u8, Vec<u8>)> {
        loop {
            let (head, length) = match self.read.get(1) {
                Some(126) => {
                    (4, self.read.get(2..4).map(|length| usize::from(u16::from_be_bytes(length.try_into().unwrap()))))
                }
                Some(127) => {
                    (10, self.read.get(2..10).map(|length| u64::from_be_bytes(length.try_into().unwrap()) as usize))
                }
                Some(length) => (2, Some(usize::from(*length))),
                None => (2, None),
            };
            if let Some(end) = length.map(|length| head + length).filter(|end| self.read.len() >= *end) {
                let frame: Vec<u8> = self.read.drain(..end).collect();
                return Some((frame[0], frame[head..].to_vec()));
            }
            if !self.more().await {
                return None;
            }
        }
    }

    /// Whether the gateway closes the connection without sending anything.
    pub(super) async fn is_closed(&mut self) -> bool {
        self.read.is_empty() && !self.more().await
    }

    /// Whether the gateway closes the connection without sending any HTTP.
    pub(super) async fn ends(&mut self) -> bool {
        while self.more().await {}
        !self.read.starts_with(b"HTTP")
    }

    async fn more(&mut self) -> bool {
        let mut some = [0; 4_096];
        let read = within(LONG, self.socket.read(&mut some)).await.unwrap_or(0);
        self.read.extend_from_slice(&some[..read]);
        read > 0
    }

    pub(super) async fn ask(&mut self, bytes: impl AsRef<[u8]>) -> Answer {
        self.write(bytes).await;
        self.answer().await.expect("the gateway closed the connection")
    }

    /// Posts JSON-RPC.
    pub(super) async fn post(&mut self, body: &str) -> Answer {
        self.ask(post("/rpc/tools", "", body)).await
    }
}

impl Answer {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        lines.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// All of its head.
    pub(super) fn head(&self) -> &str {
        &self.head
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The one event that is all of it.
    pub(super) fn whole_event(&self) -> Value {
        let text = std::str::from_utf8(&self.body).unwrap();
        serde_json::from_str(text.strip_prefix("data: ").unwrap().trim_end()).unwrap()
    }

    /// Status, and code of the error.
    #[track_caller]
    pub(super) fn is(&self, status: u16, code: i32) {
        assert_eq!((self.status, &self.json()["error"]["code"]), (status, &code.into()), "{self:?}");
    }
}

/// A request that posts a body, with further header lines.
pub(super) fn post(path: &str, lines: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n{lines}\r\n{body}"
    )
}

pub(super) fn call(id: u64, method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)
}
