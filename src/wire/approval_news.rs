//! What a service publishes when something happens to a call that waits for approval, signed: SPEC.md §6.3.
//! Never proves more than that the service said so: whoever acts on it asks the service how the request stands now.

use serde::{Deserialize, Serialize};

use super::endpoint::Audience;
use super::headers::HeaderBlock;
use super::key::{ServiceKey, ServicePublicKey};
use super::service_proof;
use super::sign::Unverifiable;
use crate::jose::{integer, sha256_b64};

/// The `typ` of the proof, so that it cannot serve as an answer to anything, nor the other way round.
const TYP: &str = "nats-rpc-v1-approval+jwt";

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Claims {
    /// `<environment>/<service>`.
    iss: String,
    /// The subject on which it is published.
    to: String,
    #[serde(deserialize_with = "integer")]
    iat: u64,
    /// base64url(SHA-256(payload)).
    dig: String,
}

/// A message about a request for approval, as it was published.
#[derive(Debug, Clone, Copy)]
pub struct ApprovalNews<'a> {
    /// The service whose call waits.
    pub audience: &'a Audience,
    /// Where it is published.
    pub subject: &'a str,
    /// The payload, byte for byte.
    pub payload: &'a [u8],
}

impl ApprovalNews<'_> {
    /// Signs it: returns its header block.
    pub(crate) fn sign(&self, key: &ServiceKey, now_s: u64) -> HeaderBlock {
        let (iss, to) = (self.audience.as_str().to_owned(), self.subject.to_owned());
        service_proof::sign(TYP, &Claims { iss, to, iat: now_s, dig: sha256_b64(self.payload) }, key)
    }

    /// Checks what arrived with these headers, with the service's keys. Returns when it was signed, in seconds since the Unix epoch by the
    /// service's clock: whoever runs the broker may deliver it late, or again.
    ///
    /// # Errors
    /// [`Unverifiable`]: what about it proves nothing.
    pub fn accept(&self, headers: &HeaderBlock, keys: &[ServicePublicKey]) -> Result<u64, Unverifiable> {
        let Claims { iss, to, iat, dig } = service_proof::verify(TYP, headers, keys)?;
        if iss != self.audience.as_str() {
            Err(Unverifiable::Issuer)
        } else if to != self.subject {
            Err(Unverifiable::Subject)
        } else if dig != sha256_b64(self.payload) {
            Err(Unverifiable::Payload)
        } else {
            Ok(iat)
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::name::Name;
    use crate::wire::sign::proof_of;
    use crate::wire::{Endpoint, Nonce, Presence};

    const NOW: u64 = 1_790_000_000;

    fn endpoint(service: &str) -> Endpoint {
        Endpoint::new(Name::new("prod").unwrap(), Name::new(service).unwrap())
    }

    fn key(service: &str, seed: u8) -> ServiceKey {
        ServiceKey::new(&format!("svc:prod/{service}:1"), endpoint(service).audience(), [seed; 32]).unwrap()
    }

    /// SPEC.md §6.3.
    #[test]
    fn news_that_differs_in_anything_is_not_believed() {
        let (bank, own) = (endpoint("bank"), key("bank", 1));
        let subject = bank.approvals_subject("treasurer").unwrap();
        assert_eq!(subject, "rpc.v1-approvals.bank.treasurer");
        let news = ApprovalNews { audience: bank.audience(), subject: &subject, payload: b"{}" };
        let signed = news.sign(&own, NOW);
        assert_eq!(news.accept(&signed, &[own.public()]), Ok(NOW));
        let vault = endpoint("vault");
        for (other, expected) in [
            (ApprovalNews { audience: vault.audience(), ..news }, Unverifiable::Issuer),
            (ApprovalNews { subject: "rpc.v1-approvals.bank.officer", ..news }, Unverifiable::Subject),
            (ApprovalNews { payload: b"[]", ..news }, Unverifiable::Payload),
        ] {
            assert_eq!(other.accept(&signed, &[own.public()]), Err(expected));
        }
        assert_eq!(news.accept(&signed, &[key("vault", 1).public()]), Err(Unverifiable::Key));
        assert_eq!(news.accept(&signed, &[key("bank", 2).public()]), Err(Unverifiable::Signature));
        assert_eq!(news.accept(&HeaderBlock::default(), &[own.public()]), Err(Unverifiable::Unsigned));
        // What the same key signs elsewhere is no news.
        let (instance, nonce) = ("a", Nonce::random());
        let presence =
            Presence { audience: bank.audience(), instance, to: &subject, nonce, payload: b"{}", now_s: NOW };
        assert_eq!(news.accept(&presence.sign(&own), &[own.public()]), Err(Unverifiable::Malformed));
    }

    /// The published vectors: the good ones are reproduced byte for byte.
    /// SPEC.md §24.
    #[test]
    fn the_vectors_are_judged_as_they_say() {
        // Read at run time: an image is built from `src` without the tests.
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/nats-rpc-v1.json");
        let vectors: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        let (math, seed): (_, Vec<u8>) = (endpoint("math"), (0x80..0xa0).collect());
        let kid = vectors["service_keys"][0]["kid"].as_str().unwrap();
        let key = ServiceKey::new(kid, math.audience(), seed.try_into().unwrap()).unwrap();
        let mut believed = 0;
        for vector in vectors["news"].as_array().unwrap() {
            let text = |member: &str| vector[member].as_str().unwrap();
            let lines: Vec<(String, String)> = serde_json::from_value(vector["header_list"].clone()).unwrap();
            let lines: Vec<(&str, &str)> = lines.iter().map(|(name, value)| (&**name, &**value)).collect();
            let headers = HeaderBlock::of(&lines);
            let (subject, payload) = (text("subject"), text("payload").as_bytes());
            let news = ApprovalNews { audience: math.audience(), subject, payload };
            let got = news.accept(&headers, &[key.public()]);
            assert_eq!(got.is_ok(), text("expect") == "believe", "{}: {got:?}", text("name"));
            if let Ok(at_s) = got {
                assert_eq!(proof_of(&news.sign(&key, at_s)), proof_of(&headers), "{}", text("name"));
                believed += 1;
            }
        }
        assert_eq!(believed, 3);
    }

    #[test]
    fn a_role_that_is_no_token_of_a_subject_hears_nothing() {
        for role in ["", "a.b", "*", ">", "two words", "tr\u{e9}sorier"] {
            assert_eq!(endpoint("bank").approvals_subject(role), None, "{role}");
        }
        let overlapping = endpoint("bank").with_prefixes("rpc.v1", "rpc.v1-approvals");
        assert!(overlapping.is_err(), "agents' inboxes may not be where news go");
    }
}
