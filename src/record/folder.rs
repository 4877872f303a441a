//! The files of a record: their names, the one in use, and which are deleted.
//! Never appends to a file of another session, and never deletes one that is not the record's.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;
use time::OffsetDateTime;

use super::line::{MAX_LINE, read_head};
use super::options::{RecordConfig, RecordError};
use super::salt::Salt;
use crate::files::{check_folder, may_write};
use crate::jose::{b64, sha256};

/// A file of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordFile {
    /// Where it is.
    pub path: PathBuf,
    /// Whether it is compressed with gzip.
    pub is_compressed: bool,
    /// When it was last written to.
    pub modified: SystemTime,
    /// Its length in bytes, as it is on disk.
    pub bytes: u64,
}

/// The files of the record in a folder, in the order of their names, which is that of their beginnings.
///
/// # Errors
/// Those of the file system.
pub fn record_files(folder: &Path) -> io::Result<Vec<RecordFile>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let plain = name.strip_suffix(".gz");
        if !plain.unwrap_or(name).ends_with(EXTENSION) {
            continue;
        }
        // Another replica may delete it at this moment.
        let Ok(metadata) = entry.metadata() else { continue };
        if !metadata.is_file() {
            continue;
        }
        let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        files.push(RecordFile { path: entry.path(), is_compressed: plain.is_some(), modified, bytes: metadata.len() });
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

const EXTENSION: &str = ".jsonl";

/// The last line of the session before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Prior {
    session: String,
    seq: u64,
    hash: String,
}

/// Where a session writes.
#[derive(Debug)]
pub(super) struct Output {
    config: RecordConfig,
    session: String,
    /// How many files the session has begun.
    files: u64,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    file: File,
    path: PathBuf,
    bytes: u64,
    since: Instant,
}

impl Output {
    pub(super) fn open(config: RecordConfig, session: &str) -> Result<Self, RecordError> {
        let folder = &config.folder;
        make(folder).map_err(|error| RecordError::Io { path: folder.clone(), error })?;
        check_folder(folder)?;
        let mut output = Self { config, session: session.to_owned(), files: 0, open: None };
        output.begin().map_err(|error| RecordError::Io { path: output.config.folder.clone(), error })?;
        Ok(output)
    }

    /// Whether a session could be begun. Writes nothing.
    pub(super) fn check(config: &RecordConfig) -> Result<(), RecordError> {
        let folder = &config.folder;
        // It is made if it is missing.
        let is_there = folder.try_exists().unwrap_or(true);
        let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let written = if is_there { folder.as_path() } else { parent };
        if is_there {
            check_folder(folder)?;
        }
        may_write(written).map_err(|error| RecordError::Io { path: written.to_owned(), error })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.config.folder
    }

    /// The last whole line of the newest other file.
    pub(super) fn prior(&self) -> Option<Prior> {
        let own = self.open.as_ref().map(|open| &open.path);
        let files = record_files(self.folder()).ok()?;
        let others = files.iter().filter(|file| !file.is_compressed && Some(&file.path) != own);
        let mut newest: Vec<_> = others.collect();
        newest.sort_by_key(|file| std::cmp::Reverse(file.modified));
        newest.into_iter().find_map(|file| last_line(&file.path).ok().flatten())
    }

    /// Appends whole lines, to the next file if this one is full or old. With `sync`, returns only when they are on disk. If it fails,
    /// the file ends where it ended before, or is not written to any more.
    pub(super) fn append(&mut self, text: &[u8], sync: bool) -> io::Result<()> {
        let size = u64::try_from(text.len()).unwrap_or(u64::MAX);
        let (most, age) = (self.config.file_bytes(), self.config.file_age());
        let is_over =
            |open: &Open| open.bytes > 0 && (open.bytes.saturating_add(size) > most || open.since.elapsed() >= age);
        if self.open.as_ref().is_none_or(is_over) {
            self.begin()?;
        }
        let Some(open) = &mut self.open else { return Err(io::ErrorKind::NotFound.into()) };
        let written = open.file.write_all(text).and_then(|()| if sync { open.file.sync_data() } else { Ok(()) });
        match written {
            Ok(()) => {
                open.bytes = open.bytes.saturating_add(size);
                Ok(())
            }
            Err(error) => {
                // A part of a line would stand before the next one.
                if open.file.set_len(open.bytes).is_err() {
                    self.open = None;
                }
                Err(error)
            }
        }
    }

