//! Where access tokens come from, and a cache that keeps one at hand that has not expired.
//! Never trusts anything in a token beyond its expiry, and never prints one.

mod source;

use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout, timeout_at};
use zeroize::Zeroizing;

use crate::auth::{TokenError, decode_untrusted};
use crate::clock::Clock;
use crate::files::{SecretFileError, TextFault};
use crate::jose::sha256_b64;
use crate::nats::{LoginToken, LoginTokens};

pub use source::{CommandToken, FileToken, StaticToken};

/// A source of access tokens: a file, a program, an identity provider.
///
/// A client asks it before the token in use expires, in a separate task and once at a time; meanwhile calls go on with the token in use.
pub trait TokenSource: Send + Sync + fmt::Debug + 'static {
    /// The current token. White space around it is removed. This may fail or take its time (10 s at most): a token that
    /// has not expired stays in use.
    fn fetch(&self) -> FetchedToken<'_>;

    /// How often to ask again although the token in use is not about to expire; `None`, the default, for never. Only
    /// asked when a call is made.
    fn recheck(&self) -> Option<Duration> {
        None
    }
}

/// What [`TokenSource::fetch`] returns.
pub type FetchedToken<'a> = Pin<Box<dyn Future<Output = Result<String, TokenFault>> + Send + 'a>>;

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenFault {
    /// The file cannot be read.
    #[error("`{}`: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the operating system says.
        error: std::io::Error,
    },
    /// The file does not exist. Its name is not shown: it may be the token itself, written into the wrong member.
    #[error("`token_file` names a file that is not there")]
    Missing,
    /// Others could read the file, or could have written it.
    #[error(transparent)]
    Secret(SecretFileError),
    /// The program does not exist. Its name is not shown, either.
    #[error("`token_command` names a program that is not there")]
    NoProgram,
    /// The program cannot be run, or its output cannot be read.
    #[error("`{program}` cannot be run: {error}")]
    Run {
        /// The program, without its arguments.
        program: String,
        /// What the operating system says.
        error: std::io::Error,
    },
    /// The program ended with an error.
    #[error("`{program}` failed ({status}): run it by hand to see why")]
    Failed {
        /// The program, without its arguments.
        program: String,
        /// How it ended.
        status: std::process::ExitStatus,
    },
    /// The source took too long.
    #[error("the token source gave nothing within {} s", FETCH_WITHIN.as_secs())]
    Slow,
    /// More bytes than any token has.
    #[error("the token source gave more than {} bytes", MAX_FETCHED)]
    TooLong,
    /// Not text.
    #[error("the token source gave something that is not a token: {0}")]
    NotText(TextFault),
    /// The text is not an access token.
    #[error("the token source gave something other than an access token: {0}")]
    NotAToken(TokenError),
    /// The token has no expiry, which services require.
    #[error("the access token has no `exp`")]
    NoExpiry,
    /// The token has expired.
    #[error("the access token expired {ago_s} s ago: get a new one, or check this machine's clock")]
    Expired {
        /// How long ago, in seconds.
        ago_s: u64,
    },
    /// The source panicked.
    #[error("the token source panicked")]
    Panicked,
    /// The runtime that asked the source has ended, or was told to.
    #[error("the program stopped asking the token source")]
    Dropped,
    /// Any other error of a custom source.
    #[error("{0}")]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

/// A token that can be used.
pub(super) struct CachedToken {
    text: Zeroizing<String>,
    /// Its digest, as the claim `ath` of a proof has it.
    digest: String,
    /// Seconds since the Unix epoch.
    expires_s: u64,
    renew_s: u64,
}

impl CachedToken {
    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    /// Its digest, as the claim `ath` of a proof has it.
    pub(super) fn digest(&self) -> &str {
        &self.digest
    }

    /// From when on a newer token should be shown, in seconds since the Unix epoch.
    pub(super) fn renew_s(&self) -> u64 {
        self.renew_s
    }

    /// Reads the expiry without trusting it: a wrong one costs a refusal by the service, nothing else.
    fn new(text: String, now_s: u64) -> Result<Self, TokenFault> {
        let text = Zeroizing::new(text);
        let text = Zeroizing::new(text.trim().to_owned());
        let said = decode_untrusted(&text).map_err(TokenFault::NotAToken)?;
        let expires_s = said.date("exp").ok_or(TokenFault::NoExpiry)?;
        if expires_s <= now_s {
            return Err(TokenFault::Expired { ago_s: now_s - expires_s });
        }
        let life_s = expires_s.saturating_sub(said.date("iat").unwrap_or(now_s));
        // A minute ahead, or a fifth of a short life.
        let renew_s = expires_s.saturating_sub(60.min(life_s / 5));
        let digest = sha256_b64(text.as_bytes());
        Ok(Self { text, digest, expires_s, renew_s })
    }
}

