//! Servers that answer at the wrong time, too much, or not at all.

use std::sync::atomic::Ordering;

use hyper::Method;
use sealwire_backend::web::{Request, WebError};
use sealwire_http::{HttpError, MAX_BODY};
use serde_json::json;

use super::server::{Script, Server, answer, web, within};

#[tokio::test]
async fn a_connection_is_used_again_and_one_that_was_closed_is_no_error() {
    let server = Server::start(|n| Some((answer("200 OK", &n.to_string()), n % 3 != 0))).await;
    let web = web(&server.url, json!({ "headers": { "X-Tenant": "a" } }));
    for n in 1..=7 {
        let reply = within(web.send(&Request::post("{}"), None)).await.unwrap();
        assert_eq!(reply.status(), 200);
        assert_eq!(within(reply.text()).await.unwrap(), n.to_string());
        if n % 3 == 0 {
            // The server has closed it, which the client must have noticed.
            let mut gone = server.gone.clone();
            within(gone.wait_for(|gone| *gone == n / 3)).await.unwrap();
        }
    }
    assert_eq!(server.connections.load(Ordering::SeqCst), 3);
    let first = server.requests.lock().unwrap()[0].to_lowercase();
    for part in ["post /rpc?key=hunter2 http/1.1", "host: 127.0.0.1:", "x-tenant: a", "accept-encoding: identity"] {
        assert!(first.contains(part), "{part}: {first}");
    }
    assert!(!web.place().contains("hunter2") && !format!("{web:?}").is_empty());
}

#[tokio::test]
async fn a_request_that_may_have_arrived_is_not_sent_again() {
    // The first request opens a connection; the second is sent over that one.
    let server = Server::start(|n| Some(if n == 1 { (answer("200 OK", ""), true) } else { (Vec::new(), false) })).await;
    let web = web(&server.url, json!({}));
    drop(within(within(web.send(&Request::post("1"), None)).await.unwrap().text()).await.unwrap());
    for sent in [2, 3] {
        let error = within(web.send(&Request::post("2"), None)).await.unwrap_err();
        assert!(matches!(error, WebError::Http(HttpError::Broken(_))), "{error}");
        assert_eq!(server.requests(), sent);
    }
    // If nobody listens, nothing has arrived.
    let nobody = nobody_listens();
    let refused = super::server::web(&format!("http://127.0.0.1:{}/", nobody.1), json!({}));
    let error = within(refused.send(&Request::post(""), None)).await.unwrap_err();
    assert!(matches!(error, WebError::Unreached { .. }), "{error}");
}

/// A port that refuses connections for as long as the socket is kept: it is bound, but does not listen.
fn nobody_listens() -> (tokio::net::TcpSocket, u16) {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = socket.local_addr().unwrap().port();
    (socket, port)
}

