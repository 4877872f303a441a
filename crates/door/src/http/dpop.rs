//! DPoP (RFC 9449): proofs that callers have the key their token is bound to, each valid for one request, now, and once.
//! Never believes what a request says about its own address, and never accepts a proof before its token was verified.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hyper::Uri;
use hyper::header::HeaderName;
use hyper::http::request::Parts;
use sealwire::auth::{AdmitError, DpopProof};
use sealwire::{Clock as _, SystemClock};

use super::gate::single;
use super::refusal::Refusal;
use super::replicas::FromReplica;
use crate::once::{Dated, LIFE_S, Once};
use crate::{once, seal};

/// Checks proofs.
#[derive(Debug)]
pub(super) struct Proofs {
    seal: seal::Seal,
    once: Arc<Once>,
    /// Where callers find the door.
    at: Address,
}

/// Why a request is not proved.
#[derive(Debug)]
pub(super) enum Unproved {
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
    /// For requests to the door at this address; `None` if the address is not valid.
    pub(super) fn new(url: &str, seal: seal::Seal, once: Arc<Once>) -> Option<Self> {
        Some(Self { seal, once, at: Address::of(url)? })
    }

    /// Checks that the sender of this request has the key with this thumbprint. Uses up the proof.
    pub(super) async fn judge(
        &self,
        head: &Parts,
        principal: &str,
        token: &[u8; 32],
        thumbprint: &str,
    ) -> Result<(), Unproved> {
        let text = single(&head.headers, &PROOF).map_err(Unproved::Refused)?;
        let proof = text.ok_or(Unproved::Invalid("a proof is required"))?;
        let proof = DpopProof::read(proof, thumbprint).map_err(|error| {
            tracing::info!(target: "sealwire::door", caller = principal, %error, "a proof was refused");
            Unproved::Invalid("the proof is not valid")
        })?;
        if proof.method != head.method.as_str() {
            return Err(Unproved::Invalid("the proof is for another method"));
        }
        let is_here = |at: Address| {
            let Address { scheme, host, port, .. } = &self.at;
            at.scheme == *scheme && at.host == *host && at.port == *port && at.path == head.uri.path()
        };
        if !Address::of(&proof.uri).is_some_and(is_here) {
            return Err(Unproved::Invalid("the proof is for another address"));
        }
        if proof.token_digest.is_none_or(|digest| digest != URL_SAFE_NO_PAD.encode(token)) {
            return Err(Unproved::Invalid("the proof is for another token"));
        }
        let dated = match &proof.nonce {
            None => Dated::ByCaller(proof.issued_at),
            Some(nonce) => match self.seal.open(seal::Kind::DpopNonce, thumbprint, nonce, SystemTime::now()) {
                Some(at) => Dated::Here(at),
                None => return Err(self.nonce(thumbprint)),
            },
        };
        let value = format!("{thumbprint} {}", proof.id);
        // Another replica has used it up in the shared memory and forwarded the request. That claim is checked once the body has arrived.
        let is_handed = head.extensions.get::<FromReplica>().is_some();
        let at = if is_handed { once::At::ThisReplica } else { once::At::Door };
        match self.once.spend(at, once::Kind::DpopProof, principal, &value, dated).await {
            Ok(()) => Ok(()),
            Err(AdmitError::Replayed) => Err(Unproved::Invalid("the proof was used before")),
            Err(AdmitError::Stale) => Err(self.nonce(thumbprint)),
            Err(AdmitError::OwnerFull { retry_after_ms }) => {
                let wait_s = retry_after_ms.div_ceil(1_000);
                Err(Unproved::Refused(Refusal::quota("too many proofs of this caller", wait_s)))
            }
            Err(error) => {
                tracing::warn!(target: "sealwire::door", %error, "proofs cannot be checked");
                Err(Unproved::Refused(Refusal::unavailable("proofs cannot be checked now: try again")))
            }
        }
    }

    /// RFC 9449 §9: a proof with this nonce is dated by the door's own clock.
    fn nonce(&self, thumbprint: &str) -> Unproved {
        let (life, now_s) = (Duration::from_secs(LIFE_S), SystemClock.now_s());
        match self.seal.seal(seal::Kind::DpopNonce, thumbprint, life, now_s, SystemTime::now()) {
            Ok(nonce) => Unproved::Nonce(nonce),
            Err(_) => Unproved::Refused(Refusal::unavailable("proofs cannot be checked now: try again")),
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
            // With user information before the host, this is not the address of a door.
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
        let here = Address::of("https://door.example/rpc/demo");
        assert!(here.is_some());
        for same in ["HTTPS://Door.Example:443/rpc/demo", "https://door.example/rpc/demo?a=b#c"] {
            assert_eq!(Address::of(same), here, "{same}");
        }
        for other in [
            "http://door.example/rpc/demo",
            "https://door.example:8443/rpc/demo",
            "https://door.example/rpc/demo/",
            "https://door.example/rpc/Demo",
            "https://door.example/rpc/%64emo",
            "https://door.example/rpc/../rpc/demo",
            "https://door.example.evil.example/rpc/demo",
            "https://ann@door.example/rpc/demo",
            "https://door.example@evil.example/rpc/demo",
            "https://door.example:/rpc/demo",
            "https://door.example:99999/rpc/demo",
            "wss://door.example/rpc/demo",
            "//door.example/rpc/demo",
            "/rpc/demo",
            "door.example",
            "",
        ] {
            assert_ne!(Address::of(other), here, "{other}");
        }
        assert_eq!(Address::of("http://door.example"), Address::of("http://door.example:80/"));
    }
}
