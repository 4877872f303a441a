//! One message out and its answer in: sign, publish, wait, and perhaps repeat.
//! Never signs before the connection is up, and never repeats what was not marked as repeatable.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::TryAcquireError;
use tokio::time::{Instant, sleep, timeout_at};

use super::Inner;
use super::answer::{Answer, is_refused_by_now, repeated};
use super::control::cancel;
use super::error::{ClientError, HintKind};
use super::incoming::Incoming;
use super::known_service::KnownService;
use super::link::{Link, NotPublished};
use super::observe::{Observation, Observer};
use super::pending::{Expected, StreamWaiter, Waiter};
use super::sent::{MessageId, Receipt};
use super::spans::MessageSpans;
use super::stop_signal::Stoppable;
use super::token::{CachedToken, TokenCache};
use crate::nats::Session;
use crate::rpc::{Response, Responses, RpcError, code};
use crate::trace::TraceContext;
use crate::wire::{Expectation, HeaderBlock, Nonce, Signed, SignedRequest};

/// A message that is ready to be signed.
#[derive(Debug)]
pub(super) struct OutgoingMessage {
    pub(super) service: Arc<KnownService>,
    pub(super) subject: String,
    pub(super) payload: Bytes,
    pub(super) deadline: Duration,
    /// Whether sending it again does no harm.
    pub(super) idempotent: bool,
    pub(super) idempotency_key: Option<String>,
    /// How long it may run, if it is a task.
    pub(super) task: Option<Duration>,
    /// How many frames may come beyond those that were acknowledged; `None` for an answer in one message.
    pub(super) window: Option<u64>,
    /// Whether the call goes on when nobody waits for it any more.
    pub(super) detached: bool,
    /// When the program wants to stop it, if ever.
    pub(super) stop: Option<Stoppable>,
    /// Where its id is noted, if anywhere.
    pub(super) id: Option<MessageId>,
    /// Where its proofs are noted, if anywhere.
    pub(super) receipt: Option<Receipt>,
    /// Who is told about it, if anybody.
    pub(super) observer: Option<Arc<dyn Observer>>,
    /// The trace that it belongs to.
    pub(super) trace: TraceContext,
    /// Its spans, until it is over.
    pub(super) spans: Option<Box<MessageSpans>>,
    /// What the caller can do beyond receiving a result.
    pub(super) capabilities: Option<Arc<str>>,
    /// The tokens that it is sent with.
    pub(super) tokens: Arc<TokenCache>,
}

impl Inner {
    /// Sends a message and waits for its answer, and repeats it where that is allowed.
    ///
    /// Cancel safety: the message may have been sent; if so, the service is told that nobody waits any more.
    pub(super) async fn request(self: &Arc<Self>, outgoing: &mut OutgoingMessage) -> Result<Answer, ClientError> {
        let started = Instant::now();
        let mut attempts = 0;
        let deadline = started + outgoing.deadline;
        let observation = outgoing.observed();
        let request = self.request_until(outgoing, deadline, &mut attempts);
        let outcome = match &outgoing.stop {
            // Boxed: it would enlarge the future of every call, and few can be stopped.
            Some(stop) => Box::pin(stop.run(self, deadline, request)).await,
            None => request.await,
        };
        observation.answered(&outcome);
        if let Some(spans) = outgoing.spans.take() {
            spans.answered(&outcome);
        }
        let service = outgoing.service.endpoint.service().as_str();
        self.meters.ended(service, &outcome, started.elapsed(), outgoing.trace.id());
        // Logs neither parameters nor results, and of errors only their kind.
        let error = outcome.as_ref().err().map(ClientError::kind);
        let audience = outgoing.service.endpoint.audience();
        let duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        tracing::debug!(target: "sealwire::client", %audience, attempts, duration_ms, ?error, "call finished");
        outcome
    }

