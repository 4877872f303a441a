//! The brokers' users and accounts: who may connect, what each may do, and how much of the brokers each may take.
//! Never keeps a private key: a new user's seed is handed out once, and only the public key is kept.

mod accounts;
pub(crate) mod claims;
mod server;

use std::collections::BTreeMap;
use std::path::Path;

use nkeys::KeyPair;
use sealwire::Name;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

pub(crate) use self::accounts::{AUTH, Account, SYSTEM};
pub(crate) use self::claims::AccountKeys;
pub(crate) use self::server::{CALLOUT_S, Callout};
use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::read_if_there;
use sealwire_lab::permissions::Permissions;

/// All users, in the order in which they were added.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Users {
    users: Vec<User>,
    /// In operator mode, users that are gone, by their public keys: JWTs for them that are no newer than this do not count.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    revoked: BTreeMap<String, u64>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct User {
    kind: Kind,
    name: Name,
    nkey: String,
}

/// What a user is for. Its name says whom it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// An agent.
    Agent,
    /// A service, when it answers agents.
    Service,
    /// A service's replay guard.
    Guard,
    /// The operator's tools.
    Tools,
    /// An operator who revokes.
    Revoker,
    /// An operator who closes connections.
    Closer,
    /// A service, when it follows what is revoked.
    Follower,
    /// A gateway, when it follows what is revoked. It has the name of its agent.
    GatewayFollower,
    /// A `sealwire authd`, when it follows what is revoked.
    AuthdFollower,
    /// A `sealwire authd`.
    Responder,
    /// In operator mode, whoever shows nothing but an access token, until `sealwire authd` has said who that is.
    Sentinel,
    /// Who gives brokers in operator mode new versions of accounts.
    Pusher,
    /// A gateway, when it passes on what approvers have signed.
    Relay,
}

impl Kind {
    /// What a user of this kind may do who serves this environment.
    pub(crate) fn permissions(self, environment: &str, name: &str) -> Permissions {
        match self {
            Self::Agent => Permissions::agent(name),
            Self::Service => Permissions::service(name),
            Self::Guard => Permissions::guard(environment, name),
            Self::Tools => Permissions::tools(name),
            Self::Revoker => Permissions::revoker(environment, name),
            Self::Closer => Permissions::closer(name),
            Self::Follower => Permissions::follower(environment, name),
            Self::GatewayFollower => Permissions::gateway_follower(environment, name),
            Self::AuthdFollower => Permissions::authd_follower(environment),
            Self::Responder => Permissions::responder(),
            Self::Sentinel => Permissions::nothing(),
            Self::Pusher => Permissions::pusher(name),
            Self::Relay => Permissions::relay(),
        }
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Service => "service",
            Self::Guard => "guard",
            Self::Tools => "tools",
            Self::Revoker => "revoker",
            Self::Closer => "closer",
            Self::Follower => "follower",
            Self::GatewayFollower => "gateway-follower",
            Self::AuthdFollower => "authd-follower",
            Self::Responder => "responder",
            Self::Sentinel => "sentinel",
            Self::Pusher => "pusher",
            Self::Relay => "relay",
        }
    }
}

impl Users {
    /// Reads what [`Users::to_json`] wrote.
    pub(crate) fn load(path: &Path) -> Result<Self, Failure> {
        let wrong = || Failure::input(format!("`{}` is not a list of broker users", path.display()));
        let users: Self = serde_json::from_str(&read_if_there(path)?.ok_or_else(wrong)?).map_err(|_| wrong())?;
        // The nkeys become part of the brokers' configuration.
        if users.users.iter().map(|user| &user.nkey).chain(users.revoked.keys()).all(|nkey| is_user_key(nkey)) {
            Ok(users)
        } else {
            Err(wrong())
        }
    }

    pub(crate) fn to_json(&self) -> Result<String, Failure> {
        Ok(serde_json::to_string_pretty(self).or_fail(Exit::Bug)? + "\n")
    }

    /// Adds a user with a new key pair, and returns its seed.
    pub(crate) fn make(&mut self, kind: Kind, name: &Name) -> Result<Zeroizing<String>, Failure> {
        let pair = KeyPair::new_user();
        self.admit(kind, name, &pair.public_key())?;
        Ok(Zeroizing::new(pair.seed().or_fail(Exit::Bug)?))
    }

    /// Adds a user whose key pair somebody else has.
    pub(crate) fn admit(&mut self, kind: Kind, name: &Name, nkey: &str) -> Result<(), Failure> {
        if !is_user_key(nkey) {
            return Err(Failure::input("not the public nkey of a user: it begins with U"));
        }
        // Agents and tools share one namespace of inboxes.
        let inbox = |kind| matches!(kind, Kind::Agent | Kind::Tools);
        let same = |user: &User| user.name == *name && (user.kind == kind || (inbox(user.kind) && inbox(kind)));
        if self.users.iter().any(|user| user.nkey == nkey || same(user)) {
            let message = format!("the brokers already know the {} {name}, or its key", kind.as_str());
            return Err(Failure::input(message));
        }
        self.users.push(User { kind, name: name.clone(), nkey: nkey.to_owned() });
        Ok(())
    }

    /// Removes a user. Returns whether there was one.
    pub(crate) fn forget(&mut self, kind: Kind, name: &Name) -> bool {
        let before = self.users.len();
        self.users.retain(|user| user.kind != kind || user.name != *name);
        self.users.len() < before
    }

    /// Whether there is such a user.
    pub(crate) fn has(&self, kind: Kind) -> bool {
        self.users.iter().any(|user| user.kind == kind)
    }

    /// Leaves out all agents but these and those of gateways.
    pub(crate) fn forget_agents(&mut self, kept: &[Name]) {
        let gateways =
            self.users.iter().filter(|user| user.kind == Kind::GatewayFollower).map(|user| user.name.clone());
        let kept: Vec<Name> = gateways.chain(kept.iter().cloned()).collect();
        self.users.retain(|user| user.kind != Kind::Agent || kept.contains(&user.name));
    }

    /// Revokes JWTs that were made for a user until now.
    pub(crate) fn revoke(&mut self, kind: Kind, name: &Name, now_s: u64) {
        let nkeys = self.users.iter().filter(|user| user.kind == kind && user.name == *name).map(|user| &user.nkey);
        self.revoked.extend(nkeys.map(|nkey| (nkey.clone(), now_s)));
    }

    /// The users whose JWTs do not count, and up to when.
    pub(crate) fn revoked(&self) -> &BTreeMap<String, u64> {
        &self.revoked
    }

    /// Each user's kind, name and public key.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Kind, &Name, &str)> {
        self.users.iter().map(|User { kind, name, nkey }| (*kind, name, nkey.as_str()))
    }
}

pub(crate) fn is_user_key(nkey: &str) -> bool {
    nkey.starts_with('U') && KeyPair::from_public_key(nkey).is_ok()
}
