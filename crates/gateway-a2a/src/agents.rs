//! The agents of a gateway: which method of A2A does what.
//! Never tells a caller about another's tasks.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use futures_util::StreamExt as _;
use hyper::Response;
use sealwire::CallStream;
use sealwire::internal::auth::TokenIssuer;
use sealwire::internal::client::MessageId;
use sealwire::internal::rpc;
use sealwire::internal::rpc::{Id, Limits, Request};
use sealwire_gateway::dialect::{Admitted, Body, CheckedHead, Refusal, Service, TaskIds, TaskModes, with_permit};
use sealwire_gateway::http::{A2aAgent, CallersError, Expose, Gateway};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::fault::{self, ToA2a as _, fault, translated};
use crate::follow::{NativeStream, SILENCE, ServiceFollower, TaskFollower, streamed, unbounded, whole};
use crate::message::{Incoming, Input};
use crate::run::{QuestionSender, Runner};
use crate::service_task::{Condition, ServiceTask};
use crate::task::{RESULT, Task};
use crate::tasks::Tasks;

/// The most A2A calls in progress. They count as streams of the gateway's client; the limit leaves room for others, which end with their
/// answer. One caller may have as many as it may have streams.
const RUNNING: usize = 192;
/// The methods that a service may implement itself.
const NATIVE: [&str; 6] =
    ["SendMessage", "SendStreamingMessage", "GetTask", "ListTasks", "CancelTask", "SubscribeToTask"];

/// The A2A agents of a gateway.
pub struct A2a {
    /// The tasks that run here.
    tasks: Arc<Tasks>,
    /// The ids of those that services run, and which methods can be that.
    ids: TaskIds,
    modes: TaskModes,
    stopping: watch::Receiver<bool>,
    running: Mutex<JoinSet<()>>,
    pub(crate) card_key: Option<TokenIssuer>,
    pub(crate) exposed: Arc<[Service]>,
    /// Where callers find the gateway, if the configuration says so.
    pub(crate) public_url: Option<String>,
    pub(crate) has_tls: bool,
    /// Whether callers present tokens.
    pub(crate) have_tokens: bool,
    /// The port that the gateway listens on, once it does.
    pub(crate) port: OnceLock<u16>,
}

/// One request, with its id.
pub(crate) struct AgentRequest {
    pub(crate) admitted: Admitted,
    pub(crate) id: Id,
}

/// `GetTask`, `CancelTask`, `SubscribeToTask`.
#[derive(Deserialize)]
struct TaskName {
    id: String,
}

/// A task of a caller, and who runs it.
enum Found {
    Here(Arc<Task>),
    AtService(ServiceTask),
}

impl A2a {
    /// The agents of this gateway, by its configuration.
    ///
    /// # Errors
    /// [`CallersError`]: the key of cards cannot be read, or signs tokens too.
    pub fn new(gateway: &Gateway) -> Result<Self, CallersError> {
        let config = gateway.config();
        let card_key = config.card_key.as_ref().map(TokenIssuer::load).transpose()?;
        // Otherwise a signature of one kind could be mistaken for the other.
        if card_key.as_ref().is_some_and(|key| gateway.signs_tokens_with(key.kid())) {
            return Err(CallersError::SharedKey);
        }
        Ok(Self {
            tasks: Arc::default(),
            ids: gateway.task_ids(),
            modes: gateway.task_modes(),
            stopping: gateway.stopping(),
            running: Mutex::default(),
            card_key,
            exposed: Arc::clone(gateway.exposed()),
            public_url: config.public_url.clone(),
            has_tls: config.tls_cert.is_some(),
            have_tokens: gateway.callers_have_tokens(),
            port: OnceLock::new(),
        })
    }

