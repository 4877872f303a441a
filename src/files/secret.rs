//! Files that hold secrets: read only if nobody else can read them, and written for their owner alone.
//! Never prints their content.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::Path;

use zeroize::Zeroizing;

use super::Folder;
use super::error::{MAX_BYTES, SecretFileError};
use super::replace::{self, create_new};
use super::text::decode_text;
use super::trust::{Content, FileTrust};

/// Reads a text that only its owner may read, and that only we or root could have written: see [`FileTrust`].
///
/// # Errors
/// [`SecretFileError::Open`] when group or others have any permission, [`SecretFileError::Foreign`] and
/// [`SecretFileError::Writable`] when somebody else could have put it there, [`SecretFileError::TooLarge`] above 64
/// MiB, and [`SecretFileError::Io`].
pub fn read_secret(path: &Path) -> Result<Zeroizing<String>, SecretFileError> {
    FileTrust::default().read_secret(path)
}

/// Reads a text that is not secret, and that only we or root could have written: see [`FileTrust`].
///
/// # Errors
/// As for [`read_secret`], except [`SecretFileError::Open`].
pub fn read_public(path: &Path) -> Result<String, SecretFileError> {
    FileTrust::default().read_public(path)
}

/// Opens a file as [`read_public`] does, for content that is not text or is not read here.
///
/// # Errors
/// As for [`read_public`].
pub fn open_public(path: &Path) -> Result<File, SecretFileError> {
    FileTrust::default().open(path, Content::Public)
}

/// Checks that only we or root could have put anything into this folder: see [`FileTrust`].
///
/// # Errors
/// [`SecretFileError::Foreign`] and [`SecretFileError::Writable`] if somebody could, and [`SecretFileError::Io`].
pub fn check_folder(path: &Path) -> Result<(), SecretFileError> {
    Folder::open(path, Some(&FileTrust::default())).map(drop)
}

/// Reads a text that only users in `trust` could have written, and if it is secret, that nobody else could read.
pub(crate) fn read_trusted(
    path: &Path,
    content: Content,
    trust: &FileTrust,
) -> Result<Zeroizing<String>, SecretFileError> {
    read_open(path, &trust.open(path, content)?)
}

/// Reads the text of a file that has been opened and judged, without a byte-order mark.
pub(crate) fn read_open(path: &Path, file: &File) -> Result<Zeroizing<String>, SecretFileError> {
    let io = |error| SecretFileError::Io { path: path.to_owned(), error };
    let metadata = file.metadata().map_err(io)?;
    if metadata.len() > MAX_BYTES {
        return Err(SecretFileError::TooLarge { path: path.to_owned() });
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or(0).saturating_add(1)));
    // A pipe that we were given has no known length.
    file.take(MAX_BYTES.saturating_add(1)).read_to_end(&mut bytes).map_err(io)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > MAX_BYTES {
        return Err(SecretFileError::TooLarge { path: path.to_owned() });
    }
    decode_text(bytes).map_err(|fault| SecretFileError::Text { path: path.to_owned(), fault })
}

/// Writes a text with mode 0600. With `replace`, an existing file is replaced atomically and stays readable until then;
/// for a symbolic link, that is its target (see [`locate_file`](super::locate_file)). Without it, an existing file is
/// an error.
///
/// # Errors
/// [`SecretFileError::Exists`], those of [`locate_file`](super::locate_file), and [`SecretFileError::Io`], after which
/// nothing is left of the new file.
pub fn write_secret(path: &Path, text: &str, replace: bool) -> Result<(), SecretFileError> {
    if !replace {
        let io = |error| SecretFileError::Io { path: path.to_owned(), error };
        let mut file = create_new(path).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => SecretFileError::Exists { path: path.to_owned() },
            _ => io(error),
        })?;
        return file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(|error| {
            // A partial file would block the next attempt, and it is ours.
            drop(std::fs::remove_file(path));
            io(error)
        });
    }
    replace::replace(path, text, Content::Secret)
}

#[cfg(all(test, unix))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_secret_that_others_can_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.creds.json");
        write_secret(&path, "secret", false).unwrap();
        assert_eq!(read_secret(&path).unwrap().as_str(), "secret");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        for mode in [0o640, 0o604, 0o620, 0o777] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let error = read_secret(&path).unwrap_err().to_string();
            assert!(error.contains("chmod 600"), "{error}");
        }
    }

    #[test]
    fn an_existing_secret_is_not_overwritten_unless_asked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        write_secret(&path, "one", false).unwrap();
        assert!(matches!(write_secret(&path, "two", false), Err(SecretFileError::Exists { .. })));
        write_secret(&path, "three", true).unwrap();
        assert_eq!(read_secret(&path).unwrap().as_str(), "three");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
