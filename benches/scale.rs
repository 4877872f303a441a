//! How the cost of a message grows with agents, with rules and with live nonces, and how much memory each of them takes.
//! `cargo bench --bench scale` measures; under `cargo test` the same code runs once, small, to see that calls are answered.
//!
//! Every time is a median over rounds, of this thread's processor time for whole calls (`Service::handle`, as in the stages); a round takes
//! all cases in turn, so that a busy moment of the machine falls on all of them. Memory is the growth of the process (`VmRSS`) once so many
//! are there, so small counts say nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "a measurement")]

use std::fmt::Write as _;
use std::time::Duration;

use futures_util::FutureExt as _;
use rustix::time::{ClockId, clock_gettime};
use sealwire::configure::AgentKey;
use sealwire::internal::auth::{IssueRequest, KeyEntry, NonceLimits};
use sealwire::internal::wire::{HeaderBlock, Nonce, RequestSigner, Signed};
use sealwire::serve::{Delivery, QuotaLimits};
use sealwire::{Clock as _, Ctx, Name, Router, RpcError, ServiceLimits};
use sealwire_testkit::desk::{Desk, Setup, call};
use serde_json::Value;
use tokio::time::Instant;

/// How much is measured.
struct Plan {
    agents: &'static [usize],
    rules: &'static [usize],
    nonces: &'static [usize],
    rounds: usize,
    /// Calls of one case in one round, if there are not more agents.
    calls: usize,
}

const MEASURE: Plan = Plan {
    agents: &[1, 100, 1_000, 10_000],
    rules: &[10, 100, 1_000, 10_000],
    nonces: &[0, 10_000, 100_000, 1_000_000],
    rounds: 9,
    calls: 2_000,
};
const TRY: Plan = Plan { agents: &[1, 3], rules: &[2, 5], nonces: &[0, 20], rounds: 1, calls: 6 };

/// The most live nonces: those that are set up, and those of the calls that are measured.
const NONCES: usize = 2_000_000;
/// Owners of the nonces that are set up.
const OWNERS: usize = 1_000;
const PLAIN: &str = "[role.worker]\nallow = [\"desk/echo\"]\n";
/// A policy file may have 1 MiB.
const RULES_IN_A_FILE: usize = 2_000;

fn main() {
    // Cargo passes `--bench` when it measures, and nothing when it tests.
    let measuring = std::env::args().any(|argument| argument == "--bench");
    let plan = if measuring { MEASURE } else { TRY };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _entered = runtime.enter();
    let mut rows = vec![
        plan.agents.iter().map(|&agents| Case::agents(agents)).collect::<Vec<_>>(),
        plan.rules.iter().map(|&rules| Case::rules(rules)).collect(),
        plan.nonces.iter().map(|&nonces| Case::nonces(nonces)).collect(),
    ];
    for round in 0..=plan.rounds {
        for case in rows.iter_mut().flatten() {
            let took = runtime.block_on(case.round(plan.calls));
            // The first one warms up: tokens are verified once.
            if round > 0 {
                case.took.push(took);
            }
        }
    }
    let mut tables = String::new();
    let heads = [
        ("agents, each calling in its turn", "bytes of memory an agent"),
        ("rules of one method each, with a condition", "bytes of memory a rule and its method"),
        ("live nonces", "bytes of memory a nonce"),
    ];
    for ((what, memory), row) in heads.iter().zip(&rows) {
        writeln!(tables, "\n| {what} | µs a call | of the first | {memory} |\n|---|---|---|---|").unwrap();
        for case in row {
            let ratio = median(case.took.iter().zip(&row[0].took).map(|(one, first)| one / first));
            let each = match (case.grown, case.size) {
                (Some(bytes), size) if size >= 1_000 => format!("{:.0}", bytes as f64 / size as f64),
                _ => String::new(),
            };
            let took = median(case.took.iter().copied());
            writeln!(tables, "| {} | {took:.2} | {ratio:.2} | {each} |", thousands(case.size)).unwrap();
        }
    }
    if measuring {
        println!("{tables}");
    }
}

/// A service, and who calls it.
struct Case {
    desk: Desk,
    callers: Vec<Caller>,
    size: usize,
    /// By how much memory has grown.
    grown: Option<u64>,
    next: usize,
    took: Vec<f64>,
}

struct Caller {
    signer: RequestSigner,
    token: String,
    subject: String,
    reply: String,
}

impl Case {
    fn new(desk: Desk, size: usize) -> Self {
        let callers = vec![Caller::new(&desk, &Name::new("a0").unwrap())];
        enrol(&desk, 1);
        Self { desk, callers, size, grown: None, next: 0, took: Vec::new() }
    }

    /// This many agents are enrolled. Each calls once, which counts as memory, and then in its turn.
    fn agents(agents: usize) -> Self {
        let mut case = Self::new(open(1), agents);
        case.callers = (0..agents).map(|number| Caller::new(&case.desk, &name(number))).collect();
        let before = memory();
        enrol(&case.desk, agents);
        for caller in &case.callers {
            case.answered(caller.message(&case.desk)).now_or_never().unwrap();
        }
        case.grown = grown(before);
        case
    }

