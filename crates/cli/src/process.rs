//! Settings for the whole process, made before it does anything else.
//! Never fails: a setting that the system does not support is skipped, and nothing else relies on it alone.

/// From here on, no file that this process or a child creates is readable by others, and no crash dumps its memory, which contains
/// keys, to disk.
///
/// To publish a file such as a key set, copy it or `chmod` it: a file that is replaced keeps its permissions. Manual pages get the
/// permissions of the user's own umask.
#[cfg(unix)]
pub(crate) fn harden() {
    use rustix::process::{Resource, Rlimit, setrlimit, umask};
    let _ = UMASK.set(umask(rustix::fs::Mode::from_raw_mode(0o077)).bits());
    // Lowering a limit is always allowed. Lower the hard limit, too, so that no child can raise it again.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
}

#[cfg(not(unix))]
pub(crate) fn harden() {}

/// The user's own umask.
#[cfg(unix)]
static UMASK: std::sync::OnceLock<u32> = std::sync::OnceLock::new();

/// Gives an open file or folder that is meant for everybody the permissions that the user's own umask allows.
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
