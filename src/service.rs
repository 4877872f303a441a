//! One service: from a delivery to a sealed answer, through every check, in one order.
//! Never answers anybody whose message did not pass, beyond the fixed hints.

mod answers;
mod builder;
mod builtin;
mod calls;
mod counters;
mod quota;
mod refusal;
mod replicas;
mod router;
mod serve;

use std::convert::Infallible;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use serde_json::value::RawValue;
use tokio::time::Instant;
use tower::ServiceExt as _;
use tower::util::BoxCloneSyncService;

use crate::auth::{Authentic, Verifier};
use crate::clock::Clock;
use crate::log_limiter::KeyedLogLimiter;
use crate::name::Name;
use crate::policy::{DecisionRecord, Permitted, PolicySet, Question, Reason};
use crate::rpc::{Id, Response, RpcError};
use crate::wire::{Binding, Delivery, Endpoint, Envelope, EnvelopeError, ReplyTo, Sealed};

use answers::{Answers, TooLarge};
pub use builder::{BuildError, Builder, Ready, WantsMethods, WantsPolicy, WantsVerifier};
pub use builtin::BUILTIN_METHODS;
use calls::Calls;
pub use calls::{Call, Message};
pub use counters::{Counters, MethodCounters, ShadowCounters};
use quota::{HintRate, Quotas};
pub use quota::{QuotaLimits, QuotaScope};
use refusal::Cause;
pub use refusal::{Answer, Refusal};
pub use replicas::{Replica, replicas};
pub use router::{Ctx, Router, RouterError};
pub use serve::{Health, RefusedReload, Running, ServeError, ServeOptions, State, Watched};

/// A service: a verifier, a policy and methods, behind one pipeline.
///
/// Cloning shares everything. It has no socket: [`Service::handle`] takes a delivery and returns the answer, and
/// `serve` puts it on a bus.
#[derive(Clone)]
pub struct Service(Arc<Inner>);

struct Inner {
    endpoint: Endpoint,
    verifier: Verifier,
    policy: ArcSwap<PolicySet>,
    methods: BoxCloneSyncService<Permitted, Box<RawValue>, RpcError>,
    limits: ServiceLimits,
    /// What the broker has room for; see [`Service::fit`].
    room: AtomicUsize,
    quotas: Quotas,
    hints: HintRate,
    counters: Counters,
    /// Of refusals that others than a proved caller can bring about.
    lines: KeyedLogLimiter<(&'static str, Option<Name>)>,
    decisions: Option<Sink>,
    clock: Arc<dyn Clock>,
}

/// Where decisions are handed to. It must not block.
type Sink = Box<dyn Fn(DecisionRecord) + Send + Sync>;

/// The bounds of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceLimits {
    /// The most entries of a batch; 50.
    pub batch: usize,
    /// How many entries of one batch run at a time; 8.
    pub batch_concurrency: usize,
    /// The largest answer in bytes; 192 KiB. On a broker whose `max_payload` has no room for that, the largest is what it
    /// has room for.
    pub response: usize,
    /// Rates and bounds per agent.
    pub quota: QuotaLimits,
    /// Unsigned hints per second, all callers together; 100. Beyond it, silence.
    pub hints_per_second: u32,
}

impl Default for ServiceLimits {
    fn default() -> Self {
        Self {
            batch: crate::rpc::MAX_BATCH,
            batch_concurrency: 8,
            response: 192 * 1024,
            quota: QuotaLimits::default(),
            hints_per_second: 100,
        }
    }
}

impl Service {
    /// Starts a service: first its verifier, then its policy, then its methods.
    #[must_use]
    pub fn builder() -> Builder<WantsVerifier> {
        Builder::new()
    }

    /// The whole pipeline for one message. `None` means that nothing is published.
    ///
    /// Not undone by cancellation: a message whose future was dropped may have burnt its nonce and started its methods,
    /// which are then cancelled.
    pub async fn handle(&self, delivery: Delivery) -> Option<Sealed> {
        match self.prove(delivery).await {
            Ok(proved) => self.execute(proved).await,
            Err(answer) => answer,
        }
    }

