//! One tool call: its parts and progress, its questions to the people at the client, and its outcome.
//! Never says that a call did nothing unless that is certain.

use std::borrow::Cow;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use futures_util::StreamExt as _;
use sealwire::client::{CallStream, Client, ClientError, MessageId, Receipt};
use sealwire::rpc::{Request, RpcError, code};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use tokio::sync::{mpsc, oneshot};

use super::message::{Asked, Capabilities, Era, Fault, Id, Level, Members, Meta, Outcome, members, notification, raw};
use super::outbox::Outbox;
use super::server::{Asker, Peer, Server, Waiting};
use crate::bus::{self, Away, gone};
use crate::caller::Caller;
use crate::catalogue::Tool;
use crate::seal::{Kind, Seal};

/// The largest result, in bytes, which is far more than a model can read.
pub(super) const MAX_RESULT: usize = 4 << 20;
/// The shortest interval between two progress notifications.
const PROGRESS: Duration = Duration::from_millis(50);
/// The longest text of a progress notification, in characters.
const PROGRESS_TEXT: usize = 1_000;
/// How many calls may wait for answers from their client, and for how long.
const PARKED: usize = 16;
const PARKED_FOR: Duration = Duration::from_secs(600);

/// The client's answer to a question: a result, or the text of an error.
pub(super) type QuestionReply = Result<Box<RawValue>, String>;

/// A call in progress.
pub(super) struct Ongoing {
    tool: Arc<Tool>,
    client: Client,
    id: MessageId,
    /// `None` under HMAC, where nobody else could check it.
    receipt: Option<Receipt>,
    /// The arguments of the call: only a request with the same ones can resume it.
    arguments: Box<RawValue>,
    /// `Some` until its result is taken.
    stream: Option<CallStream<Box<RawValue>>>,
    notes: Arc<Notes>,
    /// `None` if nobody can be asked.
    questions: Option<mpsc::Receiver<Question>>,
    parts: Vec<Box<RawValue>>,
    part_bytes: usize,
}

/// The method's notifications on their way to the client. Filled while the stream is polled, bounded by the call's window, and emptied
/// right after.
#[derive(Default)]
struct Notes(Mutex<Vec<Request>>);

/// A question of the method, on its way to people.
struct Question {
    params: Value,
    reply: oneshot::Sender<Value>,
}

/// A call waiting for its client to come back with answers.
pub(super) struct Parked {
    /// The client that it belongs to.
    peer: Arc<str>,
    caller: Arc<dyn Caller>,
    ongoing: Ongoing,
    question: Question,
    since: Instant,
}

/// The `requestState` that a client keeps for a waiting call; sealed if other clients could present it.
#[derive(Serialize, Deserialize)]
struct RequestState {
    /// The replica where it waits.
    #[serde(default)]
    at: String,
    call: String,
    /// The digest of the request: no other can resume the call.
    digest: String,
}

/// The id of a question whose answer may arrive at another replica.
#[derive(Serialize, Deserialize)]
struct QuestionId {
    /// The replica that asks.
    at: String,
    name: String,
}

impl QuestionId {
    fn sealed(seal: &Seal, peer: &Peer, name: &str) -> Option<String> {
        let id = Self { at: seal.place().to_owned(), name: name.to_owned() };
        // Valid for as long as a call may take.
        seal.seal(Kind::McpQuestion, &peer.name, PARKED_FOR, id, SystemTime::now()).ok()
    }
}

/// How far a call has come.
enum Step {
    Ended(Result<Box<RawValue>, ClientError>),
    Asks(Question),
    TooLarge,
    /// Without a broker for too long. The call may have been sent: the task that sends runs concurrently.
    Gone,
}

/// `rpc.progress`.
#[derive(Deserialize)]
struct Progress {
    progress: f64,
    total: Option<f64>,
    message: Option<String>,
}

/// `notifications/message`.
#[derive(Serialize, Deserialize)]
struct LogMessage {
    level: Level,
    #[serde(skip_serializing_if = "Option::is_none")]
    logger: Option<String>,
    data: Value,
}

