//! What becomes of a call that people have to approve, in words for whoever made it: often a model.
//! Never says that it has not run unless the service has signed that.

use sealwire::RpcError;
use sealwire::call::PendingApproval;
use sealwire::errors::code;
use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// `None` if the error is not about an approval.
// SPEC.md §6.3
#[must_use]
pub fn in_words(error: &RpcError) -> Option<String> {
    if let Some(pending) = PendingApproval::of(error) {
        let (needs, until) = (needs(&pending), time(pending.deadline));
        let (id, after) = (&pending.id, pending.retry_after.as_millis().div_ceil(1000));
        return Some(format!(
            "approval required: this call has not run. People have to approve it first: {needs}. The request {id} waits for them until \
             {until}. Tell your user. Then call again with exactly the same arguments, at the earliest after {after} s: it runs once it is \
             approved"
        ));
    }
    let code = error.profile_code()?;
    let data: Value = serde_json::from_str(error.data()?.get()).ok()?;
    let id = data.get("approval")?.as_str()?;
    match code {
        code::PERMISSION_DENIED => Some(format!(
            "denied: people have looked at this call, as the request {id}, and denied it. It has not run; do not call again with the same \
             arguments"
        )),
        code::CONFLICT => Some(format!(
            "conflict: this call was approved, as the request {id}, and has begun before. It runs once for its approval; find out what it did"
        )),
        _ => None,
    }
}

/// What a call waits for that its client asks for again, without a word of what it would do.
pub(crate) fn waiting(pending: &PendingApproval) -> String {
    let (needs, until, id) = (needs(pending), time(pending.deadline), &pending.id);
    format!("has not run: waits until {until} for people to approve it: {needs}. The request for that is {id}")
}

fn needs(pending: &PendingApproval) -> String {
    let needs = pending.needs.iter().map(|need| {
        let (name, roles) = (&need.approval, need.roles.join(" or "));
        format!("{name} ({} of {} so far, by {roles})", need.have, need.count)
    });
    needs.collect::<Vec<_>>().join(", ")
}

/// A second of the Unix epoch in RFC 3339.
pub(crate) fn time(seconds: u64) -> String {
    let at = i64::try_from(seconds).ok().and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
    at.and_then(|at| at.format(&Rfc3339).ok()).unwrap_or_else(|| seconds.to_string())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use sealwire::internal::rpc::{Limits, Responses};
    use serde_json::json;

    use super::*;

    fn signed(code: i32, data: &Value) -> RpcError {
        let text = json!({ "jsonrpc": "2.0", "id": 1, "error": { "code": code, "message": "m", "data": data } });
        match Responses::parse(text.to_string().as_bytes(), &Limits::default()).unwrap() {
            Responses::Single(response) => response.outcome.unwrap_err(),
            Responses::Batch(_) => unreachable!("one response"),
        }
    }

    #[test]
    fn what_an_approval_has_come_to_is_told_in_words_and_nothing_else_is() {
        let said = |code, data: &Value| in_words(&signed(code, data)).unwrap_or_default();
        let needs = json!([{ "approval": "two", "roles": ["treasurer", "officer"], "count": 2, "have": 1 }]);
        let pending = json!({
            "approval": "ann.x", "state": "pending", "needs": needs, "deadline": 1_790_000_000, "retry_after_ms": 1_500
        });
        let text = said(code::APPROVAL_REQUIRED, &pending);
        for part in ["ann.x", "two (1 of 2 so far, by treasurer or officer)", "2026-09-21T14:13:20Z", "after 2 s"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let denied = json!({ "approval": "ann.x", "state": "denied" });
        assert!(said(code::PERMISSION_DENIED, &denied).contains("not run"));
        assert!(!said(code::CONFLICT, &denied).contains("not run"));
        for (code, data) in [
            (code::PERMISSION_DENIED, json!(null)),
            (code::CONFLICT, json!({ "idempotency": "running" })),
            (code::APPROVAL_REQUIRED, json!({ "state": "pending" })),
            (code::TIMEOUT, denied),
        ] {
            assert_eq!(said(code, &data), "", "{code}");
        }
        assert_eq!(in_words(&RpcError::application(code::APPROVAL_REQUIRED, "m").with_data(&pending)), None);
    }
}
