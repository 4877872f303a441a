//! The traffic of the connection: whatever peers send, of any size and at any rate.

use std::sync::Arc;
use std::time::Duration;

use sealwire::BusConfig;
use sealwire::internal::nats::{Connection, Handler, PublishError};

use super::{Heard, Options, eventually, eventually_within, open, open_with, queue, subject, up};
use sealwire_testkit::raw::{RawConnection, poison_headers};
use sealwire_testkit::{NatsServer, SOON, settle, within};

#[tokio::test]
async fn every_header_block_is_handed_over_as_it_came() {
    let server = NatsServer::start().await;
    let (connection, heard) = open(&BusConfig::open(&server.url()), vec![subject("a")]).await.unwrap();
    let mut raw = RawConnection::connect(&server.url(), None).await;
    for (name, block) in poison_headers() {
        raw.hpub_raw("a", Some("r"), block, name.as_bytes()).await;
    }
    raw.publish("a", None, b"plain").await;
    eventually("all of them", || heard.count() == poison_headers().len() + 1).await;
    let messages = heard.messages.lock().unwrap();
    for (message, (name, block)) in messages.iter().zip(poison_headers()) {
        assert_eq!(message.headers.as_ref(), block, "{name}");
        assert_eq!((message.payload.as_ref(), message.reply.as_deref()), (name.as_bytes(), Some("r")));
    }
    assert!(messages.last().unwrap().headers.is_empty());
    assert!(up(&connection).is_up() && !heard.disconnected());
}

/// The longest lines that a broker accepts from a peer, and subjects that are not text.
#[tokio::test]
async fn strange_subjects_reach_the_handler_and_end_nothing() {
    let server = NatsServer::start().await;
    let (connection, heard) = open(&BusConfig::open(&server.url()), vec![subject("a.>")]).await.unwrap();
    let mut raw = RawConnection::connect(&server.url(), None).await;
    let long = format!("a.{}", "x".repeat(2_000));
    raw.publish(&long, Some(&"r".repeat(2_000)), b"1").await;
    raw.send(b"PUB a.\xff\xfe\x01 1\r\n2\r\n").await;
    raw.send("PUB a.\u{a0}\u{2028} 1\r\n3\r\n".as_bytes()).await;
    assert!(raw.flush().await.is_empty());
    eventually("all three", || heard.count() == 3).await;
    assert_eq!(heard.payloads(), ["1", "2", "3"]);
    assert!(within(SOON, up(&connection).flush()).await && !heard.disconnected());
}

#[tokio::test]
async fn oversized_messages_are_told_without_being_held_and_end_nothing() {
    let server = NatsServer::start_with("max_payload: 8388608").await;
    let options = Options { max_message: 1_000, ..Options::new("test", vec![subject("a")]) };
    let (connection, heard) = open_with(&BusConfig::open(&server.url()), options).await.unwrap();
    let mut raw = RawConnection::connect(&server.url(), None).await;
    for size in [1_000, 1_001, 8_388_608, 0] {
        raw.publish("a", Some("r"), &vec![b'\r'; size]).await;
    }
    eventually("all of them", || heard.count() == 4).await;
    let messages = heard.messages.lock().unwrap();
    let seen: Vec<_> = messages.iter().map(|message| (message.oversized, message.payload.len())).collect();
    assert_eq!(seen, [(false, 1_000), (true, 0), (true, 0), (false, 0)]);
    assert!(messages.iter().all(|message| message.reply.as_deref() == Some("r")));
    assert!(up(&connection).is_up());
}

#[tokio::test]
async fn what_the_broker_would_not_take_is_not_sent() {
    let server = NatsServer::start_with("max_payload: 1000").await;
    let (connection, heard) = open(&BusConfig::open(&server.url()), vec![subject("a")]).await.unwrap();
    let session = up(&connection);
    let header = b"NATS/1.0\r\n\r\n";
    assert_eq!(session.publish("a", "", b"", &[b'x'; 1_001]).await, Err(PublishError::TooLarge { limit: 1_000 }));
    assert_eq!(session.publish("a", "", header, &[b'x'; 989]).await, Err(PublishError::TooLarge { limit: 1_000 }));
    for broken in ["", "a b", "a\r\nPUB b 0\r\n", "ä", &"x".repeat(2_001)] {
        assert_eq!(session.publish(broken, "", b"", b"").await, Err(PublishError::Subject), "{broken}");
        if !broken.is_empty() {
            assert_eq!(session.publish("a", broken, b"", b"").await, Err(PublishError::Subject), "{broken}");
        }
    }
    session.publish("a", "r", header, &[b'x'; 988]).await.unwrap();
    assert!(within(SOON, session.flush()).await);
    eventually("the one that fits", || heard.count() == 1).await;
    assert_eq!(heard.messages.lock().unwrap()[0].headers.as_ref(), header);
}

