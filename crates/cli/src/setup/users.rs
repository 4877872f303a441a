//! The brokers' users and accounts: who may connect, what each may do, and how much of the brokers each may take.
//! Never keeps a private key: a new user's seed is handed out once, and only the public key is kept.

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

/// All users, in the order in which they were added.
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

/// What a user is for. Its name says whom it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    /// An agent.
    Agent,
    /// A service, when it answers agents.
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
        // The nkeys become part of the brokers' configuration.
        if users.users.iter().all(|user| is_user_key(&user.nkey)) { Ok(users) } else { Err(wrong()) }
    }

    pub(super) fn to_json(&self) -> Result<String, Failure> {
        Ok(serde_json::to_string_pretty(self).or_fail(Exit::Bug)? + "\n")
    }

    /// Adds a user with a new key pair, and returns its seed.
    pub(super) fn make(&mut self, kind: Kind, name: &Name) -> Result<Zeroizing<String>, Failure> {
        let pair = KeyPair::new_user();
        self.admit(kind, name, &pair.public_key())?;
        Ok(Zeroizing::new(pair.seed().or_fail(Exit::Bug)?))
    }

    /// Adds a user whose key pair somebody else has.
    pub(super) fn admit(&mut self, kind: Kind, name: &Name, nkey: &str) -> Result<(), Failure> {
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
    pub(super) fn forget(&mut self, kind: Kind, name: &Name) -> bool {
        let before = self.users.len();
        self.users.retain(|user| user.kind != kind || user.name != *name);
        self.users.len() < before
    }

    /// The configuration for nats-server.
    pub(super) fn config(&self) -> String {
        let mut text = format!(
            "# Written by `sealwire setup`. The keys are public ones.\n\
             system_account: SYS\naccounts {{\n  SYS {{}}\n\n  \
             # Agents, the services that answer them, and the operator's tools. No JetStream in this account.\n  \
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
                "\n  # Only for the replay guard of {name}: nothing is imported or exported.\n  GUARD_{name} {{\n    \
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

/// Connections of agents, services and tools together, on all brokers. A replica has two, an agent usually one.
const CONNECTIONS: u32 = 1_024;
/// Subscriptions of one connection. An agent needs one or two, a replica about fifteen. The broker sends every matching message
/// to each of them, so more subscriptions would be a way to make it send one answer many times.
const SUBSCRIPTIONS: u32 = 32;
/// Connections of one service's guard: one for each replica, and twice as many while replicas are replaced.
const GUARD_CONNECTIONS: u32 = 64;
/// Subscriptions of one connection of a guard: its inbox, and a few to verify the stream.
const GUARD_SUBSCRIPTIONS: u32 = 16;
/// The guard's stream, and those that replicas may create in its place before the surplus is removed.
const GUARD_STREAMS: u32 = 4;
/// Memory for all copies of all streams of one guard, a third of it on each broker. The three guards of the shipped setup together
/// fill a broker's memory (`max_memory_store`) exactly: otherwise one guard's login could leave nothing for the others.
const GUARD_MEMORY: &str = "384MB";
