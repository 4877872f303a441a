//! A minimal load balancer: sends requests in turn, over connections that it keeps, to the backends that report ready.
//! A WebSocket stays with its backend. Nothing is sent twice: a request that a backend took but did not answer is lost, and counted.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// How long a connection is kept without a request: for less time than a gateway keeps it, which would close it just then.
const KEPT: Duration = Duration::from_secs(20);

pub(super) struct Balancer {
    pub(super) at: SocketAddr,
    state: Arc<State>,
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct State {
    backends: Mutex<Vec<Backend>>,
    turn: AtomicUsize,
    /// Requests that a backend took but did not answer.
    lost: AtomicUsize,
}

struct Backend {
    at: SocketAddr,
    is_ready: bool,
    answered: usize,
    /// WebSockets that were opened at it.
    sockets: usize,
}

impl Balancer {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (at, state, mut tasks) = (listener.local_addr().unwrap(), Arc::new(State::default()), JoinSet::new());
        let (serving, looking) = (Arc::clone(&state), Arc::clone(&state));
        tasks.spawn(async move {
            let mut clients = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                clients.spawn(Arc::clone(&serving).relay(client));
            }
        });
        tasks.spawn(async move {
            loop {
                looking.look().await;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        Self { at, state, _tasks: tasks }
    }

    pub(super) fn add(&self, at: SocketAddr) {
        self.state.backends.lock().unwrap().push(Backend { at, is_ready: false, answered: 0, sockets: 0 });
    }

    /// How many requests each backend has answered.
    pub(super) fn answered(&self) -> Vec<usize> {
        self.state.backends.lock().unwrap().iter().map(|backend| backend.answered).collect()
    }

    /// Waits until all are.
    pub(super) async fn is_ready(&self) {
        while !self.state.backends.lock().unwrap().iter().all(|backend| backend.is_ready) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// How many WebSockets were opened at each backend.
    pub(super) fn sockets(&self) -> Vec<usize> {
        self.state.backends.lock().unwrap().iter().map(|backend| backend.sockets).collect()
    }

    pub(super) fn lost(&self) -> usize {
        self.state.lost.load(Ordering::Acquire)
    }
}

impl State {
    /// The backends that are ready.
    async fn look(&self) {
        let all: Vec<_> = self.backends.lock().unwrap().iter().map(|backend| backend.at).collect();
        for at in all {
            let asking = async {
                let mut socket = TcpStream::connect(at).await?;
                socket.write_all(b"GET /readyz HTTP/1.1\r\nHost: any\r\nConnection: close\r\n\r\n").await?;
                let mut said = Vec::new();
                socket.read_to_end(&mut said).await?;
                std::io::Result::Ok(said.starts_with(b"HTTP/1.1 200"))
            };
            let is_ready = asking.await.unwrap_or(false);
            self.said(at, is_ready);
        }
    }

    fn said(&self, at: SocketAddr, is_ready: bool) {
        let mut all = self.backends.lock().unwrap();
        all.iter_mut().filter(|backend| backend.at == at).for_each(|backend| backend.is_ready = is_ready);
    }

    fn next(&self) -> Option<SocketAddr> {
        let all = self.backends.lock().unwrap();
        let ready: Vec<_> = all.iter().filter(|backend| backend.is_ready).collect();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        ready.get(turn.checked_rem(ready.len())?).map(|backend| backend.at)
    }

    /// All requests of one client.
    async fn relay(self: Arc<Self>, mut client: TcpStream) {
        let (mut kept, mut asked) = (HashMap::new(), Vec::new());
        client.set_nodelay(true).unwrap();
        loop {
            let end = loop {
                if let Some(end) = end(&asked) {
                    break end;
                }
                if !matches!(client.read_buf(&mut asked).await, Ok(1..)) {
                    return;
                }
            };
            let request: Vec<u8> = asked.drain(..end).collect();
            let (at, mut backend) = loop {
                let Some(at) = self.next() else {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    continue;
                };
                if let Some((backend, since)) = kept.remove(&at)
                    && Instant::elapsed(&since) < KEPT
                {
                    break (at, backend);
                }
                match TcpStream::connect(at).await {
                    Ok(backend) => break (at, backend),
                    // Nothing was sent.
                    Err(_) => self.said(at, false),
                }
            };
            backend.set_nodelay(true).unwrap();
            let Some(closes) = self.one(&mut client, &mut asked, at, &mut backend, &request).await else { return };
            if !closes {
                kept.insert(at, (backend, Instant::now()));
            }
            let mut all = self.backends.lock().unwrap();
            all.iter_mut().filter(|backend| backend.at == at).for_each(|backend| backend.answered += 1);
        }
    }

    /// Relays a request and its answer. Returns whether the backend closes the connection; `None` if the client or the answer is lost.
    async fn one(
        &self,
        client: &mut TcpStream,
        asked: &mut Vec<u8>,
        at: SocketAddr,
        backend: &mut TcpStream,
        request: &[u8],
    ) -> Option<bool> {
        let (mut answer, mut head) = (Vec::new(), String::new());
        let sent = backend.write_all(request).await;
        loop {
            let before = answer.len();
            let read = tokio::select! {
                read = backend.read_buf(&mut answer) => read,
                read = client.read_buf(asked) => match read {
                    Ok(1..) => continue,
                    _ => return None,
                },
            };
            if sent.is_err() || !matches!(read, Ok(1..)) {
                self.lost.fetch_add(1, Ordering::AcqRel);
                eprintln!("lost: {}", String::from_utf8_lossy(request));
                return None;
            }
            let mut rest = before;
            if head.is_empty() {
                let Some(end) = position(&answer, b"\r\n\r\n") else { continue };
                head = String::from_utf8(answer[..end].to_vec()).unwrap().to_lowercase();
                // Headers about this connection do not concern the client.
                let kept = String::from_utf8_lossy(&answer[..end]).replace("connection: close\r\n", "");
                client.write_all(kept.replace("\r\nconnection: close", "").as_bytes()).await.ok()?;
                rest = end;
            }
            client.write_all(&answer[rest..]).await.ok()?;
            if head.starts_with("http/1.1 101 ") {
                // From here on, the two talk to each other until one of them disconnects.
                let count = |backend: &mut Backend| backend.sockets += 1;
                self.backends.lock().unwrap().iter_mut().filter(|backend| backend.at == at).for_each(count);
                backend.write_all(asked).await.ok()?;
                drop(tokio::io::copy_bidirectional(client, backend).await);
                return None;
            }
            if end(&answer).is_some() {
                return Some(head.contains("\r\nconnection: close"));
            }
        }
    }
}

/// Where a message ends, if it is whole.
fn end(bytes: &[u8]) -> Option<usize> {
    let head = position(bytes, b"\r\n\r\n")? + 4;
    let lines = String::from_utf8_lossy(&bytes[..head]).to_lowercase();
    let value = |name: &str| lines.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    if value("transfer-encoding:").is_none() {
        let end = head + value("content-length:").map_or(0, |length| length.parse().unwrap());
        return (bytes.len() >= end).then_some(end);
    }
    let mut at = head;
    loop {
        let line = at + position(&bytes[at..], b"\r\n")?;
        let length = usize::from_str_radix(std::str::from_utf8(&bytes[at..line]).unwrap(), 16).unwrap();
        at = line + 2 + length + 2;
        if bytes.len() < at {
            return None;
        }
        if length == 0 {
            return Some(at);
        }
    }
}

fn position(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|some| some == wanted)
}
