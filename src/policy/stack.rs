//! Room for parsers and checkers, which are recursive: a thread of the runtime has enough for some hundred levels only.
//! Never used for a decision.

/// In bytes; reserved, and used only as far as needed. A policy at the bounds of `cedar_file` takes a tenth of it in an
/// unoptimized build.
const STACK: usize = 64 << 20;

/// Does the work where there is room for it.
///
/// # Errors
/// If there is no thread to do it on.
pub(super) fn with_room<T: Send>(work: impl FnOnce() -> T + Send) -> std::io::Result<T> {
    std::thread::scope(|scope| {
        let thread =
            std::thread::Builder::new().name("policy".to_owned()).stack_size(STACK).spawn_scoped(scope, work)?;
        thread.join().or_else(|panic| std::panic::resume_unwind(panic))
    })
}
