//! One call of the record: its decision and its outcome, put together.
//! Never keeps more than a bounded number of calls whose outcome is still to come.

use std::collections::{BTreeMap, HashMap};

use sealwire::DecisionRecord;
use sealwire::decide::Verdict;
use sealwire::internal::policy::ApprovalRecord;
use sealwire::internal::record::{Head, Kind, read_head};
use sealwire::serve::OutcomeRecord;
use serde::Serialize;
use serde_json::{Map, Value};

/// A call, as far as its record goes.
#[derive(Debug, Serialize)]
pub(super) struct Call {
    /// What `records show` takes.
    pub(super) id: String,
    pub(super) session: String,
    /// The line of the decision.
    pub(super) seq: u64,
    pub(super) at_ms: u64,
    pub(super) agent: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) subject: Option<String>,
    pub(super) method: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) params: Option<Map<String, Value>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) hashed: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) dropped: Vec<String>,
    pub(super) decision: Verdict,
    pub(super) reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rule: Option<String>,
    pub(super) revision: String,
    /// The request for approval that it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) approval: Option<ApprovalRecord>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) trace: Option<String>,
    /// `ok`, `error`, by what else it ended, or `unknown` if the record has no outcome.
    pub(super) outcome: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) code: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) duration_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) answer: Option<String>,
    #[serde(skip)]
    pub(super) roles: Vec<String>,
}

/// The agent may choose a message's id, but nobody else's.
type Key = (String, String, String, Option<usize>);

/// Calls whose outcome is still to come.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// By the order in which they were decided.
    open: BTreeMap<u64, (Key, Call)>,
    order: HashMap<Key, u64>,
    count: u64,
}

/// The most calls whose outcome is awaited: more than a service has under way.
const MOST_OPEN: usize = 100_000;

/// What a line says.
pub(super) enum Event {
    Decision(Box<DecisionRecord>),
    Outcome(Box<OutcomeRecord>),
    Other,
}

/// Reads a line.
pub(super) fn read(text: &[u8]) -> Result<(Head, Event), String> {
    let head = read_head(text)?;
    let fail = |error: serde_json::Error| error.to_string();
    let event = match head.kind {
        Kind::Decision => Event::Decision(serde_json::from_slice(text).map_err(fail)?),
        Kind::Outcome => Event::Outcome(serde_json::from_slice(text).map_err(fail)?),
        _ => Event::Other,
    };
    Ok((head, event))
}

impl Calls {
    /// Takes what a line says; hands calls on of which nothing more is to come.
    pub(super) fn add<E>(
        &mut self,
        head: &Head,
        event: Event,
        mut take: impl FnMut(Call) -> Result<(), E>,
    ) -> Result<(), E> {
        match event {
            Event::Decision(record) => {
                let message = record.message.clone().unwrap_or_default();
                let key = (head.session.clone(), record.agent.to_string(), message, record.entry);
                if record.under_way {
                    // The same call, decided again.
                    let known = self.order.get(&key).and_then(|order| self.open.get_mut(order));
                    if let Some((_, call)) = known {
                        (call.decision, call.reason, call.rule) = (record.verdict, record.reason, record.rule);
                        return Ok(());
                    }
                }
                self.count += 1;
                self.order.insert(key.clone(), self.count);
                self.open.insert(self.count, (key, call(head, *record)));
                if self.open.len() > MOST_OPEN {
                    self.first(take)?;
                }
                Ok(())
            }
            Event::Outcome(outcome) => {
                let key = (head.session.clone(), outcome.agent.to_string(), outcome.message.clone(), outcome.entry);
                // Its decision may be in a file that is not read, or lost.
                let known = self.order.remove(&key).and_then(|order| self.open.remove(&order));
                let Some((_, mut call)) = known else { return Ok(()) };
                call.outcome = match (outcome.by.as_str(), outcome.code) {
                    ("answered", None) => "ok".to_owned(),
                    ("answered", Some(_)) => "error".to_owned(),
                    (by, _) => by.to_owned(),
                };
                (call.code, call.duration_us, call.answer) = (outcome.code, Some(outcome.duration_us), outcome.answer);
                take(call)
            }
            Event::Other => Ok(()),
        }
    }

    /// Hands on the calls without an outcome.
    pub(super) fn finish<E>(mut self, mut take: impl FnMut(Call) -> Result<(), E>) -> Result<(), E> {
        while !self.open.is_empty() {
            self.first(&mut take)?;
        }
        Ok(())
    }

    fn first<E>(&mut self, mut take: impl FnMut(Call) -> Result<(), E>) -> Result<(), E> {
        let Some((_, (key, call))) = self.open.pop_first() else { return Ok(()) };
        self.order.remove(&key);
        take(call)
    }
}

fn call(head: &Head, record: DecisionRecord) -> Call {
    let message = record.message.unwrap_or_default();
    Call {
        id: record.entry.map_or_else(|| message.clone(), |entry| format!("{message}/{entry}")),
        session: head.session.clone(),
        seq: head.seq,
        at_ms: record.at_ms,
        agent: record.agent.to_string(),
        subject: record.subject,
        method: record.method,
        params: record.params,
        hashed: record.hashed,
        dropped: record.dropped.into_iter().collect(),
        decision: record.verdict,
        reason: record.reason,
        rule: record.rule,
        revision: record.revision,
        approval: record.approval,
        trace: record.trace,
        outcome: "unknown".to_owned(),
        code: None,
        duration_us: None,
        answer: None,
        roles: record.roles.into_iter().collect(),
    }
}