    async fn request_until(
        self: &Arc<Self>,
        outgoing: &OutgoingMessage,
        deadline: Instant,
        attempts: &mut u32,
    ) -> Result<Answer, ClientError> {
        let outcome = self.attempt(outgoing, deadline, attempts).await;
        match outgoing.next_pause(&outcome, *attempts, deadline) {
            None => outcome,
            // Boxed: it would enlarge the future of every call, and few are sent again.
            Some(pause) => Box::pin(self.repeat(outgoing, deadline, attempts, outcome, pause)).await,
        }
    }

    /// Sends it again after a first attempt with this `outcome`.
    async fn repeat(
        self: &Arc<Self>,
        outgoing: &OutgoingMessage,
        deadline: Instant,
        attempts: &mut u32,
        mut outcome: Result<Answer, ClientError>,
        mut pause: Duration,
    ) -> Result<Answer, ClientError> {
        let mut earlier = Earlier::default();
        loop {
            earlier.note(outcome);
            sleep(pause).await;
            outcome = self.attempt(outgoing, deadline, attempts).await;
            match outgoing.next_pause(&outcome, *attempts, deadline) {
                None => return earlier.judge(outcome),
                Some(next) => pause = next,
            }
        }
    }

    async fn attempt(
        self: &Arc<Self>,
        outgoing: &OutgoingMessage,
        deadline: Instant,
        attempts: &mut u32,
    ) -> Result<Answer, ClientError> {
        *attempts += 1;
        let outcome = self.request_once(outgoing, deadline).await;
        if matches!(outcome, Err(ClientError::Hint { hint: HintKind::Unauthenticated })) {
            outgoing.tokens.invalidate_soon();
        }
        outcome
    }

    async fn request_once(
        self: &Arc<Self>,
        outgoing: &OutgoingMessage,
        deadline: Instant,
    ) -> Result<Answer, ClientError> {
        let _place = self.place(deadline).await?;
        loop {
            let Prepared { bus, reply, nonce, authorization, expected } = self.prepare(outgoing, deadline).await?;
            // Stopped in the pause before, or while there was no connection: an earlier attempt was sent.
            if outgoing.stop.as_ref().is_some_and(Stoppable::is_stopped) {
                return Err(ClientError::Cancelled { sent: true });
            }
            // Registered before it is sent: the answer could come first otherwise.
            let waiter = self.pending.register(nonce, expected);
            if let Some(stop) = &outgoing.stop {
                stop.sends(waiter.expected());
            }
            let mut waiting = Waiting { inner: self, waiter: Some(waiter), deadline };
            if let Err(not_sent) = self.publish_once(&bus, outgoing, &reply, &authorization, deadline).await {
                waiting.waiter = None;
                match not_sent {
                    SendError::Retry => continue,
                    SendError::Failed(error) => return Err(error),
                }
            }
            return match waiting.ended(Link::holds(&bus)).await {
                Some(end) => end,
                None => {
                    let service = outgoing.service.endpoint.service().to_string();
                    Err(ClientError::Timeout { service, after: outgoing.deadline })
                }
            };
        }
    }

    /// Sends a message that expects no answer. Returns once the broker has it. With `reply`, it names a reply subject
    /// nevertheless, on which nobody waits: a batch needs one even if it contains no calls.
    ///
    /// Cancel safety: a dropped future leaves nothing behind; the message may have been sent.
    pub(super) async fn publish(&self, outgoing: &mut OutgoingMessage, reply: bool) -> Result<(), ClientError> {
        let observation = outgoing.observed();
        let outcome = self.publish_until(outgoing, reply).await;
        observation.sent(&outcome);
        if let Some(spans) = outgoing.spans.take() {
            spans.sent(&outcome);
        }
        outcome
    }

