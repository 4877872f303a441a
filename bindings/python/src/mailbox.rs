//! The way from the runtime to a thread of Python: events are left in a list, and the thread is woken once for as many as there are.
//! Never calls Python, and never keeps a thread of the runtime waiting for one.

use std::collections::HashMap;
use std::future::Future;
#[cfg(unix)]
use std::io::{self, Read as _, Write as _};
#[cfg(unix)]
use std::os::fd::AsRawFd as _;
#[cfg(unix)]
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::PyList;
use sealwire::errors::ErrorKind;
use tokio::task::AbortHandle;

use crate::event::Event;
use crate::failure::Failure;
use crate::runtime::{self, Owned};

/// The most pieces of work that one thread of Python, or one event loop, can have under way.
const MOST_UNDER_WAY: usize = 16_384;

/// The most bytes of parameters of all of them.
const MOST_BYTES: usize = 256 << 20;

/// Where the results of one event loop, or of one thread, arrive.
#[pyclass(frozen, module = "sealwire._core")]
pub(crate) struct Mailbox(Owned<Arc<Shared>>);

pub(crate) struct Shared {
    state: Mutex<State>,
    /// For threads that wait in [`Mailbox::wait`].
    arrived: Condvar,
    /// For event loops.
    #[cfg(unix)]
    bell: Option<Bell>,
}

#[derive(Default)]
struct State {
    events: Vec<(u64, Event)>,
    under_way: HashMap<u64, Work>,
    /// Of everything under way.
    bytes: usize,
    is_closed: bool,
}

struct Work {
    abort: AbortHandle,
    bytes: usize,
}

/// Two ends of a socket: an event loop watches one of them.
#[cfg(unix)]
struct Bell {
    rings: UnixStream,
    heard: UnixStream,
}

/// Reports a failure for work that ends without a result: it panicked, or the runtime has ended.
struct Report {
    shared: Arc<Shared>,
    id: u64,
}

#[pymethods]
impl Mailbox {
    /// `with_bell`: for an event loop, which watches [`Mailbox::fileno`].
    #[new]
    fn new(py: Python<'_>, with_bell: bool) -> PyResult<Self> {
        runtime::check(py)?;
        #[cfg(not(unix))]
        let _ = with_bell;
        Ok(Self(Owned::new(Arc::new(Shared {
            state: Mutex::default(),
            arrived: Condvar::new(),
            #[cfg(unix)]
            bell: with_bell.then(Bell::new).transpose()?,
        }))))
    }

    /// What an event loop watches for reading.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        let shared = self.0.get(py)?;
        #[cfg(unix)]
        if let Some(bell) = &shared.bell {
            return Ok(bell.heard.as_raw_fd());
        }
        let _ = shared;
        Err(PyOSError::new_err("there is nothing that a selector could watch"))
    }

    /// Waits until there is something to take, for `seconds` at most. Other threads of Python run meanwhile. `sealwire.Closed` if there is
    /// nothing and the interpreter ends.
    fn wait(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        let shared = self.0.get(py)?;
        let limit = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        match runtime::wait(py, || shared.wait(limit)) {
            Some(has_arrived) => Ok(has_arrived),
            None if shared.has_arrived() => Ok(true),
            None => Err(Failure::given_up().to_error(py)),
        }
    }

    /// Everything that has arrived, as `(id, failed, payload)`.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let events = self.0.get(py)?.take();
        let list = PyList::empty(py);
        for (id, event) in events {
            list.append(event.into_tuple(py, id)?)?;
        }
        Ok(list)
    }

    /// Gives up a piece of work: nothing will arrive for it any more. A call is cancelled at its service.
    fn cancel(&self, py: Python<'_>, id: u64) -> PyResult<()> {
        let work = self.0.get(py)?.forget(id);
        if let Some(work) = work {
            work.abort.abort();
        }
        Ok(())
    }

    /// How many pieces of work are under way.
    fn under_way(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.0.get(py)?.lock().under_way.len())
    }

    /// Gives up everything: its loop is closed, or its thread has ended.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.0.get(py)?.close();
        Ok(())
    }
}

