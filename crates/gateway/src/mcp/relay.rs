//! Resources, prompts and completions of MCP servers behind the bus: MCP requests that are methods of a service.
//! Never makes up a resource or a prompt that none of them has.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sealwire::ClientError;
use sealwire::errors::code;
use sealwire_mcp::{ClientCapabilities, Members, RequestParams, Revision, raw};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::call::CallOutcome;
use super::fault::{RESOURCE_NOT_FOUND, not_found, of_call};
use super::message::{Fault, Outcome, complete_result};
use super::offers::RECENT;
use super::parked::digest;
use super::peer::Requester;
use super::results::without_ours;
use super::server::Server;
use crate::catalogue::Tool;

/// A page of a list is put together from pages of the servers: until it has this many bytes, or so many were asked for. Many clients read
/// one page only.
const PAGE: usize = 1 << 20;
const PAGES: usize = 64;
/// ... or for so long: with entries, and without any. The answer must come before the gateway ends the stream, which it does a minute after
/// the time of a call.
const ENTRIES_FOR: Duration = Duration::from_secs(5);
const NOTHING_FOR: Duration = Duration::from_secs(45);

/// How a request to a method has ended, unless it ends the request of the client.
type Found = Result<Result<Members, ClientError>, Outcome>;

impl Server {
    /// Forwards a request to the method, or methods, that implement it.
    pub(super) async fn relay(&self, from: Requester<'_>, request: &str, asked: &mut RequestParams) -> Outcome {
        let revision = from.revision;
        let offer = self.offer(&*from.peer.caller, RECENT).await?;
        let methods: Vec<Arc<Tool>> =
            offer.relayed.iter().filter(|tool| tool.mcp.request.as_deref() == Some(request)).cloned().collect();
        let ttl_ms = Some(self.ttl_ms());
        if let Some(list) = listed(request) {
            return Ok(complete_result(revision, self.list(from, list, &methods, asked).await?, ttl_ms));
        }
        let found = match request {
            "resources/read" => self.read(from, &methods, asked).await,
            "prompts/get" => self.prompt(from, &methods, asked).await,
            _ => self.complete(from, &methods, asked).await,
        };
        match found {
            Ok(Ok(result)) => Ok(complete_result(revision, result, ttl_ms.filter(|_| request == "resources/read"))),
            Ok(Err(error)) => Err(of_call(&error)),
            Err(outcome) => outcome,
        }
    }

