//! What the record says of one call.
//! Never keeps a result: only its digest.

use std::borrow::Cow;
use std::sync::Arc;

use tokio::time::Instant;

use super::calls::Message;
use super::streams::{Ending, FrameWriter};
use crate::clock::Clock;
use crate::jose::{b64, sha256};
use crate::policy::{ApprovalRecord, Decision, DecisionRecord, PolicySet, Question};
use crate::record::{Body, Kind, OutcomeRecord, Recorder};

/// The outcome of a call, recorded when this is dropped: a call whose future is dropped was given up.
#[derive(Debug)]
pub(super) struct RecordedCall {
    recorder: Recorder,
    clock: Arc<dyn Clock>,
    message: Arc<Message>,
    started: Instant,
    outcome: OutcomeRecord,
}

/// The record of a decision about a call of `message`, and its line.
pub(super) fn decision(
    recorder: &Recorder,
    message: &Message,
    entry: Option<usize>,
    policy: &PolicySet,
    question: &Question<'_>,
    (decision, approval): (&Decision, Option<ApprovalRecord>),
) -> (DecisionRecord, Body) {
    let record = DecisionRecord::new(policy, question, decision, Some(&recorder.salt()));
    let trace = message.trace_id().map(Cow::into_owned);
    let task = message.task_until_ms.is_some();
    DecisionRecord { message: Some(message.id.to_string()), entry, trace, approval, task, ..record }.within_bounds()
}

impl RecordedCall {
    pub(super) fn new(
        recorder: &Recorder,
        clock: &Arc<dyn Clock>,
        message: &Arc<Message>,
        decision: &DecisionRecord,
        started: Instant,
    ) -> Self {
        let outcome = OutcomeRecord {
            at_ms: 0,
            message: message.id.to_string(),
            entry: decision.entry,
            agent: decision.agent.clone(),
            subject: decision.subject.clone(),
            method: decision.method.clone(),
            trace: decision.trace.clone(),
            by: "given_up".to_owned(),
            code: None,
            answer: None,
            frames: None,
            duration_us: 0,
        };
        let (recorder, clock, message) = (recorder.clone(), Arc::clone(clock), Arc::clone(message));
        Self { recorder, clock, message, started, outcome }
    }

    /// It has an outcome: the code of its error, and the response object unless it is a notification.
    pub(super) fn answered(&mut self, code: Option<i32>, response: Option<&[u8]>) {
        self.ended("answered");
        self.outcome.code = code.map(i64::from);
        self.outcome.answer = response.map(|response| b64(sha256(response)));
    }

    /// By what it ended, unless the call has an [`Ending`].
    pub(super) fn ended(&mut self, by: &str) {
        by.clone_into(&mut self.outcome.by);
    }
}

impl Drop for RecordedCall {
    fn drop(&mut self) {
        if let Some(ending) = self.message.open.ending() {
            self.ended(Ending::label(ending));
        }
        let open = &self.message.open;
        self.outcome.frames = open.frames().map(FrameWriter::frames);
        self.outcome.at_ms = self.clock.now_ms();
        self.outcome.duration_us = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.recorder.put(Kind::Outcome, Body::new(&self.outcome));
    }
}