    /// The first half, steps 1 to 3: nothing is stored and nothing waits for others than this caller. What is refused may
    /// be answered.
    async fn prove(&self, delivery: Delivery) -> Result<Proved, Option<Sealed>> {
        let this = &*self.0;
        let started = Instant::now();

        // 1. Shape: sizes, subject, reply rule, the one header. No key is touched.
        let envelope = match Envelope::decode(delivery, &this.endpoint) {
            Ok(envelope) => envelope,
            Err(bad) => {
                return Err(this.refuse(Refusal::Shape(bad.error), bad.claimed.as_ref(), Address::from(bad.reply)));
            }
        };
        // 2. Key, signature, claims, window, token: a pure function of message, keys and time.
        let turn = match this.verifier.turn(&envelope).await {
            Ok(turn) => turn,
            Err(error) => {
                let (claimed, reply) = envelope.into_claimed();
                return Err(this.refuse(Refusal::Auth(error), Some(&claimed), Address::from(reply)));
            }
        };
        let authentic = match this.verifier.authenticate(envelope, this.clock.now_s()) {
            Ok(authentic) => authentic,
            Err(bad) => {
                let address = Address::of(bad.binding, bad.reply);
                return Err(this.refuse(Refusal::Auth(bad.error), Some(&bad.claimed), address));
            }
        };
        drop(turn);
        // 3. The caller's own rate, before anything is stored: else it would fill the memory of all replicas with what it
        //    may not even call. A message that is known already is not charged, or copies would use up its owner's rate.
        let seen = this.verifier.has_seen(&authentic);
        if !seen && let Err(quota) = this.quotas.charge_first(authentic.agent()) {
            let agent = authentic.agent().clone();
            return Err(this.refuse(Refusal::Quota(quota), Some(&agent), Address::from(authentic.into_binding())));
        }
        Ok(Proved { authentic, seen, started })
    }

    /// The second half, from the replay guard on.
    async fn execute(&self, proved: Proved) -> Option<Sealed> {
        let this = &*self.0;
        let Proved { authentic, seen, started } = proved;
        // 4. The nonce is burnt. What follows may answer differently tomorrow, so no copy may get this far again.
        let verified = match this.verifier.admit(authentic).await {
            Ok(verified) => verified,
            Err(bad) => {
                let refusal = Refusal::Auth(bad.error);
                // What was not charged to its owner is a copy, whatever keeps the guard from saying so.
                let cause = if seen { Cause::Copy } else { refusal.cause() };
                return this.refuse_for(refusal, cause, Some(&bad.claimed), Address::of(bad.binding, bad.reply));
            }
        };
        // 5. The caller's own bound on work under way.
        let agent = verified.caller.agent.clone();
        let _place = match this.quotas.enter(&agent) {
            Ok(place) => place,
            Err(quota) => return this.refuse(Refusal::Quota(quota), Some(&agent), Address::from(verified.binding)),
        };
        // 6. The body, only now.
        let calls = match Calls::parse(verified, &this.rpc_limits()) {
            Ok(calls) => calls,
            Err(bad) => {
                return this.refuse(Refusal::Body(bad.error.into()), Some(&bad.agent), Address::from(bad.binding));
            }
        };
        if let Err(quota) = this.quotas.charge_further(&agent, calls.entries.len().saturating_sub(1)) {
            return this.refuse(Refusal::Quota(quota), Some(&agent), Address::from(calls.binding));
        }
        // 7. Policy, deadline and method, entry by entry, under one revision.
        let Calls { entries, is_batch, binding } = calls;
        let policy = this.policy.load_full();
        let mut answers = Answers::new(is_batch, this.response_limit());
        let entries = stream::iter(entries.into_iter().enumerate())
            .map(|(position, entry)| this.entry(entry, &policy, started).map(move |answer| (position, answer)))
            // Unordered, so that a slow entry holds its own place only, and not those of the entries behind it.
            .buffer_unordered(this.limits.batch_concurrency.max(1));
        let mut entries = std::pin::pin!(entries);
        while let Some((position, answer)) = entries.next().await {
            if let Some(answer) = answer {
                answers.add(position, &answer);
            }
        }
        // 8. Signed and bound to the request.
        this.seal(answers, binding?)
    }

