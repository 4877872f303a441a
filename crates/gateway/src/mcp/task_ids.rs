//! The ids of tasks, which clients keep: each says where its service has the task, and at any replica.
//! Never opens for another caller, and never needs anything that a gateway has stored.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::message::Fault;
use crate::catalogue::Tool;
use crate::seal::{Kind, Seal, TASK_BYTES, unlike_any};

/// How long an id is good for. Longer than any task: people have a day, a task may run for a week, and its outcome is kept for a week.
const TASK: Duration = Duration::from_secs(16 * 24 * 3_600);
/// The longest arguments of a call that waits for people, in bytes. They are in its id, which clients may repeat in a header.
pub(super) const ARGUMENTS: usize = 4 << 10;

/// Seals ids, if other callers could present them.
pub(super) struct TaskIds(Option<Arc<Seal>>);

/// What an id stands for.
#[derive(Serialize, Deserialize)]
pub(super) struct TaskHandle {
    #[serde(rename = "s")]
    pub(super) service: String,
    #[serde(rename = "m")]
    pub(super) method: String,
    /// By which its caller, and nobody else, finds it at the service.
    #[serde(rename = "k")]
    pub(super) key: String,
    /// When it was created, in seconds since the Unix epoch.
    #[serde(rename = "c")]
    pub(super) created: u64,
    #[serde(rename = "w", default, skip_serializing_if = "Option::is_none")]
    pub(super) waits: Option<AwaitedApproval>,
}

/// A call that people have to approve before it may begin.
#[derive(Serialize, Deserialize)]
pub(super) struct AwaitedApproval {
    /// With which it is sent again.
    #[serde(rename = "p")]
    pub(super) params: Box<RawValue>,
    /// Until when, in seconds since the Unix epoch.
    #[serde(rename = "u")]
    pub(super) until: u64,
}

impl TaskHandle {
    /// A new task of this tool.
    pub(super) fn new(tool: &Tool) -> Result<Self, Fault> {
        let key = unlike_any().map_err(|_| Fault::internal("the gateway cannot name a task, nothing was sent"))?;
        let (service, method) = (tool.service.clone(), tool.method.name.clone());
        Ok(Self { service, method, key, created: now(), waits: None })
    }
}

impl TaskIds {
    pub(super) fn new(seal: Option<Arc<Seal>>) -> Self {
        Self(seal)
    }

    /// The id of a task of this caller.
    pub(super) fn seal(&self, principal: &str, handle: &TaskHandle) -> Result<String, Fault> {
        let sealed = match &self.0 {
            None => serde_json::to_vec(handle).ok().map(|text| URL_SAFE_NO_PAD.encode(text)),
            Some(seal) => seal.seal(Kind::McpTask, principal, TASK, handle, SystemTime::now()).ok(),
        };
        let sealed = sealed.filter(|sealed| sealed.len() <= TASK_BYTES);
        sealed.ok_or_else(|| Fault::internal("the gateway cannot seal the id of the task"))
    }

    /// The task of this id, if it is one of this caller.
    pub(super) fn open(&self, principal: &str, id: &str) -> Option<TaskHandle> {
        match &self.0 {
            None => serde_json::from_slice(&URL_SAFE_NO_PAD.decode(id).ok()?).ok(),
            Some(seal) => seal.open(Kind::McpTask, principal, id, SystemTime::now()),
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

    #[test]
    fn an_id_opens_for_its_caller_at_any_replica_and_for_nobody_else() {
        let params = serde_json::value::to_raw_value(&json!({ "text": "x".repeat(ARGUMENTS - 12) })).unwrap();
        let waits = Some(AwaitedApproval { params, until: u64::MAX });
        let names = ["s".repeat(64), "m".repeat(128), "k".repeat(128)];
        let [service, method, key] = names;
        let handle = TaskHandle { service, method, key, created: u64::MAX, waits };
        let [one, other] = [(); 2].map(|()| TaskIds::new(Some(Arc::new(Seal::new(&[7; 32]).unwrap()))));
        let subject = "u".repeat(512);
        let id = one.seal(&subject, &handle).unwrap();
        assert!(id.len() <= TASK_BYTES && id.bytes().all(|byte| byte.is_ascii_graphic()), "{}", id.len());
        let opened = other.open(&subject, &id).unwrap();
        assert_eq!((&opened.method, &opened.key), (&handle.method, &handle.key));
        assert_eq!(opened.waits.unwrap().params.get(), handle.waits.as_ref().unwrap().params.get());
        assert!(other.open("bob", &id).is_none() && other.open(&subject, "t").is_none());
        let foreign = TaskIds::new(Some(Arc::new(Seal::random().unwrap())));
        assert!(foreign.open(&subject, &id).is_none());

        // On standard input and output there is one caller, who finds its tasks in the next process, too.
        let id = TaskIds::new(None).seal("ann", &handle).unwrap();
        assert_eq!(TaskIds::new(None).open("ann", &id).unwrap().service, handle.service);
    }
}
