//! The credentials file: JSON, read strictly and written for its owner alone.
//! Never quotes one of its values in an error.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::{Credentials, CredentialsError, MemberFault, Token};
use crate::fault::{self, Fault};
use crate::files::{read_secret, write_secret};
use crate::jose::{b64, unb64};
use crate::name::Name;
use crate::nats::BusConfig;
use crate::settings::Setting;
use crate::wire::{AgentKey, Audience, Endpoint, KeyError, ProofAlgorithm, ServicePublicKey};

/// The file, member by member (SPEC.md, "Credentials file").
#[derive(Serialize, Deserialize, Setting)]
#[serde(deny_unknown_fields)]
struct File {
    version: u64,
    environment: String,
    agent: String,
    key: Key,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    token: Option<Zeroizing<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    token_file: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    token_command: Option<Vec<String>>,
    nats: BusConfig,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    prefix: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    inbox_prefix: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    method_subjects: bool,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    service_keys: BTreeMap<String, Vec<Pinned>>,
}

#[derive(Serialize, Deserialize, Setting)]
#[serde(deny_unknown_fields)]
struct Key {
    kid: String,
    alg: Algorithm,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    secret: Option<Zeroizing<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    seed: Option<Zeroizing<String>>,
}

#[derive(Serialize, Deserialize, Setting)]
enum Algorithm {
    #[serde(rename = "HS256")]
    Hs256,
    #[serde(rename = "EdDSA")]
    EdDsa,
}

#[derive(Serialize, Deserialize, Setting)]
#[serde(deny_unknown_fields)]
struct Pinned {
    kid: String,
    x: String,
}

/// A member that may be absent, but not `null`.
fn present<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

impl Credentials {
    /// Reads a credentials file. Blocks for as long as reading a small file takes.
    ///
    /// # Errors
    /// [`CredentialsError::File`] (also if anybody but its owner can read or write it), [`CredentialsError::Syntax`]
    /// and [`CredentialsError::Member`]: mistakes in the file.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, CredentialsError> {
        load(path.as_ref())
    }

    /// Writes a credentials file with mode 0600. With `replace`, an existing one is replaced in one step.
    ///
    /// # Errors
    /// [`CredentialsError::File`] (also if the file exists and `replace` is false), [`CredentialsError::NoToken`] and
    /// [`CredentialsError::NotSaveable`].
    pub fn save(&self, path: impl AsRef<Path>, replace: bool) -> Result<(), CredentialsError> {
        save(self, path.as_ref(), replace)
    }
}

fn load(path: &Path) -> Result<Credentials, CredentialsError> {
    let text = read_secret(path)?;
    let file: File = fault::json(&text).map_err(|Fault { line, column, reason }| {
        let path = path.to_owned();
        CredentialsError::Syntax { path, line, column, reason }
    })?;
    read(file, folder_of(path)).map_err(|fault| CredentialsError::Member { path: path.to_owned(), fault })
}

/// The folder of a file, as an absolute path: a relative one would change its meaning with the working directory, and
/// for a program that is started in that very folder.
fn folder_of(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    absolute.parent().unwrap_or(Path::new("")).to_owned()
}

fn read(file: File, folder: PathBuf) -> Result<Credentials, MemberFault> {
    if file.version != VERSION {
        return Err(MemberFault::Version(file.version));
    }
    let environment = Name::new(&file.environment).map_err(|_| MemberFault::Name("environment"))?;
    let agent = Name::new(&file.agent).map_err(|_| MemberFault::Name("agent"))?;
    file.nats.check().map_err(MemberFault::Nats)?;
    let mut credentials = Credentials::new(environment, agent, read_key(&file.key)?, file.nats);
    credentials.folder = folder;
    credentials.method_subjects = file.method_subjects;
    credentials.token = match (file.token, file.token_file, file.token_command) {
        (Some(token), None, None) => Token::Text(token),
        (None, Some(path), None) => Token::File(path),
        (None, None, Some(command)) if command.is_empty() => return Err(MemberFault::Command),
        (None, None, Some(command)) => Token::Command(command),
        _ => return Err(MemberFault::Token),
    };
    let prefix = file.prefix.as_deref().unwrap_or(Endpoint::PREFIX);
    let inbox_prefix = file.inbox_prefix.as_deref().unwrap_or(Endpoint::INBOX_PREFIX);
    credentials = credentials.prefixes(prefix, inbox_prefix).map_err(MemberFault::Prefix)?;
    for (service, pinned) in file.service_keys {
        let service = Name::new(&service).map_err(|_| MemberFault::Name("service_keys"))?;
        let audience = Audience::new(&credentials.environment, &service);
        let keys = pinned.iter().map(|pinned| read_pinned(pinned, &audience)).collect::<Result<_, _>>()?;
        credentials.service_keys.insert(service, keys);
    }
    Ok(credentials)
}

