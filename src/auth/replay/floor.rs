//! The latest time that was ever seen, in memory and on disk, so that a clock that goes back cannot bring back old
//! messages. Never lets a message be admitted at a time that a crash could make it forget.
//!
//! In memory the *floor* is the latest wall-clock time seen; messages are judged at the floor, so time never goes back.
//! Across a restart the memory of nonces is gone, and all that protects is the fence: nothing issued before it is
//! accepted. A clock that was set back while the process was down would put the fence into the past. So a state file
//! holds the fence of the next run. It is a *lease*: written ahead of the clock, and no message is admitted at a time
//! that it does not cover. However the clock stands then, and whatever skew is configured then, the next run starts
//! behind everything that this one admitted.

use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::clock::Clock;

/// Where the floor survives a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Floor {
    /// In this state file, which one process at a time may use. Its folder must exist and must survive restarts; two
    /// more files appear beside it, with `.lock` and `.new` appended to the name.
    File(PathBuf),
    /// Nowhere: if the clock is set back while the process is down, messages of the last minute can be replayed to
    /// the next one. For tests and demonstrations.
    Ephemeral,
}

/// The state file cannot be used. All but [`FloorError::Locked`] are about the file or its folder.
#[derive(Debug, thiserror::Error)]
pub enum FloorError {
    /// Another process holds it.
    #[error(
        "state file `{}` is in use by another process: stop that one, or give each its own state file and a shared \
         replay guard",
        .0.display()
    )]
    Locked(PathBuf),
    /// It has other content than a replay guard writes.
    #[error(
        "state file `{}` is not as a replay guard wrote it: restore it; or keep the service stopped for six minutes \
         (the longest life of a message), see that the clock is right, and delete it",
        .0.display()
    )]
    Corrupt(PathBuf),
    /// The operating system refused.
    #[error("state file `{}` cannot be {action}: {source}; check the folder, its permissions and free space", .path.display())]
    Io {
        /// The file that was touched.
        path: PathBuf,
        /// `locked`, `read` or `written`.
        action: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// The floor in memory, bound to its lease on disk.
pub(super) struct Lease {
    /// The latest wall-clock time seen.
    floor_ms: AtomicU64,
    /// What the disk holds: messages may be admitted up to this time. 0 once closed.
    granted_ms: AtomicU64,
    /// A message admitted at some time was issued at most this much later.
    skew_ms: u64,
    disk: Mutex<Disk>,
    /// The last attempt to write failed.
    failing: AtomicBool,
    /// Why it failed.
    failure: Mutex<Option<String>>,
}

/// The writer's side: whoever writes holds the mutex.
struct Disk {
    /// `None` when there is no file or once closed.
    file: Option<StateFile>,
    /// The fence that the previous run left: the file never holds less.
    left_ms: u64,
    closed: bool,
}

/// What a renewal came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Renewal {
    Granted,
    Failed,
    Closed,
}

impl Lease {
    /// Opens the file, if there is one, and takes a first lease. Returns also this run's fence: the last second, since
    /// the Unix epoch, in which a message of an earlier run may have been issued.
    pub(super) fn open(floor: &Floor, clock: &dyn Clock, skew_s: u64) -> Result<(Self, u64), FloorError> {
        let now_ms = clock.now_ms();
        let skew_ms = skew_s.saturating_mul(1000);
        let (file, left_ms) = match floor {
            Floor::Ephemeral => (None, 0),
            Floor::File(path) => {
                let file = StateFile::open(path)?;
                let left_ms = file.read()?.unwrap_or(0);
                (Some(file), left_ms)
            }
        };
        let granted_ms = match &file {
            None => u64::MAX,
            Some(file) => {
                let ahead_ms = now_ms.saturating_add(AHEAD_MS);
                file.write(ahead_ms.saturating_add(skew_ms).max(left_ms))?;
                ahead_ms
            }
        };
        let fence = now_ms.saturating_add(skew_ms).max(left_ms) / 1000;
        let lease = Self {
            floor_ms: AtomicU64::new(now_ms),
            granted_ms: AtomicU64::new(granted_ms),
            skew_ms,
            disk: Mutex::new(Disk { file, left_ms, closed: false }),
            failing: AtomicBool::new(false),
            failure: Mutex::new(None),
        };
        Ok((lease, fence))
    }

