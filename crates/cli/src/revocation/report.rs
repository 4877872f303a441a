//! What replicas report of a list: who has it, after how long, and what was cut off.
//! Never counts a report for more than it says.

use std::collections::BTreeMap;
use std::time::Duration;

use sealwire::internal::auth::{Bucket, FollowerReport, RevocationList};
use serde::Serialize;
use serde_json::json;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::Waiting;
use super::desk::failed;
use crate::exit::{Exit, Failure};
use crate::output::Output;

/// The reports so far, by name and instance.
#[derive(Debug, Default)]
pub(super) struct Reports(BTreeMap<(String, String), Reported>);

#[derive(Debug, Serialize)]
struct Reported {
    #[serde(flatten)]
    report: FollowerReport,
    /// After how many milliseconds the list was in force there, by the operator's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    after_ms: Option<u64>,
}

/// The most instances that are kept: more than any environment has. A stolen login could report any number.
const MOST: usize = 4_096;
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
            reports.take(&message.payload, None);
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
                    Some(message) => self.take(&message.payload, Some((number, began))),
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
            self.take(&message.payload, Some((number, began)));
        }
        Ok(())
    }

    async fn ask(&self, bucket: &Bucket) -> Result<(), Failure> {
        let subject = bucket.subjects().ask();
        bucket.publish(&subject, &[]).await.map_err(|error| failed(&error))
    }

    fn take(&mut self, payload: &[u8], of: Option<(u64, Instant)>) {
        let Ok(report) = serde_json::from_slice::<FollowerReport>(payload) else { return };
        let key = (report.name.to_string(), report.instance.chars().take(64).collect());
        let known = self.0.get(&key).and_then(|known| known.after_ms);
        let has_it = of.filter(|(number, _)| report.number >= *number);
        let took = || u64::try_from(has_it?.1.elapsed().as_millis()).ok();
        let after_ms = known.or_else(took);
        if self.0.len() < MOST || self.0.contains_key(&key) {
            self.0.insert(key, Reported { report, after_ms });
        }
    }

    fn have(&self, name: &str, number: u64) -> usize {
        self.0.iter().filter(|((of, _), reported)| of == name && reported.report.number >= number).count()
    }

    fn is_complete(&self, number: u64, waiting: &Waiting) -> bool {
        let all = self.0.values().all(|reported| reported.report.number >= number);
        all && self.missing(number, waiting).is_empty()
    }

    /// The services of which too few replicas have the list: how many, and how many should.
    fn missing(&self, number: u64, waiting: &Waiting) -> Vec<(String, usize, usize)> {
        let counted =
            waiting.expected.iter().map(|(name, wanted)| (name.to_string(), self.have(name.as_str(), number), *wanted));
        counted.filter(|(_, have, wanted)| have < wanted).collect()
    }

    /// Says how it stands; the exit code says whether everybody has the list.
    pub(super) fn tell(
        &self,
        out: &Output,
        list: &RevocationList,
        (revoked, restored): (&[String], &[String]),
        waiting: &Waiting,
    ) -> Result<Exit, Failure> {
        let missing = self.missing(list.number, waiting);
        let late = self.0.values().filter(|reported| reported.report.number < list.number).count();
        let complete = missing.is_empty() && late == 0;
        let lacking: Vec<_> = missing
            .iter()
            .map(|(name, have, wanted)| json!({ "service": name, "have": have, "expected": wanted }))
            .collect();
        let result = json!({
            "number": list.number, "revoked": revoked, "restored": restored, "complete": complete,
            "replicas": self.0.values().collect::<Vec<_>>(), "missing": lacking,
        });
        out.tell(&result, || {
            let mut lines = vec![format!("list {} is in the bucket", list.number)];
            lines.extend(revoked.iter().map(|what| format!("  revoked   {what}")));
            lines.extend(restored.iter().map(|what| format!("  restored  {what}")));
            lines.extend(self.0.values().map(|reported| reported.line(list.number)));
            if self.0.is_empty() {
                lines.push("nobody reports: no service follows this bucket now".to_owned());
            }
            for (name, have, wanted) in &missing {
                lines.push(format!("MISSING  {name}: {have} of {wanted} replicas have it"));
            }
            if !complete {
                lines.push(
                    "What has not answered gets the list as soon as it sees the bucket, and refuses every call while it does not \
                     (`refuse_after_s`)."
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

impl Reported {
    fn line(&self, number: u64) -> String {
        let FollowerReport { name, instance, number: has, cut_off, stale, problem, .. } = &self.report;
        let state = match (self.after_ms, *has >= number) {
            (Some(ms), _) => format!("in force after {ms} ms"),
            (None, true) => "in force".to_owned(),
            (None, false) => format!("NOT IN FORCE: it has list {has}"),
        };
        let cut = if *cut_off > 0 { format!(", {cut_off} calls cut off") } else { String::new() };
        let stale = if *stale { ", refuses everything" } else { "" };
        let problem = problem.as_ref().map(|problem| format!(", {problem}")).unwrap_or_default();
        format!("{name} {instance}  {state}{cut}{stale}{problem}")
    }
}
