//! Runs the call of a task: everything that comes from the service, questions included, and its end, whatever causes it.
//! Never continues for a caller that is no longer allowed, nor for one that left before there was a task.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::StreamExt as _;
use sealwire::errors::code;
use sealwire::internal::client::MessageId;
use sealwire::internal::rpc::Request;
use sealwire::{CallStream, ClientError, RpcError};
use sealwire_gateway::dialect::{Admitted, Hold, Refusal, is_task_only};
use sealwire_gateway::http::Expose;
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot};

use crate::fault::{self, ToA2a as _, translated};
use crate::forms::State;
use crate::task::{Task, TaskFull};
use crate::tasks::Tasks;

/// A running call, and its task.
pub(crate) struct Runner {
    pub(crate) task: Arc<Task>,
    pub(crate) tasks: Arc<Tasks>,
    pub(crate) call: Option<CallStream<Box<RawValue>>>,
    pub(crate) notes: mpsc::UnboundedReceiver<Request>,
    pub(crate) questions: mpsc::Receiver<Question>,
    /// Completes when the client has left, which ends a call that is not a task yet.
    pub(crate) client_left: oneshot::Receiver<()>,
    /// Completes when the call has been without a broker for too long.
    pub(crate) gone: Pin<Box<dyn Future<Output = bool> + Send>>,
    /// Whether its caller may still receive it.
    pub(crate) hold: Hold,
    pub(crate) admitted: Admitted,
    pub(crate) message_id: MessageId,
}

/// A question of the method, and where its answer goes.
pub(crate) struct Question {
    request: Request,
    reply: oneshot::Sender<Box<RawValue>>,
}

/// Passes a method's questions on to its runner.
#[derive(Clone)]
pub(crate) struct QuestionSender(mpsc::Sender<Question>);

impl QuestionSender {
    pub(crate) fn new() -> (Self, mpsc::Receiver<Question>) {
        let (ask, questions) = mpsc::channel(1);
        (Self(ask), questions)
    }

    pub(crate) async fn put(self, request: Request) -> Result<Box<RawValue>, RpcError> {
        let unanswered = || RpcError::application(NOT_ANSWERED, "the caller has not answered");
        let (reply, replied) = oneshot::channel();
        self.0.send(Question { request, reply }).await.map_err(|_| unanswered())?;
        replied.await.map_err(|_| unanswered())
    }
}

/// The error code for a question without an answer.
const NOT_ANSWERED: i32 = 1;

impl Runner {
    /// Makes the task known to clients.
    pub(crate) fn shows(&self) {
        self.tasks.show(&self.task);
    }

    pub(crate) async fn run(mut self) {
        let task = Arc::clone(&self.task);
        let mut cancelling: Option<Pin<Box<dyn Future<Output = ()> + Send>>> = None;
        while let Some(call) = self.call.as_mut() {
            let kept = tokio::select! {
                biased;
                // The call may still end in another way before the service cancels it.
                () = task.is_cancelled(), if cancelling.is_none() => {
                    cancelling = Some(Box::pin(call.cancelling()));
                    Ok(())
                }
                _ = &mut self.client_left, if !task.is_shown() => {
                    // Dropping the call cancels it.
                    return;
                }
                loss = self.hold.lost() => {
                    self.end(State::Failed, Err(Refusal::of_loss(loss).to_a2a()));
                    Ok(())
                }
                Some(note) = self.notes.recv() => self.note(&note),
                Some(question) = self.questions.recv(), if !task.is_asking() => {
                    self.shows();
                    task.ask(&question.request, question.reply)
                }
                part = call.next() => self.part(part).await,
                () = completed(&mut cancelling) => {
                    let message = "the service was told to cancel, and has not confirmed it";
                    self.end(State::Failed, Err(Refusal::unknown(message).to_a2a()));
                    Ok(())
                }
                // Unknown even if `gone` says that it was not sent: the task that sends may just have done so.
                _ = &mut self.gone => {
                    self.end(State::Failed, Err(Refusal::lost().to_a2a()));
                    Ok(())
                }
            };
            if let Err(TaskFull) = kept {
                let message = "the task has sent more than 1 MiB, and was cancelled";
                self.end(State::Failed, Err(Refusal::unknown(message).to_a2a()));
            }
        }
    }

    fn note(&self, note: &Request) -> Result<(), TaskFull> {
        self.shows();
        self.task.note(note)
    }

