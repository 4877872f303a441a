//! `sealwire policy fmt`: gives all policy files the same layout, so that reviews are about rules.
//! Never leaves half a file behind: a service that reads it meanwhile sees the old or the new one.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use clap::Args;
use sealwire::internal::policy::format;
use serde::Serialize;

use crate::exit::{Exit, Failure};
use crate::files::at;
use crate::output::Output;
use crate::policies::{FOLDER, check_folder};

/// Format policy files and tables of expected decisions
///
/// Keeps comments, and never changes what a file means. The exit code is 11 if a file does not parse or cannot be read; such
/// files are left alone.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire policy fmt
  sealwire policy fmt /etc/sealwire/policies --check")]
pub(crate) struct Fmt {
    /// The folder
    #[arg(value_name = "DIR", default_value = FOLDER)]
    folder: PathBuf,
    /// Change nothing; list the files that would change, and exit with code 13 if there are any
    #[arg(long)]
    check: bool,
}

#[derive(Debug, Default, Serialize)]
struct Outcome {
    files: usize,
    changed: Vec<String>,
    failed: Vec<Fault>,
}

#[derive(Debug, Serialize)]
struct Fault {
    file: String,
    error: String,
}

impl Fmt {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        check_folder(&self.folder)?;
        let mut names = Vec::new();
        list(&self.folder, "", 0, &mut names).map_err(|error| at(&self.folder, &error))?;
        names.sort();
        let mut outcome = Outcome { files: names.len(), ..Outcome::default() };
        for name in names {
            match self.lay_out(&name) {
                Err(error) => outcome.failed.push(Fault { file: name, error }),
                Ok(true) => outcome.changed.push(name),
                Ok(false) => {}
            }
        }
        out.tell(&outcome, || outcome.text(self.check))?;
        Ok(match (outcome.failed.is_empty(), outcome.changed.is_empty() || !self.check) {
            (false, _) => Exit::PolicyInvalid,
            (true, false) => Exit::Different,
            (true, true) => Exit::Ok,
        })
    }

    /// Formats a file. Returns whether it has changed, or would. An error concerns this file only; the others are still formatted.
    fn lay_out(&self, name: &str) -> Result<bool, String> {
        let path = self.folder.join(name);
        let io = |error: io::Error| error.to_string();
        // Reading a pipe may take forever.
        let metadata = fs::metadata(&path).map_err(io)?;
        if !metadata.is_file() {
            return Err("is not a regular file".to_owned());
        }
        if metadata.len() > MAX_BYTES {
            return Err(format!("is larger than {MAX_BYTES} bytes"));
        }
        let text = fs::read_to_string(&path).map_err(io)?;
        let laid_out = format(name, &text).map_err(|error| error.to_string())?;
        if laid_out == text {
            return Ok(false);
        }
        if !self.check {
            replace(&path, &laid_out).map_err(|error| format!("cannot be replaced: {error}"))?;
        }
        Ok(true)
    }
}

impl Outcome {
    fn text(&self, check: bool) -> String {
        let verb = if check { "would be laid out" } else { "laid out" };
        let changed = self.changed.iter().map(|name| format!("{name}: {verb}\n"));
        let failed = self.failed.iter().map(|fault| format!("{}: {}\n", fault.file, fault.error.trim_end()));
        let end = format!("{} files, {} {verb}, {} failed", self.files, self.changed.len(), self.failed.len());
        changed.chain(failed).chain([end]).collect()
    }
}

/// Lists policy files and tables of expected decisions, by the same rules as the loader.
fn list(folder: &Path, prefix: &str, depth: usize, names: &mut Vec<String>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        if name.starts_with('.') {
            continue;
        }
        if path.is_dir() {
            // The loader refuses anything nested deeper.
            if depth < MAX_DEPTH {
                list(&path, &format!("{prefix}{name}/"), depth + 1, names)?;
            }
        } else if name.ends_with(".toml") || name.ends_with(".cedar") {
            names.push(format!("{prefix}{name}"));
        }
    }
    Ok(())
}

const MAX_DEPTH: usize = 8;
/// Nor does it read a larger file.
const MAX_BYTES: u64 = 1 << 20;

/// Replaces a file in one step, and keeps its owner and permissions. The temporary file's name begins with a dot, so the loader
/// ignores it.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    // Replace the target of a link, not the link.
    let path = path.canonicalize()?;
    let mut beside = tempfile::Builder::new().prefix(".fmt-").tempfile_in(path.parent().unwrap_or(Path::new(".")))?;
    beside.write_all(text.as_bytes())?;
    let old = fs::metadata(&path)?;
    keep_owner(beside.as_file(), &old)?;
    beside.as_file().set_permissions(old.permissions())?;
    beside.as_file().sync_all()?;
    beside.persist(&path).map_err(|error| error.error)?;
    Ok(())
}

/// Lets everybody who could read the old file read the new one: the service may run as another user than the one who formats.
#[cfg(unix)]
fn keep_owner(file: &fs::File, old: &fs::Metadata) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt as _, fchown};
    let own = file.metadata()?;
    if (own.uid(), own.gid()) == (old.uid(), old.gid()) || fchown(file, Some(old.uid()), Some(old.gid())).is_ok() {
        return Ok(());
    }
    // Only root can give files away. A group that has the same rights as everybody loses nothing.
    let given = fchown(file, None, Some(old.gid()));
    let matters = (old.mode() >> 3) & 0o7 != old.mode() & 0o7;
    given.or_else(|error| if matters { Err(error) } else { Ok(()) })
}

#[cfg(not(unix))]
fn keep_owner(_file: &fs::File, _old: &fs::Metadata) -> io::Result<()> {
    Ok(())
}
