//! Keeps the policies of a service up to date: told by the broker at once, and asking the bucket now and then.
//! Never checks policies on a thread of the runtime, and never gives up what is in force for what cannot be used.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::package::brief;
use super::report::{PackageReport, RefusedPackage};
use super::{Offer, Package, PackageChange, PackageStanding, Packages, load};
use crate::auth::{Bucket, BucketError, BucketSubjects, FollowerId, Stage, Stored};
use crate::name::shown;
use crate::policy::engine::PolicySet;
use crate::policy::model::{Finding, Methods};

/// Follows the bucket, for one service.
#[derive(Debug)]
pub struct PackageFollower {
    packages: Arc<Packages>,
    id: FollowerId,
    methods: Methods,
    asked: Instant,
}

/// What a follower tells its program.
#[derive(Debug)]
pub enum PackageEvent {
    /// This is to be put in force.
    New(Arc<PolicySet>),
    /// A package was refused, and the one before stays.
    Refused,
}

/// How often the bucket is asked, should the broker's word get lost. A package is larger than a list of revocations.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// How soon it is asked again while operators wait.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// How long to wait before connecting again.
const AGAIN: Duration = Duration::from_millis(500);

impl PackageFollower {
    /// Of these, for a program with these methods, besides which files may declare others if the program lets them.
    #[must_use]
    pub fn new(packages: Arc<Packages>, id: FollowerId, methods: &Methods) -> Self {
        Self { packages, id, methods: methods.without_files(), asked: Instant::now() }
    }

    /// Follows until it is dropped.
    pub async fn run(mut self, tell: impl Fn(PackageEvent)) {
        let packages = Arc::clone(&self.packages);
        let subjects = BucketSubjects::policies(&packages.environment, &packages.service, Stage::Active);
        let (name, instance) = (self.id.name.clone(), self.id.instance.clone());
        let shown = format!("sealwire-policy {}/{name} {instance}", packages.environment);
        loop {
            let listens = vec![subjects.told(), subjects.ask()];
            match Bucket::open(&packages.config.nats, subjects.clone(), (name.as_str(), &shown), listens).await {
                Ok(bucket) => self.follow(bucket, &tell).await,
                Err(error) => self.is_wrong(Some(error.to_string())),
            }
            sleep(AGAIN).await;
        }
    }

