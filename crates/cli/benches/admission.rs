//! How long brokers and `sealwire authd` take to let everybody in again who was connected when the broker went, and what that takes.
//! `cargo bench --package sealwire-cli --bench admission` measures, with other numbers of agents after `--`, and `rate=N` for as many
//! connections a second as `authd` lets one host open; under `cargo test` the same code runs once, small.
//!
//! One broker, with the callout of `sealwire setup cluster --authd on` and its limits raised, and two `authd`. Each agent has a token of its
//! own and one connection, below the client library: what is measured is who lets it in. All of them try again when our clients do. With many agents, the process needs an open file for each, and so does
//! the broker.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "a measurement")]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sealwire::internal::auth::{Confirmation, IssueRequest, TokenIssuer};
use sealwire::internal::nats::pause;
use sealwire::{Clock as _, SystemClock};
use sealwire_testkit::nats_server::ServerOptions;
use sealwire_testkit::{NatsServer, free_port};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

const MEASURE: [usize; 3] = [1, 100, 1_000];
const TRY: [usize; 1] = [3];
/// How long is waited for all of them.
const LONG: Duration = Duration::from_secs(300);
/// So many get in on any machine.
const FEW: usize = 10;
const RESPONDERS: usize = 2;

/// What the agents have in common.
#[derive(Default)]
struct Crowd {
    admitted: AtomicUsize,
    refused: AtomicUsize,
}

struct Authd(Child);

impl Drop for Authd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let mut sizes: Vec<usize> = words.iter().filter_map(|word| word.parse().ok()).collect();
    if sizes.is_empty() {
        sizes = if words.iter().any(|word| word == "--bench") { MEASURE.to_vec() } else { TRY.to_vec() };
    }
    let rate = words.iter().find_map(|word| word.strip_prefix("rate=")).unwrap_or("1000000");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    println!("| agents | all are in again after | refused on the way | broker, MiB | each `authd`, MiB |");
    println!("|---|---|---|---|---|");
    for size in sizes {
        runtime.block_on(measure(size, rate));
    }
}

async fn measure(size: usize, rate: &str) {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let setup = sealwire(at).args(["setup", "cluster", "--out", ".", "--authd", "on"]).output().unwrap();
    assert!(setup.status.success(), "{setup:?}");
    let port = free_port();
    let url = format!("nats://127.0.0.1:{port}");
    let config = std::fs::read_to_string(at.join("nats-1/users.conf")).unwrap();
    let config = config.replace("max_connections: 1024", "max_connections: 65536");
    let options = ServerOptions { config: Some(config), port: Some(port), ..ServerOptions::default() };
    let mut server = NatsServer::start_with_options(options).await;
    let responders: Vec<Authd> = (0..RESPONDERS).map(|_| authd(at, &url, rate)).collect();

    let crowd = Arc::new(Crowd::default());
    let mut agents = JoinSet::new();
    for (number, token) in tokens(at, size).into_iter().enumerate() {
        agents.spawn(agent(number, token, port, Arc::clone(&crowd)));
    }
    if !all_are(&crowd, size).await {
        assert!(size > FEW, "nobody keeps so few out");
        println!("| {size} | not all were let in within {} s | | | |", LONG.as_secs());
        return;
    }
    server.kill().await;
    assert!(all_are(&crowd, 0).await, "connections of a broker that is gone");
    crowd.refused.store(0, Ordering::SeqCst);
    let began = Instant::now();
    server.restart().await;
    let took = match all_are(&crowd, size).await {
        true => format!("{:.2} s", began.elapsed().as_secs_f64()),
        false => format!("more than {} s: {} are", LONG.as_secs(), crowd.admitted.load(Ordering::SeqCst)),
    };
    assert!(size > FEW || crowd.admitted.load(Ordering::SeqCst) == size, "nobody keeps so few out");
    let of_responders: Vec<String> = responders.iter().map(|one| mebibytes(one.0.id())).collect();
    println!(
        "| {size} | {took} | {} | {} | {} |",
        crowd.refused.load(Ordering::SeqCst),
        mebibytes(server.pid()),
        of_responders.join(", ")
    );
    agents.shutdown().await;
}

fn sealwire(at: &Path) -> Command {
    // Another build of it, if that is to be measured.
    let built = std::env::var_os("SEALWIRE_BINARY").unwrap_or_else(|| env!("CARGO_BIN_EXE_sealwire").into());
    let mut command = Command::new(built);
    command.current_dir(at).env_remove("RUST_LOG").env("RUST_LOG", "error");
    command
}

