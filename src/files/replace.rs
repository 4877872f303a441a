//! Replaces files atomically, in place: a reader sees either the old text or the new one.
//! Never replaces a symbolic link by a file: readers of the link's target would not see the change.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use super::error::SecretFileError;
use super::trust::{Content, FileTrust};
use super::walk;

/// Returns the real path of a file, existing or not: from the root, with all symbolic links resolved. Two names with the same result mean
/// the same file. A link as the last component is judged, and so is the path it leads along, as for reading: see [`FileTrust`].
///
/// # Errors
/// [`SecretFileError::Nowhere`] for a dangling link, [`SecretFileError::NoFile`] for a folder, pipe or device,
/// [`SecretFileError::Foreign`] and [`SecretFileError::Writable`] for a link that somebody else could have placed
/// there, and [`SecretFileError::Io`], also if the folder does not exist.
pub fn locate_file(path: &Path) -> Result<PathBuf, SecretFileError> {
    let io = |error| SecretFileError::Io { path: path.to_owned(), error };
    let no_file = || SecretFileError::NoFile { path: path.to_owned() };
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => {
            return match walk::locate(&FileTrust::default(), path) {
                Ok(at) if at.is_file() => Ok(at),
                Ok(_) => Err(no_file()),
                Err(error) if error.is_missing() => Err(SecretFileError::Nowhere { path: path.to_owned() }),
                Err(error) => Err(error),
            };
        }
        Ok(found) if !found.is_file() => return Err(no_file()),
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(io(error)),
        Ok(_) | Err(_) => {}
    }
    let name = path.file_name().ok_or_else(no_file)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok(folder.canonicalize().map_err(io)?.join(name))
}

/// Writes a text that is not secret. A new file has mode 0600. An existing file is replaced atomically, and stays
/// readable for everybody who could read it. For a symbolic link, its target is replaced: see [`locate_file`].
///
/// # Errors
/// As for [`locate_file`], [`SecretFileError::Group`] and [`SecretFileError::Io`]. Nothing has changed in these cases.
pub fn write_public(path: &Path, text: &str) -> Result<(), SecretFileError> {
    replace(path, text, Content::Public)
}

/// Writes a file with this text, atomically replacing an existing one.
pub(super) fn replace(path: &Path, text: &str, content: Content) -> Result<(), SecretFileError> {
    let at = locate_file(path)?;
    let io = |error| SecretFileError::Io { path: path.to_owned(), error };
    let (mut file, beside) = create_beside(&at).map_err(io)?;
    let written = file.write_all(text.as_bytes()).map(|()| file).map_err(io);
    let written = written.and_then(|file| {
        if content == Content::Public {
            keep_readers(path, &at, &file)?;
        }
        file.sync_all().and_then(|()| std::fs::rename(&beside, &at)).map_err(io)
    });
    written.inspect_err(|_| {
        // A file that could not be moved into place must not stay behind: it may hold secrets.
        drop(std::fs::remove_file(&beside));
    })
}

/// Creates a new file next to this one, and returns it with its path. A killed process leaves its file behind, and in a
/// container the next process may have the same id.
fn create_beside(at: &Path) -> std::io::Result<(File, PathBuf)> {
    let mut attempt = 0_u32;
    loop {
        let mut name = at.file_name().unwrap_or_default().to_owned();
        name.push(match attempt {
            0 => format!(".{}.new", std::process::id()),
            again => format!(".{}.{again}.new", std::process::id()),
        });
        let beside = at.with_file_name(name);
        match create_new(&beside) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && attempt < ATTEMPTS => attempt += 1,
            created => return created.map(|file| (file, beside)),
        }
    }
}

/// More leftover files than anybody will ever have.
const ATTEMPTS: u32 = 1_000;

/// Creates a file that only its owner may access; fails if it exists.
pub(super) fn create_new(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt as _;
        options.mode(0o600);
    }
    options.open(path)
}

/// Lets everybody who could read the old file read the new one; nobody else may write it. The owner is not kept: such
/// files are only trusted if they are ours or root's, and neither of us loses access.
#[cfg(unix)]
fn keep_readers(path: &Path, replaced: &Path, file: &File) -> Result<(), SecretFileError> {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    let io = |error| SecretFileError::Io { path: path.to_owned(), error };
    let old = match std::fs::symlink_metadata(replaced) {
        Ok(old) => old,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io(error)),
    };
    let (mode, group) = ((old.mode() & 0o644) | 0o600, old.gid());
    if group != file.metadata().map_err(io)?.gid() {
        let given = std::os::unix::fs::fchown(file, None, Some(group));
        // If the group has no more rights than everybody, it loses nothing.
        let matters = matches!(mode & 0o044, 0o040 | 0o004);
        if given.is_err() && matters {
            return Err(SecretFileError::Group { path: path.to_owned(), group });
        }
    }
    file.set_permissions(std::fs::Permissions::from_mode(mode)).map_err(io)
}

#[cfg(not(unix))]
fn keep_readers(_path: &Path, _replaced: &Path, _file: &File) -> Result<(), SecretFileError> {
    Ok(())
}
