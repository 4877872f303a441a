//! What goes on without whoever has begun it: requests whose client reads slowly or has gone, and what other replicas are told.
//! Never beyond the end of the door.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::JoinSet;

/// Bounded by the requests that callers may have under way. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Tasks(Arc<Mutex<Option<JoinSet<()>>>>);

impl Default for Tasks {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Some(JoinSet::new()))))
    }
}

impl Tasks {
    /// Goes on with it. Once the door has ended, it is dropped.
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

    /// Gives up all of it.
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
