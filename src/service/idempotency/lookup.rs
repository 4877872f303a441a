//! What is known of a task, for its caller and nobody else; and its caller's wish that it end.
//! Never tells a task of somebody else from none.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::value::RawValue;

use super::entry::{GRACE_MS, Head, State, TaskHead};
use super::{Idempotency, Idempotent, Ticket, lock};
use crate::auth::{Caller, OutcomeKey, OutcomeStoreError, Verifier};
use crate::rpc::{Limits, Responses};
use crate::service::streams::{Ending, OpenCall, Progress};
use crate::wire::HmacKey;

/// Whose task is asked for: that of this caller, by the method and its own key.
#[derive(Debug, Clone, Copy)]
pub(in crate::service) struct TaskAsked<'a> {
    pub(in crate::service) caller: &'a Caller,
    pub(in crate::service) method: &'a str,
    pub(in crate::service) key: &'a str,
}

/// What is known of a task.
#[derive(Debug, Default, Serialize)]
pub(in crate::service) struct TaskStatus {
    /// `absent`, `working`, `completed`, `failed`, `cancelled`, `unknown` or `not_kept`.
    state: &'static str,
    /// When it began, in seconds since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    started: Option<u64>,
    /// When it is stopped at the latest, in seconds since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u64>,
    /// When it had ended, in seconds since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<u64>,
    /// Until when that is known, in seconds since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<u64>,
    /// For how long it will be known once the task has ended, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    keep: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<Progress>,
    /// Its caller has asked that it end.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    cancelling: bool,
    /// When it may be worth asking again.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    /// The response of the method, with the id `null`.
    #[serde(skip_serializing_if = "Option::is_none")]
    response: Option<Box<RawValue>>,
}

/// An entry, as it is now.
struct Stored {
    key: OutcomeKey,
    declared: Idempotent,
    revision: u64,
    /// `None` if the entry is not of this service.
    head: Option<Head>,
    body: Vec<u8>,
}

impl Idempotency {
    /// What is known of a task. Also of a call of such a method whose caller waits, or waited, for its outcome.
    pub(in crate::service) async fn task(
        &self,
        asked: TaskAsked<'_>,
        verifier: &Verifier,
        now_ms: u64,
    ) -> Result<TaskStatus, OutcomeStoreError> {
        let mac = self.mac(verifier).ok_or(OutcomeStoreError::Unavailable)?;
        let stored = self.stored(asked, &mac).await?;
        Ok(stored.map_or_else(|| self.absent(asked.method), |stored| self.status(&stored, now_ms)))
    }

    /// Ends a task, wherever it runs, and returns what is known of it. One that runs at another replica ends when that renews its claim.
    pub(in crate::service) async fn cancel(
        &self,
        asked: TaskAsked<'_>,
        verifier: &Verifier,
        now_ms: u64,
    ) -> Result<TaskStatus, OutcomeStoreError> {
        let mac = self.mac(verifier).ok_or(OutcomeStoreError::Unavailable)?;
        for _ in 0..ATTEMPTS {
            let Some(stored) = self.stored(asked, &mac).await? else { return Ok(self.absent(asked.method)) };
            if let Some(open) = self.here(&stored.key).filter(|open| open.has_no_caller()) {
                open.end(Ending::Cancelled);
                return Ok(self.status(&stored, now_ms));
            }
            let status = self.status(&stored, now_ms);
            let Some((head, task)) = stored.cancellable(now_ms) else { return Ok(status) };
            let keep = stored.declared.keep + Duration::from_millis(head.until_ms.saturating_sub(now_ms) + GRACE_MS);
            let marked = Head { task: Some(TaskHead { cancel: true, ..task }), ..head };
            let entry = marked.sealed(&mac, &stored.key, None);
            match self.store.replace(&stored.key, stored.revision, entry, keep).await {
                Ok(_) => return Ok(TaskStatus { cancelling: true, ..status }),
                // It was renewed, or has ended.
                Err(OutcomeStoreError::Taken) => {}
                Err(error) => return Err(error),
            }
        }
        Err(OutcomeStoreError::Unavailable)
    }

