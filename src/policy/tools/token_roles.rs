//! What is known of the roles in an agent's tokens.
//! Never speaks of the roles that policy files grant, which are known.

use std::collections::BTreeSet;

/// The roles in an agent's tokens. Those that policy files grant it are known anyway.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum TokenRoles {
    /// Any that a token may carry.
    #[default]
    Any,
    /// These at most.
    Within(BTreeSet<String>),
    /// Exactly these: a token is at hand.
    Exactly(BTreeSet<String>),
}

impl TokenRoles {
    pub(super) fn may_hold(&self, role: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Within(roles) | Self::Exactly(roles) => roles.contains(role),
        }
    }

    /// Those that somebody has named.
    pub(super) fn told(&self) -> impl Iterator<Item = &String> {
        let told = if let Self::Within(roles) | Self::Exactly(roles) = self { Some(roles) } else { None };
        told.into_iter().flatten()
    }

    pub(super) fn certain(&self) -> impl Iterator<Item = &String> {
        let certain = if let Self::Exactly(roles) = self { Some(roles) } else { None };
        certain.into_iter().flatten()
    }
}
