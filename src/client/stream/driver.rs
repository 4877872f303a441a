//! Drives one stream while the application takes its time: sends the request, tells the service what was taken, asks for what is missing,
//! answers questions, and cancels what nobody takes any more.
//! Never keeps the client alive, except to cancel.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until};

use super::answers::{Answers, AskAnswer};
use crate::client::Inner;
use crate::client::answer::Answer;
use crate::client::control::{NotSent, cancel};
use crate::client::error::ClientError;
use crate::client::exchange::{Earlier, OutgoingMessage};
use crate::client::incoming::{Duty, Incoming};
use crate::client::pending::StreamWaiter;
use crate::client::stream_options::Asked;
use crate::wire::ControlOp;

pub(super) struct Driver {
    client: Weak<Inner>,
    incoming: Arc<Incoming>,
    outgoing: OutgoingMessage,
    /// Nobody takes the stream any more.
    stopped: oneshot::Receiver<Arc<Inner>>,
    on_ask: Asked,
    answers: Answers,
}

/// How one sending of the request ended.
enum Followed {
    /// Nothing is left to do.
    Done,
    /// An ordinary answer, before any frame.
    Answered(Result<Answer, ClientError>),
    /// The service may be working for nobody.
    Cancel,
}

impl Driver {
    pub(super) fn new(
        client: &Arc<Inner>,
        incoming: Arc<Incoming>,
        outgoing: OutgoingMessage,
        stopped: oneshot::Receiver<Arc<Inner>>,
        on_ask: Asked,
    ) -> Self {
        let client = Arc::downgrade(client);
        Self { client, incoming, outgoing, stopped, on_ask, answers: Answers::default() }
    }

    /// Boxed: its task would have room for it twice.
    pub(super) async fn run(mut self: Box<Self>) {
        let deadline = self.incoming.deadline();
        let (mut attempts, mut earlier) = (0, Earlier::default());
        loop {
            attempts += 1;
            let Some(opened) = self.open(deadline).await else { return };
            let waiter = match opened {
                Ok(waiter) => waiter,
                Err(error) => return self.incoming.finish(earlier.judge(Err(error)), true),
            };
            match self.follow(&waiter).await {
                Followed::Done => return,
                Followed::Cancel => return self.cancel(&waiter).await,
                Followed::Answered(outcome) => {
                    let again = self.outgoing.next_pause(&outcome, attempts, deadline);
                    let may_run = may_run(&outcome);
                    match again {
                        Some(pause) => {
                            // With a key, the service gives the next attempt the outcome of this one.
                            if may_run && self.outgoing.idempotency_key.is_none() {
                                self.abandon(waiter);
                            }
                            earlier.note(outcome);
                            sleep(pause).await;
                        }
                        None => {
                            self.incoming.finish(earlier.judge(outcome), !may_run);
                            if may_run {
                                self.cancel(&waiter).await;
                            }
                            return;
                        }
                    }
                }
            }
        }
    }

    /// Sends the request. `None` if nobody wants it any more.
    async fn open(&mut self, deadline: Instant) -> Option<Result<StreamWaiter, ClientError>> {
        let client = self.client.upgrade()?;
        let opening = client.open(&self.outgoing, &self.incoming, deadline);
        tokio::select! {
            biased;
            // Nothing was sent: the last step of opening hands the message to the connection.
            _ = &mut self.stopped => None,
            opened = opening => Some(opened),
        }
    }

    /// Does what has to be done, until the stream is over.
    async fn follow(&mut self, waiter: &StreamWaiter) -> Followed {
        loop {
            while let Some(ask) = self.incoming.next_ask() {
                self.answers.begin(ask, Arc::clone(&self.on_ask));
            }
            self.send_answers_again(waiter).await;
            let until = match self.incoming.duty(Instant::now()) {
                Duty::Over { known: true } => {
                    // Otherwise the service would keep the last frames for us. If this is lost, it does so for 10 s.
                    if let Some(ack) = self.incoming.last() {
                        let op = ControlOp::Ack { ack, window: None, timeout_ms: None };
                        let _ = self.control(waiter, &op, b"").await;
                    }
                    return Followed::Done;
                }
                Duty::Over { known: false } => return Followed::Cancel,
                Duty::Answered(answer) => return Followed::Answered(answer),
                Duty::Again(ack) => {
                    // If this fails, they are asked for again later. Where frames were lost, answers may be, too.
                    self.answers.suspect(Instant::now());
                    let _ = self.control(waiter, &ControlOp::Again { ack }, b"").await;
                    continue;
                }
                Duty::Ack(ack, lease) => {
                    let timeout_ms = lease.map(|lease| u64::try_from(lease.as_millis()).unwrap_or(u64::MAX));
                    let sent = self.control(waiter, &ControlOp::Ack { ack, window: None, timeout_ms }, b"").await;
                    if sent.is_ok() {
                        self.incoming.told(ack, lease, Instant::now());
                        continue;
                    }
                    Instant::now() + TRY_AGAIN
                }
                Duty::Wait(until) => {
                    // A quiet stream outlives its token by showing the next one. Signs of life wake us.
                    if self.shows_token(waiter).await {
                        continue;
                    }
                    until
                }
            };
            let until = self.answers.next_due().map_or(until, |due| due.min(until));
            tokio::select! {
                () = self.incoming.changed() => {}
                () = sleep_until(until) => {}
                Some(answer) = self.answers.made() => {
                    self.incoming.answered_ask();
                    self.send_answer(waiter, answer).await;
                }
            }
        }
    }