    async fn publish_until(&self, outgoing: &OutgoingMessage, reply: bool) -> Result<(), ClientError> {
        let deadline = Instant::now() + outgoing.deadline;
        let _place = self.place(deadline).await?;
        loop {
            let token = outgoing.tokens.current_by(deadline).await.map_err(ClientError::Token)?;
            let bus = self.link.up(false, deadline).await?;
            let nonce = Nonce::random();
            let reply = if reply { self.link.reply(nonce) } else { String::new() };
            let signed = self.sign(outgoing, nonce, &reply, &token, self.options.clock.now_ms(), deadline);
            match self.publish_once(&bus, outgoing, &reply, &signed.authorization, deadline).await {
                Err(SendError::Retry) => continue,
                Err(SendError::Failed(error)) => return Err(error),
                Ok(()) => {}
            }
            // Without the flush, a program that ends after its last notification might not have sent it.
            return match timeout_at(deadline, bus.flush()).await {
                Ok(true) => Ok(()),
                Ok(false) | Err(_) => Err(ClientError::ConnectionLost),
            };
        }
    }

    /// Sends the message of a stream; the frames that answer it go to `incoming`.
    pub(super) async fn open(
        &self,
        outgoing: &OutgoingMessage,
        incoming: &Arc<Incoming>,
        deadline: Instant,
    ) -> Result<StreamWaiter, ClientError> {
        loop {
            let Prepared { bus, reply, nonce, authorization, expected } = self.prepare(outgoing, deadline).await?;
            let waiter = self.pending.register_stream(nonce, expected, incoming);
            match self.publish_once(&bus, outgoing, &reply, &authorization, deadline).await {
                Err(SendError::Retry) => continue,
                Err(SendError::Failed(error)) => return Err(error),
                Ok(()) => {}
            }
            if !Link::holds(&bus) {
                incoming.disconnected();
            }
            return Ok(waiter);
        }
    }

    /// Signs a message that expects an answer, once the connection is up.
    async fn prepare(&self, outgoing: &OutgoingMessage, deadline: Instant) -> Result<Prepared, ClientError> {
        let token = outgoing.tokens.current_by(deadline).await.map_err(ClientError::Token)?;
        let bus = self.link.up(true, deadline).await?;
        let nonce = Nonce::random();
        let reply = self.link.reply(nonce);
        let own_ms = self.options.clock.now_ms();
        let SignedRequest { authorization, expectation } = self.sign(outgoing, nonce, &reply, &token, own_ms, deadline);
        Ok(Prepared { bus, reply, nonce, authorization, expected: outgoing.expected(expectation, own_ms, &token) })
    }

