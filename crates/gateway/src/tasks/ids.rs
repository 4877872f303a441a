//! The ids of tasks, which clients keep: each says where its service has the task, and at any replica.
//! Never opens for another caller, and never needs anything that a gateway has stored.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::seal::{Kind, Seal, TASK_BYTES, Unsealed};

/// How long an id is good for. Longer than any task: people have a day, a task may run for a week, and its outcome is kept for a week.
const TASK: Duration = Duration::from_secs(16 * 24 * 3_600);
/// The longest arguments of a call that waits for people, in bytes. They are in its id, which clients may repeat in a header.
pub(super) const ARGUMENTS: usize = 4 << 10;

/// Seals the ids of one dialect, if other callers could present them.
#[derive(Debug, Clone)]
pub struct TaskIds {
    kind: Kind,
    seal: Option<Arc<Seal>>,
}

/// What an id stands for.
#[derive(Debug, Serialize, Deserialize)]
pub struct TaskHandle {
    /// The service that has it.
    #[serde(rename = "s")]
    pub service: String,
    /// The method.
    #[serde(rename = "m")]
    pub method: String,
    /// By which its caller, and nobody else, finds it at the service.
    #[serde(rename = "k")]
    pub key: String,
    /// When it was created, in seconds since the Unix epoch.
    #[serde(rename = "c")]
    pub created: u64,
    /// What its client calls the conversation that it belongs to, in dialects that have such.
    #[serde(rename = "x", default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// Set if people have to approve it before it may begin.
    #[serde(rename = "w", default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<AwaitedApproval>,
}

/// A call that people have to approve before it may begin.
#[derive(Debug, Serialize, Deserialize)]
pub struct AwaitedApproval {
    /// With which it is sent again.
    #[serde(rename = "p", default, skip_serializing_if = "Option::is_none")]
    pub(super) params: Option<Box<RawValue>>,
    /// Until when, in seconds since the Unix epoch.
    #[serde(rename = "u")]
    pub(super) until: u64,
}

impl TaskHandle {
    /// A new task of this method, to be found by this key.
    #[must_use]
    pub fn new(service: impl Into<String>, method: impl Into<String>, key: String) -> Self {
        Self { service: service.into(), method: method.into(), key, created: now(), context: None, waits: None }
    }
}

impl TaskIds {
    pub(crate) fn new(kind: Kind, seal: Option<Arc<Seal>>) -> Self {
        Self { kind, seal }
    }

    /// The id of a task of this caller.
    ///
    /// # Errors
    /// The crypto library failed, or the id would be longer than any that is opened.
    pub fn seal(&self, principal: &str, handle: &TaskHandle) -> Result<String, Unsealed> {
        let sealed = match &self.seal {
            None => serde_json::to_vec(handle).map(|text| URL_SAFE_NO_PAD.encode(text)).map_err(|_| Unsealed)?,
            Some(seal) => seal.seal(self.kind, principal, TASK, handle, SystemTime::now())?,
        };
        if sealed.len() <= TASK_BYTES { Ok(sealed) } else { Err(Unsealed) }
    }

    /// The task of this id, if it is one of this caller, in this dialect.
    #[must_use]
    pub fn open(&self, principal: &str, id: &str) -> Option<TaskHandle> {
        match &self.seal {
            None => serde_json::from_slice(&URL_SAFE_NO_PAD.decode(id).ok()?).ok(),
            Some(seal) => seal.open(self.kind, principal, id, SystemTime::now()),
        }
    }
}

/// The time, in seconds since the Unix epoch.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(u64::MAX, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use serde_json::json;

    use super::*;
    use crate::seal::unlike_any;

    #[test]
    fn an_id_opens_for_its_caller_at_any_replica_and_for_nobody_else() {
        let params = serde_json::value::to_raw_value(&json!({ "text": "x".repeat(ARGUMENTS - 12) })).unwrap();
        let waits = Some(AwaitedApproval { params: Some(params), until: u64::MAX });
        let [service, method, key] = ["s".repeat(64), "m".repeat(128), "k".repeat(128)];
        let context = Some("c".repeat(256));
        let handle = TaskHandle { service, method, key, created: u64::MAX, context, waits };
        let [one, other] = [(); 2].map(|()| TaskIds::new(Kind::McpTask, Some(Arc::new(Seal::new(&[7; 32]).unwrap()))));
        let subject = "u".repeat(512);
        let id = one.seal(&subject, &handle).unwrap();
        assert!(id.len() <= TASK_BYTES && id.bytes().all(|byte| byte.is_ascii_graphic()), "{}", id.len());
        let opened = other.open(&subject, &id).unwrap();
        assert_eq!((&opened.method, &opened.key, &opened.context), (&handle.method, &handle.key, &handle.context));
        let params = |handle: TaskHandle| handle.waits.unwrap().params.unwrap().get().to_owned();
        assert_eq!(params(opened), params(handle));
        assert!(other.open("bob", &id).is_none() && other.open(&subject, "t").is_none());
        let foreign = TaskIds::new(Kind::McpTask, Some(Arc::new(Seal::random().unwrap())));
        assert!(foreign.open(&subject, &id).is_none());

        // On standard input and output there is one caller, who finds its tasks in the next process, too.
        let handle = other.open(&subject, &id).unwrap();
        let id = TaskIds::new(Kind::McpTask, None).seal("ann", &handle).unwrap();
        assert_eq!(TaskIds::new(Kind::McpTask, None).open("ann", &id).unwrap().service, handle.service);
    }

    #[test]
    fn an_id_of_one_dialect_is_none_of_another() {
        let seal = Arc::new(Seal::new(&[7; 32]).unwrap());
        let [mcp, a2a] = [Kind::McpTask, Kind::A2aTask].map(|kind| TaskIds::new(kind, Some(Arc::clone(&seal))));
        let handle = TaskHandle::new("demo", "math/add", unlike_any().unwrap());
        for (own, other) in [(&mcp, &a2a), (&a2a, &mcp)] {
            let id = own.seal("ann", &handle).unwrap();
            assert!(own.open("ann", &id).is_some_and(|opened| opened.key == handle.key));
            assert!(other.open("ann", &id).is_none());
        }
    }

    #[test]
    fn an_id_that_nobody_could_open_is_not_made() {
        let ids = TaskIds::new(Kind::A2aTask, Some(Arc::new(Seal::random().unwrap())));
        let mut handle = TaskHandle::new("demo", "math/add", unlike_any().unwrap());
        handle.context = Some("x".repeat(TASK_BYTES));
        assert!(ids.seal("ann", &handle).is_err());
    }
}
