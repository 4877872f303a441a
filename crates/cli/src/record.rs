//! `serve --record-decisions`: writes every policy decision as a line of JSON, for `policy diff --replay`.
//! Never delays a message: decisions that cannot be written fast enough are dropped and counted.

use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use sealwire::auth::open_public;
use sealwire::policy::DecisionRecord;

use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::at;

/// The most lines that wait to be written: some seconds of a busy service.
const MAX_LINES: usize = 4_096;
/// The most bytes that wait to be written, so that long arguments do not make a queue of gigabytes.
const MAX_BYTES: usize = 16 * 1024 * 1024;
/// Up to this many bytes are collected for one write.
const CHUNK: usize = 64 * 1024;
/// How often to warn that lines were lost.
const WARN_EVERY: Duration = Duration::from_secs(1);
/// How long the service waits for the file when it ends.
const FINISH: Duration = Duration::from_secs(5);

/// Takes decisions, which a thread writes.
#[derive(Debug)]
pub(crate) struct Recorder {
    queue: Queue,
    /// Nothing is sent on it: it is disconnected when the writer has ended.
    ended: Receiver<()>,
}

/// Where the service's message handling puts its lines.
#[derive(Debug, Clone)]
struct Queue {
    sender: SyncSender<Entry>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
enum Entry {
    Line(Vec<u8>),
    End,
}

#[derive(Debug)]
struct Shared {
    /// The bytes that wait to be written.
    waiting: AtomicUsize,
    lost: AtomicU64,
    started: Instant,
    /// When a loss was last logged, in milliseconds after `started`, plus one; 0 for never.
    warned: AtomicU64,
}

impl Recorder {
    /// Appends to a file that only we can read and that nobody else can have put there: it contains arguments.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let fail = |error: io::Error| at(path, &error);
        make(path).map_err(fail)?;
        check_mode(path, &open_public(path).or_fail(Exit::Input)?)?;
        // Only we and root can have replaced it since.
        let mut file = OpenOptions::new().read(true).append(true).open(path).map_err(fail)?;
        if !is_recording(&file).map_err(fail)? {
            return Err(Failure::input(format!(
                "`{}` holds no recorded decisions, so none are added to it",
                path.display()
            ))
            .help("name another file"));
        }
        let torn = is_torn(&mut file).map_err(fail)?;
        tracing::info!(target: "sealwire::record", file = %path.display(), "decisions are recorded, arguments included");
        Self::writing_to(file, torn).map_err(|error| Failure::input(format!("no thread to record decisions: {error}")))
    }

    fn writing_to(writer: impl Write + Send + 'static, torn: bool) -> io::Result<Self> {
        let (sender, receiver) = sync_channel(MAX_LINES);
        let (alive, ended) = sync_channel(0);
        let shared = Arc::new(Shared {
            waiting: AtomicUsize::new(0),
            lost: AtomicU64::new(0),
            started: Instant::now(),
            warned: AtomicU64::new(0),
        });
        let thread = Writing { writer, receiver, shared: Arc::clone(&shared), torn };
        std::thread::Builder::new().name("decisions".to_owned()).spawn(move || {
            thread.run();
            drop(alive);
        })?;
        Ok(Self { queue: Queue { sender, shared }, ended })
    }

    /// The function that takes the service's decisions. It returns at once, whatever the file does.
    pub(crate) fn sink(&self) -> impl Fn(DecisionRecord) + Send + Sync + 'static {
        let queue = self.queue.clone();
        move |record| queue.put(&record)
    }

    /// Waits until everything that was taken is written, but not indefinitely if the file is stuck. Returns the number of lost
    /// decisions. Decisions that come later are lost, too.
    pub(crate) fn finish(self) -> u64 {
        self.finish_within(FINISH)
    }

    fn finish_within(self, patience: Duration) -> u64 {
        let deadline = Instant::now() + patience;
        // The queue may be full; the writer makes room unless its file is stuck.
        while let Err(TrySendError::Full(_)) = self.queue.sender.try_send(Entry::End) {
            if Instant::now() >= deadline {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if self.ended.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!(target: "sealwire::record", "the file of recorded decisions takes no more data: its end is missing");
        }
        let lost = self.queue.shared.lost.load(Ordering::Relaxed);
        if lost > 0 {
            tracing::warn!(target: "sealwire::record", lost, "decisions were not recorded");
        }
        lost
    }
}

