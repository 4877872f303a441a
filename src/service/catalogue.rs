//! `rpc.discover`: the methods that a caller may call, as an OpenRPC document.
//! Never reveals a method that the caller may never call, not even by what it leaves out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};

use super::description::{Described, Description, IDEMPOTENT, PARAMS, SHORTENED, STREAM, SUBSCRIPTION, TASK};
use crate::auth::Caller;
use crate::name::MethodName;
use crate::policy::{Param, PolicySet, Reach, narrow};
use crate::rpc::{Params, RpcError};

/// All methods of a service, with their authors' descriptions.
#[derive(Debug, Default)]
pub(super) struct Catalogue(BTreeMap<String, Entry>);

/// One method.
#[derive(Debug, Default)]
pub(super) struct Entry {
    pub(super) described: Option<Described>,
    pub(super) answers: Answers,
    pub(super) is_idempotent: bool,
    /// `optional` or `required`, if it may be called as a task.
    pub(super) task: Option<&'static str>,
    /// The length of its latest text in an answer.
    pub(super) bytes: AtomicUsize,
}

/// How a method answers callers that accept frames.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Answers {
    /// With a result, perhaps with parts of it before.
    #[default]
    Result,
    /// With a result that comes in parts.
    Stream,
    /// With notifications, until it is cancelled.
    Subscription,
}

/// Who asks for what.
#[derive(Debug)]
pub(super) struct Asked<'a> {
    /// The service's audience.
    pub(super) title: &'a str,
    pub(super) caller: &'a Caller,
    pub(super) params: Option<&'a Params>,
    pub(super) now_ms: u64,
    /// The most bytes of a page, unless it holds a single method.
    pub(super) room: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Discover {
    /// The previous page's `x-next`.
    #[serde(default)]
    cursor: Option<String>,
}

/// OpenRPC 1.3.
#[derive(Serialize)]
struct Document<'a> {
    openrpc: &'static str,
    info: Info<'a>,
    methods: Vec<Box<RawValue>>,
    #[serde(rename = "x-next", skip_serializing_if = "Option::is_none")]
    next: Option<&'a str>,
}

#[derive(Serialize)]
struct Info<'a> {
    title: &'a str,
    version: String,
}

impl Catalogue {
    pub(super) fn new(entries: impl IntoIterator<Item = (String, Entry)>) -> Self {
        Self(entries.into_iter().collect())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn has(&self, method: &str) -> bool {
        self.0.contains_key(method)
    }

    /// One page. `charge` is told how many bytes it may have before they are written.
    pub(super) async fn page(
        &self,
        asked: Asked<'_>,
        policy: &PolicySet,
        charge: impl Fn(usize) -> Result<(), RpcError>,
    ) -> Result<Box<RawValue>, RpcError> {
        let Asked { title, caller, params, now_ms, room } = asked;
        let Discover { cursor } = Params::decode(params)?;
        if cursor.as_deref().is_some_and(|cursor| MethodName::new(cursor).is_err()) {
            return Err(RpcError::invalid_params("`cursor` is what `x-next` of the page before says"));
        }
        // The cursor is the name of a listed method: it reveals nothing about those left out.
        let rest = self.0.iter().skip_while(|(name, _)| cursor.as_ref().is_some_and(|cursor| *name <= cursor));
        let (mut reached, mut expected) = (Vec::new(), 0_usize);
        for (position, (name, entry)) in rest.enumerate() {
            if position % METHODS_PER_CALL == METHODS_PER_CALL - 1 {
                // Other tasks have waited for as long as a call takes.
                tokio::task::yield_now().await;
            }
            if let Some(reach) = policy.reach(caller, name, now_ms) {
                expected = expected.saturating_add(entry.bytes.load(Ordering::Relaxed));
                reached.push((name, entry, reach));
            }
        }
        charge(expected.min(room))?;
        let (mut methods, mut bytes) = (Vec::new(), FRAME);
        let (mut last, mut next, mut worked) = ("", None, 0);
        for (name, entry, reach) in reached {
            let Some(text) = entry.told(name, policy, &reach, room.saturating_sub(FRAME))? else { continue };
            worked += text.get().len();
            if worked >= BYTES_PER_CALL {
                worked = 0;
                tokio::task::yield_now().await;
            }
            if !methods.is_empty() && bytes + text.get().len() >= room {
                next = Some(last);
                break;
            }
            bytes += text.get().len() + 1;
            last = name;
            methods.push(text);
        }
        let info = Info { title, version: policy.revision().to_string() };
        to_raw_value(&Document { openrpc: "1.3.2", info, methods, next }).map_err(RpcError::internal)
    }
}

impl Entry {
    /// `None` while the method must not be listed. A text longer than `room` is shortened.
    fn told(
        &self,
        name: &str,
        policy: &PolicySet,
        reach: &Reach,
        room: usize,
    ) -> Result<Option<Box<RawValue>>, RpcError> {
        let description = match &self.described {
            None => Arc::default(),
            Some(Described::Once(description)) => Arc::clone(description),
            Some(Described::Now(describe)) => match describe() {
                None => return Ok(None),
                Some(description) if description.fault().is_some() => Arc::default(),
                Some(description) => description,
            },
        };
        let text = to_raw_value(&self.members(name, policy, reach, &description)).map_err(RpcError::internal)?;
        self.bytes.store(text.get().len(), Ordering::Relaxed);
        if text.get().len() <= room {
            return Ok(Some(text));
        }
        let mut short = self.members(name, policy, &Reach::default(), &Description::default());
        short.insert("params".to_owned(), json!([]));
        short.insert(PARAMS.to_owned(), json!({ "type": "object" }));
        short.insert(SHORTENED.to_owned(), true.into());
        to_raw_value(&short).map(Some).map_err(RpcError::internal)
    }

