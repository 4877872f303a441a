//! Control of calls under way, and whether they may go on (SPEC.md §25).
//! Never answers a control message, and never reads more than the subject of one that names no call of this replica.

use std::sync::Arc;

use super::lines::LogKey;
use super::streams::{CallKey, Controlled, Ending, OpenCall};
use super::{Inner, Service};
use crate::auth::{AuthError, Caller, ShownToken};
use crate::name::Name;
use crate::policy::{DecisionRecord, Question};
use crate::record::Kind;
use crate::rpc::Params;
use crate::wire::{ControlEnvelope, ControlSubject, Delivery, EnvelopeError};

/// A control message whose subject names a call under way here. Nothing else of it has been read.
#[derive(Debug)]
pub(super) struct Wanted {
    subject: ControlSubject,
    pub(super) call: Arc<OpenCall>,
}

impl Wanted {
    pub(super) fn agent(&self) -> &Name {
        &self.subject.agent
    }
}

/// Why a control message has no effect. Nobody is told.
#[derive(Debug, thiserror::Error)]
enum Ineffective {
    #[error("{0}")]
    Shape(EnvelopeError),
    #[error("{0}")]
    Auth(AuthError),
    #[error("its counter is not above that of an earlier message")]
    Old,
    #[error("it is about frames or a question that do not exist, or comes too often")]
    Void,
}

impl Ineffective {
    fn label(&self) -> &'static str {
        match self {
            Self::Shape(_) => "shape",
            Self::Auth(error) => error.detail(),
            Self::Old => "old",
            Self::Void => "void",
        }
    }
}

impl Service {
    /// Handles a control message for a call under way: acknowledgements, requests for frames, cancellation, answers to
    /// questions. Whatever is wrong with it, nothing is answered; see [`Counters::refusals`](super::Counters::refusals).
    ///
    /// Cancel safety: a dropped future may or may not have had its effect.
    pub async fn control(&self, delivery: Delivery) {
        if let Some(wanted) = self.wanted(&delivery) {
            self.controlled(wanted, delivery).await;
        }
    }

    /// The call that a control message is about, according to its subject.
    pub(super) fn wanted(&self, delivery: &Delivery) -> Option<Wanted> {
        let subject = ControlSubject::parse(delivery.subject(), self.endpoint());
        let wanted = subject.and_then(|subject| {
            let key = CallKey { agent: subject.agent.clone(), nonce: subject.call };
            let call = self.0.open.find(&key)?;
            let is_ours = match (&subject.replica, call.frames()) {
                (None, _) => true,
                (Some(replica), Some(frames)) => frames.replica() == replica,
                (Some(_), None) => false,
            };
            is_ours.then_some(Wanted { subject, call })
        });
        if wanted.is_none() {
            self.0.counters.refused("control_unknown");
        }
        wanted
    }

    /// Judges the message, and does what it says.
    pub(super) async fn controlled(&self, wanted: Wanted, delivery: Delivery) {
        let Wanted { subject, call } = wanted;
        if let Err(ineffective) = self.judge_control(&subject, &call, delivery).await {
            self.0.counters.refused("control_refused");
            let agent = Some(subject.agent.clone());
            let key = LogKey { label: "control", detail: Some(ineffective.label()), agent, ..LogKey::default() };
            if let Some(suppressed) = self.0.lines.check(&key) {
                tracing::info!(
                    target: "sealwire::refused",
                    agent = %subject.agent,
                    refusal = "control",
                    reason = %ineffective,
                    suppressed,
                    "control without effect"
                );
            }
        }
    }

    async fn judge_control(
        &self,
        subject: &ControlSubject,
        call: &Arc<OpenCall>,
        delivery: Delivery,
    ) -> Result<(), Ineffective> {
        let this = &*self.0;
        let envelope = ControlEnvelope::decode(delivery, subject, &this.endpoint).map_err(Ineffective::Shape)?;
        let Some(request) = call.request() else { return Err(Ineffective::Void) };
        let permit = this.verifier.verify_control_permit(&envelope).await.map_err(Ineffective::Auth)?;
        let (of, _, counter) = call.shown();
        let control = this.verifier.authenticate_control(envelope, &of, request, counter, this.clock.now_s());
        let control = control.map_err(Ineffective::Auth)?;
        drop(permit);
        let differs = control.caller.roles != of.roles || control.caller.token.claims != of.token.claims;
        let shown = (control.caller, control.token);
        let now_ms = this.clock.now_ms();
        let done = call.control(shown, control.counter, control.issued_at, control.op, control.payload, now_ms);
        match done {
            Controlled::Old => return Err(Ineffective::Old),
            Controlled::Void => return Err(Ineffective::Void),
            Controlled::Done => {}
        }
        if differs && call.frames().is_some() {
            let (caller, ..) = call.shown();
            self.decide_again(call, &caller);
        }
        // Nobody else sends frames for a call that has ended.
        this.open.send_tail(call);
        Ok(())
    }

