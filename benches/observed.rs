//! What watching a service costs it: metrics, the record and traces, each beside a service that nobody watches.
//! `cargo bench --features metrics,otel --bench observed` measures; under `cargo test` the same code runs once, small, to see that what
//! should be written is.
//!
//! Every figure is a median over rounds of the ratio to the unwatched service in the same round; a round takes all services in turn, each
//! time beginning with another, so that a busy moment of the machine falls on all of them. Services and client are threads of this process,
//! the broker is a process beside it. All services answer the same calls, with as many in flight.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "a measurement")]

use std::path::Path;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use prometheus_client::encoding::prometheus_text;
use sealwire::internal::export::{TraceOptions, WantedTraces};
use sealwire::metrics::{Registry, Report as _};
use sealwire::traces::Traces;
use sealwire::{BusConfig, Client, Credentials, Ctx, Name, Router, RpcError};
use sealwire_testkit::NatsServer;
use sealwire_testkit::collector::Collector;
use sealwire_testkit::site::{Served, Site, agent_key};
use tokio::runtime::{Builder, Runtime};

/// How much is measured.
struct Plan {
    rounds: usize,
    calls: usize,
}

const MEASURE: Plan = Plan { rounds: 15, calls: 30_000 };
const TRY: Plan = Plan { rounds: 1, calls: 300 };
const IN_FLIGHT: usize = 64;
/// Of the calls, these are traced.
const SAMPLE: f64 = 0.01;

/// How a service is watched.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    /// Of the service, and of its threads.
    service: &'static str,
    metrics: bool,
    record: bool,
    traces: bool,
}

const NOBODY: Case = Case { name: "nothing", service: "plain", metrics: false, record: false, traces: false };
const CASES: [Case; 6] = [
    NOBODY,
    Case { name: "metrics", service: "meter", metrics: true, ..NOBODY },
    Case { name: "the record", service: "keep", record: true, ..NOBODY },
    Case { name: "traces of one call in a hundred", service: "trace", traces: true, ..NOBODY },
    // How much of a difference is chance.
    Case { name: "nothing, once more", service: "again", ..NOBODY },
    Case { name: "all three", service: "all", metrics: true, record: true, traces: true },
];

/// One run: the time, and the processor time of the service, in microseconds for each call.
#[derive(Clone, Copy)]
struct Took {
    all: f64,
    service: f64,
}

fn main() {
    // Cargo passes `--bench` when it measures, and nothing when it tests.
    let measuring = std::env::args().any(|argument| argument == "--bench");
    let plan = if measuring { MEASURE } else { TRY };
    let (calling, collecting) = (runtime("caller"), runtime("collector"));
    let server = calling.block_on(NatsServer::start());
    let collector = collecting.block_on(Collector::start());
    let watched = CASES.map(|case| Watched::start(case, &server.url(), &collector.url(), &calling));
    if measuring {
        // Caches, allocator and the processor's clock are as they will be.
        for one in &watched {
            one.run(&calling, plan.calls);
        }
    }
    let mut rounds: [Vec<Took>; CASES.len()] = Default::default();
    for round in 0..plan.rounds {
        for turn in 0..CASES.len() {
            let which = (round + turn) % CASES.len();
            rounds[which].push(watched[which].run(&calling, plan.calls));
        }
    }
    let calls = plan.calls * (plan.rounds + usize::from(measuring));
    watched.into_iter().for_each(|one| one.stop(&calling, calls));
    if measuring {
        print(&plan, &rounds);
    } else {
        // One call in a hundred is a matter of chance among so few; the requests of a collector that got none are not.
        assert!(collector.received().len() <= 2);
    }
}

fn print(plan: &Plan, rounds: &[Vec<Took>; CASES.len()]) {
    println!("{} rounds of {} calls, {IN_FLIGHT} in flight\n", plan.rounds, plan.calls);
    println!("| written | calls/s | of nothing (lowest to highest) | service µs | of nothing (lowest to highest) |");
    println!("|---|---|---|---|---|");
    for (case, found) in CASES.iter().zip(rounds) {
        let of = |part: fn(&Took) -> f64| {
            let mut ratios: Vec<f64> =
                found.iter().zip(&rounds[0]).map(|(one, plain)| part(one) / part(plain)).collect();
            ratios.sort_by(f64::total_cmp);
            format!("{:.3} ({:.2} to {:.2})", median(&ratios), ratios[0], ratios[ratios.len() - 1])
        };
        let by = |part: fn(&Took) -> f64| median(&found.iter().map(part).collect::<Vec<_>>());
        println!(
            "| {} | {:.0} | {} | {:.2} | {} |",
            case.name,
            1e6 / by(|took| took.all),
            of(|took| 1.0 / took.all),
            by(|took| took.service),
            of(|took| took.service),
        );
    }
}

/// A service, and who calls it.
struct Watched {
    case: Case,
    /// The folder that the service looks at.
    site: Site,
    /// On a disk, as the records of services are.
    record: tempfile::TempDir,
    serving: Runtime,
    served: Served,
    registry: Registry,
    traces: Option<Traces>,
    client: Client,
}

