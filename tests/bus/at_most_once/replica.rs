//! The replica's side of the fault test: a process that asks a guard, nearly always the shared one, about every offer that
//! it reads.
//! Never judges: it reports what the guard said, when, and the guard's state before and after.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use sealwire::internal::auth::{
    AdmitError, LocalGuard, NonceLimits, Outage, ReplayGuard, SharedConfig, SharedGuard, TimeFloor, Window,
};
use sealwire::internal::wire::Nonce;
use sealwire::{BusConfig, Clock, Name, SystemClock};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, sleep};

use super::stall::Waits;

/// The longest life of a message: long enough for some copies to be alive when a lost leader has been replaced.
pub(crate) const WINDOW_S: u64 = 20;
pub(crate) const SKEW_S: u64 = 1;
/// How long the guard's stream remembers, as in the library: the window, twice the skew, and a minute.
pub(crate) const MEMORY_S: u64 = WINDOW_S + 2 * SKEW_S + 60;

/// The guard refuses more than 256 checks in flight for one owner. A service has its own bound, and so has the replica.
const IN_FLIGHT: usize = 250;

/// A clock for tests: the machine's, plus an offset that the test sets.
#[derive(Debug, Default)]
struct WrongClock(AtomicI64);

impl Clock for WrongClock {
    fn now_ms(&self) -> u64 {
        SystemClock.now_ms().saturating_add_signed(self.0.load(Ordering::SeqCst))
    }
}

/// The outcome of one offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Said {
    Executed,
    Replayed,
    Stale,
    Full,
    /// There is no guard yet: the replica has just started.
    NotOpen,
    Unavailable(Cause),
}

/// The reasons of [`Outage`] and a fence, ordered, each as one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
    Unreachable,
    Unanswered,
    StreamReplaced,
    Unverified,
    Fenced,
    StreamUnfit,
    Unexpected,
    ClockDiffers,
    /// Any other reason, which nothing in this test may cause.
    Other,
}

impl Said {
    const WORDS: [(&'static str, Self); 14] = [
        ("executed", Self::Executed),
        ("replayed", Self::Replayed),
        ("stale", Self::Stale),
        ("full", Self::Full),
        ("not-open", Self::NotOpen),
        ("unreachable", Self::Unavailable(Cause::Unreachable)),
        ("unanswered", Self::Unavailable(Cause::Unanswered)),
        ("stream-replaced", Self::Unavailable(Cause::StreamReplaced)),
        ("unverified", Self::Unavailable(Cause::Unverified)),
        ("fenced", Self::Unavailable(Cause::Fenced)),
        ("stream-unfit", Self::Unavailable(Cause::StreamUnfit)),
        ("unexpected", Self::Unavailable(Cause::Unexpected)),
        ("clock-differs", Self::Unavailable(Cause::ClockDiffers)),
        ("other", Self::Unavailable(Cause::Other)),
    ];

    pub(crate) fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, said)| *said == self).unwrap().0
    }

    pub(crate) fn from_word(word: &str) -> Self {
        Self::WORDS.iter().find(|(name, _)| *name == word).unwrap_or_else(|| panic!("`{word}`")).1
    }

    fn of(answer: Result<(), AdmitError>) -> Self {
        match answer {
            Ok(()) => Self::Executed,
            Err(AdmitError::Replayed) => Self::Replayed,
            Err(AdmitError::Stale) => Self::Stale,
            Err(AdmitError::OwnerFull { .. } | AdmitError::Full { .. }) => Self::Full,
            Err(AdmitError::Fenced { .. }) => Self::Unavailable(Cause::Fenced),
            Err(AdmitError::Unavailable(outage)) => Self::Unavailable(match outage {
                Outage::Unreachable => Cause::Unreachable,
                Outage::Unanswered => Cause::Unanswered,
                Outage::StreamReplaced => Cause::StreamReplaced,
                Outage::Unverified => Cause::Unverified,
                Outage::StreamUnfit => Cause::StreamUnfit,
                Outage::Unexpected => Cause::Unexpected,
                Outage::ClockDiffers => Cause::ClockDiffers,
                _ => Cause::Other,
            }),
        }
    }
}