impl Mailbox {
    /// Runs `work`, which holds `bytes` of parameters, and leaves its result under `id`.
    ///
    /// # Errors
    /// `sealwire.Busy` if there is too much under way, `sealwire.ForkedError`.
    pub(crate) fn begin(
        &self,
        py: Python<'_>,
        id: u64,
        bytes: usize,
        work: impl Future<Output = Event> + Send + 'static,
    ) -> PyResult<()> {
        let (shared, handle) = (self.0.get(py)?, runtime::handle(py)?);
        let mut state = shared.lock();
        if state.is_closed {
            return Err(Failure::local(ErrorKind::Closed, "the event loop was closed".to_owned()).to_error(py));
        }
        if state.under_way.len() >= MOST_UNDER_WAY || state.bytes.saturating_add(bytes) > MOST_BYTES {
            drop(state);
            let text = format!(
                "{MOST_UNDER_WAY} calls, or {} MiB of their parameters, wait already: wait for some of them",
                MOST_BYTES >> 20
            );
            return Err(Failure::local(ErrorKind::Busy, text).to_error(py));
        }
        let report = Report { shared: Arc::clone(shared), id };
        // The lock is held until the task is known, so it cannot end before.
        let task = handle.spawn(async move {
            let event = work.await;
            report.shared.finish(report.id, event);
        });
        state.bytes += bytes;
        state.under_way.insert(id, Work { abort: task.abort_handle(), bytes });
        Ok(())
    }

    /// For what arrives without having been asked for.
    pub(crate) fn shared(&self, py: Python<'_>) -> PyResult<Arc<Shared>> {
        self.0.get(py).map(Arc::clone)
    }
}

impl Shared {
    /// Leaves an event that belongs to no work. Whoever leaves it has a bound for what waits.
    pub(crate) fn leave(&self, id: u64, event: Event) {
        self.push(self.lock(), id, event);
    }

    /// Leaves the result of work, unless that was given up.
    fn finish(&self, id: u64, event: Event) {
        let mut state = self.lock();
        if state.remove(id).is_some() {
            self.push(state, id, event);
        }
    }

    fn forget(&self, id: u64) -> Option<Work> {
        self.lock().remove(id)
    }

    fn push(&self, mut state: MutexGuard<'_, State>, id: u64, event: Event) {
        if state.is_closed {
            return;
        }
        let is_first = state.events.is_empty();
        state.events.push((id, event));
        drop(state);
        if is_first {
            self.arrived.notify_all();
            #[cfg(unix)]
            if let Some(bell) = &self.bell {
                bell.ring();
            }
        }
    }

    fn wait(&self, limit: Duration) -> bool {
        let waited = self.arrived.wait_timeout_while(self.lock(), limit, |state| !state.has_arrived());
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.has_arrived()
    }

    fn has_arrived(&self) -> bool {
        self.lock().has_arrived()
    }

    fn take(&self) -> Vec<(u64, Event)> {
        // First the bell, then the events: one that arrives in between is taken, or rings again.
        #[cfg(unix)]
        if let Some(bell) = &self.bell {
            bell.silence();
        }
        std::mem::take(&mut self.lock().events)
    }

    fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        let (events, under_way) = (std::mem::take(&mut state.events), std::mem::take(&mut state.under_way));
        drop(state);
        self.arrived.notify_all();
        under_way.values().for_each(|work| work.abort.abort());
        drop(events);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing between lock and unlock can panic halfway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Something can be taken, or nothing will come any more.
    fn has_arrived(&self) -> bool {
        !self.events.is_empty() || self.is_closed
    }

    fn remove(&mut self, id: u64) -> Option<Work> {
        let work = self.under_way.remove(&id)?;
        self.bytes = self.bytes.saturating_sub(work.bytes);
        Some(work)
    }
}

/// The loop or the thread is gone.
impl Drop for Mailbox {
    fn drop(&mut self) {
        if let Some(shared) = self.0.alive() {
            shared.close();
        }
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        self.shared.finish(self.id, Failure::given_up().into());
    }
}

#[cfg(unix)]
impl Bell {
    fn new() -> io::Result<Self> {
        let (rings, heard) = UnixStream::pair()?;
        rings.set_nonblocking(true)?;
        heard.set_nonblocking(true)?;
        Ok(Self { rings, heard })
    }

    /// If there is no room, it has been rung and not been heard yet.
    fn ring(&self) {
        drop((&self.rings).write(&[1]));
    }

    fn silence(&self) {
        let mut bytes = [0; 64];
        while (&self.heard).read(&mut bytes).is_ok_and(|read| read == bytes.len()) {}
    }
}
