//! What the fuzz targets of the wire share: the service of the fixed vectors, and a second, independent reading of JSON.
//! Nothing here uses the project's own parsers to judge the project's own parsers.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use sealwire::internal::auth::{
    KeyRing, KeyRingFile, KeySet, LocalGuard, NonceLimits, ReplayGuard, Symmetric, TimeFloor, TokenRules,
    TokenVerifier, Verifier, Window,
};
use sealwire::internal::wire::{Audience, Endpoint, ServiceKey};
use sealwire::{ManualClock, Name};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// The clock of all vectors, in seconds since the Unix epoch.
pub const NOW: u64 = 1_790_000_002;

/// The service `prod/math` as the vectors describe it.
pub struct Service {
    pub endpoint: Endpoint,
    pub verifier: Verifier,
    pub vectors: Value,
}

impl Service {
    /// The one of this process.
    pub fn get() -> &'static Self {
        static SERVICE: OnceLock<Service> = OnceLock::new();
        SERVICE.get_or_init(Self::new)
    }

    fn new() -> Self {
        let vectors: Value = serde_json::from_str(include_str!("../../tests/vectors/nats-rpc-v1.json")).unwrap();
        // Started long before, so that the fence is long past.
        let clock = Arc::new(ManualClock::at(NOW - 10_000));
        let guard = LocalGuard::open(window(), NonceLimits::default(), clock, &TimeFloor::Ephemeral).unwrap();
        let (endpoint, verifier) = verifier(&vectors, Arc::new(guard));
        Self { verifier, endpoint, vectors }
    }

    /// The vector with this number, such as `V1`.
    pub fn vector(&self, number: &str) -> &Value {
        let vectors = self.vectors["vectors"].as_array().unwrap();
        vectors.iter().find(|vector| vector["name"].as_str().unwrap().split(' ').next() == Some(number)).unwrap()
    }

    /// The audience of the service.
    pub fn audience(&self) -> &Audience {
        self.endpoint.audience()
    }
}

/// The time window of the vectors.
pub fn window() -> Window {
    Window::new(30, 5).unwrap()
}

/// Who the service of the vectors is, and what it knows, with this guard.
pub fn verifier(vectors: &Value, guard: Arc<dyn ReplayGuard>) -> (Endpoint, Verifier) {
    let (environment, service) = vectors["service"].as_str().unwrap().split_once('/').unwrap();
    let endpoint = Endpoint::new(Name::new(environment).unwrap(), Name::new(service).unwrap());
    let keys: Vec<Value> = vectors["agent_keys"].as_array().unwrap().iter().map(record).collect();
    let ring = serde_json::json!({ "audience": vectors["service"], "keys": keys });
    let ring: KeyRingFile = serde_json::from_value(ring).unwrap();
    let signing = &vectors["service_keys"][0];
    let seed = unhex(signing["seed_hex"].as_str().unwrap());
    let signing = ServiceKey::new(signing["kid"].as_str().unwrap(), endpoint.audience(), seed).unwrap();
    let issuer = vectors["issuer"].as_str().unwrap();
    let issued = KeySet::from_jwks(&vectors["token_keys"].to_string(), issuer, "vectors", Symmetric::Refused);
    let verifier = Verifier::new(
        &endpoint,
        window(),
        KeyRing::new(ring, endpoint.audience()).unwrap(),
        Some(signing),
        TokenVerifier::new(TokenRules::new(endpoint.audience().as_str()), issued.unwrap()),
        guard,
    );
    let verifier = verifier.unwrap();
    (endpoint, verifier)
}

fn record(key: &Value) -> Value {
    let mut record = serde_json::json!({ "kid": key["kid"], "owner": key["owner"], "alg": key["alg"] });
    match key["service_key_hex"].as_str() {
        Some(hex) => record["key"] = b64(&unhex(hex)).into(),
        None => record["x"] = key["jwk"]["x"].clone(),
    }
    record
}

/// Makes a proof of this header text and these claims text, whatever they are, under an HMAC key.
pub fn sign(key: &[u8; 32], header: &[u8], claims: &[u8]) -> String {
    let input = format!("{}.{}", b64(header), b64(claims));
    let mac = Hmac::<Sha256>::new_from_slice(key).unwrap().chain_update(input.as_bytes()).finalize();
    format!("{input}.{}", b64(&mac.into_bytes()))
}

/// The members of a JSON object, in order; `None` for any other JSON, for junk, and if a name occurs twice.
pub fn members(text: &[u8]) -> Option<Vec<(String, Value)>> {
    struct Object;
    impl<'de> Visitor<'de> for Object {
        type Value = Vec<(String, Value)>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut members = Vec::new();
            while let Some(member) = map.next_entry::<String, Value>()? {
                members.push(member);
            }
            Ok(members)
        }
    }
    struct Members(Vec<(String, Value)>);
    impl<'de> Deserialize<'de> for Members {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_map(Object).map(Self)
        }
    }
    let Members(members) = serde_json::from_slice(text).ok()?;
    let names: HashSet<&str> = members.iter().map(|(name, _)| name.as_str()).collect();
    (names.len() == members.len()).then_some(members)
}

/// The value of a member, or null.
pub fn member<'m>(members: &'m [(String, Value)], name: &str) -> &'m Value {
    members.iter().find(|(found, _)| found == name).map_or(&Value::Null, |(_, value)| value)
}

/// base64url without padding.
pub fn b64(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// The bytes of base64url without padding.
pub fn unb64(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

/// base64url(SHA-256(bytes)).
pub fn digest(bytes: &[u8]) -> String {
    b64(&Sha256::digest(bytes))
}

/// 32 bytes from their hexadecimal text.
pub fn unhex(text: &str) -> [u8; 32] {
    std::array::from_fn(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap())
}

/// The next byte of an input that is read as steps.
pub fn byte(steps: &mut &[u8]) -> Option<u8> {
    let (first, rest) = steps.split_first()?;
    *steps = rest;
    Some(*first)
}

/// A length of two bytes, and as many bytes as there are of that.
pub fn some<'s>(steps: &mut &'s [u8]) -> Option<&'s [u8]> {
    let length = usize::from(u16::from_le_bytes([byte(steps)?, byte(steps)?]));
    let (some, rest) = steps.split_at(length.min(steps.len()));
    *steps = rest;
    Some(some)
}
