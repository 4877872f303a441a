//! A call that waits until people have approved it: the same call is sent again, and its program learns what it waits for.
//! Never sends again what may have run.

use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::{Instant, sleep};

use super::error::ClientError;
use super::stop_signal::StopSignal;
use crate::rpc::{RpcError, code};

/// What a call waits for: people have to approve it. It is what the service has signed, and has changed since if others have decided.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PendingApproval {
    /// The request's id, by which those who decide know it.
    pub id: String,
    /// The approvals that the call needs, all of them.
    pub needs: Vec<NeededApproval>,
    /// Approvals after this second of the Unix epoch, by the service's clock, come too late.
    pub deadline: u64,
    /// When it may be worth calling again.
    pub retry_after: Duration,
}

/// An approval that a call needs, by its name in the service's policy.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct NeededApproval {
    /// Its name.
    pub approval: String,
    /// The roles whose holders give it.
    pub roles: Vec<String>,
    /// How many have to.
    pub count: u64,
    /// How many have.
    pub have: u64,
}

impl PendingApproval {
    /// What a service's error says about the approval that its call waits for; `None` if the error says anything else.
    // SPEC.md §6.3
    #[must_use]
    pub fn of(error: &RpcError) -> Option<Self> {
        #[derive(Deserialize)]
        struct Data {
            approval: String,
            needs: Vec<NeededApproval>,
            deadline: u64,
            retry_after_ms: u64,
        }
        if error.profile_code() != Some(code::APPROVAL_REQUIRED) {
            return None;
        }
        // serde would accept an array for the struct, too.
        let data = error.data().filter(|data| data.get().starts_with('{'))?;
        let Data { approval: id, needs, deadline, retry_after_ms } = serde_json::from_str(data.get()).ok()?;
        Some(Self { id, needs, deadline, retry_after: Duration::from_millis(retry_after_ms) })
    }
}

type OnPending = Arc<dyn Fn(&PendingApproval) + Send + Sync>;

/// How long a call waits for approval, and who learns what it waits for.
#[derive(Clone, Default)]
pub(super) struct AwaitApproval {
    pub(super) limit: Option<Duration>,
    pub(super) on_pending: Option<OnPending>,
}

impl AwaitApproval {
    /// Makes the call until it is decided, or the time for that is over: then with the service's last answer. `now_ms` is the service's
    /// clock.
    ///
    /// Only the service's signed word that the call has not run leads to another message. An answer that is lost ends the wait.
    ///
    /// Cancel safety: that of `call`. The request for approval stays where it is.
    pub(super) async fn until_decided<C>(
        self,
        stop: Option<StopSignal>,
        now_ms: impl Fn() -> u64,
        call: impl Fn() -> C,
    ) -> Result<Box<RawValue>, ClientError>
    where
        C: Future<Output = Result<Box<RawValue>, ClientError>>,
    {
        let until = Instant::now() + self.limit.unwrap_or_default().min(LONGEST_WAIT);
        let mut told = None;
        loop {
            let outcome = call().await;
            let Err(ClientError::Remote(error)) = &outcome else { return outcome };
            let Some(pending) = PendingApproval::of(error) else { return outcome };
            if told.as_ref() != Some(&pending) {
                self.on_pending.iter().for_each(|on_pending| on_pending(&pending));
            }
            // Past its deadline, the same call would make a new request.
            let of_request = Duration::from_millis(pending.deadline.saturating_mul(1000).saturating_sub(now_ms()));
            let left = until.saturating_duration_since(Instant::now()).min(of_request.saturating_sub(BEFORE_DEADLINE));
            let Some(pause) = pause(pending.retry_after, left) else { return outcome };
            told = Some(pending);
            tokio::select! {
                biased;
                () = came(stop.as_ref()) => return outcome,
                () = sleep(pause) => {}
            }
        }
    }
}

async fn came(stop: Option<&StopSignal>) {
    match stop {
        Some(stop) => stop.came().await,
        None => std::future::pending().await,
    }
}

impl fmt::Debug for AwaitApproval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AwaitApproval").field("limit", &self.limit).finish_non_exhaustive()
    }
}

/// The pause before the call is sent again, if `left` is long enough for one; the last message goes out when that is over. Up to a quarter
/// longer than what the service asks for, so that callers who wait for the same people do not come together.
fn pause(asked: Duration, left: Duration) -> Option<Duration> {
    let asked = asked.clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
    let random = u32::try_from(RandomState::new().build_hasher().finish() % 256).unwrap_or(0);
    (left >= SHORTEST_PAUSE).then(|| left.min(asked + asked * random / 1024))
}

/// No request for approval waits longer: `within` of an approval is at most that.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

const SHORTEST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// How long before the request's deadline the last message goes out: it has to arrive, and deadlines are whole seconds.
const BEFORE_DEADLINE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_what_the_service_asks_for_within_bounds_and_differ() {
        let long = Duration::from_secs(3600);
        for (asked, least) in [(0, 500), (499, 500), (2_000, 2_000), (30_001, 30_000), (u64::MAX, 30_000)] {
            let least = Duration::from_millis(least);
            let pauses: std::collections::HashSet<_> =
                (0..20).filter_map(|_| pause(Duration::from_millis(asked), long)).collect();
            assert!(pauses.iter().all(|pause| (least..least + least / 4).contains(pause)), "{asked}: {pauses:?}");
            assert!(pauses.len() > 1, "{asked}");
        }
    }

    #[test]
    fn the_last_message_goes_out_when_the_time_is_over_and_none_after_it() {
        let asked = Duration::from_secs(2);
        assert_eq!(pause(asked, Duration::from_secs(1)), Some(Duration::from_secs(1)));
        assert_eq!(pause(asked, SHORTEST_PAUSE - Duration::from_millis(1)), None);
        assert_eq!(pause(asked, Duration::ZERO), None);
    }

    /// SPEC.md §6.3.
    #[test]
    fn only_an_answer_that_says_what_is_needed_is_waited_on() {
        let data = serde_json::json!({
            "approval": "ann.x", "state": "pending", "deadline": 1_790_000_000_u64, "retry_after_ms": 2_000,
            "needs": [{ "approval": "two", "roles": ["treasurer"], "count": 2, "have": 1 }], "later": true
        });
        let error = |code, data: &serde_json::Value| RpcError::with_code(code, "m").with_data(data);
        let pending = PendingApproval::of(&error(code::APPROVAL_REQUIRED, &data));
        let pending = pending.map(|pending| (pending.id, pending.needs.len(), pending.deadline, pending.retry_after));
        assert_eq!(pending, Some(("ann.x".to_owned(), 1, 1_790_000_000, Duration::from_secs(2))));
        let short = serde_json::json!({ "approval": "ann.x", "state": "pending" });
        assert_eq!(PendingApproval::of(&error(code::APPROVAL_REQUIRED, &short)), None);
        assert_eq!(PendingApproval::of(&error(code::APPROVAL_REQUIRED, &serde_json::json!(["ann.x", [], 1, 2]))), None);
        assert_eq!(PendingApproval::of(&error(code::PERMISSION_DENIED, &data)), None);
        // A method's own error, which means something else by it.
        let own = RpcError::application(code::APPROVAL_REQUIRED, "m").with_data(&data);
        assert_eq!(PendingApproval::of(&own), None);
    }
}
