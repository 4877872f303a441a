//! What replicas report of a list: who has it, after how long, and what was cut off.
//! Never counts a report for more than it says.

use std::collections::BTreeMap;
use std::time::Duration;

use sealwire::Name;
use sealwire::internal::auth::{Bucket, FollowerId, FollowerReport, FollowerRole, RevocationList};
use sealwire::internal::nats::Message;
use serde::Serialize;
use serde_json::json;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::brokers::Closed;
use super::desk::failed;
use super::{Expected, Waiting};
use crate::exit::{Exit, Failure};
use crate::output::Output;

/// The reports so far, by who follows.
#[derive(Debug, Default)]
pub(super) struct Reports(BTreeMap<(FollowerRole, Name, String), Reported>);

#[derive(Debug, Serialize)]
struct Reported {
    #[serde(flatten)]
    report: FollowerReport,
    /// After how many milliseconds the list was in force there, by the operator's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    after_ms: Option<u64>,
    /// Whether it has said anything since the list was written.
    answered: bool,
}

/// The most instances that are kept: more than any environment has. A stolen login could report any number.
const MOST: usize = 4_096;
/// How much is shown of what a replica says of itself.
const PROBLEM: usize = 300;
/// How long replicas have to say that they are there.
const ROLL_CALL: Duration = Duration::from_millis(300);
/// How often they are asked.
const ASK_EVERY: Duration = Duration::from_millis(250);

impl Reports {
    /// Asks everybody who is there.
    pub(super) async fn listen(bucket: &mut Bucket) -> Result<Self, Failure> {
        let mut reports = Self::default();
        reports.ask(bucket).await?;
        let until = Instant::now() + ROLL_CALL;
        while let Ok(Some(message)) = timeout_at(until, bucket.next()).await {
            reports.take(bucket, &message, None);
        }
        Ok(reports)
    }

    /// Waits until everybody known has this list, or for too long; then asks once more how many calls were cut off.
    pub(super) async fn wait(
        &mut self,
        bucket: &mut Bucket,
        number: u64,
        began: Instant,
        waiting: &Waiting,
    ) -> Result<(), Failure> {
        let until = began + waiting.wait;
        let mut ask = Instant::now() + ASK_EVERY;
        while !self.is_complete(number, waiting) && Instant::now() < until {
            tokio::select! {
                message = bucket.next() => match message {
                    Some(message) => self.take(bucket, &message, Some((number, began))),
                    None => break,
                },
                () = sleep_until(ask.min(until)) => {
                    self.ask(bucket).await?;
                    ask = Instant::now() + ASK_EVERY;
                }
            }
        }
        self.ask(bucket).await?;
        let until = Instant::now() + ROLL_CALL;
        while let Ok(Some(message)) = timeout_at(until, bucket.next()).await {
            self.take(bucket, &message, Some((number, began)));
        }
        Ok(())
    }

    async fn ask(&self, bucket: &Bucket) -> Result<(), Failure> {
        let subject = bucket.subjects().ask();
        bucket.publish(&subject, &[]).await.map_err(|error| failed(&error))
    }

    fn take(&mut self, bucket: &Bucket, message: &Message, of: Option<(u64, Instant)>) {
        let Ok(report) = serde_json::from_slice::<FollowerReport>(&message.payload) else { return };
        // The broker lets nobody publish for others: the subject is who it is, whatever it says.
        if bucket.subjects().report(&report.id) != message.subject || Name::new(&report.id.instance).is_err() {
            return;
        }
        let FollowerId { role, name, instance } = report.id.clone();
        let key = (role, name, instance);
        let known = self.0.get(&key).and_then(|known| known.after_ms);
        let has_it = of.filter(|(number, _)| report.number >= *number);
        let took = || u64::try_from(has_it?.1.elapsed().as_millis()).ok();
        let after_ms = known.or_else(took);
        if self.0.len() < MOST || self.0.contains_key(&key) {
            self.0.insert(key, Reported { report, after_ms, answered: of.is_some() });
        }
    }

    fn have(&self, expected: &Expected, number: u64) -> usize {
        let is_of = |role: FollowerRole, name: &Name| role == expected.role && *name == expected.name;
        self.0.iter().filter(|((role, name, _), one)| is_of(*role, name) && one.report.number >= number).count()
    }

