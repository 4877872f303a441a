//! Who sent a message, and whether it is seen for the first time: judges one message, in the protocol's order.
//! Knows nothing of methods, and stores a nonce only for a message that has passed every other check.

mod control;
mod evidence;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use bytes::Bytes;
use tokio::time::Instant;

use super::Caller;
use super::keyring::{KeyRecord, KeyRing, RecordKey};
use super::replay::{AdmitError, ReplayGuard, Window};
use super::revocation::{Kind, Revocations};
use super::token::{AccessToken, PresentedToken, TokenError, TokenVerifier, VerifiedToken};
use super::verify_limiter::{VerificationQueueFull, VerifyLimiter, VerifyPermit};
use crate::jose::{b64_digest, sha256};
use crate::name::Name;
use crate::wire::{
    Audience, Binding, Endpoint, Envelope, HmacKey, Nonce, ProofAlgorithm, ProofClaims, ProofError, ReplyKey, ReplyTo,
    ServiceKey, USUAL_CLAIMS,
};

pub(crate) use evidence::Evidence;

/// Judges messages for one service.
///
/// Holds the key ring, the token rules and the replay guard. Keys, token keys and revocations can be replaced while
/// messages are judged; each message sees one ring.
#[derive(Debug)]
pub struct Verifier {
    audience: Audience,
    service: Name,
    window: Window,
    keys: ArcSwap<Keys>,
    tokens: TokenVerifier,
    guard: Arc<dyn ReplayGuard>,
    /// Verified against when the key id is unknown, so that an unknown id costs the same as an HMAC key's. It need not
    /// cost as much as an Ed25519 key's: key ids are no secret, and spending 45 µs on every made-up one would be a gift to
    /// a flood.
    decoy: HmacKey,
    limiter: VerifyLimiter,
    /// See [`Verifier::suspend`].
    suspended: AtomicBool,
}

#[derive(Debug)]
struct Keys {
    ring: KeyRing,
    service: Option<Arc<ServiceKey>>,
}

/// A message whose sender is proved. Whether it is a replay is not known yet.
#[derive(Debug)]
pub struct Authentic {
    message: Verified,
    received: Instant,
    iat: u64,
}

/// A message whose sender is proved and which is seen for the first time.
///
/// Made only by [`Verifier::admit`]; it cannot be cloned, so one admission leads to one dispatch.
pub struct Verified {
    pub(crate) caller: Arc<Caller>,
    pub(crate) payload: Bytes,
    /// As published.
    pub(crate) subject: String,
    /// The text of the proof.
    pub(crate) proof: Bytes,
    /// The subject's method tokens, joined with dots.
    pub(crate) subject_method: Option<String>,
    /// Milliseconds since the Unix epoch.
    pub(crate) deadline_ms: u64,
    /// Whole seconds since the Unix epoch.
    pub(crate) expires_at: u64,
    pub(crate) idempotency_key: Option<String>,
    /// Together with the agent, it identifies this message.
    pub(crate) nonce: Nonce,
    /// How many frames beyond the acknowledged ones the caller accepts; `None` if it wants a single answer.
    pub(crate) window: Option<u64>,
    /// A W3C `traceparent`. No decision reads it.
    pub(crate) traceparent: Option<String>,
    /// What the caller can do beyond receiving a result. No decision reads it.
    pub(crate) capabilities: Option<String>,
    /// It is a task that may run for so many milliseconds from when it was signed.
    pub(crate) task_ms: Option<u64>,
    /// When it was signed, in whole seconds since the Unix epoch.
    pub(crate) issued_at: u64,
    pub(crate) token: ShownToken,
    pub(crate) binding: Option<Binding>,
}

/// The access token as presented, and the key that proved it, for judging both again while their call runs.
#[derive(Clone)]
pub(crate) struct ShownToken {
    token: Arc<VerifiedToken>,
    key: Arc<KeyRecord>,
}

impl fmt::Debug for ShownToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ShownToken(..)")
    }
}

/// Omits the payload, which holds parameters.
impl fmt::Debug for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verified")
            .field("caller", &self.caller)
            .field("payload", &self.payload.len())
            .field("nonce", &self.nonce)
            .finish_non_exhaustive()
    }
}

impl Authentic {
    /// The agent that sent it.
    pub(crate) fn agent(&self) -> &Name {
        &self.message.caller.agent
    }

