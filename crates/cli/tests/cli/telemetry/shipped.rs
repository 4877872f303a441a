//! The files of deploy/observability/: Prometheus takes each expression, has data for it, and knows its families and labels.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use nkeys::{KeyPair, XKey};
use sealwire_testkit::{NatsServer, root, within};
use serde_json::{Value, json};
use tokio::process::Child;

use super::page::{family, labels};
use super::prometheus::{Prometheus, is_installed, promtool};
use super::stage::{BACKEND, Listener, gateway, post};
use crate::backends::stage::{LONG, POLICY, Stage, prepared};
use crate::shell::Shell;

fn folder() -> PathBuf {
    root().join("deploy/observability")
}

fn text(name: &str) -> String {
    std::fs::read_to_string(folder().join(name)).unwrap()
}

fn dashboard() -> Value {
    serde_json::from_str(&text("dashboard.json")).unwrap()
}

/// What a word outside strings and durations is, beside families and labels.
const OPERATORS: [&str; 6] = ["sum", "min", "max", "count", "histogram_quantile", "or"];

/// The labels that Prometheus adds, and that of a bucket.
const ADDED: [&str; 3] = ["job", "instance", "le"];

/// The families that an expression names. It must name one, and every other word must be a label of these or something of PromQL.
fn named<'l>(expression: &str, labels: &'l BTreeMap<String, BTreeSet<String>>) -> BTreeSet<&'l str> {
    let outside: String = expression.split('"').step_by(2).collect();
    let mut words = Vec::new();
    let mut rest = outside.as_str();
    let is_of_word = |byte: char| byte == '_' || byte == '.' || byte.is_ascii_alphanumeric();
    while let Some(begin) = rest.find(is_of_word) {
        let word = &rest[begin..];
        let (word, after) = word.split_at(word.find(|byte| !is_of_word(byte)).unwrap_or(word.len()));
        // A function, `by` or `on`.
        if !after.trim_start().starts_with('(') && !word.starts_with(|byte: char| byte.is_ascii_digit()) {
            words.push(word);
        }
        rest = after;
    }
    let families: BTreeSet<&str> = words
        .iter()
        .filter_map(|word| labels.get_key_value(*word).or_else(|| labels.get_key_value(family(word))))
        .map(|(name, _)| name.as_str())
        .collect();
    assert!(!families.is_empty(), "{expression}: no family of the page");
    for word in words {
        let is_label = ADDED.contains(&word) || families.iter().any(|family| labels[*family].contains(word));
        let is_family = families.contains(word) || families.contains(family(word));
        assert!(is_label || is_family || OPERATORS.contains(&word), "{expression}: what is {word}?");
    }
    families
}

/// The expressions of the dashboard with the title of their panel, for all of what may be chosen.
fn shown() -> Vec<(String, String)> {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| {
        let targets = panel["targets"].as_array().into_iter().flatten();
        targets.map(|target| (panel["title"].as_str().unwrap(), target["expr"].as_str().unwrap()))
    });
    let variables = ["service", "replica", "method", "agent"];
    targets
        .map(|(title, expression)| {
            let expression = expression.replace("$__rate_interval", "10s");
            let all = variables.iter().fold(expression, |all, name| all.replace(&format!("${name}"), ".*"));
            assert!(!all.contains('$'), "{all}: an unknown variable");
            (title.to_owned(), all)
        })
        .collect()
}

#[test]
fn dashboard_can_be_imported_and_begins_with_calls() {
    let dashboard = dashboard();
    assert_eq!(dashboard["__inputs"][0]["name"], "DS_PROMETHEUS");
    let panels = dashboard["panels"].as_array().unwrap();
    let rows: Vec<&str> =
        panels.iter().filter(|it| it["type"] == "row").map(|it| it["title"].as_str().unwrap()).collect();
    let expected = [
        "Calls: rate, errors, duration",
        "Refusals",
        "Stages",
        "Agents",
        "Replay guard",
        "Replicas",
        "Backends",
        "Gateway",
        "Any NATS micro service, as the exporter sees it",
        "Auth callout: sealwire authd",
    ];
    assert_eq!(rows, expected);
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "an id is given twice");
    // Panels that overlap would be moved by Grafana.
    let mut cells = BTreeSet::new();
    for panel in panels {
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().unwrap());
        assert!(x + w <= 24, "{panel}");
        for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(cells.insert(cell), "{panel} overlaps");
        }
    }
    let variables: Vec<&Value> = dashboard["templating"]["list"].as_array().unwrap().iter().collect();
    assert_eq!(variables.len(), 4);
    let labels = labels();
    for variable in variables {
        let query = variable["query"]["query"].as_str().unwrap();
        let selector = query.strip_prefix("label_values(").and_then(|it| it.strip_suffix(')')).unwrap();
        let (selector, label) = selector.rsplit_once(", ").unwrap();
        named(&format!("sum by ({label}) ({selector})"), &labels);
    }
}