const MESSAGE: &str = "notifications/message";

#[derive(Serialize)]
struct Text<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    text: &'a str,
}

impl<'a> Text<'a> {
    fn new(text: &'a str) -> Self {
        Self { kind: "text", text }
    }
}

/// The result of an MCP tool, as a backend passes it on.
#[derive(Deserialize)]
struct Content {
    content: Option<Box<RawValue>>,
    #[serde(rename = "structuredContent")]
    structured: Option<Box<RawValue>>,
}

impl Parked {
    /// Whether its caller may still receive it.
    pub(super) fn holds(&self) -> bool {
        self.caller.holds()
    }
}

impl Waiting {
    pub(super) fn forget_parked(&mut self) {
        self.parked.retain(|_, parked| parked.since.elapsed() < PARKED_FOR);
    }
}

impl Server {
    pub(super) async fn call(&self, peer: &Peer, era: Era, asked: &mut Asked, capabilities: &Capabilities) -> Outcome {
        let Some(name) = &asked.name else { return Err(Fault::params("`name` is missing")) };
        let arguments = match asked.arguments.take() {
            Some(arguments) if arguments.get().starts_with('{') => arguments,
            Some(_) => return Err(Fault::params("`arguments` must be an object")),
            None => raw(&Members::new()),
        };
        let tool = self.tool(&*peer.caller, name).await?;
        let mut ongoing = match &asked.state {
            // Its next question would wait until the deadline. The call stays, for a retry with the capability.
            Some(_) if !capabilities.forms() => {
                let message = "a call with `requestState` may ask again, but this client has not declared that it can show \
                               people a form: come back with the capability `elicitation`";
                return Err(Fault::params(message).with(json!({ "outcome": "unknown" })));
            }
            Some(state) => {
                let responses = asked.responses.take().unwrap_or_default();
                self.resumed(peer, state, arguments.get(), &tool, responses)?
            }
            None => {
                let client = match self.services.bus.client().await {
                    Ok(client) => client,
                    Err(away) => return Ok(failed(era, &away.to_string())),
                };
                Self::begin(peer, client, tool, arguments, capabilities.forms())
            }
        };
        let step = Box::pin(self.go_on(peer, &mut ongoing, era, &asked.meta)).await;
        match step {
            Step::Ended(Ok(result)) => Ok(succeeded(era, &ongoing.tool, &result, ongoing.receipt())),
            Step::Ended(Err(error)) => refused(era, &ongoing.tool, &error, ongoing.receipt()),
            Step::TooLarge => Ok(failed(era, "the result is larger than 4 MiB")),
            Step::Gone => {
                let message = "the connection to the broker was lost during the call";
                Err(Fault::internal(message).with(json!({ "outcome": "unknown" })))
            }
            Step::Asks(question) => self.park(peer, ongoing, question),
        }
    }

    fn begin(peer: &Peer, client: Client, tool: Arc<Tool>, arguments: Box<RawValue>, asks: bool) -> Ongoing {
        let notes = Arc::new(Notes::default());
        let noted = Arc::clone(&notes);
        let id = MessageId::default();
        let receipt = bus::receipt(&client);
        let mut request = peer
            .request(&client, &tool)
            .note_id(&id)
            .max_bytes(MAX_RESULT)
            .on_notification(move |told| noted.lock().push(told));
        if let Some(receipt) = &receipt {
            request = request.note_receipt(receipt);
        }
        let mut questions = None;
        if asks {
            let (ask, asked) = mpsc::channel(1);
            questions = Some(asked);
            request = request.on_ask(move |question| {
                let ask = ask.clone();
                async move { put(question, &ask).await }
            });
        }
        let stream = Some(request.stream(&tool.method.name, &arguments));
        let (parts, part_bytes) = (Vec::new(), 0);
        Ongoing { tool, client, id, receipt, arguments, stream, notes, questions, parts, part_bytes }
    }

