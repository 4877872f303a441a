//! A call that its program may stop: it is cancelled at the service, which is then given time to confirm.
//! Never says that a call was cancelled unless the service has signed that.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared, pending};
use tokio::time::{Instant, timeout};

use super::Inner;
use super::answer::Answer;
use super::control::cancel;
use super::error::ClientError;
use super::pending::Expected;

/// When a request is to be stopped.
#[derive(Clone)]
pub(super) struct StopSignal(Shared<BoxFuture<'static, ()>>);

/// A request that may be stopped, and what was sent for it.
#[derive(Debug)]
pub(super) struct Stoppable {
    signal: StopSignal,
    /// The message that was sent last.
    sent: Mutex<Option<Arc<Expected>>>,
}

impl StopSignal {
    pub(super) fn new(signal: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(signal.boxed().shared())
    }

    /// Waits for the signal.
    ///
    /// Cancel safe.
    pub(super) async fn came(&self) {
        self.0.clone().await;
    }
}

impl fmt::Debug for StopSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StopSignal")
    }
}

impl Stoppable {
    pub(super) fn new(signal: StopSignal) -> Self {
        Self { signal, sent: Mutex::default() }
    }

    /// A message is about to be sent.
    pub(super) fn sends(&self, expected: &Arc<Expected>) {
        *self.sent.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(expected));
    }

    /// Whether it was stopped: if so, it is not sent again.
    pub(super) fn is_stopped(&self) -> bool {
        self.signal.0.peek().is_some()
    }

    /// The outcome of `request`. If it is stopped before, it is cancelled at the service, whose answer is awaited.
    pub(super) async fn run(
        &self,
        client: &Arc<Inner>,
        deadline: Instant,
        request: impl Future<Output = Result<Answer, ClientError>>,
    ) -> Result<Answer, ClientError> {
        let mut request = pin!(request);
        tokio::select! {
            biased;
            outcome = &mut request => return outcome,
            () = self.signal.came() => {}
        }
        let sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(expected) = sent else { return Err(ClientError::Cancelled { sent: false }) };
        tokio::select! {
            biased;
            outcome = timeout(CONFIRMED_WITHIN, request) => {
                outcome.unwrap_or(Err(ClientError::Cancelled { sent: true }))
            }
            // It is not known which replica runs it. Where the broker forbids control, nothing is left to wait for.
            () = cancel(Arc::clone(client), expected, || None, pending(), deadline) => {
                Err(ClientError::Cancelled { sent: true })
            }
        }
    }
}

/// How long the service has to confirm.
pub(super) const CONFIRMED_WITHIN: Duration = Duration::from_secs(5);
