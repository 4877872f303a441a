//! A small issuer of access tokens, for development and tests.
//! Never shows its private key, never reads it from a file that others can read, never signs what we would refuse.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use aws_lc_rs::rand;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use serde_json::{Map, Value, json};
use zeroize::Zeroizing;

use super::file::{self, Opened};
use super::header::{MAX_TOKEN_LEN, is_key_id};
use super::json as strict;
use super::{Confirmation, FileError, JsonFault, KeySet, KeySetError, Symmetric, TokenError, TokenRules, claims};
use crate::files::FileTrust;
use crate::jose::{b64, ed25519_thumbprint, unb64_array};
use crate::name::shown;

/// Issues access tokens under one Ed25519 key.
///
/// For development and tests: a service never needs one, and a deployment has an identity provider.
pub struct TokenIssuer {
    issuer: String,
    kid: String,
    seed: Zeroizing<[u8; 32]>,
    pair: Ed25519KeyPair,
}

/// What a token should say.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct IssueRequest {
    /// `sub`.
    pub subject: String,
    /// `act.sub`: who acts for the subject.
    pub actor: Option<String>,
    /// `aud`; one is written as a string, several as an array.
    pub audiences: Vec<String>,
    /// `roles`.
    pub roles: BTreeSet<String>,
    /// How long the token lives, in seconds, 1 to 3600; 900 by default.
    pub ttl_s: u64,
    /// `cnf`: the key that the bearer must prove.
    pub cnf: Option<Confirmation>,
    /// Further claims.
    pub claims: Map<String, Value>,
    /// `iat`: the time, in seconds since the Unix epoch.
    pub now_s: u64,
}

impl IssueRequest {
    /// A token for one subject and one audience that lives for 15 minutes: short lives are the real revocation.
    #[must_use]
    pub fn new(subject: impl Into<String>, audience: impl Into<String>, now_s: u64) -> Self {
        Self {
            subject: subject.into(),
            actor: None,
            audiences: vec![audience.into()],
            roles: BTreeSet::new(),
            ttl_s: 900,
            cnf: None,
            claims: Map::new(),
            now_s,
        }
    }
}

