//! NATS in operator mode: keys and JWTs of an operator, its accounts and their users, as `nsc` makes them.

use std::path::Path;

use nkeys::KeyPair;
use serde_json::{Map, Value, json};

use crate::idp::b64;

/// An operator with one account for everybody, and the system's.
pub struct Operator {
    key: KeyPair,
    system: KeyPair,
    account: KeyPair,
}

/// A user of the account. `life_s` is from now, and may be negative.
#[derive(Debug, Clone, Default)]
pub struct UserClaims {
    pub name: String,
    pub life_s: Option<i64>,
    /// How long ago the JWT was issued.
    pub age_s: i64,
    /// Seconds from now until the JWT begins to be valid.
    pub begins_s: Option<i64>,
    pub publish: Vec<String>,
    pub subscribe: Vec<String>,
    pub bearer: bool,
}

impl UserClaims {
    /// One who may do everything in the account.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// The same, for this many seconds.
    pub fn lasting(name: &str, life_s: i64) -> Self {
        Self { life_s: Some(life_s), ..Self::new(name) }
    }
}

impl Operator {
    pub fn new() -> Self {
        Self { key: KeyPair::new_operator(), system: KeyPair::new_account(), account: KeyPair::new_account() }
    }

    /// The configuration of a server that knows both accounts, and whose JetStream the account may use.
    pub fn config(&self) -> String {
        let unlimited = json!({ "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1,
                                "leaf": -1 });
        let with_streams =
            with(&unlimited, &json!({ "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1 }));
        let account = |key: &KeyPair, limits: &Value| {
            let nats = json!({ "type": "account", "version": 2, "limits": limits });
            let claims = json!({ "sub": key.public_key(), "name": "account", "nats": nats });
            (key.public_key(), jwt(&self.key, &claims))
        };
        let nats = json!({ "type": "operator", "version": 2, "system_account": self.system.public_key() });
        let operator = jwt(&self.key, &json!({ "sub": self.key.public_key(), "name": "operator", "nats": nats }));
        let accounts = [account(&self.system, &unlimited), account(&self.account, &with_streams)];
        let preload: String = accounts.iter().map(|(key, jwt)| format!("  {key}: {jwt}\n")).collect();
        let system = self.system.public_key();
        format!("operator: {operator}\nsystem_account: {system}\nresolver: MEMORY\nresolver_preload: {{\n{preload}}}\n")
    }

    /// A `.creds` file for a new user.
    pub fn creds(&self, user: &UserClaims) -> String {
        let key = KeyPair::new_user();
        creds(&self.user_jwt(user, &key), &key.seed().unwrap())
    }

    /// Writes that file with mode 0600; an existing one is replaced in one step.
    pub fn write_creds(&self, path: &Path, user: &UserClaims) {
        sealwire::internal::files::write_secret(path, &self.creds(user), true).unwrap();
    }

    /// The JWT of a user with this key.
    pub fn user_jwt(&self, user: &UserClaims, key: &KeyPair) -> String {
        let now = now_s();
        let allowed = |subjects: &[String]| if subjects.is_empty() { json!({}) } else { json!({ "allow": subjects }) };
        let mut nats = json!({ "type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1,
                               "pub": allowed(&user.publish), "sub": allowed(&user.subscribe) });
        if user.bearer {
            nats["bearer_token"] = true.into();
        }
        let mut claims = json!({ "sub": key.public_key(), "iat": now - user.age_s, "name": user.name, "nats": nats });
        if let Some(life_s) = user.life_s {
            claims["exp"] = (now + life_s).into();
        }
        if let Some(begins_s) = user.begins_s {
            claims["nbf"] = (now + begins_s).into();
        }
        jwt(&self.account, &claims)
    }

    /// The JWT of the account, which is no user's.
    pub fn account_jwt(&self) -> String {
        let claims = json!({ "sub": self.account.public_key(), "nats": { "type": "account", "version": 2 } });
        jwt(&self.key, &claims)
    }
}

/// A `.creds` file, as `nsc generate creds` writes it.
pub fn creds(jwt: &str, seed: &str) -> String {
    let stars = "*".repeat(25);
    format!(
        "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n{stars} IMPORTANT {stars}\nNKEY Seed printed below can \
         be used to sign and prove identity.\nNKEYs are sensitive and should be treated as secrets.\n\n-----BEGIN USER NKEY SEED-----\n\
         {seed}\n------END USER NKEY SEED------\n\n{stars}{stars}\n"
    )
}

/// The JWT and the seed in a `.creds` file.
pub fn parts(creds: &str) -> (String, String) {
    let after = |label: &str| creds.lines().skip_while(|line| !line.contains(label)).nth(1).unwrap().to_owned();
    (after("BEGIN NATS USER JWT"), after("BEGIN USER NKEY SEED"))
}

/// Signs claims, and adds who issued them and when.
pub fn jwt(issuer: &KeyPair, claims: &Value) -> String {
    let mut claims = with(&json!({ "iss": issuer.public_key(), "iat": now_s() }), claims);
    claims["jti"] = b64(claims.to_string()).into();
    let text = format!("{}.{}", b64(r#"{"typ":"JWT","alg":"ed25519-nkey"}"#), b64(claims.to_string()));
    let signature = issuer.sign(text.as_bytes()).unwrap();
    format!("{text}.{}", b64(signature))
}

fn with(one: &Value, more: &Value) -> Value {
    let members = |value: &Value| value.as_object().cloned().unwrap_or_default();
    Value::Object(members(one).into_iter().chain(members(more)).collect::<Map<_, _>>())
}

fn now_s() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(now.as_secs()).unwrap()
}
