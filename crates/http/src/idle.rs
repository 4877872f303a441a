//! Idle connections that wait for the next request.
//! Never keeps more than 32 of them, nor one for longer than a server does.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::connection::Connection;

/// How long a connection may stay idle: less than the five seconds after which many servers close one, since what is sent at that moment is
/// lost.
const IDLE: Duration = Duration::from_secs(4);
/// How many idle connections are kept.
const MOST_IDLE: usize = 32;

#[derive(Debug, Default)]
pub(crate) struct IdleConnections(Mutex<Vec<Connection>>);

impl IdleConnections {
    /// A usable connection, the latest first.
    pub(crate) async fn take(&self) -> Option<Connection> {
        loop {
            let mut connection = self.all().pop()?;
            if connection.is_ready().await {
                return Some(connection);
            }
        }
    }

    /// Keeps a connection for a while after its answer has ended.
    pub(crate) fn keep(&self, mut connection: Connection) {
        // Closed, as the server wanted.
        if !connection.rest(IDLE) {
            return;
        }
        let mut all = self.all();
        all.retain(|connection| !connection.is_closed());
        if all.len() >= MOST_IDLE {
            all.remove(0);
        }
        all.push(connection);
    }

    fn all(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
