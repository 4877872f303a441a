//! The caller's side: signing requests, and accepting only answers that are bound to them.
//! Never accepts an answer that breaks any rule.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use super::algorithm::ProofAlgorithm;
use super::control::{ALL, CONTROL_TYP, ControlClaims, ControlOp};
use super::endpoint::Audience;
use super::frame::{FRAME_TYP, FrameClaims, FrameKind};
use super::headers::HeaderBlock;
use super::key::{AgentKey, HmacKey, ServicePublicKey, SignWith, SignatureBytes};
use super::key_error::KeyError;
use super::nonce::Nonce;
use super::proof::{
    MAX_TASK_MS, MAX_TIMEOUT_MS, MAX_WINDOW, ProofClaims, ProofHeader, REPLY_TYP, REQUEST_TYP, ReplyClaims, SCHEME,
    USUAL_CLAIMS, are_capabilities, credentials, is_idempotency_key, is_traceparent,
};
use super::seal::AUTHENTICATION_INFO;
use crate::jose::{b64, b64_digest, b64_to, sha256, sha256_b64, unb64_in};
use crate::name::Name;

/// Signs one agent's requests to one service.
pub struct RequestSigner {
    audience: Audience,
    kid: Arc<str>,
    algorithm: ProofAlgorithm,
    key: SignWith,
    services: Arc<[ServicePublicKey]>,
    /// The header of every request's proof, in base64url.
    request_header: String,
    known: Option<Arc<KnownHeaders>>,
}

/// A request before it is signed.
#[derive(Clone, Copy, Default)]
pub struct Signed<'a> {
    /// The subject it will be published on.
    pub subject: &'a str,
    /// The reply subject; empty for none.
    pub reply: &'a str,
    /// The payload, byte for byte.
    pub payload: &'a [u8],
    /// The access token.
    pub token: &'a str,
    /// The current time in milliseconds since the Unix epoch, by the service's clock as far as it is known.
    pub now_ms: u64,
    /// For how many seconds a service may accept the request; at most the service's window.
    pub valid_s: u64,
    /// The deadline in milliseconds from now; `None` means when the request expires.
    pub timeout_ms: Option<u64>,
    /// The idempotency key, handed to the method.
    pub idempotency_key: Option<&'a str>,
    /// How many frames beyond the acknowledged ones the caller accepts, 1 to 1,024; `None` for an answer in one
    /// message. Needs `timeout_ms`.
    pub window: Option<u64>,
    /// A W3C `traceparent` of version 00; any other text is left out.
    pub traceparent: Option<&'a str>,
    /// What the caller can do beyond receiving a result: names, separated by single spaces; any other text is left out.
    pub capabilities: Option<&'a str>,
    /// The call is a task that may run for so many milliseconds, up to 604,800,000. Needs `idempotency_key`, and no `window`.
    pub task_ms: Option<u64>,
}

/// Omits token and payload.
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

/// Omits the header, which holds the access token.
impl fmt::Debug for SignedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SignedRequest").field("expectation", &self.expectation).finish_non_exhaustive()
    }
}

impl RequestSigner {
    /// A signer with `key` for requests to `audience`. `services` are the pinned service keys: only needed for an
    /// Ed25519 key, since the answer to an HMAC request is signed with the request's key.
    ///
    /// # Errors
    /// [`KeyError`] when the key cannot be used.
    pub fn new(key: &AgentKey, audience: Audience, services: Vec<ServicePublicKey>) -> Result<Self, KeyError> {
        let signer = key.signer(&audience)?;
        let (kid, algorithm) = (key.kid().to_owned(), key.algorithm());
        // The answer to an Ed25519 request is signed with the service's key, of which there may be several.
        let known = (algorithm == ProofAlgorithm::Hs256).then(|| {
            let [reply, frame] = [REPLY_TYP, FRAME_TYP].map(|typ| {
                let header = ProofHeader { algorithm, kid: kid.clone(), typ };
                KnownHeader { text: header.encode(), header }
            });
            Arc::new(KnownHeaders { reply, frame })
        });
        let request_header = ProofHeader { algorithm, kid: kid.clone(), typ: REQUEST_TYP }.encode();
        let (kid, services) = (kid.into(), services.into());
        Ok(Self { audience, kid, algorithm, key: signer, services, request_header, known })
    }

    /// Signs `request` with a new nonce.
    #[must_use]
    pub fn sign(&self, request: &Signed<'_>) -> SignedRequest {
        self.sign_with(request, Nonce::random(), &sha256_b64(request.token.as_bytes()))
    }

