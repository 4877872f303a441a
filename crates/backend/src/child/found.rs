//! Where a program is, and why it cannot be started.
//! Never starts one, and never says more than its name.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Why a program cannot be started here, as far as that shows without starting it. `dir` is the folder that it would run in, `path` its
/// `PATH`.
pub(crate) fn fault(program: &str, dir: Option<&Path>, path: Option<&OsStr>) -> Option<String> {
    if let Some(dir) = dir.filter(|dir| !dir.is_dir()) {
        return Some(format!("there is no folder `{}` to run it in", dir.display()));
    }
    let shown = program.escape_debug();
    if program.contains('/') {
        let file = dir.map_or_else(|| PathBuf::from(program), |dir| dir.join(program));
        return match file.metadata() {
            Err(error) => Some(format!("`{shown}`: {error}")),
            Ok(_) if is_program(&file) => None,
            Ok(_) => Some(format!("`{shown}` is not executable")),
        };
    }
    let folders: Vec<PathBuf> = std::env::split_paths(path.unwrap_or(OsStr::new(PATH))).collect();
    let mut files = folders.iter().map(|folder| folder.join(program));
    (!files.any(|file| is_program(&file))).then(|| format!("`{shown}` is not found in PATH"))
}

fn is_program(file: &Path) -> bool {
    file.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// The `PATH` of a program with these variables of its own.
pub(crate) fn path_of(env: &[(OsString, OsString)]) -> Option<OsString> {
    let own = env.iter().rev().find(|(name, _)| name == "PATH").map(|(_, value)| value.clone());
    own.or_else(|| std::env::var_os("PATH"))
}

/// Where the system looks if there is no `PATH`.
const PATH: &str = "/bin:/usr/bin";
/// The number of `ENOEXEC`.
const NO_PROGRAM: i32 = 8;

/// What to say of a program that the system does not start.
pub(super) fn unstartable(program: &OsStr, error: &io::Error) -> String {
    let shown = program.display();
    let is_path = program.to_string_lossy().contains('/');
    match error.kind() {
        io::ErrorKind::NotFound if is_path && Path::new(program).exists() => {
            format!("`{shown}` names an interpreter in its first line (`#!`) that does not exist")
        }
        io::ErrorKind::NotFound if !is_path => format!("`{shown}` is not found in PATH"),
        io::ErrorKind::PermissionDenied => format!("`{shown}` is not executable"),
        _ if error.raw_os_error() == Some(NO_PROGRAM) => {
            format!("`{shown}` is no program, nor a script with its interpreter in the first line (`#!`)")
        }
        _ => format!("`{shown}`: {error}"),
    }
}
