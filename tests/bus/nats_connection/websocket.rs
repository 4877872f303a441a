//! Connections inside a WebSocket: to the broker itself, through a proxy, and to others that answer there.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::{SinkExt as _, StreamExt as _};
use sealwire::BusConfig;
use sealwire::internal::nats::library_options;
use sealwire_testkit::{NatsServer, SOON, free_port, within};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use zeroize::Zeroizing;

use super::login::{Certificates, tls};
use super::{eventually, open, subject, up};

/// A broker that also listens for WebSockets, and the port of these.
async fn broker(tls: &str) -> (NatsServer, u16) {
    let port = free_port();
    let config = format!(
        "authorization {{ user: ann, password: s3cret }}\nwebsocket {{ listen: \"127.0.0.1:{port}\"\n {tls} }}\nmax_payload: 1MB\n"
    );
    (NatsServer::start_with(&config).await, port)
}

fn bus(url: String) -> BusConfig {
    let password = Some(Zeroizing::new("s3cret".to_owned()));
    BusConfig { user: Some("ann".to_owned()), password, ..BusConfig::open(&url) }
}

async fn refused(bus: &BusConfig) -> String {
    open(bus, vec![subject("a")]).await.map(drop).unwrap_err().to_string()
}

/// Small and large messages, many at once, arrive unchanged and in order.
async fn carries(bus: &BusConfig) {
    let (connection, heard) = open(bus, vec![subject("a.>")]).await.unwrap();
    let session = up(&connection);
    let large = "x".repeat(900_000);
    for number in 0..2_000 {
        within(SOON, session.publish("a.b", "", b"", number.to_string().as_bytes())).await.unwrap();
    }
    within(SOON, session.publish("a.b", "", b"", large.as_bytes())).await.unwrap();
    eventually("all come back", || heard.count() == 2_001).await;
    let payloads = heard.payloads();
    assert!(payloads.iter().take(2_000).enumerate().all(|(number, text)| *text == number.to_string()));
    assert!(payloads[2_000] == large);
    within(SOON, connection.drain()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_web_socket_carries_what_a_connection_does() {
    let (_server, port) = broker("no_tls: true").await;
    carries(&bus(format!("ws://127.0.0.1:{port}"))).await;
    let wrong =
        BusConfig { password: Some(Zeroizing::new("wr0ng".to_owned())), ..bus(format!("ws://127.0.0.1:{port}")) };
    assert!(refused(&wrong).await.contains("refuses our user"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_below_a_web_socket_is_checked_like_any_other() {
    let (ours, theirs) = (Certificates::new(), Certificates::new());
    let (_server, port) = broker(&tls(&ours.issue("server", &["localhost"]), None)).await;
    let secure = bus(format!("wss://localhost:{port}"));
    carries(&BusConfig { tls_ca: Some(ours.path("ca.pem")), ..secure.clone() }).await;
    assert!(refused(&BusConfig { tls_ca: Some(theirs.path("ca.pem")), ..secure }).await.contains("TLS"));
    // In clear text there is none to be had.
    let plain = BusConfig { tls_ca: Some(ours.path("ca.pem")), ..bus(format!("ws://localhost:{port}")) };
    assert!(refused(&plain).await.contains("write wss://"));
    assert!(refused(&bus("ws://broker.example".to_owned())).await.contains("clear text"));
    let guard = library_options(&bus("ws://127.0.0.1:1".to_owned())).map(drop).unwrap_err().to_string();
    assert!(guard.contains("`[replay.nats]`"), "{guard}");
}

/// What a reverse proxy does: one path leads to the broker, without the prefix, and any other is answered here.
async fn proxy(to: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (mut here, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(here.read_u8().await.unwrap());
                }
                let head = String::from_utf8(head).unwrap();
                let Some(rest) = head.strip_prefix("GET /bus/ ") else {
                    here.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").await.unwrap();
                    return;
                };
                let mut there = TcpStream::connect(("127.0.0.1", to)).await.unwrap();
                there.write_all(format!("GET / {rest}").as_bytes()).await.unwrap();
                drop(tokio::io::copy_bidirectional(&mut here, &mut there).await);
            });
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_leads_to_the_broker_by_a_path() {
    let (_server, broker) = broker("no_tls: true").await;
    let port = proxy(broker).await;
    carries(&bus(format!("ws://127.0.0.1:{port}/bus/"))).await;
    assert!(refused(&bus(format!("ws://127.0.0.1:{port}/else"))).await.contains("status 404"));
}

/// A broker's greeting and messages in pieces, between pings, and then what ends the connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pieces_are_joined_and_what_is_no_message_of_bytes_ends_the_connection() {
    use tokio_tungstenite::tungstenite::Message;
    let message = b"MSG a 1 4\r\nping\r\n";
    for (last, why) in [
        (Message::Text("text".into()), "text"),
        (Message::Close(None), "closed"),
        (Message::Binary(vec![b'x'; 100 << 10].into()), "longer than"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (arrived, has_arrived) = tokio::sync::oneshot::channel();
        let serving = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut socket = accept(stream).await;
            let pieces = [&b"INFO {\"headers\":"[..], b"true}\r\n"];
            for piece in pieces {
                socket.send(Message::Ping(vec![7; 3].into())).await.unwrap();
                socket.send(Message::Binary(piece.to_vec().into())).await.unwrap();
            }
            let (mut said, mut pongs) = (Vec::new(), 0);
            while let Some(Ok(next)) = socket.next().await {
                match next {
                    Message::Binary(bytes) => said.extend_from_slice(&bytes),
                    Message::Pong(bytes) => pongs += usize::from(*bytes == [7; 3]),
                    _ => {}
                }
                if said.ends_with(b"PING\r\n") {
                    let subscribed = said.windows(4).any(|window| window == b"SUB ");
                    said.clear();
                    socket.send(Message::Binary(b"PONG\r\n".to_vec().into())).await.unwrap();
                    if subscribed {
                        break;
                    }
                }
            }
            for byte in message {
                socket.send(Message::Binary(vec![*byte].into())).await.unwrap();
            }
            has_arrived.await.unwrap();
            socket.send(last).await.unwrap();
            while let Some(Ok(_)) = socket.next().await {}
            pongs
        });
        let (_connection, heard) =
            open(&BusConfig::open(&format!("ws://127.0.0.1:{port}")), vec![subject("a")]).await.unwrap();
        eventually("it is joined", || heard.payloads() == ["ping"]).await;
        arrived.send(()).unwrap();
        eventually("it ends", || {
            heard.has(|event| matches!(event, super::Event::Disconnected(said) if said.contains(why)))
        })
        .await;
        assert!(within(SOON, serving).await.unwrap() > 0, "a ping was answered");
    }
}

/// The broker's side of a handshake.
async fn accept(mut stream: TcpStream) -> tokio_tungstenite::WebSocketStream<TcpStream> {
    use tokio_tungstenite::tungstenite::protocol::Role;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    assert!(!head.to_ascii_lowercase().contains("extensions"), "no compression is offered: {head}");
    let key = head.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")).unwrap();
    let text = format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    let accepted = STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes()));
    let answer = format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accepted}\r\n\r\n"
    );
    stream.write_all(answer.as_bytes()).await.unwrap();
    tokio_tungstenite::WebSocketStream::from_raw_socket(stream, Role::Server, None).await
}

/// Somebody answers, and it is no WebSocket for us.
#[tokio::test]
async fn an_answer_that_is_not_to_our_request_is_refused() {
    let switching = "HTTP/1.1 101 Switching Protocols\r\n";
    let accept = "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n";
    for (answer, why) in [
        ("HTTP/1.1 200 OK\r\n\r\n".to_owned(), "status 200"),
        ("INFO {}\r\n\r\n".to_owned(), "not of a web server"),
        (String::new(), "no answer"),
        (format!("{switching}Upgrade: websocket\r\n{accept}\r\n"), "no request of ours"),
        (format!("{switching}Upgrade: websocket\r\n\r\n"), "no request of ours"),
        (format!("{switching}{}", "A: b\r\n".repeat(4_000)), "no answer"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            drop(stream.write_all(answer.as_bytes()).await);
        });
        let error = refused(&bus(format!("ws://127.0.0.1:{port}"))).await;
        assert!(error.contains(why), "{why}: {error}");
    }
}
