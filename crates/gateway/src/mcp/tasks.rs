//! Calls that are tasks: a client gets an id instead of the result, and asks for the result later, at this replica or another.
//! Never keeps anything of a task, and never acts for a client that is not there: a call that people have to approve is sent again when its
//! client asks for it, with the rights that the client then has.

use std::time::Duration;

use sealwire::ClientError;
use sealwire::call::TaskMode;
use sealwire_mcp::tasks::{Task, TaskState};
use sealwire_mcp::{
    ClientCapabilities, Members, RequestParams, Revision, SubscriptionFilter, code, insert, raw, tasks,
};
use serde_json::value::RawValue;
use serde_json::{Map, json};

use super::fault::of_call;
use super::message::{Fault, Outcome, result_of_type};
use super::peer::Requester;
use super::results::{failed, refused, succeeded};
use super::server::Server;
use crate::approval;
use crate::catalogue::Tool;
use crate::seal::unlike_any;
use crate::tasks::{BeginError, CANCELLED, TaskEnd, TaskHandle, TaskReport, TaskRequest, pending, unable, until_ended};

/// How a client has a tool called.
pub(super) enum Mode {
    /// It waits for the result.
    Call,
    /// It gets a task.
    Task,
    /// It waits, and the method can be called as a task only.
    WaitForTask,
}

/// The tasks of one tool, for a request of a client.
#[derive(Clone, Copy)]
pub(super) struct Tasks<'a> {
    server: &'a Server,
    from: Requester<'a>,
    tool: &'a Tool,
}

impl<'a> Tasks<'a> {
    pub(super) fn new(server: &'a Server, from: Requester<'a>, tool: &'a Tool) -> Self {
        Self { server, from, tool }
    }

    /// Calls the method as a task, and tells its client the task.
    pub(super) async fn begin(self, params: Box<RawValue>) -> Outcome {
        let Self { server, from: Requester { peer, revision, .. }, tool } = self;
        let mut handle = self.handle()?;
        // A client of 2025-11-25 that asks for a task expects no result in its place.
        let ended = |error: &ClientError, outcome: Outcome| {
            if revision.has_handshake() { Err(of_call(error)) } else { outcome }
        };
        let report = match self.request().await?.begin(&mut handle, Some(params)).await {
            Ok(report) => report,
            Err(BeginError::Call(error)) => return ended(&error, refused(revision, tool, &error, Map::new())),
            Err(BeginError::Unable { error, why }) => return ended(&error, Ok(failed(revision, &why))),
        };
        let id = server.tasks.seal(&peer.principal, &handle);
        let id = id.map_err(|_| Fault::internal("the gateway cannot seal the id of the task"))?;
        let task = self.described(id, handle.created, report);
        Ok(result_of_type(revision, "task", task.created(revision)))
    }

    /// Calls the method, which is always a task, for a client that waits for its result.
    pub(super) async fn wait(self, params: Box<RawValue>) -> Outcome {
        let (revision, tool, limit) = (self.from.revision, self.tool, self.tool.deadline);
        let handle = self.handle()?;
        if let Err(error) = self.request().await?.send(&handle, Some(&params), Some(limit)).await {
            let Some(pending) = pending(&error) else { return refused(revision, tool, &error, Map::new()) };
            return Ok(failed(revision, &unable(&pending, "this client has no tasks")));
        }
        if let Some(end) = self.until_ended(&handle, limit).await?.end {
            return self.outcome(end);
        }
        // The service stops it by itself.
        let limit = limit.as_secs();
        let text = format!(
            "this takes longer than the {limit} s for which clients wait here, and was stopped: it is for clients that have tasks"
        );
        Ok(failed(revision, &text))
    }

    /// Answers a request about a task.
    async fn answer(self, method: &str, id: &str, handle: &TaskHandle) -> Outcome {
        let revision = self.from.revision;
        let tell = |report: TaskReport| {
            let members = self.described(id.to_owned(), handle.created, report).detailed(revision);
            result_of_type(revision, "complete", members)
        };
        match method {
            "tasks/get" => Ok(tell(self.report(handle).await?)),
            // It asks for nothing, so there is nothing to answer.
            "tasks/update" => self.report(handle).await.map(|_| acknowledged(revision)),
            "tasks/cancel" => match self.cancel(handle).await? {
                _ if !revision.has_handshake() => Ok(acknowledged(revision)),
                report if matches!(report.end, Some(TaskEnd::Cancelled)) => Ok(tell(report)),
                report if report.end.is_some() => Err(Fault::params("the task has already ended")),
                _ => Err(Fault::internal("the task has not ended yet")),
            },
            _ => match self.until_ended(handle, self.tool.deadline).await?.end {
                Some(end) => self.outcome(end).map(|result| related(&result, id)),
                None => Err(Fault::internal("the task has not ended yet: ask again")),
            },
        }
    }

    fn handle(self) -> Result<TaskHandle, Fault> {
        let key = unlike_any().map_err(|_| Fault::internal("the gateway cannot name a task, nothing was sent"))?;
        Ok(TaskHandle::new(self.tool.service.as_str(), self.tool.method.name.as_str(), key))
    }

    async fn request(self) -> Result<TaskRequest, Fault> {
        let Self { server, from: Requester { peer, .. }, tool } = self;
        if let Some(loss) = peer.caller.loss(Some((&tool.service, &tool.method.name))) {
            return Err(Fault::internal(format!("{}: nothing was sent", loss.reason())));
        }
        let (request, _) = peer.request(&server.services.bus, tool).await?;
        let request = request.capable_of(ClientCapabilities::default().of_callers());
        Ok(TaskRequest::new(request, tool.deadline))
    }

