//! The gateway's traffic, for viewers of its page: calls in progress, ended calls, and their callers.
//! Never gets parameters, results or tokens, and never waits for a viewer.

use std::borrow::Cow;
use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sealwire::ClientError;
use sealwire::errors::code;
use sealwire::internal::client::{CallEnd, Observed, Observer, ReportedEvent};
use serde::Serialize;
use tokio::sync::broadcast;

use crate::http::refusal::Refusal;

/// How many ended calls a new viewer sees. Less than 1 KiB each, see `CHARACTERS`.
const RECENT: usize = 256;
/// How many calls may be queued for a viewer. A viewer further behind misses some.
const AHEAD: usize = 512;
/// How many calls in progress are known individually.
const UNDER_WAY: usize = 1_024;
/// How many callers are known. The one that has been idle the longest makes room.
const CALLERS: usize = 256;
/// How many replicas of a service are known.
const REPLICAS: usize = 32;
/// The longest text from elsewhere, in characters.
const CHARACTERS: usize = 100;
/// Callers and replicas that are idle for this long are forgotten.
const FORGOTTEN: Duration = Duration::from_secs(600);
/// The time spans, in seconds, of callers' rates and of the chart of all calls.
const WINDOW: usize = 10;
const MINUTE: usize = 60;

/// The traffic of a gateway.
#[derive(Debug)]
pub(super) struct Traffic {
    /// Whether callers are people, whose names the page must not show.
    is_personal: bool,
    names: RandomState,
    started: Instant,
    next: AtomicU64,
    pub(super) rows: broadcast::Sender<Arc<CallRecord>>,
    kept: Mutex<TrafficState>,
}

#[derive(Debug, Default)]
struct TrafficState {
    recent: VecDeque<Arc<CallRecord>>,
    under_way: BTreeMap<u64, Arc<CallInProgress>>,
    callers: HashMap<Arc<str>, Caller>,
    replicas: BTreeMap<(String, String), Replica>,
    counts: BTreeMap<String, Counts>,
    minute: RecentCounts<MINUTE>,
}

/// A call that has ended, or was refused.
#[derive(Debug, Serialize)]
pub(super) struct CallRecord {
    n: u64,
    at: u64,
    caller: Option<Arc<str>>,
    via: &'static str,
    service: String,
    method: String,
    /// How many calls it was.
    calls: usize,
    /// How many of them had this outcome.
    of: usize,
    outcome: Outcome,
    code: Option<i32>,
    ms: f64,
    replica: Option<String>,
    parts: u64,
}

/// The outcome of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Outcome {
    /// A result.
    Ok,
    /// A notification, which nobody answers.
    Sent,
    /// Given up by its caller or by the gateway.
    Cancelled,
    /// An error of the method.
    Error,
    /// Refused by the gateway, or by the service before its policy was asked.
    Refused,
    /// Denied by the policy.
    Denied,
    /// It may have run, at least in part.
    Unknown,
}

/// A call in progress.
#[derive(Debug)]
struct CallInProgress {
    n: u64,
    at: u64,
    since: Instant,
    principal: Arc<str>,
    caller: Arc<str>,
    via: &'static str,
    service: String,
    method: String,
    calls: usize,
    is_stream: bool,
    parts: AtomicU64,
    replica: OnceLock<String>,
}

/// A caller.
#[derive(Debug)]
struct Caller {
    shown: Arc<str>,
    last: Instant,
    counts: Counts,
    recent: RecentCounts<WINDOW>,
}

#[derive(Debug)]
struct Replica {
    last: Instant,
    answers: u64,
}

/// How many calls had which outcome.
#[derive(Debug, Default, Clone, Copy, Serialize)]
pub(super) struct Counts {
    ok: u64,
    error: u64,
    denied: u64,
    refused: u64,
    unknown: u64,
}

/// The same for each of the last `N` seconds.
#[derive(Debug)]
struct RecentCounts<const N: usize> {
    second: u64,
    counts: VecDeque<Counts>,
}