    fn running(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn forget_old(&self) {
        self.tasks.tidy();
        let mut running = self.running();
        while running.try_join_next().is_some() {}
    }

    /// Drops all calls in progress, which cancels them at the services.
    pub(crate) async fn cancel_all(&self) {
        let mut running = std::mem::take(&mut *self.running());
        running.shutdown().await;
    }
}

impl fmt::Debug for A2a {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("A2a").field("exposed", &self.exposed).finish_non_exhaustive()
    }
}

/// The agent of a service that has one.
pub(crate) fn agent_of(expose: &Expose) -> Result<&A2aAgent, Refusal> {
    expose.a2a.as_ref().ok_or_else(|| Refusal::not_found("there is no such agent here"))
}

impl A2a {
    /// The service with this name, if it has an agent.
    pub(crate) fn agent(&self, service: &str) -> Result<&Service, Refusal> {
        let found = self.exposed.iter().find(|expose| expose.service.as_str() == service && expose.a2a.is_some());
        found.ok_or_else(|| Refusal::not_found("there is no such agent here"))
    }

    /// `POST /a2a/<service>`.
    pub(crate) async fn respond_to_message(
        &self,
        admitted: Admitted,
        text: &[u8],
        head: &CheckedHead,
    ) -> Result<Response<Body>, Refusal> {
        let (id, request) = one_call(text)?;
        let (caller, service, since) = (admitted.principal().clone(), Arc::clone(admitted.target()), admitted.since());
        let answer = match fault::version(head) {
            Ok(()) => self.answer(AgentRequest { admitted, id: id.clone() }, head, &request).await,
            Err(refusal) => Err(refusal),
        };
        tracing::info!(
            target: "sealwire::gateway",
            caller = caller.as_str(),
            peer = caller.peer(),
            service = %service.service,
            trace_id = caller.trace_id(),
            code = answer.as_ref().err().map(|refusal| refusal.code),
            duration_ms = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX),
            "request of A2A"
        );
        answer.map_err(|refusal| refusal.of(Some(&id)))
    }

    async fn answer(
        &self,
        sent: AgentRequest,
        head: &CheckedHead,
        request: &Request,
    ) -> Result<Response<Body>, Refusal> {
        let method = request.method.as_str();
        let params = request.params.as_ref().map_or("{}", |params| params.raw().get());
        let service = Arc::clone(sent.admitted.target());
        let agent = agent_of(&service)?;
        match method {
            "GetExtendedAgentCard" => return self.extended_card(sent, head).await,
            "CreateTaskPushNotificationConfig"
            | "GetTaskPushNotificationConfig"
            | "ListTaskPushNotificationConfigs"
            | "DeleteTaskPushNotificationConfig" => return Err(fault::no_push()),
            _ if !NATIVE.contains(&method) => return Err(fault(-32601, "METHOD_NOT_FOUND", "A2A has no such method")),
            _ if agent.native => return forward(sent, request).await,
            "SendMessage" | "SendStreamingMessage" => {
                let incoming = Incoming::read(params, agent)?;
                let is_stream = method == "SendStreamingMessage";
                return match &incoming.task {
                    Some(_) => self.resume_task(sent, incoming, is_stream).await,
                    None => self.start_task(sent, incoming, agent, is_stream).await,
                };
            }
            _ => {}
        }
        let AgentRequest { admitted, id } = sent;
        if method == "ListTasks" {
            let (owner, name) = (admitted.principal().as_str(), service.service.as_str());
            let listed = self.tasks.list(owner, name, fault::read(params)?)?;
            return Ok(with_permit(whole(&id, listed), admitted.into_permit()));
        }
        let found = self.found(&admitted, &fault::read::<TaskName>(params)?.id)?;
        match (method, found) {
            ("GetTask", found) => {
                let task = match found {
                    Found::Here(task) => task.snapshot(true),
                    Found::AtService(task) => task.view(&task.ask(&admitted).await?),
                };
                Ok(with_permit(whole(&id, task), admitted.into_permit()))
            }
            ("CancelTask", Found::Here(task)) => {
                if !task.cancel() {
                    return Err(fault::not_cancelable());
                }
                task.settled(true).await;
                match task.is_completed() {
                    true => Err(fault::not_cancelable()),
                    false => Ok(with_permit(whole(&id, task.snapshot(true)), admitted.into_permit())),
                }
            }
            ("CancelTask", Found::AtService(task)) => {
                let cancelled = task.view(&task.cancel(&admitted).await?);
                Ok(with_permit(whole(&id, cancelled), admitted.into_permit()))
            }
            // `SubscribeToTask`.
            (_, Found::Here(task)) => {
                if task.is_over() {
                    return Err(fault::unsupported("the task has ended"));
                }
                let follow = TaskFollower::of_task(task, id, admitted.admit_stream()?);
                Ok(streamed(follow.events(), service.timeout()))
            }
            (_, Found::AtService(task)) => {
                let streaming = admitted.admit_stream()?;
                let now = task.ask(&admitted).await?;
                if now.has_ended() {
                    return Err(fault::unsupported("the task has ended"));
                }
                Ok(self.follow(task, now, id, streaming))
            }
        }
    }

    /// The task of this id, if it belongs to this caller.
    fn found(&self, admitted: &Admitted, id: &str) -> Result<Found, Refusal> {
        if let Some(task) = ServiceTask::open(&self.ids, admitted, id) {
            return Ok(Found::AtService(task));
        }
        let (owner, service) = (admitted.principal().as_str(), admitted.expose().service.as_str());
        self.tasks.of(owner, service, id).map(Found::Here).ok_or_else(fault::no_task)
    }

    fn follow(&self, task: ServiceTask, now: Condition, id: Id, admitted: Admitted) -> Response<Body> {
        unbounded(ServiceFollower::new(task, now, id, admitted, self.stopping.clone()).events())
    }

    /// Handles a message that begins a call.
    async fn start_task(
        &self,
        sent: AgentRequest,
        incoming: Incoming,
        agent: &A2aAgent,
        is_stream: bool,
    ) -> Result<Response<Body>, Refusal> {
        let AgentRequest { admitted, id } = sent;
        let (method, params) = incoming.call(agent)?;
        let expose = Arc::clone(admitted.target());
        if !expose.allows(&method) {
            return Err(fault(-32601, "METHOD_NOT_FOUND", "there is no such method"));
        }
        admitted.check(&method).map_err(Refusal::to_a2a)?;
        let context = incoming.context;
        if incoming.returns_immediately && self.modes.of(&admitted, &method).await.is_some() {
            let streaming = if is_stream { Some(admitted.admit_stream()?) } else { None };
            let call = (method.as_str(), params.clone());
            let begun = ServiceTask::begin(&self.ids, &admitted, (&incoming.id, context.clone()), call).await?;
            if let Some((task, now)) = begun {
                return Ok(self.respond_with_task(task, now, id, admitted, streaming));
            }
        }
        // The call may become a task, which continues without its client.
        let streaming = admitted.admit_stream()?;
        let (call, link) = streaming.request().await.map_err(|_| Refusal::away().to_a2a())?;
        let task = Task::new(admitted.principal().as_str(), expose.service.as_str(), context.clone())?;
        let message_id = MessageId::default();
        let (asking, questions) = QuestionSender::new();
        let (tell, notes) = tokio::sync::mpsc::unbounded_channel();
        let shows = incoming.returns_immediately && !is_stream;
        let (client_is_here, client_left) = oneshot::channel::<()>();
        {
            let mut running = self.running();
            while running.try_join_next().is_some() {}
            if running.len() >= RUNNING {
                return Err(Refusal::unavailable("too many calls are under way").to_a2a());
            }
            let call = call
                .max_bytes(RESULT)
                .relay()
                .capture_id(&message_id)
                .request()
                // Bounded by the call's window: the service sends no more before these are read.
                .on_notification(move |note| drop(tell.send(note)))
                .on_ask(move |question| asking.clone().put(question))
                .stream::<Box<RawValue>>(&method, &params);
            let runner = Runner {
                task: Arc::clone(&task),
                tasks: Arc::clone(&self.tasks),
                call: Some(call),
                notes,
                questions,
                client_left,
                gone: link.until_lost(&message_id),
                hold: streaming.hold(Some(&method)),
                admitted: streaming,
                message_id,
            };
            if shows {
                runner.shows();
            }
            running.spawn(runner.run());
        }
        if is_stream {
            let settles = async { task.begun().await };
            // A call that has failed by then can still have an HTTP status of its own.
            if timeout(SILENCE, settles).await.is_ok()
                && let Some(Err(refusal)) = task.take_failure()
            {
                if task.is_task_only() {
                    let streaming = admitted.admit_stream()?;
                    let call = (method.as_str(), params);
                    if let Some((task, now)) =
                        ServiceTask::begin(&self.ids, &admitted, (&incoming.id, context), call).await?
                    {
                        return Ok(self.respond_with_task(task, now, id, admitted, Some(streaming)));
                    }
                }
                return Err(refusal);
            }
            // The task has its own permit, as a stream.
            let follow = TaskFollower::of_call(task, id, admitted, client_is_here);
            return Ok(streamed(follow.events(), expose.timeout()));
        }
        if !shows {
            task.settled(false).await;
        }
        drop(client_is_here);
        if task.is_task_only() && !shows {
            let call = (method.as_str(), params);
            if let Some((task, now)) = ServiceTask::begin(&self.ids, &admitted, (&incoming.id, context), call).await? {
                let now = self.wait_for_end(&task, now, &admitted).await?;
                return Ok(self.respond_with_task(task, now, id, admitted, None));
            }
        }
        let answer = match task.take_outcome() {
            Some(outcome) => task.message_of(&outcome?),
            None => task.as_result(),
        };
        Ok(with_permit(whole(&id, answer), admitted.into_permit()))
    }

    /// Answers a message that has begun a task at the service.
    fn respond_with_task(
        &self,
        task: ServiceTask,
        now: Condition,
        id: Id,
        admitted: Admitted,
        streaming: Option<Admitted>,
    ) -> Response<Body> {
        match streaming {
            Some(streaming) => self.follow(task, now, id, streaming),
            None => with_permit(whole(&id, task.as_result(&now)), admitted.into_permit()),
        }
    }

    /// How a task is that its client waits for: once it has ended, or after the time of a call. Nobody knows how long people take, so those
    /// are not waited for; nor does a question without an answer keep the client from its task.
    async fn wait_for_end(
        &self,
        task: &ServiceTask,
        now: Condition,
        admitted: &Admitted,
    ) -> Result<Condition, Refusal> {
        if task.waits_for_people() {
            return Ok(now);
        }
        let (mut hold, mut stopping) = (admitted.hold(Some(task.method())), self.stopping.clone());
        tokio::select! {
            later = task.until_ended(admitted, admitted.expose().timeout()) => Ok(later.unwrap_or(now)),
            _ = stopping.wait_for(|stopping| *stopping) => Ok(now),
            loss = hold.lost() => Err(Refusal::of_loss(loss).to_a2a()),
        }
    }

    /// Handles a message for a task that waits for one.
    async fn resume_task(
        &self,
        sent: AgentRequest,
        incoming: Incoming,
        is_stream: bool,
    ) -> Result<Response<Body>, Refusal> {
        let AgentRequest { admitted, id } = sent;
        let expose = Arc::clone(admitted.target());
        let named = incoming.task.as_deref().unwrap_or_default();
        let found = self.found(&admitted, named)?;
        let of_task = match &found {
            Found::Here(task) => task.context(),
            Found::AtService(task) => task.context(),
        };
        if incoming.context.as_ref().is_some_and(|context| context != of_task) {
            return Err(fault::invalid("message.contextId", "the task belongs to another context"));
        }
        // One at the service asks nobody anything.
        let Found::Here(task) = found else { return Err(fault::unsupported("the task is not waiting for a message")) };
        let Input::Data(answer) = incoming.input else {
            let wanted = "answer a question with a `data` part: the result of its request, as an object";
            return Err(fault::invalid("message.parts[0]", wanted));
        };
        // Admitted before the answer is used, so that nothing is done that the client could not be told about.
        let streaming = if is_stream { Some(admitted.admit_stream()?) } else { None };
        if !task.answer(&incoming.id, answer) {
            return Err(fault::unsupported("the task is not waiting for a message"));
        }
        if let Some(streaming) = streaming {
            let follow = TaskFollower::of_task(task, id, streaming);
            return Ok(streamed(follow.events(), expose.timeout()));
        }
        if !incoming.returns_immediately {
            task.settled(false).await;
        }
        Ok(with_permit(whole(&id, task.as_result()), admitted.into_permit()))
    }
}

