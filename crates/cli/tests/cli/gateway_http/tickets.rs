//! Tickets, which open a WebSocket where no token can be sent: for pages in a real browser, with key proofs, and at replicas of the
//! gateway. docs/gateway/websocket.md and docs/gateway/identity.md.

use std::time::{Duration, Instant};

use sealwire::internal::auth::{Confirmation, TokenIssuer};
use sealwire::internal::files::write_secret;
use sealwire_testkit::python::python;
use sealwire_testkit::{free_port, within};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::balancer::Balancer;
use super::looked_at::{Browser, chromium};
use super::wire::{Answer, Wire, call};
use super::ws::{Socket, open};
use super::{FAST, Gateway, dpop, mint};
use crate::backends::stage::{LONG, Stage};

/// The configuration that replicas of one gateway share.
const SEALED: &str = "seal_key = \"seal.key\"\n";

async fn stage(issuer: &TokenIssuer) -> Stage {
    let stage = mint::stage(issuer).await;
    write_secret(&stage.shell.path("seal.key"), &"5e".repeat(32), false).unwrap();
    stage
}

/// The same, with a shared memory of what was used.
fn together(stage: &Stage) -> String {
    let url = stage.server.url();
    format!("{SEALED}replay = {{ environment = \"dev\", name = \"gateway\", nats = {{ urls = [\"{url}\"] }} }}\n")
}

async fn start(stage: &Stage, gateway: &str, dpop: &str) -> Gateway {
    mint::configure_dpop(stage, &format!("{FAST}{gateway}"), dpop);
    Gateway::spawn(&stage.shell).await
}

async fn granted(mut wire: Wire, token: &str) -> String {
    let head = "POST /rpc/tools/ws/ticket HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n";
    let answer = wire.ask(format!("{head}Authorization: Bearer {token}\r\n\r\n")).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()["ticket"].as_str().unwrap().to_owned()
}

fn shown(ticket: &str) -> String {
    format!("Sec-WebSocket-Protocol: jsonrpc, ticket.sealwire.dev.{ticket}\r\n")
}

/// With a shared memory, while replicas come and go.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_one_memory_a_ticket_opens_one_socket_whichever_replica_it_comes_to() {
    let issuer = TokenIssuer::generate("https://idp.example").unwrap();
    let mut stage = stage(&issuer).await;
    let token = issuer.issue(&mint::request("ann")).unwrap();
    let together = together(&stage);
    let one = start(&stage, &together, "off").await;
    let two = start(&stage, &together, "off").await;
    // The memory is new, so anything from before it may have been used already.
    for gateway in [&one, &two] {
        gateway.is_ready(200).await;
        takes_tickets(gateway, &one, &token).await;
    }
    for (first, second) in [(&one, &two), (&two, &one)] {
        let ticket = granted(one.wire().await, &token).await;
        assert!(opens(first.wire().await, &ticket).await);
        assert!(!opens(second.wire().await, &ticket).await);
    }
    // Of all clients that present it at once, to either replica, one succeeds.
    let ticket = granted(two.wire().await, &token).await;
    let mut all = JoinSet::new();
    for gateway in [&one, &two].into_iter().cycle().take(16) {
        let (wire, ticket) = (gateway.wire().await, ticket.clone());
        all.spawn(async move { opens(wire, &ticket).await });
    }
    assert_eq!(all.join_all().await.into_iter().filter(|opened| *opened).count(), 1);
    // A used ticket and an unused one, while a replica restarts: it knows the used one, and accepts the other at once.
    let (used, unused) = (granted(one.wire().await, &token).await, granted(one.wire().await, &token).await);
    assert!(opens(two.wire().await, &used).await);
    assert_eq!(two.stop().await.0, Some(0));
    let two = start(&stage, &together, "off").await;
    two.is_ready(200).await;
    assert!(!opens(two.wire().await, &used).await);
    assert!(opens(two.wire().await, &unused).await);
    // Without the broker, no replica can know.
    let ticket = granted(one.wire().await, &token).await;
    stage.server.kill().await;
    let refused = answer(one.wire().await, &ticket).await;
    assert_eq!((refused.status, refused.json()["error"]["code"].as_i64()), (503, Some(-32014)), "{refused:?}");
    one.is_ready(503).await;
    for gateway in [one, two] {
        assert_eq!(gateway.stop().await.0, Some(0));
    }
}