    /// Signs with this nonce, and a token whose digest, as in the claim `ath`, is already known.
    pub(crate) fn sign_with(&self, request: &Signed<'_>, nonce: Nonce, ath: &str) -> SignedRequest {
        let iat = request.now_ms / 1000;
        // The deadline counts from `iat`, which is truncated, so the milliseconds since then are added.
        let tmo = request.timeout_ms.map(|ms| ms.saturating_add(request.now_ms % 1000).clamp(1, MAX_TIMEOUT_MS));
        let claims = ProofClaims {
            aud: self.audience.as_str(),
            to: request.subject,
            rto: request.reply,
            iat,
            exp: iat.saturating_add(request.valid_s),
            jti: &nonce.text(),
            ath,
            dig: &sha256_b64(request.payload),
            tmo,
            idk: request.idempotency_key.filter(|key| is_idempotency_key(key)).map(str::to_owned),
            win: request.window.filter(|_| tmo.is_some()).map(|window| window.clamp(1, MAX_WINDOW)),
            tp: request.traceparent.filter(|text| is_traceparent(text)).map(str::to_owned),
            cap: request.capabilities.filter(|text| are_capabilities(text)).map(str::to_owned),
            // Counts from `iat`, like the deadline.
            det: request.task_ms.map(|ms| ms.saturating_add(request.now_ms % 1000).clamp(1, MAX_TASK_MS)),
        };
        self.signed(&claims, request.token)
    }

    /// Signs exactly these claims, valid or not, for tests of what a service refuses. [`RequestSigner::sign`] makes
    /// valid ones.
    #[must_use]
    pub fn sign_claims(&self, claims: &ProofClaims, token: &str) -> SignedRequest {
        self.signed(claims, token)
    }

    fn signed<T: AsRef<str> + Serialize>(&self, claims: &ProofClaims<T>, token: &str) -> SignedRequest {
        let (authorization, proof) = self.prove(&self.request_header, claims, token);
        let expectation = Expectation {
            id: claims.jti.as_ref().to_owned(),
            iss: self.audience.clone(),
            to: claims.rto.as_ref().to_owned(),
            request: sha256(authorization.get(proof..).unwrap_or_default().as_bytes()),
            key: match &self.key {
                SignWith::Hmac(key) => ExpectedKey::Hmac { kid: Arc::clone(&self.kid), key: Arc::clone(key) },
                SignWith::Pair(_) => ExpectedKey::Services(Arc::clone(&self.services)),
            },
            known: self.known.clone(),
        };
        SignedRequest { authorization, expectation }
    }

    /// Signs a control message for an open call: returns the value of the `Authorization` header.
    #[must_use]
    pub fn sign_control(&self, control: &SignedControl<'_>) -> String {
        let iat = control.now_ms / 1000;
        let mut op = control.op.clone();
        if let ControlOp::Ack { timeout_ms: Some(lease), .. } = &mut op {
            // Like the deadline of a request: it counts from `iat`, which is truncated.
            *lease = lease.saturating_add(control.now_ms % 1000).clamp(1, MAX_TIMEOUT_MS);
        }
        let claims = ControlClaims {
            aud: self.audience.as_str().to_owned(),
            to: control.subject.to_owned(),
            iat,
            exp: iat.saturating_add(control.valid_s),
            ath: sha256_b64(control.token.as_bytes()),
            dig: sha256_b64(control.payload),
            req: b64(control.call.request),
            ctr: control.counter,
            op,
        };
        self.sign_control_claims(&claims, control.token)
    }

    /// Signs exactly these claims, valid or not; see [`RequestSigner::sign_claims`].
    #[must_use]
    pub fn sign_control_claims(&self, claims: &ControlClaims, token: &str) -> String {
        let header = ProofHeader { algorithm: self.algorithm, kid: self.kid.to_string(), typ: CONTROL_TYP }.encode();
        self.prove(&header, claims, token).0
    }

    /// Returns the value of the `Authorization` header, and the offset of the proof in it.
    fn prove(&self, header: &str, claims: &impl Serialize, token: &str) -> (String, usize) {
        let mut json = Vec::with_capacity(CLAIMS);
        // Claims are strings and numbers, so serializing them cannot fail.
        drop(serde_json::to_writer(&mut json, claims));
        // The claims as base64url; then an encoded signature of 32 or 64 bytes, and the separators.
        let room = SCHEME.len() + token.len() + header.len() + json.len().div_ceil(3) * 4 + 96;
        let mut text = String::with_capacity(room);
        for part in [SCHEME, " ", token, "~"] {
            text.push_str(part);
        }
        let proof = text.len();
        text.push_str(header);
        text.push('.');
        b64_to(&json, &mut text);
        let signature = self.key.sign(text.get(proof..).unwrap_or_default().as_bytes());
        text.push('.');
        b64_to(signature, &mut text);
        (text, proof)
    }
}

