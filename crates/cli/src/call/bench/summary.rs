//! Reports what `sealwire bench` has measured: for people and for scripts.
//! Never measures anything.

use std::fmt::Write as _;
use std::time::Duration;

use sealwire::Credentials;
use sealwire::errors::code;
use sealwire_lab::bench::{Fault, Latency, Load, Report, SideReport, Spread};
use serde_json::{Value, json};

use super::super::exit;
use super::options::Bench;
use crate::exit::{Exit, Failure};

/// A measurement to be reported.
pub(super) struct Summary<'a> {
    bench: &'a Bench,
    credentials: &'a Credentials,
    report: &'a Report,
}

/// The reported percentiles, with their names for scripts and for people.
const PERCENTILES: [(f64, &str, &str); 4] =
    [(0.5, "p50", "p50"), (0.9, "p90", "p90"), (0.99, "p99", "p99"), (0.999, "p99_9", "p99.9")];

impl<'a> Summary<'a> {
    pub(super) fn new(bench: &'a Bench, credentials: &'a Credentials, report: &'a Report) -> Self {
        Self { bench, credentials, report }
    }

    /// The exit code of the command.
    pub(super) fn exit(&self) -> Exit {
        if self.report.stopped {
            return Exit::Interrupted;
        }
        let failed = self.report.sealwire.as_ref().map(SideReport::failed).unwrap_or_default();
        failed.first().map_or(Exit::Ok, |failed| told(&failed.fault).exit())
    }

    pub(super) fn json(&self) -> Value {
        let Self { bench, credentials, report } = self;
        let words = &bench.words;
        let mut said = json!({
            "service": words.service, "method": words.method,
            "agent": credentials.agent(), "proof": credentials.key().algorithm().as_str(),
            "in_flight": bench.load().in_flight(), "rate": bench.rate, "connections": bench.connections,
            "batch": bench.batch, "stream": bench.stream, "payload": bench.payload,
            "latency_from": if bench.rate.is_some() { "due" } else { "sent" },
            "stopped": report.stopped,
        });
        if let Value::Object(said) = &mut said {
            if let Some(Value::Object(measured)) = report.sealwire.as_ref().map(|measured| self.side(measured)) {
                said.extend(measured);
            }
            if let Some(bare) = &report.bare {
                let against = json!({
                    "bare": self.side(bare), "throughput": report.throughput().map(ratio), "p50": report.p50().map(ratio),
                });
                said.insert("against".to_owned(), against);
            }
        }
        said
    }

    fn side(&self, measured: &SideReport) -> Value {
        let errors = measured.failed().into_iter().map(|failed| {
            let mut error = serde_json::to_value(told(&failed.fault).object()).unwrap_or_default();
            if let Value::Object(error) = &mut error {
                error.insert("count".to_owned(), failed.count.into());
            }
            error
        });
        let latency = measured.latency();
        let mut latencies: serde_json::Map<String, Value> =
            PERCENTILES.iter().map(|(share, name, _)| ((*name).to_owned(), micros(latency.at(*share)))).collect();
        latencies.insert("max".to_owned(), micros(latency.max()));
        let cpu: serde_json::Map<String, Value> =
            measured.cpu_per_call().map(|(name, each)| (name.to_owned(), micros(each))).collect();
        let mut said = json!({
            "measured_s": measured.window().as_secs_f64(),
            "calls": measured.calls(), "results": measured.results(), "errors": errors.collect::<Vec<_>>(),
            "warmup_calls": measured.warmup(), "not_begun": measured.not_begun(), "given_up": measured.given_up(),
            "calls_per_s": measured.per_second(), "latency_us": latencies, "cpu_us": cpu,
        });
        if let (Value::Object(said), true) = (&mut said, self.bench.stream) {
            said.insert("items".to_owned(), measured.items().into());
            said.insert("items_per_s".to_owned(), measured.items_per_second().into());
        }
        said
    }

