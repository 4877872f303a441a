//! DPoP (RFC 9449): proofs that callers have the key their token is bound to, each valid for one request, now, and once.
//! Never believes what a request says about its own address, and never accepts a proof before its token was verified.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hyper::Uri;
use hyper::header::HeaderName;
use hyper::http::request::Parts;
use sealwire::internal::auth::{AdmitError, DpopProof};
use sealwire::{Clock as _, SystemClock};

use crate::http::fields::single;
use crate::http::head::{self, FromReplica};
use crate::http::refusal::Refusal;
use crate::once::{IssuedAt, LIFE_S, Once};
use crate::{once, seal};

/// Checks proofs.
#[derive(Debug)]
pub(super) struct Proofs {
    seal: seal::Seal,
    once: Arc<Once>,
    /// Where callers find the gateway.
    at: Address,
}

/// Why a request is not proved.
#[derive(Debug)]
pub(super) enum ProofError {
    /// The proof is not valid; why.
    Invalid(&'static str),
    /// The proof's time does not fit by the caller's clock: the next one needs this nonce.
    Nonce(String),
    /// The proof may be valid, but cannot be checked or counted now.
    Refused(Refusal),
}

/// An address without query and fragment, normalized (RFC 3986 §6.2.2, §6.2.3).
#[derive(Debug, PartialEq, Eq)]
struct Address {
    scheme: String,
    host: String,
    port: u16,
    path: String,
}

/// The header with the proof.
pub(super) const PROOF: HeaderName = HeaderName::from_static("dpop");
/// The header with the nonce for the next proof.
pub(super) const NONCE: HeaderName = HeaderName::from_static("dpop-nonce");

impl Proofs {
    /// For requests to the gateway at this address; `None` if the address is not valid.
    pub(super) fn new(url: &str, seal: seal::Seal, once: Arc<Once>) -> Option<Self> {
        Some(Self { seal, once, at: Address::of(url)? })
    }

    /// Checks that the sender of this request has the key with this thumbprint. Uses up the proof.
    pub(super) async fn check(
        &self,
        head: &Parts,
        principal: &str,
        token: &[u8; 32],
        thumbprint: &str,
    ) -> Result<(), ProofError> {
        let text = single(&head.headers, &PROOF).map_err(ProofError::Refused)?;
        let proof = text.ok_or(ProofError::Invalid("a proof is required"))?;
        let proof = DpopProof::read(proof, thumbprint).map_err(|error| {
            tracing::debug!(target: "sealwire::gateway", caller = principal, %error, "a proof was refused");
            ProofError::Invalid("the proof is not valid")
        })?;
        if proof.method != head.method.as_str() {
            return Err(ProofError::Invalid("the proof is for another method"));
        }
        let is_here = |at: Address| {
            let Address { scheme, host, port, .. } = &self.at;
            at.scheme == *scheme && at.host == *host && at.port == *port && at.path == head::written_path(head)
        };
        if !Address::of(&proof.uri).is_some_and(is_here) {
            return Err(ProofError::Invalid("the proof is for another address"));
        }
        if proof.token_digest.is_none_or(|digest| digest != URL_SAFE_NO_PAD.encode(token)) {
            return Err(ProofError::Invalid("the proof is for another token"));
        }
        let dated = match &proof.nonce {
            None => IssuedAt::ByCaller(proof.issued_at, proof.issued_by),
            Some(nonce) => match self.seal.open(seal::Kind::DpopNonce, thumbprint, nonce, SystemTime::now()) {
                Some(at) => IssuedAt::Here(at),
                None => return Err(self.nonce(thumbprint)),
            },
        };
        let value = format!("{thumbprint} {}", proof.id);
        // Another replica has used it up in the shared memory and forwarded the request. That claim is checked once the body has arrived.
        let is_handed = head.extensions.get::<FromReplica>().is_some();
        let at = if is_handed { once::ReplayScope::ThisReplica } else { once::ReplayScope::Gateway };
        match self.once.spend(at, once::Kind::DpopProof, principal, &value, dated).await {
            Ok(()) => Ok(()),
            Err(AdmitError::Replayed) => Err(ProofError::Invalid("the proof was used before")),
            Err(AdmitError::Stale) => Err(self.nonce(thumbprint)),
            Err(AdmitError::OwnerFull { retry_after_ms }) => {
                let wait_s = retry_after_ms.div_ceil(1_000);
                Err(ProofError::Refused(Refusal::quota("too many proofs of this caller", wait_s)))
            }
            Err(error) => {
                tracing::warn!(target: "sealwire::gateway", %error, "proofs cannot be checked");
                Err(ProofError::Refused(Refusal::unavailable("proofs cannot be checked now: try again")))
            }
        }
    }

    /// RFC 9449 §9: a proof with this nonce is dated by the gateway's own clock.
    fn nonce(&self, thumbprint: &str) -> ProofError {
        let (life, now_s) = (Duration::from_secs(LIFE_S), SystemClock.now_s());
        match self.seal.seal(seal::Kind::DpopNonce, thumbprint, life, now_s, SystemTime::now()) {
            Ok(nonce) => ProofError::Nonce(nonce),
            Err(_) => ProofError::Refused(Refusal::unavailable("proofs cannot be checked now: try again")),
        }
    }
}

impl Address {
    fn of(text: &str) -> Option<Self> {
        let uri: Uri = text.parse().ok()?;
        let (scheme, authority) = (uri.scheme_str()?.to_ascii_lowercase(), uri.authority()?);
        let usual = match scheme.as_str() {
            "https" => 443,
            "http" => 80,
            _ => return None,
        };
        let host = authority.host().to_ascii_lowercase();
        let port = match authority.as_str().get(authority.host().len()..)? {
            "" => usual,
            // With user information before the host, this is not the address of a gateway.
            rest => rest.strip_prefix(':')?.parse().ok()?,
        };
        Some(Self { scheme, host, port, path: uri.path().to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_mean_the_same_are_the_same_and_no_others() {
        let here = Address::of("https://gateway.example/rpc/demo");
        assert!(here.is_some());
        for same in ["HTTPS://Gateway.Example:443/rpc/demo", "https://gateway.example/rpc/demo?a=b#c"] {
            assert_eq!(Address::of(same), here, "{same}");
        }
        for other in [
            "http://gateway.example/rpc/demo",
            "https://gateway.example:8443/rpc/demo",
            "https://gateway.example/rpc/demo/",
            "https://gateway.example/rpc/Demo",
            "https://gateway.example/rpc/%64emo",
            "https://gateway.example/rpc/../rpc/demo",
            "https://gateway.example.evil.example/rpc/demo",
            "https://ann@gateway.example/rpc/demo",
            "https://gateway.example@evil.example/rpc/demo",
            "https://gateway.example:/rpc/demo",
            "https://gateway.example:99999/rpc/demo",
            "wss://gateway.example/rpc/demo",
            "//gateway.example/rpc/demo",
            "/rpc/demo",
            "gateway.example",
            "",
        ] {
            assert_ne!(Address::of(other), here, "{other}");
        }
        assert_eq!(Address::of("http://gateway.example"), Address::of("http://gateway.example:80/"));
    }
}