/// The usual size of a request's claims in bytes.
const CLAIMS: usize = 512;

/// A control message before it is signed.
#[derive(Clone, Copy)]
pub struct SignedControl<'a> {
    /// The subject it will be published on.
    pub subject: &'a str,
    /// The payload, byte for byte: empty, except for the answer to a question.
    pub payload: &'a [u8],
    /// The access token.
    pub token: &'a str,
    /// The current time in milliseconds since the Unix epoch, by the service's clock as far as it is known.
    pub now_ms: u64,
    /// For how many seconds a service may accept the message; at most the service's window.
    pub valid_s: u64,
    /// The call.
    pub call: &'a Expectation,
    /// Greater than in every earlier control message for this call; the first is 1.
    pub counter: u64,
    /// What to do. A deadline in it counts from `now_ms`.
    pub op: &'a ControlOp,
}

/// Omits token and payload.
impl fmt::Debug for SignedControl<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SignedControl")
            .field("subject", &self.subject)
            .field("counter", &self.counter)
            .field("op", &self.op)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for RequestSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestSigner({} to {}, ..)", self.kid, self.audience)
    }
}

/// What an answer must match to be accepted.
#[derive(Debug, Clone)]
pub struct Expectation {
    id: String,
    iss: Audience,
    to: String,
    /// The digest of the request's proof.
    request: [u8; 32],
    key: ExpectedKey,
    known: Option<Arc<KnownHeaders>>,
}

impl Expectation {
    /// The id of the request's message, as in the service's log: the proof's `jti`.
    #[must_use]
    pub fn message_id(&self) -> &str {
        &self.id
    }
}

/// The proof headers of answers and frames.
#[derive(Debug)]
struct KnownHeaders {
    reply: KnownHeader,
    frame: KnownHeader,
}

/// A proof header as services write it, with its parsed form, so that it is not parsed for each answer.
#[derive(Debug)]
struct KnownHeader {
    text: String,
    header: ProofHeader,
}

#[derive(Debug, Clone)]
enum ExpectedKey {
    Hmac { kid: Arc<str>, key: Arc<HmacKey> },
    Services(Arc<[ServicePublicKey]>),
}

/// Why an answer was not accepted. Such an answer is never a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Unverifiable {
    /// No `Authentication-Info` header: anybody could have sent it.
    #[error("the answer is not signed")]
    Unsigned,
    /// The header block is not `NATS/1.0` followed by lines of a name, a colon and a value.
    #[error("the answer's header block is malformed")]
    Headers,
    /// More than one such header.
    #[error("the answer has more than one signature header")]
    Repeated,
    /// The header's value or its claims are outside their grammar.
    #[error("the answer's proof is malformed")]
    Malformed,
    /// Signed with a key id or an algorithm that is not used to answer this request.
    #[error("the answer is signed under another key than this request is answered with")]
    Key,
    /// The signature is not valid.
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
    /// service's clock. That was after the request, since the answer names the request's proof, whose nonce was new.
    ///
    /// # Errors
    /// [`Unverifiable`] with the first rule that is violated.
    pub fn accept(&self, subject: &str, headers: impl Into<HeaderBlock>, payload: &[u8]) -> Result<u64, Unverifiable> {
        let headers = headers.into();
        let known = self.known.as_ref().map(|known| &known.reply);
        let proof = ReplyProof::parse(proof_of(&headers)?, REPLY_TYP, known)?;
        self.check_signature(&proof)?;
        let mut room = [0; USUAL_CLAIMS];
        let claims = ReplyClaims::parse(proof.claims, &mut room).map_err(|_| Unverifiable::Malformed)?;
        let ReplyClaims { iss, to, iat, req, dig } = &claims;
        self.check_binding([iss, to, req, dig], subject, payload)?;
        Ok(*iat)
    }

    /// Like [`Expectation::accept`], for messages that may also be frames.
    ///
    /// # Errors
    /// [`Unverifiable`] with the first rule that is violated.
    pub fn accept_any(&self, subject: &str, headers: &HeaderBlock, payload: &[u8]) -> Result<Accepted, Unverifiable> {
        let text = proof_of(headers)?;
        let known = self.known.as_ref().map(|known| &known.frame);
        let Ok(proof) = ReplyProof::parse(text, FRAME_TYP, known) else {
            return self.accept(subject, headers, payload).map(|iat| Accepted::Answer { iat });
        };
        self.check_signature(&proof)?;
        let claims = FrameClaims::parse(proof.claims).map_err(|_| Unverifiable::Malformed)?;
        self.check_binding([&claims.iss, &claims.to, &claims.req, &claims.dig], subject, payload)?;
        if matches!(claims.knd, FrameKind::Open | FrameKind::Beat) && !payload.is_empty() {
            return Err(Unverifiable::Malformed);
        }
        // A replica with that name could not be distinguished from all of them.
        if Name::new(&claims.rep).is_err() || claims.rep == ALL {
            return Err(Unverifiable::Malformed);
        }
        let ask = (claims.knd == FrameKind::Ask).then(|| sha256_b64(text.as_bytes()));
        Ok(Accepted::Frame(AcceptedFrame { claims, ask }))
    }

    /// The digest of the request's proof.
    pub(crate) fn request(&self) -> &[u8; 32] {
        &self.request
    }

    fn check_signature(&self, proof: &ReplyProof<'_>) -> Result<(), Unverifiable> {
        let holds = match &self.key {
            ExpectedKey::Hmac { kid, key } => {
                if proof.header.kid != **kid || proof.header.algorithm != ProofAlgorithm::Hs256 {
                    return Err(Unverifiable::Key);
                }
                key.verify(proof.input.as_bytes(), proof.signature.as_ref())
            }
            ExpectedKey::Services(pinned) => {
                let pinned = pinned.iter().find(|pinned| pinned.kid() == proof.header.kid);
                match pinned {
                    Some(pinned) if proof.header.algorithm == ProofAlgorithm::EdDsa => {
                        pinned.key.verify(proof.input.as_bytes(), proof.signature.as_ref())
                    }
                    _ => return Err(Unverifiable::Key),
                }
            }
        };
        if holds { Ok(()) } else { Err(Unverifiable::Signature) }
    }

    /// Checks that the signed claims, `[iss, to, req, dig]`, match this request and what arrived.
    fn check_binding(&self, claims: [&str; 4], subject: &str, payload: &[u8]) -> Result<(), Unverifiable> {
        let [iss, to, req, dig] = claims;
        if iss != self.iss.as_str() {
            Err(Unverifiable::Issuer)
        } else if to != self.to || subject != self.to {
            Err(Unverifiable::Subject)
        } else if req.as_bytes() != b64_digest(&self.request) {
            Err(Unverifiable::Request)
        } else if dig.as_bytes() != b64_digest(&sha256(payload)) {
            Err(Unverifiable::Payload)
        } else {
            Ok(())
        }
    }
}