/// The broker sends this status only to a subscription of the connection that published.
#[tokio::test]
async fn nobody_listening_is_told_to_the_connection_that_asked() {
    let server = NatsServer::start().await;
    let (connection, heard) = open(&BusConfig::open(&server.url()), vec![subject("inbox.*")]).await.unwrap();
    up(&connection).publish("nobody.here", "inbox.1", b"", b"x").await.unwrap();
    eventually("the answer", || heard.count() == 1).await;
    let messages = heard.messages.lock().unwrap();
    assert_eq!(messages[0].subject, "inbox.1");
    assert!(messages[0].headers.starts_with(b"NATS/1.0 503\r\n") && messages[0].payload.is_empty());
}

/// Where other client libraries drop messages that are not read in time, this one reads more slowly, and the broker waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_handler_loses_nothing() {
    let server = NatsServer::start().await;
    let heard = Arc::new(Heard { slow: Duration::from_micros(50), ..Heard::default() });
    let handler: Arc<dyn Handler> = heard.clone();
    let bus = BusConfig::open(&server.url());
    let connection = within(SOON, Connection::open(&bus, Options::new("slow", vec![subject("a")]), handler));
    let connection = connection.await.map_err(|error| error.to_string()).unwrap();
    let client = server.client().await;
    for _ in 0..20_000 {
        client.publish("a", vec![b'x'; 200].into()).await.unwrap();
    }
    client.flush().await.unwrap();
    eventually_within(2 * SOON, "all of them", || heard.count() == 20_000).await;
    assert!(up(&connection).is_up() && !heard.disconnected());
}

/// Messages to a queue group of two, one of which leaves half-way: each message is delivered once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn draining_loses_nothing_that_the_broker_gave_us() {
    const MESSAGES: usize = 30_000;
    let server = NatsServer::start().await;
    let bus = BusConfig::open(&server.url());
    let client = server.client().await;
    for round in 0..3 {
        let (stays, one) = open(&bus, vec![queue("a.>")]).await.unwrap();
        let (leaves, two) = open(&bus, vec![queue("a.>")]).await.unwrap();
        let sender = tokio::spawn({
            let client = client.clone();
            async move {
                for n in 0..MESSAGES {
                    client.publish("a.b", n.to_string().into()).await.unwrap();
                    if n % 64 == 0 {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                }
                settle(&client).await;
            }
        });
        eventually("both are chosen", || one.count() > 100 && two.count() > 100).await;
        within(SOON, leaves.drain()).await;
        let (left, until) = (two.count(), one.count());
        assert!(left < MESSAGES, "it left in the middle");
        within(2 * SOON, sender).await.unwrap();
        assert!(within(SOON, up(&stays).flush()).await);
        assert_eq!(two.count(), left, "nothing comes after the end");
        let mut all = one.payloads();
        all.extend(two.payloads());
        let mut numbers: Vec<usize> = all.iter().map(|text| text.parse().unwrap()).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..MESSAGES).collect::<Vec<_>>(), "round {round}, at {until} and {left}");
    }
}

#[tokio::test]
async fn draining_a_quiet_subscription_takes_about_a_second() {
    let server = NatsServer::start().await;
    let (connection, heard) = open(&BusConfig::open(&server.url()), vec![queue("a")]).await.unwrap();
    let started = std::time::Instant::now();
    within(SOON, connection.drain()).await;
    assert!(started.elapsed() < SOON / 2, "{:?}", started.elapsed());
    assert!(connection.session().is_none());
    let client = server.client().await;
    client.publish("a", "late".into()).await.unwrap();
    settle(&client).await;
    assert_eq!(heard.count(), 0);
}
