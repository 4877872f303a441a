//! What a service holds for callers that have stopped reading (SPEC.md §25.5), measured from outside: it is a separate process.
//!
//! The figures are printed: `cargo test --test bus streams::memory -- --nocapture`

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sealwire::internal::wire::{RequestSigner, Signed};
use sealwire::{Config, Ctx, Name, Router, RpcError, Sink};
use sealwire_testkit::raw::RawConnection;
use sealwire_testkit::site::{Served, Site, agent_key, signed_now};
use sealwire_testkit::{NatsServer, SOON, within};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

/// The environment variable that tells the service's process where its configuration is.
pub(crate) const CONFIG: &str = "SEALWIRE_TEST_CONFIG";
const MIB: u64 = 1 << 20;

/// How many items were handed over.
type Sent = Arc<AtomicU64>;

/// The service: prints how many items were sent whenever it is asked. Not a test of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by the test below as a process"]
async fn service() {
    let Ok(config) = std::env::var(CONFIG) else { return };
    let config = Config::load(&config).unwrap_or_else(|error| panic!("{error}"));
    let sent = Sent::default();
    let router = Router::new(Arc::clone(&sent))
        .method_with_sink("site/each", |ctx: Ctx<Sent>, (size,): (usize,), sink: Sink<String>| async move {
            let item = "x".repeat(size);
            while sink.send(&item).await.is_ok() {
                ctx.state().fetch_add(1, Ordering::Relaxed);
            }
            Ok::<_, RpcError>(())
        })
        .stream("site/packed", |ctx: Ctx<Sent>, (size,): (usize,)| async move {
            let sent = Arc::clone(ctx.state());
            let item = "x".repeat(size);
            let items = std::iter::repeat_with(move || {
                sent.fetch_add(1, Ordering::Relaxed);
                Ok::<_, RpcError>(item.clone())
            });
            Ok::<_, RpcError>(futures_util::stream::iter(items))
        });
    let (builder, options) = config.builder().await.unwrap_or_else(|error| panic!("{error}"));
    let service = builder.methods(router).build().unwrap_or_else(|error| panic!("{error}"));
    let served = Served::spawn(service, config.nats.clone(), options);
    served.ready().await;
    println!("\nready");
    // Ends when the process that started it ends.
    let asked = tokio::task::spawn_blocking(move || {
        for _ in std::io::stdin().lines().map_while(Result::ok) {
            println!("\nsent {}", sent.load(Ordering::Relaxed));
        }
    });
    asked.await.unwrap();
    served.kill().await;
}

/// A service as a process: one of the ignored tests here, which reports that it is ready, and ends with its input.
pub(crate) struct Process {
    pub(crate) child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    pub(crate) async fn start(site: &Site, test: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--ignored", "--nocapture", "--test-threads", "1"])
            .env(CONFIG, site.path("sealwire.toml"))
            // glibc: freed memory is returned to the system, so that only memory in use is measured.
            .envs([("MALLOC_ARENA_MAX", "1"), ("MALLOC_MMAP_THRESHOLD_", "65536"), ("MALLOC_TRIM_THRESHOLD_", "0")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut process = Self { child, lines };
        process.hears("ready").await;
        process
    }

    /// The rest of the next line that begins with this word.
    pub(crate) async fn hears(&mut self, word: &str) -> String {
        let heard = async {
            loop {
                let line = self.lines.next_line().await.unwrap().expect("the service runs");
                if let Some(rest) = line.strip_prefix(word) {
                    return rest.trim().to_owned();
                }
            }
        };
        within(3 * SOON, heard).await
    }

    async fn sent(&mut self) -> u64 {
        self.child.stdin.as_mut().unwrap().write_all(b"?\n").await.unwrap();
        self.hears("sent").await.parse().unwrap()
    }

    /// Its resident memory, in bytes.
    fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id().unwrap())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    /// Whether one of its threads runs, or waits for a processor.
    fn is_busy(&self) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id().unwrap())).unwrap();
        // `PID (NAME) STATE …`; a thread that has just ended has no such file.
        let stat =
            |thread: std::io::Result<std::fs::DirEntry>| std::fs::read_to_string(thread.ok()?.path().join("stat")).ok();
        threads.filter_map(stat).any(|stat| stat.contains(") R "))
    }

    /// Waits until no method makes progress any more, or the first of them are given up. Returns how many items were sent, and
    /// the peak of memory meanwhile.
    async fn stalled(&mut self) -> (u64, u64) {
        let (mut last, mut most, mut since) = (self.sent().await, self.resident(), Instant::now());
        let began = Instant::now();
        while last == 0 || since.elapsed() < Duration::from_secs(2) && began.elapsed() < Duration::from_secs(30) {
            assert!(began.elapsed() < Duration::from_secs(120), "it sends nothing");
            tokio::time::sleep(Duration::from_millis(50)).await;
            let is_busy = self.is_busy();
            let now = self.sent().await;
            most = most.max(self.resident());
            if now != last || is_busy {
                (last, since) = (now, Instant::now());
            }
        }
        (last, most)
    }
}

