//! What a message costs, stage by stage, in instructions and allocations: figures that a busy machine does not change.
//! `cargo bench --bench stages` measures, with valgrind (any version with callgrind); `-- WORD` measures the stages with that
//! word in their names. Under `cargo test` each stage runs once, to see that it does what it says, and with `-- --gate`
//! instructions are compared with `benches/stages.counts`.
//!
//! A stage is prepared outside of what is counted: messages are signed beforehand, and caches are warm unless the name
//! says otherwise. Valgrind shows programs a processor without SHA-256 instructions, so digests and HMACs weigh some
//! five times what they do with them; the time, which is this thread's processor time, is measured without valgrind.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "a measurement")]

use std::collections::HashMap;
use std::future::Future;
use std::hint::black_box;
use std::path::Path;
use std::pin::Pin;
use std::process::Command;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use sealwire::decide::Param;
use sealwire::internal::auth::{NonceLimits, TokenAlgorithm, TokenRules};
use sealwire::internal::rpc::{Body, Limits};
use sealwire::internal::wire::{Envelope, Nonce};
use sealwire::serve::{Delivery, QuotaLimits};
use sealwire::{Caller, Clock as _, Ctx, PolicySet, Question, Router, RpcError, ServiceLimits};
use sealwire_testkit::desk::{Agent, Desk, Setup, call};
use sealwire_testkit::idp::{self, Idp};
use serde_json::{Value, json};
use tokio::time::Instant;

/// What is done to one message, or for one, by its number.
type Step = Box<dyn FnMut(usize) -> Pin<Box<dyn Future<Output = ()>>>>;

/// A stage: its name, how many entries a message counts for, and how it is prepared for a number of messages.
struct Stage {
    name: &'static str,
    entries: usize,
    prepare: fn(usize) -> Step,
}

const fn stage(name: &'static str, prepare: fn(usize) -> Step) -> Stage {
    Stage { name, entries: 1, prepare }
}

const STAGES: [Stage; 27] = [
    stage("decode", decode),
    stage("proof and token: HMAC", |n| authenticate(n, "ann")),
    stage("proof and token: Ed25519", |n| authenticate(n, "eve")),
    stage("token: cached", |_| token_cached()),
    stage("token: new, HS256", |n| token_new(n, TokenAlgorithm::Hs256)),
    stage("token: new, EdDSA", |n| token_new(n, TokenAlgorithm::EdDsa)),
    stage("token: new, ES256", |n| token_new(n, TokenAlgorithm::Es256)),
    stage("token: new, RS256", |n| token_new(n, TokenAlgorithm::Rs256)),
    stage("guard: fresh", |n| guard(n, Nonces::Fresh)),
    stage("guard: replayed", |n| guard(n, Nonces::Replayed)),
    stage("guard: full", |n| guard(n, Nonces::Full)),
    stage("parse: 256 B", |_| parse(sized(256))),
    stage("parse: 4 KiB", |_| parse(sized(4096))),
    Stage { name: "parse: an entry of 50", entries: 50, prepare: |_| parse(batch()) },
    stage("authorize: unconditional", |_| authorize(UNCONDITIONAL)),
    stage("authorize: conditional, many methods", |_| authorize(CONDITIONAL)),
    stage("handle: 256 B", |n| handle(n, "ann", UNCONDITIONAL, &sized(256))),
    stage("handle: 256 B, with metrics", handle_with_metrics),
    stage("handle: 256 B, no answer", |n| handle(n, "ann", UNCONDITIONAL, &note(256))),
    stage("handle: 256 B, conditional, many methods", |n| handle(n, "ann", CONDITIONAL, &sized(256))),
    stage("handle: 256 B, a budget", |n| handle(n, "ann", BUDGET, &sized(256))),
    stage("handle: 256 B, a shared budget", |n| handle(n, "ann", SHARED_BUDGET, &sized(256))),
    stage("handle: 4 KiB", |n| handle(n, "ann", UNCONDITIONAL, &sized(4096))),
    Stage { name: "handle: an entry of 50", entries: 50, prepare: |n| handle(n, "ann", UNCONDITIONAL, &batch()) },
    stage("handle: 256 B, Ed25519", |n| handle(n, "eve", UNCONDITIONAL, &sized(256))),
    stage("handle: replayed", replayed),
    stage("handle: forged", forged),
];

