//! Tickets, which open a socket in place of a token that a browser page cannot send there: for one service and `Origin`, soon, and once.
//! Never good for more than the token it was issued for, which it carries and which is verified again.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hyper::header::{ORIGIN, SEC_WEBSOCKET_PROTOCOL};
use hyper::http::request::Parts;
use sealwire::internal::auth::AdmitError;
use sealwire::{Clock as _, SystemClock};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::http::fields::{list, single};
use crate::http::refusal::Refusal;
use crate::once::{IssuedAt, Once};
use crate::{once, seal};

/// How long a ticket is valid, in seconds.
const LIFE_S: u64 = 30;
/// The prefix of the subprotocol that carries a ticket.
pub(in crate::http) const PREFIX: &str = "ticket.sealwire.dev.";

/// Issues and accepts tickets.
#[derive(Debug)]
pub(super) struct Tickets {
    seal: seal::Seal,
    once: Arc<Once>,
    /// Whether other replicas issue tickets, too, by clocks of their own.
    has_others: bool,
}

/// The content of a ticket.
#[derive(Serialize, Deserialize)]
pub(super) struct Ticket {
    id: String,
    at: u64,
    /// Whether the token's key was proved when it was requested.
    pub(super) is_proved: bool,
    pub(super) token: Zeroizing<String>,
}

/// The answer to a request for a ticket.
#[derive(Serialize)]
pub(in crate::http) struct Granted {
    ticket: String,
    expires_in: u64,
}

impl Tickets {
    pub(super) fn new(seal: seal::Seal, once: Arc<Once>, has_others: bool) -> Self {
        Self { seal, once, has_others }
    }

    /// Issues a ticket for the socket at this path and for pages of the requesting origin, valid until `until` at the latest.
    pub(super) fn grant(
        &self,
        head: &Parts,
        path: &str,
        token: &Zeroizing<String>,
        is_proved: bool,
        until: u64,
    ) -> Result<Granted, Refusal> {
        let unsealed = |_| Refusal::unavailable("no ticket can be issued now: try again");
        let at = SystemClock.now_s();
        let expires_in = until.saturating_sub(at).min(LIFE_S);
        let id = seal::unlike_any().map_err(unsealed)?;
        let ticket = Ticket { id, at, is_proved, token: token.clone() };
        let (whose, life) = (whose(head, path)?, Duration::from_secs(expires_in));
        let ticket = self.seal.seal(seal::Kind::Ticket, &whose, life, ticket, SystemTime::now()).map_err(unsealed)?;
        Ok(Granted { ticket, expires_in })
    }

    /// Opens the ticket of a handshake, if there is one; `Err(None)` if it is not valid here.
    pub(super) fn open(&self, head: &Parts) -> Option<Result<Ticket, Option<Refusal>>> {
        let mut shown = list(&head.headers, &SEC_WEBSOCKET_PROTOCOL).filter_map(|name| name.strip_prefix(PREFIX));
        let (ticket, other) = (shown.next()?, shown.next());
        let opened = whose(head, head.uri.path()).map_err(Some).and_then(|whose| {
            let opened = self.seal.open(seal::Kind::Ticket, &whose, ticket, SystemTime::now());
            opened.filter(|_| other.is_none()).ok_or(None)
        });
        Some(opened)
    }

    /// Uses up a ticket; `Err(None)` if it was used before or is stale.
    pub(super) async fn spend(&self, ticket: &Ticket, principal: &str) -> Result<(), Option<Refusal>> {
        let dated = if self.has_others { IssuedAt::ByCaller(ticket.at, ticket.at) } else { IssuedAt::Here(ticket.at) };
        match self.once.spend(once::ReplayScope::Gateway, once::Kind::Ticket, principal, &ticket.id, dated).await {
            Ok(()) => Ok(()),
            Err(AdmitError::Replayed | AdmitError::Stale) => Err(None),
            Err(AdmitError::OwnerFull { retry_after_ms }) => {
                Err(Some(Refusal::quota("too many tickets of this caller", retry_after_ms.div_ceil(1_000))))
            }
            Err(error) => {
                tracing::warn!(target: "sealwire::gateway", %error, "tickets cannot be checked");
                Err(Some(Refusal::unavailable("tickets cannot be checked now: try again")))
            }
        }
    }
}

/// What a ticket is for: the service, by its path, and the origin of the page, empty for a program.
fn whose(head: &Parts, path: &str) -> Result<String, Refusal> {
    Ok(format!("{path} {}", single(&head.headers, &ORIGIN)?.unwrap_or_default()))
}
