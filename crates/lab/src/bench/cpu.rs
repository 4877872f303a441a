//! Processor time of this process' threads and of processes beside it, from `/proc`.
//! Never mistakes another process that got its number later for the same one.

use std::time::Duration;

/// A process of this machine whose processor time is reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchedProcess {
    /// Its name in the report.
    pub name: String,
    /// Its process id.
    pub pid: u32,
}

/// `/proc/PID/stat` counts hundredths of a second wherever Linux runs Rust (`USER_HZ` of its ABI), so this is the resolution, too.
const TICK: Duration = Duration::from_millis(10);

/// The processor time of a process, or of threads, until now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CpuTime {
    /// When the process was started, which no other process with the same id shares; 0 for this process' own threads.
    started: u64,
    time: Duration,
}

impl CpuTime {
    /// All threads of a process, including those that have ended; `None` if there is no such process.
    pub(crate) fn by(pid: u32) -> Option<Self> {
        Self::parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// This process' threads whose names begin with `name`, to the nanosecond. All of them must live until the next reading.
    pub(crate) fn by_threads(name: &str) -> Option<Self> {
        let threads = std::fs::read_dir("/proc/self/task").ok()?;
        let spent = threads.filter_map(|thread| {
            let thread = thread.ok()?.path();
            let comm = std::fs::read_to_string(thread.join("comm")).ok()?;
            let spent = std::fs::read_to_string(thread.join("schedstat")).ok()?;
            comm.starts_with(name).then(|| spent.split(' ').next()?.parse::<u64>().ok())?
        });
        Some(Self { started: 0, time: Duration::from_nanos(spent.sum()) })
    }

    /// proc_pid_stat(5). The name, in parentheses, may contain anything.
    fn parse(stat: &str) -> Option<Self> {
        let (_, fields) = stat.rsplit_once(") ")?;
        let field = |number: usize| fields.split(' ').nth(number - 3)?.parse::<u64>().ok();
        let ticks = u32::try_from(field(14)?.checked_add(field(15)?)?).ok()?;
        Some(Self { started: field(22)?, time: TICK * ticks })
    }

    /// The time spent since `before`; `None` if it is another process.
    pub(crate) fn since(self, before: Self) -> Option<Duration> {
        (self.started == before.started).then(|| self.time.saturating_sub(before.time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_start_whatever_its_name_is() {
        let stat =
            "7 (a) b (c)) S 1 7 7 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 3 0 9999 1000 100 18446744073709551615 1";
        let spent = CpuTime::parse(stat).unwrap();
        assert_eq!(spent, CpuTime { started: 9999, time: Duration::from_secs(3) });
        let later = CpuTime { time: Duration::from_secs(4), ..spent };
        assert_eq!(later.since(spent), Some(Duration::from_secs(1)));
        assert_eq!(CpuTime { started: 10_000, ..later }.since(spent), None);
        for broken in ["", "7", "7 (a", "7 (a) S 1 2 3"] {
            assert_eq!(CpuTime::parse(broken), None, "{broken}");
        }
    }
}
