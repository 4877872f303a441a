//! What a replica says about itself, signed by its service and bound to the question: SPEC.md §18.
//! Never trusts any part of an answer before its signature is verified, whoever may publish to the subject it arrived on.

use serde::{Deserialize, Serialize};

use super::endpoint::Audience;
use super::headers::HeaderBlock;
use super::key::{ServiceKey, ServicePublicKey};
use super::nonce::Nonce;
use super::service_proof;
use super::sign::Unverifiable;
use crate::jose::{integer, sha256_b64};

/// The `typ` of the proof, so that it cannot serve as an answer to a call, nor the other way round.
const TYP: &str = "nats-rpc-v1-srv+jwt";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Claims {
    /// `<environment>/<service>`.
    iss: String,
    /// The replica's id.
    sub: String,
    /// The reply subject of the question.
    to: String,
    #[serde(deserialize_with = "integer")]
    iat: u64,
    /// The nonce of the question, unchanged.
    nonce: String,
    /// base64url(SHA-256(answer)).
    dig: String,
}

/// A replica's answer to one question, before it is signed.
#[derive(Debug)]
pub(crate) struct Presence<'a> {
    pub(crate) audience: &'a Audience,
    pub(crate) instance: &'a str,
    pub(crate) to: &'a str,
    pub(crate) nonce: Nonce,
    pub(crate) payload: &'a [u8],
    pub(crate) now_s: u64,
}

impl Presence<'_> {
    /// Signs the answer: returns its header block.
    pub(crate) fn sign(&self, key: &ServiceKey) -> HeaderBlock {
        let claims = Claims {
            iss: self.audience.as_str().to_owned(),
            sub: self.instance.to_owned(),
            to: self.to.to_owned(),
            iat: self.now_s,
            nonce: self.nonce.to_text(),
            dig: sha256_b64(self.payload),
        };
        service_proof::sign(TYP, &claims, key)
    }
}

/// A question to the replicas of a service. Answers are bound to it.
#[derive(Debug)]
pub struct Question {
    audience: Audience,
    nonce: Nonce,
}

impl Question {
    /// Makes a new question.
    pub(crate) fn new(audience: Audience) -> Self {
        Self::with(audience, Nonce::random())
    }

    /// The question to one audience that was asked with this nonce, perhaps together with others.
    #[must_use]
    pub fn with(audience: Audience, nonce: Nonce) -> Self {
        Self { audience, nonce }
    }

    /// The payload to send.
    pub(crate) fn payload(&self) -> String {
        self.nonce.to_text()
    }

    /// The nonce in the payload of a question; `None` if the asker wants no proof.
    pub(crate) fn nonce(payload: &[u8]) -> Option<Nonce> {
        Nonce::from_text(std::str::from_utf8(payload).ok()?)
    }

    /// Checks an answer that arrived on `subject` from a replica that calls itself `instance`, with the service's keys.
    ///
    /// # Errors
    /// [`Unverifiable`]: what about it proves nothing.
    pub fn accept(
        &self,
        subject: &str,
        instance: &str,
        headers: &HeaderBlock,
        payload: &[u8],
        keys: &[ServicePublicKey],
    ) -> Result<(), Unverifiable> {
        let claims: Claims = service_proof::verify(TYP, headers, keys)?;
        if claims.iss != self.audience.as_str() || claims.sub != instance {
            Err(Unverifiable::Issuer)
        } else if claims.to != subject {
            Err(Unverifiable::Subject)
        } else if claims.nonce != self.nonce.to_text() {
            Err(Unverifiable::Request)
        } else if claims.dig != sha256_b64(payload) {
            Err(Unverifiable::Payload)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use bytes::Bytes;

    use super::*;
    use crate::jose::b64;
    use crate::name::Name;
    use crate::wire::algorithm::ProofAlgorithm;
    use crate::wire::proof::{ProofHeader, SCHEME};
    use crate::wire::seal::AUTHENTICATION_INFO;
    use crate::wire::sign::proof_of;

    const NOW: u64 = 1_790_000_000;
    const TO: &str = "_SVC.math.replica.A.replicas";

    fn audience(service: &str) -> Audience {
        Audience::new(&Name::new("prod").unwrap(), &Name::new(service).unwrap())
    }

    fn key(service: &str, seed: u8) -> ServiceKey {
        ServiceKey::new(&format!("svc:prod/{service}:1"), &audience(service), [seed; 32]).unwrap()
    }

    /// A valid answer to `question`.
    fn answer<'a>(audience: &'a Audience, question: &Question) -> Presence<'a> {
        Presence { audience, instance: "B", to: TO, nonce: question.nonce, payload: b"{}", now_s: NOW }
    }

    fn accept(question: &Question, headers: &HeaderBlock) -> Result<(), Unverifiable> {
        question.accept(TO, "B", headers, b"{}", &[key("math", 1).public()])
    }

    /// The value of the signature header.
    fn value(headers: &HeaderBlock) -> String {
        format!("{SCHEME} {}", proof_of(headers).unwrap())
    }

    /// SPEC.md §18.
    #[test]
    fn an_answer_to_this_question_under_the_services_key_is_believed() {
        let (audience, key) = (audience("math"), key("math", 1));
        let question = Question::new(audience.clone());
        assert_eq!(accept(&question, &answer(&audience, &question).sign(&key)), Ok(()));
        // Whatever the replica's clock says: the nonce proves that the answer is new.
        let behind = Presence { now_s: 0, ..answer(&audience, &question) };
        assert_eq!(accept(&question, &behind.sign(&key)), Ok(()));
        assert_eq!(Question::nonce(question.payload().as_bytes()), Some(question.nonce));
        for other in ["", "{}", "AAECAwQFBgcICQoLDA0ODx", "AAECAwQFBgcICQoLDA0ODw\n"] {
            assert_eq!(Question::nonce(other.as_bytes()), None, "{other}");
        }
    }

