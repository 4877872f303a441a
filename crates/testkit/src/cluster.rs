//! Several nats-servers that form a cluster on the loopback address and can be cut off from each other.
//! Never connects two nodes except through a link that a test can cut.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sealwire::BusConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::slow::carry;
use crate::{NatsServer, SOON, free_port, within};
use sealwire_nats_server::ServerOptions;

/// A cluster with JetStream on every node. When it is dropped, nothing of it remains.
#[derive(Debug)]
pub struct Cluster {
    /// In the order of their names `n0`, `n1`, …
    pub nodes: Vec<NatsServer>,
    links: Vec<Link>,
}

impl Cluster {
    /// Starts `size` nodes, and waits until JetStream has a leader.
    pub async fn start(size: usize) -> Self {
        let mut links = Vec::new();
        let ports: Vec<u16> = (0..size).map(|_| free_port()).collect();
        let mut nodes = Vec::new();
        for node in 0..size {
            let mut routes = Vec::new();
            for other in (0..size).filter(|other| *other != node) {
                let link = Link::open(node, other, ports[other]).await;
                routes.push(format!("nats://127.0.0.1:{}", link.port));
                links.push(link);
            }
            // Nodes tell each other their addresses; this one leads nowhere, so that only the links are used. Clients are told none, so
            // that a client behind a gateway has no other way.
            let config = format!(
                "server_name: n{node}\ncluster {{ name: test, listen: \"127.0.0.1:{}\", advertise: \"127.0.0.1:1\", \
                 no_advertise: true, routes: [{}] }}\n",
                ports[node],
                routes.join(", ")
            );
            nodes.push((config, node));
        }
        let starting = nodes.into_iter().map(|(config, _)| {
            NatsServer::start_with_options(ServerOptions { config: Some(config), ..ServerOptions::default() })
        });
        let nodes = futures_util::future::join_all(starting).await;
        let cluster = Self { nodes, links };
        cluster.settle().await;
        cluster
    }

    /// The nodes' addresses, `first` before the others.
    pub fn bus(&self, first: usize) -> BusConfig {
        let size = self.nodes.len();
        let urls = (0..size).map(|step| self.nodes[(first + step) % size].url()).collect();
        BusConfig { urls, no_randomize: true, ..BusConfig::default() }
    }

    /// The address of one node alone.
    pub fn bus_of(&self, node: usize) -> BusConfig {
        BusConfig::open(&self.nodes[node].url())
    }

    /// A way to one node alone, which a test can cut.
    pub async fn proxy(&self, node: usize) -> (BusConfig, Link) {
        let link = Link::open(node, node, self.nodes[node].port()).await;
        (BusConfig::open(&format!("nats://127.0.0.1:{}", link.port)), link)
    }

    /// Cuts a node off from the other nodes, not from its clients, or connects it again.
    pub fn isolate(&self, node: usize, cut: bool) {
        for link in self.links.iter().filter(|link| link.from == node || link.to == node) {
            link.cut(cut);
        }
    }

    /// From now on, what these two nodes say to each other takes this long.
    pub fn slow_down(&self, one: usize, other: usize, delay: Duration) {
        let between = |link: &&Link| (link.from, link.to) == (one, other) || (link.from, link.to) == (other, one);
        let delay_ms = u64::try_from(delay.as_millis()).unwrap();
        self.links.iter().filter(between).for_each(|link| link.delay_ms.store(delay_ms, Ordering::Relaxed));
    }

    /// The node that leads this stream; `None` while there is none.
    pub async fn leader_of(&self, stream: &str, ask: usize) -> Option<usize> {
        let client = self.nodes[ask].client().await;
        let info = client.request(format!("$JS.API.STREAM.INFO.{stream}"), "".into());
        let info = tokio::time::timeout(Duration::from_secs(1), info).await.ok()?.ok()?;
        let info: serde_json::Value = serde_json::from_slice(&info.payload).ok()?;
        info["cluster"]["leader"].as_str()?.strip_prefix('n')?.parse().ok()
    }

    async fn settle(&self) {
        let client = self.nodes[0].client().await;
        let settled = async {
            loop {
                let answer = client.request("$JS.API.INFO", "".into());
                if let Ok(Ok(answer)) = tokio::time::timeout(Duration::from_millis(500), answer).await
                    && !String::from_utf8_lossy(&answer.payload).contains("\"error\"")
                {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        within(2 * SOON, settled).await;
    }
}

/// What a node or a client dials to reach a node.
#[derive(Debug)]
pub struct Link {
    from: usize,
    to: usize,
    port: u16,
    cut: watch::Sender<bool>,
    delay_ms: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Link {
    /// Ends what passes through and lets nothing new through, or lets it through again.
    pub fn cut(&self, cut: bool) {
        self.cut.send_replace(cut);
    }

    async fn open(from: usize, to: usize, target: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (cut, is_cut) = watch::channel(false);
        let delay_ms = Arc::<AtomicU64>::default();
        let delay = Arc::clone(&delay_ms);
        let task = tokio::spawn(async move {
            let is_cut = Arc::new(is_cut);
            while let Ok((near, _)) = listener.accept().await {
                let (mut is_cut, delay_ms) = ((*is_cut).clone(), Arc::clone(&delay));
                tokio::spawn(async move {
                    let carried = async {
                        let Ok(far) = TcpStream::connect((Ipv4Addr::LOCALHOST, target)).await else { return };
                        // Both ends write small messages and wait for the answer; a link must not hold them back.
                        if near.set_nodelay(true).and_then(|()| far.set_nodelay(true)).is_err() {
                            return;
                        }
                        let (near_in, near_out) = near.into_split();
                        let (far_in, far_out) = far.into_split();
                        tokio::select! {
                            () = carry(near_in, far_out, Arc::clone(&delay_ms)) => {}
                            () = carry(far_in, near_out, delay_ms) => {}
                        }
                    };
                    tokio::select! {
                        () = carried => {}
                        _ = is_cut.wait_for(|cut| *cut) => {}
                    }
                });
            }
        });
        Self { from, to, port, cut, delay_ms, task }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}
