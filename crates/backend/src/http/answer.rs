//! Turns a server's answer into the outcome of a call.
//! Never takes half an answer for a whole one. A server's errors are handed on as they are: the library marks them as an application's.

use std::fmt::Display;
use std::time::Duration;

use hyper::StatusCode;
use sealwire::RpcError;
use sealwire::internal::rpc::{Body, Id, Limits, Outcome, Request, Response, Responses};
use sealwire_http::{Event, Events, HttpError, MAX_BODY, Reply};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use crate::backend::{Call, is_reserved, value};
use crate::form::{BAD_STATUS, NO_ID, NO_MEDIA, NO_UTF8, OTHER_ID, TEXT_ID, fault, number_in, unusable};
use crate::pace::Pace;

/// What properly ends a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamEnd {
    /// The response to the request, or `[DONE]`.
    Response,
    /// `[DONE]` alone: a response is a part.
    Done,
    /// The end of the answer, or `[DONE]`: a response is a part.
    Body,
}

/// What the data of an answer is.
#[derive(Debug, Clone, Copy)]
pub(super) enum Form<'a> {
    /// JSON-RPC, in answer to the request with this id.
    Rpc(&'a Id),
    /// JSON-RPC, with any id.
    AnyRpc,
    Json,
    Text,
}

/// The end of a stream, as many servers write it.
const DONE: &str = "[DONE]";
/// The error code of a refusal by status, or of a stream that has failed.
const REFUSED: i32 = 1;
/// How long to wait for more after a response that should be the last.
const LINGER: Duration = Duration::from_secs(1);
/// The longest body of a refusal that is passed on to the caller, in bytes.
const WORDS: usize = 16 * 1024;

/// The outcome of a JSON-RPC request.
pub(super) async fn of_rpc(reply: Reply, call: &Call, id: &Id, ends: StreamEnd) -> Outcome {
    let (status, media) = (reply.status(), reply.media_type());
    if status.is_success() && reply.is_events() {
        return of_events(reply, call, Form::Rpc(id), ends).await;
    }
    let text = reply.text().await.map_err(no_body)?;
    of_one(&text, status, &media, Some(id))
}

/// The outcome in a JSON-RPC response, with any id if `id` is `None`.
fn of_one(text: &str, status: StatusCode, media: &str, id: Option<&Id>) -> Outcome {
    let unusable = |why, cause: &dyn Display| unusable(why, format!("status {}: {cause}", status.as_u16()));
    if !is_json(media) {
        return Err(unusable(NO_MEDIA, &format!("its content type is `{}`", media.escape_debug())));
    }
    match Responses::parse(text.as_bytes(), &Limits::default()) {
        Ok(Responses::Single(response)) if id.is_none_or(|id| is_of(&response, id)) => match response.outcome {
            Ok(_) if !status.is_success() => Err(unusable(BAD_STATUS, &BAD_STATUS)),
            outcome => outcome,
        },
        Ok(Responses::Single(response)) => {
            let why = other(&response);
            Err(unusable(why, &why))
        }
        Ok(Responses::Batch(_)) => Err(unusable(OTHER_ID, &"an array, and one call was asked")),
        Err(error) => Err(unusable(fault(text.as_bytes(), &error), &error)),
    }
}

/// Whether a response is to the request with this id: a refusal of what could not be read has the id null (JSON-RPC 2.0 §5).
fn is_of(response: &Response, id: &Id) -> bool {
    response.id == *id || (response.id.is_null() && response.outcome.is_err())
}

/// Why a response is not to the one request that was made.
fn other(response: &Response) -> &'static str {
    match number_in(&response.id) {
        Some(_) => TEXT_ID,
        None if response.id.is_null() => NO_ID,
        None => OTHER_ID,
    }
}

/// The error for a body that cannot be read.
pub(super) fn no_body(error: HttpError) -> RpcError {
    match error {
        HttpError::NotUtf8 => unusable(NO_UTF8, error),
        error => RpcError::dependency(error),
    }
}