/// Why a token, or the key to sign it with, could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IssueError {
    /// The key file could not be read or written.
    #[error("issuer key `{path}`: {cause}")]
    File {
        /// The file.
        path: String,
        /// What the operating system, or our bounds, said.
        cause: FileError,
    },
    /// The key file is not strict JSON.
    #[error("issuer key `{path}` {fault}")]
    Json {
        /// The file.
        path: String,
        /// What is wrong.
        fault: JsonFault,
    },
    /// The key file is not the JWK of an Ed25519 private key as this issuer writes it.
    #[error("issuer key `{path}`: its `{member}` is missing, unknown or wrong; make a new key")]
    Key {
        /// The file.
        path: String,
        /// The member.
        member: String,
    },
    /// The issuer is not 1 to 256 visible ASCII characters.
    #[error("the issuer `{}` is not 1 to 256 visible ASCII characters", shown(.0))]
    Issuer(String),
    /// No audience was named.
    #[error("a token needs an audience, such as `prod/math`")]
    NoAudience,
    /// A further claim has a name to which the protocol gives a meaning.
    #[error("the claim `{0}` has its own place in the request")]
    ReservedClaim(&'static str),
    /// A service with the default rules would refuse the token.
    #[error("no service would accept it: {0}")]
    Unacceptable(#[from] TokenError),
    /// The operating system gave no random bytes, or the key did not sign.
    #[error("the cryptographic library failed")]
    Crypto,
}

impl TokenIssuer {
    /// Makes a new key. Its `kid` is its RFC 7638 thumbprint.
    ///
    /// # Errors
    /// [`IssueError::Issuer`], and [`IssueError::Crypto`] when the operating system gives no random bytes.
    pub fn generate(issuer: &str) -> Result<Self, IssueError> {
        let mut seed = Zeroizing::new([0; 32]);
        rand::fill(&mut *seed).map_err(|_| IssueError::Crypto)?;
        let pair = Ed25519KeyPair::from_seed_unchecked(&*seed).map_err(|_| IssueError::Crypto)?;
        let public = public_bytes(&pair).ok_or(IssueError::Crypto)?;
        Self::assemble(issuer, ed25519_thumbprint(&b64(public)), seed, pair)
    }

    /// Reads a key that [`TokenIssuer::save`] wrote.
    ///
    /// # Errors
    /// [`IssueError::File`] (also when others on the machine can read it), [`IssueError::Json`], [`IssueError::Key`] and
    /// [`IssueError::Issuer`]; whoever keeps the file is to blame.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, IssueError> {
        let path = path.as_ref();
        let name = || path.display().to_string();
        let fail = |cause| IssueError::File { path: name(), cause };
        let wrong = |member: &str| IssueError::Key { path: name(), member: member.to_owned() };
        let trust = FileTrust::default();
        let opened = Opened::read(path, MAX_KEY_LEN, &trust).map_err(fail)?;
        opened.require_private().map_err(fail)?;
        let mut members =
            strict::object(opened.text.as_bytes()).map_err(|fault| IssueError::Json { path: name(), fault })?;
        // Taken out first, so that it is wiped whatever else is wrong.
        let d = Zeroizing::new(text(&mut members, "d").ok_or_else(|| wrong("d"))?);
        let seed = Zeroizing::new(unb64_array::<32>(&d).ok_or_else(|| wrong("d"))?);
        for (member, value) in [("kty", "OKP"), ("crv", "Ed25519"), ("alg", "EdDSA"), ("use", "sig")] {
            if text(&mut members, member).as_deref() != Some(value) {
                return Err(wrong(member));
            }
        }
        let kid = text(&mut members, "kid").filter(|kid| is_key_id(kid)).ok_or_else(|| wrong("kid"))?;
        let issuer = text(&mut members, "iss").ok_or_else(|| wrong("iss"))?;
        let x = text(&mut members, "x").and_then(|x| unb64_array::<32>(&x)).ok_or_else(|| wrong("x"))?;
        // Not its name, which may be part of the key.
        if !members.is_empty() {
            return Err(wrong("(a member that is not one of this file's)"));
        }
        let pair = Ed25519KeyPair::from_seed_and_public_key(&*seed, &x).map_err(|_| wrong("x"))?;
        Self::assemble(&issuer, kid, seed, pair).map_err(|_| wrong("iss"))
    }

    /// Writes the key, private part included, to a new file of mode 0600: a JWK with the issuer as member `iss`.
    ///
    /// # Errors
    /// [`IssueError::File`], also when the file exists.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), IssueError> {
        // Built as text: a JSON value would leave a copy of the secret behind. None of these needs escaping except `iss`.
        let d = Zeroizing::new(b64(*self.seed));
        let text = Zeroizing::new(format!(
            "{{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"alg\":\"EdDSA\",\"use\":\"sig\",\"kid\":\"{}\",\"iss\":{},\"x\":\"{}\",\"d\":\"{}\"}}\n",
            self.kid,
            Value::from(self.issuer.as_str()),
            b64(self.pair.public_key()),
            *d,
        ));
        let path = path.as_ref();
        file::create_private(path, &text).map_err(|cause| IssueError::File { path: path.display().to_string(), cause })
    }

    /// The issuer (`iss`) that the tokens name.
    #[must_use]
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// The `kid` of the key.
    #[must_use]
    pub fn kid(&self) -> &str {
        &self.kid
    }

    /// The JWK set with the public key, as services read it.
    #[must_use]
    pub fn public_jwks(&self) -> String {
        let x = b64(self.pair.public_key());
        let key = json!({"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig", "kid": self.kid, "x": x});
        format!("{:#}\n", json!({ "keys": [key] }))
    }

    /// The public key as a key set of this issuer.
    ///
    /// # Errors
    /// None in practice: the set is the one that [`TokenIssuer::public_jwks`] writes.
    pub fn key_set(&self) -> Result<KeySet, KeySetError> {
        KeySet::from_jwks(&self.public_jwks(), &self.issuer, "a token issuer's own key", Symmetric::Refused)
    }

    /// Signs a token with a fresh `jti`.
    ///
    /// # Errors
    /// [`IssueError::NoAudience`], [`IssueError::ReservedClaim`] and [`IssueError::Unacceptable`]: the request asks for a
    /// token that a service would refuse. [`IssueError::Crypto`] when the operating system gives no random bytes.
    pub fn issue(&self, request: &IssueRequest) -> Result<String, IssueError> {
        let claims = self.claims(request)?;
        let header = json!({"alg": "EdDSA", "kid": self.kid, "typ": "at+jwt"});
        let mut token = format!("{}.{}", b64(header.to_string()), b64(claims.to_string()));
        let signature = self.pair.try_sign(token.as_bytes()).map_err(|_| IssueError::Crypto)?;
        token.push('.');
        token.push_str(&b64(signature));
        if token.len() > MAX_TOKEN_LEN {
            return Err(TokenError::TooLong.into());
        }
        Ok(token)
    }

    /// Signs a document that is not a token: the protected header and the signature of a JWS (RFC 7515) over these bytes, both
    /// as base64url. Its `typ` is `JOSE`, so the result is never taken for a token; `jku` is where readers find the key.
    ///
    /// # Errors
    /// [`IssueError::Crypto`].
    pub fn sign_document(&self, document: &[u8], jku: &str) -> Result<(String, String), IssueError> {
        let header = b64(json!({"alg": "EdDSA", "kid": self.kid, "typ": "JOSE", "jku": jku}).to_string());
        let input = format!("{header}.{}", b64(document));
        let signature = self.pair.try_sign(input.as_bytes()).map_err(|_| IssueError::Crypto)?;
        Ok((header, b64(signature)))
    }

    fn claims(&self, request: &IssueRequest) -> Result<Value, IssueError> {
        let (first, further) = request.audiences.split_first().ok_or(IssueError::NoAudience)?;
        if let Some(reserved) = claims::KNOWN.into_iter().find(|name| request.claims.contains_key(*name)) {
            return Err(IssueError::ReservedClaim(reserved));
        }
        let mut nonce = [0; 16];
        rand::fill(&mut nonce).map_err(|_| IssueError::Crypto)?;
        let mut claims = Map::new();
        let mut put = |name: &str, value: Value| drop(claims.insert(name.to_owned(), value));
        put("iss", self.issuer.as_str().into());
        put("sub", request.subject.as_str().into());
        put("aud", if further.is_empty() { first.as_str().into() } else { json!(request.audiences) });
        put("iat", request.now_s.into());
        put("exp", request.now_s.saturating_add(request.ttl_s).into());
        put("jti", b64(nonce).into());
        if !request.roles.is_empty() {
            put("roles", json!(request.roles));
        }
        if let Some(Confirmation { kid, jkt }) = &request.cnf {
            let members = [("kid", kid), ("jkt", jkt)].into_iter();
            let members = members.filter_map(|(name, value)| Some((name.to_owned(), Value::from(value.as_deref()?))));
            put("cnf", Value::Object(members.collect()));
        }
        if let Some(actor) = &request.actor {
            put("act", json!({ "sub": actor }));
        }
        claims.extend(request.claims.clone());
        let text = Value::Object(claims.clone()).to_string();
        let read_back = strict::object(text.as_bytes()).map_err(TokenError::ClaimsJson)?;
        claims::read(read_back, &self.issuer, &self.kid, &TokenRules::new(first.as_str()), "")?;
        Ok(Value::Object(claims))
    }

    fn assemble(
        issuer: &str,
        kid: String,
        seed: Zeroizing<[u8; 32]>,
        pair: Ed25519KeyPair,
    ) -> Result<Self, IssueError> {
        if !(1..=256).contains(&issuer.len()) || !issuer.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(IssueError::Issuer(issuer.to_owned()));
        }
        Ok(Self { issuer: issuer.to_owned(), kid, seed, pair })
    }
}

impl fmt::Debug for TokenIssuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenIssuer").field("issuer", &self.issuer).field("kid", &self.kid).finish_non_exhaustive()
    }
}

fn public_bytes(pair: &Ed25519KeyPair) -> Option<[u8; 32]> {
    pair.public_key().as_ref().try_into().ok()
}

fn text(members: &mut Map<String, Value>, name: &str) -> Option<String> {
    match members.remove(name) {
        Some(Value::String(text)) => Some(text),
        _ => None,
    }
}

/// A JWK of this kind takes about 300 bytes.
const MAX_KEY_LEN: usize = 8192;
