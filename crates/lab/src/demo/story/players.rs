//! Who takes part in the scenario, and what goes on for a while meanwhile.
//! Never takes a part out of order for one in order.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use sealwire::errors::ErrorKind;
use sealwire::internal::rpc::Request;
use sealwire::{CallStream, Client, ClientError, Subscription};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::transcript::shown;
use crate::demo::mallory::Mallory;
use crate::demo::stage::Stage;
use crate::parties::SERVICE;

/// Who takes part in the scenario.
#[derive(Clone, Copy)]
pub(super) struct Cast<'a> {
    pub(super) stage: &'a Stage,
    pub(super) mallory: &'a Mallory,
    pub(super) planner: &'a Client,
    pub(super) operator: &'a Client,
}

/// Something that goes on for a while.
pub(super) trait Activity {
    /// Waits for this many more parts, in order. Otherwise returns what came instead.
    async fn go_on(&mut self, more: u64) -> Result<(), String>;
}

/// A subscription to `clock/ticks`.
pub(super) struct Ticks {
    subscription: Subscription<Tick>,
    last: u64,
}

#[derive(Deserialize)]
struct Tick {
    tick: u64,
}

impl Ticks {
    pub(super) fn start(agent: &Client) -> Self {
        let request = agent.request(SERVICE).lease(Duration::from_secs(10));
        Self { subscription: request.subscribe("clock/ticks", json!({ "every_ms": 40 })), last: 0 }
    }

    /// Cancels it, and returns whether the service confirms that it has ended.
    pub(super) async fn cancel(self) -> bool {
        self.subscription.cancel().await
    }
}

impl Activity for Ticks {
    async fn go_on(&mut self, more: u64) -> Result<(), String> {
        for _ in 0..more {
            match self.subscription.next().await {
                Some(Ok(Tick { tick })) if tick == self.last + 1 => self.last = tick,
                Some(Ok(Tick { tick })) => return Err(format!("tick {tick} after {}", self.last)),
                Some(Err(error)) => return Err(ended(error)),
                None => return Err("an end".to_owned()),
            }
        }
        Ok(())
    }
}

/// A running `job/run`.
pub(super) struct Job {
    stream: CallStream<Value>,
    steps: watch::Receiver<u64>,
    began: Instant,
}

impl Job {
    /// Starts one that runs for a minute.
    pub(super) fn start(agent: &Client) -> Self {
        Self::of(agent, 600, Duration::from_secs(90))
    }

    fn of(agent: &Client, steps: u64, deadline: Duration) -> Self {
        let (tell, told) = watch::channel(0);
        let request = agent.request(SERVICE).deadline(deadline).on_notification(move |note| {
            tell.send_replace(progress(&note).unwrap_or(0));
        });
        let began = Instant::now();
        Self { stream: request.stream("job/run", json!({ "steps": steps })), steps: told, began }
    }

    /// Cancels it, and returns whether the service confirms that it has ended.
    pub(super) async fn cancel(self) -> bool {
        self.stream.cancel().await
    }
}

impl Activity for Job {
    async fn go_on(&mut self, more: u64) -> Result<(), String> {
        // A step takes a tenth of a second, so what was reported before now is of fewer steps.
        let before = u64::try_from(self.began.elapsed().as_millis() / 100).unwrap_or(u64::MAX);
        tokio::select! {
            end = self.stream.next() => Err(match end {
                Some(Err(error)) => ended(error),
                Some(Ok(item)) => item.to_string(),
                None => "an end".to_owned(),
            }),
            _ = self.steps.wait_for(|steps| *steps >= before + more) => Ok(()),
        }
    }
}

fn progress(note: &Request) -> Option<u64> {
    #[derive(Deserialize)]
    struct Progress {
        progress: f64,
    }
    let Progress { progress } = serde_json::from_str(note.params.as_ref()?.raw().get()).ok()?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small count")]
    Some(progress as u64)
}

/// Runs a job from beginning to end.
pub(super) async fn job(agent: &Client, steps: u64, deadline: Duration) -> String {
    let Job { stream, steps: told, .. } = Job::of(agent, steps, deadline);
    let end = match stream.finish::<Value>().await {
        Ok(_) => "done".to_owned(),
        Err(error) => format!("then: {}", ended(error)),
    };
    format!("{} of {steps} steps, {end}", *told.borrow())
}

/// Why it ended, in one line.
pub(super) fn ended(error: ClientError) -> String {
    match error.kind() {
        ErrorKind::Timeout | ErrorKind::StreamLost => "outcome unknown".to_owned(),
        _ => shown(Err(error)),
    }
}

/// More time than any of it takes.
pub(super) const ENOUGH: Duration = Duration::from_secs(30);
