//! The result of a tool call in the form that MCP clients expect, whatever the call ended with.
//! Never says that a call did nothing unless that is certain.

use std::borrow::Cow;

use sealwire::ClientError;
use sealwire::errors::code;
use sealwire_mcp::{Members, Revision, raw};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::message::{Fault, Outcome, complete_result};
use crate::approval;
use crate::bus::Away;
use crate::catalogue::{Tool, ToolResult};

/// The error code of a tool of an MCP server that says that it has failed (docs/backends.md).
const TOOL_ERROR: i32 = 1;

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

/// What the `_meta` of the gateway's own begin with.
const OURS: &str = "dev.sealwire/";

/// The schema of a tool's result, if it has one.
pub(super) fn output_schema(revision: Revision, tool: &Tool) -> Option<Value> {
    let schema: Value = serde_json::from_str(tool.method.result.schema.get()).ok()?;
    let members = schema.as_object().filter(|members| !members.is_empty())?;
    if tool.mcp.result == Some(ToolResult::Content) {
        return None;
    }
    if !revision.wants_objects() || members.get("type").is_some_and(|kind| kind == "object") {
        return Some(schema);
    }
    // A schema with references cannot be nested: they would no longer resolve.
    let moves = !tool.method.result.schema.get().contains("\"$");
    moves.then(|| json!({ "type": "object", "properties": { "result": schema }, "required": ["result"] }))
}

/// The result of a call that succeeded.
pub(super) fn succeeded(
    revision: Revision,
    tool: &Tool,
    result: &RawValue,
    receipt: Map<String, Value>,
) -> Box<RawValue> {
    if tool.mcp.result.is_some()
        && let Ok(all) = serde_json::from_str::<Members>(result.get())
        && all.contains_key("content")
    {
        return complete_result(revision, of_server(revision, all, receipt), None);
    }
    let mut all = Members::new();
    all.insert("content".to_owned(), raw(&[Text::new(&as_text(result))]));
    all.insert("structuredContent".to_owned(), result.to_owned());
    complete_result(revision, of_server(revision, all, receipt), None)
}

/// The members of a tool's result as this revision has them: unchanged, except that before 2026-07-28 `structuredContent` is an object. The
/// server's `_meta` stays, except for what only the gateway may say.
fn of_server(revision: Revision, mut all: Members, ours: Map<String, Value>) -> Members {
    #[derive(Serialize)]
    struct Wrapped {
        result: Box<RawValue>,
    }
    if let Some(structured) = all.remove("structuredContent").filter(|_| revision.has_structured_content()) {
        let fits = structured.get().starts_with('{') || !revision.wants_objects();
        all.insert(
            "structuredContent".to_owned(),
            if fits { structured } else { raw(&Wrapped { result: structured }) },
        );
    }
    let mut meta = without_ours(&mut all);
    meta.extend(ours.into_iter().map(|(name, value)| (name, raw(&value))));
    if !meta.is_empty() {
        all.insert("_meta".to_owned(), raw(&meta));
    }
    all
}

/// Takes what only the gateway may say out of the `_meta` of a server's result. Returns the rest.
pub(super) fn without_ours(all: &mut Members) -> Members {
    let meta = all.remove("_meta").and_then(|meta| serde_json::from_str::<Members>(meta.get()).ok());
    let mut meta = meta.unwrap_or_default();
    meta.retain(|name, _| !name.starts_with(OURS));
    if !meta.is_empty() {
        all.insert("_meta".to_owned(), raw(&meta));
    }
    meta
}

/// A string as its plain text, and anything else as JSON.
pub(super) fn as_text(value: &RawValue) -> Cow<'_, str> {
    let json = value.get();
    let text = json.starts_with('"').then(|| serde_json::from_str(json).map(Cow::Owned).ok()).flatten();
    text.unwrap_or(Cow::Borrowed(json))
}

/// A result with `isError`, for failures that the model can react to.
pub(super) fn failed(revision: Revision, text: &str) -> Box<RawValue> {
    let mut all = Members::new();
    all.insert("content".to_owned(), raw(&[Text::new(text)]));
    all.insert("isError".to_owned(), raw(&true));
    complete_result(revision, all, None)
}

