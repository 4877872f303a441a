//! Programs with a subscriber and an OpenTelemetry of their own: our spans arrive there, in the caller's trace.

use opentelemetry::trace::{SpanKind, Status, TracerProvider as _};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use sealwire_testkit::desk::{OPEN_POLICY, call};
use tracing_subscriber::layer::SubscriberExt as _;

use super::{PARENT, ask, desk};

fn attribute(span: &SpanData, key: &str) -> Option<String> {
    span.attributes.iter().find(|pair| pair.key.as_str() == key).map(|pair| pair.value.to_string())
}

#[tokio::test]
async fn spans_arrive_in_the_programs_own_opentelemetry_with_the_callers_span_as_parent() {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("own"));
    // With a single subscriber in the process, `tracing` lets a thread that has none, as other tests have, switch off what it reaches first.
    let _another = tracing::Dispatch::new(tracing_subscriber::registry());
    let guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
    let desk = desk(OPEN_POLICY);
    let ann = desk.agent("ann", &["worker"]);
    let answer = ask(&desk, &ann, &call("desk/parent", "[]"), Some(PARENT)).await;
    ask(&desk, &ann, &call("desk/fail", "[]"), Some(PARENT)).await;
    let batch = format!("[{}]", call("desk/echo", "[]"));
    ask(&desk, &ann, &batch, Some(PARENT)).await;
    // One agent's flags count within a rate here, too: the parent says whether they did.
    for _ in 0..50 {
        ask(&desk, &ann, &call("desk/echo", "[1]"), Some(PARENT)).await;
    }
    drop(guard);
    provider.force_flush().unwrap();
    let spans = exporter.get_finished_spans().unwrap();
    let named =
        |name: &str| spans.iter().find(|span| span.name == name).unwrap_or_else(|| panic!("{name}: {spans:#?}"));
    let served = named("desk/parent");
    assert_eq!(format!("{}", served.span_context.trace_id()), PARENT[3..35]);
    assert_eq!(format!("{}", served.parent_span_id), PARENT[36..52]);
    assert!(served.parent_span_is_remote);
    assert_eq!((&served.span_kind, &served.status), (&SpanKind::Server, &Status::Unset));
    assert_eq!(attribute(served, "rpc.method").as_deref(), Some("desk/parent"));
    assert_eq!(attribute(served, "sealwire.agent").as_deref(), Some("ann"));
    // What nested calls continue is that span, under the name that it has there.
    assert!(answer.contains(&format!("{}-{}-01", &PARENT[..35], served.span_context.span_id())), "{answer}");
    let failed = named("desk/fail");
    assert!(matches!(failed.status, Status::Error { .. }), "{failed:?}");
    let (whole, entry) = (named("batch"), named("desk/echo"));
    assert_eq!(format!("{}", whole.parent_span_id), PARENT[36..52]);
    assert_eq!(entry.parent_span_id, whole.span_context.span_id());
    assert!(spans.len() < 40, "{}", spans.len());
}
