//! The brokers' users and accounts: who may connect, what each may do, and how much of the brokers each may take.
//! Never keeps a private key: a new user's seed is handed out once, and only the public key is kept.

use std::fmt::Write as _;
use std::path::Path;

use nkeys::{KeyPair, XKey};
use sealwire::Name;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::read_if_there;
use crate::gate::ACCOUNT;
use sealwire_lab::permissions::Permissions;

/// All users, in the order in which they were added.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Users {
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
pub(crate) enum Kind {
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
    /// What a user of this kind may do who serves this environment.
    pub(crate) fn permissions(self, environment: &str, name: &Name) -> Permissions {
        let name = name.as_str();
        match self {
            Self::Agent => Permissions::agent(name),
            Self::Service => Permissions::service(name),
            Self::Guard => Permissions::guard(environment, name),
            Self::Tools => Permissions::tools(name),
        }
    }

    pub(crate) fn as_str(self) -> &'static str {
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
    pub(crate) fn load(path: &Path) -> Result<Self, Failure> {
        let wrong = || Failure::input(format!("`{}` is not a list of broker users", path.display()));
        let users: Self = serde_json::from_str(&read_if_there(path)?.ok_or_else(wrong)?).map_err(|_| wrong())?;
        // The nkeys become part of the brokers' configuration.
        if users.users.iter().all(|user| is_user_key(&user.nkey)) { Ok(users) } else { Err(wrong()) }
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

    /// Each user's kind, name and public key.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Kind, &Name, &str)> {
        self.users.iter().map(|User { kind, name, nkey }| (*kind, name, nkey.as_str()))
    }

    /// The configuration for nats-server, as this command writes it. `agents` says what an agent may do. With a callout, agents are no
    /// users: they log in with their access tokens.
    pub(crate) fn config(
        &self,
        command: &str,
        environment: &str,
        callout: Option<&Callout>,
        agents: impl Fn(&Name) -> Permissions,
    ) -> String {
        let mut text = format!(
            "# Written by `sealwire {command}`. The keys are public ones.\n\
             system_account: SYS\n{}accounts {{\n  SYS {{}}\n\n  \
             # Agents, the services that answer them, and the operator's tools. No JetStream in this account.\n  \
             {ACCOUNT} {{\n    limits {{ max_connections: {CONNECTIONS}, max_subscriptions: {SUBSCRIPTIONS}, \
             max_leafnodes: 0 }}\n    users: [\n",
            callout.map(|callout| callout.authorization(&self.users)).unwrap_or_default()
        );
        let user = |User { kind, name, nkey }: &User| {
            let permissions = match kind {
                Kind::Agent => agents(name),
                other => other.permissions(environment, name),
            };
            format!("      # {} {name}\n      {{ nkey: {nkey}, permissions: {permissions} }}\n", kind.as_str())
        };
        let (guards, others): (Vec<_>, Vec<_>) = self.users.iter().partition(|user| user.kind == Kind::Guard);
        let others = others.into_iter().filter(|user| callout.is_none() || user.kind != Kind::Agent);
        text.extend(others.map(user));
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
        text.extend(callout.map(Callout::account));
        text + "}\n"
    }
}

/// Where brokers ask who a connection is that none of their own users claims to be.
pub(crate) struct Callout {
    /// The public key of the account that signs the answers.
    pub(crate) issuer: String,
    /// The public curve key to which the questions are encrypted.
    pub(crate) xkey: String,
    /// The public keys of those who answer.
    pub(crate) responders: Vec<String>,
}

impl Callout {
    /// Fails if a key is not of its kind: it would become part of the brokers' configuration.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let wrong = |what: &str| Err(Failure::input(format!("not the public nkey of {what}")));
        if !self.issuer.starts_with('A') || KeyPair::from_public_key(&self.issuer).is_err() {
            return wrong("an account (it begins with A): --callout");
        }
        if XKey::from_public_key(&self.xkey).is_err() {
            return wrong("a curve key (it begins with X): --xkey");
        }
        if self.responders.is_empty() || !self.responders.iter().all(|key| is_user_key(key)) {
            return wrong("a user (it begins with U): --responder");
        }
        Ok(())
    }

    /// These users log in with keys of their own, whatever becomes of the responders.
    fn authorization(&self, users: &[User]) -> String {
        let others = users.iter().filter(|user| user.kind != Kind::Agent).map(|user| &user.nkey);
        let keys: Vec<&str> = others.chain(&self.responders).map(String::as_str).collect();
        format!(
            "authorization {{\n  timeout: {CALLOUT_S}\n  auth_callout {{\n    issuer: {}\n    xkey: {}\n    account: {AUTH}\n    \
             auth_users: [{}]\n  }}\n}}\n",
            self.issuer,
            self.xkey,
            keys.join(", ")
        )
    }

    fn account(&self) -> String {
        let permissions = Permissions::responder();
        let user = |key: &String| format!("      {{ nkey: {key}, permissions: {permissions} }}\n");
        let users: String = self.responders.iter().map(user).collect();
        format!(
            "\n  # Only for `sealwire authd`: whoever else is here could answer for it, or read its questions.\n  {AUTH} {{\n    \
             limits {{ max_connections: {GUARD_CONNECTIONS}, max_subscriptions: {GUARD_SUBSCRIPTIONS}, max_leafnodes: 0 }}\n    users: \
             [\n{users}    ]\n  }}\n"
        )
    }
}

pub(crate) fn is_user_key(nkey: &str) -> bool {
    nkey.starts_with('U') && KeyPair::from_public_key(nkey).is_ok()
}

/// The account of those who answer a callout.
const AUTH: &str = "AUTH";
/// How long a broker waits for them, in seconds.
const CALLOUT_S: u32 = 2;
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
