//! Tells the client how far a call has come, and what its method logs.
//! Never sends a client what it has not asked for, progress that is not more than before, or progress too often.

use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sealwire::internal::rpc::Request;
use sealwire_mcp::{Id, LogLevel, notification};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep_until};

use super::outbox::Outbox;
use super::results::as_text;

/// The interval between two progress notifications, and how many of them may come sooner: a method that reports at this interval is often a
/// little early.
const PROGRESS: Duration = Duration::from_millis(50);
const EARLY: u32 = 10;
/// The longest text of a progress notification, in characters.
const PROGRESS_TEXT: usize = 1_000;

/// The method's notifications on their way to the client. Filled while the stream is polled, bounded by the call's window, and emptied
/// right after.
#[derive(Default)]
pub(super) struct Notes(Mutex<Vec<Request>>);

impl Notes {
    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<Request>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `rpc.progress`.
#[derive(Deserialize)]
struct Progress {
    progress: f64,
    total: Option<f64>,
    message: Option<String>,
}

/// `notifications/message`.
#[derive(Serialize, Deserialize)]
struct LogMessage {
    level: LogLevel,
    #[serde(skip_serializing_if = "Option::is_none")]
    logger: Option<String>,
    data: Value,
}

const MESSAGE: &str = "notifications/message";

/// What the client of one call is told.
pub(super) struct Notifier<'a> {
    out: &'a Outbox,
    token: Option<&'a Id>,
    /// The lowest level of log messages that it wants; `None` if it wants none.
    level: Option<LogLevel>,
    /// When it would have been told of the next progress if none had come early; `None` before the first.
    next: Option<Instant>,
    /// The last progress; `None` before the first, which may be any number (MCP, progress: "the `progress` value MUST increase").
    last: Option<f64>,
    /// The newest progress, if it has to wait.
    held: Option<Value>,
    steps: f64,
}

impl<'a> Notifier<'a> {
    pub(super) fn new(out: &'a Outbox, token: Option<&'a Id>, level: Option<LogLevel>) -> Self {
        Self { out, token, level, next: None, last: None, held: None, steps: 0.0 }
    }

    pub(super) fn note(&mut self, note: &Request) {
        let params = note.params.as_ref().map(|params| params.raw());
        if note.method == "rpc.progress"
            && let Some(Ok(progress)) = params.map(|params| serde_json::from_str::<Progress>(params.get()))
        {
            self.tell(progress.progress, progress.total, progress.message);
        }
        // A log message of an MCP server behind the bus.
        if note.method == MESSAGE
            && let (Some(Ok(said)), Some(least)) =
                (params.map(|params| serde_json::from_str::<LogMessage>(params.get())), self.level)
            && said.level >= least
        {
            self.out.send_now(&notification(MESSAGE, &json!(said)));
        }
    }

    /// A part of the result, which counts as one step.
    pub(super) fn part(&mut self, part: &RawValue) {
        self.steps += 1.0;
        self.tell(self.steps, None, Some(as_text(part).into_owned()));
    }

    fn tell(&mut self, progress: f64, total: Option<f64>, message: Option<String>) {
        let Some(token) = self.token else { return };
        if self.last.is_some_and(|last| progress <= last) {
            return;
        }
        self.last = Some(progress);
        let mut params = Map::new();
        params.insert("progressToken".to_owned(), json!(token));
        params.insert("progress".to_owned(), number(progress));
        params.extend(total.map(|total| ("total".to_owned(), number(total))));
        let message = message.map(|text| text.chars().take(PROGRESS_TEXT).collect::<String>());
        params.extend(message.map(|message| ("message".to_owned(), message.into())));
        self.held = Some(notification("notifications/progress", &Value::Object(params)));
        if self.due().is_none_or(|due| due <= Instant::now()) {
            self.flush();
        }
    }

    /// When the client may be told again; `None` if it was not told yet.
    fn due(&self) -> Option<Instant> {
        self.next?.checked_sub(PROGRESS * EARLY)
    }

    /// Completes when progress that is held back now may be sent.
    pub(super) fn is_due(&self) -> impl Future<Output = ()> + Send + use<> {
        let due = self.due().filter(|_| self.held.is_some());
        async move {
            match due {
                Some(due) => sleep_until(due).await,
                None => std::future::pending().await,
            }
        }
    }

