//! What operators have revoked, signed by them and taken from a bucket that no agent can reach.
//! Never lifts a revocation unless operators have signed a newer list without it.

mod bucket;
mod config;
mod follower;
mod list;
mod report;
mod signed;

use std::fmt;
use std::future::pending;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use tokio::sync::watch;
use tokio::time::Instant;

pub use bucket::{Answered, Bucket, BucketError, BucketSubjects, MAX_PACKAGE_BYTES, Stage, Stored};
pub use config::{OperatorConfig, RevocationConfig};
pub use follower::{RevocationEvent, RevocationFollower};
pub use list::{EVERYTHING, Kind, ListError, MAX_NAME, MAX_REASON, MAX_REVOCATIONS, Revocation, RevocationList};
pub use report::{FollowerId, FollowerReport, FollowerRole};
pub use signed::{
    MAX_LIST_BYTES, OperatorKey, OperatorKeyError, Operators, OperatorsError, Signatures, SignedList, SignedListError,
    TooFewSignatures,
};

use crate::files::{Content, FileTrust, Folder, SecretFileError, read_trusted, write_secret};
use crate::name::Name;
use list::InForce;

/// What is revoked now, for whoever lets callers in: services, gateways, a broker's login. Without a configuration, nothing is.
///
/// Only [`RevocationFollower`] changes it. Asking it costs no lock.
pub struct Revocations {
    source: Option<Source>,
    current: ArcSwap<CurrentList>,
    changed: watch::Sender<u64>,
    /// When the bucket was last seen to hold the list in force, in milliseconds after `born`; 0 for never.
    seen_ms: AtomicU64,
    born: Instant,
    /// Calls that were ended because of the list in force.
    cut: AtomicU64,
}

/// Where lists come from.
struct Source {
    environment: Name,
    operators: Operators,
    config: RevocationConfig,
    state: PathBuf,
    /// Whether the state file had a list at the start.
    had_state: bool,
}

/// The list in force.
#[derive(Default)]
struct CurrentList {
    list: Option<RevocationList>,
    text: String,
    digest: String,
    force: InForce,
}

/// What a list that has just come into force changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListChange {
    /// Its number.
    pub number: u64,
    /// Its digest.
    pub digest: String,
    /// Who signed it.
    pub signers: Vec<String>,
    /// What it revokes and the list before did not.
    pub revoked: Vec<String>,
    /// What it no longer revokes.
    pub restored: Vec<String>,
}

/// What became of a list that was offered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListVerdict {
    /// It is the one in force.
    Current,
    /// It is in force now.
    Newer(ListChange),
    /// It has no effect, for this reason.
    Invalid(String),
}

