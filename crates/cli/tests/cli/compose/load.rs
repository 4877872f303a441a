//! Callers within the running setup, and the outcomes of their calls.
//! Never counts a slow answer as a lost one: the test that starts the load decides how long to wait.

use std::fmt;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use super::stack::Stack;

/// The outcome of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// The right result.
    Result,
    /// The service or a hint reports that this delivery was not executed.
    Refused,
    /// No answer: the call may or may not have run.
    Unknown,
    /// Anything that should never happen.
    Wrong,
}

fn read(line: &str) -> (Kind, String) {
    let said: Value = serde_json::from_str(line).unwrap_or_default();
    let kind = if said["result"] == 5 {
        Kind::Result
    } else if let Some(code) = said["error"]["rpc"]["code"].as_i64() {
        if matches!(code, -32011 | -32014) { Kind::Refused } else { Kind::Wrong }
    } else {
        // Exit codes: 20 the broker or nobody listening, 22 a hint, 23 the deadline.
        match said["error"]["exit"].as_i64() {
            Some(20 | 22) => Kind::Refused,
            Some(23) => Kind::Unknown,
            _ => Kind::Wrong,
        }
    };
    (kind, line.to_owned())
}

/// How long the call took, in milliseconds.
fn took(line: &str) -> f64 {
    serde_json::from_str::<Value>(line).ok().and_then(|line| line["ms"].as_f64()).unwrap_or_default()
}

type Lines = Vec<(Duration, (Kind, String))>;
type Notes = Vec<(Duration, String)>;

/// Callers at work.
pub(crate) struct Running {
    stop: Arc<AtomicBool>,
    lines: Arc<Mutex<Lines>>,
    notes: Arc<Mutex<Notes>>,
    workers: Vec<JoinHandle<()>>,
    watch: JoinHandle<()>,
    began: Instant,
    began_at: SystemTime,
}

impl Running {
    /// The time, as in the lines.
    pub(crate) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Waits until this many calls in a row have been answered after `since`, without a failure.
    pub(crate) fn wait_for_results_since(&self, since: Duration, results: usize, patience: Duration) {
        let began = Instant::now();
        loop {
            let lines = self.lines.lock().unwrap();
            let good = |(at, (kind, _)): &&(Duration, (Kind, String))| *at > since && *kind == Kind::Result;
            let in_a_row = lines.iter().rev().take_while(good).count();
            drop(lines);
            if in_a_row >= results {
                return;
            }
            assert!(began.elapsed() < patience, "{in_a_row} results in a row after {patience:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    pub(crate) fn finish(self) -> Load {
        self.stop.store(true, Ordering::Relaxed);
        let workers = self.workers.len();
        self.workers.into_iter().for_each(|worker| worker.join().unwrap());
        self.watch.join().unwrap();
        Load {
            lines: std::mem::take(&mut self.lines.lock().unwrap()),
            notes: std::mem::take(&mut self.notes.lock().unwrap()),
            workers,
            began_at: self.began_at,
        }
    }
}

/// The outcomes of all calls of a phase.
#[derive(Debug)]
pub(crate) struct Load {
    lines: Lines,
    /// What the callers printed besides their lines, and when the machine stalled.
    notes: Notes,
    pub(crate) workers: usize,
    /// The time from which the times in the lines count.
    began_at: SystemTime,
}

impl Load {
    pub(crate) fn results(&self) -> usize {
        self.lines.iter().filter(|(_, (kind, _))| *kind == Kind::Result).count()
    }

    pub(crate) fn results_after(&self, time: Duration) -> usize {
        self.lines.iter().filter(|(at, (kind, _))| *at > time && *kind == Kind::Result).count()
    }

    pub(crate) fn failures(&self) -> impl Iterator<Item = (Kind, &str)> {
        let failed = self.lines.iter().filter(|(_, (kind, _))| *kind != Kind::Result);
        failed.map(|(_, (kind, line))| (*kind, line.as_str()))
    }

    /// How long the slowest answer took, in milliseconds.
    fn slowest(&self) -> f64 {
        self.lines
            .iter()
            .filter(|(_, (kind, _))| *kind == Kind::Result)
            .map(|(_, (_, line))| took(line))
            .fold(0.0, f64::max)
    }

    pub(crate) fn last_failure(&self) -> Option<Duration> {
        self.lines.iter().filter(|(_, (kind, _))| *kind != Kind::Result).map(|(at, _)| *at).max()
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.lines.extend(other.lines.iter().cloned());
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |kind| self.failures().filter(|(found, _)| *found == kind).count();
        write!(
            f,
            "{} calls: {} answered, the slowest after {:.0} ms, {} refused unexecuted, {} without an answer",
            self.lines.len(),
            self.results(),
            self.slowest(),
            count(Kind::Refused),
            count(Kind::Unknown)
        )
    }
}

impl Stack {
    /// Callers in addition to the agent, with its credentials. Each makes one call at a time, and waits this long for its answer.
    pub(crate) fn load(&self, deadline: Duration) -> Running {
        let container = self.container("planner", 1);
        let (stop, lines) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let notes = Arc::new(Mutex::new(Vec::new()));
        let (began, began_at) = (Instant::now(), SystemTime::now());
        let worker = |_| {
            let (container, stop) = (container.clone(), Arc::clone(&stop));
            let (lines, notes) = (Arc::clone(&lines), Arc::clone(&notes));
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let each = |line: &str| lines.lock().unwrap().push((began.elapsed(), read(line)));
                    call(&container, deadline, each, |note| notes.lock().unwrap().push((began.elapsed(), note)));
                }
            })
        };
        let workers = (0..WORKERS).map(worker).collect();
        let watch = std::thread::spawn({
            let (stop, notes) = (Arc::clone(&stop), Arc::clone(&notes));
            move || notice_stalls(began, &stop, &notes)
        });
        Running { stop, lines, notes, workers, watch, began, began_at }
    }

    /// Fails if a call was lost, neither answered nor refused, with everything known about the time in which it was in progress.
    #[track_caller]
    pub(crate) fn none_lost(&self, load: &Load) {
        let is_lost = |kind| matches!(kind, Kind::Unknown | Kind::Wrong);
        let lost: Vec<&(Duration, (Kind, String))> =
            load.lines.iter().filter(|(_, (kind, _))| is_lost(*kind)).collect();
        let Some((at, (_, line))) = lost.first() else { return };
        let began_at = load.began_at;
        let timed = |at: &Duration, said: &str| format!("{:8.3} s  {said}\n", at.as_secs_f64());
        let told: String = lost.iter().map(|(at, (kind, line))| timed(at, &format!("{kind:?}  {line}"))).collect();
        let sent = at.saturating_sub(Duration::from_secs_f64(took(line) / 1_000.0));
        let (from, to) = (sent.saturating_sub(AROUND), *at + AROUND);
        let notes: String = load.notes.iter().map(|(at, note)| timed(at, note)).collect();
        panic!(
            "{} calls were lost:\n{told}\nthe first one was sent {:.3} s after the beginning, at {}\n\n\
             what its callers said, and stalls of this machine:\n{notes}\n{}",
            lost.len(),
            sent.as_secs_f64(),
            rfc3339(began_at + sent),
            self.logs_between(began_at + from, began_at + to, began_at + sent)
        );
    }

    /// What replicas and brokers logged. Of executed calls, only those that may be the one sent at `sent`.
    fn logs_between(&self, from: SystemTime, to: SystemTime, sent: SystemTime) -> String {
        let (from, to) = (rfc3339(from), rfc3339(to));
        let near = [rfc3339(sent - AT_ONCE), rfc3339(sent + AT_ONCE)];
        let mut text = String::new();
        for service in ["demo", "nats-1", "nats-2", "nats-3"] {
            for container in self.containers(service, "label=com.docker.compose.project") {
                let logs = ["logs", "--timestamps", "--since", &from, "--until", &to, &container];
                let output = Command::new("docker").args(logs).output().unwrap();
                writeln!(text, "{container} logged:").unwrap();
                for line in [output.stdout, output.stderr].iter().flat_map(|said| said.split(|byte| *byte == b'\n')) {
                    let line = String::from_utf8_lossy(line);
                    let at = line.split(' ').next().unwrap_or_default();
                    if !line.contains("allowed") || (near[0].as_str()..near[1].as_str()).contains(&at) {
                        writeln!(text, "  {line}").unwrap();
                    }
                }
            }
        }
        text
    }
}

