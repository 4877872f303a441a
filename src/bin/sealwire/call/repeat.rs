//! `sealwire call --every`: the same call again and again, with a line for each.
//! Never stops at a failure, and never leaves one out of the count.

use std::time::{Duration, Instant};

use clap::Args;
use sealwire::client::{Client, ClientError};
use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::time::MissedTickBehavior;

use super::exit;
use super::single::{Outcome, shown};
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::serve::stop_signal;
use crate::when;

/// How often.
#[derive(Args)]
pub(crate) struct Often {
    /// Call again and again, once in this time, until SIGTERM or Ctrl-C; each call has a line
    #[arg(long, value_name = "TIME", value_parser = when::interval)]
    pub(super) every: Option<Duration>,
    /// End after so many calls
    #[arg(long, value_name = "N", requires = "every")]
    times: Option<u64>,
}

/// How the calls ended.
#[derive(Default)]
struct Count {
    answered: u64,
    failed: u64,
    last_failure: Option<Exit>,
}

#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    outcome: Outcome<'a>,
    ms: f64,
}

impl Often {
    /// Calls until told to stop. The result says whether every call had a result.
    pub(super) async fn repeat(
        &self,
        every: Duration,
        out: &Output,
        client: &Client,
        call: impl AsyncFn(&Client) -> Result<Box<RawValue>, ClientError>,
    ) -> Result<Exit, Failure> {
        let (_task, stopped) = stop_signal()?;
        let mut stopped = std::pin::pin!(stopped);
        let mut ticks = tokio::time::interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut count = Count::default();
        while self.times.is_none_or(|times| count.answered + count.failed < times) {
            tokio::select! {
                () = &mut stopped => break,
                _ = ticks.tick() => {}
            }
            let started = Instant::now();
            // A call that has begun is waited for, as long as its deadline says.
            let answer = call(client).await;
            count.tell(&answer, started.elapsed().as_secs_f64() * 1_000.0, out)?;
        }
        let Count { answered, failed, last_failure } = count;
        out.note(&format!("{} calls: {answered} with a result, {failed} without", answered + failed));
        Ok(last_failure.unwrap_or(Exit::Ok))
    }
}

impl Count {
    fn tell(&mut self, answer: &Result<Box<RawValue>, ClientError>, ms: f64, out: &Output) -> Result<(), Failure> {
        let now = || when::absolute(when::now_s());
        match answer {
            Ok(result) => {
                self.answered += 1;
                let line = Line { outcome: Outcome::Result(result), ms };
                out.result(&line, || format!("{}  {}  {ms:.1} ms", now(), shown(result).trim_end()))
            }
            Err(error) => {
                self.failed += 1;
                let exit = exit(error);
                self.last_failure = Some(exit);
                let text = || format!("{}  {error}  {ms:.1} ms", now());
                match error {
                    ClientError::Remote(error) => out.result(&Line { outcome: Outcome::Error(error), ms }, text),
                    error => out.result(&json!({ "failure": error.to_string(), "exit": exit as u8, "ms": ms }), text),
                }
            }
        }
    }
}
