//! A broker that hangs without a word: its connections stay open, and nothing comes through them any more. So it is when a
//! machine loses its power or its network.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

mod support;

use std::time::{Duration, Instant};

use sealwire::client::{Client, Credentials};
use sealwire::service::State;
use sealwire::{BusConfig, Name};
use support::cluster::Cluster;
use support::site::{Site, agent_key, methods};
use support::{SOON, within};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_that_hangs_is_left_by_service_and_client() {
    let mut cluster = Cluster::start(2).await;
    // Both know of this node only, and hear of the other from it: so this is where all of their connections are.
    let url = cluster.nodes[0].url();
    let site = Site::new(&url);
    let served = site.serve(methods()).await;
    let name = |text| Name::new(text).unwrap();
    let credentials = Credentials::new(name("test"), name("ann"), agent_key("ann"), BusConfig::open(&url))
        .token(site.token("ann", &["worker"]));
    let client = within(SOON, Client::connect(credentials)).await.unwrap();
    let add = || client.request("site").deadline(Duration::from_millis(500)).call::<i64>("site/add", (1, 2));
    assert_eq!(within(SOON, add()).await.unwrap(), 3);

    cluster.nodes[0].pause().await;
    let paused = Instant::now();
    let again = async {
        while add().await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within(Duration::from_secs(20), served.reaches(|state| *state != State::Ready)).await;
    // Three pings of two seconds without an answer, and the time to connect anew.
    within(Duration::from_secs(40), again).await;
    println!("answered again {:.1} s after the node hung", paused.elapsed().as_secs_f64());
    served.ready().await;
    cluster.nodes[0].resume().await;
    served.stop().await.unwrap();
}
