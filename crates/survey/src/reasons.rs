//! The reasons for which services of ours refuse, and what each means, in one line.
//! Never guesses: a reason that is not known here, as of a newer service, has no meaning, and is no label.

/// The reasons with their meanings, in the order of a message's way.
const MEANINGS: &[(&str, &str)] = &[
    ("dropped_subject", "the subject is not one of an agent's"),
    ("dropped_reply", "the reply subject is not in the agent's own inbox: nothing was answered"),
    ("other_service", "the subject names another service"),
    ("headers", "too many headers, or too large ones"),
    ("malformed_headers", "the headers are not well-formed"),
    ("no_authorization", "there is no Authorization header"),
    ("repeated_authorization", "the Authorization header occurs twice"),
    ("malformed_authorization", "the Authorization header is not well-formed"),
    ("malformed_proof", "the proof is not well-formed"),
    ("request_too_large", "the payload is above the limit"),
    ("verification_queue_full", "more Ed25519 signatures wait to be checked than may wait"),
    ("unknown_key", "the key ring has no such key"),
    ("revoked_key", "the key has been revoked"),
    ("revoked", "an operator has revoked the agent, the key, the service or everything"),
    ("algorithm", "the proof's algorithm is not that of the key"),
    ("key_agent_mismatch", "the key belongs to another agent than the one in the subject"),
    ("signature", "the signature is wrong: somebody without the key, or a changed message"),
    ("proof_claims", "the proof's claims are not well-formed"),
    ("claim_mismatch", "the proof is for another message, service or reply subject"),
    ("long_expired", "the message expired long ago"),
    ("token", "the access token is missing, expired, revoked, or of an issuer that is not trusted"),
    ("token_agent_mismatch", "the token is another agent's"),
    ("token_confirmation", "the token is bound to another key"),
    ("stale", "outside of its time window: a slow way, or a wrong clock"),
    ("replayed", "a copy of a message that had come before: it did not run again"),
    ("nonce_quota", "the agent has as many live nonces as it may"),
    ("guard_full", "the replay guard is full"),
    ("fenced", "issued before the replay guard could vouch for it, after a start for example"),
    ("guard_unavailable", "the replay guard does not answer"),
    ("suspended", "what takes rights away could not be read for too long"),
    ("rate_quota", "the agent calls more often than its rate allows"),
    ("entries_quota", "the same, for the further entries of a batch"),
    ("in_flight_quota", "the agent has as many messages at work as it may"),
    ("streams_quota", "the agent has as many open streams as it may"),
    ("tasks_quota", "the agent has as many tasks as it may, or there is no room for more"),
    ("invalid_body", "the body is no valid request"),
    ("invalid_request", "an entry of a batch is no valid request"),
    ("idempotency_key_of_batch", "an idempotency key with a batch"),
    ("no_task", "a call as a task, of a method that is none"),
    ("only_task", "a call that waits, of a method that is always a task"),
    ("denied", "the policy denies the call"),
    ("unknown_method", "the policy would allow the name, but there is no such method"),
    ("revoked_method", "an operator has revoked the method"),
    ("params", "the policy cannot judge parameters like these"),
    ("idempotency_conflict", "the idempotency key was used before, and there is no outcome to return"),
    ("outcome_store", "outcomes cannot be stored now"),
    ("approval_pending", "people have to approve the call first"),
    ("approval_denied", "those who approve the call have denied it"),
    ("approval_consumed", "the call has run under its approval, and came again"),
    ("approval_too_large", "the call needs approval, and is too large for people to read"),
    ("approval_store", "requests for approval cannot be kept now, or the agent has as many as it may"),
    ("budget_spent", "a budget that the call is charged to is used up for now"),
    ("budget_above", "the call asks for more than a budget ever has"),
    ("budget_unknown", "the count of a shared budget was lost, or is of another service key"),
    ("budget_store", "counts of budgets cannot be kept now, or the agent has as many as it may"),
    ("unrecorded", "the decision could not be recorded, and the method asks for that"),
    ("deadline", "the deadline passed before the method could run"),
    ("shed", "the queue had no room"),
    ("response_too_large", "the result is above the limit; the call has run"),
    ("cancelled", "the caller cancelled the call"),
    ("stream_unauthenticated", "the agent's key or token ended during the stream"),
    ("stream_denied", "the policy changed, and denies the stream"),
    ("stream_revoked", "an operator revoked what the call needed"),
    ("stream_stalled", "the caller did not acknowledge frames for too long"),
    ("stream_suspended", "what takes rights away could not be read for too long"),
    ("response_no_room", "there was no memory for the result of a stream"),
    ("stream_draining", "the service was stopped"),
    ("control_unknown", "a control message for a call that is not open"),
    ("control_refused", "a control message that is not the caller's, or not well-formed"),
    ("forbidden_by", "a rule of the policy forbids the call"),
    ("approval_required", "a rule of the policy forbids the call until it is approved"),
    ("no_rule", "no rule of the policy allows the call"),
    ("evaluation_error", "a rule could not be evaluated, so the call was denied"),
    ("param_undeclared", "a parameter that the policy files do not declare"),
    ("param_missing", "a parameter is missing that a rule needs"),
    ("param_type", "a parameter is of another type than declared"),
    ("param_repeated", "a parameter occurs twice"),
    ("claim_type", "a claim of the token is of another type than declared"),
    ("deny_all", "there is no policy that could allow anything"),
];

