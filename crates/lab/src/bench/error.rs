//! Why nothing was measured. Never of a single call: those are counted.

use sealwire::ClientError;

use crate::bench::plan::PlanError;

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The plan cannot be carried out.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// One of the connections failed.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The broker does not permit its user what bare requests need.
    #[error("the broker does not let this user exchange bare requests: {0}")]
    BareForbidden(String),
    /// Bare requests do not work for another reason.
    #[error("{0}")]
    Bare(String),
    /// A process to watch does not exist.
    #[error("there is no process {pid} (`{name}`) here to read the processor time of")]
    NoProcess {
        /// Its name in the report.
        name: String,
        /// Its process id.
        pid: u32,
    },
    /// The system provides no thread.
    #[error("cannot start an event loop or a thread: {0}")]
    Thread(#[from] std::io::Error),
    /// A thread has ended, which is a bug in this library.
    #[error("a thread of the load has ended")]
    Ended,
    /// It was stopped before anything was measured.
    #[error("stopped before anything was measured")]
    Stopped,
}
