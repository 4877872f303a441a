//! What replicas report of a package: who has it in force, after how long, and who cannot use it.
//! Never counts a report for more than it says.

use std::collections::BTreeMap;
use std::time::Duration;

use sealwire::Name;
use sealwire::internal::auth::{Bucket, FollowerId, FollowerRole, Operators};
use sealwire::internal::nats::Message;
use sealwire::internal::policy::{Package, PackageReport, RefusedPackage, SignedPackage};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::revocation::desk::failed;
use crate::revocation::report::who;
use crate::revocation::{Expected, Waiting};

/// The reports so far, by who follows.
#[derive(Debug, Default)]
pub(in crate::policy) struct Reports(BTreeMap<(FollowerRole, Name, String), Reported>);

#[derive(Debug, Serialize)]
struct Reported {
    #[serde(flatten)]
    report: PackageReport,
    /// After how many milliseconds the package was in force there, by the operator's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    after_ms: Option<u64>,
    /// Whether it has said anything since the package was written, or since it was asked.
    answered: bool,
}

/// The most instances that are kept: more than any service has. A stolen login could report any number.
const MOST: usize = 4_096;
/// How many characters are shown of what a replica says of itself.
const PROBLEM: usize = 1_200;
/// How long replicas have to say that they are there.
const ROLL_CALL: Duration = Duration::from_millis(300);
/// How often they are asked.
const ASK_EVERY: Duration = Duration::from_millis(250);

impl Reports {
    /// Asks every replica of the service that is there.
    pub(in crate::policy) async fn listen(bucket: &mut Bucket) -> Result<Self, Failure> {
        let mut reports = Self::default();
        ask(bucket).await?;
        let until = Instant::now() + ROLL_CALL;
        while let Ok(Some(message)) = timeout_at(until, bucket.next()).await {
            reports.take(bucket, &message, None);
        }
        Ok(reports)
    }

    /// Those who have just answered, and were asked for no more than that.
    pub(in crate::policy) fn answered(mut self) -> Self {
        self.0.values_mut().for_each(|reported| reported.answered = true);
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
                    ask(bucket).await?;
                    next = Instant::now() + ASK_EVERY;
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, bucket: &Bucket, message: &Message, of: Option<(&str, Instant)>) {
        let Ok(report) = serde_json::from_slice::<PackageReport>(&message.payload) else { return };
        // The broker lets nobody publish for others: the subject is who it is, whatever it says.
        if bucket.subjects().report(&report.id) != message.subject
            || !bucket.subjects().are_of(&report.id.name)
            || Name::new(&report.id.instance).is_err()
        {
            return;
        }
        let FollowerId { role, name, instance } = report.id.clone();
        let key = (role, name, instance);
        let known = self.0.get(&key).and_then(|known| known.after_ms);
        let has_it = of.filter(|(digest, _)| is_in_force(&report, digest));
        let took = || u64::try_from(has_it?.1.elapsed().as_millis()).ok();
        let after_ms = known.or_else(took);
        if self.0.len() < MOST || self.0.contains_key(&key) {
            self.0.insert(key, Reported { report, after_ms, answered: of.is_some() });
        }
    }

    fn have_decided(&self, digest: &str, waiting: &Waiting) -> bool {
        let mut all = self.0.values().map(|reported| &reported.report);
        all.all(|report| is_in_force(report, digest) || refusal(report, digest).is_some())
            && self.missing(digest, waiting).is_empty()
    }

    /// Those of which too few have the package in force, and how many have.
    fn missing<'w>(&self, digest: &str, waiting: &'w Waiting) -> Vec<(&'w Expected, usize)> {
        let have = |expected: &Expected| {
            let of = self.0.iter().filter(|((role, name, _), _)| (role, name) == (&expected.role, &expected.name));
            of.filter(|(_, one)| is_in_force(&one.report, digest)).count()
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
        let refused = self.0.values().any(|one| refusal(&one.report, &digest).is_some());
        let late =
            self.0.values().any(|one| !is_in_force(&one.report, &digest) && refusal(&one.report, &digest).is_none());
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
            "number": number, "revision": revision, "digest": digest, "signers": signed.signers(operators), "complete": complete && !self.0.is_empty(),
            "replicas": replicas, "missing": lacking,
        });
        out.tell(&result, || {
            let mut all = vec![format!("package {number} with revision {revision} is in the bucket")];
            all.extend(lines);
            if self.0.is_empty() {
                all.push("nobody reports: no replica takes its policies from this bucket now".to_owned());
            }
            for (expected, have) in &missing {
                let (who, count) = (who(expected.role, &expected.name), expected.count);
                all.push(format!("MISSING  {who}: {have} of {count} replicas have it in force"));
            }
            if !complete {
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

    /// The reports as lines and as JSON, for the package of this digest.
    pub(in crate::policy) fn shown(&self, digest: &str) -> (Vec<String>, Value) {
        (self.0.values().map(|reported| reported.line(digest)).collect(), json!(self.0.values().collect::<Vec<_>>()))
    }
}

async fn ask(bucket: &Bucket) -> Result<(), Failure> {
    let subject = bucket.subjects().ask();
    bucket.publish(&subject, &[]).await.map_err(|error| failed(&error))
}

fn is_in_force(report: &PackageReport, digest: &str) -> bool {
    report.active.as_ref().is_some_and(|active| active.digest == digest)
}

fn refusal<'r>(report: &'r PackageReport, digest: &str) -> Option<&'r RefusedPackage> {
    report.refused.as_ref().filter(|refused| refused.id.digest == digest)
}

impl Reported {
    fn line(&self, digest: &str) -> String {
        let PackageReport { id, active, denies, problem, unkept, .. } = &self.report;
        let (who, instance) = (who(id.role, &id.name), &id.instance);
        let has = match (active, denies) {
            (Some(active), _) => format!("package {} ({})", active.number, clean(&active.revision)),
            (None, Some(why)) => format!("nothing, and denies everything: {}", clean(why)),
            (None, None) => "the policies of its folder".to_owned(),
        };
        let state = match (self.after_ms, refusal(&self.report, digest)) {
            (_, Some(refused)) => format!("CANNOT USE IT, and goes on with {has}: {}", clean(&refused.reason)),
            (Some(ms), None) => format!("in force after {ms} ms"),
            (None, None) if is_in_force(&self.report, digest) => "in force".to_owned(),
            (None, None) if self.answered => format!("NOT IN FORCE: it has {has}"),
            (None, None) => format!("DID NOT ANSWER: it had {has}"),
        };
        let unkept = unkept.as_ref().map(|unkept| format!("NOT KEPT for its next start: {unkept}"));
        let problems = problem.iter().chain(&unkept);
        let problem = problems.map(|problem| format!(", {}", clean(problem))).collect::<String>();
        format!("{who} {instance}  {state}{problem}")
    }
}

/// What a replica says, as one line of bounded length.
fn clean(text: &str) -> String {
    text.chars().flat_map(char::escape_debug).take(PROBLEM).collect()
}
