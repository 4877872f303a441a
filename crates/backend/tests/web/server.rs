//! A server that says, byte for byte, what a test wants.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sealwire_backend::BackendConfig;
use sealwire_backend::web::Web;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Long enough on a machine under full load.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, future).await.expect("in time")
}

/// Returns the answer to the request of this number, and whether the connection goes on.
pub(crate) type Script = fn(usize) -> Option<(Vec<u8>, bool)>;

pub(crate) struct Server {
    pub(crate) url: String,
    pub(crate) connections: Arc<AtomicUsize>,
    /// Every request, head and body.
    pub(crate) requests: Arc<Mutex<Vec<String>>>,
    /// How many clients have closed their connections.
    pub(crate) gone: watch::Receiver<usize>,
}

impl Server {
    /// Answers each request with what `answer` returns for its number, and then keeps or closes the connection. `None` is no answer: the
    /// server waits for the client to go.
    pub(crate) async fn start(answer: Script) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/rpc?key=hunter2", listener.local_addr().unwrap());
        let (connections, requests) = (Arc::<AtomicUsize>::default(), Arc::<Mutex<Vec<String>>>::default());
        let (left, gone) = watch::channel(0);
        let (counted, kept) = (Arc::clone(&connections), Arc::clone(&requests));
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                let (kept, left) = (Arc::clone(&kept), left.clone());
                tokio::spawn(async move {
                    serve(socket, answer, &kept).await;
                    left.send_modify(|left| *left += 1);
                });
            }
        });
        Self { url, connections, requests, gone }
    }

    pub(crate) fn requests(&self) -> usize {
        self.requests.lock().unwrap().len()
    }
}

async fn serve(mut socket: TcpStream, answer: Script, kept: &Mutex<Vec<String>>) {
    while let Some(request) = request(&mut socket).await {
        let number = {
            let mut kept = kept.lock().unwrap();
            kept.push(request);
            kept.len()
        };
        let goes_on = match answer(number) {
            // A client that has gone has had enough.
            Some((bytes, goes_on)) => socket.write_all(&bytes).await.is_ok() && goes_on,
            None => true,
        };
        if !goes_on {
            return;
        }
    }
}

/// One request, if one comes.
pub(crate) async fn request(socket: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> Option<String> {
    let mut text = Vec::new();
    loop {
        let mut byte = [0];
        if socket.read(&mut byte).await.ok()? == 0 {
            return None;
        }
        text.push(byte[0]);
        if text.ends_with(b"\r\n\r\n") {
            break;
        }
    }
    let head = String::from_utf8(text).unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    socket.read_exact(&mut body).await.ok()?;
    Some(head + &String::from_utf8(body).unwrap())
}

/// An answer with this status and head, and this body.
pub(crate) fn answer(head: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

pub(crate) fn web(url: &str, more: Value) -> Web {
    Web::new(&config(url, more)).unwrap()
}

pub(crate) fn config(url: &str, more: Value) -> BackendConfig {
    let mut config = json!({ "name": "web", "kind": "exec", "url": url });
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(config).unwrap()
}
