//! Writes what a service has counted and measured, and how it stands, whenever a registry is encoded.
//! Counts nothing itself, so that each number has one source.

use std::fmt;

use super::Service;
use super::counters::{BudgetCounters, ShadowCounters};
use super::meters::{Recorded, verdict};
use crate::auth::{GuardStats, KeySourceStatus, Latency, SharedStats};
use crate::policy::Verdict;
use crate::registry::{Collector, DescriptorEncoder, Families, Registry, Report};

/// The most keys whose ends are reported: those that end first.
const MAX_KEYS: usize = 500;

impl Report for Service {
    /// Also measures durations from now on, and counts decisions: until then, nothing is spent on that.
    fn report_to(&self, registry: &mut Registry) {
        self.0.meters.switch_on();
        registry.register_collector(Box::new(Reported(self.clone())));
    }
}

#[derive(Debug)]
struct Reported(Service);

impl Collector for Reported {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Self(service) = self;
        let families = &mut Families::from(encoder);
        families.info("sealwire_build", "The version of the library", [("version", env!("CARGO_PKG_VERSION"))])?;
        let refusals = service.counters().refusals();
        families.counters(
            "sealwire_refusals",
            "Messages, entries of batches and answers that were refused",
            refusals.into_iter().map(|(reason, count)| ([("reason", reason)], count)),
        )?;
        shadow(families, service)?;
        budgets(families, service)?;
        if let Some(recorded) = service.0.meters.recorded() {
            measured(families, recorded)?;
        }
        guard(families, service)?;
        policy(families, service)?;
        keys(families, service)?;
        token_keys(families, &service.verifier().tokens().key_sources())?;
        if let Some(recorder) = service.recorder() {
            families.counters(
                "sealwire_record_lines_lost",
                "Lines of the record that were lost",
                recorder.lost_by().map(|(reason, count)| ([("reason", reason)], count)),
            )?;
        }
        held(families, service)
    }
}

fn measured(families: &mut Families<'_>, recorded: &Recorded) -> fmt::Result {
    let (executed, refused) = recorded.messages();
    families.counters(
        "sealwire_messages",
        "Messages that were executed or refused as a whole",
        [([("result", "executed")], executed), ([("result", "refused")], refused)],
    )?;
    families.exemplars(
        "rpc_server_call_duration_seconds",
        "Time from the receipt of a message to the outcome of its call",
        recorded
            .calls
            .read(Clone::clone)
            .into_iter()
            .map(|(method, code, calls)| ([("rpc_method", method), ("error_type", code.to_owned())], calls)),
    )?;
    families.durations(
        "sealwire_stage_duration_seconds",
        "Time that a stage took, measured for one in eight messages and entries",
        recorded.stages().map(|(stage, durations)| ([("stage", stage)], durations)),
    )?;
    families.counters(
        "sealwire_decisions",
        "Decisions of the policy on calls",
        recorded.decisions().map(|(verdict, reason, count)| ([("verdict", verdict), ("reason", reason)], count)),
    )?;
    families.counters(
        "sealwire_rule_decisions",
        "Decisions by the rule that decided",
        recorded
            .rules
            .read(|count| *count)
            .into_iter()
            .map(|(rule, verdict, count)| ([("rule", rule), ("verdict", verdict.to_owned())], count)),
    )?;
    families.counters(
        "sealwire_agent_refusals",
        "Refused messages and denied calls of agents whose keys have proved them",
        recorded
            .agents
            .read(|count| *count)
            .into_iter()
            .map(|(agent, reason, count)| ([("agent", agent), ("reason", reason.to_owned())], count)),
    )
}

fn shadow(families: &mut Families<'_>, service: &Service) -> fmt::Result {
    let rules = service.counters().shadow_rules();
    let of = |(rule, ShadowCounters { would_deny, would_allow }): (String, ShadowCounters)| {
        [(Verdict::Allow, would_allow), (Verdict::Deny, would_deny)]
            .map(|(would, count)| ([("rule", rule.clone()), ("would", verdict(would).to_owned())], count))
    };
    families.counters(
        "sealwire_shadow_decisions",
        "Decisions that a rule in shadow mode would have changed",
        rules.into_iter().flat_map(of),
    )
}

fn budgets(families: &mut Families<'_>, service: &Service) -> fmt::Result {
    let of = |(budget, BudgetCounters { charged, refused }): (String, BudgetCounters)| {
        [("charged", charged), ("refused", refused)]
            .map(|(result, count)| ([("budget", budget.clone()), ("result", result.to_owned())], count))
    };
    families.counters(
        "sealwire_budget_calls",
        "Permitted calls that were charged to a budget, or that it had no room for",
        service.counters().budgets().into_iter().flat_map(of),
    )
}