    /// Its caller.
    pub(crate) fn caller(&self) -> &Caller {
        &self.message.caller
    }

    /// Drops the message and keeps its binding.
    pub(crate) fn into_binding(self) -> Option<Binding> {
        self.message.binding
    }
}

/// Why a message was refused before its body was read.
#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    /// The key id names no record, or one that is not usable now.
    #[error("unknown or unusable key id")]
    Key,
    /// The deny list revokes the key id.
    #[error("revoked key id")]
    KeyRevoked,
    /// The proof's algorithm is not that of the record.
    #[error("proof algorithm is not the key's")]
    Algorithm,
    /// The agent in the subject does not own the key.
    #[error("key belongs to an agent other than the one in the subject")]
    KeyAgentMismatch,
    /// The signature does not hold.
    #[error("proof signature does not hold")]
    Signature,
    /// The proof's claims violate their grammar, or its lifetime is longer than the window.
    #[error("proof: {0}")]
    Proof(ProofError),
    /// A claim does not match the message; holds the claim's name.
    #[error("proof claim `{0}` does not match the message")]
    Mismatch(&'static str),
    /// Expired so long ago that no clock can be to blame: someone kept a copy.
    #[error("expired more than a window ago: an old copy, or a caller whose clock is far behind")]
    Expired,
    /// Outside the time window.
    #[error("outside the time window: {0}")]
    Stale(Staleness),
    /// The access token was refused.
    #[error("access token: {0}")]
    Token(#[from] TokenError),
    /// The token's actor does not own the key.
    #[error("access token of another agent")]
    TokenAgentMismatch,
    /// The token is bound to another key (`cnf`).
    #[error("access token bound to another key")]
    Confirmation,
    /// The agent's queue of Ed25519 checks is full.
    #[error("too many Ed25519 checks waiting for one agent")]
    VerificationQueueFull,
    /// The replay guard refused.
    #[error("{0}")]
    Guard(AdmitError),
    /// Nothing is admitted; see [`Verifier::suspend`].
    #[error("nothing is admitted: what is revoked could not be read for too long")]
    Suspended,
    /// An operator has revoked the agent, the key, the service, or everything.
    #[error("an operator has revoked: {0}")]
    Revoked(Kind),
}

impl AuthError {
    /// What the log tells apart: a name from a closed set.
    pub(crate) fn detail(&self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::KeyRevoked => "key_revoked",
            Self::Algorithm => "algorithm",
            Self::KeyAgentMismatch => "key_agent",
            Self::Signature => "signature",
            Self::Proof(_) => "proof",
            Self::Mismatch(claim) => claim,
            Self::Expired => "long_expired",
            Self::Stale(Staleness::Expired) => "expired",
            Self::Stale(Staleness::Future) => "future",
            Self::Stale(Staleness::BeforeFence) => "before_fence",
            Self::Token(error) => error.label(),
            Self::TokenAgentMismatch => "token_agent",
            Self::Confirmation => "confirmation",
            Self::VerificationQueueFull => "queue",
            Self::Guard(AdmitError::Unavailable(outage)) => outage.label(),
            Self::Guard(_) => "guard",
            Self::Suspended => "suspended",
            Self::Revoked(kind) => kind.as_str(),
        }
    }

    /// Whether the key of the agent in the subject has proved the message, although it is refused.
    pub(crate) fn has_proved_key(&self) -> bool {
        match self {
            Self::Key
            | Self::KeyRevoked
            | Self::Algorithm
            | Self::KeyAgentMismatch
            | Self::Signature
            | Self::VerificationQueueFull
            | Self::Revoked(Kind::Agent | Kind::Key) => false,
            Self::Proof(_)
            | Self::Mismatch(_)
            | Self::Expired
            | Self::Stale(_)
            | Self::Token(_)
            | Self::TokenAgentMismatch
            | Self::Confirmation
            | Self::Guard(_)
            | Self::Suspended
            | Self::Revoked(_) => true,
        }
    }
}

/// Which side of the window a message fell out of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Staleness {
    /// `exp` has passed.
    #[error("expired")]
    Expired,
    /// `iat` lies in the future by more than the skew.
    #[error("issued in the future")]
    Future,
    /// Issued at a time for which the replay guard cannot vouch.
    #[error("issued before the replay guard began to remember")]
    BeforeFence,
}

