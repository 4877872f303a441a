//! A service whose connections lead to different brokers of a cluster, as behind an address that spreads connections.
//! A broker that has not heard of a caller's inbox yet drops what is published there, and tells nobody.

use std::net::Ipv4Addr;
use std::time::Duration;

use sealwire_testkit::cluster::Cluster;
use sealwire_testkit::site::{Site, methods};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

use super::runs::connect;

/// Longer than a call may take here.
const BEHIND: Duration = Duration::from_secs(3);
const DEADLINE: Duration = Duration::from_secs(2);

/// An address behind which the first connection leads to the first of these ports, and so on; all later ones to the last.
async fn spread(ports: Vec<u16>) -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let url = format!("nats://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let last = *ports.last().unwrap();
        let mut ports = ports.into_iter();
        while let Ok((mut near, _)) = listener.accept().await {
            let port = ports.next().unwrap_or(last);
            tokio::spawn(async move {
                let mut far = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
                drop(copy_bidirectional(&mut near, &mut far).await);
            });
        }
    });
    url
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_reach_a_caller_of_whom_another_broker_has_not_heard_yet() {
    let cluster = Cluster::start(3).await;
    // Answers are published on the connection that is made first.
    let ports = [2, 1].map(|node: usize| cluster.nodes[node].port()).to_vec();
    let site = Site::new(&spread(ports).await);
    let served = site.serve(methods()).await;
    served.ready().await;
    // Broker 0 knows the service by now.
    let early = connect(&site, &cluster.nodes[0], "ann").await;
    assert_eq!(early.request("site").deadline(DEADLINE).call::<i64>("site/add", (1, 2)).await.unwrap(), 3);

    cluster.slow_down(0, 2, BEHIND);
    let late = connect(&site, &cluster.nodes[0], "ann").await;
    assert_eq!(late.request("site").deadline(DEADLINE).call::<i64>("site/add", (3, 4)).await.unwrap(), 7);
    served.stop().await.unwrap();
}
