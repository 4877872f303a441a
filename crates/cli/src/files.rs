//! Files that commands read and change: inputs from stdin, public files replaced in one step, one change at a time.
//! Never writes a secret: that is the job of `sealwire::internal::files::write_secret`.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, TryLockError};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sealwire::errors::SecretFileError;
use sealwire::internal::files::{self, check_folder, decode_text, locate_file, read_public};
use zeroize::Zeroizing;

use crate::exit::{Exit, Failure, OrFail as _};

/// The argument itself, or the contents of stdin if there is none or it is `-`.
pub(crate) fn argument_or_stdin(argument: Option<String>, what: &str) -> Result<String, Failure> {
    match argument {
        Some(text) if text != "-" => Ok(text),
        _ => {
            let bytes = stdin(what)?;
            let text = decode_text(Zeroizing::new(bytes));
            let text = text.map_err(|fault| Failure::input(format!("{what} on stdin is {fault}")))?;
            Ok(text.to_string())
        }
    }
}

/// The contents of stdin, at most 16 MiB: far more than any message may carry.
pub(crate) fn stdin(what: &str) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let read = std::io::stdin().lock().take(MAX_STDIN + 1).read_to_end(&mut bytes);
    read.map_err(|error| Failure::input(format!("cannot read {what} from stdin: {error}")))?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > MAX_STDIN {
        return Err(Failure::input(format!("{what} on stdin is larger than {MAX_STDIN} bytes")));
    }
    Ok(bytes)
}

const MAX_STDIN: u64 = 16 * 1024 * 1024;

/// The text of a file that only we or root could have written, or `None` if there is no such file. A dangling link is an error:
/// a file written in its place would not be where the link's readers look.
pub(crate) fn read_if_there(path: &Path) -> Result<Option<String>, Failure> {
    match read_public(path) {
        Ok(text) => Ok(Some(text)),
        Err(_) if path.is_symlink() && !path.exists() => locate_file(path).map(|_| None).or_fail(Exit::Input),
        Err(SecretFileError::Io { error, .. }) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::of(Exit::Input, &error)),
    }
}

/// Creates a folder if there is none. An existing one must be ours or root's, so that nobody else could have put anything into it.
/// This is checked before anything in it, or about it, is read or changed.
pub(crate) fn make_folder(path: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(path).map_err(|error| at(path, &error))?;
    check_folder(path).or_fail(Exit::Input)
}

/// Restricts a folder that [`make_folder`] has checked to its owner.
#[cfg(unix)]
pub(crate) fn restrict(folder: &Path) -> Result<(), Failure> {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700)).map_err(|error| at(folder, &error))
}

#[cfg(not(unix))]
pub(crate) fn restrict(_folder: &Path) -> Result<(), Failure> {
    Ok(())
}

/// Writes a file that must not exist yet.
pub(crate) fn write_new(path: &Path, text: &str) -> Result<(), Failure> {
    let mut file = File::create_new(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => Failure::input(format!("`{}` is there already", path.display()))
            .help("nothing is overwritten: name another"),
        _ => at(path, &error),
    })?;
    file.write_all(text.as_bytes()).map_err(|error| {
        // Half a file is ours, and would be in the way of the next attempt.
        drop(std::fs::remove_file(path));
        at(path, &error)
    })
}

/// Fails if a file that is about to be written already exists and contains something other than `what`: by a slip on the command
/// line it may be a key or a configuration.
pub(crate) fn check_output(path: &Path, what: &str, is_such: impl Fn(&str) -> bool) -> Result<(), Failure> {
    let place = locate_file(path).map_err(|error| match error {
        SecretFileError::Io { error, .. } if error.kind() == std::io::ErrorKind::NotFound => {
            Failure::input(format!("`{}` cannot be written: its folder has to be there", path.display()))
        }
        error => Failure::of(Exit::Input, &error),
    })?;
    let file = match File::open(place) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(at(path, &error)),
    };
    let mut bytes = Zeroizing::new(Vec::new());
    file.take(MAX_OUTPUT).read_to_end(&mut bytes).map_err(|error| at(path, &error))?;
    let text = std::str::from_utf8(&bytes).map(|text| text.trim_start_matches('\u{feff}').trim());
    let is_such = text.is_ok_and(|text| text.is_empty() || is_such(text));
    if is_such {
        return Ok(());
    }
    Err(Failure::input(format!("`{}` is there already, and holds no {what}: it is not overwritten", path.display()))
        .help("name another file, or remove that one first"))
}

