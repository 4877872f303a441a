//! What an eavesdropper can read of a frame or a control message: everything but the key.
//! Never vouches that anything is genuine.

use async_nats::Message;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nkeys::KeyPair;
use sealwire::internal::wire::ControlClaims;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::error::{Blame, LabError, OrFail as _};

/// A frame, as its proof describes it.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) seq: u64,
    kind: String,
    header: String,
    claims: Value,
}

/// The header that contains the signature of answers and frames.
pub(super) const INFO: &str = "Authentication-Info";

impl Frame {
    /// The frame in a raw message of the NATS protocol. A beat does not count: it carries another frame's number.
    pub(super) fn in_text(message: &str) -> Option<Self> {
        let value = message.split_once(&format!("\r\n{INFO}: "))?.1.split("\r\n").next()?;
        Self::signed(value).filter(|frame| frame.kind != "beat")
    }

    /// The frame in a message whose payload contains this text.
    pub(super) fn with(message: &Message, text: &str) -> Option<Self> {
        let value = message.headers.as_ref()?.get(INFO)?;
        String::from_utf8_lossy(&message.payload).contains(text).then(|| Self::signed(value.as_str()))?
    }

    /// The frame that has this signature header.
    fn signed(value: &str) -> Option<Self> {
        let (header, rest) = value.strip_prefix("NatsRpc ")?.split_once('.')?;
        let claims = claims(rest.split('.').next()?)?;
        let (seq, kind) = (claims.get("seq")?.as_u64()?, claims.get("knd")?.as_str()?.to_owned());
        Some(Self { seq, kind, header: header.to_owned(), claims })
    }

    /// The digest of the proof of the request that it belongs to.
    pub(super) fn request(&self) -> &str {
        self.claims.get("req").and_then(Value::as_str).unwrap_or_default()
    }

    pub(super) fn is_on(&self, subject: &str) -> bool {
        self.claims.get("to").is_some_and(|to| to == subject)
    }

    pub(super) fn is_end(&self) -> bool {
        self.kind == "end"
    }

    /// A forged signature header: for the next frame, with another payload, the same key id and a new key.
    pub(super) fn forged(&self, payload: &[u8]) -> Result<String, LabError> {
        let mut claims = self.claims.clone();
        if let Some(claims) = claims.as_object_mut() {
            claims.insert("seq".to_owned(), json!(self.seq + 1));
            claims.insert("dig".to_owned(), json!(digest(payload)));
        }
        let input = format!("{}.{}", self.header, URL_SAFE_NO_PAD.encode(claims.to_string()));
        let signature = KeyPair::new_user().sign(input.as_bytes()).or_fail(Blame::Bug)?;
        Ok(format!("NatsRpc {input}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

/// The proof of a control message.
pub(super) fn proof_of_control(message: &Message) -> &str {
    let value = message.headers.as_ref().and_then(|headers| headers.get("Authorization"));
    value.and_then(|value| value.as_str().rsplit_once('~')).map_or("", |(_, proof)| proof)
}

/// The claims of a control message.
pub(super) fn control_claims(message: &Message) -> Option<ControlClaims> {
    serde_json::from_value(claims(proof_of_control(message).split('.').nth(1)?)?).ok()
}

fn claims(part: &str) -> Option<Value> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).ok()?).ok()
}

/// base64url(SHA-256(bytes)).
pub(super) fn digest(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(Sha256::digest(bytes))
}