    /// Drives the call until it ends, or asks a question that only another request of the client can answer.
    async fn go_on(&self, peer: &Peer, ongoing: &mut Ongoing, era: Era, meta: &Meta) -> Step {
        let level = meta.level.filter(|_| era == Era::Modern);
        let mut telling = Telling {
            out: &peer.out,
            token: meta.progress.as_ref(),
            level,
            told: None,
            last: 0.0,
            held: None,
            steps: 0.0,
        };
        let mut asked: Option<AskedClient<'_>> = None;
        let Ongoing { tool, client, id, stream, notes, questions, parts, part_bytes, .. } = ongoing;
        let mut gone = std::pin::pin!(gone(client, id));
        loop {
            tokio::select! {
                biased;
                answer = answer_of(&mut asked), if asked.is_some() => {
                    if let Some(asked) = asked.take() {
                        asked.answer(answer);
                    }
                }
                Some(question) = asking(questions), if asked.is_none() => {
                    match era {
                        Era::Modern => return Step::Asks(question),
                        Era::Legacy(_) => asked = Some(Box::pin(self.ask(peer, question)).await),
                    }
                }
                _ = &mut gone => return Step::Gone,
                part = next(stream, notes, &mut telling) => match part {
                    Some(Ok(part)) => {
                        telling.part(&part);
                        if tool.method.is_stream {
                            *part_bytes += part.get().len() + 1;
                            if *part_bytes > MAX_RESULT {
                                return Step::TooLarge;
                            }
                            parts.push(part);
                        }
                    }
                    Some(Err(error)) => return Step::Ended(Err(error)),
                    None => break,
                },
            }
        }
        telling.flush();
        let Some(stream) = stream.take() else { return Step::Ended(Err(ClientError::Ended)) };
        // The stream has ended, so this does not wait.
        let result = Box::pin(stream.finish::<Box<RawValue>>()).await;
        Step::Ended(result.map(|result| if tool.method.is_stream { raw(parts) } else { result }))
    }

    /// Asks the people at a client that accepts requests.
    async fn ask<'a>(&'a self, peer: &'a Peer, question: Question) -> AskedClient<'a> {
        let (reply, replied) = oneshot::channel();
        let id = {
            let mut waiting = self.waiting();
            waiting.asked += 1;
            let name = format!("question-{}", waiting.asked);
            let id = self.seal.as_ref().and_then(|seal| QuestionId::sealed(seal, peer, &name)).unwrap_or(name);
            waiting.questions.insert(id.clone(), Asker { peer: Arc::clone(&peer.name), reply });
            id
        };
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": ELICIT, "params": question.params });
        peer.out.send(&request).await;
        AskedClient { server: self, out: &peer.out, id, question: Some(question), replied }
    }

    /// Keeps a call until its client comes back with answers.
    fn park(&self, peer: &Peer, ongoing: Ongoing, question: Question) -> Outcome {
        let digest = digest(&ongoing.tool, ongoing.arguments.get());
        let asked = json!({ QUESTION: { "method": ELICIT, "params": question.params } });
        let token;
        {
            let mut waiting = self.waiting();
            waiting.forget_parked();
            if waiting.parked.values().filter(|parked| parked.peer == peer.name).count() >= PARKED {
                // The call ran until it asked.
                let message = format!("{PARKED} calls wait for answers: answer those first; this one was cancelled");
                return Err(Fault::internal(message).with(json!({ "outcome": "unknown" })));
            }
            waiting.asked += 1;
            // Unique to this process, since no other knows the call.
            token = format!("{:x}-{}", self.started_ns, waiting.asked);
            let name = Arc::clone(&peer.name);
            let caller = Arc::clone(&peer.caller);
            let parked = Parked { peer: name, caller, ongoing, question, since: Instant::now() };
            waiting.parked.insert(token.clone(), parked);
        }
        let kind = ("resultType", "input_required".into());
        let state = match &self.seal {
            None => token,
            Some(seal) => {
                let sealed = seal.seal(
                    Kind::McpRequestState,
                    &peer.name,
                    PARKED_FOR,
                    RequestState { at: seal.place().to_owned(), call: token.clone(), digest },
                    SystemTime::now(),
                );
                sealed.map_err(|_| {
                    // Nobody could resume it.
                    drop(self.waiting().parked.remove(&token));
                    Fault::internal("the door cannot seal `requestState`").with(json!({ "outcome": "unknown" }))
                })?
            }
        };
        Ok(raw(&members([kind, ("inputRequests", asked), ("requestState", state.into())])))
    }

