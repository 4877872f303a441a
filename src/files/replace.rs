//! Files that are replaced in one step, where they lie: whoever reads one sees the old text or the new one.
//! Never puts a file in the place of a symbolic link: those who read what it leads to would see nothing of the change.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use super::error::SecretFileError;
use super::trust::{Content, FileTrust};
use super::walk;

/// Where a file lies, or would: from the root, with all symbolic links followed. Two names are of one file if this is the
/// same for both. A link in the file's own place is judged with the way that it leads, as for reading: see [`FileTrust`].
///
/// # Errors
/// [`SecretFileError::Nowhere`] for a link to a file that is not there, [`SecretFileError::NoFile`] for a folder, pipe or
/// device, [`SecretFileError::Foreign`] and [`SecretFileError::Writable`] for a link that somebody else could have put
/// there, and [`SecretFileError::Io`], also if there is no such folder.
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

/// Writes a text that is no secret. A new file has mode 0600; an existing one is replaced in one step, and who could read
/// it can read the new one. Of a symbolic link, what it leads to is replaced: see [`locate_file`].
///
/// # Errors
/// As of [`locate_file`], [`SecretFileError::Group`] and [`SecretFileError::Io`], after which nothing has changed.
pub fn write_public(path: &Path, text: &str) -> Result<(), SecretFileError> {
    replace(path, text, Content::Public)
}

/// Puts a file with this text in the place of another, or where there is none.
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
        // What could not be moved into place must not stay behind: it may hold secrets.
        drop(std::fs::remove_file(&beside));
    })
}

/// A new file beside this one, and its name. A process that was killed has left its own behind, and in a container the next one has
/// the same number.
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

/// More than anybody has killed.
const ATTEMPTS: u32 = 1_000;

/// A file of its owner alone that was not there.
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

/// Whoever could read the file that is about to be replaced can read the new one; nobody else may write it. The owner is
/// not kept: what decides is believed only of us and root, and neither loses it.
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
        // A group that may do as much as everybody loses nothing.
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
