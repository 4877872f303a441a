//! A request to a server for a caller: what comes before the answer goes to the caller, and the answer ends it.
//! Never tells a server more than the request unless the configuration says so, and never answers a question in the caller's place.

use std::collections::BTreeMap;
use std::sync::Arc;

use hyper::header::HeaderMap;
use sealwire::RpcError;
use sealwire::rpc::{Response, code};
use sealwire::service::Ctx;
use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::Semaphore;

use super::conversation::{Event, Exchange, Refusal};
use super::session::{About, Era, Members, Session, gone, insert};
use crate::backend::Call;
use crate::schema::{Schema, Unfit};

/// How often a server may require more input for one call (MCP 2026-07-28, multi round-trip requests).
const ROUNDS: usize = 8;
/// The error code of a tool that says that it has failed.
pub(super) const TOOL_ERROR: i32 = 1;
/// The longest error message that is taken from a server, in characters.
const MESSAGE: usize = 1_000;

/// The answer of a server that requires more input first.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wanted<'a> {
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
pub(super) enum End {
    Error(RpcError),
    /// The server had ended the session before, and has done nothing.
    Lost,
}

impl From<RpcError> for End {
    fn from(error: RpcError) -> Self {
        Self::Error(error)
    }
}

/// Makes a request for a caller, to its end. Asks `may_go_on` before each round but the first.
pub(super) async fn make(
    session: &Session,
    Call { ctx, permit, .. }: &Call,
    method: &str,
    params: Members,
    headers: &HeaderMap,
    send_caller: bool,
    may_go_on: impl Fn() -> Result<(), RpcError>,
) -> Result<Box<RawValue>, End> {
    let about = About {
        takes_frames: ctx.takes_frames(),
        traceparent: ctx.traceparent(),
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
            begun.map_err(|error| if session.conversation().was_lost() { End::Lost } else { error.into() })?;
        let result = answer(&mut exchange, ctx).await?;
        let kind = serde_json::from_str::<Kind>(result.get()).ok().and_then(|kind| kind.result_type);
        match kind.as_deref() {
            _ if session.era() == Era::Legacy => return Ok(result),
            None | Some("complete") => return Ok(result),
            Some("input_required") => {
                more = input(ctx, &result).await?;
                may_go_on()?;
            }
            Some(_) => return Err(RpcError::internal("the server's result is of a type that is not known").into()),
        }
    }
    Err(RpcError::internal(format!("the server wanted more input after {ROUNDS} rounds")).into())
}

/// Waits for the answer, and passes what comes before it to the caller.
async fn answer(exchange: &mut Exchange, ctx: &Ctx) -> Result<Box<RawValue>, End> {
    let outcome = loop {
        tokio::select! {
            biased;
            Some(event) = exchange.events.recv() => forward(exchange, ctx, event).await?,
            ended = &mut exchange.outcome => break ended,
        }
    };
    // Everything that came before the answer goes first.
    while let Ok(event) = exchange.events.try_recv() {
        forward(exchange, ctx, event).await?;
    }
    match outcome {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(Refusal::Lost)) => Err(End::Lost),
        Ok(Err(Refusal::Server(error))) => Err(of_server(error).into()),
        Ok(Err(refusal)) => Err(RpcError::dependency(refusal.to_string()).into()),
        Err(_) => Err(gone().into()),
    }
}

async fn forward(exchange: &Exchange, ctx: &Ctx, event: Event) -> Result<(), RpcError> {
    match event {
        Event::Progress { done, total, message } => ctx.progress(done, total, message.as_deref()),
        Event::Note { method, params } => ctx.notify(&method, &params).await?,
        Event::Ask { id, params, thinking } => {
            let answer = ask(ctx, "elicitation/create", &params).await;
            let taken = exchange.reply(Response::new(id, Ok(answer)).to_bytes()).await;
            drop(thinking);
            // The server would wait for the answer forever.
            taken.map_err(|reason| RpcError::dependency(format!("the answer to its question: {reason}")))?;
        }
    }
    Ok(())
}