    /// Shows the service a newer token, if there is one.
    async fn shows_token(&mut self, waiter: &StreamWaiter) -> bool {
        let (Some(client), Some(ack)) = (self.client.upgrade(), self.incoming.taken()) else { return false };
        if !client.has_newer_token(&waiter.expected).await {
            return false;
        }
        let shown = self.control(waiter, &ControlOp::Ack { ack, window: None, timeout_ms: None }, b"").await.is_ok();
        if shown {
            self.incoming.told(ack, None, Instant::now());
        }
        shown
    }

    async fn control(&mut self, waiter: &StreamWaiter, op: &ControlOp, payload: &[u8]) -> Result<(), NotSent> {
        let client = self.client.upgrade().ok_or(NotSent::Now)?;
        // Boxed: each call site would enlarge the stream's future, and a stream that is over soon controls nothing.
        Box::pin(client.control(&waiter.expected, self.incoming.replica().as_deref(), op, payload)).await
    }

    async fn send_answer(&mut self, waiter: &StreamWaiter, answer: AskAnswer) {
        let (answer, is_sent) = Box::pin(self.try_answer(waiter, answer)).await;
        self.answers.keep(answer, is_sent, self.incoming.last(), Instant::now());
    }

    /// Sends again what the service may not have received. Only the end shows that it has.
    async fn send_answers_again(&mut self, waiter: &StreamWaiter) {
        // As of now: sending may take longer than the time until the same answer is due again.
        let now = Instant::now();
        while let Some(answer) = self.answers.due(self.incoming.last(), now) {
            let (answer, is_sent) = Box::pin(self.try_answer(waiter, answer)).await;
            if !is_sent {
                return;
            }
            self.answers.resent(&answer, Instant::now());
        }
    }

    /// The answer that was sent, or is to be sent, and whether it was sent.
    async fn try_answer(&mut self, waiter: &StreamWaiter, mut answer: AskAnswer) -> (AskAnswer, bool) {
        let op = ControlOp::Answer { ask: answer.ask.clone() };
        let mut sent = self.control(waiter, &op, &answer.payload).await;
        if sent == Err(NotSent::TooLarge) {
            answer = answer.too_large();
            sent = self.control(waiter, &op, &answer.payload).await;
        }
        (answer, sent.is_ok())
    }

    /// Makes the service end one attempt of the request, while another one takes its place.
    fn abandon(&self, waiter: StreamWaiter) {
        let Some(client) = self.client.upgrade() else { return };
        let (incoming, deadline) = (waiter.abandon(), self.incoming.deadline());
        let runtime = client.runtime.clone();
        drop(runtime.spawn(async move {
            let expected = Arc::clone(&waiter.expected);
            cancel(client, expected, || None, incoming.ended(), deadline).await;
        }));
    }

    /// Makes the service end what nobody takes any more.
    async fn cancel(&mut self, waiter: &StreamWaiter) {
        // The holder of the stream also holds the client, or has just lent it to us.
        let lent = self.stopped.try_recv().ok();
        let Some(client) = lent.or_else(|| self.client.upgrade()) else { return };
        let incoming = &self.incoming;
        let (expected, deadline) = (Arc::clone(&waiter.expected), incoming.deadline());
        Box::pin(cancel(client, expected, || incoming.replica(), incoming.ended(), deadline)).await;
    }
}

/// Whether the service may still be working although the wait is over: it has not signed that it is not.
fn may_run(outcome: &Result<Answer, ClientError>) -> bool {
    // `Forbidden` comes from the broker, over our own connection: the message went nowhere. `Clock` comes with a signed refusal.
    !matches!(outcome, Ok(_) | Err(ClientError::Forbidden { .. } | ClientError::Clock { .. }))
}

/// What could not be sent is tried again after this, unless something happens earlier.
const TRY_AGAIN: Duration = Duration::from_millis(250);
