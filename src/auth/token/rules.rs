//! How one issuer writes its tokens, and for whom it may speak.
//! Never widens what a token says: a text that no rule covers is left out or refused, never guessed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::header::HeaderMember;
use super::path::{ClaimPath, Pattern};
use crate::settings::{Kind, Setting};

/// What a token must satisfy besides its signature.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TokenRules {
    /// The one audience that `aud` must name: `<environment>/<service>` unless configured otherwise.
    pub audience: String,
    /// How far the issuer's clock and ours may differ, in seconds; 5 by default. More than 30 counts as 30.
    pub leeway_s: u64,
    /// The longest allowed `exp - iat`, in seconds; 3600 by default. More than a day counts as a day.
    pub max_lifetime_s: u64,
    /// Whether `typ` may also be `JWT`, for issuers that do not follow RFC 9068. Off by default: with it on, an ID
    /// token of the same issuer and audience passes for an access token.
    pub accept_plain_jwt_typ: bool,
    /// Whether every token must name the key of its bearer (`cnf`), so that a stolen token is useless with another
    /// key. Off by default.
    pub require_cnf: bool,
    /// Whether symmetric (HS256) keys are used. Refused by default: anyone who can verify with one can also issue.
    pub symmetric: Symmetric,
    /// The rules for issuers that differ, by `iss`.
    pub issuers: BTreeMap<String, IssuerRules>,
}

impl TokenRules {
    /// The largest [`TokenRules::leeway_s`]: the largest clock difference that the wire protocol tolerates anywhere.
    pub const MAX_LEEWAY_S: u64 = 30;
    /// The largest [`TokenRules::max_lifetime_s`], a day: beyond that a token is a password.
    pub const MAX_LIFETIME_S: u64 = 86_400;

    /// The default rules for a service with this audience.
    #[must_use]
    pub fn new(audience: impl Into<String>) -> Self {
        Self {
            audience: audience.into(),
            leeway_s: 5,
            max_lifetime_s: 3600,
            accept_plain_jwt_typ: false,
            require_cnf: false,
            symmetric: Symmetric::Refused,
            issuers: BTreeMap::new(),
        }
    }

    /// The rules of one issuer.
    pub(super) fn of(&self, issuer: &str) -> &IssuerRules {
        self.issuers.get(issuer).unwrap_or_else(|| IssuerRules::usual())
    }

    /// These rules with every number limited to its range, so that a typo does not make tokens immortal.
    pub(super) fn bounded(mut self) -> Self {
        self.leeway_s = self.leeway_s.min(Self::MAX_LEEWAY_S);
        self.max_lifetime_s = self.max_lifetime_s.min(Self::MAX_LIFETIME_S);
        for issuer in self.issuers.values_mut() {
            issuer.max_lifetime_s = issuer.max_lifetime_s.map(|longest| longest.min(Self::MAX_LIFETIME_S));
        }
        self
    }
}

/// Whether symmetric issuer keys (`oct`, HS256) are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Symmetric {
    /// A set with such a key is refused.
    #[default]
    Refused,
    /// A set of only such keys is accepted, with a warning in the log.
    Allowed,
}

/// How one issuer's tokens differ. The default is what RFC 9068 asks for: `at+jwt`, `jti`, `roles`, and `sub` for the
/// agent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct IssuerRules {
    /// Which `typ` the header may have; `None` leaves it to [`TokenRules`].
    pub typ: Option<Vec<TokenType>>,
    /// Which further header members are tolerated. They are never used.
    pub header: Vec<HeaderMember>,
    /// What `aud` must name; `None` for that of [`TokenRules`].
    pub audience: Option<String>,
    /// The longest allowed `exp - iat`, in seconds; `None` for that of [`TokenRules`].
    pub max_lifetime_s: Option<u64>,
    /// What identifies a token.
    pub id: TokenId,
    /// Claims that must be present with exactly this text.
    pub require: BTreeMap<ClaimPath, String>,
    /// Where roles come from.
    pub roles: RoleRules,
    /// Where the agent's name comes from; `None` for `act.sub`, or `sub`.
    pub agent: Option<AgentRules>,
    /// Whom the issuer may speak for; `None` for everybody.
    pub may: Option<Bounds>,
}