    async fn place(&self, deadline: Instant) -> Result<tokio::sync::SemaphorePermit<'_>, ClientError> {
        match self.places.try_acquire() {
            Ok(place) => return Ok(place),
            Err(TryAcquireError::Closed) => return Err(ClientError::Closed { sent: false }),
            Err(TryAcquireError::NoPermits) => {}
        }
        match Box::pin(timeout_at(deadline, self.places.acquire())).await {
            Ok(Ok(place)) => Ok(place),
            Ok(Err(_)) => Err(ClientError::Closed { sent: false }),
            Err(_) => Err(ClientError::Busy { limit: self.options.in_flight }),
        }
    }

    fn sign(
        &self,
        outgoing: &OutgoingMessage,
        nonce: Nonce,
        reply: &str,
        token: &CachedToken,
        own_ms: u64,
        deadline: Instant,
    ) -> SignedRequest {
        let left = deadline.saturating_duration_since(Instant::now()).as_millis();
        let request = Signed {
            subject: &outgoing.subject,
            reply,
            payload: &outgoing.payload,
            token: token.as_str(),
            now_ms: outgoing.service.now_ms(own_ms),
            valid_s: self.options.valid_s,
            timeout_ms: Some(u64::try_from(left).unwrap_or(u64::MAX)),
            idempotency_key: outgoing.idempotency_key.as_deref(),
            window: outgoing.window,
            traceparent: outgoing.trace.parent(),
            capabilities: outgoing.capabilities.as_deref(),
            task_ms: outgoing.task.map(|limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)),
        };
        let signed = outgoing.service.signer.sign_with(&request, nonce, token.digest());
        if let Some(id) = &outgoing.id {
            id.set(signed.expectation.message_id());
        }
        if let Some(receipt) = &outgoing.receipt {
            receipt.sent(&signed.authorization);
        }
        signed
    }

    async fn publish_once(
        &self,
        bus: &Session,
        outgoing: &OutgoingMessage,
        reply: &str,
        authorization: &str,
        deadline: Instant,
    ) -> Result<(), SendError> {
        let mut lines = vec![("Authorization", authorization)];
        lines.extend(outgoing.trace.lines());
        let mut headers = HeaderBlock::of(&lines);
        let now = |headers: &HeaderBlock| Link::publish_now(bus, &outgoing.subject, reply, headers, &outgoing.payload);
        let mut sent = now(&headers);
        // A call must not fail because of headers that only serve tracing.
        if matches!(sent, Err(NotPublished::TooLarge { .. })) && lines.len() > 1 {
            lines.truncate(1);
            headers = HeaderBlock::of(&lines);
            sent = now(&headers);
        }
        drop(lines);
        let started = Instant::now();
        if matches!(sent, Ok(false)) {
            let waiting = Link::publish(bus, &outgoing.subject, reply, &headers, &outgoing.payload, deadline);
            sent = Box::pin(waiting).await.map(|()| true);
        }
        let size = outgoing.payload.len() + headers.len();
        sent.map(|_| ()).map_err(|reason| match reason {
            NotPublished::Disconnected => SendError::Retry,
            NotPublished::DeadlineExceeded => {
                SendError::Failed(ClientError::Disconnected { waited: started.elapsed(), cause: None })
            }
            NotPublished::TooLarge { limit } => SendError::Failed(ClientError::TooLarge { size, limit }),
        })
    }
}

impl OutgoingMessage {
    /// The pause before it is sent again, if it may be and that is worthwhile.
    pub(super) fn next_pause(
        &self,
        outcome: &Result<Answer, ClientError>,
        attempts: u32,
        deadline: Instant,
    ) -> Option<Duration> {
        let may_repeat = self.idempotent && !self.stop.as_ref().is_some_and(Stoppable::is_stopped);
        if may_repeat { next_pause(outcome, attempts, deadline) } else { None }
    }

    fn observed(&self) -> Observation {
        Observation::of_message(self.observer.as_ref(), self.service.endpoint.service().as_str(), &self.payload)
    }

    fn expected(&self, expectation: Expectation, own_ms: u64, token: &CachedToken) -> Expected {
        Expected {
            expectation,
            subject: self.subject.clone(),
            service: Arc::clone(&self.service),
            sent_s: own_ms / 1000,
            repeatable: self.idempotent,
            cancels: !self.detached,
            counter: Mutex::default(),
            receipt: self.receipt.clone(),
            tokens: Arc::clone(&self.tokens),
            renew_token_s: AtomicU64::new(token.renew_s()),
            uncontrolled: AtomicBool::new(false),
        }
    }
}

/// A call that waits for its answer. If it is dropped before that, the call is cancelled at the service.
struct Waiting<'c> {
    inner: &'c Arc<Inner>,
    waiter: Option<Waiter>,
    deadline: Instant,
}

impl Waiting<'_> {
    /// The outcome; `None` if nothing is known at the deadline.
    async fn ended(mut self, is_up: bool) -> Option<Result<Answer, ClientError>> {
        let waiter = self.waiter.as_mut()?;
        if !is_up {
            waiter.mark_lost();
        }
        let end = timeout_at(self.deadline, waiter.ended()).await;
        let waiter = self.waiter.take()?;
        match end {
            Ok(Some(end)) => Some(end),
            Ok(None) | Err(_) => waiter.overdue(),
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Some(mut waiter) = self.waiter.take().filter(Waiter::give_up) else { return };
        let (client, expected) = (Arc::clone(self.inner), Arc::clone(waiter.expected()));
        let ended = async move { drop(waiter.ended().await) };
        // It is not known which replica runs it.
        drop(self.inner.runtime.spawn(cancel(client, expected, || None, ended, self.deadline)));
    }
}

