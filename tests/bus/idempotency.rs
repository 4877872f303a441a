//! Calls with an idempotency key over a real nats-server (SPEC.md §6.1): a replica that dies while it runs one, and callers that
//! take frames.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sealwire::{ClientError, Ctx, Idempotent, Router, RpcError};
use sealwire_testkit::site::Site;
use sealwire_testkit::{NatsServer, SOON, within};
use serde_json::Value;

use super::runs::{self, Runs, connect, ready};
use super::streams::memory::Process;

const HOUR: Duration = Duration::from_secs(3600);

/// Methods that never return, or that do.
fn methods(runs: &Runs, for_ever: bool) -> Router<Runs> {
    let pay = move |ctx: Ctx<Runs>, (amount,): (u64,)| async move {
        ctx.state().lock().unwrap().push(ctx.method().to_owned());
        if for_ever {
            std::future::pending::<()>().await;
        }
        Ok::<_, RpcError>(amount)
    };
    let slowly = |ctx: Ctx<Runs>, (ms,): (u64,)| async move {
        ctx.state().lock().unwrap().push(ctx.method().to_owned());
        ctx.notify("site/began", &[ms]).await?;
        tokio::time::sleep(Duration::from_millis(ms)).await;
        Ok::<_, RpcError>("x".repeat(300_000))
    };
    Router::new(Arc::clone(runs))
        .method("site/pay", pay)
        .idempotent("site/pay", HOUR)
        .method("site/pay-again", pay)
        .idempotent("site/pay-again", Idempotent::keep(HOUR).rerun_if_lost())
        .method("site/slowly", slowly)
        .idempotent("site/slowly", HOUR)
}

/// A replica whose methods never return: prints how many runs have begun. Not a test of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by the test below as a process"]
async fn replica() {
    runs::replica(|runs| methods(runs, true)).await;
}

/// The reason why a call is not run: the member `idempotency`.
fn conflict(error: &ClientError) -> Option<String> {
    let error = error.remote().filter(|error| error.code() == -32017)?;
    let data: Value = serde_json::from_str(error.data()?.get()).unwrap();
    data["idempotency"].as_str().map(str::to_owned)
}

/// SPEC.md §6.1: the caller is told, and the call runs again only if it was declared so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_whose_replica_died_is_not_run_again_unless_declared_so() {
    let server = NatsServer::start().await;
    let (site, runs) = (Site::new(&server.url()), Runs::default());
    site.write_config("guard = \"shared\"\nanswer_within_ms = 1000\n");
    let mut first = Process::start(&site, "idempotency::replica").await;
    let client = connect(&site, &server, "ann").await;
    let call = |method: &'static str, deadline_s| {
        let request = client.request("site").deadline(Duration::from_secs(deadline_s)).idempotency_key("k");
        async move { request.call::<u64>(method, (5,)).await }
    };
    let calls = ["site/pay", "site/pay-again"].map(|method| tokio::spawn(call(method, 6)));
    first.hears("running 2.").await;
    first.child.kill().await.unwrap();
    let second = site.start(methods(&runs, false)).await;
    ready(&second).await;
    for call in calls {
        let error = within(SOON, call).await.unwrap().unwrap_err();
        assert!(error.is_outcome_unknown(), "{error:?}");
    }
    // The claim says that the call runs, until some time after its deadline: the other replica cannot know better.
    let began = Instant::now();
    let settled = async |method| {
        loop {
            match call(method, 5).await {
                Err(error) if conflict(&error).as_deref() == Some("running") => {}
                other => return other,
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    };
    let error = within(Duration::from_secs(60), settled("site/pay")).await.unwrap_err();
    println!("no longer said to be running after {:.1?}", began.elapsed());
    assert_eq!(conflict(&error).as_deref(), Some("unknown"), "{error:?}");
    let again = within(Duration::from_secs(60), settled("site/pay-again")).await;
    assert_eq!(again.unwrap_or_else(|error| panic!("{error}")), 5);
    assert_eq!(*runs.lock().unwrap(), ["site/pay-again"], "at the second one");
    second.stop().await.unwrap();
}

/// SPEC.md §6.1, SPEC.md §25.1: items sent on the way are not part of the outcome.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keyed_call_with_a_window_runs_once_and_ends_with_the_stored_outcome() {
    let server = NatsServer::start().await;
    let (site, runs, notes) = (Site::new(&server.url()), Runs::default(), Arc::new(Mutex::new(0)));
    let served = site.serve(methods(&runs, false)).await;
    let client = connect(&site, &server, "ann").await;
    let slowly = || {
        let notes = Arc::clone(&notes);
        let request = client.request("site").idempotency_key("k");
        request.on_notification(move |_| *notes.lock().unwrap() += 1).stream::<()>("site/slowly", (400,))
    };
    // Above the limit of answers, so that it comes in pieces each time; the first call opens its stream earlier.
    for _ in 0..3 {
        let result = within(SOON, slowly().finish::<String>()).await;
        assert_eq!(result.unwrap_or_else(|error| panic!("{error}")).len(), 300_000);
    }
    // While it runs, a repetition with a window is told so, too.
    let other = || client.request("site").idempotency_key("other").stream::<()>("site/slowly", (6_000,));
    let running = tokio::spawn(other().finish::<String>());
    within(SOON, async {
        while runs.lock().unwrap().len() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let error = within(SOON, other().finish::<String>()).await.unwrap_err();
    assert_eq!(conflict(&error).as_deref(), Some("running"), "{error:?}");
    assert!(within(3 * SOON, running).await.unwrap().is_ok());
    assert_eq!((runs.lock().unwrap().len(), *notes.lock().unwrap()), (2, 1));
    served.stop().await.unwrap();
}
