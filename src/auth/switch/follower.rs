//! Keeps a switch up to date: told by the broker at once, and asking the bucket twice a second.
//! Never counts a list as seen that it was merely told of.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::bucket::{Bucket, BucketError, BucketSubjects};
use super::config::SwitchConfig;
use super::{Applied, Offered, Switch};
use crate::name::{Name, shown};
use crate::nats::Message;

/// Who follows.
#[derive(Debug, Clone)]
pub struct Who {
    /// The service's or gateway's name.
    pub name: Name,
    /// The replica.
    pub instance: String,
}

/// What one follower says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchReport {
    /// The service's or gateway's name.
    pub name: Name,
    /// The replica.
    pub instance: String,
    /// The number of the list in force; 0 if there is none yet.
    pub number: u64,
    /// Its digest.
    pub digest: String,
    /// How many calls under way it has ended so far.
    pub cut_off: u64,
    /// How long ago the bucket was seen to hold it, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen_ago_ms: Option<u64>,
    /// Whether everything is refused because the bucket is out of sight.
    pub blind: bool,
    /// What is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// What a follower tells its program.
#[derive(Debug)]
pub enum Change<'c> {
    /// A list is in force. What runs and is revoked is to be ended before this returns, as far as it can be.
    Applied(&'c Applied),
    /// Why everything is refused, or that it no longer is.
    Blind(Option<String>),
}

/// Follows the bucket for one switch.
#[derive(Debug)]
pub struct Follower {
    switch: Arc<Switch>,
    config: SwitchConfig,
    who: Who,
    problem: Option<String>,
    blind: Option<Option<String>>,
}

/// How often the bucket is asked: twice within the second in which a revocation is to be in force, should the broker's word get lost.
const ASK_EVERY: Duration = Duration::from_millis(400);
/// How long to wait before connecting again.
const AGAIN: Duration = Duration::from_millis(500);

impl Follower {
    /// Of this switch.
    #[must_use]
    pub fn new(switch: Arc<Switch>, config: SwitchConfig, who: Who) -> Self {
        Self { switch, config, who, problem: None, blind: None }
    }

    /// Follows until it is dropped; ends at once if the switch has no configuration.
    pub async fn run(mut self, tell: impl Fn(Change<'_>)) {
        let Some(environment) = self.switch.environment().cloned() else { return };
        let subjects = BucketSubjects::of(&environment);
        let shown = format!("sealwire-switch {environment}/{} {}", self.who.name, self.who.instance);
        loop {
            let listens = vec![subjects.told(), subjects.ask()];
            let name = self.who.name.clone();
            let open = Bucket::open(&self.config.nats, &environment, (name.as_str(), &shown), listens);
            match open.await {
                Ok(bucket) => self.follow(bucket, &tell).await,
                Err(error) => self.is_wrong(Some(error.to_string())),
            }
            self.look(&tell);
            sleep(AGAIN).await;
        }
    }

    async fn follow(&mut self, mut bucket: Bucket, tell: &impl Fn(Change<'_>)) {
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

    async fn heard(&mut self, bucket: &mut Bucket, message: &Message, tell: &impl Fn(Change<'_>)) {
        if message.subject == bucket.subjects().ask() {
            self.report(bucket).await;
        } else if message.subject == bucket.subjects().told() {
            if let Offered::Applied(applied) = self.switch.offer(&message.payload) {
                self.applied(bucket, &applied, tell).await;
            }
        } else if let Some((asked, answer)) = bucket.answered(message) {
            match answer {
                Ok(Some(stored)) => match self.switch.offer(&stored.text) {
                    Offered::Same => self.saw(asked),
                    Offered::Applied(applied) => {
                        self.saw(asked);
                        self.applied(bucket, &applied, tell).await;
                    }
                    Offered::Refused(reason) => self.is_wrong(Some(reason)),
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

    async fn applied(&mut self, bucket: &Bucket, applied: &Applied, tell: &impl Fn(Change<'_>)) {
        let Applied { number, revoked, restored, signers, .. } = applied;
        tracing::warn!(
            target: "sealwire::switch",
            number,
            revoked = revoked.join(", "),
            restored = restored.join(", "),
            signers = signers.iter().map(|signer| shown(signer)).collect::<Vec<_>>().join(", "),
            "a list of revocations is in force"
        );
        tell(Change::Applied(applied));
        self.report(bucket).await;
        let (switch, trust) = (Arc::clone(&self.switch), self.config.nats.files.clone());
        let kept = tokio::task::spawn_blocking(move || switch.keep(&trust)).await;
        if let Ok(Err(error)) = kept {
            tracing::error!(
                target: "sealwire::switch",
                %error,
                "the list of revocations is in force and could not be kept: after a restart, an older one could be shown to this replica"
            );
        }
    }

    async fn report(&self, bucket: &Bucket) {
        let (number, digest) = self.switch.in_force();
        let Who { name, instance, .. } = self.who.clone();
        let subject = bucket.subjects().report(name.as_str(), &instance);
        let report = SwitchReport {
            name,
            instance,
            number,
            digest,
            cut_off: self.switch.cut.load(std::sync::atomic::Ordering::Relaxed),
            seen_ago_ms: self.switch.seen_ago_ms(),
            blind: self.switch.is_blind(),
            problem: self.problem.clone(),
        };
        let payload = serde_json::to_vec(&report).unwrap_or_default();
        // An operator who waits for it says so.
        drop(bucket.publish(&subject, &payload).await);
    }

    fn saw(&mut self, asked: Instant) {
        self.switch.saw(asked);
        self.is_wrong(None);
    }

    /// Says once what is wrong, and that it no longer is.
    fn is_wrong(&mut self, problem: Option<String>) {
        if self.problem == problem {
            return;
        }
        match &problem {
            Some(problem) => {
                tracing::error!(target: "sealwire::switch", problem, "what is revoked cannot be confirmed")
            }
            None => tracing::info!(target: "sealwire::switch", "what is revoked is known again"),
        }
        self.problem = problem;
    }

    fn look(&mut self, tell: &impl Fn(Change<'_>)) {
        let blind = self.switch.blind();
        if self.blind.as_ref() != Some(&blind) {
            if let Some(reason) = &blind {
                tracing::warn!(target: "sealwire::switch", reason, "every call is refused");
            }
            tell(Change::Blind(blind.clone()));
            self.blind = Some(blind);
        }
    }
}
