//! Accounts and users as JWTs of NATS, for brokers in operator mode.
//! Never puts a permission into the JWT of a user: it has those of the scoped key that signs it.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use zeroize::Zeroizing;

use super::accounts::{AUTH, Account, Share};
use super::{Callout, Kind};
use crate::exit::{Exit, Failure};
use crate::gate::{ACCOUNT, PAYLOAD, with};

/// The public keys of an account.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AccountKeys {
    /// The account itself.
    pub(crate) account: String,
    /// The scoped key that signs users of a kind.
    pub(crate) roles: BTreeMap<Kind, String>,
    /// The JWTs by which other accounts let this one import their subjects.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) activations: BTreeMap<String, String>,
}

impl Account<'_> {
    /// The claims of its JWT, but for who signs it. `keys` has those of every account; `callout` says who decides on connections that
    /// show an access token; `revoked` says of a user's key up to when JWTs for it do not count any more, in seconds since the Unix epoch.
    pub(crate) fn claims(
        &self,
        environment: &str,
        keys: &BTreeMap<String, AccountKeys>,
        callout: Option<&Callout>,
        revoked: &BTreeMap<String, u64>,
    ) -> Result<Value, Failure> {
        let of = |name: &str| keys.get(name).ok_or_else(|| Failure::new(Exit::Bug, format!("no keys of {name}")));
        let own = of(&self.name)?;
        let scope = |(kind, key): (&Kind, &String)| {
            json!({ "kind": "user_scope", "key": key, "role": kind.as_str(), "description": "",
                    "template": self.template(*kind, environment) })
        };
        let mut signing: Vec<Value> = own.roles.iter().map(scope).collect();
        let mut more = Map::new();
        if let Some(Callout { issuer, xkey, responders }) = callout {
            if self.name == ACCOUNT {
                // Without a scope: `authd` says what each connection may do.
                signing.push(issuer.as_str().into());
            }
            if self.name == AUTH {
                let allowed = [&of(ACCOUNT)?.account];
                let asked = json!({ "auth_users": responders, "allowed_accounts": allowed, "xkey": xkey });
                more.insert("authorization".to_owned(), asked);
            }
        }
        let nats = json!({
            "type": "account", "version": 2, "limits": self.claims_of_limits(), "signing_keys": signing,
        });
        if !self.exports.is_empty() {
            let export = |share: &Share| json!({ "name": share.subject, "subject": share.subject, "type": kind_of(share), "token_req": true });
            more.insert("exports".to_owned(), self.exports.iter().map(export).collect());
        }
        if !self.imports.is_empty() {
            let import = |share: &Share| {
                let activation = own.activations.get(&share.subject);
                Ok(json!({ "name": share.subject, "subject": share.subject, "type": kind_of(share),
                           "account": of(share.with)?.account, "token": activation }))
            };
            more.insert("imports".to_owned(), self.imports.iter().map(import).collect::<Result<_, Failure>>()?);
        }
        if !revoked.is_empty() {
            more.insert("revocations".to_owned(), json!(revoked));
        }
        Ok(json!({ "sub": own.account, "name": self.name, "nats": with(nats, Value::Object(more)) }))
    }

    /// Its limits, as in its claims.
    pub(crate) fn claims_of_limits(&self) -> Value {
        let (exports, imports) = (self.exports.len(), self.imports.len());
        // The sentinel's JWT proves nothing, and whoever waits to be judged counts as a connection of its account.
        let is_waited_in = self.kinds.contains(&Kind::Sentinel);
        let common = json!({ "data": -1, "payload": -1, "wildcards": true, "disallow_bearer": !is_waited_in });
        let Some(limits) = &self.limits else {
            return with(common, json!({ "subs": -1, "conn": -1, "leaf": -1, "imports": -1, "exports": -1 }));
        };
        let common = with(
            common,
            json!({ "subs": limits.subscriptions, "leaf": 0, "imports": imports, "exports": exports,
                    "conn": if is_waited_in { -1 } else { i64::from(limits.connections) } }),
        );
        let Some(storage) = &self.storage else { return common };
        let bytes = |mib: u32| u64::from(mib) << 20;
        let storage = json!({ "mem_storage": bytes(storage.memory_mib), "disk_storage": bytes(storage.file_mib),
                              "streams": storage.streams, "consumer": 0 });
        with(common, storage)
    }

    /// What every user has whom the scoped key of this kind signs: the same as that kind of user has in a server's configuration.
    pub(crate) fn template(&self, kind: Kind, environment: &str) -> Value {
        let name = self.service.map_or(NAME, |service| service.as_str());
        let subscriptions = self.limits.as_ref().map_or(-1, |limits| i64::from(limits.subscriptions));
        let payload = if kind == Kind::Agent { i64::from(PAYLOAD) } else { -1 };
        let limits = json!({ "subs": subscriptions, "data": -1, "payload": payload,
                             "allowed_connection_types": ["STANDARD", "WEBSOCKET"] });
        let limits = with(limits, kind.permissions(environment, name).claims());
        if kind == Kind::Sentinel { with(limits, json!({ "bearer_token": true })) } else { limits }
    }

    /// The claims of the JWT by which it lets another account import a subject.
    pub(crate) fn activation(share: &Share, importer: &str) -> Value {
        json!({ "sub": importer, "name": share.subject,
                "nats": { "type": "activation", "version": 2, "subject": share.subject, "kind": kind_of(share) } })
    }
}

/// Stands for the name of the user, in a template.
const NAME: &str = "{{name()}}";

fn kind_of(share: &Share) -> &'static str {
    if share.is_service { "service" } else { "stream" }
}

/// The claims of a user's JWT. The key that signs it gives it its permissions.
pub(crate) fn user(name: &str, nkey: &str, account: &str) -> Value {
    json!({ "sub": nkey, "name": name, "nats": { "type": "user", "version": 2, "issuer_account": account } })
}

/// The claims of a JWT, which is not verified: brokers do that.
pub(crate) fn decoded(jwt: &str) -> Option<Value> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(jwt.trim().split('.').nth(1)?).ok()?).ok()
}

/// Whom a JWT is for.
pub(crate) fn subject(jwt: &str) -> Option<String> {
    decoded(jwt)?.get("sub")?.as_str().map(str::to_owned)
}

/// A `.creds` file, as `nsc generate creds` writes it.
pub(crate) fn creds(jwt: &str, seed: &str) -> Zeroizing<String> {
    let stars = "*".repeat(25);
    Zeroizing::new(format!(
        "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n{stars} IMPORTANT {stars}\nNKEY Seed printed \
         below can be used to sign and prove identity.\nNKEYs are sensitive and should be treated as secrets.\n\n\
         -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n\n{stars}{stars}*************\n"
    ))
}
