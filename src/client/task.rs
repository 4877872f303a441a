//! Calls for which nobody waits: begun, found again by their key, cancelled (SPEC.md §6.5).
//! Never takes for a task what the service has not signed as one.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::{Instant, sleep};

use super::Client;
use super::error::{ClientError, InvalidRequest, ProtocolError};
use super::request::{RequestBuilder, decode, single};
use super::task_state::TaskState;
use crate::name::MethodName;
use crate::rpc::{Limits, Outcome, Params, Responses, code};
use crate::wire::{Nonce, is_idempotency_key};

impl Client {
    /// Begins a call for which nobody waits, and returns once it has begun. Its key is made at random.
    ///
    /// # Errors
    /// As for [`RequestBuilder::detach`].
    ///
    /// Cancel safety: as for [`RequestBuilder::detach`].
    pub async fn detach(&self, service: &str, method: &str, params: impl Serialize) -> Result<Task, ClientError> {
        self.request(service).detach(method, params).await
    }

    /// A task that was begun before, perhaps by another process with the same credentials.
    ///
    /// # Errors
    /// [`ClientError::Invalid`] for names and keys that the protocol does not allow. Nothing is asked yet.
    pub fn task(&self, service: &str, method: &str, key: impl Into<String>) -> Result<Task, ClientError> {
        self.request(service).task(method, key)
    }
}

impl RequestBuilder {
    /// How long the task may run, up to a week; what the method allows, if that is less, or if this is not said.
    pub fn task_limit(mut self, limit: Duration) -> Self {
        self.task_limit = Some(limit);
        self
    }

    /// Begins a call for which nobody waits, and returns once it has begun: a *task*. The service runs it on when this program has ended, and
    /// keeps what it came to. With [`RequestBuilder::idempotency_key`] as its key, or a random one: whoever has no key of its own cannot find
    /// the task if the answer is lost. It is harmless to begin it again with the same key and params: it runs once, and the answer is how it
    /// is; so it is sent again as if it were [idempotent](RequestBuilder::idempotent). [`RequestBuilder::deadline`] is for the beginning, and
    /// for each question about the task later.
    ///
    /// With [`RequestBuilder::await_approval`], it waits for people first.
    ///
    /// # Errors
    /// See [`ClientError`]. The task has not begun if it is [`ClientError::Remote`]: `-32600` whose `data.task` is `forbidden` says that the
    /// method is no task, `-32013` with the scope `replica-tasks` that there is no room for it now.
    ///
    /// Cancel safety: a dropped future may have begun the task, which goes on.
    pub async fn detach(mut self, method: &str, params: impl Serialize) -> Result<Task, ClientError> {
        if !self.attached.is_empty() {
            return Err(InvalidRequest::Attachments.into());
        }
        let params = {
            let given = params;
            Params::encode(&given).map_err(InvalidRequest::from)?
        };
        let key = self.key.take().unwrap_or_else(|| Nonce::random().to_text());
        let asked = self.clone();
        (self.key, self.is_task) = (Some(key.clone()), true);
        self = self.idempotent().detached();
        let approval = std::mem::take(&mut self.approval);
        if approval.limit.is_none() {
            self.begin(method, params).await?;
        } else {
            let (stop, now_ms) = (self.stop.clone(), self.service_clock()?);
            Box::pin(approval.until_decided(stop, now_ms, || self.clone().begin(method, params.clone()))).await?;
        }
        asked.task(method, key)
    }

    /// As [`Client::task`], with the options of this request: each question about the task has its deadline.
    ///
    /// # Errors
    /// As for [`Client::task`].
    pub fn task(mut self, method: &str, key: impl Into<String>) -> Result<Task, ClientError> {
        let key = key.into();
        MethodName::new(method).map_err(InvalidRequest::from)?;
        if !is_idempotency_key(&key) {
            return Err(InvalidRequest::IdempotencyKey.into());
        }
        (self.key, self.stop) = (None, None);
        self.attached.clear();
        let request = self.idempotent();
        Ok(Task(Arc::new(Asked { request, method: method.to_owned(), key })))
    }

    /// Sends the call of a task.
    async fn begin(self, method: &str, params: Option<Params>) -> Result<Box<RawValue>, ClientError> {
        let (client, id, mut outgoing) = self.call_message(method, params)?;
        let answer = client.0.request(&mut outgoing).await?;
        let is_task = matches!(&answer.responses, Ok(Responses::Single(response)) if response.is_of_task());
        let result = single(answer, &id)?.map_err(ClientError::Remote)?;
        if is_task { Ok(result) } else { Err(ClientError::Protocol(ProtocolError::Task)) }
    }
}