    /// What is said to a message for which there is no room: a hint under the rate of hints, or nothing. No check is made
    /// beyond the shape, and none beyond the subject where nothing will be said, so this costs a fraction of
    /// [`Service::handle`].
    #[must_use]
    pub fn shed(&self, delivery: Delivery) -> Option<Sealed> {
        let this = &*self.0;
        let agent = this.endpoint.agent_of(delivery.subject());
        let may_hint = agent.as_ref().is_some_and(|agent| this.hints.allow(Some(agent)));
        let (refusal, reply) = match &agent {
            None => (Refusal::Shape(EnvelopeError::Subject), None),
            Some(_) if !may_hint => (Refusal::Shed, None),
            Some(_) => match Envelope::decode(delivery, &this.endpoint) {
                Ok(envelope) => (Refusal::Shed, envelope.into_claimed().1),
                Err(bad) => (Refusal::Shape(bad.error), bad.reply),
            },
        };
        this.counters.refused(refusal.label());
        this.log(&refusal, refusal.cause(), agent.as_ref());
        match (refusal.answer(this.clock.now_s()), reply) {
            (Answer::Hint(hint), Some(reply)) => Some(hint.to(reply)),
            _ => None,
        }
    }

    /// Where the service listens.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.0.endpoint
    }

    /// Keys, tokens and the replay guard, for exchanging them while messages are judged.
    #[must_use]
    pub fn verifier(&self) -> &Verifier {
        &self.0.verifier
    }

    /// The policy in force.
    #[must_use]
    pub fn policy(&self) -> Arc<PolicySet> {
        self.0.policy.load_full()
    }

    /// Exchanges the policy. A message that is being handled goes on under the revision it began with.
    pub fn replace_policy(&self, policy: impl Into<Arc<PolicySet>>) {
        self.0.policy.store(policy.into());
    }

    /// Fits answers to a broker's `max_payload` (bytes, headers included). The client library refuses to publish what is
    /// larger, and the caller would wait for nothing: it gets an error instead.
    fn fit(&self, max_payload: usize) {
        let room = max_payload.saturating_sub(REPLY_HEADER);
        self.0.room.store(room, Ordering::Relaxed);
        if room < self.0.limits.response {
            tracing::warn!(
                target: "sealwire::serve",
                max_payload,
                response = self.0.limits.response,
                "the broker's max_payload is below the limit of answers: larger answers become errors"
            );
        }
    }

    /// Forgets what is kept of agents that have been quiet.
    fn tidy(&self) {
        self.0.quotas.tidy();
        for ((label, agent), suppressed) in self.0.lines.tidy() {
            let agent = agent.as_ref().map(Name::as_str);
            tracing::info!(target: "sealwire::refused", agent, refusal = label, suppressed, "refused before");
        }
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.0.counters
    }

    /// The clock that messages are judged by.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.0.clock
    }
}

/// A message whose sender is proved and within its rate.
#[derive(Debug)]
struct Proved {
    authentic: Authentic,
    /// Whether this replica knows the message already, so that it was not charged to its owner.
    seen: bool,
    started: Instant,
}

/// More than an answer's header takes: its proof with the longest key id, reply subject and audience is 1.6 KB.
const REPLY_HEADER: usize = 2_048;

/// Where a refusal goes: signed, as a hint, or nowhere.
enum Address {
    Signed(Binding),
    Hint(ReplyTo),
    Nowhere,
}

impl Address {
    fn of(binding: Option<Binding>, reply: Option<ReplyTo>) -> Self {
        binding.map_or_else(|| Self::from(reply), Self::Signed)
    }
}

impl From<Option<ReplyTo>> for Address {
    fn from(reply: Option<ReplyTo>) -> Self {
        reply.map_or(Self::Nowhere, Self::Hint)
    }
}

impl From<Option<Binding>> for Address {
    fn from(binding: Option<Binding>) -> Self {
        binding.map_or(Self::Nowhere, Self::Signed)
    }
}

impl Inner {
    fn response_limit(&self) -> usize {
        self.limits.response.min(self.room.load(Ordering::Relaxed))
    }

    fn rpc_limits(&self) -> crate::rpc::Limits {
        crate::rpc::Limits { max_batch: self.limits.batch }
    }