    /// The next entries of a list, from one method after another. The cursor is a method's index, `:` and the method's own cursor.
    async fn list(
        &self,
        from: Requester<'_>,
        list: &str,
        methods: &[Arc<Tool>],
        asked: &RequestParams,
    ) -> Result<Members, Fault> {
        let (first, mut inner) = match asked.cursor.as_deref().map(|cursor| cursor.split_once(':')) {
            None => (0, None),
            Some(Some((at, inner))) if at.parse::<usize>().is_ok_and(|at| at < methods.len()) => {
                (at.parse().unwrap_or_default(), Some(inner.to_owned()).filter(|inner| !inner.is_empty()))
            }
            Some(_) => return Err(Fault::params("unknown `cursor`")),
        };
        let (began, mut entries, mut bytes, mut pages) = (Instant::now(), Vec::new(), 0, 0);
        let (mut failed, mut has_answered) = (None, false);
        // Of a list that is one page of one server, whatever else is in it is kept.
        let mut whole = None;
        'methods: for (at, tool) in methods.iter().enumerate().skip(first) {
            loop {
                let time = if entries.is_empty() { NOTHING_FOR } else { ENTRIES_FOR };
                if pages == PAGES || bytes >= PAGE || began.elapsed() >= time {
                    let next = raw(&format!("{at}:{}", inner.as_deref().unwrap_or_default()));
                    return Ok([(list.to_owned(), raw(&entries)), ("nextCursor".to_owned(), next)].into());
                }
                pages += 1;
                let params = inner.as_ref().map_or_else(|| json!({}), |cursor| json!({ "cursor": cursor }));
                let mut page = match self.page(from, tool, &params).await {
                    Ok(page) => page,
                    // The client's own cursor, which the server does not know.
                    Err(error) if pages == 1 && asked.cursor.is_some() && is_invalid(&error) => {
                        return Err(of_call(&error));
                    }
                    // A server that fails does not hide what the others have.
                    Err(error) => {
                        let service = tool.service.as_str();
                        tracing::warn!(target: "sealwire::gateway", service, method = tool.method.name, %error, "cannot list");
                        failed = failed.or(Some(error));
                        inner = None;
                        continue 'methods;
                    }
                };
                has_answered = true;
                let found = page.get(list).and_then(|all| serde_json::from_str::<Vec<Box<RawValue>>>(all.get()).ok());
                let found = found.unwrap_or_default();
                let next = page.remove("nextCursor").and_then(|next| serde_json::from_str::<String>(next.get()).ok());
                // A server that gives the same cursor again, and nothing else, has no more.
                let next = next.filter(|next| !found.is_empty() || inner.as_ref() != Some(next));
                bytes += found.iter().map(|entry| entry.get().len()).sum::<usize>();
                let is_labelled = methods.len() > 1 && list == "prompts";
                entries.extend(found.into_iter().map(|entry| if is_labelled { labelled(&entry, tool) } else { entry }));
                inner = next;
                if methods.len() == 1 && pages == 1 && inner.is_none() {
                    whole = Some(page);
                }
                if inner.is_none() {
                    continue 'methods;
                }
            }
        }
        match failed {
            Some(error) if !has_answered => Err(of_call(&error)),
            _ => {
                let mut result = whole.unwrap_or_default();
                result.insert(list.to_owned(), raw(&entries));
                Ok(result)
            }
        }
    }

    /// Reads a resource from the first server that has it.
    async fn read(&self, from: Requester<'_>, methods: &[Arc<Tool>], asked: &mut RequestParams) -> Found {
        let Some(uri) = asked.uri.clone() else { return Err(Err(Fault::params("`uri` is missing"))) };
        let digest = digest(["resources/read", &uri, ""]);
        // Of several errors, the first of those that say most.
        let mut refused: Option<(Absence, ClientError)> = None;
        for tool in methods {
            match self.found(from, asked, tool, &json!({ "uri": uri }), &digest).await? {
                Ok(found) => return Ok(Ok(found)),
                // Another server may have it.
                Err(error) => {
                    let absence = Absence::of(&error, &uri);
                    refused = Some(refused.filter(|(before, _)| *before <= absence).unwrap_or((absence, error)));
                }
            }
        }
        let code = if from.revision == Revision::V2026_07_28 { code::INVALID_PARAMS } else { RESOURCE_NOT_FOUND };
        let fault = match refused {
            Some((Absence::Certain, error)) => Fault { code, ..of_call(&error) },
            Some((_, error)) => of_call(&error),
            None => not_found(code, &uri),
        };
        Err(Err(fault))
    }

    async fn prompt(&self, from: Requester<'_>, methods: &[Arc<Tool>], asked: &mut RequestParams) -> Found {
        let Some(name) = asked.name.clone() else { return Err(Err(Fault::params("`name` is missing"))) };
        let arguments = asked.arguments.take();
        let digest = digest(["prompts/get", &name, arguments.as_deref().map_or("", RawValue::get)]);
        let mut params = Members::new();
        params.extend(arguments.map(|arguments| ("arguments".to_owned(), arguments)));
        let mut unknown = None;
        for (tool, name) in named(methods, &name) {
            params.insert("name".to_owned(), raw(name));
            match self.found(from, asked, tool, &params, &digest).await? {
                // Another server may be meant, whose prefix is shorter.
                Err(error) if is_invalid(&error) => unknown = unknown.or(Some(error)),
                found => return Ok(found),
            }
        }
        unknown.map_or_else(|| Err(Err(Fault::params("Unknown prompt"))), |error| Ok(Err(error)))
    }

    /// Completes an argument of a prompt, or a variable of a resource template.
    async fn complete(&self, from: Requester<'_>, methods: &[Arc<Tool>], asked: &mut RequestParams) -> Found {
        let missing = |name: &str| Err(Err(Fault::params(format!("`{name}` is missing"))));
        let Some(about) = asked.about.take() else { return missing("ref") };
        let Some(argument) = asked.argument.take() else { return missing("argument") };
        let mut params = Map::new();
        params.insert("argument".to_owned(), argument);
        params.extend(asked.context.take().map(|context| ("context".to_owned(), context)));
        let prompt = match about.get("type").and_then(Value::as_str) {
            Some("ref/prompt") => Some(about.get("name").and_then(Value::as_str).unwrap_or_default().to_owned()),
            Some("ref/resource") => None,
            _ => return Err(Err(Fault::params("`ref` is neither a `ref/prompt` nor a `ref/resource`"))),
        };
        let candidates = match &prompt {
            Some(name) => named(methods, name),
            None => methods.iter().map(|tool| (tool, "")).collect(),
        };
        let uri = about.get("uri").and_then(Value::as_str).unwrap_or_default().to_owned();
        let (mut empty, mut failed) = (None, None::<(Weight, ClientError)>);
        for (tool, name) in candidates {
            let mut about = about.clone();
            if prompt.is_some() {
                about.insert("name".to_owned(), name.into());
            }
            params.insert("ref".to_owned(), about.into());
            match self.found(from, asked, tool, &params, "").await? {
                // Servers answer so for what they do not have, too.
                Ok(found) if methods.len() > 1 && has_no_values(&found) => empty = empty.or(Some(found)),
                Ok(found) => return Ok(Ok(found)),
                Err(error) => {
                    let weight = Weight::of(&error, &uri);
                    failed = Some(failed.filter(|(before, _)| *before <= weight).unwrap_or((weight, error)));
                }
            }
        }
        match (empty, failed) {
            // A server that has what was asked for, and cannot say what is in it.
            (Some(_), Some((Weight::Own, error))) | (None, Some((_, error))) => Ok(Err(error)),
            (Some(found), _) => Ok(Ok(found)),
            // Nothing behind the bus completes anything.
            (None, None) => Ok(Ok([("completion".to_owned(), raw(&json!({ "values": [] })))].into())),
        }
    }

    /// A page of a method's list. A list asks its reader for nothing.
    async fn page(&self, from: Requester<'_>, tool: &Arc<Tool>, params: &Value) -> Result<Members, ClientError> {
        let from = Requester { capabilities: ClientCapabilities::default(), ..from };
        let found = self.found(from, &mut RequestParams::default(), tool, params, "").await;
        found.unwrap_or(Err(ClientError::ConnectionLost))
    }

    /// Makes or resumes the call of a method for the client's request.
    async fn found(
        &self,
        from: Requester<'_>,
        asked: &mut RequestParams,
        tool: &Arc<Tool>,
        params: &impl serde::Serialize,
        digest: &str,
    ) -> Found {
        let run = self.run(from, asked, Arc::clone(tool), raw(params), digest.to_owned()).await.map_err(Err)?;
        match run {
            CallOutcome::Ended(_, result, _) => {
                let result =
                    result.and_then(|result| serde_json::from_str(result.get()).map_err(|_| ClientError::Ended));
                Ok(result.map(|mut members| {
                    without_ours(&mut members);
                    members
                }))
            }
            CallOutcome::Away(_) => Ok(Err(ClientError::Disconnected { waited: Duration::ZERO, cause: None })),
            CallOutcome::TooLarge => Err(Err(Fault::internal("the result is larger than 4 MiB"))),
            CallOutcome::Asks(result) => Err(Ok(result)),
        }
    }
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