/// A call for which nobody waits. Made by [`RequestBuilder::detach`] and [`Client::task`]; clones are the same task. Dropping it does not end
/// the call.
///
/// ```no_run
/// # use sealwire::{Client, ClientError};
/// # use std::time::Duration;
/// # async fn example(client: Client) -> Result<(), ClientError> {
/// let task = client.detach("video", "video/render", ["film.mov"]).await?;
/// let key = task.key().to_owned();
/// // Here, or in another program with the same credentials:
/// let task = client.task("video", "video/render", key)?;
/// let told = task.wait(Duration::from_secs(3600)).await?;
/// let url: String = told.result()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Task(Arc<Asked>);

struct Asked {
    request: RequestBuilder,
    method: String,
    key: String,
}

impl Task {
    /// By which its caller, and nobody else, finds it again: the idempotency key.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.0.key
    }

    /// The method.
    #[must_use]
    pub fn method(&self) -> &str {
        &self.0.method
    }

    /// The service.
    #[must_use]
    pub fn service(&self) -> &str {
        &self.0.request.service
    }

    /// How it is.
    ///
    /// # Errors
    /// See [`ClientError`]. They say nothing about the task.
    ///
    /// Cancel safe.
    pub async fn status(&self) -> Result<TaskStatus, ClientError> {
        self.ask("rpc.task").await
    }

    /// Asks the service to end it, and returns how it was just before: the service ends it at once or, if another replica runs it, within a
    /// sixth of the time for which that replica has it (5 s). [`Task::wait`] tells when it has.
    ///
    /// # Errors
    /// See [`ClientError`]. It may have been cancelled all the same.
    ///
    /// Cancel safety: a dropped future may have cancelled it.
    pub async fn cancel(&self) -> Result<TaskStatus, ClientError> {
        self.ask("rpc.task.cancel").await
    }

    /// Waits until it has ended, for `limit` at most; after that the state is still [`TaskState::Working`]. Asks with pauses that grow up to
    /// 2 s, or are as long as the service asks for. While the service cannot be asked, it asks again.
    ///
    /// # Errors
    /// See [`ClientError`]: that of the last question, if that was not answered, or that of any question that would be answered alike again.
    ///
    /// Cancel safe.
    pub async fn wait(&self, limit: Duration) -> Result<TaskStatus, ClientError> {
        self.wait_for(limit, |_| {}).await
    }

    /// As [`Task::wait`], and tells `told` how it is, each time that it was asked.
    ///
    /// # Errors
    /// As for [`Task::wait`].
    ///
    /// Cancel safe.
    pub async fn wait_for(&self, limit: Duration, told: impl Fn(&TaskStatus)) -> Result<TaskStatus, ClientError> {
        let until = Instant::now() + limit.min(LONGEST_WAIT);
        let mut pause = FIRST_PAUSE;
        loop {
            let status = self.status().await;
            if let Ok(status) = &status {
                told(status);
            }
            let least = match &status {
                Ok(status) if status.state == TaskState::Working => status.retry_after.min(LAST_PAUSE),
                Err(error) if may_be_answered_later(error) => LAST_PAUSE,
                _ => return status,
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return status;
            }
            // A task that takes as long as those before it is heard of soon.
            sleep(pause.max(least.min(pause * 2)).min(left)).await;
            pause = (pause * 3 / 2).min(LAST_PAUSE);
        }
    }

    fn ask(&self, method: &'static str) -> impl Future<Output = Result<TaskStatus, ClientError>> + Send + use<> {
        let asked = Arc::clone(&self.0);
        async move {
            let params = TaskParams { method: &asked.method, key: &asked.key };
            let told = match asked.request.clone().call::<Told>(method, &params).await {
                // What it came to does not fit one message.
                Err(ClientError::Remote(error)) if error.profile_code() == Some(code::TOO_LARGE) => {
                    let stream = asked.request.clone().stream::<IgnoredAny>(method, &params);
                    Box::pin(stream.finish::<Told>()).await
                }
                told => told,
            };
            told?.understood()
        }
    }
}

/// Omits the client.
impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("service", &self.service()).field("method", &self.method()).finish_non_exhaustive()
    }
}