    /// The time to judge by: the clock's, or the floor if the clock is behind it. The clock becomes the floor.
    pub(super) fn now_ms(&self, clock: &dyn Clock) -> u64 {
        let clock_ms = clock.now_ms();
        // INVARIANT: sequentially consistent, with `covers` after it and `close` in the opposite order.
        self.floor_ms.fetch_max(clock_ms, Ordering::SeqCst).max(clock_ms)
    }

    /// The floor, without moving it.
    pub(super) fn floor_ms(&self) -> u64 {
        self.floor_ms.load(Ordering::SeqCst)
    }

    /// Whether the disk holds a time that a message admitted now will be fenced by. Ask after [`now_ms`](Self::now_ms).
    pub(super) fn covers(&self, now_ms: u64) -> bool {
        now_ms <= self.granted_ms.load(Ordering::SeqCst)
    }

    /// Whether the lease should be renewed soon, so that messages do not have to wait for the disk.
    pub(super) fn is_short(&self, now_ms: u64) -> bool {
        !self.covers(now_ms.saturating_add(AHEAD_MS - RENEW_EVERY_MS / 2))
    }

    /// Writes the lease ahead of the clock. Blocks for as long as the disk takes.
    pub(super) fn renew(&self, clock: &dyn Clock) -> Renewal {
        let disk = relock(&self.disk);
        let now_ms = self.now_ms(clock);
        if disk.closed {
            return Renewal::Closed;
        }
        if !self.is_short(now_ms) {
            return Renewal::Granted;
        }
        let Some(file) = &disk.file else { return Renewal::Granted };
        let ahead_ms = now_ms.saturating_add(AHEAD_MS);
        let written = file.write(ahead_ms.saturating_add(self.skew_ms).max(disk.left_ms));
        self.failing.store(written.is_err(), Ordering::Relaxed);
        let renewal = match &written {
            Ok(()) => {
                self.granted_ms.fetch_max(ahead_ms, Ordering::SeqCst);
                Renewal::Granted
            }
            // The file now holds the old time or the new one. Both cover what was granted.
            Err(_) => Renewal::Failed,
        };
        *relock(&self.failure) = written.err().map(|error| error.to_string());
        renewal
    }

    /// Whether the last attempt to write failed.
    pub(super) fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed)
    }

    /// Why the last attempt to write failed.
    pub(super) fn failure(&self) -> Option<String> {
        relock(&self.failure).clone()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.granted_ms.load(Ordering::SeqCst) == 0
    }

    /// Takes the lease back, writes down the exact fence, and lets go of the file.
    pub(super) fn close(&self) -> Result<(), FloorError> {
        let mut disk = relock(&self.disk);
        disk.closed = true;
        // INVARIANT: the lease is revoked before the floor is read. A check that still saw the lease has moved the
        // floor before it looked, so its time is in the floor that is written here.
        self.granted_ms.store(0, Ordering::SeqCst);
        let fence_ms = self.floor_ms().saturating_add(self.skew_ms).max(disk.left_ms);
        match disk.file.take() {
            Some(file) => file.write(fence_ms),
            None => Ok(()),
        }
    }
}

/// A panic cannot leave anything in here half changed: what is written is written in whole.
fn relock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("floor_ms", &self.floor_ms)
            .field("granted_ms", &self.granted_ms)
            .finish_non_exhaustive()
    }
}

/// One line of text with a time in it, replaced as a whole, used by one process at a time.
struct StateFile {
    path: PathBuf,
    /// Locked as long as it is open. A file of its own, because every write puts a new file in the other's place.
    _lock: File,
}

