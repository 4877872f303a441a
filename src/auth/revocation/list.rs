//! What operators have revoked: one list with a number, which only grows.
//! Never drops a revocation to make room: a list that is full takes no more.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::name::{Name, shown};

/// What a revocation names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// An agent, by the owner of the key that proves its messages.
    Agent,
    /// A key, by its id: of an agent or of an issuer of tokens.
    Key,
    /// A token, by its `jti` or its digest.
    Token,
    /// A subject, or an actor, of tokens.
    Subject,
    /// A method, at every service: its name, or `bank/*` for all that begin with `bank/`.
    Method,
    /// A service: all of its methods.
    Service,
    /// Every call.
    Everything,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Agent, Self::Key, Self::Token, Self::Subject, Self::Method, Self::Service, Self::Everything];

    /// Its word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Key => "key",
            Self::Token => "token",
            Self::Subject => "subject",
            Self::Method => "method",
            Self::Service => "service",
            Self::Everything => "everything",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|kind| kind.as_str() == text);
        known.ok_or_else(|| format!("write {}", Self::ALL.map(Self::as_str).join(", ")))
    }
}

/// One revocation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Revocation {
    /// What it names.
    pub kind: Kind,
    /// Its name; `*` for everything.
    pub name: String,
    /// Seconds since the Unix epoch at which it ends by itself, by the clock of each replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
    /// When it was signed, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Why, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

impl Revocation {
    /// Whether it is over at `now_s`.
    #[must_use]
    pub fn has_ended(&self, now_s: u64) -> bool {
        self.until.is_some_and(|until| until <= now_s)
    }

    /// As people write it.
    #[must_use]
    pub fn shown(&self) -> String {
        match self.kind {
            Kind::Everything => self.kind.to_string(),
            kind => format!("{kind} {}", shown(&self.name)),
        }
    }
}

/// Everything that is revoked in one environment. What it does not name is not revoked: a restore is a list, too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RevocationList {
    /// The environment: a list of another one has no effect.
    pub environment: Name,
    /// Each list has a higher number than all before it.
    pub number: u64,
    /// When it was signed, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Sorted by kind and name, each of which is there once.
    pub revoked: Vec<Revocation>,
}

/// Why a list cannot be changed like this.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ListError {
    /// There is no room.
    #[error(
        "the list has {MAX_REVOCATIONS} revocations, which is the most: nothing was revoked. Put lasting ones where they belong (key rings, \
         deny lists, policies), restore them here, and try again; or revoke a service, or everything"
    )]
    Full,
    /// A name that no entry can have.
    #[error("the name of {0} has 1 to {MAX_NAME} characters, none of which is a control character")]
    Name(Kind),
    /// A reason that is too long.
    #[error("a reason has at most {MAX_REASON} characters, none of which is a control character")]
    Reason,
    /// There is no such revocation.
    #[error("{0} is not revoked")]
    NotRevoked(String),
}

/// The most revocations of a list.
pub const MAX_REVOCATIONS: usize = 256;
/// The longest name: a key id has at most 128 characters, `sub` and `jti` of a token at most 256.
pub const MAX_NAME: usize = 256;
/// The longest reason.
pub const MAX_REASON: usize = 120;

impl RevocationList {
    /// The first list of an environment, in which nothing is revoked.
    #[must_use]
    pub fn first(environment: Name, now_ms: u64) -> Self {
        Self { environment, number: 1, at_ms: now_ms, revoked: Vec::new() }
    }

    /// The next list, with this revocation; without those that ended more than an hour ago, which covers every clock that is not plainly
    /// wrong.
    ///
    /// # Errors
    /// [`ListError::Full`], [`ListError::Name`], [`ListError::Reason`].
    pub fn revoke(&self, revocation: Revocation) -> Result<Self, ListError> {
        let mut next = self.next(revocation.at_ms);
        next.revoked.retain(|kept| (kept.kind, &kept.name) != (revocation.kind, &revocation.name));
        next.revoked.push(revocation);
        next.revoked.sort_by(|a, b| (a.kind, &a.name).cmp(&(b.kind, &b.name)));
        next.check().map(|()| next)
    }

    /// The next list, without what this names.
    ///
    /// # Errors
    /// [`ListError::NotRevoked`].
    pub fn restore(&self, kind: Kind, name: &str, now_ms: u64) -> Result<Self, ListError> {
        let mut next = self.next(now_ms);
        next.revoked.retain(|kept| (kept.kind, kept.name.as_str()) != (kind, name));
        if next.revoked.len() == self.next(now_ms).revoked.len() {
            let named = if kind == Kind::Everything { String::new() } else { format!(" {}", shown(name)) };
            return Err(ListError::NotRevoked(format!("{kind}{named}")));
        }
        Ok(next)
    }

    /// The next list, with the same content.
    #[must_use]
    pub fn next(&self, now_ms: u64) -> Self {
        let over = |revocation: &Revocation| revocation.has_ended((now_ms / 1000).saturating_sub(3600));
        let revoked = self.revoked.iter().filter(|revocation| !over(revocation)).cloned().collect();
        Self { environment: self.environment.clone(), number: self.number + 1, at_ms: now_ms, revoked }
    }

    /// What is in this list and not in `other`, as people write it.
    #[must_use]
    pub fn beyond(&self, other: &Self) -> Vec<String> {
        self.revoked.iter().filter(|entry| !other.revoked.contains(entry)).map(Revocation::shown).collect()
    }