/// The servers that may have a prompt of this name, and their own names for it; the likeliest first.
fn named<'m, 'n>(methods: &'m [Arc<Tool>], name: &'n str) -> Vec<(&'m Arc<Tool>, &'n str)> {
    if let [only] = methods {
        return vec![(only, name)];
    }
    let mut named: Vec<_> = methods.iter().filter_map(|tool| Some((tool, name.strip_prefix(&prefix(tool))?))).collect();
    named.sort_by_key(|(_, own)| own.len());
    named
}

/// The prefix of a server's prompt names if several servers have prompts: `demo__clock__`, or `demo__` for a server without a prefix.
fn prefix(tool: &Tool) -> String {
    let request = tool.mcp.request.as_deref().unwrap_or_default();
    let path = tool.method.name.strip_suffix(request).unwrap_or_default().trim_end_matches(['/', '.']);
    match path.replace(['/', '.'], "_") {
        path if path.is_empty() => format!("{}__", tool.service),
        path => format!("{}__{path}__", tool.service),
    }
}

/// A prompt under the name by which the gateway knows it.
fn labelled(prompt: &RawValue, tool: &Tool) -> Box<RawValue> {
    let Ok(mut members) = serde_json::from_str::<Members>(prompt.get()) else { return prompt.to_owned() };
    let name = members.get("name").and_then(|name| serde_json::from_str::<String>(name.get()).ok());
    members.extend(name.map(|name| ("name".to_owned(), raw(&format!("{}{name}", prefix(tool))))));
    raw(&members)
}

fn has_no_values(result: &Members) -> bool {
    let completion = result.get("completion").and_then(|all| serde_json::from_str::<Value>(all.get()).ok());
    let values = completion.as_ref().and_then(|completion| completion.get("values")).and_then(Value::as_array);
    values.is_none_or(Vec::is_empty)
}

/// Whether an error says that its server does not have a resource. The rest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Absence {
    No,
    /// It may: in 2026-07-28, the code is that of any bad parameter.
    Possible,
    /// It does, in the form of its revision.
    Certain,
}

impl Absence {
    fn of(error: &ClientError, uri: &str) -> Self {
        let ClientError::Remote(said) = error else { return Self::No };
        let names_it = || {
            let data = said.data().and_then(|data| serde_json::from_str::<Value>(data.get()).ok());
            data.is_some_and(|data| data.get("uri").and_then(Value::as_str) == Some(uri))
        };
        match said.code() {
            RESOURCE_NOT_FOUND if said.is_application() => Self::Certain,
            code::INVALID_PARAMS if said.is_application() && names_it() => Self::Certain,
            code::INVALID_PARAMS => Self::Possible,
            _ => Self::No,
        }
    }
}

/// What an error says about a completion, if other servers have nothing to say. Those that say most first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Weight {
    /// The server's own word, about what was asked for.
    Own,
    /// The server could not be asked, or may not be: it may have nothing to do with it.
    NotAsked,
    /// The server does not have it, or does not complete it.
    Absent,
}

impl Weight {
    fn of(error: &ClientError, uri: &str) -> Self {
        match error {
            ClientError::Remote(said) if said.code() == code::METHOD_NOT_FOUND => Self::Absent,
            _ if Absence::of(error, uri) != Absence::No => Self::Absent,
            ClientError::Remote(said) if said.is_application() => Self::Own,
            _ => Self::NotAsked,
        }
    }
}

/// Whether the server does not have what was asked for.
fn is_invalid(error: &ClientError) -> bool {
    matches!(error, ClientError::Remote(error) if error.code() == code::INVALID_PARAMS)
}
