//! Callers whose tokens are exchanged by their issuer, and what a token endpoint may answer instead. RFC 8693.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt as _;
use sealwire::internal::auth::{Confirmation, IssueRequest, TokenIssuer, decode_untrusted};
use sealwire::{Clock as _, SystemClock};
use sealwire_testkit::{settle, within};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::mint::{ask, request, stage_taking};
use super::wire::call;
use super::{FAST, Gateway, configure_identity, mcp, mint_mcp};
use crate::backends::stage::LONG;

/// What the endpoint was asked: the fields of the form, and `authorization`.
type Asked = Arc<Mutex<Vec<HashMap<String, String>>>>;

const ACCESS_TOKEN: &str = "urn:ietf:params:oauth:token-type:access_token";

/// A token endpoint whose behaviour depends on the token's subject.
async fn endpoint(issuer: Arc<TokenIssuer>) -> (u16, Asked) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, asked) = (listener.local_addr().unwrap().port(), Asked::default());
    let heard = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(answer(socket, Arc::clone(&issuer), Arc::clone(&heard)));
        }
    });
    (port, asked)
}

async fn answer(mut socket: TcpStream, issuer: Arc<TokenIssuer>, asked: Asked) {
    let form = read(&mut socket).await;
    let claims = decode_untrusted(&form["subject_token"]).unwrap().claims;
    let subject = claims["sub"].as_str().unwrap().to_owned();
    let mut made = IssueRequest::new(&subject, &form["audience"], SystemClock.now_s());
    made.actor = Some("planner".to_owned());
    made.roles = ["user".to_owned()].into();
    made.cnf = Some(Confirmation { kid: Some("planner.k1".to_owned()), jkt: None });
    asked.lock().unwrap().push(form);
    let (mut status, mut kind) = ("200 OK", "Bearer");
    let mut body = None;
    match subject.as_str() {
        "other-sub" => made.subject = "ann".to_owned(),
        "other-aud" => made.audiences = vec!["dev/other".to_owned()],
        "no-act" => made.actor = None,
        "other-act" => made.actor = Some("mallory".to_owned()),
        "expired" => made.now_s -= 10_000,
        "other-kind" => kind = "mac",
        "garbage" => body = Some("<html>".to_owned()),
        "huge" => body = Some(format!("{{\"access_token\": \"{}\"}}", "x".repeat(20_000))),
        "down" => status = "500 Internal Server Error",
        "moved" => status = "302 Found\r\nLocation: http://127.0.0.1:1/",
        "slow" => tokio::time::sleep(Duration::from_secs(60)).await,
        "gone" => return,
        "grant" | "target" | "client" | "request" => {
            status = "400 Bad Request";
            body = Some(json!({ "error": format!("invalid_{subject}") }).to_string());
        }
        _ => {}
    }
    let token = issuer.issue(&made).unwrap();
    let usual =
        json!({"access_token": token, "issued_token_type": ACCESS_TOKEN, "token_type": kind, "expires_in": 300});
    let body = body.unwrap_or_else(|| usual.to_string());
    let head = format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.len());
    drop(socket.write_all((head + &body).as_bytes()).await);
}

async fn read(socket: &mut TcpStream) -> HashMap<String, String> {
    let mut text = Vec::new();
    loop {
        let mut more = [0; 4_096];
        let size = socket.read(&mut more).await.unwrap();
        assert!(size > 0, "half a request");
        text.extend_from_slice(&more[..size]);
        let Some(end) = text.windows(4).position(|bytes| bytes == b"\r\n\r\n") else { continue };
        let head = String::from_utf8(text[..end].to_vec()).unwrap();
        let field = |name: &str| {
            let found = head.lines().find(|line| line.to_ascii_lowercase().starts_with(name));
            found.map(|line| line[name.len() + 1..].trim().to_owned())
        };
        assert!(head.starts_with("POST /token HTTP/1.1\r\n"), "{head}");
        let length: usize = field("content-length").unwrap().parse().unwrap();
        if text.len() < end + 4 + length {
            continue;
        }
        let pairs = std::str::from_utf8(&text[end + 4..]).unwrap().split('&').map(|pair| pair.split_once('=').unwrap());
        let decoded = |text: &str| percent_decoded(text);
        let mut form: HashMap<_, _> = pairs.map(|(name, value)| (decoded(name), decoded(value))).collect();
        form.insert("authorization".to_owned(), field("authorization").unwrap());
        return form;
    }
}

