//! A2A 1.0 over its JSON-RPC binding: a service's methods as an agent that takes messages, or a service that is an agent itself.
//! Never keeps a task beyond its time, and never tells a caller about another's tasks.

mod card;
mod fault;
mod follow;
mod message;
mod run;
mod task;
mod tasks;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use hyper::http::request::Parts;
use hyper::{Method, Response};
use sealwire::auth::TokenIssuer;
use sealwire::client::{CallStream, MessageId};
use sealwire::rpc::{self, Id, Limits, Request};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::fault::{fault, translated};
use self::follow::{Follow, Native, streamed, whole};
use self::message::{Incoming, Input};
use self::run::{Asking, Runner};
use self::task::Task;
use self::tasks::Tasks;
use super::callers::{Callers, CallersError};
use super::config::{A2aAgent, DoorConfig, Expose};
use super::connections::{Body, Received};
use super::principal::{Place, Principal};
use super::refusal::Refusal;
use super::{Door, body, holding, only};
use crate::bus::gone;
use crate::mcp::message::raw;

/// The largest result, and the most kept of a task, in bytes.
const RESULT: usize = 1 << 20;
/// The most A2A calls in progress. They count as streams of the door's client; the limit leaves room for others, which end with their
/// answer. One caller may have as many as it may have streams.
const RUNNING: usize = 192;
/// How long an answer may take before it becomes a stream with comments.
const SILENCE: Duration = Duration::from_secs(15);
/// The methods that a service may implement itself.
const NATIVE: [&str; 6] =
    ["SendMessage", "SendStreamingMessage", "GetTask", "ListTasks", "CancelTask", "SubscribeToTask"];

/// The A2A agents of a door.
pub(super) struct A2a {
    tasks: Arc<Tasks>,
    running: Mutex<JoinSet<()>>,
    card_key: Option<TokenIssuer>,
    /// The port that the door listens on, once it does.
    port: OnceLock<u16>,
}

/// One request: its sender, its agent, and its place.
struct Sender<'a> {
    principal: Principal,
    expose: &'a Expose,
    agent: &'a A2aAgent,
    id: Id,
    place: Place,
}

/// `GetTask`, `CancelTask`, `SubscribeToTask`.
#[derive(Deserialize)]
struct Named {
    id: String,
}

impl A2a {
    pub(super) fn new(config: &DoorConfig, callers: &Callers) -> Result<Self, CallersError> {
        let card_key = config.card_key.as_ref().map(TokenIssuer::load).transpose()?;
        // Otherwise a signature of one kind could be mistaken for the other.
        if card_key.as_ref().is_some_and(|key| callers.sign_with(key.kid())) {
            return Err(CallersError::SharedKey);
        }
        Ok(Self { tasks: Arc::default(), running: Mutex::default(), card_key, port: OnceLock::new() })
    }

    /// Notes the port that the door listens on.
    pub(super) fn listens(&self, port: u16) {
        self.port.get_or_init(|| port);
    }

    fn running(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn tidy(&self) {
        self.tasks.tidy();
        let mut running = self.running();
        while running.try_join_next().is_some() {}
    }

    /// Drops all calls in progress, which cancels them at the services.
    pub(super) async fn close(&self) {
        let mut running = std::mem::take(&mut *self.running());
        running.shutdown().await;
    }
}

impl Door {
    /// `POST /a2a/<service>`.
    pub(super) async fn a2a(
        &self,
        principal: Principal,
        service: &str,
        head: &Parts,
        incoming: Received,
    ) -> Result<Response<Body>, Refusal> {
        let (expose, agent) = self.agent(service)?;
        self.callers.admits(&principal, expose)?;
        only(&head.method, Method::POST)?;
        let started = Instant::now();
        let place = self.admission.admit(&principal, service)?;
        let text = body::json(head, incoming).await?;
        let (id, request) = one_call(&text)?;
        let caller = principal.clone();
        let sender = Sender { principal, expose, agent, id: id.clone(), place };
        let answer = match fault::version(head) {
            Ok(()) => self.a2a_answer(sender, head, &request).await,
            Err(refusal) => Err(refusal),
        };
        tracing::info!(
            target: "sealwire::door",
            caller = caller.as_str(),
            %service,
            code = answer.as_ref().err().map(|refusal| refusal.code),
            duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
            "request of A2A"
        );
        answer.map_err(|refusal| refusal.of(Some(&id)))
    }

    fn agent(&self, service: &str) -> Result<(&Expose, &A2aAgent), Refusal> {
        let found = self.config.expose.iter().find(|expose| expose.service.as_str() == service);
        let agent = found.and_then(|expose| Some((expose, expose.a2a.as_ref()?)));
        agent.ok_or_else(|| Refusal::not_found("there is no such agent here"))
    }

