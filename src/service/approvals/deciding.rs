//! The methods by which people look at requests and decide them: `rpc.approvals`, `rpc.approval` and `rpc.approve`.
//! Never shows a request to anybody but its caller and those who may decide it.

use futures_util::future::join_all;
use serde::Serialize;
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};

use super::decision::{Approve, Verdict};
use super::entry::{Denied, Entry, Given, Who, persons};
use super::over::End;
use super::standing::{Standing, Vote};
use super::summary::{Summary, state};
use super::text::digest;
use super::{
    ATTEMPTS, Approvals, InForce, Judged, MAX_KEPT, PAGE, READS, WHAT, WHO, deadline, id, longest, needs, standing_of,
    summary, void_at,
};
use crate::auth::{Caller, Evidence, OutcomeKey, OutcomeStoreError};
use crate::jose::b64;
use crate::name::Name;
use crate::rpc::{RpcError, code};
use crate::wire::{HmacKey, ProofAlgorithm};

impl Approvals {
    /// The answer to `rpc.approve`. `evidence` is the message that asks, if it can be one.
    pub(in crate::service) async fn decide(
        &self,
        asked: &Approve,
        by: (&Caller, Option<&Evidence>),
        in_force: InForce<'_>,
    ) -> Result<Box<RawValue>, RpcError> {
        if asked.decision == Verdict::Approve && by.0.algorithm != ProofAlgorithm::EdDsa {
            let why =
                "permission denied: an approval is signed with an Ed25519 key, so that nobody else can have made it";
            return Err(RpcError::with_code(code::PERMISSION_DENIED, why));
        }
        let mac = self.mac(in_force.verifier).ok_or_else(unavailable)?;
        let key = key_of(&asked.id).ok_or_else(|| unknown(by.0))?;
        for _ in 0..ATTEMPTS {
            let (revision, mut entry) = self.seen(&mac, &key, by.0, in_force).await?;
            if asked.digest != digest(&entry.text) {
                let why = "Invalid params: `digest` is not that of what is asked for now: call `rpc.approval` and look at it again";
                return Err(RpcError::invalid_params(why));
            }
            // What no longer holds must not stop whoever would give it instead.
            let (standing, have, _) = self.judged(&key, &entry, in_force);
            let state = state(standing, &entry);
            if asked.decision.comes_too_late(state) {
                return Err(refused(&asked.id, state, &format!("the request is {state} already")));
            }
            let changes = match asked.decision {
                Verdict::Deny => deny(&mut entry, asked, by.0, standing, in_force),
                Verdict::Approve => self.approve(&mut entry, asked, by, (state, &have), in_force)?,
            };
            let judged = self.judged(&key, &entry, in_force);
            let summary = summary(&key, &entry, in_force, &judged);
            if changes && asked.decision == Verdict::Approve {
                counts(&judged, &entry, in_force.now_s).map_err(|why| refused(&asked.id, state, &why))?;
            }
            let (ask, void_at) = (entry.ask.clone(), void_at(&entry, in_force));
            let put = match changes {
                true => self.put(&mac, &key, revision, entry, in_force).await.map(drop),
                false => Ok(()),
            };
            match put {
                Ok(()) => {
                    if asked.decision == Verdict::Deny && self.over.has_room(key.agent()) {
                        self.over.note(key.agent(), ask, (void_at, in_force.now_s), End::Denied);
                    }
                    if changes {
                        self.tell(&key, &summary, in_force);
                    }
                    return to_raw_value(&summary).map_err(RpcError::internal);
                }
                // Somebody else decided, or the call began: look again.
                Err(OutcomeStoreError::Taken) => {}
                Err(OutcomeStoreError::TooLarge | OutcomeStoreError::AgentFull) => {
                    return Err(RpcError::with_code(
                        code::TOO_LARGE,
                        "too large: there is no room for another approval of this call",
                    ));
                }
                Err(_) => return Err(unavailable()),
            }
        }
        Err(unavailable())
    }