    /// The replica where the call waits that this caller resumes; empty if there is only one.
    pub(crate) fn waits_at(&self, peer: &str, state: &str) -> Option<String> {
        let opened = self.seal.as_ref()?.open(Kind::McpRequestState, peer, state, SystemTime::now());
        opened.map(|state: RequestState| state.at)
    }

    /// The replica that asked this caller.
    pub(crate) fn asked_at(&self, peer: &str, id: &RawValue) -> Option<String> {
        let Ok(Id::Text(id)) = serde_json::from_str(id.get()) else { return None };
        let opened = self.seal.as_ref()?.open(Kind::McpQuestion, peer, &id, SystemTime::now());
        opened.map(|id: QuestionId| id.at)
    }

    /// The waiting call that a request resumes.
    fn resumed(
        &self,
        peer: &Peer,
        state: &str,
        arguments: &str,
        tool: &Tool,
        mut responses: Map<String, Value>,
    ) -> Result<Ongoing, Fault> {
        let gone = || {
            let message = "this `requestState` is unknown or was already used: its call may have run";
            Fault::params(message).with(json!({ "outcome": "unknown" }))
        };
        let opened = match &self.seal {
            None => state.to_owned(),
            Some(seal) => {
                let opened = seal.open(Kind::McpRequestState, &peer.name, state, SystemTime::now());
                let opened: RequestState = opened.ok_or_else(gone)?;
                if digest(tool, arguments) != opened.digest {
                    return Err(gone());
                }
                opened.call
            }
        };
        let parked = {
            let mut waiting = self.waiting();
            // Other clients can neither resume nor end it.
            match waiting.parked.get(&opened) {
                Some(parked) if parked.peer == peer.name => waiting.parked.remove(&opened),
                _ => None,
            }
        };
        let parked = parked.ok_or_else(gone)?;
        let begun = &parked.ongoing.tool;
        let is_same = (&tool.service, &tool.method.name) == (&begun.service, &begun.method.name);
        if !is_same || parked.ongoing.arguments.get() != arguments {
            return Err(gone());
        }
        let answer = responses.remove(QUESTION).unwrap_or_else(|| json!({ "action": "cancel" }));
        // If the call has ended meanwhile, its end is reported instead.
        drop(parked.question.reply.send(answer));
        Ok(parked.ongoing)
    }
}

impl Ongoing {
    /// The `_meta` of a result: the proofs of request and answer.
    fn receipt(&self) -> Map<String, Value> {
        let proofs = self.receipt.as_ref().and_then(|receipt| receipt.request().zip(receipt.answer()));
        let proofs = proofs.map(|(request, answer)| json!({ "request": request, "answer": answer }));
        proofs.map(|proofs| (RECEIPT.to_owned(), proofs)).into_iter().collect()
    }
}

/// The `_meta` member that holds the proofs.
const RECEIPT: &str = "dev.sealwire/receipt";

fn digest(tool: &Tool, arguments: &str) -> String {
    let mut digest = Sha256::new();
    for part in [tool.service.as_str(), &tool.method.name, arguments] {
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

const ELICIT: &str = "elicitation/create";
/// The name of the question in `inputRequests`: only one is asked at a time.
const QUESTION: &str = "question";

/// A question to a client. Dropping it withdraws the question if it is still open.
struct AskedClient<'a> {
    server: &'a Server,
    out: &'a Outbox,
    id: String,
    question: Option<Question>,
    replied: oneshot::Receiver<QuestionReply>,
}

impl AskedClient<'_> {
    fn answer(mut self, reply: QuestionReply) {
        if let Some(question) = self.question.take() {
            let answer = reply.ok().and_then(|reply| serde_json::from_str(reply.get()).ok());
            drop(question.reply.send(answer.unwrap_or_else(|| json!({ "action": "cancel" }))));
        }
    }
}