    async fn follow(&mut self, mut bucket: Bucket, tell: &impl Fn(PackageEvent)) {
        let mut ticks = interval(ASK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    self.ask(&mut bucket);
                    if self.packages.standing().unkept.is_some() {
                        self.keep().await;
                    }
                }
                message = bucket.messages.recv() => match message {
                    Some(message) if message.subject == bucket.subjects().ask() => {
                        self.report(&bucket).await;
                        if self.asked.elapsed() >= ASK_AGAIN {
                            self.ask(&mut bucket);
                        }
                    }
                    Some(message) if message.subject == bucket.subjects().told() => {
                        self.take(&bucket, &message.payload, tell).await;
                    }
                    Some(message) => {
                        if let Some((asked, answer)) = bucket.answered(&message) {
                            self.heard(&bucket, asked, answer, tell).await;
                        }
                    }
                    None => return,
                },
            }
        }
    }

    fn ask(&mut self, bucket: &mut Bucket) {
        self.asked = Instant::now();
        bucket.ask();
    }

    async fn heard(
        &mut self,
        bucket: &Bucket,
        asked: Instant,
        answer: Result<Option<Stored>, BucketError>,
        tell: &impl Fn(PackageEvent),
    ) {
        match answer {
            Ok(stored) => {
                self.packages.change(|standing| standing.seen = Some(asked));
                match stored {
                    Some(stored) => self.take(bucket, &stored.text, tell).await,
                    None if self.packages.standing().active.is_some() => {
                        let gone = "the bucket holds no package any more: push one, with `--after` the number of the one in force";
                        self.is_wrong(Some(gone.to_owned()));
                    }
                    None => self.is_wrong(Some("the bucket holds no package yet: `sealwire policy push`".to_owned())),
                }
            }
            // An answer that came too late for us says nothing.
            Err(BucketError::Silent { .. }) => {}
            Err(error) => self.is_wrong(Some(error.to_string())),
        }
    }

    /// Takes what the bucket holds, or is said to hold.
    async fn take(&mut self, bucket: &Bucket, text: &[u8], tell: &impl Fn(PackageEvent)) {
        match self.packages.offer(text) {
            Offer::Known => self.is_wrong(None),
            Offer::Invalid(reason) => self.is_wrong(Some(reason)),
            Offer::New(package, change) => {
                self.is_wrong(None);
                self.decide(package, change, text, tell).await;
            }
        }
        self.report(bucket).await;
    }

    async fn decide(&self, package: Box<Package>, change: PackageChange, text: &[u8], tell: &impl Fn(PackageEvent)) {
        let PackageChange { id, signers } = change;
        let (number, revision) = (id.number, id.revision.clone());
        let methods = self.methods.clone();
        let loaded = tokio::task::spawn_blocking(move || load(&package, &methods)).await;
        let loaded = loaded.unwrap_or_else(|_| Err("checking it failed: this is a bug in sealwire".to_owned()));
        match loaded {
            Ok((set, warnings)) => {
                warnings.iter().for_each(Finding::log);
                tell(PackageEvent::New(Arc::new(set)));
                self.packages.is_active(id, text);
                let signers = signers.iter().map(|signer| shown(signer)).collect::<Vec<_>>().join(", ");
                tracing::warn!(target: "sealwire::policy", number, revision, signers, "a package of policies is in force");
            }
            Err(reason) => {
                tracing::error!(
                    target: "sealwire::policy",
                    number,
                    revision,
                    reason,
                    "a package of policies cannot be used, and what was in force stays"
                );
                self.packages.change(|standing| standing.refused = Some(RefusedPackage { id, reason }));
                tell(PackageEvent::Refused);
            }
        }
        self.keep().await;
    }

    /// Keeps what is known. What cannot be kept now is tried again with the next question for the bucket.
    async fn keep(&self) {
        let before = self.packages.standing().unkept;
        let packages = Arc::clone(&self.packages);
        match tokio::task::spawn_blocking(move || packages.keep()).await {
            Ok(Err(error)) if before.is_none() => tracing::error!(
                target: "sealwire::policy",
                %error,
                "what was distributed could not be kept: after a restart, an older package could be shown to this replica"
            ),
            Ok(Ok(())) if before.is_some() => {
                tracing::info!(target: "sealwire::policy", "what was distributed is kept now")
            }
            _ => {}
        }
    }

    async fn report(&self, bucket: &Bucket) {
        let PackageStanding { active, refused, problem, denies, unkept, seen, .. } = self.packages.standing();
        let seen_ago_ms = seen.and_then(|seen| u64::try_from(seen.elapsed().as_millis()).ok());
        let report = PackageReport { id: self.id.clone(), active, refused, denies, seen_ago_ms, problem, unkept };
        let payload = serde_json::to_vec(&report).unwrap_or_default();
        // An operator who waits for it says so.
        drop(bucket.publish(&bucket.subjects().report(&self.id), &payload).await);
    }

    /// Says once what is wrong, and that it no longer is.
    fn is_wrong(&self, problem: Option<String>) {
        let problem = problem.map(|problem| brief(&problem));
        if self.packages.standing().problem == problem {
            return;
        }
        match &problem {
            Some(problem) => {
                tracing::error!(target: "sealwire::policy", problem, "the latest policies cannot be had from the bucket")
            }
            None => tracing::info!(target: "sealwire::policy", "the bucket of policies is as it should be again"),
        }
        self.packages.change(|standing| standing.problem = problem);
    }
}