fn percent_decoded(text: &str) -> String {
    let mut parts = text.split('%');
    let mut decoded = parts.next().unwrap().to_owned();
    for part in parts {
        decoded.push(char::from(u8::from_str_radix(&part[..2], 16).unwrap()));
        decoded += &part[2..];
    }
    decoded
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_is_exchanged_by_its_issuer_and_what_was_not_asked_for_is_not_taken() {
    let issuer = Arc::new(TokenIssuer::generate("https://idp.example").unwrap());
    let table = "[[tokens.issuer]]\nissuer = \"https://idp.example\"\njwks = \"idp-jwks.json\"\n\
        require = { \"act.sub\" = \"planner\" }\n\
        may = { agents = [\"planner\"], roles = [\"user\"], subjects = [\"*\"] }\n";
    let stage = stage_taking(&issuer, table).await;
    let (port, asked) = endpoint(Arc::clone(&issuer)).await;
    stage.shell.write("secret.txt", "s3 cret\n");
    let identity = format!(
        "public_url = \"https://gateway.example\"\nidentity = {{ mode = \"exchange\", client_id = \"gateway\", http_on_loopback = true, \
         token_endpoint = \"http://127.0.0.1:{port}/token\", client_secret = \"secret.txt\" }}\n{FAST}"
    );
    let tables = "[[gateway.tokens.issuer]]\nissuer = \"https://idp.example\"\njwks = \"idp-jwks.json\"\n";
    configure_identity(&stage.shell, &identity, tables, "timeout_s = 60");
    stage.shell.set_mode("secret.txt", 0o644);
    stage.shell.run("gateway").fails(30, &["secret.txt"]);
    stage.shell.set_mode("secret.txt", 0o600);
    let gateway = Gateway::spawn(&stage.shell).await;
    gateway.is_ready(200).await;
    let listener = stage.server.client().await;
    let mut heard = within(LONG, listener.subscribe("rpc.v1.tools.planner")).await.unwrap();
    settle(&listener).await;

    let add = call(1, "math/add", "[1,2]");
    let token = |subject: &str| issuer.issue(&request(subject)).unwrap();
    // While an endpoint keeps one caller waiting, others are served.
    let slow = token("slow");
    let slow = ask(&gateway, &slow, &add);
    let ann = token("ann");
    let others = async {
        for _ in 0..3 {
            assert_eq!(ask(&gateway, &ann, &add).await.json()["result"], 3);
        }
        let sent = within(LONG, heard.next()).await.unwrap();
        let authorization = sent.headers.unwrap().get("Authorization").unwrap().to_string();
        assert!(!authorization.contains(&ann), "the caller's own goes to its issuer alone");
        let form = asked.lock().unwrap().iter().find(|form| form["subject_token"] == ann).unwrap().clone();
        let expected = [
            ("grant_type", "urn:ietf:params:oauth:grant-type:token-exchange"),
            ("subject_token_type", ACCESS_TOKEN),
            ("actor_token", stage.shell.read("planner.jwt").trim()),
            ("actor_token_type", ACCESS_TOKEN),
            ("audience", "dev/tools"),
            ("authorization", "Basic Z2F0ZXdheTpzMyUyMGNyZXQ="),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
        for (name, value) in expected {
            assert_eq!(form[&name], value, "{name}");
        }
        let exchanges = asked.lock().unwrap().iter().filter(|form| form["subject_token"] == ann).count();
        assert_eq!(exchanges, 1, "what was had is kept");
        settle(&listener).await;
        while futures_util::FutureExt::now_or_never(heard.next()).is_some() {}

        for (subject, status, code) in [
            ("other-sub", 503, -32014),
            ("other-aud", 503, -32014),
            ("no-act", 503, -32014),
            ("other-act", 503, -32014),
            ("expired", 503, -32014),
            ("other-kind", 503, -32014),
            ("garbage", 503, -32014),
            ("huge", 503, -32014),
            ("down", 503, -32014),
            ("moved", 503, -32014),
            ("gone", 503, -32014),
            ("client", 503, -32014),
            ("request", 503, -32014),
            ("grant", 401, -32010),
            ("target", 403, -32010),
        ] {
            let refused = ask(&gateway, &token(subject), &add).await;
            let error = refused.json()["error"].clone();
            assert_eq!((refused.status, &error["code"]), (status, &json!(code)), "{subject}: {error}");
            assert_eq!(error["data"]["outcome"], "not_sent", "{subject}");
            assert_eq!(refused.header("www-authenticate").is_some(), status != 503, "{subject}");
        }
        let tools = mcp::modern(&json!(1), "tools/list", json!({}));
        let add = mcp::call(1, "math_add", &json!({ "a": 1, "b": 2 }));
        for (subject, status, code) in [("grant", 401, 32010), ("target", 403, 32010), ("down", 200, -32603)] {
            for asked in [&tools, &add] {
                let refused = mint_mcp::ask(&gateway, &token(subject), asked).await;
                let error = refused.json()["error"].clone();
                assert_eq!((refused.status, &error["code"]), (status, &json!(code)), "{subject}: {error}");
                assert_eq!(error["data"]["outcome"], "not_sent", "{subject}: {error}");
                assert_eq!(refused.header("www-authenticate").is_some(), status != 200, "{subject}");
                assert!(!error.to_string().contains("127.0.0.1"), "{subject}: {error}");
            }
        }
    };
    let (slow, ()) = tokio::join!(slow, others);
    slow.is(503, -32014);
    settle(&listener).await;
    assert!(futures_util::FutureExt::now_or_never(heard.next()).is_none(), "of these nothing was sent");
    let (status, said) = gateway.stop().await;
    assert_eq!(status, Some(0));
    assert!(said.contains("`sub`") && !said.contains(&ann) && !said.contains("s3 cret"), "{said}");
    stage.end().await;
}