/// The outcome of a plain request.
pub(super) async fn of_rest(reply: Reply, call: &Call, form: Form<'_>) -> Outcome {
    let (status, media) = (reply.status(), reply.media_type());
    if status.is_success() && reply.is_events() {
        return of_events(reply, call, form, StreamEnd::Done).await;
    }
    if matches!(form, Form::AnyRpc) {
        let text = reply.text().await.map_err(no_body)?;
        return of_one(&text, status, &media, None);
    }
    let text = matches!(form, Form::Text);
    if !status.is_success() {
        let status = status.as_u16();
        // 401 and 407 are about credentials, which are not the caller's doing.
        if !matches!(status, 400..=499) || matches!(status, 401 | 407) {
            return Err(RpcError::dependency(format!("status {status}")));
        }
        let words = whole(reply, false).await.ok().filter(|text| is_json(&media) && text.len() <= WORDS);
        let body = words.and_then(|text| value(&text).ok());
        let refusal = Refusal { status, body: body.as_deref() };
        return Err(RpcError::application(REFUSED, format!("status {status}")).with_data(&refusal));
    }
    let body = whole(reply, text).await?;
    if text {
        return to_raw_value(&body).map_err(RpcError::internal);
    }
    if body.trim().is_empty() {
        return to_raw_value(&()).map_err(RpcError::internal);
    }
    value(&body)
}

/// The body, if it cannot be truncated.
async fn whole(reply: Reply, text: bool) -> Result<String, RpcError> {
    let is_framed = reply.is_framed();
    let body = reply.text().await.map_err(no_body)?;
    // An object or an array shows by itself where it ends.
    if is_framed || (!text && body.trim_start().starts_with(['{', '['])) {
        return Ok(body);
    }
    Err(RpcError::dependency(
        "its answer has no length and no chunks, so it may be incomplete: let the server send `Content-Length`",
    ))
}

#[derive(Serialize)]
struct Refusal<'a> {
    status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<&'a RawValue>,
}

/// `application/json`, `application/problem+json`, …
pub(super) fn is_json(media: &str) -> bool {
    let is_of_json = media.starts_with("application/") && media.ends_with("json");
    // The first two are of the drafts of JSON-RPC over HTTP.
    is_of_json || matches!(media, "application/json-rpc" | "application/jsonrequest" | "text/json")
}

/// What an event says.
enum EventContent {
    Part(Box<RawValue>),
    Progress(Progress),
    Note(Request),
    /// The response.
    End(Outcome),
    Done,
}

#[derive(Deserialize)]
struct Progress {
    progress: f64,
    total: Option<f64>,
    message: Option<String>,
}

#[derive(Deserialize)]
struct Part {
    result: Box<RawValue>,
}

/// Passes on what a stream says until it ends, and returns the result: the server's response, or null after parts. A caller that takes no
/// frames gets an array of all parts instead of null.
async fn of_events(reply: Reply, call: &Call, form: Form<'_>, ends: StreamEnd) -> Outcome {
    let is_framed = reply.is_framed();
    let (mut events, mut pace) = (reply.events(), Pace::new());
    let mut has_parts = false;
    // `None` if there are too many, which matters only if they are the result.
    let mut all = Some(String::from("["));
    while let Some(event) = events.next().await.map_err(no_body)? {
        let said = said(event, form, ends)?;
        if matches!(said, EventContent::Progress(_) | EventContent::Note(_)) {
            pace.step(call.tool.method.as_str()).await;
        }
        has_parts |= matches!(said, EventContent::Part(_));
        match said {
            EventContent::Part(part) if call.ctx.takes_frames() => call.sink.send(&part).await?,
            EventContent::Part(part) => {
                all = all.filter(|all| all.len() + part.get().len() < MAX_BODY);
                if all.is_none() {
                    // Nobody gets it any more.
                    events.useless(part.get().len()).map_err(RpcError::dependency)?;
                }
                if let Some(all) = &mut all {
                    all.push_str(if all.len() > 1 { "," } else { "" });
                    all.push_str(part.get());
                }
            }
            EventContent::Progress(Progress { progress, total, message }) => {
                call.ctx.progress(progress, total, message.as_deref());
            }
            EventContent::Note(note) => {
                let params = note.params.as_ref().map_or("{}", |params| params.raw().get());
                let params = RawValue::from_string(params.to_owned()).map_err(RpcError::internal)?;
                call.ctx.notify(&note.method, &params).await?;
            }
            EventContent::End(Ok(_)) if ends == StreamEnd::Response && goes_on(&mut events).await => {
                return Err(RpcError::dependency(
                    "it sends several responses, and one would be taken for all: set `stream = \"POST\"` for this method",
                ));
            }
            EventContent::End(outcome) => return outcome,
            EventContent::Done => return parts(call, all),
        }
    }
    // Anything else could have been cut off.
    if ends == StreamEnd::Body && has_parts && is_framed && !events.is_cut() {
        return parts(call, all);
    }
    Err(RpcError::dependency(match ends {
        StreamEnd::Body => "its stream was cut off, or has ended without a response",
        StreamEnd::Response => "its stream has ended without a response or `[DONE]`",
        StreamEnd::Done => "its stream has ended without `[DONE]`",
    }))
}