impl StateFile {
    fn open(path: &Path) -> Result<Self, FloorError> {
        let lock_path = beside(path, ".lock");
        let lock = File::options().create(true).truncate(false).write(true).open(&lock_path);
        let lock = lock.map_err(|source| FloorError::io(&lock_path, "locked", source))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path: path.to_owned(), _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(FloorError::Locked(path.to_owned())),
            Err(TryLockError::Error(source)) => Err(FloorError::io(&lock_path, "locked", source)),
        }
    }

    /// `None` at the first start, when there is no file yet.
    fn read(&self) -> Result<Option<u64>, FloorError> {
        match fs::read(&self.path) {
            Ok(bytes) => match decode(&bytes) {
                Some(floor_ms) => Ok(Some(floor_ms)),
                None => Err(FloorError::Corrupt(self.path.clone())),
            },
            Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(FloorError::io(&self.path, "read", source)),
        }
    }

    /// On the disk when it returns, and there in whole or not at all if the machine stops meanwhile.
    fn write(&self, fence_ms: u64) -> Result<(), FloorError> {
        let new_path = beside(&self.path, ".new");
        self.replace(&new_path, &encode(fence_ms)).map_err(|source| FloorError::io(&self.path, "written", source))
    }

    fn replace(&self, new_path: &Path, text: &str) -> io::Result<()> {
        let mut new = File::create(new_path)?;
        new.write_all(text.as_bytes())?;
        new.sync_all()?;
        fs::rename(new_path, &self.path)?;
        // The rename itself is durable only once the folder is.
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }
}

impl FloorError {
    fn io(path: &Path, action: &'static str, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), action, source }
    }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn encode(fence_ms: u64) -> String {
    format!("{HEADING}{fence_ms:020} {:020}\n", !fence_ms)
}

/// The time is there twice, once inverted: a damaged or edited digit is noticed.
fn decode(bytes: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(bytes).ok()?;
    let fence_ms: u64 = text.strip_prefix(HEADING)?.get(..20)?.parse().ok()?;
    (text == encode(fence_ms)).then_some(fence_ms)
}

const HEADING: &str = "sealwire replay fence v1, milliseconds since 1970 and their complement: ";

/// How far ahead of the clock the lease is written: after a crash the next start has to wait this much longer. Twice
/// the renewal interval, so that one late renewal is not felt.
const AHEAD_MS: u64 = 2 * RENEW_EVERY_MS;

/// How often the lease is renewed.
pub(super) const RENEW_EVERY_MS: u64 = 1000;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
    use super::*;
    use crate::clock::ManualClock;

    const NOW_MS: u64 = 1_790_000_000_000;
    const SKEW_S: u64 = 5;
    const SKEW_MS: u64 = 5000;

    fn clock() -> ManualClock {
        ManualClock::at(NOW_MS / 1000)
    }

    fn on_disk(path: &Path) -> u64 {
        decode(&fs::read(path).unwrap()).unwrap()
    }

