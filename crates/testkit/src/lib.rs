//! What the tests share: a real nats-server, keys, services and callers on it, a connection below the client library, deadlines.
//! [`desk`] calls the library without a socket; the rest needs a server.

#![allow(missing_docs, missing_debug_implementations, clippy::new_without_default, reason = "for tests")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "for tests")]

pub mod admits;
pub mod cluster;
pub mod collector;
pub mod compiler;
pub mod desk;
pub mod idp;
pub mod jsonrpc_examples;
pub mod operator;
pub mod page;
pub mod policies;
pub mod python;
pub mod raw;
pub mod replay;
pub mod scripted;
pub mod site;
pub mod slow;

pub use sealwire_nats_server as nats_server;

use std::fs::File;
use std::future::Future;
use std::io::{Read as _, Seek as _, Write as _};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use nats_server::{Found, RunError, Running, ServerOptions};

/// The project's folder.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}

/// All files below a folder, including those behind links.
pub fn files_below(folder: &Path) -> Vec<PathBuf> {
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

/// A port of the loopback address that nothing else takes meanwhile: not handed out twice while others are left, to any test of
/// any process, and outside the range from which the system gives ports to outgoing connections (32,768 and above).
pub fn free_port() -> u16 {
    const PORTS: std::ops::Range<u16> = 12_000..32_000;
    let path = std::env::temp_dir().join("sealwire-test-ports");
    let mut file = File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap();
    file.lock().unwrap();
    let mut last = String::new();
    file.read_to_string(&mut last).unwrap();
    let start = last.trim().parse().ok().filter(|last| PORTS.contains(last)).unwrap_or(PORTS.start);
    let mut ports = (start + 1..PORTS.end).chain(PORTS.start..=start);
    // Asked by connecting: if it were bound for a moment, each process that is being started at that moment would hold it for one more.
    let is_free = |port: &u16| std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, *port)).is_err();
    let port = ports.find(is_free).expect("a port is free");
    file.rewind().unwrap();
    write!(file, "{port}").unwrap();
    port
}

/// A nats-server of this test alone: JetStream on, a free port on the loopback address, gone when dropped.
///
/// Every method that fails panics with the server's log, since a test cannot go on without its server.
#[derive(Debug)]
pub struct NatsServer {
    /// `None` only while a blocking call has it.
    running: Option<Running>,
}

impl NatsServer {
    /// A server without users or permissions.
    pub async fn start() -> Self {
        Self::start_with_options(ServerOptions::default()).await
    }

    /// A server with this configuration text (users, permissions, limits, TLS; not address, port or store).
    pub async fn start_with(config: &str) -> Self {
        Self::start_with_options(ServerOptions { config: Some(config.to_owned()), ..ServerOptions::default() }).await
    }

    /// A server with all options in the caller's hands.
    pub async fn start_with_options(options: ServerOptions) -> Self {
        let spawn = move || loop {
            // Only such a port is still free when the server is started again.
            let port = options.port.unwrap_or_else(free_port);
            match nats_server::spawn(found(), &ServerOptions { port: Some(port), ..options.clone() }) {
                Err(RunError::PortInUse(_)) if options.port.is_none() => {}
                spawned => return spawned.unwrap_or_else(|e| panic!("{e}")),
            }
        };
        Self { running: Some(blocking(spawn).await) }
    }

    /// Where clients connect, such as `nats://127.0.0.1:38477`. The same after [`restart`](Self::restart).
    pub fn url(&self) -> String {
        self.running().url()
    }

    /// The port on the loopback address.
    pub fn port(&self) -> u16 {
        self.running().port()
    }

    /// The server's process.
    pub fn pid(&self) -> u32 {
        self.running().pid().expect("it runs")
    }

    /// What the server has logged so far.
    pub fn log(&self) -> String {
        self.running().log()
    }

    /// A client of this server, connected.
    pub async fn client(&self) -> async_nats::Client {
        within(SOON, async_nats::connect(self.url())).await.unwrap()
    }

    /// Ends the server as a crash would (SIGKILL). Its port and its store stay with it.
    pub async fn kill(&mut self) {
        self.on_running(|mut running| {
            running.kill();
            running
        })
        .await;
    }