    pub(super) fn check(&self) -> Result<(), ListError> {
        if self.revoked.len() > MAX_REVOCATIONS {
            return Err(ListError::Full);
        }
        let fits = |text: &str, most| text.chars().count() <= most && !text.chars().any(char::is_control);
        for Revocation { kind, name, reason, .. } in &self.revoked {
            if name.is_empty() || !fits(name, MAX_NAME) || (*kind == Kind::Everything) != (name == EVERYTHING) {
                return Err(ListError::Name(*kind));
            }
            if !fits(reason, MAX_REASON) {
                return Err(ListError::Reason);
            }
        }
        Ok(())
    }
}

/// The name of everything.
pub const EVERYTHING: &str = "*";

/// A list as it is asked: for each kind, the names, and until when each is revoked.
#[derive(Debug, Default)]
pub(super) struct InForce(BTreeMap<Kind, BTreeMap<String, u64>>);

impl InForce {
    pub(super) fn new(list: &RevocationList) -> Self {
        let mut all: BTreeMap<Kind, BTreeMap<String, u64>> = BTreeMap::new();
        for Revocation { kind, name, until, .. } in &list.revoked {
            let until = until.unwrap_or(u64::MAX);
            // The list may have come from another program: of two, the longer one holds.
            let kept = all.entry(*kind).or_default().entry(name.clone()).or_default();
            *kept = until.max(*kept);
        }
        Self(all)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn has(&self, kind: Kind, name: &str, now_s: u64) -> bool {
        let Some(names) = self.0.get(&kind) else { return false };
        let holds = |name: &str| names.get(name).is_some_and(|until| now_s < *until);
        if kind != Kind::Method || holds(name) {
            return holds(name);
        }
        let folders = name.char_indices().filter(|(_, c)| *c == '/').filter_map(|(at, _)| name.get(..at));
        folders.into_iter().any(|folder| holds(&format!("{folder}/*")))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn entry(kind: Kind, name: &str, until: Option<u64>) -> Revocation {
        Revocation { kind, name: name.to_owned(), until, at_ms: 1_000_000, reason: String::new() }
    }

    fn first() -> RevocationList {
        RevocationList::first(Name::new("prod").unwrap(), 0)
    }

    #[test]
    fn a_list_names_what_it_revokes_and_nothing_else() {
        let list = [
            entry(Kind::Agent, "planner", None),
            entry(Kind::Method, "bank/*", None),
            entry(Kind::Method, "math/add", Some(50)),
        ];
        let list = list.into_iter().fold(first(), |list, entry| list.revoke(entry).unwrap());
        assert_eq!((list.number, list.revoked.len()), (4, 3));
        let force = InForce::new(&list);
        for (kind, name, at, revoked) in [
            (Kind::Agent, "planner", 0, true),
            (Kind::Subject, "planner", 0, false),
            (Kind::Agent, "planner2", 0, false),
            (Kind::Method, "bank/transfer", 0, true),
            (Kind::Method, "bank/a/b", 0, true),
            (Kind::Method, "bank", 0, false),
            (Kind::Method, "banker/a", 0, false),
            (Kind::Method, "math/add", 49, true),
            (Kind::Method, "math/add", 50, false),
        ] {
            assert_eq!(force.has(kind, name, at), revoked, "{kind} {name} at {at}");
        }
        let restored = list.restore(Kind::Agent, "planner", 2_000).unwrap();
        assert_eq!((restored.number, InForce::new(&restored).has(Kind::Agent, "planner", 0)), (5, false));
        assert_eq!(
            list.restore(Kind::Agent, "bob", 0),
            Err(ListError::NotRevoked("agent bob".to_owned())),
            "a mistyped name is told"
        );
    }

    #[test]
    fn a_full_list_takes_no_more_and_forgets_nothing() {
        let mut list = first();
        for number in 0..MAX_REVOCATIONS {
            list = list.revoke(entry(Kind::Token, &number.to_string(), None)).unwrap();
        }
        assert_eq!(list.revoke(entry(Kind::Agent, "planner", None)), Err(ListError::Full));
        let again = list.revoke(entry(Kind::Token, "7", Some(9))).unwrap();
        assert_eq!(again.revoked.len(), MAX_REVOCATIONS, "what is there already may change");
        for (wrong, error) in [
            (entry(Kind::Agent, "", None), ListError::Name(Kind::Agent)),
            (entry(Kind::Agent, &"x".repeat(MAX_NAME + 1), None), ListError::Name(Kind::Agent)),
            (entry(Kind::Agent, "a\nb", None), ListError::Name(Kind::Agent)),
            (entry(Kind::Everything, "most", None), ListError::Name(Kind::Everything)),
            (Revocation { reason: "x".repeat(MAX_REASON + 1), ..entry(Kind::Agent, "a", None) }, ListError::Reason),
        ] {
            assert_eq!(first().revoke(wrong), Err(error));
        }
    }

    #[test]
    fn what_ended_an_hour_ago_makes_room() {
        let list = first().revoke(entry(Kind::Agent, "planner", Some(10_000))).unwrap();
        assert_eq!(list.next(13_599_000).revoked.len(), 1);
        assert_eq!(list.next(13_600_000).revoked.len(), 0);
    }
}
