//! What a well-behaved agent notices while another party floods the service: calls that fail, and how long the others take.
//!
//! The short form is a test: at five times what the service can handle, no call of the well-behaved agent fails. The long
//! form is a measurement, and prints a table:
//!
//! ```sh
//! SEALWIRE_FLOOD_SECONDS=7 cargo test --release --test floods -- --nocapture
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sealwire::Name;
use sealwire::internal::wire::RequestSigner;
use sealwire_testkit::NatsServer;
use sealwire_testkit::raw::poison_headers;
use sealwire_testkit::site::{Answer, Caller, Site, agent_key, methods, sign, sum};

/// How often the well-behaved agent calls.
const EVERY: Duration = Duration::from_millis(20);
/// How long it waits for an answer. How long answers took is printed: a bound would also count the moments in which the machine stands
/// still.
const PATIENCE: Duration = Duration::from_secs(30);
/// The most messages that are signed for one flood; after that they are sent again.
const POOL: usize = if cfg!(debug_assertions) { 4_000 } else { 40_000 };
/// Agents that measure what the service can handle; several, because each has its own rate.
const GAUGES: usize = 16;

/// Each agent has a broker user, which may use only its own subjects and inbox. A connection that names no user is `ann`.
const BROKER: &str = r#"
accounts { A { users = [
  { user: site, password: site }
  { user: ann, password: ann, permissions: {
      publish: ["rpc.v1.*.ann", "rpc.v1.*.ann.>"], subscribe: ["_INBOX.ann.>"] } }
  { user: mallory, password: mallory, permissions: {
      publish: ["rpc.v1.*.mallory", "rpc.v1.*.mallory.>"], subscribe: ["_INBOX.mallory.>"] } }
  { user: gauge, password: gauge, permissions: { publish: ["rpc.v1.site.*"], subscribe: ["_INBOX.none.>"] } }
] } }
no_auth_user: ann
"#;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flood {
    /// Well-formed messages under a key that the service does not know.
    Garbage,
    /// One good message, again and again.
    Copies,
    /// Messages with a good proof and a token whose signature is wrong.
    BadTokens,
    /// Calls that the flooding agent may make.
    Calls,
    /// The same, taking two seconds each.
    SlowCalls,
    /// Malformed header blocks.
    Poison,
}

impl Flood {
    fn name(self) -> &'static str {
        match self {
            Self::Garbage => "garbage without a key",
            Self::Copies => "copies of one captured message",
            Self::BadTokens => "its own messages with bad tokens",
            Self::Calls => "its own permitted calls",
            Self::SlowCalls => "its own calls of 2 s each",
            Self::Poison => "poison headers",
        }
    }

    /// The messages that are sent in turn, as NATS protocol text.
    fn messages(self, site: &Site) -> Vec<Vec<u8>> {
        let add = r#"{"jsonrpc":"2.0","method":"site/add","params":[1,2],"id":1}"#;
        let sleep = r#"{"jsonrpc":"2.0","method":"site/sleep","params":[2000],"id":1}"#;
        let token = site.token("mallory", &["worker"]);
        let sign = |key, token: &str, payload, count| signed(site, "mallory", key, token, payload, count);
        match self {
            Self::Garbage => sign("nobody", &token, add, 1),
            Self::Copies => sign("mallory", &token, add, 1),
            Self::BadTokens => {
                let (signed, signature) = token.rsplit_once('.').unwrap();
                let flipped = if signature.starts_with('A') { "B" } else { "A" };
                sign("mallory", &format!("{signed}.{flipped}{}", &signature[1..]), add, 1)
            }
            Self::Calls => sign("mallory", &token, add, POOL),
            Self::SlowCalls => sign("mallory", &token, sleep, POOL),
            Self::Poison => poison_headers()
                .iter()
                .map(|(_, block)| {
                    let line = format!("HPUB rpc.v1.site.mallory {} {}\r\n", block.len(), block.len() + 1);
                    [line.as_bytes(), block, b"x\r\n"].concat()
                })
                .collect(),
        }
    }
}

/// `count` messages in the name of `agent`, each with a nonce of its own, signed with the key of `key`.
fn signed(site: &Site, agent: &str, key: &str, token: &str, payload: &str, count: usize) -> Vec<Vec<u8>> {
    let signer = RequestSigner::new(&agent_key(key), site.endpoint.audience().clone(), vec![]).unwrap();
    let name = Name::new(agent).unwrap();
    let (subject, inbox) = (site.endpoint.subject(&name), site.endpoint.inbox(&name));
    (0..count)
        .map(|number| {
            let reply = format!("{inbox}f.{number}");
            let signed = sign(&signer, &subject, &reply, payload, token);
            let block = format!("NATS/1.0\r\nAuthorization: {}\r\n\r\n", signed.authorization);
            let sizes = format!("{} {}", block.len(), block.len() + payload.len());
            format!("HPUB {subject} {reply} {sizes}\r\n{block}{payload}\r\n").into_bytes()
        })
        .collect()
}

