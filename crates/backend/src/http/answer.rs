//! Turns a server's answer into the outcome of a call.
//! Never takes half an answer for a whole one, and never lets a server speak for the service's own checks.

use sealwire::RpcError;
use sealwire::rpc::{Body, Id, Limits, Outcome, Request, Response, Responses};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use crate::backend::{Call, is_reserved, value};
use crate::web::{Event, MAX_BODY, Reply};

/// What properly ends a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ends {
    /// The response to the request, or `[DONE]`.
    Response,
    /// `[DONE]` alone: a response is a part.
    Done,
}

/// The end of a stream, as many servers write it.
const DONE: &str = "[DONE]";
/// The longest error message that is taken from a server, in characters.
const MESSAGE: usize = 1_000;
/// The error code of a refusal by status, or of a stream that has failed.
const REFUSED: i32 = 1;
/// The longest body of a refusal that is passed on to the caller, in bytes.
const WORDS: usize = 16 * 1024;

/// The outcome of a JSON-RPC request.
pub(super) async fn of_rpc(reply: Reply, call: &Call, id: &Id, ends: Ends) -> Outcome {
    let (status, media) = (reply.status(), reply.media_type());
    if status.is_success() && reply.is_events() {
        return of_events(reply, call, Some(id), ends, false).await;
    }
    let text = reply.text().await.map_err(RpcError::dependency)?;
    let unusable = |why: String| RpcError::dependency(format!("status {}: {why}", status.as_u16()));
    if !is_json(&media) {
        return Err(unusable(format!("neither JSON nor a stream of events, but `{}`", media.escape_debug())));
    }
    match Responses::parse(text.as_bytes(), &Limits::default()) {
        // The answer to something that could not be parsed has no id (JSON-RPC 2.0 §5).
        Ok(Responses::Single(response))
            if response.id == *id || (response.id.is_null() && response.outcome.is_err()) =>
        {
            match response.outcome {
                Ok(_) if !status.is_success() => Err(unusable("with a result".to_owned())),
                outcome => outcome.map_err(of_server),
            }
        }
        Ok(_) => Err(unusable("it answers what was not asked".to_owned())),
        Err(error) => Err(unusable(format!("not a JSON-RPC 2.0 response: {error}"))),
    }
}

/// The outcome of a plain request.
pub(super) async fn of_rest(reply: Reply, call: &Call, text: bool) -> Outcome {
    let (status, media) = (reply.status(), reply.media_type());
    if status.is_success() && reply.is_events() {
        return of_events(reply, call, None, Ends::Done, text).await;
    }
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
    let body = reply.text().await.map_err(RpcError::dependency)?;
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
    media == "application/json" || (media.starts_with("application/") && media.ends_with("json"))
}

/// What an event says.
enum Said {
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
async fn of_events(reply: Reply, call: &Call, id: Option<&Id>, ends: Ends, text: bool) -> Outcome {
    let mut events = reply.events();
    // `None` if there are too many, which matters only if they are the result.
    let mut all = Some(String::from("["));
    while let Some(event) = events.next().await.map_err(RpcError::dependency)? {
        match said(event, id, ends, text)? {
            Said::Part(part) if call.ctx.takes_frames() => call.sink.send(&part).await?,
            Said::Part(part) => {
                all = all.filter(|all| all.len() + part.get().len() < MAX_BODY);
                if let Some(all) = &mut all {
                    all.push_str(if all.len() > 1 { "," } else { "" });
                    all.push_str(part.get());
                }
            }
            Said::Progress(Progress { progress, total, message }) => {
                call.ctx.progress(progress, total, message.as_deref());
            }
            Said::Note(note) => {
                let params = note.params.as_ref().map_or("{}", |params| params.raw().get());
                let params = RawValue::from_string(params.to_owned()).map_err(RpcError::internal)?;
                call.ctx.notify(&note.method, &params).await?;
            }
            Said::End(outcome) => return outcome.map_err(of_server),
            Said::Done if call.ctx.takes_frames() => return to_raw_value(&()).map_err(RpcError::internal),
            Said::Done => {
                let all = all.ok_or_else(|| RpcError::dependency("its parts have more than 1 MiB together"))?;
                return RawValue::from_string(all + "]").map_err(RpcError::internal);
            }
        }
    }
    Err(RpcError::dependency(match ends {
        Ends::Response => "its stream has ended without a response or `[DONE]`",
        Ends::Done => "its stream has ended without `[DONE]`",
    }))
}

fn said(event: Event, id: Option<&Id>, ends: Ends, text: bool) -> Result<Said, RpcError> {
    let data = event.data;
    if data.trim() == DONE {
        return Ok(Said::Done);
    }
    if event.kind == "error" {
        return Err(failed(&data));
    }
    if id.is_some() {
        if let Ok(Responses::Single(Response { id: of, outcome, .. })) =
            Responses::parse(data.as_bytes(), &Limits::default())
        {
            return match outcome {
                _ if Some(&of) != id => Err(RpcError::dependency("it answers what was not asked")),
                Ok(part) if ends == Ends::Done => Ok(Said::Part(part)),
                outcome => Ok(Said::End(outcome)),
            };
        }
        if let Ok(Body::Single(Ok(request))) = Body::parse(data.as_bytes(), &Limits::default()) {
            return told(request);
        }
    }
    if text {
        return to_raw_value(&data).map(Said::Part).map_err(RpcError::internal);
    }
    value(&data).map(Said::Part)
}

/// A notification before the answer.
fn told(request: Request) -> Result<Said, RpcError> {
    if request.id.is_some() {
        return Err(RpcError::dependency("it asks a question, which nobody could answer over HTTP"));
    }
    let params = request.params.as_ref().map_or("{}", |params| params.raw().get());
    let unreadable = |error: serde_json::Error| RpcError::dependency(error);
    Ok(match request.method.as_str() {
        "rpc.part" => Said::Part(serde_json::from_str::<Part>(params).map_err(unreadable)?.result),
        "rpc.progress" => Said::Progress(serde_json::from_str(params).map_err(unreadable)?),
        name if is_reserved(name) => return Err(RpcError::dependency("a notification has a reserved name")),
        _ => Said::Note(request),
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

/// Maps a server's error, so that it cannot pass for the service's own checks of backends and arguments.
pub(super) fn of_server(error: RpcError) -> RpcError {
    if matches!(error.code(), -32768..=-32000 if !matches!(error.code(), -32602 | -32603)) {
        return RpcError::internal(error);
    }
    let message: String = error.message().chars().take(MESSAGE).collect();
    let handed_on = match error.code() {
        -32602 => RpcError::invalid_params(message),
        -32603 => return RpcError::internal(error),
        code => RpcError::application(code, message),
    };
    match error.data() {
        Some(data) => handed_on.with_data(&data),
        None => handed_on,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_notification_of_a_server_has_a_reserved_name() {
        let told = |name: &str| {
            let data = format!(r#"{{"jsonrpc":"2.0","method":"{name}","params":{{"progress":1}}}}"#);
            said(Event { data, ..Event::default() }, Some(&Id::from(1)), Ends::Response, false).is_ok()
        };
        assert!(told("rpc.progress") && told("rpcs/x"));
        assert!(!told("rpc.closing") && !told("rpc/x"));
    }
}