/// The result of a stream of parts.
fn parts(call: &Call, all: Option<String>) -> Outcome {
    if call.ctx.takes_frames() {
        return to_raw_value(&()).map_err(RpcError::internal);
    }
    let all = all.ok_or_else(|| RpcError::dependency("its parts have more than 1 MiB together"))?;
    RawValue::from_string(all + "]").map_err(RpcError::internal)
}

/// Whether another response follows one that should be the last. Servers need not end a stream, so this does not wait for long.
async fn goes_on(events: &mut Events) -> bool {
    let another = async {
        while let Ok(Some(event)) = events.next().await {
            if event.data.trim() == DONE {
                return false;
            }
            if Responses::parse(event.data.as_bytes(), &Limits::default()).is_ok() {
                return true;
            }
        }
        false
    };
    tokio::time::timeout(LINGER, another).await.unwrap_or(false)
}

fn said(event: Event, form: Form<'_>, ends: StreamEnd) -> Result<EventContent, RpcError> {
    let data = event.data.strip_prefix('\u{feff}').unwrap_or(&event.data);
    if data.trim() == DONE {
        return Ok(EventContent::Done);
    }
    if event.kind == "error" {
        return Err(failed(data));
    }
    let is_rpc = matches!(form, Form::Rpc(_) | Form::AnyRpc);
    if is_rpc {
        if let Ok(Responses::Single(response)) = Responses::parse(data.as_bytes(), &Limits::default()) {
            let (is_other, why) = (matches!(form, Form::Rpc(id) if !is_of(&response, id)), other(&response));
            return match response.outcome {
                _ if is_other => Err(unusable(why, why)),
                Ok(part) if ends != StreamEnd::Response => Ok(EventContent::Part(part)),
                outcome => Ok(EventContent::End(outcome)),
            };
        }
        if let Ok(Body::Single(Ok(request))) = Body::parse(data.as_bytes(), &Limits::default()) {
            return told(request);
        }
    }
    match form {
        Form::Text => return to_raw_value(data).map(EventContent::Part).map_err(RpcError::internal),
        Form::AnyRpc => {
            return Err(RpcError::dependency("an event is neither a response nor a notification of JSON-RPC 2.0"));
        }
        Form::Rpc(_) | Form::Json => {}
    }
    value(data).map(EventContent::Part)
}

/// A notification before the answer.
fn told(request: Request) -> Result<EventContent, RpcError> {
    if request.id.is_some() {
        return Err(RpcError::dependency("it asks a question, which nobody could answer over HTTP"));
    }
    let params = request.params.as_ref().map_or("{}", |params| params.raw().get());
    let unreadable = |error: serde_json::Error| RpcError::dependency(error);
    Ok(match request.method.as_str() {
        "rpc.part" => EventContent::Part(serde_json::from_str::<Part>(params).map_err(unreadable)?.result),
        "rpc.progress" => EventContent::Progress(serde_json::from_str(params).map_err(unreadable)?),
        name if is_reserved(name) => return Err(RpcError::dependency("a notification has a reserved name")),
        _ => EventContent::Note(request),
    })
}

/// The error for an event that says that the stream has failed.
fn failed(data: &str) -> RpcError {
    let error = RpcError::application(REFUSED, "the stream has failed");
    match value(data).ok().filter(|data| data.get().len() <= WORDS) {
        Some(data) => error.with_data(&data),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_notification_of_a_server_has_a_reserved_name() {
        let told = |name: &str| {
            let data = format!(r#"{{"jsonrpc":"2.0","method":"{name}","params":{{"progress":1}}}}"#);
            said(Event { data, ..Event::default() }, Form::Rpc(&Id::from(1)), StreamEnd::Response).is_ok()
        };
        assert!(told("rpc.progress") && told("rpcs/x"));
        assert!(!told("rpc.closing") && !told("rpc/x"));
    }
}