impl fmt::Debug for CachedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CachedToken(until {})", self.expires_s)
    }
}

/// Tokens for requests of a client that are not made with the agent's own: see
/// [`Relay::tokens`](super::Relay::tokens). Made by [`Client::tokens`](super::Client::tokens).
///
/// The token in use is renewed in time, as the agent's own is. Clones share it.
#[derive(Debug, Clone)]
pub struct Tokens(pub(super) Arc<TokenCache>);

/// The token in use, renewed in time. Dropping it ends a refresh that is under way.
#[derive(Debug)]
pub(super) struct TokenCache(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    source: Arc<dyn TokenSource>,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// Counts finished refreshes.
    done: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    cached: Option<Arc<CachedToken>>,
    /// When the source was last asked, and why it failed, if it did.
    asked: Option<Instant>,
    fault: Option<Arc<TokenFault>>,
    refreshing: Option<AbortHandle>,
    /// Somebody, not necessarily the service, says that the token is no good.
    suspect: bool,
}

impl TokenCache {
    pub(super) fn new(source: Arc<dyn TokenSource>, clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(Shared { source, clock, state: Mutex::default(), done: watch::Sender::new(0) }))
    }

    /// A token that has not expired.
    ///
    /// Waits for the source only if there is none, except for [`GRACE`] in the call that finds the refresh due: most
    /// sources are faster than that, so the next call already sees a changed file.
    ///
    /// Cancel safety: dropping the future does not end the refreshing.
    pub(super) async fn current(&self) -> Result<Arc<CachedToken>, Arc<TokenFault>> {
        let mut done = self.0.done.subscribe();
        match self.0.next() {
            Next::Use(cached) => Ok(cached),
            Next::Refused(fault) => Err(fault),
            Next::Refreshing(Some(cached)) => {
                // Either outcome is fine: the call uses whatever is there afterwards.
                let _ = timeout(GRACE, done.changed()).await;
                Ok(self.0.usable().unwrap_or(cached))
            }
            Next::Refreshing(None) => {
                let _ = done.changed().await;
                self.0.usable().ok_or_else(|| self.0.lock().fault.clone().unwrap_or(Arc::new(TokenFault::Slow)))
            }
        }
    }

    /// As [`TokenCache::current`], but waits no longer than until `deadline`.
    pub(super) async fn current_by(&self, deadline: Instant) -> Result<Arc<CachedToken>, Arc<TokenFault>> {
        if let Some(cached) = self.0.fresh() {
            return Ok(cached);
        }
        Box::pin(timeout_at(deadline, self.current())).await.unwrap_or_else(|_| Err(Arc::new(TokenFault::Slow)))
    }

    /// Makes the next call ask the source again, but not more often than every few seconds: hints can be forged.
    pub(super) fn invalidate_soon(&self) {
        self.0.lock().suspect = true;
    }
}

/// The agent's tokens, for its connection: the broker ends it when the token ends with which it was made.
impl LoginTokens for TokenCache {
    fn token(&self) -> Pin<Box<dyn Future<Output = Result<LoginToken, String>> + Send + '_>> {
        Box::pin(async {
            let mut done = self.0.done.subscribe();
            let mut cached = self.current().await.map_err(|fault| fault.to_string())?;
            let is_under_way = self.0.lock().refreshing.is_some();
            if is_under_way && self.0.clock.now_s() >= cached.renew_s {
                // A connection is worth waiting for a source that takes longer than a call would.
                let _ = timeout(FETCH_WITHIN, done.changed()).await;
                cached = self.0.usable().unwrap_or(cached);
            }
            Ok(LoginToken { text: cached.text.clone(), renew_s: cached.renew_s, expires_s: cached.expires_s })
        })
    }

    fn refused(&self) {
        self.invalidate_soon();
    }
}

impl Drop for TokenCache {
    fn drop(&mut self) {
        // Not under the lock: the end of the task takes it, too.
        let task = self.0.lock().refreshing.take();
        if let Some(task) = task {
            task.abort();
        }
    }
}

enum Next {
    Use(Arc<CachedToken>),
    /// With the token to use if it takes long.
    Refreshing(Option<Arc<CachedToken>>),
    Refused(Arc<TokenFault>),
}