/// What arrived for a request that accepts frames.
#[derive(Debug)]
pub enum Accepted {
    /// The whole answer.
    Answer {
        /// When it was signed: whole seconds since the Unix epoch.
        iat: u64,
    },
    /// A frame. Its order has not been checked.
    Frame(AcceptedFrame),
}

/// A frame whose signature and binding are valid.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AcceptedFrame {
    /// The frame's claims.
    pub claims: FrameClaims,
    /// Only for [`FrameKind::Ask`]: base64url of the digest of the frame's proof, by which its answer refers to it.
    pub ask: Option<String>,
}

struct ReplyProof<'t> {
    header: Cow<'t, ProofHeader>,
    input: &'t str,
    claims: &'t str,
    signature: SignatureBytes,
}

impl<'t> ReplyProof<'t> {
    /// `known` is a known header of that type.
    fn parse(text: &'t str, typ: &'static str, known: Option<&'t KnownHeader>) -> Result<Self, Unverifiable> {
        let (input, signature) = text.rsplit_once('.').ok_or(Unverifiable::Malformed)?;
        let (header, claims) = input.split_once('.').ok_or(Unverifiable::Malformed)?;
        if claims.contains('.') {
            return Err(Unverifiable::Malformed);
        }
        let header = match known {
            Some(known) if known.text == header => Cow::Borrowed(&known.header),
            _ => Cow::Owned(ProofHeader::parse_typed(header, typ).map_err(|_| Unverifiable::Malformed)?),
        };
        let signature = SignatureBytes::of(&unb64_in(signature, &mut [0; 66]).ok_or(Unverifiable::Malformed)?);
        Ok(Self { header, signature, input, claims })
    }
}

/// The proof in an answer's one signature header. Reads line by line, so that no map has merged repeated headers.
pub(crate) fn proof_of(headers: &HeaderBlock) -> Result<&str, Unverifiable> {
    let (_, lines) = headers.read().map_err(|_| Unverifiable::Headers)?;
    let mut found = None;
    for line in lines {
        let line = line.map_err(|_| Unverifiable::Headers)?;
        if line.name.eq_ignore_ascii_case(AUTHENTICATION_INFO) && found.replace(line.value).is_some() {
            return Err(Unverifiable::Repeated);
        }
    }
    credentials(found.ok_or(Unverifiable::Unsigned)?).ok_or(Unverifiable::Malformed)
}