/// What a reason means; `None` if it is not one.
#[must_use]
pub fn meaning(reason: &str) -> Option<&'static str> {
    MEANINGS.iter().find(|(known, _)| *known == reason).map(|(_, meaning)| *meaning)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    /// The words that functions called `label`, or named so, return in these files.
    fn labels() -> BTreeSet<String> {
        let read =
            |file: &str| std::fs::read_to_string(format!("{}/../../{file}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        let refusals = read("src/service/refusal.rs");
        let table = refusals.split_once("pub fn label(&self)").unwrap().1.split_once("\n    }\n").unwrap().0;
        let quota = read("src/service/quota.rs");
        let scopes = quota.split_once("fn label(self)").unwrap().1.split_once("\n    }\n").unwrap().0;
        let decision = read("src/policy/engine/decision.rs");
        let reasons = decision.split_once("pub fn label(&self)").unwrap().1.split_once("\n    }\n").unwrap().0;
        let unapproved = read("src/service/approvals/unapproved.rs");
        let states = unapproved.split_once("pub fn label(&self)").unwrap().1.split_once("\n    }\n").unwrap().0;
        let uncharged = read("src/service/budgets/uncharged.rs");
        let budgets = uncharged.split_once("fn label(&self)").unwrap().1.split_once("\n    }\n").unwrap().0;
        let counted = [read("src/service/control.rs"), read("src/service.rs")].concat();
        let counted =
            counted.split("counters.refused(\"").skip(1).map(|rest| rest.split('"').next().unwrap().to_owned());
        let entry = refusals.split_once("ENTRY_LABEL: &'static str = \"").unwrap().1.split('"').next().unwrap();
        let quoted = |text: &str| text.split('"').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
        let words = [table, scopes, reasons, states, budgets]
            .into_iter()
            .flat_map(quoted)
            .chain(counted)
            .chain([entry.to_owned()]);
        words.filter(|word| !["allowed_by", "open"].contains(&word.as_str())).collect()
    }

    #[test]
    fn each_reason_to_refuse_has_a_meaning_and_no_other() {
        let known: BTreeSet<String> = super::MEANINGS.iter().map(|(reason, _)| (*reason).to_owned()).collect();
        assert_eq!(known, labels());
        assert_eq!(known.len(), super::MEANINGS.len());
        assert!(super::MEANINGS.iter().all(|(_, meaning)| meaning.len() <= 90));
    }
}