    /// A method object of OpenRPC.
    fn members(&self, name: &str, policy: &PolicySet, reach: &Reach, about: &Description) -> Map<String, Value> {
        let declared = policy.methods().params(name);
        let closed = declared.is_some() && policy.looks_at_params(name);
        let mut schema = match (&about.params, declared) {
            (Some(schema), _) => schema.clone(),
            (None, Some(declared)) => Param::object_schema(declared, closed),
            (None, None) => json!({ "type": "object" }),
        };
        for (name, keywords) in reach.params() {
            narrow_member(&mut schema, name, keywords);
        }
        let params: Vec<Value> = declared
            .unwrap_or_default()
            .iter()
            .map(|param| {
                let mut schema = param.kind().schema();
                for (_, keywords) in reach.params().filter(|(name, _)| *name == param.name()) {
                    narrow_all(&mut schema, keywords);
                }
                let mut told = json!({ "name": param.name(), "required": !param.is_optional(), "schema": schema });
                if let (Some(text), Value::Object(members)) = (param.description(), &mut told) {
                    members.insert("description".to_owned(), text.into());
                }
                told
            })
            .collect();
        let mut members = Map::new();
        members.insert("name".to_owned(), name.into());
        if let Some(text) = &about.text {
            members.insert("description".to_owned(), text.as_str().into());
        }
        members.insert("params".to_owned(), params.into());
        if about.params.is_some() && declared.is_none() {
            members.insert("paramStructure".to_owned(), "by-name".into());
        }
        let result = about.result.clone().unwrap_or_else(|| json!({}));
        members.insert("result".to_owned(), json!({ "name": "result", "schema": result }));
        if !about.examples.is_empty() {
            members.insert("examples".to_owned(), about.examples.iter().enumerate().map(example).collect());
        }
        members.insert(PARAMS.to_owned(), schema);
        match self.answers {
            Answers::Result => {}
            Answers::Stream => drop(members.insert(STREAM.to_owned(), true.into())),
            Answers::Subscription => drop(members.insert(SUBSCRIPTION.to_owned(), true.into())),
        }
        if self.is_idempotent {
            members.insert(IDEMPOTENT.to_owned(), true.into());
        }
        if let Some(task) = self.task {
            members.insert(TASK.to_owned(), task.into());
        }
        members.extend(about.extensions.clone());
        members
    }
}

fn example((position, (params, result)): (usize, &(Value, Value))) -> Value {
    let params: Vec<Value> =
        params.as_object().into_iter().flatten().map(|(name, value)| json!({ "name": name, "value": value })).collect();
    json!({
        "name": format!("example {}", position.saturating_add(1)),
        "params": params,
        "result": { "name": "result", "value": result },
    })
}

/// Narrows a property in an object's schema, adding the property if it is missing.
fn narrow_member(schema: &mut Value, name: &str, keywords: &Map<String, Value>) {
    let properties = schema.as_object_mut().map(|schema| schema.entry("properties").or_insert_with(|| json!({})));
    if let Some(properties) = properties.and_then(Value::as_object_mut) {
        narrow_all(properties.entry(name).or_insert_with(|| json!({})), keywords);
    }
}

fn narrow_all(schema: &mut Value, keywords: &Map<String, Value>) {
    match schema {
        Value::Object(schema) => {
            for (keyword, argument) in keywords {
                narrow(schema, keyword, argument.clone());
            }
        }
        // `true` accepts anything.
        Value::Bool(true) => *schema = Value::Object(keywords.clone()),
        _ => {}
    }
}

/// This many decisions cost about as much as a call ...
pub(super) const METHODS_PER_CALL: usize = 16;
/// ... and so do this many written bytes.
pub(super) const BYTES_PER_CALL: usize = 16 * 1024;

/// More than a document takes without its methods: title and cursor have at most 130 bytes each, and there is the
/// response's id.
const FRAME: usize = 1_024;