fn read_key(key: &Key) -> Result<AgentKey, MemberFault> {
    let bytes = |text: &str| unb64(text).map(Zeroizing::new).ok_or(MemberFault::Key(KeyError::Encoding));
    match (&key.alg, &key.secret, &key.seed) {
        (Algorithm::Hs256, Some(secret), None) => AgentKey::hmac(&key.kid, &bytes(secret)?).map_err(MemberFault::Key),
        (Algorithm::EdDsa, None, Some(seed)) => {
            let seed =
                <[u8; 32]>::try_from(bytes(seed)?.as_slice()).map_err(|_| MemberFault::Key(KeyError::Ed25519))?;
            AgentKey::ed25519(&key.kid, seed).map_err(MemberFault::Key)
        }
        _ => Err(MemberFault::KeyMember),
    }
}

fn read_pinned(pinned: &Pinned, audience: &Audience) -> Result<ServicePublicKey, MemberFault> {
    let key = ServicePublicKey::new(&pinned.kid, &pinned.x).map_err(MemberFault::ServiceKey)?;
    if pinned.kid.starts_with(&format!("svc:{audience}:")) { Ok(key) } else { Err(MemberFault::OtherService) }
}

fn save(credentials: &Credentials, path: &Path, replace: bool) -> Result<(), CredentialsError> {
    // Relative names stay correct only beside the file that they came from.
    let moved = credentials.folder != folder_of(path);
    let mut file = File {
        version: VERSION,
        environment: credentials.environment.to_string(),
        agent: credentials.agent.to_string(),
        key: write_key(&credentials.key),
        token: None,
        token_file: None,
        token_command: None,
        nats: if moved { credentials.bus() } else { credentials.bus.clone() },
        prefix: other(&credentials.prefix, Endpoint::PREFIX),
        inbox_prefix: other(&credentials.inbox_prefix, Endpoint::INBOX_PREFIX),
        method_subjects: credentials.method_subjects,
        service_keys: BTreeMap::new(),
    };
    match &credentials.token {
        Token::Text(token) => file.token = Some(token.clone()),
        Token::File(path) if moved => file.token_file = Some(credentials.folder.join(path)),
        Token::File(path) => file.token_file = Some(path.clone()),
        Token::Command(command) if !command.is_empty() => file.token_command = Some(command.clone()),
        Token::None | Token::Command(_) => return Err(CredentialsError::NoToken),
        Token::Source(_) => return Err(CredentialsError::NotSaveable),
    }
    for (service, keys) in &credentials.service_keys {
        let pinned = keys.iter().map(|key| Pinned { kid: key.kid().to_owned(), x: key.x() }).collect();
        file.service_keys.insert(service.to_string(), pinned);
    }
    // Serializing a struct of strings cannot fail, except for a path that is not UTF-8, which is an error of its own.
    let mut text = serde_json::to_string_pretty(&file).map(Zeroizing::new).map_err(|_| {
        let (path, reason) = (path.to_owned(), "a file name in it is not UTF-8".to_owned());
        CredentialsError::Syntax { path, line: 0, column: 0, reason }
    })?;
    text.push('\n');
    Ok(write_secret(path, &text, replace)?)
}

fn write_key(key: &AgentKey) -> Key {
    let secret = Zeroizing::new(b64(key.expose()));
    let kid = key.kid().to_owned();
    match key.algorithm() {
        ProofAlgorithm::Hs256 => Key { kid, alg: Algorithm::Hs256, secret: Some(secret), seed: None },
        ProofAlgorithm::EdDsa => Key { kid, alg: Algorithm::EdDsa, secret: None, seed: Some(secret) },
    }
}

fn other(value: &str, default: &str) -> Option<String> {
    (value != default).then(|| value.to_owned())
}

/// The only version of the format.
const VERSION: u64 = 1;

#[cfg(test)]
mod tests;
