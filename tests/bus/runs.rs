//! Replicas that write down which methods have begun, in this process or as processes that can be killed, and their callers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use sealwire::serve::State;
use sealwire::{BusConfig, Client, Config, Credentials, Name, Router};
use sealwire_testkit::site::{Served, Site, agent_key};
use sealwire_testkit::{NatsServer, SOON, within};

use super::streams::memory::CONFIG;

/// What has begun, in order.
pub(crate) type Runs = Arc<Mutex<Vec<String>>>;

pub(crate) async fn connect(site: &Site, server: &NatsServer, agent: &str) -> Client {
    let name = |text: &str| Name::new(text).unwrap();
    let credentials = Credentials::new(name("test"), name(agent), agent_key(agent), BusConfig::open(&server.url()));
    let client = Client::builder(credentials.token(site.token(agent, &["worker"]))).deadline(2 * SOON);
    within(SOON, client.connect()).await.unwrap()
}

pub(crate) async fn ready(served: &Served) {
    let mut state = served.running.state();
    drop(within(3 * SOON, state.wait_for(|state| *state == State::Ready)).await.unwrap());
}

/// A replica as a process: prints how many runs have begun. Does nothing if it is not one.
pub(crate) async fn replica(methods: impl FnOnce(&Runs) -> Router<Runs>) {
    let Ok(config) = std::env::var(CONFIG) else { return };
    let config = Config::load(&config).unwrap_or_else(|error| panic!("{error}"));
    let (builder, options) = config.builder().await.unwrap_or_else(|error| panic!("{error}"));
    let runs = Runs::default();
    let service = builder.methods(methods(&runs)).build().unwrap_or_else(|error| panic!("{error}"));
    let served = Served::spawn(service, config.nats.clone(), options);
    ready(&served).await;
    println!("\nready");
    // Ends when the test that started it ends or kills it.
    let told = tokio::task::spawn_blocking(|| std::io::stdin().lines().map_while(Result::ok).count());
    while !told.is_finished() {
        println!("\nrunning {}.", runs.lock().unwrap().len());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    served.kill().await;
}