/// Messages before those that are counted: caches, queues and the allocator are as they are in a running service.
const WARM: usize = 50;
const COUNTED: usize = 200;
/// Rounds of that many for the time; the fastest counts.
const ROUNDS: usize = 30;

const UNCONDITIONAL: &str = "[role.worker]\nallow = [\"desk/*\", \"other/*\"]\n";
const BUDGET: &str = r#"
[role.worker]
allow = ["desk/*", "other/*"]
[budget.calls]
methods = ["desk/echo"]
per = "agent"
calls = "1000000000/d"
"#;
/// In the store of a single replica: what a broker takes comes on top.
const SHARED_BUDGET: &str = r#"
[role.worker]
allow = ["desk/*", "other/*"]
[budget.amounts]
methods = ["desk/echo"]
per = "agent"
sum = "amount"
at_most = "1000000000000/d"
shared = true
"#;
const CONDITIONAL: &str = r#"
[role.worker]
allow = ["other/*"]
[rule.some]
roles = ["worker"]
allow = ["desk/echo"]
when.params.amount = { min = 1, max = 1000 }
when.params.to = { glob = "acct-*" }
"#;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let ["--one", name, messages, counted @ ..] = &words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        let counted = counted.first().unwrap_or(messages);
        return run(named(name), messages.parse().unwrap(), counted.parse().unwrap());
    }
    if let ["--share", share] = words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        return share_of(share.parse().unwrap()).for_each(|stage| run(stage, GATED, GATED));
    }
    if words.iter().any(|word| word == "--gate") {
        return gate();
    }
    // Cargo passes `--bench` when it measures, and nothing when it tests.
    if !words.iter().any(|word| word == "--bench") {
        the_gate_finds_what_has_grown();
        return STAGES.iter().for_each(|stage| run(stage, 1, 1));
    }
    let picked = |stage: &&Stage| {
        words.iter().filter(|word| !word.starts_with("--")).all(|word| stage.name.contains(word.as_str()))
    };
    println!("| stage | instructions | allocations | µs |\n|---|---|---|---|");
    for stage in STAGES.iter().filter(picked) {
        let profile = profile(stage, COUNTED, COUNTED);
        let (instructions, allocations) = (instructions(stage, &profile, COUNTED), allocations(stage, &profile));
        println!("| {} | {instructions:.0} | {allocations:.1} | {:.2} |", stage.name, time(stage));
    }
}

/// What each stage takes, in the build that the tests run in: it exists already, and nobody waits for another one.
const COUNTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/stages.counts");
/// Messages of the gate. With this many, repetitions differ by less than one percent.
const GATED: usize = 50;
/// Processes of the gate that run side by side, each with every second stage: always as many, since a stage's count depends a little on
/// what the process has done before.
const SHARES: usize = 2;
/// How much a stage may grow unless its count changes with it.
const MOST_GROWTH: f64 = 1.05;

/// Fails if a stage takes more instructions than `benches/stages.counts` allows; with `SEALWIRE_COUNTS=overwrite`, writes that file.
///
/// Valgrind shows every program on a processor with AVX2 the same processor, so counts differ between machines only by compiler and C
/// library; the library's part is less than one percent.
fn gate() {
    #[cfg(target_arch = "x86_64")]
    let is_known = std::is_x86_feature_detected!("avx2");
    #[cfg(not(target_arch = "x86_64"))]
    let is_known = false;
    if !is_known {
        return println!("NOT RUN: instructions are counted on x86-64 with AVX2");
    }
    let compiler = Command::new("rustc").arg("--version").output().unwrap();
    let compiler = String::from_utf8(compiler.stdout).unwrap().trim().to_owned();
    let overwrite = std::env::var_os("SEALWIRE_COUNTS").is_some_and(|value| value == "overwrite");
    let known = std::fs::read_to_string(COUNTS).unwrap_or_default();
    let (by, known) = known.split_once('\n').unwrap_or_default();
    if !overwrite && by != compiler {
        return println!("NOT RUN: instructions were counted with `{by}`, and this is `{compiler}`");
    }
    let found: HashMap<&str, u64> = std::thread::scope(|scope| {
        let shares: Vec<_> = (0..SHARES).map(|share| scope.spawn(move || count_share(share))).collect();
        shares.into_iter().flat_map(|share| share.join().unwrap()).collect()
    });
    let found: Vec<(&str, u64)> = STAGES.iter().map(|stage| (stage.name, found[stage.name])).collect();
    if overwrite {
        let lines: String = found.iter().map(|(name, count)| format!("{count}\t{name}\n")).collect();
        return std::fs::write(COUNTS, format!("{compiler}\n{lines}")).unwrap();
    }
    let wrong = grown(known, &found);
    assert!(
        wrong.is_empty(),
        "{wrong}if it has to be so, SEALWIRE_COUNTS=overwrite cargo test --bench stages -- --gate, in the same commit"
    );
    println!("{} stages take no more instructions than they may", found.len());
}

