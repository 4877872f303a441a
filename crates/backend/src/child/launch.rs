//! What a child process is started with.
//! Never starts anything.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::tally::Tally;

/// What to start, and within which limits.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Launch {
    /// The backend's name, for the log.
    pub name: String,
    /// The program and its arguments. No shell reads them.
    pub command: Vec<OsString>,
    /// The folder that it runs in; the service's own if `None`.
    pub dir: Option<PathBuf>,
    /// Its environment variables besides `PATH`, `HOME` and `LANG`.
    pub env: Vec<(OsString, OsString)>,
    /// The limit of its memory (`RLIMIT_DATA`) in bytes.
    pub memory: u64,
    /// The limit of its open files.
    pub open_files: u64,
    /// Where its processes are counted.
    pub tally: Arc<Tally>,
}

/// How long a program may take to end after SIGTERM.
pub(crate) const STOP: Duration = Duration::from_secs(2);

impl Launch {
    /// A command in the service's own folder, with the default limits of the configuration.
    #[must_use]
    pub fn new(name: impl Into<String>, command: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        Self {
            name: name.into(),
            command: command.into_iter().map(Into::into).collect(),
            dir: None,
            env: Vec::new(),
            memory: crate::tables::BackendConfig::MEMORY_MIB << 20,
            open_files: crate::tables::BackendConfig::OPEN_FILES,
            tally: Arc::default(),
        }
    }
}
