//! Publishes the frames of streams on the connection that agents cannot reach.
//! Never lets frames of one call overtake each other on a connection.

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

use super::control_handler::Sessions;
use crate::log_limiter::LogLimiter;
use crate::name::Name;
use crate::nats::PublishError;
use crate::service::Outlet;
use crate::wire::SealedFrame;

/// Publishes frames on the bus.
#[derive(Debug)]
pub(super) struct BusOutlet {
    pub(super) replica: Name,
    pub(super) sessions: Sessions,
    pub(super) lines: LogLimiter,
}

impl Outlet for BusOutlet {
    fn replica(&self) -> &Name {
        &self.replica
    }

    /// Waits for a connection for as long as it takes: the call ends before that, unless somebody extends it.
    fn send<'a>(&'a self, frame: &'a SealedFrame) -> BoxFuture<'a, ()> {
        async move {
            // There is nearly always one, and it takes the frame at once.
            let session = self.sessions.borrow().clone();
            if let Some(session) = session
                && frame.send(&session).await.is_ok()
            {
                return;
            }
            let mut sessions = self.sessions.clone();
            loop {
                let session = match sessions.wait_for(Option::is_some).await {
                    Ok(session) => session.clone(),
                    // The service has stopped.
                    Err(_) => return,
                };
                let Some(session) = session else { continue };
                match frame.send(&session).await {
                    Err(PublishError::Gone) => {}
                    Ok(()) => return,
                    Err(error) => {
                        // A caller can ask again and again for a frame that is too large for another broker.
                        if let Some(suppressed) = self.lines.check() {
                            tracing::warn!(target: "sealwire::serve", %error, suppressed, "a frame was not sent");
                        }
                        return;
                    }
                }
                if sessions.changed().await.is_err() {
                    return;
                }
            }
        }
        .boxed()
    }
}
