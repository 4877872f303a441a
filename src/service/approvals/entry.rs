//! What is kept of a request for approval, and its bytes in the store.
//! Never an approval by itself: whoever knows the key could write one, so what counts is the evidence in it.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::decision::MAX_REASON;
use super::standing::Vote;
use crate::auth::{Caller, Evidence, OutcomeKey};
use crate::name::Name;
use crate::policy::{PolicySet, Requester};
use crate::wire::{HmacKey, Nonce};

/// Whose call it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Who {
    pub(super) agent: Name,
    /// The agent itself unless it calls on behalf of another.
    pub(super) subject: String,
    /// Two issuers may each know another `user-42`. `None` for a call of the agent's own.
    pub(super) issuer: Option<String>,
    /// Who acted before the agent: they may not approve.
    pub(super) via: Vec<String>,
}

impl Who {
    pub(super) fn of(caller: &Caller) -> Self {
        Self {
            agent: caller.agent.clone(),
            subject: caller.subject.clone(),
            issuer: caller.delegated.then(|| caller.token.issuer.clone()),
            via: caller.token.via.clone(),
        }
    }

    /// Whether both act for the same subject at the same issuer. How they came to that does not matter.
    pub(super) fn is_the_same(&self, other: &Self) -> bool {
        (&self.agent, &self.subject, &self.issuer) == (&other.agent, &other.subject, &other.issuer)
    }

    pub(super) fn requester(&self) -> Requester<'_> {
        Requester { agent: self.agent.as_str(), subject: &self.subject, via: &self.via }
    }
}

/// A request for approval. All times are seconds since the Unix epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    pub(super) text: String,
    pub(super) ask: String,
    pub(super) asked_at: u64,
    pub(super) who: Who,
    pub(super) method: String,
    /// The approvals that the call needed when it was last made.
    pub(super) needs: Vec<String>,
    /// The rule that asks for the first of them, and the revision of the policy that has it.
    pub(super) rule: Option<String>,
    pub(super) revision: String,
    pub(super) given: Vec<Given>,
    pub(super) denied: Option<Denied>,
    pub(super) ran: Option<Ran>,
    /// Random, so that no two contents are equal.
    written: String,
    /// Spaces, until it is decided: so no denial, and no mark of a run, is larger than what it replaces, and needs room.
    room: String,
}

/// One approval, with what proves it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Given {
    pub(super) approval: String,
    pub(super) agent: Name,
    pub(super) subject: String,
    pub(super) at: u64,
    pub(super) reason: Option<String>,
    pub(super) evidence: Evidence,
}

impl Given {
    pub(super) fn vote<'a>(&'a self, needs: &[String], policy: &'a PolicySet) -> Vote<'a> {
        Vote {
            approval: &self.approval,
            agent: self.agent.as_str(),
            subject: &self.subject,
            persons: persons(needs, &self.agent, policy),
            at: self.at,
        }
    }
}

/// As whom an agent decides, by each of the approvals that a request needs.
pub(super) fn persons<'a>(needs: &[String], agent: &'a Name, policy: &'a PolicySet) -> Vec<&'a str> {
    needs.iter().map(|approval| policy.decides_as(approval, agent)).collect()
}

/// Somebody who may approve has denied it, or its caller has withdrawn it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Denied {
    pub(super) agent: Name,
    pub(super) at: u64,
    pub(super) reason: Option<String>,
    /// The same call is denied until then.
    pub(super) until: u64,
}

/// The call has begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ran {
    /// The message that began it.
    pub(super) message: String,
    pub(super) at: u64,
    /// Until then, the same call is told so.
    pub(super) until: u64,
}

impl Entry {
    /// A request that nobody has decided yet.
    pub(super) fn new(text: String, ask: String, asked_at: u64, who: Who, method: String) -> Self {
        Self {
            text,
            ask,
            asked_at,
            who,
            method,
            needs: Vec::new(),
            rule: None,
            revision: String::new(),
            given: Vec::new(),
            denied: None,
            ran: None,
            written: String::new(),
            room: String::new(),
        }
    }

    /// Whether its call has begun, or it was denied.
    pub(super) fn is_over(&self) -> bool {
        self.ran.is_some() || self.denied.is_some()
    }

    /// The bytes to store under this key.
    pub(super) fn seal(&mut self, mac: &HmacKey, key: &OutcomeKey) -> Bytes {
        self.written = Nonce::random().to_text();
        self.room = if self.is_over() { String::new() } else { " ".repeat(ROOM) };
        let text = serde_json::to_vec(self).unwrap_or_default();
        [&mac.sign(&bound(key, &text))[..], &text].concat().into()
    }

    /// Reads what was stored under this key. `None` if it was not written with this key of the service's.
    pub(super) fn open(mac: &HmacKey, key: &OutcomeKey, content: &[u8]) -> Option<Self> {
        let (proof, text) = content.split_at_checked(32)?;
        let is_ours = mac.verify(&bound(key, text), proof);
        is_ours.then(|| serde_json::from_slice(text).ok()).flatten()
    }
}

/// The bytes of the longest denial.
pub(super) const ROOM: usize = 1_536;
const _: () = assert!(4 * MAX_REASON + 256 <= ROOM);

/// What is signed: an entry under one key is not valid under another.
fn bound(key: &OutcomeKey, text: &[u8]) -> Vec<u8> {
    [key.agent().as_str().as_bytes(), b".", key.digest().as_bytes(), b"\n", text].concat()
}