    async fn a2a_answer(&self, sender: Sender<'_>, head: &Parts, request: &Request) -> Result<Response<Body>, Refusal> {
        let method = request.method.as_str();
        let params = request.params.as_ref().map_or("{}", |params| params.raw().get());
        match method {
            "GetExtendedAgentCard" => return self.a2a_extended_card(sender, head).await,
            "CreateTaskPushNotificationConfig"
            | "GetTaskPushNotificationConfig"
            | "ListTaskPushNotificationConfigs"
            | "DeleteTaskPushNotificationConfig" => return Err(fault::no_push()),
            _ if !NATIVE.contains(&method) => return Err(fault(-32601, "METHOD_NOT_FOUND", "A2A has no such method")),
            _ if sender.agent.native => return self.a2a_native(sender, request).await,
            _ => {}
        }
        let Sender { principal, expose, id, place, .. } = sender;
        let tasks = &self.a2a.tasks;
        let found = |id: &str| tasks.of(&principal, expose.service.as_str(), id).ok_or_else(fault::no_task);
        match method {
            "SendMessage" | "SendStreamingMessage" => {
                let incoming = Incoming::read(params, sender.agent)?;
                let is_stream = method == "SendStreamingMessage";
                let sender = Sender { principal, id, place, ..sender };
                match &incoming.task {
                    Some(_) => self.a2a_goes_on(sender, incoming, is_stream).await,
                    None => self.a2a_begins(sender, incoming, is_stream).await,
                }
            }
            "GetTask" => Ok(holding(whole(&id, found(&fault::read::<Named>(params)?.id)?.snapshot(true)), place)),
            "ListTasks" => {
                let listed = tasks.list(&principal, expose.service.as_str(), fault::read(params)?)?;
                Ok(holding(whole(&id, listed), place))
            }
            "CancelTask" => {
                let task = found(&fault::read::<Named>(params)?.id)?;
                if !task.cancel() {
                    return Err(fault::not_cancelable());
                }
                task.settled(true).await;
                match task.is_completed() {
                    true => Err(fault::not_cancelable()),
                    false => Ok(holding(whole(&id, task.snapshot(true)), place)),
                }
            }
            // `SubscribeToTask`.
            _ => {
                let task = found(&fault::read::<Named>(params)?.id)?;
                if task.is_over() {
                    return Err(fault::unsupported("the task has ended"));
                }
                let stream = self.admission.open_stream(&principal, expose.service.as_str())?;
                let follow = Follow::of_task(task, id, principal, Arc::clone(&self.callers), stream);
                Ok(streamed(follow.events(), expose.timeout()))
            }
        }
    }

    /// Handles a message that begins a call.
    async fn a2a_begins(
        &self,
        sender: Sender<'_>,
        incoming: Incoming,
        is_stream: bool,
    ) -> Result<Response<Body>, Refusal> {
        let Sender { principal, expose, agent, id, place } = sender;
        let (method, params) = incoming.call(agent)?;
        if !expose.allows(&method) {
            return Err(fault(-32601, "METHOD_NOT_FOUND", "there is no such method"));
        }
        // The call may become a task, which continues without its client.
        let stream_place = self.admission.open_stream(&principal, place.service())?;
        let client = self.bus.client().await.map_err(|_| Refusal::away().of_a2a())?;
        let task = Task::new(&principal, expose.service.as_str(), incoming.context)?;
        let message_id = MessageId::default();
        let (asking, questions) = Asking::new();
        let (tell, notes) = tokio::sync::mpsc::unbounded_channel();
        let shows = incoming.returns_immediately && !is_stream;
        let (client_is_here, client_left) = oneshot::channel::<()>();
        {
            let mut running = self.a2a.running();
            while running.try_join_next().is_some() {}
            if running.len() >= RUNNING {
                return Err(Refusal::unavailable("too many calls are under way").of_a2a());
            }
            let call = self
                .callers
                .request(&client, &principal, expose)
                .max_bytes(RESULT)
                .note_id(&message_id)
                // Bounded by the call's window: the service sends no more before these are read.
                .on_notification(move |note| drop(tell.send(note)))
                .on_ask(move |question| asking.clone().put(question))
                .stream::<Box<RawValue>>(&method, &params);
            let runner = Runner {
                task: Arc::clone(&task),
                tasks: Arc::clone(&self.a2a.tasks),
                call: Some(call),
                notes,
                questions,
                client_left,
                gone: {
                    let message_id = message_id.clone();
                    Box::pin(async move { gone(&client, &message_id).await })
                },
                callers: Arc::clone(&self.callers),
                principal: principal.clone(),
                expose: expose.clone(),
                message_id,
                _place: stream_place,
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
                return Err(refusal);
            }
            // The task has its own place, as a stream.
            let follow = Follow::of_call(task, id, principal, Arc::clone(&self.callers), client_is_here, place);
            return Ok(streamed(follow.events(), expose.timeout()));
        }
        if !shows {
            task.settled(false).await;
        }
        drop(client_is_here);
        let answer = match task.take_outcome() {
            Some(outcome) => task.message_of(&outcome?),
            None => task.as_result(),
        };
        Ok(holding(whole(&id, answer), place))
    }

