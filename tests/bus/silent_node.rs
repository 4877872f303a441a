//! A broker that hangs without notice: its connections stay open, but nothing comes through them any more, as when a machine
//! loses power or its network.

use std::time::{Duration, Instant};

use sealwire::serve::State;
use sealwire::{BusConfig, Client, Credentials, Name};
use sealwire_testkit::cluster::Cluster;
use sealwire_testkit::site::{Site, agent_key, methods};
use sealwire_testkit::{SOON, within};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_that_hangs_is_left_by_service_and_client() {
    let mut cluster = Cluster::start(2).await;
    let urls: Vec<String> = cluster.nodes.iter().map(sealwire_testkit::NatsServer::url).collect();
    // While the other node is away, all connections go to this one.
    cluster.nodes[1].kill().await;
    let site = Site::new(&urls.join("\", \""));
    let served = site.serve(methods()).await;
    let connect = async |urls: &[String]| {
        let name = |text| Name::new(text).unwrap();
        let bus = BusConfig { urls: urls.to_vec(), ..BusConfig::default() };
        let credentials = Credentials::new(name("test"), name("ann"), agent_key("ann"), bus);
        let client = Client::connect(credentials.token(site.token("ann", &["worker"])));
        within(SOON, client).await.unwrap()
    };
    let client = connect(&urls).await;
    let add = async |client: &Client| {
        client.request("site").deadline(Duration::from_millis(500)).call::<i64>("site/add", (1, 2)).await
    };
    let answered = async |client: &Client| {
        let again = async {
            while add(client).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        within(2 * SOON, again).await;
    };
    answered(&client).await;
    // A caller at the other node is answered: the nodes are a cluster again.
    cluster.nodes[1].restart().await;
    answered(&connect(&urls[1..]).await).await;

    served.ready().await;
    let mut state = served.running.state();
    assert_eq!(*state.borrow_and_update(), State::Ready);
    cluster.nodes[0].pause().await;
    let paused = Instant::now();
    // Three unanswered pings at intervals of two seconds, and the time to reconnect.
    answered(&client).await;
    println!("answered again {:.1} s after the node hung", paused.elapsed().as_secs_f64());
    assert!(state.has_changed().unwrap(), "it was not ready for a while, however short");
    served.ready().await;
    cluster.nodes[0].resume().await;
    served.stop().await.unwrap();
}
