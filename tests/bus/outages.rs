//! Calls after an outage of the broker: each is answered at once or executed, and none is held to its deadline (SPEC.md §9).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use sealwire::errors::code;
use sealwire::{BusConfig, Client, Credentials, Name};
use sealwire_testkit::site::{Site, agent_key, methods};
use sealwire_testkit::{NatsServer, SOON, within};

/// How long the broker is away, in milliseconds.
const OUTAGES: [u64; 5] = [500, 1_500, 3_000, 6_000, 12_000];

/// Far more than any answer takes on a machine that stands still for a while, and far less than the deadline of the calls.
const AT_ONCE: Duration = Duration::from_secs(60);
const DEADLINE: Duration = Duration::from_secs(500);

/// With a guard, an outage after the other; the clock of the caller is off by so many seconds.
async fn outages(guard: &str, is_idempotent: bool) -> BTreeMap<String, u32> {
    let mut server = NatsServer::start().await;
    let site = Site::new(&server.url());
    site.write_config(&format!("guard = \"{guard}\"\n"));
    let served = site.serve(methods()).await;
    let name = |text: &str| Name::new(text).unwrap();
    let bus = BusConfig::open(&server.url());
    let credentials = Credentials::new(name("test"), name("ann"), agent_key("ann"), bus);
    let client = Client::builder(credentials.token(site.token("ann", &["worker"]))).deadline(DEADLINE);
    let client = within(SOON, client.connect()).await.unwrap();
    let call = async || {
        let request = client.request("site");
        let request = if is_idempotent { request.idempotent() } else { request };
        let began = Instant::now();
        (request.call::<i64>("site/add", (1, 2)).await, began.elapsed())
    };
    let mut seen = BTreeMap::<String, u32>::new();
    for away in OUTAGES {
        let ready = async {
            while call().await.0.is_err() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        within(2 * SOON, ready).await;
        server.kill().await;
        tokio::time::sleep(Duration::from_millis(away)).await;
        server.restart().await;
        let back = Instant::now();
        // Calls begin all the time, each by itself, until one after the other is executed for a while.
        let mut calls = Vec::new();
        let mut executed = 0;
        while executed < 20 {
            let (answer, took) = call().await;
            let word = match &answer {
                Ok(3) => "executed".to_owned(),
                Ok(other) => panic!("{other}"),
                Err(error) => match error.remote() {
                    Some(error) if error.code() == code::OVERLOADED => {
                        assert!(error.data().is_some_and(|data| data.get().contains("retry_after_ms")), "{error}");
                        "-32014".to_owned()
                    }
                    Some(error) => panic!("{guard} {away}: {error} after {took:?}"),
                    None => format!("{:?}", error.kind()),
                },
            };
            executed = if answer.is_ok() { executed + 1 } else { 0 };
            // With `idempotent`, the client itself waits for as long as it is told.
            let limit = if is_idempotent { 2 * AT_ONCE } else { AT_ONCE };
            assert!(took < limit, "{guard} {away} {word}: {took:?}");
            *seen.entry(word).or_default() += 1;
            calls.push(took);
            assert!(back.elapsed() < 2 * SOON, "{guard} {away}: not again after {:?}: {seen:?}", back.elapsed());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let slowest = calls.iter().max().unwrap();
        println!(
            "{guard} idempotent {is_idempotent}, {away} ms away: again after {:?}, slowest {slowest:?}",
            back.elapsed()
        );
    }
    client.close().await;
    served.stop().await.unwrap();
    seen
}

/// SPEC.md §9: twenty cases.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_is_held_to_its_deadline_after_an_outage() {
    let all = [("local", false), ("local", true), ("shared", false), ("shared", true)];
    let seen = join_all(all.map(|(guard, is_idempotent)| outages(guard, is_idempotent))).await;
    for ((guard, is_idempotent), seen) in all.iter().zip(&seen) {
        println!("{guard} idempotent {is_idempotent}: {seen:?}");
        assert!(*is_idempotent || seen.contains_key("-32014"), "{guard}: the fence was met");
        assert!(!is_idempotent || seen.keys().all(|word| word == "executed"), "{guard}: {seen:?}");
    }
}