/// A refused message.
#[derive(Debug)]
pub struct RejectedMessage {
    /// Why.
    pub error: AuthError,
    /// The agent named by the subject. It is proved only if `binding` is present.
    pub claimed: Name,
    /// Signs the refusal; absent if the refusal must not be signed.
    pub(crate) binding: Option<Binding>,
    /// Where an unsigned hint may go instead.
    pub(crate) reply: Option<ReplyTo>,
}

impl Verifier {
    /// A verifier of `endpoint`.
    ///
    /// `service` is the key under which Ed25519 requests are answered.
    ///
    /// # Errors
    /// [`ServiceKeyMissing`] when the ring has an Ed25519 key and there is no service key.
    pub fn new(
        endpoint: &Endpoint,
        window: Window,
        ring: KeyRing,
        service: Option<ServiceKey>,
        tokens: TokenVerifier,
        guard: Arc<dyn ReplayGuard>,
    ) -> Result<Self, ServiceKeyMissing> {
        let keys = Keys::new(ring, service.map(Arc::new))?;
        Ok(Self {
            audience: endpoint.audience().clone(),
            service: endpoint.service().clone(),
            window,
            keys: ArcSwap::from_pointee(keys),
            tokens,
            guard,
            decoy: HmacKey::new([0; 32]),
            limiter: VerifyLimiter::default(),
            suspended: AtomicBool::new(false),
        })
    }

    /// Replaces the key ring, at once for every message that is not yet judged.
    ///
    /// # Errors
    /// [`ServiceKeyMissing`]; the previous ring stays in force.
    pub fn replace_ring(&self, ring: KeyRing) -> Result<(), ServiceKeyMissing> {
        // A service key is replaced but never removed, so what holds here still holds below.
        if ring.needs_service_key() && self.service_key().is_none() {
            return Err(ServiceKeyMissing);
        }
        self.keys.rcu(|keys| Keys { ring: ring.share(), service: keys.service.clone() });
        Ok(())
    }

    /// Replaces the service key.
    pub fn replace_service_key(&self, key: ServiceKey) {
        let key = Arc::new(key);
        self.keys.rcu(|keys| Keys { ring: keys.ring.share(), service: Some(Arc::clone(&key)) });
    }

    /// The service key, with which the service also signs statements about itself.
    pub(crate) fn service_key(&self) -> Option<Arc<ServiceKey>> {
        self.keys.load().service.clone()
    }

    /// The key ids under which an agent's messages would verify at `now_s`, and their algorithms; sorted.
    pub(crate) fn keys_of(&self, agent: &Name, now_s: u64) -> BTreeMap<String, ProofAlgorithm> {
        let keys = self.keys.load();
        let is_denied = |record: &KeyRecord| {
            self.tokens.denylist().denies_key(&record.kid)
                || self.revocations().revokes(names_of(record), now_s).is_some()
        };
        let usable = keys.ring.usable_by(agent, now_s).filter(|record| !is_denied(record));
        usable.map(|record| (record.kid.to_string(), record.algorithm())).collect()
    }

    /// See [`KeyRing::ending`].
    #[cfg(feature = "metrics")]
    pub(crate) fn keys_ending(&self, most: usize) -> Vec<(String, String, u64)> {
        self.keys.load().ring.ending(most)
    }

    /// The token verifier, for replacing token keys and the deny list.
    #[must_use]
    pub fn tokens(&self) -> &TokenVerifier {
        &self.tokens
    }

    /// Whether operators have revoked this service, or everything.
    fn revokes_service(&self, now_s: u64) -> Option<Kind> {
        self.revocations().revokes([Revocations::ALL, (Kind::Service, self.service.as_str())], now_s)
    }

    /// What operators have revoked.
    #[must_use]
    pub fn revocations(&self) -> &Arc<Revocations> {
        self.tokens.revocations()
    }

    /// The replay guard.
    #[must_use]
    pub fn guard(&self) -> &Arc<dyn ReplayGuard> {
        &self.guard
    }

    /// Admits nothing while `suspended`, because revocations may be unknown. No nonce is burnt, so a caller may send a
    /// refused message again.
    pub fn suspend(&self, suspended: bool) {
        self.suspended.store(suspended, Ordering::Release);
    }

    /// Whether nothing is admitted.
    pub(crate) fn is_suspended(&self) -> bool {
        self.suspended.load(Ordering::Acquire) || self.revocations().stale().is_some()
    }

    /// The time window.
    #[must_use]
    pub fn window(&self) -> Window {
        self.window
    }