/// One that answers when this returns. As many connections come from this host as there are agents.
fn authd(at: &Path, url: &str, rate: &str) -> Authd {
    let write = |file: &str, text: String| {
        sealwire::internal::files::write_secret(&at.join(file), &text, true).unwrap();
    };
    write("authd/here.nats.json", json!({ "urls": [url], "nkey_seed_file": "responder.nkey" }).to_string());
    let policies = at.join("policies");
    if !policies.is_dir() {
        std::fs::create_dir(&policies).unwrap();
        for file in std::fs::read_dir(sealwire_testkit::root().join("policies")).unwrap().map(Result::unwrap) {
            std::fs::copy(file.path(), policies.join(file.file_name())).unwrap();
        }
    }
    let said = at.join(format!("said-{}", free_port()));
    let files = [
        "--login",
        "authd/here.nats.json",
        "--issuer",
        "authd/issuer.nk",
        "--xkey",
        "authd/authd.xk",
        "--config",
        "authd",
    ];
    let rates = ["--host-per-second", rate, "--host-burst", rate];
    let mut command = sealwire(at);
    command.arg("authd").args(files).args(rates).stdout(std::fs::File::create(&said).unwrap()).stderr(Stdio::null());
    let authd = Authd(command.spawn().unwrap());
    let deadline = Instant::now() + LONG;
    while !std::fs::read_to_string(&said).unwrap().contains("answers brokers") {
        assert!(Instant::now() < deadline, "authd does not answer");
        std::thread::sleep(Duration::from_millis(20));
    }
    authd
}

/// A token of each agent.
fn tokens(at: &Path, size: usize) -> Vec<String> {
    let issuer = TokenIssuer::load(at.join("issuer/token-key.json")).unwrap();
    let token = |number: usize| {
        let mut request = IssueRequest::new(format!("agent-{number}"), "dev/demo", SystemClock.now_s());
        request.roles = ["calculator".to_owned()].into();
        request.ttl_s = 3_600;
        request.cnf = Some(Confirmation { kid: Some(format!("agent-{number}.k1")), jkt: None });
        issuer.issue(&request).unwrap()
    };
    (0..size).map(token).collect()
}

/// Connects, stays as long as the broker does, and comes again.
async fn agent(number: usize, token: String, port: u16, crowd: Arc<Crowd>) {
    let (mut attempt, mut refusals) = (1, 0);
    loop {
        let refused = match tokio::time::timeout(LONG, login(number, &token, port)).await {
            Ok(Login::Admitted(connection)) => {
                crowd.admitted.fetch_add(1, Ordering::SeqCst);
                stay(connection).await;
                crowd.admitted.fetch_sub(1, Ordering::SeqCst);
                attempt = 1;
                false
            }
            Ok(Login::Refused) => true,
            Ok(Login::Unreachable) | Err(_) => false,
        };
        crowd.refused.fetch_add(usize::from(refused), Ordering::SeqCst);
        attempt += 1;
        refusals = if refused { refusals + 1 } else { 0 };
        tokio::time::sleep(pause(attempt, 1, refusals)).await;
    }
}

/// Answers pings until the broker goes.
async fn stay(mut connection: BufReader<TcpStream>) {
    let mut line = String::new();
    while connection.read_line(&mut line).await.is_ok_and(|length| length > 0) {
        if line.starts_with("PING") && connection.write_all(b"PONG\r\n").await.is_err() {
            return;
        }
        line.clear();
    }
}

/// What came of an attempt to log in.
enum Login {
    Admitted(BufReader<TcpStream>),
    Refused,
    /// Nobody answers there.
    Unreachable,
}

/// A connection with the agent's inbox.
async fn login(number: usize, token: &str, port: u16) -> Login {
    let Ok(stream) = TcpStream::connect(("127.0.0.1", port)).await else { return Login::Unreachable };
    let mut connection = BufReader::with_capacity(1_024, stream);
    let connect = json!({ "auth_token": token, "verbose": false, "protocol": 1, "headers": true, "lang": "bench" });
    let text = format!("CONNECT {connect}\r\nSUB _INBOX.agent-{number}.> 1\r\nPING\r\n");
    if connection.write_all(text.as_bytes()).await.is_err() {
        return Login::Unreachable;
    }
    let mut line = String::new();
    loop {
        line.clear();
        match connection.read_line(&mut line).await {
            Ok(length) if length > 0 && line.starts_with("PONG") => return Login::Admitted(connection),
            Ok(length) if length > 0 && line.starts_with("-ERR") => return Login::Refused,
            Ok(length) if length > 0 => {}
            _ => return Login::Unreachable,
        }
    }
}

/// Waits until so many are admitted; says whether they are.
async fn all_are(crowd: &Crowd, count: usize) -> bool {
    let are = async {
        while crowd.admitted.load(Ordering::SeqCst) != count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LONG, are).await.is_ok()
}

/// What a process has in memory.
fn mebibytes(process: u32) -> String {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let size =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    size.map_or_else(|| "unknown".to_owned(), |size| format!("{:.0}", size / 1_024.0))
}
