//! What is known of a task, by what its service says; and what that is in words.
//! Never says that a call has not run unless that is certain.

use std::time::Duration;

use sealwire::call::{PendingApproval, TaskState, TaskStatus};
use sealwire::errors::code;
use sealwire::{ClientError, RpcError};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::approval::waiting;

/// How often a client may ask for a task that has not ended.
pub(super) const POLL: Duration = Duration::from_secs(1);
/// The longest pause that a client is told to make.
const LONGEST_POLL: Duration = Duration::from_secs(30);

/// What is known of a task.
#[derive(Debug)]
pub struct TaskReport {
    /// `None` while it has not ended.
    pub end: Option<TaskEnd>,
    /// How far it is, in words.
    pub message: Option<String>,
    /// When that was so, in seconds since the Unix epoch.
    pub at: Option<u64>,
    /// Until when it can be asked for, in seconds since the Unix epoch.
    pub until: Option<u64>,
    /// When it may be worth asking again.
    pub poll: Duration,
}

/// What a task has come to.
#[derive(Debug)]
pub enum TaskEnd {
    /// The result of the method.
    Result(Box<RawValue>),
    /// The error of the method.
    Failed(RpcError),
    /// The call was refused after it had waited for people: by them, or by the policy in force.
    Refused(RpcError),
    /// Its caller has cancelled it.
    Cancelled,
    /// It was executed, and its result is lost.
    NotKept,
    /// It had begun, and nobody knows what it did.
    Unknown,
    /// Nobody has approved it in time, or nobody has asked for it in time after that.
    NotApproved,
}

impl TaskEnd {
    /// The words for an end about which the service has none of its own.
    #[must_use]
    pub fn words(&self) -> Option<&'static str> {
        match self {
            Self::Result(_) | Self::Failed(_) | Self::Refused(_) => None,
            Self::Cancelled => Some("the task was cancelled"),
            Self::NotKept => Some("the task was executed, and its result could not be kept"),
            Self::Unknown => {
                Some("the task had begun, and nobody knows what it did: it was stopped, or its service died")
            }
            Self::NotApproved => Some(
                "this call has not run: nobody has approved it in time, or it was not asked for in time afterwards",
            ),
        }
    }
}

impl TaskReport {
    /// It has begun, as far as is known.
    #[must_use]
    pub fn working() -> Self {
        Self { end: None, message: None, at: None, until: None, poll: POLL }
    }

    pub(super) fn ended(end: TaskEnd) -> Self {
        Self { end: Some(end), ..Self::working() }
    }

    /// What the service says; `None` if it knows of no such task.
    pub(super) fn of(status: TaskStatus) -> Option<Self> {
        let end = match (status.state, status.outcome) {
            (TaskState::Absent, _) => return None,
            (TaskState::Working, _) => None,
            (TaskState::Completed, Some(Ok(result))) => Some(TaskEnd::Result(result)),
            (TaskState::Failed, Some(Err(error))) => Some(TaskEnd::Failed(error)),
            (TaskState::Cancelled, _) => Some(TaskEnd::Cancelled),
            (TaskState::NotKept, _) => Some(TaskEnd::NotKept),
            _ => Some(TaskEnd::Unknown),
        };
        let message = status.progress.map(|told| {
            let of = told.total.map(|total| format!(" of {total}")).unwrap_or_default();
            let words = told.message.map(|words| format!(": {words}")).unwrap_or_default();
            format!("{}{of}{words}", told.progress)
        });
        let message = message.filter(|_| end.is_none());
        let message = if status.is_cancelling { Some("is being cancelled".to_owned()) } else { message };
        let kept = status.limit.zip(status.keep).map(|(limit, keep)| limit.saturating_add(keep.as_secs()));
        let (at, until) = (status.ended.or(status.started), status.expires.or(kept));
        Some(Self { end, message, at, until, poll: status.retry_after.clamp(POLL, LONGEST_POLL) })
    }

    /// It waits for people.
    pub(super) fn waiting(pending: &PendingApproval, until: u64) -> Self {
        let poll = pending.retry_after.clamp(POLL, LONGEST_POLL);
        Self { message: Some(waiting(pending)), until: Some(until), poll, ..Self::working() }
    }

    /// As it was when it began, even if it has ended meanwhile.
    pub(super) fn at_first(self) -> Self {
        Self { end: None, ..self }
    }
}

/// What has become of a call that waited for people and was sent again.
///
/// # Errors
/// The error says nothing about the call: it is that of the request.
pub(super) fn decided(error: ClientError) -> Result<TaskReport, ClientError> {
    let ClientError::Remote(said) = error else { return Err(error) };
    match said.profile_code() {
        Some(
            code::QUOTA_EXCEEDED
            | code::OVERLOADED
            | code::UNAUTHENTICATED
            | code::STALE
            | code::REPLAYED
            | code::TIMEOUT,
        ) => Err(ClientError::Remote(said)),
        Some(code::CONFLICT) => Ok(match conflict(said.data()).as_deref() {
            Some("running") => TaskReport::working(),
            Some("cancelled") => TaskReport::ended(TaskEnd::Cancelled),
            _ => TaskReport::ended(TaskEnd::Refused(said)),
        }),
        _ => Ok(TaskReport::ended(TaskEnd::Refused(said))),
    }
}

/// Why a call with a key that was used before has no outcome.
fn conflict(data: Option<&RawValue>) -> Option<String> {
    let data: Value = serde_json::from_str(data?.get()).ok()?;
    data.get("idempotency")?.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use sealwire::internal::rpc::{Limits, Responses};
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_is_certain_of_a_call_that_waited_ends_its_task() {
        let error = |code: i32, data: &Value| {
            let text = json!({ "jsonrpc": "2.0", "id": 1, "error": { "code": code, "message": "m", "data": data } });
            match Responses::parse(text.to_string().as_bytes(), &Limits::default()).unwrap() {
                Responses::Single(response) => ClientError::Remote(response.outcome.unwrap_err()),
                Responses::Batch(_) => unreachable!("one response"),
            }
        };
        let none = json!(null);
        let become_of = |error: ClientError| match decided(error).ok()?.end {
            None => Some("working"),
            Some(TaskEnd::Cancelled) => Some("cancelled"),
            Some(TaskEnd::Refused(_)) => Some("refused"),
            Some(_) => Some("another end"),
        };
        for code in [code::QUOTA_EXCEEDED, code::OVERLOADED, code::STALE, code::REPLAYED, code::TIMEOUT] {
            assert_eq!(become_of(error(code, &none)), None, "{code}");
        }
        assert_eq!(become_of(ClientError::ConnectionLost), None);
        for (state, becomes) in [("running", "working"), ("cancelled", "cancelled"), ("unknown", "refused")] {
            let conflict = error(code::CONFLICT, &json!({ "idempotency": state }));
            assert_eq!(become_of(conflict), Some(becomes), "{state}");
        }
        let denied = json!({ "approval": "ann.x", "state": "denied" });
        assert_eq!(become_of(error(code::PERMISSION_DENIED, &denied)), Some("refused"));
        assert_eq!(become_of(error(code::METHOD_NOT_FOUND, &none)), Some("refused"));
    }
}