    pub(super) fn text(&self) -> String {
        let Self { bench, credentials, report } = self;
        let (words, load) = (&bench.words, bench.load());
        let mut text = format!(
            "{} {} as {}, proofs {}; ",
            words.service,
            words.method,
            credentials.agent(),
            credentials.key().algorithm()
        );
        // Writing to a string cannot fail.
        let _ = match load {
            Load::InFlight(in_flight) => write!(text, "{in_flight} in flight"),
            Load::Rate { per_second, in_flight } => {
                write!(text, "{per_second} a second, at most {in_flight} in flight")
            }
        };
        if let Some(calls) = bench.batch {
            let _ = write!(text, ", {calls} calls in a message");
        }
        let plural = if bench.connections == 1 { "" } else { "s" };
        let _ = writeln!(text, ", {} connection{plural}", bench.connections);
        if report.stopped {
            text.push_str("Stopped by a signal: this is what was measured until then.\n");
        }
        if let Some(measured) = &report.sealwire {
            self.measured(&mut text, "", measured);
        }
        if let Some(bare) = &report.bare {
            self.measured(&mut text, "bare: ", bare);
        }
        if let Some(Spread { median, min, max, pairs }) = report.throughput() {
            let _ = write!(text, "\nof bare: {median:.2} of its calls a second ({min:.2} to {max:.2}");
            let _ = match report.p50() {
                Some(p50) => write!(text, "), {:.2} times its p50 ({:.2} to {:.2}", p50.median, p50.min, p50.max),
                None => Ok(()),
            };
            let _ = writeln!(text, "), in {pairs} pairs of turns");
        }
        text
    }

    fn measured(&self, text: &mut String, side: &str, measured: &SideReport) {
        let (calls, results) = (measured.calls(), measured.results());
        let failed = calls - results;
        let _ = write!(
            text,
            "\n{side}{:.0} calls/s: {calls} calls in {:.1} s, {results} with a result, {failed} without\n",
            measured.per_second(),
            measured.window().as_secs_f64()
        );
        if self.bench.stream {
            let _ =
                writeln!(text, "  items    {:.0} a second, {} in all", measured.items_per_second(), measured.items());
        }
        if let Some(latencies) = latencies(measured.latency()) {
            let from = if self.bench.rate.is_some() { ", from when each was due" } else { "" };
            let _ = writeln!(text, "  latency  {latencies}{from}");
        }
        let cpu = measured.cpu_per_call().map(|(name, each)| match each {
            Some(each) => format!("{name} {}", shown(each)),
            None => format!("{name} not known"),
        });
        let cpu = cpu.collect::<Vec<_>>().join(", ");
        if !cpu.is_empty() {
            let _ = writeln!(text, "  CPU      a call costs {cpu}");
        }
        for failed in measured.failed() {
            let told = told(&failed.fault);
            let _ = writeln!(text, "  errors   {} times: {}", failed.count, told.object().message());
            if let Some(help) = told.help_text() {
                let _ = writeln!(text, "           {help}");
            }
        }
        if measured.not_begun() > 0 {
            let _ = writeln!(
                text,
                "  behind   {} calls were due and never begun: the service does not hold this rate, and the latencies do not include them",
                measured.not_begun()
            );
        }
        if measured.given_up() > 0 {
            let _ = writeln!(
                text,
                "  given up {} calls were under way when it was stopped; outcome unknown",
                measured.given_up()
            );
        }
    }
}

/// An error as other commands report it.
fn told(fault: &Fault) -> Failure {
    match fault {
        Fault::Call(error) => {
            let failure = Failure::of(exit(error), &**error);
            match error.remote() {
                Some(rpc) if rpc.profile_code() == Some(code::QUOTA_EXCEEDED) => failure.rpc(rpc.clone()).help(QUOTA),
                Some(rpc) => failure.rpc(rpc.clone()),
                None => failure,
            }
        }
        Fault::Bare(error) => Failure::new(Exit::Transport, error.clone()),
    }
}

/// The limit that a fast machine reaches first.
const QUOTA: &str = "the limits for one agent are in the service's configuration: `limits.agent_per_second`, `agent_burst` and \
    `agent_in_flight`, and `replay.per_agent`, the messages of some 30 s";

fn ratio(spread: Spread) -> Value {
    let Spread { median, min, max, pairs } = spread;
    json!({ "median": median, "min": min, "max": max, "pairs": pairs })
}

fn micros(time: Option<Duration>) -> Value {
    // In microseconds, exact to the nanosecond.
    time.map_or(Value::Null, |time| (time.as_nanos() as f64 / 1_000.0).into())
}

fn latencies(latency: &Latency) -> Option<String> {
    let mut text = String::new();
    for (share, _, name) in PERCENTILES {
        let _ = write!(text, "{name} {}, ", shown(latency.at(share)?));
    }
    Some(format!("{text}max {}", shown(latency.max()?)))
}

/// With three digits, which is the precision that is kept.
fn shown(time: Duration) -> String {
    let micros = time.as_secs_f64() * 1e6;
    let (value, unit) = match micros {
        micros if micros < 1e3 => (micros, "µs"),
        micros if micros < 1e6 => (micros / 1e3, "ms"),
        micros => (micros / 1e6, "s"),
    };
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {unit}")
}