/// Fails if two files that are about to be written are the same, even under different names: the second would overwrite the first.
pub(crate) fn check_apart<'a>(outputs: impl IntoIterator<Item = (&'static str, &'a Path)>) -> Result<(), Failure> {
    let mut places = BTreeMap::new();
    for (what, path) in outputs {
        // If a path cannot be resolved, writing the file will report why.
        let Ok(place) = locate_file(path) else { continue };
        // Two files of the same kind are reported when they are opened.
        if let Some(other) = places.insert(place, what).filter(|other| *other != what) {
            return Err(Failure::input(format!("`{}` is named for {other} and for {what}", path.display()))
                .help("nothing was written: name two files"));
        }
    }
    Ok(())
}

/// Far more than any file that a command replaces.
const MAX_OUTPUT: u64 = 16 * 1024 * 1024;

/// The path for a file in another folder. Links stay in it: what they lead to may be replaced, as in Kubernetes.
pub(crate) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// A context of the `nats` command as credentials name it: a path to one as for a file in another folder.
pub(crate) fn context(name: &str) -> String {
    match name.ends_with(".json") {
        true => absolute(Path::new(name)).to_string_lossy().into_owned(),
        false => name.to_owned(),
    }
}

/// A path for `--json`. JSON cannot hold one that is not UTF-8: what is not becomes U+FFFD.
pub(crate) fn shown(path: &Path) -> Cow<'_, str> {
    path.to_string_lossy()
}

/// Like [`shown`], for several paths.
pub(crate) fn all_shown<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Vec<Cow<'a, str>> {
    paths.into_iter().map(shown).collect()
}

/// Writes a file that contains no secret: see [`files::write_public`].
pub(crate) fn write_public(path: &Path, text: &str) -> Result<(), Failure> {
    files::write_public(path, text).or_fail(Exit::Input)
}

/// Keeps other commands from changing files in the same folders until this is dropped: if two commands read a key ring before
/// either writes it, one new record would be lost.
#[derive(Debug)]
pub(crate) struct Lock {
    _folders: Vec<File>,
}

/// How long to wait for another command. Ours hold a lock for milliseconds, but anybody who may list a folder could hold it forever,
/// and must not be able to keep others from revoking a key.
const LOCKED_FOR: Duration = Duration::from_secs(3);
/// How long to wait for a command that creates a whole setup, on a busy machine.
const MADE_WITHIN: Duration = Duration::from_secs(30);

impl Lock {
    /// Locks the folders of these files. After a while, warns and goes on without the lock.
    pub(crate) fn of<'a>(files: impl IntoIterator<Item = &'a Path>) -> Self {
        // Each folder once, in a fixed order, so that two commands cannot wait for each other, nor one for itself. For a link, lock
        // the folder of its target, as commands do that name the target.
        let folders: BTreeSet<PathBuf> =
            files.into_iter().filter_map(|file| Some(locate_file(file).ok()?.parent()?.to_owned())).collect();
        // If folders cannot be opened like files, as on Windows, there is no lock.
        let locked = folders.iter().filter_map(|folder| File::open(folder).ok().filter(|file| lock(folder, file)));
        Self { _folders: locked.collect() }
    }

    /// Locks these folders. After a while, fails, for commands that must not run at the same time as another.
    pub(crate) fn alone_in(folders: impl IntoIterator<Item = PathBuf>) -> Result<Self, Failure> {
        let resolved = folders.into_iter().map(|folder| folder.canonicalize().map_err(|error| at(&folder, &error)));
        let until = Instant::now() + MADE_WITHIN;
        let locked = resolved.collect::<Result<BTreeSet<_>, _>>()?.into_iter().map(|folder| {
            let file = File::open(&folder).map_err(|error| at(&folder, &error))?;
            match wait(&file, until) {
                Ok(()) => Ok(file),
                Err(TryLockError::Error(error)) => {
                    Err(Failure::input(format!("`{}` cannot be locked: {error}", folder.display()))
                        .help("use a folder on a file system that has locks"))
                }
                Err(TryLockError::WouldBlock) => {
                    Err(Failure::input(format!("another command is changing `{}`", folder.display()))
                        .help("nothing was changed: run this again when that has ended; `fuser` names its process"))
                }
            }
        });
        Ok(Self { _folders: locked.collect::<Result<_, _>>()? })
    }
}

/// Locks a folder, and returns whether it is locked now.
fn lock(folder: &Path, file: &File) -> bool {
    match wait(file, Instant::now() + LOCKED_FOR) {
        Ok(()) => true,
        Err(TryLockError::Error(_)) => false,
        Err(TryLockError::WouldBlock) => {
            tracing::warn!(
                target: "sealwire::files",
                ?folder,
                "locked by another process, which `fuser` names: going on without the lock; run no other command that changes files there"
            );
            false
        }
    }
}

fn wait(file: &File, until: Instant) -> Result<(), TryLockError> {
    loop {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(Duration::from_millis(20)),
            locked => return locked,
        }
    }
}

/// The failure for an I/O error of a file or folder.
pub(crate) fn at(path: &Path, error: &std::io::Error) -> Failure {
    Failure::input(format!("`{}`: {error}", path.display()))
}