/// What the service says of a task. Times are seconds since the Unix epoch by the service's clock.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TaskStatus {
    /// How it is.
    pub state: TaskState,
    /// When it began.
    pub started: Option<u64>,
    /// When it is stopped at the latest.
    pub limit: Option<u64>,
    /// When it had ended.
    pub ended: Option<u64>,
    /// Until when what it came to is kept, once it has ended.
    pub expires: Option<u64>,
    /// For how long that is kept after its end.
    pub keep: Option<Duration>,
    /// How far it is, while it runs.
    pub progress: Option<TaskProgress>,
    /// Whether it runs and is to end, because its caller has cancelled it.
    pub is_cancelling: bool,
    /// When it may be worth asking again.
    pub retry_after: Duration,
    /// What the method has answered: with [`TaskState::Completed`] and [`TaskState::Failed`].
    pub outcome: Option<Outcome>,
}

/// How far a task is.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct TaskProgress {
    /// How much is done.
    pub progress: f64,
    /// Of how much, if the method knows.
    #[serde(default)]
    pub total: Option<f64>,
    /// A few words of the method, at most 100 characters.
    #[serde(default)]
    pub message: Option<String>,
}

impl TaskStatus {
    /// The result of the method.
    ///
    /// # Errors
    /// [`ClientError::Remote`] with the method's own error, [`ClientError::Task`] if it has no outcome, or none yet, and
    /// [`ClientError::Decode`] for a result of another type.
    pub fn result<R: DeserializeOwned>(&self) -> Result<R, ClientError> {
        match &self.outcome {
            Some(Ok(result)) => decode(result),
            Some(Err(error)) => Err(ClientError::Remote(error.clone())),
            None => Err(ClientError::Task(self.state)),
        }
    }
}

#[derive(Serialize)]
struct TaskParams<'a> {
    method: &'a str,
    key: &'a str,
}

/// As the service writes it.
#[derive(Deserialize)]
struct Told {
    state: TaskState,
    #[serde(default)]
    started: Option<u64>,
    #[serde(default)]
    limit: Option<u64>,
    #[serde(default)]
    ended: Option<u64>,
    #[serde(default)]
    expires: Option<u64>,
    #[serde(default)]
    keep: Option<u64>,
    #[serde(default)]
    progress: Option<TaskProgress>,
    #[serde(default)]
    cancelling: bool,
    #[serde(default)]
    retry_after_ms: u64,
    #[serde(default)]
    response: Option<Box<RawValue>>,
}

impl Told {
    fn understood(self) -> Result<TaskStatus, ClientError> {
        let wrong = || ClientError::Protocol(ProtocolError::Task);
        let outcome = match self.response {
            None => None,
            Some(text) => match Responses::parse(text.get().as_bytes(), &Limits::default()) {
                Ok(Responses::Single(response)) => Some(response.outcome),
                _ => return Err(wrong()),
            },
        };
        let fits = match self.state {
            TaskState::Completed => matches!(outcome, Some(Ok(_))),
            TaskState::Failed => matches!(outcome, Some(Err(_))),
            _ => outcome.is_none(),
        };
        if !fits {
            return Err(wrong());
        }
        Ok(TaskStatus {
            state: self.state,
            started: self.started,
            limit: self.limit,
            ended: self.ended,
            expires: self.expires,
            keep: self.keep.map(Duration::from_secs),
            progress: self.progress,
            is_cancelling: self.cancelling,
            retry_after: Duration::from_millis(self.retry_after_ms),
            outcome,
        })
    }
}

/// Whether a question about a task may be answered later: asking does nothing, so it may be asked as often as one likes.
pub fn may_be_answered_later(error: &ClientError) -> bool {
    match error {
        ClientError::Remote(error) | ClientError::Clock { error, .. } => {
            matches!(error.profile_code(), Some(code::QUOTA_EXCEEDED | code::OVERLOADED | code::STALE | code::TIMEOUT))
        }
        ClientError::Repeated { last, .. } => may_be_answered_later(last),
        ClientError::NoResponders { .. }
        | ClientError::Hint { .. }
        | ClientError::Timeout { .. }
        | ClientError::ConnectionLost
        | ClientError::Disconnected { .. }
        | ClientError::Busy { .. }
        | ClientError::StreamLost { .. } => true,
        _ => false,
    }
}

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(2);

/// No task runs longer, and is kept longer: a week each.
const LONGEST_WAIT: Duration = Duration::from_secs(14 * 24 * 60 * 60);