    async fn stored(&self, asked: TaskAsked<'_>, mac: &HmacKey) -> Result<Option<Stored>, OutcomeStoreError> {
        let declared = self.methods.get(asked.method).filter(|declared| declared.task.is_some());
        let Some(declared) = declared.copied() else { return Ok(None) };
        let key = self.key_of(asked.caller, asked.method, asked.key);
        let Some((revision, content)) = self.store.read(&key).await? else { return Ok(None) };
        let (head, body) = Head::open(mac, &key, &content).unzip();
        if head.as_ref().is_some_and(|head| head.state == State::NotStarted) {
            return Ok(None);
        }
        let body = body.unwrap_or_default().to_vec();
        Ok(Some(Stored { key, declared, revision, head, body }))
    }

    /// There is no such task. If there were one, it would be known for so long after its end.
    fn absent(&self, method: &str) -> TaskStatus {
        let declared = self.methods.get(method).filter(|declared| declared.task.is_some());
        TaskStatus { keep: declared.map(|declared| declared.keep.as_secs()), ..TaskStatus::absent() }
    }

    fn here(&self, key: &OutcomeKey) -> Option<Arc<OpenCall>> {
        lock(&self.running).get(key).cloned()
    }

    fn status(&self, stored: &Stored, now_ms: u64) -> TaskStatus {
        let keep = stored.declared.keep.as_secs();
        let here = self.here(&stored.key);
        let Some(head) = &stored.head else {
            let state = if here.is_some() { "working" } else { "unknown" };
            return TaskStatus { state, ..TaskStatus::default() };
        };
        let ended = TaskStatus {
            started: head.task.as_ref().map(|task| task.started),
            ended: head.ended,
            expires: head.ended.map(|ended| ended.saturating_add(keep)),
            ..TaskStatus::default()
        };
        let state = match head.state {
            State::Running if here.is_some() || head.is_running(now_ms) => {
                let mut status = TaskStatus::working(&stored.declared, head.task.as_ref());
                if let Some(open) = here {
                    status.progress = open.said().or(status.progress);
                    status.cancelling |= open.ending().is_some();
                }
                return status;
            }
            State::Done => match Responses::parse(&stored.body, &Limits::default()) {
                Ok(Responses::Single(response)) => {
                    let text = std::str::from_utf8(&stored.body).ok().map(str::to_owned);
                    let response_text = text.and_then(|text| RawValue::from_string(text).ok());
                    let state = if response.outcome.is_ok() { "completed" } else { "failed" };
                    return TaskStatus { state, response: response_text, ..ended };
                }
                _ => "not_kept",
            },
            State::Cancelled => "cancelled",
            State::NotKept => "not_kept",
            State::Running | State::Unknown | State::NotStarted => "unknown",
        };
        TaskStatus { state, ..ended }
    }
}

impl Ticket {
    /// Until when its claim holds, in milliseconds since the Unix epoch.
    pub(in crate::service) fn until_ms(&self) -> u64 {
        self.attempt.deadline_ms
    }

    /// What is known of a task that begins.
    pub(in crate::service) fn status(&self) -> TaskStatus {
        TaskStatus::working(&self.attempt.declared, self.attempt.task.as_deref())
    }
}

impl Stored {
    /// The claim of a task that runs elsewhere and is not to end yet.
    fn cancellable(&self, now_ms: u64) -> Option<(Head, TaskHead)> {
        let head = self.head.clone().filter(|head| head.is_running(now_ms))?;
        let task = head.task.clone().filter(|task| !task.cancel)?;
        Some((head, task))
    }
}

impl TaskStatus {
    fn working(declared: &Idempotent, task: Option<&TaskHead>) -> Self {
        Self {
            state: "working",
            started: task.map(|task| task.started),
            limit: task.map(|task| task.limit_ms / 1000),
            keep: Some(declared.keep.as_secs()),
            progress: task.and_then(|task| task.progress.clone()),
            cancelling: task.is_some_and(|task| task.cancel),
            retry_after_ms: Some(RETRY_AFTER_MS),
            ..Self::default()
        }
    }

    /// There is none, or none of this caller.
    pub(in crate::service) fn absent() -> Self {
        Self { state: "absent", ..Self::default() }
    }
}

/// When asking again may be worthwhile: an ordinary task takes seconds.
const RETRY_AFTER_MS: u64 = 500;

/// How often a mark is tried anew because the replica that runs the task was quicker.
const ATTEMPTS: u32 = 4;
