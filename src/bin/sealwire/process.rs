//! What holds for the whole process before it does anything.
//! Never fails: what a system does not offer is left as it is, and nothing else relies on it alone.

/// From here on, nothing that this process or a child of it writes is open to others, and no crash of it writes its
/// memory, which holds keys, to a disk.
///
/// Whoever needs a public file elsewhere, such as a key set, copies it or opens it up with `chmod`; a file that is
/// replaced keeps what was granted.
#[cfg(unix)]
pub(crate) fn harden() {
    use rustix::process::{Resource, Rlimit, setrlimit, umask};
    umask(rustix::fs::Mode::from_raw_mode(0o077));
    // Lowering a limit is always allowed. Hard and soft, so that no child raises it again.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
}

#[cfg(not(unix))]
pub(crate) fn harden() {}