    /// This many other methods, each with a rule of its own about the caller's role.
    fn rules(rules: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("policy.toml"), PLAIN).unwrap();
        for (file, numbers) in (0..rules).collect::<Vec<_>>().chunks(RULES_IN_A_FILE).enumerate() {
            let text: String = numbers.iter().map(|number| format!(
                "[rule.r{number}]\nroles = [\"worker\"]\nallow = [\"other/m{number}\"]\nwhen.params.amount = {{ max = {number} }}\n\
                 [method.\"other/m{number}\"]\nparams = [{{ name = \"amount\", type = \"integer\" }}]\n"
            )).collect();
            std::fs::write(folder.path().join(format!("rules-{file}.toml")), text).unwrap();
        }
        let before = memory();
        let mut case = Self::new(open(rules), rules);
        let policy = case.desk.load_policy(folder.path()).unwrap_or_else(|error| panic!("{error}"));
        case.desk.service.replace_policy(policy);
        case.grown = grown(before);
        case
    }

    /// The guard remembers this many nonces of other agents.
    fn nonces(nonces: usize) -> Self {
        let mut case = Self::new(open(1), nonces);
        let (guard, now) = (case.desk.service.verifier().guard(), case.desk.clock.now_s());
        let owners: Vec<Name> = (0..OWNERS).map(|number| Name::new(&format!("o{number}")).unwrap()).collect();
        let before = memory();
        for number in 0..nonces {
            let owner = &owners[number % OWNERS];
            let admitted = guard.admit(owner, Nonce::random(), now, now + 30, Instant::now());
            admitted.now_or_never().unwrap().unwrap();
        }
        assert_eq!(guard.stats().live, nonces);
        case.grown = grown(before);
        case
    }

    /// Microseconds of processor time for each of at least `calls` calls, and at least one of every agent.
    async fn round(&mut self, calls: usize) -> f64 {
        let calls = calls.max(self.callers.len());
        let messages: Vec<Delivery> = (0..calls)
            .map(|_| {
                self.next += 1;
                self.callers[self.next % self.callers.len()].message(&self.desk)
            })
            .collect();
        let before = spent();
        for message in messages {
            self.answered(message).await;
        }
        (spent() - before).as_secs_f64() * 1e6 / calls as f64
    }

    async fn answered(&self, message: Delivery) {
        let answer = self.desk.service.handle(message).await.unwrap();
        assert!(answer.payload().ends_with(b"\"result\":true,\"id\":1}"), "{}", sealwire_testkit::desk::text(&answer));
    }
}

impl Caller {
    fn new(desk: &Desk, name: &Name) -> Self {
        let mut request = IssueRequest::new(name.as_str(), desk.endpoint.audience().as_str(), desk.clock.now_s());
        request.roles = ["worker".to_owned()].into();
        let audience = desk.endpoint.audience().clone();
        Self {
            signer: RequestSigner::new(&key(name), audience, vec![]).unwrap(),
            token: desk.issuer.issue(&request).unwrap(),
            subject: desk.endpoint.subject(name),
            reply: format!("{}r1", desk.endpoint.inbox(name)),
        }
    }

    /// A call that was not made before.
    fn message(&self, desk: &Desk) -> Delivery {
        let body = call("desk/echo", r#"{"to":"acct-17","amount":250,"note":"rent"}"#);
        let signed = self.signer.sign(&Signed {
            subject: &self.subject,
            reply: &self.reply,
            payload: body.as_bytes(),
            token: &self.token,
            now_ms: desk.clock.now_ms(),
            valid_s: 30,
            timeout_ms: Some(5_000),
            idempotency_key: None,
            window: None,
            traceparent: None,
            ..Signed::default()
        });
        let headers = HeaderBlock::of(&[("Authorization", signed.authorization.as_str())]);
        Delivery::new(&self.subject, &self.reply, headers, body.into_bytes())
    }
}

/// A service with this many more methods, without limits that the measurement would reach.
fn open(methods: usize) -> Desk {
    let mut router = Router::new(()).method("desk/echo", |_: Ctx, _: Value| async { Ok::<_, RpcError>(true) });
    for number in 0..methods {
        router = router.method(&format!("other/m{number}"), |_: Ctx, _: Value| async { Ok::<_, RpcError>(true) });
    }
    let quota = QuotaLimits { per_second: u32::MAX, burst: u32::MAX, ..QuotaLimits::default() };
    let limits = ServiceLimits { quota, ..ServiceLimits::default() };
    let nonce_limits = NonceLimits { owner: NONCES, total: NONCES, owners: 20_000, ..NonceLimits::default() };
    Desk::open_as(Setup { policy: PLAIN, limits, nonce_limits, ..Setup::default() }, |service| service.methods(router))
}

/// Puts this many agents into the key ring.
fn enrol(desk: &Desk, agents: usize) {
    let audience = desk.endpoint.audience();
    desk.change_ring(|keys| {
        keys.extend((0..agents).map(|number| {
            let (name, key) = (name(number), key(&name(number)));
            KeyEntry::hmac(key.kid(), name, &key.derived(audience).unwrap())
        }));
    });
}

fn name(number: usize) -> Name {
    Name::new(&format!("a{number}")).unwrap()
}

fn key(name: &Name) -> AgentKey {
    let mut master = [0x5a; 32];
    master[..name.as_str().len()].copy_from_slice(name.as_str().as_bytes());
    AgentKey::hmac(&format!("{name}.k1"), &master).unwrap()
}

/// Processor time of this thread so far.
fn spent() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap()
}

/// The memory of the process, in bytes, where the system reports it.
fn memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

fn grown(before: Option<u64>) -> Option<u64> {
    Some(memory()?.saturating_sub(before?))
}

fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let split = digits.len() % 3;
    let mut groups: Vec<&str> =
        digits.as_bytes()[split..].chunks(3).map(|group| std::str::from_utf8(group).unwrap()).collect();
    if split > 0 {
        groups.insert(0, &digits[..split]);
    }
    groups.join(",")
}

fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