/// The caller's answer to a question. It is `cancel` if the caller cannot be asked or does not know the question.
async fn ask(ctx: &Ctx, method: &str, params: &RawValue) -> Box<RawValue> {
    #[derive(Deserialize)]
    struct Answer {
        #[serde(rename = "action")]
        _action: String,
    }
    let answer = ctx.ask::<Box<RawValue>>(method, params).await.ok();
    let answer = answer.filter(|answer| serde_json::from_str::<Answer>(answer.get()).is_ok());
    answer.unwrap_or_else(|| to_raw_value(&serde_json::json!({ "action": "cancel" })).unwrap_or_default())
}

/// The members that the next round adds.
async fn input(ctx: &Ctx, result: &RawValue) -> Result<Members, RpcError> {
    let unreadable = |error: serde_json::Error| RpcError::internal(format!("what the server wants to know: {error}"));
    let wanted: Wanted<'_> = serde_json::from_str(result.get()).map_err(unreadable)?;
    let mut answers = Members::new();
    for (name, question) in wanted.input_requests {
        // MCP 2026-07-28, MRTR: a server must not ask for anything whose capability was not declared.
        if question.method != "elicitation/create" {
            return Err(RpcError::internal(format!("the server wants `{}`", question.method.escape_debug())));
        }
        let params = question.params.map(ToOwned::to_owned).unwrap_or_default();
        answers.insert(name, ask(ctx, &question.method, &params).await);
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

/// A server's error, as the caller may see it. Of the codes that JSON-RPC reserves, only those about the parameters are passed on.
fn of_server(error: RpcError) -> RpcError {
    let message: String = error.message().chars().take(MESSAGE).collect();
    match error.code() {
        code::INVALID_PARAMS => RpcError::invalid_params(message),
        // MCP up to 2025-11-25: the resource does not exist.
        -32002 => RpcError::invalid_params(message),
        -32768..=-32000 => RpcError::internal(error),
        code => {
            let data = error.data().map(ToOwned::to_owned);
            let error = RpcError::application(code, message);
            match data {
                Some(data) => error.with_data(&data),
                None => error,
            }
        }
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

/// The result of a tool as the result of a call: what the tool's `outputSchema` describes, if it has one, otherwise its content. A long
/// check waits for one of the `checks`.
pub(super) async fn of_tool(
    result: &RawValue,
    schema: Option<&Schema>,
    checks: &Arc<Semaphore>,
) -> Result<Box<RawValue>, RpcError> {
    let unreadable = |error: &dyn std::fmt::Display| RpcError::internal(format!("the result of the tool: {error}"));
    let read: ToolResult<'_> = serde_json::from_str(result.get()).map_err(|error| unreadable(&error))?;
    let content = Content { content: read.content, structured_content: read.structured_content };
    if read.is_error {
        let blocks: Vec<Block> = read.content.and_then(|all| serde_json::from_str(all.get()).ok()).unwrap_or_default();
        let text = blocks.into_iter().find_map(|block| block.text).unwrap_or_default();
        let message: String = text.chars().take(MESSAGE).collect();
        let message = if message.is_empty() { "the tool failed".to_owned() } else { message };
        return Err(RpcError::application(TOOL_ERROR, message).with_data(&content));
    }
    let Some(schema) = schema else {
        return to_raw_value(&content).map_err(|error| unreadable(&error));
    };
    let structured = read.structured_content.ok_or_else(|| unreadable(&"`structuredContent` is missing"))?;
    schema.fits(structured, checks).await.map_err(|unfit| match unfit {
        Unfit::Value(mismatch) => unreadable(&mismatch),
        unfit => RpcError::dependency(format!("`outputSchema`: {unfit}")),
    })?;
    Ok(structured.to_owned())
}
