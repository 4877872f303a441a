//! Tasks at services, for clients that ask for them later, at this replica or another, in whichever dialect.
//! Never keeps anything of a task, and never acts for a client that is not there: a call that people have to approve is sent again when its
//! client asks for it, with the rights that the client then has.

mod ids;
mod report;

use std::fmt;
use std::future::Future;
use std::time::Duration;

use sealwire::call::{PendingApproval, Task, TaskStatus};
use sealwire::errors::code;
use sealwire::{ClientError, RequestBuilder};
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::time::{Instant, sleep};

use self::ids::{ARGUMENTS, AwaitedApproval, now};
pub use self::ids::{TaskHandle, TaskIds};
use self::report::{POLL, decided};
pub use self::report::{TaskEnd, TaskReport};
use crate::approval::waiting;

/// How long a question about a task may take.
const ASKED: Duration = Duration::from_secs(10);
/// How long a cancelled task may take to end, where a client has to hear of it: another replica of the service learns of it within 5 s.
pub const CANCELLED: Duration = Duration::from_secs(15);
/// How far clocks may differ.
const SKEW_S: u64 = 10;
/// The first pause while a request waits for a task.
const FIRST_PAUSE: Duration = Duration::from_millis(250);

/// What a caller asks a service about a task, or to begin it.
pub struct TaskRequest(RequestBuilder);

/// Why a task has not begun.
#[derive(Debug)]
pub enum BeginError {
    /// The error of its call.
    Call(ClientError),
    /// People have to approve it first, and it cannot wait for them.
    Unable {
        /// The error of its call, which says what people have to approve.
        error: ClientError,
        /// The same, and why it cannot wait, in words.
        why: String,
    },
}

impl TaskRequest {
    /// With this request, of a call that may take so long.
    #[must_use]
    pub fn new(request: RequestBuilder, limit: Duration) -> Self {
        Self(request.deadline(limit.min(ASKED)))
    }

    /// Begins a task, or has it wait for people if they have to approve it first: then the handle says with what to send it again.
    ///
    /// # Errors
    /// [`BeginError`].
    pub async fn begin(self, handle: &mut TaskHandle, params: Option<Box<RawValue>>) -> Result<TaskReport, BeginError> {
        let error = match self.send(handle, params.as_deref(), None).await {
            Ok(task) => {
                let known = task.status().await.ok().and_then(TaskReport::of);
                return Ok(known.map_or_else(TaskReport::working, TaskReport::at_first));
            }
            Err(error) => error,
        };
        let Some(pending) = pending(&error) else { return Err(BeginError::Call(error)) };
        if params.as_ref().is_some_and(|params| params.get().len() > ARGUMENTS) {
            let why = format!("its arguments have more than {ARGUMENTS} bytes");
            return Err(BeginError::Unable { why: unable(&pending, &why), error });
        }
        let keep = self.status(handle).await.map_err(BeginError::Call)?.keep;
        let until = waits_until(pending.deadline, kept_until(handle.created, keep));
        handle.waits = Some(AwaitedApproval { params, until });
        Ok(TaskReport::waiting(&pending, until))
    }

    /// Sends the call of a task.
    pub(crate) async fn send(
        &self,
        handle: &TaskHandle,
        params: Option<&RawValue>,
        limit: Option<Duration>,
    ) -> Result<Task, ClientError> {
        let mut request = self.0.clone().idempotency_key(handle.key.as_str());
        if let Some(limit) = limit {
            request = request.task_limit(limit);
        }
        Box::pin(request.detach(&handle.method, params)).await
    }

    /// What is known of a task; `None` if there is none any more. A call that waits for people is sent again: it begins once they have
    /// approved it.
    ///
    /// # Errors
    /// See [`ClientError`]. They say nothing about the task.
    pub async fn report(self, handle: &TaskHandle) -> Result<Option<TaskReport>, ClientError> {
        let status = self.status(handle).await?;
        let keep = status.keep;
        if let Some(known) = TaskReport::of(status) {
            return Ok(Some(known));
        }
        let Some(waits) = &handle.waits else { return Ok(None) };
        if now() >= waits.until {
            let is_certain = now() < kept_until(handle.created, keep);
            return Ok(is_certain.then(|| TaskReport::ended(TaskEnd::NotApproved)));
        }
        let known = match self.send(handle, waits.params.as_deref(), None).await {
            Ok(_) => TaskReport::working(),
            Err(error) => match pending(&error) {
                Some(pending) => TaskReport::waiting(&pending, waits.until),
                None => decided(error)?,
            },
        };
        Ok(Some(known))
    }

    /// Asks the service to end a task, and returns how it was just before; `None` if the service knows of none.
    ///
    /// # Errors
    /// See [`ClientError`]. It may have been cancelled all the same.
    pub async fn cancel(self, handle: &TaskHandle) -> Result<Option<TaskReport>, ClientError> {
        Ok(TaskReport::of(self.at_service(handle)?.cancel().await?))
    }

    async fn status(&self, handle: &TaskHandle) -> Result<TaskStatus, ClientError> {
        self.at_service(handle)?.status().await
    }

    fn at_service(&self, handle: &TaskHandle) -> Result<Task, ClientError> {
        self.0.clone().task(&handle.method, handle.key.as_str())
    }
}

