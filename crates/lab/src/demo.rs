//! The scenario of `sealwire demo`: agents call each other over a real broker with every check enforced, while attackers try to interfere.
//! Never turns a check off, and never takes anything for success that did not turn out exactly as expected.

mod frame;
mod mallory;
mod relay;
mod stage;
mod story;

pub use stage::{RunningService, Stage};
pub use story::{Line, Transcript};

use crate::audience::Audience;
use crate::error::LabError;

/// Serves, plays the scenario, and stops serving.
pub async fn perform(stage: &Stage, out: &dyn Audience) -> Result<Transcript, LabError> {
    let serving = stage.serve().await?;
    let played = story::play(stage, out).await;
    let stopped = serving.stop().await;
    let transcript = played?;
    stopped?;
    Ok(transcript)
}
