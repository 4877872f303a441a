//! Brokers that die, hang or announce that they are about to go.

use std::time::Duration;

use sealwire::BusConfig;
use sealwire::internal::nats::PublishError;

use super::{Event, Options, eventually, open, open_with, queue, subject, up};
use sealwire_testkit::cluster::Cluster;
use sealwire_testkit::{NatsServer, SOON, settle, within};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_restarts_is_waited_for_and_subscribed_to_again() {
    let mut server = NatsServer::start().await;
    let (connection, heard) = open(&BusConfig::open(&server.url()), vec![subject("a")]).await.unwrap();
    let before = up(&connection);
    server.kill().await;
    eventually("the loss is noticed", || connection.session().is_none()).await;
    assert!(!before.is_up());
    // The session ends first, and then the handler is told.
    eventually("the loss is told", || heard.disconnected()).await;
    // Messages published while the connection is down are not sent later.
    assert_eq!(before.publish("a", "", b"", b"old").await, Err(PublishError::Gone));
    assert!(!within(SOON, before.flush()).await);
    server.restart().await;
    eventually("it is up again", || heard.has(|event| *event == Event::Connected)).await;
    let session = up(&connection);
    session.publish("a", "", b"", b"new").await.unwrap();
    eventually("the subscription is back", || heard.count() == 1).await;
    assert_eq!(heard.payloads(), ["new"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_that_is_forbidden_later_is_tried_again_until_it_is_permitted() {
    let users = |subject: &str| {
        format!(
            "authorization {{ users = [ {{ user: a, password: p, permissions: {{ subscribe: [\"{subject}\"] }} }} ] }}"
        )
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("users.conf");
    std::fs::write(&file, users("a")).unwrap();
    // The path is relative to the folder of the server's own file, which is a scratch folder beside this one.
    let name = format!("../{}/users.conf", folder.path().file_name().unwrap().to_string_lossy());
    let server = NatsServer::start_with(&format!("include {name:?}")).await;
    let bus = BusConfig {
        user: Some("a".into()),
        password: Some(zeroize::Zeroizing::new("p".into())),
        ..BusConfig::open(&server.url())
    };
    let (connection, heard) = open(&bus, vec![subject("a")]).await.unwrap();
    std::fs::write(&file, users("b")).unwrap();
    server.signal("HUP").await;
    eventually("it is told", || heard.has(|event| matches!(event, Event::Failed(why) if why.contains("ermission"))))
        .await;
    assert!(connection.session().is_none());
    std::fs::write(&file, users("a")).unwrap();
    server.signal("HUP").await;
    eventually("it is back", || connection.session().is_some()).await;
    let client = async_nats::ConnectOptions::with_user_and_password("a".into(), "p".into());
    let client = client.connect(server.url()).await.unwrap();
    client.publish("a", "x".into()).await.unwrap();
    eventually("it hears", || heard.count() == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_hangs_is_left_for_another() {
    let mut cluster = Cluster::start(2).await;
    let options = Options { ping_every: Duration::from_millis(200), ..Options::new("test", vec![subject("a")]) };
    let (connection, heard) = open_with(&cluster.bus(0), options).await.unwrap();
    cluster.nodes[0].pause().await;
    eventually("it is left", || heard.has(|event| *event == Event::Connected)).await;
    assert!(heard.has(|event| matches!(event, Event::Disconnected(why) if why.contains("says nothing"))));
    let client = cluster.nodes[1].client().await;
    client.publish("a", "x".into()).await.unwrap();
    eventually("it hears the other one", || heard.count() == 1).await;
    assert!(connection.session().is_some());
    cluster.nodes[0].resume().await;
}

/// Numbered messages to one subscriber whose broker announces that it is about to go: each is delivered exactly once, and
/// the subscriber is never away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_about_to_go_is_left_without_losing_a_message() {
    let cluster = Cluster::start(2).await;
    let (connection, heard) = open(&cluster.bus(0), vec![queue("a")]).await.unwrap();
    let before = up(&connection);
    let client = cluster.nodes[1].client().await;
    let inbox = client.new_inbox();
    let mut nobody = client.subscribe(inbox.clone()).await.unwrap();
    // The other node has heard of the subscription when a message arrives.
    let heard_there = async {
        while heard.count() == 0 {
            client.publish("a", "".into()).await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        settle(&client).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    within(SOON, heard_there).await;
    heard.messages.lock().unwrap().clear();
    let (mut sent, mut told) = (0, None);
    let moving = async {
        while told.is_none_or(|told: std::time::Instant| told.elapsed() < Duration::from_secs(3)) {
            for _ in 0..20 {
                client.publish_with_reply("a", inbox.clone(), sent.to_string().into()).await.unwrap();
                sent += 1;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
            if told.is_none() && sent > 500 {
                cluster.nodes[0].signal("USR2").await;
                told = Some(std::time::Instant::now());
            }
        }
    };
    within(2 * SOON, moving).await;
    eventually("all of them", || heard.count() >= sent).await;
    assert!(heard.has(|event| *event == Event::Moved) && !heard.disconnected());
    assert!(!std::sync::Arc::ptr_eq(&before, &up(&connection)));
    let mut numbers: Vec<usize> = heard.payloads().iter().map(|text| text.parse().unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..sent).collect::<Vec<_>>());
    // And no publisher was ever told that nobody listens.
    settle(&client).await;
    assert!(futures_util::FutureExt::now_or_never(futures_util::StreamExt::next(&mut nobody)).is_none());
    eventually("the old one is left", || !before.is_up()).await;
}

#[tokio::test]
async fn dropping_it_ends_everything() {
    let server = NatsServer::start().await;
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let (connection, _) = open(&BusConfig::open(&server.url()), vec![subject("a")]).await.unwrap();
    let session = up(&connection);
    drop(connection);
    // Some that were there before may have ended.
    eventually("no task is left", || tasks() <= before).await;
    assert!(!session.is_up());
    assert_eq!(session.publish("a", "", b"", b"x").await, Err(PublishError::Gone));
    assert!(!within(SOON, session.flush()).await);
}
