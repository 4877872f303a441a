//! Calls for which nobody waits, over a real nats-server (SPEC.md §6.5): callers that leave, replicas that die or stop.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use sealwire::call::{TaskMode, TaskState};
use sealwire::{ClientError, Ctx, Idempotent, Router, RpcError};
use sealwire_testkit::site::Site;
use sealwire_testkit::{NatsServer, SOON, within};

use super::runs::{self, Runs, connect, ready};
use super::streams::memory::Process;

const HOUR: Duration = Duration::from_secs(3600);

/// A method that takes as many milliseconds as it is told.
fn methods(runs: &Runs) -> Router<Runs> {
    let work = |ctx: Ctx<Runs>, (name, ms): (String, u64)| async move {
        ctx.state().lock().unwrap().push(name.clone());
        ctx.progress(0.5, Some(1.0), Some("at it"));
        tokio::time::sleep(Duration::from_millis(ms)).await;
        match &*name {
            "fails" => Err(RpcError::application(7, "it fails")),
            "large" => Ok("x".repeat(300_000)),
            _ => Ok(name),
        }
    };
    let declared = Idempotent::keep(HOUR);
    Router::new(Arc::clone(runs))
        .method("site/work", work)
        .idempotent("site/work", declared.as_task(HOUR))
        .method("site/only", work)
        .idempotent("site/only", declared.only_as_task(HOUR))
        .method("site/again", work)
        .idempotent("site/again", declared.rerun_if_lost().as_task(HOUR))
        .method("site/plain", work)
}

fn task_data(error: &ClientError) -> Option<(i32, String)> {
    let error = error.remote()?;
    Some((error.code(), error.data().map_or_else(String::new, |data| data.get().to_owned())))
}

