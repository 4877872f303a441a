//! The methods of the demonstration service: small, real, in memory.
//! Never decides who may call them: the policy files do.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::{Stream, stream};
use sealwire::{Clock as _, Ctx, Method, Params, Router, RpcError, Sink, SystemClock, method};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// The methods `math/*`, `log/append`, `bank/*`, `admin/drain-cache`, `audit/read`, `text/echo` (a stream), `clock/ticks` (a
/// subscription) and `job/run` (which reports its progress and can be cancelled), all on one state.
pub fn router() -> Router<Demo> {
    Router::new(Demo::default())
        .add(
            "math/add",
            returning("number", method(add)).describe("Adds two numbers.").example(json!({ "a": 2, "b": 3 }), 5),
        )
        .add("math/mul", returning("number", method(mul)).describe("Multiplies two numbers."))
        .add("math/reset", returning("object", method(reset)).describe("Forgets all results."))
        .add("log/append", returning("object", method(append)).describe("Appends a line to the log."))
        .add(
            "bank/transfer",
            returning("object", method(transfer)).describe("Moves money (in cents) out of the caller's account."),
        )
        .add("bank/balance", returning("object", method(balance)).describe("What is in an account, in cents."))
        .add("admin/drain-cache", returning("object", method(drain_cache)).describe("Forgets all results."))
        .add("audit/read", returning("array", method(read_audit)).describe("What happened, newest first."))
        .add(
            "text/echo",
            returning("string", Method::with_sink(echo))
                .describe("Returns a text, and sends it word by word on the way."),
        )
        .add("clock/ticks", Method::subscription(ticks).describe("The time, again and again."))
        .add(
            "job/run",
            returning("object", method(run_job))
                .describe("Works for a tenth of a second a step, and tells how far it is."),
        )
}

fn returning(kind: &str, method: Method<Demo>) -> Method<Demo> {
    method.result(json!({ "type": kind }))
}

/// What the methods remember, until the process ends.
#[derive(Debug, Default)]
pub struct Demo(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Results of `math`, so that there is a cache to drain.
    results: BTreeMap<String, f64>,
    lines: VecDeque<String>,
    accounts: BTreeMap<String, u64>,
    audit: VecDeque<AuditEntry>,
}

/// One thing that happened, as `audit/read` returns it.
#[derive(Debug, Clone, Serialize)]
struct AuditEntry {
    at: u64,
    agent: String,
    subject: String,
    what: String,
}

impl Demo {
    fn state(&self) -> MutexGuard<'_, State> {
        // Every change below is complete before anything can panic, so the state is sound after a panic too.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn record(&mut self, ctx: &Ctx<Demo>, what: String) {
        let caller = ctx.caller();
        let (agent, subject) = (caller.agent.to_string(), caller.subject.clone());
        push(&mut self.audit, AuditEntry { at: SystemClock.now_s(), agent, subject, what });
    }

    /// The account with this name, opened with [`OPENING_BALANCE`] when first seen.
    fn account(&mut self, name: &str) -> Result<&mut u64, RpcError> {
        if !self.accounts.contains_key(name) && self.accounts.len() >= MAX_ENTRIES {
            return Err(RpcError::application(BANK_FULL, "the demonstration bank opens no more accounts"));
        }
        Ok(self.accounts.entry(name.to_owned()).or_insert(OPENING_BALANCE))
    }
}

/// Two numbers.
#[derive(Deserialize, Params)]
#[serde(deny_unknown_fields)]
struct Pair {
    a: f64,
    b: f64,
}

async fn add(ctx: Ctx<Demo>, p: Pair) -> Result<serde_json::Value, RpcError> {
    computed(&ctx, &format!("{}+{}", p.a, p.b), p.a + p.b)
}

async fn mul(ctx: Ctx<Demo>, p: Pair) -> Result<serde_json::Value, RpcError> {
    computed(&ctx, &format!("{}*{}", p.a, p.b), p.a * p.b)
}

fn computed(ctx: &Ctx<Demo>, formula: &str, result: f64) -> Result<serde_json::Value, RpcError> {
    if !result.is_finite() {
        return Err(RpcError::validation("the result is too large for a number"));
    }
    let mut state = ctx.state().state();
    if state.results.len() < MAX_ENTRIES {
        state.results.insert(formula.to_owned(), result);
    }
    Ok(number(result))
}

