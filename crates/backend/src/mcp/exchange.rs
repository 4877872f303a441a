//! A request to a server for a caller: what comes before the answer goes to the caller, and the answer ends it.
//! Never tells a server more than the request unless the configuration says so, and never answers a question in the caller's place.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;
use hyper::header::HeaderMap;
use sealwire::errors::AskError;
use sealwire::internal::rpc::Response;
use sealwire::{Ctx, RpcError};
use sealwire_mcp::{ClientCapabilities, ELICIT, INPUT, Members, RESULT, insert};
use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::Semaphore;

use super::conversation::{Event, Exchange, refusal};
use super::questions::Questions;
use super::session::{CallContext, Session, gone};
use super::types::Refusal;
use crate::backend::Call;
use crate::schema::{CheckError, Schema};

/// How often a server may require more input for one call (MCP 2026-07-28, multi round-trip requests).
const ROUNDS: usize = 8;
/// How many questions of a round a caller is asked at a time: clients answer so many.
const AT_A_TIME: usize = 8;
/// The error code of a tool that says that it has failed.
pub(super) const TOOL_ERROR: i32 = 1;
/// The longest error message that is taken from a server, in characters.
const MESSAGE: usize = 1_000;

/// The answer of a server that requires more input first.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct InputRequests<'a> {
    #[serde(borrow, default)]
    input_requests: BTreeMap<String, Question<'a>>,
    request_state: Option<String>,
}

#[derive(Deserialize)]
struct Question<'a> {
    method: String,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kind {
    result_type: Option<String>,
}

/// How a request ends without a result.
#[derive(Debug)]
pub(super) enum CallError {
    Error(RpcError),
    /// The server had ended the session before, and has done nothing.
    Lost,
}

impl From<RpcError> for CallError {
    fn from(error: RpcError) -> Self {
        Self::Error(error)
    }
}

/// Makes a request for a caller, to its end. Asks `may_go_on` before each round but the first.
pub(super) async fn make(
    session: &Session,
    Call { ctx, permit, traceparent, .. }: &Call,
    method: &str,
    params: Members,
    headers: &HeaderMap,
    send_caller: bool,
    may_go_on: impl Fn() -> Result<(), RpcError>,
) -> Result<Box<RawValue>, CallError> {
    let capable = session.questions().of(ctx);
    let about = CallContext {
        takes_frames: ctx.takes_frames(),
        capable,
        traceparent: traceparent.as_deref(),
        caller: ctx.caller(),
        permit,
        send_caller,
        headers,
    };
    let mut more = Members::new();
    for _ in 0..ROUNDS {
        let mut params = params.clone();
        params.append(&mut more);
        let begun = session.begin(method, params, &about).await;
        let mut exchange =
            begun.map_err(|error| if session.conversation().was_lost() { CallError::Lost } else { error.into() })?;
        let result = answer(&mut exchange, ctx, capable).await?;
        let kind = serde_json::from_str::<Kind>(result.get()).ok().and_then(|kind| kind.result_type);
        match kind.as_deref() {
            _ if session.revision().has_handshake() => return Ok(result),
            None | Some("complete") => return Ok(result),
            Some("input_required") => {
                more = input(ctx, capable, &result).await?;
                may_go_on()?;
            }
            Some(_) => return Err(RpcError::internal("the server's result is of a type that is not known").into()),
        }
    }
    Err(RpcError::internal(format!("the server wanted more input after {ROUNDS} rounds")).into())
}

