//! Resources and prompts of MCP servers behind the bus: MCP requests that are methods of a service.
//! Never makes up a resource or a prompt that none of them has.

use std::sync::Arc;
use std::time::Duration;

use sealwire::client::{ClientError, MessageId};
use sealwire::rpc::code;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::call::MAX_RESULT;
use super::message::{Asked, Era, Fault, Members, Outcome, raw};
use super::server::{Peer, Server};
use crate::bus::gone;
use crate::catalogue::Tool;

/// How old an offer may be, so that requests in quick succession share one.
const RECENT: Duration = Duration::from_secs(10);

impl Server {
    /// Forwards a request to the method, or methods, that implement it.
    pub(super) async fn relay(&self, peer: &Peer, era: Era, request: &str, asked: &Asked) -> Outcome {
        let offer = self.offer(&*peer.caller, RECENT).await?;
        let methods: Vec<Arc<Tool>> =
            offer.relayed.iter().filter(|tool| tool.mcp.request.as_deref() == Some(request)).cloned().collect();
        let ttl_ms = Some(self.ttl_ms());
        let Some(list) = listed(request) else {
            let result = match request {
                "resources/read" => self.read(peer, era, &methods, asked).await?,
                _ => self.prompt(peer, &methods, asked).await?,
            };
            return Ok(era.result(result, ttl_ms.filter(|_| request == "resources/read")));
        };
        // Lists are fetched page by page, one method after another. The cursor is the method's index, `:` and the method's own cursor.
        let (at, inner) = match asked.cursor.as_deref().map(|cursor| cursor.split_once(':')) {
            None => (0, None),
            Some(Some((at, inner))) if at.parse::<usize>().is_ok_and(|at| at < methods.len()) => {
                (at.parse().unwrap_or_default(), Some(inner).filter(|inner| !inner.is_empty()))
            }
            Some(_) => return Err(Fault::params("unknown `cursor`")),
        };
        let mut inner = inner.map(str::to_owned);
        let mut failed = None;
        for (at, tool) in methods.iter().enumerate().skip(at) {
            let params = inner.take().map_or_else(|| json!({}), |cursor| json!({ "cursor": cursor }));
            match self.ask_service(peer, tool, &params).await {
                Ok(result) => return Ok(era.result(page(list, &methods, at, result), ttl_ms)),
                // A server that fails does not hide what the others have.
                Err(error) if !is_invalid(&error) => failed = failed.or(Some(error)),
                Err(error) => return Err(fault(&error)),
            }
        }
        match failed {
            Some(error) if at == 0 => Err(fault(&error)),
            _ => Ok(era.result(only(list, raw(&json!([]))), ttl_ms)),
        }
    }

