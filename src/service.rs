//! One service: from a delivery to a sealed answer, through every check, in one order.
//! Never answers an unauthenticated caller beyond the fixed hints.

mod answers;
mod approvals;
mod attachment;
mod authorize;
mod budgets;
mod builder;
mod builtin;
mod calls;
mod catalogue;
mod control;
mod counters;
mod ctx;
mod description;
mod entry_key;
mod fair;
mod handler;
mod idempotency;
mod lines;
mod metadata;
mod meters;
mod method;
mod methods;
mod param_list;
mod parts;
mod policy_in_force;
mod quota;
mod recording;
mod refusal;
mod replicas;
#[cfg(feature = "metrics")]
mod report;
mod router;
mod semaphore;
mod serve;
mod shadow;
mod shares;
mod spans;
mod streams;
mod tasks;
mod topic;

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
use serde_json::value::to_raw_value;
use tokio::time::Instant;

use crate::auth::{AdmitError, AuthError, Authentic, Verifier};
use crate::clock::Clock;
use crate::name::Name;
use crate::policy::{ApprovalRecord, Decision, PolicySet, Question, Reason, ShadowPolicy};
use crate::record::{Kind, Recorder};
use crate::rpc::{Id, Outcome, Response, RpcError, one_line};
use crate::trace::{Trace, Tracer};
use crate::wire::{Binding, Delivery, Endpoint, Envelope, EnvelopeError, ReplyTo, Sealed};

use answers::{Answers, TooLarge};
use approvals::{Approvals, InForce};
pub use approvals::{Needed, Pending, Unapproved};
pub use attachment::{Attachment, AttachmentError, AttachmentLimits};
use attachment::{AttachmentMemory, CallAttachments};
pub use authorize::{Denied, Permit, Permitted};
pub use budgets::Uncharged;
use budgets::{Begun, Budgets, Runnable};
pub use builder::{BuildError, Builder, Ready, WantsMethods, WantsPolicy, WantsVerifier};
pub use builtin::{BUILTIN_METHODS, with_builtin_methods};
pub use calls::{Call, Message};
use calls::{Calls, Entries};
use catalogue::{BYTES_PER_CALL, Catalogue, METHODS_PER_CALL};
use counters::TaskResult;
pub use counters::{BudgetCounters, Counters, MethodCounters, ShadowCounters};
pub use ctx::Ctx;
pub use description::Description;
pub use fair::Bounds as FairBounds;
use idempotency::{Attempt, Begun as Claim, Ended, Idempotency, TaskAsked, Ticket};
pub use idempotency::{Conflict, Idempotent, NotSo};
use lines::{Lines, LogKey};
use meters::{Meters, Stage};
pub use method::{Method, method};
pub use methods::MethodService;
pub use param_list::{ParamList, ParamValue};
pub use parts::{AskError, Sink};
use policy_in_force::PolicyInForce;
use quota::{HintRate, QuotaExceeded, Quotas};
pub use quota::{QuotaLimits, QuotaScope};
use recording::RecordedCall;
use refusal::Cause;
pub use refusal::{Refusal, RefusalReply};
pub use replicas::{Replica, replicas};
pub use router::{Router, RouterError};
pub use semaphore::{FairPermit, FairSemaphore, QueueFull};
pub use serve::{Condition, Health, RefusedReload, Running, ServeError, ServeOptions, State, Watched};
use shadow::Comparing;
use shares::Payer;
use spans::{EntrySpan, Spans};
use streams::{Asked, CallKey, Finished, FrameWriter, OpenCall, OpenCalls, OpenSlot, Refused, Start, subscription_end};
pub use streams::{Ending, FrameError, Outlet, StreamLimits};
pub use tasks::TaskLimits;
use tasks::{TaskPlace, Tasks};
pub use topic::{Topic, WhenFull};

/// A service: a verifier, a policy and methods, behind one pipeline.
///
/// Clones share everything. A service has no socket: [`Service::handle`] takes a delivery and returns the answer, and
/// `serve` puts it on a bus.
#[derive(Clone)]
pub struct Service(Arc<Inner>);

struct Inner {
    endpoint: Endpoint,
    verifier: Verifier,
    policy: Arc<ArcSwap<PolicySet>>,
    /// What the policy in force is compared with, if operators want to know.
    comparing: Comparing,
    methods: MethodService,
    /// `None` if no method is declared idempotent.
    idempotency: Option<Idempotency>,
    /// `None` if the guard keeps nothing: calls that need approvals are denied.
    approvals: Option<Approvals>,
    budgets: Budgets,
    catalogue: Catalogue,
    limits: ServiceLimits,
    /// The largest answer that the broker has room for, in bytes; see [`Service::fit`].
    room: AtomicUsize,
    quotas: Quotas,
    hints: HintRate,
    /// The calls under way.
    open: Arc<OpenCalls>,
    tasks: Arc<Tasks>,
    /// Memory for attachments: large arguments that methods fetch from their callers.
    attachments: Arc<AttachmentMemory>,
    counters: Counters,
    meters: Meters,
    spans: Spans,
    /// Limits the log lines that callers can cause.
    lines: Lines,
    recorder: Option<Recorder>,
    clock: Arc<dyn Clock>,
}

/// The bounds of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceLimits {
    /// The most entries of a batch; 50.
    pub batch: usize,
    /// How many entries of one batch run at a time; 8.
    pub batch_concurrency: usize,
    /// The largest answer in bytes; 192 KiB, or what the broker's `max_payload` leaves room for, if that is less.
    pub response: usize,
    /// Rates and bounds per agent.
    pub quota: QuotaLimits,
    /// Unsigned hints per second, all callers together; 100. Beyond it, silence.
    pub hints_per_second: u32,
    /// Bounds of calls that may be answered with frames.
    pub streams: StreamLimits,
    /// Bounds of calls for which nobody waits.
    pub tasks: TaskLimits,
    /// Bounds of what methods fetch from their callers.
    pub attachments: AttachmentLimits,
}

impl Default for ServiceLimits {
    fn default() -> Self {
        Self {
            batch: crate::rpc::MAX_BATCH,
            batch_concurrency: 8,
            response: 192 * 1024,
            quota: QuotaLimits::default(),
            hints_per_second: 100,
            streams: StreamLimits::default(),
            tasks: TaskLimits::default(),
            attachments: AttachmentLimits::default(),
        }
    }
}

impl Service {
    /// The whole pipeline for one message. `None` means that nothing is published.
    ///
    /// Dropping the future undoes nothing: the message may already have burnt its nonce and started its methods, which
    /// are then cancelled. An idempotency key claimed for a method that has not begun is given back, unless an approval
    /// is just being used up for it.
    pub async fn handle(&self, delivery: Delivery) -> Option<Sealed> {
        self.answer(delivery, None).await
    }

    /// Like [`Service::handle`], but a caller that accepts frames may get them: `outlet` then receives every frame,
    /// including the last, and nothing is returned. Meanwhile, [`Service::control`] takes the caller's control
    /// messages.
    ///
    /// Cancellation: as with [`Service::handle`].
    pub async fn handle_with_frames(&self, delivery: Delivery, outlet: &Arc<dyn Outlet>) -> Option<Sealed> {
        self.answer(delivery, Some(Frames { outlet: &|| Arc::clone(outlet), opened: &|| {} })).await
    }

