//! The outer form of a token: three parts, and a header with exactly `alg`, `kid` and `typ`.
//! Never looks a key up and never reads the claims of a token that is to be trusted.

use serde_json::{Map, Value};

use super::json::{self, JsonFault};
use super::{MAX_TOKEN_LEN, TokenError};
use crate::auth::jwk;

/// A token taken apart. Nothing in it is trusted yet.
#[derive(Debug)]
pub(super) struct Compact<'a> {
    pub(super) header: Header,
    /// The text that the signature covers: header, dot, claims.
    pub(super) signed: &'a str,
    /// The signature as text; canonical base64url.
    pub(super) signature: &'a str,
    claims: Vec<u8>,
}

/// The header's members, all of them required.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) alg: String,
    pub(super) kid: String,
    pub(super) typ: String,
}

impl<'a> Compact<'a> {
    pub(super) fn parse(token: &'a str) -> Result<Self, TokenError> {
        let Parts { signed, header, claims, signature } = Parts::split(token)?;
        let claims = jwk::decode(claims).ok_or(TokenError::Encoding("claims part"))?;
        jwk::decode(signature).ok_or(TokenError::Encoding("signature"))?;
        let header = Header::parse(&jwk::decode(header).ok_or(TokenError::Encoding("header"))?)?;
        Ok(Self { header, signed, signature, claims })
    }

    /// The claims as a strict object. To be called once the signature holds.
    pub(super) fn claims(&self) -> Result<Map<String, Value>, TokenError> {
        json::object(&self.claims).map_err(TokenError::ClaimsJson)
    }
}

impl Header {
    fn parse(text: &[u8]) -> Result<Self, TokenError> {
        let mut members = json::object(text).map_err(TokenError::HeaderJson)?;
        // A closed set is stricter than a list of dangerous names, and covers them all: `crit` (RFC 7515 §4.1.11 would
        // have us refuse what we do not understand), `jwk`, `jku`, `x5u` and `x5c` (keys from the message), `zip`,
        // `enc`, `b64` (another reading of the same text).
        if let Some(foreign) = members.keys().find(|name| !matches!(name.as_str(), "alg" | "kid" | "typ")) {
            return Err(TokenError::HeaderMember(foreign.clone()));
        }
        let mut text = |name: &'static str| match members.remove(name) {
            Some(Value::String(value)) => Ok(value),
            _ => Err(TokenError::HeaderText(name)),
        };
        let header = Self { alg: text("alg")?, kid: text("kid")?, typ: text("typ")? };
        if !is_key_id(&header.kid) {
            return Err(TokenError::KeyId(header.kid));
        }
        Ok(header)
    }
}

/// The grammar of an issuer's `kid`: 1 to 64 of `[A-Za-z0-9._:-]`. No slash, no space: it can be no path and no URL.
pub(super) fn is_key_id(kid: &str) -> bool {
    (1..=64).contains(&kid.len()) && kid.bytes().all(|b| b.is_ascii_alphanumeric() || b"._:-".contains(&b))
}

struct Parts<'a> {
    signed: &'a str,
    header: &'a str,
    claims: &'a str,
    signature: &'a str,
}

impl<'a> Parts<'a> {
    fn split(token: &'a str) -> Result<Self, TokenError> {
        if token.len() > MAX_TOKEN_LEN {
            return Err(TokenError::TooLong);
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(TokenError::Parts)?;
        let (header, claims) = signed.split_once('.').ok_or(TokenError::Parts)?;
        if claims.contains('.') || header.is_empty() || claims.is_empty() || signature.is_empty() {
            return Err(TokenError::Parts);
        }
        Ok(Self { signed, header, claims, signature })
    }
}

/// What a token says, with nothing checked: neither signature, nor time, nor audience, nor issuer.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Untrusted {
    /// The header's members.
    pub header: Map<String, Value>,
    /// The claims.
    pub claims: Map<String, Value>,
}

/// Shows what a token says, for people who debug one. **Nothing is verified**: never decide anything on the result.
///
/// # Errors
/// [`TokenError::TooLong`], [`TokenError::Parts`], [`TokenError::Encoding`], [`TokenError::HeaderJson`] and
/// [`TokenError::ClaimsJson`]: the text is not a token at all.
pub fn decode_untrusted(token: &str) -> Result<Untrusted, TokenError> {
    let Parts { header, claims, signature, .. } = Parts::split(token)?;
    jwk::decode(signature).ok_or(TokenError::Encoding("signature"))?;
    let object = |part: &str, name, fault: fn(JsonFault) -> TokenError| {
        json::object(&jwk::decode(part).ok_or(TokenError::Encoding(name))?).map_err(fault)
    };
    Ok(Untrusted {
        header: object(header, "header", TokenError::HeaderJson)?,
        claims: object(claims, "claims part", TokenError::ClaimsJson)?,
    })
}
