//! A request to enrol a public key: an agent generated its own key, and proves that it holds it.
//! Never holds a private key, and never says whether the agent is who it claims to be: the operator has to find that out.

use serde::{Deserialize, Serialize};

use super::algorithm::ProofAlgorithm;
use super::ed25519::Ed25519Public;
use super::key::AgentKey;
use super::proof::{ProofHeader, is_kid, object};
use crate::jose::{b64, ed25519_thumbprint, integer, unb64};
use crate::name::Name;

/// The `typ` of a request's signature, so that it cannot serve as the proof of a message.
const TYP: &str = "nats-rpc-v1-enrol+jwt";
/// The longest request in bytes.
const MAX_LEN: usize = 4_096;

/// A request to enrol an Ed25519 key, as one line of text: a JWS signed with the key itself.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyRequest {
    /// The environment.
    pub environment: Name,
    /// The agent's name, as it claims.
    pub agent: Name,
    /// The key id.
    pub kid: String,
    /// The public key as base64url.
    pub x: String,
    /// The public nkey of the agent's user at the broker, which the agent generated as well.
    pub nkey: Option<String>,
    /// When the request was made, seconds since the Unix epoch.
    pub made_at: u64,
}

/// Why a key request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyRequestError {
    /// Not a request, or one of another version.
    #[error("not a request of `sealwire keys request`")]
    Malformed,
    /// The signature is not by the key to be enrolled.
    #[error("the request is not signed by the key that it names: its sender does not hold that key")]
    Signature,
    /// Key ids are unique in a ring. Each agent has its own namespace, `<agent>.…`, so none can take an id that another will want.
    #[error(
        "the key id does not begin with the agent's name and a dot, as `planner.k1` does: ask for one that does (--kid)"
    )]
    KeyId,
    /// Only Ed25519 keys have a public half.
    #[error("only an Ed25519 key can be enrolled by its public half")]
    Algorithm,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Claims {
    environment: String,
    agent: String,
    x: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nkey: Option<String>,
    #[serde(deserialize_with = "integer")]
    iat: u64,
}

impl KeyRequest {
    /// Makes the request for this key, signed with it.
    ///
    /// # Errors
    /// [`KeyRequestError::Algorithm`] for an HMAC key.
    pub fn sign(
        environment: &Name,
        agent: &Name,
        key: &AgentKey,
        nkey: Option<&str>,
        now_s: u64,
    ) -> Result<String, KeyRequestError> {
        let x = key.public().ok_or(KeyRequestError::Algorithm)?;
        let header = ProofHeader { algorithm: key.algorithm(), kid: key.kid().to_owned(), typ: TYP };
        let (environment, agent) = (environment.to_string(), agent.to_string());
        let claims = Claims { environment, agent, x, nkey: nkey.map(ToOwned::to_owned), iat: now_s };
        let input = format!("{}.{}", header.encode(), b64(serde_json::to_vec(&claims).unwrap_or_default()));
        let signature = key.sign_with_pair(input.as_bytes()).ok_or(KeyRequestError::Algorithm)?;
        Ok(format!("{input}.{}", b64(&signature)))
    }

