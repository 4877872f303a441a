//! Limits that an operator has set in the configuration file, as callers meet them.

use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use sealwire::errors::code;
use sealwire::{ClientError, Ctx, Router, RpcError};
use sealwire_testkit::site::Site;
use sealwire_testkit::{NatsServer, SOON, within};

use super::streams::connect;

fn methods() -> Router<()> {
    Router::new(())
        .stream("site/endless", |_: Ctx, (): ()| async move { Ok::<_, RpcError>(stream::repeat(Ok(1)).then(slowly)) })
        .method("site/text", |_: Ctx, (n,): (usize,)| async move { Ok::<_, RpcError>("x".repeat(n)) })
        .method("site/pay", |_: Ctx, (amount,): (u64,)| async move { Ok::<_, RpcError>(amount) })
}

async fn slowly(item: Result<u64, RpcError>) -> Result<u64, RpcError> {
    tokio::time::sleep(Duration::from_millis(20)).await;
    item
}

/// SPEC.md §15.1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bounds_of_streams_are_those_of_the_configuration() {
    let server = NatsServer::start().await;
    let site = Site::new(&server.url());
    site.write_config("[limits]\nagent_streams = 2\nstreams = 3\nstream_response_bytes = 300000\n");
    let served = site.serve(methods()).await;
    let (ann, bob) = (connect(&site, &server, "ann").await, connect(&site, &server, "bob").await);
    let mut open = Vec::new();
    for client in [&ann, &ann, &bob] {
        let mut items = client.stream::<u64>("site", "site/endless", ());
        assert_eq!(within(SOON, items.next()).await.unwrap().unwrap(), 1);
        open.push(items);
    }
    // First the agent's limit is reached, then the replica's.
    for client in [&ann, &bob] {
        let error = within(SOON, client.stream::<u64>("site", "site/endless", ()).finish::<()>()).await.unwrap_err();
        assert_eq!(error.remote().map(RpcError::code), Some(code::QUOTA_EXCEEDED), "{error}");
    }
    for items in open {
        assert!(within(SOON, items.cancel()).await);
    }
    let code_of = |error: &ClientError| error.remote().map(RpcError::code);
    let text = async |n: usize| {
        loop {
            let text = bob.stream::<()>("site", "site/text", (n,)).finish::<String>().await;
            // A place is given back only after the last frame was sent.
            match text {
                Err(error) if code_of(&error) == Some(code::QUOTA_EXCEEDED) => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                text => return text,
            }
        }
    };
    assert_eq!(within(SOON, text(290_000)).await.unwrap().len(), 290_000);
    let error = within(SOON, text(310_000)).await.unwrap_err();
    assert_eq!(error.remote().map(RpcError::code), Some(code::TOO_LARGE), "{error}");
    drop(served);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn room_for_outcomes_is_that_of_the_configuration() {
    let server = NatsServer::start().await;
    let site = Site::new(&server.url());
    site.write_config("guard = \"shared\"\noutcomes = 64\noutcome_bytes = 2097152\n");
    let served = site.serve(methods().idempotent("site/pay", Duration::from_secs(60))).await;
    let jetstream = async_nats::jetstream::new(server.client().await);
    let found = async {
        loop {
            let streams: Vec<_> = jetstream.streams().try_collect().await.unwrap();
            if let Some(found) = streams.into_iter().find(|stream| stream.config.name.starts_with("RO_test_site_")) {
                return found.config;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let found = within(SOON, found).await;
    // Twice as many as replicas claim: see `auth::replay::shared::outcome_fit`.
    assert_eq!((found.max_messages, found.max_bytes), (128, 2_097_152));
    drop(served);
}
