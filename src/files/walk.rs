//! Walks the path to a file from the root of the file system: each folder is opened and judged before the next step.
//! Never looks up a name twice, so nothing can be swapped between judging and reading.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, fcntl_getfl, fcntl_setfl, openat, readlinkat, statat};
use rustix::io::Errno;

use super::error::SecretFileError;
use super::trust::{Content, FileTrust, Matters};

/// Opens a file if it can be trusted.
pub(super) fn file(trust: &FileTrust, path: &Path, content: Content) -> Result<File, SecretFileError> {
    let io = |error| SecretFileError::Io { path: path.to_owned(), error };
    let found = Walk::new(trust, path)?.run()?;
    // The same error as reading it would return.
    let Found::File { file, at, is_handle } = found else { return Err(io(io::ErrorKind::IsADirectory.into())) };
    if is_handle {
        // We were given this handle on purpose, even if it is a pipe, and must wait for its data.
        let flags = fcntl_getfl(&file).map_err(|error| io(error.into()))?;
        fcntl_setfl(&file, flags.difference(LOOK)).map_err(|error| io(error.into()))?;
    } else if !file.metadata().map_err(io)?.is_file() {
        return Err(SecretFileError::NoFile { path: at });
    }
    trust.judge(&at, &file, content)?;
    Ok(file)
}

/// Returns where a file is, by a path that can be trusted. The file itself is not judged.
pub(super) fn locate(trust: &FileTrust, path: &Path) -> Result<PathBuf, SecretFileError> {
    match Walk::new(trust, path)?.run()? {
        Found::File { at, is_handle: false, .. } => Ok(at),
        Found::File { .. } | Found::Folder(_) => Err(SecretFileError::NoFile { path: path.to_owned() }),
    }
}

/// An open folder of files that decide something.
#[derive(Debug)]
pub(crate) struct Folder<'t> {
    place: Arc<Place>,
    trust: Option<&'t FileTrust>,
}

/// An entry of a folder.
#[derive(Debug)]
pub(crate) enum Entry<'t> {
    Folder(Folder<'t>),
    /// Possibly not a regular file; if it is a pipe, reading does not wait.
    File(File),
}

impl<'t> Folder<'t> {
    /// Opens a folder. With `trust`, the folder and everything opened in it are judged.
    pub(crate) fn open(path: &Path, trust: Option<&'t FileTrust>) -> Result<Self, SecretFileError> {
        let io = |error| SecretFileError::Io { path: path.to_owned(), error };
        let Some(judge) = trust else {
            let folder = enter(CWD, path).map_err(io)?;
            return Ok(Self { place: Arc::new(Place { folder, path: path.to_owned(), above: None }), trust });
        };
        match Walk::new(judge, path)?.run()? {
            Found::Folder(place) => Self { place, trust }.judged(),
            Found::File { .. } => Err(io(io::ErrorKind::NotADirectory.into())),
        }
    }

    /// Every entry of such a folder matters.
    fn judged(self) -> Result<Self, SecretFileError> {
        if let Some(trust) = self.trust {
            trust.judge_as(&self.place.path, &self.place.folder, Content::Public, Matters::All)?;
        }
        Ok(self)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.place.path
    }

    /// The names of its entries.
    pub(crate) fn names(&self) -> io::Result<Vec<OsString>> {
        // The folder's own handle may be good only for passing through it.
        let folder = openat(&self.place.folder, ".", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let mut names = Vec::new();
        for entry in Dir::new(folder)? {
            let name = OsString::from_vec(entry?.file_name().to_bytes().to_vec());
            if name != "." && name != ".." {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// Opens the entry with this name.
    pub(crate) fn entry(&self, name: &OsStr) -> Result<Entry<'t>, SecretFileError> {
        let path = self.place.path.join(name);
        let Some(trust) = self.trust else {
            let io = |error| SecretFileError::Io { path: path.clone(), error };
            return match enter(&self.place.folder, Path::new(name)) {
                Ok(folder) => Ok(Folder { place: Arc::new(Place { folder, path, above: None }), trust: None }),
                Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                    let file = openat(&self.place.folder, name, LOOK | READ, Mode::empty());
                    return file.map(|file| Entry::File(file.into())).map_err(|error| io(error.into()));
                }
                Err(error) => Err(io(error)),
            }
            .map(Entry::Folder);
        };
        let walk = Walk {
            trust,
            given: &path,
            here: Arc::clone(&self.place),
            rest: vec![Step::Down(name.to_owned())],
            links: 0,
        };
        match walk.run()? {
            Found::Folder(place) => Folder { place, trust: Some(trust) }.judged().map(Entry::Folder),
            Found::File { file, at, .. } => {
                trust.judge(&at, &file, Content::Public)?;
                Ok(Entry::File(file))
            }
        }
    }
}

/// A folder on the path.
#[derive(Debug)]
struct Place {
    folder: File,
    /// Without symbolic links.
    path: PathBuf,
    /// `None` for the root.
    above: Option<Arc<Place>>,
}

enum Step {
    Root,
    Up,
    Down(OsString),
}

enum Found {
    Folder(Arc<Place>),
    /// Not judged yet; its path for messages, and whether it is a handle that was already open. Possibly not a regular
    /// file; reading a pipe does not wait.
    File {
        file: File,
        at: PathBuf,
        is_handle: bool,
    },
}

struct Walk<'a> {
    trust: &'a FileTrust,
    /// The path as given.
    given: &'a Path,
    here: Arc<Place>,
    /// The remaining steps, the next one last.
    rest: Vec<Step>,
    links: u32,
}

/// The kernel's own limit (path_resolution(7)).
const MAX_LINKS: u32 = 40;
const READ: OFlags = OFlags::CLOEXEC.union(OFlags::NOCTTY);
/// Otherwise opening a pipe would wait.
const LOOK: OFlags = OFlags::NONBLOCK;
/// Passing through a folder needs no permission to list it.
#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
const PASS: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC).union(OFlags::PATH);
#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
const PASS: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC);

