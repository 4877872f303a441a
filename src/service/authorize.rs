//! The step from a call to a permitted call: the only place that makes a [`Permit`].
//! Never lets through a call that the policy did not allow, or uses one permit twice.

use super::Call;
use super::approvals::{Approvals, Ticket, Unapproved};
use crate::auth::Verifier;
use crate::policy::{Decision, PolicySet, Question, Reason, Revision, RuleId};

/// The proof that a policy allowed one call, and by which rule.
///
/// It cannot be cloned or made elsewhere, so every dispatch was decided by a policy, for this very call.
#[derive(Debug)]
pub struct Permit {
    rule: Option<RuleId>,
    revision: Revision,
}

impl Permit {
    /// The rule that allowed the call.
    #[must_use]
    pub fn rule(&self) -> Option<&RuleId> {
        self.rule.as_ref()
    }

    /// The revision of the policy that decided.
    #[must_use]
    pub fn revision(&self) -> &Revision {
        &self.revision
    }
}

/// A call that a policy allowed: what a method's implementation and the layers around it see.
#[derive(Debug)]
pub struct Permitted {
    call: Call,
    permit: Permit,
}

impl Permitted {
    /// The call.
    #[must_use]
    pub fn call(&self) -> &Call {
        &self.call
    }

    /// The permit.
    #[must_use]
    pub fn permit(&self) -> &Permit {
        &self.permit
    }

    /// Splits it into call and permit, for dispatch.
    pub(crate) fn into_parts(self) -> (Call, Permit) {
        (self.call, self.permit)
    }
}

/// A call that a policy allows because people approved it. It is a [`Permitted`] one once its approval is used up, and then only.
#[derive(Debug)]
pub(super) struct Withheld {
    permitted: Permitted,
    ticket: Box<Ticket>,
}

impl Withheld {
    pub(super) fn call(&self) -> &Call {
        &self.permitted.call
    }

    /// Uses up the approval.
    ///
    /// # Errors
    /// [`Unapproved`]: the call does not run.
    ///
    /// Cancel safety: if the future is dropped, the approval may be used up.
    pub(super) async fn begin(
        self,
        approvals: &Approvals,
        verifier: &Verifier,
        now_s: u64,
    ) -> Result<Permitted, Unapproved> {
        let Self { permitted, ticket } = self;
        approvals.begin(*ticket, &permitted.call.message.id, verifier, now_s).await?;
        Ok(permitted)
    }
}

/// The proof that a policy denied a call. It carries nothing that the caller may see.
#[derive(Debug)]
pub struct Denied(());

impl PolicySet {
    /// Decides `call` at `now_ms` (milliseconds since the Unix epoch).
    ///
    /// # Errors
    /// The call and [`Denied`] when no rule allows it, a rule forbids it, or a rule could not be evaluated. The
    /// [`Decision`] goes to the log and the counters in either case.
    pub fn authorize(&self, call: Call, now_ms: u64) -> (Result<Permitted, (Call, Denied)>, Decision) {
        let decision = self.decide(&question(&call, now_ms));
        (self.permit(call, &decision), decision)
    }

    /// Decides `call` once more, with the approvals of this ticket: the rules that they lift, and nothing else, may now come out otherwise.
    pub(super) fn authorize_approved(
        &self,
        call: Call,
        ticket: Ticket,
        now_ms: u64,
    ) -> (Result<Withheld, (Call, Denied)>, Decision) {
        let approved: Vec<&str> = ticket.names().iter().map(String::as_str).collect();
        let decision = self.decide_approved(&question(&call, now_ms), &approved);
        (self.permit(call, &decision).map(|permitted| Withheld { permitted, ticket: Box::new(ticket) }), decision)
    }

    fn permit(&self, call: Call, decision: &Decision) -> Result<Permitted, (Call, Denied)> {
        if decision.is_allow() && !matches!(decision.reason, Reason::UnknownMethod { .. }) {
            let permit = Permit { rule: decision.rule.clone(), revision: self.revision().clone() };
            Ok(Permitted { call, permit })
        } else {
            Err((call, Denied(())))
        }
    }
}

fn question(call: &Call, now_ms: u64) -> Question<'_> {
    let params = call.params().map(crate::rpc::Params::raw);
    Question { caller: call.caller(), method: call.method(), params, now_ms }
}