/// Waits until its memory is older than a ticket may get.
async fn takes_tickets(gateway: &Gateway, granting: &Gateway, token: &str) {
    let begun = async {
        while answer(gateway.wire().await, &granted(granting.wire().await, token).await).await.status != 101 {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    within(LONG, begun).await;
}

async fn answer(mut wire: Wire, ticket: &str) -> Answer {
    wire.ask(open("/rpc/tools/ws", &shown(ticket))).await
}

/// Whether the ticket opens a socket on which calls are answered.
async fn opens(mut wire: Wire, ticket: &str) -> bool {
    let answer = wire.ask(open("/rpc/tools/ws", &shown(ticket))).await;
    if answer.status == 101 {
        assert_eq!(Socket(wire).ask(&call(1, "math/add", "[1,2]")).await["result"], 3);
        return true;
    }
    answer.is(401, -32010);
    false
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ticket_opens_one_socket_at_each_replica_with_the_key_that_sealed_it() {
    let issuer = TokenIssuer::generate("https://idp.example").unwrap();
    let stage = stage(&issuer).await;
    let token = issuer.issue(&mint::request("ann")).unwrap();
    let stranger = start(&stage, "", "off").await;
    let one = start(&stage, SEALED, "off").await;
    let since = Instant::now();
    let two = start(&stage, SEALED, "off").await;
    // The gateway cannot know what was used before it started. A busy machine may take longer than that to get here.
    let is_early = !opens(two.wire().await, &granted(one.wire().await, &token).await).await;
    assert!(is_early || since.elapsed() > Duration::from_secs(4), "{:?}", since.elapsed());
    for gateway in [&stranger, &one, &two] {
        gateway.is_ready(200).await;
    }
    for gateway in [&one, &two] {
        takes_tickets(gateway, &one, &token).await;
    }

    // Each replica remembers the tickets that were used with it.
    let ticket = granted(one.wire().await, &token).await;
    assert!(!opens(stranger.wire().await, &ticket).await, "sealed by another key");
    let at = [&two, &two, &one, &one, &two];
    let mut opened = Vec::new();
    for gateway in at {
        opened.push(opens(gateway.wire().await, &ticket).await);
    }
    assert_eq!(opened, [true, false, true, false, false]);
    assert!(!opens(one.wire().await, &granted(stranger.wire().await, &token).await).await);
    // Of all clients that present it at once, one succeeds.
    let ticket = granted(two.wire().await, &token).await;
    let mut all = JoinSet::new();
    for _ in 0..16 {
        let (wire, ticket) = (one.wire().await, ticket.clone());
        all.spawn(async move { opens(wire, &ticket).await });
    }
    assert_eq!(all.join_all().await.into_iter().filter(|opened| *opened).count(), 1);
    assert_eq!(stranger.stop().await.0, Some(0));

    // Wherever a balancer sends the request for a ticket, and the client with the ticket, in turn.
    let balancer = Balancer::start().await;
    balancer.add(one.at);
    balancer.add(two.at);
    balancer.is_ready().await;
    for _ in 0..2 {
        let ticket = granted(Wire::open(balancer.at).await, &token).await;
        assert!(opens(Wire::open(balancer.at).await, &ticket).await);
        // The other replica grants the next one.
        granted(Wire::open(balancer.at).await, &token).await;
    }
    assert_eq!(balancer.sockets(), [1, 1]);
    for gateway in [one, two] {
        assert_eq!(gateway.stop().await.0, Some(0));
    }
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sockets_and_tickets_of_a_token_that_is_bound_to_a_key_are_for_who_proves_it() {
    let Some(python) = python() else { return };
    let issuer = TokenIssuer::generate("https://idp.example").unwrap();
    let stage = stage(&issuer).await;
    let together = together(&stage);
    for (bounds, is_together) in [(SEALED, false), (together.as_str(), true)] {
        let ports = [free_port(), free_port()];
        let all = ports.map(|port| format!("\"http://127.0.0.1:{port}\"")).join(", ");
        let started = async || {
            let mut gateways = Vec::new();
            for (which, mode) in ["accept", "accept", "require"].into_iter().enumerate() {
                let others = ports.get(which).map_or_else(String::new, |port| {
                    let url = format!("url = \"http://127.0.0.1:{port}\"");
                    format!("replicas = {{ listen = \"127.0.0.1:{port}\", {url}, all = [{all}] }}\n")
                });
                let gateway = start(&stage, &format!("{bounds}{others}"), mode).await;
                gateway.is_ready(200).await;
                gateways.push(gateway);
            }
            gateways
        };
        let (found, gateways) = dpop::found(python, "ws_dpop.py", &issuer, started).await;
        let (unproved, no_token) = ("401 invalid_dpop_proof", "401 invalid_token");
        // Without a shared memory, each replica has its own.
        let at_another = |refused: &str| if is_together { json!(refused) } else { json!(3) };
        let expected = json!({
            "proved": 3, "same proof": [3, unproved], "slow clock": "401 use_dpop_nonce", "slow clock, with the nonce": 3,
            "no proof": unproved, "of another method": unproved, "of another address": unproved, "of another key": unproved,
            "as a bearer": no_token,
            "ticket": [3, no_token], "ticket, no proof": unproved, "ticket, proof of the socket": unproved,
            "ticket, same proof": [true, unproved], "ticket, as a bearer": no_token,
            "at another, ticket": [3, no_token, at_another(no_token), no_token],
            "at another, proof": [3, at_another(unproved), unproved, unproved],
            "cancelled at another": [202, false],
            // A ticket granted for a bearer token is only good for a bearer token.
            "bearer's": 3, "bearer's, where keys are required": no_token, "proved, where keys are required": 3,
        });
        assert_eq!(found, expected);
        for gateway in gateways {
            assert_eq!(gateway.stop().await.0, Some(0));
        }
    }
    stage.end().await;
}

/// Serves a page that opens sockets to the gateway at this address, from its own origin.
async fn page_of(gateway: &str) -> (String, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    let page = include_str!("tickets.html").replace("GATEWAY", gateway);
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\r\n{page}", page.len());
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            // The same answer to any request.
            let (mut asked, answer) = ([0; 4_096], answer.clone());
            tokio::spawn(async move {
                while matches!(socket.read(&mut asked).await, Ok(1..)) {
                    drop(socket.write_all(answer.as_bytes()).await);
                }
            });
        }
    });
    (origin, serving)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_in_a_browser_opens_sockets_with_tickets_and_pages_of_others_do_not() {
    let (Some(python), Some(chromium)) = (python(), chromium()) else { return };
    let issuer = TokenIssuer::generate("https://idp.example").unwrap();
    let stage = stage(&issuer).await;
    // The pages know the gateway's address, and the gateway knows the origin of one of them.
    let at = format!("127.0.0.1:{}", free_port());
    let (origin, _page) = page_of(&at).await;
    let (other, _other) = page_of(&at).await;
    mint::configure_dpop(&stage, &format!("{FAST}origins = [\"{origin}\"]\n"), "accept");
    stage.shell.write("gateway.toml", &stage.shell.read("gateway.toml").replace("127.0.0.1:0", &at));
    let gateway = Gateway::spawn(&stage.shell).await;
    gateway.is_ready(200).await;
    let token = issuer.issue(&mint::request("ann")).unwrap();
    takes_tickets(&gateway, &gateway, &token).await;

    let mut browser = Browser::start(python, &chromium, &origin, &stage.shell.path("browser"));
    browser.tell(json!({ "do": "open" })).await;
    browser.sees("typeof opened === 'function'").await;
    let ask = format!("ticket({{ Authorization: 'Bearer {token}' }})");
    let ticket = async |browser: &mut Browser| {
        let ticket = browser.evaluate(&ask).await["ticket"].as_str().expect("a ticket").to_owned();
        format!("'ticket.sealwire.dev.{ticket}'")
    };
    let first = ticket(&mut browser).await;
    let works = json!({ "protocol": "parts.sealwire.dev", "heard": ["rpc.note", "rpc.note", { "steps": 2 }] });
    let closed = json!({ "closed": 1006 });
    let opened = format!("opened('parts.sealwire.dev', {first})");
    assert_eq!(browser.evaluate(&opened).await, works);
    assert_eq!(browser.evaluate(&opened).await, closed, "it was used");
    for nothing in ["opened('parts.sealwire.dev')", "opened('jsonrpc', 'ticket.sealwire.dev.x')"] {
        assert_eq!(browser.evaluate(nothing).await, closed, "{nothing}");
    }
    // A browser rejects a socket if the gateway accepts none of the subprotocols that it offered.
    let second = ticket(&mut browser).await;
    assert_eq!(browser.evaluate(&format!("opened({second})")).await, closed);

    // A page proves its own key, with the gateway's time, which it reads from a header.
    let thumbprint = browser.evaluate("makeKey()").await.as_str().unwrap().to_owned();
    let mut bound = mint::request("ann");
    bound.cnf = Some(Confirmation { kid: None, jkt: Some(thumbprint) });
    let bound = issuer.issue(&bound).unwrap();
    let address = format!("'{}/rpc/tools/ws/ticket'", mint::URL);
    let refused = browser.evaluate(&format!("proved('{bound}', {address})")).await;
    assert_eq!((&refused["status"], refused["nonce"].is_string()), (&json!(401), true), "{refused}");
    let prove = format!("proved('{bound}', {address}, {})", refused["nonce"]);
    let proved = browser.evaluate(&prove).await["ticket"].as_str().expect("a ticket").to_owned();
    let open = format!("opened('parts.sealwire.dev', 'ticket.sealwire.dev.{proved}')");
    assert_eq!(browser.evaluate(&open).await, works);

    // For another page, the browser sends no token, and the gateway accepts no ticket.
    let third = ticket(&mut browser).await;
    let opened = format!("opened('parts.sealwire.dev', {third})");
    browser.tell(json!({ "do": "open", "url": other })).await;
    browser.sees(&format!("location.origin === '{other}' && typeof opened === 'function'")).await;
    let refused = browser.evaluate(&ask).await;
    assert!(refused["thrown"].as_str().is_some_and(|thrown| thrown.contains("Failed to fetch")), "{refused}");
    assert_eq!(browser.evaluate(&opened).await, closed);
    browser.tell(json!({ "do": "open" })).await;
    browser.sees(&format!("location.origin === '{origin}' && typeof opened === 'function'")).await;
    assert_eq!(browser.evaluate(&opened).await, works, "nobody has used it up");
    browser.end().await;
    assert_eq!(gateway.stop().await.0, Some(0));
    stage.end().await;
}