/// A failed call in the form that MCP clients expect.
pub(super) fn refused(revision: Revision, tool: &Tool, error: &ClientError, receipt: Map<String, Value>) -> Outcome {
    let ClientError::Remote(remote) = error else { return unsaid(revision, error) };
    let data = remote.data().map(|data| serde_json::from_str::<Value>(data.get()).unwrap_or_default());
    let retry = data.as_ref().and_then(|data| data.get("retry_after_ms")).and_then(Value::as_u64);
    let of_approval = approval::in_words(remote);
    let text = match (remote.profile_code().unwrap_or_default(), retry) {
        (code::METHOD_NOT_FOUND, _) => return Err(Fault::params(format!("Unknown tool: {}", tool.method.name))),
        // The service refuses the gateway's own message, not the caller's.
        (code::UNAUTHENTICATED | code::STALE | code::REPLAYED, _) => return unsaid(revision, error),
        // SPEC.md §10: every tool call is a stream, so it may have begun. A client that is told to retry would do so.
        (code::OVERLOADED, _) => return unsaid(revision, error),
        (code::APPROVAL_REQUIRED | code::PERMISSION_DENIED | code::CONFLICT, _) if of_approval.is_some() => {
            of_approval.unwrap_or_default()
        }
        (code::PERMISSION_DENIED, _) if !error.is_outcome_unknown() => {
            "permission denied: not with these arguments".to_owned()
        }
        (_, Some(ms)) if !remote.is_application() => format!("{}: retry after {ms} ms", remote.message()),
        _ => remote.message().to_owned(),
    };
    // The MCP tool's own words.
    let own = remote.data().filter(|_| tool.mcp.result.is_some() && remote.code() == TOOL_ERROR);
    let own = own.and_then(|own| serde_json::from_str::<Members>(own.get()).ok());
    let own = own.filter(|own| own.get("content").is_some_and(|content| content.get().starts_with('[')));
    let has_own = own.is_some();
    if tool.mcp.result.is_some() && remote.is_application() && !has_own && remote.code() != TOOL_ERROR {
        // Not the tool's word that it has failed, but the server's own error.
        return Err(Fault::of_service(remote));
    }
    let mut all = own.unwrap_or_else(|| [("content".to_owned(), raw(&[Text::new(&text)]))].into());
    all.insert("isError".to_owned(), raw(&true));
    let mut said = json!({ "code": remote.code(), "message": remote.message() });
    if let Some(said) = said.as_object_mut() {
        // What a tool of an MCP server says is there already.
        said.extend(data.filter(|_| !has_own).map(|data| ("data".to_owned(), data)));
        // SPEC.md §14: the number could be taken for one of Sealwire's own.
        if remote.is_application() && (-32768..=-32000).contains(&remote.code()) {
            said.insert("application_error".to_owned(), Value::Bool(true));
        }
    }
    let mut meta = receipt;
    meta.insert("dev.sealwire/error".to_owned(), said);
    Ok(complete_result(revision, of_server(revision, all, meta), None))
}

/// An error that does not come from the service.
fn unsaid(revision: Revision, error: &ClientError) -> Outcome {
    match error {
        ClientError::Disconnected { .. } | ClientError::Connect(_) => Ok(failed(revision, &error.to_string())),
        // The request could not be sent.
        ClientError::TooLarge { .. }
        | ClientError::Invalid(_)
        | ClientError::InboxForbidden { sent: false, .. }
        | ClientError::Closed { sent: false } => Ok(failed(revision, &format!("nothing was sent: {error}"))),
        ClientError::Busy { .. } | ClientError::TooManyStreams { .. } => {
            Ok(failed(revision, "too many calls are under way, and nothing was sent: call again later"))
        }
        ClientError::Token(fault) => Err(Fault::of_token(fault)),
        ClientError::ResultTooLarge { .. } => Ok(failed(revision, &error.to_string())),
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
    use std::time::Duration;

    use sealwire::errors::InvalidRequest;

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
            let said = unsaid(Revision::V2026_07_28, error).unwrap();
            assert!(said.get().contains("nothing was sent") && said.get().contains("\"isError\":true"), "{said}");
        }
        for error in [ClientError::ConnectionLost, ClientError::Ended, ClientError::Closed { sent: true }] {
            assert_eq!(
                unsaid(Revision::V2026_07_28, &error).unwrap_err().data,
                Some(json!({ "outcome": "unknown" })),
                "{error}"
            );
        }
    }
}
