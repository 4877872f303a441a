//! What operators have revoked, as a gateway follows it, and what may therefore not go on.
//! Never lets anything begin that is revoked, nor anything at all while it is not known what is.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sealwire::configure::RevocationConfig;
use sealwire::errors::RevocationError;
use sealwire::internal::auth::{FollowerId, FollowerRole, RevocationFollower, RevocationKind, Revocations};
use sealwire::internal::wire::Nonce;
use sealwire::{Clock as _, Credentials, SystemClock};
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior, interval};

/// How often to check whether a caller may still receive what it has begun: tokens end, too.
pub(crate) const HOLDS: Duration = Duration::from_secs(2);

/// What operators have revoked, for the agent of one gateway.
#[derive(Debug, Default)]
pub(crate) struct Revocation {
    list: Arc<Revocations>,
    /// The names of the gateway's agent and of its keys.
    own: Vec<(RevocationKind, String)>,
    /// Changes when the list does, and when it becomes known or unknown what is revoked.
    changes: watch::Sender<()>,
}

/// Why something may not begin, or not go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// Nobody can tell at present what is revoked.
    Unverifiable,
    /// The caller's token has expired, or a file revokes it.
    Ended,
    /// Operators have revoked it.
    Revoked,
}

impl Loss {
    /// For the caller.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Unverifiable => "the gateway cannot tell what is revoked: its log says why",
            Self::Ended => "the caller's token has expired or was revoked",
            // As services say it.
            Self::Revoked => "revoked by an operator",
        }
    }
}

impl Revocation {
    /// As configured; `issuer` is the id of the key that signs the gateway's own tokens, if it has one.
    pub(crate) fn open(
        config: Option<&RevocationConfig>,
        credentials: &Credentials,
        issuer: Option<&str>,
    ) -> Result<Self, RevocationError> {
        let Some(config) = config else { return Ok(Self::default()) };
        let list = Revocations::open(config, credentials.environment(), &config.nats.files)?;
        let agent = (RevocationKind::Agent, credentials.agent().to_string());
        let keys = [Some(credentials.kid()), issuer].into_iter().flatten();
        let own = keys.map(|kid| (RevocationKind::Key, kid.to_owned())).chain([agent]).collect();
        Ok(Self { list: Arc::new(list), own, changes: watch::Sender::new(()) })
    }

    /// The list, for whoever verifies tokens.
    pub(crate) fn list(&self) -> &Arc<Revocations> {
        &self.list
    }

    /// Why nothing of these names may begin or go on at this gateway.
    pub(crate) fn loss<'n>(&self, names: impl IntoIterator<Item = (RevocationKind, &'n str)>) -> Option<Loss> {
        if self.list.stale().is_some() {
            return Some(Loss::Unverifiable);
        }
        let (now_s, own) = (SystemClock.now_s(), self.own.iter().map(|(kind, name)| (*kind, name.as_str())));
        let ours = self.list.revokes([Revocations::ALL].into_iter().chain(own), now_s);
        ours.or_else(|| self.list.revokes(names, now_s)).map(|_| Loss::Revoked)
    }

    /// Whether anything is followed.
    pub(crate) fn is_followed(&self) -> bool {
        !self.own.is_empty()
    }

    /// Tells when [`Revocation::loss`] may have changed.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Follows the bucket until it is dropped; ends at once without a configuration.
    pub(crate) async fn follow(&self, credentials: &Credentials) {
        let (role, name) = (FollowerRole::Gateway, credentials.agent().clone());
        let id = FollowerId { role, name, instance: Nonce::random().to_text() };
        RevocationFollower::new(Arc::clone(&self.list), id).run(|_| self.changes.send_replace(())).await;
    }
}

/// What somebody has begun, for as long as it may go on. A call that is still under way when it is revoked is counted as cut off.
pub struct Hold {
    revocation: Arc<Revocation>,
    is_call: bool,
    loss: Box<dyn Fn() -> Option<Loss> + Send + Sync>,
    changes: watch::Receiver<()>,
    every: Interval,
}

impl Hold {
    /// Until `loss` says why not.
    pub(crate) fn new(
        revocation: &Arc<Revocation>,
        is_call: bool,
        loss: impl Fn() -> Option<Loss> + Send + Sync + 'static,
    ) -> Self {
        let mut every = interval(HOLDS);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (revocation, changes) = (Arc::clone(revocation), revocation.changes());
        Self { revocation, is_call, loss: Box::new(loss), changes, every }
    }

    /// Completes when it may no longer go on.
    ///
    /// Cancel safe.
    pub async fn lost(&mut self) -> Loss {
        loop {
            tokio::select! {
                // The first tick comes at once.
                _ = self.every.tick() => {}
                // Fails only without the gateway, which ends everything.
                Ok(()) = self.changes.changed() => {}
            }
            if let Some(loss) = (self.loss)() {
                return loss;
            }
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.is_call && (self.loss)() == Some(Loss::Revoked) {
            self.revocation.list.cut_off();
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold").finish_non_exhaustive()
    }
}
