//! Traces: what is in a span, who decides which calls are recorded, and what a collector can do that misbehaves. docs/observability.md.

mod faults;
mod nested;
mod own;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use prometheus_client::encoding::prometheus_text;
use sealwire::internal::export::{TraceOptions, WantedTraces};
use sealwire::internal::trace::SpanContext;
use sealwire::metrics::{Registry, Report as _};
use sealwire::serve::QuotaLimits;
use sealwire::traces::Traces;
use sealwire::{Ctx, Router, RpcError, ServiceLimits};
use sealwire_testkit::collector::Collector;
use sealwire_testkit::desk::{Agent, Desk, OPEN_POLICY, call};
use serde_json::{Value, json};

/// Spans go there, of this part of the calls whose callers say nothing.
fn traces_with(url: &str, sample: f64, variables: &[(&str, &str)]) -> Traces {
    let wanted =
        WantedTraces { endpoint: Some(url), sample, service: "desk", namespace: Some("test"), ..Default::default() };
    // An answer may take longer than any machine stands still.
    let all = || variables.iter().chain(&[("OTEL_EXPORTER_OTLP_TIMEOUT", "60000")]);
    let variable = |name: &str| all().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned());
    Traces::start(TraceOptions::new(&wanted, &variable, &|_| Err("no files".to_owned())).unwrap().unwrap())
}

fn traces(url: &str, sample: f64) -> Traces {
    traces_with(url, sample, &[("OTEL_BSP_SCHEDULE_DELAY", "50")])
}

/// What became of spans.
fn counts(traces: &Traces) -> impl Fn() -> BTreeMap<String, u64> + use<> {
    let mut registry = Registry::default();
    traces.report_to(&mut registry);
    move || {
        let mut written = String::new();
        prometheus_text::encode(&mut written, &registry).unwrap();
        let short =
            |name: &str| name.replace("sealwire_trace_", "").replace("spans_total{result=\"", "").replace("\"}", "");
        let lines = written.lines().filter(|line| !line.starts_with('#'));
        lines
            .map(|line| {
                line.rsplit_once(' ').map(|(name, value)| (short(name), value.parse::<f64>().unwrap() as u64)).unwrap()
            })
            .collect()
    }
}

fn desk(policy: &'static str) -> Desk {
    let router = Router::new(())
        .method("desk/echo", |_: Ctx, params: Value| async move { Ok::<_, RpcError>(params) })
        .method("desk/parent", |ctx: Ctx, (): ()| async move { Ok::<_, RpcError>(ctx.trace().traceparent()) })
        .method("desk/fail", |_: Ctx, (): ()| async { Err::<(), _>(RpcError::application(7, "hunter2")) });
    let most = u32::MAX;
    let quota = QuotaLimits { per_second: most, burst: most, in_flight: most };
    Desk::open_with(router, policy, ServiceLimits { quota, ..ServiceLimits::default() })
}

async fn ask(desk: &Desk, agent: &Agent, text: &str, parent: Option<&str>) -> String {
    let letter = desk.letter_claiming(agent, text, |claims| claims.tp = parent.map(str::to_owned));
    desk.answer(&letter).await.unwrap()
}

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn named<'s>(spans: &'s [Value], name: &str) -> &'s Value {
    let found: Vec<_> = spans.iter().filter(|span| span["name"] == name).collect();
    assert_eq!(found.len(), 1, "{name}: {spans:#?}");
    found[0]
}

