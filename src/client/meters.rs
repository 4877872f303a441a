//! How long a client's calls take, by service and outcome: nothing until somebody asks for it, and nothing at all without the feature `metrics`.
//! Never takes a label from an answer.

#[cfg(feature = "metrics")]
use std::sync::OnceLock;
use std::time::Duration;

use super::answer::Answer;
use super::error::ClientError;
#[cfg(feature = "metrics")]
use crate::registry::{Exemplars, Labelled, error_type};
#[cfg(feature = "metrics")]
use crate::rpc::Responses;

/// Measures, once it is switched on.
#[derive(Debug, Default)]
pub(super) struct Meters(#[cfg(feature = "metrics")] OnceLock<Labelled<Exemplars>>);

/// The most pairs of a service and an outcome whose durations are kept one by one; each is 20 samples.
#[cfg(feature = "metrics")]
const MAX_CALLS: usize = 1_000;

impl Meters {
    /// A message has been answered, or has failed.
    pub(super) fn ended(
        &self,
        service: &str,
        outcome: &Result<Answer, ClientError>,
        took: Duration,
        trace: Option<&str>,
    ) {
        #[cfg(feature = "metrics")]
        if let Some(calls) = self.0.get() {
            calls.change(Some(service), word(outcome), |calls| calls.record(took, trace));
        }
        #[cfg(not(feature = "metrics"))]
        let _ = (service, outcome, took, trace);
    }

    /// Measures from now on.
    #[cfg(feature = "metrics")]
    pub(super) fn switch_on(&self) {
        self.0.get_or_init(|| Labelled::new(MAX_CALLS));
    }

    /// The durations by service and outcome.
    #[cfg(feature = "metrics")]
    pub(super) fn read(&self) -> Vec<(String, &'static str, Exemplars)> {
        self.0.get().map(|calls| calls.read(Clone::clone)).unwrap_or_default()
    }
}

/// The label `error_type`: the code of an error that the service has signed, or the kind of failure. A batch has none.
#[cfg(feature = "metrics")]
fn word(outcome: &Result<Answer, ClientError>) -> &'static str {
    let error = match outcome {
        Ok(Answer { responses: Ok(Responses::Single(response)), .. }) => {
            return response.outcome.as_ref().err().map_or("", error_type);
        }
        Ok(Answer { responses: Ok(Responses::Batch(_)), .. }) => return "",
        Ok(Answer { responses: Err(_), .. }) => return "protocol",
        Err(ClientError::Remote(error)) => return error_type(error),
        Err(error) => error,
    };
    error.kind().label()
}
