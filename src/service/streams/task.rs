//! How far a task under way is, in its own words: nobody takes frames of it.
//! Never keeps more than the last of it.

use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::rpc::one_line;

/// How far a method is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::service) struct Progress {
    progress: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    total: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

impl Progress {
    /// `None` for numbers that JSON has no text for.
    pub(in crate::service) fn new(progress: f64, total: Option<f64>, message: Option<&str>) -> Option<Self> {
        let is_told = progress.is_finite() && total.is_none_or(f64::is_finite);
        is_told.then(|| Self { progress, total, message: message.map(|text| one_line(text, MAX_TEXT)) })
    }
}

/// The most characters of a task's progress.
pub(in crate::service) const MAX_TEXT: usize = 100;

/// What a task has said last.
#[derive(Debug, Default)]
pub(super) struct Said {
    last: Mutex<Option<Progress>>,
    changed: Notify,
}

impl Said {
    pub(super) fn say(&self, progress: Progress) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(progress);
        self.changed.notify_one();
    }

    pub(super) fn last(&self) -> Option<Progress> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until it has said something that nobody has waited for yet.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }
}