    async fn answer(&self, delivery: Delivery, frames: Option<Frames<'_>>) -> Option<Sealed> {
        match self.prove(delivery).await {
            Ok(proved) => self.execute(proved, frames).await,
            Err(answer) => answer,
        }
    }

    /// The first half, steps 1 to 3: nothing is stored, and no message waits for those of another caller. A refused
    /// message may be answered.
    async fn prove(&self, delivery: Delivery) -> Result<Proved, Option<Sealed>> {
        let this = &*self.0;
        let started = Instant::now();
        let mut watch = this.meters.watch(Stage::Shape);

        // 1. Shape: sizes, subject, reply rule, the one header. No key is touched.
        let envelope = match Envelope::decode(delivery, &this.endpoint) {
            Ok(envelope) => envelope,
            Err(bad) => {
                return Err(this.refuse(Refusal::Shape(bad.error), bad.claimed.as_ref(), ReplyRoute::from(bad.reply)));
            }
        };
        this.meters.lap(&mut watch, Stage::Shape);
        // 2. Key, signature, claims, window, token: a pure function of message, keys and time.
        let permit = match this.verifier.verify_permit(&envelope).await {
            Ok(permit) => permit,
            Err(error) => {
                let (claimed, reply) = envelope.into_claimed();
                return Err(this.refuse(Refusal::Auth(error), Some(&claimed), ReplyRoute::from(reply)));
            }
        };
        let authentic = match this.verifier.authenticate(envelope, this.clock.now_s()) {
            Ok(authentic) => authentic,
            Err(bad) => {
                let route = ReplyRoute::of(bad.binding, bad.reply);
                return Err(this.refuse(Refusal::Auth(bad.error), Some(&bad.claimed), route));
            }
        };
        drop(permit);
        // 3. The caller's own rate, before anything is stored: otherwise it could fill the memory of all replicas with
        //    calls that it may not even make. A message seen before is not charged, or copies would use up its owner's
        //    rate.
        let seen = this.verifier.has_seen(&authentic);
        if !seen && let Err(quota) = this.quotas.charge_first(&this.quotas.payer(authentic.caller())) {
            let agent = authentic.agent().clone();
            return Err(this.refuse(Refusal::Quota(quota), Some(&agent), ReplyRoute::from(authentic.into_binding())));
        }
        this.meters.lap(&mut watch, Stage::Auth);
        Ok(Proved { authentic, seen, started })
    }

    /// The second half, from the replay guard on.
    async fn execute(&self, proved: Proved, frames: Option<Frames<'_>>) -> Option<Sealed> {
        let this = &*self.0;
        let Proved { authentic, seen, started } = proved;
        let mut watch = this.meters.watch(Stage::Guard);
        // 4. The nonce is burnt. The next steps may decide differently tomorrow, so no copy may get this far again.
        let verified = match this.verifier.admit(authentic).await {
            Ok(verified) => verified,
            Err(bad) => {
                let refusal = Refusal::Auth(bad.error);
                // A message that was not charged to its owner is a copy, even if the guard cannot say so.
                let cause = if seen { Cause::Copy } else { refusal.cause() };
                return this.refuse_for(refusal, cause, Some(&bad.claimed), ReplyRoute::of(bad.binding, bad.reply));
            }
        };
        // 5. The caller's own bound on work under way.
        let agent = verified.caller.agent.clone();
        let payer = this.quotas.payer(&verified.caller);
        let in_flight = match this.quotas.acquire(&payer) {
            Ok(in_flight) => in_flight,
            Err(quota) => return this.refuse(Refusal::Quota(quota), Some(&agent), ReplyRoute::from(verified.binding)),
        };
        this.meters.lap(&mut watch, Stage::Guard);
        // 6. The body, only now.
        let (attachments, policy) = (this.attachments(), this.policy_in_force());
        let trace = this.spans.tracing.receive(verified.traceparent.as_deref(), agent.as_str());
        let about = (attachments, policy, trace);
        let calls = match Calls::parse(verified, &this.rpc_limits(), this.response_limit(), about) {
            Ok(calls) => calls,
            Err(bad) => {
                return this.refuse(Refusal::Body(bad.error.into()), Some(&bad.agent), ReplyRoute::from(bad.binding));
            }
        };
        let further = match &calls.entries {
            Entries::Single(_) => 0,
            Entries::Batch(entries) => entries.len().saturating_sub(1),
        };
        if let Err(quota) = this.quotas.charge_further(&payer, further) {
            return this.refuse(Refusal::Quota(quota), Some(&agent), ReplyRoute::from(calls.binding));
        }
        // Under way from here on: the caller may stop the call, and ask for more time or frames.
        let Calls { entries, binding, window, bytes, message } = calls;
        let frames = frames.filter(|_| window.is_some());
        let open = match this.register(&message, &payer, frames.as_ref().map(|_| bytes)) {
            Ok(slot) => slot,
            Err(refusal) => return this.refuse(refusal, Some(&agent), ReplyRoute::from(binding)),
        };
        this.meters.lap(&mut watch, Stage::Parse);
        this.meters.executed();
        if let Some(frames) = &frames {
            // The call may last for hours and do nothing: it has a place among the streams, and gives back its place
            // among the calls.
            drop(in_flight);
            (frames.opened)();
        }
        // 7. Policy, deadline and method, entry by entry, under one revision.
        let policy = this.policy.load_full();
        let answer = match entries {
            Entries::Single(entry) => {
                if let (Some(frames), Some(window)) = (frames, window) {
                    let start = Start {
                        outlet: (frames.outlet)(),
                        clock: Arc::clone(&this.clock),
                        memory: Arc::clone(this.open.memory()),
                        resends: Arc::clone(this.open.resends()),
                        agent,
                        largest: this.response_limit(),
                        window,
                    };
                    let frames = message.open.answer_with(FrameWriter::new(binding?, start));
                    // Boxed, since few messages need it: the future of a waiting message is as large as its largest
                    // branch.
                    let about = (&*message.open, &message.trace);
                    return Box::pin(this.answer_with_frames(entry, &policy, started, about, frames)).await;
                }
                let mut written = this.entry(entry, None, &policy, started, &message.trace).await?;
                if let Some(task) = written.task.take() {
                    let service = Arc::clone(&self.0);
                    this.tasks.spawn(async move { service.finish_task(*task, open).await });
                }
                let text = std::mem::take(&mut written.text);
                if text.len() <= this.response_limit() { Ok(text) } else { Err(TooLarge) }
            }
            Entries::Batch(entries) => Box::pin(this.batch(entries, &message, &policy, started)).await?,
        };
        // 8. Signed and bound to the request.
        let mut watch = this.meters.watch(Stage::Seal);
        let sealed = this.seal(answer, binding?);
        this.meters.lap(&mut watch, Stage::Seal);
        Some(sealed)
    }