    /// Begins the next file.
    fn begin(&mut self) -> io::Result<()> {
        let now = OffsetDateTime::now_utc();
        let (day, time) = (now.date(), now.time());
        let day = format!("{:04}{:02}{:02}", day.year(), u8::from(day.month()), day.day());
        let time = format!("{:02}{:02}{:02}", time.hour(), time.minute(), time.second());
        let number = self.files + 1;
        let path = self.folder().join(format!("{day}T{time}Z-{}-{number:06}{EXTENSION}", self.session));
        let mut options = OpenOptions::new();
        options.append(true).create_new(true);
        #[cfg(unix)]
        {
            use std::os::unix::fs::OpenOptionsExt as _;
            options.mode(0o600);
        }
        let file = options.open(&path)?;
        // A file whose name is lost in a crash is as lost as its lines.
        #[cfg(unix)]
        File::open(self.folder())?.sync_all()?;
        self.files = number;
        self.open = Some(Open { file, path, bytes: 0, since: Instant::now() });
        Ok(())
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        self.open.as_ref().map_or(Ok(()), |open| open.file.sync_data())
    }

    /// Deletes files that are too old or too many.
    pub(super) fn tidy(&self) -> io::Result<()> {
        let own = self.open.as_ref().map(|open| &open.path);
        let mut files = record_files(self.folder())?;
        files.retain(|file| Some(&file.path) != own);
        files.sort_by_key(|file| file.modified);
        let mut bytes =
            files.iter().map(|file| file.bytes).sum::<u64>() + self.open.as_ref().map_or(0, |open| open.bytes);
        for file in files {
            let is_old = file.modified.elapsed().is_ok_and(|age| age > self.config.keep());
            if !is_old && bytes <= self.config.keep_bytes() {
                break;
            }
            std::fs::remove_file(&file.path)?;
            bytes = bytes.saturating_sub(file.bytes);
            tracing::info!(target: "sealwire::record", file = %file.path.display(), "a file of the record is deleted: see `[record]`");
        }
        self.tidy_salts()
    }

    /// Deletes salts of months that have no lines any more.
    fn tidy_salts(&self) -> io::Result<()> {
        for entry in std::fs::read_dir(self.folder())? {
            let entry = entry?;
            let is_salt = entry.file_name().to_str().is_some_and(|name| name.starts_with(Salt::FILE));
            let modified = entry.metadata().and_then(|metadata| metadata.modified());
            let most = self.config.keep().saturating_add(MONTH);
            if is_salt && modified.is_ok_and(|made| made.elapsed().is_ok_and(|age| age > most)) {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}

/// A salt is used for as long as that.
const MONTH: Duration = Duration::from_secs(31 * 86_400);

fn make(folder: &Path) -> io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt as _;
        builder.mode(0o700);
    }
    match builder.create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// The last whole line of a file, which may end within one.
fn last_line(path: &Path) -> io::Result<Option<Prior>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let most = u64::try_from(3 * MAX_LINE).unwrap_or(u64::MAX);
    file.seek(SeekFrom::Start(length.saturating_sub(most)))?;
    let mut text = Vec::new();
    file.take(most).read_to_end(&mut text)?;
    let whole = text.iter().rposition(|byte| *byte == b'\n').and_then(|end| text.get(..end)).unwrap_or_default();
    let line = whole.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
    let head = read_head(line).ok();
    Ok(head.map(|head| Prior { session: head.session, seq: head.seq, hash: b64(sha256(line)) }))
}
