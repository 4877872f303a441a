//! The access token of those that have no security of their own: HS256, looked at with each request, which is the cheapest that
//! there is.

use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, encode};
use serde::{Deserialize, Serialize};

use crate::Fallible;

/// Both sides have it; it is worth nothing outside of a measurement.
pub const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";
const AUDIENCE: &str = "compare";

#[derive(Serialize, Deserialize)]
struct Claims {
    sub: String,
    aud: String,
    exp: u64,
    roles: Vec<String>,
}

/// `Bearer …`, for a day.
pub fn bearer() -> Fallible<String> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs();
    let claims = Claims { sub: "ann".into(), aud: AUDIENCE.into(), exp: now + 86_400, roles: vec!["worker".into()] };
    Ok(format!("Bearer {}", encode(&Header::new(Algorithm::HS256), &claims, &EncodingKey::from_secret(SECRET))?))
}

/// What looks at tokens.
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

    /// Whether this value of `Authorization` is one of ours, in force, with the role.
    pub fn admits(&self, authorization: Option<&str>) -> bool {
        let token = authorization.and_then(|value| value.strip_prefix("Bearer "));
        let claims = token.and_then(|token| jsonwebtoken::decode::<Claims>(token, &self.key, &self.validation).ok());
        claims.is_some_and(|token| token.claims.roles.iter().any(|role| role == "worker"))
    }
}