/// Why it cannot be known what is revoked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RevocationError {
    /// Whose signatures count.
    #[error(transparent)]
    Operators(#[from] OperatorsError),
    /// The state file, or its folder.
    #[error(transparent)]
    File(#[from] SecretFileError),
    /// The state file is not what was written there.
    #[error(
        "state file `{}`: {reason}. Restore it; or see by `sealwire revocations` that the bucket holds the latest list, and delete it",
        path.display()
    )]
    State {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

impl Default for Revocations {
    fn default() -> Self {
        Self {
            source: None,
            current: ArcSwap::default(),
            changed: watch::Sender::new(0),
            seen_ms: AtomicU64::new(0),
            born: Instant::now(),
            cut: AtomicU64::new(0),
        }
    }
}

impl Revocations {
    /// Of this configuration, with the list of its state file, if there is one. Until a [`RevocationFollower`] has seen the bucket,
    /// everything is to be refused.
    ///
    /// # Errors
    /// [`RevocationError`]; the operator is to blame.
    pub fn open(config: &RevocationConfig, environment: &Name, trust: &FileTrust) -> Result<Self, RevocationError> {
        let operators = Operators::new(&config.operator, config.signatures)?;
        let state = config.state.clone().unwrap_or_else(|| "sealwire.revocation".into());
        let current = read_state(&state, environment, &operators, trust)?;
        let had_state = current.list.is_some();
        let source = Source { environment: environment.clone(), operators, config: config.clone(), state, had_state };
        Ok(Self { source: Some(source), current: ArcSwap::from_pointee(current), ..Self::default() })
    }

    /// The first of these names that is revoked at `now_s` (seconds since the Unix epoch). Who asks for somebody in general begins with
    /// [`Revocations::ALL`]: that everything is revoked revokes nobody in particular.
    #[must_use]
    pub fn revokes<'n>(&self, names: impl IntoIterator<Item = (Kind, &'n str)>, now_s: u64) -> Option<Kind> {
        let current = self.current.load();
        if current.force.is_empty() {
            return None;
        }
        names.into_iter().find(|(kind, name)| current.force.has(*kind, name, now_s)).map(|(kind, _)| kind)
    }

    /// What is revoked if everything is.
    pub const ALL: (Kind, &'static str) = (Kind::Everything, EVERYTHING);

    /// Whose lists it takes, and how it learns of them; `None` without a configuration.
    pub(super) fn source(&self) -> Option<(&Name, &RevocationConfig)> {
        self.source.as_ref().map(|source| (&source.environment, &source.config))
    }

    /// Whether anything is revoked at all, or was until it ended by itself.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.current.load().force.is_empty()
    }

    /// Completes once `is_revoked` is true. Without a configuration, never.
    ///
    /// Cancel safe.
    pub async fn until(&self, is_revoked: impl Fn() -> bool) {
        if self.source.is_none() {
            return pending().await;
        }
        let mut changed = self.changed.subscribe();
        while !is_revoked() {
            // We own the sender.
            drop(changed.changed().await);
        }
    }

    /// Why everything is to be refused: what is revoked by now is not known. `None` if it is.
    #[must_use]
    pub fn stale(&self) -> Option<&'static str> {
        let source = self.source.as_ref()?;
        let seen_ms = self.seen_ms.load(Ordering::SeqCst);
        if seen_ms == 0 {
            // Without a bound, the list of the state file is good enough.
            let is_known = source.config.serve_stale && source.had_state;
            return (!is_known).then_some("the bucket of revocations has not been seen yet");
        }
        let ago = self.now_ms().saturating_sub(seen_ms);
        let is_over = !source.config.serve_stale && ago > source.config.refuse_after_s.saturating_mul(1_000);
        is_over.then_some("the bucket of revocations has been out of sight for too long")
    }

    /// Counts a call that was ended because of the list in force.
    pub fn cut_off(&self) {
        self.cut.fetch_add(1, Ordering::Relaxed);
    }

    /// The number and the digest of the list in force; 0 if there is none yet.
    #[must_use]
    pub fn in_force(&self) -> (u64, String) {
        let current = self.current.load();
        (current.number(), current.digest.clone())
    }

    /// Takes a list if it is newer than the one in force, of this environment, and signed.
    pub fn offer(&self, text: &[u8]) -> ListVerdict {
        let Some(source) = &self.source else { return ListVerdict::Invalid("no revocations are followed".to_owned()) };
        let current = self.current.load();
        if text == current.text.as_bytes() && current.list.is_some() {
            return ListVerdict::Current;
        }
        let (list, signed) = match source.operators.verify(text, &source.environment) {
            Ok(verified) => verified,
            Err(error) => return ListVerdict::Invalid(error.to_string()),
        };
        let (number, digest) = (current.number(), signed.digest());
        if list.number == number && digest == current.digest {
            // The same list with other signatures.
            return ListVerdict::Current;
        }
        if list.number <= number {
            return ListVerdict::Invalid(format!(
                "the bucket holds list {}, and list {number} was seen before: somebody has put back an old one, or two operators have \
                 signed at once. Sign the next one: `sealwire revocations renew`",
                list.number
            ));
        }
        let nothing = RevocationList { revoked: Vec::new(), ..list.clone() };
        let last = current.list.as_ref().unwrap_or(&nothing);
        let change = ListChange {
            number: list.number,
            digest,
            signers: signed.signers(&source.operators),
            revoked: list.beyond(last),
            restored: last.beyond(&list),
        };
        self.current.store(Arc::new(CurrentList::new(list, &signed, text)));
        self.cut.store(0, Ordering::Relaxed);
        self.changed.send_modify(|count| *count += 1);
        ListVerdict::Newer(change)
    }

    /// The bucket was seen to hold the list in force, by a question that was asked then.
    fn saw(&self, asked: Instant) {
        let ms = u64::try_from(asked.duration_since(self.born).as_millis()).unwrap_or(u64::MAX);
        self.seen_ms.fetch_max(ms.saturating_add(1), Ordering::SeqCst);
    }

    /// How long ago the bucket was seen to hold the list in force, in milliseconds.
    #[must_use]
    pub fn seen_ago_ms(&self) -> Option<u64> {
        let seen_ms = self.seen_ms.load(Ordering::SeqCst);
        (seen_ms > 0).then(|| self.now_ms().saturating_sub(seen_ms))
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Keeps the list in force for the next start, unless another process has kept a newer one. Blocks.
    ///
    /// # Errors
    /// [`SecretFileError`]; the list is in force all the same.
    fn keep(&self) -> Result<(), SecretFileError> {
        let Some(source) = &self.source else { return Ok(()) };
        let current = self.current.load();
        let kept = read_state(&source.state, &source.environment, &source.operators, &source.config.nats.files);
        if kept.is_ok_and(|kept| kept.number() >= current.number()) {
            return Ok(());
        }
        write_secret(&source.state, &current.text, true)
    }
}

impl CurrentList {
    fn new(list: RevocationList, signed: &SignedList, text: &[u8]) -> Self {
        let text = String::from_utf8_lossy(text).into_owned();
        Self { force: InForce::new(&list), digest: signed.digest(), list: Some(list), text }
    }

    fn number(&self) -> u64 {
        self.list.as_ref().map_or(0, |list| list.number)
    }
}

/// The list that was kept; none at the first start.
fn read_state(
    path: &Path,
    environment: &Name,
    operators: &Operators,
    trust: &FileTrust,
) -> Result<CurrentList, RevocationError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Folder::open(folder, Some(trust))?;
    match read_trusted(path, Content::Public, trust) {
        Ok(text) => match operators.verify(text.as_bytes(), environment) {
            Ok((list, signed)) => Ok(CurrentList::new(list, &signed, text.as_bytes())),
            Err(error) => Err(RevocationError::State { path: path.to_owned(), reason: error.to_string() }),
        },
        Err(error) if error.is_missing() => Ok(CurrentList::default()),
        Err(error) => Err(error.into()),
    }
}

impl fmt::Debug for Revocations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Revocations")
            .field("is_configured", &self.source.is_some())
            .field("number", &self.in_force().0)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