impl Queue {
    fn put(&self, record: &DecisionRecord) {
        // A record consists of strings and numbers, so it can always be serialized.
        let Ok(mut line) = serde_json::to_vec(record) else {
            return self.shared.lose(1, &"the record cannot be written");
        };
        line.push(b'\n');
        let size = line.len();
        let before = self.shared.waiting.fetch_add(size, Ordering::Relaxed);
        if before.saturating_add(size) > MAX_BYTES || self.sender.try_send(Entry::Line(line)).is_err() {
            self.shared.waiting.fetch_sub(size, Ordering::Relaxed);
            self.shared.lose(1, &"the file is too slow");
        }
    }
}

impl Shared {
    fn lose(&self, count: u64, reason: &dyn Display) {
        let lost = self.lost.fetch_add(count, Ordering::Relaxed).saturating_add(count);
        if self.due(self.started.elapsed()) {
            tracing::warn!(target: "sealwire::record", lost, %reason, "decisions are not recorded");
        }
    }

    /// Whether to warn now; `true` once per [`WARN_EVERY`].
    fn due(&self, elapsed: Duration) -> bool {
        let now = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).saturating_add(1);
        let last = self.warned.load(Ordering::Relaxed);
        let waited = u128::from(now.saturating_sub(last)) >= WARN_EVERY.as_millis();
        (last == 0 || waited) && self.warned.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// The writing thread.
struct Writing<W> {
    writer: W,
    receiver: Receiver<Entry>,
    shared: Arc<Shared>,
    /// Whether the file may end within a line: a write failed, or an earlier service was killed.
    torn: bool,
}

impl<W: Write> Writing<W> {
    /// Writes until [`Entry::End`], or until all senders are gone.
    fn run(mut self) {
        let mut chunk = Vec::new();
        while let Ok(first) = self.receiver.recv() {
            let mut entry = Some(first);
            let mut lines = 0;
            let mut end = false;
            loop {
                match entry {
                    Some(Entry::Line(line)) => {
                        chunk.extend_from_slice(&line);
                        lines += 1;
                    }
                    Some(Entry::End) => end = true,
                    None => break,
                }
                if end || chunk.len() >= CHUNK {
                    break;
                }
                entry = self.receiver.try_recv().ok();
            }
            self.write(&chunk, lines);
            self.shared.waiting.fetch_sub(chunk.len(), Ordering::Relaxed);
            chunk.clear();
            if end {
                return;
            }
        }
    }