    /// Answers a message for which there is no room: with a hint, if their rate allows, or not at all. Checks nothing
    /// beyond the shape, and nothing beyond the subject if it will say nothing, so this costs a fraction of
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
        this.refused(refusal.label());
        this.meters.refused(refusal.label(), None);
        this.log(&refusal, refusal.cause(), agent.as_ref());
        match (refusal.answer(this.clock.now_s()), reply) {
            (RefusalReply::Hint(hint), Some(reply)) => Some(hint.to(reply)),
            _ => None,
        }
    }

    /// Where the service listens.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.0.endpoint
    }

    /// Keys, tokens and the replay guard. They can be replaced while messages are judged.
    #[must_use]
    pub fn verifier(&self) -> &Verifier {
        &self.0.verifier
    }

    /// The policy in force.
    #[must_use]
    pub fn policy(&self) -> Arc<PolicySet> {
        self.0.policy.load_full()
    }

    /// Replaces the policy. A message that is being handled keeps the revision it began with, except for calls that may
    /// be answered with frames: they are decided again, and end if they are no longer allowed.
    pub fn replace_policy(&self, policy: impl Into<Arc<PolicySet>>) {
        let policy = policy.into();
        self.0.prepare(&policy);
        self.0.policy.store(policy);
        self.review();
    }

    /// Compares the policy in force with this one from now on, or with none. It decides nothing.
    fn compare_with(&self, shadow: Option<Arc<ShadowPolicy>>) {
        self.0.comparing.with(shadow, &self.0.policy.load());
    }

    /// Fits answers to a broker's `max_payload` (bytes, headers included). The NATS client library refuses to publish
    /// anything larger, and the caller would wait in vain: it gets an error instead.
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

    /// Forgets what it keeps about agents that have been quiet.
    fn tidy(&self) {
        self.0.quotas.tidy();
        self.0.verifier.tidy();
        self.0.lines.tidy();
        if let Some(idempotency) = &self.0.idempotency {
            idempotency.tidy();
        }
        if let Some(approvals) = &self.0.approvals {
            approvals.tidy(self.0.clock.now_s());
        }
        self.0.budgets.tidy();
    }

    /// Tells of calls that wait for approval there, from now on.
    fn publish_news_by(&self, outlet: approvals::Outlet) {
        if let Some(approvals) = &self.0.approvals {
            approvals.publish_by(outlet);
        }
    }

    /// Tells of those that have waited in vain.
    async fn tell_expired(&self) {
        let this = &*self.0;
        if let Some(approvals) = &this.approvals {
            let (policy, now_s) = (this.policy.load_full(), this.clock.now_s());
            approvals.tell_expired(InForce { policy: &policy, verifier: &this.verifier, now_s }).await;
        }
    }

    /// Records the traces of messages from now on, as this says.
    pub fn trace(&self, tracer: &Tracer) {
        self.0.spans.tracing.switch_on(tracer);
    }

    /// Counters of what has happened so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.0.counters
    }

    /// Where decisions and outcomes are recorded.
    #[must_use]
    pub fn recorder(&self) -> Option<&Recorder> {
        self.0.recorder.as_ref()
    }

    /// The clock that messages are judged by.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.0.clock
    }
}

/// How a method's run ended.
enum Ran {
    InTime(Outcome),
    /// It ended by itself, but late: after its deadline, or just as its call was being ended.
    Late(Refusal, Outcome),
    /// It was stopped by its deadline, or by whatever else ended its call.
    Stopped(Refusal),
    Panicked,
}

/// The outcome of an entry.
struct Answered {
    outcome: Outcome,
    /// Whether it is the outcome of an earlier call with the same idempotency key.
    is_stored: bool,
    /// Whether it is the state of a task, and not what the method has returned.
    is_task: bool,
    /// The task that begins.
    task: Option<Box<Task>>,
}

/// A call for which nobody waits, and that begins now.
struct Task {
    begun: Begun,
    ticket: Ticket,
    message: Arc<Message>,
    method: Arc<str>,
    started: Instant,
    recorded: Option<Box<RecordedCall>>,
    _place: TaskPlace,
}

impl Task {
    fn new(begun: Begun, ticket: Ticket, place: TaskPlace) -> Self {
        let call = begun.call();
        let (message, method) = (Arc::clone(&call.message), Arc::clone(&call.method));
        message.open.is_a_task(ticket.until_ms());
        Self { begun, ticket, message, method, started: Instant::now(), recorded: None, _place: place }
    }
}

/// What became of a call before it could run.
enum Authorized {
    Runnable(Runnable),
    /// By the policy, unless there is another reason.
    Denied(Option<Refusal>),
    /// It needs approval, but ran before under its idempotency key, or must not run again.
    Known(Answered),
}

impl From<Outcome> for Answered {
    fn from(outcome: Outcome) -> Self {
        Self { outcome, is_stored: false, is_task: false, task: None }
    }
}

/// The response to an entry, as sent.
struct Written {
    id: Id,
    /// The code of its error.
    code: Option<i32>,
    /// Whether it says that the deadline came first.
    is_late: bool,
    text: Vec<u8>,
    /// Records the outcome once the response is sent.
    recorded: Option<Box<RecordedCall>>,
    /// The task that it says has begun.
    task: Option<Box<Task>>,
}

impl From<Response> for Written {
    fn from(response: Response) -> Self {
        let text = response.to_bytes();
        let error = response.outcome.err();
        let is_late = error.as_ref().and_then(RpcError::profile_code) == Some(crate::rpc::code::TIMEOUT);
        Self { code: error.map(|error| error.code()), is_late, id: response.id, text, recorded: None, task: None }
    }
}

/// A message whose sender is proved and within its rate.
#[derive(Debug)]
struct Proved {
    authentic: Authentic,
    /// Whether this replica has already seen the message, which is then not charged to its owner.
    seen: bool,
    started: Instant,
}

/// How to answer calls whose callers accept frames.
struct Frames<'a> {
    /// Called if frames are to be sent.
    outlet: &'a (dyn Fn() -> Arc<dyn Outlet> + Sync),
    /// Called once the call has a place of its own.
    opened: &'a (dyn Fn() + Sync),
}

/// The size of an `rpc.discover` page for callers that accept frames, in bytes.
const PAGE: usize = 1 << 20;

/// The most characters of a request's id that are logged: callers choose it.
const MAX_ID: usize = 64;

/// The most characters of an error's cause that are logged.
const MAX_CAUSE: usize = 1_000;

/// How long a method that watches for the end of its call may go on after that end.
const NOTICE: Duration = Duration::from_secs(1);

/// More than an answer's header takes: with the longest key id, reply subject and audience, its proof is 1.6 KB.
const REPLY_HEADER: usize = 2_048;

/// Where a refusal goes: signed, as a hint, or nowhere.
enum ReplyRoute {
    Signed(Binding),
    Hint(ReplyTo),
    Nowhere,
}

impl ReplyRoute {
    fn of(binding: Option<Binding>, reply: Option<ReplyTo>) -> Self {
        binding.map_or_else(|| Self::from(reply), Self::Signed)
    }
}