impl fmt::Debug for TaskRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskRequest").finish_non_exhaustive()
    }
}

/// What is known of a task once it has ended, or after this time.
///
/// # Errors
/// That of the first question that is not answered.
pub async fn until_ended<E, F>(limit: Duration, ask: impl Fn() -> F) -> Result<TaskReport, E>
where
    F: Future<Output = Result<TaskReport, E>>,
{
    let until = Instant::now() + limit;
    let mut pauses = Pauses::default();
    loop {
        let known = ask().await?;
        let left = until.saturating_duration_since(Instant::now());
        if known.end.is_some() || left.is_zero() {
            return Ok(known);
        }
        sleep(pauses.next(known.poll).min(left)).await;
    }
}

/// The pauses between questions about one task.
#[derive(Debug, Default)]
pub struct Pauses(Option<Duration>);

impl Pauses {
    /// The next pause: a short one at first, and no longer than it takes for something to have changed.
    pub fn next(&mut self, poll: Duration) -> Duration {
        let pause = self.0.map_or(FIRST_PAUSE, |last| (last * 2).min(poll.max(POLL)));
        *self.0.insert(pause)
    }
}

/// Whether the method is nothing but a task: its call was refused because somebody would have waited for it.
#[must_use]
pub fn is_task_only(error: &ClientError) -> bool {
    task_word(error).as_deref() == Some("required")
}

/// Whether the method cannot be called as a task.
#[must_use]
pub fn is_no_task(error: &ClientError) -> bool {
    task_word(error).as_deref() == Some("forbidden")
}

// SPEC.md §6.5
fn task_word(error: &ClientError) -> Option<String> {
    let ClientError::Remote(error) = error else { return None };
    let data = error.data().filter(|_| error.profile_code() == Some(code::INVALID_REQUEST))?;
    let data: Value = serde_json::from_str(data.get()).ok()?;
    data.get("task")?.as_str().map(str::to_owned)
}

/// Until when it is certain that the service knows of a task if it has ever run.
fn kept_until(created: u64, keep: Option<Duration>) -> u64 {
    created.saturating_add(keep.unwrap_or_default().as_secs()).saturating_sub(SKEW_S)
}

/// Until when a call that waits for people may be sent again, in seconds since the Unix epoch. Past the deadline of its request, it would
/// make a new one. And where no outcome can be kept any more, nobody could tell that it has run: its client hears for a while after that
/// that it has not.
fn waits_until(deadline: u64, kept: u64) -> u64 {
    deadline.saturating_sub(1).min(kept.saturating_sub(SKEW_S))
}

pub(crate) fn pending(error: &ClientError) -> Option<PendingApproval> {
    match error {
        ClientError::Remote(error) => PendingApproval::of(error),
        _ => None,
    }
}

/// The call waits for people, and nobody here could send it again.
pub(crate) fn unable(pending: &PendingApproval, why: &str) -> String {
    format!("this call cannot be made here: people have to approve it first, and {why}. It {}", waiting(pending))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use sealwire::internal::rpc::{Limits, Responses};

    use super::*;

    #[test]
    fn a_call_waits_no_longer_than_its_request_does_and_than_its_outcome_would_be_known() {
        let (created, deadline) = (1_000, 2_800);
        let until = |keep| waits_until(deadline, kept_until(created, keep));
        assert_eq!(until(Some(Duration::from_secs(86_400))), 2_799);
        assert_eq!(until(Some(Duration::from_secs(60))), 1_040);
        // A service that does not say for how long: not at all.
        assert!(until(None) <= created);
        for keep in [None, Some(Duration::from_secs(60)), Some(Duration::from_secs(86_400))] {
            assert!(until(keep) < kept_until(created, keep));
        }
    }

    #[test]
    fn pauses_grow_to_what_a_service_asks_for() {
        let mut pauses = Pauses::default();
        let all = [(); 6].map(|()| pauses.next(Duration::from_secs(2)).as_millis());
        assert_eq!(all, [250, 500, 1_000, 2_000, 2_000, 2_000]);
        assert_eq!(pauses.next(Duration::ZERO), POLL);
    }

    #[test]
    fn what_a_service_says_of_tasks_is_read_from_its_own_refusals_alone() {
        let error = |code: i32, data: &str, more: &str| {
            let text =
                format!(r#"{{"jsonrpc":"2.0","id":1,"error":{{"code":{code},"message":"m","data":{data}}}{more}}}"#);
            match Responses::parse(text.as_bytes(), &Limits::default()).unwrap() {
                Responses::Single(response) => ClientError::Remote(response.outcome.unwrap_err()),
                Responses::Batch(_) => unreachable!("one response"),
            }
        };
        let words = |error: &ClientError| (is_task_only(error), is_no_task(error));
        let (required, forbidden) = (r#"{"task":"required"}"#, r#"{"task":"forbidden"}"#);
        assert_eq!(words(&error(-32_600, required, "")), (true, false));
        assert_eq!(words(&error(-32_600, forbidden, "")), (false, true));
        for other in [
            error(-32_600, "null", ""),
            error(-32_602, required, ""),
            error(-32_600, required, r#","application_error":true"#),
            ClientError::Ended,
        ] {
            assert_eq!(words(&other), (false, false), "{other:?}");
        }
    }
}