impl Drop for AskedClient<'_> {
    fn drop(&mut self) {
        let was_open = self.server.waiting().questions.remove(&self.id).is_some();
        if was_open {
            self.out.send_now(&notification("notifications/cancelled", &json!({ "requestId": self.id })));
        }
    }
}

impl Notes {
    fn lock(&self) -> MutexGuard<'_, Vec<Request>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The next part. Notifications that came before it are sent first.
async fn next(
    stream: &mut Option<CallStream<Box<RawValue>>>,
    notes: &Notes,
    telling: &mut Telling<'_>,
) -> Option<Result<Box<RawValue>, ClientError>> {
    let Some(stream) = stream else { return None };
    poll_fn(|context| {
        let part = stream.poll_next_unpin(context);
        notes.lock().drain(..).for_each(|note| telling.note(&note));
        part
    })
    .await
}

async fn asking(questions: &mut Option<mpsc::Receiver<Question>>) -> Option<Question> {
    match questions {
        Some(questions) => questions.recv().await,
        None => std::future::pending().await,
    }
}

async fn answer_of(asked: &mut Option<AskedClient<'_>>) -> QuestionReply {
    match asked {
        Some(asked) => (&mut asked.replied).await.unwrap_or_else(|_| Err(String::new())),
        None => std::future::pending().await,
    }
}

/// Passes a question of the method on to people; refuses everything but a form.
async fn put(question: Request, ask: &mpsc::Sender<Question>) -> Result<Value, RpcError> {
    if question.method != ELICIT {
        return Err(RpcError::application(NOT_ASKED, "only `elicitation/create` can ask people at this client"));
    }
    let params = question.params.as_ref().and_then(|params| serde_json::from_str(params.raw().get()).ok());
    let params: Value = params.filter(is_form).ok_or_else(|| {
        RpcError::invalid_params("a question needs a `message`, and a `requestedSchema` of an object of plain values")
    })?;
    let (reply, replied) = oneshot::channel();
    let cancelled = || json!({ "action": "cancel" });
    if ask.send(Question { params, reply }).await.is_err() {
        return Ok(cancelled());
    }
    Ok(replied.await.unwrap_or_else(|_| cancelled()))
}

/// The error code for a question that cannot be asked.
const NOT_ASKED: i32 = 1;

/// Whether clients can show this question.
fn is_form(params: &Value) -> bool {
    let schema = params.get("requestedSchema");
    let properties = schema.and_then(|schema| schema.get("properties")).and_then(Value::as_object);
    let plain = |schema: &Value| {
        let kind = schema.get("type").and_then(Value::as_str);
        kind.is_some_and(|kind| ["string", "number", "integer", "boolean", "array"].contains(&kind))
    };
    params.get("message").is_some_and(Value::is_string)
        && params.get("mode").is_none_or(|mode| mode == "form")
        && schema.is_some_and(|schema| schema.get("type").is_some_and(|kind| kind == "object"))
        && properties.is_some_and(|properties| properties.values().all(plain))
}

/// Tells the client about the progress of a call, if it wants to know. The progress only grows, and is not sent too often.
struct Telling<'a> {
    out: &'a Outbox,
    token: Option<&'a Id>,
    /// The lowest level of log messages that it wants; `None` if it wants none.
    level: Option<Level>,
    told: Option<Instant>,
    last: f64,
    held: Option<Value>,
    steps: f64,
}

