//! One message out and its answer in: sign, publish, wait, and perhaps again.
//! Never signs before the connection is up, and never repeats what was not marked as repeatable.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep, timeout_at};

use super::Inner;
use super::error::{ClientError, HintKind};
use super::link::{Link, Unsent};
use super::peer::Peer;
use super::pending::{Answer, Expected};
use super::token::{Held, TokenFault};
use crate::nats::Session;
use crate::rpc::{Responses, RpcError, code};
use crate::wire::{HeaderBlock, Signed, SignedRequest};

/// A message that is ready to be signed.
#[derive(Debug)]
pub(super) struct Letter {
    pub(super) peer: Arc<Peer>,
    pub(super) subject: String,
    pub(super) payload: Bytes,
    pub(super) deadline: Duration,
    /// Whether it may be sent again with the same effect.
    pub(super) idempotent: bool,
    pub(super) idempotency_key: Option<String>,
}

impl Inner {
    /// Sends a message and waits for its answer, as often as it may be sent.
    ///
    /// Cancel safety: a dropped future leaves nothing behind; the message may have been sent.
    pub(super) async fn ask(&self, letter: &Letter) -> Result<Answer, ClientError> {
        let started = Instant::now();
        let mut attempts = 0;
        let outcome = self.ask_until(letter, started + letter.deadline, &mut attempts).await;
        // Neither parameters nor results, and of errors only their kind.
        let error = outcome.as_ref().err().map(ClientError::kind);
        let audience = letter.peer.endpoint.audience();
        let ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        tracing::debug!(target: "sealwire::client", %audience, attempts, ms, ?error, "asked");
        outcome
    }

    async fn ask_until(&self, letter: &Letter, deadline: Instant, attempts: &mut u32) -> Result<Answer, ClientError> {
        loop {
            *attempts += 1;
            let outcome = self.ask_once(letter, deadline).await;
            if matches!(outcome, Err(ClientError::Hint { hint: HintKind::Unauthenticated })) {
                self.tokens.suspect();
            }
            let again = if letter.idempotent { again(&outcome) } else { None };
            let Some(pause) = again.map(|least| least.max(pause(*attempts))) else { return outcome };
            if *attempts >= MAX_ATTEMPTS || Instant::now() + pause >= deadline {
                return outcome;
            }
            sleep(pause).await;
        }
    }

    async fn ask_once(&self, letter: &Letter, deadline: Instant) -> Result<Answer, ClientError> {
        let _place = self.place(deadline).await?;
        loop {
            let token = self.token(deadline).await?;
            let bus = self.link.up(true, deadline).await?;
            let (reply, reply_token) = self.link.reply();
            let own_ms = self.options.clock.now_ms();
            let SignedRequest { authorization, expectation } = self.sign(letter, &reply, &token, own_ms, deadline);
            // Waited for before it is sent, else the answer could be quicker.
            let mut waiter = self.pending.register(
                reply_token,
                Expected {
                    expectation,
                    subject: letter.subject.clone(),
                    peer: Arc::clone(&letter.peer),
                    sent_s: own_ms / 1000,
                    repeatable: letter.idempotent,
                },
            );
            match self.publish(&bus, letter, &reply, &authorization, deadline).await {
                Err(Sending::Again) => continue,
                Err(Sending::Failed(error)) => return Err(error),
                Ok(()) => {}
            }
            if !Link::holds(&bus) {
                waiter.mark_lost();
            }
            return match timeout_at(deadline, waiter.ended()).await {
                Ok(Some(end)) => end,
                Ok(None) | Err(_) => waiter.overdue().unwrap_or_else(|| {
                    let service = letter.peer.endpoint.service().to_string();
                    Err(ClientError::Timeout { service, after: letter.deadline })
                }),
            };
        }
    }

    /// Sends a message that wants no answer. Returns when the broker has it. With `reply`, it names a reply
    /// subject nevertheless, on which nobody waits: a batch needs one even if it has no calls.
    ///
    /// Cancel safety: a dropped future leaves nothing behind; the message may have been sent.
    pub(super) async fn tell(&self, letter: &Letter, reply: bool) -> Result<(), ClientError> {
        let deadline = Instant::now() + letter.deadline;
        let _place = self.place(deadline).await?;
        loop {
            let token = self.token(deadline).await?;
            let bus = self.link.up(false, deadline).await?;
            let reply = if reply { self.link.reply().0 } else { String::new() };
            let signed = self.sign(letter, &reply, &token, self.options.clock.now_ms(), deadline);
            match self.publish(&bus, letter, &reply, &signed.authorization, deadline).await {
                Err(Sending::Again) => continue,
                Err(Sending::Failed(error)) => return Err(error),
                Ok(()) => {}
            }
            // Else a program that ends after its last notification would not have sent it.
            return match timeout_at(deadline, bus.flush()).await {
                Ok(true) => Ok(()),
                Ok(false) | Err(_) => Err(ClientError::ConnectionLost),
            };
        }
    }

