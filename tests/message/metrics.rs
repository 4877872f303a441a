//! What a service reports: each number has one source, labels are closed sets, and no caller makes the series more.

use std::collections::{BTreeMap, BTreeSet};

use prometheus_client::encoding::{prometheus_text, text};
use sealwire::metrics::{Registry, Report as _};
use sealwire::serve::QuotaLimits;
use sealwire::{Ctx, Router, RpcError, ServiceLimits};
use sealwire_testkit::desk::{Agent, Desk, OPEN_POLICY, call};

fn router() -> Router {
    Router::new(())
        .method("desk/echo", |_: Ctx, [number]: [u64; 1]| async move { Ok::<_, RpcError>(number) })
        .method("desk/fail", |_: Ctx, [code]: [i32; 1]| async move {
            Err::<(), _>(RpcError::application(code, "as the caller wishes"))
        })
}

fn desk(policy: &'static str) -> Desk {
    let most = u32::MAX;
    let quota = QuotaLimits { per_second: most, burst: most, in_flight: most };
    Desk::open_with(router(), policy, ServiceLimits { quota, ..ServiceLimits::default() })
}

fn registry(desk: &Desk) -> Registry {
    let mut registry = Registry::default();
    desk.service.report_to(&mut registry);
    registry
}

/// The samples by name and labels, as Prometheus reads them.
fn samples(registry: &Registry) -> BTreeMap<String, f64> {
    let mut written = String::new();
    prometheus_text::encode(&mut written, registry).unwrap();
    let lines = written.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| line.rsplit_once(' ').map(|(name, value)| (name.to_owned(), value.parse().unwrap())).unwrap())
        .collect()
}

fn batch(names: impl Iterator<Item = String>) -> String {
    let entries: Vec<_> = names.map(|name| call(&name, "[1]")).collect();
    format!("[{}]", entries.join(","))
}

fn ann(desk: &Desk) -> Agent {
    desk.agent("ann", &["worker"])
}

