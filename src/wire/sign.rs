//! The caller's side: signing requests, and accepting answers only if they are bound to them.
//! Never takes an answer whose every rule does not hold.

use std::fmt;

use super::endpoint::Audience;
use super::envelope::SCHEME;
use super::headers::HeaderBlock;
use super::jose::{b64, sha256_b64, unb64};
use super::key::{AgentKey, HmacKey, KeyError, ServicePublicKey, SignWith};
use super::proof::{MAX_TIMEOUT_MS, ProofClaims, ProofHeader, REPLY_TYP, REQUEST_TYP, ReplyClaims, is_idempotency_key};
use super::seal::proof_of;
use crate::auth::{Nonce, ProofAlgorithm};

/// Signs one agent's requests to one service.
pub struct RequestSigner {
    audience: Audience,
    kid: String,
    algorithm: ProofAlgorithm,
    key: SignWith,
    services: Vec<ServicePublicKey>,
}

/// A request before it is signed.
#[derive(Clone, Copy)]
pub struct Signed<'a> {
    /// The subject it will be published on.
    pub subject: &'a str,
    /// The reply subject; empty for none.
    pub reply: &'a str,
    /// The payload, byte for byte.
    pub payload: &'a [u8],
    /// The access token.
    pub token: &'a str,
    /// Now, in milliseconds since the Unix epoch, on the service's clock as far as it is known.
    pub now_ms: u64,
    /// For how long a service may take it, in seconds; at most the service's window.
    pub valid_s: u64,
    /// The deadline in milliseconds from now; `None` means until it expires.
    pub timeout_ms: Option<u64>,
    /// The idempotency key, handed to the method.
    pub idempotency_key: Option<&'a str>,
}

/// Without token and payload.
impl fmt::Debug for Signed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signed")
            .field("subject", &self.subject)
            .field("reply", &self.reply)
            .field("payload", &self.payload.len())
            .finish_non_exhaustive()
    }
}

/// A signed request: the header to send it with, and what its answer must look like.
pub struct SignedRequest {
    /// The value of the `Authorization` header.
    pub authorization: String,
    /// What an answer must match.
    pub expectation: Expectation,
}

/// Without the header, which holds the access token.
impl fmt::Debug for SignedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SignedRequest").field("expectation", &self.expectation).finish_non_exhaustive()
    }
}

impl RequestSigner {
    /// A signer of `key` towards `audience`. `services` are the service keys that are pinned for it: needed only when
    /// `key` is an Ed25519 key, since an HMAC request is answered under its own key.
    ///
    /// # Errors
    /// [`KeyError`] when the key cannot be used.
    pub fn new(key: &AgentKey, audience: Audience, services: Vec<ServicePublicKey>) -> Result<Self, KeyError> {
        let signer = key.signer(&audience)?;
        Ok(Self { audience, kid: key.kid().to_owned(), algorithm: key.algorithm(), key: signer, services })
    }

    /// Signs `request` under a new nonce.
    #[must_use]
    pub fn sign(&self, request: &Signed<'_>) -> SignedRequest {
        let iat = request.now_ms / 1000;
        // The deadline counts from `iat`, which is truncated: the milliseconds already past it are added.
        let tmo = request.timeout_ms.map(|ms| ms.saturating_add(request.now_ms % 1000).clamp(1, MAX_TIMEOUT_MS));
        let claims = ProofClaims {
            aud: self.audience.as_str().to_owned(),
            to: request.subject.to_owned(),
            rto: request.reply.to_owned(),
            iat,
            exp: iat.saturating_add(request.valid_s),
            jti: Nonce::random().to_text(),
            ath: sha256_b64(request.token.as_bytes()),
            dig: sha256_b64(request.payload),
            tmo,
            idk: request.idempotency_key.filter(|key| is_idempotency_key(key)).map(str::to_owned),
        };
        self.sign_claims(&claims, request.token)
    }

    /// Signs exactly these claims, right or wrong. [`RequestSigner::sign`] makes right ones; this is for tests of what
    /// a service refuses.
    #[must_use]
    pub fn sign_claims(&self, claims: &ProofClaims, token: &str) -> SignedRequest {
        let header = ProofHeader { algorithm: self.algorithm, kid: self.kid.clone(), typ: REQUEST_TYP.to_owned() };
        let claims_text = b64(&serde_json::to_vec(claims).unwrap_or_default());
        let input = format!("{}.{claims_text}", header.encode());
        let proof = format!("{input}.{}", b64(&self.key.sign(input.as_bytes())));
        let expectation = Expectation {
            iss: self.audience.clone(),
            to: claims.rto.clone(),
            req: sha256_b64(proof.as_bytes()),
            key: match &self.key {
                SignWith::Hmac(key) => ExpectedKey::Hmac { kid: self.kid.clone(), key: key.clone() },
                SignWith::Pair(_) => ExpectedKey::Services(self.services.clone()),
            },
        };
        SignedRequest { authorization: format!("{SCHEME} {token}~{proof}"), expectation }
    }
}