    /// Waits for this message's turn, if its key is an Ed25519 key.
    ///
    /// An Ed25519 check costs about 45 times as much as an HMAC check (our measurement), and anyone who knows a key id can
    /// cause one. So each owner has its own bound: 2 checks at a time and 64 waiting. A flood in one agent's name then
    /// delays that agent, not the others; and it must come on that agent's own subjects, so a broker that confines agents
    /// to their own subjects prevents it. A message that [`Verifier::authenticate`] refuses without a check does not wait.
    ///
    /// # Errors
    /// [`AuthError::VerificationQueueFull`] if 64 are already waiting.
    ///
    /// Cancel safe: a dropped future gives its place back.
    pub async fn verify_permit(&self, envelope: &Envelope) -> Result<VerifyPermit, AuthError> {
        self.permit(&envelope.agent, &envelope.proof.header).await
    }

    /// Forgets the state of agents that have been quiet.
    pub(crate) fn tidy(&self) {
        self.limiter.tidy();
    }

    async fn permit(&self, agent: &Name, header: &crate::wire::ProofHeader) -> Result<VerifyPermit, AuthError> {
        if header.algorithm == ProofAlgorithm::Hs256 {
            return Ok(VerifyPermit::free());
        }
        let is_checked = self
            .keys
            .load()
            .ring
            .find(&header.kid)
            .is_some_and(|record| record.algorithm() == ProofAlgorithm::EdDsa && record.owner == *agent);
        if !is_checked {
            return Ok(VerifyPermit::free());
        }
        self.limiter.wait(agent).await.map_err(|VerificationQueueFull| AuthError::VerificationQueueFull)
    }

    /// Judges everything that does not depend on earlier messages: key, signature, claims, window, token.
    ///
    /// A pure function of the message, the keys and `now_s` (whole seconds since the Unix epoch).
    ///
    /// # Errors
    /// [`RejectedMessage`] with the first rule that the message breaks.
    pub fn authenticate(&self, envelope: Envelope, now_s: u64) -> Result<Authentic, Box<RejectedMessage>> {
        let Envelope { subject, agent, method, reply, token, proof, payload, received } = envelope;
        let keys = self.keys.load();
        let unknown = |error, reply| Box::new(RejectedMessage { error, claimed: agent.clone(), binding: None, reply });

        let record = match self
            .proved_by(&keys.ring, &agent, &proof.header, now_s, || (proof.signing_input(), proof.signature.as_ref()))
        {
            Ok(record) => record,
            Err(error) => return Err(unknown(error, reply)),
        };

        // From here on the claims are known to be what the key's owner signed.
        let mut room = [0; USUAL_CLAIMS];
        let (claims, nonce) = match ProofClaims::parse(proof.claims(), &mut room) {
            Ok(parsed) => parsed,
            Err(error) => return Err(unknown(AuthError::Proof(error), reply)),
        };
        let reply_text = reply.as_ref().map_or("", ReplyTo::as_str);
        if let Err(error) = self.check_address(&claims, &subject, reply_text) {
            return Err(unknown(error, reply));
        }
        // A copy kept for longer than clocks differ is not worth a signature, and says nothing about the key.
        if self.is_long_expired(&claims, now_s) {
            return Err(unknown(AuthError::Expired, reply));
        }
        // The window comes before the digests, so that a copy of an old message costs the same however large it is. The
        // digests come before the signed answer to a fresh message.
        let presented = self.check_window(&claims, now_s).map(|()| self.tokens.present(&token));
        if let Ok(presented) = &presented
            && let Err(error) = check_digests(&claims, presented.digest(), &payload)
        {
            return Err(unknown(error, reply));
        }

        // The proof is genuine, so even a refusal is signed.
        let binding = reply.map(|reply| {
            let key = match (&record.key, &keys.service) {
                (RecordKey::Ed25519 { .. }, Some(service)) => ReplyKey::Service(Arc::clone(service)),
                (RecordKey::Hmac(key), _) => ReplyKey::Hmac { kid: Arc::clone(&record.kid), key: Arc::clone(key) },
                // INVARIANT: `Keys::new` refuses an Ed25519 record without a service key. The all-zero key, which nobody
                // else uses, makes an answer that no client accepts.
                (RecordKey::Ed25519 { .. }, None) => {
                    ReplyKey::Hmac { kid: Arc::clone(&record.kid), key: Arc::new(self.decoy.clone()) }
                }
            };
            Binding::new(reply, self.audience.clone(), &proof.text, key)
        });
        let presented = match presented {
            Ok(presented) => presented,
            Err(staleness) => {
                let error = AuthError::Stale(staleness);
                return Err(Box::new(RejectedMessage { error, claimed: agent, binding, reply: None }));
            }
        };
        match self.check_token(&token, presented, &record, now_s) {
            Ok(access) => match self.revokes_service(now_s) {
                Some(kind) => {
                    let error = AuthError::Revoked(kind);
                    Err(Box::new(RejectedMessage { error, claimed: agent, binding, reply: None }))
                }
                None => Ok(Authentic {
                    received,
                    iat: claims.iat,
                    message: Verified {
                        caller: access.caller(&agent, &record.kid, record.algorithm()),
                        payload,
                        subject,
                        proof: proof.text,
                        subject_method: method,
                        deadline_ms: claims.deadline_ms(),
                        expires_at: claims.exp,
                        idempotency_key: claims.idk,
                        nonce,
                        window: claims.win,
                        traceparent: claims.tp,
                        capabilities: claims.cap,
                        task_ms: claims.det,
                        issued_at: claims.iat,
                        token: ShownToken { token: access, key: record },
                        binding,
                    },
                }),
            },
            // With a wrong token the caller stays unknown: the same unsigned answer as for any earlier failure.
            Err(error) => Err(Box::new(RejectedMessage {
                error,
                claimed: agent,
                reply: binding.map(Binding::into_reply),
                binding: None,
            })),
        }
    }