/// What the tasks of a replica share.
#[derive(Clone)]
struct Desk {
    guard: Arc<OnceLock<Box<dyn ReplayGuard>>>,
    /// What is to be written to the test.
    out: Arc<Mutex<String>>,
    /// One line per execution, written while the execution happens: a killed replica's executions count, too.
    ledger: Arc<File>,
}

impl Desk {
    fn say(&self, line: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.out.lock().unwrap(), "{line}");
    }
}

/// Serves until the standard input ends or the process is killed.
/// With a `floor`, the guard is a local one with that state file.
pub(crate) fn run(urls: &str, ledger: &Path, floor: Option<&Path>) {
    let floor = floor.map(Path::to_owned);
    let bus = BusConfig { urls: urls.split(',').map(String::from).collect(), ..BusConfig::default() };
    let ledger = File::options().create(true).append(true).open(ledger).unwrap();
    let desk = Desk { guard: Arc::default(), out: Arc::new(Mutex::new("\n".to_owned())), ledger: Arc::new(ledger) };
    let to_write = desk.out.clone();
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(Duration::from_millis(2));
            let text = std::mem::take(&mut *to_write.lock().unwrap());
            if !text.is_empty() && std::io::stdout().write_all(text.as_bytes()).is_err() {
                return;
            }
        }
    });
    let (chunks, to_read) = mpsc::channel(4);
    std::thread::spawn(move || read(&chunks));
    if let Some(floor) = floor.clone() {
        let desk = desk.clone();
        std::thread::spawn(move || attend_disk(&desk, &floor.with_extension("probe")));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(serve(bus, floor, desk, to_read));
}

/// Whole lines, and when they were read.
struct Chunk {
    received: Instant,
    received_ms: u64,
    lines: Vec<u8>,
}

fn read(chunks: &mpsc::Sender<Chunk>) {
    let mut input = std::io::stdin().lock();
    let (mut buffer, mut rest) = (vec![0; 64 * 1024], Vec::new());
    while let Ok(length @ 1..) = input.read(&mut buffer) {
        rest.extend_from_slice(&buffer[..length]);
        let Some(end) = rest.iter().rposition(|byte| *byte == b'\n') else { continue };
        let partial = rest.split_off(end + 1);
        let lines = std::mem::replace(&mut rest, partial);
        let chunk = Chunk { received: Instant::now(), received_ms: SystemClock.now_ms(), lines };
        if chunks.blocking_send(chunk).is_err() {
            return;
        }
    }
}

async fn serve(bus: BusConfig, floor: Option<PathBuf>, desk: Desk, mut chunks: mpsc::Receiver<Chunk>) {
    let clock = Arc::new(WrongClock::default());
    tokio::spawn(open(bus, floor, desk.clone(), clock.clone()));
    tokio::spawn(watch(desk.clone()));
    let places = Arc::new(Semaphore::new(IN_FLIGHT));
    let owners: Vec<_> = (0..OWNERS).map(|owner| Name::new(&format!("o{owner}")).unwrap()).collect();
    let owners: Arc<[Name]> = owners.into();
    while let Some(chunk) = chunks.recv().await {
        let lines = String::from_utf8(chunk.lines).unwrap();
        for line in lines.lines() {
            let mut words = line.split(' ');
            let mut next = || words.next().unwrap();
            let message: u64 = match next() {
                "clock" => {
                    clock.0.store(next().parse().unwrap(), Ordering::SeqCst);
                    desk.say(format_args!("@c {} {}", SystemClock.now_ms(), clock.0.load(Ordering::SeqCst)));
                    continue;
                }
                message => message.parse().unwrap(),
            };
            let (nonce, iat) = (Nonce::from_text(next()).unwrap(), next().parse().unwrap());
            let place = places.clone().acquire_owned().await.unwrap();
            let (desk, owners) = (desk.clone(), owners.clone());
            tokio::spawn(async move {
                let owner = &owners[(message % OWNERS) as usize];
                answer(&desk, message, owner, nonce, iat, (chunk.received, chunk.received_ms)).await;
                drop(place);
            });
        }
    }
}