    /// Reads a request, and checks that its sender holds the key.
    ///
    /// # Errors
    /// [`KeyRequestError`]; the sender is to blame.
    pub fn verify(text: &str) -> Result<Self, KeyRequestError> {
        let text = text.trim_ascii();
        let malformed = KeyRequestError::Malformed;
        if text.len() > MAX_LEN {
            return Err(malformed);
        }
        let (input, signature) = text.rsplit_once('.').ok_or(malformed)?;
        let (header, claims) = input.split_once('.').ok_or(malformed)?;
        let header = ProofHeader::parse_typed(header, TYP).map_err(|_| malformed)?;
        let claims: Claims = unb64(claims).and_then(|bytes| object(&bytes)).ok_or(malformed)?;
        let signature = unb64(signature).ok_or(malformed)?;
        if header.algorithm != ProofAlgorithm::EdDsa {
            return Err(KeyRequestError::Algorithm);
        }
        // This namespace of key ids is reserved for services.
        if !is_kid(&header.kid) || header.kid.starts_with("svc:") {
            return Err(malformed);
        }
        let key = Ed25519Public::from_text(&claims.x).map_err(|_| malformed)?;
        if !key.verify(input.as_bytes(), &signature) {
            return Err(KeyRequestError::Signature);
        }
        let name = |text: &str| Name::new(text).map_err(|_| malformed);
        let agent = name(&claims.agent)?;
        // Names contain no dots.
        if header.kid.split_once('.').is_none_or(|(owner, rest)| owner != agent.as_str() || rest.is_empty()) {
            return Err(KeyRequestError::KeyId);
        }
        Ok(Self {
            environment: name(&claims.environment)?,
            agent,
            kid: header.kid,
            x: claims.x,
            nkey: claims.nkey,
            made_at: claims.iat,
        })
    }

    /// The thumbprint of the key (RFC 7638), for people to compare over another channel than the request's.
    #[must_use]
    pub fn thumbprint(&self) -> String {
        ed25519_thumbprint(&self.x)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
    use super::*;

    const NOW: u64 = 1_790_000_000;

    fn request(key: &AgentKey) -> Result<String, KeyRequestError> {
        KeyRequest::sign(&Name::new("dev").unwrap(), &Name::new("robot").unwrap(), key, Some("UABC"), NOW)
    }

    #[test]
    fn a_request_shows_that_its_maker_has_the_key() {
        let key = AgentKey::ed25519("robot.k1", [7; 32]).unwrap();
        let read = KeyRequest::verify(&format!("{}\n", request(&key).unwrap())).unwrap();
        assert_eq!((read.environment.as_str(), read.agent.as_str(), read.kid.as_str()), ("dev", "robot", "robot.k1"));
        assert_eq!((Some(&read.x), read.nkey.as_deref(), read.made_at), (key.public().as_ref(), Some("UABC"), NOW));
        assert_eq!(read.thumbprint().len(), 43);
        let hmac = AgentKey::hmac("robot.k1", &[1; 32]).unwrap();
        assert_eq!(request(&hmac), Err(KeyRequestError::Algorithm));
    }

    #[test]
    fn a_request_for_somebody_elses_key_is_refused() {
        let key = |seed| AgentKey::ed25519("robot.k1", [seed; 32]).unwrap();
        let (own, victim) = (key(7), key(8));
        let (own_text, victims) = (request(&own).unwrap(), request(&victim).unwrap());
        let (own_parts, victim_parts): (Vec<_>, Vec<_>) = (own_text.split('.').collect(), victims.split('.').collect());
        let forged = format!("{}.{}.{}", victim_parts[0], victim_parts[1], own_parts[2]);
        assert_eq!(KeyRequest::verify(&forged), Err(KeyRequestError::Signature));
        for index in 0..own_text.len() {
            let mut bytes = own_text.clone().into_bytes();
            bytes[index] = if bytes[index] == b'A' { b'B' } else { b'A' };
            assert!(KeyRequest::verify(&String::from_utf8(bytes).unwrap()).is_err(), "{index}");
        }
        for text in ["", ".", "..", "a.b.c", "x".repeat(5_000).as_str()] {
            assert_eq!(KeyRequest::verify(text), Err(KeyRequestError::Malformed));
        }
        for kid in ["teller.k1", "robot", "robot.", "robot-2.k1", "k1"] {
            let other = AgentKey::ed25519(kid, [7; 32]).unwrap();
            assert_eq!(KeyRequest::verify(&request(&other).unwrap()), Err(KeyRequestError::KeyId), "{kid}");
        }
        let service = AgentKey::ed25519("svc:dev/demo:1", [7; 32]).unwrap();
        assert_eq!(KeyRequest::verify(&request(&service).unwrap()), Err(KeyRequestError::Malformed));
    }
}
