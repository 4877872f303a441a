//! Who calls: each way's own client library, over one connection if it can have several calls under way on one, otherwise over a connection
//! for each call under way, which stays open. Each answer is read and checked.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::{http1, http2};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::http::response::Parts;
use hyper_util::rt::{TokioExecutor, TokioIo};
use jsonrpsee::core::client::ClientT as _;
use jsonrpsee::core::params::ObjectParams;
use jsonrpsee::http_client::{HeaderMap, HeaderValue, HttpClient};
use jsonrpsee::ws_client::{WsClient, WsClientBuilder};
use sealwire::{Client, Credentials};
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};

use crate::error::Fallible;
use crate::plan::Work;
use crate::servers::grpc::made::site_client::SiteClient;
use crate::servers::grpc::{Add as GrpcAdd, Echo as GrpcEcho};

/// How a side is called.
#[derive(Clone)]
pub enum Way {
    Sealwire(Credentials),
    Bare(String),
    Rpc(SocketAddr),
    /// JSON-RPC over a WebSocket at this path.
    Ws(SocketAddr, &'static str),
    Grpc(SocketAddr),
    /// JSON-RPC posted to this path.
    Post(SocketAddr, &'static str, Http),
    /// An MCP tool call posted to this path.
    Mcp(SocketAddr, &'static str, Http),
    /// The same over HTTP/1.1, with all calls in one session, as clients have it that begin with `initialize`.
    McpSession(SocketAddr, &'static str),
}

/// The HTTP version.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Http {
    /// A connection for each call under way.
    One,
    /// A connection for each 128, in clear text. The gateway accepts no more on one.
    Two,
}

/// A place for one call at a time.
pub enum Place {
    Sealwire(Client),
    Bare(async_nats::Client),
    Rpc(HttpClient),
    Ws(Arc<WsClient>),
    Grpc(SiteClient<Channel>, MetadataValue<Ascii>),
    Post(Post),
}

/// A connection of HTTP/1.1, or a part of one of HTTP/2.
pub struct Post {
    sender: Sender,
    host: String,
    address: String,
    bearer: Option<String>,
    is_tool: bool,
    /// The MCP session.
    session: Option<String>,
    /// The id of the last call: in a session, no two calls under way have the same.
    last_id: u64,
}

enum Sender {
    One(http1::SendRequest<Full<Bytes>>),
    Two(http2::SendRequest<Full<Bytes>>),
}

/// The work, as arguments.
pub struct Arguments {
    work: Work,
    text: String,
    /// As JSON.
    json: Bytes,
    /// As what is posted: to `/rpc`, and as a tool call. Each is in two parts, with the id between them.
    posted: [(String, String); 2],
}

#[derive(Serialize)]
struct Add {
    a: i64,
    b: i64,
}

#[derive(Serialize)]
struct Echo<'a> {
    text: &'a str,
}

const ADD: Add = Add { a: 2, b: 3 };
const PATIENCE: Duration = Duration::from_secs(10);

impl Arguments {
    pub fn new(work: Work) -> Fallible<Self> {
        let text = match work {
            Work::Add => String::new(),
            Work::Echo(size) => "x".repeat(size),
        };
        let json = match work {
            Work::Add => serde_json::to_string(&ADD)?,
            Work::Echo(_) => serde_json::to_string(&Echo { text: &text })?,
        };
        let method = work.method();
        let tool = method.replace('/', "_");
        let behind = [
            format!(r#","method":"{method}","params":{json}}}"#),
            format!(r#","method":"tools/call","params":{{"name":"{tool}","arguments":{json}}}}}"#),
        ];
        let posted = behind.map(|behind| (r#"{"jsonrpc":"2.0","id":"#.to_owned(), behind));
        Ok(Self { work, text, json: json.into(), posted })
    }

    fn sum(&self, sum: i64) -> Fallible<()> {
        if sum == ADD.a + ADD.b { Ok(()) } else { Err("another sum".into()) }
    }

    fn said(&self, text: &str) -> Fallible<()> {
        if text == self.text { Ok(()) } else { Err("another text".into()) }
    }
}

impl Way {
    /// Connects for this many calls under way.
    pub async fn open(&self, places: usize, bearer: &str) -> Fallible<Vec<Place>> {
        let headers = || -> Fallible<HeaderMap> {
            let bearer = (!bearer.is_empty()).then(|| HeaderValue::from_str(bearer)).transpose()?;
            Ok(bearer.map(|bearer| (AUTHORIZATION, bearer)).into_iter().collect())
        };
        let count = places;
        match self {
            Self::Sealwire(credentials) => {
                let client = Client::connect(credentials.clone()).await?;
                client.wait_for("site", PATIENCE).await?;
                Ok((0..count).map(|_| Place::Sealwire(client.clone())).collect())
            }
            Self::Bare(url) => {
                let client = async_nats::connect(url).await?;
                Ok((0..count).map(|_| Place::Bare(client.clone())).collect())
            }
            Self::Rpc(at) => {
                let client = HttpClient::builder().set_headers(headers()?).build(format!("http://{at}"))?;
                Ok((0..count).map(|_| Place::Rpc(client.clone())).collect())
            }
            Self::Ws(at, path) => {
                let builder = WsClientBuilder::new().set_headers(headers()?).max_concurrent_requests(4096);
                let client = Arc::new(builder.build(format!("ws://{at}{path}")).await?);
                Ok((0..count).map(|_| Place::Ws(Arc::clone(&client))).collect())
            }
            Self::Grpc(at) => {
                let channel = Endpoint::new(format!("http://{at}"))?.tcp_nodelay(true).connect().await?;
                let bearer: MetadataValue<Ascii> = bearer.parse()?;
                Ok((0..count).map(|_| Place::Grpc(SiteClient::new(channel.clone()), bearer.clone())).collect())
            }
            Self::Post(at, path, http) | Self::Mcp(at, path, http) => {
                let (mut posts, mut shared) = (Vec::with_capacity(count), None);
                for place in 0..count {
                    let sender = match http {
                        Http::One => {
                            let (sender, connection) = http1::handshake(TokioIo::new(connected(*at).await?)).await?;
                            tokio::spawn(connection);
                            Sender::One(sender)
                        }
                        Http::Two if place % 128 > 0 && shared.is_some() => Sender::Two(shared.clone().ok_or("none")?),
                        Http::Two => {
                            let io = TokioIo::new(connected(*at).await?);
                            let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await?;
                            tokio::spawn(connection);
                            shared = Some(sender.clone());
                            Sender::Two(sender)
                        }
                    };
                    posts.push(Place::Post(Post {
                        sender,
                        host: at.to_string(),
                        address: if *http == Http::One { (*path).to_owned() } else { format!("http://{at}{path}") },
                        bearer: (!bearer.is_empty()).then(|| bearer.to_owned()),
                        is_tool: matches!(self, Self::Mcp(..)),
                        session: None,
                        // Further apart than any place counts.
                        last_id: (place as u64) << 32,
                    }));
                }
                Ok(posts)
            }
            Self::McpSession(at, path) => {
                let mut places = Box::pin(Self::Mcp(*at, path, Http::One).open(count, bearer)).await?;
                if let Some(Place::Post(first)) = places.first_mut() {
                    let session = first.begin().await?;
                    for place in &mut places {
                        if let Place::Post(post) = place {
                            post.session = Some(session.clone());
                        }
                    }
                }
                Ok(places)
            }
        }
    }
}

async fn connected(at: SocketAddr) -> Fallible<TcpStream> {
    let socket = TcpStream::connect(at).await?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

impl Place {
    pub async fn call(&mut self, with: &Arguments) -> Fallible<()> {
        let method = with.work.method();
        match (self, with.work) {
            (Self::Sealwire(client), Work::Add) => with.sum(client.call("site", method, ADD).await?),
            (Self::Sealwire(client), Work::Echo(_)) => {
                with.said(&client.call::<String>("site", method, Echo { text: &with.text }).await?)
            }
            (Self::Bare(client), work) => {
                let answer = client.request(method.replace("site/", "bare."), with.json.clone()).await?;
                match work {
                    Work::Add => with.sum(serde_json::from_slice(&answer.payload)?),
                    Work::Echo(_) => with.said(&serde_json::from_slice::<String>(&answer.payload)?),
                }
            }
            (Self::Rpc(client), Work::Add) => with.sum(client.request(method, add()?).await?),
            (Self::Rpc(client), Work::Echo(_)) => {
                with.said(&client.request::<String, _>(method, echo(&with.text)?).await?)
            }
            (Self::Ws(client), Work::Add) => with.sum(client.request(method, add()?).await?),
            (Self::Ws(client), Work::Echo(_)) => {
                with.said(&client.request::<String, _>(method, echo(&with.text)?).await?)
            }
            (Self::Grpc(client, bearer), Work::Add) => {
                let mut request = tonic::Request::new(GrpcAdd { a: ADD.a, b: ADD.b });
                request.metadata_mut().insert("authorization", bearer.clone());
                with.sum(client.add(request).await?.into_inner().sum)
            }
            (Self::Grpc(client, bearer), Work::Echo(_)) => {
                let mut request = tonic::Request::new(GrpcEcho { text: with.text.clone() });
                request.metadata_mut().insert("authorization", bearer.clone());
                with.said(&client.echo(request).await?.into_inner().text)
            }
            (Self::Post(post), _) => post.call(with).await,
        }
    }
}

fn add() -> Fallible<ObjectParams> {
    let mut params = ObjectParams::new();
    params.insert("a", ADD.a)?;
    params.insert("b", ADD.b)?;
    Ok(params)
}

fn echo(text: &str) -> Fallible<ObjectParams> {
    let mut params = ObjectParams::new();
    params.insert("text", text)?;
    Ok(params)
}

#[derive(Deserialize)]
struct Answer<T> {
    result: T,
}

#[derive(Deserialize)]
struct ToolResult {
    content: Vec<Content>,
}

#[derive(Deserialize)]
struct Content {
    text: String,
}

const SESSION: &str = "mcp-session-id";
const REVISION: &str = "2025-11-25";

impl Post {
    /// Begins an MCP session, and returns its id.
    async fn begin(&mut self) -> Fallible<String> {
        let initialize = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{{"protocolVersion":"{REVISION}","capabilities":{{}},"clientInfo":{{"name":"compare","version":"0"}}}}}}"#
        );
        let (head, _) = self.ask(initialize.into()).await?;
        let session = head.headers.get(SESSION).ok_or("no session")?.to_str()?.to_owned();
        self.session = Some(session.clone());
        self.ask(Bytes::from_static(br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#)).await?;
        Ok(session)
    }

    async fn call(&mut self, with: &Arguments) -> Fallible<()> {
        self.last_id += 1;
        let (before, behind) = &with.posted[usize::from(self.is_tool)];
        let (_, body) = self.ask(format!("{before}{}{behind}", self.last_id).into()).await?;
        // If the answer comes as an event, it is the last line of data.
        let text =
            body.split(|byte| *byte == b'\n').rev().find_map(|line| line.strip_prefix(b"data: ")).unwrap_or(&body);
        let read = self.read(with, text);
        read.map_err(|error| format!("{error}: {}", String::from_utf8_lossy(&body)).into())
    }

    /// The answer to this, unless it is an error.
    async fn ask(&mut self, text: Bytes) -> Fallible<(Parts, Bytes)> {
        let mut request = hyper::Request::post(self.address.as_str())
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json, text/event-stream");
        if matches!(self.sender, Sender::One(_)) {
            request = request.header(HOST, self.host.as_str());
        }
        if let Some(bearer) = &self.bearer {
            request = request.header(AUTHORIZATION, bearer.as_str());
        }
        if let Some(session) = &self.session {
            request = request.header(SESSION, session.as_str()).header("mcp-protocol-version", REVISION);
        }
        let request = request.body(Full::new(text))?;
        let answer = match &mut self.sender {
            Sender::One(sender) => {
                sender.ready().await?;
                sender.send_request(request).await?
            }
            Sender::Two(sender) => {
                sender.ready().await?;
                sender.send_request(request).await?
            }
        };
        let (head, body) = answer.into_parts();
        let body = body.collect().await?.to_bytes();
        if !head.status.is_success() {
            return Err(format!("{}: {}", head.status, String::from_utf8_lossy(&body)).into());
        }
        Ok((head, body))
    }

    fn read(&self, with: &Arguments, body: &[u8]) -> Fallible<()> {
        match (self.is_tool, with.work) {
            (false, Work::Add) => with.sum(serde_json::from_slice::<Answer<i64>>(body)?.result),
            (false, Work::Echo(_)) => with.said(&serde_json::from_slice::<Answer<String>>(body)?.result),
            (true, work) => {
                let answer: Answer<ToolResult> = serde_json::from_slice(body)?;
                let text = &answer.result.content.first().ok_or("no content")?.text;
                match work {
                    Work::Add => with.sum(text.parse()?),
                    Work::Echo(_) => with.said(text),
                }
            }
        }
    }
}
