//! What opens a socket in place of a token, which a page in a browser cannot show there: for one service and `Origin`, soon, and once.
//! Never good for more than the token that it was made for, which it carries and which is verified again.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hyper::header::{ORIGIN, SEC_WEBSOCKET_PROTOCOL};
use hyper::http::request::Parts;
use sealwire::auth::AdmitError;
use sealwire::{Clock as _, SystemClock};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::handshake::tokens;
use crate::http::gate::single;
use crate::http::refusal::Refusal;
use crate::once::{Dated, Once};
use crate::{once, seal};

/// How long one is good, in seconds.
const LIFE_S: u64 = 30;
/// What the subprotocol begins with that carries one.
pub(super) const PREFIX: &str = "ticket.sealwire.dev.";

/// What makes and takes tickets.
#[derive(Debug)]
pub(in crate::http) struct Tickets {
    seal: seal::Seal,
    once: Arc<Once>,
    /// Whether other replicas make them, too, by clocks of their own.
    has_others: bool,
}

/// What one carries.
#[derive(Serialize, Deserialize)]
pub(in crate::http) struct Ticket {
    id: String,
    at: u64,
    /// Whether a proof of the token's key was shown for it.
    pub(in crate::http) is_proved: bool,
    pub(in crate::http) token: Zeroizing<String>,
}

/// The answer to who asks for one.
#[derive(Serialize)]
pub(in crate::http) struct Granted {
    ticket: String,
    expires_in: u64,
}

impl Tickets {
    pub(in crate::http) fn new(seal: seal::Seal, once: Arc<Once>, has_others: bool) -> Self {
        Self { seal, once, has_others }
    }

    /// One for the socket at this path and for pages of the origin that asks, no longer than until `until`.
    pub(in crate::http) fn grant(
        &self,
        head: &Parts,
        path: &str,
        token: &Zeroizing<String>,
        is_proved: bool,
        until: u64,
    ) -> Result<Granted, Refusal> {
        let unsealed = |_| Refusal::unavailable("no ticket can be made now: try again");
        let at = SystemClock.now_s();
        let expires_in = until.saturating_sub(at).min(LIFE_S);
        let id = seal::unlike_any().map_err(unsealed)?;
        let ticket = Ticket { id, at, is_proved, token: token.clone() };
        let (whose, life) = (whose(head, path)?, Duration::from_secs(expires_in));
        let ticket = self.seal.seal(seal::Kind::Ticket, &whose, life, ticket, SystemTime::now()).map_err(unsealed)?;
        Ok(Granted { ticket, expires_in })
    }

    /// What the ticket of a handshake carries, if that has one; `Err` with `None` if it is not good here.
    pub(in crate::http) fn open(&self, head: &Parts) -> Option<Result<Ticket, Option<Refusal>>> {
        let mut shown = tokens(&head.headers, &SEC_WEBSOCKET_PROTOCOL).filter_map(|name| name.strip_prefix(PREFIX));
        let (ticket, other) = (shown.next()?, shown.next());
        let opened = whose(head, head.uri.path()).map_err(Some).and_then(|whose| {
            let opened = self.seal.open(seal::Kind::Ticket, &whose, ticket, SystemTime::now());
            opened.filter(|_| other.is_none()).ok_or(None)
        });
        Some(opened)
    }

    /// Uses it up; `Err` with `None` if it was before.
    pub(in crate::http) async fn spend(&self, ticket: &Ticket, principal: &str) -> Result<(), Option<Refusal>> {
        let dated = if self.has_others { Dated::ByCaller(ticket.at) } else { Dated::Here(ticket.at) };
        match self.once.spend(once::At::Door, once::Kind::Ticket, principal, &ticket.id, dated).await {
            Ok(()) => Ok(()),
            Err(AdmitError::Replayed | AdmitError::Stale) => Err(None),
            Err(AdmitError::OwnerFull { retry_after_ms }) => {
                Err(Some(Refusal::quota("too many tickets of this caller", retry_after_ms.div_ceil(1_000))))
            }
            Err(error) => {
                tracing::warn!(target: "sealwire::door", %error, "tickets cannot be judged");
                Err(Some(Refusal::unavailable("tickets cannot be judged now: try again")))
            }
        }
    }
}

/// The service, by its path, and the origin of the page, empty for a program.
fn whose(head: &Parts, path: &str) -> Result<String, Refusal> {
    Ok(format!("{path} {}", single(&head.headers, &ORIGIN)?.unwrap_or_default()))
}
