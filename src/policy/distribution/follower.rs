//! Keeps the policies of a service up to date: told by the broker at once, and asking the bucket now and then.
//! Never checks policies on a thread of the runtime, and never gives up what is in force for what cannot be used.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};

use super::package::brief;
use super::report::{PackageReport, RefusedPackage};
use super::{Offer, Package, PackageChange, PackageStanding, Packages, ShadowPolicy, ShadowStanding, load};
use crate::auth::{Answered, Bucket, BucketError, BucketSubjects, FollowerId, FollowerRole, Stage};
use crate::name::shown;
use crate::policy::engine::PolicySet;
use crate::policy::model::{Finding, Methods};

/// Follows the bucket, for one service.
#[derive(Debug)]
pub struct PackageFollower {
    packages: Arc<Packages>,
    id: FollowerId,
    methods: Methods,
    active: BucketSubjects,
    /// `None` for those who judge no calls.
    shadow: Option<BucketSubjects>,
    asked: Instant,
    reported: Instant,
    /// Whether to report, and if so, whether with all differences.
    owed: Option<bool>,
}

/// What a follower tells its program.
#[derive(Debug)]
pub enum PackageEvent {
    /// This is to be put in force.
    New(Arc<PolicySet>),
    /// A package was refused, and the one before stays.
    Refused,
    /// This is to be compared with what is in force, or nothing any more.
    Shadow(Option<Arc<ShadowPolicy>>),
}

/// What operators ask with if they want all differences.
pub const ALL_DIFFERENCES: &[u8] = b"differences";

/// How often the bucket is asked, should the broker's word get lost. A package is larger than a list of revocations.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// How soon it is asked again while operators wait, or while somebody says what nobody has signed.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// How soon to report again.
const REPORT_AGAIN: Duration = Duration::from_millis(50);
/// How long to wait before connecting again.
const AGAIN: Duration = Duration::from_millis(500);

impl PackageFollower {
    /// Of these, for a program with these methods, besides which files may declare others if the program lets them.
    #[must_use]
    pub fn new(packages: Arc<Packages>, id: FollowerId, methods: &Methods) -> Self {
        let of = |stage| BucketSubjects::policies(&packages.environment, &packages.service, stage);
        let shadow = (id.role == FollowerRole::Service).then(|| of(Stage::Shadow));
        let (active, methods, now) = (of(Stage::Active), methods.without_files(), Instant::now());
        Self { packages, id, methods, active, shadow, asked: now, reported: now, owed: None }
    }

    /// Follows until it is dropped.
    pub async fn run(mut self, tell: impl Fn(PackageEvent)) {
        let packages = Arc::clone(&self.packages);
        let (name, instance) = (self.id.name.clone(), self.id.instance.clone());
        let shown = format!("sealwire-policy {}/{name} {instance}", packages.environment);
        loop {
            let told = self.shadow.iter().map(BucketSubjects::told);
            let listens = told.chain([self.active.told(), self.active.ask()]).collect();
            match Bucket::open(&packages.config.nats, self.active.clone(), (name.as_str(), &shown), listens).await {
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
                () = sleep_until(self.reported + REPORT_AGAIN), if self.owed.is_some() => self.report(&bucket).await,
                message = bucket.messages.recv() => match message {
                    Some(message) => match bucket.answered(&message) {
                        Some(answer) if answer.key == self.active.key() => self.answered(answer, tell).await,
                        Some(answer) => self.answered_shadow(answer, tell).await,
                        None => self.heard(&mut bucket, &message.subject, &message.payload, tell).await,
                    },
                    None => return,
                },
            }
        }
    }

    fn ask(&mut self, bucket: &mut Bucket) {
        self.asked = Instant::now();
        bucket.ask();
        if let Some(shadow) = &self.shadow {
            bucket.ask_for(shadow.key());
        }
    }

    fn ask_soon(&mut self, bucket: &mut Bucket) {
        if self.asked.elapsed() >= ASK_AGAIN {
            self.ask(bucket);
        }
    }

    async fn heard(&mut self, bucket: &mut Bucket, subject: &str, payload: &[u8], tell: &impl Fn(PackageEvent)) {
        if subject == self.active.ask() {
            self.owes(payload == ALL_DIFFERENCES);
            self.ask_soon(bucket);
        } else if subject == self.active.told() {
            // JetStream can be made to say anything here. What is wrong with the bucket, it says itself.
            match self.packages.offer(payload) {
                Offer::Invalid(_) => self.ask_soon(bucket),
                offer => self.take(offer, payload, tell).await,
            }
        } else if self.shadow.as_ref().is_some_and(|shadow| subject == shadow.told()) {
            match self.packages.offer_shadow(payload) {
                Offer::Invalid(_) => self.ask_soon(bucket),
                offer => self.take_shadow(offer, tell).await,
            }
        }
    }