/// A connection that sends at a rate, on a thread of its own, until told to stop.
struct Flooding {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<usize>,
    started: Instant,
}

impl Flooding {
    /// Floods as `user`: `rate` messages a second, or as many as the connection takes; each message at most once if `once`.
    fn start(url: &str, user: &str, messages: Vec<Vec<u8>>, rate: f64, once: bool) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut stream = connect(url, user);
        let stopped = Arc::clone(&stop);
        let started = Instant::now();
        let thread = std::thread::spawn(move || {
            let mut sent = 0;
            let most = if once { messages.len() } else { usize::MAX };
            while !stopped.load(Ordering::Relaxed) && sent < most {
                let due = (started.elapsed().as_secs_f64() * rate) as usize;
                // Messages that a busy machine did not send in time are not all sent at once.
                let batch = due.saturating_sub(sent).min(2_000).min(most - sent);
                let bytes: Vec<u8> =
                    (sent..sent + batch).flat_map(|number| messages[number % messages.len()].iter().copied()).collect();
                // A broker that accepts no more makes us wait, at most for the connection's time-out.
                if stream.write_all(&bytes).is_err() {
                    break;
                }
                sent += batch;
                std::thread::sleep(Duration::from_millis(2));
            }
            sent
        });
        Self { stop, thread, started }
    }

    /// Stops, and returns how many messages a second it sent.
    fn stop(self) -> f64 {
        self.stop.store(true, Ordering::Relaxed);
        let seconds = self.started.elapsed().as_secs_f64();
        self.thread.join().unwrap() as f64 / seconds
    }
}

fn connect(url: &str, user: &str) -> TcpStream {
    let mut stream = TcpStream::connect(url.strip_prefix("nats://").unwrap()).unwrap();
    stream.set_write_timeout(Some(2 * PATIENCE)).unwrap();
    stream.set_read_timeout(Some(2 * PATIENCE)).unwrap();
    let hello = format!(
        "CONNECT {{\"verbose\":false,\"headers\":true,\"user\":\"{user}\",\"pass\":\"{user}\",\"protocol\":1}}\r\nPING\r\n"
    );
    stream.write_all(hello.as_bytes()).unwrap();
    let mut heard = Vec::new();
    while !heard.ends_with(b"PONG\r\n") {
        let mut byte = [0];
        assert_eq!(stream.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&heard));
        heard.push(byte[0]);
    }
    stream
}

/// What the well-behaved agent noticed.
#[derive(Default)]
struct Noticed {
    took: Vec<Duration>,
    failed: Vec<Answer>,
}

impl Noticed {
    fn at(&self, share: f64) -> Duration {
        let mut took = self.took.clone();
        took.sort();
        let last = took.len().saturating_sub(1);
        took.get((share * last as f64).round() as usize).copied().unwrap_or(PATIENCE)
    }

    fn row(&self) -> String {
        let ms = |share| self.at(share).as_secs_f64() * 1e3;
        format!("{} | {} | {:.1} | {:.1}", self.took.len() + self.failed.len(), self.failed.len(), ms(0.5), ms(0.99))
    }
}

/// Calls at a fixed pace, whatever the answers do.
async fn notice(ann: &Caller, time: Duration) -> Noticed {
    let until = tokio::time::Instant::now() + time;
    let mut pace = tokio::time::interval(EVERY);
    let mut calls = Vec::new();
    while tokio::time::Instant::now() < until {
        pace.tick().await;
        let ann = ann.clone();
        calls.push(tokio::spawn(async move {
            let started = Instant::now();
            let answer = ann.call("site/add", "[1,2]", PATIENCE).await;
            (answer, started.elapsed())
        }));
    }
    let mut noticed = Noticed::default();
    for call in calls {
        match call.await.unwrap() {
            (answer, took) if answer == sum() => noticed.took.push(took),
            (answer, _) => noticed.failed.push(answer),
        }
    }
    noticed
}

async fn executed(ann: &Caller) -> u64 {
    let Answer::Signed(text) = ann.call("site/count", "[]", PATIENCE).await else { panic!("no count") };
    serde_json::from_str::<serde_json::Value>(&text).unwrap()["result"].as_u64().unwrap()
}

