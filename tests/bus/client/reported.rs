//! What a client reports to the registry of its program.

use prometheus_client::encoding::prometheus_text;
use sealwire::ClientError;
use sealwire::metrics::{Registry, Report as _};
use sealwire_testkit::{SOON, free_port, within};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::Stage;

fn text(registry: &Registry) -> String {
    let mut written = String::new();
    prometheus_text::encode(&mut written, registry).unwrap();
    written
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_reports_outcomes_by_service_until_it_is_dropped() {
    let stage = Stage::open().await;
    let _serving = stage.serve().await;
    let client = stage.client("ann").await;
    let mut registry = Registry::default();
    client.report_to(&mut registry);
    for _ in 0..3 {
        within(SOON, client.call::<i64>("desk", "desk/add", serde_json::json!({"a": 1, "b": 2}))).await.unwrap();
    }
    within(SOON, client.call::<i64>("desk", "desk/fail", ())).await.unwrap_err();
    within(SOON, client.call::<i64>("desk", "vault/open", ())).await.unwrap_err();
    let error = within(SOON, client.call::<i64>("nobody", "desk/add", ())).await.unwrap_err();
    assert!(matches!(error, ClientError::NoResponders { .. } | ClientError::Invalid(_)), "{error}");
    let written = text(&registry);
    for (service, error, count) in [("desk", "", 3), ("desk", "application", 1), ("desk", "-32002", 1)] {
        let sample =
            format!("rpc_client_call_duration_seconds_count{{service=\"{service}\",error_type=\"{error}\"}} {count}\n");
        assert!(written.contains(&sample), "{sample}{written}");
    }
    assert!(written.contains("sealwire_client_connected 1"), "{written}");
    drop(client);
    assert!(!text(&registry).contains("sealwire_client_connected"));
}

/// A program of the library's user, with the same file as `sealwire serve`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn program_with_a_configuration_tells_how_it_is_doing() {
    let server = sealwire_testkit::NatsServer::start().await;
    let site = sealwire_testkit::site::Site::new(&server.url());
    let port = free_port();
    site.write_config(&format!("[telemetry]\nlisten = \"127.0.0.1:{port}\"\n"));
    let program = tokio::spawn(site.config().serve_until(sealwire_testkit::site::methods(), std::future::pending()));
    let ready = async {
        loop {
            if let Ok(mut socket) = tokio::net::TcpStream::connect(("127.0.0.1", port)).await {
                socket.write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
                let mut answer = String::new();
                socket.read_to_string(&mut answer).await.unwrap();
                if answer.starts_with("HTTP/1.1 200 ") {
                    break;
                }
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    within(SOON, ready).await;
    program.abort();
    assert!(program.await.unwrap_err().is_cancelled());
    // The listener ends with the program's future.
    let gone = async {
        while tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    within(SOON, gone).await;
}
