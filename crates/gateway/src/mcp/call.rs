//! One call, from the request that begins or resumes it to its outcome.
//! Never says that a call did nothing unless that is certain.

use std::sync::Arc;

use sealwire::ClientError;
use sealwire_mcp::{Members, Meta, RequestParams, raw};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::message::{Fault, Outcome};
use super::mirrored;
use super::ongoing::{OngoingCall, Step};
use super::parked::{Resumption, digest};
use super::peer::Requester;
use super::results::{failed, refused, succeeded};
use super::server::Server;
use super::tasks::{Mode, Tasks, answer, mode};
use crate::catalogue::Tool;

/// What a request has led to.
pub(super) enum CallOutcome {
    /// The call of this method has ended; with the `_meta` of its result.
    Ended(Arc<Tool>, Result<Box<RawValue>, ClientError>, Map<String, Value>),
    TooLarge,
    /// The broker is away, and nothing was sent.
    Away(String),
    /// It waits for the client: this is the result that says so.
    Asks(Box<RawValue>),
}

impl Server {
    pub(super) async fn call(&self, from: Requester<'_>, asked: &mut RequestParams) -> Outcome {
        let Requester { peer, revision, .. } = from;
        let Some(name) = &asked.name else { return Err(Fault::params("`name` is missing")) };
        let arguments = match asked.arguments.take() {
            Some(arguments) if arguments.get().starts_with('{') => arguments,
            Some(_) => return Err(Fault::params("`arguments` must be an object")),
            None => raw(&Members::new()),
        };
        let tool = self.tool(&*peer.caller, name).await?;
        if let Some(head) = &asked.fields {
            mirrored::check(tool.mirrored.as_deref().unwrap_or_default(), &arguments, head)?;
        }
        if asked.state.is_none() {
            match mode(from, asked, &tool)? {
                Mode::Call => {}
                Mode::Task => return Box::pin(Tasks::new(self, from, &tool).begin(arguments)).await,
                Mode::WaitForTask => return Box::pin(Tasks::new(self, from, &tool).wait(arguments)).await,
            }
        }
        let digest = digest([&tool.service, &tool.method.name, arguments.get()]);
        match self.run(from, asked, tool, arguments, digest).await? {
            CallOutcome::Ended(tool, Ok(result), meta) => Ok(succeeded(revision, &tool, &result, meta)),
            CallOutcome::Ended(tool, Err(error), meta) => refused(revision, &tool, &error, meta),
            CallOutcome::TooLarge => Ok(failed(revision, "the result is larger than 4 MiB")),
            CallOutcome::Away(why) => Ok(failed(revision, &why)),
            CallOutcome::Asks(result) => Ok(result),
        }
    }

    /// Answers a request about a task.
    pub(super) async fn task(&self, from: Requester<'_>, method: &str, asked: &RequestParams) -> Outcome {
        Box::pin(answer(self, from, method, asked)).await
    }

    /// Calls a method, or resumes its call, for a request with this digest.
    pub(super) async fn run(
        &self,
        from: Requester<'_>,
        asked: &mut RequestParams,
        tool: Arc<Tool>,
        params: Box<RawValue>,
        digest: String,
    ) -> Result<CallOutcome, Fault> {
        let Requester { peer, capabilities, .. } = from;
        if let Some(state) = asked.state.take() {
            return self.resume(from, asked, &state, &digest).await;
        }
        if let Some(loss) = peer.caller.loss(Some((&tool.service, &tool.method.name))) {
            return Ok(CallOutcome::Away(format!("{}: nothing was sent", loss.reason())));
        }
        let begun = match peer.request(&self.services.bus, &tool).await {
            Ok(begun) => begun,
            Err(away) => return Ok(CallOutcome::Away(away.to_string())),
        };
        // Another method may be called for the same request.
        let responses = asked.responses.clone().unwrap_or_default();
        let ongoing = OngoingCall::begin(capabilities, begun, tool, &params, digest, responses);
        Box::pin(self.settle(from, ongoing, &asked.meta)).await
    }

    /// Resumes the call that waits for this client.
    pub(super) async fn resume(
        &self,
        from: Requester<'_>,
        asked: &mut RequestParams,
        state: &str,
        digest: &str,
    ) -> Result<CallOutcome, Fault> {
        match self.parked.resume(from.peer, from.capabilities, asked, state, digest)? {
            Resumption::Asks(result) => Ok(CallOutcome::Asks(result)),
            Resumption::GoesOn(ongoing) => Box::pin(self.settle(from, *ongoing, &asked.meta)).await,
        }
    }

    /// Drives a call until it ends or has to wait.
    async fn settle(&self, from: Requester<'_>, mut ongoing: OngoingCall, meta: &Meta) -> Result<CallOutcome, Fault> {
        let level = self.level(&from.peer.name, from.revision, meta.level);
        let step = Box::pin(ongoing.drive(from, &self.questions, meta, level)).await;
        match step {
            Step::Ended(result) => {
                let meta = ongoing.receipt();
                Ok(CallOutcome::Ended(ongoing.tool, result, meta))
            }
            Step::TooLarge => Ok(CallOutcome::TooLarge),
            Step::Gone => {
                let message = "the connection to the broker was lost during the call";
                Err(Fault::internal(message).with(json!({ "outcome": "unknown" })))
            }
            Step::Lost(loss) => Err(Fault::internal(loss.reason()).with(json!({ "outcome": "unknown" }))),
            Step::Asks(questions) => self.parked.park(from.peer, ongoing, questions).map(CallOutcome::Asks),
        }
    }
}