impl From<Option<ReplyTo>> for ReplyRoute {
    fn from(reply: Option<ReplyTo>) -> Self {
        reply.map_or(Self::Nowhere, Self::Hint)
    }
}

impl From<Option<Binding>> for ReplyRoute {
    fn from(binding: Option<Binding>) -> Self {
        binding.map_or(Self::Nowhere, Self::Signed)
    }
}

impl Inner {
    fn response_limit(&self) -> usize {
        self.limits.response.min(self.room.load(Ordering::Relaxed))
    }

    fn attachments(&self) -> CallAttachments {
        CallAttachments::new(&self.attachments, self.endpoint.limits(), self.room.load(Ordering::Relaxed))
    }

    fn policy_in_force(&self) -> PolicyInForce {
        PolicyInForce::new(&self.policy, &self.clock)
    }

    fn rpc_limits(&self) -> crate::rpc::Limits {
        crate::rpc::Limits { max_batch: self.limits.batch }
    }

    /// The answers to a batch's entries. `None` if all are notifications.
    async fn batch(
        &self,
        entries: Vec<calls::Entry>,
        message: &Message,
        policy: &PolicySet,
        started: Instant,
    ) -> Option<Result<Vec<u8>, TooLarge>> {
        let span = self.spans.begin_batch(message, entries.len(), started);
        let around = &span.trace().unwrap_or_else(|| message.trace.clone());
        let mut answers = Answers::new(self.response_limit());
        let entries = stream::iter(entries.into_iter().enumerate())
            .map(|(position, entry)| {
                self.entry(entry, Some(position), policy, started, around).map(move |answer| (position, answer))
            })
            // Unordered, so that a slow entry holds only its own place, and not those of the entries behind it.
            .buffer_unordered(self.limits.batch_concurrency.max(1));
        let mut entries = std::pin::pin!(entries);
        while let Some((position, answer)) = entries.next().await {
            if let Some(answer) = answer {
                answers.add(position, answer.text);
            }
        }
        answers.text()
    }

