//! What a follower of revocations says about itself, and who it is.
//! Never trusted beyond the subject on which it was published.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::name::Name;

/// As what somebody follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FollowerRole {
    /// A replica of a service.
    Service,
    /// A gateway, by the name of its agent.
    Gateway,
    /// `sealwire authd`, for a service.
    Authd,
}

/// Who follows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FollowerId {
    /// As what.
    pub role: FollowerRole,
    /// The name of the service, or of a gateway's agent.
    pub name: Name,
    /// The replica.
    pub instance: String,
}

impl FollowerRole {
    /// Its word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Service => "service",
            Self::Gateway => "gateway",
            Self::Authd => "authd",
        }
    }
}

impl fmt::Display for FollowerRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for FollowerRole {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        [Self::Service, Self::Gateway, Self::Authd].into_iter().find(|role| role.as_str() == text).ok_or(())
    }
}

/// What one follower says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FollowerReport {
    /// Who.
    #[serde(flatten)]
    pub id: FollowerId,
    /// The number of the list in force; 0 if there is none yet.
    pub number: u64,
    /// Its digest.
    pub digest: String,
    /// How many calls under way it has ended so far.
    pub cut_off: u64,
    /// How long ago the bucket was seen to hold it, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen_ago_ms: Option<u64>,
    /// Whether everything is refused because the bucket is out of sight.
    pub stale: bool,
    /// What is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}
