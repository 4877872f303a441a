//! The parties of the demonstration: a service, its agents, and the issuer of their tokens, all with new keys.
//! Never reuses a key.

use sealwire::auth::{Confirmation, IssueRequest, KeyEntry, KeyRingFile, ProofAlgorithm, TokenIssuer};
use sealwire::client::Credentials;
use sealwire::wire::{AgentKey, Audience, ServiceKey};
use sealwire::{BusConfig, Name};
use zeroize::Zeroizing;

use crate::exit::{Exit, Failure, OrFail as _};
use crate::when;

/// The environment of every demonstration.
pub(crate) const ENVIRONMENT: &str = "dev";
/// The service in it.
pub(crate) const SERVICE: &str = "demo";
/// The services of the cluster. Both have the same methods, to show that two services are kept apart.
pub(crate) const SERVICES: [&str; 2] = [SERVICE, "bank"];
/// The issuer of its tokens.
pub(crate) const ISSUER: &str = "https://issuer.sealwire.invalid";

/// The agents: name, roles of their tokens, algorithm of their keys, and what they are for.
pub(crate) const AGENTS: &[(&str, &[&str], ProofAlgorithm, &str)] = &[
    ("planner", &["calculator"], ProofAlgorithm::Hs256, "computes"),
    ("teller", &["teller"], ProofAlgorithm::Hs256, "moves money"),
    ("operator", &["operator"], ProofAlgorithm::EdDsa, "runs the service (an Ed25519 key)"),
    ("auditor", &["auditor"], ProofAlgorithm::Hs256, "reads what happened"),
];

/// The keys of all parties.
#[derive(Debug)]
pub(crate) struct Parties {
    pub(crate) audience: Audience,
    pub(crate) issuer: TokenIssuer,
    pub(crate) service_key: ServiceKey,
    pub(crate) agents: Vec<Agent>,
}

/// An agent of the demonstration.
#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) name: Name,
    pub(crate) roles: &'static [&'static str],
    key: AgentKey,
}

impl Parties {
    /// Generates all keys.
    pub(crate) fn generate() -> Result<Self, Failure> {
        let audience = Audience::new(&named(ENVIRONMENT)?, &named(SERVICE)?);
        let agents = AGENTS
            .iter()
            .map(|(name, roles, algorithm, _)| {
                let key = AgentKey::generate(&format!("{name}.k1"), *algorithm).or_fail(Exit::Bug)?;
                Ok(Agent { name: named(name)?, roles, key })
            })
            .collect::<Result<Vec<_>, Failure>>()?;
        Ok(Self {
            issuer: TokenIssuer::generate(ISSUER).or_fail(Exit::Bug)?,
            service_key: ServiceKey::generate(&format!("svc:{audience}:1"), &audience).or_fail(Exit::Bug)?,
            agents,
            audience,
        })
    }

    /// The key ring of the service.
    pub(crate) fn ring(&self) -> Result<Zeroizing<String>, Failure> {
        ring(&self.audience, self.agents.iter().map(|agent| (&agent.name, &agent.key)))
    }

    /// An agent's credentials, still without a token.
    pub(crate) fn credentials(&self, agent: &Agent, bus: BusConfig) -> Result<Credentials, Failure> {
        Ok(Credentials::new(named(ENVIRONMENT)?, agent.name.clone(), copy(&agent.key)?, bus)
            .service_keys(named(SERVICE)?, vec![self.service_key.public()]))
    }

    /// A copy of an agent's key.
    pub(crate) fn key(&self, agent: &str) -> Result<AgentKey, Failure> {
        let found = self.agents.iter().find(|known| known.name.as_str() == agent);
        copy(&found.ok_or_else(|| Failure::new(Exit::Bug, format!("no agent {agent}")))?.key)
    }
}

/// The key ring of a service that these agents may call.
pub(crate) fn ring<'a>(
    audience: &Audience,
    agents: impl Iterator<Item = (&'a Name, &'a AgentKey)>,
) -> Result<Zeroizing<String>, Failure> {
    let entry = |(name, key): (&Name, &AgentKey)| match (key.derived(audience), key.public()) {
        (Some(derived), _) => Ok(KeyEntry::hmac(key.kid(), name.clone(), &derived)),
        (None, Some(public)) => Ok(KeyEntry::ed25519(key.kid(), name.clone(), public)),
        (None, None) => Err(Failure::new(Exit::Bug, "a key of neither kind")),
    };
    let keys = agents.map(entry).collect::<Result<Vec<_>, _>>()?;
    let file = KeyRingFile { audience: audience.to_string(), keys };
    Ok(Zeroizing::new(serde_json::to_string_pretty(&file).or_fail(Exit::Bug)?))
}

/// A token for the service of the demonstration.
pub(crate) fn token(issuer: &TokenIssuer, subject: &str, roles: &[&str], ttl_s: u64) -> Result<String, Failure> {
    let mut request = IssueRequest::new(subject, format!("{ENVIRONMENT}/{SERVICE}"), when::now_s());
    request.roles = roles.iter().map(ToString::to_string).collect();
    request.ttl_s = ttl_s;
    issuer.issue(&request).or_fail(Exit::Bug)
}

/// A token for one service, bound to the key with this id.
pub(crate) fn bound_token(
    issuer: &TokenIssuer,
    subject: &str,
    audience: &Audience,
    roles: &[&str],
    ttl_s: u64,
    kid: &str,
) -> Result<String, Failure> {
    let mut request = IssueRequest::new(subject, audience.as_str(), when::now_s());
    request.roles = roles.iter().map(ToString::to_string).collect();
    request.ttl_s = ttl_s;
    request.cnf = Some(Confirmation { kid: Some(kid.to_owned()), jkt: None });
    issuer.issue(&request).or_fail(Exit::Bug)
}

fn copy(key: &AgentKey) -> Result<AgentKey, Failure> {
    let copied = match (key.algorithm(), <[u8; 32]>::try_from(key.expose())) {
        (ProofAlgorithm::EdDsa, Ok(seed)) => AgentKey::ed25519(key.kid(), seed),
        _ => AgentKey::hmac(key.kid(), key.expose()),
    };
    copied.or_fail(Exit::Bug)
}

/// A name that is hard-coded in this program.
pub(crate) fn named(text: &str) -> Result<Name, Failure> {
    Name::new(text).or_fail(Exit::Bug)
}
