//! Calls through `sealwire mcp` after an outage of the broker: each is answered at once or executed, and none is held to its deadline.

use std::collections::BTreeMap;
use std::time::Instant;

use futures_util::future::join_all;
use sealwire::{BusConfig, Credentials, Name};
use sealwire_testkit::NatsServer;
use sealwire_testkit::site::{Site, agent_key, methods};

use super::*;

/// How long the broker is away, in milliseconds.
const OUTAGES: [u64; 5] = [500, 1_500, 3_000, 6_000, 12_000];

/// Far more than any answer takes, on a machine that stands still, too, and far less than `--deadline`.
const AT_ONCE: Duration = Duration::from_secs(30);

async fn outages(guard: &str) -> BTreeMap<String, u32> {
    let mut server = NatsServer::start().await;
    let site = Site::new(&server.url());
    site.write_config(&format!("guard = \"{guard}\"\n"));
    let served = site.serve(methods()).await;
    let name = |text| Name::new(text).unwrap();
    let credentials = Credentials::new(name("test"), name("ann"), agent_key("ann"), BusConfig::open(&server.url()));
    let file = site.path("ann.json");
    credentials.token(site.token("ann", &["worker"])).save(&file, false).unwrap();
    let file = file.display().to_string();
    let words = ["mcp", "--creds", &file, "--service", "site", "--deadline", "60s"].map(str::to_owned);
    let mut client = Raw::start(&words, Some("2025-06-18")).await;
    let mut seen = BTreeMap::<String, u32>::new();
    for away in OUTAGES {
        let (mut executed, mut back) = (0, None);
        while executed < 10 {
            let began = Instant::now();
            let answer = client.call("site_count", json!({})).await;
            let took = began.elapsed();
            let text = answer["result"]["content"][0]["text"].as_str().unwrap_or_default().to_owned();
            let word = match answer["result"]["isError"].as_bool() {
                Some(true) => text,
                _ if answer.get("error").is_some() => answer["error"]["message"].to_string(),
                _ => "executed".to_owned(),
            };
            executed = if word == "executed" { executed + 1 } else { 0 };
            assert!(took < AT_ONCE, "{guard} {away} {word}: {took:?}");
            if back.is_some() {
                *seen.entry(word).or_default() += 1;
            }
            if executed == 3 && back.is_none() {
                server.kill().await;
                tokio::time::sleep(Duration::from_millis(away)).await;
                server.restart().await;
                (back, executed) = (Some(Instant::now()), 0);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        println!("{guard} mcp, {away} ms away: again after {:?}", back.unwrap().elapsed());
    }
    client.end().await;
    served.stop().await.unwrap();
    seen
}

/// SPEC.md §9: ten cases.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_of_an_mcp_client_is_held_to_its_deadline_after_an_outage() {
    let seen = join_all(["local", "shared"].map(outages)).await;
    println!("{seen:?}");
    assert!(seen.iter().all(|seen| seen.keys().any(|word| word.contains("overloaded"))), "the fence was met: {seen:?}");
}