    /// Reads a resource from the first server that has it.
    async fn read(&self, peer: &Peer, era: Era, methods: &[Arc<Tool>], asked: &Asked) -> Result<Members, Fault> {
        let Some(uri) = &asked.uri else { return Err(Fault::params("`uri` is missing")) };
        let mut failed = None;
        for tool in methods {
            match self.ask_service(peer, tool, &json!({ "uri": uri })).await {
                Ok(found) => return Ok(found),
                Err(error) if is_invalid(&error) => {}
                // Another server may have it.
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        if let Some(error) = failed {
            return Err(fault(&error));
        }
        let code = if era == Era::Modern { -32602 } else { -32002 };
        Err(Fault::new(code, "Resource not found").with(json!({ "uri": uri })))
    }

    async fn prompt(&self, peer: &Peer, methods: &[Arc<Tool>], asked: &Asked) -> Result<Members, Fault> {
        let Some(name) = &asked.name else { return Err(Fault::params("`name` is missing")) };
        let named = match methods {
            [only] => Some((only, name.as_str())),
            several => several.iter().find_map(|tool| Some((tool, name.strip_prefix(&prefix(tool))?))),
        };
        let Some((tool, name)) = named else { return Err(Fault::params("Unknown prompt")) };
        let mut params = Map::new();
        params.insert("name".to_owned(), name.into());
        let arguments = asked.arguments.as_deref().and_then(|text| serde_json::from_str::<Value>(text.get()).ok());
        params.extend(arguments.map(|arguments| ("arguments".to_owned(), arguments)));
        self.ask_service(peer, tool, &Value::Object(params)).await.map_err(|error| fault(&error))
    }

    async fn ask_service(&self, peer: &Peer, tool: &Tool, params: &Value) -> Result<Members, ClientError> {
        let away = |_| ClientError::Disconnected { waited: Duration::ZERO, cause: None };
        let client = self.services.bus.client().await.map_err(away)?;
        let id = MessageId::default();
        let request = peer.request(&client, tool).note_id(&id).max_bytes(MAX_RESULT);
        let call = request.stream::<Box<RawValue>>(&tool.method.name, params);
        tokio::select! {
            result = call.finish() => result,
            // Unknown even if `gone` says that it was not sent: the task that sends may just have done so.
            _ = gone(&client, &id) => Err(ClientError::ConnectionLost),
        }
    }
}

/// A page of a list, with the cursor of the next one.
fn page(list: &str, methods: &[Arc<Tool>], at: usize, mut result: Members) -> Members {
    if let Some(tool) = methods.get(at).filter(|_| methods.len() > 1 && list == "prompts") {
        label(&mut result, tool);
    }
    let next = result.get("nextCursor").and_then(|next| serde_json::from_str::<String>(next.get()).ok());
    let next = match next {
        Some(next) => Some(format!("{at}:{next}")),
        None => (at + 1 < methods.len()).then(|| format!("{}:", at + 1)),
    };
    result.remove("nextCursor");
    result.extend(next.map(|next| ("nextCursor".to_owned(), raw(&next))));
    result.entry(list.to_owned()).or_insert_with(|| raw(&json!([])));
    result
}

/// The member of the result that holds the list, if the request is for a list.
fn listed(request: &str) -> Option<&'static str> {
    match request {
        "resources/list" => Some("resources"),
        "resources/templates/list" => Some("resourceTemplates"),
        "prompts/list" => Some("prompts"),
        _ => None,
    }
}

fn only(name: &str, value: Box<RawValue>) -> Members {
    [(name.to_owned(), value)].into()
}

/// The prefix of a server's prompt names if several servers have prompts: `demo__clock__`.
fn prefix(tool: &Tool) -> String {
    let path = tool.method.name.rsplit_once("prompts/").map_or("", |(path, _)| path);
    format!("{}__{}_", tool.service, path.replace(['/', '.'], "_"))
}

fn label(result: &mut Members, tool: &Tool) {
    let prompts = result.get("prompts").and_then(|prompts| serde_json::from_str::<Vec<Value>>(prompts.get()).ok());
    let Some(mut prompts) = prompts else { return };
    for prompt in &mut prompts {
        let name = prompt.get("name").and_then(Value::as_str).map(|name| format!("{}{name}", prefix(tool)));
        if let (Some(members), Some(name)) = (prompt.as_object_mut(), name) {
            members.insert("name".to_owned(), name.into());
        }
    }
    result.insert("prompts".to_owned(), raw(&prompts));
}

/// Whether the server does not have what was asked for.
fn is_invalid(error: &ClientError) -> bool {
    matches!(error, ClientError::Remote(error) if error.code() == code::INVALID_PARAMS)
}

fn fault(error: &ClientError) -> Fault {
    match error {
        ClientError::Remote(said) => match said.code() {
            code::INVALID_PARAMS | code::METHOD_NOT_FOUND => Fault::params(said.message().to_owned()),
            code::QUOTA_EXCEEDED => Fault::of_service(said),
            // The call may have begun, or the service refused the door's own message and not the client's.
            _ if error.is_outcome_unknown() => {
                Fault::internal(said.message().to_owned()).with(json!({ "outcome": "unknown" }))
            }
            code::INTERNAL_ERROR | code::DEPENDENCY_FAILED => Fault::internal(said.message().to_owned()),
            _ => Fault::of_service(said),
        },
        ClientError::Token(fault) => Fault::of_token(fault),
        ClientError::Disconnected { .. } => Fault::internal("the broker cannot be reached, nothing was sent"),
        ClientError::TooLarge { .. }
        | ClientError::Invalid(_)
        | ClientError::Busy { .. }
        | ClientError::TooManyStreams { .. }
        | ClientError::InboxForbidden { sent: false, .. }
        | ClientError::Closed { sent: false } => Fault::internal(format!("nothing was sent: {error}")),
        error => Fault::internal(error.to_string()).with(json!({ "outcome": "unknown" })),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use sealwire::rpc::{Limits, Responses};

    use super::*;

    fn remote(code: i32, data: &Value) -> ClientError {
        let text = json!({ "jsonrpc": "2.0", "id": 1, "error": { "code": code, "message": "m", "data": data } });
        match Responses::parse(text.to_string().as_bytes(), &Limits::default()).unwrap() {
            Responses::Single(response) => ClientError::Remote(response.outcome.unwrap_err()),
            Responses::Batch(_) => unreachable!("one response"),
        }
    }

    #[test]
    fn what_may_have_begun_is_said_to_and_nothing_else() {
        let unknown = json!({ "outcome": "unknown" });
        for code in [code::UNAUTHENTICATED, code::STALE, code::REPLAYED, code::TIMEOUT, code::OVERLOADED] {
            let fault = fault(&remote(code, &json!(null)));
            assert_eq!((fault.code, fault.data.as_ref()), (-32603, Some(&unknown)), "{code}");
        }
        assert_eq!(fault(&remote(code::PERMISSION_DENIED, &unknown)).code, -32603);
        for (code, said) in [(code::PERMISSION_DENIED, 32002), (code::QUOTA_EXCEEDED, 32013), (7, 7)] {
            assert_eq!(fault(&remote(code, &json!([1]))).code, said);
        }
        for error in [ClientError::TooLarge { size: 2, limit: 1 }, ClientError::Busy { limit: 1 }] {
            let fault = fault(&error);
            assert!(fault.data.is_none() && fault.message.contains("nothing was sent"), "{fault:?}");
        }
        assert_eq!(fault(&ClientError::ConnectionLost).data, Some(unknown));
    }
}