/// `3` and not `3.0`: writes whole numbers that a double holds exactly (below 2^53) as integers.
fn number(value: f64) -> serde_json::Value {
    if value.fract() == 0.0 && value.abs() < 9_007_199_254_740_992.0 {
        #[expect(clippy::cast_possible_truncation, reason = "whole, and within the range of i64")]
        let whole = value as i64;
        return whole.into();
    }
    value.into()
}

/// No parameters, by name or by position.
#[derive(Deserialize, Params)]
#[serde(deny_unknown_fields)]
struct NoParams {}

async fn reset(ctx: Ctx<Demo>, _: NoParams) -> Result<serde_json::Value, RpcError> {
    forget(&ctx, "math/reset")
}

async fn drain_cache(ctx: Ctx<Demo>, _: NoParams) -> Result<serde_json::Value, RpcError> {
    forget(&ctx, "admin/drain-cache")
}

fn forget(ctx: &Ctx<Demo>, what: &str) -> Result<serde_json::Value, RpcError> {
    let mut state = ctx.state().state();
    let dropped = state.results.len();
    state.results.clear();
    state.record(ctx, format!("{what}: {dropped} results dropped"));
    Ok(serde_json::json!({ "dropped": dropped }))
}

#[derive(Deserialize, Params)]
#[serde(deny_unknown_fields)]
struct Line {
    msg: String,
}

async fn append(ctx: Ctx<Demo>, p: Line) -> Result<serde_json::Value, RpcError> {
    if p.msg.len() > MAX_LINE {
        return Err(RpcError::validation("a line has at most 1000 bytes"));
    }
    let mut state = ctx.state().state();
    push(&mut state.lines, p.msg);
    Ok(serde_json::json!({ "lines": state.lines.len() }))
}

/// `amount` is in cents.
#[derive(Deserialize, Params)]
#[serde(deny_unknown_fields)]
struct Transfer {
    to: String,
    amount: u64,
    #[serde(default)]
    note: Option<String>,
}

/// Moves money out of the account of the subject that the call is made for; the caller cannot name another source.
async fn transfer(ctx: Ctx<Demo>, p: Transfer) -> Result<serde_json::Value, RpcError> {
    let from = ctx.caller().subject.clone();
    check_account(&p.to)?;
    if p.to == from {
        return Err(RpcError::validation("both accounts are the same"));
    }
    if p.amount == 0 {
        return Err(RpcError::validation("the amount is zero"));
    }
    if p.note.as_ref().is_some_and(|note| note.len() > MAX_LINE) {
        return Err(RpcError::validation("a note has at most 1000 bytes"));
    }
    let mut state = ctx.state().state();
    let left = state.account(&from)?.checked_sub(p.amount);
    let left = left.ok_or_else(|| RpcError::application(NOT_COVERED, "the account does not cover the amount"))?;
    let there = state.account(&p.to)?.checked_add(p.amount);
    let there = there.ok_or_else(|| RpcError::validation("the receiving account is full"))?;
    // Nothing below can fail, so money is neither lost nor created.
    *state.account(&p.to)? = there;
    *state.account(&from)? = left;
    state.record(&ctx, format!("bank/transfer: {} cents from `{from}` to `{}`", p.amount, p.to));
    Ok(serde_json::json!({ "from": from, "to": p.to, "amount": p.amount, "balance": left }))
}

#[derive(Deserialize, Params)]
#[serde(deny_unknown_fields)]
struct Account {
    account: String,
}

async fn balance(ctx: Ctx<Demo>, p: Account) -> Result<serde_json::Value, RpcError> {
    check_account(&p.account)?;
    let balance = *ctx.state().state().account(&p.account)?;
    Ok(serde_json::json!({ "account": p.account, "balance": balance }))
}

fn check_account(name: &str) -> Result<(), RpcError> {
    if (1..=128).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(());
    }
    Err(RpcError::validation("an account is named by 1 to 128 visible ASCII characters"))
}

