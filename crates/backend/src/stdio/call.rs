//! One call to a process: what the process sends before the answer goes to the caller, and the answer ends the call.
//! Never leaves a process at work on a call that nobody waits for without telling it.

use sealwire::RpcError;
use sealwire::errors::AskError;
use sealwire::internal::rpc::{Id, Outcome};
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::event::{Event, Events, NOT_ASKED};
use super::session::{Session, cancel};
use crate::backend::Call;

/// How many parts, and about how many bytes of them, are sent at a time: as many as a frame holds.
const TOGETHER: (usize, usize) = (50, 32 * 1024);

/// A request as the process reads it.
#[derive(Serialize)]
struct Line<'a> {
    jsonrpc: &'static str,
    method: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    params: Option<&'a RawValue>,
    id: &'a Id,
    #[serde(skip_serializing_if = "Option::is_none")]
    caller: Option<Caller<'a>>,
}

/// Who calls.
#[derive(Serialize)]
struct Caller<'a> {
    agent: &'a str,
    subject: &'a str,
}

/// Tells the process, when dropped, that nobody waits any more, unless the call was answered.
struct AbandonGuard<'a> {
    session: &'a Session,
    id: Id,
    /// The backend's deadline for the call.
    until: Instant,
    /// Whether the process has the request, or is about to read it.
    is_sent: bool,
}

impl Drop for AbandonGuard<'_> {
    fn drop(&mut self) {
        if self.session.abandon(&self.id, self.is_sent, Instant::now() >= self.until) {
            self.session.offer(cancel(&self.id));
        }
    }
}

impl Session {
    /// Makes a call. Dropping the future gives it up.
    pub(super) async fn call(&self, call: Call) -> Outcome {
        let gone = || RpcError::dependency("the process has ended");
        let (id, mut events, mut outcome) = self.begin(&call).ok_or_else(gone)?;
        let mut guard = AbandonGuard { session: self, id, until: call.until, is_sent: false };
        let agent = &call.ctx.caller().agent;
        let line = Line {
            jsonrpc: "2.0",
            method: &call.tool.name,
            params: call.params.as_deref(),
            id: &guard.id,
            caller: self.send_caller.then(|| Caller { agent: agent.as_str(), subject: &call.ctx.caller().subject }),
        };
        self.write(serde_json::to_vec(&line).map_err(RpcError::internal)?).await;
        guard.is_sent = true;
        loop {
            tokio::select! {
                biased;
                Some(event) = events.next() => self.forward(&call, &mut events, event).await?,
                ended = &mut outcome => {
                    // Everything that came before the answer goes first.
                    while let Some(event) = events.next_now() {
                        self.forward(&call, &mut events, event).await?;
                    }
                    return ended.unwrap_or_else(|_| Err(gone()));
                }
            }
        }
    }

    async fn forward(&self, call: &Call, events: &mut Events, event: Event) -> Result<(), RpcError> {
        match event {
            Event::Part(part) => return self.parts(call, events, part).await,
            Event::Progress { done, total, message } => call.ctx.progress(done, total, message.as_deref()),
            Event::Note { method, params } => call.ctx.notify(&method, &params).await?,
            Event::Ask { question, method, .. } if !self.questions.may_be(&method) => {
                tracing::warn!(target: "sealwire::backend", backend = self.name, method, "`may_ask` does not allow this question");
                question.answer(Err(RpcError::application(NOT_ASKED, "`may_ask` does not allow this question"))).await;
            }
            Event::Ask { question, method, params } => {
                let params = RawValue::from_string(params).map_err(RpcError::internal)?;
                let answer = call.ctx.ask::<Box<RawValue>>(&method, &params).await;
                let outcome = answer.map_err(|error| match error {
                    AskError::Refused(error) => error,
                    error => RpcError::application(NOT_ASKED, error.to_string()),
                });
                question.answer(outcome).await;
            }
        }
        Ok(())
    }

    /// Sends a part, and those that wait behind it in the same frame as far as they fit: fewer frames have to be signed and read.
    async fn parts(&self, call: &Call, events: &mut Events, first: Box<RawValue>) -> Result<(), RpcError> {
        let (mut parts, mut bytes, mut behind) = (vec![first], 0, None);
        while parts.len() < TOGETHER.0
            && bytes < TOGETHER.1
            && let Some(event) = events.next_now()
        {
            match event {
                Event::Part(part) => {
                    bytes += part.get().len();
                    parts.push(part);
                }
                event => {
                    behind = Some(event);
                    break;
                }
            }
        }
        call.sink.send_all(parts).await?;
        match behind {
            // Not a part, so this does not come back here.
            Some(event) => Box::pin(self.forward(call, events, event)).await,
            None => Ok(()),
        }
    }
}
