//! Clients that send without end and read nothing. docs/bounds.md, "What waits for a peer to read it".

use std::time::Duration;

use sealwire_testkit::within;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::wire::{call, post};
use super::ws::open;
use super::{FAST, Gateway, demo};
use crate::backends::stage::LONG;

/// How much is sent at most.
const FLOOD: usize = 64 << 20;
/// By how much the gateway's memory may grow for one connection, allocators and buffers of TLS-less sockets included.
const GROWTH: u64 = 16 << 20;

/// The gateway's resident memory, in bytes.
fn resident(gateway: &Gateway) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", gateway.child.id().unwrap())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// A masked frame of a WebSocket.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let head = match u8::try_from(payload.len()) {
        Ok(length) if length < 126 => vec![first, 0x80 | length],
        _ => [&[first, 0xfe][..], &u16::try_from(payload.len()).unwrap().to_be_bytes()].concat(),
    };
    [&head, &[0; 4][..], payload].concat()
}

/// A frame of HTTP/2.
fn h2(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// What a client begins with, and then sends again and again.
struct Flood {
    what: &'static str,
    begins: Vec<u8>,
    goes_on: Vec<u8>,
}

fn floods() -> Vec<Flood> {
    let socket = open("/rpc/tools/ws", "").into_bytes();
    let parts = open("/rpc/tools/ws", "Sec-WebSocket-Protocol: parts.sealwire.dev\r\n").into_bytes();
    let of_socket = |what, goes_on: Vec<u8>| Flood { what, begins: socket.clone(), goes_on };
    let preface = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), h2(4, 0, 0, &[])].concat();
    // No window for any answer.
    let narrow = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), h2(4, 0, 0, &[0, 4, 0, 0, 0, 0])].concat();
    let of_h2 = |what, goes_on: Vec<u8>| Flood { what, begins: preface.clone(), goes_on };
    // GET /livez: indexed method and scheme, literal path and authority.
    let head = |path: &str| [&[0x82, 0x86, 0x04, path.len() as u8], path.as_bytes(), &[0x01, 9], b"localhost"].concat();
    let requests = |path: &str| (0..100_000).flat_map(|n| h2(1, 5, 2 * n + 1, &head(path))).collect::<Vec<_>>();
    let resets = (0..100_000)
        .flat_map(|n| [h2(1, 5, 2 * n + 1, &head("/livez")), h2(3, 0, 2 * n + 1, &[0, 0, 0, 8])].concat())
        .collect();
    let closed = [requests("/livez").split_off(0)[..31].to_vec(), h2(0, 0, 1, b"x").repeat(10_000)].concat();
    let add = call(1, "math/add", "[1,2]");
    vec![
        of_socket("WebSocket: pings", frame(0x89, &[b'x'; 125]).repeat(1_000)),
        of_socket("WebSocket: pings that say nothing", frame(0x89, b"").repeat(1_000)),
        of_socket("WebSocket: pongs", frame(0x8a, b"").repeat(1_000)),
        of_socket("WebSocket: calls", frame(0x81, add.as_bytes()).repeat(1_000)),
        of_socket("WebSocket: what is no message", frame(0x81, b"{").repeat(1_000)),
        of_socket(
            "WebSocket: batches that are refused",
            frame(0x81, format!("[{}]", vec![add.as_str(); 50].join(",")).as_bytes()).repeat(100),
        ),
        of_socket("WebSocket: fragments of nothing", [frame(0x01, b""), frame(0x00, b"").repeat(1_000)].concat()),
        of_socket("WebSocket: closes", frame(0x88, &1000_u16.to_be_bytes()).repeat(1_000)),
        Flood {
            what: "WebSocket: streams",
            begins: parts,
            goes_on: frame(0x81, call(1, "text/echo", r#"{"text":"a b c"}"#).as_bytes()).repeat(1_000),
        },
        Flood {
            what: "HTTP/1.1: requests",
            begins: Vec::new(),
            goes_on: post("/rpc/tools", "", &add).repeat(1_000).into_bytes(),
        },
        Flood {
            what: "HTTP/1.1: health checks",
            begins: Vec::new(),
            goes_on: b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n".repeat(1_000),
        },
        Flood {
            what: "HTTP/1.1: streams",
            begins: Vec::new(),
            goes_on: post("/rpc/tools/stream", "", &call(1, "clock/ticks", "{}")).repeat(1_000).into_bytes(),
        },
        Flood {
            what: "MCP: lists",
            begins: Vec::new(),
            goes_on: post(
                "/mcp/tools",
                "Accept: application/json, text/event-stream\r\n",
                r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#,
            )
            .repeat(1_000)
            .into_bytes(),
        },
        of_h2("HTTP/2: pings", h2(6, 0, 0, &[0; 8]).repeat(1_000)),
        of_h2("HTTP/2: settings", h2(4, 0, 0, &[]).repeat(1_000)),
        of_h2("HTTP/2: requests that are reset", resets),
        of_h2("HTTP/2: data of a stream that has ended", closed),
        Flood { what: "HTTP/2: requests without a window", begins: narrow, goes_on: requests("/livez") },
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_sends_without_end_and_reads_nothing_fills_no_memory() {
    let stage = demo().await;
    let gateway = Gateway::start(&stage.shell, FAST, "").await;
    gateway.is_ready(200).await;
    let add = call(1, "math/add", "[1,2]");
    for _ in 0..100 {
        assert_eq!(gateway.wire().await.post(&add).await.status, 200);
    }
    for Flood { what, begins, goes_on } in floods() {
        let before = resident(&gateway);
        let mut socket = within(LONG, TcpStream::connect(gateway.at)).await.unwrap();
        within(LONG, socket.write_all(&begins)).await.unwrap();
        let (mut sent, mut highest) = (0, before);
        // Until all is sent, or the gateway reads no more, or has closed the connection.
        for piece in goes_on.chunks(64 << 10).cycle() {
            match timeout(Duration::from_secs(2), socket.write_all(piece)).await {
                Ok(Ok(())) => sent += piece.len(),
                Ok(Err(_)) | Err(_) => break,
            }
            highest = highest.max(resident(&gateway));
            if sent >= FLOOD {
                break;
            }
        }
        highest = highest.max(resident(&gateway));
        println!("{what}: {} KiB sent, {} KiB more", sent >> 10, (highest - before) >> 10);
        assert!(highest - before < GROWTH, "{what}: {sent} bytes sent, {} bytes more", highest - before);
        // Others are answered meanwhile.
        assert_eq!(gateway.wire().await.post(&add).await.json()["result"], 3, "{what}");
        drop(socket);
    }
    assert_eq!(gateway.stop().await.0, Some(0));
    stage.end().await;
}