    /// Writes a chunk. If that fails, all its lines count as lost, though some of them may be in the file.
    fn write(&mut self, chunk: &[u8], lines: u64) {
        let apart = if self.torn { self.writer.write_all(b"\n") } else { Ok(()) };
        let written = apart.and_then(|()| self.writer.write_all(chunk)).and_then(|()| self.writer.flush());
        self.torn = written.is_err();
        if let Err(error) = written {
            self.shared.lose(lines, &error);
        }
    }
}

/// Creates the file if there is none. Does not follow a dangling link.
fn make(path: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt as _;
        options.mode(0o600);
    }
    match options.open(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Whether the file contains a recording or nothing. By a slip on the command line it may be a key ring, which appending would ruin.
fn is_recording(file: &File) -> io::Result<bool> {
    if !file.metadata()?.is_file() {
        return Ok(true);
    }
    let mut start = Vec::new();
    // An earlier service may have been killed within its first line.
    file.take(BEGINNING.len() as u64).read_to_end(&mut start)?;
    Ok(BEGINNING.starts_with(&start))
}

/// The beginning of every record.
const BEGINNING: &[u8] = b"{\"at_ms\":";

/// Whether the file ends within a line.
fn is_torn(file: &mut File) -> io::Result<bool> {
    if !file.metadata()?.is_file() || file.seek(SeekFrom::End(0))? == 0 {
        return Ok(false);
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
}

/// Checks that a file that was already there is not open to others.
#[cfg(unix)]
fn check_mode(path: &Path, file: &File) -> Result<(), Failure> {
    use std::os::unix::fs::PermissionsExt as _;
    let metadata = file.metadata().map_err(|error| at(path, &error))?;
    if metadata.is_file() && metadata.permissions().mode() & 0o077 != 0 {
        let message = format!("`{}` is open to other users, and decisions have arguments in them", path.display());
        return Err(Failure::input(message).help(format!("chmod 600 {}", path.display())));
    }
    Ok(())
}

#[cfg(not(unix))]
fn check_mode(_path: &Path, _file: &File) -> Result<(), Failure> {
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

    use std::sync::{Mutex, mpsc};

    use sealwire::Name;
    use sealwire::auth::Caller;
    use sealwire::policy::{Methods, PolicySet, Question};

    use super::*;

    fn record(at_ms: u64) -> DecisionRecord {
        let (set, _) = PolicySet::from_texts([("a.toml", "[method.\"x/y\"]\n")], &Methods::from_files()).unwrap();
        let caller = Caller::new(Name::new("ann").unwrap(), []);
        let question = Question { caller: &caller, method: "x/y", params: None, now_ms: at_ms };
        DecisionRecord::new(&set, &question, &set.decide(&question))
    }

    /// Waits for permission before each write, and fails when told to.
    struct Gate {
        open: mpsc::Receiver<bool>,
        written: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // Once the sender is gone, the gate is open.
            if self.open.recv().unwrap_or(true) {
                self.written.lock().unwrap().extend_from_slice(bytes);
                return Ok(bytes.len());
            }
            self.written.lock().unwrap().extend_from_slice(&bytes[..bytes.len() / 2]);
            Err(io::ErrorKind::StorageFull.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn gate() -> (Recorder, mpsc::Sender<bool>, Arc<Mutex<Vec<u8>>>) {
        let (key, open) = mpsc::channel();
        let written = Arc::new(Mutex::new(Vec::new()));
        (Recorder::writing_to(Gate { open, written: Arc::clone(&written) }, false).unwrap(), key, written)
    }

    fn times(written: &Mutex<Vec<u8>>) -> Vec<Option<u64>> {
        let text = String::from_utf8(written.lock().unwrap().clone()).unwrap();
        let parsed = text.lines().map(serde_json::from_str::<DecisionRecord>);
        parsed.map(|record| record.ok().map(|record| record.at_ms)).collect()
    }

    #[test]
    fn a_file_that_does_not_move_holds_up_nobody_and_loss_is_counted() {
        let (recorder, key, written) = gate();
        let sink = recorder.sink();
        let one = record(1);
        let started = Instant::now();
        for _ in 0..MAX_LINES * 2 {
            sink(one.clone());
        }
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
        let lost = recorder.queue.shared.lost.load(Ordering::Relaxed);
        // The writer holds up to a chunk of lines in addition to the queue.
        assert!((1..=MAX_LINES as u64).contains(&lost), "{lost}");
        drop(key);
        assert_eq!(recorder.finish(), lost, "once the file moves, nothing more is lost");
        assert_eq!(times(&written).len() as u64, 2 * MAX_LINES as u64 - lost);
        sink(one);
    }

    #[test]
    fn what_waits_is_bounded_in_bytes() {
        let (recorder, key, written) = gate();
        let sink = recorder.sink();
        let mut large = record(1);
        large.subject = Some("s".repeat(MAX_BYTES / 4));
        for _ in 0..6 {
            sink(large.clone());
        }
        assert!(recorder.queue.shared.waiting.load(Ordering::Relaxed) <= MAX_BYTES);
        drop(key);
        let lost = recorder.finish();
        assert!(lost >= 1, "{lost}");
        assert_eq!(times(&written).len() as u64, 6 - lost);
    }

    #[test]
    fn end_does_not_wait_for_a_file_that_never_moves() {
        let (recorder, _key, _written) = gate();
        recorder.sink()(record(1));
        let started = Instant::now();
        recorder.finish_within(Duration::from_millis(100));
        assert!(started.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn a_failed_write_spoils_its_own_lines_only() {
        let (recorder, key, written) = gate();
        let sink = recorder.sink();
        sink(record(1));
        key.send(false).unwrap();
        // The failed write is over once it is counted.
        while recorder.queue.shared.lost.load(Ordering::Relaxed) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(key);
        sink(record(2));
        assert_eq!(recorder.finish(), 1);
        assert_eq!(times(&written), [None, Some(2)]);
    }

    #[test]
    #[cfg(unix)]
    fn recording_goes_on_after_the_torn_line_of_a_killed_service() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("decisions.jsonl");
        let append = |at_ms| {
            let recorder = Recorder::open(&path).unwrap_or_else(|failure| panic!("{}", failure.to_text()));
            recorder.sink()(record(at_ms));
            assert_eq!(recorder.finish(), 0);
            std::fs::read(&path).unwrap()
        };
        append(1);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let two = append(2);
        assert_eq!(times(&Mutex::new(two.clone())), [Some(1), Some(2)]);
        std::fs::write(&path, &two[..two.len() - 5]).unwrap();
        assert_eq!(times(&Mutex::new(append(3))), [Some(1), None, Some(3)]);
    }

    /// Whoever owned the file could read everybody's arguments.
    #[test]
    #[cfg(unix)]
    fn nothing_is_recorded_where_others_could_read_it() {
        use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
        let outer = tempfile::tempdir().unwrap();
        let folder = outer.path().join("folder");
        let path = folder.join("decisions.jsonl");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(&path, "").unwrap();
        let mode = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        let opened = || Recorder::open(&path).map(Recorder::finish).map_err(|failure| failure.to_text());
        let refused = |why: &str| assert!(opened().is_err_and(|said| said.contains(why)), "{why}: {:?}", opened());
        mode(&path, 0o640);
        refused("is open to other users");
        mode(&path, 0o600);
        mode(&folder, 0o777);
        refused("can be written by others");
        mode(&folder, 0o700);
        if chown(&path, Some(12_345), None).is_ok() {
            refused("belongs to user 12345");
            chown(&path, Some(0), None).unwrap();
            chown(&folder, Some(12_345), None).unwrap();
            refused("belongs to user 12345");
            chown(&folder, Some(0), None).unwrap();
        }
        assert_eq!(opened(), Ok(0));
        std::fs::remove_file(&path).unwrap();
        let elsewhere = outer.path().join("elsewhere");
        symlink(&elsewhere, &path).unwrap();
        refused("No such file");
        assert!(!elsewhere.exists());
    }

    #[test]
    #[cfg(unix)]
    fn nothing_is_added_to_what_is_no_recording() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let opened = |text: &str| {
            sealwire::auth::write_secret(&path, text, true).unwrap();
            Recorder::open(&path).map(Recorder::finish).map_err(|failure| failure.to_text())
        };
        let line = serde_json::to_string(&record(1)).unwrap() + "\n";
        for text in ["", &line, &line[..5], &line[..20]] {
            assert_eq!(opened(text), Ok(0), "{text}");
        }
        for text in ["{\n  \"audience\": \"dev/math\"", "{}\n", "\n", "x"] {
            assert!(opened(text).is_err_and(|said| said.contains("no recorded decisions")), "{text}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn loss_is_told_once_a_second() {
        let (recorder, _key, _written) = gate();
        let due = |ms| recorder.queue.shared.due(Duration::from_millis(ms));
        assert_eq!([0, 1, 999, 1_000, 1_001, 5_000, 5_500].map(due), [true, false, false, true, false, true, false]);
    }
}