    /// Handles one entry of a message. `None` for a notification; JSON-RPC 2.0 §4.1: "The Server MUST NOT reply to a
    /// Notification, including those that are within a batch request."
    async fn entry(
        &self,
        entry: Result<Call, Response>,
        position: Option<usize>,
        policy: &PolicySet,
        started: Instant,
        around: &Trace,
    ) -> Option<Written> {
        let mut call = match entry {
            Ok(call) => call,
            Err(response) => {
                self.counters.refused(Refusal::ENTRY_LABEL);
                return Some(response.into());
            }
        };
        let id = call.id.clone();
        let method = Arc::clone(&call.method);
        let message = Arc::clone(&call.message);
        let is_registered = || self.catalogue.has(&method) || BUILTIN_METHODS.contains(&&*method);
        let named = || (is_registered().then_some(&*method), id.as_ref());
        let span = self.spans.begin(&message, around, named, started);
        call.trace = span.as_ref().map_or_else(|| around.clone(), EntrySpan::trace);
        let mut now_ms = self.clock.now_ms();
        let recorded = self.recorder.as_ref().map(|recorder| (recorder, call.params.clone()));
        // A call that may run for long is decided again when the policy changes.
        let mut watch = self.meters.watch(Stage::Policy);
        let may_be_long = message.open.frames().is_some() || message.task_until_ms.is_some();
        let asked = may_be_long.then(|| (Arc::clone(&method), call.params.clone()));
        let admitted = self.admits(&call);
        let copied = self.comparing.copy(&call);
        let (authorized, decision) = policy.authorize(call, now_ms);
        if let Some(copied) = copied {
            copied.decided(&decision, policy.revision(), now_ms);
        }
        let (authorized, decision, mut approval) = match authorized {
            Ok(permitted) => (Authorized::Runnable(Runnable::Permitted(permitted)), decision, None),
            // A notification cannot be told that it has to wait.
            Err((call, _)) if decision.reason == Reason::ApprovalRequired && id.is_some() => {
                let approved = Box::pin(self.approved(call, decision, policy, now_ms)).await;
                now_ms = self.clock.now_ms();
                approved
            }
            Err(_) => (Authorized::Denied(None), decision, None),
        };
        self.meters.lap(&mut watch, Stage::Policy);
        self.meters.decided(&decision, &message.caller.agent);
        if let Some((method, params)) = asked {
            let approved = if decision.is_allow() { decision.approvals.clone() } else { Vec::new() };
            message.open.asks_for(Asked { method, params, approved }, policy.revision());
        }
        let is_runnable = matches!(authorized, Authorized::Runnable(_));
        let waits = policy.methods().is_recorded_before(&method) && is_runnable;
        // Without a record, nothing is recorded before.
        let (mut recorded, is_unrecorded) = match recorded {
            None => (None, waits),
            Some((recorder, params)) => {
                let params = params.as_ref().map(crate::rpc::Params::raw);
                let question = Question { caller: &message.caller, method: &method, params, now_ms };
                let (record, body) =
                    recording::decision(recorder, &message, position, policy, &question, (&decision, approval.take()));
                let call = RecordedCall::new(recorder, &self.clock, &message, &record, started);
                approval = record.approval;
                let is_unrecorded = match waits {
                    true => {
                        let is_unrecorded = Box::pin(recorder.put_durably(Kind::Decision, body)).await.is_err();
                        now_ms = self.clock.now_ms();
                        is_unrecorded
                    }
                    false => {
                        recorder.put(Kind::Decision, body);
                        false
                    }
                };
                (Some(Box::new(call)), is_unrecorded)
            }
        };
        self.counters.shadow(&decision);
        let Answered { outcome, is_stored, is_task, mut task } = match authorized {
            Authorized::Denied(refusal) => {
                let refusal = refusal.unwrap_or_else(|| match &decision.reason {
                    Reason::UnknownMethod { would_allow: true } => Refusal::UnknownMethod,
                    // Only callers who may call the method with other parameters are told this.
                    reason if reason.is_about_params() => Refusal::Params(reason.to_string()),
                    _ => Refusal::Denied,
                });
                Err(self.entry_error(&refusal)).into()
            }
            Authorized::Known(answered) => answered,
            Authorized::Runnable(_) if let Err(not_so) = admitted => {
                Err(self.entry_error(&Refusal::NotSo(not_so))).into()
            }
            Authorized::Runnable(_) if self.is_revoked(&message.open, Some(&method), self.clock.now_s()) => {
                Err(self.entry_error(&Refusal::Revoked)).into()
            }
            Authorized::Runnable(_) if is_unrecorded => Err(self.entry_error(&Refusal::Unrecorded)).into(),
            // Nothing starts once the message has expired or its deadline has passed.
            Authorized::Runnable(_) if now_ms >= message.start_before_ms => {
                Err(self.entry_error(&Refusal::Deadline)).into()
            }
            Authorized::Runnable(Runnable::Permitted(permitted)) if BUILTIN_METHODS.contains(&&*method) => {
                Box::pin(self.builtin(&permitted, &message, policy, now_ms)).await.into()
            }
            Authorized::Runnable(runnable) => match self.attempt(runnable.call()) {
                Some((kept, attempt)) => {
                    Box::pin(self.run_once(runnable, kept, attempt, &message, policy, now_ms)).await
                }
                None => match self.begin(runnable, &message, policy).await {
                    Ok(begun) => self.told(self.run(begun, &message.open).await).into(),
                    Err(refusal) => Err(self.entry_error(&refusal)).into(),
                },
            },
        };
        if decision.is_allow() {
            self.meters.lap(&mut watch, Stage::Method);
        }
        let took = started.elapsed();
        let is_registered = self.counters.served(&method, &outcome, decision.reason.label(), took);
        self.meters.served(is_registered.then_some(&*method), &outcome, took, message.exemplar().as_deref());
        if let Some(span) = span {
            span.ended(&decision, policy.revision(), &outcome);
        }
        let error = outcome.as_ref().err();
        let rule = decision.rule.as_ref();
        let suppressed = tracing::enabled!(target: "sealwire::call", tracing::Level::INFO)
            .then(|| match decision.is_allow() {
                true => self.lines.check_call(&message.caller.agent, if error.is_some() { "failed" } else { "called" }),
                false => self.lines.check_refused(&LogKey {
                    label: decision.reason.label(),
                    agent: Some(message.caller.agent.clone()),
                    detail: matches!(decision.reason, Reason::UnknownMethod { would_allow: true }).then_some("allowed"),
                    method: self.catalogue.has(&method).then(|| Arc::clone(&method)),
                    rule: rule.cloned(),
                }),
            })
            .flatten();
        if let Some(suppressed) = suppressed {
            // tracing evaluates the fields only if somebody listens.
            tracing::info!(
            target: "sealwire::call",
            agent = %message.caller.agent,
            subject = %message.caller.subject.escape_debug(),
            method = %Shown(&method),
            decision = decision.reason.label(),
            rule = rule.map(ToString::to_string),
            revision = %policy.revision(),
            approval = approval.as_ref().and_then(|approval| approval.id.as_deref()),
            message_id = %&*message.id,
            trace_id = message.trace_id().as_deref(),
            // These tell the entries of a batch apart.
            id = id.as_ref().map(|id| tracing::field::display(one_line(id.as_json(), MAX_ID))),
            entry = position,
            code = error.map(RpcError::code),
            stored = is_stored,
            task = is_task,
            // The cause may quote what the caller answered to a question.
            error = error.and_then(std::error::Error::source).map(|cause| one_line(&cause.to_string(), MAX_CAUSE)),
            frames = message.open.frames().map(FrameWriter::frames).filter(|frames| *frames > 0),
            duration_us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX),
            suppressed = Some(suppressed).filter(|suppressed| *suppressed > 0),
            "call"
            );
        }
        let limit = match message.open.frames() {
            Some(_) => self.open.limits().response,
            None => self.response_limit(),
        };
        let Some(id) = id else {
            // A notification has no answer.
            if let Some(recorded) = &mut recorded {
                recorded.answered(outcome.err().map(|error| error.code()), None);
            }
            return None;
        };
        let mut written = self.bounded(id, outcome, limit, (is_stored, is_task));
        // What a task comes to is recorded when it does.
        if let Some(task) = &mut task {
            task.recorded = recorded.take();
        }
        written.task = task;
        if let Some(mut recorded) = recorded {
            recorded.answered(written.code, Some(&written.text));
            written.recorded = Some(recorded);
        }
        Some(written)
    }

    /// The answer of a built-in method.
    async fn builtin(&self, permitted: &Permitted, message: &Message, policy: &PolicySet, now_ms: u64) -> Outcome {
        let payer = &self.quotas.payer(&message.caller);
        let refused = |quota| self.entry_error(&Refusal::Quota(quota));
        // Listing takes one decision per method, so for a large service it is charged as several calls.
        let decisions = match permitted.call().method() {
            builtin::DISCOVER => self.catalogue.len() / METHODS_PER_CALL,
            builtin::APPROVALS => approvals::CALLS_PER_PAGE,
            _ => 0,
        };
        if let Err(quota) = self.quotas.charge_further(payer, decisions) {
            return Err(refused(quota));
        }
        let charge = |bytes| {
            let texts = self.quotas.charge_after(payer, decisions, bytes / BYTES_PER_CALL);
            texts.map_err(refused)
        };
        let about = builtin::About {
            verifier: &self.verifier,
            catalogue: &self.catalogue,
            title: self.endpoint.audience().as_str(),
            approvals: self.approvals.as_ref(),
            kept: self.idempotency.as_ref(),
            is_revoked: &|method| self.is_revoked(&message.open, Some(method), now_ms / 1000),
            evidence: message.evidence.as_ref(),
            room: if message.open.frames().is_some() { PAGE } else { self.response_limit() },
        };
        builtin::answer(permitted, policy, about, now_ms, charge).await
    }

    /// The attempt to run the method once for its caller's key, and where outcomes are kept, if the call is such an
    /// attempt.
    fn attempt(&self, call: &Call) -> Option<(&Idempotency, Attempt)> {
        let kept = self.idempotency.as_ref()?;
        Some((kept, kept.attempt(call, self.tasks.lease(), self.clock.now_ms())?))
    }

    /// Whether a call can be made as it is made: as a task, or not as one.
    fn admits(&self, call: &Call) -> Result<(), NotSo> {
        match &self.idempotency {
            Some(kept) => kept.admits(call),
            None if call.message.task_until_ms.is_some() => Err(NotSo::AsTask),
            None => Ok(()),
        }
    }

    /// Keeps requests for approval and counts of shared budgets from now on, if this policy needs any.
    fn prepare(&self, policy: &PolicySet) {
        self.budgets.prepare(policy, &self.verifier);
        match &self.approvals {
            Some(approvals) => approvals.prepare(policy),
            None if policy.has_approvals() => {
                tracing::warn!(
                    target: "sealwire::policy",
                    "the replay guard keeps no approvals, so calls that need them are denied: use `LocalGuard` or `SharedGuard`"
                );
            }
            None => {}
        }
    }

    /// What people have decided about a call that needs their approval. What it did under its idempotency key before comes first: nobody
    /// need decide that again.
    async fn approved(
        &self,
        call: Call,
        decision: Decision,
        policy: &PolicySet,
        now_ms: u64,
    ) -> (Authorized, Decision, Option<ApprovalRecord>) {
        let Some(approvals) = &self.approvals else { return (Authorized::Denied(None), decision, None) };
        // What cannot run in any case gets no stored outcome, and nobody is asked about it.
        if let Err(refusal) = self.may_start(&call).and_then(|()| self.admits(&call).map_err(Refusal::NotSo)) {
            return (Authorized::Denied(Some(refusal)), decision, None);
        }
        if let Some((kept, attempt)) = self.attempt(&call) {
            if call.message.in_batch {
                return (Authorized::Denied(Some(Refusal::KeyOfBatch)), decision, None);
            }
            if let Some(begun) = kept.known(&attempt, &self.verifier, now_ms).await
                && let Err(known) = self.begun(kept, begun, &call).await
            {
                return (Authorized::Known(known), decision, None);
            }
        }
        let in_force = InForce { policy, verifier: &self.verifier, now_s: now_ms / 1000 };
        let asked = tokio::select! {
            biased;
            () = call.message.open.deadline(&*self.clock) => None,
            asked = approvals.ask(&call, &decision.approvals, decision.rule.as_ref(), in_force) => Some(asked),
        };
        // Its caller has gone, and must not hold up those behind it.
        let Some(asked) = asked else { return (Authorized::Denied(Some(Refusal::Deadline)), decision, None) };
        match asked {
            Ok(ticket) => {
                let record = ticket.record();
                let (authorized, decision) = policy.authorize_approved(call, ticket, self.clock.now_ms());
                let authorized = match authorized {
                    Ok(withheld) => Authorized::Runnable(Runnable::Withheld(withheld)),
                    Err(_) => Authorized::Denied(None),
                };
                (authorized, decision, Some(record))
            }
            Err(unapproved) => {
                let (id, state) = (unapproved.id().map(str::to_owned), unapproved.label().to_owned());
                let record = ApprovalRecord { id, asked_at: unapproved.asked_at(), state, given: Vec::new() };
                (Authorized::Denied(Some(Refusal::Approval(unapproved))), decision, Some(record))
            }
        }
    }

    /// Whether a call that waited for approval may still start: its message may have expired meanwhile, or been revoked or ended.
    fn may_start(&self, call: &Call) -> Result<(), Refusal> {
        let (message, now_ms) = (&call.message, self.clock.now_ms());
        if self.is_revoked(&message.open, Some(call.method()), now_ms / 1000) {
            return Err(Refusal::Revoked);
        }
        if now_ms >= message.start_before_ms {
            return Err(Refusal::Deadline);
        }
        message.open.ending().map_or(Ok(()), |ending| Err(Refusal::Ended(ending)))
    }

    /// The last steps before a call runs: it is charged to its budgets, and its approval, if it needs one, is used up. A call that does not
    /// run after the first of them stays charged.
    async fn begin(&self, runnable: Runnable, message: &Message, policy: &PolicySet) -> Result<Begun, Refusal> {
        match Budgets::begin_free(runnable, policy) {
            Ok(begun) => Ok(begun),
            Err(runnable) => Box::pin(self.begin_charged(*runnable, message, policy)).await,
        }
    }

    async fn begin_charged(&self, runnable: Runnable, message: &Message, policy: &PolicySet) -> Result<Begun, Refusal> {
        if let Runnable::Withheld(withheld) = &runnable {
            self.may_start(withheld.call())?;
        }
        let charged = self.budgets.charge(runnable, policy, &self.verifier, &self.clock, &self.counters).await;
        let charged = charged.map_err(Refusal::Budget)?;
        // Charging may have taken a while, and so may using up the approval.
        self.may_start(charged.call())?;
        let begun = charged.begin(self.approvals.as_ref(), &self.verifier, &*self.clock).await;
        let begun = begun.map_err(|unapproved| unapproved.map_or(Refusal::Denied, Refusal::Approval))?;
        if self.clock.now_ms() >= message.start_before_ms { Err(Refusal::Deadline) } else { Ok(begun) }
    }

    /// The ticket to run a method once for its key, or the answer if it does not run.
    async fn begun(&self, kept: &Idempotency, claim: Claim, call: &Call) -> Result<Ticket, Answered> {
        let refused = |refusal| Err(Err(self.entry_error(&refusal)).into());
        match claim {
            Claim::Run(ticket) => Ok(*ticket),
            // Whoever begins a task again is told how it is: the first answer may have been lost.
            Claim::Stored(_) if call.message.task_until_ms.is_some() => Err(self.task(kept, call).await),
            Claim::Conflict(conflict)
                if call.message.task_until_ms.is_some() && !matches!(conflict, Conflict::OtherParams) =>
            {
                Err(self.task(kept, call).await)
            }
            Claim::Stored(outcome) => Err(Answered { is_stored: true, ..outcome.into() }),
            Claim::Conflict(conflict) => refused(Refusal::Conflict(conflict)),
            Claim::Refused(error) => refused(Refusal::OutcomeStore(error)),
        }
    }

    /// How the task is that a call has begun before.
    async fn task(&self, kept: &Idempotency, call: &Call) -> Answered {
        let key = call.message.idempotency_key.as_deref().unwrap_or_default();
        let asked = TaskAsked { caller: call.caller(), method: call.method(), key };
        match kept.task(asked, &self.verifier, self.clock.now_ms()).await {
            Ok(status) => Answered { is_task: true, ..to_raw_value(&status).map_err(RpcError::internal).into() },
            Err(error) => Err(self.entry_error(&Refusal::OutcomeStore(error))).into(),
        }
    }

    /// Runs the method, unless it already ran under the same key. A task is returned, and runs once its caller is told.
    async fn run_once(
        &self,
        runnable: Runnable,
        kept: &Idempotency,
        attempt: Attempt,
        message: &Message,
        policy: &PolicySet,
        now_ms: u64,
    ) -> Answered {
        let refused = |refusal| Err(self.entry_error(&refusal)).into();
        // Which entry a key belongs to would depend on how the caller composes the next batch.
        if message.in_batch {
            return refused(Refusal::KeyOfBatch);
        }
        let place = match message.task_until_ms {
            None => None,
            Some(_) => match self.tasks.enter(&self.quotas.payer(&message.caller), runnable.call()) {
                Some(place) => Some(place),
                None => return self.no_place(kept, &attempt, runnable.call(), now_ms).await,
            },
        };
        let claim = kept.begin(attempt, &self.verifier, now_ms).await;
        let ticket = match self.begun(kept, claim, runnable.call()).await {
            Ok(ticket) => ticket,
            Err(answered) => return answered,
        };
        // The claim may have taken a while.
        if self.clock.now_ms() >= message.start_before_ms {
            kept.give_back(ticket, &self.verifier).await;
            return refused(Refusal::Deadline);
        }
        let begun = match self.begin(runnable, message, policy).await {
            Ok(begun) => begun,
            Err(refusal) => {
                kept.give_back(ticket, &self.verifier).await;
                return refused(refusal);
            }
        };
        if let Some(place) = place {
            let outcome = to_raw_value(&ticket.status()).map_err(RpcError::internal);
            let task = Task::new(begun, ticket, place);
            return Answered { outcome, is_stored: false, is_task: true, task: Some(Box::new(task)) };
        }
        let ran = self.run(begun, &message.open).await;
        // Stored before the caller is told: a caller that has the answer and asks again must find it.
        let ended = match &ran {
            Ran::InTime(outcome) | Ran::Late(_, outcome) => Ended::With(outcome),
            Ran::Stopped(_) | Ran::Panicked => Ended::Unknown,
        };
        kept.end(ticket, ended, &self.verifier, self.clock.now_ms()).await;
        self.told(ran).into()
    }

    /// What a call gets for which there is no room as a task: how the task is, if it began before.
    async fn no_place(&self, kept: &Idempotency, attempt: &Attempt, call: &Call, now_ms: u64) -> Answered {
        if let Some(known) = kept.known(attempt, &self.verifier, now_ms).await
            && let Err(answered) = self.begun(kept, known, call).await
        {
            return answered;
        }
        let full = QuotaExceeded { scope: QuotaScope::Tasks, retry_after_ms: 1_000 };
        Err(self.entry_error(&Refusal::Quota(full))).into()
    }

    /// Runs a task whose caller has been told, and stores what becomes of it.
    async fn finish_task(&self, task: Task, _open: OpenSlot) {
        let Some(kept) = &self.idempotency else { return };
        let Task { begun, mut ticket, message, method, started, recorded, _place } = task;
        let ran = {
            let run = self.run(begun, &message.open);
            let held = kept.hold(&mut ticket, self.tasks.lease(), &self.verifier, &*self.clock);
            tokio::select! {
                biased;
                ran = run => ran,
                never = held => match never {},
            }
        };
        let (ended, result) = match &ran {
            Ran::InTime(outcome) | Ran::Late(_, outcome) => {
                (Ended::With(outcome), if outcome.is_ok() { TaskResult::Completed } else { TaskResult::Failed })
            }
            Ran::Stopped(Refusal::Ended(Ending::Cancelled)) => (Ended::Cancelled, TaskResult::Cancelled),
            Ran::Stopped(_) | Ran::Panicked => (Ended::Unknown, TaskResult::Unknown),
        };
        self.counters.task(result);
        kept.finish(ticket, ended, &self.verifier, &*self.clock).await;
        let by = if matches!(ran, Ran::Stopped(Refusal::Deadline)) { "deadline" } else { "answered" };
        let has_outcome = matches!(ran, Ran::InTime(_) | Ran::Late(..));
        let outcome = match ran {
            Ran::InTime(outcome) | Ran::Late(_, outcome) => outcome,
            Ran::Stopped(refusal) => Err(self.entry_error(&refusal)),
            Ran::Panicked => self.told(Ran::Panicked),
        };
        let error = outcome.as_ref().err().map(RpcError::code);
        let agent = &message.caller.agent;
        if let Some(suppressed) = self.lines.check_call(agent, if error.is_some() { "failed" } else { "called" }) {
            tracing::info!(
                target: "sealwire::call",
                %agent,
                method = %Shown(&method),
                message_id = %&*message.id,
                by = message.open.ending().map_or(by, Ending::label),
                code = error,
                duration_us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX),
                suppressed = Some(suppressed).filter(|suppressed| *suppressed > 0),
                "task"
            );
        }
        if let Some(mut recorded) = recorded {
            let text = has_outcome.then(|| Response::new(Id::null(), outcome).to_bytes());
            recorded.answered(error, text.as_deref());
            recorded.ended(by);
        }
    }

    /// What the caller is told about a run.
    fn told(&self, ran: Ran) -> Outcome {
        match ran {
            Ran::InTime(outcome) => outcome,
            // The end of a subscription is no failure: a caller that wants more subscribes again.
            Ran::Stopped(Refusal::Ended(Ending::Draining)) | Ran::Late(Refusal::Ended(Ending::Draining), _) => {
                subscription_end("draining")
            }
            Ran::Stopped(refusal) | Ran::Late(refusal, _) => Err(self.entry_error(&refusal)),
            // The panic's message may contain parameters: only the panic hook gets it.
            Ran::Panicked => Err(RpcError::internal("the method panicked")),
        }
    }

    async fn run(&self, begun: Begun, open: &OpenCall) -> Ran {
        // The method is dropped, and so cancelled, when its deadline passes, when its call is ended, or when its message's
        // future is dropped.
        let (trace, method) = (begun.call().trace.clone(), Arc::clone(&begun.call().method));
        let is_revoked = || self.is_revoked(open, Some(&method), self.clock.now_s());
        if is_revoked() {
            return Ran::Stopped(Refusal::Revoked);
        }
        let begun =
            std::panic::catch_unwind(AssertUnwindSafe(|| trace.within(|| self.methods.run(begun.into_permitted()))));
        let run = begun.unwrap_or_else(|panic| Box::pin(async move { std::panic::resume_unwind(panic) }));
        let mut run = trace.around(run);
        let finished = tokio::select! {
            biased;
            finished = AssertUnwindSafe(&mut run).catch_unwind() => Ok(finished),
            ending = open.ended() => Err(Refusal::Ended(ending)),
            () = self.verifier.revocations().until(is_revoked) => {
                self.cut_off(open);
                Err(Refusal::Ended(Ending::Revoked))
            }
            () = open.deadline(&*self.clock) => Err(Refusal::Deadline),
        };
        if let Err(Refusal::Ended(_)) = finished
            && open.is_watched()
        {
            // The method gets time to clean up; what it returns is no longer sent.
            drop(Box::pin(tokio::time::timeout(NOTICE, AssertUnwindSafe(&mut run).catch_unwind())).await);
        }
        // The clean-up of a cancelled method may panic, too.
        let dropped = std::panic::catch_unwind(AssertUnwindSafe(|| drop(run)));
        if dropped.is_err() {
            let agent = open.shown().0.agent.clone();
            let key = LogKey { label: "panic", agent: Some(agent.clone()), ..LogKey::default() };
            if let Some(suppressed) = self.lines.check(&key) {
                tracing::error!(target: "sealwire::call", %agent, suppressed, "a method panicked while it was dropped");
            }
        }
        match (finished, open.ending()) {
            (Err(refusal), None) => Ran::Stopped(refusal),
            (Ok(Err(_panic)), None) => Ran::Panicked,
            (Err(_) | Ok(Err(_)), Some(ending)) => Ran::Stopped(Refusal::Ended(ending)),
            // The method noticed that nobody waits for it, and its result may reflect that.
            (Ok(Ok(_)), Some(ending)) if open.has_noticed() => Ran::Stopped(Refusal::Ended(ending)),
            // It finished at that very moment, so its outcome is known.
            (Ok(Ok(outcome)), Some(ending)) => Ran::Late(Refusal::Ended(ending), outcome),
            // A method that never yielded cannot be stopped by a timer, but its answer is late all the same.
            (Ok(Ok(outcome)), None) if self.clock.now_ms() >= open.deadline_ms() => {
                Ran::Late(Refusal::Deadline, outcome)
            }
            (Ok(Ok(outcome)), None) => Ran::InTime(outcome),
        }
    }

    /// Whether an operator has revoked anything that this call needs.
    fn is_revoked(&self, open: &OpenCall, method: Option<&str>, now_s: u64) -> bool {
        if self.verifier.revocations().is_empty() {
            return false;
        }
        let asked = open.asked();
        let method = method.or_else(|| asked.as_ref().map(|asked| &*asked.method));
        self.verifier.revokes(open.began(), &open.shown().1, method, now_s).is_some()
    }

    /// Ends a call that an operator has revoked.
    fn cut_off(&self, open: &OpenCall) {
        if open.ending().is_none() {
            self.verifier.revocations().cut_off();
        }
        open.end(Ending::Revoked);
    }

    /// Registers a message as under way; a stream, with the bytes of its body.
    fn register(&self, message: &Message, payer: &Payer, stream: Option<usize>) -> Result<OpenSlot, Refusal> {
        // A message without an answer cannot be controlled.
        let is_answered = message.open.request().is_some();
        let key = is_answered.then(|| CallKey { agent: message.caller.agent.clone(), nonce: message.open.nonce() });
        self.open.open(key, payer.subject, &message.open, stream).map_err(|refused| match refused {
            // The window of the other message with this nonce is over, but its call still runs.
            Refused::Known => Refusal::Auth(AuthError::Guard(AdmitError::Replayed)),
            Refused::Full => Refusal::Quota(QuotaExceeded { scope: QuotaScope::Streams, retry_after_ms: 1_000 }),
        })
    }

    /// Handles the one entry of a message whose caller accepts frames. Returns the answer if no frame was needed.
    async fn answer_with_frames(
        &self,
        entry: Result<Call, Response>,
        policy: &PolicySet,
        started: Instant,
        (open, around): (&OpenCall, &Trace),
        frames: &FrameWriter,
    ) -> Option<Sealed> {
        let response = {
            let mut entry = std::pin::pin!(self.entry(entry, None, policy, started, around));
            tokio::select! {
                biased;
                response = &mut entry => response,
                // The caller's window was closed for too long: the method is told, and ends the call.
                () = frames.drive() => {
                    open.end(Ending::Stalled);
                    entry.await
                }
            }
        }?;
        let Written { id, text, is_late, mut recorded, .. } = response;
        // Until its frames are sent, it may still be given up.
        let mut ended_by = |by: &'static str| recorded.iter_mut().for_each(|recorded| recorded.ended(by));
        ended_by("given_up");
        // Sending a large response may take as long as the caller likes, but not beyond the deadline.
        let stop = || async {
            tokio::select! {
                _ = open.ended() => {}
                () = open.deadline(&*self.clock) => {}
            }
        };
        // If the call has been ended already, nothing may stop its final response.
        let finished = match open.ending() {
            None => frames.finish(text, stop()).await,
            Some(_) => frames.finish(text, std::future::pending()).await,
        };
        match finished {
            Finished::Ordinary(sealed) => {
                ended_by(if is_late { "deadline" } else { "answered" });
                Some(sealed)
            }
            Finished::Frames => {
                ended_by(if is_late { "deadline" } else { "answered" });
                None
            }
            Finished::Cut => {
                let is_over = self.clock.now_ms() >= open.deadline_ms();
                ended_by(if is_over { "deadline" } else { Ending::Stalled.label() });
                None
            }
            Finished::NoRoom => {
                ended_by(Ending::NoRoom.label());
                let response = Response::new(id, Err(self.entry_error(&Refusal::Ended(Ending::NoRoom))));
                match frames.finish(response.to_bytes(), std::future::pending()).await {
                    Finished::Ordinary(sealed) => Some(sealed),
                    Finished::Frames | Finished::Cut | Finished::NoRoom => None,
                }
            }
        }
    }

    /// The public error for a refusal of one entry.
    fn entry_error(&self, refusal: &Refusal) -> RpcError {
        self.counters.refused(refusal.label());
        refusal.answer(self.clock.now_s()).into_error()
    }

    /// Replaces an answer above its limit by an error that says so. The call was executed.
    fn bounded(&self, id: Id, outcome: Outcome, limit: usize, (is_stored, is_task): (bool, bool)) -> Written {
        let response = Response::new(id, outcome);
        let response = if is_stored { response.of_earlier_run() } else { response };
        let is_task = is_task && response.outcome.is_ok();
        let written = Written::from(if is_task { response.of_task() } else { response });
        if written.text.len() <= limit {
            return written;
        }
        self.counters.refused(Refusal::ResponseTooLarge.label());
        Response::new(written.id, Err(Refusal::ResponseTooLarge.answer(0).into_error())).into()
    }

    fn seal(&self, answer: Result<Vec<u8>, TooLarge>, binding: Binding) -> Sealed {
        let payload = answer.unwrap_or_else(|TooLarge| {
            self.counters.refused(Refusal::ResponseTooLarge.label());
            Response::new(Id::null(), Err(Refusal::ResponseTooLarge.answer(0).into_error())).to_bytes()
        });
        binding.seal(payload, self.clock.now_s())
    }

    /// Counts a message that is refused as a whole.
    fn refused(&self, label: &'static str) {
        self.counters.refused(label);
        if let Some(recorder) = &self.recorder {
            recorder.refused(label);
        }
    }

    /// Counts, logs and answers a message that is refused as a whole.
    fn refuse(&self, refusal: Refusal, agent: Option<&Name>, route: ReplyRoute) -> Option<Sealed> {
        let cause = refusal.cause();
        self.refuse_for(refusal, cause, agent, route)
    }

    fn refuse_for(&self, refusal: Refusal, cause: Cause, agent: Option<&Name>, route: ReplyRoute) -> Option<Sealed> {
        self.refused(refusal.label());
        self.meters.refused(refusal.label(), agent.filter(|_| is_proved(&refusal, cause)));
        self.log(&refusal, cause, agent);
        let now_s = self.clock.now_s();
        match (refusal.answer(now_s), route) {
            (RefusalReply::Nothing, _) | (_, ReplyRoute::Nowhere) => None,
            (RefusalReply::Hint(hint), ReplyRoute::Hint(reply)) => self.hints.allow(agent).then(|| hint.to(reply)),
            // This refusal is signed once the caller is known, which it is not yet.
            (RefusalReply::Error(error), ReplyRoute::Hint(reply)) => {
                let hint = refusal::hint_for(error.code());
                self.hints.allow(agent).then(|| hint.to(reply))
            }
            (RefusalReply::Hint(hint), ReplyRoute::Signed(binding)) => {
                self.hints.allow(agent).then(|| hint.to(binding.into_reply()))
            }
            (RefusalReply::Error(error), ReplyRoute::Signed(binding)) => {
                // A signature costs more than the message it refuses: copies do not get an unlimited number of them.
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

    /// Logs one refusal a second for each reason, and for each owner whose key has proved the message: otherwise anyone who may publish
    /// could flood the log and rotate its contents away, or hide one reason behind another.
    fn log(&self, refusal: &Refusal, cause: Cause, agent: Option<&Name>) {
        let owner = agent.filter(|_| is_proved(refusal, cause)).cloned();
        let key = LogKey { label: refusal.label(), detail: refusal.detail(), agent: owner, ..LogKey::default() };
        let Some(suppressed) = self.lines.check(&key) else { return };
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

/// The outer seam: concurrency limits, load shedding and tracing wrap this.
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

/// Whether the key of the agent that is named has proved the message: an agent of the key ring.
fn is_proved(refusal: &Refusal, cause: Cause) -> bool {
    cause != Cause::Anybody || refusal.has_proved_key()
}

/// A method name from the wire, cut to 128 characters and escaped: a caller must not be able to forge log lines.
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
