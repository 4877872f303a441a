//! Agent cards: who an agent is, how to reach it, and what it can do, signed with a key of the door.
//! Never names a method to a caller that the service would not name it to, and never contains a member that verifiers might leave out.

use hyper::header::{CACHE_CONTROL, ETAG, HOST, HeaderValue, IF_NONE_MATCH};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode};
use sealwire::client::{ClientError, MethodInfo};
use sealwire::rpc::canonical;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use tokio::time::timeout;

use super::{Sender, fault, whole};
use crate::http::callers::METADATA;
use crate::http::config::{A2aAgent, Expose};
use crate::http::connections::Body;
use crate::http::gate::{authority_name, single};
use crate::http::principal::Principal;
use crate::http::refusal::Refusal;
use crate::http::replicas::FromReplica;
use crate::http::rpc::failed;
use crate::http::{Door, answered, holding, only};
use crate::mcp::message::raw;

const CARD: &str = "/.well-known/agent-card.json";
/// RFC 7517 §5: the key set with the key that signs cards.
const KEYS: &str = "/.well-known/agent-card-keys.json";
/// The most methods in a card, and the longest description of one, in characters.
const SKILLS: usize = 256;
const DESCRIPTION: usize = 1_000;

/// An example in an OpenRPC method object.
#[derive(Deserialize)]
struct Example {
    #[serde(default)]
    params: Vec<Param>,
}

#[derive(Deserialize)]
struct Param {
    name: String,
    value: Box<RawValue>,
}

/// The part of a card that depends on its reader.
struct Reader {
    skills: Vec<Value>,
    version: String,
    cache: &'static str,
}

/// The service whose card is at this path; `Some(None)` means the only service with `a2a`.
fn agent_of(path: &str) -> Option<Option<&str>> {
    let place = path.strip_suffix(CARD)?;
    match place.strip_prefix("/a2a/") {
        Some(service) => Some(Some(service)),
        None => place.is_empty().then_some(None),
    }
}

