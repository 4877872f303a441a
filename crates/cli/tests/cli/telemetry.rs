//! `[telemetry] listen`: metrics and health over HTTP, as Prometheus 2.42 reads them. docs/observability.md.

mod exporter;
pub(crate) mod page;
mod prometheus;
mod shipped;
pub(crate) mod stage;

use std::time::{Duration, Instant};

use sealwire_testkit::within;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use self::prometheus::{Prometheus, promtool};
use self::stage::{BACKEND, Listener, gateway, post};
use crate::backends::stage::{LONG, POLICY, Stage};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_tells_how_it_is_doing_and_why_it_is_not_ready() {
    let at = Listener::free();
    let mut stage = Stage::new(POLICY, &format!("{}{BACKEND}", at.section())).await;
    assert_eq!(stage.call("words/say", json!({})).await.unwrap(), json!("hello"));
    let ready = at.is_ready(200).await;
    assert_eq!(
        ready.body,
        "[+]subscribed ok\n[+]connected ok\n[+]policy ok\n[+]guard ok\n[+]files ok\n[+]revocation ok\n[+]application ok\nok\n"
    );
    assert_eq!((at.get("/readyz").await.body.as_str(), at.get("/livez").await.body.as_str()), ("ok\n", "ok\n"));
    let samples = at.samples().await;
    for (sample, expected) in [
        (r#"rpc_server_call_duration_seconds_count{rpc_method="words/say",error_type=""}"#, 1.0),
        (r#"sealwire_backend_up{backend="words"}"#, 1.0),
        (r#"sealwire_backend_starts_total{backend="words"}"#, 1.0),
        (r#"sealwire_backend_processes{backend="words"}"#, 0.0),
        (r#"sealwire_reload_refused{what="policy"}"#, 0.0),
        ("sealwire_bus_connected", 1.0),
        ("sealwire_ready", 1.0),
    ] {
        assert_eq!(samples.get(sample), Some(&expected), "{sample}: {samples:#?}");
    }
    let openmetrics =
        "GET /metrics HTTP/1.1\r\nHost: [::1]:1\r\nAccept: application/openmetrics-text;version=1.0.0\r\n\r\n";
    let answer = at.send(openmetrics).await;
    assert!(answer.head.contains("content-type: application/openmetrics-text; version=1.0.0"), "{}", answer.head);
    assert!(answer.body.ends_with("# EOF\n"), "{}", answer.body);

    stage.shell.write("policies/tools.toml", "what is this");
    let refused = async {
        while at.samples().await[r#"sealwire_reload_refused{what="policy"}"#] == 0.0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    within(LONG, refused).await;
    assert!(at.samples().await[r#"sealwire_reloads_total{what="policy",result="refused"}"#] >= 1.0);

    stage.server.kill().await;
    let unready = at.is_ready(503).await;
    assert!(unready.body.contains("[-]connected: the connection to the broker is lost\n"), "{}", unready.body);
    assert!(unready.body.ends_with("not ready: connected\n"), "{}", unready.body);
    assert_eq!(at.get("/livez").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_slowly_or_wrongly_costs_nobody_else_anything() {
    let at = Listener::free();
    let _stage = Stage::run(POLICY, &at.section(), &["serve", "demo"]).await;
    at.is_ready(200).await;
    let mut idle = Vec::new();
    for number in 0..100 {
        let mut socket = TcpStream::connect(at.0).await.unwrap();
        if number % 2 == 0 {
            socket.write_all(b"GET /metrics HTTP/1.1\r\nHost: loc").await.unwrap();
        }
        idle.push(socket);
    }
    let begun = Instant::now();
    assert_eq!(at.get("/livez").await.status, 200);
    assert!(begun.elapsed() < Duration::from_secs(9), "it waited for others: {:?}", begun.elapsed());
    assert!(at.samples().await["sealwire_telemetry_connections_cut_total"] >= 68.0);
    drop(idle);

    for (head, status) in [
        // What a page in a browser can make of a name of its own that leads here.
        ("GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n".to_owned(), 403),
        ("GET /metrics HTTP/1.1\r\n\r\n".to_owned(), 403),
        ("POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".to_owned(), 405),
        ("GET /else HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".to_owned(), 404),
        (format!("GET / HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(9_000)), 431),
    ] {
        assert_eq!(at.send(&head).await.status, status, "{}", &head[..40.min(head.len())]);
    }
}

#[tokio::test]
async fn an_address_that_other_machines_reach_is_refused_without_a_word() {
    let shell =
        crate::backends::stage::prepared("nats://127.0.0.1:1", POLICY, "[telemetry]\nlisten = \"0.0.0.0:9464\"\n");
    let failed = shell.run("serve demo --check");
    assert!(failed.stderr.contains("allow_remote"), "{}", failed.stderr);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateway_tells_how_it_is_doing_by_dialect_and_status() {
    let at = Listener::free();
    let stage = Stage::run(POLICY, "", &["serve", "demo"]).await;
    let (_gateway, door) = gateway(&stage.shell, at).await;
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"math/add","params":[2,3]}"#;
    assert_eq!(door.send(&post("/rpc/tools", body)).await.status, 200);
    assert_eq!(door.send(&post("/rpc/none", body)).await.status, 404);
    for number in 0..50 {
        door.send(&post(&format!("/made/up/{number}"), body)).await;
    }
    let samples = at.samples().await;
    let count = |dialect: &str, status: u16| {
        samples
            [&format!("sealwire_gateway_request_duration_seconds_count{{dialect=\"{dialect}\",status=\"{status}\"}}")]
    };
    assert_eq!((count("rpc", 200), count("rpc", 404), count("other", 404)), (1.0, 1.0, 50.0));
    assert_eq!(samples["sealwire_client_connected"], 1.0);
    assert!(samples.keys().all(|name| !name.contains("made")));
    // A file that it reads only at the start has changed.
    let credentials = stage.shell.read("planner.creds.json");
    stage.shell.write("planner.creds.json", &format!("{credentials}\n"));
    let counted = async {
        let applied = "sealwire_reloads_total{what=\"credentials\",result=\"applied\"}";
        while at.samples().await.get(applied) != Some(&1.0) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    within(LONG, counted).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prometheus_scrapes_a_service_under_load() {
    if !prometheus::is_installed() {
        return;
    }
    let at = Listener::free();
    let stage = Stage::run(POLICY, &at.section(), &["serve", "demo"]).await;
    at.is_ready(200).await;
    let config = format!(
        "global:\n  scrape_interval: 500ms\nscrape_configs:\n  - job_name: sealwire\n    static_configs:\n      - targets: [\"{}\"]\n",
        at.0
    );
    stage.shell.write("prometheus.yml", &config);
    let prometheus = Prometheus::start(&stage.shell).await;

    let load = {
        let client = stage.client.clone();
        tokio::spawn(async move {
            for number in 0_u64.. {
                drop(client.call::<f64>("tools", "math/add", (number, 1)).await);
                let name = format!("made/up{number}");
                drop(client.call::<Value>("tools", &name, json!([])).await);
            }
        })
    };
    // Each has data, and the scrape is one of OpenMetrics, which Prometheus asks for.
    for expression in [
        "up == 1",
        "rate(rpc_server_call_duration_seconds_count{rpc_method=\"math/add\",error_type=\"\"}[30s]) > 0",
        "histogram_quantile(0.99, rate(rpc_server_call_duration_seconds_bucket{rpc_method=\"math/add\"}[30s])) > 0",
        "rate(rpc_server_call_duration_seconds_count{rpc_method=\"_OTHER\"}[30s]) > 0",
        "rate(sealwire_messages_total{result=\"executed\"}[30s]) > 0",
        "sum by (stage) (rate(sealwire_stage_duration_seconds_sum[30s])) > 0",
        "rate(sealwire_refusals_total{reason=\"unknown_method\"}[30s]) > 0",
        "sealwire_guard_up == 1 and sealwire_ready == 1 and sealwire_bus_connected == 1",
        "sealwire_guard_nonces > 0",
        "sealwire_policy_info",
        "sealwire_build_info",
        "scrape_samples_scraped < 1000",
    ] {
        let there = prometheus.has_data(expression).await;
        assert!(there, "no data for {expression}: {}", at.get("/metrics").await.body);
    }
    load.abort();
    // Names, types and texts.
    let metrics = at.get("/metrics").await.body;
    assert_eq!(promtool(&stage.shell.path(""), &["check", "metrics"], &metrics), "");
}
