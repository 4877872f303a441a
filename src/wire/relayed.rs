//! A request that its caller has signed, as somebody reads it who only passes it on: to which method of which service it goes, and where
//! its answer comes back.
//! Never verifies the signature, which is the service's to judge; what is read here only narrows what is passed on.

use super::algorithm::ProofAlgorithm;
use super::endpoint::Endpoint;
use super::envelope::AUTHORIZATION;
use super::headers::HeaderBlock;
use super::proof::{ProofClaims, ProofError, ProofHeader, REQUEST_TYP, SCHEME, USUAL_CLAIMS};
use super::subject::SubjectParts;
use crate::jose::{sha256_b64, unb64};
use crate::name::{Name, is_name};

/// One request to one method, with Ed25519, of which the token and the payload are those that its proof names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayedRequest {
    agent: Name,
    method: String,
    subject: String,
    reply: String,
    id: String,
    headers: HeaderBlock,
}

/// Why a request is not passed on. Its sender is to blame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RelayedRequestError {
    /// Not a proof of this protocol.
    #[error("the proof is not one of `nats-rpc-v1`: {0}")]
    Proof(#[from] ProofError),
    /// Signed with a key that the service has, too.
    #[error("the proof is not made with an Ed25519 key (`alg` must be `EdDSA`)")]
    Algorithm,
    /// A call with frames or a task.
    #[error("a call that is answered in parts (`win`) or runs as a task (`det`) is not passed on")]
    Kind,
    /// For another token.
    #[error("the proof is for another access token (`ath`)")]
    Token,
    /// For another payload.
    #[error("the proof is for another payload (`dig`)")]
    Payload,
    /// For another service.
    #[error("the proof is for another service (`aud`, `to`)")]
    Service,
    /// Not on the subject of one method.
    #[error("the message is not on the subject of one method of an agent (`to`)")]
    Subject,
    /// The answer would go elsewhere.
    #[error("the answer would not come back here (`rto`): it must be `<inbox>.<agent>.relay.` and a name")]
    Reply,
}

impl RelayedRequest {
    /// Below the inbox of each agent, the answers to requests that are passed on: somebody who may hear these hears no others.
    pub const INBOX: &str = "relay";

    /// Reads a request to this service: the access token, the proof, and the payload.
    ///
    /// # Errors
    /// [`RelayedRequestError`].
    pub fn read(endpoint: &Endpoint, token: &str, proof: &str, payload: &[u8]) -> Result<Self, RelayedRequestError> {
        type Wrong = RelayedRequestError;
        let mut parts = proof.split('.');
        let (Some(header), Some(claims), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(ProofError::Parts.into());
        };
        unb64(signature).filter(|signature| signature.len() == 64).ok_or(ProofError::Encoding)?;
        if ProofHeader::parse_typed(header, REQUEST_TYP)?.algorithm != ProofAlgorithm::EdDsa {
            return Err(Wrong::Algorithm);
        }
        let mut room = [0; USUAL_CLAIMS];
        let (claims, nonce) = ProofClaims::parse(claims, &mut room)?;
        if claims.win.is_some() || claims.det.is_some() {
            return Err(Wrong::Kind);
        }
        if claims.ath != sha256_b64(token.as_bytes()) {
            return Err(Wrong::Token);
        }
        if claims.dig != sha256_b64(payload) {
            return Err(Wrong::Payload);
        }
        let SubjectParts { service, agent, method } =
            SubjectParts::parse(&claims.to, endpoint.prefix()).ok_or(Wrong::Subject)?;
        if claims.aud != endpoint.audience().as_str() || service != endpoint.service().as_str() {
            return Err(Wrong::Service);
        }
        let method = method.ok_or(Wrong::Subject)?;
        let inbox = format!("{}{}.", endpoint.inbox(&agent), Self::INBOX);
        if !claims.rto.strip_prefix(&inbox).is_some_and(is_name) {
            return Err(Wrong::Reply);
        }
        let (subject, reply) = (claims.to.into_owned(), claims.rto.into_owned());
        let headers = HeaderBlock::of(&[(AUTHORIZATION, &format!("{SCHEME} {token}~{proof}"))]);
        Ok(Self { agent, method, subject, reply, id: nonce.to_text(), headers })
    }

    /// The agent that says that it has signed this.
    #[must_use]
    pub fn agent(&self) -> &Name {
        &self.agent
    }

    /// The method that the subject carries, each `/` of its name written as `.`.
    #[must_use]
    pub fn method(&self) -> &str {
        &self.method
    }

    /// Where to publish it.
    #[must_use]
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// Where its answer comes.
    #[must_use]
    pub fn reply(&self) -> &str {
        &self.reply
    }

