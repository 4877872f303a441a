//! What replicas report of a package: who has it in force, after how long, and who cannot use it.
//! Never counts a report for more than it says.

use std::collections::BTreeMap;
use std::time::Duration;

use sealwire::Name;
use sealwire::internal::auth::{Bucket, FollowerId, FollowerRole, Operators, Stage};
use sealwire::internal::nats::Message;
use sealwire::internal::policy::{ALL_DIFFERENCES, Comparison, Package, PackageReport, SignedPackage};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::reported::{Reported, has};
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::revocation::desk::failed;
use crate::revocation::report::who;
use crate::revocation::{Expected, Waiting};

/// The reports so far on packages of one stage, by who follows.
#[derive(Debug)]
pub(in crate::policy) struct Reports {
    stage: Stage,
    all: BTreeMap<(FollowerRole, Name, String), Reported>,
    /// Whether all differences are asked for.
    with_rows: bool,
    /// INVARIANT: the bytes of `all`, as they came.
    bytes: usize,
}

/// The bytes of all of them: as many as 250 replicas have at most, with all that differs.
const MOST_BYTES: usize = 32 * 1024 * 1024;
/// The most instances that are kept: more than any service has. A stolen login could report any number.
const MOST: usize = 4_096;
/// How long replicas have to say that they are there.
const ROLL_CALL: Duration = Duration::from_millis(300);
/// How often they are asked.
const ASK_EVERY: Duration = Duration::from_millis(250);

impl Reports {
    /// Asks every replica of the service that is there.
    pub(in crate::policy) async fn listen(bucket: &mut Bucket, stage: Stage) -> Result<Self, Failure> {
        let mut reports = Self { stage, all: BTreeMap::new(), with_rows: false, bytes: 0 };
        reports.ask(bucket).await?;
        let until = Instant::now() + ROLL_CALL;
        while let Ok(Some(message)) = timeout_at(until, bucket.next()).await {
            reports.take(bucket, &message, None);
        }
        Ok(reports)
    }

    /// Those who have just answered, and were asked for no more than that.
    pub(in crate::policy) fn answered(mut self) -> Self {
        self.all.values_mut().for_each(|reported| reported.answered = true);
        self
    }

    /// From now on, everybody is to say what differs.
    pub(in crate::policy) fn with_differences(mut self) -> Self {
        self.with_rows = true;
        self
    }

