//! What signed streams cost compared with bare messages of the same size: frames a second, and processor time per frame.
//! `cargo bench --bench streams` measures; under `cargo test` the same code runs once, small, to see that everything arrives.
//!
//! Bare is async-nats: one connection publishes a payload with one header of the size of a frame's, and another counts what its
//! subscription receives. Every number is a median over rounds; a round takes all cases in turn, so that a busy moment of the machine falls
//! on all of them. Sender and receiver are threads of this process, the broker is a process beside it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "a measurement")]

use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use futures_util::StreamExt as _;
use sealwire::{BusConfig, Client, Credentials, Ctx, Name, Router, RpcError, Sink};
use sealwire_testkit::NatsServer;
use sealwire_testkit::site::{Site, agent_key};
use tokio::runtime::{Builder, Runtime};

/// How much is measured.
struct Plan {
    rounds: usize,
    frames: usize,
}

const MEASURE: Plan = Plan { rounds: 9, frames: 60_000 };
const TRY: Plan = Plan { rounds: 1, frames: 200 };
/// Bytes of an item: a few words, and a page.
const SIZES: [usize; 2] = [100, 2_000];
/// What a JSON-RPC response puts around an item.
const AROUND: usize = r#"{"jsonrpc":"2.0","result":"","id":1}"#.len();
/// The length of a frame's header value, for this service and this agent.
const HEADER: usize = 420;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Case {
    Bare,
    /// A frame for each item, with this window.
    Frames(u64),
    /// Items that share frames, as a method's stream sends them.
    Packed,
}

const CASES: [Case; 5] = [Case::Bare, Case::Frames(32), Case::Frames(64), Case::Frames(128), Case::Packed];

impl Case {
    fn name(self) -> String {
        match self {
            Self::Bare => "bare messages".to_owned(),
            Self::Frames(window) => format!("one item a frame, window {window}"),
            Self::Packed => "items as fast as they come, window 32".to_owned(),
        }
    }
}

/// One run: the time, and the processor time of sender, receiver and broker, in microseconds for each item.
#[derive(Clone, Copy)]
struct Took {
    all: f64,
    sender: f64,
    receiver: f64,
    broker: f64,
}

fn main() {
    // Cargo passes `--bench` when it measures, and nothing when it tests.
    let measuring = std::env::args().any(|argument| argument == "--bench");
    let plan = if measuring { MEASURE } else { TRY };
    let stage = Stage::open();
    for size in SIZES {
        let mut rounds = vec![Vec::new(); CASES.len()];
        for _ in 0..plan.rounds {
            for (case, found) in CASES.iter().zip(&mut rounds) {
                found.push(stage.run(*case, plan.frames, size));
            }
        }
        if measuring {
            print(&plan, size, &rounds);
        }
    }
    stage.close();
}

fn print(plan: &Plan, size: usize, rounds: &[Vec<Took>]) {
    println!("\n{} times {} items of {size} bytes, medians\n", plan.rounds, plan.frames);
    println!("| | items a second | of bare | sender µs | receiver µs | broker µs | all µs | of bare |");
    println!("|---|---|---|---|---|---|---|---|");
    for (case, found) in CASES.iter().zip(rounds) {
        let by = |part: fn(&Took) -> f64| median(found.iter().map(part));
        let cpu = |took: &Took| took.sender + took.receiver + took.broker;
        // In the same round.
        let of =
            |part: fn(&Took) -> f64| median(found.iter().zip(&rounds[0]).map(|(one, bare)| part(one) / part(bare)));
        println!(
            "| {} | {:.0} | {:.2} | {:.1} | {:.1} | {:.1} | {:.1} | {:.2} |",
            case.name(),
            1e6 / by(|took| took.all),
            1.0 / of(|took| took.all),
            by(|took| took.sender),
            by(|took| took.receiver),
            by(|took| took.broker),
            by(cpu),
            of(cpu),
        );
    }
}

struct Stage {
    server: NatsServer,
    /// The folder that the service looks at.
    site: Site,
    served: sealwire_testkit::site::Served,
    client: Client,
    publisher: async_nats::Client,
    subscriber: async_nats::Client,
    sending: Runtime,
    receiving: Runtime,
}

fn runtime(name: &str) -> Runtime {
    Builder::new_multi_thread().worker_threads(2).thread_name(name).enable_all().build().unwrap()
}

