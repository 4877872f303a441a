//! Tasks at their service: asked for with the rights that their caller then has, at whichever replica.
//! Never keeps anything of one, and never tells a caller of another's.

use std::time::Duration;

use sealwire::internal::client::may_be_answered_later;
use sealwire::{ClientError, RpcError};
use sealwire_gateway::dialect::{
    Admitted, BeginError, CANCELLED, Refusal, TaskEnd, TaskHandle, TaskIds, TaskReport, TaskRequest, is_no_task,
    unlike_any, until_ended,
};
use sealwire_gateway::http::Expose;
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};
use time::OffsetDateTime;

use crate::fault::{self, ToA2a as _, translated};
use crate::forms::{Artifact, ArtifactUpdate, Message, Part, State, Status, StatusUpdate, TaskView, chosen, error_of};
use crate::raw::raw;
use crate::run::classify;
use crate::task::RESULT;

/// By what the service finds the task of a message: of its caller, service, method, id and parameters. The last are part of it for clients
/// that give all messages one id.
fn key(parts: [&str; 5]) -> String {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    digest.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// A task of a caller at a service. Its client keeps the id, which says all of this.
pub(crate) struct ServiceTask {
    id: String,
    handle: TaskHandle,
}

/// How a task is.
pub(crate) struct Condition {
    status: Status,
    words: Option<String>,
    result: Option<Box<RawValue>>,
    /// The error, in machine-readable form.
    error: Option<Box<RawValue>>,
    /// When it may be worth asking again.
    pub(crate) poll: Duration,
}

/// A question about a task was not answered. That says nothing about the task.
pub(crate) struct AskError {
    pub(crate) refusal: Refusal,
    /// Whether the same question may be answered later.
    pub(crate) is_temporary: bool,
}

impl From<AskError> for Refusal {
    fn from(error: AskError) -> Self {
        error.refusal
    }
}

impl From<Refusal> for AskError {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, is_temporary: false }
    }
}

impl ServiceTask {
    /// The task of this id, if it is one of this caller at this service.
    pub(crate) fn open(ids: &TaskIds, admitted: &Admitted, id: &str) -> Option<Self> {
        let (handle, expose) = (ids.open(admitted.principal().as_str(), id)?, admitted.expose());
        let is_here = handle.service == expose.service.as_str() && expose.allows(&handle.method);
        is_here.then(|| Self { id: id.to_owned(), handle })
    }

    /// Calls a method as a task; `None` if it is no task, and nothing was called. The same message finds the same task again: a client that
    /// was not told its id has no other way to it.
    pub(crate) async fn begin(
        ids: &TaskIds,
        admitted: &Admitted,
        (message, context): (&str, Option<String>),
        (method, params): (&str, Option<Box<RawValue>>),
    ) -> Result<Option<(Self, Condition)>, Refusal> {
        let failed = |_| Refusal::unavailable("the crypto library failed").to_a2a();
        let expose = admitted.expose();
        let service = expose.service.as_str();
        let parameters = params.as_deref().map_or("", RawValue::get);
        let key = key([admitted.principal().as_str(), service, method, message, parameters]);
        let mut handle = TaskHandle::new(service, method, key);
        handle.context = Some(context.map_or_else(unlike_any, Ok).map_err(failed)?);
        let report = match task_request(admitted).await?.begin(&mut handle, params).await {
            Ok(report) => report,
            Err(BeginError::Call(error)) if is_no_task(&error) => return Ok(None),
            Err(BeginError::Call(error)) => return Err(translated(expose, &error)),
            Err(BeginError::Unable { why, .. }) => return Err(fault::not_approved("APPROVAL_REQUIRED", why)),
        };
        let id = ids.seal(admitted.principal().as_str(), &handle);
        let id = id.map_err(|_| Refusal::unknown("the gateway cannot seal the id of the task").to_a2a())?;
        let task = Self { id, handle };
        let condition = task.condition(expose, report);
        Ok(Some((task, condition)))
    }

    pub(crate) fn context(&self) -> &str {
        self.handle.context.as_deref().unwrap_or_default()
    }

    pub(crate) fn method(&self) -> &str {
        &self.handle.method
    }

    /// Whether people have to approve it before it begins.
    pub(crate) fn waits_for_people(&self) -> bool {
        self.handle.waits.is_some()
    }

    /// How it is now.
    pub(crate) async fn ask(&self, admitted: &Admitted) -> Result<Condition, AskError> {
        Ok(self.condition(admitted.expose(), self.report(admitted).await?))
    }

    /// How it is once it has ended, or after this time.
    pub(crate) async fn until_ended(&self, admitted: &Admitted, limit: Duration) -> Result<Condition, AskError> {
        let report = until_ended(limit, || self.report(admitted)).await?;
        Ok(self.condition(admitted.expose(), report))
    }