const WORKERS: usize = 4;

/// How much time before and after a lost call is reported.
const AROUND: Duration = Duration::from_secs(3);
/// By when a call is executed if it is not delayed.
const AT_ONCE: Duration = Duration::from_millis(50);

/// Records when this process could not run for a while, and most likely no other process could.
fn notice_stalls(began: Instant, stop: &AtomicBool, notes: &Mutex<Notes>) {
    let mut last = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(20));
        let now = Instant::now();
        let away = now - std::mem::replace(&mut last, now);
        if away > Duration::from_millis(200) {
            let note = format!("stall: the test itself did not run for {} ms", away.as_millis());
            notes.lock().unwrap().push((began.elapsed(), note));
        }
    }
}

/// A time as `docker logs` takes and prints it, so that texts sort like times.
fn rfc3339(time: SystemTime) -> String {
    let time = time::OffsetDateTime::from(time);
    let (date, nanosecond) = (time.date(), time.nanosecond());
    format!("{date}T{:02}:{:02}:{:02}.{nanosecond:09}Z", time.hour(), time.minute(), time.second())
}

/// A round of calls from within the agent's container. Its lines come while it runs, other output at its end.
fn call(container: &str, deadline: Duration, mut each: impl FnMut(&str), mut note: impl FnMut(String)) {
    let deadline = format!("{}s", deadline.as_secs());
    let call =
        ["sealwire", "call", "--creds", "/sealwire/planner/planner.creds.json", "--deadline", &deadline, "--json"];
    let often = ["--every", "20ms", "--times", "100", "demo", "math/add", "[2,3]"];
    let mut command = Command::new("docker");
    command.args(["exec", container]).args(call).args(often).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    for line in BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok) {
        each(&line);
    }
    // There is hardly any output, so it never waits for room in the pipe.
    let said = child.wait_with_output().unwrap().stderr;
    // In a round without a failure, this is its count.
    let notable = |line: &&str| !line.ends_with(", 0 without");
    String::from_utf8_lossy(&said).lines().filter(notable).for_each(|line| note(line.to_owned()));
}
