//! Calls and batches that the program stops: what the service says about them, and what the error is if it says nothing.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt as _;
use sealwire::errors::{ErrorKind, code};
use sealwire::{ClientError, RpcError};
use sealwire_testkit::site::Site;
use sealwire_testkit::{NatsServer, SOON, settle, within};
use serde_json::json;
use tokio::sync::oneshot;

use super::eventually;
use super::streams::{Stage, connect};

/// A signal, and the means to give it.
fn signal() -> (oneshot::Sender<()>, impl Future<Output = ()> + Send + 'static) {
    let (give, given) = oneshot::channel();
    (give, async move { drop(given.await) })
}

/// SPEC.md §25.4: any call may be cancelled, also one without `win`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_stopped_ends_with_the_word_of_the_service() {
    let stage = Stage::open().await;
    let runs = || stage.done.runs.load(Ordering::SeqCst);
    let ended = || stage.done.dropped.load(Ordering::SeqCst);
    let (stop, stopped) = signal();
    let request = || stage.client.request("site").deadline(Duration::from_secs(500));
    let call = tokio::spawn(request().cancel_on(stopped).call::<u64>("site/wait", (400_000,)));
    eventually("it runs", || runs() == 1).await;
    drop(stop);
    let error = within(SOON, call).await.unwrap().unwrap_err();
    assert_eq!(error.remote().map(RpcError::code), Some(code::CANCELLED), "{error}");
    assert_eq!(ended(), 1, "the method has ended by then");

    // A signal that never comes has no effect, nor has one that comes too late.
    let (stop, stopped) = signal();
    let call = request().cancel_on(stopped).call::<u64>("site/wait", (1,));
    assert_eq!(within(SOON, call).await.unwrap(), 1);
    drop(stop);

    // All entries of a batch are cancelled.
    let (stop, stopped) = signal();
    let mut batch = request().cancel_on(stopped).batch();
    let calls = [batch.call("site/wait", (400_000,)), batch.call("site/wait", (400_000,))];
    let sent = tokio::spawn(batch.send());
    eventually("both run", || runs() == 4).await;
    drop(stop);
    match within(SOON, sent).await.unwrap() {
        Ok(answers) => {
            for call in calls {
                assert_eq!(answers.error(call).map(RpcError::code), Some(code::CANCELLED));
            }
        }
        Err(error) => assert_eq!(error.remote().map(RpcError::code), Some(code::CANCELLED), "{error}"),
    }
    eventually("both have ended", || ended() == 4).await;
}

/// SPEC.md §25.4: the end need not be `-32016`, and the frames before it are not lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_being_cancelled_goes_on_to_the_end_that_the_service_gives_it() {
    let stage = Stage::open().await;
    let request = || stage.client.request("site").deadline(Duration::from_secs(500));
    let mut numbers = request().stream::<u64>("site/count", json!({ "to": 100_000, "pause_ms": 5 }));
    assert_eq!(within(SOON, numbers.next()).await.unwrap().unwrap(), 1);
    let cancelling = numbers.cancelling();
    let rest = async {
        for wanted in 2.. {
            match numbers.next().await.unwrap() {
                Ok(number) => assert_eq!(number, wanted),
                Err(error) => return error,
            }
        }
        unreachable!("it ends")
    };
    let error = tokio::select! {
        error = rest => error,
        () = cancelling => panic!("the service has not confirmed it"),
    };
    assert_eq!(error.remote().map(RpcError::code), Some(code::CANCELLED), "{error}");
    eventually("the method has ended", || stage.done.dropped.load(Ordering::SeqCst) == 1).await;

    // A method that finished first gives its result.
    let stream = request().stream::<u64>("site/wait", (1,));
    eventually("it has finished", || stage.has_finished()).await;
    let cancelling = stream.cancelling();
    let result = tokio::select! {
        result = stream.finish::<u64>() => result,
        () = cancelling => panic!("the service has said nothing"),
    };
    assert_eq!(result.unwrap(), 1);
}

/// SPEC.md §25.4.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_nobody_waits_for_is_cancelled_unless_it_is_detached() {
    let stage = Stage::open().await;
    let runs = || stage.done.runs.load(Ordering::SeqCst);
    let ended = || stage.done.dropped.load(Ordering::SeqCst);
    let sent = |request: sealwire::RequestBuilder, ms: u64| {
        let mut batch = request.batch();
        batch.call("site/wait", (ms,));
        batch.call("site/wait", (ms,));
        tokio::spawn(batch.send())
    };
    let dropped = sent(stage.client.request("site").deadline(Duration::from_secs(500)), 400_000);
    eventually("both run", || runs() == 2).await;
    dropped.abort();
    eventually("both are cancelled", || ended() == 2).await;
    assert_eq!(stage.client.stats().pending, 0);
    let detached = sent(stage.client.request("site").detached(), 300);
    eventually("both run", || runs() == 4).await;
    detached.abort();
    eventually("both have ended", || ended() == 4).await;
    assert!(stage.has_finished(), "by themselves");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_stopped_says_when_nothing_is_known_of_it() {
    let mut server = NatsServer::start().await;
    let site = Site::new(&server.url());
    let client = connect(&site, &server, "ann").await;
    // A stand-in takes the call, and never answers.
    let bus = server.client().await;
    let mut requests = bus.subscribe("rpc.v1.site.ann").await.unwrap();
    let control = bus.subscribe("rpc.v1-ctl.site.ann.all.*").await.unwrap();
    settle(&bus).await;
    let (stop, stopped) = signal();
    let request = client.request("site").deadline(Duration::from_secs(60)).idempotent().cancel_on(stopped);
    let call = tokio::spawn(request.call::<u64>("site/wait", (1,)));
    within(SOON, requests.next()).await.unwrap();
    drop(stop);
    let error = within(SOON, call).await.unwrap().unwrap_err();
    assert!(matches!(error, ClientError::Cancelled { sent: true }), "{error:?}");
    assert!(error.is_outcome_unknown() && error.kind() == ErrorKind::Cancelled);
    let told = within(SOON, control.take(3).collect::<Vec<_>>()).await;
    assert!(told.iter().all(|message| message.reply.is_none()), "control asks for no reply");

    server.kill().await;
    eventually("the client knows", || !client.stats().connected).await;
    let (stop, stopped) = signal();
    let request = client.request("site").deadline(Duration::from_secs(60)).cancel_on(stopped);
    let call = tokio::spawn(request.call::<u64>("site/wait", (1,)));
    drop(stop);
    let error = within(SOON, call).await.unwrap().unwrap_err();
    assert!(matches!(error, ClientError::Cancelled { sent: false }), "{error:?}");
    assert!(!error.is_outcome_unknown());
}
