//! Who may control a call under way, and whether its caller may still be answered.
//! Never asks the replay guard: the call's own counter shows what was done before.

use std::sync::Arc;

use bytes::Bytes;

use super::{AuthError, ShownToken, Staleness, Verifier, VerifyPermit};
use crate::auth::Caller;
use crate::jose::{b64_digest, sha256};
use crate::name::Name;
use crate::wire::{ControlClaims, ControlEnvelope, ControlOp, ProofError};

/// A control message from the caller of the call that it names.
#[derive(Debug)]
pub(crate) struct Control {
    /// The caller, according to this message's token.
    pub(crate) caller: Arc<Caller>,
    pub(crate) token: ShownToken,
    pub(crate) op: ControlOp,
    pub(crate) counter: u64,
    /// When it was signed, whole seconds since the Unix epoch.
    pub(crate) issued_at: u64,
    pub(crate) payload: Bytes,
}

impl Verifier {
    /// As [`Verifier::verify_permit`], for a control message.
    pub(crate) async fn verify_control_permit(&self, envelope: &ControlEnvelope) -> Result<VerifyPermit, AuthError> {
        self.permit(&envelope.agent, &envelope.proof.header).await
    }

    /// Judges a control message for the call that `of` began with the request whose proof has the digest `request`;
    /// `counter` is the highest counter that was accepted for that call.
    ///
    /// # Errors
    /// [`AuthError`] with the first rule that the message breaks. Nobody is told.
    pub(crate) fn authenticate_control(
        &self,
        envelope: ControlEnvelope,
        of: &Caller,
        request: &[u8; 32],
        counter: u64,
        now_s: u64,
    ) -> Result<Control, AuthError> {
        let ControlEnvelope { subject, agent, token, proof, payload } = envelope;
        let keys = self.keys.load();
        let record = self.proved_by(&keys.ring, &agent, &proof.header, now_s, || {
            (proof.signing_input(), proof.signature.as_ref())
        })?;
        let claims = ControlClaims::parse(proof.claims()).map_err(AuthError::Proof)?;
        if claims.aud != self.audience.as_str() {
            return Err(AuthError::Mismatch("aud"));
        }
        if claims.to != subject {
            return Err(AuthError::Mismatch("to"));
        }
        if claims.req.as_bytes() != b64_digest(request) {
            return Err(AuthError::Mismatch("req"));
        }
        let lifetime_s = claims.exp.saturating_sub(claims.iat);
        if !(1..=self.window.window_s).contains(&lifetime_s) {
            return Err(AuthError::Proof(ProofError::Lifetime { lifetime_s, window_s: self.window.window_s }));
        }
        if now_s >= claims.exp {
            return Err(AuthError::Stale(Staleness::Expired));
        }
        if claims.iat > now_s.saturating_add(self.window.skew_s) {
            return Err(AuthError::Stale(Staleness::Future));
        }
        let presented = self.tokens.present(&token);
        if claims.ath.as_bytes() != b64_digest(presented.digest()) {
            return Err(AuthError::Mismatch("ath"));
        }
        if claims.dig.as_bytes() != b64_digest(&sha256(&payload)) {
            return Err(AuthError::Mismatch("dig"));
        }
        let access = self.check_token(&token, presented, &record, now_s)?;
        let caller = access.caller(&agent, &record.kid, record.algorithm());
        if !is_the_same(&caller, of) {
            return Err(AuthError::TokenAgentMismatch);
        }
        if claims.ctr <= counter {
            return Err(AuthError::Mismatch("ctr"));
        }
        let ControlClaims { op, ctr, iat, .. } = claims;
        Ok(Control { caller, token: ShownToken(access), op, counter: ctr, issued_at: iat, payload })
    }

    /// Whether the key and the token that were presented at the start of a call, or since, still hold and are not
    /// revoked.
    ///
    /// # Errors
    /// [`AuthError`]: the call must end.
    pub(crate) fn check_again(
        &self,
        agent: &Name,
        kid: &str,
        token: &ShownToken,
        now_s: u64,
    ) -> Result<Arc<Caller>, AuthError> {
        let keys = self.keys.load();
        let record = match keys.ring.find(kid) {
            Some(_) if self.tokens.denylist().denies_key(kid) => return Err(AuthError::KeyRevoked),
            Some(record) if record.is_usable(now_s) && record.owner == *agent => record,
            _ => return Err(AuthError::Key),
        };
        let token = token.0.text().as_bytes();
        let access = self.check_token(token, self.tokens.present(token), record, now_s)?;
        Ok(access.caller(agent, &record.kid, record.algorithm()))
    }
}

/// Whether both act for the same caller: a call belongs to its caller, whomever else that caller's agent may act for.
fn is_the_same(one: &Caller, other: &Caller) -> bool {
    one.agent == other.agent
        && one.subject == other.subject
        && one.delegated == other.delegated
        && one.token.issuer == other.token.issuer
}

#[cfg(test)]
mod tests;
