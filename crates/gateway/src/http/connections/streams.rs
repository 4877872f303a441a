//! The tasks of HTTP/2 streams. hyper has no deadline for an answer that its client opens no window for, so each task has one.

use std::future::Future;
use std::sync::Arc;

use hyper::rt::Executor;

use super::activity::{Activity, Phase};

tokio::task_local! {
    static STREAM: Arc<Activity>;
}

/// Runs each stream until it ends, or has taken too long: then dropping it resets the stream. If its connection ends, hyper ends it.
#[derive(Debug, Clone, Copy)]
pub(super) struct StreamExecutor;

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for StreamExecutor {
    fn execute(&self, stream: F) {
        let activity = Arc::new(Activity::new(Phase::BUSY));
        let watch = Arc::clone(&activity);
        tokio::spawn(STREAM.scope(activity, async move {
            tokio::select! {
                biased;
                () = stream => {}
                () = watch.overdue() => {}
            }
        }));
    }
}

/// What the stream does whose task this is; `None` in HTTP/1.1.
pub(super) fn current() -> Option<Arc<Activity>> {
    STREAM.try_with(Arc::clone).ok()
}
