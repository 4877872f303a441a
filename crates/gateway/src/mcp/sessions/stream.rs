//! The stream on which the client of a session hears of changes. It may break at any time, and its client may come back with another.
//! Never lets a client come back without what it may have missed.

use std::sync::Arc;

use super::event::{EventNumbers, Subject};
use super::session::Listener;
use crate::mcp::news::Digests;

/// What a session hears on one of its streams.
#[derive(Debug)]
pub(crate) struct SessionStream {
    listener: Listener,
    numbers: Arc<EventNumbers>,
}

impl SessionStream {
    pub(super) fn new(listener: Listener, numbers: &Arc<EventNumbers>) -> Self {
        Self { listener, numbers: Arc::clone(numbers) }
    }

    /// What the client is to be told, once there is anything, each with the id of its event.
    ///
    /// Cancel safe.
    pub(crate) async fn next(&mut self) -> Vec<(String, Subject)> {
        loop {
            let told = self.listener.take(|| self.numbers.next());
            if !told.is_empty() {
                return told.into_iter().map(|(number, subject)| (self.numbers.id(number), subject)).collect();
            }
            self.listener.more().await;
        }
    }

    /// The lists are now these: the client is to be told which of them it knows otherwise.
    pub(crate) fn look(&self, now: Digests) {
        self.listener.look(now);
    }
}
