//! Processor time of processes and threads, from `/proc`.

use std::time::Duration;

/// That of a process' threads whose names begin with `name`, since they began.
pub fn spent(pid: u32, name: &str) -> Duration {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Duration::ZERO };
    let ns = threads.filter_map(|thread| {
        let thread = thread.ok()?.path();
        let named = std::fs::read_to_string(thread.join("comm")).ok()?.starts_with(name);
        let spent = std::fs::read_to_string(thread.join("schedstat")).ok()?;
        named.then(|| spent.split(' ').next()?.parse::<u64>().ok())?
    });
    Duration::from_nanos(ns.sum())
}
