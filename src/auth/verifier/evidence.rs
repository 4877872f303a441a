//! Whether a signed message that was kept still proves what it says: who signed it, and when.
//! Never admits anything. What is judged here was admitted when it arrived, and proves an act, not a call.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{AuthError, Staleness, Verified, Verifier, check_digests, check_owner};
use crate::auth::Caller;
use crate::auth::revocation::Kind;
use crate::jose::sha256;
use crate::wire::{
    AUTHORIZATION, Delivery, Endpoint, Envelope, HeaderBlock, ProofAlgorithm, ProofClaims, ProofError, SCHEME,
    USUAL_CLAIMS,
};

/// A message as its sender signed it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Evidence {
    subject: String,
    authorization: String,
    payload: String,
}

/// Omits the token.
impl std::fmt::Debug for Evidence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Evidence").field("subject", &self.subject).finish_non_exhaustive()
    }
}

impl Evidence {
    /// Keeps a message under an Ed25519 key whose text has at most `most` bytes. `None` for any other: whoever verifies a message under
    /// a shared key could have made it.
    pub(crate) fn of(message: &Verified, most: usize) -> Option<Self> {
        if message.caller.algorithm != ProofAlgorithm::EdDsa || message.payload.len() > most {
            return None;
        }
        let text = |bytes: &Bytes| std::str::from_utf8(bytes).ok().map(str::to_owned);
        let authorization = format!("{SCHEME} {}~{}", message.token.token.text(), text(&message.proof)?);
        Some(Self { subject: message.subject.clone(), authorization, payload: text(&message.payload)? })
    }

    /// The message's body.
    pub(crate) fn payload(&self) -> &str {
        &self.payload
    }
}

impl Verifier {
    /// Judges a kept message: who signed it, and when, in seconds since the Unix epoch.
    ///
    /// Its key must be usable when it was signed and now, its token must have been valid then, and nothing of them may be revoked now.
    /// `method` is what it called.
    ///
    /// # Errors
    /// [`AuthError`]: it no longer proves anything, at least not to this replica.
    pub(crate) fn attest(
        &self,
        evidence: &Evidence,
        endpoint: &Endpoint,
        method: &str,
        now_s: u64,
    ) -> Result<(Caller, u64), AuthError> {
        let Evidence { subject, authorization, payload } = evidence;
        let headers = HeaderBlock::of(&[(AUTHORIZATION, authorization)]);
        let delivery = Delivery::new(subject, "", headers, payload.clone());
        let envelope = Envelope::decode(delivery, endpoint).map_err(|_| AuthError::Mismatch("to"))?;
        let Envelope { subject, agent, token, proof, payload, .. } = envelope;
        let keys = self.keys.load();
        let signed = || (proof.signing_input(), proof.signature.as_ref());
        let record = self.proved_by(&keys.ring, &agent, &proof.header, now_s, signed)?;
        if record.algorithm() != ProofAlgorithm::EdDsa {
            return Err(AuthError::Algorithm);
        }
        let mut room = [0; USUAL_CLAIMS];
        let (claims, _) = ProofClaims::parse(proof.claims(), &mut room).map_err(AuthError::Proof)?;
        // Where the answer went does not matter any more.
        let reply = claims.rto.to_string();
        self.check_address(&claims, &subject, &reply)?;
        if claims.iat > now_s.saturating_add(self.window.skew_s) {
            return Err(AuthError::Stale(Staleness::Future));
        }
        if !record.is_usable(claims.iat) {
            return Err(AuthError::Key);
        }
        check_digests(&claims, &sha256(&token), &payload)?;
        let token = std::str::from_utf8(&token).map_err(|_| AuthError::Proof(ProofError::Encoding))?;
        let token = self.tokens.judge_kept(token, claims.iat, now_s)?;
        check_owner(&token, &record)?;
        if let Some(kind) = self.revocations().revokes([(Kind::Method, method)], now_s) {
            return Err(AuthError::Revoked(kind));
        }
        Ok((token.caller(&agent, &record.kid, record.algorithm()), claims.iat))
    }
}