#[tokio::test]
async fn spans_say_what_the_conventions_ask_for_and_nothing_of_parameters_or_results() {
    let (collector, desk) = (Collector::start().await, desk("[role.worker]\nallow = [\"desk/*\"]\n"));
    let ann = desk.agent("ann", &["worker"]);
    let traces = traces(&collector.url(), 0.0);
    desk.service.trace(traces.tracer());
    ask(&desk, &ann, &call("desk/echo", "[\"hunter2\"]"), Some(PARENT)).await;
    ask(&desk, &ann, &call("desk/fail", "[]"), Some(PARENT)).await;
    ask(&desk, &ann, &call("made/up", "[]"), Some(PARENT)).await;
    let batch = format!(
        "[{},{}]",
        call("desk/parent", "[]"),
        json!({"jsonrpc": "2.0", "method": "desk/echo", "params": ["x"]})
    );
    let answer = ask(&desk, &ann, &batch, Some(PARENT)).await;
    traces.close().await;

    let received = collector.received();
    let head = received[0].head.to_ascii_lowercase();
    assert!(head.starts_with("post /v1/traces http/1.1\r\n"), "{head}");
    assert!(head.contains("\r\ncontent-type: application/x-protobuf\r\n"), "{head}");
    for secret in ["hunter2", &ann.token, "_INBOX"] {
        let is_there =
            received.iter().any(|one| one.body.windows(secret.len()).any(|bytes| bytes == secret.as_bytes()));
        assert!(!is_there, "{secret}");
    }
    let Some(spans) = collector.spans() else { return };
    assert_eq!(spans.len(), 6, "{spans:#?}");
    for span in &spans {
        assert_eq!((span["trace"].as_str(), span["scope"].as_str()), (Some(&PARENT[3..35]), Some("sealwire")));
        assert_eq!(
            (&span["resource"]["service.name"], &span["resource"]["service.namespace"]),
            (&json!("desk"), &json!("test"))
        );
        assert!(span["took_ns"].as_i64().unwrap() > 0 && span["attributes"]["sealwire.agent"] == "ann", "{span}");
        let message = span["attributes"]["sealwire.message.id"].as_str().unwrap();
        assert_eq!(message.len(), 22);
    }
    let revision = desk.service.policy().revision().to_string();
    let alone = spans.iter().find(|span| span["name"] == "desk/echo" && span["parent"] == PARENT[36..52]).unwrap();
    let mut attributes = alone["attributes"].clone();
    attributes.as_object_mut().unwrap().remove("sealwire.message.id");
    assert_eq!(
        (&attributes, &alone["kind"], &alone["failed"], &alone["flags"]),
        (
            &json!({
                "rpc.system.name": "jsonrpc", "rpc.method": "desk/echo", "jsonrpc.request.id": "1", "sealwire.agent": "ann",
                "sealwire.decision": attributes["sealwire.decision"], "sealwire.rule": attributes["sealwire.rule"],
                "sealwire.policy.revision": revision,
            }),
            &json!("server"),
            &json!(false),
            // Sampled, and the parent is known to be another program's.
            &json!(0x301),
        )
    );
    let failed = named(&spans, "desk/fail");
    assert_eq!(
        (&failed["attributes"]["rpc.response.status_code"], &failed["attributes"]["error.type"]),
        (&json!("7"), &json!("7"))
    );
    assert!(failed["failed"].as_bool().unwrap());
    let unknown = named(&spans, "_OTHER");
    assert_eq!(unknown["attributes"]["rpc.method"], "_OTHER");
    assert!(!unknown.to_string().contains("made"), "{unknown}");
    // The entries of a batch have one parent, and what each does continues its own span.
    let whole = named(&spans, "batch");
    assert_eq!((&whole["kind"], &whole["attributes"]["sealwire.batch.entries"]), (&json!("internal"), &json!(2)));
    assert_eq!(whole["parent"], PARENT[36..52]);
    let entries: Vec<_> = spans.iter().filter(|span| span["parent"] == whole["id"]).collect();
    assert_eq!(entries.len(), 2, "{spans:#?}");
    let parent = named(&spans, "desk/parent");
    assert!(answer.contains(&format!("{}-{}-01", &PARENT[..35], parent["id"].as_str().unwrap())), "{answer}");
}

/// Otherwise one agent could have all of its calls recorded, at the operator's cost.
#[tokio::test]
async fn a_caller_that_sets_its_flag_on_each_call_is_recorded_within_a_rate_and_takes_nothing_from_others() {
    let (collector, desk) = (Collector::start().await, desk(OPEN_POLICY));
    let (ann, bob) = (desk.agent("ann", &["worker"]), desk.agent("bob", &["worker"]));
    let traces = traces(&collector.url(), 0.0);
    let counts = counts(&traces);
    desk.service.trace(traces.tracer());
    let began = Instant::now();
    for _ in 0..300 {
        ask(&desk, &ann, &call("desk/echo", "[]"), Some(PARENT)).await;
    }
    let seconds = began.elapsed().as_secs() + 1;
    ask(&desk, &bob, &call("desk/parent", "[]"), Some(PARENT)).await;
    // Nested calls of one that is not recorded are told so.
    while ask(&desk, &ann, &call("desk/parent", "[]"), Some(PARENT)).await.contains("-01\"") {}
    traces.close().await;
    let (exported, ignored) = (counts()["exported"], counts()["flags_ignored_total"]);
    // Ten at once of one, one of the other.
    assert!((11..=12 + 10 * (seconds + 2)).contains(&exported), "{exported} in {seconds} s");
    assert!(exported + ignored >= 302, "{exported} {ignored}");
    let Some(spans) = collector.spans() else { return };
    assert!(spans.iter().any(|span| span["attributes"]["sealwire.agent"] == "bob"));
}

