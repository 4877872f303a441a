//! The process between the service and a program: sets the program's limits, starts it, and ends it with everything that it has started,
//! when it is told to, when the program ends, and when the service is gone for whatever reason.
//! Never runs a shell, and never gives the program a right that the service's user does not have.
//!
//! It is the command itself, started once more. So the restrictions are in force before the program runs, and whatever becomes of the
//! service, somebody is left to clean up.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitOptions, getpid, getppid, getrlimit, kill_process, kill_process_group,
    setrlimit, wait,
};
use tokio::signal::unix::{SignalKind, signal};

use super::found::unstartable;
use super::launch::{Launch, STOP};

/// The first argument of a guard's command line.
pub const WORD: &str = "backend-child";

/// How often a guard checks whether the service is still there.
const LOOK: Duration = Duration::from_millis(200);
/// How long killed processes may take to be gone.
const GONE: Duration = Duration::from_secs(5);
/// How long the program may take to end after SIGTERM once the service is gone: nobody waits for what it still does, and whoever starts
/// the service anew should not find it.
const LEFT: Duration = Duration::from_millis(500);
/// The longest command with its arguments, in bytes: the most that Linux starts a program with.
const COMMAND: usize = 2 << 20;

/// The command line of a guard, and what it reads first from its standard input: the command of the program, whose arguments may hold a
/// caller's parameters. A command line is for everyone on the machine to see.
pub(super) fn words(launch: &Launch) -> io::Result<(Vec<String>, Vec<u8>)> {
    let mut command = Vec::new();
    for word in &launch.command {
        command.extend_from_slice(word.as_bytes());
        // No argument of a program can have one inside.
        command.push(0);
    }
    if command.len() > COMMAND {
        return Err(io::Error::other("the command with its arguments has more than 2 MiB"));
    }
    let bytes = u64::try_from(command.len()).unwrap_or(u64::MAX);
    let numbers = [std::process::id().into(), launch.memory, launch.open_files, bytes];
    Ok(([WORD.to_owned()].into_iter().chain(numbers.map(|number| number.to_string())).collect(), command))
}

/// The command, from standard input. Nothing behind it is read: that is for the program.
fn command(bytes: u64) -> io::Result<Vec<OsString>> {
    let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes <= COMMAND);
    let mut text = vec![0; bytes.ok_or_else(|| io::Error::other("the command is too long"))?];
    // Not through `io::stdin`, which reads ahead.
    File::from(rustix::stdio::stdin().try_clone_to_owned()?).read_exact(&mut text)?;
    let words = text.strip_suffix(&[0]).map(|text| text.split(|byte| *byte == 0));
    Ok(words.into_iter().flatten().map(|word| OsString::from_vec(word.to_vec())).collect())
}

/// Acts as a guard if our own command line says so; otherwise returns `None`.
///
/// Must be called before anything else: the service starts its own program for this.
#[must_use]
pub fn answer() -> Option<ExitCode> {
    let mut words = std::env::args_os().skip(1);
    if words.next().as_deref() != Some(OsStr::new(WORD)) {
        return None;
    }
    let guarded = guard(words).unwrap_or_else(|error| {
        // If nobody reads stderr, there is nothing left to say.
        let _ = writeln!(io::stderr(), "{error}");
        NOT_STARTED
    });
    Some(ExitCode::from(guarded))
}

/// The exit code of shells for a command that does not exist.
const NOT_STARTED: u8 = 127;