    async fn answered(&mut self, Answered { asked, stored, .. }: Answered, tell: &impl Fn(PackageEvent)) {
        match stored {
            Ok(stored) => {
                self.packages.change(|standing| standing.seen = Some(asked));
                match stored {
                    Some(stored) => self.take(self.packages.offer(&stored.text), &stored.text, tell).await,
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
    async fn take(&mut self, offer: Offer, text: &[u8], tell: &impl Fn(PackageEvent)) {
        match offer {
            Offer::Known => self.is_wrong(None),
            Offer::Invalid(reason) => self.is_wrong(Some(reason)),
            Offer::New(package, change) => {
                self.is_wrong(None);
                self.decide(package, change, text, tell).await;
            }
        }
        self.owes(false);
    }

    async fn load(&self, package: Box<Package>) -> Result<Arc<PolicySet>, String> {
        let methods = self.methods.clone();
        let loaded = tokio::task::spawn_blocking(move || load(&package, &methods)).await;
        let (set, warnings) =
            loaded.unwrap_or_else(|_| Err("checking it failed: this is a bug in sealwire".to_owned()))?;
        warnings.iter().for_each(Finding::log);
        Ok(Arc::new(set))
    }

    async fn decide(&self, package: Box<Package>, change: PackageChange, text: &[u8], tell: &impl Fn(PackageEvent)) {
        let PackageChange { id, signers } = change;
        let (number, revision) = (id.number, id.revision.clone());
        match self.load(package).await {
            Ok(set) => {
                tell(PackageEvent::New(set));
                self.packages.is_active(id, text);
                let signers = signers.iter().map(|signer| shown(signer)).collect::<Vec<_>>().join(", ");
                tracing::warn!(target: "sealwire::policy", number, revision, signers, "a package of policies is in force");
                // What was counted was about the policies before.
                if let Some(compared) = self.packages.standing().shadow.compared {
                    self.compare(Some(compared.anew()), tell);
                }
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

    async fn answered_shadow(&mut self, answer: Answered, tell: &impl Fn(PackageEvent)) {
        match answer.stored {
            Ok(Some(stored)) if !stored.text.is_empty() => {
                self.take_shadow(self.packages.offer_shadow(&stored.text), tell).await;
            }
            Ok(_) => {
                let before = self.packages.change(|standing| std::mem::take(&mut standing.shadow));
                if let Some(compared) = before.compared {
                    let number = compared.id.number;
                    tracing::warn!(target: "sealwire::policy", number, "a shadow package is gone, and nothing is compared");
                    tell(PackageEvent::Shadow(None));
                }
            }
            // Whatever it is, the answer about the policies in force has it, too.
            Err(_) => {}
        }
    }

    async fn take_shadow(&mut self, offer: Offer, tell: &impl Fn(PackageEvent)) {
        match offer {
            Offer::Known => self.packages.change(|standing| standing.shadow.problem = None),
            Offer::Invalid(reason) => {
                let problem = Some(brief(&reason));
                if self.packages.standing().shadow.problem != problem {
                    tracing::error!(target: "sealwire::policy", problem, "the bucket holds no usable shadow package");
                    self.packages.change(|standing| standing.shadow.problem = problem);
                }
            }
            Offer::New(package, PackageChange { id, signers }) => {
                let (number, revision) = (id.number, id.revision.clone());
                match self.load(package).await {
                    Ok(set) => {
                        let signers = signers.iter().map(|signer| shown(signer)).collect::<Vec<_>>().join(", ");
                        tracing::warn!(target: "sealwire::policy", number, revision, signers, "a shadow package is compared");
                        self.compare(Some(ShadowPolicy::new(id, set)), tell);
                    }
                    Err(reason) => {
                        tracing::error!(target: "sealwire::policy", number, revision, reason, "a shadow package cannot be used");
                        self.compare(None, tell);
                        let refused = Some(RefusedPackage { id, reason });
                        self.packages.change(|standing| standing.shadow.refused = refused);
                    }
                }
                self.keep().await;
            }
        }
        self.owes(false);
    }

    fn compare(&self, shadow: Option<ShadowPolicy>, tell: &impl Fn(PackageEvent)) {
        let compared = shadow.map(Arc::new);
        tell(PackageEvent::Shadow(compared.clone()));
        self.packages.change(|standing| standing.shadow = ShadowStanding { compared, ..ShadowStanding::default() });
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

    fn owes(&mut self, with_differences: bool) {
        self.owed = Some(self.owed.unwrap_or_default() || with_differences);
    }

    async fn report(&mut self, bucket: &Bucket) {
        let with_differences = self.owed.take().unwrap_or_default();
        self.reported = Instant::now();
        let PackageStanding { active, refused, problem, denies, unkept, seen, shadow, .. } = self.packages.standing();
        let seen_ago_ms = seen.and_then(|seen| u64::try_from(seen.elapsed().as_millis()).ok());
        let (id, shadow) = (self.id.clone(), shadow.report(with_differences));
        let report = PackageReport { id, active, refused, denies, seen_ago_ms, problem, unkept, shadow };
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