#[test]
fn promtool_takes_rules_configuration_and_tests() {
    if !is_installed() {
        return;
    }
    promtool(&folder(), &["check", "rules", "alerts.yml"], "");
    promtool(&folder(), &["check", "config", "prometheus.yml"], "");
    promtool(&folder(), &["test", "rules", "alerts.test.yml"], "");
}

#[test]
fn each_alert_has_a_test_that_fires_it_and_a_line_on_the_page() {
    let names = |text: &str| -> BTreeSet<String> {
        text.lines().filter_map(|line| Some(line.split_once("- alert: ")?.1.to_owned())).collect()
    };
    let alerts = names(&text("alerts.yml"));
    assert!(alerts.len() >= 7, "{alerts:?}");
    let page = std::fs::read_to_string(root().join("docs/observability.md")).unwrap();
    let described: BTreeSet<String> = page
        .lines()
        .filter_map(|line| Some(line.strip_prefix("| `Sealwire")?.split_once('`')?.0))
        .map(|name| format!("Sealwire{name}"))
        .collect();
    assert_eq!(alerts, described);
    let tests = text("alerts.test.yml");
    for alert in alerts {
        assert!(
            tests.contains(&format!("alertname: {alert}\n        exp_alerts:\n          - ")),
            "{alert} never fires"
        );
        assert!(tests.contains(&format!("alertname: {alert}, exp_alerts: [] }}")), "{alert} is never silent");
    }
}