/// The stages that one process of the gate runs.
fn share_of(share: usize) -> impl Iterator<Item = &'static Stage> {
    STAGES.iter().skip(share).step_by(SHARES)
}

/// Instructions of each stage of this share. One process runs them all, and callgrind begins a new file after each: most of the time of a
/// process of its own for each went into its start.
fn count_share(share: usize) -> Vec<(&'static str, u64)> {
    let folder = tempfile::tempdir().unwrap();
    let profile = folder.path().join("profile");
    callgrind(&profile, &["--dump-after=stages::counted"], &["--share", &share.to_string()]);
    let count = |(part, stage): (usize, &'static Stage)| {
        let found = std::fs::read_to_string(format!("{}.{}", profile.display(), part + 1)).unwrap();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
        let count = instructions(stage, &found, GATED) as u64;
        (stage.name, count)
    };
    share_of(share).enumerate().map(count).collect()
}

/// Each stage that exceeds its count or has none, and each count without a stage.
fn grown(known: &str, found: &[(&str, u64)]) -> String {
    let known: HashMap<&str, f64> = known
        .lines()
        .map(|line| line.split_once('\t').unwrap())
        .map(|(count, name)| (name, count.parse().unwrap()))
        .collect();
    let mut wrong = String::new();
    for (name, count) in found {
        match known.get(name) {
            Some(before) if *count as f64 <= before * MOST_GROWTH => {}
            Some(before) => {
                wrong +=
                    &format!("{name}: {count} instructions, {:.1} % more\n", (*count as f64 / before - 1.0) * 100.0)
            }
            None => wrong += &format!("{name}: not counted before\n"),
        }
    }
    for name in known.keys().filter(|name| !found.iter().any(|(found, _)| found == *name)) {
        wrong += &format!("{name}: counted before, and no stage any more\n");
    }
    wrong
}

fn the_gate_finds_what_has_grown() {
    let known = "1000\ta b\n200\tc\n";
    assert_eq!(grown(known, &[("a b", 1_049), ("c", 10)]), "");
    assert_eq!(grown(known, &[("a b", 1_060), ("c", 200)]), "a b: 1060 instructions, 6.0 % more\n");
    assert_eq!(
        grown(known, &[("a b", 1_000), ("d", 1)]),
        "d: not counted before\nc: counted before, and no stage any more\n"
    );
}

fn named(name: &str) -> &'static Stage {
    STAGES.iter().find(|stage| stage.name == name).unwrap()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Under valgrind this is the program, and `counted` is what is measured: `count` of the messages that it prepares.
fn run(stage: &Stage, messages: usize, count: usize) {
    let runtime = runtime();
    let _entered = runtime.enter();
    let mut step = (stage.prepare)(WARM + messages);
    runtime.block_on(async {
        for number in 0..WARM {
            step(number).await;
        }
    });
    counted(&runtime, &mut step, WARM..WARM + count);
}

#[inline(never)]
fn counted(runtime: &tokio::runtime::Runtime, step: &mut Step, numbers: std::ops::Range<usize>) {
    runtime.block_on(async {
        for number in numbers {
            step(number).await;
        }
    });
}

/// What callgrind finds when `count` of these messages are handled.
fn profile(stage: &Stage, messages: usize, count: usize) -> String {
    let folder = tempfile::tempdir().unwrap();
    let profile = folder.path().join("profile");
    callgrind(&profile, &[], &["--one", stage.name, &messages.to_string(), &count.to_string()]);
    std::fs::read_to_string(profile).unwrap()
}

