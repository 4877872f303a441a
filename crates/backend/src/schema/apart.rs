//! Runs work that may take long in threads of its own.
//! Never holds up a worker of the runtime, nor its shutdown: nobody waits for a thread whose result is no longer wanted.

use tokio::sync::{Semaphore, SemaphorePermit, oneshot};

/// A limited number of threads for one kind of work.
pub(crate) struct Place(&'static Semaphore);

/// For checks of values that may take long.
pub(crate) static CHECKING: Place = Place(&CHECKS);
/// For reading what servers list, so that a server that always lists something new holds up no check.
pub(crate) static READING: Place = Place(&READS);

static CHECKS: Semaphore = Semaphore::const_new(2);
static READS: Semaphore = Semaphore::const_new(1);

/// The stack of a worker of the runtime: the work here must get along with that.
const STACK: usize = 2 << 20;
/// Compiling recurses as deep as the text, and eight references at a time further, in frames of some kilobytes. The stack is only reserved.
const DEEP: usize = 32 << 20;

/// Does work that recurses deeply, on a stack that it cannot exhaust, and waits for it.
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
    /// Does work when there is room. Once begun, it runs to its end and keeps its place, whether or not anybody waits for it.
    ///
    /// Cancel safe: work that has not begun is not done.
    ///
    /// # Errors
    /// The work could not be begun, or has panicked.
    pub(crate) async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
        let place: SemaphorePermit<'static> = self.0.acquire().await.map_err(|error| error.to_string())?;
        let (done, result) = oneshot::channel();
        let thread = std::thread::Builder::new().name("sealwire-schema".to_owned()).stack_size(STACK);
        let work = move || {
            let found = work();
            drop(place);
            // Perhaps nobody waits for it any more.
            drop(done.send(found));
        };
        thread.spawn(work).map_err(|error| format!("no thread for a check: {error}"))?;
        result.await.map_err(|_| "a check has failed".to_owned())
    }
}