impl IssuerRules {
    /// The default, for issuers without rules of their own.
    fn usual() -> &'static Self {
        static USUAL: LazyLock<IssuerRules> = LazyLock::new(IssuerRules::default);
        &USUAL
    }
}

/// A `typ` of token headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Setting)]
pub enum TokenType {
    /// `at+jwt` and its long form `application/at+jwt` (RFC 9068).
    #[serde(rename = "at+jwt")]
    AccessToken,
    /// `JWT`: an ID token of the same issuer and audience passes as well, unless a required claim tells them apart.
    #[serde(rename = "JWT")]
    Jwt,
    /// `JOSE`, as a SPIFFE JWT-SVID may have it.
    #[serde(rename = "JOSE")]
    Jose,
    /// No `typ` at all; the same caution as for `JWT`.
    #[serde(rename = "absent")]
    Absent,
}

impl TokenType {
    /// Whether a header with this `typ` is of this type.
    pub(super) fn is(self, typ: Option<&str>) -> bool {
        match self {
            Self::AccessToken => matches!(typ, Some("at+jwt" | "application/at+jwt")),
            Self::Jwt => typ == Some("JWT"),
            Self::Jose => typ == Some("JOSE"),
            Self::Absent => typ.is_none(),
        }
    }
}

/// What identifies a token, for logs and revocation.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "ClaimPath")]
pub enum TokenId {
    /// A claim, which must be present.
    Claim(ClaimPath),
    /// base64url(SHA-256) of the token up to its second dot, for issuers that give tokens no id.
    Digest,
}

impl Default for TokenId {
    fn default() -> Self {
        Self::Claim(ClaimPath::of("jti"))
    }
}

impl Setting for TokenId {
    fn kind() -> Kind {
        Kind::Claim
    }

    fn value(&self) -> Value {
        match self {
            Self::Claim(path) => path.value(),
            Self::Digest => "digest".into(),
        }
    }
}

impl From<ClaimPath> for TokenId {
    /// No issuer has a claim called `digest`.
    fn from(path: ClaimPath) -> Self {
        if path == ClaimPath::of("digest") { Self::Digest } else { Self::Claim(path) }
    }
}

/// Where roles come from.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Setting)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct RoleRules {
    /// The claim.
    pub claim: ClaimPath,
    /// Its format: a list, or one text of words, like `scope`.
    pub format: RoleFormat,
    /// Only texts that begin with this are roles; the prefix is removed.
    #[setting(left_out = "all texts count")]
    pub prefix: Option<String>,
    /// Only texts listed here are roles, with these names. Applied after `prefix`.
    #[setting(left_out = "roles keep their names")]
    pub map: Option<BTreeMap<String, String>>,
}

impl Default for RoleRules {
    fn default() -> Self {
        Self { claim: ClaimPath::of("roles"), format: RoleFormat::List, prefix: None, map: None }
    }
}

/// How a claim with roles is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Setting)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum RoleFormat {
    /// An array of strings.
    List,
    /// One string of words separated by spaces, like `scope`.
    Words,
}

/// The claim with roles does not have the form that it should.
#[derive(Debug)]
pub(super) struct NotRoles;

impl RoleRules {
    /// The roles in these claims. Without `prefix` and `map` every text must be a role; with either of them, texts that
    /// are meant for somebody else are skipped.
    pub(super) fn read(&self, claims: &Map<String, Value>) -> Result<BTreeSet<String>, NotRoles> {
        let texts: Vec<&str> = match (self.claim.find(claims).map_err(|_| NotRoles)?, self.format) {
            (None, _) => return Ok(BTreeSet::new()),
            (Some(Value::Array(list)), RoleFormat::List) => {
                list.iter().map(Value::as_str).collect::<Option<_>>().ok_or(NotRoles)?
            }
            (Some(Value::String(words)), RoleFormat::Words) => {
                words.split(' ').filter(|word| !word.is_empty()).collect()
            }
            _ => return Err(NotRoles),
        };
        // Counted before the set merges duplicates: a list is bounded as it is written.
        let chosen: Vec<&str> = texts.into_iter().filter_map(|text| self.choose(text)).collect();
        if chosen.len() > MAX_ROLES {
            return Err(NotRoles);
        }
        chosen.into_iter().map(|role| is_role(role).then(|| role.to_owned()).ok_or(NotRoles)).collect()
    }