#[tokio::test]
async fn an_answer_has_bounds() {
    let heads: [Script; 5] = [
        |_| Some((format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(1 << 20)).into_bytes(), false)),
        |_| Some((format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: 1\r\n".repeat(200)).into_bytes(), false)),
        |_| Some((b"HTTP/1.1 200 OK".repeat(100_000), false)),
        |_| Some((b"SSH-2.0-OpenSSH_9.6\r\n".to_vec(), false)),
        |_| Some((b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello".to_vec(), false)),
    ];
    for head in heads {
        let server = Server::start(head).await;
        let error = within(web(&server.url, json!({})).send(&Request::post(""), None)).await.unwrap_err();
        assert!(matches!(error, WebError::Http(HttpError::Broken(_))), "{error}");
        assert_eq!(server.requests(), 1);
    }
    let bodies: [(Script, bool); 4] = [
        (|_| Some((answer("200 OK", &"x".repeat(MAX_BODY)), true)), true),
        (|_| Some((answer("200 OK", &"x".repeat(MAX_BODY + 1)), true)), false),
        (
            |_| {
                let chunk = [b"400\r\n".as_slice(), &[b'x'; 1024], b"\r\n"].concat().repeat(1025);
                Some(([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec(), chunk].concat(), true))
            },
            false,
        ),
        // A body up to the end of the connection, which never comes.
        (|_| Some(([b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), vec![b'x'; 4 * MAX_BODY]].concat(), true)), false),
    ];
    for (body, fits) in bodies {
        let server = Server::start(body).await;
        let web = web(&server.url, json!({}));
        let reply = within(web.send(&Request::post(""), None)).await.unwrap();
        let text = within(reply.text()).await;
        match text {
            Ok(text) => assert!(fits && text.len() == MAX_BODY),
            Err(error) => assert!(!fits && error == HttpError::TooLarge, "{error}"),
        }
        if !fits {
            let mut gone = server.gone.clone();
            within(gone.wait_for(|gone| *gone == 1)).await.unwrap();
        }
    }
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_no_answer() {
    let server = Server::start(|n| {
        let cut: &[u8] = match n {
            1 => b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{\"a\"",
            2 => b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
            _ => b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n\xff\xfe",
        };
        Some((cut.to_vec(), n > 2))
    })
    .await;
    let web = web(&server.url, json!({}));
    for n in 1..=3 {
        let error = within(within(web.send(&Request::post(""), None)).await.unwrap().text()).await.unwrap_err();
        assert_eq!(matches!(error, HttpError::NotUtf8), n == 3, "{error}");
        assert_eq!(matches!(error, HttpError::Broken(_)), n < 3, "{error}");
    }
}

#[tokio::test]
async fn a_body_that_ends_with_its_connection_is_known_as_such() {
    let server = Server::start(|n| {
        let head = match n {
            1 => "200 OK\r\nContent-Length: 0",
            2 => "200 OK\r\nTransfer-Encoding: Chunked",
            3 => "204 No Content",
            4 => "200 OK\r\nTransfer-Encoding: gzip",
            _ => "200 OK",
        };
        Some((format!("HTTP/1.1 {head}\r\n\r\n0\r\n\r\n").into_bytes(), false))
    })
    .await;
    let web = web(&server.url, json!({}));
    for n in 1..=5 {
        let reply = within(web.send(&Request::bare(Method::GET), None)).await.unwrap();
        assert_eq!(reply.is_framed(), n <= 3, "{n}");
    }
}

#[tokio::test]
async fn a_server_that_accepts_and_closes_is_not_reached() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let closing = tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            drop(socket);
        }
    });
    let web = web(&url, json!({}));
    // Under load, the server may close it later than the client waits, but not always.
    let refused = async {
        loop {
            if let Err(error) = web.reach().await {
                break error;
            }
        }
    };
    let error = within(refused).await;
    assert!(matches!(&error, WebError::Unreached { cause, .. } if cause.contains("closes connections")), "{error}");
    closing.abort();
    // A server that keeps connections counts as reached.
    let server = Server::start(|_| None).await;
    within(super::server::web(&server.url, json!({})).reach()).await.unwrap();
}

#[tokio::test]
async fn no_redirect_is_followed_and_no_encoding_taken() {
    let server = Server::start(|n| {
        let head = match n {
            1 => "302 Found\r\nLocation: https://evil.example/a?token=hunter3#b",
            2 => "308 Moved\r\nLocation: /\u{1b}[2J",
            3 => "303 See",
            _ => "200 OK\r\nContent-Encoding: gzip",
        };
        Some((answer(head, "x"), true))
    })
    .await;
    let web = web(&server.url, json!({}));
    let ask = async || within(web.send(&Request::bare(Method::GET), None)).await.unwrap_err();
    let first = ask().await.to_string();
    assert!(first.contains("302") && first.contains("https://evil.example/a") && !first.contains("hunter"), "{first}");
    let second = ask().await.to_string();
    assert!(!second.contains('\u{1b}'), "{second}");
    assert!(matches!(ask().await, WebError::Redirect { status: 303, .. } | WebError::Http(HttpError::Broken(_))));
    assert_eq!(ask().await, WebError::Encoded);
    assert_eq!(server.requests(), 4);
}