/// How many permitted calls a second the service executes when it is offered as many as it can take.
async fn capacity(site: &Site, url: &str, ann: &Caller) -> f64 {
    let add = r#"{"jsonrpc":"2.0","method":"site/add","params":[1,2],"id":1}"#;
    let agents: Vec<_> = (0..GAUGES)
        .map(|number| {
            let agent = format!("gauge{number}");
            signed(site, &agent, &agent, &site.token(&agent, &["worker"]), add, POOL / GAUGES)
        })
        .collect();
    // The agents take turns, so that all of them are there at the same time.
    let messages = (0..POOL / GAUGES).flat_map(|number| agents.iter().map(move |own| own[number].clone())).collect();
    let before = executed(ann).await;
    let (started, flooding) = (Instant::now(), Flooding::start(url, "gauge", messages, 1e6, true));
    let (mut last, mut last_at) = (before, started);
    while last <= before + 500 || last_at.elapsed() < Duration::from_millis(500) {
        assert!(started.elapsed() < 2 * PATIENCE, "the service works: {}", last - before);
        let now = executed(ann).await;
        if now > last {
            (last, last_at) = (now, Instant::now());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    flooding.stop();
    (last - before) as f64 / (last_at - started).as_secs_f64()
}

/// The processor time that a process has used so far.
fn cpu(pid: u32) -> Duration {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return Duration::ZERO };
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    // utime and stime, which every Linux counts in hundredths of a second.
    Duration::from_millis(10 * (fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()))
}

#[test]
fn a_flood_of_any_kind_at_five_times_the_capacity_fails_no_call_of_another_agent() {
    let long = std::env::var("SEALWIRE_FLOOD_SECONDS").ok().map(|seconds| seconds.parse::<u64>().unwrap());
    let time = long.map_or(Duration::from_millis(1_500), Duration::from_secs);
    let multiples: &[f64] = if long.is_some() { &[1.0, 5.0, 20.0] } else { &[5.0] };

    // The service, the agent and the flood have separate threads.
    let service = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let server = service.block_on(NatsServer::start_with(BROKER));
    let site = Site::logging_in_as(&server.url(), "site");
    let gauges: Vec<String> = (0..GAUGES).map(|number| format!("gauge{number}")).collect();
    let agents = ["ann", "mallory"].into_iter().chain(gauges.iter().map(String::as_str));
    site.write_ring(&agents.collect::<Vec<_>>());
    let served = service.block_on(site.serve(methods()));

    let own = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ann = own.block_on(site.caller("ann"));
    own.block_on(notice(&ann, Duration::from_millis(500)));
    let mut idle = own.block_on(notice(&ann, time));
    let capacity = own.block_on(capacity(&site, &server.url(), &ann));
    println!("\nThe service executes {capacity:.0} calls a second.\n");
    println!("| flood | aimed at | sent a second | calls | failed | p50 ms | p99 ms | broker | service and clients |");
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut rows = Vec::new();
    for flood in [Flood::Garbage, Flood::Copies, Flood::BadTokens, Flood::Calls, Flood::SlowCalls, Flood::Poison] {
        for multiple in multiples {
            let messages = flood.messages(&site);
            let pids = [server.pid(), std::process::id()];
            let before = pids.map(cpu);
            let flooding = Flooding::start(&server.url(), "mallory", messages, multiple * capacity, false);
            let noticed = own.block_on(notice(&ann, time));
            let elapsed = flooding.started.elapsed();
            let sent = flooding.stop();
            let after = pids.map(cpu);
            let cores = |which: usize| 100.0 * (after[which] - before[which]).as_secs_f64() / elapsed.as_secs_f64();
            println!(
                "| {} | {multiple} x | {sent:.0} | {} | {:.0} % | {:.0} % |",
                flood.name(),
                noticed.row(),
                cores(0),
                cores(1)
            );
            rows.push((flood, *multiple, noticed));
            // Let the backlog drain and slow calls end.
            own.block_on(async {
                let quiet = Instant::now();
                while ann.call("site/add", "[1,2]", PATIENCE).await != sum() {
                    assert!(quiet.elapsed() < 6 * PATIENCE, "after {flood:?} the service recovers");
                }
                tokio::time::sleep(Duration::from_millis(500)).await;
            });
        }
    }
    let again = own.block_on(notice(&ann, time));
    idle.took.extend(again.took);
    idle.failed.extend(again.failed);
    println!("| none | | | {} | | |\n", idle.row());
    assert!(idle.failed.is_empty(), "{:?}", idle.failed);
    for (flood, multiple, noticed) in rows {
        if multiple <= 5.0 {
            assert!(noticed.failed.is_empty(), "{flood:?} at {multiple}: {:?}", noticed.failed);
        }
    }
    service.block_on(served.stop()).unwrap();
}
