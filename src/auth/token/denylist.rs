//! What has been revoked: tokens, subjects up to a time, keys.
//! Never forgets an entry by itself: what is listed is denied.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;

use super::file::Opened;
use super::{AccessToken, FileError, JsonFault, TokenError, json};
use crate::fault;
use crate::files::FileTrust;
use crate::settings::Setting;

/// What has been revoked. Immutable; the empty list (`Denylist::default()`) revokes nothing.
///
/// The file:
///
/// ```
/// use sealwire::internal::auth::Denylist;
///
/// let list = Denylist::parse(
///     r#"{"tokens":   [{"jti": "t-0001", "until": 1790000800}],
///         "subjects": [{"sub": "agent-7f3a", "before": 1790000000}],
///         "keys":     ["idp-0", "agent-99.k1"]}"#,
///     "deny.json",
/// )?;
/// assert!(list.denies_key("agent-99.k1"));
/// # Ok::<(), sealwire::errors::DenylistError>(())
/// ```
///
/// - `tokens` by `jti`. `until` is when the token itself ends (seconds since the Unix epoch): from then on the entry can
///   be removed, see [`Denylist::without_ended`]. Until it is removed, it denies.
/// - `subjects`: tokens with this `sub` or `act.sub` whose `iat` lies before `before`.
/// - `keys`: key ids, of issuers' keys and of agents' proof keys alike.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Denylist {
    tokens: BTreeMap<String, u64>,
    subjects: BTreeMap<String, u64>,
    keys: BTreeSet<String>,
}

/// Why a deny list was refused. The previous list stays in force.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DenylistError {
    /// The file could not be read.
    #[error("deny list `{origin}`: {cause}")]
    File {
        /// The file.
        origin: String,
        /// What the operating system, or our bounds, said.
        cause: FileError,
    },
    /// The text is not strict JSON.
    #[error("deny list `{origin}` {fault}")]
    Json {
        /// Where the list came from.
        origin: String,
        /// What is wrong.
        fault: JsonFault,
    },
    /// A member is unknown, incomplete, or of the wrong type: an entry that we do not understand might revoke something.
    #[error("deny list `{origin}`: {cause}")]
    Form {
        /// Where the list came from.
        origin: String,
        /// Where, and what is wrong.
        cause: String,
    },
}

impl Denylist {
    /// The largest file that is read, in bytes: 1 MiB, about ten thousand entries.
    pub const MAX_BYTES: usize = 1024 * 1024;

