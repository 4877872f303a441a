//! Queries the services while the page has viewers: whether they answer, and what the agent may call.
//! Never asks anything that not every agent may ask, and never asks while there are no viewers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use sealwire::ClientError;
use sealwire::call::MethodInfo;
use serde::Serialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::traffic::escaped;
use crate::agent::Agent;
use crate::bus::Bus;
use crate::http::config::{Expose, GatewayConfig};
use crate::http::refusal::Refusal;

/// How often to check whether each service answers.
const ASKED: Duration = Duration::from_secs(5);
/// How long that answer may take.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long a service may take to list its methods.
const TELLING: Duration = Duration::from_secs(10);
/// The most methods shown: the bytes of their descriptions for all services, and the number for one service.
const METHODS_BYTES: usize = 256 << 10;
const METHODS: usize = 500;
/// The most parameters shown of one method.
const PARAMS: usize = 16;

/// The services' answers.
#[derive(Debug)]
pub(super) struct Services {
    answers: Mutex<BTreeMap<String, Answer>>,
    /// The methods as JSON, for all viewers.
    pub(super) methods: watch::Sender<Arc<str>>,
}

#[derive(Debug)]
struct Answer {
    at: Instant,
    ms: f64,
    /// Why there is no trustworthy answer.
    failed: Option<String>,
}

/// An answer as shown on the page.
#[derive(Debug, Serialize)]
pub(super) struct ShownAnswer {
    ago_ms: u64,
    ms: f64,
    failed: Option<String>,
}

/// The methods of a service.
#[derive(Debug, Serialize)]
struct Methods<'a> {
    service: &'a str,
    methods: Vec<Method>,
    /// How many more there are.
    more: usize,
    failed: Option<String>,
}

#[derive(Debug, Serialize)]
struct Method {
    name: String,
    kind: &'static str,
    idempotent: bool,
    params: Vec<Param>,
    more: usize,
}

#[derive(Debug, Serialize)]
struct Param {
    name: String,
    required: bool,
    bounds: String,
}

impl Services {
    pub(super) fn new() -> Self {
        Self { answers: Mutex::default(), methods: watch::Sender::new("[]".into()) }
    }

    fn answers(&self) -> MutexGuard<'_, BTreeMap<String, Answer>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A service's last answer, if it was asked.
    pub(super) fn answer(&self, service: &str) -> Option<ShownAnswer> {
        let answers = self.answers();
        let Answer { at, ms, failed } = answers.get(service)?;
        let ago_ms = u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX);
        Some(ShownAnswer { ago_ms, ms: *ms, failed: failed.clone() })
    }

    /// Asks the services for as long as there are viewers.
    pub(super) async fn ask(&self, config: &GatewayConfig, bus: &Bus, looking: &watch::Sender<usize>) {
        let mut looking = looking.subscribe();
        let mut asked: Option<Instant> = None;
        loop {
            if looking.wait_for(|looking| *looking > 0).await.is_err() {
                return;
            }
            if bus.connect().await.is_ok() {
                join_all(config.expose.iter().map(|expose| self.reach(bus, expose))).await;
                if asked.is_none_or(|asked| asked.elapsed() >= config.refresh()) {
                    asked = Some(Instant::now());
                    self.discover(bus, &config.expose).await;
                }
            }
            sleep(ASKED).await;
        }
    }

    /// Makes a call that changes nothing, and that no policy needs to allow: a denial is signed, too.
    async fn reach(&self, bus: &Bus, expose: &Expose) {
        let service = expose.service.as_str();
        // Lost since: it is asked again soon.
        let Ok((request, _)) = bus.request(&Agent::of(bus), service).await else { return };
        let request = request.deadline(PATIENCE);
        let started = Instant::now();
        let answer = request.call::<IgnoredAny>("rpc.can", json!({ "method": "rpc.can" })).await;
        let ms = started.elapsed().as_secs_f64() * 1_000.0;
        let failed = match answer {
            Ok(_) | Err(ClientError::Remote(_)) => None,
            Err(error) => Some(Refusal::of_call(&error).message().to_owned()),
        };
        self.answers().insert(service.to_owned(), Answer { at: Instant::now(), ms, failed });
    }

    async fn discover(&self, bus: &Bus, exposed: &[Expose]) {
        let agent = Agent::of(bus);
        let asked = exposed.iter().map(async |expose| {
            let discovering = async { bus.request(&agent, expose.service.as_str()).await?.0.discover().await };
            timeout(TELLING, discovering).await
        });
        let mut room = METHODS_BYTES;
        let mut all = Vec::new();
        for (expose, found) in exposed.iter().zip(join_all(asked).await) {
            let mut shown = Methods { service: expose.service.as_str(), methods: Vec::new(), more: 0, failed: None };
            match found {
                Ok(Ok(found)) => {
                    for method in found.methods.iter().filter(|method| expose.allows(&method.name)) {
                        let method = Method::of(method);
                        let bytes = serde_json::to_string(&method).map_or(usize::MAX, |text| text.len());
                        if shown.methods.len() < METHODS && bytes <= room {
                            room -= bytes;
                            shown.methods.push(method);
                        } else {
                            shown.more += 1;
                        }
                    }
                }
                Ok(Err(error)) => shown.failed = Some(Refusal::of_call(&error).message().to_owned()),
                Err(_) => shown.failed = Some("no answer in time".to_owned()),
            }
            all.push(shown);
        }
        let text: Arc<str> = serde_json::to_string(&all).unwrap_or_default().into();
        self.methods.send_if_modified(|told| {
            let has_changed = **told != *text;
            *told = text;
            has_changed
        });
    }
}