    /// Starts the server again on the same port and the same store, after killing it if it runs.
    pub async fn restart(&mut self) {
        self.on_running(|mut running| {
            running.restart().unwrap_or_else(|e| panic!("{e}"));
            running
        })
        .await;
    }

    /// Stops the process without closing its connections (SIGSTOP): a network that swallows everything.
    pub async fn pause(&mut self) {
        self.signal("STOP").await;
        // The signal is sent, but a thread on another core goes on until it next enters the kernel.
        let pid = self.running().pid().expect("it got a signal just now");
        let stopped = async {
            while !all_threads_stopped(pid) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        within(SOON, stopped).await;
    }

    /// Lets a paused process go on (SIGCONT).
    pub async fn resume(&mut self) {
        self.signal("CONT").await;
    }

    /// Sends any signal by its name, such as `USR2` for lame duck mode.
    pub async fn signal(&self, name: &'static str) {
        let pid = self.running().pid().expect("a server that was killed gets no signals").to_string();
        let status = blocking(move || Command::new("kill").args(["-s", name, &pid]).status().unwrap()).await;
        assert!(status.success(), "kill -s {name}: {status}");
    }

    /// Makes the server read another configuration text while it runs (SIGHUP).
    pub async fn reload(&self, config: &str) {
        let (file, before) = (self.running().log_file().with_file_name("server.conf"), self.log().len());
        std::fs::write(file, config).unwrap();
        self.signal("HUP").await;
        let reloaded = async {
            while !self.log()[before..].contains("Reloaded server configuration") {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        within(SOON, reloaded).await;
    }

    fn running(&self) -> &Running {
        self.running.as_ref().expect("no earlier call on this server panicked")
    }

    async fn on_running(&mut self, call: impl FnOnce(Running) -> Running + Send + 'static) {
        let running = self.running.take().expect("no earlier call on this server panicked");
        self.running = Some(blocking(move || call(running)).await);
    }
}

/// Waits for `future`, for `limit` at most.
///
/// # Panics
/// When the time is over, at the caller's line.
#[track_caller]
pub fn within<F: Future>(limit: Duration, future: F) -> impl Future<Output = F::Output> {
    let place = std::panic::Location::caller();
    async move {
        match tokio::time::timeout(limit, future).await {
            Ok(output) => output,
            Err(_) => panic!("{place}: nothing within {limit:?}"),
        }
    }
}

/// Waits until the server has handled everything that this client sent before, subscriptions above all.
///
/// `Client::flush` only empties the client's own buffer: a message that another connection publishes right after it can
/// still be ahead of the subscription.
pub async fn settle(client: &async_nats::Client) {
    let subject = client.new_inbox();
    let mut echo = within(SOON, client.subscribe(subject.clone())).await.unwrap();
    within(SOON, client.publish(subject, Bytes::new())).await.unwrap();
    within(SOON, echo.next()).await.expect("the connection is up");
}

/// Publishes an answer on a connection of the client library.
pub async fn publish(client: &async_nats::Client, sealed: sealwire::serve::Sealed) {
    let (to, payload) = (sealed.to().to_owned(), sealed.payload().clone());
    match sealed.headers() {
        Some(headers) => within(SOON, client.publish_with_headers(to, headers.clone(), payload)).await.unwrap(),
        None => within(SOON, client.publish(to, payload)).await.unwrap(),
    }
}

/// Long enough for anything that should happen at once, on a machine under full load that stands still for a while.
pub const SOON: Duration = Duration::from_secs(60);

/// The server that all tests of this process run. Found, or fetched, once.
pub fn found() -> &'static Found {
    static FOUND: OnceLock<Found> = OnceLock::new();
    FOUND.get_or_init(|| nats_server::find().unwrap_or_else(|e| panic!("{e}")))
}

/// Whether every thread of the process is stopped. Where there is no `/proc` we cannot know and say yes.
fn all_threads_stopped(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    // `PID (NAME) STATE …`; a name may hold parentheses.
    let state = |stat: String| stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    threads
        .filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("stat")).ok())
        .all(|stat| state(stat) == Some('T'))
}

async fn blocking<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(call).await {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
