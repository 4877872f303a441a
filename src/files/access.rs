//! What this process may do with a folder.
//! Writes nothing to find out.

use std::io;
use std::path::Path;

/// Whether files could be made in this folder.
pub(crate) fn may_write(folder: &Path) -> io::Result<()> {
    if !folder.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    #[cfg(unix)]
    {
        use rustix::fs::{Access, AtFlags, CWD, accessat};
        accessat(CWD, folder, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)?;
    }
    Ok(())
}
