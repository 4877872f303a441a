//! The brokers' users and accounts: who may connect, what each may do, and how much of the brokers each may take.
//! Never holds a private key: a new user's seed is handed out once, and the public half is kept.

use std::fmt::Write as _;
use std::path::Path;

use nkeys::KeyPair;
use sealwire::Name;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::read_if_there;
use crate::parties::ENVIRONMENT;
use crate::permissions::Permissions;

/// All users, in the order in which they came.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Users {
    users: Vec<User>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct User {
    kind: Kind,
    name: Name,
    nkey: String,
}

/// What a user is for; its name says whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    /// An agent.
    Agent,
    /// A service, as it answers agents.
    Service,
    /// A service's replay guard.
    Guard,
    /// The operator's tools.
    Tools,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Service => "service",
            Self::Guard => "guard",
            Self::Tools => "tools",
        }
    }
}

impl Users {
    /// Reads what [`Users::to_json`] wrote.
    pub(super) fn load(path: &Path) -> Result<Self, Failure> {
        let wrong = || Failure::input(format!("`{}` is not a list of broker users", path.display()));
        let users: Self = serde_json::from_str(&read_if_there(path)?.ok_or_else(wrong)?).map_err(|_| wrong())?;
        // The texts become part of the brokers' configuration.
        if users.users.iter().all(|user| is_user_key(&user.nkey)) { Ok(users) } else { Err(wrong()) }
    }

    pub(super) fn to_json(&self) -> Result<String, Failure> {
        Ok(serde_json::to_string_pretty(self).or_fail(Exit::Bug)? + "\n")
    }

    /// A new user with a key pair; the result is its seed.
    pub(super) fn make(&mut self, kind: Kind, name: &Name) -> Result<Zeroizing<String>, Failure> {
        let pair = KeyPair::new_user();
        self.admit(kind, name, &pair.public_key())?;
        Ok(Zeroizing::new(pair.seed().or_fail(Exit::Bug)?))
    }

    /// A user whose key pair somebody else has.
    pub(super) fn admit(&mut self, kind: Kind, name: &Name, nkey: &str) -> Result<(), Failure> {
        if !is_user_key(nkey) {
            return Err(Failure::input("not the public nkey of a user: it begins with U"));
        }
        // Agents' and tools' inboxes are named alike.
        let inbox = |kind| matches!(kind, Kind::Agent | Kind::Tools);
        let same = |user: &User| user.name == *name && (user.kind == kind || (inbox(user.kind) && inbox(kind)));
        if self.users.iter().any(|user| user.nkey == nkey || same(user)) {
            let message = format!("the brokers know the {} {name}, or its key, already", kind.as_str());
            return Err(Failure::input(message));
        }
        self.users.push(User { kind, name: name.clone(), nkey: nkey.to_owned() });
        Ok(())
    }

    /// Takes a user out again. Whether there was one.
    pub(super) fn forget(&mut self, kind: Kind, name: &Name) -> bool {
        let before = self.users.len();
        self.users.retain(|user| user.kind != kind || user.name != *name);
        self.users.len() < before
    }

    /// As nats-server reads it.
    pub(super) fn config(&self) -> String {
        let mut text = format!(
            "# Written by `sealwire setup`. The keys are public ones.\n\
             system_account: SYS\naccounts {{\n  SYS {{}}\n\n  \
             # Agents, the services that answer them, and the operator's tools. No JetStream here.\n  \
             SEALWIRE {{\n    limits {{ max_connections: {CONNECTIONS}, max_subscriptions: {SUBSCRIPTIONS}, \
             max_leafnodes: 0 }}\n    users: [\n"
        );
        let user = |User { kind, name, nkey }: &User| {
            let permissions = match kind {
                Kind::Agent => Permissions::agent(name.as_str()),
                Kind::Service => Permissions::service(name.as_str()),
                Kind::Guard => Permissions::guard(ENVIRONMENT, name.as_str()),
                Kind::Tools => Permissions::tools(name.as_str()),
            };
            format!("      # {} {name}\n      {{ nkey: {nkey}, permissions: {permissions} }}\n", kind.as_str())
        };
        let (guards, others): (Vec<_>, Vec<_>) = self.users.iter().partition(|user| user.kind == Kind::Guard);
        text.extend(others.into_iter().map(user));
        text.push_str("    ]\n  }\n");
        for guard in guards {
            // Writing to a string cannot fail.
            let _ = write!(
                text,
                "\n  # The replay guard of {name}, alone: nothing is imported or exported.\n  GUARD_{name} {{\n    \
                 jetstream {{ max_mem: {GUARD_MEMORY}, max_file: 0, max_streams: {GUARD_STREAMS}, max_consumers: 0 }}\n    \
                 limits {{ max_connections: {GUARD_CONNECTIONS}, max_subscriptions: {GUARD_SUBSCRIPTIONS}, \
                 max_leafnodes: 0 }}\n    users: [\n{user}    ]\n  }}\n",
                name = guard.name,
                user = user(guard),
            );
        }
        text + "}\n"
    }
}

fn is_user_key(nkey: &str) -> bool {
    nkey.starts_with('U') && KeyPair::from_public_key(nkey).is_ok()
}

/// Connections of agents, services and tools together, at all brokers. A replica has two, an agent mostly one.
const CONNECTIONS: u32 = 1_024;
/// Subscriptions of one connection. An agent needs one or two, a replica some fifteen; each is a copy of every message
/// that fits, so more of them are a way to have a broker send one answer many times.
const SUBSCRIPTIONS: u32 = 32;
/// Connections of one service's guard: one for each replica, twice while they are replaced.
const GUARD_CONNECTIONS: u32 = 64;
/// Subscriptions of one connection of a guard: its inbox, and a few that verify the stream.
const GUARD_SUBSCRIPTIONS: u32 = 16;
/// The guard's stream, and those that it makes in its place before the surplus is removed.
const GUARD_STREAMS: u32 = 4;
/// All copies of all streams of one guard together: a third of it on each broker. The shipped three guards fill what a broker
/// has (`max_memory_store`), and no more: else whoever holds one guard's login could leave nothing for the other.
const GUARD_MEMORY: &str = "384MB";
