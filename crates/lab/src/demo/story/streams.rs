//! Streams and long-running calls: what an agent sees of them, also when somebody drops, repeats, swaps or forges parts, or tries
//! to end a call in the agent's place.

use std::time::Duration;

use futures_util::StreamExt as _;
use sealwire::Client;
use serde_json::json;

use super::intruders;
use super::players::{Activity as _, Cast, ENOUGH, Job, Ticks, ended, job};
use super::transcript::{Transcript, heading, timed};
use crate::audience::Audience;
use crate::demo::relay::{Relay, Tampering};
use crate::demo::stage::Stage;
use crate::error::{Blame, LabError, OrFail as _};
use crate::parties::SERVICE;

/// A text of five words.
const TEXT: &str = "each word is signed alone";
/// The deadline of a call of which some part never arrives: much more than it needs.
const CUT: Duration = Duration::from_secs(2);

pub(super) async fn play(told: &mut Transcript, out: &dyn Audience, cast: &Cast<'_>) -> Result<(), LabError> {
    heading(out, "What comes in parts and goes on for a while")?;
    permitted(told, out, cast.planner).await?;
    // These two wait for something that never comes, until some time after their deadlines.
    let word_cut = RelayedAgent::start(cast.stage, Tampering::Cut(3)).await?;
    let end_cut = RelayedAgent::start(cast.stage, Tampering::CutEnd).await?;
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

async fn permitted(told: &mut Transcript, out: &dyn Audience, planner: &Client) -> Result<(), LabError> {
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

async fn intercepted(told: &mut Transcript, out: &dyn Audience, stage: &Stage) -> Result<(), LabError> {
    let middle = RelayedAgent::start(stage, Tampering::LoseOnce(3)).await?;
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
struct RelayedAgent {
    relay: Relay,
    agent: Client,
}

impl RelayedAgent {
    async fn start(stage: &Stage, tampering: Tampering) -> Result<Self, LabError> {
        let relay = Relay::start(&stage.url, tampering).await?;
        let credentials = stage.credentials("planner")?.urls(vec![relay.url().to_owned()]);
        let agent = Client::connect(credentials).await.or_fail(Blame::Transport)?;
        Ok(Self { relay, agent })
    }

    /// What the agent reports, if the tampering took place.
    async fn sees(&self, said: impl Future<Output = String>) -> String {
        let said = said.await;
        if self.relay.is_done() { said } else { "nobody did anything".to_owned() }
    }
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
        Ok(()) if ticks.cancel().await => "5 ticks, in order; ended".to_owned(),
        Ok(()) => "5 ticks, in order; not ended".to_owned(),
    }
}
