//! `sealwire call --every`: repeats a call, with a line for each.
//! Never stops at a failure, never omits one from the count, and never begins a call once told to stop.

use std::time::{Duration, Instant};

use clap::Args;
use sealwire::{Client, ClientError};
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::time::MissedTickBehavior;

use super::outcome::{Outcome, shown};
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::runtime::Signals;
use crate::when;

/// How often.
#[derive(Args)]
pub(crate) struct Repeat {
    /// Repeat the call at this interval, with a line for each, until SIGTERM or Ctrl-C, which cancel a call in progress (exit code 130)
    #[arg(long, value_name = "TIME", value_parser = when::interval)]
    pub(super) every: Option<Duration>,
    /// Stop after this many calls
    #[arg(long, value_name = "N", requires = "every")]
    times: Option<u64>,
}

/// How the calls ended.
#[derive(Default)]
struct Count {
    answered: u64,
    failed: u64,
    given_up: u64,
    last_failure: Option<Exit>,
}

#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    outcome: Outcome<'a>,
    ms: f64,
}

impl Repeat {
    /// Calls until told to stop. The exit code is that of the last call without a result, or `Ok`; `Interrupted` if the signal came
    /// during a call.
    pub(super) async fn repeat(
        &self,
        every: Duration,
        out: &Output,
        client: &Client,
        signals: &Signals,
        call: impl AsyncFn(&Client) -> Result<Box<RawValue>, ClientError>,
        told: impl AsyncFn(ClientError) -> Failure,
    ) -> Result<Exit, Failure> {
        let mut ticks = tokio::time::interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut count = Count::default();
        while self.times.is_none_or(|times| count.answered + count.failed < times) {
            if signals.unless_stopped(ticks.tick()).await.is_none() {
                break;
            }
            let started = Instant::now();
            let answer = signals.unless_stopped(call(client)).await;
            let ms = started.elapsed().as_secs_f64() * 1_000.0;
            match answer {
                Some(Ok(result)) => count.tell(Ok(result), ms, out)?,
                Some(Err(error)) => count.tell(Err(told(error).await), ms, out)?,
                // Do not wait until its deadline, which may be minutes away.
                None => {
                    count.give_up(ms, out)?;
                    break;
                }
            }
        }
        let Count { answered, failed, given_up, last_failure } = count;
        let all = answered + failed + given_up;
        let stopped = given_up > 0;
        let given_up = if !stopped { "" } else { ", the last one given up" };
        out.note(&format!("{all} calls: {answered} with a result, {} without{given_up}", all - answered));
        // A call under way was cut short, whatever those before it got.
        Ok(if stopped { Exit::Interrupted } else { last_failure.unwrap_or(Exit::Ok) })
    }
}

impl Count {
    /// A signal came during a call.
    fn give_up(&mut self, ms: f64, out: &Output) -> Result<(), Failure> {
        self.given_up += 1;
        let failure = Failure::new(Exit::Interrupted, "given up because of a signal, outcome unknown");
        tell_failure(&failure, ms, out)
    }

    fn tell(&mut self, answer: Result<Box<RawValue>, Failure>, ms: f64, out: &Output) -> Result<(), Failure> {
        match answer {
            Ok(result) => {
                self.answered += 1;
                let line = Line { outcome: Outcome::Result(&result), ms };
                out.result(&line, || format!("{}  {}  {ms:.1} ms", now(), shown(&result).trim_end()))
            }
            Err(failure) => {
                self.failed += 1;
                self.last_failure = Some(failure.exit());
                tell_failure(&failure, ms, out)
            }
        }
    }
}

fn tell_failure(failure: &Failure, ms: f64, out: &Output) -> Result<(), Failure> {
    let error = failure.object();
    let causes: String = failure.causes().iter().map(|cause| format!("; {cause}")).collect();
    let text = format!("{}  {}{causes}  {ms:.1} ms", now(), error.message());
    out.result(&Line { outcome: Outcome::Error(error), ms }, || text)
}

fn now() -> String {
    when::absolute(when::now_s())
}