/// Waits for the answer, and passes what comes before it to the caller.
async fn answer(exchange: &mut Exchange, ctx: &Ctx, capable: ClientCapabilities) -> Result<Box<RawValue>, CallError> {
    let outcome = loop {
        tokio::select! {
            biased;
            Some(event) = exchange.events.recv() => {
                forward(exchange, ctx, capable, event).await?;
                if let Some(event) = exchange.newest() {
                    forward(exchange, ctx, capable, event).await?;
                }
            }
            ended = &mut exchange.outcome => break ended,
        }
    };
    // Everything that came before the answer goes first.
    while let Some(event) = exchange.events.try_recv().ok().or_else(|| exchange.newest()) {
        forward(exchange, ctx, capable, event).await?;
    }
    match outcome {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(Refusal::Lost)) => Err(CallError::Lost),
        Ok(Err(Refusal::Server(error))) => Err(of_server(error).into()),
        Ok(Err(refusal)) => Err(RpcError::dependency(refusal.to_string()).into()),
        Err(_) => Err(gone().into()),
    }
}

async fn forward(exchange: &Exchange, ctx: &Ctx, capable: ClientCapabilities, event: Event) -> Result<(), RpcError> {
    match event {
        Event::Progress { done, total, message } => ctx.progress(done, total, message.as_deref()),
        Event::Note { method, params } => ctx.notify(&method, &params).await?,
        Event::Ask { id, method, params, thinking } => {
            let answer = ask(ctx, capable, &method, &params).await;
            let answer = match answer {
                Ok(answer) => Response::new(id, Ok(answer)).to_bytes(),
                Err(error) => refusal(&id, error.code(), error.message()),
            };
            let taken = exchange.reply(answer).await;
            drop(thinking);
            // The server would wait for the answer forever.
            taken.map_err(|reason| RpcError::dependency(format!("the answer to its question: {reason}")))?;
        }
    }
    Ok(())
}

/// The caller's answer to a question. Of people it is `cancel` if they cannot be asked or do not know the question; anything else is refused
/// then.
async fn ask(
    ctx: &Ctx,
    capable: ClientCapabilities,
    method: &str,
    params: &RawValue,
) -> Result<Box<RawValue>, RpcError> {
    let asked = match capable.covers(method) {
        true => ctx.ask::<Box<RawValue>>(method, params).await,
        false => Err(AskError::NoFrames),
    };
    let answer = match asked {
        Ok(answer) if Questions::is_answer(method, &answer) => Ok(answer),
        Ok(_) => Err(RpcError::application(NOT_ASKED, "the caller's answer cannot be read")),
        Err(AskError::Refused(error)) => Err(error),
        Err(_) => Err(RpcError::application(NOT_ASKED, "the caller cannot be asked this")),
    };
    match answer {
        Err(_) if method == ELICIT => {
            to_raw_value(&serde_json::json!({ "action": "cancel" })).map_err(RpcError::internal)
        }
        answer => answer,
    }
}

/// The error code for a question that its caller does not answer; the one of MCP for people who say no.
const NOT_ASKED: i32 = -1;

/// The members that the next round adds.
async fn input(ctx: &Ctx, capable: ClientCapabilities, result: &RawValue) -> Result<Members, RpcError> {
    let unreadable = |error: serde_json::Error| RpcError::internal(format!("what the server wants to know: {error}"));
    let wanted: InputRequests<'_> = serde_json::from_str(result.get()).map_err(unreadable)?;
    let mut answers = Members::new();
    let questions: Vec<_> = wanted.input_requests.into_iter().collect();
    for some in questions.chunks(AT_A_TIME) {
        let asked = some.iter().map(|(key, question)| async move {
            // MCP 2026-07-28, MRTR: a server must not ask for anything whose capability was not declared.
            if question.method != ELICIT && !capable.covers(&question.method) {
                return Err(RpcError::internal(format!("the server wants `{}`", question.method.escape_debug())));
            }
            let params = marked(question.params, key, some.len())?;
            let answer = ask(ctx, capable, &question.method, &params).await.map_err(|error| {
                // There is no other way to say so.
                let message: String = error.message().chars().take(MESSAGE).collect();
                RpcError::application(TOOL_ERROR, format!("`{}` was refused: {message}", question.method))
            })?;
            Ok((key.clone(), answer))
        });
        for answer in join_all(asked).await {
            let (key, answer) = answer?;
            answers.insert(key, answer);
        }
    }
    let mut more = Members::new();
    if !answers.is_empty() {
        insert(&mut more, "inputResponses", &answers);
    }
    if let Some(state) = wanted.request_state {
        insert(&mut more, "requestState", &state);
    }
    Ok(more)
}

