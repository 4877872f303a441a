//! Who can lift a deny rule for one call, and for how long that counts.
//! Never knows of a call: whether somebody lifted a rule is the service's to prove.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::location::Location;
use super::principal::PrincipalKind;

/// The method by which people decide.
pub(crate) const APPROVE: &str = "rpc.approve";
/// The method by which they see what waits.
pub(crate) const APPROVALS: &str = "rpc.approvals";

/// An approval that a policy file describes: people decide whether one call may run that a deny rule with `unless_approved` denies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Approval {
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) at: Location,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) description: Option<String>,
    #[serde(rename = "from")]
    pub(crate) roles: Vec<String>,
    pub(crate) count: usize,
    pub(crate) within_s: u64,
    pub(crate) valid_s: u64,
    #[serde(rename = "reason")]
    pub(crate) needs_reason: bool,
    pub(crate) exclude: Vec<Involved>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) distinct: Option<String>,
}

impl Approval {
    /// Its name: 1 to 64 of `A-Z a-z 0-9 _ -`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it is for, if the file says so.
    #[must_use]
    pub fn description(&self) -> Option<&str> {
        self.description.as_deref()
    }

    /// The roles whose holders decide.
    #[must_use]
    pub fn roles(&self) -> &[String] {
        &self.roles
    }

    /// How many different agents have to approve: 1 to 10.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// How long a call waits for them: 10 seconds to 24 hours.
    #[must_use]
    pub fn within(&self) -> Duration {
        Duration::from_secs(self.within_s)
    }

    /// How long after the last of them the call can start: 10 seconds to 1 hour.
    #[must_use]
    pub fn valid(&self) -> Duration {
        Duration::from_secs(self.valid_s)
    }

    /// Whether they have to say why.
    #[must_use]
    pub fn needs_reason(&self) -> bool {
        self.needs_reason
    }

    /// Those who are involved in the call and must not decide about it; always [`Involved::Agent`].
    #[must_use]
    pub fn excluded(&self) -> &[Involved] {
        &self.exclude
    }

    /// The attribute by which several agents are one person: a person decides once, and not about calls of their other agents.
    #[must_use]
    pub fn distinct(&self) -> Option<&str> {
        self.distinct.as_deref()
    }

    /// What it takes, in words.
    pub(crate) fn terms(&self) -> String {
        let roles: Vec<String> = self.roles.iter().map(|role| format!("`{}`", role.escape_debug())).collect();
        let agents = if self.count == 1 { "agent" } else { "different agents" };
        let distinct = self.distinct.as_ref().map(|name| format!(" and different `{name}`")).unwrap_or_default();
        let distinct = if self.count == 1 { String::new() } else { distinct };
        let reason = if self.needs_reason { ", with a reason" } else { "" };
        let involved: Vec<&str> = self.exclude.iter().map(|who| who.words()).collect();
        format!(
            "{} {agents}{distinct} with the role {}, not the call's own {}, within {}{reason}; then valid for {}",
            self.count,
            roles.join(" or "),
            involved.join(", "),
            spelled(self.within_s),
            spelled(self.valid_s)
        )
    }

    /// The one among these excluded for whom `is_approver` holds.
    pub(crate) fn excludes(
        &self,
        of: &Requester<'_>,
        is_approver: impl Fn(PrincipalKind, &str) -> bool,
    ) -> Option<Involved> {
        self.exclude.iter().copied().find(|who| match who {
            Involved::Agent => is_approver(PrincipalKind::Agent, of.agent),
            Involved::Subject => is_approver(PrincipalKind::Subject, of.subject),
            Involved::Via => of.via.iter().any(|name| is_approver(PrincipalKind::Agent, name)),
        })
    }
}

impl fmt::Display for Approval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` ({}): {}", self.name, self.at, self.terms())
    }
}

/// In the largest unit in which it is a whole number.
pub(crate) fn spelled(seconds: u64) -> String {
    let units = [("h", 3600), ("m", 60)];
    let (unit, length) = units.into_iter().find(|(_, of)| seconds.is_multiple_of(*of)).unwrap_or(("s", 1));
    format!("{}{unit}", seconds / length)
}

/// How somebody is involved in a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Involved {
    /// The agent that calls.
    Agent,
    /// The subject that it calls for.
    Subject,
    /// Another agent through whose hands the subject's rights came.
    Via,
}

impl Involved {
    pub(crate) const NAMED: [(&'static str, Self); 3] =
        [("agent", Self::Agent), ("subject", Self::Subject), ("via", Self::Via)];

    fn words(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Subject => "subject",
            Self::Via => "earlier actors",
        }
    }
}

/// Whose call waits.
#[derive(Debug, Clone, Copy)]
pub struct Requester<'a> {
    /// The agent that calls.
    pub agent: &'a str,
    /// The subject that it calls for; the agent's own name if it calls for itself.
    pub subject: &'a str,
    /// The other actors of its token.
    pub via: &'a [String],
}

/// Why somebody cannot decide about a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotApprover {
    /// The policy in force has no approval of that name.
    Unknown,
    /// The request is under a key that the service has too, so it proves nothing to others.
    SharedKey,
    /// The request is on behalf of somebody, whose agent could decide whatever it likes.
    Delegated,
    /// None of the approval's roles.
    Role,
    /// The policy does not say which person the agent belongs to, and the approval counts persons.
    Nobody,
    /// Their own call.
    Own(Involved),
}

impl fmt::Display for NotApprover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "the policy has no such approval",
            Self::SharedKey => "decisions are signed with an Ed25519 key",
            Self::Delegated => "decisions are made in one's own name",
            Self::Role => "none of the roles that decide",
            Self::Nobody => "the policy does not say which person this agent belongs to",
            Self::Own(Involved::Agent) => "nobody decides about a call of their own",
            Self::Own(Involved::Subject) => "nobody decides about a call on their own behalf",
            Self::Own(Involved::Via) => "nobody decides about a call that was passed on by them",
        })
    }
}

impl std::error::Error for NotApprover {}
