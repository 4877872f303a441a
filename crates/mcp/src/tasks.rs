//! Tasks: calls whose results are asked for later. In 2025-11-25 part of the protocol, in 2026-07-28 an extension of it (SEP-2663).
//! Never knows how a task is found: an id is only text here.

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::message::{Members, insert, raw};
use super::revision::Revision;

/// The name of the extension, among capabilities of 2026-07-28.
pub const EXTENSION: &str = "io.modelcontextprotocol/tasks";
/// The `_meta` member of a result that says of which task it is, in 2025-11-25.
pub const RELATED: &str = "io.modelcontextprotocol/related-task";

/// A task at the moment.
#[derive(Debug)]
pub struct Task {
    /// Its id.
    pub id: String,
    /// How far it is.
    pub state: TaskState,
    /// The same in words, for people and models.
    pub message: Option<String>,
    /// When it was created, in RFC 3339.
    pub created: String,
    /// When it last changed, as far as that is known.
    pub updated: String,
    /// For how long after `created` it can be asked for, in milliseconds, if that is known.
    pub ttl_ms: Option<u64>,
    /// When it may be worth asking again, in milliseconds.
    pub poll_ms: u64,
}

/// How far a task is.
#[derive(Debug)]
pub enum TaskState {
    /// It has not ended.
    Working,
    /// The call has this result, which may say that its tool has failed.
    Ended(Box<RawValue>),
    /// The call has this JSON-RPC error.
    Failed(Box<RawValue>),
    /// Its client has cancelled it.
    Cancelled,
}

