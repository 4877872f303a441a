//! Subjects: their grammar, and the rule that a reply subject must be below its agent's inbox.
//! Never accepts a wildcard.

use async_nats::Subject;

use crate::name::{MethodName, Name, is_name};

/// The longest subject or reply subject in bytes (our limit; the grammar's own maximum is lower).
pub(super) const MAX_SUBJECT: usize = 512;

/// A reply subject that passed the reply rule: it is below the inbox of the agent that the request's subject names.
#[derive(Debug)]
pub struct ReplyTo(Subject);

impl ReplyTo {
    pub(super) fn into_subject(self) -> Subject {
        self.0
    }

    pub(super) fn to_subject(&self) -> Subject {
        self.0.clone()
    }

    /// Returns `None` when `reply` is not a plain subject below the agent's inbox, which is `<inbox prefix>.<agent>.`.
    pub(super) fn checked(reply: Subject, inbox_prefix: &str, agent: &Name) -> Option<Self> {
        let below = reply.as_str().strip_prefix(inbox_prefix).and_then(|rest| rest.strip_prefix('.'));
        let below = below.and_then(|rest| rest.strip_prefix(agent.as_str())).and_then(|rest| rest.strip_prefix('.'));
        let is_below = below.is_some_and(|rest| !rest.is_empty());
        (is_below && is_plain_subject(reply.as_str())).then_some(Self(reply))
    }

    /// For tests that need no request.
    #[cfg(test)]
    pub(super) fn unchecked(reply: &str) -> Self {
        Self(reply.into())
    }

    /// The subject.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

/// Whether `subject` is a plain subject: printable, no empty token, no wildcard token.
pub(crate) fn is_plain_subject(subject: &str) -> bool {
    subject.len() <= MAX_SUBJECT
        && subject.bytes().all(|byte| (0x21..=0x7e).contains(&byte))
        && subject.split('.').all(|token| !token.is_empty() && token != "*" && token != ">")
}

pub(super) struct SubjectParts<'s> {
    pub(super) service: &'s str,
    pub(super) agent: Name,
    pub(super) method: Option<String>,
}

impl<'s> SubjectParts<'s> {
    pub(super) fn parse(subject: &'s str, prefix: &str) -> Option<Self> {
        if !is_plain_subject(subject) {
            return None;
        }
        let rest = subject.strip_prefix(prefix)?.strip_prefix('.')?;
        let (service, rest) = rest.split_once('.')?;
        let (agent, method) = match rest.split_once('.') {
            Some((agent, method)) => (agent, Some(method)),
            None => (rest, None),
        };
        // A method token outside the grammar cannot match any method, so the subject is not one of ours.
        let method = match method {
            Some(method) => Some(MethodName::new(method).ok()?.as_str().to_owned()),
            None => None,
        };
        if !is_name(service) {
            return None;
        }
        Some(Self { service, agent: Name::new(agent).ok()?, method })
    }
}
