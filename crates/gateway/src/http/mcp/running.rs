//! The running requests of sessions, so that other messages can cancel them.
//! Never knows requests of another process: those are cancelled where they run.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sealwire_mcp::Id;
use tokio::sync::oneshot;

use super::sessions::McpClient;
use crate::mcp::message::Fault;

/// The running requests of sessions, and how to stop each. Bounded by callers' limits on concurrent requests.
#[derive(Debug, Default)]
pub(super) struct Running(Mutex<HashMap<(Arc<str>, Id), Stop>>);

/// `None` once used. The entry stays until the request has ended.
pub(super) type Stop = Option<oneshot::Sender<()>>;

impl Running {
    fn lock(&self) -> MutexGuard<'_, HashMap<(Arc<str>, Id), Stop>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops a request. Returns whether it is running here.
    pub(super) fn stop(&self, peer: &Arc<str>, id: Id) -> bool {
        let mut all = self.lock();
        let Some(stop) = all.get_mut(&(Arc::clone(peer), id)) else { return false };
        if let Some(stop) = stop.take() {
            // Fails if the request has just ended.
            let _ = stop.send(());
        }
        true
    }
}

/// A running request that other messages can name. Dropping it frees the name.
pub(super) struct Named {
    running: Arc<Running>,
    key: Option<(Arc<str>, Id)>,
    stopped: Option<oneshot::Receiver<()>>,
}

impl Running {
    /// Registers a request, if it has a session in which other messages can name it.
    pub(super) fn begin(this: &Arc<Self>, client: &McpClient, id: &Id) -> Result<Named, Fault> {
        let running = Arc::clone(this);
        if !client.has_session {
            return Ok(Named { running, key: None, stopped: None });
        }
        let key = (Arc::clone(&client.peer), id.clone());
        let (stop, stopped) = oneshot::channel();
        {
            let mut all = running.lock();
            if all.contains_key(&key) {
                return Err(Fault::new(-32600, "a request with this id is under way"));
            }
            all.insert(key.clone(), Some(stop));
        }
        Ok(Named { running, key: Some(key), stopped: Some(stopped) })
    }
}

impl Named {
    /// Completes when another message has cancelled it.
    pub(super) async fn stopped(&mut self) {
        match &mut self.stopped {
            Some(stopped) => drop(stopped.await),
            None => std::future::pending().await,
        }
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.running.lock().remove(&key);
        }
    }
}