    async fn place(&self, deadline: Instant) -> Result<tokio::sync::SemaphorePermit<'_>, ClientError> {
        match timeout_at(deadline, self.places.acquire()).await {
            Ok(Ok(place)) => Ok(place),
            Ok(Err(_)) => Err(ClientError::Closed),
            Err(_) => Err(ClientError::Busy { limit: self.options.in_flight }),
        }
    }

    async fn token(&self, deadline: Instant) -> Result<Arc<Held>, ClientError> {
        let token = timeout_at(deadline, self.tokens.current()).await;
        token.unwrap_or_else(|_| Err(Arc::new(TokenFault::Slow))).map_err(ClientError::Token)
    }

    fn sign(&self, letter: &Letter, reply: &str, token: &Held, own_ms: u64, deadline: Instant) -> SignedRequest {
        let left = deadline.saturating_duration_since(Instant::now()).as_millis();
        letter.peer.signer.sign(&Signed {
            subject: &letter.subject,
            reply,
            payload: &letter.payload,
            token: token.as_str(),
            now_ms: letter.peer.now_ms(own_ms),
            valid_s: self.options.valid_s,
            timeout_ms: Some(u64::try_from(left).unwrap_or(u64::MAX)),
            idempotency_key: letter.idempotency_key.as_deref(),
        })
    }

    async fn publish(
        &self,
        bus: &Session,
        letter: &Letter,
        reply: &str,
        authorization: &str,
        deadline: Instant,
    ) -> Result<(), Sending> {
        let headers = HeaderBlock::of(&[("Authorization", authorization)]);
        let size = letter.payload.len() + headers.len();
        let started = Instant::now();
        let sent = Link::publish(bus, &letter.subject, reply, &headers, &letter.payload, deadline).await;
        sent.map_err(|unsent| match unsent {
            Unsent::Gone => Sending::Again,
            Unsent::Late => Sending::Failed(ClientError::Disconnected { waited: started.elapsed(), cause: None }),
            Unsent::TooLarge { limit } => Sending::Failed(ClientError::TooLarge { size, limit }),
        })
    }
}

enum Sending {
    /// It was not sent, and can be: the connection is being replaced.
    Again,
    Failed(ClientError),
}

/// Whether a repeatable message is worth sending again, and after which pause at least.
///
/// A timeout is not: there is no time left. Forged and altered answers are not: the wait for the genuine one took the
/// time. Errors of the method and of the policy will be the same next time.
fn again(outcome: &Result<Answer, ClientError>) -> Option<Duration> {
    match outcome {
        Err(
            ClientError::NoResponders { .. }
            | ClientError::ConnectionLost
            | ClientError::Hint { hint: HintKind::Unauthenticated | HintKind::Overloaded },
        ) => Some(Duration::ZERO),
        Ok(Answer { responses: Ok(Responses::Single(response)), .. }) => match &response.outcome {
            Err(error) if matches!(error.code(), code::STALE | code::QUOTA_EXCEEDED | code::OVERLOADED) => {
                Some(retry_after(error))
            }
            _ => None,
        },
        _ => None,
    }
}

/// "Not before then is a new message welcome."
fn retry_after(error: &RpcError) -> Duration {
    #[derive(serde::Deserialize)]
    struct Data {
        retry_after_ms: u64,
    }
    // serde would take an array for the struct, too.
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

/// The most times that one call is sent. With the pauses between, about 9 s: longer than a service refuses messages after
/// its start (5 s unless configured).
const MAX_ATTEMPTS: u32 = 10;

const FIRST_PAUSE: Duration = Duration::from_millis(25);
const LAST_PAUSE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn only_refusals_of_a_delivery_are_worth_another() {
        let hint = |hint| Err(ClientError::Hint { hint });
        assert!(again(&hint(HintKind::Overloaded)).is_some());
        assert!(again(&hint(HintKind::Unauthenticated)).is_some());
        assert!(again(&hint(HintKind::TooLarge)).is_none());
        assert!(again(&Err(ClientError::ConnectionLost)).is_some());
        assert!(again(&Err(ClientError::Closed)).is_none());
        let answer = |text: &str| {
            let payload = Bytes::copy_from_slice(text.as_bytes());
            let responses = Responses::parse(&payload, &crate::rpc::Limits::default()).map_err(Into::into);
            Ok(Answer { responses, payload })
        };
        let error = |code: i32, data: &str| {
            answer(&format!(r#"{{"jsonrpc":"2.0","error":{{"code":{code},"message":"m"{data}}},"id":null}}"#))
        };
        assert_eq!(
            again(&error(-32013, r#","data":{"retry_after_ms":70,"scope":"x"}"#)),
            Some(Duration::from_millis(70))
        );
        assert_eq!(again(&error(-32014, "")), Some(Duration::ZERO));
        assert_eq!(again(&error(-32011, "")), Some(Duration::ZERO));
        for code in [-32012, -32002, -32003, -32603, -32015, 7] {
            assert_eq!(again(&error(code, "")), None, "{code}");
        }
        assert_eq!(again(&answer(r#"{"jsonrpc":"2.0","result":1,"id":1}"#)), None);
    }
}
