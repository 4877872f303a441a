//! The outer form of a token: three parts, and a header with `alg`, `kid` and `typ`.
//! Never looks a key up and never reads the claims of a token that is to be trusted.

use serde::Deserialize;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use super::TokenError;
use super::json::{self, JsonFault};
use crate::jose::{b64, numeric_date, unb64};
use crate::settings::Setting;

/// A token split into its parts. Nothing in it is trusted yet.
#[derive(Debug)]
pub(super) struct Compact<'a> {
    pub(super) header: Header,
    /// The text that the signature covers: header, dot, claims.
    pub(super) signed: &'a str,
    /// The signature as text; canonical base64url.
    pub(super) signature: &'a str,
    claims: Vec<u8>,
}

/// The header's members.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) alg: String,
    pub(super) kid: String,
    /// Only some issuers may omit it.
    pub(super) typ: Option<String>,
    /// Further members, which only some issuers may have.
    pub(super) further: Vec<HeaderMember>,
}

impl<'a> Compact<'a> {
    pub(super) fn parse(token: &'a str) -> Result<Self, TokenError> {
        let Parts { signed, header, claims, signature } = Parts::split(token)?;
        let claims = unb64(claims).ok_or(TokenError::Encoding("claims part"))?;
        unb64(signature).ok_or(TokenError::Encoding("signature"))?;
        let header = Header::parse(&unb64(header).ok_or(TokenError::Encoding("header"))?)?;
        Ok(Self { header, signed, signature, claims })
    }

    /// The claims as a strict object. Until the signature holds, they may only say which key to check it with.
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
        let mut further = Vec::new();
        for name in members.keys().filter(|name| !matches!(name.as_str(), "alg" | "kid" | "typ")) {
            further.push(HeaderMember::of(name).ok_or_else(|| TokenError::HeaderMember(name.clone()))?);
        }
        let typ = match members.remove("typ") {
            None => None,
            Some(Value::String(typ)) => Some(typ),
            Some(_) => return Err(TokenError::HeaderText("typ")),
        };
        let mut text = |name: &'static str| match members.remove(name) {
            Some(Value::String(value)) => Ok(value),
            _ => Err(TokenError::HeaderText(name)),
        };
        let header = Self { alg: text("alg")?, kid: text("kid")?, typ, further };
        if !is_key_id(&header.kid) {
            return Err(TokenError::KeyId(header.kid));
        }
        Ok(header)
    }
}

/// The grammar of an issuer's `kid`: 1 to 128 visible ASCII characters except quotes and the backslash. Issuers write
/// what they like here (base64 with `+ / =`, mail addresses); it is only ever compared with the names of keys in memory.
pub(super) fn is_key_id(kid: &str) -> bool {
    (1..=128).contains(&kid.len()) && kid.bytes().all(|b| b.is_ascii_graphic() && !b"\"'`\\".contains(&b))
}

/// The longest text of a token, in bytes; checked before anything in it is read.
pub(super) const MAX_TOKEN_LEN: usize = 4096;

pub(super) struct Parts<'a> {
    pub(super) signed: &'a str,
    pub(super) header: &'a str,
    pub(super) claims: &'a str,
    pub(super) signature: &'a str,
}

impl<'a> Parts<'a> {
    pub(super) fn split(token: &'a str) -> Result<Self, TokenError> {
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

/// Identifies tokens that have no id. Not computed over the whole token: some signatures can be written in two ways, and
/// a revoked token must not come back in the other.
pub(super) fn digest(signed: &str) -> String {
    b64(Sha256::digest(signed))
}

/// A header member that says nothing on which a decision could rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Setting)]
pub enum HeaderMember {
    /// The SHA-1 thumbprint of a certificate.
    #[serde(rename = "x5t")]
    X5t,
    /// The SHA-256 thumbprint of a certificate.
    #[serde(rename = "x5t#S256")]
    X5tS256,
}

impl HeaderMember {
    /// The member's name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::X5t => "x5t",
            Self::X5tS256 => "x5t#S256",
        }
    }

    pub(super) fn of(name: &str) -> Option<Self> {
        [Self::X5t, Self::X5tS256].into_iter().find(|member| member.as_str() == name)
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
    /// base64url(SHA-256) of the token up to its second dot, by which a deny list can name it.
    pub digest: String,
}

impl Untrusted {
    /// A date among the claims, in whole seconds since the Unix epoch: a fraction is left out.
    #[must_use]
    pub fn date(&self, claim: &str) -> Option<u64> {
        numeric_date(self.claims.get(claim)?)
    }
}

/// Shows what a token says, for people debugging one. **Nothing is verified**: never decide anything based on the result.
///
/// # Errors
/// [`TokenError::TooLong`], [`TokenError::Parts`], [`TokenError::Encoding`], [`TokenError::HeaderJson`] and
/// [`TokenError::ClaimsJson`]: the text is not a token at all.
pub fn decode_untrusted(token: &str) -> Result<Untrusted, TokenError> {
    let Parts { signed, header, claims, signature } = Parts::split(token)?;
    unb64(signature).ok_or(TokenError::Encoding("signature"))?;
    let object = |part: &str, name, fault: fn(JsonFault) -> TokenError| {
        json::object(&unb64(part).ok_or(TokenError::Encoding(name))?).map_err(fault)
    };
    Ok(Untrusted {
        header: object(header, "header", TokenError::HeaderJson)?,
        claims: object(claims, "claims part", TokenError::ClaimsJson)?,
        digest: digest(signed),
    })
}
