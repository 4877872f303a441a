//! What has happened so far, line by line.
//! Never takes anything but the expected outcome for it.

use std::time::{Duration, Instant};

use sealwire::errors::ErrorKind;
use sealwire::{ClientError, RpcError};
use serde::Serialize;
use serde_json::Value;

use crate::audience::Audience;
use crate::error::LabError;

/// One line of the scenario.
#[derive(Debug, Serialize)]
pub struct Line {
    what: &'static str,
    expected: String,
    actual: String,
    ok: bool,
    latency_us: u64,
}

/// The lines so far.
#[derive(Debug, Default)]
pub struct Transcript(Vec<Line>);

impl Transcript {
    pub(super) fn line(
        &mut self,
        out: &dyn Audience,
        what: &'static str,
        expected: &str,
        actual: String,
        took: Duration,
    ) -> Result<(), LabError> {
        let latency_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let line = Line { what, ok: actual == expected, expected: expected.to_owned(), actual, latency_us };
        out.line(&line.text()).map_err(LabError::Output)?;
        self.0.push(line);
        Ok(())
    }

    /// Every line.
    #[must_use]
    pub fn lines(&self) -> &[Line] {
        &self.0
    }

    /// How many turned out as expected.
    #[must_use]
    pub fn as_expected(&self) -> usize {
        self.0.iter().filter(|line| line.ok).count()
    }

    /// The last sentence.
    #[must_use]
    pub fn summary(&self) -> String {
        format!("{} of {} lines turned out as expected", self.as_expected(), self.0.len())
    }
}

impl Line {
    fn text(&self) -> String {
        let mark = if self.ok { "ok  " } else { "FAIL" };
        #[expect(clippy::cast_precision_loss, reason = "a latency for people to read")]
        let ms = self.latency_us as f64 / 1000.0;
        let came = if self.ok { String::new() } else { format!("   got: {}", self.actual) };
        format!("{mark} {:<66} {:<42} {ms:>8.2} ms{came}", self.what, self.expected)
    }
}

pub(super) fn heading(out: &dyn Audience, text: &str) -> Result<(), LabError> {
    out.line(&format!("\n{text}")).map_err(LabError::Output)
}

/// The outcome of a call, in one line.
pub(super) fn shown(outcome: Result<Value, ClientError>) -> String {
    match outcome {
        Ok(value) => value.to_string(),
        Err(error) => match (error.kind(), error.remote()) {
            (_, Some(remote)) => shown_error(remote),
            (ErrorKind::NoResponders, _) => "nobody listens".to_owned(),
            (ErrorKind::Forbidden, _) => "forbidden by the broker".to_owned(),
            (ErrorKind::Unverifiable, _) => "no answer that can be trusted".to_owned(),
            _ => error.to_string(),
        },
    }
}

fn shown_error(error: &RpcError) -> String {
    format!("{} {}", error.code(), error.message())
}

pub(super) async fn timed<T>(future: impl Future<Output = T>) -> (T, Duration) {
    let started = Instant::now();
    let value = future.await;
    (value, started.elapsed())
}