#[derive(Deserialize, Params)]
#[serde(deny_unknown_fields)]
struct Page {
    #[serde(default)]
    limit: Option<usize>,
}

/// The latest entries, newest first; 20 by default, at most 100.
async fn read_audit(ctx: Ctx<Demo>, p: Page) -> Result<Vec<AuditEntry>, RpcError> {
    let limit = p.limit.unwrap_or(20).min(100);
    Ok(ctx.state().state().audit.iter().rev().take(limit).cloned().collect())
}

#[derive(Deserialize, Params)]
#[serde(deny_unknown_fields)]
struct Text {
    text: String,
}

/// Returns the text: word by word if the caller accepts frames, otherwise at once.
async fn echo(ctx: Ctx<Demo>, p: Text, words: Sink<String>) -> Result<String, RpcError> {
    if p.text.len() > MAX_LINE {
        return Err(RpcError::validation("a text has at most 1000 bytes"));
    }
    if ctx.takes_frames() {
        for word in p.text.split_inclusive(' ') {
            tokio::time::sleep(A_WORD).await;
            words.send(&word.to_owned()).await?;
        }
    }
    Ok(p.text)
}

#[derive(Deserialize, Params)]
#[serde(deny_unknown_fields)]
struct TicksParams {
    #[serde(default = "a_second")]
    every_ms: u64,
}

fn a_second() -> u64 {
    1_000
}

/// What `clock/ticks` sends.
#[derive(Serialize)]
struct Tick {
    /// Counted from 1 for each subscriber.
    tick: u64,
    /// Seconds since the Unix epoch.
    at: u64,
}

/// Sends the time at regular intervals.
async fn ticks(_: Ctx<Demo>, p: TicksParams) -> Result<impl Stream<Item = Result<Tick, RpcError>>, RpcError> {
    if !(20..=60_000).contains(&p.every_ms) {
        return Err(RpcError::validation("`every_ms` is 20 to 60000"));
    }
    let every = tokio::time::interval(Duration::from_millis(p.every_ms));
    Ok(stream::unfold((every, 1), |(mut every, tick)| async move {
        every.tick().await;
        Some((Ok(Tick { tick, at: SystemClock.now_s() }), (every, tick + 1)))
    }))
}

#[derive(Deserialize, Params)]
#[serde(deny_unknown_fields)]
struct Job {
    steps: u32,
}

/// Works for a tenth of a second per step, and reports progress after each.
async fn run_job(ctx: Ctx<Demo>, p: Job) -> Result<serde_json::Value, RpcError> {
    if p.steps == 0 {
        return Err(RpcError::validation("a job has at least one step"));
    }
    for step in 1..=p.steps {
        tokio::select! {
            () = tokio::time::sleep(A_STEP) => {}
            () = ctx.cancelled() => {
                ctx.state().state().record(&ctx, format!("job/run: ended before step {step} of {}", p.steps));
                // This error goes nowhere: the caller is told why its call was ended.
                return Err(RpcError::validation("ended"));
            }
        }
        ctx.progress(step.into(), Some(p.steps.into()), Some("working"));
    }
    ctx.state().state().record(&ctx, format!("job/run: {} steps", p.steps));
    Ok(serde_json::json!({ "steps": p.steps }))
}

/// Adds an entry, and drops the oldest if there are too many.
fn push<T>(entries: &mut VecDeque<T>, entry: T) {
    if entries.len() >= MAX_ENTRIES {
        entries.pop_front();
    }
    entries.push_back(entry);
}

/// The most results, lines, accounts and audit entries, for each of them: about a megabyte at worst.
const MAX_ENTRIES: usize = 1_000;

/// The longest line or note, in bytes.
const MAX_LINE: usize = 1_000;

/// Slow enough for people to see each word and each step.
const A_WORD: Duration = Duration::from_millis(50);
const A_STEP: Duration = Duration::from_millis(100);

/// 100.00, in cents.
const OPENING_BALANCE: u64 = 10_000;

/// The account does not cover the amount. Application codes should be positive: SPEC.md §14.1.
const NOT_COVERED: i32 = 1;

/// No more accounts can be opened.
const BANK_FULL: i32 = 2;
