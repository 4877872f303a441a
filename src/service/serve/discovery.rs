//! What a replica says about itself: `$SRV.PING`, `$SRV.INFO` and `$SRV.STATS` as ADR-32 (NATS micro services) defines them,
//! and the same as `PING` to other replicas. Never answers outside the asker's inboxes, and never shows more than names,
//! counts and states.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use time::format_description::well_known::Rfc3339;
use tokio::time::Instant;

use super::super::counters::MethodCounters;
use super::super::metadata::{
    AUDIENCE, GUARD, GUARD_IDENTITY, GUARD_READY, POLICY, REFUSED, STARTED, STATE, SUBJECT, peers,
};
use super::shared::Shared;
use super::state::RefusedReload;
use crate::clock::{Clock as _, SystemClock};
use crate::nats::Message;
use crate::wire::{Endpoint, HeaderBlock, Nonce, Presence, Question, is_plain_subject};

/// The subjects of `$SRV` to answer on: each verb for all, for the name, and for this instance.
pub(super) fn subjects(shared: &Shared) -> Vec<String> {
    let name = shared.service.endpoint().service();
    ["PING", "INFO", "STATS"]
        .into_iter()
        .flat_map(|verb| {
            [format!("$SRV.{verb}"), format!("$SRV.{verb}.{name}"), format!("$SRV.{verb}.{name}.{}", shared.instance)]
        })
        .collect()
}

/// Who asks, as far as the subject shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asker {
    /// A replica of this service, or its operator: nobody else may.
    Replica,
    /// Anyone who may ask on `$SRV`.
    Anybody,
}

#[derive(Debug, Clone, Copy)]
enum Verb {
    Ping,
    Info,
    Stats,
}

/// A question: as much of a message as its answer needs.
#[derive(Debug)]
pub(super) struct Request {
    asker: Asker,
    verb: Verb,
    reply: String,
    nonce: Option<Nonce>,
}

impl Request {
    /// `None` if there is nothing to answer. The asker chooses the reply subject, but the answer is published with our
    /// permissions: so replicas are answered where replicas listen, and everybody else in inboxes.
    pub(super) fn read(endpoint: &Endpoint, message: &Message) -> Option<Self> {
        let (asker, verb, inboxes) = if message.subject == peers(endpoint) {
            (Asker::Replica, Verb::Ping, format!("{}.replica", endpoint.service_inbox()))
        } else {
            let verb = match message.subject.strip_prefix("$SRV.")?.split('.').next()? {
                "PING" => Verb::Ping,
                "INFO" => Verb::Info,
                "STATS" => Verb::Stats,
                _ => return None,
            };
            (Asker::Anybody, verb, endpoint.inbox_prefix().to_owned())
        };
        let reply = message.reply.as_ref().filter(|reply| is_plain_subject(reply))?;
        reply.strip_prefix(&inboxes)?.strip_prefix('.')?;
        Some(Self { asker, verb, reply: reply.clone(), nonce: Question::nonce(&message.payload) })
    }

    pub(super) fn asker(&self) -> Asker {
        self.asker
    }
}

/// An answer and where it goes.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) to: String,
    pub(super) headers: HeaderBlock,
    pub(super) payload: Vec<u8>,
}

/// The answer to a request, signed if the asker sent a nonce.
pub(super) fn answer(shared: &Shared, request: Request, signatures: &mut Signatures) -> Answer {
    let Request { asker, verb, reply, nonce } = request;
    let said = match verb {
        Verb::Ping => common(shared, "ping_response"),
        Verb::Info => info(shared),
        Verb::Stats => stats(shared),
    };
    let payload = said.to_string().into_bytes();
    let key = nonce.zip(shared.service.verifier().service_key());
    let headers = match key.filter(|_| signatures.take(asker, Instant::now())) {
        Some((nonce, key)) => {
            let (audience, instance) = (shared.service.endpoint().audience(), shared.instance.as_str());
            let now_s = SystemClock.now_s();
            Presence { audience, instance, to: &reply, nonce, payload: &payload, now_s }.sign(&key)
        }
        None => HeaderBlock::default(),
    };
    Answer { to: reply, headers, payload }
}

