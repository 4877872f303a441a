//! In which revision a message is, and what was agreed on before: its own words say so, or a session that its client keeps.
//! Never takes a session for a proof of who calls.

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

/// How long what was agreed on holds. It is no right, so this is for the convenience of clients that run for days.
const SESSION: Duration = Duration::from_secs(7 * 24 * 3_600);

/// What was agreed on with `initialize`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Session {
    version: Legacy,
    /// Whether people there can be shown a form.
    forms: bool,
    /// Unlike that of any other.
    id: String,
}

/// In which revision a message is, and who its client is.
pub(super) struct Spoken {
    pub(super) era: Era,
    pub(super) capabilities: Capabilities,
    /// Its principal, and its session if it has one.
    pub(super) peer: Arc<str>,
    /// Whether it can be named by other messages.
    pub(super) has_session: bool,
}

impl Mcp {
    /// The session of this id, for its caller alone.
    pub(super) fn session(&self, principal: &Principal, id: &str) -> Result<Session, Refusal> {
        let session = self.seal.open(Kind::McpSession, principal.as_str(), id, SystemTime::now());
        session.ok_or_else(|| Refusal::not_found("the session is over, or none of yours: begin with `initialize`"))
    }

    /// In which revision a message is; nothing but its own says so.
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
            // A notification need not say what its client can do.
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
            let message = "`MCP-Protocol-Version` is not what was agreed on";
            return Err(Refusal::bad(StatusCode::BAD_REQUEST, message));
        }
        Ok(Spoken {
            era: Era::Legacy(session.version),
            capabilities: Capabilities::of_forms(session.forms),
            peer: format!("{}\n{}", principal.as_str(), session.id).into(),
            has_session: true,
        })
    }

    /// `initialize`, which gives its client a session.
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
        let internal = |_| Refusal::of_fault(StatusCode::OK, Fault::internal("the door cannot seal"));
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