/// Runs this program with these words under callgrind, which writes what `counted` takes into the file.
fn callgrind(profile: &Path, options: &[&str], words: &[&str]) {
    let done = Command::new("valgrind")
        .args(["--tool=callgrind", "--toggle-collect=stages::counted"])
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .args(options)
        .arg(std::env::current_exe().unwrap())
        .args(words)
        .output()
        .unwrap_or_else(|error| panic!("valgrind: {error}; install it, from your distribution's packages"));
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// Instructions of these messages, per entry.
fn instructions(stage: &Stage, profile: &str, messages: usize) -> f64 {
    let total = profile.lines().find_map(|line| line.strip_prefix("summary: ")).unwrap();
    let total: u64 = total.trim().parse().unwrap();
    assert!(total > 0, "nothing was collected: has `counted` another name?");
    total as f64 / (messages * stage.entries) as f64
}

/// Allocations of [`COUNTED`] messages, per entry. Callgrind counts calls wherever they are made, so those of a run that prepares as many
/// messages and handles none are subtracted.
fn allocations(stage: &Stage, found: &str) -> f64 {
    let made = |profile: &str| calls(profile, &["malloc", "calloc", "realloc", "posix_memalign", "aligned_alloc"]);
    made(found).saturating_sub(made(&profile(stage, COUNTED, 0))) as f64 / (COUNTED * stage.entries) as f64
}

/// How often these functions were called. The format names a function once, with a number, and by its number from then on.
fn calls(profile: &str, functions: &[&str]) -> u64 {
    let (mut names, mut callee, mut count) = (HashMap::new(), "", 0);
    for line in profile.lines() {
        if let Some(called) = line.strip_prefix("calls=") {
            let called = called.split(' ').next().and_then(|count| count.parse::<u64>().ok()).unwrap();
            count += if functions.contains(&callee) { called } else { 0 };
        } else if let Some((kind @ ("fn" | "cfn"), function)) = line.split_once('=') {
            let (number, name) = function.split_once(' ').unwrap_or((function, ""));
            let name = *names.entry(number).or_insert(name);
            callee = if kind == "cfn" { name } else { callee };
        }
    }
    count
}

/// Microseconds of processor time per entry.
fn time(stage: &Stage) -> f64 {
    let runtime = runtime();
    let _entered = runtime.enter();
    let mut step = (stage.prepare)(COUNTED * (ROUNDS + 1));
    let rounds = (0..=ROUNDS).map(|round| {
        let before = spent();
        counted(&runtime, &mut step, round * COUNTED..(round + 1) * COUNTED);
        spent() - before
    });
    // The first one warms up.
    rounds.skip(1).min().unwrap().as_secs_f64() * 1e6 / (COUNTED * stage.entries) as f64
}

/// Processor time of this thread so far. Not from `/proc`, where some kernels count in ticks.
fn spent() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap()
}

/// A step that does not wait.
fn at_once(mut step: impl FnMut(usize) + 'static) -> Step {
    Box::new(move |number| {
        step(number);
        Box::pin(std::future::ready(()))
    })
}

/// Methods beside the desk's. Under valgrind, loading the policies of 1,000 takes a minute, and the gate only compares with itself.
fn many_methods() -> usize {
    if std::env::args().any(|word| word == "--share") { 100 } else { 1_000 }
}

/// The service, with many more methods than the desk's if a policy has conditions, and without limits that the measurement would reach.
fn open(policy: &'static str) -> Desk {
    let mut router = Router::new(())
        .method("desk/echo", |_: Ctx, _: Value| async { Ok::<_, RpcError>(true) })
        .params("desk/echo", [Param::string("to"), Param::integer("amount"), Param::string("note")]);
    for number in 0..if policy == CONDITIONAL { many_methods() } else { 1 } {
        router = router.method(&format!("other/m{number}"), |_: Ctx, _: Value| async { Ok::<_, RpcError>(true) });
    }
    let quota = QuotaLimits { per_second: u32::MAX, burst: u32::MAX, ..QuotaLimits::default() };
    let limits = ServiceLimits { quota, ..ServiceLimits::default() };
    let nonce_limits = NonceLimits { owner: 600_000, ..NonceLimits::default() };
    Desk::open_as(Setup { policy, limits, nonce_limits, ..Setup::default() }, |service| service.methods(router))
}