    fn choose<'a>(&'a self, text: &'a str) -> Option<&'a str> {
        let text = match &self.prefix {
            Some(prefix) => text.strip_prefix(prefix.as_str())?,
            None => text,
        };
        match &self.map {
            Some(map) => map.get(text).map(String::as_str),
            None => Some(text),
        }
    }

    /// A role in `map` that no token could give.
    pub(crate) fn impossible(&self) -> Option<&str> {
        self.map.iter().flat_map(BTreeMap::values).map(String::as_str).find(|role| !is_role(role))
    }
}

/// 1 to 64 of `[A-Za-z0-9_.:/-]`.
fn is_role(role: &str) -> bool {
    (1..=64).contains(&role.len()) && role.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.:/-".contains(&b))
}

const MAX_ROLES: usize = 64;

/// Where the agent's name comes from, for issuers whose `sub` is not an agent's name. The name must be the owner of the
/// key that the message is signed with.
///
/// Providers issue tokens to an application on behalf of a user, and to the application itself. Mistaking one for the
/// other would give the agent the user's roles, so a token is the agent's own only if `own` says so; any other is
/// delegated: the agent acts on behalf of `sub`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Setting)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct AgentRules {
    /// The claim, such as `azp`, `client_id` or `sub`.
    pub claim: ClaimPath,
    /// What the text must begin with; it is removed.
    #[serde(default)]
    #[setting(left_out = "nothing is removed")]
    pub prefix: Option<String>,
    /// Only texts listed here name an agent, with these names. Applied after `prefix`.
    #[serde(default)]
    #[setting(left_out = "the text is the name")]
    pub map: Option<BTreeMap<String, String>>,
    /// A token is the agent's own if these claims have exactly these texts; `{value}` stands for the text of `claim`. Not needed if
    /// `claim` is `sub`.
    #[serde(default)]
    pub own: BTreeMap<ClaimPath, String>,
}

impl AgentRules {
    /// The agent's name, and whether the token is its own. `None` if the token names no agent that we know.
    pub(super) fn read(&self, claims: &Map<String, Value>) -> Option<(String, bool)> {
        let value = self.claim.text(claims)?;
        let text = match &self.prefix {
            Some(prefix) => value.strip_prefix(prefix.as_str())?,
            None => value,
        };
        let name = match &self.map {
            Some(map) => map.get(text)?.as_str(),
            None => text,
        };
        let own = if self.claim == ClaimPath::of("sub") {
            true
        } else {
            let holds = |(claim, wanted): (&ClaimPath, &String)| {
                claim.text(claims) == Some(wanted.replace("{value}", value).as_str())
            };
            !self.own.is_empty() && self.own.iter().all(holds)
        };
        Some((name.to_owned(), own))
    }
}

/// Whom an issuer may speak for. Whatever a list does not cover is forbidden: an empty list allows nobody. An entry is
/// an exact text, or a prefix followed by `*`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Setting)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct Bounds {
    /// Agents: the owners of keys.
    pub agents: Vec<Pattern>,
    /// Roles.
    pub roles: Vec<Pattern>,
    /// On whose behalf agents may act: the subjects of delegated tokens.
    pub subjects: Vec<Pattern>,
}

impl Bounds {
    /// The first thing that the issuer may not say: its kind, and its text.
    pub(super) fn breach<'a>(
        &self,
        agent: &'a str,
        on_behalf_of: Option<&'a str>,
        roles: &'a BTreeSet<String>,
    ) -> Option<(&'static str, &'a str)> {
        let outside = |list: &[Pattern], text: &str| !list.iter().any(|pattern| pattern.matches(text));
        if outside(&self.agents, agent) {
            return Some(("agent", agent));
        }
        if let Some(subject) = on_behalf_of.filter(|subject| outside(&self.subjects, subject)) {
            return Some(("subject", subject));
        }
        roles.iter().find(|role| outside(&self.roles, role)).map(|role| ("role", role.as_str()))
    }
}

impl fmt::Display for TokenType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AccessToken => "at+jwt",
            Self::Jwt => "JWT",
            Self::Jose => "JOSE",
            Self::Absent => "absent",
        })
    }
}
