//! Requests of sessions that are under way, and how others name them.
//! Never knows a request of another process: it is cancelled where it runs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::era::Spoken;
use crate::mcp::message::{Fault, Id};

/// Requests of sessions that are under way, and how each is stopped. Bounded by the requests that callers may have under way.
#[derive(Debug, Default)]
pub(super) struct Running(Mutex<HashMap<(Arc<str>, Id), Stop>>);

/// Taken once; the name is free when the request has ended.
pub(super) type Stop = Option<oneshot::Sender<()>>;

impl Running {
    fn lock(&self) -> MutexGuard<'_, HashMap<(Arc<str>, Id), Stop>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is under way here.
    pub(super) fn stop(&self, peer: &Arc<str>, id: Id) -> bool {
        let mut all = self.lock();
        let Some(stop) = all.get_mut(&(Arc::clone(peer), id)) else { return false };
        if let Some(stop) = stop.take() {
            // It may have ended just now.
            let _ = stop.send(());
        }
        true
    }
}

/// A request under way, as others name it.
pub(super) struct Named {
    running: Arc<Running>,
    key: Option<(Arc<str>, Id)>,
    stopped: Option<oneshot::Receiver<()>>,
}

impl Running {
    /// Notes that it is under way, if it has a session in which others can name it.
    pub(super) fn begin(this: &Arc<Self>, spoken: &Spoken, id: &Id) -> Result<Named, Fault> {
        let running = Arc::clone(this);
        if !spoken.has_session {
            return Ok(Named { running, key: None, stopped: None });
        }
        let key = (Arc::clone(&spoken.peer), id.clone());
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
    /// Completes when it is cancelled by its name.
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