/// The parameters of a question with the name that the server gave it, for callers that have to ask several at once.
fn marked(params: Option<&RawValue>, key: &str, of: usize) -> Result<Box<RawValue>, RpcError> {
    let read = |params: Option<&RawValue>| {
        params.map_or(Ok(Members::new()), |params| serde_json::from_str::<Members>(params.get()))
    };
    let mut params = read(params).map_err(RpcError::internal)?;
    let mut meta = read(params.get("_meta").map(|meta| &**meta)).map_err(RpcError::internal)?;
    insert(&mut meta, INPUT, &serde_json::json!({ "key": key, "of": of }));
    insert(&mut params, "_meta", &meta);
    to_raw_value(&params).map_err(RpcError::internal)
}

/// A server's error, as the caller may see it: its code is an application's, whatever it is.
pub(super) fn of_server(error: RpcError) -> RpcError {
    let message: String = error.message().chars().take(MESSAGE).collect();
    let data = error.data().map(ToOwned::to_owned);
    let error = RpcError::application(error.code(), message);
    match data {
        Some(data) => error.with_data(&data),
        None => error,
    }
}

/// The result of a tool.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ToolResult<'a> {
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    structured_content: Option<&'a RawValue>,
    #[serde(default)]
    is_error: bool,
}

#[derive(serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct Content<'a> {
    content: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    structured_content: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Block {
    text: Option<String>,
}

/// The result of a tool as the result of a call: what the tool's `outputSchema` describes, if it has one, otherwise its content; all of it for
/// a caller that can read that. A long check waits for one of the `checks`. `unfit` is told of a
/// result that does not fit.
pub(super) async fn of_tool(
    ctx: &Ctx,
    result: &RawValue,
    schema: Option<&Schema>,
    checks: &Arc<Semaphore>,
    unfit: impl Fn(),
) -> Result<Box<RawValue>, RpcError> {
    let unreadable = |error: &dyn std::fmt::Display| RpcError::internal(format!("the result of the tool: {error}"));
    let read: ToolResult<'_> = serde_json::from_str(result.get()).map_err(|error| unreadable(&error))?;
    let content = Content { content: read.content, structured_content: read.structured_content };
    let whole = ctx.is_capable_of(RESULT) == Some(true);
    let content = if whole { whole_of(result) } else { to_raw_value(&content) };
    let content = content.map_err(|error| unreadable(&error))?;
    if read.is_error {
        let blocks: Vec<Block> = read.content.and_then(|all| serde_json::from_str(all.get()).ok()).unwrap_or_default();
        let text = blocks.into_iter().find_map(|block| block.text).unwrap_or_default();
        let message: String = text.chars().take(MESSAGE).collect();
        let message = if message.is_empty() { "the tool failed".to_owned() } else { message };
        return Err(RpcError::application(TOOL_ERROR, message).with_data(&content));
    }
    let Some(schema) = schema else { return Ok(content) };
    let structured = read.structured_content.ok_or_else(|| unreadable(&"`structuredContent` is missing"))?;
    schema.fits(structured, checks).await.map_err(|error| match error {
        CheckError::Value(mismatch) => {
            unfit();
            unreadable(&mismatch)
        }
        unfit => RpcError::dependency(format!("`outputSchema`: {unfit}")),
    })?;
    Ok(if whole { content } else { structured.to_owned() })
}

/// All of a tool's result but what says whether it is one.
fn whole_of(result: &RawValue) -> Result<Box<RawValue>, serde_json::Error> {
    let mut all: Members = serde_json::from_str(result.get())?;
    all.retain(|name, _| !["isError", "resultType"].contains(&name.as_str()));
    to_raw_value(&all)
}
