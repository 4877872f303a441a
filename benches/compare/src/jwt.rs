//! The access tokens for those that have no security of their own, checked with each request: HS256, which is the cheapest that there is,
//! and RS256, with which identity providers sign unless they are told otherwise.

use std::path::Path;

use jsonwebtoken::jwk::JwkSet;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, encode};
use sealwire::internal::auth::TokenAlgorithm;
use sealwire::{Clock as _, SystemClock};
use sealwire_testkit::idp::Idp;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::error::Fallible;

/// Both sides have it; it is worth nothing outside a measurement.
pub const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";
const AUDIENCE: &str = "compare";
/// Who signs with RS256, for whom, and where its keys are.
pub const PROVIDER: &str = "https://idp.example";
pub const PROVIDED_FOR: &str = "https://gateway.example";
pub const PROVIDED_KEYS: &str = "idp-jwks.json";

#[derive(Serialize, Deserialize)]
struct Claims {
    sub: String,
    aud: String,
    exp: u64,
    roles: Vec<String>,
}

/// `Bearer …`, for a day.
pub fn bearer() -> Fallible<String> {
    let expires = SystemClock.now_s() + 86_400;
    let claims = Claims { sub: "ann".into(), aud: AUDIENCE.into(), exp: expires, roles: vec!["worker".into()] };
    Ok(format!("Bearer {}", encode(&Header::new(Algorithm::HS256), &claims, &EncodingKey::from_secret(SECRET))?))
}

/// The same from an identity provider, whose keys are written into this folder.
pub fn provided(folder: &Path) -> Fallible<String> {
    let (idp, now) = (Idp::shared(), SystemClock.now_s());
    std::fs::write(folder.join(PROVIDED_KEYS), json!({ "keys": [idp.jwk(TokenAlgorithm::Rs256)] }).to_string())?;
    let claims = json!({
        "iss": PROVIDER, "sub": "carol", "aud": PROVIDED_FOR, "iat": now, "exp": now + 3_600, "jti": "t-1", "scope": "site",
        "roles": ["worker"],
    });
    Ok(format!("Bearer {}", idp.sign(TokenAlgorithm::Rs256, &Idp::header(TokenAlgorithm::Rs256), &claims)))
}

/// What checks tokens.
#[derive(Clone)]
pub struct Check {
    key: DecodingKey,
    validation: Validation,
}

impl Check {
    pub fn new() -> Self {
        let mut validation = Validation::new(Algorithm::HS256);
        validation.set_audience(&[AUDIENCE]);
        Self { key: DecodingKey::from_secret(SECRET), validation }
    }

    /// For tokens of the identity provider whose keys are in this folder.
    pub fn provided(folder: &Path) -> Fallible<Self> {
        let keys: JwkSet = serde_json::from_slice(&std::fs::read(folder.join(PROVIDED_KEYS))?)?;
        let mut validation = Validation::new(Algorithm::RS256);
        validation.set_audience(&[PROVIDED_FOR]);
        validation.set_issuer(&[PROVIDER]);
        Ok(Self { key: DecodingKey::from_jwk(keys.keys.first().ok_or("no key")?)?, validation })
    }

    /// Whether this value of `Authorization` is one of ours, in force, with the role.
    pub fn admits(&self, authorization: Option<&str>) -> bool {
        let token = authorization.and_then(|value| value.strip_prefix("Bearer "));
        let claims = token.and_then(|token| jsonwebtoken::decode::<Claims>(token, &self.key, &self.validation).ok());
        claims.is_some_and(|token| token.claims.roles.iter().any(|role| role == "worker"))
    }
}