fn guard(families: &mut Families<'_>, service: &Service) -> fmt::Result {
    let guard = service.verifier().guard();
    let GuardStats { live, owners, lag_ms, admitted, stale, replayed, owner_full, full, unavailable, shared, .. } =
        guard.stats();
    families.gauge(
        "sealwire_guard_up",
        "Whether the replay guard vouches for messages that are issued now",
        f64::from(u8::from(guard.not_ready().is_none())),
    )?;
    families.gauge(
        "sealwire_guard_fence_timestamp_seconds",
        "The last second that the replay guard cannot vouch for",
        seconds(guard.fence()),
    )?;
    families.level("sealwire_guard_nonces", "Nonces that the replay guard holds", live)?;
    families.level("sealwire_guard_owners", "Agents whose nonces the replay guard holds", owners)?;
    families.gauge(
        "sealwire_guard_clock_behind_seconds",
        "How far the clock is behind the latest time that was seen",
        seconds(lag_ms) / 1e3,
    )?;
    let answers = [
        ("admitted", admitted),
        ("stale", stale),
        ("replayed", replayed),
        ("owner_full", owner_full),
        ("full", full),
        ("unavailable", unavailable),
    ];
    families.counters(
        "sealwire_guard_checks",
        "Answers of the replay guard",
        answers.map(|(answer, count)| ([("answer", answer)], count)),
    )?;
    let Some(SharedStats { in_flight, latency, unanswered, interruptions, .. }) = shared else { return Ok(()) };
    families.level("sealwire_guard_checks_in_flight", "Checks that wait for the guard's stream", in_flight)?;
    families.counter(
        "sealwire_guard_unanswered",
        "Questions that the guard's stream did not answer in time",
        unanswered,
    )?;
    families.counter(
        "sealwire_guard_interruptions",
        "Times that the guard had to stop because of the broker, the stream or the clock",
        interruptions,
    )?;
    let buckets = Latency::BOUNDS_US.iter().map(|us| seconds(*us) / 1e6).zip(latency.buckets);
    let beyond = latency.count.saturating_sub(latency.buckets.iter().sum());
    let buckets: Vec<_> = buckets.chain(std::iter::once((f64::INFINITY, beyond))).collect();
    let count = buckets.iter().map(|(_, count)| count).sum();
    families.histogram(
        "sealwire_guard_check_duration_seconds",
        "Time that a check of the guard's stream took",
        seconds(latency.sum_us) / 1e6,
        count,
        &buckets,
    )
}

fn policy(families: &mut Families<'_>, service: &Service) -> fmt::Result {
    let policy = service.policy();
    let revision = policy.revision();
    families.gauge(
        "sealwire_policy_up",
        "Whether there is a policy that can allow anything",
        f64::from(u8::from(revision.why().is_none())),
    )?;
    families.info("sealwire_policy", "The policy in force", [("revision", revision.to_string())])
}

fn keys(families: &mut Families<'_>, service: &Service) -> fmt::Result {
    let ending = service.verifier().keys_ending(MAX_KEYS);
    families.gauges(
        "sealwire_key_not_after_timestamp_seconds",
        "When a key of the key ring ends, for those that end first",
        ending.into_iter().map(|(kid, agent, until)| ([("kid", kid), ("agent", agent)], seconds(until))),
    )
}

fn token_keys(families: &mut Families<'_>, sources: &[KeySourceStatus]) -> fmt::Result {
    families.gauges(
        "sealwire_token_keys",
        "Token keys in force that were fetched from an issuer, and what its tokens are judged by",
        sources
            .iter()
            .map(|source| ([("issuer", source.issuer.as_str()), ("state", source.state.as_str())], level(source.keys))),
    )?;
    families.gauges(
        "sealwire_token_keys_age_seconds",
        "Time since the issuer has confirmed its keys",
        sources.iter().filter_map(|source| Some(([("issuer", source.issuer.as_str())], seconds(source.age_s?)))),
    )?;
    families.counters(
        "sealwire_token_key_fetches",
        "Attempts to fetch an issuer's keys",
        sources.iter().flat_map(|source| {
            let issuer = ("issuer", source.issuer.as_str());
            [([issuer, ("result", "fetched")], source.fetched), ([issuer, ("result", "failed")], source.failed)]
        }),
    )
}

fn held(families: &mut Families<'_>, service: &Service) -> fmt::Result {
    let inner = &service.0;
    families.level(
        "sealwire_streams",
        "Calls under way that may be answered with frames",
        inner.open.streams().len(),
    )?;
    families.level(
        "sealwire_stream_memory_bytes",
        "Memory for requests and unacknowledged frames of streams",
        inner.open.memory().total(),
    )?;
    let (tasks, bytes) = inner.tasks.held();
    families.level("sealwire_tasks", "Tasks, calls for which nobody waits, that run", tasks)?;
    families.counters(
        "sealwire_tasks_ended",
        "Tasks that have ended here, by what became of them",
        service.counters().tasks().map(|(result, count)| ([("result", result)], count)),
    )?;
    families.level("sealwire_task_memory_bytes", "Memory for their parameters", bytes)?;
    families.level("sealwire_budget_counts", "Counts of budgets that are kept", inner.budgets.held())?;
    families.level("sealwire_attachment_memory_bytes", "Memory for attachments", inner.attachments.held())?;
    let (outcomes, bytes) = inner.idempotency.as_ref().map(super::Idempotency::held).unwrap_or_default();
    families.level(
        "sealwire_idempotency_outcomes",
        "Outcomes and claims of idempotent calls that are kept",
        outcomes,
    )?;
    families.level("sealwire_idempotency_bytes", "Their size", bytes)
}

#[expect(clippy::cast_precision_loss, reason = "a time, or a number of things in memory")]
fn seconds(seconds: u64) -> f64 {
    seconds as f64
}

#[expect(clippy::cast_precision_loss, reason = "a number of things in memory")]
fn level(level: usize) -> f64 {
    level as f64
}