#[tokio::test]
async fn charged_and_refused_calls_are_counted_by_budget() {
    let desk = desk(
        "[role.worker]\nallow = [\"desk/*\"]\n[budget.rate]\nmethods = [\"desk/*\"]\nper = \"agent\"\ncalls = \"3/h\"\n",
    );
    let registry = registry(&desk);
    desk.ask(&ann(&desk), &batch((0..5).map(|_| "desk/echo".to_owned()))).await.unwrap();
    let samples = samples(&registry);
    for (sample, count) in [
        (r#"sealwire_budget_calls_total{budget="rate",result="charged"}"#, 3.0),
        (r#"sealwire_budget_calls_total{budget="rate",result="refused"}"#, 2.0),
        (r#"sealwire_refusals_total{reason="budget_spent"}"#, 2.0),
        ("sealwire_budget_counts", 1.0),
    ] {
        assert_eq!(samples.get(sample), Some(&count), "{sample} in {samples:?}");
    }
}

#[tokio::test]
async fn numbers_are_those_of_the_counters() {
    let desk = desk("[role.worker]\nallow = [\"desk/*\"]\n");
    // Nothing is measured before somebody asks for it, and what was counted before is told nevertheless.
    desk.ask(&ann(&desk), &call("desk/secret", "[]")).await.unwrap();
    let registry = registry(&desk);
    for _ in 0..3 {
        desk.ask(&ann(&desk), &call("desk/echo", "[1]")).await.unwrap();
    }
    desk.ask(&ann(&desk), &call("other/echo", "[1]")).await.unwrap();
    desk.ask(&ann(&desk), &call("desk/fail", "[7]")).await.unwrap();
    let letter = desk.letter(&ann(&desk), &call("desk/echo", "[1]"));
    desk.answer(&letter).await.unwrap();
    desk.offer(&letter).await.unwrap();
    desk.offer(&letter.with_credentials("", &letter.credentials().1)).await;
    let samples = samples(&registry);
    for (sample, expected) in [
        (r#"sealwire_messages_total{result="executed"}"#, 6.0),
        (r#"sealwire_messages_total{result="refused"}"#, 2.0),
        (r#"rpc_server_call_duration_seconds_count{rpc_method="desk/echo",error_type=""}"#, 4.0),
        (r#"rpc_server_call_duration_seconds_count{rpc_method="desk/fail",error_type="application"}"#, 1.0),
        (r#"rpc_server_call_duration_seconds_count{rpc_method="_OTHER",error_type="-32002"}"#, 1.0),
        (r#"sealwire_decisions_total{verdict="allow",reason="allowed_by"}"#, 5.0),
        (r#"sealwire_decisions_total{verdict="deny",reason="no_rule"}"#, 0.0),
        (r#"sealwire_refusals_total{reason="denied"}"#, 1.0),
        (r#"sealwire_refusals_total{reason="unknown_method"}"#, 1.0),
        (r#"sealwire_refusals_total{reason="replayed"}"#, 1.0),
        (r#"sealwire_agent_refusals_total{agent="ann",reason="replayed"}"#, 1.0),
        (r#"sealwire_guard_checks_total{answer="replayed"}"#, 1.0),
        ("sealwire_guard_up", 1.0),
        ("sealwire_policy_up", 1.0),
    ] {
        assert_eq!(samples.get(sample), Some(&expected), "{sample}: {samples:#?}");
    }
    // Of eight messages, one is measured, beginning with the first.
    for stage in ["shape", "auth", "guard", "parse", "policy", "method", "seal"] {
        let sample = format!("sealwire_stage_duration_seconds_count{{stage=\"{stage}\"}}");
        assert_eq!(samples.get(&sample), Some(&1.0), "{sample}");
    }
    let counted = desk.service.counters().refusals();
    for (reason, count) in counted {
        assert_eq!(samples[&format!("sealwire_refusals_total{{reason=\"{reason}\"}}")], count as f64);
    }
}

#[tokio::test]
async fn methods_that_do_not_exist_and_codes_that_a_method_makes_up_are_no_series() {
    let desk = desk(OPEN_POLICY);
    let registry = registry(&desk);
    let ann = ann(&desk);
    let number = |round: u32| (0..50).map(move |entry| round * 50 + entry);
    for round in 0..200 {
        desk.ask(&ann, &batch(number(round).map(|number| format!("made/up{number}")))).await.unwrap();
        let codes: Vec<_> = number(round).map(|code| call("desk/fail", &format!("[{code}]"))).collect();
        desk.ask(&ann, &format!("[{}]", codes.join(","))).await.unwrap();
    }
    let samples = samples(&registry);
    let count = |method: &str, code: &str| {
        let sample = format!("rpc_server_call_duration_seconds_count{{rpc_method=\"{method}\",error_type=\"{code}\"}}");
        samples.get(&sample).copied()
    };
    assert_eq!(count("_OTHER", "-32601"), Some(10_000.0));
    assert_eq!(count("desk/fail", "application"), Some(10_000.0));
    assert!(samples.len() < 500, "{}", samples.len());
    assert!(samples.keys().all(|name| !name.contains("made")));
}

/// Anybody who may publish can name any agent in a subject, and any key in a proof.
#[tokio::test]
async fn agents_that_no_key_has_proved_are_no_series() {
    let desk = desk(OPEN_POLICY);
    let registry = registry(&desk);
    let before = samples(&registry).len();
    let letter = desk.letter(&ann(&desk), &call("desk/echo", "[1]"));
    for number in 0..2_000 {
        let mut forged = letter.clone();
        forged.subject = letter.subject.replace("ann", &format!("agent-{number}"));
        forged.reply = letter.reply.replace("ann", &format!("agent-{number}"));
        desk.service.handle(forged.delivery()).await;
    }
    let samples = samples(&registry);
    assert_eq!(samples[r#"sealwire_messages_total{result="refused"}"#], 2_000.0);
    assert!(samples.keys().all(|name| !name.contains("agent-")), "{samples:#?}");
    assert!(samples.len() < before + 10, "{} after {before}", samples.len());
}

#[tokio::test]
async fn openmetrics_has_the_traces_of_calls_and_every_family_once() {
    let desk = desk(OPEN_POLICY);
    let registry = registry(&desk);
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let letter = desk.letter_claiming(&ann(&desk), &call("desk/echo", "[1]"), |claims| {
        claims.tp = Some(format!("00-{trace}-00f067aa0ba902b7-01"));
    });
    desk.answer(&letter).await.unwrap();
    let mut written = String::new();
    text::encode(&mut written, &registry).unwrap();
    let exemplar = written.lines().find(|line| line.contains(trace)).unwrap_or_else(|| panic!("{written}"));
    assert!(exemplar.starts_with("rpc_server_call_duration_seconds_bucket{"), "{exemplar}");
    assert!(exemplar.contains(&format!("# {{trace_id=\"{trace}\"}} ")), "{exemplar}");
    assert!(written.ends_with("# EOF\n"));
    let families: Vec<_> = written.lines().filter(|line| line.starts_with("# TYPE ")).collect();
    assert_eq!(families.len(), families.iter().collect::<BTreeSet<_>>().len());
}
