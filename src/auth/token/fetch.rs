//! Fetches an issuer's keys: at the start, when they get old, and when a token names an unknown one.
//! Never on the path of a message, never more often than the bound, and never trusts keys longer than the bound.

mod error;
pub(super) mod http;
mod source;

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use sha2::{Digest as _, Sha256};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::keys::KeySetGeneration;
use super::{KeySet, LeftOut};
pub use error::FetchError;
pub use source::KeySource;

/// How fetching one issuer's keys is going.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeySourceStatus {
    /// The issuer.
    pub issuer: String,
    /// What its tokens are judged by.
    pub state: KeySourceState,
    /// How many keys are in force.
    pub keys: usize,
    /// How many keys of the issuer's set are left out because they are not for us.
    pub left_out: usize,
    /// How long ago, in seconds, the keys in force were last confirmed by the issuer.
    pub age_s: Option<u64>,
    /// How often keys were fetched.
    pub fetched: u64,
    /// How often that failed.
    pub failed: u64,
    /// Why it failed the last time, if it has not worked since.
    pub error: Option<String>,
}

/// What an issuer's tokens are judged by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeySourceState {
    /// Nothing: no key could be fetched yet. Its tokens are refused.
    Missing,
    /// Its keys.
    Current,
    /// The last good keys: fetching fails, but worked not too long ago.
    Kept,
    /// Nothing: fetching has failed for too long. Its tokens are refused.
    Expired,
}

impl KeySourceState {
    /// One word, for metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Current => "current",
            Self::Kept => "kept",
            Self::Expired => "expired",
        }
    }
}

/// A source whose keys are fetched as long as this lives.
#[derive(Debug)]
pub(super) struct Fetching {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    source: KeySource,
    asked: Notify,
    progress: Mutex<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    /// When the keys in force were confirmed. `None` while there are none.
    good: Option<Instant>,
    expired: bool,
    /// The digest of the text that the keys in force were read from.
    digest: Option<[u8; 32]>,
    keys: usize,
    left_out: Vec<LeftOut>,
    fetched: u64,
    failed: u64,
    error: Option<String>,
}

impl KeySource {
    /// Fetches once, and continues in the background.
    pub(super) async fn start(self, keys: &Arc<ArcSwap<KeySetGeneration>>) -> Fetching {
        let shared = Arc::new(Shared { source: self, asked: Notify::new(), progress: Mutex::default() });
        let began = Instant::now();
        let next = shared.refresh(keys, 0).await;
        let task = tokio::spawn(run(Arc::clone(&shared), Arc::downgrade(keys), began, next));
        Fetching { shared, task }
    }
}

impl Fetching {
    pub(super) fn issuer(&self) -> &str {
        self.shared.source.issuer()
    }

    /// To be called when a caller with a proved identity presents a token under an unknown key. Fetches, but not now,
    /// and not again before the bound: a sender of unknown key ids causes one request per bound.
    pub(super) fn ask(&self) {
        self.shared.asked.notify_one();
    }

    pub(super) fn status(&self) -> KeySourceStatus {
        let progress = self.shared.progress();
        KeySourceStatus {
            issuer: self.issuer().to_owned(),
            state: match (&progress.good, progress.expired, &progress.error) {
                (Some(_), _, None) => KeySourceState::Current,
                (Some(_), _, Some(_)) => KeySourceState::Kept,
                (None, true, _) => KeySourceState::Expired,
                (None, false, _) => KeySourceState::Missing,
            },
            keys: progress.keys,
            left_out: progress.left_out.len(),
            age_s: progress.good.map(|good| good.elapsed().as_secs()),
            fetched: progress.fetched,
            failed: progress.failed,
            error: progress.error.clone(),
        }
    }
}