    /// Adds the approval that this message is. `false` if that changes nothing.
    fn approve(
        &self,
        entry: &mut Entry,
        asked: &Approve,
        (approver, evidence): (&Caller, Option<&Evidence>),
        (state, have): (&str, &[usize]),
        in_force: InForce<'_>,
    ) -> Result<bool, RpcError> {
        let denied = |why: String| RpcError::with_code(code::PERMISSION_DENIED, format!("permission denied: {why}"));
        let Some(name) = asked.approval.as_ref().filter(|name| entry.needs.contains(name)) else {
            let needs = entry.needs.join("`, `");
            return Err(RpcError::invalid_params(format!(
                "Invalid params: `approval` is one of those that are needed: `{needs}`"
            )));
        };
        let of = entry.who.requester();
        in_force.policy.may_decide(name, &entry.needs, approver, &of).map_err(|error| denied(error.to_string()))?;
        if in_force.policy.approval(name).is_some_and(|approval| approval.needs_reason() && asked.reason.is_none()) {
            return Err(RpcError::invalid_params(format!("Invalid params: `{name}` is given with a `reason`")));
        }
        let Some(evidence) = evidence else {
            let why = format!(
                "invalid request: an approval is a message of its own, of at most {MAX_KEPT} bytes, and no batch"
            );
            return Err(RpcError::with_code(code::INVALID_REQUEST, why));
        };
        let policy = in_force.policy;
        let needs = &entry.needs;
        let theirs = Vote {
            approval: name,
            agent: approver.agent.as_str(),
            subject: &approver.subject,
            persons: persons(needs, &approver.agent, policy),
            at: in_force.now_s,
        };
        let is_theirs = |given: &Given| given.vote(needs, policy).is_of_same(&theirs);
        // What no longer counts may be signed again.
        let (who, about) = (entry.who.clone(), (asked.id.as_str(), asked.digest.as_str()));
        entry.given.retain(|given| !is_theirs(given) || self.judge(given, about, (&who, needs), in_force).is_ok());
        match entry.given.iter().find(|given| is_theirs(given)) {
            Some(given) if given.approval == *name && given.agent == approver.agent => return Ok(false),
            Some(_) => return Err(denied("you have approved this request before, and nobody counts twice".to_owned())),
            None => {}
        }
        // It would take the room of one that is needed.
        if self::needs(entry, in_force).zip(have).any(|(need, have)| need.name == name && *have >= need.count) {
            return Err(refused(&asked.id, state, &format!("`{name}` has been given as often as the call needs it")));
        }
        let signer = self.signer(evidence, in_force).map_err(denied)?;
        let given = Given {
            approval: name.clone(),
            agent: approver.agent.clone(),
            subject: approver.subject.clone(),
            at: signer.1,
            reason: asked.reason.clone(),
            evidence: evidence.clone(),
        };
        // What is kept must count for whoever judges it next.
        let judged = Self::judge_signed(&given, &signer, about, (&who, &entry.needs), policy);
        judged.map_err(denied)?;
        entry.given.push(given);
        Ok(true)
    }

