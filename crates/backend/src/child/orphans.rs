//! What is left of a program that has killed its guard: becomes our child, and is ended.
//! Never ends a process that we have started ourselves, nor one that was our child before the first program: an entry point that starts
//! something and then becomes `sealwire` leaves it such children.
//!
//! A program has the rights of the service's user, and so may kill its guard. What it had put into sessions of its own before would then
//! belong to nobody.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};

/// Processes that we have started and not yet waited for. Locked while one starts, so that none is mistaken for an orphan.
static OURS: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

/// Our children before the first start, with their start times: an id may be another process's by now.
static INHERITED: OnceLock<BTreeSet<(i32, Option<u64>)>> = OnceLock::new();

/// How long orphans may go on starting others.
const GONE: Duration = Duration::from_secs(5);

fn ours() -> MutexGuard<'static, BTreeSet<i32>> {
    OURS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a process of ours; `pid` returns its id.
pub(super) fn started<T>(
    start: impl FnOnce() -> std::io::Result<T>,
    pid: impl Fn(&T) -> Option<Pid>,
) -> std::io::Result<T> {
    let mut ours = ours();
    INHERITED.get_or_init(|| children().map(identity).collect());
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_child_subreaper(Some(getpid()));
    let started = start()?;
    ours.extend(pid(&started).map(|pid| pid.as_raw_nonzero().get()));
    Ok(started)
}

/// Forgets a process of ours that has been waited for: its id may be reused now.
pub(super) fn ended(pid: Pid) {
    ours().remove(&pid.as_raw_nonzero().get());
}

/// Ends everything that has become our child, and what that starts meanwhile. The first process of a container also inherits what others
/// leave behind; there, nothing is ended until the container is.
pub(super) async fn end() {
    if getpid().is_init() {
        return;
    }
    let since = Instant::now();
    loop {
        let left = {
            let ours = ours();
            let inherited = |pid: &Pid| INHERITED.get().is_some_and(|known| known.contains(&identity(*pid)));
            let started = |pid: &Pid| ours.contains(&pid.as_raw_nonzero().get());
            let left: Vec<Pid> = children().filter(|pid| !started(pid) && !inherited(pid)).collect();
            for pid in &left {
                let _ = kill_process(*pid, Signal::KILL);
                let _ = waitpid(Some(*pid), WaitOptions::NOHANG);
            }
            left
        };
        if left.is_empty() {
            return;
        }
        if since.elapsed() > GONE {
            return tracing::error!(
                target: "sealwire::backend",
                "processes of a program that has killed its guard are left: {left:?}; restart the service"
            );
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// All our children; each thread has its own list. None if the system has no such lists.
fn children() -> impl Iterator<Item = Pid> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", getpid().as_raw_nonzero()));
    let lists = tasks.into_iter().flatten().flatten().filter_map(|task| {
        let list = std::fs::read_to_string(task.path().join("children")).ok()?;
        Some(list.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect::<Vec<_>>())
    });
    lists.flatten()
}

/// A process and its start time in clock ticks since boot (proc_pid_stat(5), field 22).
fn identity(pid: Pid) -> (i32, Option<u64>) {
    let pid = pid.as_raw_nonzero().get();
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok();
    // The second field is the program's name, which may contain blanks and brackets.
    let began = stat.as_deref().and_then(|stat| stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok());
    (pid, began)
}
