//! Finds the revision of a message, and what was negotiated: from the message itself, or from the session id that its client keeps.
//! Never takes a session id as proof of who the caller is.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hyper::header::HeaderValue;
use hyper::{Response, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::answer::Ended;
use super::head::{Claims, mismatch};
use super::{Mcp, SESSION_ID, Sender};
use crate::http::connections::Body;
use crate::http::principal::Principal;
use crate::http::refusal::Refusal;
use crate::mcp::message::{self, Capabilities, Era, Fault, Id, Legacy};
use crate::seal::{Kind, unlike_any};

/// How long a session is valid. It grants no rights, so it can be long, for clients that run for days.
const SESSION: Duration = Duration::from_secs(7 * 24 * 3_600);

/// What `initialize` negotiated.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Session {
    version: Legacy,
    /// Whether the client can show people a form.
    forms: bool,
    /// Unique to this session.
    id: String,
}

/// The revision of a message, and its client.
pub(super) struct Spoken {
    pub(super) era: Era,
    pub(super) capabilities: Capabilities,
    /// The principal, and the session if there is one.
    pub(super) peer: Arc<str>,
    /// Whether other messages can refer to this one.
    pub(super) has_session: bool,
}

impl Mcp {
    /// The session of this id, if it belongs to this caller.
    pub(super) fn session(&self, principal: &Principal, id: &str) -> Result<Session, Refusal> {
        let session = self.seal.open(Kind::McpSession, principal.as_str(), id, SystemTime::now());
        session.ok_or_else(|| Refusal::not_found("the session has expired or is not yours: begin with `initialize`"))
    }

    /// The revision of a message, by its own `_meta` and headers alone.
    pub(super) fn spoken(
        &self,
        principal: &Principal,
        claims: &Claims<'_>,
        method: Option<&str>,
        meta: &message::Meta,
    ) -> Result<Spoken, Refusal> {
        let bad = |fault| Refusal::of_fault(StatusCode::BAD_REQUEST, fault);
        let unknown = |version: &str| bad(message::unsupported(version));
        let plain = |era, capabilities| Spoken { era, capabilities, peer: principal.name(), has_session: false };
        if meta.version.is_some() || claims.version == Some(message::MODERN) {
            if meta.version.as_deref() != claims.version && meta.version.is_some() {
                return Err(bad(mismatch("MCP-Protocol-Version")));
            }
            // A notification need not declare its client's capabilities.
            let Some(method) = method.filter(|method| !method.starts_with("notifications/")) else {
                return Ok(plain(Era::Modern, Capabilities::default()));
            };
            return match message::modern(meta).map_err(bad)? {
                Some(capabilities) => Ok(plain(Era::Modern, capabilities)),
                None => {
                    let missing =
                        format!("`io.modelcontextprotocol/protocolVersion` is missing in `_meta` of `{method}`");
                    Err(bad(Fault::params(missing)))
                }
            };
        }
        let version = match claims.version {
            Some(version) => Some(Legacy::of(version).ok_or_else(|| unknown(version))?),
            None => None,
        };
        let Some(id) = claims.session.filter(|_| method != Some("initialize")) else {
            return Ok(plain(Era::Legacy(version.unwrap_or(Legacy::V2025_03_26)), Capabilities::default()));
        };
        let session = self.session(principal, id)?;
        if version.is_some_and(|version| version != session.version) {
            let message = "`MCP-Protocol-Version` is not the negotiated revision";
            return Err(Refusal::bad(StatusCode::BAD_REQUEST, message));
        }
        Ok(Spoken {
            era: Era::Legacy(session.version),
            capabilities: Capabilities::of_forms(session.forms),
            peer: format!("{}\n{}", principal.as_str(), session.id).into(),
            has_session: true,
        })
    }

    /// Answers `initialize`, with a new session id.
    pub(super) fn initialize(
        &self,
        sender: &Sender,
        id: &Id,
        params: Option<&RawValue>,
    ) -> Result<Response<Body>, Refusal> {
        let (version, capabilities, result) = sender
            .server
            .initialize(&*sender.caller, params)
            .map_err(|fault| Refusal::of_fault(StatusCode::OK, fault))?;
        let internal = |_| Refusal::of_fault(StatusCode::OK, Fault::internal("the door cannot seal a session"));
        let session = Session { version, forms: capabilities.forms(), id: unlike_any().map_err(internal)? };
        let name = sender.principal.as_str();
        let sealed = self.seal.seal(Kind::McpSession, name, SESSION, session, SystemTime::now()).map_err(internal)?;
        let mut answer = Ended::new(Era::Legacy(version), id, Ok(result)).whole(sender.accepts);
        if let Ok(sealed) = HeaderValue::from_str(&sealed) {
            answer.headers_mut().insert(SESSION_ID, sealed);
        }
        Ok(answer)
    }
}
