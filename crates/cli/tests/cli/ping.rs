//! `sealwire ping` of a service that refuses a file as it is now.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::call::Bench;
use crate::shell::Ran;

/// Pings until the answer is this one.
fn until(bench: &Bench, wanted: impl Fn(&Ran, &Value) -> bool) -> Ran {
    let began = Instant::now();
    loop {
        let ran = bench.shell.run_args(&["ping", "--config", "ping.toml", "--json", "--within", "3s"]);
        let found = serde_json::from_str(ran.stdout.lines().next().unwrap_or_default()).unwrap_or_default();
        if wanted(&ran, &found) {
            return ran;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{ran:?}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// docs/reliability.md: which files make a replica not ready.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_refuses_what_takes_keys_and_tokens_back_is_not_ready_and_says_so() {
    let bench = Bench::start_with("", |router| router).await;
    // The command reads the service's key as well: from another file, so that only the service refuses it.
    bench.shell.write("copy.json", &bench.shell.read("demo.service-key.json"));
    bench.shell.set_mode("copy.json", 0o600);
    let config = bench.shell.read("demo.toml").replace("demo.service-key.json", "copy.json");
    bench.shell.write("ping.toml", &config);
    for (file, kind, is_ready) in [
        ("demo.ring.json", "key ring", false),
        ("demo.service-key.json", "service key", false),
        ("jwks.json", "token keys", false),
        ("denylist.json", "denylist", false),
        ("policies/demo.toml", "policy", true),
    ] {
        let good = bench.shell.read(file);
        let code = |is_ready: bool| if is_ready { 0 } else { 20 };
        until(&bench, |ran, found| ran.code == 0 && found["replicas"][0]["refused"] == json!([]));
        bench.shell.write(file, "{ not this");
        let ran = until(&bench, |_, found| found["replicas"][0]["refused"] == json!([kind]));
        assert_eq!(ran.code, code(is_ready), "{kind}: {ran:?}");
        let found: Value = serde_json::from_str(ran.stdout.lines().next().unwrap()).unwrap();
        assert_eq!(found["ready"], json!(u8::from(is_ready)), "{kind}");
        assert!(is_ready || ran.error()["help"].as_str().unwrap().contains(kind), "{kind}: {ran:?}");
        let told = format!("REFUSES the present {kind}");
        let began = Instant::now();
        // A replica may miss a question.
        let ran = loop {
            let ran = bench.shell.run_args(&["ping", "--config", "ping.toml", "--within", "3s"]);
            if ran.stdout.contains(&told) {
                break ran;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "{ran:?}");
        };
        assert_eq!(ran.code, code(is_ready), "{ran:?}");
        bench.shell.write(file, &good);
    }
    until(&bench, |ran, found| ran.code == 0 && found["ready"] == 1);
    bench.end().await;
}
