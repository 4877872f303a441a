//! Streams and long-running calls: what an agent sees of them, also when somebody drops, repeats, swaps or forges parts, or tries
//! to end a call in the agent's place.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use sealwire::client::{CallStream, Client, ClientError, ErrorKind, Subscription};
use sealwire::rpc::Request;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::intruders;
use super::{Told, heading, shown, timed};
use crate::demo::mallory::Mallory;
use crate::demo::relay::{Relay, Tampering};
use crate::demo::stage::Stage;
use crate::exit::{Exit, Failure, OrFail as _};
use crate::output::Output;
use crate::sandbox::SERVICE;

/// A text of five words.
const TEXT: &str = "each word is signed alone";
/// The deadline of a call of which some part never arrives: much more than it needs.
const CUT: Duration = Duration::from_secs(2);

/// Who takes part in the scenario.
#[derive(Clone, Copy)]
pub(super) struct Cast<'a> {
    pub(super) stage: &'a Stage,
    pub(super) mallory: &'a Mallory,
    pub(super) planner: &'a Client,
    pub(super) operator: &'a Client,
}

pub(super) async fn play(told: &mut Told, out: &Output, cast: &Cast<'_>) -> Result<(), Failure> {
    heading(out, "What comes in parts and goes on for a while")?;
    permitted(told, out, cast.planner).await?;
    // These two wait for something that never comes, until some time after their deadlines.
    let word_cut = Intercepted::start(cast.stage, Tampering::Cut(3)).await?;
    let end_cut = Intercepted::start(cast.stage, Tampering::CutEnd).await?;
    let meanwhile = async {
        heading(out, "What a man in the middle of planner's connection does to that")?;
        intercepted(told, out, cast.stage).await?;
        heading(out, "What others slip in, and how they try to end it")?;
        intruders::play(told, out, cast).await
    };
    let (word, end, played) = tokio::join!(
        timed(word_cut.sees(echo(&word_cut.agent, CUT))),
        timed(end_cut.sees(job(&end_cut.agent, 5, CUT))),
        meanwhile
    );
    played?;
    heading(out, "What is lost for good")?;
    let expected = "2 of 5 words, then: outcome unknown";
    told.line(out, "text/echo: word 3 is lost, however often it is sent", expected, word.0, word.1)?;
    told.line(out, "job/run: so is the last message", "5 of 5 steps, then: outcome unknown", end.0, end.1)
}

async fn permitted(told: &mut Told, out: &Output, planner: &Client) -> Result<(), Failure> {
    let (said, took) = timed(echo(planner, ENOUGH)).await;
    told.line(out, "planner calls text/echo, and takes word by word", "5 of 5 words, in order", said, took)?;
    let (said, took) = timed(ticks(planner)).await;
    told.line(out, "planner listens to clock/ticks, and stops", "5 ticks, in order; ended", said, took)?;
    let (said, took) = timed(job(planner, 3, ENOUGH)).await;
    told.line(out, "planner runs job/run, and hears how far it has come", "3 of 3 steps, done", said, took)?;
    let mut job = Job::start(planner);
    let cancelled = async {
        match job.go_on(2).await {
            Err(end) => end,
            Ok(()) if job.cancel().await => "ended at the service".to_owned(),
            Ok(()) => "not ended".to_owned(),
        }
    };
    let (said, took) = timed(cancelled).await;
    told.line(out, "... and cancels another, of 600 steps", "ended at the service", said, took)
}

async fn intercepted(told: &mut Told, out: &Output, stage: &Stage) -> Result<(), Failure> {
    let middle = Intercepted::start(stage, Tampering::LoseOnce(3)).await?;
    let (said, took) = timed(middle.sees(echo(&middle.agent, ENOUGH))).await;
    told.line(out, "text/echo: word 3 is lost, once", "5 of 5 words, in order", said, took)?;
    middle.relay.now(Tampering::Swap(3));
    let (said, took) = timed(middle.sees(echo(&middle.agent, ENOUGH))).await;
    told.line(out, "text/echo: words 3 and 4 are swapped", "5 of 5 words, in order", said, took)?;
    middle.relay.now(Tampering::Triple);
    let (said, took) = timed(middle.sees(ticks(&middle.agent))).await;
    told.line(out, "clock/ticks: each tick comes three times", "5 ticks, in order; ended", said, took)?;
    middle.relay.now(Tampering::LoseOnce(2));
    let (said, took) = timed(middle.sees(job(&middle.agent, 3, ENOUGH))).await;
    told.line(out, "job/run: what it says after step 2 is lost, once", "3 of 3 steps, done", said, took)
}

/// The planner, with a man in the middle.
struct Intercepted {
    relay: Relay,
    agent: Client,
}

impl Intercepted {
    async fn start(stage: &Stage, tampering: Tampering) -> Result<Self, Failure> {
        let relay = Relay::start(&stage.url, tampering).await?;
        let credentials = stage.credentials("planner")?.urls(vec![relay.url().to_owned()]);
        let agent = Client::connect(credentials).await.or_fail(Exit::Transport)?;
        Ok(Self { relay, agent })
    }

    /// What the agent reports, if the tampering took place.
    async fn sees(&self, said: impl Future<Output = String>) -> String {
        let said = said.await;
        if self.relay.is_done() { said } else { "nobody did anything".to_owned() }
    }
}

/// Something that goes on for a while.
pub(super) trait GoesOn {
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
}

impl GoesOn for Ticks {
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

impl GoesOn for Job {
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

/// Calls `text/echo` with [`TEXT`], and reports which words the agent got.
async fn echo(agent: &Client, deadline: Duration) -> String {
    let request = agent.request(SERVICE).deadline(deadline);
    let mut stream = request.stream::<String>("text/echo", json!({ "text": TEXT }));
    let (mut words, mut came) = (TEXT.split_inclusive(' '), 0);
    let end = loop {
        match stream.next().await {
            Some(Ok(word)) if words.next() == Some(word.as_str()) => came += 1,
            Some(Ok(word)) => return format!("`{word}` after {came} words"),
            Some(Err(error)) => break ended(error),
            None => match stream.finish::<String>().await {
                Ok(text) if text == TEXT => return format!("{came} of 5 words, in order"),
                Ok(text) => break text,
                Err(error) => break ended(error),
            },
        }
    };
    format!("{came} of 5 words, then: {end}")
}

/// Takes five ticks, then ends the subscription.
async fn ticks(agent: &Client) -> String {
    let mut ticks = Ticks::start(agent);
    match ticks.go_on(5).await {
        Err(wrong) => wrong,
        Ok(()) if ticks.subscription.cancel().await => "5 ticks, in order; ended".to_owned(),
        Ok(()) => "5 ticks, in order; not ended".to_owned(),
    }
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

fn ended(error: ClientError) -> String {
    match error.kind() {
        ErrorKind::Timeout | ErrorKind::StreamLost => "outcome unknown".to_owned(),
        _ => shown(Err(error)),
    }
}

/// More time than any of it takes.
pub(super) const ENOUGH: Duration = Duration::from_secs(30);
