//! The lines of a record: of folders and files, compressed or not, once or as they are written.
//! Never keeps more than one line, and never reads a line of a plain file before it is whole, unless it stays that way.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use sealwire::internal::record::{MAX_LINE, record_files};

use crate::exit::Failure;
use crate::files::at;

/// Where the record is, by default.
pub(super) const FOLDER: &str = "records";

/// One line, without its line end.
#[derive(Debug)]
pub(super) struct Line<'a> {
    pub(super) file: &'a Path,
    /// Its number in the file, from 1.
    pub(super) number: usize,
    /// If it is longer than a line may be, its beginning.
    pub(super) text: &'a [u8],
    /// Whether it has a line end.
    pub(super) is_whole: bool,
}

impl Line<'_> {
    pub(super) fn place(&self) -> String {
        format!("{}:{}", self.file.display(), self.number)
    }
}

/// Reads a record again and again, each time what is new.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    paths: &'a [PathBuf],
    places: BTreeMap<PathBuf, Place>,
    /// Whether more may be written to the files.
    follows: bool,
}

/// How far a file is read.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    bytes: u64,
    lines: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(paths: &'a [PathBuf], follows: bool) -> Self {
        Self { paths, places: BTreeMap::new(), follows }
    }

    /// Hands every new line to `take`.
    pub(super) fn pass(&mut self, mut take: impl FnMut(&Line<'_>) -> Result<(), Failure>) -> Result<(), Failure> {
        for path in self.files()? {
            let mut place = self.places.get(&path).copied().unwrap_or_default();
            let is_compressed = path.extension().is_some_and(|extension| extension == "gz");
            // It was read before it was compressed.
            if is_compressed && (place.lines > 0 || self.places.contains_key(&path.with_extension(""))) {
                continue;
            }
            self.read(&path, is_compressed, &mut place, &mut take)?;
            self.places.insert(path, place);
        }
        Ok(())
    }

    fn read(
        &self,
        path: &Path,
        is_compressed: bool,
        place: &mut Place,
        take: &mut impl FnMut(&Line<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let fail = |error| at(path, &error);
        let mut file = match File::open(path) {
            Ok(file) => file,
            // It has just been deleted, or compressed.
            Err(error) if self.follows && error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(fail(error)),
        };
        if place.bytes > 0 {
            file.seek(SeekFrom::Start(place.bytes)).map_err(fail)?;
        }
        let source: Box<dyn Read> = if is_compressed { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) };
        let mut reader = BufReader::new(source);
        let mut text = Vec::new();
        loop {
            text.clear();
            let read = reader.by_ref().take(MOST).read_until(b'\n', &mut text).map_err(fail)?;
            let mut skipped = 0;
            let mut is_whole = text.ends_with(b"\n");
            if !is_whole && text.len() as u64 >= MOST {
                skipped = reader.skip_until(b'\n').map_err(fail)?;
                is_whole = skipped > 0;
            }
            if read == 0 || (self.follows && !is_whole) {
                return Ok(());
            }
            place.bytes += (read + skipped) as u64;
            place.lines += 1;
            let text = text.strip_suffix(b"\n").unwrap_or(&text);
            if !text.is_empty() {
                take(&Line { file: path, number: place.lines, text, is_whole })?;
            }
        }
    }

    /// The files, in the order of their names within each folder.
    fn files(&self) -> Result<Vec<PathBuf>, Failure> {
        let mut files = Vec::new();
        for path in self.paths {
            if path.is_dir() {
                files.extend(record_files(path).map_err(|error| at(path, &error))?.into_iter().map(|file| file.path));
            } else if path.exists() {
                files.push(path.clone());
            } else {
                let failure = Failure::input(format!("there is no record in `{}`", path.display()));
                return Err(failure.help(
                    "name the folder that `[record]` names in the service's configuration (docs/records.md), or files of it",
                ));
            }
        }
        Ok(files)
    }
}

/// One byte more than a line may have, to detect longer ones.
const MOST: u64 = MAX_LINE as u64 + 1;