impl Door {
    /// What is served without a token: the key of cards and, if callers have tokens, cards that say how to get one.
    pub(in crate::http) fn a2a_public(&self, head: &Parts) -> Option<Result<Response<Body>, Refusal>> {
        // Replicas forward no A2A requests.
        if head.extensions.get::<FromReplica>().is_some() {
            return None;
        }
        let path = head.uri.path();
        if path == KEYS
            && let Some(key) = &self.a2a.card_key
        {
            let keys = || {
                only(&head.method, Method::GET)?;
                let mut answer = answered(StatusCode::OK, "application/json", key.public_jwks());
                answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("public, max-age=300"));
                Ok(answer)
            };
            return Some(keys());
        }
        let service = agent_of(path).filter(|_| self.callers.have_tokens())?;
        let card = || {
            only(&head.method, Method::GET)?;
            let (expose, agent) = self.agent_or_only(service)?;
            let version = env!("CARGO_PKG_VERSION").to_owned();
            let reader = Reader { skills: vec![generic(expose)], version, cache: "public, max-age=300" };
            self.card(expose, agent, head, reader)
        };
        Some(card())
    }

    /// The card for the door's agent, which every caller is if there are no tokens.
    pub(in crate::http) async fn a2a_card(
        &self,
        principal: &Principal,
        head: &Parts,
    ) -> Result<Response<Body>, Refusal> {
        let nothing = || Refusal::not_found("not found");
        let service = agent_of(head.uri.path()).ok_or_else(nothing)?;
        only(&head.method, Method::GET)?;
        let (expose, agent) = self.agent_or_only(service)?;
        let place = self.admission.admit(principal, expose.service.as_str())?;
        let reader = self.reader(principal, expose, agent).await?;
        Ok(holding(self.card(expose, agent, head, reader)?, place))
    }

    /// `GetExtendedAgentCard`: the card for an authenticated caller.
    pub(super) async fn a2a_extended_card(&self, sender: Sender<'_>, head: &Parts) -> Result<Response<Body>, Refusal> {
        if !self.extends(sender.agent) {
            return Err(fault::unsupported("the card is already complete"));
        }
        let reader = self.reader(&sender.principal, sender.expose, sender.agent).await?;
        let card = self.signed(sender.expose, sender.agent, head, &reader)?;
        Ok(holding(whole(&sender.id, raw(&card)), sender.place))
    }

    /// Whether each caller has a card of its own.
    fn extends(&self, agent: &A2aAgent) -> bool {
        self.callers.have_tokens() && !agent.native
    }

    fn agent_or_only(&self, service: Option<&str>) -> Result<(&Expose, &A2aAgent), Refusal> {
        let Some(service) = service else {
            let mut agents = self.config.expose.iter().filter(|expose| expose.a2a.is_some());
            return match (agents.next(), agents.next()) {
                (Some(only), None) => self.agent(only.service.as_str()),
                _ => Err(Refusal::not_found("cards are at /a2a/SERVICE/.well-known/agent-card.json")),
            };
        };
        self.agent(service)
    }

    /// What the service lets this caller call.
    async fn reader(&self, principal: &Principal, expose: &Expose, agent: &A2aAgent) -> Result<Reader, Refusal> {
        let client = self.bus.client().await.map_err(|_| Refusal::away().of_a2a())?;
        let discovering = self.callers.request(&client, principal, expose).discover();
        let late = |_| ClientError::Timeout { service: expose.service.to_string(), after: expose.timeout() };
        // Discovery sends several requests.
        let found = timeout(expose.timeout(), discovering).await.map_err(late).flatten();
        let catalogue = found.map_err(|error| failed(expose, &error).of_a2a())?;
        // A call of a subscription would sooner or later end with an error.
        let callable = catalogue.methods.iter().filter(|method| expose.allows(&method.name) && !method.is_subscription);
        let mut skills: Vec<Value> = match agent.native {
            true => Vec::new(),
            false => callable.take(SKILLS).map(|method| skill(expose, agent, method)).collect(),
        };
        if skills.is_empty() {
            // A2A §5.7: a required list must not be empty.
            skills.push(generic(expose));
        }
        let version = Some(catalogue.version).filter(|version| !version.is_empty());
        let version = version.unwrap_or_else(|| env!("CARGO_PKG_VERSION").to_owned());
        Ok(Reader { skills, version, cache: "private, max-age=60" })
    }

    fn card(&self, expose: &Expose, agent: &A2aAgent, head: &Parts, reader: Reader) -> Result<Response<Body>, Refusal> {
        let text = self.signed(expose, agent, head, &reader)?.to_string();
        let digest: String = Sha256::digest(&text).iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        let tag = format!("\"{digest}\"");
        let known = head.headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
        // RFC 9110 §13.1.2: weak comparison.
        let is_known = known
            .flat_map(|all| all.split(','))
            .map(str::trim)
            .any(|one| one == "*" || one.strip_prefix("W/").unwrap_or(one) == tag);
        let mut answer = match is_known {
            true => answered(StatusCode::NOT_MODIFIED, "application/json", ""),
            false => answered(StatusCode::OK, "application/json", text),
        };
        let headers = answer.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static(reader.cache));
        headers.extend(HeaderValue::try_from(tag).ok().map(|tag| (ETAG, tag)));
        Ok(answer)
    }

    fn signed(&self, expose: &Expose, agent: &A2aAgent, head: &Parts, reader: &Reader) -> Result<Value, Refusal> {
        let base = self.base(head)?;
        let service = expose.service.as_str();
        let usual = || format!("The methods of the service {service} that a caller may call, as messages.");
        let modes = |has_text: bool| {
            if has_text { json!(["application/json", "text/plain"]) } else { json!(["application/json"]) }
        };
        let interface = json!({
            "url": format!("{base}/a2a/{service}"), "protocolBinding": "JSONRPC", "protocolVersion": "1.0",
        });
        let mut card = json!({
            "name": service,
            "description": agent.description.clone().unwrap_or_else(usual),
            "supportedInterfaces": [interface],
            "version": reader.version,
            "capabilities": {
                "streaming": true, "pushNotifications": false, "extendedAgentCard": self.extends(agent),
            },
            "defaultInputModes": modes(agent.native || agent.text_method.is_some()),
            "defaultOutputModes": modes(true),
            "skills": reader.skills,
        });
        let Some(members) = card.as_object_mut() else { return Ok(card) };
        if self.callers.have_tokens() {
            let how =
                format!("An access token for {base} with the scope {service}; {base}{METADATA} says who issues them.");
            let scheme = json!({ "scheme": "Bearer", "bearerFormat": "JWT", "description": how });
            members.insert("securitySchemes".to_owned(), json!({ "token": { "httpAuthSecurityScheme": scheme } }));
            let required = json!([{ "schemes": { "token": { "list": [service] } } }]);
            members.insert("securityRequirements".to_owned(), required);
        }
        if let Some(key) = &self.a2a.card_key {
            // A2A §8.4.1: empty and default values would have to be left out; the card has none.
            let unsigned = || Refusal::unavailable("the card cannot be signed");
            let text = canonical(&card).map_err(|_| unsigned())?;
            let signed = key.sign_document(text.as_bytes(), &format!("{base}{KEYS}"));
            let (protected, signature) = signed.map_err(|_| unsigned())?;
            if let Some(members) = card.as_object_mut() {
                let signature = json!([{ "protected": protected, "signature": signature }]);
                members.insert("signatures".to_owned(), signature);
            }
        }
        Ok(card)
    }

    /// Where callers find the door: as configured, or else by the request's `Host`, which was checked.
    fn base(&self, head: &Parts) -> Result<String, Refusal> {
        if let Some(url) = &self.config.public_url {
            return Ok(url.trim_end_matches('/').to_owned());
        }
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let host = single(&head.headers, &HOST)?.unwrap_or_default();
        match (&self.a2a.card_key, self.a2a.port.get()) {
            // A signed card must lead here, whatever port the request named.
            (Some(_), Some(port)) => Ok(format!("{scheme}://{}:{port}", authority_name(host).unwrap_or_default())),
            _ => Ok(format!("{scheme}://{host}")),
        }
    }
}

