//! What the broker lets an agent publish and hear: what the policies of all services leave of its subjects.
//! Never withholds a subject on which a service would allow a call, and never lets it hear what only others may know.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use data_encoding::BASE32_NOPAD;
use nkeys::KeyPair;
use sealwire::Name;
use sealwire::internal::auth::RevocationKind;
use sealwire::internal::policy::{MethodScope, RequestSubjects};
use sealwire::internal::wire::Endpoint;
use sealwire_lab::permissions::Permissions;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256, Sha512_256};

use crate::exit::{Exit, Failure, OrFail as _};

/// The subjects of one agent, as they are put together service by service.
#[derive(Debug, Default)]
pub(crate) struct Grant {
    publish: BTreeSet<String>,
    deny: BTreeSet<String>,
    heard: BTreeSet<String>,
}

impl Grant {
    /// Adds what the agent may call of one service. With `batches`, its plain subject as well: the broker does not see which methods
    /// that carries.
    pub(crate) fn add(&mut self, endpoint: &Endpoint, agent: &Name, scope: &MethodScope, batches: bool) {
        self.heard.insert(format!("{}>", endpoint.inbox(agent)));
        if scope.possible.is_empty() {
            return;
        }
        self.heard.extend(scope.approver_roles.iter().filter_map(|role| endpoint.approvals_subject(role)));
        let RequestSubjects { allow, deny } = scope.subjects(endpoint, agent);
        self.publish.extend(allow);
        self.deny.extend(deny);
        self.publish.insert(format!("{}-ctl.{}.{agent}.>", endpoint.prefix(), endpoint.service()));
        if batches {
            self.publish.insert(endpoint.subject(agent));
        }
    }

    /// Whether there is nothing that the agent may publish.
    pub(crate) fn is_empty(&self) -> bool {
        self.publish.is_empty()
    }

    pub(crate) fn permissions(self) -> Permissions {
        Permissions::narrow_agent(self.publish, self.deny, self.heard)
    }
}

/// The account in which agents, services and tools meet.
pub(crate) const ACCOUNT: &str = "SEALWIRE";

/// Limits of an agent's connection: subscriptions, and bytes of a message with its headers, as SPEC.md §19 has them.
pub(crate) const SUBSCRIPTIONS: u32 = 16;
pub(crate) const PAYLOAD: u32 = 256 * 1024;

/// A mark of something by which operators can revoke: 96 bits of its digest, since brokers and their logs need no more.
pub(crate) fn mark(kind: RevocationKind, name: &str) -> String {
    URL_SAFE_NO_PAD.encode(Sha256::digest(format!("{kind} {name}"))).chars().take(16).collect()
}

/// The broker's name for a connection that `authd` admits: the agent's, and marks of what its token could be revoked by.
pub(crate) fn marked<'n>(agent: &Name, names: impl IntoIterator<Item = (RevocationKind, &'n str)>) -> String {
    let marks: BTreeSet<String> = names.into_iter().map(|(kind, name)| mark(kind, name)).collect();
    format!("{agent}#{}", marks.into_iter().collect::<Vec<_>>().join(","))
}

/// The agent and the marks of such a name; `None` of any other, since no name of an agent or key has a `#`.
pub(crate) fn unmarked(user: &str) -> Option<(&str, impl Iterator<Item = &str>)> {
    user.split_once('#').map(|(agent, marks)| (agent, marks.split(',')))
}

/// These claims as a JWT of NATS, issued now. Its id is their digest, of all of them: brokers take one of the same id for the same.
pub(crate) fn signed(key: &KeyPair, claims: Value, now_s: u64) -> Result<String, Failure> {
    let claims = with(claims, json!({ "iss": key.public_key(), "iat": now_s }));
    let id = BASE32_NOPAD.encode(&Sha512_256::digest(claims.to_string()));
    let claims = with(claims, json!({ "jti": id }));
    let head = URL_SAFE_NO_PAD.encode(r#"{"typ":"JWT","alg":"ed25519-nkey"}"#);
    let text = format!("{head}.{}", URL_SAFE_NO_PAD.encode(claims.to_string()));
    let signature = key.sign(text.as_bytes()).or_fail(Exit::Bug)?;
    Ok(format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature)))
}

/// The members of two objects.
pub(crate) fn with(one: Value, more: Value) -> Value {
    match (one, more) {
        (Value::Object(mut one), Value::Object(more)) => {
            one.extend(more);
            Value::Object(one)
        }
        (one, _) => one,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint() -> Endpoint {
        Endpoint::new(Name::new("test").unwrap(), Name::new("math").unwrap())
    }

    fn grant(possible: &[&str], excluded: &[&str], batches: bool) -> String {
        let all = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        let approver_roles = BTreeSet::from(["treasurer".to_owned(), "no subject".to_owned()]);
        let scope = MethodScope { possible: all(possible), excluded: all(excluded), approver_roles };
        let mut grant = Grant::default();
        grant.add(&endpoint(), &Name::new("ann").unwrap(), &scope, batches);
        grant.permissions().to_string()
    }

    /// SPEC.md §19.
    #[test]
    fn an_agent_gets_the_subjects_of_its_methods_and_of_its_inbox() {
        assert_eq!(
            grant(&["math/add"], &[], false),
            r#"{ publish: ["rpc.v1-ctl.math.ann.>", "rpc.v1.math.ann.math.add"], subscribe: ["_INBOX.ann.>", "rpc.v1-approvals.math.treasurer"] }"#
        );
        let with_batches = grant(&["math/add"], &[], true);
        assert!(with_batches.contains(r#""rpc.v1.math.ann", "rpc.v1.math.ann.math.add""#), "{with_batches}");
        // What a pattern covers is not listed, and what it must not cover is excepted.
        assert_eq!(
            grant(&["math/add", "math/*"], &["math/reset"], false),
            r#"{ publish: { allow: ["rpc.v1-ctl.math.ann.>", "rpc.v1.math.ann.math.>"], deny: ["rpc.v1.math.ann.math.reset"] }, subscribe: ["_INBOX.ann.>", "rpc.v1-approvals.math.treasurer"] }"#
        );
    }

    /// To a broker, an empty list means everything.
    #[test]
    fn an_agent_that_may_call_nothing_may_publish_nothing() {
        assert_eq!(grant(&[], &[], true), r#"{ publish: { deny: [">"] }, subscribe: ["_INBOX.ann.>"] }"#);
    }
}
