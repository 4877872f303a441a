//! A thread with a runtime of its own. Never shared by two connections.

use std::future::Future;

use tokio::runtime::Builder;

/// Runs `work` on a thread and a runtime of its own: with more threads, a runtime takes twice the processor time for the same calls.
pub(crate) fn thread<F>(name: String, work: impl FnOnce() -> F + Send + 'static) -> std::io::Result<()>
where
    F: Future<Output = ()>,
{
    let runtime = Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name(name).spawn(move || {
        runtime.block_on(work());
        // The look-up of a name may hang: it ends with the process.
        runtime.shutdown_background();
    })?;
    Ok(())
}
