//! Whether anything about files has changed.
//! Never judges the files: that is up to whoever reads them.

use std::fs::{File, Metadata};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

/// What files looked like: enough to see whether anything about them has changed.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Clone)]
pub(crate) struct Fingerprint(Vec<(PathBuf, Option<FileStat>)>);

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Clone, Default)]
struct FileStat {
    length: u64,
    modified: Option<SystemTime>,
    /// Device, inode, mode, owner, group, and the time of the last change of any of these.
    status: [i64; 7],
    /// The digest of a small file's content: where times are coarse, two changes in a second look alike.
    content: Option<[u8; 32]>,
}

impl Fingerprint {
    pub(crate) fn of(paths: &[PathBuf]) -> Self {
        let mut files = Vec::new();
        for path in paths {
            collect(path, 0, &mut files);
        }
        files.sort();
        Self(files)
    }

    /// Of one file of this length.
    #[cfg(test)]
    pub(crate) fn of_length(length: u64) -> Self {
        Self(vec![(PathBuf::new(), Some(FileStat { length, ..FileStat::default() }))])
    }
}

fn collect(path: &Path, depth: usize, files: &mut Vec<(PathBuf, Option<FileStat>)>) {
    // Follows symbolic links, so that a change of the target counts; the depth ends a loop of them.
    let metadata = std::fs::metadata(path).ok();
    if let Some(metadata) = &metadata
        && metadata.is_dir()
        && depth < 8
    {
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            collect(&entry.path(), depth + 1, files);
        }
    }
    files.push((path.to_owned(), metadata.map(|metadata| FileStat::of(path, &metadata))));
}

impl FileStat {
    fn of(path: &Path, metadata: &Metadata) -> Self {
        // Reading a pipe would block.
        let small = metadata.is_file() && metadata.len() <= SMALL;
        Self {
            length: metadata.len(),
            modified: metadata.modified().ok(),
            status: status(metadata),
            content: small.then(|| digest(path)).flatten(),
        }
    }
}

/// The largest file, in bytes, whose content is compared. Longer ones also take long to rewrite.
const SMALL: u64 = 256 * 1024;

fn digest(path: &Path) -> Option<[u8; 32]> {
    let file = open(path).ok()?;
    // If the file grows while it is read, its length shows that the next time. A pipe has none.
    let length = file.metadata().ok()?.len().min(SMALL);
    // One allocation, so that a growing buffer leaves no copy of a secret behind; and no larger than it must be, since all of it is wiped,
    // at every look.
    let mut content = Zeroizing::new(Vec::with_capacity(usize::try_from(length).ok()?.saturating_add(1)));
    file.take(length).read_to_end(&mut content).ok()?;
    Some(Sha256::digest(&*content).into())
}

/// Opens without blocking: what was a file a moment ago may be a pipe by now, and nobody would look at the files again.
#[cfg(unix)]
fn open(path: &Path) -> std::io::Result<File> {
    use rustix::fs::{Mode, OFlags};
    Ok(rustix::fs::open(path, OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK, Mode::empty())?.into())
}

#[cfg(not(unix))]
fn open(path: &Path) -> std::io::Result<File> {
    File::open(path)
}

#[cfg(unix)]
fn status(metadata: &Metadata) -> [i64; 7] {
    use std::os::unix::fs::MetadataExt as _;
    let (device, inode) = (metadata.dev().cast_signed(), metadata.ino().cast_signed());
    let (mode, owner, group) = (metadata.mode().into(), metadata.uid().into(), metadata.gid().into());
    [device, inode, mode, owner, group, metadata.ctime(), metadata.ctime_nsec()]
}

#[cfg(not(unix))]
fn status(metadata: &Metadata) -> [i64; 7] {
    [metadata.permissions().readonly().into(), 0, 0, 0, 0, 0, 0]
}

#[cfg(all(test, unix))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    /// Its kind was checked before: by now it may be another.
    #[test]
    fn a_pipe_that_takes_the_place_of_a_file_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ring.json");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || tell.send(digest(&path)));
        told.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
    }

    #[test]
    fn anything_about_a_file_that_changes_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ring.json");
        let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        std::fs::write(&path, "one").unwrap();
        let time = std::fs::metadata(&path).unwrap().modified().unwrap();
        let mut stamps = vec![Fingerprint::of(std::slice::from_ref(&path))];
        let mut seen = |what: &str| {
            let now = Fingerprint::of(std::slice::from_ref(&path));
            assert!(!stamps.contains(&now), "{what}");
            stamps.push(now);
        };
        mode(0o600);
        seen("the mode");
        mode(0o644);
        mode(0o600);
        seen("the time of the change, when the mode is as before");
        // The same length and time.
        std::fs::write(&path, "two").unwrap();
        File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        seen("the content");
        std::fs::rename(&path, folder.path().join("away")).unwrap();
        seen("that it is gone");
    }
}