    /// Reads a deny list from a file of at most [`Denylist::MAX_BYTES`].
    ///
    /// # Errors
    /// Every [`DenylistError`]; whoever wrote the file is to blame.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, DenylistError> {
        Self::from_trusted_file(path.as_ref(), &FileTrust::default())
    }

    /// As [`Denylist::from_file`], and also accepts files of the users and groups in `trust`.
    pub(crate) fn from_trusted_file(path: &Path, trust: &FileTrust) -> Result<Self, DenylistError> {
        let origin = path.display().to_string();
        match Opened::read(path, Self::MAX_BYTES, trust) {
            Ok(opened) => Self::parse(&opened.text, &origin),
            Err(cause) => Err(DenylistError::File { origin, cause }),
        }
    }

    /// Reads a deny list. `origin` names where the text came from, for error messages.
    ///
    /// # Errors
    /// [`DenylistError::Json`] and [`DenylistError::Form`]; whoever wrote the text is to blame.
    pub fn parse(text: &str, origin: &str) -> Result<Self, DenylistError> {
        json::object(text.as_bytes()).map_err(|fault| DenylistError::Json { origin: origin.to_owned(), fault })?;
        let written: Written = fault::json(text)
            .map_err(|fault| DenylistError::Form { origin: origin.to_owned(), cause: fault.to_string() })?;
        let mut list = Self::default();
        for DeniedToken { jti, until } in written.tokens {
            list = list.with_token(jti, until);
        }
        for DeniedSubject { sub, before } in written.subjects {
            list = list.with_subject(sub, before);
        }
        list.keys.extend(written.keys);
        Ok(list)
    }

    /// This list plus the token with this `jti`; `until` is the token's `exp`.
    #[must_use]
    pub fn with_token(mut self, jti: impl Into<String>, until: u64) -> Self {
        let kept = self.tokens.entry(jti.into()).or_default();
        *kept = until.max(*kept);
        self
    }

    /// This list plus every token of this subject or actor with an `iat` before `before`.
    #[must_use]
    pub fn with_subject(mut self, sub: impl Into<String>, before: u64) -> Self {
        let kept = self.subjects.entry(sub.into()).or_default();
        *kept = before.max(*kept);
        self
    }

    /// This list plus the key with this id.
    #[must_use]
    pub fn with_key(mut self, kid: impl Into<String>) -> Self {
        self.keys.insert(kid.into());
        self
    }

    /// Everything that either list denies.
    #[must_use]
    pub fn merge(mut self, other: Self) -> Self {
        self = other.tokens.into_iter().fold(self, |list, (jti, until)| list.with_token(jti, until));
        self = other.subjects.into_iter().fold(self, |list, (sub, before)| list.with_subject(sub, before));
        self.keys.extend(other.keys);
        self
    }

    /// This list without the tokens that ended more than an hour before `now_s`. The hour covers every leeway and any
    /// clock that is not plainly wrong.
    #[must_use]
    pub fn without_ended(mut self, now_s: u64) -> Self {
        self.tokens.retain(|_, until| until.saturating_add(DENIED_FOR_S) > now_s);
        self
    }

    /// This list as the text of a file.
    #[must_use]
    pub fn to_json(&self) -> String {
        let tokens: Vec<_> =
            self.tokens.iter().map(|(jti, until)| serde_json::json!({ "jti": jti, "until": until })).collect();
        let subjects: Vec<_> =
            self.subjects.iter().map(|(sub, before)| serde_json::json!({ "sub": sub, "before": before })).collect();
        format!("{:#}\n", serde_json::json!({ "tokens": tokens, "subjects": subjects, "keys": self.keys }))
    }

    /// Whether the key with this id is revoked: an issuer's key or an agent's proof key.
    #[must_use]
    pub fn denies_key(&self, kid: &str) -> bool {
        self.keys.contains(kid)
    }

    /// Judges a token. Nested actors are ignored: they no longer act.
    pub(super) fn judge(&self, token: &AccessToken) -> Result<(), TokenError> {
        if self.denies_key(&token.key_id) {
            return Err(TokenError::KeyDenied(token.key_id.clone()));
        }
        // By every name that the token has: whoever revokes it need not know which of them its issuer uses.
        let claimed = |name: &str| token.claims.get(name).and_then(serde_json::Value::as_str);
        let names = [Some(token.id.as_str()), Some(token.digest.as_str()), claimed("jti")];
        if names.into_iter().flatten().any(|name| self.tokens.contains_key(name)) {
            return Err(TokenError::TokenDenied);
        }
        let old = |name: &&str| self.subjects.get(*name).is_some_and(|before| token.issued_at < *before);
        // If the issuer has another name for the agent, either name may be on the list.
        let names = [Some(token.subject.as_str()), token.actor.as_deref(), claimed("sub")];
        match names.into_iter().flatten().find(old) {
            Some(name) => Err(TokenError::SubjectDenied(name.to_owned())),
            None => Ok(()),
        }
    }
}

/// How long a token stays on the list after its end, in seconds.
pub(crate) const DENIED_FOR_S: u64 = 3_600;

/// The file as written. A list that is left out is empty; a misspelt one is an unknown member, and so an error.
#[derive(Default, Deserialize, Setting)]
#[serde(default, deny_unknown_fields)]
struct Written {
    tokens: Vec<DeniedToken>,
    subjects: Vec<DeniedSubject>,
    keys: Vec<String>,
}

#[derive(Deserialize, Setting)]
#[serde(deny_unknown_fields)]
struct DeniedToken {
    jti: String,
    until: u64,
}

#[derive(Deserialize, Setting)]
#[serde(deny_unknown_fields)]
struct DeniedSubject {
    sub: String,
    before: u64,
}