impl fmt::Debug for RequestSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestSigner({} to {}, ..)", self.kid, self.audience)
    }
}

/// What an answer must match to be taken.
#[derive(Debug, Clone)]
pub struct Expectation {
    iss: Audience,
    to: String,
    req: String,
    key: ExpectedKey,
}

#[derive(Debug, Clone)]
enum ExpectedKey {
    Hmac { kid: String, key: HmacKey },
    Services(Vec<ServicePublicKey>),
}

/// Why an answer was not taken. Such an answer is never a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Unverifiable {
    /// No `Authentication-Info` header: anybody could have sent it.
    #[error("the answer is not signed")]
    Unsigned,
    /// The header block is not `NATS/1.0` and lines of a name, a colon and a value.
    #[error("the answer's header block is malformed")]
    Headers,
    /// More than one such header.
    #[error("the answer has more than one signature header")]
    Repeated,
    /// The header's value or its claims are outside their grammar.
    #[error("the answer's proof is malformed")]
    Malformed,
    /// Signed under a key id or an algorithm that this request is not answered with.
    #[error("the answer is signed under another key than this request is answered with")]
    Key,
    /// The signature does not hold.
    #[error("the answer's signature does not hold")]
    Signature,
    /// It answers another request.
    #[error("the answer belongs to another request")]
    Request,
    /// It was sent to another subject.
    #[error("the answer was addressed to another subject")]
    Subject,
    /// It comes from another service.
    #[error("the answer comes from another service")]
    Issuer,
    /// The payload is not the one that was signed.
    #[error("the answer's payload was changed")]
    Payload,
}

impl Expectation {
    /// Checks an answer that arrived on `subject`. Returns when it was signed, in seconds since the Unix epoch by the
    /// service's clock: after the request was, since it names the request's proof, whose nonce was new.
    ///
    /// # Errors
    /// [`Unverifiable`] with the first rule that does not hold.
    pub fn accept(&self, subject: &str, headers: impl Into<HeaderBlock>, payload: &[u8]) -> Result<u64, Unverifiable> {
        let headers = headers.into();
        let proof = ReplyProof::parse(proof_of(&headers)?)?;
        let holds = match &self.key {
            ExpectedKey::Hmac { kid, key } => {
                if proof.header.kid != *kid || proof.header.algorithm != ProofAlgorithm::Hs256 {
                    return Err(Unverifiable::Key);
                }
                key.verify(proof.input.as_bytes(), &proof.signature)
            }
            ExpectedKey::Services(pinned) => {
                let pinned = pinned.iter().find(|pinned| pinned.kid() == proof.header.kid);
                match pinned {
                    Some(pinned) if proof.header.algorithm == ProofAlgorithm::EdDsa => {
                        pinned.key.verify(proof.input.as_bytes(), &proof.signature)
                    }
                    _ => return Err(Unverifiable::Key),
                }
            }
        };
        if !holds {
            return Err(Unverifiable::Signature);
        }
        let claims = ReplyClaims::parse(proof.claims).map_err(|_| Unverifiable::Malformed)?;
        if claims.iss != self.iss.as_str() {
            Err(Unverifiable::Issuer)
        } else if claims.to != self.to || subject != self.to {
            Err(Unverifiable::Subject)
        } else if claims.req != self.req {
            Err(Unverifiable::Request)
        } else if claims.dig != sha256_b64(payload) {
            Err(Unverifiable::Payload)
        } else {
            Ok(claims.iat)
        }
    }
}

struct ReplyProof<'t> {
    header: ProofHeader,
    input: &'t str,
    claims: &'t str,
    signature: Vec<u8>,
}

impl<'t> ReplyProof<'t> {
    fn parse(text: &'t str) -> Result<Self, Unverifiable> {
        let (input, signature) = text.rsplit_once('.').ok_or(Unverifiable::Malformed)?;
        let (header, claims) = input.split_once('.').ok_or(Unverifiable::Malformed)?;
        if claims.contains('.') {
            return Err(Unverifiable::Malformed);
        }
        Ok(Self {
            header: ProofHeader::parse_typed(header, REPLY_TYP).map_err(|_| Unverifiable::Malformed)?,
            signature: unb64(signature).ok_or(Unverifiable::Malformed)?,
            input,
            claims,
        })
    }
}