impl Telling<'_> {
    fn note(&mut self, note: &Request) {
        let params = note.params.as_ref().map(|params| params.raw());
        if note.method == "rpc.progress"
            && let Some(Ok(progress)) = params.map(|params| serde_json::from_str::<Progress>(params.get()))
        {
            self.tell(progress.progress, progress.total, progress.message);
        }
        // A log message of an MCP server behind the bus.
        if note.method == MESSAGE
            && let (Some(Ok(said)), Some(least)) =
                (params.map(|params| serde_json::from_str::<LogMessage>(params.get())), self.level)
            && said.level >= least
        {
            self.out.send_now(&notification(MESSAGE, &json!(said)));
        }
    }

    fn part(&mut self, part: &RawValue) {
        self.steps += 1.0;
        self.tell(self.steps, None, Some(as_text(part).into_owned()));
    }

    fn tell(&mut self, progress: f64, total: Option<f64>, message: Option<String>) {
        let Some(token) = self.token else { return };
        if progress <= self.last {
            return;
        }
        self.last = progress;
        let mut params = Map::new();
        params.insert("progressToken".to_owned(), json!(token));
        params.insert("progress".to_owned(), json!(progress));
        params.extend(total.map(|total| ("total".to_owned(), json!(total))));
        let message = message.map(|text| text.chars().take(PROGRESS_TEXT).collect::<String>());
        params.extend(message.map(|message| ("message".to_owned(), message.into())));
        self.held = Some(notification("notifications/progress", &Value::Object(params)));
        if self.told.is_none_or(|told| told.elapsed() >= PROGRESS) {
            self.flush();
        }
    }

    /// Sends the progress that was held back.
    fn flush(&mut self) {
        if let Some(held) = self.held.take() {
            self.told = Some(Instant::now());
            self.out.send_now(&held);
        }
    }
}

/// The schema of a tool's result, if it has one.
pub(super) fn output_schema(era: Era, tool: &Tool) -> Option<Value> {
    let schema: Value = serde_json::from_str(tool.method.result.schema.get()).ok()?;
    let members = schema.as_object().filter(|members| !members.is_empty())?;
    if tool.mcp.result.is_some() {
        return None;
    }
    if !era.wants_objects() || members.get("type").is_some_and(|kind| kind == "object") {
        return Some(schema);
    }
    // A schema with references cannot be nested: they would no longer resolve.
    let moves = !tool.method.result.schema.get().contains("\"$");
    moves.then(|| json!({ "type": "object", "properties": { "result": schema }, "required": ["result"] }))
}

/// The result of a call that succeeded.
fn succeeded(era: Era, tool: &Tool, result: &RawValue, receipt: Map<String, Value>) -> Box<RawValue> {
    let meta = (!receipt.is_empty()).then(|| ("_meta".to_owned(), raw(&receipt)));
    if tool.mcp.result.as_deref() == Some("content")
        && let Ok(Content { content: Some(content), structured }) = serde_json::from_str(result.get())
    {
        let mut all = Members::new();
        all.insert("content".to_owned(), content);
        all.extend(meta);
        all.extend(
            structured.filter(|_| era.has_structured_content()).map(|value| ("structuredContent".to_owned(), value)),
        );
        return era.result(all, None);
    }
    let mut all = Members::new();
    all.extend(meta);
    all.insert("content".to_owned(), raw(&[Text::new(&as_text(result))]));
    if era.has_structured_content() {
        #[derive(Serialize)]
        struct Wrapped<'a> {
            result: &'a RawValue,
        }
        let is_object = result.get().starts_with('{');
        let structured = if is_object || !era.wants_objects() { result.to_owned() } else { raw(&Wrapped { result }) };
        all.insert("structuredContent".to_owned(), structured);
    }
    era.result(all, None)
}

/// A string as its plain text, and anything else as JSON.
fn as_text(value: &RawValue) -> Cow<'_, str> {
    let json = value.get();
    let text = json.starts_with('"').then(|| serde_json::from_str(json).map(Cow::Owned).ok()).flatten();
    text.unwrap_or(Cow::Borrowed(json))
}

/// A result with `isError`, for failures that the model can react to.
fn failed(era: Era, text: &str) -> Box<RawValue> {
    let mut all = Members::new();
    all.insert("content".to_owned(), raw(&[Text::new(text)]));
    all.insert("isError".to_owned(), raw(&true));
    era.result(all, None)
}

