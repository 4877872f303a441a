//! Agent cards: who an agent is, how to reach it, and what it can do, signed with a key of the gateway.
//! Never names a method to a caller that the service would not name it to, and never contains a member that verifiers might leave out.

use hyper::header::{CACHE_CONTROL, ETAG, HOST, HeaderValue, IF_NONE_MATCH};
use hyper::{Method, Response, StatusCode};
use sealwire::call::MethodInfo;
use sealwire::internal::rpc::canonical;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::agents::{A2a, AgentRequest, agent_of};
use crate::fault::{self, ToA2a};
use crate::follow::whole;
use crate::raw::raw;
use sealwire_gateway::dialect::{
    Admitted, Body, CheckedHead, METADATA, Refusal, Service, authority_name, discover, failed, require_method,
    response, single, with_permit,
};
use sealwire_gateway::http::{A2aAgent, Expose};

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
fn service_of(path: &str) -> Option<Option<&str>> {
    let place = path.strip_suffix(CARD)?;
    match place.strip_prefix("/a2a/") {
        Some(service) => Some(Some(service)),
        None => place.is_empty().then_some(None),
    }
}

impl A2a {
    /// What is served without a token: the key of cards and, if callers have tokens, cards that say how to get one.
    pub(crate) fn public_card(&self, head: &CheckedHead) -> Option<Result<Response<Body>, Refusal>> {
        // Replicas forward no A2A requests.
        if head.is_from_replica() {
            return None;
        }
        let path = head.uri.path();
        if path == KEYS
            && let Some(key) = &self.card_key
        {
            let keys = || {
                require_method(&head.method, Method::GET)?;
                let mut answer = response(StatusCode::OK, "application/json", key.public_jwks());
                answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("public, max-age=300"));
                Ok(answer)
            };
            return Some(keys());
        }
        let service = service_of(path).filter(|_| self.have_tokens)?;
        let card = || {
            require_method(&head.method, Method::GET)?;
            let expose = self.agent_or_only(service)?;
            let version = env!("CARGO_PKG_VERSION").to_owned();
            let reader = Reader { skills: vec![generic(expose)], version, cache: "public, max-age=300" };
            self.card_for(expose, head, &reader)
        };
        Some(card())
    }

    /// The service whose card is at this address.
    pub(crate) fn agent_of_card(&self, head: &CheckedHead) -> Result<&Service, Refusal> {
        let service = service_of(head.uri.path()).ok_or_else(|| Refusal::not_found("not found"))?;
        require_method(&head.method, Method::GET)?;
        self.agent_or_only(service)
    }

    /// The card for the gateway's agent, which every caller is if there are no tokens.
    pub(crate) async fn card(&self, admitted: Admitted, head: &CheckedHead) -> Result<Response<Body>, Refusal> {
        let reader = reader(&admitted).await?;
        Ok(with_permit(self.card_for(admitted.expose(), head, &reader)?, admitted.into_permit()))
    }

    /// `GetExtendedAgentCard`: the card for an authenticated caller.
    pub(crate) async fn extended_card(
        &self,
        sent: AgentRequest,
        head: &CheckedHead,
    ) -> Result<Response<Body>, Refusal> {
        let AgentRequest { admitted, id } = sent;
        if !self.extends(agent_of(admitted.expose())?) {
            return Err(fault::unsupported("the card is already complete"));
        }
        let reader = reader(&admitted).await?;
        let card = self.signed(admitted.expose(), head, &reader)?;
        Ok(with_permit(whole(&id, raw(&card)), admitted.into_permit()))
    }

    /// Whether each caller has a card of its own.
    fn extends(&self, agent: &A2aAgent) -> bool {
        self.have_tokens && !agent.native
    }

    fn agent_or_only(&self, service: Option<&str>) -> Result<&Service, Refusal> {
        let Some(service) = service else {
            let mut agents = self.exposed.iter().filter(|expose| expose.a2a.is_some());
            return match (agents.next(), agents.next()) {
                (Some(only), None) => Ok(only),
                _ => Err(Refusal::not_found("cards are at /a2a/SERVICE/.well-known/agent-card.json")),
            };
        };
        self.agent(service)
    }

    fn card_for(&self, expose: &Expose, head: &CheckedHead, reader: &Reader) -> Result<Response<Body>, Refusal> {
        let text = self.signed(expose, head, reader)?.to_string();
        let digest: String = Sha256::digest(&text).iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        let tag = format!("\"{digest}\"");
        let known = head.headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
        // RFC 9110 §13.1.2: weak comparison.
        let is_known = known
            .flat_map(|all| all.split(','))
            .map(str::trim)
            .any(|one| one == "*" || one.strip_prefix("W/").unwrap_or(one) == tag);
        let mut answer = match is_known {
            true => response(StatusCode::NOT_MODIFIED, "application/json", ""),
            false => response(StatusCode::OK, "application/json", text),
        };
        let headers = answer.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static(reader.cache));
        headers.extend(HeaderValue::try_from(tag).ok().map(|tag| (ETAG, tag)));
        Ok(answer)
    }

    fn signed(&self, expose: &Expose, head: &CheckedHead, reader: &Reader) -> Result<Value, Refusal> {
        let agent = agent_of(expose)?;
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
        if self.have_tokens {
            let how =
                format!("An access token for {base} with the scope {service}; {base}{METADATA} says who issues them.");
            let scheme = json!({ "scheme": "Bearer", "bearerFormat": "JWT", "description": how });
            members.insert("securitySchemes".to_owned(), json!({ "token": { "httpAuthSecurityScheme": scheme } }));
            let required = json!([{ "schemes": { "token": { "list": [service] } } }]);
            members.insert("securityRequirements".to_owned(), required);
        }
        if let Some(key) = &self.card_key {
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

    /// Where callers find the gateway: as configured, or else by the request's `Host`, which was checked.
    fn base(&self, head: &CheckedHead) -> Result<String, Refusal> {
        if let Some(url) = &self.public_url {
            return Ok(url.trim_end_matches('/').to_owned());
        }
        let scheme = if self.has_tls { "https" } else { "http" };
        let host = single(&head.headers, &HOST)?.unwrap_or_default();
        match (&self.card_key, self.port.get()) {
            // A signed card must lead here, whatever port the request named.
            (Some(_), Some(port)) => Ok(format!("{scheme}://{}:{port}", authority_name(host).unwrap_or_default())),
            _ => Ok(format!("{scheme}://{host}")),
        }
    }
}

/// What the service lets the caller call.
async fn reader(admitted: &Admitted) -> Result<Reader, Refusal> {
    let expose = admitted.expose();
    let agent = agent_of(expose)?;
    let found = discover(admitted).await.map_err(ToA2a::to_a2a)?;
    let catalogue = found.map_err(|error| failed(expose, &error).to_a2a())?;
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
    // A2A has no other word for it.
    tags.extend(method.task.map(|_| "task"));
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