    /// What is known of a task.
    async fn report(self, handle: &TaskHandle) -> Result<TaskReport, Fault> {
        let report = self.request().await?.report(handle).await;
        report.map_err(|error| of_call(&error))?.ok_or_else(not_found)
    }

    /// What is known of a task once it has ended, or after this time.
    async fn until_ended(self, handle: &TaskHandle, limit: Duration) -> Result<TaskReport, Fault> {
        until_ended(limit, || self.report(handle)).await
    }

    /// Cancels a task. For clients of revisions with a handshake, it waits until that is so.
    async fn cancel(self, handle: &TaskHandle) -> Result<TaskReport, Fault> {
        let waits = self.from.revision.has_handshake();
        let report = self.request().await?.cancel(handle).await.map_err(|error| of_call(&error))?;
        match (report, &handle.waits) {
            (Some(report), _) if report.end.is_some() || !waits => Ok(report),
            (Some(_), _) => self.until_ended(handle, CANCELLED).await,
            (None, Some(_)) if waits => Err(Fault::internal(
                "a call that waits for people cannot be cancelled: it does not run unless its task is asked for again",
            )),
            (None, Some(_)) => Ok(TaskReport::working()),
            (None, None) => Err(not_found()),
        }
    }

    /// A task as its client sees it.
    fn described(self, id: String, created: u64, report: TaskReport) -> Task {
        let state = match report.end {
            None => TaskState::Working,
            Some(TaskEnd::Cancelled) => TaskState::Cancelled,
            Some(end) => match self.outcome(end) {
                Ok(result) => TaskState::Ended(result),
                Err(fault) => TaskState::Failed(raw(&fault)),
            },
        };
        let updated = report.at.map_or(created, |at| at.max(created));
        let ttl_ms = report.until.map(|until| until.saturating_sub(created).saturating_mul(1_000));
        let poll_ms = u64::try_from(report.poll.as_millis()).unwrap_or(u64::MAX);
        let (created, updated) = (approval::time(created), approval::time(updated));
        Task { id, state, message: report.message, created, updated, ttl_ms, poll_ms }
    }

    /// What a task has come to, in the form of a tool's result.
    fn outcome(self, end: TaskEnd) -> Outcome {
        let (revision, words) = (self.from.revision, end.words().unwrap_or_default());
        match end {
            TaskEnd::Result(result) => Ok(succeeded(revision, self.tool, &result, Map::new())),
            TaskEnd::Failed(error) | TaskEnd::Refused(error) => {
                refused(revision, self.tool, &ClientError::Remote(error), Map::new())
            }
            TaskEnd::NotKept | TaskEnd::NotApproved => Ok(failed(revision, words)),
            TaskEnd::Cancelled => Err(Fault::internal(words)),
            TaskEnd::Unknown => Err(Fault::internal(words).with(json!({ "outcome": "unknown" }))),
        }
    }
}

/// Answers a request about a task.
pub(super) async fn answer(server: &Server, from: Requester<'_>, method: &str, asked: &RequestParams) -> Outcome {
    let Requester { peer, revision, capabilities } = from;
    if !revision.has_handshake() && !capabilities.tasks {
        return Err(undeclared());
    }
    let Some(id) = &asked.task_id else { return Err(Fault::params("`taskId` is missing")) };
    if method == "tasks/update" && asked.responses.is_none() {
        return Err(Fault::params("`inputResponses` is missing"));
    }
    let handle = server.tasks.open(&peer.principal, id).ok_or_else(not_found)?;
    let tool = server.tool_of(&*peer.caller, &handle.service, &handle.method).await?.ok_or_else(not_found)?;
    Tasks::new(server, from, &tool).answer(method, id, &handle).await
}

/// How a client has this tool called with this request.
pub(super) fn mode(from: Requester<'_>, asked: &RequestParams, tool: &Tool) -> Result<Mode, Fault> {
    let wants_task = match from.revision {
        Revision::V2026_07_28 => from.capabilities.tasks,
        Revision::V2025_11_25 => asked.task.is_some(),
        _ => false,
    };
    match (tool.method.task, wants_task) {
        (Some(_), true) => Ok(Mode::Task),
        (Some(TaskMode::Required), false) => Ok(Mode::WaitForTask),
        // 2025-11-25, "Tool-Level Negotiation".
        (None, true) if from.revision.has_handshake() => {
            Err(Fault::new(-32601, "this tool cannot be called as a task"))
        }
        _ => Ok(Mode::Call),
    }
}

/// Whether a client may ask to be told of tasks: it is told of none, but must know what they are.
///
/// # Errors
/// It has not declared that it does.
pub(crate) fn tasks_are_known(client: ClientCapabilities, wanted: &SubscriptionFilter) -> Result<(), Fault> {
    if client.tasks || wanted.tasks.is_empty() { Ok(()) } else { Err(undeclared()) }
}

fn undeclared() -> Fault {
    Fault::new(code::MISSING_CAPABILITY, "Missing required client capability").with(tasks::required())
}

/// Somebody else's task, and none, look alike.
fn not_found() -> Fault {
    Fault::params("Task not found")
}

fn acknowledged(revision: Revision) -> Box<RawValue> {
    result_of_type(revision, "complete", Members::new())
}

/// A result of 2025-11-25 that says of which task it is.
fn related(result: &RawValue, id: &str) -> Box<RawValue> {
    let mut members: Members = serde_json::from_str(result.get()).unwrap_or_default();
    let meta = members.get("_meta").and_then(|meta| serde_json::from_str::<Members>(meta.get()).ok());
    let mut meta = meta.unwrap_or_default();
    insert(&mut meta, tasks::RELATED, &json!({ "taskId": id }));
    insert(&mut members, "_meta", &meta);
    raw(&members)
}