    /// One entry of a message. `None` for a notification: JSON-RPC 2.0 §4.1: "The Server MUST NOT reply to a
    /// Notification, including those that are within a batch request."
    async fn entry(&self, entry: Result<Call, Response>, policy: &PolicySet, started: Instant) -> Option<Response> {
        let call = match entry {
            Ok(call) => call,
            Err(response) => {
                self.counters.refused(Refusal::ENTRY_LABEL);
                return Some(response);
            }
        };
        let id = call.id.clone();
        let message = Arc::clone(&call.message);
        let now_ms = self.clock.now_ms();
        let record = self.decisions.as_ref().map(|_| (call.method.clone(), call.params.clone()));
        let (authorized, decision) = policy.authorize(call, now_ms);
        if let (Some(sink), Some((method, params))) = (&self.decisions, record) {
            let params = params.as_ref().map(crate::rpc::Params::raw);
            let question = Question { caller: &message.caller, method: &method, params, now_ms };
            sink(DecisionRecord::new(policy, &question, &decision));
        }
        self.counters.shadow(&decision);
        let (method, outcome) = match authorized {
            Err((call, _denied)) => {
                let refusal = match &decision.reason {
                    Reason::UnknownMethod { would_allow: true } => Refusal::UnknownMethod,
                    // Only said to those who may call the method with other parameters.
                    reason if reason.is_about_params() => Refusal::Params(reason.to_string()),
                    _ => Refusal::Denied,
                };
                (call.method, Err(self.entry_error(&refusal)))
            }
            // Nothing starts once the message has expired or its deadline has passed.
            Ok(permitted) if now_ms >= message.start_before_ms => {
                (permitted.call().method().to_owned(), Err(self.entry_error(&Refusal::Deadline)))
            }
            Ok(permitted) => {
                let method = permitted.call().method().to_owned();
                let outcome = match builtin::answer(permitted, policy, &self.verifier, now_ms) {
                    Ok(outcome) => outcome,
                    Err(permitted) => self.run(*permitted, now_ms, message.deadline_ms).await,
                };
                (method, outcome)
            }
        };
        self.counters.served(&method, &outcome, decision.reason.label(), started.elapsed());
        let rule = decision.rule.as_ref().map(ToString::to_string);
        let code = outcome.as_ref().err().map(RpcError::code);
        let cause = outcome.as_ref().err().and_then(std::error::Error::source).map(ToString::to_string);
        tracing::info!(
            target: "sealwire::call",
            agent = %message.caller.agent,
            subject = %message.caller.subject.escape_debug(),
            method = %Shown(&method),
            decision = decision.reason.label(),
            rule = rule.as_deref(),
            revision = %policy.revision(),
            message_id = %message.id,
            code,
            cause = cause.as_deref(),
            duration_us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX),
            "call"
        );
        id.map(|id| self.bounded(id, outcome))
    }

    async fn run(&self, permitted: Permitted, now_ms: u64, deadline_ms: u64) -> Result<Box<RawValue>, RpcError> {
        let left = Duration::from_millis(deadline_ms.saturating_sub(now_ms));
        let methods = self.methods.clone();
        // The method is dropped, and so cancelled, when its deadline passes or its message's future is dropped.
        let mut run = Box::pin(AssertUnwindSafe(async move { methods.oneshot(permitted).await }).catch_unwind());
        let finished = tokio::time::timeout(left, &mut run).await;
        // What a cancelled method cleans up may panic as well.
        let dropped = std::panic::catch_unwind(AssertUnwindSafe(|| drop(run)));
        if dropped.is_err() {
            tracing::error!(target: "sealwire::call", "a method panicked while it was dropped");
        }
        match finished {
            Err(_elapsed) => Err(self.entry_error(&Refusal::Deadline)),
            // A method that did not give way cannot be stopped by a timer: its answer comes too late all the same.
            Ok(_) if self.clock.now_ms() >= deadline_ms => Err(self.entry_error(&Refusal::Deadline)),
            // The panic's own text may hold parameters: it goes to the panic hook only.
            Ok(Err(_panic)) => Err(RpcError::internal("the method panicked")),
            Ok(Ok(outcome)) => outcome,
        }
    }

    /// The public error of a refusal that concerns one entry.
    fn entry_error(&self, refusal: &Refusal) -> RpcError {
        self.counters.refused(refusal.label());
        refusal.answer(self.clock.now_s()).into_error()
    }

    /// An answer above its limit becomes an error that says so. The call was executed.
    fn bounded(&self, id: Id, outcome: Result<Box<RawValue>, RpcError>) -> Response {
        let response = Response::new(id, outcome);
        if response.to_bytes().len() <= self.response_limit() {
            return response;
        }
        self.counters.refused(Refusal::ResponseTooLarge.label());
        Response::new(response.id, Err(Refusal::ResponseTooLarge.answer(0).into_error()))
    }

    fn seal(&self, answers: Answers, binding: Binding) -> Option<Sealed> {
        let payload = answers.text()?.unwrap_or_else(|TooLarge| {
            self.counters.refused(Refusal::ResponseTooLarge.label());
            Response::new(Id::null(), Err(Refusal::ResponseTooLarge.answer(0).into_error())).to_bytes()
        });
        Some(binding.seal(payload, self.clock.now_s()))
    }

    /// Counts, logs and answers a message that is refused as a whole.
    fn refuse(&self, refusal: Refusal, agent: Option<&Name>, address: Address) -> Option<Sealed> {
        let cause = refusal.cause();
        self.refuse_for(refusal, cause, agent, address)
    }

    fn refuse_for(&self, refusal: Refusal, cause: Cause, agent: Option<&Name>, address: Address) -> Option<Sealed> {
        self.counters.refused(refusal.label());
        self.log(&refusal, cause, agent);
        let now_s = self.clock.now_s();
        match (refusal.answer(now_s), address) {
            (Answer::Nothing, _) | (_, Address::Nowhere) => None,
            (Answer::Hint(hint), Address::Hint(reply)) => self.hints.allow(agent).then(|| hint.to(reply)),
            // A refusal that is signed wherever the caller is known, met before it was.
            (Answer::Error(error), Address::Hint(reply)) => {
                let hint = refusal::hint_for(error.code());
                self.hints.allow(agent).then(|| hint.to(reply))
            }
            (Answer::Hint(hint), Address::Signed(binding)) => {
                self.hints.allow(agent).then(|| hint.to(binding.into_reply()))
            }
            (Answer::Error(error), Address::Signed(binding)) => {
                // A signature is worth more than what it refuses: nobody gets any number of them for copies.
                let may_answer = match (cause, agent) {
                    (Cause::Copy, Some(agent)) => self.quotas.may_answer_copy(agent),
                    (Cause::Excess, Some(agent)) => self.quotas.may_refuse(agent),
                    _ => true,
                };
                // JSON-RPC 2.0 §5: without a request's id, the answer's id is null.
                may_answer.then(|| binding.seal(Response::new(Id::null(), Err(error)).to_bytes(), now_s))
            }
        }
    }

    /// A line for each refusal of a proved caller's own message. Of all others one a second for each label, and for each
    /// owner if there is one: else whoever may publish could write the log full and roll away what is in it.
    fn log(&self, refusal: &Refusal, cause: Cause, agent: Option<&Name>) {
        let limited = match cause {
            Cause::Anybody => Some(None),
            Cause::Copy | Cause::Excess => Some(agent.cloned()),
            Cause::Caller => None,
        };
        let suppressed = match limited {
            None => 0,
            Some(owner) => match self.lines.check(&(refusal.label(), owner)) {
                Some(suppressed) => suppressed,
                None => return,
            },
        };
        tracing::info!(
            target: "sealwire::refused",
            agent = agent.map(Name::as_str),
            refusal = refusal.label(),
            reason = %refusal,
            revision = %self.policy.load().revision(),
            suppressed,
            "refused"
        );
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("audience", self.0.endpoint.audience()).finish_non_exhaustive()
    }
}

/// The outer seam: concurrency limits, load shedding and tracing go around this.
impl tower::Service<Delivery> for Service {
    type Response = Option<Sealed>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Option<Sealed>, Infallible>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, delivery: Delivery) -> Self::Future {
        let this = self.clone();
        Box::pin(async move { Ok(this.handle(delivery).await) })
    }
}

/// A method name from the wire, escaped and cut to 128 bytes: a caller may not write our log.
struct Shown<'a>(&'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars().take(128) {
            write!(f, "{}", character.escape_default())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
