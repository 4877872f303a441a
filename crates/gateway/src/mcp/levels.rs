//! Which log messages the clients of revisions with a handshake want (`logging/setLevel`).
//! Never grows beyond its bound: the client that has been silent for longest is forgotten, and hears no more.

use std::sync::Arc;
use std::time::Duration;

use moka::sync::Cache;
use sealwire_mcp::LogLevel;

/// As many clients as offers are kept for, each for as long as a session is valid.
const CLIENTS: u64 = 16_384;
const IDLE: Duration = Duration::from_secs(7 * 24 * 3_600);

/// The lowest level that each client wants.
#[derive(Debug)]
pub(super) struct Levels(Cache<Arc<str>, LogLevel>);

impl Default for Levels {
    fn default() -> Self {
        Self(Cache::builder().max_capacity(CLIENTS).time_to_idle(IDLE).build())
    }
}

impl Levels {
    pub(super) fn set(&self, client: &Arc<str>, level: LogLevel) {
        self.0.insert(Arc::clone(client), level);
    }

    /// `None` for a client that has not said that it wants any.
    pub(super) fn of(&self, client: &Arc<str>) -> Option<LogLevel> {
        self.0.get(client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_has_its_own_level_and_not_too_many_are_kept() {
        let levels = Levels::default();
        for n in 0..2 * CLIENTS {
            levels.set(&n.to_string().into(), LogLevel::Info);
        }
        levels.set(&"a".into(), LogLevel::Error);
        levels.0.run_pending_tasks();
        assert!(levels.0.entry_count() <= CLIENTS);
        assert_eq!(levels.of(&"b".into()), None);
    }
}