/// A skill that stands for methods that are not named.
fn generic(expose: &Expose) -> Value {
    let service = expose.service.as_str();
    let about = format!("What the service {service} lets a caller do.");
    json!({ "id": service, "name": service, "description": about, "tags": [service] })
}

/// A method as a skill.
fn skill(expose: &Expose, agent: &A2aAgent, method: &MethodInfo) -> Value {
    let name = method.name.as_str();
    let described = method.description.as_deref().map(str::trim).filter(|text| !text.is_empty());
    let description: String = match described {
        Some(text) => text.chars().take(DESCRIPTION).collect(),
        None => format!("The method {name}."),
    };
    let mut tags = vec![expose.service.as_str()];
    tags.extend(name.split_once('/').map(|(family, _)| family).filter(|family| *family != expose.service.as_str()));
    let mut skill = json!({ "id": name, "name": name, "description": description, "tags": tags });
    let Some(members) = skill.as_object_mut() else { return skill };
    let mut modes = vec!["application/json"];
    if agent.text_method.as_deref() == Some(name) {
        modes.push("text/plain");
    }
    members.insert("inputModes".to_owned(), json!(modes));
    let examples = examples(method);
    if !examples.is_empty() {
        members.insert("examples".to_owned(), json!(examples));
    }
    skill
}

/// A method's examples, as the text of `data` parts.
fn examples(method: &MethodInfo) -> Vec<String> {
    #[derive(Deserialize)]
    struct Document {
        #[serde(default)]
        examples: Vec<Example>,
    }
    let document = method.document.as_deref().and_then(|text| serde_json::from_str::<Document>(text.get()).ok());
    let examples = document.map(|document| document.examples).unwrap_or_default();
    let shown = examples.into_iter().take(4).map(|example| {
        let params: Map<String, Value> = example
            .params
            .into_iter()
            .map(|param| (param.name, serde_json::from_str(param.value.get()).unwrap_or_default()))
            .collect();
        json!({ "method": method.name, "params": params }).to_string()
    });
    shown.filter(|text| text.len() <= DESCRIPTION).collect()
}