/// How many more answers may be signed: otherwise anyone who may ask could keep a core busy. Above that, answers are
/// unsigned, like those to the NATS tools, and prove nothing. Replicas have signatures of their own, so that nobody
/// else can use them up.
#[derive(Debug)]
pub(super) struct Signatures {
    replicas: u32,
    others: u32,
    since: Instant,
}

/// Signatures for replicas per second. Each replica asks once a second, and so may its health check: enough for 500 of them.
const FOR_REPLICAS: u32 = 1_000;
/// Signatures for everybody else per second: about 1 % of a core.
const FOR_OTHERS: u32 = 250;

impl Signatures {
    pub(super) fn new(now: Instant) -> Self {
        Self { replicas: FOR_REPLICAS, others: FOR_OTHERS, since: now }
    }

    fn take(&mut self, asker: Asker, now: Instant) -> bool {
        if now.saturating_duration_since(self.since) >= Duration::from_secs(1) {
            *self = Self::new(now);
        }
        let left = match asker {
            Asker::Replica => &mut self.replicas,
            Asker::Anybody => &mut self.others,
        };
        let taken = left.checked_sub(1);
        *left = taken.unwrap_or(0);
        taken.is_some()
    }
}

fn common(shared: &Shared, kind: &str) -> Value {
    let (endpoint, guard) = (shared.service.endpoint(), shared.service.verifier().guard());
    let mut common = json!({
        "type": format!("io.nats.micro.v1.{kind}"),
        "name": endpoint.service(),
        "id": shared.instance,
        "version": shared.options.version,
        "metadata": {
            AUDIENCE: endpoint.audience().as_str(),
            SUBJECT: endpoint.subscription(),
            GUARD: guard.kind(),
            GUARD_IDENTITY: serde_json::to_string(&guard.identity()).unwrap_or_default(),
            GUARD_READY: guard.not_ready().is_none().to_string(),
            STARTED: shared.started_ms().to_string(),
            STATE: shared.state.borrow().as_str(),
            POLICY: shared.service.policy().revision().to_string(),
        },
    });
    if let (Some(refused), Some(metadata)) =
        (refused(shared), common.get_mut("metadata").and_then(Value::as_object_mut))
    {
        metadata.insert(REFUSED.to_owned(), refused.into());
    }
    common
}

/// The kinds of files whose present state is refused.
fn refused(shared: &Shared) -> Option<String> {
    let refused = shared.health.refused_reloads();
    let kinds: Vec<&str> = refused.iter().map(|refused| refused.what).collect();
    (!kinds.is_empty()).then(|| kinds.join(", "))
}

fn with(mut common: Value, members: Value) -> Value {
    if let (Value::Object(common), Value::Object(members)) = (&mut common, members) {
        common.extend(members);
    }
    common
}

fn info(shared: &Shared) -> Value {
    let endpoint = shared.service.endpoint();
    let all = json!({ "name": "rpc", "subject": endpoint.subscription(), "queue_group": "q", "metadata": {} });
    let methods = shared.service.counters().methods().map(|(name, _)| {
        json!({
            "name": endpoint_name(name),
            "subject": method_subject(endpoint, name),
            "queue_group": "q",
            "metadata": { "method": name },
        })
    });
    let endpoints: Vec<Value> = std::iter::once(all).chain(methods).collect();
    with(common(shared, "info_response"), json!({ "description": shared.options.description, "endpoints": endpoints }))
}