impl Method {
    fn of(method: &MethodInfo) -> Self {
        let schema: Value = serde_json::from_str(method.params.get()).unwrap_or_default();
        let required = schema.get("required").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let all = schema.get("properties").and_then(Value::as_object);
        let params: Vec<_> = all
            .into_iter()
            .flatten()
            .take(PARAMS)
            .map(|(name, schema)| Param {
                name: escaped(name),
                required: required.iter().any(|required| required == name),
                bounds: bounds(schema),
            })
            .collect();
        let kind = match (method.is_subscription, method.is_stream) {
            (true, _) => "subscription",
            (false, true) => "stream",
            (false, false) => "call",
        };
        let more = all.map_or(0, |all| all.len().saturating_sub(PARAMS));
        Self { name: escaped(&method.name), kind, idempotent: method.is_idempotent, params, more }
    }
}

/// A schema in a few words: its type, and the bounds of a plain value.
fn bounds(schema: &Value) -> String {
    let kind = schema.get("type").map(|kind| match kind {
        Value::String(kind) => kind.clone(),
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" or "),
        _ => String::new(),
    });
    let mut words: Vec<String> = kind.into_iter().filter(|kind| !kind.is_empty()).map(|kind| escaped(&kind)).collect();
    for (keyword, sign) in [
        ("const", "= "),
        ("minimum", "≥ "),
        ("exclusiveMinimum", "> "),
        ("maximum", "≤ "),
        ("exclusiveMaximum", "< "),
        ("minLength", "length ≥ "),
        ("maxLength", "length ≤ "),
        ("pattern", "matches "),
        ("minItems", "items ≥ "),
        ("maxItems", "items ≤ "),
    ] {
        words.extend(schema.get(keyword).map(|value| format!("{sign}{}", escaped(&value.to_string()))));
    }
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        let values = values.iter().map(Value::to_string).collect::<Vec<_>>().join(", ");
        words.push(format!("one of {}", escaped(&values)));
    }
    if ["allOf", "anyOf", "oneOf", "not", "$ref"].iter().any(|keyword| schema.get(keyword).is_some()) {
        words.push("with conditions".to_owned());
    }
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_said_in_a_few_words() {
        for (schema, words) in [
            (json!({ "type": "number", "maximum": 100, "exclusiveMinimum": 0 }), "number, > 0, ≤ 100"),
            (json!({ "type": ["string", "null"], "enum": ["a", null] }), "string or null, one of \"a\", null"),
            (json!({ "type": "string", "allOf": [{ "pattern": "^a" }] }), "string, with conditions"),
            (json!(true), ""),
        ] {
            assert_eq!(bounds(&schema), words);
        }
    }
}
