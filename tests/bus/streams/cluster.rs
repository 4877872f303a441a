//! Streams in a cluster of three nodes (SPEC.md §25): service and caller are at different nodes, which are killed and come back.
//!
//! The bounds are generous, and the figures are printed: `cargo test --test bus streams::cluster -- --nocapture`

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use sealwire::{BusConfig, CallStream, Client, Credentials, Ctx, Name, Router, RpcError, Sink};
use sealwire_testkit::cluster::Cluster;
use sealwire_testkit::site::{Served, Site, agent_key};
use sealwire_testkit::{SOON, within};

/// When the method learned that it was cancelled.
type Noticed = Arc<Mutex<Option<Instant>>>;

/// The service is at the first node and the caller at the second; whichever loses its node moves to the third.
const SERVICE: usize = 0;
const CALLER: usize = 1;
const OTHER: usize = 2;

struct Stage {
    cluster: Cluster,
    /// The folder with the service's files.
    _site: Site,
    served: Served,
    client: Client,
    noticed: Noticed,
}

impl Stage {
    async fn open() -> Self {
        let cluster = Cluster::start(3).await;
        let urls = |own: usize| [own, OTHER].map(|node| cluster.nodes[node].url());
        let (site, noticed) = (Site::new(&urls(SERVICE).join("\", \"")), Noticed::default());
        let config = std::fs::read_to_string(site.path("sealwire.toml")).unwrap();
        std::fs::write(site.path("sealwire.toml"), config.replace("[keys]", "no_randomize = true\n[keys]")).unwrap();
        let served = site.serve(methods(&noticed)).await;
        let name = |text: &str| Name::new(text).unwrap();
        let bus = BusConfig { urls: urls(CALLER).to_vec(), no_randomize: true, ..BusConfig::default() };
        let credentials = Credentials::new(name("test"), name("ann"), agent_key("ann"), bus);
        let client =
            Client::builder(credentials.token(site.token("ann", &["worker"]))).deadline(Duration::from_secs(300));
        let client = within(SOON, client.connect()).await.unwrap();
        // The nodes take some time to exchange subscriptions.
        within(SOON, async { while client.call::<u64>("site", "site/one", ()).await.is_err() {} }).await;
        Self { cluster, _site: site, served, client, noticed }
    }
}

fn methods(noticed: &Noticed) -> Router<Noticed> {
    Router::new(Arc::clone(noticed))
        .method("site/one", |_: Ctx<Noticed>, (): ()| async { Ok::<_, RpcError>(1) })
        // One frame per item: a frame carries no more than its item.
        .method_with_sink("site/count", |_: Ctx<Noticed>, (to,): (u64,), items: Sink<u64>| async move {
            for number in 1..=to {
                items.send(&number).await?;
            }
            Ok::<_, RpcError>(())
        })
        .method_with_sink("site/wait", |ctx: Ctx<Noticed>, (): (), began: Sink<bool>| async move {
            began.send(&true).await?;
            ctx.cancelled().await;
            *ctx.state().lock().unwrap() = Some(Instant::now());
            Ok::<_, RpcError>(())
        })
}

/// Takes the items up to this number, and returns the longest wait for one.
async fn take(items: &mut CallStream<u64>, last: &mut u64, to: u64) -> Duration {
    let mut longest = Duration::ZERO;
    while *last < to {
        *last += 1;
        let asked = Instant::now();
        let item = within(2 * SOON, items.next()).await.expect("there are more");
        assert_eq!(item.unwrap_or_else(|error| panic!("after {last}: {error}")), *last);
        longest = longest.max(asked.elapsed());
    }
    longest
}

/// SPEC.md §25.5: in order, none lost, and the digest over all of them holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_items_outlive_the_node_of_the_service_and_that_of_the_caller() {
    let mut stage = Stage::open().await;
    // Idempotent: before its first frame it is sent again if the service, paused by a busy machine, refuses it as too old.
    let request = stage.client.request("site").deadline(Duration::from_secs(500)).idempotent();
    let mut items = request.stream::<u64>("site/count", (100_000,));
    let (began, mut last) = (Instant::now(), 0);
    let mut state = stage.served.running.state();
    state.borrow_and_update();
    for (whose, node) in [("service", SERVICE), ("caller", CALLER)] {
        let to = last + 30_000;
        take(&mut items, &mut last, to).await;
        stage.cluster.nodes[node].kill().await;
        // More than was in flight, so the stream goes on without that node.
        let pause = take(&mut items, &mut last, to + 10_000).await;
        println!("the node of the {whose} was killed: the next item came {pause:.1?} later");
        stage.cluster.nodes[node].restart().await;
    }
    take(&mut items, &mut last, 100_000).await;
    assert!(within(SOON, items.next()).await.is_none());
    within(SOON, items.finish::<()>()).await.unwrap_or_else(|error| panic!("{error}"));
    let stats = stage.client.stats();
    println!("100,000 items, {} frames, in {:.1?}", stats.frames_taken, began.elapsed());
    assert_eq!(stats.frames_refused, 0);
    assert!(stats.frames_taken > 100_000 && stats.disconnects >= 1, "{stats:?}");
    assert!(state.has_changed().unwrap(), "the service was disconnected as well");
    stage.served.stop().await.unwrap();
}

/// SPEC.md §25.2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_reaches_the_method_over_two_nodes() {
    let stage = Stage::open().await;
    let mut took = Vec::new();
    for _ in 0..300 {
        let mut parts = stage.client.request("site").idempotent().stream::<bool>("site/wait", ());
        assert!(within(SOON, parts.next()).await.unwrap().unwrap_or_else(|error| panic!("{error}")));
        let asked = Instant::now();
        assert!(within(SOON, parts.cancel()).await, "the service says that it has ended");
        let noticed = stage.noticed.lock().unwrap().take().expect("before it was told to have ended");
        took.push(noticed.saturating_duration_since(asked));
    }
    took.sort();
    let at = |percent: usize| took[took.len() * percent / 100 - 1];
    println!(
        "from the caller's cancel to the method: p50 {:.2?}, p99 {:.2?}, most of 300 {:.2?}",
        at(50),
        at(99),
        at(100)
    );
    // Cancelling waits for no timer; the slower runs may be due to a busy machine.
    assert!(took[0] < Duration::from_millis(50), "{:?}", took[0]);
    stage.served.stop().await.unwrap();
}
