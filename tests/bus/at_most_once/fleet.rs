//! The replicas' processes as the test sees them, and the record of what they reported.
//! Never leaves a process behind: not when it is dropped, and not when the test is killed while a replica is paused.

use std::fmt::Write as _;
use std::io::{BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use sealwire::{Clock, SystemClock};
use tempfile::TempDir;

use super::history::{Answer, Execution, Life};
use super::replica::Said;
use super::stall;

pub(crate) const REPLICAS: usize = 3;

/// Environment variables that tell a replica where the brokers are and where to write its executions.
pub(crate) const URLS: &str = "SEALWIRE_TEST_REPLICA";
pub(crate) const LEDGER: &str = "SEALWIRE_TEST_LEDGER";
/// The state file, for a replica with a local guard.
pub(crate) const FLOOR: &str = "SEALWIRE_TEST_FLOOR";

/// Where a replica's guard keeps its memory.
pub(crate) enum Memory {
    /// At the cluster.
    Shared,
    /// In the process, with a state file.
    Local,
    /// At a broker that the others do not know.
    Elsewhere(String),
}

/// Everything that all replicas ever reported.
#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(crate) lives: Vec<Life>,
    pub(crate) answers: Vec<Answer>,
    /// Counted by message, so that a second execution ends the test at once.
    executed: Vec<u8>,
    pub(crate) twice: Vec<String>,
}

/// The replicas that are running.
pub(crate) struct Fleet {
    replicas: Vec<Option<Process>>,
    urls: Vec<String>,
    folder: TempDir,
    pub(crate) record: Arc<Mutex<Record>>,
}

struct Process {
    life: u16,
    child: Child,
    watcher: Child,
    /// Unbounded: the offers to a paused replica wait here for as long as the pause lasts.
    lines: mpsc::Sender<String>,
    handed: u64,
    /// To be killed as soon as it has something to do.
    doomed: bool,
    answered: Arc<AtomicU64>,
}

impl Fleet {
    pub(crate) fn new(urls: Vec<String>) -> Self {
        let folder = tempfile::Builder::new().prefix("sealwire-faults-").tempdir().unwrap();
        Self { replicas: (0..REPLICAS).map(|_| None).collect(), urls, folder, record: Arc::default() }
    }

    /// Starts a replica, replacing the one that is running, if any.
    pub(crate) fn start(&mut self, index: usize) {
        self.start_with(index, &Memory::Shared);
    }

    /// Kills all replicas, and starts one with another memory.
    pub(crate) fn change_guard(&mut self, index: usize, memory: &Memory) {
        (0..REPLICAS).for_each(|index| self.kill(index));
        self.start_with(index, memory);
    }

