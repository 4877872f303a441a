//! What the tests against a real nats-server share: the server itself, a connection below the client library, deadlines.
//! Never used by a test that could call the library without a socket.

#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

pub(crate) mod cluster;
pub(crate) mod desk;
#[path = "../../src/bin/sealwire/nats_server.rs"]
pub(crate) mod nats_server;
pub(crate) mod raw;
pub(crate) mod replay;
pub(crate) mod site;

use std::future::Future;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use nats_server::{Found, Running, ServerOptions};

/// A nats-server of this test alone: JetStream on, a free port on the loopback address, gone when dropped.
///
/// Every method that fails panics with the server's log, since a test cannot go on without its server.
#[derive(Debug)]
pub(crate) struct NatsServer {
    /// `None` only while a blocking call has it.
    running: Option<Running>,
}

impl NatsServer {
    /// A server without users or permissions.
    pub(crate) async fn start() -> Self {
        Self::start_with_options(ServerOptions::default()).await
    }

    /// A server with this configuration text (users, permissions, limits, TLS; not address, port or store).
    pub(crate) async fn start_with(config: &str) -> Self {
        Self::start_with_options(ServerOptions { config: Some(config.to_owned()), ..ServerOptions::default() }).await
    }

    /// A server with all options in the caller's hands.
    pub(crate) async fn start_with_options(options: ServerOptions) -> Self {
        let running = blocking(move || nats_server::spawn(found(), &options).unwrap_or_else(|e| panic!("{e}"))).await;
        Self { running: Some(running) }
    }

    /// Where clients connect, such as `nats://127.0.0.1:38477`. The same after [`restart`](Self::restart).
    pub(crate) fn url(&self) -> String {
        self.running().url()
    }

    /// The port on the loopback address.
    pub(crate) fn port(&self) -> u16 {
        self.running().port()
    }

    /// The server's process.
    pub(crate) fn pid(&self) -> u32 {
        self.running().pid().expect("it runs")
    }

    /// What the server has logged so far.
    pub(crate) fn log(&self) -> String {
        self.running().log()
    }

    /// A client of this server, connected.
    pub(crate) async fn client(&self) -> async_nats::Client {
        within(SOON, async_nats::connect(self.url())).await.unwrap()
    }

    /// Ends the server as a crash would (SIGKILL). Its port and its store stay with it.
    pub(crate) async fn kill(&mut self) {
        self.on_running(|mut running| {
            running.kill();
            running
        })
        .await;
    }

    /// Starts the server again on the same port and the same store, after killing it if it runs.
    pub(crate) async fn restart(&mut self) {
        self.on_running(|mut running| {
            running.restart().unwrap_or_else(|e| panic!("{e}"));
            running
        })
        .await;
    }

    /// Stops the process without closing its connections (SIGSTOP): a network that swallows everything.
    pub(crate) async fn pause(&mut self) {
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
    pub(crate) async fn resume(&mut self) {
        self.signal("CONT").await;
    }

    /// Sends any signal by its name, such as `USR2` for lame duck mode.
    pub(crate) async fn signal(&self, name: &'static str) {
        let pid = self.running().pid().expect("a server that was killed gets no signals").to_string();
        let status = blocking(move || Command::new("kill").args(["-s", name, &pid]).status().unwrap()).await;
        assert!(status.success(), "kill -s {name}: {status}");
    }

    /// Has the server read another configuration text while it runs (SIGHUP).
    pub(crate) async fn reload(&self, config: &str) {
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

/// Waits for `future` at most `limit`.
///
/// # Panics
/// When the time is over, at the caller's line.
#[track_caller]
pub(crate) fn within<F: Future>(limit: Duration, future: F) -> impl Future<Output = F::Output> {
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
pub(crate) async fn settle(client: &async_nats::Client) {
    let subject = client.new_inbox();
    let mut echo = within(SOON, client.subscribe(subject.clone())).await.unwrap();
    within(SOON, client.publish(subject, Bytes::new())).await.unwrap();
    within(SOON, echo.next()).await.expect("the connection is up");
}

/// Publishes an answer on a connection of the client library's.
pub(crate) async fn publish(client: &async_nats::Client, sealed: sealwire::wire::Sealed) {
    let (to, payload) = (sealed.to().to_owned(), sealed.payload().clone());
    match sealed.headers() {
        Some(headers) => within(SOON, client.publish_with_headers(to, headers.clone(), payload)).await.unwrap(),
        None => within(SOON, client.publish(to, payload)).await.unwrap(),
    }
}

/// Long enough for anything that should happen at once, on a machine under full load.
pub(crate) const SOON: Duration = Duration::from_secs(10);

/// The server that all tests of this process run. Found, or fetched, once.
pub(crate) fn found() -> &'static Found {
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
