//! One task: what its call has sent so far, and those who wait for more.
//! Never continues after its end, and never ends twice.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use sealwire::internal::rpc::Request;
use sealwire_gateway::dialect::{Refusal, unlike_any};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use time::OffsetDateTime;
use tokio::sync::{oneshot, watch};

use crate::fault::ToA2a as _;
use crate::forms::{Artifact, ArtifactUpdate, Message, Part, State, Status, StatusUpdate, TaskView, chosen, error_of};
use crate::raw::raw;

/// The largest result, and the most kept of a task, in bytes.
pub(crate) const RESULT: usize = 1 << 20;

/// A call, which becomes a task as soon as there is something to send before its end.
pub(crate) struct Task {
    id: String,
    context: String,
    /// The caller that it belongs to; nobody else can see it.
    owner: Arc<str>,
    service: String,
    inner: Mutex<Inner>,
    changed: watch::Sender<()>,
    cancelled: watch::Sender<bool>,
}

struct Inner {
    /// Whether clients have been told that there is a task.
    is_shown: bool,
    /// The outcome of the call, if it ended before it became a task.
    outcome: Option<Result<Box<RawValue>, Refusal>>,
    /// Whether the call was refused because its method is nothing but a task at its service.
    is_task_only: bool,
    status: Status,
    /// The error, in machine-readable form.
    error: Option<Arc<RawValue>>,
    events: Vec<Event>,
    /// The size of everything kept, in bytes.
    bytes: usize,
    progress: usize,
    question: Option<oneshot::Sender<Box<RawValue>>>,
    /// The ids of the messages that answered questions. They count towards `bytes`.
    answered: Vec<String>,
    ended: Option<Instant>,
}

/// Something that clients are sent, in order.
#[derive(Clone)]
enum Event {
    /// A part of the result.
    Part(Box<RawValue>),
    /// The whole result, in place of the parts.
    Whole(Box<RawValue>),
    Status(Status, Option<Arc<RawValue>>),
}

/// The most progress notices of one task; further ones are left out.
const PROGRESS: usize = 256;

/// The task has sent more than is kept.
pub(crate) struct TaskFull;

