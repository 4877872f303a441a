//! `.creds` files at a broker in operator mode: what lets in, what is refused at once, and logins that end.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sealwire::BusConfig;
use sealwire::errors::BusError;
use sealwire::internal::files::write_secret;
use sealwire_testkit::operator::{Operator, UserClaims, creds};
use sealwire_testkit::{NatsServer, SOON, free_port, within};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::{Event, OpenError, eventually, eventually_within, open, subject, up};

/// A broker in operator mode, and the file of one of its users.
struct Joined {
    operator: Operator,
    server: NatsServer,
    folder: tempfile::TempDir,
}

impl Joined {
    async fn start() -> Self {
        let operator = Operator::new();
        let server = NatsServer::start_with(&operator.config()).await;
        Self { operator, server, folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("ann.creds")
    }

    fn write(&self, user: &UserClaims) {
        self.operator.write_creds(&self.path(), user);
    }

    fn bus(&self) -> BusConfig {
        with(&self.server.url(), self.path())
    }
}

fn with(url: &str, path: PathBuf) -> BusConfig {
    BusConfig { creds_file: Some(path), ..BusConfig::open(url) }
}

async fn refused(bus: &BusConfig) -> BusError {
    match open(bus, vec![subject("a")]).await {
        Err(OpenError::Bus(error)) => error,
        other => panic!("{:?}", other.map(|_| ())),
    }
}

#[tokio::test]
async fn a_creds_file_lets_in_and_another_operator_s_does_not() {
    let joined = Joined::start().await;
    joined.write(&UserClaims::lasting("ann", 3600));
    let (connection, heard) = open(&joined.bus(), vec![subject("a.>")]).await.unwrap();
    within(SOON, up(&connection).publish("a.b", "", b"", b"x")).await.unwrap();
    eventually("it comes back", || heard.count() == 1).await;

    Operator::new().write_creds(&joined.path(), &UserClaims::new("ann"));
    let error = refused(&joined.bus()).await;
    assert!(matches!(error, BusError::Refused { .. }) && error.to_string().contains("`creds_file`"), "{error}");
    // The permissions in the JWT are told like those of a configured user.
    let narrow = UserClaims { subscribe: vec!["b".to_owned()], ..UserClaims::new("ann") };
    joined.write(&narrow);
    assert!(matches!(open(&joined.bus(), vec![subject("a")]).await, Err(OpenError::Forbidden(_))));
}

/// Nobody listens at the address: each is told before anything is sent.
#[tokio::test]
async fn a_file_that_cannot_be_used_is_told_at_once() {
    let (operator, folder) = (Operator::new(), tempfile::tempdir().unwrap());
    let path = folder.path().join("ann.creds");
    let bus = with("nats://127.0.0.1:1", path.clone());
    let error = refused(&bus).await.to_string();
    assert_eq!(error, "`creds_file` names a file that is not there");
    let (user, other) = (nkeys::KeyPair::new_user(), nkeys::KeyPair::new_user());
    let seed = user.seed().unwrap();
    let jwt = operator.user_jwt(&UserClaims::new("ann"), &user);
    let bearer = UserClaims { bearer: true, ..UserClaims::new("ann") };
    let not_yet = UserClaims { begins_s: Some(100), ..UserClaims::new("ann") };
    for (text, words) in [
        (operator.creds(&UserClaims::lasting("ann", -60)), &["expired 6", "get a new file", "clock"][..]),
        (operator.creds(&not_yet), &["valid only in", "clock"]),
        (operator.creds(&bearer), &["bearer", "--bearer"]),
        (creds(&jwt, &other.seed().unwrap()), &["does not belong"]),
        (creds(&operator.account_jwt(), &seed), &["operator or account"]),
        (format!("{}{}", creds(&jwt, &seed), creds(&jwt, &seed)), &["more than one JWT"]),
        (seed.clone(), &["no JWT", "nsc generate creds"]),
        (jwt.clone(), &["no JWT"]),
    ] {
        write_secret(&path, &text, true).unwrap();
        let error = refused(&bus).await;
        assert!(matches!(&error, BusError::Creds { path: named, .. } if *named == path), "{error}");
        let error = error.to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{words:?}: {error}");
        assert!(!error.contains(&seed) && !error.contains("eyJ"), "{error}");
    }
    let both = BusConfig { user: Some("ann".to_owned()), ..bus };
    assert!(refused(&both).await.to_string().contains("different ways to log in"));
}

#[cfg(unix)]
#[tokio::test]
async fn a_file_that_others_can_read_is_refused_also_behind_a_link() {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    let joined = Joined::start().await;
    joined.write(&UserClaims::new("ann"));
    let link = joined.folder.path().join("link.creds");
    symlink(joined.path(), &link).unwrap();
    let bus = with(&joined.server.url(), link);
    open(&bus, vec![subject("a")]).await.unwrap();
    std::fs::set_permissions(joined.path(), std::fs::Permissions::from_mode(0o644)).unwrap();
    for bus in [bus, joined.bus()] {
        let error = refused(&bus).await.to_string();
        assert!(error.contains("chmod 600"), "{error}");
    }
}

/// Passes bytes on, and counts connections.
async fn counted(to: u16) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, count) = (listener.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
    let counting = Arc::clone(&count);
    tokio::spawn(async move {
        loop {
            let (mut here, _) = listener.accept().await.unwrap();
            counting.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(async move {
                let mut there = TcpStream::connect(("127.0.0.1", to)).await.unwrap();
                drop(tokio::io::copy_bidirectional(&mut here, &mut there).await);
            });
        }
    });
    (port, count)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_login_costs_the_broker_nothing_until_the_file_is_replaced() {
    let joined = Joined::start().await;
    let (port, connections) = counted(joined.server.port()).await;
    // Long enough for a busy machine to log in; it was issued long ago, so this is the last fifth of its life.
    joined.write(&UserClaims { age_s: 40, ..UserClaims::lasting("ann", 8) });
    let bus = with(&format!("nats://127.0.0.1:{port}"), joined.path());
    let (connection, heard) = open(&bus, vec![subject("a")]).await.unwrap();
    eventually("it is said beforehand", || {
        heard.has(|event| matches!(event, Event::LoginEnds(what) if what.contains("`creds_file`")))
    })
    .await;
    eventually("the broker ends it", || heard.disconnected()).await;
    let fails = || {
        let events = heard.events.lock().unwrap();
        events.iter().filter(|event| matches!(event, Event::Failed(why) if why.contains("expired"))).count()
    };
    // Their pauses are 50 ms, 100 ms and so on.
    eventually("several attempts", || fails() >= 4).await;
    assert!(connection.session().is_none());
    // The broker may end it a moment before our clock says so: then it was asked once more.
    assert!(connections.load(Ordering::SeqCst) <= 2, "none of them reached the broker");
    joined.write(&UserClaims::lasting("ann", 3600));
    eventually("it is back", || heard.has(|event| *event == Event::Connected)).await;
    up(&connection).publish("a", "", b"", b"x").await.unwrap();
    eventually("it hears", || heard.count() == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_replaced_in_time_takes_over_before_the_old_login_ends() {
    let joined = Joined::start().await;
    // It was issued long ago, so this is the last fifth of its life.
    joined.write(&UserClaims { age_s: 1000, ..UserClaims::lasting("ann", 60) });
    let (connection, heard) = open(&joined.bus(), vec![subject("a")]).await.unwrap();
    let first = up(&connection);
    eventually("it is said", || heard.has(|event| matches!(event, Event::LoginEnds(_)))).await;
    // Nothing usable is no reason to give up what works.
    write_secret(&joined.path(), "-----BEGIN NATS USER JWT-----\neyJ", true).unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(first.is_up());
    joined.write(&UserClaims::lasting("ann", 3600));
    eventually_within(2 * SOON, "a new connection takes over", || heard.has(|event| *event == Event::Moved)).await;
    assert!(!heard.disconnected(), "{:?}", heard.events.lock().unwrap());
    let second = up(&connection);
    assert!(!Arc::ptr_eq(&first, &second));
    second.publish("a", "", b"", b"x").await.unwrap();
    eventually("it hears", || heard.payloads().contains(&"x".to_owned())).await;
    eventually_within(2 * SOON, "the old one is left", || !first.is_up()).await;
}

/// Sends `greeting`, and returns what came until `PING` or the end.
async fn broker(greeting: &'static str, afterwards: &'static str) -> (u16, tokio::task::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let heard = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(greeting.as_bytes()).await.unwrap();
        let (mut bytes, mut answered) = (Vec::new(), false);
        // Until the other side has gone, or says nothing more.
        while matches!(tokio::time::timeout(SOON / 4, stream.read_buf(&mut bytes)).await, Ok(Ok(1..))) {
            if !answered && bytes.ends_with(b"PING\r\n") {
                answered = true;
                stream.write_all(afterwards.as_bytes()).await.unwrap();
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    });
    (port, heard)
}

#[tokio::test]
async fn what_is_no_challenge_is_not_signed() {
    let (operator, folder) = (Operator::new(), tempfile::tempdir().unwrap());
    let path = folder.path().join("ann.creds");
    operator.write_creds(&path, &UserClaims::new("ann"));
    let long: &'static str = format!("INFO {{\"headers\":true,\"nonce\":\"{}\"}}\r\n", "x".repeat(257)).leak();
    for (greeting, words) in [
        ("INFO {\"headers\":true}\r\n", "has none"),
        ("INFO {\"headers\":true,\"nonce\":\"\"}\r\n", "has none"),
        ("INFO {\"headers\":true,\"nonce\":\"a\\nb\"}\r\n", "nothing was signed"),
        (long, "nothing was signed"),
    ] {
        let (port, heard) = broker(greeting, "").await;
        let error = refused(&with(&format!("nats://127.0.0.1:{port}"), path.clone())).await;
        assert!(matches!(error, BusError::Challenge(_)) && error.to_string().contains(words), "{error}");
        assert_eq!(heard.await.unwrap(), "", "{greeting}");
    }
}

#[tokio::test]
async fn a_second_challenge_is_not_answered() {
    let (operator, folder) = (Operator::new(), tempfile::tempdir().unwrap());
    let path = folder.path().join("ann.creds");
    operator.write_creds(&path, &UserClaims::new("ann"));
    let again =
        "INFO {\"headers\":true,\"nonce\":\"second\"}\r\nPONG\r\nINFO {\"headers\":true,\"nonce\":\"third\"}\r\n";
    let (port, heard) = broker("INFO {\"headers\":true,\"nonce\":\"first\"}\r\n", again).await;
    // It does not answer the subscription's ping.
    let bus = with(&format!("nats://127.0.0.1:{port}"), path);
    let (opened, heard) = tokio::join!(open(&bus, vec![subject("a")]), heard);
    assert!(opened.is_err());
    let heard = heard.unwrap();
    assert_eq!(heard.matches("CONNECT ").count(), 1, "{heard}");
    assert_eq!(heard.matches("\"sig\"").count(), 1);
}

/// A broker behind TLS names another address, where somebody waits for the login in clear text.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_a_broker_names_gets_no_login_without_tls() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let plain = listener.local_addr().unwrap().port();
    let trap = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"INFO {\"headers\":true,\"nonce\":\"abcdefghijk\"}\r\n").await.unwrap();
        let mut bytes = vec![0; 16 * 1024];
        let read = stream.read(&mut bytes).await.unwrap();
        bytes.truncate(read);
        bytes
    });
    let (operator, certificates) = (Operator::new(), super::login::Certificates::new());
    let files = certificates.issue("server", &["127.0.0.1"]);
    let gossip = free_port();
    let node = |name: &str, listen: u16, more: &str| {
        let routes = format!("routes: [\"nats://127.0.0.1:{gossip}\"]");
        let cluster = format!("cluster {{ name: c, listen: \"127.0.0.1:{listen}\", {routes} }}");
        format!("{}\n{}\n{cluster}\nserver_name: {name}\n{more}\n", operator.config(), super::login::tls(&files, None))
    };
    let mut server = NatsServer::start_with(&node("a", gossip, "")).await;
    let path = certificates.path("ann.creds");
    operator.write_creds(&path, &UserClaims::new("ann"));
    let bus = BusConfig {
        tls_ca: Some(certificates.path("ca.pem")),
        ..with(&format!("tls://127.0.0.1:{}", server.port()), path)
    };
    let (connection, heard) = open(&bus, vec![subject("a")]).await.unwrap();
    // A broker lists others when they join.
    let other = node("b", free_port(), &format!("client_advertise: \"127.0.0.1:{plain}\""));
    let _other = NatsServer::start_with(&other).await;
    eventually("they know each other", || server.log().matches("Route connection created").count() > 1).await;
    // Whom a broker names to a new connection, it has named to all others.
    let named = async {
        loop {
            let greeted = TcpStream::connect(("127.0.0.1", server.port())).await.unwrap();
            let mut greeting = String::new();
            tokio::io::BufReader::new(greeted).read_line(&mut greeting).await.unwrap();
            if greeting.contains(&format!("127.0.0.1:{plain}")) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within(SOON, named).await;
    assert!(within(SOON, up(&connection).flush()).await);
    server.kill().await;
    eventually("it is lost", || heard.disconnected()).await;
    let bytes = within(SOON, trap).await.unwrap();
    assert_eq!(bytes.first(), Some(&0x16), "a TLS handshake, and no `CONNECT`");
    assert!(!String::from_utf8_lossy(&bytes).contains("jwt"));
}
