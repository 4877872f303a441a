//! Calls through a gateway after an outage of the broker: each is answered at once or executed, and none is held to its deadline.

use std::collections::BTreeMap;
use std::time::Instant;

use super::*;

/// How long the broker is away, in milliseconds.
const OUTAGES: [u64; 5] = [500, 1_500, 3_000, 6_000, 12_000];

/// Far more than any answer takes, on a machine that stands still, too, and far less than the gateway's `timeout_s`.
const AT_ONCE: Duration = Duration::from_secs(30);

async fn outages(guard: &str) -> BTreeMap<String, u32> {
    let mut server = NatsServer::start().await;
    let site = Site::new(&server.url());
    site.write_config(&format!("guard = \"{guard}\"\n"));
    let served = site.serve(sealwire_testkit::site::methods()).await;
    let shell = before_site(&server, &site, FAST, "timeout_s = 60");
    let gateway = Gateway::spawn(&shell).await;
    let mut seen = BTreeMap::<String, u32>::new();
    for away in OUTAGES {
        let mut executed = 0;
        let mut back = None;
        while executed < 10 {
            let began = Instant::now();
            let answer = gateway.wire().await.ask(post("/rpc/site", "", &call(1, "site/add", "[1,2]"))).await;
            let took = began.elapsed();
            let word = match answer.status {
                200 if answer.json()["result"] == 3 => "executed".to_owned(),
                200 if answer.json()["error"]["code"] == -32014 => {
                    assert!(answer.json()["error"]["data"]["retry_after_ms"].is_u64(), "{}", answer.json());
                    "-32014".to_owned()
                }
                // Nobody listens yet, or the call was under way when the connection was lost.
                status @ (502 | 503) => format!("{status} {}", answer.json()["error"]["code"]),
                status => panic!("{guard} {away}: {status} {} after {took:?}", answer.head()),
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
        println!("{guard} gateway, {away} ms away: again after {:?}", back.unwrap().elapsed());
    }
    drop(gateway);
    served.stop().await.unwrap();
    seen
}

/// SPEC.md §9: ten cases.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_through_a_gateway_is_held_to_its_deadline_after_an_outage() {
    let seen = join_all(["local", "shared"].map(outages)).await;
    println!("{seen:?}");
    assert!(seen.iter().all(|seen| seen.contains_key("-32014")), "the fence was met: {seen:?}");
}