    fn start_with(&mut self, index: usize, memory: &Memory) {
        self.kill(index);
        let started_ms = SystemClock.now_ms();
        let life = {
            let mut record = self.record.lock().unwrap();
            record.lives.push(Life::new(index, started_ms));
            u16::try_from(record.lives.len() - 1).unwrap()
        };
        let mut command = Command::new(std::env::current_exe().unwrap());
        let mut urls = &self.urls[index];
        match memory {
            Memory::Shared => {}
            Memory::Local => {
                command.env(FLOOR, self.folder.path().join("floor"));
            }
            Memory::Elsewhere(url) => urls = url,
        }
        let mut child = command
            .args(["--exact", "at_most_once::replica", "--ignored", "--nocapture", "--test-threads", "1"])
            .env(URLS, urls)
            .env(LEDGER, self.folder.path().join(life.to_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // If the test is killed, the watcher sees the end of its input. A paused replica would not.
        let watcher = Command::new("/bin/sh")
            .args(["-c", r#"read -r _; kill -9 "$1"; rm -rf -- "$2""#, "sh", &child.id().to_string()])
            .arg(self.folder.path())
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (mut stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (lines, to_write) = mpsc::channel::<String>();
        std::thread::spawn(move || while to_write.recv().is_ok_and(|text| stdin.write_all(text.as_bytes()).is_ok()) {});
        let answered = Arc::new(AtomicU64::new(0));
        let (record, counter) = (self.record.clone(), answered.clone());
        std::thread::spawn(move || hear(BufReader::with_capacity(256 * 1024, stdout), life, &record, &counter));
        self.replicas[index] = Some(Process { life, child, watcher, lines, handed: 0, doomed: false, answered });
    }

    /// Kills a replica in the middle of its work: the next offers are the last that it gets.
    pub(crate) fn doom(&mut self, index: usize) {
        if let Some(process) = &mut self.replicas[index] {
            process.doomed = true;
        }
    }

    /// Kills a replica (SIGKILL).
    pub(crate) fn kill(&mut self, index: usize) {
        let Some(process) = self.replicas[index].take() else { return };
        let life = process.life;
        let killed_ms = SystemClock.now_ms();
        drop(process);
        self.record.lock().unwrap().lives[usize::from(life)].killed_ms = Some(killed_ms);
    }

    /// Hands over lines with `count` offers. Returns the life that got them, or `None` if the replica is dead.
    pub(crate) fn hand(&mut self, index: usize, lines: String, count: u64) -> Option<u16> {
        let process = self.replicas[index].as_mut()?;
        process.handed += count;
        // A process that has ended by itself is noticed later, when its answers are missing.
        let _ = process.lines.send(lines);
        let (life, doomed) = (process.life, process.doomed);
        if doomed && count > 0 {
            // Long enough to ask the stream, too short to answer everything.
            std::thread::sleep(Duration::from_micros(500 + 137 * u64::from(life) % 3_000));
            self.kill(index);
        }
        Some(life)
    }

    pub(crate) fn set_clock(&mut self, index: usize, offset_ms: i64) {
        let mut line = String::new();
        let _ = writeln!(line, "clock {offset_ms}");
        self.hand(index, line, 0);
    }

    /// Stops the process (SIGSTOP) or continues it (SIGCONT), and records that.
    pub(crate) fn pause(&mut self, index: usize, pause: bool) {
        let Some(process) = &self.replicas[index] else { return };
        let signal = |name: &str| {
            let status = Command::new("kill").args(["-s", name, &process.child.id().to_string()]).status();
            assert!(status.unwrap().success(), "kill -s {name}");
        };
        let record = |change: &dyn Fn(&mut Life, u64)| {
            change(&mut self.record.lock().unwrap().lives[usize::from(process.life)], SystemClock.now_ms());
        };
        if pause {
            record(&|life, now_ms| life.pauses.push((now_ms, u64::MAX)));
            signal("STOP");
        } else {
            signal("CONT");
            record(&|life, now_ms| life.pauses.last_mut().unwrap().1 = now_ms);
        }
    }

    /// Records that the replica is cut off from every broker, or is connected again.
    pub(crate) fn note_cut(&mut self, index: usize, cut: bool) {
        let Some(process) = &self.replicas[index] else { return };
        let mut record = self.record.lock().unwrap();
        let cuts = &mut record.lives[usize::from(process.life)].cuts;
        if cut {
            cuts.push((SystemClock.now_ms(), u64::MAX));
        } else if let Some(last) = cuts.last_mut() {
            last.1 = SystemClock.now_ms();
        }
    }

    /// The number of offers without an answer, and the replica's latest report of its readiness.
    pub(crate) fn state(&self, index: usize) -> Option<(u64, bool)> {
        let process = self.replicas[index].as_ref()?;
        let record = self.record.lock().unwrap();
        let ready = record.lives[usize::from(process.life)].ready.last().is_some_and(|(_, ready)| *ready);
        Some((process.handed - process.answered.load(Ordering::SeqCst), ready))
    }

    /// How many offers wait in the replica that is furthest behind, of those that are able to answer.
    pub(crate) fn behind(&self) -> u64 {
        let paused = |index: usize| {
            let record = self.record.lock().unwrap();
            let life = self.replicas[index].as_ref().map(|process| &record.lives[usize::from(process.life)]);
            life.is_none_or(|life| life.pauses.last().is_some_and(|(_, until_ms)| *until_ms == u64::MAX))
        };
        let states = (0..REPLICAS).filter(|index| !paused(*index)).filter_map(|index| self.state(index));
        states.map(|(behind, _)| behind).max().unwrap_or(0)
    }

    /// What each replica reported last, for a human reader.
    pub(crate) fn last_words(&self) -> String {
        let record = self.record.lock().unwrap();
        let mut words = String::new();
        for process in self.replicas.iter().flatten() {
            let life = &record.lives[usize::from(process.life)];
            let _ = writeln!(words, "replica {}, started at {}:", life.replica, life.started_ms);
            for (_, line) in &life.log[life.log.len().saturating_sub(LAST_WORDS)..] {
                let _ = writeln!(words, "  {line}");
            }
        }
        words
    }

    /// A replica whose process ended although nobody killed it.
    pub(crate) fn ended_by_itself(&mut self) -> Option<usize> {
        let mut running = self.replicas.iter_mut().enumerate();
        running.find_map(|(index, replica)| {
            replica.as_mut().is_some_and(|process| process.child.try_wait().unwrap().is_some()).then_some(index)
        })
    }

    /// What the replicas executed according to their own ledgers, including what they had no time to report.
    pub(crate) fn executions(&self) -> Vec<Execution> {
        let lives = self.record.lock().unwrap().lives.len();
        let mut executions = Vec::new();
        for life in 0..u16::try_from(lives).unwrap() {
            let text = std::fs::read_to_string(self.folder.path().join(life.to_string())).unwrap_or_default();
            // A line is written as a whole, or not at all.
            executions.extend(text.lines().map(|line| {
                let (message, at_ms) = line.split_once(' ').unwrap();
                Execution { message: message.parse().unwrap(), life, at_ms: at_ms.parse().unwrap() }
            }));
        }
        executions
    }
}

const LAST_WORDS: usize = 12;

impl Drop for Process {
    fn drop(&mut self) {
        // The watcher goes first: once the replica is reaped, its process id may belong to another process.
        let _ = self.watcher.kill();
        let _ = self.watcher.wait();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn hear(mut from: impl std::io::BufRead, life: u16, record: &Mutex<Record>, answered: &AtomicU64) {
    let mut lines = Vec::new();
    while let Ok(bytes) = from.fill_buf() {
        if bytes.is_empty() {
            return;
        }
        let length = bytes.len();
        lines.extend_from_slice(bytes);
        from.consume(length);
        let Some(end) = lines.iter().rposition(|byte| *byte == b'\n') else { continue };
        let partial = lines.split_off(end + 1);
        let text = String::from_utf8(std::mem::replace(&mut lines, partial)).unwrap();
        let mut record = record.lock().unwrap();
        let before = record.answers.len();
        for line in text.lines() {
            record.hear(line, life);
        }
        let heard = record.answers.len() - before;
        drop(record);
        answered.fetch_add(heard as u64, Ordering::SeqCst);
    }
}

impl Record {
    fn hear(&mut self, line: &str, life: u16) {
        let Some(line) = line.strip_prefix('@') else { return };
        let mut words = line.split(' ');
        let kind = words.next().unwrap();
        if kind == "a" {
            let (message, said) = (words.next().unwrap().parse().unwrap(), Said::from_word(words.next().unwrap()));
            let mut number = || words.next().unwrap().parse::<u64>().unwrap();
            let (received_ms, answered_ms) = (number(), number());
            let fences = (u32::try_from(number()).unwrap(), u32::try_from(number()).unwrap());
            self.answers.push(Answer { message, life, said, received_ms, answered_ms, fences });
            if said == Said::Executed {
                self.count(message, life);
            }
            return;
        }
        let mut number = || words.next().unwrap().parse::<i64>().unwrap();
        let at_ms = number().unsigned_abs();
        let told = &mut self.lives[usize::from(life)];
        match kind {
            "c" => told.clocks.push((at_ms, number())),
            "f" => told.fences.push((at_ms, number().unsigned_abs())),
            "r" => {
                told.ready.push((at_ms, number() == 1));
                told.log.push((at_ms, line.to_owned()));
            }
            "s" => stall::add(&mut told.stalls, (at_ms, number().unsigned_abs()), 0),
            _ => told.log.push((at_ms, line.to_owned())),
        }
    }

    fn count(&mut self, message: u32, life: u16) {
        let index = message as usize;
        if self.executed.len() <= index {
            self.executed.resize(index + 1, 0);
        }
        self.executed[index] += 1;
        if self.executed[index] > 1 {
            let answers: Vec<_> = self.answers.iter().filter(|answer| answer.message == message).collect();
            self.twice.push(format!("message {message}: {answers:?}; {:?}", self.lives[usize::from(life)]));
        }
    }
}