/// A signed message, and what is expected in answer to it.
struct Prepared {
    bus: Arc<Session>,
    reply: String,
    nonce: Nonce,
    authorization: String,
    expected: Expected,
}

enum SendError {
    /// It was not sent, but can be: the connection is being replaced.
    Retry,
    Failed(ClientError),
}

/// What is known about the attempts before the last one: if one may have run, that stays true.
#[derive(Debug, Default)]
pub(super) struct Earlier(Option<ClientError>);

impl Earlier {
    /// An attempt is over, and another one follows.
    pub(super) fn note(&mut self, outcome: Result<Answer, ClientError>) {
        let error = match outcome {
            Ok(Answer { responses: Ok(Responses::Single(response)), .. }) => {
                response.outcome.err().map(ClientError::Remote)
            }
            Ok(_) => None,
            Err(error) => Some(error),
        };
        self.0 = error.filter(ClientError::is_outcome_unknown).or(self.0.take());
    }

    /// The outcome of the request, if `last` is that of its last attempt.
    pub(super) fn judge(self, last: Result<Answer, ClientError>) -> Result<Answer, ClientError> {
        let Some(earlier) = self.0.map(Arc::new) else { return last };
        let last = match last {
            Ok(Answer { responses: Ok(Responses::Single(Response { outcome: Err(error), .. })), .. })
                if is_refused_by_now(&error) =>
            {
                ClientError::Remote(error)
            }
            Ok(Answer { responses, payload, .. }) => {
                let earlier = matches!(responses, Ok(Responses::Batch(_))).then_some(earlier);
                return Ok(Answer { responses, payload, earlier });
            }
            Err(error) if !error.is_outcome_unknown() => error,
            last => return last,
        };
        Err(repeated(&earlier, last))
    }
}

/// The pause before a repeatable message is sent again, if it is. A signed refusal shows that the service is there, so it is repeated until
/// the deadline, for example while a guard does not vouch for the time yet.
fn next_pause(outcome: &Result<Answer, ClientError>, attempts: u32, deadline: Instant) -> Option<Duration> {
    let pause = retry_delay(outcome)?.max(pause(attempts));
    let goes_on = attempts < MAX_ATTEMPTS || outcome.is_ok();
    (goes_on && Instant::now() + pause < deadline).then_some(pause)
}

/// Whether a repeatable message is worth sending again, and the least pause before that.
///
/// A timeout is not: no time is left. Forged and altered answers are not: waiting for the genuine one took the time.
/// Errors of the method and of the policy would be the same next time.
fn retry_delay(outcome: &Result<Answer, ClientError>) -> Option<Duration> {
    match outcome {
        Err(
            ClientError::NoResponders { .. }
            | ClientError::ConnectionLost
            | ClientError::Hint { hint: HintKind::Unauthenticated | HintKind::Overloaded },
        ) => Some(Duration::ZERO),
        Ok(Answer { responses: Ok(Responses::Single(response)), .. }) => match &response.outcome {
            Err(error) => match error.profile_code() {
                Some(code::STALE | code::QUOTA_EXCEEDED | code::OVERLOADED) => Some(retry_after(error)),
                // The call with the same idempotency key is still running. The other conflicts would be the same next time.
                Some(code::CONFLICT) => Some(retry_after(error)).filter(|pause| !pause.is_zero()),
                _ => None,
            },
            Ok(_) => None,
        },
        _ => None,
    }
}