/// A call in progress, as shown on the page.
#[derive(Debug, Serialize)]
pub(super) struct ShownCall {
    n: u64,
    at: u64,
    caller: Arc<str>,
    via: &'static str,
    service: String,
    method: String,
    calls: usize,
    stream: bool,
    parts: u64,
    replica: Option<String>,
}

/// A caller, as shown on the page.
#[derive(Debug, Serialize)]
pub(super) struct ShownCaller {
    caller: Arc<str>,
    /// Recent calls per second.
    rate: f64,
    pub(super) in_flight: u32,
    pub(super) streams: u32,
    counts: Counts,
    ago_ms: u64,
    #[serde(skip)]
    pub(super) principal: Arc<str>,
}

/// A replica, as shown on the page.
#[derive(Debug, Serialize)]
pub(super) struct ShownReplica {
    replica: String,
    ago_ms: u64,
    answers: u64,
}

/// Observes one caller, using one protocol, in one request or connection.
#[derive(Debug)]
pub(in crate::http) struct CallObserver {
    traffic: Arc<Traffic>,
    caller: Option<Arc<str>>,
    via: &'static str,
    has_begun: AtomicBool,
}

impl Traffic {
    pub(super) fn new(is_personal: bool) -> Self {
        let rows = broadcast::Sender::new(AHEAD);
        let (names, started, next) = (RandomState::new(), Instant::now(), AtomicU64::new(0));
        Self { is_personal, names, started, next, rows, kept: Mutex::default() }
    }

    /// The observer of a caller; `None` if the caller is not authenticated.
    pub(super) fn observer(self: &Arc<Self>, caller: Option<Arc<str>>, via: &'static str) -> Arc<CallObserver> {
        Arc::new(CallObserver { traffic: Arc::clone(self), caller, via, has_begun: AtomicBool::new(false) })
    }

