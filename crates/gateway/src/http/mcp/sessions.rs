//! Finds the revision of a message, and what was negotiated: from the message itself, or from the session id that its client keeps.
//! Never takes a session id as proof of who the caller is.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hyper::header::HeaderValue;
use hyper::{Response, StatusCode};
use sealwire_mcp::{ClientCapabilities, Id, Meta, Revision};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::answer::Ended;
use super::head::{Accepts, Claims, SESSION_ID};
use crate::http::connections::Body;
use crate::http::identity::Principal;
use crate::http::pipeline::admission::{Admitted, ServiceSet};
use crate::http::refusal::Refusal;
use crate::mcp::message::{self, Fault, with_handshake};
use crate::mcp::mirrored::mismatch;
use crate::mcp::news::Digests;
use crate::mcp::server::Server;
use crate::seal::{Kind, Seal, unlike_any};

/// How long a session is valid. It grants no rights, so it can be long, for clients that run for days.
const SESSION: Duration = Duration::from_secs(7 * 24 * 3_600);

/// What `initialize` negotiated.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct McpSession {
    version: Revision,
    /// What the client can be asked for.
    capabilities: ClientCapabilities,
    /// Unique to this session.
    id: String,
    /// The lists at that time: another replica tells it of what has changed since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lists: Option<Digests>,
}

impl McpSession {
    /// The name of its client.
    pub(super) fn peer(&self, principal: &Principal) -> Arc<str> {
        format!("{}\n{}", principal.as_str(), self.id).into()
    }

    /// The lists as they were when it began.
    pub(super) fn into_lists(self) -> Option<Digests> {
        self.lists
    }
}

/// The revision of a message, and its client.
pub(super) struct McpClient {
    pub(super) revision: Revision,
    pub(super) capabilities: ClientCapabilities,
    /// The principal, and the session if there is one.
    pub(super) peer: Arc<str>,
    /// Whether other messages can refer to this one.
    pub(super) has_session: bool,
}

/// Finds and begins sessions.
#[derive(Debug)]
pub(super) struct Sessions {
    seal: Arc<Seal>,
}

impl Sessions {
    pub(super) fn new(seal: Arc<Seal>) -> Self {
        Self { seal }
    }

    /// The session of this id, if it belongs to this caller.
    pub(super) fn open(&self, principal: &Principal, id: &str) -> Result<McpSession, Refusal> {
        let session = self.seal.open(Kind::McpSession, principal.as_str(), id, SystemTime::now());
        session.ok_or_else(|| Refusal::not_found("the session has expired or is not yours: begin with `initialize`"))
    }

    /// The revision of a message and its client, by its own `_meta` and headers alone.
    pub(super) fn client(
        &self,
        principal: &Principal,
        claims: &Claims<'_>,
        method: Option<&str>,
        meta: &Meta,
    ) -> Result<McpClient, Refusal> {
        let bad = |fault| Refusal::of_fault(StatusCode::BAD_REQUEST, fault);
        let unknown = |version: &str| bad(message::unsupported(version));
        let plain = |revision, capabilities| McpClient {
            revision,
            capabilities,
            peer: Arc::clone(principal.name()),
            has_session: false,
        };
        if meta.version.is_some() || claims.version == Some(Revision::V2026_07_28.as_str()) {
            if meta.version.as_deref() != claims.version && meta.version.is_some() {
                return Err(bad(mismatch("MCP-Protocol-Version")));
            }
            // A notification need not declare its client's capabilities.
            let Some(method) = method.filter(|method| !method.starts_with("notifications/")) else {
                return Ok(plain(Revision::V2026_07_28, ClientCapabilities::default()));
            };
            return match message::declared(meta).map_err(bad)? {
                Some(capabilities) => Ok(plain(Revision::V2026_07_28, capabilities)),
                None => {
                    let missing =
                        format!("`io.modelcontextprotocol/protocolVersion` is missing in `_meta` of `{method}`");
                    Err(bad(Fault::params(missing)))
                }
            };
        }
        let version = match claims.version {
            Some(version) => Some(with_handshake(version).ok_or_else(|| unknown(version))?),
            None => None,
        };
        let Some(id) = claims.session.filter(|_| method != Some("initialize")) else {
            return Ok(plain(version.unwrap_or(Revision::V2025_03_26), ClientCapabilities::default()));
        };
        let session = self.open(principal, id)?;
        if version.is_some_and(|version| version != session.version) {
            let message = "`MCP-Protocol-Version` is not the negotiated revision";
            return Err(Refusal::bad(StatusCode::BAD_REQUEST, message));
        }
        Ok(McpClient {
            revision: session.version,
            capabilities: session.capabilities,
            peer: session.peer(principal),
            has_session: true,
        })
    }

    /// Answers `initialize`, with a new session id.
    pub(super) async fn begin(
        &self,
        server: &Server,
        admitted: &Admitted<ServiceSet>,
        accepts: Accepts,
        id: &Id,
        params: Option<&RawValue>,
    ) -> Result<Response<Body>, Refusal> {
        let caller = admitted.caller();
        let begun = server.initialize(&*caller, params).await;
        let (version, capabilities, result) = begun.map_err(|fault| Refusal::of_fault(StatusCode::OK, fault))?;
        let internal = |_| Refusal::of_fault(StatusCode::OK, Fault::internal("the gateway cannot seal a session"));
        let (id_of_session, lists) = (unlike_any().map_err(internal)?, server.last_digests(&*caller));
        let session = McpSession { version, capabilities, id: id_of_session, lists };
        let name = admitted.principal().as_str();
        let sealed = self.seal.seal(Kind::McpSession, name, SESSION, session, SystemTime::now()).map_err(internal)?;
        let mut answer = Ended::new(version, id, Ok(result)).whole(accepts);
        if let Ok(sealed) = HeaderValue::from_str(&sealed) {
            answer.headers_mut().insert(SESSION_ID, sealed);
        }
        Ok(answer)
    }
}