    /// SPEC.md §18.
    #[test]
    fn an_answer_that_differs_in_anything_is_not_believed() {
        let (audience, own) = (audience("math"), key("math", 1));
        let question = Question::new(audience.clone());
        let right = || answer(&audience, &question);
        let others = self::audience("bank");
        let cases = [
            (Presence { audience: &others, ..right() }, Unverifiable::Issuer),
            (Presence { instance: "C", ..right() }, Unverifiable::Issuer),
            (Presence { to: "_SVC.math.replica.A.other", ..right() }, Unverifiable::Subject),
            (Presence { nonce: Nonce::random(), ..right() }, Unverifiable::Request),
            (Presence { payload: b"[]", ..right() }, Unverifiable::Payload),
        ];
        for (wrong, expected) in cases {
            assert_eq!(accept(&question, &wrong.sign(&own)), Err(expected), "{wrong:?}");
        }
        // Another service's key, and another key with this one's id.
        assert_eq!(accept(&question, &right().sign(&key("bank", 1))), Err(Unverifiable::Key));
        assert_eq!(accept(&question, &right().sign(&key("math", 2))), Err(Unverifiable::Signature));
        assert_eq!(accept(&question, &HeaderBlock::default()), Err(Unverifiable::Unsigned));
        assert_eq!(
            accept(&question, &Bytes::from_static(b"NATS/1.0\r\nA: b\rc\r\n\r\n").into()),
            Err(Unverifiable::Headers)
        );
        // Repeated, also in another case.
        let value = value(&right().sign(&own));
        let twice = HeaderBlock::of(&[(AUTHENTICATION_INFO, &value), ("authentication-info", &value)]);
        assert_eq!(accept(&question, &twice), Err(Unverifiable::Repeated));
        // Any one byte changed.
        for index in 0..value.len() {
            let mut bytes = value.clone().into_bytes();
            bytes[index] = if bytes[index] == b'A' { b'B' } else { b'A' };
            let headers = HeaderBlock::of(&[(AUTHENTICATION_INFO, &String::from_utf8(bytes).unwrap())]);
            assert!(accept(&question, &headers).is_err(), "{index}");
        }
    }

    /// SPEC.md §17.
    #[test]
    fn a_proof_of_another_type_is_not_believed() {
        let (audience, own) = (audience("math"), key("math", 1));
        let question = Question::new(audience.clone());
        let signed = answer(&audience, &question).sign(&own);
        let (_, rest) = proof_of(&signed).unwrap().split_once('.').unwrap();
        let claims = rest.split_once('.').unwrap().0;
        let header =
            ProofHeader { algorithm: ProofAlgorithm::EdDsa, kid: own.kid().into(), typ: "nats-rpc-v1-reply+jwt" };
        let input = format!("{}.{claims}", header.encode());
        let proof = format!("{SCHEME} {input}.{}", b64(own.sign(input.as_bytes())));
        let headers = HeaderBlock::of(&[(AUTHENTICATION_INFO, &proof)]);
        assert_eq!(accept(&question, &headers), Err(Unverifiable::Malformed));
    }

    /// The published vectors: the good ones are reproduced byte for byte.
    /// SPEC.md §24.
    #[test]
    fn the_vectors_are_judged_as_they_say() {
        // Read at run time: an image is built from `src` without the tests.
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/nats-rpc-v1.json");
        let vectors: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        let key = &vectors["service_keys"][0];
        let seed: Vec<u8> = (0x80..0xa0).collect();
        let key = ServiceKey::new(key["kid"].as_str().unwrap(), &audience("math"), seed.try_into().unwrap()).unwrap();
        assert_eq!(Some(key.public().x().as_str()), vectors["service_keys"][0]["jwk"]["x"].as_str());
        let mut believed = 0;
        for vector in vectors["presences"].as_array().unwrap() {
            let text = |member: &str| vector[member].as_str().unwrap();
            let lines: Vec<(&str, &str)> = vector["header_list"]
                .as_array()
                .unwrap()
                .iter()
                .map(|line| (line[0].as_str().unwrap(), line[1].as_str().unwrap()))
                .collect();
            let (headers, payload) = (HeaderBlock::of(&lines), text("payload").as_bytes());
            let nonce = Nonce::from_text(text("nonce")).unwrap();
            let question = Question { audience: audience("math"), nonce };
            let said: serde_json::Value = serde_json::from_slice(payload).unwrap();
            let instance = said["id"].as_str().unwrap();
            let got = question.accept(text("subject"), instance, &headers, payload, &[key.public()]);
            assert_eq!(got.is_ok(), text("expect") == "believe", "{}: {got:?}", text("name"));
            if got.is_ok() {
                let now_s = vector["proof_claims"]["iat"].as_u64().unwrap();
                let audience = audience("math");
                let own = Presence { audience: &audience, instance, to: text("subject"), nonce, payload, now_s };
                assert_eq!(proof_of(&own.sign(&key)), proof_of(&headers), "{}", text("name"));
                believed += 1;
            }
        }
        assert_eq!(believed, 4);
    }
}
