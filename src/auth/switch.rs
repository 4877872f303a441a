//! The switch: what operators have revoked, signed by them and taken from a bucket that no agent can reach.
//! Never lifts a revocation unless operators have signed a newer list without it.

mod bucket;
mod config;
mod follower;
mod list;
mod signed;

use std::fmt;
use std::future::pending;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::watch;
use tokio::time::Instant;

pub use bucket::{Bucket, BucketError, BucketSubjects, Stored};
pub use config::{OperatorConfig, SwitchConfig};
pub use follower::{Change, Follower, SwitchReport, Who};
pub use list::{EVERYTHING, Kind, ListError, MAX_NAME, MAX_REASON, MAX_REVOCATIONS, Revocation, RevocationList};
pub use signed::{
    MAX_LIST_BYTES, OperatorKey, OperatorKeyError, Operators, OperatorsError, SignedList, SignedListError,
};

use crate::files::{Content, FileTrust, Folder, SecretFileError, read_trusted, write_secret};
use crate::name::Name;
use list::InForce;

/// What is revoked now, for whoever lets callers in: services, gateways, a broker's login. Without a configuration, nothing is.
///
/// Only [`Follower`] changes it. Asking it costs no lock.
pub struct Switch {
    source: Option<Source>,
    held: ArcSwap<Held>,
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
    refuse_after: Option<Duration>,
    state: PathBuf,
    /// Whether the state file had a list at the start.
    had_state: bool,
}

/// The list in force.
#[derive(Default)]
struct Held {
    list: Option<RevocationList>,
    text: String,
    digest: String,
    force: InForce,
}

/// A list that has just come into force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
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
pub enum Offered {
    /// It is the one in force.
    Same,
    /// It is in force now.
    Applied(Applied),
    /// It has no effect, for this reason.
    Refused(String),
}

/// Why there is no switch.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SwitchError {
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

impl Default for Switch {
    fn default() -> Self {
        Self {
            source: None,
            held: ArcSwap::default(),
            changed: watch::Sender::new(0),
            seen_ms: AtomicU64::new(0),
            born: Instant::now(),
            cut: AtomicU64::new(0),
        }
    }
}

impl Switch {
    /// The switch of this configuration, with the list of its state file, if there is one. Until a [`Follower`] has seen the bucket,
    /// everything is to be refused.
    ///
    /// # Errors
    /// [`SwitchError`]; the operator is to blame.
    pub fn open(config: &SwitchConfig, environment: &Name, trust: &FileTrust) -> Result<Self, SwitchError> {
        let operators = Operators::new(&config.operator, config.signatures)?;
        let state = config.state.clone().unwrap_or_else(|| "sealwire.switch".into());
        let held = read_state(&state, environment, &operators, trust)?;
        let had_state = held.list.is_some();
        let refuse_after = (!config.serve_blind).then(|| Duration::from_secs(config.refuse_after_s));
        let source = Source { environment: environment.clone(), operators, refuse_after, state, had_state };
        Ok(Self { source: Some(source), held: ArcSwap::from_pointee(held), ..Self::default() })
    }