    /// Handles a message for a task that waits for one.
    async fn a2a_goes_on(
        &self,
        sender: Sender<'_>,
        incoming: Incoming,
        is_stream: bool,
    ) -> Result<Response<Body>, Refusal> {
        let Sender { principal, expose, id, place, .. } = sender;
        let service = expose.service.as_str();
        let named = incoming.task.as_deref().unwrap_or_default();
        let task = self.a2a.tasks.of(&principal, service, named).ok_or_else(fault::no_task)?;
        if incoming.context.as_ref().is_some_and(|context| context != task.context()) {
            return Err(fault::invalid("message.contextId", "the task belongs to another context"));
        }
        let Input::Data(answer) = incoming.input else {
            let wanted = "answer a question with a `data` part: the result of its request, as an object";
            return Err(fault::invalid("message.parts[0]", wanted));
        };
        // Opened before the answer is used, so that nothing is done that the client could not be told about.
        let stream = if is_stream { Some(self.admission.open_stream(&principal, service)?) } else { None };
        if !task.answer(&incoming.id, answer) {
            return Err(fault::unsupported("the task is not waiting for a message"));
        }
        if let Some(stream) = stream {
            let follow = Follow::of_task(task, id, principal, Arc::clone(&self.callers), stream);
            return Ok(streamed(follow.events(), expose.timeout()));
        }
        if !incoming.returns_immediately {
            task.settled(false).await;
        }
        Ok(holding(whole(&id, task.as_result()), place))
    }

    /// Forwards a request to a service that is an agent itself.
    async fn a2a_native(&self, sender: Sender<'_>, request: &Request) -> Result<Response<Body>, Refusal> {
        let Sender { principal, expose, id, place, .. } = sender;
        if !expose.allows(&request.method) {
            return Err(fault(-32601, "METHOD_NOT_FOUND", "there is no such method"));
        }
        let is_stream = matches!(request.method.as_str(), "SendStreamingMessage" | "SubscribeToTask");
        let stream_place =
            if is_stream { Some(self.admission.open_stream(&principal, expose.service.as_str())?) } else { None };
        let client = self.bus.client().await.map_err(|_| Refusal::away().of_a2a())?;
        let message_id = MessageId::default();
        let calling = self.callers.request(&client, &principal, expose).note_id(&message_id).max_bytes(RESULT);
        let mut call: CallStream<Box<RawValue>> = calling.stream(&request.method, &request.params);
        let away = {
            let message_id = message_id.clone();
            Box::pin(async move { gone(&client, &message_id).await })
        };
        let Some(stream_place) = stream_place else {
            let outcome = tokio::select! {
                outcome = call.finish::<Box<RawValue>>() => outcome.map_err(|error| translated(expose, &error)),
                // Unknown even if `gone` says that it was not sent: the task that sends may just have done so.
                _ = away => Err(Refusal::lost().of_a2a()),
            };
            return Ok(holding(whole(&id, outcome?), place));
        };
        let mut native = Native::new(id, principal, expose, Arc::clone(&self.callers), away, stream_place);
        // A call that has failed by then can still have an HTTP status of its own.
        if let Ok(first) = timeout(SILENCE, call.next()).await {
            match first {
                Some(Ok(first)) => native.begin(first),
                Some(Err(error)) => return Err(translated(expose, &error)),
                None => {
                    let result = call.finish().await.map_err(|error| translated(expose, &error))?;
                    native.begin(result);
                    return Ok(streamed(native.events(None), expose.timeout()));
                }
            }
        }
        drop(place);
        Ok(streamed(native.events(Some(call)), expose.timeout()))
    }
}

/// Whether errors must have the form of A2A.
pub(super) fn is_for(head: &Parts) -> bool {
    head.uri.path().starts_with("/a2a/")
}

/// The single call in a message.
fn one_call(text: &[u8]) -> Result<(Id, Request), Refusal> {
    match rpc::Body::parse(text, &Limits::default()).map_err(|error| Refusal::of_text(&error).of_a2a())? {
        rpc::Body::Single(Ok(request)) => match request.id.clone() {
            Some(id) => Ok((id, request)),
            None => Err(fault::bad("an A2A request must have an `id`")),
        },
        rpc::Body::Single(Err(invalid)) => Err(Refusal::of_invalid(&invalid).of_a2a()),
        rpc::Body::Batch(_) => Err(fault::bad("A2A has no batches")),
    }
}

/// A response with this result, as JSON.
fn text_of(id: &Id, result: Box<RawValue>) -> Vec<u8> {
    rpc::Response::new(id.clone(), Ok(result)).to_bytes()
}

/// An object with one member, as for a `oneof`.
fn chosen(name: &'static str, value: &RawValue) -> Box<RawValue> {
    raw(&std::collections::BTreeMap::from([(name, value)]))
}
