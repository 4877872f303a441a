//! How a stream is consumed: its window, its bounds, and who receives what comes beside its items.
//! Never answers a question by itself.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::value::RawValue;

use crate::rpc::{Outcome, Request, RpcError};

/// The options of a stream that a request may have.
#[derive(Clone)]
pub(super) struct StreamOptions {
    /// The most frames beyond those that the application has taken.
    pub(super) window: u64,
    /// The most bytes of the final result.
    pub(super) max_bytes: usize,
    /// How long a subscription lives without being renewed.
    pub(super) lease: Duration,
    pub(super) on_notification: Option<Notified>,
    pub(super) on_ask: Option<Asked>,
}

/// Receives notifications.
pub(super) type Notified = Arc<dyn Fn(Request) + Send + Sync>;

/// Answers questions.
pub(super) type Asked = Arc<dyn Fn(Request) -> Answering + Send + Sync>;

/// An answer being made.
pub(super) type Answering = Pin<Box<dyn Future<Output = Outcome> + Send>>;

impl Default for StreamOptions {
    fn default() -> Self {
        Self { window: 64, max_bytes: 16 << 20, lease: Duration::from_secs(60), on_notification: None, on_ask: None }
    }
}

/// A handler with any kind of future, boxed.
pub(super) fn asked<F, A, R>(handler: F) -> Asked
where
    F: Fn(Request) -> A + Send + Sync + 'static,
    A: Future<Output = Result<R, RpcError>> + Send + 'static,
    R: Serialize,
{
    Arc::new(move |request| {
        let answering = handler(request);
        Box::pin(async move { written(&answering.await?) })
    })
}

fn written(result: &impl Serialize) -> Result<Box<RawValue>, RpcError> {
    serde_json::value::to_raw_value(result).map_err(RpcError::internal)
}

/// Without the handlers, which have no `Debug`.
impl fmt::Debug for StreamOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamOptions")
            .field("window", &self.window)
            .field("max_bytes", &self.max_bytes)
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}