    /// Waits until everybody known has decided about the package of this digest, or for too long.
    pub(in crate::policy) async fn wait(
        &mut self,
        bucket: &mut Bucket,
        digest: &str,
        began: Instant,
        waiting: &Waiting,
    ) -> Result<(), Failure> {
        let until = began + waiting.wait;
        let mut next = Instant::now() + ASK_EVERY;
        while !self.have_decided(digest, waiting) && Instant::now() < until {
            tokio::select! {
                message = bucket.next() => match message {
                    Some(message) => self.take(bucket, &message, Some((digest, began))),
                    None => break,
                },
                () = sleep_until(next.min(until)) => {
                    self.ask(bucket).await?;
                    next = Instant::now() + ASK_EVERY;
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, bucket: &Bucket, message: &Message, of: Option<(&str, Instant)>) {
        let Ok(mut report) = serde_json::from_slice::<PackageReport>(&message.payload) else { return };
        // The broker lets nobody publish for others: the subject is who it is, whatever it says.
        if bucket.subjects().report(&report.id) != message.subject
            || !bucket.subjects().are_of(&report.id.name)
            || Name::new(&report.id.instance).is_err()
            // Nobody else judges calls.
            || (self.stage == Stage::Shadow && report.id.role != FollowerRole::Service)
        {
            return;
        }
        if !self.with_rows {
            report.shadow.comparison.iter_mut().for_each(|comparison| comparison.differences.clear());
        } else if of.is_some() && !report.shadow.comparison.as_ref().is_none_or(is_whole) {
            // This one was asked by somebody else, how many differ and not which.
            return;
        }
        let FollowerId { role, name, instance } = report.id.clone();
        let key = (role, name, instance);
        let before = self.all.get(&key);
        let known = before.and_then(|known| known.after_ms);
        let has_it = of.filter(|(digest, _)| has(&report, self.stage, digest));
        let took = || u64::try_from(has_it?.1.elapsed().as_millis()).ok();
        let after_ms = known.or_else(took);
        let bytes = message.payload.len();
        let others = self.bytes.saturating_sub(before.map_or(0, |before| before.bytes));
        let is_one_more = before.is_none();
        if others + bytes <= MOST_BYTES && (self.all.len() < MOST || !is_one_more) {
            self.bytes = others + bytes;
            self.all.insert(key, Reported { report, after_ms, answered: of.is_some(), bytes });
        }
    }

    async fn ask(&self, bucket: &Bucket) -> Result<(), Failure> {
        let (subject, words) = (bucket.subjects().ask(), if self.with_rows { ALL_DIFFERENCES } else { &[] });
        bucket.publish(&subject, words).await.map_err(|error| failed(&error))
    }

    fn have_decided(&self, digest: &str, waiting: &Waiting) -> bool {
        let mut all = self.all.values();
        // What differs is said only by those who are asked for it.
        let has_said = |one: &Reported| !self.with_rows || one.answered;
        all.all(|one| has_said(one) && (one.has(self.stage, digest) || one.refusal(self.stage, digest).is_some()))
            && self.missing(digest, waiting).is_empty()
    }

    /// Those of which too few have the package, and how many have it.
    pub(in crate::policy) fn missing<'w>(&self, digest: &str, waiting: &'w Waiting) -> Vec<(&'w Expected, usize)> {
        let have = |expected: &Expected| {
            let of = self.all.iter().filter(|((role, name, _), _)| (role, name) == (&expected.role, &expected.name));
            of.filter(|(_, one)| one.has(self.stage, digest)).count()
        };
        let counted = waiting.expected.iter().map(|expected| (expected, have(expected)));
        counted.filter(|(expected, have)| *have < expected.count).collect()
    }

    /// Says how it stands; the exit code says whether everybody has the package.
    pub(in crate::policy) fn tell(
        &self,
        out: &Output,
        package: &Package,
        (signed, operators): (&SignedPackage, &Operators),
        waiting: &Waiting,
    ) -> Result<Exit, Failure> {
        let digest = signed.digest();
        let missing = self.missing(&digest, waiting);
        let refused = self.is_refused(&digest);
        let late =
            self.all.values().any(|one| !one.has(self.stage, &digest) && one.refusal(self.stage, &digest).is_none());
        let complete = missing.is_empty() && !refused && !late;
        let lacking: Vec<_> = missing
            .iter()
            .map(|(Expected { role, name, count }, have)| {
                json!({ "role": role, "name": name, "have": have, "expected": count })
            })
            .collect();
        let (number, revision) = (package.number, package.revision().to_string());
        let (lines, replicas) = self.shown(&digest);
        let result = json!({
            "number": number, "revision": revision, "digest": digest, "signers": signed.signers(operators), "complete": complete && !self.all.is_empty(),
            "replicas": replicas, "missing": lacking,
        });
        out.tell(&result, || {
            let (word, it) = match self.stage {
                Stage::Active => ("", "have it in force"),
                Stage::Shadow => ("shadow ", "compare it"),
            };
            let mut all = vec![format!("{word}package {number} with revision {revision} is in the bucket")];
            all.extend(lines);
            if self.all.is_empty() {
                all.push("nobody reports: no replica takes its policies from this bucket now".to_owned());
            }
            for (expected, have) in &missing {
                let (who, count) = (who(expected.role, &expected.name), expected.count);
                all.push(format!("MISSING  {who}: {have} of {count} replicas {it}"));
            }
            if !complete && self.stage == Stage::Active {
                all.push(
                    "Whoever does not have it in force goes on under the last package that it could use.".to_owned(),
                );
            }
            all.join("\n")
        })?;
        Ok(if complete {
            Exit::Ok
        } else if refused {
            Exit::PolicyInvalid
        } else {
            Exit::Timeout
        })
    }

    /// Whether anybody cannot use the package of this digest.
    pub(in crate::policy) fn is_refused(&self, digest: &str) -> bool {
        self.all.values().any(|one| one.refusal(self.stage, digest).is_some())
    }

    /// Those who report.
    pub(in crate::policy) fn all(&self) -> impl Iterator<Item = &Reported> {
        self.all.values()
    }

    /// The reports as lines and as JSON, for the package of this digest.
    pub(in crate::policy) fn shown(&self, digest: &str) -> (Vec<String>, Value) {
        let lines = self.all().map(|reported| reported.line(self.stage, digest)).collect();
        (lines, json!(self.all().collect::<Vec<_>>()))
    }
}

/// Whether it says of all that differ what they have in common, or that there was no room for it.
fn is_whole(comparison: &Comparison) -> bool {
    let rows = comparison.differences.iter().fold(comparison.further, |sum, row| sum.saturating_add(row.calls));
    rows >= comparison.differ()
}