fn echo(length: usize, id: &str) -> String {
    let body = |note: &str| {
        let text = call("desk/echo", &format!(r#"{{"to":"acct-17","amount":250,"note":"{note}"}}"#));
        text.replace(r#","id":1"#, id)
    };
    body(&"x".repeat(length.saturating_sub(body("").len())))
}

/// A call of this many bytes.
fn sized(length: usize) -> String {
    echo(length, r#","id":1"#)
}

fn note(length: usize) -> String {
    echo(length, "")
}

fn batch() -> String {
    format!("[{}]", vec![sized(256); 50].join(","))
}

/// This many messages of one agent, each with a nonce of its own.
fn messages(desk: &Desk, agent: &Agent, count: usize, body: &str) -> Vec<Option<Delivery>> {
    let signer = desk.signer(agent);
    let (subject, reply) = (desk.endpoint.subject(&agent.name), format!("{}r1", desk.endpoint.inbox(&agent.name)));
    let reply = if body.contains("\"id\"") { reply.as_str() } else { "" };
    let message = |_| {
        let signed = signer.sign(&sealwire::internal::wire::Signed {
            subject: &subject,
            reply,
            payload: body.as_bytes(),
            token: &agent.token,
            now_ms: desk.clock.now_ms(),
            valid_s: 30,
            timeout_ms: Some(5_000),
            idempotency_key: None,
            window: None,
            traceparent: None,
            capabilities: None,
            task_ms: None,
        });
        let headers = sealwire::internal::wire::HeaderBlock::of(&[("Authorization", signed.authorization.as_str())]);
        Some(Delivery::new(&subject, reply, headers, body.as_bytes().to_vec()))
    };
    (0..count).map(message).collect()
}

fn decode(count: usize) -> Step {
    let desk = open(UNCONDITIONAL);
    let mut messages = messages(&desk, &desk.agent("ann", &["worker"]), count, &sized(256));
    at_once(move |number| {
        black_box(Envelope::decode(messages[number].take().unwrap(), &desk.endpoint).unwrap());
    })
}

fn authenticate(count: usize, agent: &str) -> Step {
    let desk = open(UNCONDITIONAL);
    let messages = messages(&desk, &desk.agent(agent, &["worker"]), count, &sized(256));
    let envelope = |message: Option<Delivery>| Envelope::decode(message.unwrap(), &desk.endpoint).ok();
    let mut envelopes: Vec<_> = messages.into_iter().map(envelope).collect();
    at_once(move |number| {
        let envelope = envelopes[number].take().unwrap();
        black_box(desk.service.verifier().authenticate(envelope, desk.clock.now_s()).unwrap());
    })
}

fn token_cached() -> Step {
    let verifier = Idp::shared().verifier(TokenRules::new("prod/math"));
    let token = Idp::shared().ed25519(&Idp::claims());
    let digest = digest(&token);
    at_once(move |_| {
        black_box(verifier.verify(&token, &digest, idp::NOW).unwrap());
    })
}

fn token_new(count: usize, algorithm: TokenAlgorithm) -> Step {
    let idp = Idp::shared();
    let mut rules = TokenRules::new("prod/math");
    let keys = match algorithm {
        TokenAlgorithm::Hs256 => {
            rules.symmetric = sealwire::internal::auth::Symmetric::Allowed;
            idp.symmetric_keys()
        }
        _ => idp.keys(),
    };
    let verifier = sealwire::internal::auth::TokenVerifier::new(rules, keys);
    let token = |number| {
        let mut claims = Idp::claims();
        claims["jti"] = json!(format!("t-{number}"));
        idp.sign(algorithm, &Idp::header(algorithm), &claims)
    };
    let tokens: Vec<_> = (0..count).map(token).map(|token| (digest(&token), token)).collect();
    at_once(move |number| {
        let (digest, token) = &tokens[number];
        black_box(verifier.verify(token, digest, idp::NOW).unwrap());
    })
}

fn digest(token: &str) -> [u8; 32] {
    <sha2::Sha256 as sha2::Digest>::digest(token).into()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Nonces {
    Fresh,
    Replayed,
    Full,
}

fn guard(count: usize, kind: Nonces) -> Step {
    let limits = match kind {
        Nonces::Full => NonceLimits { owner: 1, reserve: 1, ..NonceLimits::default() },
        _ => NonceLimits { owner: 600_000, ..NonceLimits::default() },
    };
    let desk = Desk::open_as(Setup { nonce_limits: limits, ..Setup::default() }, |service| {
        service.methods(Router::new(()).method("desk/echo", |_: Ctx, _: Value| async { Ok::<_, RpcError>(true) }))
    });
    let guard = std::sync::Arc::clone(desk.service.verifier().guard());
    let (owner, first) = (desk.agent("ann", &[]).name, Nonce::random());
    let now = desk.clock.now_s();
    futures_util::future::FutureExt::now_or_never(guard.admit(&owner, first, now, now + 30, Instant::now()))
        .unwrap()
        .unwrap();
    let nonce = |_| if kind == Nonces::Replayed { first } else { Nonce::random() };
    let nonces: Vec<_> = (0..count).map(nonce).collect();
    let received = Instant::now();
    Box::new(move |number| {
        let (guard, owner, nonce) = (std::sync::Arc::clone(&guard), owner.clone(), nonces[number]);
        Box::pin(async move {
            let admitted = guard.admit(&owner, nonce, now, now + 30, received).await;
            assert_eq!(admitted.is_ok(), kind == Nonces::Fresh);
        })
    })
}

fn parse(text: String) -> Step {
    at_once(move |_| {
        black_box(Body::parse(black_box(text.as_bytes()), &Limits { max_batch: 50 }).unwrap());
    })
}

fn authorize(policy: &'static str) -> Step {
    let desk = open(policy);
    let set: std::sync::Arc<PolicySet> = desk.service.policy();
    let caller = Caller::new(desk.agent("ann", &[]).name, ["worker".to_owned()]);
    let body: Value = serde_json::from_str(&sized(256)).unwrap();
    let params = serde_json::value::to_raw_value(&body["params"]).unwrap();
    let now_ms = desk.clock.now_ms();
    at_once(move |_| {
        let question = Question { caller: &caller, method: "desk/echo", params: Some(&params), now_ms };
        assert!(black_box(set.decide(black_box(&question))).is_allow());
    })
}

fn handle(count: usize, agent: &str, policy: &'static str, body: &str) -> Step {
    let desk = open(policy);
    let messages = messages(&desk, &desk.agent(agent, &["worker"]), count, body);
    handled(desk, messages, |answer| assert!(answer.is_none_or(|text| text.contains("\"result\":true"))))
}

/// The same as without metrics, and what is measured for them, if the library is built with them.
fn handle_with_metrics(count: usize) -> Step {
    let desk = open(UNCONDITIONAL);
    #[cfg(feature = "metrics")]
    sealwire::metrics::Report::report_to(&desk.service, &mut sealwire::metrics::Registry::default());
    let messages = messages(&desk, &desk.agent("ann", &["worker"]), count, &sized(256));
    handled(desk, messages, |answer| assert!(answer.is_none_or(|text| text.contains("\"result\":true"))))
}

/// The same message over and over.
fn replayed(count: usize) -> Step {
    let desk = open(UNCONDITIONAL);
    let letter = desk.letter(&desk.agent("ann", &["worker"]), &sized(256));
    let first = futures_util::future::FutureExt::now_or_never(desk.service.handle(letter.delivery()));
    assert!(first.unwrap().is_some());
    let messages = (0..count).map(|_| Some(letter.delivery())).collect();
    handled(desk, messages, |answer| {
        assert!(answer.is_none_or(|text| text.contains("-32013") || text.contains("replay")))
    })
}

/// Messages with invalid signatures.
fn forged(count: usize) -> Step {
    let desk = open(UNCONDITIONAL);
    let letter = desk.letter(&desk.agent("ann", &["worker"]), &sized(256));
    let (token, proof) = letter.credentials();
    let (signed, _) = proof.rsplit_once('.').unwrap();
    let letter = letter.with_credentials(&token, &format!("{signed}.{}", "A".repeat(43)));
    let messages = (0..count).map(|_| Some(letter.delivery())).collect();
    handled(desk, messages, |answer| assert!(answer.is_none_or(|text| text.contains("-32010"))))
}

fn handled(desk: Desk, mut messages: Vec<Option<Delivery>>, check: fn(Option<&str>)) -> Step {
    let service = desk.service.clone();
    let desk = std::rc::Rc::new(desk);
    Box::new(move |number| {
        let (message, service, _desk) = (messages[number].take().unwrap(), service.clone(), std::rc::Rc::clone(&desk));
        Box::pin(async move {
            let answer = service.handle(message).await;
            check(answer.as_ref().map(|answer| std::str::from_utf8(answer.payload()).unwrap()));
        })
    })
}