fn stats(shared: &Shared) -> Value {
    let endpoint = shared.service.endpoint();
    let counters = shared.service.counters();
    let health = &shared.health;
    let load = |number: &std::sync::atomic::AtomicU64| number.load(Ordering::Relaxed);
    let guard = shared.service.verifier().guard().stats();
    let total = MethodCounters::default();
    for (_, method) in counters.methods().chain(std::iter::once(("", counters.unregistered()))) {
        total.requests.fetch_add(load(&method.requests), Ordering::Relaxed);
        total.errors.fetch_add(load(&method.errors), Ordering::Relaxed);
        total.denied.fetch_add(load(&method.denied), Ordering::Relaxed);
        total.processing_ns.fetch_add(load(&method.processing_ns), Ordering::Relaxed);
    }
    let one = |name: &str, subject: String, counted: &MethodCounters, last_error: &str, data: Value| {
        let requests = load(&counted.requests);
        let processing = load(&counted.processing_ns);
        json!({
            "name": name,
            "subject": subject,
            "queue_group": "q",
            "num_requests": requests,
            "num_errors": load(&counted.errors),
            "last_error": last_error,
            "processing_time": processing,
            "average_processing_time": processing.checked_div(requests).unwrap_or(0),
            "data": data,
        })
    };
    let all = one(
        "rpc",
        endpoint.subscription(),
        &total,
        &counters.last_error(),
        json!({
            "refusals": counters.refusals(),
            "shadow_rules": counters.shadow_rules(),
            "connections_reconnected": load(&health.reconnected),
            "questions_unanswered": load(&health.unasked),
            "shed": load(&health.shed),
            "answers_unsent": load(&health.unsent),
            "reloads_refused": reloads_refused(shared),
            "guard_live_nonces": guard.live,
            "guard_owners": guard.owners,
            "guard_clock_behind_ms": guard.lag_ms,
            "token_keys": token_keys(shared),
            "agent_refusals": agent_refusals(shared),
        }),
    );
    let methods = counters.methods().map(|(name, counted)| {
        let data = json!({ "method": name, "denied": load(&counted.denied) });
        one(&endpoint_name(name), method_subject(endpoint, name), counted, "", data)
    });
    let endpoints: Vec<Value> = std::iter::once(all).chain(methods).collect();
    let started = shared.started.format(&Rfc3339).unwrap_or_default();
    with(common(shared, "stats_response"), json!({ "started": started, "endpoints": endpoints }))
}

/// The most pairs of an agent and a reason that are told: an answer stays small.
const MAX_AGENT_REFUSALS: usize = 64;

/// Refusals by agent, if they are to be told: asking takes no rights at the service.
fn agent_refusals(shared: &Shared) -> Vec<Value> {
    if !shared.options.tell_agents {
        return Vec::new();
    }
    let refused = shared.service.0.meters.most_refused(MAX_AGENT_REFUSALS);
    refused
        .into_iter()
        .map(|(agent, reason, count)| json!({ "agent": agent, "reason": reason, "count": count }))
        .collect()
}

/// Files whose present state is not in force, and since when.
fn reloads_refused(shared: &Shared) -> Vec<Value> {
    let time = |time| time::OffsetDateTime::from(time).format(&Rfc3339).unwrap_or_default();
    let refused = shared.health.refused_reloads();
    let shown = |it: RefusedReload| json!({ "what": it.what, "since": time(it.since), "closed": it.closed });
    refused.into_iter().map(shown).collect()
}

/// The state of fetching token keys, without the texts of errors: asking takes no rights at the service.
fn token_keys(shared: &Shared) -> Vec<Value> {
    let sources = shared.service.verifier().tokens().key_sources();
    let one = |source: crate::auth::KeySourceStatus| {
        json!({
            "issuer": source.issuer,
            "state": source.state.as_str(),
            "keys": source.keys,
            "left_out": source.left_out,
            "age_s": source.age_s,
            "fetched": source.fetched,
            "failed": source.failed,
        })
    };
    sources.into_iter().map(one).collect()
}

/// A method's name as an endpoint's, which may not contain `/` or `.` (ADR-32).
fn endpoint_name(method: &str) -> String {
    method.replace(['/', '.'], "_")
}

fn method_subject(endpoint: &Endpoint, method: &str) -> String {
    format!("{}.{}.*.{}", endpoint.prefix(), endpoint.service(), method.replace('/', "."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_bounded_for_each_second_and_nobody_uses_up_the_replicas() {
        let now = Instant::now();
        let mut signatures = Signatures::new(now);
        let mut taken = |asker, now| (0..5_000).filter(|_| signatures.take(asker, now)).count();
        assert_eq!((taken(Asker::Anybody, now), taken(Asker::Replica, now)), (250, 1_000));
        let later = now + Duration::from_secs(1);
        assert_eq!((taken(Asker::Anybody, later), taken(Asker::Replica, later)), (250, 1_000));
    }
}