impl Watched {
    fn start(case: Case, broker: &str, collector: &str, calling: &Runtime) -> Self {
        let site = Site::of_service(broker, case.service, &["ann"]);
        let record = tempfile::tempdir().unwrap();
        let most = "per_agent = 900000\n[limits]\nagent_per_second = 1000000000\nagent_burst = 1000000000\n";
        let folder = case.record.then(|| format!("[record]\nfolder = {:?}\n", record.path()));
        site.write_config(&[most, &folder.unwrap_or_default()].concat());

        let serving = runtime(case.service);
        let mut registry = Registry::default();
        let (served, traces) = serving.block_on(async {
            let config = site.config();
            let (builder, options) = config.builder().await.unwrap();
            let service = builder.methods(methods()).build().unwrap();
            if case.metrics {
                service.report_to(&mut registry);
            }
            let traces = case.traces.then(|| {
                let wanted = WantedTraces {
                    endpoint: Some(collector),
                    sample: SAMPLE,
                    service: case.service,
                    namespace: Some("test"),
                    ..Default::default()
                };
                Traces::start(TraceOptions::new(&wanted, &|_| None, &|_| Err("no files".to_owned())).unwrap().unwrap())
            });
            traces.iter().for_each(|traces| service.trace(traces.tracer()));
            let served = Served::spawn(service, config.nats.clone(), options);
            served.ready().await;
            (served, traces)
        });
        let client = calling.block_on(async {
            let name = |name| Name::new(name).unwrap();
            let credentials = Credentials::new(name("test"), name("ann"), agent_key("ann"), BusConfig::open(broker));
            Client::connect(credentials.token(site.token("ann", &["worker"]))).await.unwrap()
        });
        Self { case, site, record, serving, served, registry, traces, client }
    }

    fn run(&self, calling: &Runtime, calls: usize) -> Took {
        let (before, started) = (cpu(self.case), Instant::now());
        let (client, service) = (self.client.clone(), self.case.service);
        let all = calling.spawn(async move {
            let call = |number: usize| {
                let client = &client;
                async move {
                    // Idempotent: a service that a busy machine has kept waiting refuses what was sent before.
                    let request = client.request(service).deadline(Duration::from_secs(60)).idempotent();
                    let sum: usize =
                        request.call("site/add", (number, 1)).await.unwrap_or_else(|error| panic!("{error}"));
                    assert_eq!(sum, number + 1);
                }
            };
            futures_util::stream::iter(0..calls).map(call).buffer_unordered(IN_FLIGHT).for_each(|()| async {}).await;
        });
        calling.block_on(all).unwrap();
        if self.case.metrics {
            // Some fifteen times as often as Prometheus asks by default.
            let mut written = String::new();
            self.serving.block_on(async { prometheus_text::encode(&mut written, &self.registry) }).unwrap();
            assert!(written.contains("site/add"), "{written}");
        }
        let (took, used) = (started.elapsed(), cpu(self.case).saturating_sub(before));
        let each = |time: Duration| time.as_secs_f64() * 1e6 / calls as f64;
        Took { all: each(took), service: each(used) }
    }

    /// Ends it, and sees that it wrote what it should have.
    fn stop(self, calling: &Runtime, calls: usize) {
        let Self { case, site, record, serving, served, traces, client, .. } = self;
        calling.block_on(client.close());
        serving.block_on(served.stop()).unwrap();
        if let Some(traces) = traces {
            serving.block_on(traces.close());
        }
        // One of each decision, and one of each outcome.
        let lines = lines(record.path());
        assert!(
            if case.record { lines >= 2 * calls } else { lines == 0 },
            "{}: {lines} lines of {calls} calls",
            case.name
        );
        drop(site);
    }
}

fn lines(folder: &Path) -> usize {
    let files = folder.read_dir().unwrap().map(|file| file.unwrap().path()).filter(|path| path.is_file());
    files.map(|path| std::fs::read(path).unwrap().iter().filter(|byte| **byte == b'\n').count()).sum()
}

fn methods() -> Router<()> {
    Router::new(()).method("site/add", |_: Ctx, (a, b): (usize, usize)| async move { Ok::<_, RpcError>(a + b) })
}

fn runtime(name: &str) -> Runtime {
    Builder::new_multi_thread().worker_threads(2).thread_name(name).enable_all().build().unwrap()
}

/// Processor time so far of the threads of a service, and of those that write records.
fn cpu(case: Case) -> Duration {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let ns = threads.filter_map(|thread| {
        let thread = thread.ok()?.path();
        let name = std::fs::read_to_string(thread.join("comm")).ok()?;
        let named = name.trim_end() == case.service || (case.record && name.trim_end() == "record");
        let spent = std::fs::read_to_string(thread.join("schedstat")).ok()?;
        named.then(|| spent.split(' ').next()?.parse::<u64>().ok())?
    });
    Duration::from_nanos(ns.sum())
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