/// A `sealwire authd`, which no broker asks.
fn authd(shell: &Shell, url: &str, at: Listener) -> Child {
    let secrets = [
        ("issuer.nk", KeyPair::new_account().seed().unwrap()),
        ("authd.xk", XKey::new().seed().unwrap()),
        ("authd.nats.json", json!({ "urls": [url] }).to_string()),
    ];
    for (file, text) in secrets {
        shell.write(file, &text);
        shell.set_mode(file, 0o600);
    }
    let at = at.0.to_string();
    let files = ["--login", "authd.nats.json", "--issuer", "issuer.nk", "--xkey", "authd.xk", "--listen", &at];
    let mut command = tokio::process::Command::from(shell.command(&[&["authd"], &files[..]].concat()));
    command.stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true).spawn().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expressions_of_dashboard_and_alerts_have_data_of_a_service_and_a_gateway() {
    if !is_installed() {
        return;
    }
    let server = NatsServer::start().await;
    let at = Listener::free();
    let shell = prepared(&server.url(), POLICY, &format!("{}[record]\nfolder = \"records\"\n{BACKEND}", at.section()));
    // It has families that a guard in the process does not have.
    let config = shell.read("sealwire.toml").replace("skew_s = 0", "guard = \"shared\"\nskew_s = 1");
    shell.write("sealwire.toml", &config);
    let stage = Stage::begin(server, shell, &["serve"], &std::env::var("PATH").unwrap()).await.ready().await;
    at.is_ready(200).await;
    let of_gateway = Listener::free();
    let (_gateway, door) = gateway(&stage.shell, of_gateway).await;
    let of_exporter = Listener::free();
    let (at_exporter, broker) = (of_exporter.0.to_string(), stage.server.url());
    let exporter = ["exporter", "--listen", &at_exporter, "--url", &broker, "--every", "1s", "--within", "500ms"];
    let mut exporter = tokio::process::Command::from(stage.shell.command(&exporter));
    exporter.stdout(Stdio::null()).stderr(Stdio::null());
    let _exporter = exporter.kill_on_drop(true).spawn().unwrap();
    of_exporter.is_listening().await;
    of_exporter.is_ready(200).await;

    let of_authd = Listener::free();
    let _authd = authd(&stage.shell, &stage.server.url(), of_authd);
    of_authd.is_listening().await;
    of_authd.is_ready(200).await;
    let stranger = stage.server.client().await;

    // The shipped files, with the addresses of these four.
    let mut config = text("prometheus.yml").replace("15s", "500ms");
    let all = [
        ("127.0.0.1:9464", at),
        ("127.0.0.1:9465", of_exporter),
        ("127.0.0.1:9466", of_gateway),
        ("127.0.0.1:9467", of_authd),
    ];
    for (shipped, here) in all {
        assert_eq!(config.matches(shipped).count(), 1, "{shipped}");
        config = config.replace(shipped, &here.0.to_string());
    }
    stage.shell.write("prometheus.yml", &config);
    stage.shell.write("alerts.yml", &text("alerts.yml"));
    let prometheus = Prometheus::start(&stage.shell).await;
    let load = {
        let client = stage.client.clone();
        tokio::spawn(async move {
            for number in 0_u64.. {
                drop(client.call::<Value>("tools", "words/say", json!({})).await);
                drop(client.call::<Value>("tools", &format!("made/up{number}"), json!({})).await);
                let body = r#"{"jsonrpc":"2.0","id":1,"method":"words/say","params":{}}"#;
                door.send(&post("/rpc/tools", body)).await;
                // No question of a broker, which is counted.
                drop(stranger.publish("$SYS.REQ.USER.AUTH", "x".into()).await);
            }
        })
    };

    let labels = labels();
    let mut without_samples = BTreeSet::new();
    assert!(
        prometheus.has_data("rate(sealwire_gateway_request_duration_seconds_count{status=\"200\"}[10s]) > 0").await
    );
    assert!(prometheus.has_data("rate(nats_micro_requests_total[10s]) > 0").await);
    assert!(prometheus.has_data("rate(sealwire_authd_questions_total[10s]) > 0").await);
    let mut exposed = String::new();
    for listener in [at, of_gateway, of_authd] {
        exposed.push_str(&listener.get("/metrics").await.body);
    }
    // On a machine that has stalled, the replica may have missed the exporter's last round.
    let asked = async {
        loop {
            let body = of_exporter.get("/metrics").await.body;
            if body.contains("\nnats_micro_requests_total{") {
                break body;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    exposed.push_str(&within(LONG, asked).await);
    let is_exposed = |name: &&str| exposed.contains(&format!("# TYPE {name} "));
    let has_samples = |name: &&str| {
        exposed.lines().any(|line| family(line.split(['{', ' ']).next().unwrap()) == *name && !line.starts_with('#'))
    };
    let shown = shown();
    assert!(shown.len() > 50, "{}", shown.len());
    for (title, expression) in &shown {
        let families = named(expression, &labels);
        assert!(families.iter().all(is_exposed), "{title}: {expression}: nobody has all of {families:?}");
        if families.iter().all(has_samples) {
            assert!(prometheus.has_data(expression).await, "{title}: no data for {expression}: {exposed}");
        } else {
            // It must be one that Prometheus accepts.
            prometheus.series(expression).await;
            without_samples.extend(families.into_iter().filter(|name| !has_samples(name)));
        }
    }
    // There are no rules in shadow mode here, no keys that end, no certificates, and no bucket of revocations.
    let expected = [
        "sealwire_authd_revocations_age_seconds",
        "sealwire_certificate_not_after_timestamp_seconds",
        "sealwire_key_not_after_timestamp_seconds",
        "sealwire_shadow_decisions_total",
    ];
    assert_eq!(without_samples, BTreeSet::from(expected));

    let data = prometheus.ask("rules").await;
    let rules = data["groups"][0]["rules"].as_array().unwrap();
    assert!(rules.len() >= 7, "{data}");
    for rule in rules {
        let expression = rule["query"].as_str().unwrap();
        assert!(named(expression, &labels).iter().all(is_exposed), "{rule}");
        prometheus.series(expression).await;
        assert_ne!(rule["health"], "err", "{rule}");
    }
    load.abort();
}