impl TaskState {
    /// Whether it stays so.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        !matches!(self, Self::Working)
    }

    /// Its name in this revision: in 2025-11-25, a tool that says that it has failed has not completed.
    fn as_str(&self, revision: Revision) -> &'static str {
        match self {
            Self::Working => "working",
            Self::Ended(result) if revision.has_handshake() && is_error(result) => "failed",
            Self::Ended(_) => "completed",
            Self::Failed(_) => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

impl Task {
    /// The result of a call that has become this task.
    #[must_use]
    pub fn created(&self, revision: Revision) -> Members {
        match revision.has_handshake() {
            true => [("task".to_owned(), raw(&self.members(revision)))].into(),
            false => self.members(revision),
        }
    }

    /// What a client gets that asks for it: in 2026-07-28 with its outcome.
    #[must_use]
    pub fn detailed(&self, revision: Revision) -> Members {
        let mut members = self.members(revision);
        match &self.state {
            _ if revision.has_handshake() => {}
            TaskState::Ended(result) => drop(members.insert("result".to_owned(), result.clone())),
            TaskState::Failed(error) => drop(members.insert("error".to_owned(), error.clone())),
            TaskState::Working | TaskState::Cancelled => {}
        }
        members
    }

    fn members(&self, revision: Revision) -> Members {
        let mut members = Members::new();
        let (ttl, poll) = if revision.has_handshake() { ("ttl", "pollInterval") } else { ("ttlMs", "pollIntervalMs") };
        insert(&mut members, "taskId", &self.id);
        insert(&mut members, "status", &self.state.as_str(revision));
        insert(&mut members, "createdAt", &self.created);
        insert(&mut members, "lastUpdatedAt", &self.updated);
        insert(&mut members, ttl, &self.ttl_ms);
        if let Some(message) = &self.message {
            insert(&mut members, "statusMessage", message);
        }
        if !self.state.is_terminal() {
            insert(&mut members, poll, &self.poll_ms);
        }
        members
    }
}

/// What a server says of itself: it has tasks, and they are not listed.
#[must_use]
pub fn capability(revision: Revision) -> Option<(&'static str, Value)> {
    match revision {
        Revision::V2026_07_28 => Some(("extensions", json!({ EXTENSION: {} }))),
        Revision::V2025_11_25 => Some(("tasks", json!({ "cancel": {}, "requests": { "tools": { "call": {} } } }))),
        _ => None,
    }
}

/// The `data` of the error that tells a client of 2026-07-28 to declare the extension.
#[must_use]
pub fn required() -> Value {
    json!({ "requiredCapabilities": { "extensions": { EXTENSION: {} } } })
}

/// Whether the result of a tool says that it has failed.
#[must_use]
pub fn is_error(result: &RawValue) -> bool {
    #[derive(serde::Deserialize)]
    struct Failed {
        #[serde(rename = "isError", default)]
        is_error: bool,
    }
    serde_json::from_str::<Failed>(result.get()).is_ok_and(|failed| failed.is_error)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    /// Whether a value is of this kind, by the published schema of its revision.
    #[track_caller]
    fn fits(revision: Revision, kind: &str, value: &Value) {
        let text = match revision {
            Revision::V2026_07_28 => include_str!("../../cli/tests/cli/backends/mcp/tasks.json"),
            _ => include_str!("../../cli/tests/cli/backends/mcp/2025-11-25.json"),
        };
        let mut schema: Value = serde_json::from_str(text).unwrap();
        schema["$ref"] = json!(format!("#/$defs/{kind}"));
        let validator = jsonschema::options().offline().build(&schema).unwrap();
        let wrong: Vec<String> = validator.iter_errors(value).map(|error| error.to_string()).collect();
        assert!(wrong.is_empty(), "{kind}: {value}\n{wrong:?}");
    }

    fn task(state: TaskState) -> Task {
        let time = || "2026-07-28T10:30:00Z".to_owned();
        let (id, message) = ("t".to_owned(), Some("step 1".to_owned()));
        Task { id, state, message, created: time(), updated: time(), ttl_ms: None, poll_ms: 1_000 }
    }

    /// As a result of 2026-07-28 says what it is.
    fn of_type(kind: &str, mut members: Members) -> Value {
        insert(&mut members, "resultType", &kind);
        serde_json::to_value(members).unwrap()
    }

    #[test]
    fn row_41_tasks_have_the_forms_that_are_published_for_each_revision() {
        let (new, old) = (Revision::V2026_07_28, Revision::V2025_11_25);
        let result = |is_error: bool| TaskState::Ended(raw(&json!({ "content": [], "isError": is_error })));
        let error = || TaskState::Failed(raw(&json!({ "code": -32603, "message": "m" })));
        for (state, names) in [
            (TaskState::Working, ["working", "working"]),
            (result(false), ["completed", "completed"]),
            (result(true), ["completed", "failed"]),
            (error(), ["failed", "failed"]),
            (TaskState::Cancelled, ["cancelled", "cancelled"]),
        ] {
            let task = Task { ttl_ms: Some(60_000), ..task(state) };
            let found = of_type("complete", task.detailed(new));
            fits(new, "GetTaskResult", &found);
            assert_eq!((&found["status"], &found["ttlMs"]), (&json!(names[0]), &json!(60_000)), "{found}");
            let outcome = [found.get("result").is_some(), found.get("error").is_some()];
            assert_eq!(outcome, [names[0] == "completed", names[0] == "failed"], "{found}");
            let found = serde_json::to_value(task.detailed(old)).unwrap();
            fits(old, "GetTaskResult", &found);
            fits(old, "CancelTaskResult", &found);
            assert_eq!((&found["status"], &found["ttl"]), (&json!(names[1]), &json!(60_000)), "{found}");
            assert!(found.get("result").is_none() && found.get("error").is_none(), "{found}");
        }
        let begun = task(TaskState::Working);
        let created = of_type("task", begun.created(new));
        fits(new, "CreateTaskResult", &created);
        assert_eq!((&created["ttlMs"], &created["pollIntervalMs"]), (&Value::Null, &json!(1_000)));
        let created = serde_json::to_value(begun.created(old)).unwrap();
        fits(old, "CreateTaskResult", &created);
        assert_eq!(created["task"]["pollInterval"], 1_000, "{created}");
    }

    #[test]
    fn only_revisions_that_have_tasks_are_told_of_them() {
        for name in Revision::NAMES {
            let revision = Revision::parse(name).unwrap();
            assert_eq!(capability(revision).is_some(), revision.has_tasks(), "{name}");
        }
        let (name, tasks) = capability(Revision::V2025_11_25).unwrap();
        let capabilities = json!({ name: tasks });
        fits(Revision::V2025_11_25, "ServerCapabilities", &capabilities);
        assert!(capabilities["tasks"].get("list").is_none());
        assert_eq!(capability(Revision::V2026_07_28).unwrap(), ("extensions", json!({ EXTENSION: {} })));
    }
}