    /// Sends the progress that was held back.
    pub(super) fn flush(&mut self) {
        if let Some(held) = self.held.take() {
            let now = Instant::now();
            self.next = Some(self.next.map_or(now, |next| next.max(now)) + PROGRESS);
            self.out.send_now(&held);
        }
    }
}

/// A whole number without a fraction: some clients read no other.
fn number(value: f64) -> Value {
    #[expect(clippy::cast_possible_truncation, reason = "whole, and of a size that both represent exactly")]
    let whole = (value.fract() == 0.0 && value.abs() < 9e15).then_some(value as i64);
    whole.map_or_else(|| json!(value), Value::from)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    /// What a client hears of these notes, in which a second passes before each.
    async fn heard(notes: &[Value]) -> Vec<Value> {
        let (out, mut lines) = Outbox::new();
        let token = Id::Text("t".to_owned());
        let mut notifier = Notifier::new(&out, Some(&token), None);
        for params in notes {
            tokio::time::advance(Duration::from_secs(1)).await;
            notifier.note(&Request::new("rpc.progress", params, None).unwrap());
        }
        notifier.flush();
        drop(out);
        let mut heard = Vec::new();
        while let Some(line) = lines.recv().await {
            let mut said: Value = serde_json::from_slice(line.text()).unwrap();
            assert_eq!(said["params"]["progressToken"], "t");
            said["params"].as_object_mut().unwrap().remove("progressToken");
            heard.push(said["params"].clone());
        }
        heard
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_progress_may_be_any_number_and_each_later_one_is_more() {
        let at = |progress: Value| json!({ "progress": progress });
        for (said, told) in [
            (vec![json!(0), json!(50), json!(100)], vec![json!(0), json!(50), json!(100)]),
            (vec![json!(-5), json!(-1.5), json!(0), json!(0.25)], vec![json!(-5), json!(-1.5), json!(0), json!(0.25)]),
            (vec![json!(-0.0), json!(0)], vec![json!(0)]),
            (
                vec![json!(0), json!(0), json!(0.1), json!(0.1), json!(0.05), json!(0.2)],
                vec![json!(0), json!(0.1), json!(0.2)],
            ),
            (vec![json!(3), json!(1), json!(2), json!(4)], vec![json!(3), json!(4)]),
            (vec![json!(1e300), json!(-1e300)], vec![json!(1e300)]),
            (vec![json!(9_007_199_254_740_993_i64)], vec![json!(9_007_199_254_740_992.0)]),
            (vec![json!("0"), json!(null), json!(1)], vec![json!(1)]),
        ] {
            let said: Vec<Value> = said.into_iter().map(at).collect();
            let told: Vec<Value> = told.into_iter().map(at).collect();
            assert_eq!(heard(&said).await, told, "{said:?}");
        }
        // With a total, and without one; a total of 0, or one that changes, is the method's affair.
        let whole = [json!({ "progress": 0, "total": 0 }), json!({ "progress": 1, "total": 2.5, "message": "m" })];
        assert_eq!(heard(&whole).await, whole);
    }

    #[tokio::test(start_paused = true)]
    async fn progress_that_comes_too_fast_waits_and_the_newest_is_sent_in_time() {
        let (out, mut lines) = Outbox::new();
        let token = Id::Number(1);
        let mut notifier = Notifier::new(&out, Some(&token), None);
        let mut next = || lines.try_recv().ok().map(|line| serde_json::from_slice::<Value>(line.text()).unwrap());
        for progress in 0..20 {
            notifier.tell(f64::from(progress), None, None);
        }
        for progress in 0..EARLY + 1 {
            assert_eq!(next().unwrap()["params"]["progress"], progress);
        }
        assert!(next().is_none());
        let before = Instant::now();
        notifier.is_due().await;
        notifier.flush();
        assert_eq!(before.elapsed().as_millis().div_ceil(50), 1);
        assert_eq!(next().unwrap()["params"]["progress"], 19, "though nothing follows it");
        assert!(tokio::time::timeout(Duration::from_secs(1), notifier.is_due()).await.is_err());
    }
}
