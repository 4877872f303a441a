//! `sealwire call --wait-approval`: a call that waits until people have decided, and says once what it waits for.
//! Never prints anything for scripts.

use std::sync::Once;
use std::time::Duration;

use clap::Args;
use sealwire::RequestBuilder;
use sealwire::call::PendingApproval;

use crate::output::Output;
use crate::when;

#[derive(Args)]
pub(super) struct AwaitApproval {
    /// If people have to approve the call, wait until they have, and then make it. Meanwhile the same call is sent again every few
    /// seconds, each time with the whole --deadline
    #[arg(long, value_name = "TIME", value_parser = when::duration, conflicts_with_all = ["every", "stream"])]
    wait_approval: Option<Duration>,
}

impl AwaitApproval {
    /// The request, which waits if it was asked for.
    pub(super) fn of(&self, request: RequestBuilder, service: &str, out: &Output) -> RequestBuilder {
        let Some(limit) = self.wait_approval else { return request };
        let (out, service, once) = (out.clone(), service.to_owned(), Once::new());
        request.await_approval(limit).on_pending(move |pending| {
            once.call_once(|| out.note(&text(pending, &service, when::now_s(), limit)));
        })
    }
}

fn text(pending: &PendingApproval, service: &str, now_s: u64, limit: Duration) -> String {
    let needs = pending.needs.iter().map(|need| {
        let (name, roles) = (&need.approval, need.roles.join(" or "));
        format!("{name}, {} of {} by {roles}", need.have, need.count)
    });
    let until = now_s.saturating_add(limit.as_secs()).min(pending.deadline);
    let (needs, id) = (needs.collect::<Vec<_>>().join("; "), &pending.id);
    format!(
        "waiting for approval until {}: {needs}\nwho may give it sees the call with: sealwire approvals show {service} {id}",
        when::both(until, now_s)
    )
}
