//! What is known of a task, by what its service says; and what that is in words.
//! Never says that a call has not run unless that is certain.

use std::time::Duration;

use sealwire::ClientError;
use sealwire::call::{PendingApproval, TaskState as BusState, TaskStatus};
use sealwire::errors::code;
use sealwire_mcp::tasks::{Task, TaskState};
use sealwire_mcp::{Revision, raw};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::super::fault::of_call;
use super::super::message::{Fault, Outcome};
use super::super::results::{failed, refused, succeeded};
use crate::approval::{self, waiting};
use crate::catalogue::Tool;

/// How often a client may ask for a task that has not ended.
pub(super) const POLL: Duration = Duration::from_secs(1);
/// The longest pause that a client is told to make.
const LONGEST_POLL: Duration = Duration::from_secs(30);

/// What is known of a task.
pub(super) struct Known {
    /// `None` while it has none.
    pub(super) end: Option<End>,
    /// How far it is, in words.
    message: Option<String>,
    /// When that was so, in seconds since the Unix epoch.
    at: Option<u64>,
    /// Until when it can be asked for, in seconds since the Unix epoch.
    until: Option<u64>,
    pub(super) poll: Duration,
}

pub(super) enum End {
    With(Outcome),
    Cancelled,
}

impl Known {
    pub(super) fn working(message: Option<String>) -> Self {
        Self { end: None, message, at: None, until: None, poll: POLL }
    }

    pub(super) fn ended(end: End) -> Self {
        Self { end: Some(end), ..Self::working(None) }
    }

    /// What the service says; `None` if it knows of no such task.
    pub(super) fn of(revision: Revision, tool: &Tool, status: TaskStatus) -> Option<Self> {
        let unknown = "the task had begun, and nobody knows what it did: it was stopped, or its service died";
        let end = match (status.state, status.outcome) {
            (BusState::Absent, _) => return None,
            (BusState::Working, _) => None,
            (BusState::Completed, Some(Ok(result))) => {
                Some(End::With(Ok(succeeded(revision, tool, &result, Map::new()))))
            }
            (BusState::Failed, Some(Err(error))) => {
                Some(End::With(refused(revision, tool, &ClientError::Remote(error), Map::new())))
            }
            (BusState::Cancelled, _) => Some(End::Cancelled),
            (BusState::NotKept, _) => {
                Some(End::With(Ok(failed(revision, "the task was executed, and its result could not be kept"))))
            }
            _ => Some(End::With(Err(Fault::internal(unknown).with(json!({ "outcome": "unknown" }))))),
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
        Self { message: Some(waiting(pending)), until: Some(until), poll, ..Self::working(None) }
    }

    /// As it was when it began, even if it has ended meanwhile.
    pub(super) fn at_first(self) -> Self {
        Self { end: None, ..self }
    }

    pub(super) fn into_task(self, id: String, created: u64) -> Task {
        let state = match self.end {
            None => TaskState::Working,
            Some(End::With(Ok(result))) => TaskState::Ended(result),
            Some(End::With(Err(fault))) => TaskState::Failed(raw(&fault)),
            Some(End::Cancelled) => TaskState::Cancelled,
        };
        let updated = self.at.map_or(created, |at| at.max(created));
        let ttl_ms = self.until.map(|until| until.saturating_sub(created).saturating_mul(1_000));
        let poll_ms = u64::try_from(self.poll.as_millis()).unwrap_or(u64::MAX);
        let (created, updated) = (approval::time(created), approval::time(updated));
        Task { id, state, message: self.message, created, updated, ttl_ms, poll_ms }
    }
}

/// What has become of a call that waited for people and was sent again. An error that says nothing about the call is that of the request.
pub(super) fn decided(revision: Revision, tool: &Tool, error: &ClientError) -> Result<Known, Fault> {
    let ClientError::Remote(said) = error else { return Err(of_call(error)) };
    match said.profile_code() {
        Some(
            code::QUOTA_EXCEEDED
            | code::OVERLOADED
            | code::UNAUTHENTICATED
            | code::STALE
            | code::REPLAYED
            | code::TIMEOUT,
        ) => Err(of_call(error)),
        Some(code::CONFLICT) => Ok(match conflict(said.data()).as_deref() {
            Some("running") => Known::working(None),
            Some("cancelled") => Known::ended(End::Cancelled),
            _ => Known::ended(End::With(refused(revision, tool, error, Map::new()))),
        }),
        _ => Ok(Known::ended(End::With(refused(revision, tool, error, Map::new())))),
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

    use super::*;
    use crate::catalogue::Extension;

    #[test]
    fn only_what_is_certain_of_a_call_that_waited_ends_its_task() {
        let text = r#"{"name":"site/pay","x-params":{},"result":{"schema":{}}}"#;
        let tool = Tool {
            service: "site".to_owned(),
            deadline: Duration::from_secs(1),
            method: serde_json::from_str(text).unwrap(),
            mcp: Extension::default(),
            mirrored: Ok(Vec::new()),
        };
        let error = |code: i32, data: &Value| {
            let text = json!({ "jsonrpc": "2.0", "id": 1, "error": { "code": code, "message": "m", "data": data } });
            match Responses::parse(text.to_string().as_bytes(), &Limits::default()).unwrap() {
                Responses::Single(response) => ClientError::Remote(response.outcome.unwrap_err()),
                Responses::Batch(_) => unreachable!("one response"),
            }
        };
        let (new, none) = (Revision::V2026_07_28, json!(null));
        let become_of = |error: &ClientError| {
            decided(new, &tool, error).map_err(|fault| fault.code).map(|known| match known.end {
                None => "working",
                Some(End::Cancelled) => "cancelled",
                Some(End::With(Ok(result))) => {
                    ["completed", "failed"][usize::from(result.get().contains("\"isError\":true"))]
                }
                Some(End::With(Err(_))) => "error",
            })
        };
        for code in [code::QUOTA_EXCEEDED, code::OVERLOADED, code::STALE, code::REPLAYED, code::TIMEOUT] {
            assert!(become_of(&error(code, &none)).is_err(), "{code}");
        }
        assert_eq!(become_of(&ClientError::ConnectionLost), Err(-32603));
        for (state, becomes) in [("running", "working"), ("cancelled", "cancelled"), ("unknown", "failed")] {
            assert_eq!(become_of(&error(code::CONFLICT, &json!({ "idempotency": state }))), Ok(becomes), "{state}");
        }
        let denied = json!({ "approval": "ann.x", "state": "denied" });
        assert_eq!(become_of(&error(code::PERMISSION_DENIED, &denied)), Ok("failed"));
        assert_eq!(become_of(&error(code::METHOD_NOT_FOUND, &none)), Ok("error"));
    }
}