fn enter(from: impl std::os::fd::AsFd, path: &Path) -> io::Result<File> {
    Ok(openat(from, path, PASS, Mode::empty())?.into())
}

impl<'a> Walk<'a> {
    fn new(trust: &'a FileTrust, given: &'a Path) -> Result<Self, SecretFileError> {
        let io = |error| SecretFileError::Io { path: given.to_owned(), error };
        let path = std::path::absolute(given).map_err(io)?;
        let folder = enter(CWD, Path::new("/")).map_err(io)?;
        let here = Arc::new(Place { folder, path: "/".into(), above: None });
        let walk = Self { trust, given, here, rest: steps(&path), links: 0 };
        walk.judge_here()?;
        Ok(walk)
    }

    fn judge_here(&self) -> Result<(), SecretFileError> {
        self.trust.judge_as(&self.here.path, &self.here.folder, Content::Public, Matters::One)
    }

    fn run(mut self) -> Result<Found, SecretFileError> {
        while let Some(step) = self.rest.pop() {
            match step {
                Step::Root => {
                    while let Some(above) = self.here.above.clone() {
                        self.here = above;
                    }
                }
                Step::Up => self.here = self.here.above.clone().unwrap_or(self.here),
                Step::Down(name) => {
                    if let Some(file) = self.down(&name)? {
                        return Ok(file);
                    }
                }
            }
        }
        Ok(Found::Folder(self.here))
    }

    /// Enters a folder, follows a link, or opens the file at the end.
    fn down(&mut self, name: &OsStr) -> Result<Option<Found>, SecretFileError> {
        let io = |error: Errno| SecretFileError::Io { path: self.given.to_owned(), error: error.into() };
        let from = &self.here.folder;
        let no_folder = match openat(from, name, PASS | OFlags::NOFOLLOW, Mode::empty()) {
            Ok(folder) => {
                let (folder, path) = (folder.into(), self.here.path.join(name));
                self.here = Arc::new(Place { folder, path, above: Some(Arc::clone(&self.here)) });
                self.judge_here()?;
                return Ok(None);
            }
            Err(error) => error,
        };
        let status = statat(from, name, AtFlags::SYMLINK_NOFOLLOW).map_err(io)?;
        let is_link = FileType::from_raw_mode(status.st_mode).is_symlink();
        let is_last = self.rest.is_empty();
        let is_handle = is_last && holds_handles(&self.here);
        if is_link && !is_handle {
            self.links += 1;
            if self.links > MAX_LINKS {
                return Err(io(Errno::LOOP));
            }
            // In a folder with the sticky bit, nobody else can replace a link of ours before it is read.
            self.trust.judge_owner(&self.here.path.join(name), status.st_uid, from)?;
            let target = readlinkat(from, name, Vec::new()).map_err(io)?;
            self.rest.extend(steps(Path::new(&OsString::from_vec(target.into_bytes()))));
            return Ok(None);
        }
        if !is_last {
            return Err(io(no_folder));
        }
        // A link here is a handle that we were given, such as `/dev/stdin`: there is no other path to it.
        let follow = if is_link { OFlags::empty() } else { OFlags::NOFOLLOW };
        let file = openat(from, name, READ | LOOK | follow, Mode::empty()).map_err(io)?.into();
        let at = if self.links == 0 { self.given.to_owned() } else { self.here.path.join(name) };
        Ok(Some(Found::File { file, at, is_handle }))
    }
}

/// The steps of a path, in reverse order.
fn steps(path: &Path) -> Vec<Step> {
    let step = |component| match component {
        Component::RootDir => Some(Step::Root),
        Component::ParentDir => Some(Step::Up),
        Component::Normal(name) => Some(Step::Down(name.to_owned())),
        Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().rev().filter_map(step).collect()
}

/// Whether a folder's links are the open files of a process, to which they lead whatever their text says (proc(5)).
#[cfg(target_os = "linux")]
fn holds_handles(place: &Place) -> bool {
    rustix::fs::fstatfs(&place.folder).is_ok_and(|system| system.f_type == rustix::fs::PROC_SUPER_MAGIC)
}

/// Whether a folder's entries are our own open files.
#[cfg(not(target_os = "linux"))]
fn holds_handles(place: &Place) -> bool {
    place.path == Path::new("/dev/fd")
}