    #[test]
    fn the_disk_is_always_ahead_of_what_is_covered() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("floor");
        let clock = clock();
        let (lease, fence) = Lease::open(&Floor::File(path.clone()), &clock, SKEW_S).unwrap();
        assert_eq!(fence, NOW_MS / 1000 + SKEW_S);
        for step in [0, 1, 400, 1600, 999, 1001, 3_600_000] {
            clock.advance_ms(step);
            let now = lease.now_ms(&clock);
            if !lease.covers(now) {
                assert_eq!(lease.renew(&clock), Renewal::Granted);
            }
            assert!(lease.covers(now));
            assert!(on_disk(&path) >= now + SKEW_MS);
            assert!(!lease.covers(on_disk(&path) - SKEW_MS + 1));
        }
    }

    #[test]
    fn a_crash_leaves_the_lease_and_a_close_the_exact_fence() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("floor");
        let clock = clock();
        drop(Lease::open(&Floor::File(path.clone()), &clock, SKEW_S).unwrap());
        assert_eq!(on_disk(&path), NOW_MS + AHEAD_MS + SKEW_MS);
        // Crashing again and again does not push the lease further and further.
        let (lease, fence) = Lease::open(&Floor::File(path.clone()), &clock, SKEW_S).unwrap();
        assert_eq!(on_disk(&path), NOW_MS + AHEAD_MS + SKEW_MS);
        assert_eq!(fence, (NOW_MS + AHEAD_MS) / 1000 + SKEW_S);
        drop(lease);

        clock.advance_ms(10_000);
        let (lease, fence) = Lease::open(&Floor::File(path.clone()), &clock, SKEW_S).unwrap();
        assert_eq!(fence, NOW_MS / 1000 + 10 + SKEW_S);
        clock.advance_ms(7);
        let now = lease.now_ms(&clock);
        lease.close().unwrap();
        assert_eq!(on_disk(&path), now + SKEW_MS);
        assert!(!lease.covers(now));
        assert_eq!(lease.renew(&clock), Renewal::Closed);
        lease.close().unwrap();
    }

    #[test]
    fn a_smaller_skew_after_a_restart_does_not_lower_the_fence() {
        let folder = tempfile::tempdir().unwrap();
        let floor = Floor::File(folder.path().join("floor"));
        let (lease, _) = Lease::open(&floor, &clock(), 30).unwrap();
        // Up to this time a message may have been admitted with an `iat` 30 s later.
        assert!(lease.covers(NOW_MS + AHEAD_MS));
        drop(lease);
        let (_, fence) = Lease::open(&floor, &clock(), 0).unwrap();
        assert_eq!(fence, (NOW_MS + AHEAD_MS) / 1000 + 30);
    }

    #[test]
    fn the_file_never_goes_back_with_the_clock() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("floor");
        drop(Lease::open(&Floor::File(path.clone()), &clock(), SKEW_S).unwrap());
        let left = on_disk(&path);
        let earlier = ManualClock::at(1_000_000);
        let (lease, fence) = Lease::open(&Floor::File(path.clone()), &earlier, SKEW_S).unwrap();
        assert_eq!(fence, left / 1000);
        assert_eq!(on_disk(&path), left);
        lease.close().unwrap();
        assert_eq!(on_disk(&path), left);
    }

    #[test]
    fn a_second_user_of_the_file_is_turned_away_until_the_first_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let floor = Floor::File(folder.path().join("floor"));
        let first = Lease::open(&floor, &clock(), SKEW_S).unwrap();
        let error = Lease::open(&floor, &clock(), SKEW_S).unwrap_err();
        assert!(matches!(error, FloorError::Locked(_)));
        assert!(error.to_string().contains("another process"), "{error}");
        drop(first);
        assert!(Lease::open(&floor, &clock(), SKEW_S).is_ok());
    }

    #[test]
    fn a_damaged_file_is_an_error_and_a_missing_one_a_first_start() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("floor");
        let good = encode(NOW_MS);
        for bad in ["", "\n", "1790000000000\n", &good.replace("179", "178"), &good[1..], &format!("{good}\n")] {
            fs::write(&path, bad).unwrap();
            let error = Lease::open(&Floor::File(path.clone()), &clock(), SKEW_S).unwrap_err();
            assert!(matches!(error, FloorError::Corrupt(_)), "{bad:?}");
            assert_eq!(fs::read(&path).unwrap(), bad.as_bytes(), "the evidence is left alone");
        }
        fs::remove_file(&path).unwrap();
        assert!(Lease::open(&Floor::File(path.clone()), &clock(), SKEW_S).is_ok());

        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        let error = Lease::open(&Floor::File(path), &clock(), SKEW_S).unwrap_err();
        assert!(matches!(error, FloorError::Io { action: "read", .. }), "{error}");
        let error = Lease::open(&Floor::File(folder.path().join("none/floor")), &clock(), SKEW_S).unwrap_err();
        assert!(matches!(error, FloorError::Io { action: "locked", .. }), "{error}");
    }

    #[test]
    fn a_disk_that_refuses_ends_the_lease_and_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("floor");
        let clock = clock();
        let (lease, _) = Lease::open(&Floor::File(path.clone()), &clock, SKEW_S).unwrap();
        // A folder where the new file should go: not even root can create it there.
        fs::create_dir(beside(&path, ".new")).unwrap();
        clock.advance_ms(AHEAD_MS + 1);
        let now = lease.now_ms(&clock);
        assert_eq!(lease.renew(&clock), Renewal::Failed);
        assert!(!lease.covers(now));
        assert!(lease.failure().unwrap().contains("cannot be written"));

        fs::remove_dir(beside(&path, ".new")).unwrap();
        assert_eq!(lease.renew(&clock), Renewal::Granted);
        assert!(lease.covers(now));
        assert_eq!(lease.failure(), None);
    }
}
