//! One child process: started within limits, heard, ended with everything that it has started.
//! Never hands it anything of the service's environment that the configuration does not name, and never waits for it unbounded.

pub mod guard;
mod orphans;
mod said;
mod supervisor;

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::process::{ChildStdin, ChildStdout, Command};
use tokio::task::JoinHandle;

pub(crate) use said::{Rate, brief, visible};
pub(crate) use supervisor::{CLOSED, UNREAD};
pub use supervisor::{Restarts, Supervisor};

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
    /// What it gets beside `PATH`, `HOME` and `LANG`.
    pub env: Vec<(OsString, OsString)>,
    /// Its memory (`RLIMIT_DATA`) in bytes.
    pub memory: u64,
    /// Its open files.
    pub open_files: u64,
}

/// A process that runs. Dropping it ends the process, and what that has started, soon.
#[derive(Debug)]
pub struct Child {
    guard: tokio::process::Child,
    pid: Option<Pid>,
    /// What the program reads. Once taken and dropped, it reads the end.
    pub stdin: Option<ChildStdin>,
    /// What the program prints.
    pub stdout: Option<ChildStdout>,
    said: JoinHandle<()>,
    ended: bool,
    /// Ends what the program leaves behind.
    ending: Option<JoinHandle<()>>,
}

/// What a child has of the service's environment, in any case.
const PASSED: [&str; 3] = ["PATH", "HOME", "LANG"];

/// How long a program has after SIGTERM.
pub(crate) const STOP: Duration = Duration::from_secs(2);
/// How long the guard may take beyond that.
const GUARD: Duration = Duration::from_secs(8);
/// How long one that was killed may take to go.
const KILLED: Duration = Duration::from_secs(1);

impl Launch {
    /// A program without arguments, in our own folder, with the limits that the configuration has when it says nothing.
    #[must_use]
    pub fn new(name: impl Into<String>, command: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        Self {
            name: name.into(),
            command: command.into_iter().map(Into::into).collect(),
            dir: None,
            env: Vec::new(),
            memory: sealwire::BackendConfig::MEMORY_MIB << 20,
            open_files: sealwire::BackendConfig::OPEN_FILES,
        }
    }

    /// Starts it: our own program once more, as the guard of the child.
    ///
    /// # Errors
    /// The guard cannot be started. What the guard cannot start ends with code 127, and says why on stderr.
    pub fn start(&self) -> io::Result<Child> {
        let mut command = Command::new(ourselves()?);
        command.args(guard::words(self)).env_clear();
        command.envs(PASSED.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        if let Some(dir) = &self.dir {
            command.current_dir(dir);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A group of its own: Ctrl-C at our terminal is for us, who end the child in order.
        command.process_group(0);
        let pid = |guard: &tokio::process::Child| Pid::from_raw(i32::try_from(guard.id()?).ok()?);
        let mut guard = orphans::started(|| command.spawn(), pid)?;
        let pid = pid(&guard);
        let said = tokio::spawn(said::log(self.name.clone(), guard.stderr.take()));
        Ok(Child {
            pid,
            stdin: guard.stdin.take(),
            stdout: guard.stdout.take(),
            guard,
            said,
            ended: false,
            ending: None,
        })
    }
}

/// Our own program, also after its file was replaced by that of another version.
fn ourselves() -> io::Result<PathBuf> {
    if cfg!(target_os = "linux") { Ok(PathBuf::from("/proc/self/exe")) } else { std::env::current_exe() }
}

impl Child {
    /// Waits until it has ended, by itself or not, with all that it has started.
    ///
    /// # Errors
    /// The operating system does not tell.
    ///
    /// Cancel safe.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.guard.wait().await?;
        if !self.ended {
            self.ended = true;
            // Nobody has ended the program if something has killed its guard. Where that did, nobody is left in the group.
            if let Some(pid) = self.pid {
                let _ = kill_process_group(pid, Signal::KILL);
                orphans::ended(pid);
            }
            if status.code().is_none() {
                // By itself: whoever waits may be dropped while this goes on.
                self.ending = Some(tokio::spawn(orphans::end()));
            }
            // Its last words are in the pipe.
            drop(tokio::time::timeout(Duration::from_millis(500), &mut self.said).await);
        }
        if let Some(ending) = &mut self.ending {
            // It cannot fail, and asks nothing of who waits.
            let _ = ending.await;
            self.ending = None;
        }
        Ok(status)
    }

    /// Ends it: the end of its input, SIGTERM, and SIGKILL two seconds later, each to all that it has started. Takes
    /// eleven seconds at most.
    pub async fn stop(mut self) {
        self.stdin = None;
        self.tell(Signal::TERM);
        if tokio::time::timeout(STOP + GUARD, self.wait()).await.is_err() {
            if let Some(pid) = self.pid {
                let _ = kill_process_group(pid, Signal::KILL);
            }
            drop(tokio::time::timeout(KILLED, self.wait()).await);
        }
    }

    fn tell(&self, signal: Signal) {
        if let Some(pid) = self.pid.filter(|_| !self.ended) {
            // Gone already.
            let _ = kill_process(pid, signal);
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.tell(Signal::TERM);
        if self.ended {
            self.said.abort();
        }
    }
}