    fn state(&self) -> MutexGuard<'_, TrafficState> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn elapsed_s(&self) -> u64 {
        self.started.elapsed().as_secs()
    }

    /// The calls that ended recently, and a receiver for those that follow.
    pub(super) fn listen(&self) -> (Vec<Arc<CallRecord>>, broadcast::Receiver<Arc<CallRecord>>) {
        // INVARIANT: rows are sent under the lock, so none is in both or in neither.
        let kept = self.state();
        (kept.recent.iter().map(Arc::clone).collect(), self.rows.subscribe())
    }

    /// A caller's name on the page: that of the agent or, if callers are people, a mark that only this process can compute and that the log
    /// explains once.
    fn shown(&self, principal: &str) -> Arc<str> {
        if !self.is_personal {
            return escaped(principal).into();
        }
        let shown = format!("#{:08x}", self.names.hash_one(principal) >> 32);
        tracing::info!(target: "sealwire::gateway", caller = principal, shown_as = shown, "a caller on the page");
        shown.into()
    }

    fn caller(&self, kept: &mut TrafficState, principal: &Arc<str>) -> Arc<str> {
        if let Some(caller) = kept.callers.get_mut(principal) {
            caller.last = Instant::now();
            return Arc::clone(&caller.shown);
        }
        if kept.callers.len() >= CALLERS
            && let Some(quiet) = kept.callers.iter().min_by_key(|(_, caller)| caller.last).map(|(name, _)| name.clone())
        {
            kept.callers.remove(&quiet);
        }
        let shown = self.shown(principal);
        let caller = Caller {
            shown: Arc::clone(&shown),
            last: Instant::now(),
            counts: Counts::default(),
            recent: RecentCounts::default(),
        };
        kept.callers.insert(Arc::clone(principal), caller);
        shown
    }

    fn end(&self, row: CallRecord, principal: Option<&Arc<str>>) {
        let second = self.elapsed_s();
        let row = Arc::new(row);
        let mut kept = self.state();
        kept.under_way.remove(&row.n);
        if let Some(caller) = principal.and_then(|principal| kept.callers.get_mut(principal)) {
            caller.counts.add(&row);
            caller.recent.at(second).add(&row);
        }
        kept.minute.at(second).add(&row);
        // Services that are not exposed have no counts.
        if let Some(counts) = kept.counts.get_mut(&row.service) {
            counts.add(&row);
        }
        if let Some(replica) = row.replica.clone() {
            kept.heard(&row.service, replica);
        }
        if kept.recent.len() >= RECENT {
            kept.recent.pop_front();
        }
        kept.recent.push_back(Arc::clone(&row));
        // Fails if there are no viewers.
        drop(self.rows.send(row));
    }

    /// Counts calls to this service from now on.
    pub(super) fn counts(&self, service: &str) {
        self.state().counts.entry(service.to_owned()).or_default();
    }

    /// The counts and replicas of a service.
    pub(super) fn service(&self, service: &str) -> (Counts, Vec<ShownReplica>) {
        let kept = self.state();
        let replicas = kept.replicas.iter().filter(|((of, _), _)| of == service);
        let shown = |((_, name), replica): (&(String, String), &Replica)| ShownReplica {
            replica: name.clone(),
            ago_ms: ms_since(replica.last),
            answers: replica.answers,
        };
        (kept.counts.get(service).copied().unwrap_or_default(), replicas.map(shown).collect())
    }

    /// The oldest calls in progress, at most `most`, and how many there are.
    pub(super) fn under_way(&self, most: usize) -> (Vec<ShownCall>, usize) {
        let kept = self.state();
        let shown = kept.under_way.values().take(most).map(|call| ShownCall {
            n: call.n,
            at: call.at,
            caller: Arc::clone(&call.caller),
            via: call.via,
            service: call.service.clone(),
            method: call.method.clone(),
            calls: call.calls,
            stream: call.is_stream,
            parts: call.parts.load(Ordering::Relaxed),
            replica: call.replica.get().cloned(),
        });
        (shown.collect(), kept.under_way.len())
    }

    /// Callers, the most recent first, and how many there are.
    pub(super) fn callers(&self, most: usize) -> (Vec<ShownCaller>, usize) {
        let second = self.elapsed_s();
        let mut kept = self.state();
        kept.callers.retain(|_, caller| caller.last.elapsed() < FORGOTTEN);
        kept.replicas.retain(|_, replica| replica.last.elapsed() < FORGOTTEN);
        let mut all: Vec<_> = kept.callers.iter_mut().collect();
        all.sort_by_key(|(_, caller)| std::cmp::Reverse(caller.last));
        let count = all.len();
        let shown = all.into_iter().take(most).map(|(principal, caller)| {
            caller.recent.at(second);
            let calls: u64 = caller.recent.counts.iter().flat_map(Counts::all).sum();
            #[expect(clippy::cast_precision_loss, reason = "a rate")]
            let rate = calls as f64 / WINDOW as f64;
            ShownCaller {
                caller: Arc::clone(&caller.shown),
                rate,
                in_flight: 0,
                streams: 0,
                counts: caller.counts,
                ago_ms: ms_since(caller.last),
                principal: Arc::clone(principal),
            }
        });
        (shown.collect(), count)
    }

    /// The outcomes of calls in each of the last sixty seconds, the most recent second last.
    pub(super) fn minute(&self) -> Vec<[u64; 5]> {
        let second = self.elapsed_s();
        let mut kept = self.state();
        kept.minute.at(second);
        kept.minute.counts.iter().map(Counts::all).collect()
    }
}