    /// Has the service end it, and waits until it has.
    pub(crate) async fn cancel(&self, admitted: &Admitted) -> Result<Condition, Refusal> {
        admitted.check(self.method()).map_err(Refusal::to_a2a)?;
        let before = task_request(admitted).await?.cancel(&self.handle).await;
        match before.map_err(|error| translated(admitted.expose(), &error))? {
            Some(report) if report.end.is_some() => return Err(fault::not_cancelable()),
            Some(_) => {}
            None if self.waits_for_people() => return Err(fault::waits_for_people()),
            None => return Err(fault::no_task()),
        }
        let report = until_ended(CANCELLED, || self.report(admitted)).await?;
        match report.end {
            Some(TaskEnd::Result(_)) => Err(fault::not_cancelable()),
            _ => Ok(self.condition(admitted.expose(), report)),
        }
    }

    async fn report(&self, admitted: &Admitted) -> Result<TaskReport, AskError> {
        admitted.check(self.method()).map_err(Refusal::to_a2a)?;
        let report = task_request(admitted).await?.report(&self.handle).await;
        let report = report.map_err(|error| AskError {
            is_temporary: may_be_answered_later(&error),
            refusal: translated(admitted.expose(), &error),
        })?;
        Ok(report.ok_or_else(fault::no_task)?)
    }

    fn condition(&self, expose: &Expose, report: TaskReport) -> Condition {
        let (created, poll) = (self.handle.created, report.poll);
        let at = i64::try_from(report.at.unwrap_or_default().max(created)).unwrap_or_default();
        let timestamp = OffsetDateTime::from_unix_timestamp(at).unwrap_or(OffsetDateTime::UNIX_EPOCH);
        let (state, result, refusal) = match report.end.map(|end| end_state(expose, end)) {
            None => (State::Working, None, None),
            Some((state, Ok(result))) => (state, Some(result), None),
            Some((state, Err(refusal))) => (state, None, Some(refusal)),
        };
        let words = refusal.as_ref().map_or(report.message, |refusal| Some(refusal.message().to_owned()));
        let status = Status { state, message: words.as_deref().map(|words| self.message(words)), timestamp };
        Condition { status, words, result, error: refusal.as_ref().and_then(error_of), poll }
    }

    fn message(&self, words: &str) -> Box<RawValue> {
        // The same for the same words, at every replica.
        let digest = Sha256::new().chain_update(&self.handle.key).chain_update([0_u8]).chain_update(words).finalize();
        let message_id = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        let parts = vec![Part::Text { text: words.to_owned() }];
        raw(&Message { message_id, context_id: self.context(), task_id: Some(&self.id), role: "ROLE_AGENT", parts })
    }

    /// The task, as the result of `GetTask`.
    pub(crate) fn view(&self, now: &Condition) -> Box<RawValue> {
        let artifacts = now.result.as_deref().map(|result| vec![Artifact::of(vec![Part::of(result)])]);
        let (id, context_id, metadata) = (self.id.as_str(), self.context(), now.error.as_deref());
        raw(&TaskView { id, context_id, status: &now.status, artifacts, metadata })
    }

    /// The task, as the result of `SendMessage` and the first event of a stream.
    pub(crate) fn as_result(&self, now: &Condition) -> Box<RawValue> {
        chosen("task", &self.view(now))
    }

    /// What a stream tells of a change.
    pub(crate) fn changes(&self, before: &Condition, now: &Condition) -> Vec<Box<RawValue>> {
        let (task_id, context_id, metadata) = (self.id.as_str(), self.context(), now.error.as_deref());
        let artifact = now.result.as_deref().map(|result| {
            let artifact = Artifact::of(vec![Part::of(result)]);
            let update = ArtifactUpdate { task_id, context_id, artifact, append: false, last_chunk: true };
            chosen("artifactUpdate", &raw(&update))
        });
        let has_changed = (before.status.state, &before.words) != (now.status.state, &now.words);
        let status = has_changed.then(|| {
            let update = StatusUpdate { task_id, context_id, status: &now.status, metadata };
            chosen("statusUpdate", &raw(&update))
        });
        artifact.into_iter().chain(status).collect()
    }
}

impl Condition {
    pub(crate) fn has_ended(&self) -> bool {
        self.status.state != State::Working
    }
}

/// A request about a task at the caller's service.
async fn task_request(admitted: &Admitted) -> Result<TaskRequest, AskError> {
    let away = |_| AskError { refusal: Refusal::away().to_a2a(), is_temporary: true };
    let (request, _) = admitted.request().await.map_err(away)?;
    Ok(TaskRequest::new(request.max_bytes(RESULT), admitted.expose().timeout()))
}

/// The state of a task that has ended, and what it has come to.
fn end_state(expose: &Expose, end: TaskEnd) -> (State, Result<Box<RawValue>, Refusal>) {
    let words = end.words().unwrap_or_default();
    let remote = |error: RpcError| Err(ClientError::Remote(error));
    match end {
        TaskEnd::Result(result) => classify(expose, Ok(result), true),
        TaskEnd::Failed(error) => classify(expose, remote(error), true),
        TaskEnd::Refused(error) => classify(expose, remote(error), false),
        TaskEnd::Cancelled => (State::Canceled, Err(fault::canceled())),
        TaskEnd::NotApproved => (State::Rejected, Err(fault::not_approved("NOT_APPROVED", words))),
        TaskEnd::NotKept | TaskEnd::Unknown => (State::Failed, Err(Refusal::unknown(words).to_a2a())),
    }
}