/// This many streams of this many agents, which subscribe but never read a byte.
struct Case {
    agents: usize,
    each: usize,
    method: &'static str,
    size: usize,
}

impl Case {
    async fn measure(&self) {
        let Self { agents, each, method, size } = *self;
        let server = NatsServer::start().await;
        let site = Site::new(&server.url());
        let names: Vec<String> = (0..agents).map(|number| format!("agent{number}")).collect();
        site.write_ring(&names.iter().map(String::as_str).collect::<Vec<_>>());
        let mut process = Process::start(&site, "streams::memory::service").await;
        let mut callers = Vec::new();
        // A first call, so that everything has been used once.
        callers.push(call(&site, &server, "agent0", 1, "site/each", size, 1).await);
        process.stalled().await;
        let before = process.resident();
        for name in &names {
            callers.push(call(&site, &server, name, each, method, size, 1024).await);
        }
        let (items, most) = process.stalled().await;
        let used = most.saturating_sub(before);
        let streams = (agents * each) as u64;
        println!(
            "{agents} agents with {each} streams each, items of {size} bytes ({method}): {items} items, {:.2} MiB, {:.3} MiB a stream",
            used as f64 / MIB as f64,
            used as f64 / MIB as f64 / streams as f64
        );
        // A mebibyte each, the item that waits for room, with its text, and what the allocator keeps.
        let most = streams * (MIB + 2 * size as u64) + 4 * MIB;
        assert!(used <= most, "{used} bytes for {streams} streams, and {most} are expected");
        // The service does hold frames: a caller that reads again gets them.
        assert!(used >= streams * MIB / 16, "{used} bytes for {streams} streams");
    }
}

async fn call(
    site: &Site,
    server: &NatsServer,
    agent: &str,
    times: usize,
    method: &str,
    size: usize,
    window: u64,
) -> RawConnection {
    let mut raw = RawConnection::connect(&server.url(), None).await;
    let name = Name::new(agent).unwrap();
    let signer = RequestSigner::new(&agent_key(agent), site.endpoint.audience().clone(), vec![]).unwrap();
    let (subject, token) = (site.endpoint.subject(&name), site.token(agent, &["worker"]));
    raw.subscribe(&format!("{}>", site.endpoint.inbox(&name)), None).await;
    for number in 0..times {
        let reply = format!("{}{window}-{number}", site.endpoint.inbox(&name));
        let payload = format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":[{size}],"id":1}}"#);
        let signed = signer.sign(&Signed {
            timeout_ms: Some(300_000),
            window: Some(window),
            ..signed_now(&subject, &reply, payload.as_bytes(), &token)
        });
        let block = format!("NATS/1.0\r\nAuthorization: {}\r\n\r\n", signed.authorization);
        raw.hpub_raw(&subject, Some(&reply), block.as_bytes(), payload.as_bytes()).await;
    }
    raw
}

/// SPEC.md §25.5: a stream holds at most 1 MiB, all streams of one agent half of what there is, and all together 64 MiB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_stop_reading_cost_a_mebibyte_each_at_most() {
    let cases = [
        Case { agents: 1, each: 16, method: "site/each", size: 500 },
        Case { agents: 1, each: 64, method: "site/each", size: 2_000 },
        Case { agents: 1, each: 16, method: "site/packed", size: 100_000 },
        Case { agents: 16, each: 16, method: "site/packed", size: 2_000 },
    ];
    for case in cases {
        case.measure().await;
    }
}