impl Drop for Fetching {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// When to fetch next, and how often it has failed in a row.
struct Next {
    due: Instant,
    failures: u32,
}

async fn run(shared: Arc<Shared>, keys: Weak<ArcSwap<KeySetGeneration>>, mut began: Instant, mut next: Next) {
    loop {
        let asked = async {
            shared.asked.notified().await;
            sleep_until(began + shared.source.pause).await;
        };
        let end = shared.progress().good.map(|good| good + shared.source.keep);
        let end = async {
            match end {
                Some(end) => sleep_until(end).await,
                None => std::future::pending().await,
            }
        };
        let expired = tokio::select! {
            biased;
            () = end => true,
            () = sleep_until(next.due) => false,
            () = asked => false,
        };
        let Some(keys) = keys.upgrade() else { return };
        if expired {
            shared.expire(&keys);
        } else {
            began = Instant::now();
            next = shared.refresh(&keys, next.failures).await;
        }
    }
}

impl Shared {
    fn progress(&self) -> std::sync::MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fetches, and puts the result in force. `failures`: how many attempts before this one failed in a row.
    async fn refresh(&self, keys: &ArcSwap<KeySetGeneration>, failures: u32) -> Next {
        // A fetch may take as long as the keys in force may still be kept, and no longer.
        let left = self.progress().good.map(|good| (good + self.source.keep).saturating_duration_since(Instant::now()));
        let outcome = self.source.fetch(left).await;
        let read = outcome.and_then(|got| {
            let digest: [u8; 32] = Sha256::digest(&got.text).into();
            let set = (self.progress().digest != Some(digest)).then(|| self.source.read(&got.text)).transpose()?;
            Ok((got.age, digest, set))
        });
        let now = Instant::now();
        match read {
            Ok((age, digest, set)) => {
                self.succeed(keys, digest, set.as_ref());
                let age = age.map_or(self.source.refresh, |age| age.clamp(self.source.youngest, self.source.oldest));
                Next { due: now + age, failures: 0 }
            }
            Err(error) => {
                self.fail(&error, failures);
                // Soon at first, then at the pace that limits fetches for unknown keys.
                let pause = (self.source.pause / 8).saturating_mul(1 << failures.min(3));
                Next { due: now + pause.max(Duration::from_millis(50)), failures: failures.saturating_add(1) }
            }
        }
    }

    fn succeed(&self, keys: &ArcSwap<KeySetGeneration>, digest: [u8; 32], set: Option<&KeySet>) {
        let issuer = self.source.issuer();
        let mut progress = self.progress();
        if let Some(set) = set {
            let left_out: Vec<_> = set.left_out().cloned().collect();
            if left_out != progress.left_out {
                log_left_out(issuer, &left_out);
            }
            KeySetGeneration::exchange(keys, issuer, Some(set));
            progress.keys = set.len();
            progress.left_out = left_out;
            tracing::info!(target: "sealwire::reload", resource = "token keys", issuer, keys = set.len(), "fetched");
        } else if progress.error.is_some() {
            tracing::info!(target: "sealwire::reload", resource = "token keys", issuer, "can be fetched again");
        }
        progress.digest = Some(digest);
        progress.good = Some(Instant::now());
        progress.expired = false;
        progress.error = None;
        progress.fetched = progress.fetched.saturating_add(1);
    }

    fn fail(&self, error: &FetchError, failures: u32) {
        let issuer = self.source.issuer();
        let mut progress = self.progress();
        let text = error.to_string();
        // The first time, when the reason changes, and now and then: the provider may be away for a day.
        if progress.error.as_deref() != Some(text.as_str()) || failures.is_multiple_of(20) {
            let kept = match progress.good {
                Some(_) => "the last good ones stay in force",
                None => "its tokens are refused",
            };
            tracing::error!(target: "sealwire::reload", resource = "token keys", issuer, %error, "not fetched, {kept}");
        }
        progress.error = Some(text);
        progress.failed = progress.failed.saturating_add(1);
    }

    /// Drops keys that nobody has confirmed for too long: one of them may have been withdrawn since.
    fn expire(&self, keys: &ArcSwap<KeySetGeneration>) {
        let issuer = self.source.issuer();
        KeySetGeneration::exchange(keys, issuer, None);
        let mut progress = self.progress();
        tracing::error!(
            target: "sealwire::reload",
            resource = "token keys",
            issuer,
            "EXPIRED: they could not be fetched for {} s, its tokens are refused",
            self.source.keep.as_secs()
        );
        let (fetched, failed, error) = (progress.fetched, progress.failed, progress.error.take());
        *progress = Progress { expired: true, fetched, failed, error, ..Progress::default() };
    }
}

/// Logs which keys of an issuer's set are not used, and why.
pub(super) fn log_left_out(issuer: &str, left_out: &[LeftOut]) {
    for key in left_out.iter().take(16) {
        tracing::warn!(
            target: "sealwire::reload",
            resource = "token keys",
            issuer,
            key = crate::name::shown(&key.key),
            reason = %key.fault,
            "key left out"
        );
    }
}