impl Task {
    pub(crate) fn new(owner: &str, service: &str, context: Option<String>) -> Result<Arc<Self>, Refusal> {
        let name = || unlike_any().map_err(|_| Refusal::unavailable("the crypto library failed").to_a2a());
        let inner = Inner {
            is_shown: false,
            outcome: None,
            is_task_only: false,
            status: Status::now(State::Submitted, None),
            error: None,
            events: Vec::new(),
            bytes: 0,
            progress: 0,
            question: None,
            answered: Vec::new(),
            ended: None,
        };
        let context = context.map_or_else(name, Ok)?;
        Ok(Arc::new(Self {
            id: name()?,
            context,
            owner: owner.into(),
            service: service.to_owned(),
            inner: Mutex::new(inner),
            changed: watch::Sender::new(()),
            cancelled: watch::Sender::new(false),
        }))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn context(&self) -> &str {
        &self.context
    }

    pub(crate) fn owner(&self) -> &Arc<str> {
        &self.owner
    }

    pub(crate) fn is_of(&self, owner: &str, service: &str) -> bool {
        *self.owner == *owner && self.service == service
    }

    /// The state, and since when.
    pub(crate) fn state(&self) -> (State, OffsetDateTime) {
        let inner = self.inner();
        (inner.status.state, inner.status.timestamp)
    }

    pub(crate) fn is_shown(&self) -> bool {
        self.inner().is_shown
    }

    pub(crate) fn is_over(&self) -> bool {
        self.inner().ended.is_some()
    }

    pub(crate) fn is_completed(&self) -> bool {
        self.inner().status.state == State::Completed
    }

    /// When it ended, and its size in bytes.
    pub(crate) fn ended(&self) -> Option<(Instant, usize)> {
        let inner = self.inner();
        inner.ended.map(|ended| (ended, inner.bytes))
    }

    /// Makes the call a task, because there is something to send before its end. Returns whether it was not a task before.
    pub(crate) fn show(&self) -> bool {
        let mut inner = self.inner();
        let is_new = !std::mem::replace(&mut inner.is_shown, true);
        if is_new {
            inner.status = Status::now(State::Working, None);
        }
        drop(inner);
        self.changed.send_replace(());
        is_new
    }

    fn tell(&self, mut inner: MutexGuard<'_, Inner>, state: State, message: Option<Box<RawValue>>) {
        inner.status = Status::now(state, message);
        let event = Event::Status(inner.status.clone(), inner.error.clone());
        inner.events.push(event);
        drop(inner);
        self.changed.send_replace(());
    }

    /// A part of the result.
    pub(crate) fn part(&self, part: Box<RawValue>) -> Result<(), TaskFull> {
        let mut inner = self.inner();
        inner.bytes += part.get().len() + OF_EVENT;
        if inner.bytes > RESULT {
            return Err(TaskFull);
        }
        inner.events.push(Event::Part(part));
        drop(inner);
        self.changed.send_replace(());
        Ok(())
    }

    /// Adds a notification of the method: progress, or any other.
    pub(crate) fn note(&self, note: &Request) -> Result<(), TaskFull> {
        #[derive(Deserialize)]
        struct Progress {
            message: Option<String>,
        }
        let params = note.params.as_ref().map(|params| params.raw());
        let mut inner = self.inner();
        let mut parts = Vec::new();
        let said;
        if note.method == "rpc.progress" {
            inner.progress += 1;
            if inner.progress > PROGRESS {
                return Ok(());
            }
            let progress = params.and_then(|params| serde_json::from_str::<Progress>(params.get()).ok());
            parts.extend(progress.and_then(|progress| progress.message).map(|text| Part::Text { text }));
            parts.extend(params.map(|data| Part::Data { data, media_type: "application/json" }));
        } else {
            said = note_of(note);
            parts.push(Part::Data { data: &said, media_type: "application/json" });
        }
        let message = (!parts.is_empty()).then(|| self.message(parts));
        inner.bytes += message.as_ref().map_or(0, |message| message.get().len()) + OF_EVENT;
        if inner.bytes > RESULT {
            return Err(TaskFull);
        }
        self.tell(inner, State::Working, message);
        Ok(())
    }

    /// Adds a question of the method; `reply` takes the answer.
    pub(crate) fn ask(&self, question: &Request, reply: oneshot::Sender<Box<RawValue>>) -> Result<(), TaskFull> {
        #[derive(Deserialize)]
        struct Asked {
            message: Option<String>,
        }
        let data = note_of(question);
        let asked = question.params.as_ref().and_then(|params| serde_json::from_str::<Asked>(params.raw().get()).ok());
        let text = asked.and_then(|asked| asked.message).unwrap_or_else(|| question.method.clone());
        let parts = vec![Part::Text { text }, Part::Data { data: &data, media_type: "application/json" }];
        let message = self.message(parts);
        let mut inner = self.inner();
        inner.bytes += message.get().len() + OF_EVENT;
        if inner.bytes > RESULT {
            return Err(TaskFull);
        }
        inner.question = Some(reply);
        self.tell(inner, State::InputRequired, Some(message));
        Ok(())
    }

    pub(crate) fn is_asking(&self) -> bool {
        self.inner().question.is_some()
    }

    /// Answers the open question; `false` if there is none. A message that has answered before changes nothing, since another question
    /// may be open by now.
    pub(crate) fn answer(&self, message_id: &str, answer: Box<RawValue>) -> bool {
        let mut inner = self.inner();
        if inner.answered.iter().any(|known| known == message_id) {
            return true;
        }
        let Some(question) = inner.question.take() else { return false };
        inner.bytes += message_id.len() + OF_EVENT;
        inner.answered.push(message_id.to_owned());
        // If the method has ended meanwhile, its end is reported instead.
        drop(question.send(answer));
        if inner.ended.is_none() {
            self.tell(inner, State::Working, None);
        }
        true
    }

    /// The method is nothing but a task at its service: the call was refused, and has not run.
    pub(crate) fn refuse_as_call(&self) {
        self.inner().is_task_only = true;
    }

    /// Whether the method is nothing but a task at its service.
    pub(crate) fn is_task_only(&self) -> bool {
        self.inner().is_task_only
    }

    /// Ends the task with the outcome of its call.
    pub(crate) fn end(&self, state: State, outcome: Result<Box<RawValue>, Refusal>) {
        let mut inner = self.inner();
        if inner.ended.is_some() {
            return;
        }
        inner.ended = Some(Instant::now());
        inner.question = None;
        if !inner.is_shown {
            inner.outcome = Some(outcome);
            drop(inner);
            self.changed.send_replace(());
            return;
        }
        match outcome {
            Ok(result) => {
                if !says_again(&inner.events, &result) {
                    // The result includes the parts.
                    inner.bytes += result.get().len() + OF_EVENT;
                    inner.events.push(Event::Whole(result));
                }
                self.tell(inner, state, None);
            }
            Err(refusal) => {
                let error = error_of(&refusal);
                let message = self.message(vec![Part::Text { text: refusal.message().to_owned() }]);
                inner.bytes += error.as_ref().map_or(0, |error| error.get().len()) + message.get().len() + OF_EVENT;
                inner.error = error.map(Arc::from);
                self.tell(inner, state, Some(message));
            }
        }
    }

    /// Requests cancellation; `false` if the task has already ended.
    pub(crate) fn cancel(&self) -> bool {
        let is_under_way = !self.is_over();
        if is_under_way {
            self.cancelled.send_replace(true);
        }
        is_under_way
    }

    pub(crate) async fn is_cancelled(&self) {
        // Cannot fail: the sender is in `self`.
        let _ = self.cancelled.subscribe().wait_for(|cancelled| *cancelled).await;
    }

    async fn until(&self, holds: impl Fn(&Inner) -> bool) {
        let mut changed = self.changed.subscribe();
        while !holds(&self.inner()) {
            if changed.changed().await.is_err() {
                return;
            }
        }
    }

    /// Waits until the task has ended or, unless `to_the_end`, asks a question.
    pub(crate) async fn settled(&self, to_the_end: bool) {
        self.until(|inner| inner.ended.is_some() || (!to_the_end && inner.question.is_some())).await;
    }

    /// Waits until it is a task or has ended.
    pub(crate) async fn begun(&self) {
        self.until(|inner| inner.is_shown || inner.ended.is_some()).await;
    }

    /// Waits until there are more than `than` events, or the task has ended.
    pub(crate) async fn more(&self, than: usize) {
        self.until(|inner| inner.events.len() > than || inner.ended.is_some()).await;
    }

    /// Takes the outcome of a call that never became a task.
    pub(crate) fn take_outcome(&self) -> Option<Result<Box<RawValue>, Refusal>> {
        self.inner().outcome.take()
    }

    /// The same, but only an error.
    pub(crate) fn take_failure(&self) -> Option<Result<Box<RawValue>, Refusal>> {
        let mut inner = self.inner();
        if matches!(inner.outcome, Some(Err(_))) { inner.outcome.take() } else { None }
    }

    pub(crate) fn events(&self) -> usize {
        self.inner().events.len()
    }

    /// The event at this index as a `StreamResponse`, and whether it ends a stream.
    pub(crate) fn event(&self, at: usize) -> Option<(Box<RawValue>, bool)> {
        let inner = self.inner();
        let (task_id, context_id) = (self.id.as_str(), self.context.as_str());
        let update = |artifact, append, last_chunk| {
            let update = ArtifactUpdate { task_id, context_id, artifact, append, last_chunk };
            chosen("artifactUpdate", &raw(&update))
        };
        let artifact = |value| Artifact::of(vec![Part::of(value)]);
        Some(match inner.events.get(at)? {
            Event::Part(part) => {
                let is_first = !inner.events.iter().take(at).any(|event| matches!(event, Event::Part(_)));
                (update(artifact(part), !is_first, false), false)
            }
            Event::Whole(whole) => (update(artifact(whole), false, true), false),
            Event::Status(status, metadata) => {
                let update = StatusUpdate { task_id, context_id, status, metadata: metadata.as_deref() };
                let ends = !matches!(status.state, State::Working | State::Submitted);
                (chosen("statusUpdate", &raw(&update)), ends)
            }
        })
    }

    /// The task in its current state.
    pub(crate) fn snapshot(&self, with_artifacts: bool) -> Box<RawValue> {
        self.shown(&self.inner(), with_artifacts)
    }

    /// The same as the first event of a stream, and the number of events it includes.
    pub(crate) fn now(&self) -> (Box<RawValue>, usize) {
        let inner = self.inner();
        (chosen("task", &self.shown(&inner, true)), inner.events.len())
    }

    fn shown(&self, inner: &Inner, with_artifacts: bool) -> Box<RawValue> {
        let whole = inner.events.iter().find_map(|event| match event {
            Event::Whole(whole) => Some(vec![Part::of(whole)]),
            _ => None,
        });
        let parts = whole.unwrap_or_else(|| {
            let parts = inner.events.iter().filter_map(|event| match event {
                Event::Part(part) => Some(Part::of(part)),
                _ => None,
            });
            parts.collect()
        });
        let has_artifacts = with_artifacts && !parts.is_empty();
        let artifacts = has_artifacts.then(|| vec![Artifact::of(parts)]);
        let (id, context_id) = (self.id.as_str(), self.context.as_str());
        raw(&TaskView { id, context_id, status: &inner.status, artifacts, metadata: inner.error.as_deref() })
    }

    /// The same as the result of `SendMessage`.
    pub(crate) fn as_result(&self) -> Box<RawValue> {
        self.now().0
    }

    /// A newly submitted task, as the first event of a stream.
    pub(crate) fn as_submitted(&self) -> Box<RawValue> {
        let (id, context_id) = (self.id.as_str(), self.context.as_str());
        let status = Status::now(State::Submitted, None);
        chosen("task", &raw(&TaskView { id, context_id, status: &status, artifacts: None, metadata: None }))
    }

    /// The answer of a call that never became a task.
    pub(crate) fn message_of(&self, result: &RawValue) -> Box<RawValue> {
        let message = Message {
            message_id: format!("{}.answer", self.id),
            context_id: &self.context,
            task_id: None,
            role: "ROLE_AGENT",
            parts: vec![Part::of(result)],
        };
        chosen("message", &raw(&message))
    }

    fn message(&self, parts: Vec<Part<'_>>) -> Box<RawValue> {
        let message_id = unlike_any().unwrap_or_else(|_| format!("{}.status", self.id));
        let (context_id, task_id) = (self.context.as_str(), Some(self.id.as_str()));
        raw(&Message { message_id, context_id, task_id, role: "ROLE_AGENT", parts })
    }
}

/// What an event takes besides its text, in bytes.
const OF_EVENT: usize = 64;

/// A notification or a question, without its id.
fn note_of(note: &Request) -> Box<RawValue> {
    #[derive(Serialize)]
    struct Note<'a> {
        method: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        params: Option<&'a RawValue>,
    }
    raw(&Note { method: &note.method, params: note.params.as_ref().map(|params| params.raw()) })
}

