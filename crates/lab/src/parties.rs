//! The parties of the demonstration: a service, its agents, and the issuer of their tokens, all with new keys.
//! Never reuses a key.

use sealwire::configure::{AgentKey, ProofAlgorithm};
use sealwire::internal::auth::{Confirmation, IssueRequest, KeyEntry, KeyRingFile, TokenIssuer};
use sealwire::internal::wire::{Audience, ServiceKey};
use sealwire::{BusConfig, Clock as _, Credentials, Name, SystemClock};
use zeroize::Zeroizing;

use crate::error::{Blame, LabError, OrFail as _};

/// The environment of every demonstration.
pub const ENVIRONMENT: &str = "dev";
/// The service in it.
pub const SERVICE: &str = "demo";
/// The services of the cluster. Both have the same methods, to show that two services are kept apart.
pub const SERVICES: [&str; 2] = [SERVICE, "bank"];
/// The issuer of its tokens.
pub const ISSUER: &str = "https://issuer.sealwire.invalid";

/// The agents: name, roles of their tokens, algorithm of their keys, and what they are for.
pub const AGENTS: &[(&str, &[&str], ProofAlgorithm, &str)] = &[
    ("planner", &["calculator"], ProofAlgorithm::Hs256, "computes"),
    ("teller", &["teller"], ProofAlgorithm::Hs256, "moves money"),
    ("operator", &["operator"], ProofAlgorithm::EdDsa, "runs the service (an Ed25519 key)"),
    ("auditor", &["auditor"], ProofAlgorithm::Hs256, "reads what happened"),
];

/// The keys of all parties.
#[derive(Debug)]
pub struct Parties {
    /// The service, as messages name it.
    pub audience: Audience,
    /// The issuer of the agents' tokens.
    pub issuer: TokenIssuer,
    /// The service's own key.
    pub service_key: ServiceKey,
    /// The agents.
    pub agents: Vec<Agent>,
}

/// An agent of the demonstration.
#[derive(Debug)]
pub struct Agent {
    /// Its name.
    pub name: Name,
    /// The roles in its tokens.
    pub roles: &'static [&'static str],
    key: AgentKey,
}

impl Parties {
    /// Generates all keys.
    pub fn generate() -> Result<Self, LabError> {
        let audience = Audience::new(&named(ENVIRONMENT)?, &named(SERVICE)?);
        let agents = AGENTS
            .iter()
            .map(|(name, roles, algorithm, _)| {
                let key = AgentKey::generate(&format!("{name}.k1"), *algorithm).or_fail(Blame::Bug)?;
                Ok(Agent { name: named(name)?, roles, key })
            })
            .collect::<Result<Vec<_>, LabError>>()?;
        Ok(Self {
            issuer: TokenIssuer::generate(ISSUER).or_fail(Blame::Bug)?,
            service_key: ServiceKey::generate(&format!("svc:{audience}:1"), &audience).or_fail(Blame::Bug)?,
            agents,
            audience,
        })
    }

    /// The key ring of the service.
    pub fn ring(&self) -> Result<Zeroizing<String>, LabError> {
        ring(&self.audience, self.agents.iter().map(|agent| (&agent.name, &agent.key)))
    }

    /// An agent's credentials, still without a token.
    pub fn credentials(&self, agent: &Agent, bus: BusConfig) -> Result<Credentials, LabError> {
        Ok(Credentials::new(named(ENVIRONMENT)?, agent.name.clone(), copy(&agent.key)?, bus)
            .service_keys(named(SERVICE)?, vec![self.service_key.public()]))
    }

    /// A copy of an agent's key.
    pub fn key(&self, agent: &str) -> Result<AgentKey, LabError> {
        let found = self.agents.iter().find(|known| known.name.as_str() == agent);
        copy(&found.ok_or_else(|| LabError::new(Blame::Bug, format!("no agent {agent}")))?.key)
    }
}

/// The key ring of a service that these agents may call.
pub fn ring<'a>(
    audience: &Audience,
    agents: impl Iterator<Item = (&'a Name, &'a AgentKey)>,
) -> Result<Zeroizing<String>, LabError> {
    let entry = |(name, key): (&Name, &AgentKey)| match (key.derived(audience), key.public()) {
        (Some(derived), _) => Ok(KeyEntry::hmac(key.kid(), name.clone(), &derived)),
        (None, Some(public)) => Ok(KeyEntry::ed25519(key.kid(), name.clone(), public)),
        (None, None) => Err(LabError::new(Blame::Bug, "a key of neither kind")),
    };
    let keys = agents.map(entry).collect::<Result<Vec<_>, _>>()?;
    let file = KeyRingFile { audience: audience.to_string(), keys };
    Ok(Zeroizing::new(serde_json::to_string_pretty(&file).or_fail(Blame::Bug)?))
}

/// A token for the service of the demonstration.
pub fn token(issuer: &TokenIssuer, subject: &str, roles: &[&str], ttl_s: u64) -> Result<String, LabError> {
    let mut request = IssueRequest::new(subject, format!("{ENVIRONMENT}/{SERVICE}"), SystemClock.now_ms() / 1000);
    request.roles = roles.iter().map(ToString::to_string).collect();
    request.ttl_s = ttl_s;
    issuer.issue(&request).or_fail(Blame::Bug)
}

/// A token for one service, bound to the key with this id.
pub fn bound_token(
    issuer: &TokenIssuer,
    subject: &str,
    audience: &Audience,
    roles: &[&str],
    ttl_s: u64,
    kid: &str,
) -> Result<String, LabError> {
    let mut request = IssueRequest::new(subject, audience.as_str(), SystemClock.now_ms() / 1000);
    request.roles = roles.iter().map(ToString::to_string).collect();
    request.ttl_s = ttl_s;
    request.cnf = Some(Confirmation { kid: Some(kid.to_owned()), jkt: None });
    issuer.issue(&request).or_fail(Blame::Bug)
}

fn copy(key: &AgentKey) -> Result<AgentKey, LabError> {
    let copied = match (key.algorithm(), <[u8; 32]>::try_from(key.expose())) {
        (ProofAlgorithm::EdDsa, Ok(seed)) => AgentKey::ed25519(key.kid(), seed),
        _ => AgentKey::hmac(key.kid(), key.expose()),
    };
    copied.or_fail(Blame::Bug)
}

/// A name that is hard-coded in this program.
pub fn named(text: &str) -> Result<Name, LabError> {
    Name::new(text).or_fail(Blame::Bug)
}