#[tokio::test]
async fn events_come_one_by_one_and_whoever_stops_listening_closes_the_connection() {
    let server = Server::start(|n| match n {
        1 => {
            let head = b"HTTP/1.1 200 OK\r\nContent-Type: Text/Event-Stream; charset=utf-8\r\n\r\n".to_vec();
            Some(([head, b"data: 1\n\ndata: 2\n\ndata: thr".to_vec()].concat(), true))
        }
        2 => Some((b"HTTP/1.1 200 OK\r\n\r\ndata: 1\n\ndata: 2\n".to_vec(), false)),
        3 => Some(([b"HTTP/1.1 200 OK\r\n\r\ndata: ".to_vec(), vec![b'x'; 2 * MAX_BODY]].concat(), true)),
        _ => None,
    })
    .await;
    let web = web(&server.url, json!({}));
    let mut gone = server.gone.clone();
    let reply = within(web.send(&Request::bare(Method::GET), None)).await.unwrap();
    assert!(reply.is_events());
    let mut events = reply.events();
    for data in ["1", "2"] {
        assert_eq!(within(events.next()).await.unwrap().unwrap().data, data);
    }
    // A wait that is given up loses nothing, and keeps the connection.
    assert!(tokio::time::timeout(std::time::Duration::from_millis(20), events.next()).await.is_err());
    assert_eq!(*gone.borrow(), 0);
    drop(events);
    within(gone.wait_for(|gone| *gone == 1)).await.unwrap();

    // An incomplete event is no event.
    let mut events = within(web.send(&Request::bare(Method::GET), None)).await.unwrap().events();
    assert_eq!(within(events.next()).await.unwrap().unwrap().data, "1");
    assert_eq!(within(events.next()).await.unwrap(), None);
    let mut events = within(web.send(&Request::bare(Method::GET), None)).await.unwrap().events();
    assert_eq!(within(events.next()).await, Err(HttpError::TooLarge));
    drop(events);
    within(gone.wait_for(|gone| *gone == 3)).await.unwrap();

    // The same before the answer begins.
    let asked = Request::post("{}");
    {
        let mut waiting = std::pin::pin!(web.send(&asked, None));
        while server.requests() < 4 {
            let step = tokio::time::timeout(std::time::Duration::from_millis(20), &mut waiting).await;
            assert!(step.is_err(), "nobody has answered");
        }
    }
    within(gone.wait_for(|gone| *gone == 4)).await.unwrap();
}

#[tokio::test]
async fn connections_have_a_bound_and_whoever_comes_later_waits() {
    let server = Server::start(|_| None).await;
    let web = std::sync::Arc::new(web(&server.url, json!({ "in_flight": 2 })));
    let calls: Vec<_> = (0..20)
        .map(|_| {
            let web = std::sync::Arc::clone(&web);
            tokio::spawn(async move { web.send(&Request::post("{}"), None).await.is_ok() })
        })
        .collect();
    let all = async {
        while server.requests() < 6 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    within(all).await;
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    assert_eq!(server.connections.load(Ordering::SeqCst), 6);
    // A place that is given up goes to the next one.
    calls[0].abort();
    calls.iter().for_each(tokio::task::JoinHandle::abort);
    let mut gone = server.gone.clone();
    within(gone.wait_for(|gone| *gone >= 6)).await.unwrap();
}

#[tokio::test]
async fn a_message_that_nobody_asked_for_is_nobodys_answer() {
    let server = Server::start(|n| {
        let said = answer("200 OK", &n.to_string());
        Some((if n % 2 == 1 { [said, answer("200 OK", "unasked")].concat() } else { said }, true))
    })
    .await;
    let web = web(&server.url, json!({}));
    for _ in 0..20 {
        match within(web.send(&Request::post("{}"), None)).await {
            Ok(reply) => assert_ne!(within(reply.text()).await.unwrap(), "unasked"),
            Err(error) => assert!(matches!(error, WebError::Http(HttpError::Broken(_))), "{error}"),
        }
    }
}
