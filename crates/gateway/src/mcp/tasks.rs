//! Calls that are tasks: a client gets an id instead of the result, and asks for the result later, at this replica or another.
//! Never keeps anything of a task, and never acts for a client that is not there: a call that people have to approve is sent again when its
//! client asks for it, with the rights that the client then has.

mod known;

use std::time::Duration;

use sealwire::call::{PendingApproval, Task as BusTask, TaskMode, TaskStatus};
use sealwire::{ClientError, RequestBuilder};
use sealwire_mcp::{
    ClientCapabilities, Members, RequestParams, Revision, SubscriptionFilter, code, insert, raw, tasks,
};
use serde_json::value::RawValue;
use serde_json::{Map, json};
use tokio::time::{Instant, sleep};

use self::known::{End, Known, POLL, decided};
use super::fault::of_call;
use super::message::{Fault, Outcome, result_of_type};
use super::peer::Requester;
use super::results::{failed, refused};
use super::server::Server;
use super::task_ids::{ARGUMENTS, AwaitedApproval, TaskHandle, now};
use crate::approval::waiting;
use crate::catalogue::Tool;

/// How long a question about a task may take.
const ASKED: Duration = Duration::from_secs(10);
/// How long a cancelled task may take to end, for clients that have to hear of it: another replica of the service learns of it within 5 s.
const CANCELLED: Duration = Duration::from_secs(15);
/// How far clocks may differ.
const SKEW_S: u64 = 10;

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
        let mut handle = TaskHandle::new(tool)?;
        let known = match self.send(&handle.key, &params, None).await? {
            Ok(task) => {
                let known = task.status().await.ok().and_then(|status| Known::of(revision, tool, status));
                known.map_or_else(|| Known::working(None), Known::at_first)
            }
            Err(error) => {
                // A client of 2025-11-25 that asks for a task expects no result in its place.
                let ended = |outcome: Outcome| if revision.has_handshake() { Err(of_call(&error)) } else { outcome };
                let Some(pending) = pending(&error) else { return ended(refused(revision, tool, &error, Map::new())) };
                if params.get().len() > ARGUMENTS {
                    let why = format!("its arguments have more than {ARGUMENTS} bytes");
                    return ended(Ok(failed(revision, &unable(&pending, &why))));
                }
                let until = self.can_wait_until(&handle, &pending).await?;
                handle.waits = Some(AwaitedApproval { params, until });
                Known::waiting(&pending, until)
            }
        };
        let task = known.into_task(server.tasks.seal(&peer.principal, &handle)?, handle.created);
        Ok(result_of_type(revision, "task", task.created(revision)))
    }

    /// Calls the method, which is always a task, for a client that waits for its result.
    pub(super) async fn wait(self, params: Box<RawValue>) -> Outcome {
        let (revision, tool, limit) = (self.from.revision, self.tool, self.tool.deadline);
        let handle = TaskHandle::new(tool)?;
        if let Err(error) = self.send(&handle.key, &params, Some(limit)).await? {
            let Some(pending) = pending(&error) else { return refused(revision, tool, &error, Map::new()) };
            return Ok(failed(revision, &unable(&pending, "this client has no tasks")));
        }
        if let Some(End::With(outcome)) = self.until_ended(&handle, limit).await?.end {
            return outcome;
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
        let tell = |known: Known| {
            let members = known.into_task(id.to_owned(), handle.created).detailed(revision);
            result_of_type(revision, "complete", members)
        };
        match method {
            "tasks/get" => Ok(tell(self.known(handle).await?)),
            // It asks for nothing, so there is nothing to answer.
            "tasks/update" => self.known(handle).await.map(|_| acknowledged(revision)),
            "tasks/cancel" => match self.cancel(handle).await? {
                _ if !revision.has_handshake() => Ok(acknowledged(revision)),
                known if matches!(known.end, Some(End::Cancelled)) => Ok(tell(known)),
                known if known.end.is_some() => Err(Fault::params("the task has already ended")),
                _ => Err(Fault::internal("the task has not ended yet")),
            },
            _ => match self.until_ended(handle, self.tool.deadline).await?.end {
                Some(End::With(outcome)) => outcome.map(|result| related(&result, id)),
                Some(End::Cancelled) => Err(Fault::internal("the task was cancelled")),
                None => Err(Fault::internal("the task has not ended yet: ask again")),
            },
        }
    }

    /// Sends the call of a task. The inner error is that of the call.
    async fn send(
        self,
        key: &str,
        params: &RawValue,
        limit: Option<Duration>,
    ) -> Result<Result<BusTask, ClientError>, Fault> {
        let request = self.request().await?.idempotency_key(key);
        let mut request = request.capable_of(ClientCapabilities::default().of_callers());
        if let Some(limit) = limit {
            request = request.task_limit(limit);
        }
        Ok(Box::pin(request.detach(&self.tool.method.name, params)).await)
    }

    /// What the service says of a task.
    async fn status(self, handle: &TaskHandle) -> Result<TaskStatus, Fault> {
        self.at_service(handle).await?.status().await.map_err(|error| of_call(&error))
    }

    async fn at_service(self, handle: &TaskHandle) -> Result<BusTask, Fault> {
        let task = self.request().await?.task(&self.tool.method.name, handle.key.as_str());
        task.map_err(|error| of_call(&error))
    }

    async fn request(self) -> Result<RequestBuilder, Fault> {
        let Self { server, from: Requester { peer, .. }, tool } = self;
        if let Some(loss) = peer.caller.loss(Some((&tool.service, &tool.method.name))) {
            return Err(Fault::internal(format!("{}: nothing was sent", loss.reason())));
        }
        let (request, _) = peer.request(&server.services.bus, tool).await?;
        Ok(request.deadline(tool.deadline.min(ASKED)))
    }

    /// What is known of a task. A call that waits for people is sent again: it begins once they have approved it.
    async fn known(self, handle: &TaskHandle) -> Result<Known, Fault> {
        let (revision, tool) = (self.from.revision, self.tool);
        let status = self.status(handle).await?;
        let keep = status.keep;
        if let Some(known) = Known::of(revision, tool, status) {
            return Ok(known);
        }
        let waits = handle.waits.as_ref().ok_or_else(not_found)?;
        if now() >= waits.until {
            if now() >= kept_until(handle.created, keep) {
                return Err(not_found());
            }
            let text =
                "this call has not run: nobody has approved it in time, or it was not asked for in time afterwards";
            return Ok(Known::ended(End::With(Ok(failed(revision, text)))));
        }
        match self.send(&handle.key, &waits.params, None).await? {
            Ok(_) => Ok(Known::working(None)),
            Err(error) => match pending(&error) {
                Some(pending) => Ok(Known::waiting(&pending, waits.until)),
                None => decided(revision, tool, &error),
            },
        }
    }

    /// Until when a call that waits for people may be sent again, in seconds since the Unix epoch. Past the deadline of its request, it would
    /// make a new one. And where no outcome can be kept any more, nobody could tell that it has run.
    async fn can_wait_until(self, handle: &TaskHandle, pending: &PendingApproval) -> Result<u64, Fault> {
        Ok(waits_until(pending.deadline, kept_until(handle.created, self.status(handle).await?.keep)))
    }

    /// What is known of a task once it has ended, or after this time.
    async fn until_ended(self, handle: &TaskHandle, limit: Duration) -> Result<Known, Fault> {
        let until = Instant::now() + limit;
        let mut pause = FIRST_PAUSE;
        loop {
            let known = self.known(handle).await?;
            let left = until.saturating_duration_since(Instant::now());
            if known.end.is_some() || left.is_zero() {
                return Ok(known);
            }
            sleep(pause.min(left)).await;
            pause = (pause * 2).min(known.poll.max(POLL));
        }
    }

    /// Cancels a task. For clients of revisions with a handshake, it waits until that is so.
    async fn cancel(self, handle: &TaskHandle) -> Result<Known, Fault> {
        let revision = self.from.revision;
        let status = self.at_service(handle).await?.cancel().await.map_err(|error| of_call(&error))?;
        match (Known::of(revision, self.tool, status), &handle.waits) {
            (Some(known), _) if known.end.is_some() || !revision.has_handshake() => Ok(known),
            (Some(_), _) => self.until_ended(handle, CANCELLED).await,
            (None, Some(_)) if revision.has_handshake() => Err(Fault::internal(
                "a call that waits for people cannot be cancelled: it does not run unless its task is asked for again",
            )),
            (None, Some(_)) => Ok(Known::working(None)),
            (None, None) => Err(not_found()),
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

/// Until when it is certain that the service knows of a task if it has ever run.
fn kept_until(created: u64, keep: Option<Duration>) -> u64 {
    created.saturating_add(keep.unwrap_or_default().as_secs()).saturating_sub(SKEW_S)
}

/// Until when a call waits for people: its client hears for a while after that that it has not run.
fn waits_until(deadline: u64, kept: u64) -> u64 {
    deadline.saturating_sub(1).min(kept.saturating_sub(SKEW_S))
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

fn pending(error: &ClientError) -> Option<PendingApproval> {
    match error {
        ClientError::Remote(error) => PendingApproval::of(error),
        _ => None,
    }
}

/// The call waits for people, and nobody here could send it again.
fn unable(pending: &PendingApproval, why: &str) -> String {
    format!("this call cannot be made here: people have to approve it first, and {why}. It {}", waiting(pending))
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

/// The first pause while a request waits for a task.
const FIRST_PAUSE: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_waits_no_longer_than_its_request_does_and_than_its_outcome_would_be_known() {
        let (created, deadline) = (1_000, 2_800);
        let until = |keep| waits_until(deadline, kept_until(created, keep));
        assert_eq!(until(Some(Duration::from_secs(86_400))), 2_799);
        assert_eq!(until(Some(Duration::from_secs(60))), 1_040);
        // A service that does not say for how long: not at all.
        assert!(until(None) <= created);
        for keep in [None, Some(Duration::from_secs(60)), Some(Duration::from_secs(86_400))] {
            assert!(until(keep) < kept_until(created, keep));
        }
    }
}
