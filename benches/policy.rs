//! What a decision costs: its stages, and how it grows with the rules of other methods, of other callers and of the caller.
//! `cargo bench --bench policy` measures; under `cargo test` the same code runs once, small, to see that it decides.
//!
//! Every number is a median over rounds; a round takes all cases in turn, so that a busy moment of the machine falls on
//! all of them. Stages are differences between public calls.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "a measurement")]

use std::fmt::Write as _;
use std::hint::black_box;
use std::time::{Duration, Instant};

use sealwire::decide::Methods;
use sealwire::{Caller, Name, PolicySet, Question};
use serde_json::value::RawValue;

/// Monday, 2026-09-21 14:13:20 UTC.
const NOW_MS: u64 = 1_790_000_000_000;
/// The factor by which a decision may take longer with a thousand rules of other methods or about other callers than
/// with ten. Evaluating those rules makes it 60 (measured before they were left out); the rest is noise of the machine.
const FLAT: f64 = 1.3;

/// How much is measured.
struct Plan {
    sizes: [usize; 3],
    rounds: usize,
    /// How long one case is run in one round.
    span: Duration,
    loads: usize,
    /// Methods with a rule each, to be loaded.
    most: usize,
}

const MEASURE: Plan =
    Plan { sizes: [10, 100, 1000], rounds: 11, span: Duration::from_millis(20), loads: 7, most: 10_000 };
const TRY: Plan = Plan { sizes: [2, 5, 10], rounds: 1, span: Duration::ZERO, loads: 1, most: 20 };

fn main() {
    // Cargo passes `--bench` when it measures, and nothing when it tests.
    let measuring = std::env::args().any(|argument| argument == "--bench");
    let plan = if measuring { MEASURE } else { TRY };
    let stages = stages();
    let sizes = sizes(&plan);
    let cases: Vec<&Case> = stages.iter().chain(sizes.iter().flat_map(|row| &row.cases)).collect();
    let rounds = measure(&cases, &plan);
    let (stage_rounds, size_rounds) = (&rounds[..stages.len()], &rounds[stages.len()..]);
    let table = tables(&plan, &stages, stage_rounds, &sizes, size_rounds) + &loads(&plan, &sizes);
    if measuring {
        println!("{table}");
        // All but the rules about the caller.
        for (row, rounds) in sizes.iter().zip(size_rounds.chunks(3)).take(4) {
            let found = ratio(&rounds[2], &rounds[0]);
            assert!(found <= FLAT, "rules {} are not free: {found:.2}", row.name);
        }
    }
}

/// A policy and a call that it allows.
struct Case {
    name: String,
    text: String,
    set: PolicySet,
    caller: Caller,
    params: Option<Box<RawValue>>,
}

impl Case {
    fn new(name: impl Into<String>, text: String, params: Option<&str>) -> Self {
        let set = load(&text);
        let caller = Caller::new(Name::new("teller-1").unwrap(), ["teller".to_owned(), "clerk".to_owned()]);
        let params = params.map(|text| RawValue::from_string(text.to_owned()).unwrap());
        let case = Self { name: name.into(), text, set, caller, params };
        assert!(case.ask(), "{}: {:?}", case.name, case.set.explain(&case.question()));
        case
    }

    fn question(&self) -> Question<'_> {
        Question { caller: &self.caller, method: "bank/transfer", params: self.params.as_deref(), now_ms: NOW_MS }
    }

    fn ask(&self) -> bool {
        black_box(self.set.decide(black_box(&self.question()))).is_allow()
    }
}

fn load(text: &str) -> PolicySet {
    PolicySet::from_texts([("bench.toml", text)], &Methods::from_files()).unwrap_or_else(|errors| panic!("{errors}")).0
}