    /// The first of these names that is revoked at `now_s` (seconds since the Unix epoch). Who asks for somebody in general begins with
    /// [`Switch::ALL`]: that everything is revoked revokes nobody in particular.
    #[must_use]
    pub fn revokes<'n>(&self, names: impl IntoIterator<Item = (Kind, &'n str)>, now_s: u64) -> Option<Kind> {
        let held = self.held.load();
        if held.force.is_empty() {
            return None;
        }
        names.into_iter().find(|(kind, name)| held.force.has(*kind, name, now_s)).map(|(kind, _)| kind)
    }

    /// What is revoked if everything is.
    pub const ALL: (Kind, &'static str) = (Kind::Everything, EVERYTHING);

    /// Whose lists it takes; `None` without a configuration.
    #[must_use]
    pub fn environment(&self) -> Option<&Name> {
        self.source.as_ref().map(|source| &source.environment)
    }

    /// Whether anything is revoked at all, or was until it ended by itself.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.load().force.is_empty()
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
    pub fn blind(&self) -> Option<String> {
        let source = self.source.as_ref()?;
        let seen_ms = self.seen_ms.load(Ordering::SeqCst);
        if seen_ms == 0 {
            // Without a bound, the list of the state file is good enough.
            let is_known = source.refuse_after.is_none() && source.had_state;
            return (!is_known).then(|| "the bucket of revocations has not been seen yet".to_owned());
        }
        let ago = self.now_ms().saturating_sub(seen_ms);
        let is_over = source.refuse_after.is_some_and(|bound| Duration::from_millis(ago) > bound);
        is_over.then(|| "the bucket of revocations has been out of sight for too long".to_owned())
    }

    /// As [`Switch::blind`], without the words.
    #[must_use]
    pub fn is_blind(&self) -> bool {
        self.source.is_some() && self.blind().is_some()
    }

    /// Counts a call that was ended because of the list in force.
    pub fn cut_off(&self) {
        self.cut.fetch_add(1, Ordering::Relaxed);
    }

    /// The number and the digest of the list in force; 0 if there is none yet.
    #[must_use]
    pub fn in_force(&self) -> (u64, String) {
        let held = self.held.load();
        (held.list.as_ref().map_or(0, |list| list.number), held.digest.clone())
    }

    /// Takes a list if it is newer than the one in force, of this environment, and signed.
    pub fn offer(&self, text: &[u8]) -> Offered {
        let Some(source) = &self.source else { return Offered::Refused("there is no switch".to_owned()) };
        let held = self.held.load();
        if text == held.text.as_bytes() && held.list.is_some() {
            return Offered::Same;
        }
        let new = match Held::new(text, source) {
            Ok(new) => new,
            Err(reason) => return Offered::Refused(reason),
        };
        let (Some(list), last) = (&new.list, held.list.as_ref()) else { return Offered::Same };
        let number = last.map_or(0, |last| last.number);
        if list.number == number && new.digest == held.digest {
            // The same list with other signatures.
            return Offered::Same;
        }
        if list.number <= number {
            return Offered::Refused(format!(
                "the bucket holds list {}, and list {number} was seen before: somebody has put back an old one, or two operators have \
                 signed at once. Sign the next one: `sealwire revocations renew`",
                list.number
            ));
        }
        let nothing = RevocationList { revoked: Vec::new(), ..list.clone() };
        let last = last.unwrap_or(&nothing);
        let applied = Applied {
            number: list.number,
            digest: new.digest.clone(),
            signers: SignedList::parse(text).map(|signed| signed.signers()).unwrap_or_default(),
            revoked: list.beyond(last),
            restored: last.beyond(list),
        };
        self.held.store(Arc::new(new));
        self.cut.store(0, Ordering::Relaxed);
        self.changed.send_modify(|count| *count += 1);
        Offered::Applied(applied)
    }

    /// The bucket was seen to hold the list in force, by a question that was asked then.
    fn saw(&self, asked: Instant) {
        let ms = u64::try_from(asked.duration_since(self.born).as_millis()).unwrap_or(u64::MAX);
        self.seen_ms.fetch_max(ms.saturating_add(1), Ordering::SeqCst);
    }

    /// How long ago that was, in milliseconds.
    fn seen_ago_ms(&self) -> Option<u64> {
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
    fn keep(&self, trust: &FileTrust) -> Result<(), SecretFileError> {
        let Some(source) = &self.source else { return Ok(()) };
        let held = self.held.load();
        let kept = read_state(&source.state, &source.environment, &source.operators, trust);
        let number = |held: &Held| held.list.as_ref().map_or(0, |list| list.number);
        if kept.is_ok_and(|kept| number(&kept) >= number(&held)) {
            return Ok(());
        }
        write_secret(&source.state, &held.text, true)
    }
}

impl Held {
    fn new(text: &[u8], source: &Source) -> Result<Self, String> {
        Self::verified(text, &source.environment, &source.operators)
    }

    fn verified(text: &[u8], environment: &Name, operators: &Operators) -> Result<Self, String> {
        let signed = SignedList::parse(text).map_err(|error| error.to_string())?;
        let list = operators.verify(&signed).map_err(|error| error.to_string())?;
        if list.environment != *environment {
            return Err(format!("a list of the environment {}, and this is {environment}", list.environment));
        }
        let text = String::from_utf8_lossy(text).into_owned();
        Ok(Self { force: InForce::new(&list), digest: signed.digest(), list: Some(list), text })
    }
}

/// The list that was kept; none at the first start.
fn read_state(path: &Path, environment: &Name, operators: &Operators, trust: &FileTrust) -> Result<Held, SwitchError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Folder::open(folder, Some(trust))?;
    match read_trusted(path, Content::Public, trust) {
        Ok(text) => Held::verified(text.as_bytes(), environment, operators)
            .map_err(|reason| SwitchError::State { path: path.to_owned(), reason }),
        Err(error) if error.is_missing() => Ok(Held::default()),
        Err(error) => Err(error.into()),
    }
}

impl fmt::Debug for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Switch")
            .field("is_configured", &self.source.is_some())
            .field("number", &self.in_force().0)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
