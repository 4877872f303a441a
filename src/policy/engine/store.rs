//! The policy in force, and its replacement when the folder changes.
//! Never puts content in force that is still changing, unless that goes on for too long, and never gives up a good policy for a bad one.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;

use super::set::PolicySet;
use crate::files::FileTrust;
use crate::files::Settling;
use crate::policy::language::Folder;
use crate::policy::model::{Finding, Methods, PolicyErrors, Report, Revision};

/// The policy of a folder that may change while it is in use.
///
/// Readers take the set with [`PolicyStore::current`] and keep it for a whole message: a set never changes, so no
/// message sees two revisions. The owner of the store calls [`PolicyStore::poll`] now and then.
#[derive(Debug)]
pub struct PolicyStore {
    dir: PathBuf,
    trust: Option<FileTrust>,
    methods: Methods,
    current: ArcSwap<PolicySet>,
    watch: Mutex<Watch>,
}

/// What the folder looked like when it was last read.
#[derive(Debug)]
struct Watch {
    /// What was last tried, whether it could be used or not.
    tried: Snapshot,
    /// What it looks like now, if it differs.
    changed: Settling<Snapshot>,
}

/// The content of a folder, and whether it could be read: a folder that cannot be read is not an empty one.
#[derive(Debug, PartialEq, Eq)]
struct Snapshot {
    content: Revision,
    readable: bool,
}

/// What became of an attempt to replace the policy.
#[derive(Debug)]
pub enum Reload {
    /// The folder has the content that was last tried.
    Unchanged,
    /// The folder has another content, which is not tried now: it may still be being written.
    Waiting,
    /// The folder's content is in force.
    Loaded {
        /// Its revision.
        revision: Revision,
        /// Its warnings.
        warnings: Vec<Finding>,
    },
    /// The folder's content cannot be used; the policy that was in force stays.
    Refused {
        /// What is wrong with it.
        errors: PolicyErrors,
        /// The revision that stays.
        kept: Revision,
    },
}

impl PolicyStore {
    /// Loads the folder as [`PolicySet::open`] does. With `trust`, files that others than these could have written cannot be read, now and
    /// later.
    ///
    /// # Errors
    /// As [`PolicySet::open`].
    pub fn open(dir: &Path, methods: Methods, trust: Option<FileTrust>) -> Result<(Self, Vec<Finding>), PolicyErrors> {
        let (set, warnings) = PolicySet::open_trusted(dir, trust.as_ref(), &methods)?;
        let report = Report::default();
        let content = match set.revision().why() {
            None => set.revision().clone(),
            Some(_) => Folder::read(dir, trust.as_ref(), &report).revision(),
        };
        let tried = Snapshot { content, readable: report.errors() == 0 };
        Ok((Self::new(dir, methods, trust, Arc::new(set), tried), warnings))
    }

    /// Watches the folder for a caller that has already loaded it: `current` is in force until the folder's content
    /// changes. Of `trust`, as [`PolicyStore::open`].
    #[must_use]
    pub fn resume(dir: &Path, current: Arc<PolicySet>, trust: Option<FileTrust>) -> Self {
        // If it denies everything because there was nothing to load, the present content is tried.
        let tried = Snapshot { content: current.revision().clone(), readable: true };
        Self::new(dir, current.methods().without_files(), trust, current, tried)
    }

    fn new(dir: &Path, methods: Methods, trust: Option<FileTrust>, current: Arc<PolicySet>, tried: Snapshot) -> Self {
        let watch = Mutex::new(Watch { tried, changed: Settling::default() });
        Self { dir: dir.to_owned(), trust, methods, current: ArcSwap::new(current), watch }
    }

    /// The policy in force.
    #[must_use]
    pub fn current(&self) -> Arc<PolicySet> {
        self.current.load_full()
    }

    /// Looks at the folder, and puts its content in force once it has changed and settled: two looks at least 300 ms apart
    /// (by `now_ms`, milliseconds of any clock) saw the same. Content that never settles is tried every five seconds.
    pub fn poll(&self, now_ms: u64) -> Reload {
        let report = Report::default();
        let folder = Folder::read(&self.dir, self.trust.as_ref(), &report);
        let seen = Snapshot { content: folder.revision(), readable: report.errors() == 0 };
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        if watch.tried == seen {
            watch.changed.rests();
            return Reload::Unchanged;
        }
        if !watch.changed.takes(seen, Duration::from_millis(now_ms)) {
            return Reload::Waiting;
        }
        self.exchange(&folder, report, &mut watch)
    }

    /// Puts the folder's content in force now.
    pub fn reload(&self) -> Reload {
        let report = Report::default();
        let folder = Folder::read(&self.dir, self.trust.as_ref(), &report);
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        watch.changed.rests();
        self.exchange(&folder, report, &mut watch)
    }

    fn exchange(&self, folder: &Folder, report: Report, watch: &mut Watch) -> Reload {
        watch.tried = Snapshot { content: folder.revision(), readable: report.errors() == 0 };
        let loaded = if report.errors() > 0 {
            Err(report.into_errors())
        } else {
            PolicySet::from_folder(folder, &self.methods, report, &self.dir.display().to_string())
        };
        match loaded {
            Ok((set, warnings)) => {
                let revision = set.revision().clone();
                self.current.store(Arc::new(set));
                Reload::Loaded { revision, warnings }
            }
            Err(errors) => Reload::Refused { errors, kept: self.current.load().revision().clone() },
        }
    }
}
