//! Approved calls that may be answered with frames: decided again like others, with the approvals under which they began.

use super::*;
use crate::approvals::{approve_by_both, approver, decide, pending, with_approvers};

const POLICY: &str = r#"
[method."desk/notice"]
params = []
[role.worker]
allow = ["desk/*"]
[role.treasurer]
allow = ["rpc.*"]
[approval.two-treasurers]
from = ["treasurer"]
count = 2
[rule.notice]
everyone = true
deny = ["desk/notice"]
unless_approved = "two-treasurers"
"#;

/// SPEC.md §25.5, SPEC.md §6.3: a newer policy ends it only if it would deny it even so.
#[tokio::test(start_paused = true)]
async fn an_approved_call_under_way_goes_on_under_a_newer_policy_that_would_allow_it_approved() {
    let desk = Arc::new(Desk::open_with(router().0, POLICY, ServiceLimits::default()));
    with_approvers(&desk, |_| {});
    let ask = || Caller::call(&desk, desk.agent("ann", &["worker"]), &call("desk/notice", "[]"), 32);
    let answer = ask().task.await.unwrap().unwrap();
    let id = pending(&serde_json::from_str(&text(&answer)).unwrap());
    approve_by_both(&desk, &id).await;
    let mut running = ask();
    running.settled_for(5).await;
    assert!(!running.task.is_finished());

    desk.change_policy(&format!("{POLICY}\n[role.auditor]\nallow = [\"desk/echo\"]\n"));
    desk.service.review();
    running.settled_for(5).await;
    assert!(!running.task.is_finished(), "its approvals lift what they lifted before");
    let late = decide(&desk, &approver(&desk, "tess"), &id, "", "deny").await;
    assert_eq!(late["error"]["data"]["state"], "consumed", "it has begun: {late}");

    desk.change_policy(&format!("{POLICY}\n[rule.closed]\neveryone = true\ndeny = [\"desk/notice\"]\n"));
    let (answer, frames) = running.finished().await;
    let end = answer.map_or_else(|| end(&frames), |answer| serde_json::from_str(&text(&answer)).unwrap());
    assert_eq!((&end["error"]["code"], &end["error"]["data"]["outcome"]), (&json!(-32002), &json!("unknown")), "{end}");
}