impl TrafficState {
    fn heard(&mut self, service: &str, replica: String) {
        let of_service = self.replicas.iter().filter(|((of, _), _)| of == service);
        let oldest = of_service.clone().min_by_key(|(_, replica)| replica.last).map(|(key, _)| key.clone());
        let count = of_service.count();
        let key = (service.to_owned(), replica);
        if count >= REPLICAS
            && !self.replicas.contains_key(&key)
            && let Some(oldest) = oldest
        {
            self.replicas.remove(&oldest);
        }
        let replica = self.replicas.entry(key).or_insert(Replica { last: Instant::now(), answers: 0 });
        (replica.last, replica.answers) = (Instant::now(), replica.answers + 1);
    }
}

impl Counts {
    fn add(&mut self, row: &CallRecord) {
        let calls = row.calls.max(1) as u64;
        let of = (row.of as u64).min(calls);
        let counted = match row.outcome {
            Outcome::Ok | Outcome::Sent | Outcome::Cancelled => &mut self.ok,
            Outcome::Error => &mut self.error,
            Outcome::Denied => &mut self.denied,
            Outcome::Refused => &mut self.refused,
            Outcome::Unknown => &mut self.unknown,
        };
        *counted += of;
        self.ok += calls - of;
    }

    fn all(&self) -> [u64; 5] {
        [self.ok, self.error, self.denied, self.refused, self.unknown]
    }
}

impl<const N: usize> Default for RecentCounts<N> {
    fn default() -> Self {
        Self { second: 0, counts: std::iter::repeat_n(Counts::default(), N).collect() }
    }
}

impl<const N: usize> RecentCounts<N> {
    /// The counts for this second.
    fn at(&mut self, second: u64) -> &mut Counts {
        let ahead = usize::try_from(second.saturating_sub(self.second)).unwrap_or(N).min(N);
        for _ in 0..ahead {
            self.counts.pop_front();
            self.counts.push_back(Counts::default());
        }
        self.second = self.second.max(second);
        if self.counts.is_empty() {
            self.counts.push_back(Counts::default());
        }
        let last = self.counts.len() - 1;
        #[expect(clippy::indexing_slicing, reason = "there is one, just above")]
        &mut self.counts[last]
    }
}

impl CallObserver {
    /// Reports that the gateway has refused a request before anything was sent.
    pub(in crate::http) fn refused(&self, refusal: &Refusal, service: &str) {
        if self.has_begun.load(Ordering::Relaxed) {
            // The end of the call reports it.
            return;
        }
        let caller = self.caller.as_ref().map(|principal| self.traffic.caller(&mut self.traffic.state(), principal));
        let row = CallRecord {
            n: self.traffic.next.fetch_add(1, Ordering::Relaxed),
            at: now_ms(),
            caller,
            via: self.via,
            service: escaped(service),
            method: refusal.method_asked().map(escaped).unwrap_or_default(),
            calls: 1,
            of: 1,
            outcome: Outcome::Refused,
            // MCP refusals carry the gateway's codes without the sign.
            code: Some(if refusal.code > 0 { -refusal.code } else { refusal.code }),
            ms: 0.0,
            replica: None,
            parts: 0,
        };
        self.traffic.end(row, self.caller.as_ref());
    }
}