    /// Whether this message is known to have been admitted. `false` means nothing: only [`Verifier::admit`] decides.
    #[must_use]
    pub(crate) fn has_seen(&self, authentic: &Authentic) -> bool {
        self.guard.has_seen(&authentic.message.caller.agent, &authentic.message.nonce)
    }

    /// Burns the nonce: here, never earlier and never later.
    ///
    /// # Errors
    /// [`RejectedMessage`] with [`AuthError::Guard`] or [`AuthError::Suspended`].
    ///
    /// Not undone by cancellation: if the future is dropped, the nonce may be burnt all the same.
    pub async fn admit(&self, authentic: Authentic) -> Result<Verified, Box<RejectedMessage>> {
        let Authentic { message, received, iat } = authentic;
        let admitted = if self.is_suspended() {
            Err(AuthError::Suspended)
        } else {
            let admitted =
                self.guard.admit(&message.caller.agent, message.nonce, iat, message.expires_at, received).await;
            admitted.map_err(AuthError::Guard)
        };
        match admitted {
            Ok(()) => Ok(message),
            Err(error) => Err(Box::new(RejectedMessage {
                error,
                claimed: message.caller.agent.clone(),
                binding: message.binding,
                reply: None,
            })),
        }
    }

    /// The steps "record" and "MAC".
    fn proved_by<'m>(
        &self,
        ring: &KeyRing,
        agent: &Name,
        header: &crate::wire::ProofHeader,
        now_s: u64,
        signed: impl Fn() -> (&'m [u8], &'m [u8]),
    ) -> Result<Arc<KeyRecord>, AuthError> {
        let (input, signature) = signed();
        let judged = match ring.find(&header.kid) {
            None => Err(AuthError::Key),
            Some(record) if !record.is_usable(now_s) => Err(AuthError::Key),
            Some(record) if self.tokens.denylist().denies_key(&record.kid) => Err(AuthError::KeyRevoked),
            Some(record) if record.algorithm() != header.algorithm => Err(AuthError::Algorithm),
            Some(record) if record.owner != *agent => Err(AuthError::KeyAgentMismatch),
            Some(record) => match self.revocations().revokes(names_of(record), now_s) {
                Some(kind) => Err(AuthError::Revoked(kind)),
                None => Ok(record),
            },
        };
        let record = match judged {
            Ok(record) => record,
            Err(error) => {
                // The same work as for a known HMAC key; see `decoy`.
                std::hint::black_box(self.decoy.verify(input, signature));
                return Err(error);
            }
        };
        let holds = match &record.key {
            RecordKey::Hmac(key) => key.verify(input, signature),
            RecordKey::Ed25519 { public, .. } => public.verify(input, signature),
        };
        if holds { Ok(Arc::clone(record)) } else { Err(AuthError::Signature) }
    }

    /// Whether this message, as it arrived, is addressed to us; needs nothing but the proof's claims and the subjects.
    fn check_address(&self, claims: &ProofClaims<Cow<'_, str>>, subject: &str, reply: &str) -> Result<(), AuthError> {
        if claims.aud != self.audience.as_str() {
            return Err(AuthError::Mismatch("aud"));
        }
        if claims.to != subject {
            return Err(AuthError::Mismatch("to"));
        }
        if claims.rto != reply {
            return Err(AuthError::Mismatch("rto"));
        }
        // With a window wider than ours, a message would outlive the guard's memory.
        let lifetime_s = claims.exp.saturating_sub(claims.iat);
        if !(1..=self.window.window_s).contains(&lifetime_s) {
            let window_s = self.window.window_s;
            return Err(AuthError::Proof(ProofError::Lifetime { lifetime_s, window_s }));
        }
        Ok(())
    }

    /// Whether `exp` passed more than window and skew ago. Telling the time to a caller whose clock is that wrong does not
    /// help: it may correct its clock by the window at most.
    fn is_long_expired(&self, claims: &ProofClaims<Cow<'_, str>>, now_s: u64) -> bool {
        now_s > claims.exp.saturating_add(self.window.window_s).saturating_add(self.window.skew_s)
    }

    /// A fence that lies ahead, or that was passed so recently that a caller's clock may still be behind it, is left to the guard: it is not
    /// this message's fault.
    fn check_window(&self, claims: &ProofClaims<Cow<'_, str>>, now_s: u64) -> Result<(), Staleness> {
        let fence = self.guard.fence();
        if now_s >= claims.exp {
            Err(Staleness::Expired)
        } else if claims.iat > now_s.saturating_add(self.window.skew_s) {
            Err(Staleness::Future)
        } else if claims.iat <= fence && self.window.fenced_s(claims.iat, now_s, fence).is_none() {
            Err(Staleness::BeforeFence)
        } else {
            Ok(())
        }
    }

    fn check_token(
        &self,
        token: &[u8],
        presented: PresentedToken,
        record: &KeyRecord,
        now_s: u64,
    ) -> Result<Arc<VerifiedToken>, AuthError> {
        let verified = self.tokens.judge(token, presented, now_s)?;
        check_owner(&verified.token, record)?;
        Ok(verified)
    }
}