    /// Checks whether tasks, and the calls that may be answered with frames, may go on: their keys and tokens, revocations, and, if
    /// there is a new policy, whether it allows them. Drops what nobody can ask for any more. To be called four times a
    /// second; `serve` does.
    pub fn review(&self) {
        let this = &*self.0;
        let now_s = this.clock.now_s();
        let policy = this.policy.load();
        for call in this.open.streams().into_iter().chain(this.tasks.open()) {
            let (caller, token, _) = call.shown();
            if call.never_ends() && this.open.is_draining() {
                call.end(Ending::Draining);
            } else if this.verifier.is_suspended() {
                call.end(Ending::Suspended);
            } else if this.is_revoked(&call, None, now_s) {
                this.cut_off(&call);
            } else if let Err(error) = this.may_go_on(&call, &token, now_s) {
                let key = LogKey {
                    label: "ended",
                    detail: Some(error.detail()),
                    agent: Some(caller.agent.clone()),
                    ..LogKey::default()
                };
                if let Some(suppressed) = this.lines.check(&key) {
                    tracing::info!(
                        target: "sealwire::call",
                        agent = %caller.agent,
                        reason = %error,
                        suppressed,
                        "a call under way is ended"
                    );
                }
                call.end(Ending::Unauthenticated);
            } else if !call.is_judged_under(policy.revision()) {
                self.decide_again(&call, &caller);
            }
        }
        this.open.tidy();
    }

    /// Ends the call if the policy in force does not allow it.
    fn decide_again(&self, call: &OpenCall, caller: &Caller) {
        let this = &*self.0;
        // A call that already has an ending is not denied as well.
        if call.is_over() {
            return;
        }
        // Not decided for the first time yet: that will be under a policy in force by then.
        let Some(asked) = call.asked() else { return };
        let policy = this.policy.load();
        let question = Question {
            caller,
            method: &asked.method,
            params: asked.params.as_ref().map(Params::raw),
            now_ms: this.clock.now_ms(),
        };
        let approved: Vec<&str> = asked.approved.iter().map(String::as_str).collect();
        let decision = policy.decide_approved(&question, &approved);
        call.judged_under(policy.revision());
        if decision.is_allow() {
            return;
        }
        if let Some(recorder) = &this.recorder {
            let record = DecisionRecord::new(&policy, &question, &decision, Some(&recorder.salt()));
            let record = DecisionRecord { message: Some(call.nonce().to_text()), under_way: true, ..record };
            recorder.put(Kind::Decision, record.within_bounds().1);
        }
        let key = LogKey {
            label: "no_longer_allowed",
            detail: Some(decision.reason.label()),
            agent: Some(caller.agent.clone()),
            method: Some(Arc::clone(&asked.method)),
            rule: decision.rule.clone(),
        };
        if let Some(suppressed) = this.lines.check(&key) {
            tracing::info!(
                target: "sealwire::call",
                agent = %caller.agent,
                method = %asked.method,
                decision = decision.reason.label(),
                rule = decision.rule.as_ref().map(ToString::to_string),
                revision = %policy.revision(),
                suppressed,
                "a call under way is no longer allowed"
            );
        }
        call.end(Ending::Denied);
    }

    /// Frames may have been lost with a connection. Tells their callers at once how many frames there are, so that they need not wait for
    /// the next sign of life.
    pub(super) fn remind_callers(&self) {
        for call in self.0.open.streams() {
            if let Some(frames) = call.frames() {
                frames.remind();
            }
        }
    }

    /// Ends subscriptions, now and whenever new ones begin; everything else goes on.
    pub(super) fn end_subscriptions(&self) {
        self.0.open.drain();
        for call in self.0.open.streams() {
            if call.never_ends() {
                call.end(Ending::Draining);
            }
        }
    }
}

impl Inner {
    /// Whether the key and the token of a call still hold. Nobody shows a new token for a task: the one that it began with may end, but not
    /// be revoked.
    fn may_go_on(&self, call: &OpenCall, token: &ShownToken, now_s: u64) -> Result<(), AuthError> {
        match call.has_no_caller() {
            true => self.verifier.check_kept(call.began(), now_s),
            false => self.verifier.check_again(call.began(), token, now_s),
        }
    }
}