impl Observer for CallObserver {
    fn begun(&self, service: &str, methods: &[Cow<'_, str>], is_stream: bool) -> Box<dyn Observed> {
        self.has_begun.store(true, Ordering::Relaxed);
        let principal = self.caller.clone().unwrap_or_default();
        let mut kept = self.traffic.state();
        let call = Arc::new(CallInProgress {
            n: self.traffic.next.fetch_add(1, Ordering::Relaxed),
            at: now_ms(),
            since: Instant::now(),
            caller: self.traffic.caller(&mut kept, &principal),
            principal,
            via: self.via,
            service: escaped(service),
            method: named(methods),
            calls: methods.len(),
            is_stream,
            parts: AtomicU64::new(0),
            replica: OnceLock::new(),
        });
        if kept.under_way.len() < UNDER_WAY {
            kept.under_way.insert(call.n, Arc::clone(&call));
        }
        Box::new(ObservedCall { traffic: Arc::clone(&self.traffic), call, has_ended: false })
    }
}

/// Observes one call.
struct ObservedCall {
    traffic: Arc<Traffic>,
    call: Arc<CallInProgress>,
    has_ended: bool,
}

impl ObservedCall {
    fn end(&mut self, outcome: Outcome, code: Option<i32>, of: usize, replica: Option<&str>) {
        self.has_ended = true;
        let call = &self.call;
        let row = CallRecord {
            n: call.n,
            at: call.at,
            caller: Some(Arc::clone(&call.caller)),
            via: call.via,
            service: call.service.clone(),
            method: call.method.clone(),
            calls: call.calls,
            of,
            outcome,
            code,
            ms: call.since.elapsed().as_secs_f64() * 1_000.0,
            replica: replica.map(escaped).or_else(|| call.replica.get().cloned()),
            parts: call.parts.load(Ordering::Relaxed),
        };
        self.traffic.end(row, Some(&call.principal));
    }
}

impl Observed for ObservedCall {
    fn part(&mut self, replica: Option<&str>) {
        self.call.parts.fetch_add(1, Ordering::Relaxed);
        if let Some(replica) = replica {
            self.call.replica.get_or_init(|| escaped(replica));
        }
    }