/// SPEC.md §6.5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_outlives_its_caller_and_is_found_by_another_process_of_it() {
    let server = NatsServer::start().await;
    let (site, runs) = (Site::new(&server.url()), Runs::default());
    let served = site.serve(methods(&runs)).await;
    let first = connect(&site, &server, "ann").await;
    let begun = first.request("site").idempotency_key("k").detach("site/work", ("well", 800)).await.unwrap();
    assert_eq!((begun.service(), begun.method(), begun.key()), ("site", "site/work", "k"));
    let failing = first.detach("site", "site/only", ("fails", 0)).await.unwrap();
    let large = first.detach("site", "site/work", ("large", 0)).await.unwrap();
    let keys = [failing.key().to_owned(), large.key().to_owned()];
    assert_ne!(keys[0], keys[1]);
    first.close().await;

    let second = connect(&site, &server, "ann").await;
    let found = second.task("site", "site/work", "k").unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&told);
    let waited = found.wait_for(SOON, move |status| seen.lock().unwrap().push(status.progress.clone()));
    let status = within(2 * SOON, waited).await.unwrap();
    assert_eq!((status.state, status.result::<String>().unwrap()), (TaskState::Completed, "well".to_owned()));
    assert!(status.expires > status.ended && status.ended >= status.started && status.started.is_some(), "{status:?}");
    assert!(told.lock().unwrap().iter().flatten().any(|progress| progress.message.as_deref() == Some("at it")));
    let status = within(SOON, second.task("site", "site/only", &keys[0]).unwrap().wait(SOON)).await.unwrap();
    assert_eq!(status.state, TaskState::Failed);
    let error = status.result::<String>().unwrap_err();
    assert!(matches!(&error, ClientError::Remote(error) if error.code() == 7), "{error}");
    // More than fits one message.
    let status = within(SOON, second.task("site", "site/work", &keys[1]).unwrap().wait(SOON)).await.unwrap();
    assert_eq!(status.result::<String>().map(|text| text.len()).unwrap(), 300_000);

    // Begun again, it is the same task; and nobody else's.
    let again = second.request("site").idempotency_key("k").detach("site/work", ("well", 800)).await.unwrap();
    assert_eq!(again.status().await.unwrap().state, TaskState::Completed);
    let bob = connect(&site, &server, "bob").await;
    let status = bob.task("site", "site/work", "k").unwrap().wait(SOON).await.unwrap();
    assert_eq!(status.state, TaskState::Absent);
    assert!(matches!(status.result::<String>(), Err(ClientError::Task(TaskState::Absent))));
    assert_eq!(runs.lock().unwrap().len(), 3);

    // What cannot be is told before anything runs.
    let error = second.detach("site", "site/plain", ("no", 0)).await.unwrap_err();
    assert_eq!(task_data(&error), Some((-32600, r#"{"task":"forbidden"}"#.to_owned())));
    let error = second.call::<String>("site", "site/only", ("no", 0)).await.unwrap_err();
    assert_eq!(task_data(&error), Some((-32600, r#"{"task":"required"}"#.to_owned())));
    assert!(second.task("site", "site/work", "k\n").is_err() && second.task("site", "no such", "k").is_err());
    let methods = second.discover("site").await.unwrap().methods;
    let modes: Vec<_> = methods.iter().map(|method| method.task).collect();
    assert_eq!(modes, [Some(TaskMode::Optional), Some(TaskMode::Required), None, Some(TaskMode::Optional)]);
    assert_eq!(runs.lock().unwrap().len(), 3);
    let cancelled = second.detach("site", "site/work", ("long", 60_000)).await.unwrap();
    within(SOON, cancelled.cancel()).await.unwrap();
    within(SOON, cancelled.wait(SOON)).await.unwrap();
    let ended: Vec<_> = served.service.counters().tasks().collect();
    assert_eq!(ended, [("completed", 2), ("failed", 1), ("cancelled", 1), ("unknown", 0)]);
    served.stop().await.unwrap();
}

/// A replica as a process: prints how many runs have begun. Not a test of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by the test below as a process"]
async fn replica() {
    runs::replica(methods).await;
}

/// SPEC.md §6.5: its caller learns that nobody knows, 12 s after its lease. Sent again, it runs only if its method allows that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_whose_replica_died_is_run_again_only_if_declared_so() {
    let server = NatsServer::start().await;
    let (site, runs) = (Site::new(&server.url()), Runs::default());
    site.write_config("guard = \"shared\"\nanswer_within_ms = 1000\n[limits]\ntask_lease_s = 5\n");
    let mut first = Process::start(&site, "tasks::replica").await;
    let client = connect(&site, &server, "ann").await;
    let begin = |method: &'static str| client.request("site").idempotency_key("k").detach(method, (method, 3_600_000));
    let (task, other) = (begin("site/work").await.unwrap(), begin("site/again").await.unwrap());
    first.hears("running 2.").await;
    first.child.kill().await.unwrap();
    let second = site.start(methods(&runs)).await;
    ready(&second).await;
    for task in [&task, &other] {
        let status = within(2 * SOON, task.wait(2 * SOON)).await.unwrap();
        assert_eq!(status.state, TaskState::Unknown, "{task:?}");
        assert!(matches!(status.result::<String>(), Err(error) if error.is_outcome_unknown()));
    }
    assert_eq!(begin("site/work").await.unwrap().status().await.unwrap().state, TaskState::Unknown);
    assert!(runs.lock().unwrap().is_empty());
    assert_eq!(begin("site/again").await.unwrap().status().await.unwrap().state, TaskState::Working);
    other.cancel().await.unwrap();
    assert_eq!(within(SOON, other.wait(SOON)).await.unwrap().state, TaskState::Cancelled);
    // Its caller did not want it: that is no loss.
    assert_eq!(begin("site/again").await.unwrap().status().await.unwrap().state, TaskState::Cancelled);
    assert_eq!(*runs.lock().unwrap(), ["site/again"]);
    second.stop().await.unwrap();
}

/// SPEC.md §6.5, docs/reliability.md.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_stops_lets_its_tasks_end_and_stops_the_others() {
    let server = NatsServer::start().await;
    let (site, runs) = (Site::new(&server.url()), Runs::default());
    site.write_config("guard = \"shared\"\nanswer_within_ms = 1000\n[limits]\ndrain_s = 10\n");
    let first = site.start(methods(&runs)).await;
    ready(&first).await;
    let client = connect(&site, &server, "ann").await;
    let begin =
        |key: &str, ms: u64| client.request("site").idempotency_key(key).detach("site/work", (key.to_owned(), ms));
    let (short, long) = (begin("short", 2_000).await.unwrap(), begin("long", 3_600_000).await.unwrap());
    let second = site.start(methods(&runs)).await;
    ready(&second).await;
    first.stop().await.unwrap();
    let status = within(SOON, short.wait(SOON)).await.unwrap();
    assert_eq!(status.result::<String>().unwrap(), "short");
    // At once: nobody has to wait for its lease.
    assert_eq!(long.status().await.unwrap().state, TaskState::Unknown);
    assert_eq!(*runs.lock().unwrap(), ["short", "long"]);
    second.stop().await.unwrap();
}
