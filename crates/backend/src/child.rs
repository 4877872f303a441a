//! One child process: starts it within limits, logs its stderr, and ends it with everything that it has started.
//! Never passes on more of the service's environment than `PASSED` and what the configuration names, and never waits without a bound.

pub(crate) mod found;
pub mod guard;
mod launch;
mod orphans;
mod said;
mod supervisor;

use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::io::AsyncWriteExt as _;
use tokio::process::{ChildStdin, ChildStdout, Command};
use tokio::task::JoinHandle;

use self::launch::STOP;
use self::said::Tail;
use crate::tally::Counted;
pub use launch::Launch;
pub(crate) use said::{Rate, brief, visible};
pub(crate) use supervisor::{CLOSED, UNREAD};
pub use supervisor::{Restarts, Supervisor};

/// A running process. Dropping it ends the process, and what that has started, soon.
#[derive(Debug)]
pub struct Child {
    guard: tokio::process::Child,
    pid: Option<Pid>,
    /// The program's input. Once taken and dropped, the program reads the end of it.
    pub stdin: Option<ChildStdin>,
    /// The program's output.
    pub stdout: Option<ChildStdout>,
    said: JoinHandle<()>,
    /// The last that it has printed on stderr.
    tail: Arc<Mutex<Tail>>,
    ended: bool,
    /// Ends what the program leaves behind.
    ending: Option<JoinHandle<()>>,
    _counted: Counted,
}

/// What every child gets of the service's environment.
const PASSED: [&str; 3] = ["PATH", "HOME", "LANG"];

/// How long its guard may take beyond that.
const GUARD: Duration = Duration::from_secs(8);
/// How long reading a program's last words may take: something else may hold the pipe open.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// How long a killed guard may take to be gone.
const KILLED: Duration = Duration::from_secs(1);

impl Launch {
    /// Starts the command under a guard, which is our own program started once more.
    ///
    /// # Errors
    /// The guard cannot be started. If the guard cannot start the program, it ends with code 127 and says why on stderr.
    ///
    /// Cancel safety: a dropped future has started nothing that stays.
    pub async fn start(&self) -> io::Result<Child> {
        self.tally.starts();
        let (words, program) = guard::words(self)?;
        let mut command = Command::new(ourselves()?);
        command.args(words).env_clear();
        command.envs(PASSED.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        if let Some(dir) = &self.dir {
            if !dir.is_dir() {
                return Err(io::Error::other(format!("there is no folder `{}` to run it in", dir.display())));
            }
            command.current_dir(dir);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A process group of its own: Ctrl-C at our terminal is for the service, which ends the child in order.
        command.process_group(0);
        let pid = |guard: &tokio::process::Child| Pid::from_raw(i32::try_from(guard.id()?).ok()?);
        let mut guard = orphans::started(|| command.spawn(), pid)?;
        let pid = pid(&guard);
        let tail = Arc::default();
        let said = tokio::spawn(said::log(self.name.clone(), guard.stderr.take(), Arc::clone(&tail)));
        let (stdin, stdout) = (guard.stdin.take(), guard.stdout.take());
        let mut child =
            Child { pid, stdin, stdout, guard, said, tail, ended: false, ending: None, _counted: self.tally.runs() };
        if let Some(stdin) = &mut child.stdin {
            // If that fails, the guard is gone, and its end says so.
            let _ = stdin.write_all(&program).await;
        }
        Ok(child)
    }
}

/// Our own program, even after its file was replaced by another version.
fn ourselves() -> io::Result<PathBuf> {
    if cfg!(target_os = "linux") { Ok(PathBuf::from("/proc/self/exe")) } else { std::env::current_exe() }
}

impl Child {
    /// Waits until it has ended, by itself or not, with everything that it has started.
    ///
    /// # Errors
    /// The operating system cannot say.
    ///
    /// Cancel safe.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.guard.wait().await?;
        if !self.ended {
            self.ended = true;
            // If something has killed the guard, nobody has ended the program. If the guard ended it, the group is empty.
            if let Some(pid) = self.pid {
                let _ = kill_process_group(pid, Signal::KILL);
                orphans::ended(pid);
            }
            if status.code().is_none() {
                // In a task of its own: this future may be dropped while that goes on.
                self.ending = Some(tokio::spawn(orphans::end()));
            }
        }
        // The pipe still has its last words. Not only the first time: this future may be dropped meanwhile.
        if !self.said.is_finished() {
            drop(tokio::time::timeout(LAST_WORDS, &mut self.said).await);
        }
        if let Some(ending) = &mut self.ending {
            // The task cannot fail, and needs nothing from us.
            let _ = ending.await;
            self.ending = None;
        }
        Ok(status)
    }

    /// The last that it has printed on stderr, for the log: at most 1,024 bytes, with nothing that a terminal would obey.
    #[must_use]
    pub fn last_words(&self) -> String {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner).text()
    }

    /// Ends it: closes its input, sends SIGTERM, and SIGKILL two seconds later, each to everything that it has started. Takes eleven
    /// seconds at most.
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
            // It may be gone already.
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
