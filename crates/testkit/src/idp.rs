//! An identity provider that signs anything, with one key per algorithm.

use std::sync::LazyLock;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeyPair as RsaKeyPair, KeySize};
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RSA_PSS_SHA256,
};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit, Mac};
use sealwire::internal::auth::{KeySet, Symmetric, TokenAlgorithm, TokenRules, TokenVerifier};
use serde_json::{Value, json};
use sha2::Sha256;

/// The time of these tests.
pub const NOW: u64 = 1_790_000_000;

pub struct Idp {
    ed25519: Ed25519KeyPair,
    p256: EcdsaKeyPair,
    rs256: RsaKeyPair,
    ps256: RsaKeyPair,
    pub secret: [u8; 32],
}

impl Idp {
    pub fn new() -> Self {
        Self {
            ed25519: Ed25519KeyPair::generate().unwrap(),
            p256: EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap(),
            rs256: RsaKeyPair::generate(KeySize::Rsa2048).unwrap(),
            ps256: RsaKeyPair::generate(KeySize::Rsa2048).unwrap(),
            secret: *b"an HMAC secret of thirty-two byt",
        }
    }

    pub fn shared() -> &'static Self {
        static SHARED: LazyLock<Idp> = LazyLock::new(Idp::new);
        &SHARED
    }

    /// Claims that pass every rule.
    pub fn claims() -> Value {
        json!({"iss": "https://idp.example", "sub": "agent-7f3a", "aud": "prod/math", "iat": NOW - 100,
               "exp": NOW + 800, "jti": "t-0001", "roles": ["calc"], "cnf": {"kid": "agent-7f3a.k1"}})
    }

    /// The header that passes every rule.
    pub fn header(algorithm: TokenAlgorithm) -> Value {
        json!({"alg": algorithm.as_str(), "kid": format!("idp-{algorithm}"), "typ": "at+jwt"})
    }

    /// The JWK of the public key for `algorithm`, with its `kid`.
    pub fn jwk(&self, algorithm: TokenAlgorithm) -> Value {
        let mut jwk = match algorithm {
            TokenAlgorithm::EdDsa => json!({"kty": "OKP", "crv": "Ed25519", "x": b64(self.ed25519.public_key())}),
            TokenAlgorithm::Es256 => {
                let point = self.p256.public_key().as_ref();
                json!({"kty": "EC", "crv": "P-256", "x": b64(&point[1..33]), "y": b64(&point[33..])})
            }
            TokenAlgorithm::Rs256 => json!({"kty": "RSA", "n": b64(modulus(&self.rs256)), "e": "AQAB"}),
            TokenAlgorithm::Ps256 => json!({"kty": "RSA", "n": b64(modulus(&self.ps256)), "e": "AQAB"}),
            TokenAlgorithm::Hs256 => json!({"kty": "oct", "k": b64(self.secret)}),
        };
        jwk["kid"] = json!(format!("idp-{algorithm}"));
        jwk["alg"] = json!(algorithm.as_str());
        jwk["use"] = json!("sig");
        jwk
    }

    pub fn keys(&self) -> KeySet {
        use TokenAlgorithm::{EdDsa, Es256, Ps256, Rs256};
        let keys = [EdDsa, Es256, Rs256, Ps256].map(|algorithm| self.jwk(algorithm));
        KeySet::from_jwks(&json!({ "keys": keys }).to_string(), "https://idp.example", "idp", Symmetric::Refused)
            .unwrap()
    }

    pub fn symmetric_keys(&self) -> KeySet {
        let jwks = json!({"keys": [self.jwk(TokenAlgorithm::Hs256)]}).to_string();
        KeySet::from_jwks(&jwks, "https://idp.example", "idp", Symmetric::Allowed).unwrap()
    }

    pub fn verifier(&self, rules: TokenRules) -> TokenVerifier {
        TokenVerifier::new(rules, self.keys())
    }

    /// A token with the proper header for Ed25519.
    pub fn ed25519(&self, claims: &Value) -> String {
        self.sign(TokenAlgorithm::EdDsa, &Self::header(TokenAlgorithm::EdDsa), claims)
    }

    pub fn sign(&self, algorithm: TokenAlgorithm, header: &Value, claims: &Value) -> String {
        self.sign_text(algorithm, &header.to_string(), &claims.to_string())
    }

    pub fn sign_text(&self, algorithm: TokenAlgorithm, header: &str, claims: &str) -> String {
        let signed = format!("{}.{}", b64(header), b64(claims));
        let random = SystemRandom::new();
        let rsa = |pair: &RsaKeyPair, encoding| {
            let mut signature = vec![0; pair.public_modulus_len()];
            pair.sign(encoding, &random, signed.as_bytes(), &mut signature).unwrap();
            signature
        };
        let signature = match algorithm {
            TokenAlgorithm::EdDsa => self.ed25519.sign(signed.as_bytes()).as_ref().to_vec(),
            TokenAlgorithm::Es256 => self.p256.sign(&random, signed.as_bytes()).unwrap().as_ref().to_vec(),
            TokenAlgorithm::Rs256 => rsa(&self.rs256, &RSA_PKCS1_SHA256),
            TokenAlgorithm::Ps256 => rsa(&self.ps256, &RSA_PSS_SHA256),
            TokenAlgorithm::Hs256 => return self.sign_hmac(&self.secret, header, claims),
        };
        format!("{signed}.{}", b64(signature))
    }

    pub fn sign_hmac(&self, secret: &[u8], header: &str, claims: &str) -> String {
        let signed = format!("{}.{}", b64(header), b64(claims));
        let mut mac = Hmac::<Sha256>::new_from_slice(secret).unwrap();
        mac.update(signed.as_bytes());
        format!("{signed}.{}", b64(mac.finalize().into_bytes()))
    }

    /// The public RSA key in the forms that a confused verifier might use as an HMAC secret.
    pub fn rsa_public_forms(&self) -> Vec<Vec<u8>> {
        let der = self.rs256.public_key().as_ref().to_vec();
        let pem = format!("-----BEGIN RSA PUBLIC KEY-----\n{}\n-----END RSA PUBLIC KEY-----\n", STANDARD.encode(&der));
        let jwk = self.jwk(TokenAlgorithm::Rs256).to_string();
        vec![der, pem.into_bytes(), modulus(&self.rs256).to_vec(), jwk.into_bytes(), Vec::new()]
    }
}

pub fn b64(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Three parts put together, with any bytes as the signature.
pub fn compact(header: &str, claims: &str, signature: &[u8]) -> String {
    format!("{}.{}.{}", b64(header), b64(claims), b64(signature))
}

/// The modulus of a 2048-bit key: RFC 8017 A.1.1, `SEQUENCE { INTEGER n, INTEGER e }`, with one leading zero byte.
fn modulus(pair: &RsaKeyPair) -> &[u8] {
    &pair.public_key().as_ref()[9..265]
}
