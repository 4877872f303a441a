//! The proof: a JWS over one message, with a strict header and strict claims. Knows no keys.
//! Never reads a claim before the signature over it has been verified: callers ask for claims only then.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::algorithm::ProofAlgorithm;
use super::nonce::Nonce;
use crate::jose::{b64_to, integer, optional_integer, unb64_in};

/// The authentication scheme of the header.
pub(crate) const SCHEME: &str = "NatsRpc";
/// The `typ` of a request's proof, which is also the protocol's version.
pub(crate) const REQUEST_TYP: &str = "nats-rpc-v1+jwt";
/// The `typ` of an answer's proof.
pub(crate) const REPLY_TYP: &str = "nats-rpc-v1-reply+jwt";

/// What follows the scheme and exactly one space, if all of it is `token68` (RFC 9110 §11.2).
pub(super) fn credentials(value: &str) -> Option<&str> {
    let rest = value.strip_prefix(SCHEME)?.strip_prefix(' ')?;
    let token68 = |byte: u8| matches!(byte, b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'+' | b'/' | b'=');
    // Scans to the end even if one byte is wrong, so that the compiler can vectorize the loop.
    let all = rest.bytes().fold(true, |all, byte| all & token68(byte));
    (!rest.is_empty() && all).then_some(rest)
}

/// A proof that is not well-formed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ProofError {
    /// Not exactly three parts.
    #[error("not three parts")]
    Parts,
    /// A part is not canonical, unpadded base64url.
    #[error("not canonical base64url")]
    Encoding,
    /// The header is not exactly `alg`, `kid` and `typ` with allowed values.
    #[error("header outside its grammar")]
    Header,
    /// The claims are not a JSON object.
    #[error("claims that are not a JSON object")]
    Claims,
    /// A claim is missing, repeated, unknown or outside its grammar; this one.
    #[error("the claim `{0}` is missing, repeated, unknown or outside its grammar")]
    Claim(&'static str),
    /// The message's lifetime exceeds this service's window, or is zero.
    #[error("the claims `iat` and `exp` are {lifetime_s} s apart, and this service accepts 1 to {window_s} s")]
    Lifetime {
        /// `exp - iat` in seconds; 0 if `exp` comes first.
        lifetime_s: u64,
        /// The service's window in seconds.
        window_s: u64,
    },
}

/// The header of a request's or an answer's proof.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProofHeader {
    pub(crate) algorithm: ProofAlgorithm,
    pub(crate) kid: String,
    pub(crate) typ: &'static str,
}

// `deny_unknown_fields` and the derived duplicate check make the header exact; member names are compared after unescaping.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HeaderText<'t> {
    #[serde(borrow)]
    alg: Cow<'t, str>,
    #[serde(borrow)]
    kid: Cow<'t, str>,
    #[serde(borrow)]
    typ: Cow<'t, str>,
}

impl ProofHeader {
    /// Parses a header of the type `typ` from base64url.
    pub(crate) fn parse_typed(part: &str, typ: &'static str) -> Result<Self, ProofError> {
        let mut room = [0; 256];
        let bytes = unb64_in(part, &mut room).ok_or(ProofError::Encoding)?;
        if let Some((algorithm, kid)) = usual_header(&bytes, typ) {
            return Ok(Self { algorithm, kid: kid.to_owned(), typ });
        }
        let text: HeaderText<'_> = object(&bytes).ok_or(ProofError::Header)?;
        let algorithm = match &*text.alg {
            "HS256" => ProofAlgorithm::Hs256,
            "EdDSA" => ProofAlgorithm::EdDsa,
            _ => return Err(ProofError::Header),
        };
        if text.typ != typ || !is_kid(&text.kid) {
            return Err(ProofError::Header);
        }
        Ok(Self { algorithm, kid: text.kid.into_owned(), typ })
    }

    /// The header as base64url.
    pub(crate) fn encode(&self) -> String {
        let mut text = String::new();
        encode_header(self.algorithm, &self.kid, self.typ, &mut text);
        text
    }
}