    /// Its nonce, by which the service's log knows it.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Its header block.
    #[must_use]
    pub fn headers(&self) -> &HeaderBlock {
        &self.headers
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use serde_json::{Value, json};

    use super::*;
    use crate::jose::b64;

    const TOKEN: &str = "e30.e30.AA";
    const PAYLOAD: &[u8] = br#"{"jsonrpc":"2.0","method":"rpc.approvals","id":"1"}"#;

    fn claims() -> Value {
        json!({
            "aud": "prod/bank", "to": "rpc.v1.bank.tina.rpc.approvals", "rto": "_INBOX.tina.relay.Q1", "iat": 1_790_000_000,
            "exp": 1_790_000_030, "jti": "AAECAwQFBgcICQoLDA0ODw", "ath": sha256_b64(TOKEN.as_bytes()),
            "dig": sha256_b64(PAYLOAD), "tmo": 5_000,
        })
    }

    fn read(header: &Value, claims: &Value) -> Result<RelayedRequest, RelayedRequestError> {
        let proof = format!("{}.{}.{}", b64(header.to_string()), b64(claims.to_string()), b64([7; 64]));
        let endpoint = Endpoint::new(Name::new("prod").unwrap(), Name::new("bank").unwrap());
        RelayedRequest::read(&endpoint, TOKEN, &proof, PAYLOAD)
    }

    #[test]
    fn a_request_that_is_passed_on_is_what_its_proof_says_and_nothing_wider() {
        use RelayedRequestError as Wrong;

        let header = json!({ "alg": "EdDSA", "kid": "tina.k1", "typ": "nats-rpc-v1+jwt" });
        let request = read(&header, &claims()).unwrap();
        assert_eq!((request.method(), request.agent().as_str()), ("rpc.approvals", "tina"));
        assert_eq!((request.subject(), request.reply()), ("rpc.v1.bank.tina.rpc.approvals", "_INBOX.tina.relay.Q1"));
        let block = String::from_utf8(request.headers().as_bytes().to_vec()).unwrap();
        assert!(block.starts_with("NATS/1.0\r\nAuthorization: NatsRpc e30.e30.AA~ey") && block.ends_with("\r\n\r\n"));

        let changed = |name: &str, value: Value| {
            let mut claims = claims();
            claims.as_object_mut().unwrap().insert(name.to_owned(), value);
            read(&header, &claims).map(drop)
        };
        for (name, value, wrong) in [
            ("aud", json!("prod/vault"), Wrong::Service),
            ("aud", json!("test/bank"), Wrong::Service),
            ("to", json!("rpc.v1.vault.tina.rpc.approvals"), Wrong::Service),
            ("to", json!("rpc.v1.bank.tina"), Wrong::Subject),
            ("to", json!("rpc.v1.bank.>"), Wrong::Subject),
            ("to", json!("rpc.v1.bank.*.rpc.approvals"), Wrong::Subject),
            ("to", json!("$SYS.REQ.SERVER.PING"), Wrong::Subject),
            ("rto", json!(""), Wrong::Reply),
            ("rto", json!("_INBOX.tina.Q1"), Wrong::Reply),
            ("rto", json!("_INBOX.planner.relay.Q1"), Wrong::Reply),
            ("rto", json!("_INBOX.tina.relay."), Wrong::Reply),
            ("rto", json!("_INBOX.tina.relay.*"), Wrong::Reply),
            ("rto", json!("_INBOX.tina.relay.a.b"), Wrong::Reply),
            ("rto", json!("rpc.v1.bank.tina"), Wrong::Reply),
            ("ath", json!(sha256_b64(b"another")), Wrong::Token),
            ("dig", json!(sha256_b64(b"another")), Wrong::Payload),
            ("win", json!(1), Wrong::Kind),
            ("jti", json!("x"), Wrong::Proof(ProofError::Claim("jti"))),
            ("more", json!(1), Wrong::Proof(ProofError::Claims)),
        ] {
            let error = changed(name, value.clone()).unwrap_err();
            // An unknown claim is told in words of its own.
            let same = matches!((error, wrong), (Wrong::Proof(_), Wrong::Proof(_))) || error == wrong;
            assert!(same, "{name} {value}: {error}");
        }
        for (name, value, wrong) in [
            ("alg", json!("HS256"), Wrong::Algorithm),
            ("alg", json!("none"), Wrong::Proof(ProofError::Header)),
            ("typ", json!("dpop+jwt"), Wrong::Proof(ProofError::Header)),
            ("typ", json!("nats-rpc-v1-enrol+jwt"), Wrong::Proof(ProofError::Header)),
        ] {
            let mut header = header.clone();
            header.as_object_mut().unwrap().insert(name.to_owned(), value);
            assert_eq!(read(&header, &claims()).unwrap_err(), wrong, "{header}");
        }
        let endpoint = Endpoint::new(Name::new("prod").unwrap(), Name::new("bank").unwrap());
        for proof in ["", "a", "a.b", "a.b.c", "a.b.c.d", "..", "\r\n.\r\n.\r\n"] {
            assert!(RelayedRequest::read(&endpoint, TOKEN, proof, PAYLOAD).is_err(), "{proof:?}");
        }
    }
}
