//! Work that needs more than its caller has, in threads of its own.
//! Never uses up a stack.

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
