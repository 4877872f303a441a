//! Which methods callers may call as tasks, for dialects of other packages.
//! Never asks a service more often than MCP does for the same caller: both know what it was offered last.

use std::collections::HashMap;
use std::sync::Arc;

use sealwire::call::TaskMode;

use super::pipeline::admission::Admitted;
use crate::mcp::server::Server;

/// What each service was last known to have as tasks. The service decides.
#[derive(Debug)]
pub struct TaskModes(HashMap<String, Arc<Server>>);

impl TaskModes {
    pub(super) fn new(servers: HashMap<String, Arc<Server>>) -> Self {
        Self(servers)
    }

    /// Whether the caller may call a method of the service as a task; `None` if not, and if the service cannot be asked.
    pub async fn of(&self, admitted: &Admitted, method: &str) -> Option<TaskMode> {
        let service = admitted.expose().service.as_str();
        self.0.get(service)?.task_mode(&*admitted.caller(), service, method).await
    }
}
