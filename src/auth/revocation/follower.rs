//! Keeps the list of revocations up to date: told by the broker at once, and asking the bucket twice a second.
//! Never counts a list as seen that it was merely told of.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::bucket::{Answered, Bucket, BucketError, BucketSubjects};
use super::report::{FollowerId, FollowerReport};
use super::{ListChange, ListVerdict, Revocations};
use crate::name::shown;
use crate::nats::Message;

/// What a follower tells its program.
#[derive(Debug)]
pub enum RevocationEvent<'c> {
    /// A list is in force. What runs and is revoked is to be ended before this returns, as far as it can be.
    NewList(&'c ListChange),
    /// Why everything is refused, or that it no longer is.
    Stale(Option<&'static str>),
}

/// Follows the bucket, for one [`Revocations`].
#[derive(Debug)]
pub struct RevocationFollower {
    revocations: Arc<Revocations>,
    id: FollowerId,
    problem: Option<String>,
    stale: Option<Option<&'static str>>,
}

/// How often the bucket is asked: twice within the second in which a revocation is to be in force, should the broker's word get lost.
const ASK_EVERY: Duration = Duration::from_millis(400);
/// How long to wait before connecting again.
const AGAIN: Duration = Duration::from_millis(500);

impl RevocationFollower {
    /// Of these.
    #[must_use]
    pub fn new(revocations: Arc<Revocations>, id: FollowerId) -> Self {
        Self { revocations, id, problem: None, stale: None }
    }

    /// Follows until it is dropped; ends at once without a configuration.
    pub async fn run(mut self, tell: impl Fn(RevocationEvent<'_>)) {
        let revocations = Arc::clone(&self.revocations);
        let Some((environment, config)) = revocations.source() else { return };
        let subjects = BucketSubjects::of(environment);
        let shown = format!("sealwire-revocation {environment}/{} {}", self.id.name, self.id.instance);
        loop {
            let listens = vec![subjects.told(), subjects.ask()];
            let name = self.id.name.clone();
            let open = Bucket::open(&config.nats, subjects.clone(), (name.as_str(), &shown), listens);
            match open.await {
                Ok(bucket) => self.follow(bucket, &tell).await,
                Err(error) => self.is_wrong(Some(error.to_string())),
            }
            self.look(&tell);
            sleep(AGAIN).await;
        }
    }

    async fn follow(&mut self, mut bucket: Bucket, tell: &impl Fn(RevocationEvent<'_>)) {
        let mut ticks = interval(ASK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    bucket.ask();
                    self.look(tell);
                }
                message = bucket.messages.recv() => match message {
                    Some(message) => self.heard(&mut bucket, &message, tell).await,
                    None => return,
                },
            }
        }
    }

    async fn heard(&mut self, bucket: &mut Bucket, message: &Message, tell: &impl Fn(RevocationEvent<'_>)) {
        if message.subject == bucket.subjects().ask() {
            self.report(bucket).await;
        } else if message.subject == bucket.subjects().told() {
            if let ListVerdict::Newer(change) = self.revocations.offer(&message.payload) {
                self.put_in_force(bucket, &change, tell).await;
            }
        } else if let Some(Answered { asked, stored, .. }) = bucket.answered(message) {
            match stored {
                Ok(Some(stored)) => match self.revocations.offer(&stored.text) {
                    ListVerdict::Current => self.saw(asked),
                    ListVerdict::Newer(change) => {
                        self.saw(asked);
                        self.put_in_force(bucket, &change, tell).await;
                    }
                    ListVerdict::Invalid(reason) => self.is_wrong(Some(reason)),
                },
                Ok(None) => {
                    let nothing =
                        "the bucket of revocations is empty: `sealwire revocations init` makes the first list";
                    self.is_wrong(Some(nothing.to_owned()));
                }
                // An answer that came too late for us says nothing.
                Err(BucketError::Silent { .. }) => {}
                Err(error) => self.is_wrong(Some(error.to_string())),
            }
            self.look(tell);
        }
    }

    async fn put_in_force(&mut self, bucket: &Bucket, change: &ListChange, tell: &impl Fn(RevocationEvent<'_>)) {
        let ListChange { number, revoked, restored, signers, .. } = change;
        tracing::warn!(
            target: "sealwire::revocation",
            number,
            revoked = revoked.join(", "),
            restored = restored.join(", "),
            signers = signers.iter().map(|signer| shown(signer)).collect::<Vec<_>>().join(", "),
            "a list of revocations is in force"
        );
        tell(RevocationEvent::NewList(change));
        self.report(bucket).await;
        let revocations = Arc::clone(&self.revocations);
        let kept = tokio::task::spawn_blocking(move || revocations.keep()).await;
        if let Ok(Err(error)) = kept {
            tracing::error!(
                target: "sealwire::revocation",
                %error,
                "the list of revocations is in force and could not be kept: after a restart, an older one could be shown to this replica"
            );
        }
    }

    async fn report(&self, bucket: &Bucket) {
        let (number, digest) = self.revocations.in_force();
        let subject = bucket.subjects().report(&self.id);
        let report = FollowerReport {
            id: self.id.clone(),
            number,
            digest,
            cut_off: self.revocations.cut.load(std::sync::atomic::Ordering::Relaxed),
            seen_ago_ms: self.revocations.seen_ago_ms(),
            stale: self.revocations.stale().is_some(),
            problem: self.problem.clone(),
        };
        let payload = serde_json::to_vec(&report).unwrap_or_default();
        // An operator who waits for it says so.
        drop(bucket.publish(&subject, &payload).await);
    }

    fn saw(&mut self, asked: Instant) {
        self.revocations.saw(asked);
        self.is_wrong(None);
    }

    /// Says once what is wrong, and that it no longer is.
    fn is_wrong(&mut self, problem: Option<String>) {
        if self.problem == problem {
            return;
        }
        match &problem {
            Some(problem) => {
                tracing::error!(target: "sealwire::revocation", problem, "what is revoked cannot be confirmed")
            }
            None => tracing::info!(target: "sealwire::revocation", "what is revoked is known again"),
        }
        self.problem = problem;
    }

    fn look(&mut self, tell: &impl Fn(RevocationEvent<'_>)) {
        let stale = self.revocations.stale();
        if self.stale.as_ref() != Some(&stale) {
            if let Some(reason) = stale {
                tracing::warn!(target: "sealwire::revocation", reason, "every call is refused");
            }
            tell(RevocationEvent::Stale(stale));
            self.stale = Some(stale);
        }
    }
}
