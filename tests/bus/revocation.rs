//! How long a revocation takes to apply, from the moment its file is saved, with the service as shipped.

use std::time::{Duration, Instant};

use sealwire_testkit::NatsServer;
use sealwire_testkit::site::{Answer, Caller, Served, Site, methods, sum, write};

const ROUNDS: usize = 5;

/// Calls again and again, with a `pause`, until the answer is `wanted`. Returns how long that took since `since`.
async fn until(caller: &Caller, wanted: impl Fn(&Answer) -> bool, pause: Duration, since: Instant) -> Duration {
    loop {
        if wanted(&caller.add().await) {
            return since.elapsed();
        }
        assert!(since.elapsed() < Duration::from_secs(120), "not within two minutes");
        tokio::time::sleep(pause).await;
    }
}

/// A subject in the denylist, then the key removed from the key ring, five times each. The bound is generous: two checks of
/// the file, half a second apart, and a busy machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_saved_revocation_holds_within_seconds() {
    let server = NatsServer::start().await;
    let site = Site::new(&server.url());
    let deny = site.path("denylist.json");
    write(&deny, "{}");
    let config = std::fs::read_to_string(site.path("sealwire.toml")).unwrap();
    write(&site.path("sealwire.toml"), &config.replace("[[tokens", "denylist = \"denylist.json\"\n[[tokens"));
    let config = site.config();
    let (builder, options) = config.builder().await.unwrap();
    let service = builder.methods(methods()).build().unwrap();
    let served = Served::spawn(service, config.nats.clone(), options);
    served.ready().await;
    let (ann, bob) = (site.caller("ann").await, site.caller("bob").await);
    // Less often while calls are refused: above the rate of hints there is silence.
    let (often, seldom) = (Duration::from_millis(5), Duration::from_millis(200));
    until(&ann, |answer| *answer == sum(), seldom, Instant::now()).await;

    let refused = |answer: &Answer| matches!(answer, Answer::Hint(text) if text.contains("-32010"));
    let [mut by_subject, mut by_key] = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        write(&deny, r#"{"subjects": [{"sub": "ann", "before": 4000000000}]}"#);
        by_subject.push(until(&ann, refused, often, Instant::now()).await);
        write(&deny, "{}");
        until(&ann, |answer| *answer == sum(), seldom, Instant::now()).await;
        site.write_ring(&["bob"]);
        by_key.push(until(&ann, refused, often, Instant::now()).await);
        site.write_ring(&["ann", "bob"]);
        until(&ann, |answer| *answer == sum(), seldom, Instant::now()).await;
    }
    assert_eq!(bob.add().await, sum());
    for (what, mut took) in [("subject in the denylist", by_subject), ("key out of the ring", by_key)] {
        took.sort();
        println!("{what}: refused after {:?} / {:?} / {:?}", took[0], took[ROUNDS / 2], took[ROUNDS - 1]);
        assert!(took[ROUNDS - 1] < Duration::from_secs(120), "{what}: {took:?}");
    }
    served.stop().await.unwrap();
}
