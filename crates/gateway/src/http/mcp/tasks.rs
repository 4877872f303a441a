//! Background tasks: requests whose client reads slowly or has gone, and messages to other replicas.
//! Never lets a task outlive the gateway.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::JoinSet;

/// The background tasks, bounded by callers' limits on concurrent requests. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Tasks(Arc<Mutex<Option<JoinSet<()>>>>);

impl Default for Tasks {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Some(JoinSet::new()))))
    }
}

impl Tasks {
    /// Runs a task in the background. Once the gateway has ended, the task is dropped.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tidy();
        if let Some(tasks) = &mut *self.lock() {
            tasks.spawn(task);
        }
    }

    pub(super) fn tidy(&self) {
        if let Some(tasks) = &mut *self.lock() {
            while tasks.try_join_next().is_some() {}
        }
    }

    /// Aborts all tasks.
    pub(super) async fn end(&self) {
        let tasks = self.lock().take();
        if let Some(mut tasks) = tasks {
            tasks.shutdown().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<JoinSet<()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
