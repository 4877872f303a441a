//! Folders that nobody else may look into.
//! Never left to the umask.

/// A folder for its owner alone, whatever the process's umask: everybody may look around in the folder that it is in.
pub fn private<'a, 'b, 'c>(builder: &'c mut tempfile::Builder<'a, 'b>) -> &'c mut tempfile::Builder<'a, 'b> {
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o700));
    builder
}