    /// The answer to `rpc.approval`.
    pub(in crate::service) async fn show(
        &self,
        asked: &str,
        caller: &Caller,
        in_force: InForce<'_>,
    ) -> Result<Box<RawValue>, RpcError> {
        let mac = self.mac(in_force.verifier).ok_or_else(unavailable)?;
        let key = key_of(asked).ok_or_else(|| unknown(caller))?;
        let (_, entry) = self.seen(&mac, &key, caller, in_force).await?;
        let (id, digest) = (id(&key), digest(&entry.text));
        let decides = may_decide(&entry, caller, in_force);
        let (about, of) = ((id.as_str(), digest.as_str()), (&entry.who, &entry.needs[..]));
        // Callers are told neither the rules nor what became of somebody else's key or token.
        let shown = |why: String| if decides { why } else { "it does not hold".to_owned() };
        let judge = |given| (given, self.judge(given, about, of, in_force).err().map(shown));
        let judged: Vec<_> = entry.given.iter().map(judge).collect();
        let hold = judged.iter().filter(|(_, void)| void.is_none()).map(|(given, _)| *given);
        let standing = standing_of(&entry, in_force, hold);
        let given = judged.into_iter().map(|(given, void)| Decided {
            approval: Some(&given.approval),
            agent: &given.agent,
            decision: Verdict::Approve,
            at: given.at,
            reason: given.reason.as_deref(),
            void,
        });
        let denied = entry.denied.iter().map(|denied| Decided {
            approval: None,
            agent: &denied.agent,
            decision: Verdict::Deny,
            at: denied.at,
            reason: denied.reason.as_deref(),
            void: None,
        });
        let shown = Shown {
            summary: summary(&key, &entry, in_force, &standing),
            text: &entry.text,
            via: &entry.who.via,
            rule: entry.rule.as_deref().filter(|_| decides),
            revision: &entry.revision,
            decisions: given.chain(denied).collect(),
        };
        to_raw_value(&shown).map_err(RpcError::internal)
    }

    /// The answer to `rpc.approvals`: the requests of this caller, and those that it may decide.
    pub(in crate::service) async fn list(
        &self,
        cursor: Option<&str>,
        caller: &Caller,
        in_force: InForce<'_>,
    ) -> Result<Box<RawValue>, RpcError> {
        let mac = self.mac(in_force.verifier).ok_or_else(unavailable)?;
        let keys = self.store.approvals().await.map_err(|_| unavailable())?;
        // In an order that stays, and that tells nobody what others ask for.
        let mut keys: Vec<_> = keys.into_iter().map(|key| (position(&mac, &key), key)).collect();
        keys.retain(|(position, _)| cursor.is_none_or(|cursor| position.as_str() > cursor));
        keys.sort();
        let next = keys.get(PAGE.saturating_sub(1)).filter(|_| keys.len() > PAGE).map(|(position, _)| position.clone());
        keys.truncate(PAGE);
        let (mut approvals, mut unread) = (Vec::new(), 0_usize);
        for some in keys.chunks(READS) {
            let read = join_all(some.iter().map(|(_, key)| self.store.read(key))).await;
            for ((_, key), found) in some.iter().zip(read) {
                let Ok(found) = found else {
                    unread += 1;
                    continue;
                };
                let entry = found.and_then(|(_, content)| Entry::open(&mac, key, &content));
                let entry = entry.filter(|entry| may_see(entry, caller, in_force));
                approvals.extend(entry.map(|entry| self.summarized(key, &entry, in_force)));
            }
        }
        // Nobody can be kept from seeing the others.
        let roles = in_force.policy.approver_roles(caller);
        let news = roles.into_iter().filter_map(|role| self.endpoint.approvals_subject(role)).collect();
        let page = Page { approvals, next, unread, news };
        to_raw_value(&page).map_err(RpcError::internal)
    }

    /// The request of this key, if `caller` may see it. What it may not see is not there.
    async fn seen(
        &self,
        mac: &HmacKey,
        key: &OutcomeKey,
        caller: &Caller,
        in_force: InForce<'_>,
    ) -> Result<(u64, Entry), RpcError> {
        let found = self.store.read(key).await.map_err(|_| unavailable())?;
        let entry = found.and_then(|(revision, content)| Some((revision, Entry::open(mac, key, &content)?)));
        entry.filter(|(_, entry)| may_see(entry, caller, in_force)).ok_or_else(|| unknown(caller))
    }

    /// As the replica that runs the call would judge it.
    fn summarized(&self, key: &OutcomeKey, entry: &Entry, in_force: InForce<'_>) -> Summary {
        summary(key, entry, in_force, &self.judged(key, entry, in_force))
    }
}

