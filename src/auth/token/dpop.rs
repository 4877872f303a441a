//! A DPoP proof (RFC 9449): whether a text is signed with the key in its own header, and whether a token is bound to that key.
//! Never says that the proof is for a request, fresh, or unused: the code that has the request checks that.

use serde_json::{Map, Value};

use super::claims::is_identifier;
use super::header::Parts;
use super::json::{self, JsonFault};
use super::key::{IssuerKey, KeyFault, KeyRules};
use super::{TokenAlgorithm, TokenError};
use crate::jose::{numeric_date, numeric_date_up, sha256_b64, unb64};

/// The contents of a proof whose signature holds under the key in its header.
///
/// This is the caller's data: compare it with the request, the token and the time, and accept each [`id`](Self::id) only once.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DpopProof {
    /// `jti`: 1 to 128 visible ASCII characters.
    pub id: String,
    /// `htm`.
    pub method: String,
    /// `htu`.
    pub uri: String,
    /// `iat`, seconds since the Unix epoch, by the caller's clock; a fraction is left out.
    pub issued_at: u64,
    /// The same, a fraction counting as a whole second: from then on, the proof is not from the future.
    pub issued_by: u64,
    /// `ath`: base64url(SHA-256) of the token.
    pub token_digest: Option<String>,
    /// `nonce`.
    pub nonce: Option<String>,
}

/// Why a text does not prove the key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DpopError {
    /// It is not three parts of canonical base64url, or too long.
    #[error("the proof is not three parts in canonical base64url, of 4096 bytes at most")]
    Form,
    /// Header or claims are not a strict JSON object.
    #[error("the proof's {0} {1}")]
    Json(&'static str, JsonFault),
    /// The header has a member other than `typ`, `alg` and `jwk`, or one with a wrong value.
    #[error("the proof's header must have `typ`, `dpop+jwt`, `alg`, one of {ALGORITHMS}, and `jwk`, and nothing else")]
    Header,
    /// The key cannot be used.
    #[error("the proof's key: {0}")]
    Key(KeyFault),
    /// The key is not the one that the token is bound to.
    #[error("the proof's key is not the one that the token is bound to")]
    OtherKey,
    /// The signature does not hold under the key.
    #[error("the proof's signature does not hold")]
    Signature,
    /// A claim is missing, or has another type or form.
    #[error("the proof's `{0}` is missing, or has the wrong type or form")]
    Claim(&'static str),
}

/// The names of the algorithms.
const ALGORITHMS: &str = "ES256 EdDSA Ed25519 PS256 RS256";

impl DpopProof {
    /// The algorithms that proofs may be signed with, as in `algs` of a challenge: names separated by spaces.
    pub const ALGORITHMS: &str = ALGORITHMS;

    /// Reads a proof made with the key that has this thumbprint (RFC 7638), the `cnf.jkt` of the token that was verified before. A
    /// key of the caller's choice is used for nothing.
    ///
    /// # Errors
    /// `DpopError`; the caller is to blame.
    pub fn read(text: &str, thumbprint: &str) -> Result<Self, DpopError> {
        let Parts { signed, header, claims, signature } = Parts::split(text).map_err(|_| DpopError::Form)?;
        let object = |part: &str, name| {
            let text = unb64(part).ok_or(DpopError::Form)?;
            json::object(&text).map_err(|fault| DpopError::Json(name, fault))
        };
        unb64(signature).ok_or(DpopError::Form)?;
        let (algorithm, jwk) = Self::header(object(header, "header")?)?;
        // Before anything is computed with it.
        if thumbprint_of(&jwk, algorithm).as_deref() != Some(thumbprint) {
            return Err(DpopError::OtherKey);
        }
        let mut rules = KeyRules::new("");
        rules.algorithm = Some(algorithm);
        let key = IssuerKey::from_jwk(jwk, &rules).map_err(DpopError::Key)?;
        key.verify(signed, signature).map_err(|_: TokenError| DpopError::Signature)?;
        Self::of(object(claims, "claims")?)
    }

    fn header(mut header: Map<String, Value>) -> Result<(TokenAlgorithm, Map<String, Value>), DpopError> {
        let (typ, alg, jwk) = (header.remove("typ"), header.remove("alg"), header.remove("jwk"));
        let (Some(Value::String(alg)), Some(Value::Object(mut jwk)), true) = (alg, jwk, header.is_empty()) else {
            return Err(DpopError::Header);
        };
        if typ.as_ref().and_then(Value::as_str) != Some("dpop+jwt") || !ALGORITHMS.split(' ').any(|name| name == alg) {
            return Err(DpopError::Header);
        }
        // RFC 9864 gives EdDSA with Ed25519 a name of its own.
        let known = if alg == "Ed25519" { "EdDSA" } else { &alg };
        let algorithm = TokenAlgorithm::from_name(known).ok_or(DpopError::Header)?;
        if jwk.remove("alg").is_some_and(|own| own.as_str() != Some(&alg)) {
            return Err(DpopError::Key(KeyFault::Algorithm));
        }
        // The key has no name here: its thumbprint identifies it.
        jwk.insert("kid".to_owned(), "dpop".into());
        Ok((algorithm, jwk))
    }

    fn of(mut claims: Map<String, Value>) -> Result<Self, DpopError> {
        let iat = claims.remove("iat");
        let mut text = |name: &'static str| match claims.remove(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(DpopError::Claim(name)),
        };
        let needed = |name, text: Option<String>| text.ok_or(DpopError::Claim(name));
        let id = text("jti")?.filter(|id| is_identifier(id));
        let date = |read: fn(&Value) -> Option<u64>| iat.as_ref().and_then(read).ok_or(DpopError::Claim("iat"));
        Ok(Self {
            id: needed("jti", id)?,
            method: needed("htm", text("htm")?)?,
            uri: needed("htu", text("htu")?)?,
            token_digest: text("ath")?,
            nonce: text("nonce")?,
            issued_at: date(numeric_date)?,
            issued_by: date(numeric_date_up)?,
        })
    }
}