impl Shared {
    /// The token in use, if nothing is to be done about it.
    fn fresh(&self) -> Option<Arc<CachedToken>> {
        let now_s = self.clock.now_s();
        let state = self.lock();
        state.cached.as_ref().filter(|cached| now_s < cached.expires_s && !self.is_due(&state, cached, now_s)).cloned()
    }

    /// Whether a newer token should be asked for.
    fn is_due(&self, state: &State, cached: &CachedToken, now_s: u64) -> bool {
        let is_old = |every| state.asked.is_none_or(|asked| asked.elapsed() >= every);
        now_s >= cached.renew_s || state.suspect || self.source.recheck().is_some_and(is_old)
    }

    fn next(self: &Arc<Self>) -> Next {
        let now_s = self.clock.now_s();
        let mut state = self.lock();
        let usable = state.cached.clone().filter(|cached| now_s < cached.expires_s);
        let asked = state.asked.map(|asked| asked.elapsed());
        let due = usable.as_ref().is_none_or(|cached| self.is_due(&state, cached, now_s));
        let pause = match (&usable, self.source.recheck()) {
            (Some(_), Some(every)) => every.min(PAUSE),
            (Some(_), None) => PAUSE,
            (None, _) => PAUSE_WITHOUT,
        };
        match (usable, state.refreshing.is_some()) {
            (Some(cached), _) if !due => Next::Use(cached),
            (Some(cached), true) => Next::Use(cached),
            (None, true) => Next::Refreshing(None),
            (Some(cached), false) if asked.is_some_and(|asked| asked < pause) => Next::Use(cached),
            (None, false) if asked.is_some_and(|asked| asked < pause) && state.fault.is_some() => {
                Next::Refused(state.fault.clone().unwrap_or(Arc::new(TokenFault::Slow)))
            }
            (usable, false) => {
                state.asked = Some(Instant::now());
                state.suspect = false;
                let task = tokio::spawn(Refreshing { shared: Arc::clone(self), end: None }.run());
                state.refreshing = Some(task.abort_handle());
                Next::Refreshing(usable)
            }
        }
    }

    fn usable(&self) -> Option<Arc<CachedToken>> {
        let now_s = self.clock.now_s();
        self.lock().cached.clone().filter(|cached| now_s < cached.expires_s)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One refresh. `end` is `None` until its source has answered.
struct Refreshing {
    shared: Arc<Shared>,
    end: Option<Result<(), TokenFault>>,
}

impl Refreshing {
    async fn run(mut self) {
        let text = timeout(FETCH_WITHIN, self.shared.source.fetch()).await.unwrap_or(Err(TokenFault::Slow));
        let cached = text.and_then(|text| CachedToken::new(text, self.shared.clock.now_s()));
        self.end = Some(cached.map(|cached| self.shared.lock().cached = Some(Arc::new(cached))));
    }
}

impl Drop for Refreshing {
    fn drop(&mut self) {
        // Its task ends by a panic or with the runtime if the source has not answered. The second is nobody's fault.
        let is_dropped = self.end.is_none() && !std::thread::panicking();
        let cut_off = || Err(if is_dropped { TokenFault::Dropped } else { TokenFault::Panicked });
        let fault = self.end.take().unwrap_or_else(cut_off).err();
        {
            let mut state = self.shared.lock();
            state.refreshing = None;
            state.fault = fault.map(Arc::new);
            let now_s = self.shared.clock.now_s();
            // Without a valid token, every call says why.
            let goes_on = !is_dropped && state.cached.as_ref().is_some_and(|cached| now_s < cached.expires_s);
            if let Some(fault) = state.fault.as_ref().filter(|_| goes_on) {
                tracing::warn!(target: "sealwire::client", error = %fault, "the access token could not be renewed");
            }
        }
        self.shared.done.send_modify(|done| *done += 1);
    }
}

/// The most bytes read from a file or a program: twice what a token may have.
const MAX_FETCHED: usize = 8 * 1024;

/// How long a source may take.
const FETCH_WITHIN: Duration = Duration::from_secs(10);

/// How long the call that finds a refresh due waits for it while the old token can still be used. A file is read in
/// well under a millisecond.
const GRACE: Duration = Duration::from_millis(250);

/// The least time between two fetches while the token in use is valid.
const PAUSE: Duration = Duration::from_secs(5);

/// The least time between two fetches after one failed and there is no valid token.
const PAUSE_WITHOUT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