impl Stage {
    fn open() -> Self {
        let (sending, receiving) = (runtime("sender"), runtime("receiver"));
        let server = receiving.block_on(NatsServer::start());
        let site = Site::new(&server.url());
        let served = sending.block_on(site.serve(methods()));
        let credentials = Credentials::new(
            Name::new("test").unwrap(),
            Name::new("ann").unwrap(),
            agent_key("ann"),
            BusConfig::open(&server.url()),
        );
        let client = Client::connect(credentials.token(site.token("ann", &["worker"])));
        let client = receiving.block_on(client).unwrap();
        let publisher = sending.block_on(server.client());
        // Room for everything: a bare subscription drops what it has no room for, and nothing slows its publisher down.
        let options = async_nats::ConnectOptions::new().subscription_capacity(MEASURE.frames + 1);
        let subscriber = receiving.block_on(options.connect(server.url())).unwrap();
        Self { server, site, served, client, publisher, subscriber, sending, receiving }
    }

    fn run(&self, case: Case, items: usize, size: usize) -> Took {
        let cpu =
            || [cpu(std::process::id(), "sender"), cpu(std::process::id(), "receiver"), cpu(self.server.pid(), "")];
        let (before, started) = (cpu(), Instant::now());
        match case {
            Case::Bare => self.bare(items, size),
            Case::Frames(window) => self.stream("site/each", items, size, window),
            Case::Packed => self.stream("site/packed", items, size, 32),
        }
        let all = started.elapsed();
        let after = cpu();
        let each = |time: Duration| time.as_secs_f64() * 1e6 / items as f64;
        let used = |which: usize| each(after[which].saturating_sub(before[which]));
        Took { all: each(all), sender: used(0), receiver: used(1), broker: used(2) }
    }

    fn bare(&self, messages: usize, size: usize) {
        let subject = self.subscriber.new_inbox();
        let mut received = self.receiving.block_on(async {
            let received = self.subscriber.subscribe(subject.clone()).await.unwrap();
            sealwire_testkit::settle(&self.subscriber).await;
            received
        });
        let publisher = self.publisher.clone();
        let sending = self.sending.spawn(async move {
            let (subject, payload) =
                (async_nats::Subject::from(subject), bytes::Bytes::from("x".repeat(AROUND + size)));
            let value = "x".repeat(HEADER);
            for _ in 0..messages {
                let mut headers = HeaderMap::new();
                headers.insert("Authentication-Info", value.as_str());
                publisher.publish_with_headers(subject.clone(), headers, payload.clone()).await.unwrap();
            }
            publisher.flush().await.unwrap();
        });
        // On a thread of the runtime, as the others.
        let receiving = self.receiving.spawn(async move {
            for _ in 0..messages {
                received.next().await.unwrap();
            }
        });
        self.receiving.block_on(async {
            sending.await.unwrap();
            receiving.await.unwrap();
        });
    }

    fn stream(&self, method: &'static str, items: usize, size: usize, window: u64) {
        let client = self.client.clone();
        let receiving = self.receiving.spawn(async move {
            // Idempotent: if the machine is so busy that the service pauses, it refuses what was sent before.
            let request = client.request("site").deadline(Duration::from_secs(60)).window(window).idempotent();
            let mut parts = request.stream::<String>(method, (items, size));
            let mut count = 0;
            while let Some(item) = parts.next().await {
                assert_eq!(item.unwrap_or_else(|error| panic!("{error}")).len(), size);
                count += 1;
            }
            parts.finish::<()>().await.unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(count, items);
        });
        self.receiving.block_on(receiving).unwrap();
    }

    fn close(self) {
        let Self { server, site, served, client, sending, receiving, .. } = self;
        receiving.block_on(client.close());
        sending.block_on(served.stop()).unwrap();
        drop((server, site));
    }
}

fn methods() -> Router<()> {
    Router::new(())
        .method_with_sink("site/each", |_: Ctx, (items, size): (usize, usize), sink: Sink<String>| async move {
            let item = "x".repeat(size);
            for _ in 0..items {
                sink.send(&item).await?;
            }
            Ok::<_, RpcError>(())
        })
        .stream("site/packed", |_: Ctx, (items, size): (usize, usize)| async move {
            let item = "x".repeat(size);
            Ok::<_, RpcError>(futures_util::stream::iter((0..items).map(move |_| Ok::<_, RpcError>(item.clone()))))
        })
}

/// Processor time so far of a process' threads whose names begin with `name`.
fn cpu(pid: u32, name: &str) -> Duration {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Duration::ZERO };
    let ns = threads.filter_map(|thread| {
        let thread = thread.ok()?.path();
        let named = std::fs::read_to_string(thread.join("comm")).ok()?.starts_with(name);
        let spent = std::fs::read_to_string(thread.join("schedstat")).ok()?;
        named.then(|| spent.split(' ').next()?.parse::<u64>().ok())?
    });
    Duration::from_nanos(ns.sum())
}

fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