/// Whether a result adds nothing to the parts: it repeats them, or is null.
fn says_again(events: &[Event], result: &RawValue) -> bool {
    let parts: Vec<&RawValue> = events
        .iter()
        .filter_map(|event| match event {
            Event::Part(part) => Some(&**part),
            _ => None,
        })
        .collect();
    if parts.is_empty() {
        return false;
    }
    let texts: Option<String> = parts.iter().map(|part| serde_json::from_str::<String>(part.get()).ok()).collect();
    result.get() == "null"
        || texts.is_some_and(|texts| serde_json::from_str::<String>(result.get()).ok() == Some(texts))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use sealwire::internal::rpc::{Body, Limits};

    use super::*;

    #[test]
    fn a_message_that_has_answered_answers_no_other_question() {
        let task = Task::new("ann", "demo", None).unwrap();
        let ask = |id: u8| {
            let text = format!(r#"{{"jsonrpc":"2.0","method":"elicitation/create","id":{id}}}"#);
            let Body::Single(Ok(question)) = Body::parse(text.as_bytes(), &Limits::default()).unwrap() else {
                unreachable!("one request")
            };
            let (reply, replied) = oneshot::channel();
            assert!(task.ask(&question, reply).is_ok());
            replied
        };
        let yes = || RawValue::from_string("true".to_owned()).unwrap();
        assert!(!task.answer("early", yes()), "nobody has asked");
        let mut first = ask(1);
        assert!(task.answer("a", yes()) && first.try_recv().is_ok());
        let mut second = ask(2);
        let bytes = task.inner().bytes;
        assert!(task.answer("a", yes()), "the same once more");
        assert!(second.try_recv().is_err() && task.is_asking() && task.inner().bytes == bytes);
        assert!(task.answer("b", yes()) && second.try_recv().is_ok());
        assert!(task.answer("b", yes()) && !task.answer("c", yes()));
    }
}