    async fn part(&mut self, part: Option<Result<Box<RawValue>, ClientError>>) -> Result<(), TaskFull> {
        // They came before the part.
        while let Ok(note) = self.notes.try_recv() {
            self.note(&note)?;
        }
        let outcome = match part {
            Some(Ok(part)) => {
                self.shows();
                return self.task.part(part);
            }
            Some(Err(error)) => Err(error),
            None => match self.call.take() {
                Some(call) => call.finish::<Box<RawValue>>().await,
                None => Err(ClientError::Ended),
            },
        };
        // Notifications come with the end, too.
        while let Ok(note) = self.notes.try_recv() {
            self.note(&note)?;
        }
        if outcome.as_ref().err().is_some_and(is_task_only) {
            self.task.refuse_as_call();
        }
        let refused = outcome.as_ref().err().and_then(ClientError::remote).and_then(RpcError::profile_code);
        // The token that the gateway sent for the caller ended with the caller's own.
        let has_ended = refused == Some(code::UNAUTHENTICATED) && self.admitted.principal().is_expired();
        let (state, mut outcome) = classify(self.admitted.expose(), outcome, self.task.events() > 0);
        if has_ended {
            outcome = Err(Refusal::ended().to_a2a());
        }
        self.end(state, outcome);
        Ok(())
    }

    fn end(&mut self, state: State, outcome: Result<Box<RawValue>, Refusal>) {
        self.call = None;
        self.task.end(state, outcome);
        self.tasks.tidy();
    }
}

/// The final state of a call, according to the service. `has_told`: the call had sent something before.
pub(crate) fn classify(
    expose: &Expose,
    outcome: Result<Box<RawValue>, ClientError>,
    has_told: bool,
) -> (State, Result<Box<RawValue>, Refusal>) {
    let error = match outcome {
        Ok(result) => return (State::Completed, Ok(result)),
        Err(error) => error,
    };
    if error.remote().and_then(RpcError::profile_code) == Some(code::CANCELLED) {
        return (State::Canceled, Err(fault::canceled()));
    }
    let refusal = translated(expose, &error);
    let is_denied = error.remote().and_then(RpcError::profile_code) == Some(code::PERMISSION_DENIED);
    // A call that has begun can no longer be rejected.
    let is_rejected = is_denied && !error.is_outcome_unknown() && !has_told;
    (if is_rejected { State::Rejected } else { State::Failed }, Err(refusal))
}

/// Waits for the future, if there is one.
async fn completed(what: &mut Option<Pin<Box<dyn Future<Output = ()> + Send>>>) {
    match what {
        Some(what) => what.await,
        None => std::future::pending().await,
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        // The gateway stops, or its client has left.
        self.task.end(State::Failed, Err(Refusal::unknown("the gateway has given up the call").to_a2a()));
        sealwire_gateway::log_call!(
            self.admitted,
            self.message_id,
            is_task = self.task.is_shown(),
            state = ?self.task.state().0,
            "call of A2A"
        );
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use sealwire::internal::rpc::{Limits, Responses};

    use super::*;

    #[test]
    fn a_call_has_come_to_what_its_service_says_whoever_wanted_it_cancelled() {
        let expose: Expose = serde_json::from_str(r#"{"service":"demo"}"#).unwrap();
        let remote = |code: i32| {
            let text = format!(r#"{{"jsonrpc":"2.0","id":1,"error":{{"code":{code},"message":"m"}}}}"#);
            match Responses::parse(text.as_bytes(), &Limits::default()).unwrap() {
                Responses::Single(response) => Err(ClientError::Remote(response.outcome.unwrap_err())),
                Responses::Batch(_) => unreachable!("one response"),
            }
        };
        for (outcome, has_told, wanted) in [
            (Ok(RawValue::NULL.to_owned()), true, State::Completed),
            (remote(code::CANCELLED), true, State::Canceled),
            (remote(code::PERMISSION_DENIED), false, State::Rejected),
            (remote(code::PERMISSION_DENIED), true, State::Failed),
            (remote(code::TIMEOUT), true, State::Failed),
            (Err(ClientError::Cancelled { sent: true }), true, State::Failed),
            (Err(ClientError::Ended), true, State::Failed),
        ] {
            let (state, outcome) = classify(&expose, outcome, has_told);
            assert_eq!((state, outcome.is_ok()), (wanted, wanted == State::Completed));
        }
    }
}
