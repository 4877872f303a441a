//! Where answers and the frames of streams are published: on the connection that agents cannot reach, wherever that delivers them.
//! Never lets frames of one call overtake each other on a connection.

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

use super::control_handler::Sessions;
use crate::log_limiter::LogLimiter;
use crate::name::Name;
use crate::nats::{PublishError, Session};
use crate::service::Outlet;
use crate::wire::SealedFrame;

/// The session on which to publish what answers a message that arrived by `arrival`: one of `sessions`, if that is at the same broker or
/// `arrival` has ended, and else `arrival`.
///
/// Brokers of a cluster tell each other of subscriptions, and each hears of a new inbox in its own time. Only where a request passed has
/// its reply subject certainly passed before; another broker may drop the answer to a caller that has just come, and tells nobody.
pub(super) fn publisher(sessions: &Sessions, arrival: &Arc<Session>) -> Option<Arc<Session>> {
    let own = sessions.borrow().clone();
    let is_elsewhere = own.as_ref().is_none_or(|own| own.server_id() != arrival.server_id());
    if is_elsewhere && arrival.is_up() { Some(Arc::clone(arrival)) } else { own }
}

/// Makes the outlets of messages.
#[derive(Debug, Clone)]
pub(super) struct BusOutlet(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    replica: Name,
    sessions: Sessions,
    lines: LogLimiter,
}

/// Publishes the frames that answer one message.
#[derive(Debug)]
struct MessageOutlet {
    shared: Arc<Shared>,
    arrival: Arc<Session>,
}

impl BusOutlet {
    pub(super) fn new(replica: Name, sessions: Sessions) -> Self {
        Self(Arc::new(Shared { replica, sessions, lines: LogLimiter::default() }))
    }

    /// The outlet of a message that arrived by this session.
    pub(super) fn at(&self, arrival: &Arc<Session>) -> Arc<dyn Outlet> {
        Arc::new(MessageOutlet { shared: Arc::clone(&self.0), arrival: Arc::clone(arrival) })
    }
}

impl Outlet for MessageOutlet {
    fn replica(&self) -> &Name {
        &self.shared.replica
    }

    /// Waits for a connection for as long as it takes: the call ends before that, unless somebody extends it.
    fn send<'a>(&'a self, frame: &'a SealedFrame) -> BoxFuture<'a, ()> {
        async move {
            let Shared { sessions, lines, .. } = &*self.shared;
            // There is nearly always one, and it takes the frame at once.
            if let Some(session) = publisher(sessions, &self.arrival)
                && frame.send(&session).await.is_ok()
            {
                return;
            }
            let mut sessions = sessions.clone();
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
                        if let Some(suppressed) = lines.check() {
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