/// Parses a header that is written the usual way, as [`encode_header`] writes it; others are parsed as JSON.
fn usual_header<'b>(bytes: &'b [u8], typ: &str) -> Option<(ProofAlgorithm, &'b str)> {
    let rest = bytes.strip_prefix(br#"{"alg":""#)?;
    let (algorithm, rest) = match rest.split_at_checked(5)? {
        (b"HS256", rest) => (ProofAlgorithm::Hs256, rest),
        (b"EdDSA", rest) => (ProofAlgorithm::EdDsa, rest),
        _ => return None,
    };
    let rest = rest.strip_prefix(br#"","kid":""#)?.strip_suffix(br#""}"#)?.strip_suffix(typ.as_bytes())?;
    let kid = std::str::from_utf8(rest.strip_suffix(br#"","typ":""#)?).ok()?;
    // No byte of a key id ends a JSON string or needs escaping.
    is_kid(kid).then_some((algorithm, kid))
}

/// Appends a header as base64url.
pub(super) fn encode_header(algorithm: ProofAlgorithm, kid: &str, typ: &str, text: &mut String) {
    // No byte of a key id ends a JSON string or needs escaping.
    debug_assert!(is_kid(kid), "a key id");
    let mut room = [0; 256];
    let mut at = 0;
    for part in [r#"{"alg":""#, algorithm.as_str(), r#"","kid":""#, kid, r#"","typ":""#, typ, r#""}"#] {
        let Some(to) = room.get_mut(at..at + part.len()) else { return };
        to.copy_from_slice(part.as_bytes());
        at += part.len();
    }
    b64_to(room.get(..at).unwrap_or_default(), text);
}

/// Whether `kid` is a key id: 1 to 128 bytes of `[A-Za-z0-9._:/-]`.
pub(crate) fn is_kid(kid: &str) -> bool {
    (1..=128).contains(&kid.len()) && kid.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._:/-".contains(&byte))
}

/// The claims of a request's proof, exactly as the protocol names them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProofClaims<T = String> {
    /// `<environment>/<service>`.
    pub aud: T,
    /// The subject as published.
    pub to: T,
    /// The reply subject; empty if there is none.
    pub rto: T,
    /// When it was signed: whole seconds since the Unix epoch.
    #[serde(deserialize_with = "integer")]
    pub iat: u64,
    /// From when on the message is refused: whole seconds since the Unix epoch.
    #[serde(deserialize_with = "integer")]
    pub exp: u64,
    /// The nonce: 16 random bytes as 22 characters of base64url.
    pub jti: T,
    /// base64url(SHA-256(access token)).
    pub ath: T,
    /// base64url(SHA-256(payload)).
    pub dig: T,
    /// The deadline in milliseconds after `iat`, 1 to 600,000.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "optional_integer")]
    pub tmo: Option<u64>,
    /// The idempotency key: 1 to 128 printable ASCII characters.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_string")]
    pub idk: Option<String>,
    /// How many frames beyond the acknowledged ones the caller accepts, 1 to 1,024. Without it, no frame is sent.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "optional_integer")]
    pub win: Option<u64>,
    /// A W3C `traceparent` of version 00. No decision depends on it.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_string")]
    pub tp: Option<String>,
    /// What the caller can do beyond receiving a result: names, separated by single spaces. No decision depends on it.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_string")]
    pub cap: Option<String>,
    /// The call is a task: how long it may run, in milliseconds after `iat`, 1 to 604,800,000. Only with `idk`, and without `win`.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "optional_integer")]
    pub det: Option<u64>,
}

/// The largest frame window.
pub(crate) const MAX_WINDOW: u64 = 1024;

/// The longest deadline in milliseconds.
pub(crate) const MAX_TIMEOUT_MS: u64 = 600_000;

/// The longest that a task may run, in milliseconds: a week.
pub(crate) const MAX_TASK_MS: u64 = 604_800_000;

/// More bytes than the claims of most proofs need. Longer ones are decoded into a buffer of their own.
pub(crate) const USUAL_CLAIMS: usize = 768;

impl<'b> ProofClaims<Cow<'b, str>> {
    /// Parses claims and their nonce from base64url, using `room` for the decoded text.
    pub(crate) fn parse(part: impl AsRef<[u8]>, room: &'b mut [u8; USUAL_CLAIMS]) -> Result<(Self, Nonce), ProofError> {
        let claims = match unb64_in(part, room).ok_or(ProofError::Encoding)? {
            Cow::Borrowed(bytes) => match object::<ProofClaims<&str>>(bytes) {
                Some(claims) => claims.map(Cow::Borrowed),
                // A string may be written with escapes, which can only be resolved into an owned string.
                None => Self::owned(bytes)?,
            },
            Cow::Owned(bytes) => Self::owned(&bytes)?,
        };
        if !claims.tmo.is_none_or(|tmo| (1..=MAX_TIMEOUT_MS).contains(&tmo)) {
            return Err(ProofError::Claim("tmo"));
        }
        if !claims.idk.as_deref().is_none_or(is_idempotency_key) {
            return Err(ProofError::Claim("idk"));
        }
        // A caller that accepts frames must set a deadline: nothing else ends a call that keeps sending.
        if !claims.win.is_none_or(|win| (1..=MAX_WINDOW).contains(&win) && claims.tmo.is_some()) {
            return Err(ProofError::Claim("win"));
        }
        if !claims.tp.as_deref().is_none_or(is_traceparent) {
            return Err(ProofError::Claim("tp"));
        }
        if !claims.cap.as_deref().is_none_or(are_capabilities) {
            return Err(ProofError::Claim("cap"));
        }
        // Without a key nobody could find the task again, and nobody is there to take frames.
        let is_task = |det| (1..=MAX_TASK_MS).contains(&det) && claims.idk.is_some() && claims.win.is_none();
        if !claims.det.is_none_or(is_task) {
            return Err(ProofError::Claim("det"));
        }
        let nonce = Nonce::from_text(&claims.jti).ok_or(ProofError::Claim("jti"))?;
        Ok((claims, nonce))
    }

    fn owned(bytes: &[u8]) -> Result<Self, ProofError> {
        let claims = object::<ProofClaims>(bytes).ok_or_else(|| fault::<ProofClaims>(bytes, &CLAIMS))?;
        Ok(claims.map(Cow::Owned))
    }
}

impl<T> ProofClaims<T> {
    fn map<U>(self, text: fn(T) -> U) -> ProofClaims<U> {
        ProofClaims {
            aud: text(self.aud),
            to: text(self.to),
            rto: text(self.rto),
            iat: self.iat,
            exp: self.exp,
            jti: text(self.jti),
            ath: text(self.ath),
            dig: text(self.dig),
            tmo: self.tmo,
            idk: self.idk,
            win: self.win,
            tp: self.tp,
            cap: self.cap,
            det: self.det,
        }
    }

    /// The deadline in milliseconds since the Unix epoch: `iat` plus `tmo`, or `exp`.
    pub(crate) fn deadline_ms(&self) -> u64 {
        match self.tmo {
            Some(tmo) => self.iat.saturating_mul(1000).saturating_add(tmo),
            None => self.exp.saturating_mul(1000),
        }
    }
}

/// Whether `key` is 1 to 128 printable ASCII characters.
pub(crate) fn is_idempotency_key(key: &str) -> bool {
    (1..=128).contains(&key.len()) && key.bytes().all(|byte| (0x20..=0x7e).contains(&byte))
}

/// Whether `text` is a `traceparent` of version 00: `00-<trace id>-<parent id>-<flags>` in lower-case hexadecimal digits,
/// neither id all zeros (W3C Trace Context §3.2).
pub(crate) fn is_traceparent(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let hex = |part: &str, len| {
        part.len() == len && part.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    };
    match parts.as_slice() {
        [version, trace, parent, flags] => {
            *version == "00"
                && hex(trace, 32)
                && hex(parent, 16)
                && hex(flags, 2)
                && [trace, parent].iter().all(|id| id.bytes().any(|byte| byte != b'0'))
        }
        _ => false,
    }
}

/// Whether `text` is 1 to 16 names of 1 to 64 bytes of `[A-Za-z0-9._:/-]`, with one space between two.
pub(crate) fn are_capabilities(text: &str) -> bool {
    let is_name = |name: &str| {
        (1..=64).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._:/-".contains(&byte))
    };
    text.split(' ').count() <= 16 && text.split(' ').all(is_name)
}

/// Reads an optional string: it may be absent, but not `null`.
pub(super) fn some_string<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    String::deserialize(deserializer).map(Some)
}

/// The claims of an answer's proof.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReplyClaims<T = String> {
    pub(crate) iss: T,
    pub(crate) to: T,
    #[serde(deserialize_with = "integer")]
    pub(crate) iat: u64,
    pub(crate) req: T,
    pub(crate) dig: T,
}

impl<'b> ReplyClaims<Cow<'b, str>> {
    /// Parses claims from base64url, using `room` for the decoded text.
    pub(crate) fn parse(part: &str, room: &'b mut [u8; USUAL_CLAIMS]) -> Result<Self, ProofError> {
        match unb64_in(part, room).ok_or(ProofError::Encoding)? {
            Cow::Borrowed(bytes) => match object::<ReplyClaims<&str>>(bytes) {
                Some(claims) => Ok(claims.map(Cow::Borrowed)),
                // A string may be written with escapes, which can only be resolved into an owned string.
                None => Self::owned(bytes),
            },
            Cow::Owned(bytes) => Self::owned(&bytes),
        }
    }

    fn owned(bytes: &[u8]) -> Result<Self, ProofError> {
        Ok(object::<ReplyClaims>(bytes).ok_or(ProofError::Claims)?.map(Cow::Owned))
    }
}

impl<T> ReplyClaims<T> {
    fn map<U>(self, text: fn(T) -> U) -> ReplyClaims<U> {
        ReplyClaims { iss: text(self.iss), to: text(self.to), iat: self.iat, req: text(self.req), dig: text(self.dig) }
    }
}

/// The names of the claims of a request's proof.
const CLAIMS: [&str; 14] =
    ["aud", "to", "rto", "iat", "exp", "jti", "ath", "dig", "tmo", "idk", "win", "tp", "cap", "det"];

/// Why `bytes` are not valid claims. An unknown name is not repeated: the signer may have chosen it to mislead.
fn fault<'b, T: Deserialize<'b>>(bytes: &'b [u8], claims: &[&'static str]) -> ProofError {
    if !bytes.trim_ascii_start().starts_with(b"{") {
        return ProofError::Claims;
    }
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let Err(error) = serde_path_to_error::deserialize::<_, T>(&mut reader) else {
        return ProofError::Claims;
    };
    if error.inner().is_syntax() || error.inner().is_eof() {
        return ProofError::Claims;
    }
    let (path, text) = (error.path().to_string(), error.inner().to_string());
    let named = text.split('`').nth(1).filter(|_| text.contains(" field `")).unwrap_or(&path);
    let known = claims.iter().find(|claim| **claim == named);
    ProofError::Claim(known.copied().unwrap_or("(another)"))
}

