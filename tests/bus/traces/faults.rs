//! What a collector can do that misbehaves: calls never notice, and what is lost is counted.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sealwire_testkit::collector::{Answer, Collector};
use sealwire_testkit::desk::{Desk, OPEN_POLICY, call};
use sealwire_testkit::{SOON, free_port, within};

use super::{ask, counts, desk, traces, traces_with};

/// Waits until so many spans were taken: the end does not wait long for it.
async fn exported(counts: &impl Fn() -> BTreeMap<String, u64>, spans: u64) {
    let taken = async {
        while counts()["exported"] < spans {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(SOON, taken).await;
}

async fn calls(desk: &Desk, number: usize) {
    let ann = desk.agent("ann", &["worker"]);
    for _ in 0..number {
        assert!(ask(desk, &ann, &call("desk/echo", "[]"), None).await.contains("\"result\":[]"));
    }
}

/// Longer than the end takes, on a busy machine, and not as long as an answer may take here.
const ENDED: Duration = Duration::from_secs(45);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_is_away_or_silent_costs_calls_nothing_and_two_seconds_at_the_end() {
    let silent = Collector::answering(|_| Answer::Silence).await;
    for url in [format!("http://127.0.0.1:{}", free_port()), silent.url()] {
        let (desk, traces) = (desk(OPEN_POLICY), traces(&url, 1.0));
        let counts = counts(&traces);
        desk.service.trace(traces.tracer());
        calls(&desk, 20).await;
        let began = Instant::now();
        traces.close().await;
        assert!(began.elapsed() < ENDED, "{url}: {:?}", began.elapsed());
        let counts = counts();
        assert_eq!((counts["exported"], counts["failed"] + counts["queue_spans"]), (0, 20), "{url}: {counts:?}");
    }
}

/// Nothing of it is followed, kept or trusted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_is_no_answer_and_redirects_are_not_followed() {
    let elsewhere = Collector::start().await;
    let moved = format!("HTTP/1.1 307 Moved\r\nlocation: {}/v1/traces\r\ncontent-length: 0\r\n\r\n", elsewhere.url());
    let with = |head: &str| format!("HTTP/1.1 {head}\r\ncontent-length: 0\r\n\r\n");
    // The answer, and how many of ten spans it means were taken.
    for (name, answer, taken) in [
        ("error", with("500 Oops"), 0),
        ("refusal", with("400 No"), 0),
        ("redirect", moved, 0),
        ("no HTTP", "hello\r\n\r\n".to_owned(), 0),
        ("text", "HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n<html>".to_owned(), 10),
        ("some refused", "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n\u{a}\u{2}\u{8}\u{3}".to_owned(), 7),
        ("more refused than sent", "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n\u{a}\u{2}\u{8}\u{63}".to_owned(), 0),
    ] {
        let is_closed = name == "no HTTP";
        let collector = Collector::answering(move |_| Answer::Raw(answer.clone())).await;
        let (desk, traces) = (desk(OPEN_POLICY), traces_with(&collector.url(), 1.0, &[]));
        let counts = counts(&traces);
        desk.service.trace(traces.tracer());
        calls(&desk, 10).await;
        traces.close().await;
        let counts = counts();
        assert_eq!(counts["exported"], taken, "{name}: {counts:?}");
        assert_eq!(counts["exported"] + counts["failed"] + counts["refused"], 10, "{name}: {counts:?}");
        // What is wrong for good is not sent again.
        assert!(is_closed || collector.received().len() == 1, "{name}: {}", collector.received().len());
    }
    assert!(elsewhere.received().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_without_end_is_cut() {
    for head in ["HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 500 No\r\n\r\n", "HTTP/1.1 200 OK\r\nx: "] {
        let collector = Collector::answering(move |_| Answer::Endless(head)).await;
        let (desk, traces) = (desk(OPEN_POLICY), traces(&collector.url(), 1.0));
        desk.service.trace(traces.tracer());
        calls(&desk, 5).await;
        collector.has_received(1).await;
        let began = Instant::now();
        traces.close().await;
        assert!(began.elapsed() < ENDED, "{head}: {:?}", began.elapsed());
    }
}

/// The specification of OTLP: 429, 502, 503 and 504 are temporary, and `Retry-After` is to be obeyed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_temporary_is_tried_again_when_the_collector_wants_it() {
    for (status, after) in [(429, Some(2)), (502, None), (503, Some(1)), (504, None)] {
        let retry = after.map(|seconds| format!("retry-after: {seconds}\r\n")).unwrap_or_default();
        let refusal = format!("HTTP/1.1 {status} Later\r\n{retry}content-length: 0\r\n\r\n");
        let collector = Collector::answering(move |number| match number {
            0 => Answer::Raw(refusal.clone()),
            _ => Answer::Taken,
        });
        let collector = collector.await;
        let (desk, traces) = (desk(OPEN_POLICY), traces(&collector.url(), 1.0));
        let counts = counts(&traces);
        desk.service.trace(traces.tracer());
        calls(&desk, 1).await;
        collector.has_received(2).await;
        // The first was answered after it was there.
        let received = collector.received();
        let pause = received[1].at.duration_since(received[0].at);
        assert!(pause >= Duration::from_secs(after.unwrap_or(0)), "{status}: {pause:?}");
        exported(&counts, 1).await;
        traces.close().await;
        assert_eq!((counts()["exported"], counts()["failed"]), (1, 0), "{status}");
        let [first, second] = &collector.received()[..] else { panic!("{status}") };
        assert_eq!(first.body, second.body);
    }
}

/// Nothing is sent before the collector wants something again, even if the spans that it refused are lost by then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_wants_nothing_for_long_is_left_alone() {
    let later = "HTTP/1.1 503 Later\r\nretry-after: 3600\r\ncontent-length: 0\r\n\r\n";
    let collector = Collector::answering(move |_| Answer::Raw(later.to_owned())).await;
    let (desk, traces) = (desk(OPEN_POLICY), traces(&collector.url(), 1.0));
    let counts = counts(&traces);
    desk.service.trace(traces.tracer());
    calls(&desk, 1).await;
    collector.has_received(1).await;
    calls(&desk, 10).await;
    // Many times as long as spans wait for others here.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(collector.received().len(), 1);
    let began = Instant::now();
    traces.close().await;
    assert!(began.elapsed() < ENDED, "{:?}", began.elapsed());
    assert_eq!(counts()["failed"], 11, "{:?}", counts());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spans_that_find_no_room_are_counted_and_calls_go_on() {
    let collector = Collector::answering(|_| Answer::Silence).await;
    let small = [("OTEL_BSP_MAX_QUEUE_SIZE", "5"), ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "5")];
    let (desk, traces) = (desk(OPEN_POLICY), traces_with(&collector.url(), 1.0, &small));
    let counts = counts(&traces);
    desk.service.trace(traces.tracer());
    calls(&desk, 5).await;
    collector.has_received(1).await;
    calls(&desk, 100).await;
    let full = counts();
    assert_eq!((full["queue_spans"], full["dropped"]), (5, 95), "{full:?}");
    traces.close().await;
    let counts = counts();
    assert_eq!(counts["dropped"] + counts["failed"] + counts["queue_spans"], 105, "{counts:?}");
}

/// OpenTelemetry's own exporter for Rust loses them (issue 1962).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_spans_are_sent_at_the_end() {
    // On a busy machine, two seconds may not be enough.
    for is_last in [false, false, false, false, true] {
        let collector = Collector::start().await;
        let late = [("OTEL_BSP_SCHEDULE_DELAY", "60000")];
        let (desk, traces) = (desk(OPEN_POLICY), traces_with(&collector.url(), 1.0, &late));
        let counts = counts(&traces);
        desk.service.trace(traces.tracer());
        calls(&desk, 700).await;
        let began = Instant::now();
        traces.close().await;
        assert!(began.elapsed() < ENDED, "{:?}", began.elapsed());
        let counts = counts();
        if counts["exported"] == 700 {
            assert_eq!(collector.received().len(), 2, "512, and the rest");
            return;
        }
        assert!(!is_last, "{counts:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_and_certificates_are_the_configured_ones() {
    let collector = Collector::start().await;
    let variables = [
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Basic%20aHVudGVyMg,content-encoding=x"),
        ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=prod"),
        ("OTEL_SERVICE_NAME", "till"),
    ];
    let (desk, traces) = (desk(OPEN_POLICY), traces_with(&collector.url(), 1.0, &variables));
    assert!(!format!("{traces:?}").contains("aHVudGVyMg"));
    desk.service.trace(traces.tracer());
    calls(&desk, 1).await;
    traces.close().await;
    let head = &collector.received()[0].head;
    assert!(head.contains("authorization: Basic aHVudGVyMg\r\n"), "{head}");
    let Some(spans) = collector.spans() else { return };
    let resource = &spans[0]["resource"];
    assert_eq!((&resource["service.name"], &resource["deployment.environment.name"]), (&"till".into(), &"prod".into()));
}