    fn is_complete(&self, number: u64, waiting: &Waiting) -> bool {
        let all = self.0.values().all(|reported| reported.report.number >= number);
        all && self.missing(number, waiting).is_empty()
    }

    /// Those of which too few have the list, and how many have it.
    fn missing<'w>(&self, number: u64, waiting: &'w Waiting) -> Vec<(&'w Expected, usize)> {
        let counted = waiting.expected.iter().map(|expected| (expected, self.have(expected, number)));
        counted.filter(|(expected, have)| *have < expected.count).collect()
    }

    /// Says how it stands; the exit code says whether everybody has the list.
    pub(super) fn tell(
        &self,
        out: &Output,
        list: &RevocationList,
        (revoked, restored): (&[String], &[String]),
        closed: Option<&Closed>,
        waiting: &Waiting,
    ) -> Result<Exit, Failure> {
        let missing = self.missing(list.number, waiting);
        let late = self.0.values().filter(|reported| reported.report.number < list.number).count();
        let complete = missing.is_empty() && late == 0 && closed.is_none_or(Closed::is_complete);
        let lacking: Vec<_> = missing
            .iter()
            .map(|(Expected { role, name, count }, have)| {
                json!({ "role": role, "name": name, "have": have, "expected": count })
            })
            .collect();
        let result = json!({
            "number": list.number, "revoked": revoked, "restored": restored, "complete": complete,
            "replicas": self.0.values().collect::<Vec<_>>(), "missing": lacking, "connections": closed,
        });
        out.tell(&result, || {
            let mut lines = vec![format!("list {} is in the bucket", list.number)];
            lines.extend(revoked.iter().map(|what| format!("  revoked   {what}")));
            lines.extend(restored.iter().map(|what| format!("  restored  {what}")));
            lines.extend(self.0.values().map(|reported| reported.line(list.number)));
            if self.0.is_empty() {
                lines.push("nobody reports: no service follows this bucket now".to_owned());
            }
            for (expected, have) in &missing {
                let (who, count) = (who(expected.role, &expected.name), expected.count);
                lines.push(format!("MISSING  {who}: {have} of {count} replicas have it"));
            }
            lines.extend(closed.map(Closed::lines).unwrap_or_default());
            if !complete {
                lines.push(
                    "A replica that has not answered gets the list as soon as it sees the bucket, and refuses every call while it does \
                     not (`refuse_after_s`)."
                        .to_owned(),
                );
            }
            lines.join("\n")
        })?;
        Ok(if complete { Exit::Ok } else { Exit::Timeout })
    }

    /// The reports as lines and as JSON, for a list with this number.
    pub(super) fn shown(&self, number: u64) -> (Vec<String>, serde_json::Value) {
        (self.0.values().map(|reported| reported.line(number)).collect(), json!(self.0.values().collect::<Vec<_>>()))
    }
}

/// Services by their name alone.
pub(crate) fn who(role: FollowerRole, name: &Name) -> String {
    match role {
        FollowerRole::Service => name.to_string(),
        role => format!("{role} {name}"),
    }
}

impl Reported {
    fn line(&self, number: u64) -> String {
        let FollowerReport { id, number: has, cut_off, stale, problem, .. } = &self.report;
        let (who, instance) = (who(id.role, &id.name), &id.instance);
        let state = match (self.after_ms, *has >= number) {
            (Some(ms), _) => format!("in force after {ms} ms"),
            (None, true) => "in force".to_owned(),
            (None, false) if self.answered => format!("NOT IN FORCE: it has list {has}"),
            (None, false) => format!("DID NOT ANSWER: it had list {has}"),
        };
        let cut = if *cut_off > 0 { format!(", {cut_off} calls cut off") } else { String::new() };
        let stale = if *stale { ", refuses everything" } else { "" };
        let problem = problem.iter().flat_map(|problem| problem.chars().flat_map(char::escape_debug).take(PROBLEM));
        let problem: String = problem.collect();
        let problem = if problem.is_empty() { problem } else { format!(", {problem}") };
        format!("{who} {instance}  {state}{cut}{stale}{problem}")
    }
}
