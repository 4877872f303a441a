//! The one runtime of the process: started with the first use, ended when the interpreter ends, and dead in a forked child.
//! Never attaches one of its threads to the interpreter.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tokio::runtime::{Builder, Handle, Runtime};

static STARTED: OnceLock<Handle> = OnceLock::new();
static OWNED: Mutex<Option<Runtime>> = Mutex::new(None);
static FORKED: AtomicBool = AtomicBool::new(false);
static ENDING: AtomicBool = AtomicBool::new(false);

/// How many threads of Python are in [`wait`].
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// How long the end of the interpreter may wait for tasks that do not let go, and then for threads that do not come back.
const STOPPED_WITHIN: Duration = Duration::from_secs(2);

/// How many threads there are unless `SEALWIRE_THREADS` says otherwise, and the most that it may say.
const THREADS: usize = 2;
const MOST_THREADS: usize = 64;

/// The runtime, started now if it is not yet running.
///
/// # Errors
/// `sealwire.ForkedError` in a child of a process that had started it: its threads are not there, so nothing would ever be answered.
pub(crate) fn handle(py: Python<'_>) -> PyResult<Handle> {
    check(py)?;
    if let Some(handle) = STARTED.get() {
        return Ok(handle.clone());
    }
    let mut owned = OWNED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(handle) = STARTED.get() {
        return Ok(handle.clone());
    }
    let mut builder = Builder::new_multi_thread();
    let runtime = builder.worker_threads(threads()?).thread_name("sealwire").enable_all().build()?;
    let handle = STARTED.get_or_init(|| runtime.handle().clone()).clone();
    *owned = Some(runtime);
    Ok(handle)
}

/// # Errors
/// As for [`handle`].
pub(crate) fn check(py: Python<'_>) -> PyResult<()> {
    if !is_forked() {
        return Ok(());
    }
    let error = py.import("sealwire._errors")?.getattr("ForkedError")?.call0()?;
    Err(PyErr::from_value(error))
}

fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

fn threads() -> PyResult<usize> {
    let Some(text) = std::env::var_os("SEALWIRE_THREADS") else { return Ok(THREADS) };
    let number = text.to_str().and_then(|text| text.parse().ok()).filter(|number| (1..=MOST_THREADS).contains(number));
    number.ok_or_else(|| PyRuntimeError::new_err(format!("SEALWIRE_THREADS is a number from 1 to {MOST_THREADS}")))
}

/// Called in the child of a fork.
#[pyfunction]
pub(crate) fn after_fork() {
    // Before the first use there are no threads that the child could lack.
    if STARTED.get().is_some() {
        FORKED.store(true, Ordering::Relaxed);
    }
}

/// Lets other threads of Python run while this one waits, for a fraction of a second at most. `None` once the interpreter ends.
///
/// Until Python 3.13, a thread that comes back to an interpreter which is gone is ended where it stands, by unwinding its stack. Through our
/// frames that is a crash if the library has an unwinder of its own, as portable wheels do. So none is in them when the interpreter goes.
pub(crate) fn wait<T: Send>(py: Python<'_>, waits: impl FnOnce() -> T + Send) -> Option<T> {
    WAITING.fetch_add(1, Ordering::SeqCst);
    let waited = (!ENDING.load(Ordering::SeqCst)).then(|| py.detach(waits));
    WAITING.fetch_sub(1, Ordering::SeqCst);
    waited
}

/// Called when the interpreter ends: calls under way are dropped, and with them told to the services.
#[pyfunction]
pub(crate) fn shutdown(py: Python<'_>) {
    // In a forked child the lock may be held by a thread that does not exist.
    if is_forked() {
        return;
    }
    ENDING.store(true, Ordering::SeqCst);
    let runtime = OWNED.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(runtime) = runtime {
        py.detach(|| runtime.shutdown_timeout(STOPPED_WITHIN));
    }
    let until = Instant::now() + STOPPED_WITHIN;
    while WAITING.load(Ordering::SeqCst) > 0 && Instant::now() < until {
        // They come back as soon as this thread lets them.
        py.detach(|| thread::sleep(Duration::from_millis(1)));
    }
}

/// A value that belongs to the runtime. In a forked child it is not dropped: dropping could wait for a lock whose holder is not there.
pub(crate) struct Owned<T>(Option<T>);

impl<T> Owned<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Some(value))
    }

    /// `None` in a forked child.
    pub(crate) fn alive(&self) -> Option<&T> {
        self.0.as_ref().filter(|_| !is_forked())
    }

    /// # Errors
    /// As for [`handle`].
    pub(crate) fn get(&self, py: Python<'_>) -> PyResult<&T> {
        check(py)?;
        self.0.as_ref().ok_or_else(|| PyRuntimeError::new_err("used while it is dropped"))
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if is_forked() {
            std::mem::forget(self.0.take());
        }
    }
}
