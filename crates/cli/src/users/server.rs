//! Accounts and users in the configuration of a nats-server.
//! Never writes anything secret: brokers get public keys.

use std::fmt::Write as _;

use nkeys::{KeyPair, XKey};
use sealwire::Name;
use sealwire_lab::permissions::Permissions;

use super::accounts::{AUTH, Account, Share};
use super::{Kind, User, Users, is_user_key};
use crate::exit::Failure;

impl Users {
    /// The configuration for nats-server, as this command writes it. `agents` says what an agent may do. With a callout, agents who are no
    /// users log in with their access tokens.
    pub(crate) fn config(
        &self,
        command: &str,
        environment: &str,
        callout: Option<&Callout>,
        agents: impl Fn(&Name) -> Permissions,
    ) -> String {
        let mut text = format!(
            "# Written by `sealwire {command}`. The keys are public ones.\nsystem_account: SYS\n{}accounts {{\n",
            callout.map(Callout::authorization).unwrap_or_default()
        );
        for account in self.accounts(environment) {
            let users = self.users.iter().filter(|user| account.has(user.kind, &user.name));
            let users: String = users
                .map(|User { kind, name, nkey }| {
                    let permissions = match kind {
                        Kind::Agent => agents(name),
                        other => other.permissions(environment, name.as_str()),
                    };
                    format!("      # {} {name}\n      {{ nkey: {nkey}, permissions: {permissions} }}\n", kind.as_str())
                })
                .collect();
            account.write(&mut text, &users);
        }
        text + "}\n"
    }
}

impl Account<'_> {
    fn write(&self, text: &mut String, users: &str) {
        let Some(limits) = &self.limits else {
            let _ = match users {
                "" => writeln!(text, "  {} {{}}", self.name),
                users => write!(text, "  {} {{\n    users: [\n{users}    ]\n  }}\n", self.name),
            };
            return;
        };
        // Writing to a string cannot fail.
        let _ = write!(text, "\n  # {}\n  {} {{\n", self.purpose, self.name);
        if let Some(storage) = &self.storage {
            let size = |mib: u32| if mib == 0 { "0".to_owned() } else { format!("{mib}MB") };
            let _ = writeln!(
                text,
                "    jetstream {{ max_mem: {}, max_file: {}, max_streams: {}, max_consumers: 0 }}",
                size(storage.memory_mib),
                size(storage.file_mib),
                storage.streams
            );
        }
        let _ = writeln!(
            text,
            "    limits {{ max_connections: {}, max_subscriptions: {}, max_leafnodes: 0 }}",
            limits.connections, limits.subscriptions
        );
        let kind = |share: &Share| if share.is_service { "service" } else { "stream" };
        let list = |text: &mut String, name: &str, shares: Vec<String>| {
            if !shares.is_empty() {
                let _ = writeln!(text, "    {name}: [\n      {}\n    ]", shares.join("\n      "));
            }
        };
        let export =
            |share: &Share| format!("{{ {}: \"{}\", accounts: [{}] }}", kind(share), share.subject, share.with);
        let import = |share: &Share| {
            format!("{{ {}: {{ account: {}, subject: \"{}\" }} }}", kind(share), share.with, share.subject)
        };
        list(text, "exports", self.exports.iter().map(export).collect());
        list(text, "imports", self.imports.iter().map(import).collect());
        let _ = write!(text, "    users: [\n{users}    ]\n  }}\n");
    }
}

/// Whom brokers ask who a connection is that none of their own users claims to be.
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

    /// Brokers ask about whoever is no user of theirs. Users of other accounts than the one that answers log in with keys of their own,
    /// whatever becomes of the responders. They are not listed here, since a broker takes no change of this while it runs.
    fn authorization(&self) -> String {
        format!(
            "authorization {{\n  timeout: {CALLOUT_S}\n  auth_callout {{\n    issuer: {}\n    xkey: {}\n    account: {AUTH}\n    \
             allowed_accounts: [{AUTH}]\n    auth_users: [{}]\n  }}\n}}\n",
            self.issuer,
            self.xkey,
            self.responders.join(", ")
        )
    }
}

/// How long a broker waits for the answer to a callout, in seconds.
pub(crate) const CALLOUT_S: u32 = 2;
