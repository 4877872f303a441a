//! Who may control a call under way, and whether its caller may still be answered.
//! Never asks the replay guard: the call's own counter shows what was done before.

use std::sync::Arc;

use bytes::Bytes;

use super::{AuthError, ShownToken, Staleness, Verifier, VerifyPermit, names_of};
use crate::auth::Caller;
use crate::auth::keyring::KeyRecord;
use crate::auth::revocation::{Kind, Revocations};
use crate::jose::{b64_digest, sha256};
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
        // Only an answer has content. What else would be signed there means nothing to anybody.
        if !payload.is_empty() && !matches!(claims.op, ControlOp::Answer { .. }) {
            return Err(AuthError::Proof(ProofError::Claim("op")));
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
        let token = ShownToken { token: access, key: record };
        Ok(Control { caller, token, op, counter: ctr, issued_at: iat, payload })
    }

    /// What operators have revoked of a call under way: its keys and tokens, its method, the service, or everything.
    pub(crate) fn revokes(
        &self,
        began: &ShownToken,
        shown: &ShownToken,
        method: Option<&str>,
        now_s: u64,
    ) -> Option<Kind> {
        let of_caller =
            [began, shown].into_iter().flat_map(|it| names_of(&it.key).into_iter().chain(it.token.token.names()));
        let of_call = method.map(|method| (Kind::Method, method));
        let all =
            [Revocations::ALL, (Kind::Service, self.service.as_str())].into_iter().chain(of_call).chain(of_caller);
        self.revocations().revokes(all, now_s)
    }

    /// Whether a call may go on: the key of the request that `began` it, which also signs or names what is answered, and the token that was
    /// `shown` last and its key still hold and are not revoked.
    ///
    /// # Errors
    /// [`AuthError`]: the call must end.
    pub(crate) fn check_again(&self, began: &ShownToken, shown: &ShownToken, now_s: u64) -> Result<(), AuthError> {
        for shown in [began, shown] {
            self.check_key(&shown.key, now_s)?;
        }
        let token = shown.token.text().as_bytes();
        self.check_token(token, self.tokens.present(token), &shown.key, now_s)?;
        Ok(())
    }

    /// Whether a call may go on for which nobody shows a new token: its key still holds, and neither that nor the token, whose time may be
    /// over, is revoked.
    ///
    /// # Errors
    /// [`AuthError`]: the call must end.
    pub(crate) fn check_kept(&self, began: &ShownToken, now_s: u64) -> Result<(), AuthError> {
        self.check_key(&began.key, now_s)?;
        self.tokens.validate_revocation(&began.token.token, now_s)?;
        Ok(())
    }

    fn check_key(&self, key: &KeyRecord, now_s: u64) -> Result<(), AuthError> {
        let KeyRecord { kid, owner, .. } = key;
        match self.keys.load().ring.find(kid) {
            Some(_) if self.tokens.denylist().denies_key(kid) => Err(AuthError::KeyRevoked),
            Some(record) if record.is_usable(now_s) && record.owner == *owner && record.has_key_of(key) => Ok(()),
            _ => Err(AuthError::Key),
        }
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
