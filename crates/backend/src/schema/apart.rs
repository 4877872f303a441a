//! Work that may take long, in threads of its own.
//! Never holds up a worker of the runtime, nor its end: nobody waits for a thread whose result is not wanted any more.

use tokio::sync::{Semaphore, SemaphorePermit, oneshot};

/// A place to work in, of a few.
pub(crate) struct Place(&'static Semaphore);

/// Where values are checked that may take long.
pub(crate) static CHECKING: Place = Place(&CHECKS);
/// Where what servers list is read, so that a server that always has something new holds up no check.
pub(crate) static READING: Place = Place(&READS);

static CHECKS: Semaphore = Semaphore::const_new(2);
static READS: Semaphore = Semaphore::const_new(1);

/// As much as a worker of the runtime has: what runs here must get along with that.
const STACK: usize = 2 << 20;
/// Compiling goes as deep as the text, and eight references at a time further, in frames of some kilobytes. It is only reserved.
const DEEP: usize = 32 << 20;

/// Does something that goes deep, on a stack that it cannot use up, and waits for it.
///
/// # Errors
/// There is no thread for it, or it has panicked.
pub(super) fn deep<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("sealwire-schema".to_owned()).stack_size(DEEP);
        let running = thread.spawn_scoped(scope, work).map_err(|error| format!("no thread to read it: {error}"))?;
        running.join().map_err(|_| "reading it has failed".to_owned())
    })
}

impl Place {
    /// Does something when there is room. It is done to its end, and keeps its place, whether or not somebody waits for it.
    ///
    /// Cancel safe: what has not begun does not.
    ///
    /// # Errors
    /// It could not be begun, or has panicked.
    pub(crate) async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
        let place: SemaphorePermit<'static> = self.0.acquire().await.map_err(|error| error.to_string())?;
        let (done, result) = oneshot::channel();
        let thread = std::thread::Builder::new().name("sealwire-schema".to_owned()).stack_size(STACK);
        let work = move || {
            let found = work();
            drop(place);
            // Nobody may wait for it any more.
            drop(done.send(found));
        };
        thread.spawn(work).map_err(|error| format!("no thread for a check: {error}"))?;
        result.await.map_err(|_| "a check has failed".to_owned())
    }
}