/// Parses a JSON object. A derived struct would also accept an array of its values: a second text for the same proof.
pub(super) fn object<'b, T: Deserialize<'b>>(bytes: &'b [u8]) -> Option<T> {
    bytes.trim_ascii_start().starts_with(b"{").then(|| serde_json::from_slice(bytes).ok())?
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::jose::b64;

    /// SPEC.md §4.1.
    #[test]
    fn arrays_of_the_values_are_no_objects() {
        let header = r#" {"alg":"HS256","kid":"a.k1","typ":"nats-rpc-v1+jwt"}"#;
        let spaced = ProofHeader::parse_typed(&b64(header.as_bytes()), REQUEST_TYP);
        assert_eq!(ProofHeader::parse_typed(&b64(header.trim().as_bytes()), REQUEST_TYP), spaced);
        assert_eq!(spaced.as_ref().map(|header| header.kid.as_str()), Ok("a.k1"));
        let array = r#" ["HS256","a.k1","nats-rpc-v1+jwt"]"#;
        assert_eq!(ProofHeader::parse_typed(&b64(array.as_bytes()), REQUEST_TYP), Err(ProofError::Header));

        let claims =
            r#"{"aud":"p/m","to":"t","rto":"","iat":1,"exp":2,"jti":"AAECAwQFBgcICQoLDA0ODw","ath":"","dig":""}"#;
        let mut room = [0; USUAL_CLAIMS];
        let plain = ProofClaims::parse(b64(claims.as_bytes()), &mut room).unwrap();
        // The same claims written differently: one with an escape, and one that is too long for the room.
        for (part, other) in [("\"p/m\"", "\"\\u0070/m\""), ("{\"aud\"", &format!("{}{{\"aud\"", " ".repeat(800)))] {
            let written = claims.replace(part, other);
            assert_ne!(written, claims);
            assert_eq!(ProofClaims::parse(b64(written.as_bytes()), &mut [0; USUAL_CLAIMS]).unwrap(), plain);
        }
        for (change, claim) in [
            (("\"aud\":\"p/m\",", ""), "aud"),
            (("\"to\":\"t\"", "\"to\":\"t\",\"to\":\"t\""), "to"),
            (("\"rto\":\"\"", "\"rto\":null"), "rto"),
            (("\"iat\":1", "\"iat\":1.0"), "iat"),
            (("\"exp\":2", "\"exp\":\"2\""), "exp"),
            (("\"jti\":\"AA", "\"jti\":\"A"), "jti"),
            (("\"dig\":\"\"", "\"dig\":\"\",\"tmo\":0"), "tmo"),
            (("\"dig\":\"\"", "\"dig\":\"\",\"idk\":\"\""), "idk"),
            (("\"dig\":\"\"", "\"dig\":\"\",\"win\":32"), "win"),
            (("\"dig\":\"\"", "\"dig\":\"\",\"tmo\":9,\"win\":0"), "win"),
            (("\"dig\":\"\"", "\"dig\":\"\",\"tmo\":9,\"win\":1025"), "win"),
            (("\"dig\":\"\"", "\"dig\":\"\",\"tp\":\"\""), "tp"),
            (("\"dig\":\"\"", "\"dig\":\"\",\"cap\":\"\""), "cap"),
            (("\"dig\":\"\"", "\"dig\":\"\",\"cap\":\"a  b\""), "cap"),
            (("\"dig\":\"\"", "\"dig\":\"\",\"cap\":\"a\\tb\""), "cap"),
            (("\"dig\":\"\"", "\"dig\":\"\",\"cap\":null"), "cap"),
            (("\"dig\":\"\"", "\"dig\":\"\",\"more\":1"), "(another)"),
        ] {
            let changed = claims.replace(change.0, change.1);
            assert_ne!(changed, claims);
            assert_eq!(
                ProofClaims::parse(b64(changed.as_bytes()), &mut [0; USUAL_CLAIMS]).err(),
                Some(ProofError::Claim(claim)),
                "{changed}"
            );
        }
        assert_eq!(ProofClaims::parse(b64(b"{"), &mut [0; USUAL_CLAIMS]).err(), Some(ProofError::Claims));
        let array = r#"["p/m","t","",1,2,"AAECAwQFBgcICQoLDA0ODw","",""]"#;
        assert_eq!(ProofClaims::parse(b64(array.as_bytes()), &mut [0; USUAL_CLAIMS]).err(), Some(ProofError::Claims));

        let claims = r#"{"iss":"p/m","to":"t","iat":1,"req":"","dig":""}"#;
        assert!(ReplyClaims::parse(&b64(claims.as_bytes()), &mut [0; USUAL_CLAIMS]).is_ok());
        let array = r#"["p/m","t",1,"",""]"#;
        assert_eq!(ReplyClaims::parse(&b64(array.as_bytes()), &mut [0; USUAL_CLAIMS]), Err(ProofError::Claims));
    }
}