/// How long the service wants no new message.
fn retry_after(error: &RpcError) -> Duration {
    #[derive(serde::Deserialize)]
    struct Data {
        retry_after_ms: u64,
    }
    // serde would accept an array for the struct, too.
    let data = error.data().filter(|data| data.get().starts_with('{'));
    let data = data.and_then(|data| serde_json::from_str(data.get()).ok());
    data.map_or(Duration::ZERO, |Data { retry_after_ms }| Duration::from_millis(retry_after_ms))
}

/// The pause after the `attempt`-th attempt: doubled each time up to 2 s, then cut by up to half at random, so that
/// callers who failed together do not come back together.
fn pause(attempt: u32) -> Duration {
    let longest = FIRST_PAUSE.saturating_mul(1 << attempt.min(8)).min(LAST_PAUSE);
    let random = u32::try_from(RandomState::new().build_hasher().finish() % 512).unwrap_or(0);
    longest - longest * random / 1024
}

/// How often one call is sent at most if no service answers. With the pauses in between, that takes 5 to 9 s.
const MAX_ATTEMPTS: u32 = 10;

const FIRST_PAUSE: Duration = Duration::from_millis(25);
const LAST_PAUSE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::error::ErrorKind;

    #[test]
    fn pauses_grow_to_a_bound_and_differ() {
        for attempt in 1..100 {
            let longest = FIRST_PAUSE.saturating_mul(1 << attempt.min(8)).min(LAST_PAUSE);
            let pause = pause(attempt);
            assert!(pause <= longest && pause >= longest / 2, "{attempt}: {pause:?}");
        }
        let some: std::collections::HashSet<_> = (0..20).map(|_| pause(9)).collect();
        assert!(some.len() > 1, "callers that failed together come back at different times");
    }

    /// SPEC.md §9.1, SPEC.md §14.
    #[test]
    fn only_refusals_of_a_delivery_are_worth_another() {
        let hint = |hint| Err(ClientError::Hint { hint });
        assert!(retry_delay(&hint(HintKind::Overloaded)).is_some());
        assert!(retry_delay(&hint(HintKind::Unauthenticated)).is_some());
        assert!(retry_delay(&hint(HintKind::TooLarge)).is_none());
        assert!(retry_delay(&Err(ClientError::ConnectionLost)).is_some());
        assert!(retry_delay(&Err(ClientError::Closed { sent: false })).is_none());
        assert_eq!(
            retry_delay(&error(-32013, r#","data":{"retry_after_ms":70,"scope":"x","since":1}"#)),
            Some(Duration::from_millis(70))
        );
        assert_eq!(retry_delay(&error(-32014, "")), Some(Duration::ZERO));
        assert_eq!(retry_delay(&error(-32011, "")), Some(Duration::ZERO));
        let conflict = |data: &str| retry_delay(&error(-32017, &format!(r#","data":{data}"#)));
        let running = Some(Duration::from_millis(250));
        assert_eq!(conflict(r#"{"idempotency":"running","retry_after_ms":250}"#), running);
        assert_eq!(conflict(r#"{"idempotency":"unknown"}"#), None);
        for code in [-32012, -32002, -32003, -32603, -32015, 7] {
            assert_eq!(retry_delay(&error(code, "")), None, "{code}");
        }
        assert_eq!(retry_delay(&answer(r#"{"jsonrpc":"2.0","result":1,"id":1}"#)), None);
        // An application that uses the same numbers has answered, whatever its data says.
        for code in -32018..=-32001 {
            assert_eq!(retry_delay(&own(code)), None, "{code}");
        }
    }

    /// docs/reliability.md.
    #[tokio::test(start_paused = true)]
    async fn a_service_that_says_not_yet_is_asked_until_the_deadline() {
        for refused in [error(-32011, ""), error(-32014, r#","data":{"retry_after_ms":1000}"#)] {
            let (started, mut attempts) = (Instant::now(), 1);
            while let Some(pause) = next_pause(&refused, attempts, started + Duration::from_secs(60)) {
                attempts += 1;
                sleep(pause).await;
            }
            assert!(started.elapsed() > Duration::from_secs(57) && attempts < 100, "{attempts}");
        }
        let (nobody, deadline) = (Err(ClientError::ConnectionLost), Instant::now() + Duration::from_secs(60));
        assert!(next_pause(&nobody, MAX_ATTEMPTS - 1, deadline).is_some());
        assert!(next_pause(&nobody, MAX_ATTEMPTS, deadline).is_none());
    }

    /// SPEC.md §9.2.
    #[test]
    fn what_refuses_a_repetition_says_nothing_of_an_attempt_that_may_have_run() {
        let gone = || Err(ClientError::Disconnected { waited: Duration::ZERO, cause: None });
        let after = |attempts: Vec<Result<Answer, ClientError>>, last| {
            let mut earlier = Earlier::default();
            attempts.into_iter().for_each(|outcome| earlier.note(outcome));
            earlier.judge(last)
        };
        let lost =
            || vec![Err(ClientError::ConnectionLost), error(-32017, r#","data":{"idempotency":"other_params"}"#)];
        for last in [gone(), error(-32002, ""), error(-32601, "")] {
            let repeated = after(lost(), last).unwrap_err();
            assert!(repeated.is_outcome_unknown() && repeated.kind() == ErrorKind::ConnectionLost, "{repeated}");
        }
        let repeated = after(vec![error(-32011, ""), Err(ClientError::ConnectionLost)], error(-32002, "")).unwrap_err();
        assert_eq!(repeated.remote().map(RpcError::code), Some(-32002));
        // Each entry of a batch counts on its own.
        let batch =
            r#"[{"jsonrpc":"2.0","error":{"code":-32002,"message":"m"},"id":2},{"jsonrpc":"2.0","result":1,"id":1}]"#;
        let answered = after(lost(), answer(batch)).unwrap();
        assert!(matches!(answered.earlier.as_deref(), Some(ClientError::ConnectionLost)));
        assert!(answered.whole().unwrap_err().is_outcome_unknown());
        assert!(after(Vec::new(), answer(batch)).unwrap().whole().is_ok());
        // An outcome of the method itself stands.
        for code in (-32018..=-32000).chain([-32768, -32700, -32603, -32602, -32601, -32600, -32100]) {
            assert!(after(lost(), own(code)).is_ok(), "{code}");
        }
        for last in [error(7, ""), error(-32602, ""), answer(r#"{"jsonrpc":"2.0","result":1,"id":1}"#)] {
            assert!(after(lost(), last).is_ok());
        }
        let closed = |sent| after(lost(), Err(ClientError::Closed { sent }));
        assert!(matches!(closed(true), Err(ClientError::Closed { .. })));
        assert!(matches!(closed(false), Err(ClientError::Repeated { .. })));
        assert!(matches!(after(Vec::new(), gone()), Err(ClientError::Disconnected { .. })));
        assert!(after(Vec::new(), error(-32002, "")).is_ok());
    }

    fn answer(text: &str) -> Result<Answer, ClientError> {
        let payload = Bytes::copy_from_slice(text.as_bytes());
        let responses = Responses::parse(&payload, &crate::rpc::Limits::default()).map_err(Into::into);
        Ok(Answer::new(responses, payload))
    }

    /// An application's own error.
    fn own(code: i32) -> Result<Answer, ClientError> {
        let data = r#""data":{"retry_after_ms":1,"idempotency":"running","outcome":"unknown"}"#;
        answer(&format!(
            r#"{{"jsonrpc":"2.0","error":{{"code":{code},"message":"m",{data}}},"application_error":true,"id":1}}"#
        ))
    }

    fn error(code: i32, data: &str) -> Result<Answer, ClientError> {
        answer(&format!(r#"{{"jsonrpc":"2.0","error":{{"code":{code},"message":"m"{data}}},"id":null}}"#))
    }
}