    fn ended(&mut self, ended: &CallEnd<'_>, replica: Option<&str>) {
        let (outcome, code, of) = match ended {
            CallEnd::Sent => (Outcome::Sent, None, self.call.calls),
            CallEnd::Answered(said) => judged(said, self.call.is_stream),
            CallEnd::Failed(ClientError::Cancelled { .. }) => (Outcome::Cancelled, None, self.call.calls),
            CallEnd::Failed(error) => {
                let refusal = Refusal::of_call(error);
                let outcome = if refusal.is_not_sent() { Outcome::Refused } else { Outcome::Unknown };
                (outcome, Some(refusal.code), self.call.calls)
            }
            // Variants that may be added.
            _ => (Outcome::Unknown, None, self.call.calls),
        };
        self.end(outcome, code, of, replica);
    }
}

impl Drop for ObservedCall {
    fn drop(&mut self) {
        if !self.has_ended {
            self.end(Outcome::Cancelled, None, self.call.calls, None);
        }
    }
}

/// The worst outcome among the responses of a message, its code, and how many responses have it.
fn judged(all: &[ReportedEvent], is_stream: bool) -> (Outcome, Option<i32>, usize) {
    let outcome = |said: &ReportedEvent| match said {
        ReportedEvent::Result => Outcome::Ok,
        ReportedEvent::Unknown(code::CANCELLED) => Outcome::Cancelled,
        // SPEC.md §9.1: the gateway sends a message once, so it has not run. A stream may have begun before it ran out of room.
        ReportedEvent::Unknown(code::QUOTA_EXCEEDED) => Outcome::Refused,
        ReportedEvent::Unknown(code::OVERLOADED) if !is_stream => Outcome::Refused,
        ReportedEvent::Unknown(_) => Outcome::Unknown,
        ReportedEvent::Error(code::PERMISSION_DENIED | code::APPROVAL_REQUIRED) => Outcome::Denied,
        ReportedEvent::Error(code::METHOD_NOT_FOUND) => Outcome::Refused,
        ReportedEvent::Error(_) | ReportedEvent::Application(_) => Outcome::Error,
    };
    let worst = all.iter().map(outcome).max().unwrap_or(Outcome::Ok);
    let of_it = all.iter().filter(|said| outcome(said) == worst);
    let code = of_it.clone().find_map(|said| match said {
        ReportedEvent::Result => None,
        ReportedEvent::Error(code) | ReportedEvent::Application(code) | ReportedEvent::Unknown(code) => Some(*code),
    });
    (worst, code, of_it.count())
}

/// The methods of a message, without duplicates.
fn named(methods: &[Cow<'_, str>]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for method in methods {
        if !names.contains(&method.as_ref()) {
            names.push(method);
        }
    }
    match names.split_first() {
        Some((first, [])) => escaped(first),
        Some((_, _)) => escaped(&names.join(" ")),
        None => String::new(),
    }
}

/// A text from elsewhere, truncated, in printable ASCII.
pub(super) fn escaped(text: &str) -> String {
    let shown = text.chars().flat_map(|c| {
        let plain = c.is_ascii_graphic() || c == ' ';
        plain.then_some(c).into_iter().chain((!plain).then(|| c.escape_unicode()).into_iter().flatten())
    });
    let mut shown: String = shown.take(CHARACTERS + 1).collect();
    if shown.len() > CHARACTERS {
        shown.truncate(CHARACTERS);
        shown.push('…');
    }
    shown
}

fn ms_since(then: Instant) -> u64 {
    u64::try_from(then.elapsed().as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
    use super::*;

    fn ann() -> Option<Arc<str>> {
        Some("ann".into())
    }

    fn call(seen: &CallObserver, method: &str) -> Box<dyn Observed> {
        seen.begun("demo", &[Cow::Borrowed(method)], false)
    }

    #[test]
    fn all_that_is_kept_has_a_bound() {
        let traffic = Arc::new(Traffic::new(false));
        traffic.counts("demo");
        for caller in 0..1_000 {
            let seen = traffic.observer(Some(format!("caller-{caller}").into()), "rpc");
            let long = "x".repeat(100_000);
            let mut watched = call(&seen, &long);
            watched.ended(&CallEnd::Answered(&[ReportedEvent::Result]), Some(&format!("replica-{caller}")));
        }
        let (recent, _) = traffic.listen();
        assert_eq!(
            (recent.len(), traffic.callers(usize::MAX).1, traffic.service("demo").1.len()),
            (RECENT, CALLERS, REPLICAS)
        );
        let bytes: usize = recent.iter().map(|row| serde_json::to_string(row).unwrap().len()).sum();
        assert!(bytes < RECENT << 10, "{bytes}");
        assert_eq!(traffic.service("demo").0.ok, 1_000);
        assert!(
            traffic.service("other").1.is_empty() && traffic.state().counts.len() == 1,
            "what is not exposed is not kept"
        );

        let seen = traffic.observer(ann(), "rpc");
        let under_way: Vec<_> = (0..2_000).map(|_| call(&seen, "a")).collect();
        assert_eq!(traffic.under_way(10).1, UNDER_WAY);
        assert_eq!(traffic.under_way(10).0.len(), 10);
        drop(under_way);
        assert_eq!(traffic.under_way(10).1, 0);
        let (recent, _) = traffic.listen();
        assert_eq!((recent.len(), recent[0].outcome), (RECENT, Outcome::Cancelled));
    }

    #[test]
    fn whoever_looks_slowly_misses_calls_and_holds_up_none() {
        let traffic = Arc::new(Traffic::new(false));
        let (_, mut rows) = traffic.listen();
        let seen = traffic.observer(ann(), "rpc");
        for _ in 0..AHEAD + 88 {
            call(&seen, "math/add").ended(&CallEnd::Answered(&[ReportedEvent::Result]), None);
        }
        assert_eq!(rows.try_recv().unwrap_err(), broadcast::error::TryRecvError::Lagged(88));
        assert_eq!(rows.try_recv().unwrap().n, 88);
    }

    #[test]
    fn a_call_is_told_once_whatever_becomes_of_it() {
        let traffic = Arc::new(Traffic::new(false));
        let seen = traffic.observer(ann(), "rpc");
        let [invalid, denied] = [-32602, -32002].map(ReportedEvent::Error);
        for (said, outcome, code, of) in [
            (vec![ReportedEvent::Result], Outcome::Ok, None, 1),
            (vec![denied], Outcome::Denied, Some(-32002), 1),
            (vec![ReportedEvent::Error(-32018)], Outcome::Denied, Some(-32018), 1),
            (vec![ReportedEvent::Result, invalid, denied, denied], Outcome::Denied, Some(-32002), 2),
            (vec![ReportedEvent::Result, invalid], Outcome::Error, Some(-32602), 1),
            (vec![ReportedEvent::Unknown(-32013)], Outcome::Refused, Some(-32013), 1),
        ] {
            call(&seen, "math/add").ended(&CallEnd::Answered(&said), None);
            let last = traffic.listen().0.pop().unwrap();
            assert_eq!((last.outcome, last.code, last.of), (outcome, code, of));
        }
        let timeout = ClientError::Timeout { service: "demo".to_owned(), after: Duration::from_secs(1) };
        call(&seen, "math/add").ended(&CallEnd::Failed(&timeout), None);
        call(&seen, "math/add").ended(&CallEnd::Failed(&ClientError::Busy { limit: 1 }), None);
        let mut last = traffic.listen().0;
        assert_eq!(last.pop().map(|row| (row.outcome, row.code)), Some((Outcome::Refused, Some(-32014))));
        assert_eq!(last.pop().map(|row| (row.outcome, row.code)), Some((Outcome::Unknown, Some(-32003))));
        assert_eq!(last.len(), 6);
        // A call that was begun is reported at its end, and not again with the gateway's answer.
        seen.refused(&Refusal::away(), "demo");
        assert_eq!(traffic.listen().0.len(), 8);
        traffic.observer(None, "rpc").refused(&Refusal::no_method().asking("<b>\u{202e}"), "demo");
        let last = traffic.listen().0.pop().unwrap();
        assert_eq!((last.outcome, last.method.as_str(), &last.caller), (Outcome::Refused, "<b>\\u{202e}", &None));
    }

    /// SPEC.md §9.2, SPEC.md §25.5.
    #[test]
    fn what_was_ended_while_it_ran_is_neither_refused_nor_denied() {
        let traffic = Arc::new(Traffic::new(false));
        let seen = traffic.observer(ann(), "sse");
        for (code, is_stream, outcome) in [
            (-32010, true, Outcome::Unknown),
            (-32002, true, Outcome::Unknown),
            (-32003, false, Outcome::Unknown),
            (-32011, false, Outcome::Unknown),
            (-32012, false, Outcome::Unknown),
            (-32017, false, Outcome::Unknown),
            (-32014, true, Outcome::Unknown),
            (-32014, false, Outcome::Refused),
            (-32013, true, Outcome::Refused),
            (-32016, true, Outcome::Cancelled),
        ] {
            let mut watched = seen.begun("demo", &[Cow::Borrowed("job/run")], is_stream);
            watched.ended(&CallEnd::Answered(&[ReportedEvent::Unknown(code)]), None);
            let last = traffic.listen().0.pop().unwrap();
            assert_eq!((last.outcome, last.code), (outcome, Some(code)), "{code}");
        }
    }

    #[test]
    fn people_have_marks_and_no_names() {
        let traffic = Arc::new(Traffic::new(true));
        let seen = traffic.observer(Some("https://idp.example alice@example.com".into()), "rpc");
        call(&seen, "math/add").ended(&CallEnd::Answered(&[ReportedEvent::Result]), None);
        call(&seen, "math/add").ended(&CallEnd::Answered(&[ReportedEvent::Result]), None);
        let (rows, _) = traffic.listen();
        let text = serde_json::to_string(&rows.iter().map(|row| &**row).collect::<Vec<_>>()).unwrap();
        assert!(!text.contains("alice") && !text.contains("idp"), "{text}");
        assert_eq!(rows[0].caller, rows[1].caller);
        let other = Arc::new(Traffic::new(true)).observer(seen.caller.clone(), "rpc");
        call(&other, "math/add").ended(&CallEnd::Answered(&[ReportedEvent::Result]), None);
        assert_ne!(other.traffic.listen().0[0].caller, rows[0].caller, "nobody can try names out");
    }
}
