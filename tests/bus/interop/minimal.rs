//! The client of 150 lines that was written from the client's part of the specification alone, against a real service.

use std::fs;
use std::path::Path;

use async_nats::ConnectOptions;
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use sealwire::Service;
use sealwire::internal::files::write_secret;
use sealwire::serve::{Delivery, Sealed};
use sealwire_testkit::python::python;
use sealwire_testkit::{NatsServer, SOON, publish, within};
use serde_json::{Value, json};

use super::{PERMISSIONS, script, this_service};

/// SPEC.md §6, SPEC.md §9.1, SPEC.md §12, SPEC.md §13, SPEC.md §14, SPEC.md §20.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn minimal_client_is_answered_and_told_errors_and_believes_no_forgery() {
    let lines = fs::read_to_string(script("minimal_client.py")).unwrap().lines().count();
    assert!(lines <= 150, "{lines} lines are not what the documents say");
    let Some(python) = python() else { return };
    let server = NatsServer::start_with(PERMISSIONS).await;
    let folder = tempfile::tempdir().unwrap();
    let service = this_service(folder.path(), &server.url());
    let serving = tokio::spawn(serve_and_forge(service, server.url()));
    let cases = [
        (["math", "math/add", "[1, 2]"], json!({"outcome": "result", "result": 3.0})),
        (["math", "math/add", r#"{"a": 60, "b": 6}"#], json!({"outcome": "result", "result": 66.0})),
        (["math", "math/add", "[40, 4]"], json!({"outcome": "unverifiable", "why": "9: with another payload"})),
        (["math", "math/add", "[50, 5]"], json!({"outcome": "unverifiable", "why": "1: not one header of this form"})),
        (["math", "admin/reset", "[]"], json!({"outcome": "error", "code": -32002, "message": "permission denied"})),
    ];
    // The first has an HMAC key, the second an Ed25519 key.
    for agent in ["planner", "scout"] {
        let credentials = folder.path().join(format!("{agent}.creds.json"));
        let outcomes = join_all(cases.iter().map(|(call, _)| run(python, &credentials, *call))).await;
        for (outcome, (call, expected)) in outcomes.iter().zip(&cases) {
            assert_eq!(outcome, expected, "{agent}: {call:?}");
        }
        let another = folder.path().join(format!("{agent}.another-key.creds.json"));
        with_another_key(&credentials, &another);
        let hint = run(python, &another, ["math", "math/add", "[1, 2]"]).await;
        assert_eq!(hint, json!({"outcome": "hint", "code": -32010}), "{agent}");
    }
    let planner = folder.path().join("planner.creds.json");
    let hint = run(python, &planner, ["ops", "math/add", "[1, 2]"]).await;
    assert_eq!(hint, json!({"outcome": "hint", "code": 503}), "nobody serves it");
    assert!(!serving.is_finished(), "the service ended");
    serving.abort();
}

/// Answers calls, and forges the answers whose sum is 44 (changed), 55 (signed by nobody) and 66 (both, before the real one).
async fn serve_and_forge(service: Service, url: String) {
    let bus = ConnectOptions::with_user_and_password("svc".to_owned(), "interop".to_owned());
    let bus = within(SOON, bus.connect(url)).await.unwrap();
    let mut deliveries = within(SOON, bus.subscribe(service.endpoint().subscription())).await.unwrap();
    within(SOON, bus.flush()).await.unwrap();
    let forge = async |sealed: &Sealed, is_signed: bool| {
        let (to, payload) = (sealed.to().to_owned(), sealed.payload().clone());
        let text = String::from_utf8(payload.to_vec()).unwrap().replace(".0", "7.0");
        let headers = sealed.headers().filter(|_| is_signed).cloned().unwrap_or_default();
        within(SOON, bus.publish_with_headers(to, headers, text.into())).await.unwrap();
    };
    while let Some(message) = deliveries.next().await {
        let Some(sealed) = service.handle(Delivery::from(message)).await else { continue };
        let response: Value = serde_json::from_slice(sealed.payload()).unwrap();
        match response["result"].as_f64() {
            Some(44.0) => forge(&sealed, true).await,
            Some(55.0) => forge(&sealed, false).await,
            Some(66.0) => {
                forge(&sealed, true).await;
                forge(&sealed, false).await;
                publish(&bus, sealed).await;
            }
            _ => publish(&bus, sealed).await,
        }
    }
}

/// The one line of JSON that the client prints about a call.
async fn run(python: &Path, credentials: &Path, call: [&str; 3]) -> Value {
    let mut command = tokio::process::Command::new(python);
    command.arg("-B").arg(script("minimal_client.py")).arg(credentials).args(call).arg("5000").kill_on_drop(true);
    let output = within(4 * SOON, command.output()).await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let said: Value = serde_json::from_str(&text)
        .unwrap_or_else(|_| panic!("{call:?}: {text}{}", String::from_utf8_lossy(&output.stderr)));
    assert_eq!(output.status.success(), said["outcome"] == "result", "{said}");
    said
}

/// The same credentials, with the bytes of another key under the same id.
fn with_another_key(from: &Path, to: &Path) {
    let mut credentials: Value = serde_json::from_slice(&fs::read(from).unwrap()).unwrap();
    let name = if credentials["key"]["alg"] == "HS256" { "secret" } else { "seed" };
    credentials["key"][name] = json!("A".repeat(43));
    write_secret(to, &credentials.to_string(), false).unwrap();
}