/// The answer to a decision that changes nothing, as things stand.
fn refused(id: &str, state: &str, why: &str) -> RpcError {
    RpcError::validation(format!("validation failed: {why}")).with_data(&json!({ "approval": id, "state": state }))
}

/// A page of the list.
#[derive(Debug, Serialize)]
struct Page {
    approvals: Vec<Summary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
    /// How many requests could not be read, whoever may see them.
    #[serde(skip_serializing_if = "is_none")]
    unread: usize,
    /// Where this caller hears of what it may decide.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    news: Vec<String>,
}

fn is_none(count: &usize) -> bool {
    *count == 0
}

/// A request in full. Without the digest of the text: whoever approves computes it from what was shown.
#[derive(Debug, Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    summary: Summary,
    text: &'a str,
    via: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<&'a str>,
    revision: &'a str,
    decisions: Vec<Decided<'a>>,
}

#[derive(Debug, Serialize)]
struct Decided<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    approval: Option<&'a str>,
    agent: &'a Name,
    decision: Verdict,
    at: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    /// Why it no longer counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    void: Option<String>,
}

/// Whether it changes anything. The denial lasts as long as the call could have waited, or run.
fn deny(entry: &mut Entry, asked: &Approve, by: &Caller, standing: Standing, in_force: InForce<'_>) -> bool {
    if entry.denied.is_some() {
        return false;
    }
    let waits_until = entry.asked_at.saturating_add(longest(entry, in_force).0);
    entry.denied = Some(Denied {
        agent: by.agent.clone(),
        at: in_force.now_s,
        reason: asked.reason.clone(),
        until: waits_until.max(deadline(standing, entry)),
    });
    true
}

/// Whether the approval that was added last counts. Otherwise its sender's clock is to blame: by it, its time is over, or is still to come.
fn counts((standing, _, counted): &Judged<'_>, entry: &Entry, now_s: u64) -> Result<(), String> {
    let Some(given) = entry.given.last() else { return Ok(()) };
    if *standing != Standing::Expired && counted.iter().any(|vote| vote.agent == given.agent.as_str()) {
        return Ok(());
    }
    let (off_s, way) = (now_s.abs_diff(given.at), if given.at < now_s { "behind" } else { "ahead" });
    Err(format!("the approval would not count: the clock of whoever signed it is {off_s} s {way}"))
}

/// Its own caller, and whoever may give one of the approvals.
fn may_see(entry: &Entry, caller: &Caller, in_force: InForce<'_>) -> bool {
    Who::of(caller).is_the_same(&entry.who) || may_decide(entry, caller, in_force)
}

fn may_decide(entry: &Entry, caller: &Caller, in_force: InForce<'_>) -> bool {
    let of = entry.who.requester();
    entry.needs.iter().any(|name| in_force.policy.may_decide(name, &entry.needs, caller, &of).is_ok())
}

/// Where it comes in lists.
fn position(mac: &HmacKey, key: &OutcomeKey) -> String {
    b64(mac.sign(&[b"position\0", id(key).as_bytes()].concat()))
}

fn key_of(id: &str) -> Option<OutcomeKey> {
    let (agent, place) = id.split_once('.')?;
    OutcomeKey::approval(Name::new(agent).ok()?, place).filter(|key| key.digest().len() == WHO + WHAT)
}

/// The same whether there is one or not.
fn unknown(caller: &Caller) -> RpcError {
    let why = "Invalid params: there is no request with this `id` that you made or may decide";
    match caller.algorithm {
        ProofAlgorithm::EdDsa => RpcError::invalid_params(why),
        ProofAlgorithm::Hs256 => RpcError::invalid_params(format!("{why}: whoever decides calls with an Ed25519 key")),
    }
}

fn unavailable() -> RpcError {
    RpcError::with_code(code::OVERLOADED, "overloaded").with_data(&json!({ "retry_after_ms": 1_000 }))
}