/// Forwards a request to a service that is an agent itself.
async fn forward(sent: AgentRequest, request: &Request) -> Result<Response<Body>, Refusal> {
    let AgentRequest { admitted, id } = sent;
    let expose = Arc::clone(admitted.target());
    if !expose.allows(&request.method) {
        return Err(fault(-32601, "METHOD_NOT_FOUND", "there is no such method"));
    }
    admitted.check(&request.method).map_err(Refusal::to_a2a)?;
    let mut hold = admitted.hold(Some(&request.method));
    let is_stream = matches!(request.method.as_str(), "SendStreamingMessage" | "SubscribeToTask");
    let streaming = if is_stream { Some(admitted.admit_stream()?) } else { None };
    let (calling, link) = admitted.request().await.map_err(|_| Refusal::away().to_a2a())?;
    let message_id = MessageId::default();
    let calling = calling.relay().capture_id(&message_id).request().max_bytes(RESULT);
    let mut call: CallStream<Box<RawValue>> = calling.stream(&request.method, &request.params);
    let lost = link.until_lost(&message_id);
    let Some(streaming) = streaming else {
        let outcome = tokio::select! {
            outcome = call.finish::<Box<RawValue>>() => outcome.map_err(|error| translated(&expose, &error)),
            loss = hold.lost() => Err(Refusal::of_loss(loss).to_a2a()),
            // Unknown even if `lost` says that it was not sent: the task that sends may just have done so.
            _ = lost => Err(Refusal::lost().to_a2a()),
        };
        return Ok(with_permit(whole(&id, outcome?), admitted.into_permit()));
    };
    let mut native = NativeStream::new(id, (streaming, hold), lost);
    // A call that has failed by then can still have an HTTP status of its own.
    if let Ok(first) = timeout(SILENCE, call.next()).await {
        match first {
            Some(Ok(first)) => native.begin(first),
            Some(Err(error)) => return Err(translated(&expose, &error)),
            None => {
                let result = call.finish().await.map_err(|error| translated(&expose, &error))?;
                native.begin(result);
                return Ok(streamed(native.events(None), expose.timeout()));
            }
        }
    }
    drop(admitted);
    Ok(streamed(native.events(Some(call)), expose.timeout()))
}

/// The single call in a message.
fn one_call(text: &[u8]) -> Result<(Id, Request), Refusal> {
    match rpc::Body::parse(text, &Limits::default()).map_err(|error| Refusal::of_text(&error).to_a2a())? {
        rpc::Body::Single(Ok(request)) => match request.id.clone() {
            Some(id) => Ok((id, request)),
            None => Err(fault::bad("an A2A request must have an `id`")),
        },
        rpc::Body::Single(Err(invalid)) => Err(Refusal::of_invalid(&invalid).to_a2a()),
        rpc::Body::Batch(_) => Err(fault::bad("A2A has no batches")),
    }
}