/// What a decision does, one step after the other.
fn stages() -> Vec<Case> {
    let declared = |count: usize| -> String {
        let params = (0..count).map(|n| format!("{{ name = \"p{n}\", type = \"integer\" }}"));
        format!("[method.\"bank/transfer\"]\nparams = [{}]\n[role.teller]\n", params.collect::<Vec<_>>().join(", "))
    };
    let rule = "[rule.own]\nroles = [\"teller\"]\nallow = [\"bank/transfer\"]\n";
    let asked = |count: usize| (0..count).map(|n| format!("when.params.p{n}.max = 9\n")).collect::<String>();
    let eight = r#"{"p0":1,"p1":2,"p2":3,"p3":4,"p4":5,"p5":6,"p6":7,"p7":8}"#;
    vec![
        Case::new("one rule without conditions, which is not evaluated", format!("{}{rule}", declared(1)), None),
        Case::new("a condition on the time", format!("{}{rule}when.hours = \"08:00-18:00\"\n", declared(1)), None),
        Case::new("a condition on an argument", format!("{}{rule}{}", declared(1), asked(1)), Some(r#"{"p0":1}"#)),
        Case::new("reading 7 more arguments", format!("{}{rule}{}", declared(8), asked(1)), Some(eight)),
        Case::new("conditions on these 7", format!("{}{rule}{}", declared(8), asked(8)), Some(eight)),
    ]
}

/// The same growth at three sizes.
struct Row {
    name: &'static str,
    cases: Vec<Case>,
}

#[derive(Clone, Copy)]
enum Others {
    /// Rules of other methods, about the same role.
    Methods,
    /// Rules of the same method, about other roles and agents.
    CallerGroup,
    /// Rules of the same method about the same role.
    None,
}

fn sizes(plan: &Plan) -> Vec<Row> {
    let kinds = [
        ("of other methods", "of other methods, with conditions", Others::Methods),
        ("about other callers", "about other callers, with conditions", Others::CallerGroup),
        ("about the caller", "about the caller, with conditions", Others::None),
    ];
    let mut rows = Vec::new();
    for (plain, conditional, others) in kinds {
        for (name, conditions) in [(plain, false), (conditional, true)] {
            let case = |size: &usize| {
                let params = conditions.then_some(r#"{"to":"acct-17","amount":250}"#);
                Case::new(format!("{size} rules {name}"), rules(*size, others, conditions), params)
            };
            rows.push(Row { name, cases: plan.sizes.iter().map(case).collect() });
        }
    }
    rows
}

/// `count` rules, of which the last allows the call.
fn rules(count: usize, others: Others, conditions: bool) -> String {
    let params = "params = [{ name = \"to\", type = \"string\" }, { name = \"amount\", type = \"integer\" }]\n";
    let mut text = format!("[method.\"bank/transfer\"]\n{params}[role.teller]\n[role.clerk]\n");
    for n in 0..count {
        let (mut who, mut method) = ("roles = [\"teller\"]".to_owned(), "bank/transfer".to_owned());
        match others {
            _ if n + 1 == count => {}
            Others::Methods => {
                method = format!("other/m{n}");
                write!(text, "[method.\"{method}\"]\n{params}").unwrap();
            }
            Others::CallerGroup if n % 2 == 0 => {
                writeln!(text, "[role.other-{n}]").unwrap();
                who = format!("roles = [\"other-{n}\"]");
            }
            Others::CallerGroup => who = format!("agents = [\"agent-{n}\"]"),
            Others::None => {}
        }
        writeln!(text, "[rule.r{n}]\n{who}\nallow = [\"{method}\"]").unwrap();
        if conditions {
            writeln!(text, "when.params.amount = {{ min = 1, max = {} }}", 1000 + n).unwrap();
            writeln!(text, "when.params.to = {{ glob = \"acct-*\" }}").unwrap();
        }
    }
    text
}

/// Nanoseconds of a decision, by case and round.
fn measure(cases: &[&Case], plan: &Plan) -> Vec<Vec<f64>> {
    let mut rounds = vec![Vec::new(); cases.len()];
    for _ in 0..plan.rounds {
        for (case, found) in cases.iter().zip(&mut rounds) {
            found.push(time(plan.span, || {
                case.ask();
            }));
        }
    }
    rounds
}

/// Nanoseconds of one run, over at least this time.
fn time(span: Duration, mut run: impl FnMut()) -> f64 {
    let (started, mut runs) = (Instant::now(), 0_u32);
    loop {
        run();
        runs += 1;
        if started.elapsed() >= span {
            return started.elapsed().as_secs_f64() * 1e9 / f64::from(runs);
        }
    }
}

fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// How many times as long the one takes as the other, in the same round.
fn ratio(long: &[f64], short: &[f64]) -> f64 {
    median(long.iter().zip(short).map(|(long, short)| long / short))
}

fn tables(plan: &Plan, stages: &[Case], stage_rounds: &[Vec<f64>], rows: &[Row], size_rounds: &[Vec<f64>]) -> String {
    let us = |ns: f64| ns / 1000.0;
    let mut text = format!("medians of {} rounds\n\n| stage | µs more | µs |\n|---|---|---|\n", plan.rounds);
    let mut below: Option<&Vec<f64>> = None;
    for (stage, rounds) in stages.iter().zip(stage_rounds) {
        // The time and the argument both build on the rule without conditions; each other stage builds on the one before.
        let base = if stage.name.starts_with("a condition") { stage_rounds.first() } else { below };
        let more = base.map_or(String::new(), |base| {
            format!("{:+.1}", us(median(rounds.iter().zip(base).map(|(now, before)| now - before))))
        });
        writeln!(text, "| {} | {more} | {:.1} |", stage.name, us(median(rounds.iter().copied()))).unwrap();
        below = Some(rounds);
    }
    let [few, some, many] = plan.sizes;
    writeln!(text, "\n| rules | {few} | {some} | {many} | {many} / {few} |\n|---|---|---|---|---|").unwrap();
    for (row, rounds) in rows.iter().zip(size_rounds.chunks(3)) {
        let cells: Vec<String> =
            rounds.iter().map(|rounds| format!("{:.1} µs", us(median(rounds.iter().copied())))).collect();
        writeln!(text, "| {} | {} | {:.2} |", row.name, cells.join(" | "), ratio(&rounds[2], &rounds[0])).unwrap();
    }
    text
}

/// How long the folders take to be read, checked and compiled.
fn loads(plan: &Plan, rows: &[Row]) -> String {
    let [few, some, many] = plan.sizes;
    let mut text = format!("\n| loading | {few} | {some} | {many} |\n|---|---|---|---|\n");
    let mut rounds = vec![Vec::new(); rows.len() * 3];
    for _ in 0..plan.loads {
        for (case, found) in rows.iter().flat_map(|row| &row.cases).zip(&mut rounds) {
            found.push(time(Duration::ZERO, || {
                black_box(load(black_box(&case.text)));
            }));
        }
    }
    for (row, rounds) in rows.iter().zip(rounds.chunks(3)) {
        let cells = rounds.iter().map(|rounds| format!("{:.1} ms", median(rounds.iter().copied()) / 1e6));
        writeln!(text, "| {} | {} |", row.name, cells.collect::<Vec<_>>().join(" | ")).unwrap();
    }
    let most = rules(plan.most, Others::Methods, true);
    let took = median((0..plan.loads).map(|_| time(Duration::ZERO, || drop(black_box(load(black_box(&most)))))));
    writeln!(text, "\n{} rules of as many methods, with conditions: {:.2} s", plan.most, took / 1e9).unwrap();
    text
}