/// A failed call in the form that MCP clients expect.
fn refused(era: Era, tool: &Tool, error: &ClientError, receipt: Map<String, Value>) -> Outcome {
    let ClientError::Remote(remote) = error else { return unsaid(era, error) };
    let data = remote.data().map(|data| serde_json::from_str::<Value>(data.get()).unwrap_or_default());
    let retry = data.as_ref().and_then(|data| data.get("retry_after_ms")).and_then(Value::as_u64);
    let text = match (remote.code(), retry) {
        (code::METHOD_NOT_FOUND, _) => return Err(Fault::params(format!("Unknown tool: {}", tool.method.name))),
        // The service refuses the door's own message, not the caller's.
        (code::UNAUTHENTICATED | code::STALE | code::REPLAYED, _) => return unsaid(era, error),
        // SPEC.md §10: every tool call is a stream, so it may have begun. A client that is told to retry would do so.
        (code::OVERLOADED, _) => return unsaid(era, error),
        (code::PERMISSION_DENIED, _) if !error.is_outcome_unknown() => {
            "permission denied: not with these arguments".to_owned()
        }
        (_, Some(ms)) => format!("{}: retry after {ms} ms", remote.message()),
        _ => remote.message().to_owned(),
    };
    let content = data.as_ref().and_then(|data| data.get("content")).filter(|_| tool.mcp.result.is_some());
    let mut all = Members::new();
    match content {
        // The MCP tool's own words.
        Some(content) if content.is_array() => drop(all.insert("content".to_owned(), raw(content))),
        _ => drop(all.insert("content".to_owned(), raw(&[Text::new(&text)]))),
    }
    all.insert("isError".to_owned(), raw(&true));
    let mut said = json!({ "code": remote.code(), "message": remote.message() });
    if let (Some(said), Some(data)) = (said.as_object_mut(), data) {
        said.insert("data".to_owned(), data);
    }
    let mut meta = receipt;
    meta.insert("dev.sealwire/error".to_owned(), said);
    all.insert("_meta".to_owned(), raw(&meta));
    Ok(era.result(all, None))
}

/// An error that does not come from the service.
fn unsaid(era: Era, error: &ClientError) -> Outcome {
    match error {
        ClientError::Disconnected { .. } | ClientError::Connect(_) => Ok(failed(era, &error.to_string())),
        // The request could not be sent.
        ClientError::TooLarge { .. }
        | ClientError::Invalid(_)
        | ClientError::InboxForbidden { sent: false, .. }
        | ClientError::Closed { sent: false } => Ok(failed(era, &format!("nothing was sent: {error}"))),
        ClientError::Busy { .. } | ClientError::TooManyStreams { .. } => {
            Ok(failed(era, "too many calls are under way, and nothing was sent: call again later"))
        }
        ClientError::Token(fault) => Err(Fault::of_token(fault)),
        ClientError::ResultTooLarge { .. } => Ok(failed(era, &error.to_string())),
        _ => Err(Fault::internal(error.to_string()).with(json!({ "outcome": "unknown" }))),
    }
}

impl From<Away> for Fault {
    fn from(away: Away) -> Self {
        Self::internal(away.to_string())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use sealwire::client::InvalidRequest;

    use super::*;

    #[test]
    fn what_was_certainly_not_sent_is_not_said_to_be_unknown() {
        let not_sent = [
            ClientError::TooLarge { size: 2, limit: 1 },
            ClientError::Invalid(InvalidRequest::IdempotencyKey),
            ClientError::Closed { sent: false },
            ClientError::Busy { limit: 1 },
            ClientError::Disconnected { waited: Duration::ZERO, cause: None },
        ];
        for error in &not_sent {
            let said = unsaid(Era::Modern, error).unwrap();
            assert!(said.get().contains("nothing was sent") && said.get().contains("\"isError\":true"), "{said}");
        }
        for error in [ClientError::ConnectionLost, ClientError::Ended, ClientError::Closed { sent: true }] {
            assert_eq!(unsaid(Era::Modern, &error).unwrap_err().data, Some(json!({ "outcome": "unknown" })), "{error}");
        }
    }
}