async fn answer(desk: &Desk, message: u64, owner: &Name, nonce: Nonce, iat: u64, received: (Instant, u64)) {
    let (received, received_ms) = received;
    let (mut said, mut before, mut after) = (Said::NotOpen, 0, 0);
    if let Some(guard) = desk.guard.get() {
        before = guard.fence();
        said = Said::of(guard.admit(owner, nonce, iat, iat + WINDOW_S, received).await);
        after = guard.fence();
    }
    let now_ms = SystemClock.now_ms();
    if said == Said::Executed {
        (&*desk.ledger).write_all(format!("{message} {now_ms}\n").as_bytes()).unwrap();
    }
    desk.say(format_args!("@a {message} {} {received_ms} {now_ms} {before} {after}", said.word()));
}

/// Opens the guard, however long that takes.
async fn open(bus: BusConfig, floor: Option<PathBuf>, desk: Desk, clock: Arc<WrongClock>) {
    let guard: Box<dyn ReplayGuard> = match floor {
        Some(floor) => {
            let window = Window::new(WINDOW_S, SKEW_S).unwrap();
            Box::new(LocalGuard::open(window, NonceLimits::default(), clock, &TimeFloor::File(floor)).unwrap())
        }
        None => Box::new(open_shared(bus, &desk, clock).await),
    };
    // As a service does once it has found no replica with another guard.
    guard.serving();
    desk.guard.set(guard).unwrap();
}

async fn open_shared(bus: BusConfig, desk: &Desk, clock: Arc<WrongClock>) -> SharedGuard {
    let mut config = SharedConfig::new(Name::new("test").unwrap(), Name::new("math").unwrap());
    config.window = Window::new(WINDOW_S, SKEW_S).unwrap();
    // This test is not about loaded machines.
    config.answer_within = Duration::from_secs(1);
    loop {
        match SharedGuard::open(config.clone(), bus.clone(), clock.clone()).await {
            Ok(opened) => return opened,
            Err(error) => desk.say(format_args!("@e {} {error}", SystemClock.now_ms())),
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// Reports every change of the guard's readiness, of the reason or of its fence, and every time the machine did not let this
/// process run.
async fn watch(desk: Desk) {
    let (mut said_before, mut fence_before) = (None, 0);
    let (mut looked_ms, mut waits) = (SystemClock.now_ms(), Waits::default());
    loop {
        let now_ms = SystemClock.now_ms();
        if let Some((from_ms, to_ms)) = waits.waited(looked_ms + WATCH_MS, now_ms) {
            desk.say(format_args!("@s {from_ms} {to_ms}"));
        }
        looked_ms = now_ms;
        if let Some(guard) = desk.guard.get() {
            let (why, fence) = (guard.not_ready(), guard.fence());
            if fence != fence_before {
                desk.say(format_args!("@f {now_ms} {fence}"));
            }
            // A reason that only counts down counts as the same.
            let said = why.as_ref().map(|why| why.replace(|c: char| c.is_ascii_digit(), ""));
            if said_before.as_ref() != Some(&said) {
                desk.say(format_args!("@r {now_ms} {} {}", u8::from(why.is_none()), why.as_deref().unwrap_or("")));
            }
            (said_before, fence_before) = (Some(said), fence);
        }
        sleep(Duration::from_millis(WATCH_MS)).await;
    }
}

/// Writes a file all the time, as a local guard does beside it, and reports each time the disk took too long: a guard that cannot renew
/// its lease in time fences anew.
fn attend_disk(desk: &Desk, path: &Path) {
    let mut waits = Waits::default();
    loop {
        let from_ms = SystemClock.now_ms();
        let written = File::create(path).and_then(|mut file| file.write_all(b"probe").and_then(|()| file.sync_all()));
        written.unwrap();
        if let Some((from_ms, to_ms)) = waits.waited(from_ms, SystemClock.now_ms()) {
            desk.say(format_args!("@s {from_ms} {to_ms}"));
        }
        std::thread::sleep(Duration::from_millis(WATCH_MS));
    }
}

/// How many agents send. The test does not aim at the bounds per agent.
const OWNERS: u64 = 8;

const WATCH_MS: u64 = 20;
