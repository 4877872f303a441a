//! What holds for the whole process before it does anything.
//! Never fails: what a system does not offer is left as it is, and nothing else relies on it alone.

/// From here on, nothing that this process or a child of it writes is open to others, and no crash of it writes its
/// memory, which holds keys, to a disk.
///
/// Whoever needs a public file elsewhere, such as a key set, copies it or opens it up with `chmod`; a file that is
/// replaced keeps what was granted. Manual pages are for all whom the user's own umask lets read.
#[cfg(unix)]
pub(crate) fn harden() {
    use rustix::process::{Resource, Rlimit, setrlimit, umask};
    let _ = UMASK.set(umask(rustix::fs::Mode::from_raw_mode(0o077)).bits());
    // Lowering a limit is always allowed. Hard and soft, so that no child raises it again.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
}

#[cfg(not(unix))]
pub(crate) fn harden() {}

/// The user's own.
#[cfg(unix)]
static UMASK: std::sync::OnceLock<u32> = std::sync::OnceLock::new();

/// Gives an open file or folder that is meant for everybody the rights that the user's own umask leaves.
#[cfg(unix)]
pub(crate) fn open_up(file: &std::fs::File) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let umask = UMASK.get().copied().unwrap_or(0o077);
    let all = if file.metadata()?.is_dir() { 0o777 } else { 0o666 };
    file.set_permissions(std::fs::Permissions::from_mode(all & !umask))
}

#[cfg(not(unix))]
pub(crate) fn open_up(_file: &std::fs::File) -> std::io::Result<()> {
    Ok(())
}