/// RFC 7638: over the members that the key's type requires, in the order of their names. `None` if one is missing, or could be read
/// as something else between quotes.
fn thumbprint_of(jwk: &Map<String, Value>, algorithm: TokenAlgorithm) -> Option<String> {
    let names: &[&str] = match algorithm.key_type().0 {
        "EC" => &["crv", "kty", "x", "y"],
        "OKP" => &["crv", "kty", "x"],
        "RSA" => &["e", "kty", "n"],
        _ => return None,
    };
    let mut members = Vec::new();
    for name in names {
        let value = jwk.get(*name)?.as_str()?;
        if !value.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_') {
            return None;
        }
        members.push(format!("\"{name}\":\"{value}\""));
    }
    Some(sha256_b64(format!("{{{}}}", members.join(",")).as_bytes()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use serde_json::json;

    use super::*;

    /// RFC 9449 §4.1 and §6.1: the first proof there, and the thumbprint in its token.
    const PROOF: &str = "eyJ0eXAiOiJkcG9wK2p3dCIsImFsZyI6IkVTMjU2IiwiandrIjp7Imt0eSI6IkVDIiwieCI6Imw4dEZyaHgtMzR0VjNoUklDUkRZOXpDa0\
        RscEJoRjQyVVFVZldWQVdCRnMiLCJ5IjoiOVZFNGpmX09rX282NHpiVFRsY3VOSmFqSG10NnY5VERWclUwQ2R2R1JEQSIsImNydiI6IlAtMjU2In19.eyJqdGkiOi\
        ItQndDM0VTYzZhY2MybFRjIiwiaHRtIjoiUE9TVCIsImh0dSI6Imh0dHBzOi8vc2VydmVyLmV4YW1wbGUuY29tL3Rva2VuIiwiaWF0IjoxNTYyMjYyNjE2fQ.2-Gx\
        A6T8lP4vfrg8v-FdWP0A0zdrj8igiMLvqRMUvwnQg4PtFLbdLXiOSsX0x7NVY-FNyJK70nfbV37xRZT3Lg";
    const THUMBPRINT: &str = "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I";

    #[test]
    fn the_proof_of_the_rfc_holds_for_its_key_alone() {
        let proof = DpopProof::read(PROOF, THUMBPRINT).unwrap();
        assert_eq!((proof.id.as_str(), proof.method.as_str()), ("-BwC3ESc6acc2lTc", "POST"));
        assert_eq!((proof.uri.as_str(), proof.issued_at), ("https://server.example.com/token", 1_562_262_616));
        assert_eq!((proof.token_digest, proof.nonce, proof.issued_by), (None, None, 1_562_262_616));
        let other = "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k";
        assert_eq!(DpopProof::read(PROOF, other), Err(DpopError::OtherKey));
        // A change of any character is refused.
        for at in [100, 300, 400, PROOF.len() - 20] {
            let mut changed = PROOF.as_bytes().to_vec();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            assert!(DpopProof::read(std::str::from_utf8(&changed).unwrap(), THUMBPRINT).is_err(), "{at}");
        }
    }

    /// RFC 7519 §2: a NumericDate may have a fraction. It makes a proof neither older nor younger than it is.
    #[test]
    fn a_fraction_of_a_second_never_favours_the_bearer() {
        for (iat, dates) in [
            ("1562262616", Some((1_562_262_616, 1_562_262_616))),
            ("1562262616.0", Some((1_562_262_616, 1_562_262_616))),
            ("1562262616.001", Some((1_562_262_616, 1_562_262_617))),
            ("1562262616.999", Some((1_562_262_616, 1_562_262_617))),
            ("1.5622626165e9", Some((1_562_262_616, 1_562_262_617))),
            ("0.5", Some((0, 1))),
            ("-0.5", None),
            ("1e300", None),
            ("\"1562262616\"", None),
            ("null", None),
        ] {
            let claims = format!(r#"{{"jti":"j","htm":"POST","htu":"https://server.example.com/token","iat":{iat}}}"#);
            let proof = DpopProof::of(serde_json::from_str(&claims).unwrap());
            assert_eq!(proof.ok().map(|proof| (proof.issued_at, proof.issued_by)), dates, "{iat}");
        }
    }

    /// RFC 7638 §3.1, RFC 8037 A.3.
    #[test]
    fn thumbprints_are_those_of_the_rfcs() {
        let of = |jwk: Value, algorithm| thumbprint_of(jwk.as_object().unwrap(), algorithm);
        let n = "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknjhMs\
            tn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1n9\
            1CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw";
        let rsa = json!({"kty": "RSA", "n": n, "e": "AQAB", "alg": "RS256", "kid": "2011-04-29"});
        assert_eq!(of(rsa, TokenAlgorithm::Rs256).unwrap(), "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs");
        let okp = json!({"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"});
        assert_eq!(of(okp, TokenAlgorithm::EdDsa).unwrap(), "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k");
        for odd in [json!({"kty": "OKP", "crv": "Ed25519"}), json!({"kty": "OKP", "crv": "\",\"", "x": "AA"})] {
            assert_eq!(of(odd, TokenAlgorithm::EdDsa), None);
        }
        assert_eq!(of(json!({"kty": "oct", "k": "AA"}), TokenAlgorithm::Hs256), None);
    }
}