/// Whether the token belongs to the owner of this key, and to this key if it names one.
fn check_owner(token: &AccessToken, record: &KeyRecord) -> Result<(), AuthError> {
    if token.owner() != record.owner.as_str() {
        return Err(AuthError::TokenAgentMismatch);
    }
    if let Some(confirmation) = &token.cnf {
        // Every member that is present must match this key (RFC 7800 §3).
        let kid_holds = confirmation.kid.as_deref().is_none_or(|kid| kid == &*record.kid);
        let thumbprint_holds = confirmation.jkt.as_deref().is_none_or(|jkt| record.thumbprint() == Some(jkt));
        if !kid_holds || !thumbprint_holds {
            return Err(AuthError::Confirmation);
        }
    }
    Ok(())
}

/// What an operator can have revoked of a key.
fn names_of(record: &KeyRecord) -> [(Kind, &str); 2] {
    [(Kind::Agent, record.owner.as_str()), (Kind::Key, &record.kid)]
}

/// Whether the token and payload are those that the proof was made for. They are hashed only now, so that without a key
/// and a fresh message, the cost of a message does not grow with its size.
fn check_digests(claims: &ProofClaims<Cow<'_, str>>, token_digest: &[u8; 32], payload: &[u8]) -> Result<(), AuthError> {
    if claims.ath.as_bytes() != b64_digest(token_digest) {
        return Err(AuthError::Mismatch("ath"));
    }
    if claims.dig.as_bytes() != b64_digest(&sha256(payload)) {
        return Err(AuthError::Mismatch("dig"));
    }
    Ok(())
}

/// The ring has Ed25519 keys, and there is no service key under which to answer their requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the key ring has Ed25519 keys, whose requests are answered under a service key: make one with `sealwire keys new-service`"
)]
pub struct ServiceKeyMissing;

impl Keys {
    fn new(ring: KeyRing, service: Option<Arc<ServiceKey>>) -> Result<Self, ServiceKeyMissing> {
        if ring.needs_service_key() && service.is_none() {
            return Err(ServiceKeyMissing);
        }
        Ok(Self { ring, service })
    }
}