/// Samplers decide by a trace's id, and a caller chooses its own.
#[tokio::test]
async fn no_trace_id_is_recorded_more_often_than_others() {
    let (collector, desk) = (Collector::start().await, desk(OPEN_POLICY));
    let ann = desk.agent("ann", &["worker"]);
    let traces = traces(&collector.url(), 0.01);
    let counts = counts(&traces);
    desk.service.trace(traces.tracer());
    let began = Instant::now();
    for number in 1..=600 {
        let chosen = format!("00-{number:016x}0000000000000000-00f067aa0ba902b7-01");
        ask(&desk, &ann, &call("desk/echo", "[]"), Some(&chosen)).await;
    }
    let seconds = began.elapsed().as_secs() + 1;
    traces.close().await;
    // Ten at once, ten a second, and one in a hundred of the others, which is six: sixty would be chance once in a lifetime.
    let exported = counts()["exported"];
    assert!(exported <= 10 + 10 * (seconds + 1) + 40, "{exported} in {seconds} s");
}

#[tokio::test]
async fn what_is_not_recorded_has_a_name_that_says_so_and_sends_nothing() {
    let (collector, desk) = (Collector::start().await, desk(OPEN_POLICY));
    let ann = desk.agent("ann", &["worker"]);
    let parent = async |parent| {
        let answer: Value = serde_json::from_str(&ask(&desk, &ann, &call("desk/parent", "[]"), parent).await).unwrap();
        answer["result"].as_str().map(str::to_owned)
    };
    // Without a tracer, what the caller says is passed on as it is.
    assert_eq!(parent(None).await, None);
    assert_eq!(parent(Some(PARENT)).await.as_deref(), Some(PARENT));
    let traces = traces(&collector.url(), 0.0);
    desk.service.trace(traces.tracer());
    let unsampled = PARENT.replace("-01", "-00");
    assert_eq!(parent(Some(&unsampled)).await.as_ref(), Some(&unsampled));
    let own = SpanContext::parse(&parent(None).await.unwrap()).unwrap();
    assert!(!own.is_sampled && SpanContext::parse(&parent(None).await.unwrap()).unwrap().trace != own.trace);
    traces.close().await;
    assert!(collector.received().is_empty());
}

/// `always_on` and its like do as the operator says, whatever callers say.
#[tokio::test]
async fn the_operators_sampler_decides() {
    for (sampler, argument, parent, recorded) in [
        ("always_on", "", Some(PARENT.replace("-01", "-00")), true),
        ("always_off", "", Some(PARENT.to_owned()), false),
        ("traceidratio", "0", Some(PARENT.to_owned()), false),
        ("parentbased_always_on", "", None, true),
        ("parentbased_always_on", "", Some(PARENT.replace("-01", "-00")), false),
        ("parentbased_always_off", "", Some(PARENT.to_owned()), true),
    ] {
        let (collector, desk) = (Collector::start().await, desk(OPEN_POLICY));
        let variables = [("OTEL_TRACES_SAMPLER", sampler), ("OTEL_TRACES_SAMPLER_ARG", argument)];
        let traces = traces_with(&collector.url(), 0.5, &variables);
        desk.service.trace(traces.tracer());
        ask(&desk, &desk.agent("ann", &["worker"]), &call("desk/echo", "[]"), parent.as_deref()).await;
        traces.close().await;
        assert_eq!(!collector.received().is_empty(), recorded, "{sampler} {argument} {parent:?}");
    }
}

/// A method that is given up has a span that says so.
#[tokio::test]
async fn a_call_that_is_dropped_has_a_span_that_says_so() {
    let collector = Collector::start().await;
    let router = Router::new(()).method("desk/wait", |_: Ctx, (): ()| async {
        std::future::pending::<()>().await;
        Ok::<_, RpcError>(())
    });
    let desk = Desk::open_with(router, OPEN_POLICY, ServiceLimits::default());
    let traces = traces(&collector.url(), 1.0);
    desk.service.trace(traces.tracer());
    let letter = desk.letter(&desk.agent("ann", &["worker"]), &call("desk/wait", "[]"));
    // The first poll goes as far as the method waits.
    assert!(tokio::time::timeout(Duration::from_millis(1), desk.answer(&letter)).await.is_err());
    traces.close().await;
    let Some(spans) = collector.spans() else { return };
    assert_eq!(named(&spans, "desk/wait")["attributes"]["error.type"], "given_up");
}