/// Runs the program to its end; returns its exit code as shells report it.
fn guard(mut words: impl Iterator<Item = OsString>) -> io::Result<u8> {
    let mut number = || words.next()?.to_str()?.parse::<u64>().ok();
    let (Some(parent), Some(memory), Some(open_files), Some(bytes)) = (number(), number(), number(), number()) else {
        return Err(io::Error::other("this command is for `sealwire serve` itself"));
    };
    let mut command = command(bytes)?.into_iter();
    let program = command.next().ok_or_else(|| io::Error::other("no program"))?;
    let parent = i32::try_from(parent).ok().and_then(Pid::from_raw);
    limit(Resource::Data, memory);
    limit(Resource::Nofile, open_files);
    alone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut stop = signal(SignalKind::terminate())?;
        let mut changed = signal(SignalKind::child())?;
        let started = Command::new(&program).args(command).spawn();
        let child = started.map_err(|error| io::Error::other(unstartable(&program, &error)))?;
        let main = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let_go();
        let mut look = tokio::time::interval(LOOK);
        let (mut ended, mut patience) = (None, STOP);
        while ended.is_none() {
            tokio::select! {
                _ = changed.recv() => ended = reap(main),
                _ = stop.recv() => break,
                _ = look.tick() => if getppid() != parent {
                    patience = LEFT;
                    break;
                },
            }
        }
        if ended.is_none() {
            let _ = kill_process_group(getpid(), Signal::TERM);
            let patience = tokio::time::sleep(patience);
            tokio::pin!(patience);
            while ended.is_none() {
                tokio::select! {
                    _ = changed.recv() => ended = reap(main),
                    () = &mut patience => break,
                }
            }
        }
        let since = Instant::now();
        while let Some(left) = children().filter(|left| !left.is_empty()) {
            for pid in left {
                let _ = kill_process(pid, Signal::KILL);
            }
            if since.elapsed() > GONE {
                // Something starts processes faster than they can be found. This ends us, too.
                let _ = kill_process_group(getpid(), Signal::KILL);
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
            ended = ended.or(reap(main));
        }
        Ok(ended.map_or(128 + 9, code))
    })
}

/// Collects all that has ended, including the program's orphans; returns the program's own status if it is among them.
fn reap(main: Option<Pid>) -> Option<ExitStatus> {
    let mut status = None;
    while let Ok(Some((pid, ended))) = wait(WaitOptions::NOHANG) {
        if Some(pid) == main {
            status = Some(ExitStatus::from_raw(ended.as_raw()));
        }
    }
    status
}

fn code(status: ExitStatus) -> u8 {
    let signal = status.signal().map_or(1, |signal| 128 + signal);
    u8::try_from(status.code().unwrap_or(signal)).unwrap_or(1)
}

/// Lowers a limit for us and for the program, which cannot raise it again.
fn limit(resource: Resource, most: u64) {
    let least = |limit: Option<u64>| limit.map_or(most, |limit| limit.min(most));
    let most = least(getrlimit(resource).maximum);
    // Lowering a limit is always allowed.
    let _ = setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) });
}

/// No set-uid program gives the child rights, and a process that loses its parent becomes our child, so that none escapes.
#[cfg(target_os = "linux")]
fn alone() {
    let _ = rustix::thread::set_no_new_privs(true);
    let _ = rustix::process::set_child_subreaper(Some(getpid()));
}

#[cfg(not(target_os = "linux"))]
fn alone() {}

/// Leaves standard input and output to the program: when the program closes them, they are closed.
fn let_go() {
    if let Ok(nothing) = File::options().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(&nothing);
        let _ = rustix::stdio::dup2_stdout(&nothing);
    }
}

/// Our own children. Orphans below the program become ours.
#[cfg(target_os = "linux")]
fn children() -> Option<Vec<Pid>> {
    let list = std::fs::read_to_string(format!("/proc/self/task/{}/children", getpid().as_raw_nonzero()));
    let Ok(list) = list else {
        let _ = kill_process_group(getpid(), Signal::KILL);
        return None;
    };
    Some(list.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect())
}

/// Without a list of children, the group is all that can be reached, and we are in it.
#[cfg(not(target_os = "linux"))]
fn children() -> Option<Vec<Pid>> {
    let _ = kill_process_group(getpid(), Signal::KILL);
    None
}
