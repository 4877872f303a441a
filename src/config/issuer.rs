//! `[[tokens.issuer]]`: where an issuer's keys are, what its tokens look like, and for whom it may speak.
//! Never accepts two descriptions of one issuer, and never lets one of several speak for everybody by default.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::auth::{
    AgentRules, Bounds, ClaimPath, FetchError, HeaderMember, IssuerRules, KeyRules, KeySource, RoleRules, Symmetric,
    TokenAlgorithm, TokenId, TokenRules, TokenType,
};
use crate::files::{Content, FileTrust, read_trusted};
use crate::name::shown;
use crate::settings::Setting;

/// `[[tokens.issuer]]`
///
/// Exactly one of `jwks`, `jwks_url`, `discovery` and `openid_configuration` says where the keys are. Fetched keys come
/// over TLS. They are fetched again when they get old or a caller's token names an unknown one, and if that fails, they
/// are kept for `keep_s`.
///
/// ```toml
/// [[tokens.issuer]]
/// issuer = "https://keycloak.example/realms/agents"
/// discovery = true
/// typ = ["JWT"]
/// require = { typ = "Bearer" }
/// agent = { claim = "azp", own = { preferred_username = "service-account-{value}" } }
/// roles = { claim = "resource_access.sealwire.roles" }
/// may = { agents = ["planner", "worker-*"], roles = ["calc"] }
/// ```
#[derive(Debug, Clone, Deserialize, Setting)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct IssuerConfig {
    /// What `iss` must be.
    pub issuer: String,
    /// Its public keys, a JWKS file. Read again when it changes.
    #[setting(left_out = "the keys are elsewhere")]
    pub jwks: Option<PathBuf>,
    /// Its public keys, the `https` address of a JWKS.
    #[setting(left_out = "the keys are elsewhere")]
    pub jwks_url: Option<String>,
    /// Whether the keys are found by OpenID Connect discovery, at `/.well-known/openid-configuration` below the issuer.
    #[serde(default)]
    pub discovery: bool,
    /// The `https` address of the discovery document, if it is elsewhere. Its `issuer` must be this one.
    #[setting(left_out = "the keys are elsewhere")]
    pub openid_configuration: Option<String>,
    /// A PEM file with the trust anchors for fetching.
    #[setting(left_out = "the system's")]
    pub tls_ca: Option<PathBuf>,
    /// Whether addresses may be `http` if they are on this machine (a loopback address or `localhost`), for development.
    #[serde(default)]
    pub http_on_loopback: bool,
    /// How old fetched keys get before they are fetched again, if the issuer does not say.
    #[setting(unit = "seconds", min = 60, max = DAY_S, default = KeySource::REFRESH.as_secs())]
    pub refresh_s: Option<u64>,
    /// How long fetched keys are used if they cannot be fetched again. After that the issuer's tokens are refused.
    #[setting(unit = "seconds", min = 60, max = 7 * DAY_S, default = KeySource::KEEP.as_secs())]
    pub keep_s: Option<u64>,
    /// The algorithm of keys without `alg`; needed for RSA keys. If set, keys with another `alg` are ignored.
    #[setting(left_out = "keys without `alg` are ignored unless their type determines it")]
    pub algorithm: Option<TokenAlgorithm>,
    /// What a key's `use` must be if present.
    #[setting(default = KeyRules::new("").key_use)]
    pub key_use: Option<String>,
    /// Which `typ` the tokens may have.
    #[setting(not_empty, left_out = "`at+jwt`, and `JWT` with `accept_plain_jwt_typ`")]
    pub typ: Option<Vec<TokenType>>,
    /// Which additional members the tokens' header may have; they are ignored.
    #[serde(default)]
    pub header: Vec<HeaderMember>,
    /// What `aud` must name. `{environment}` and `{service}` stand for the names of this service.
    #[setting(left_out = "that of `[tokens]`")]
    pub audience: Option<String>,
    /// The longest lifetime of a token.
    #[setting(unit = "seconds", min = 1, max = TokenRules::MAX_LIFETIME_S, left_out = "that of `[tokens]`")]
    pub max_lifetime_s: Option<u64>,
    /// The claim that identifies a token, or `digest` to identify each token by its digest.
    #[serde(default)]
    pub id: TokenId,
    /// Claims that must have exactly this text: `{ idtyp = "app" }`.
    #[serde(default)]
    pub require: BTreeMap<ClaimPath, String>,
    /// Where roles come from.
    #[serde(default)]
    pub roles: RoleRules,
    /// Where the agent's name comes from, for issuers whose `sub` is not an agent's name. A token is delegated unless `own` makes it the
    /// agent's own.
    #[setting(left_out = "`act.sub`, or `sub`")]
    pub agent: Option<AgentRules>,
    /// For whom the issuer may speak. It may not speak for anything that a list does not cover; `"*"` covers everything.
    #[setting(left_out = "everybody, if it is the only issuer; with several issuers, it is required")]
    pub may: Option<Bounds>,
}

const DAY_S: u64 = 86_400;

/// What is wrong with an issuer's configuration.
#[derive(Debug, thiserror::Error)]
#[error("issuer `{}`: {fault}", shown(.issuer))]
pub struct IssuerFault {
    /// The issuer.
    pub issuer: String,
    /// What is wrong.
    pub fault: String,
}

impl IssuerConfig {
    pub(super) fn relative_to(&mut self, folder: &Path) {
        for path in [&mut self.jwks, &mut self.tls_ca].into_iter().flatten() {
            *path = folder.join(&*path);
        }
    }

    fn wrong(&self, fault: impl Into<String>) -> IssuerFault {
        IssuerFault { issuer: self.issuer.clone(), fault: fault.into() }
    }

    /// Which keys of the issuer's key set are used.
    pub(super) fn key_rules(&self, symmetric: Symmetric) -> KeyRules {
        let mut rules = KeyRules::new(&self.issuer);
        // A symmetric secret must not be on a web page, whatever the operator allows in files.
        rules.symmetric = if self.jwks.is_some() { symmetric } else { Symmetric::Refused };
        rules.algorithm = self.algorithm;
        rules.key_use = self.key_use.clone().unwrap_or(rules.key_use);
        rules
    }

    /// The rules for its tokens that differ from the default. `audience` fills in the service's names in a template.
    pub(super) fn rules(&self, audience: impl Fn(&str) -> String) -> IssuerRules {
        let mut rules = IssuerRules::default();
        rules.typ.clone_from(&self.typ);
        rules.header.clone_from(&self.header);
        rules.audience = self.audience.as_deref().map(audience);
        rules.max_lifetime_s = self.max_lifetime_s;
        rules.id = self.id.clone();
        rules.require.clone_from(&self.require);
        rules.roles = self.roles.clone();
        rules.agent.clone_from(&self.agent);
        rules.may.clone_from(&self.may);
        rules
    }

    /// Where its keys are fetched from, unless they are in a file.
    pub(super) fn key_source(&self, symmetric: Symmetric, files: &FileTrust) -> Result<Option<KeySource>, IssuerFault> {
        let rules = self.key_rules(symmetric);
        let anchors = self.tls_ca.as_ref().map(|path| {
            read_trusted(path, Content::Public, files).map_err(|error| match error.is_missing() {
                true => self.wrong("`tls_ca` names a file that is not there"),
                false => self.wrong(error.to_string()),
            })
        });
        let anchors = anchors.transpose()?;
        let (ca, plain) = (anchors.as_ref().map(|pem| pem.as_str()), self.http_on_loopback);
        let source = match (&self.jwks_url, &self.openid_configuration, self.discovery) {
            (Some(url), ..) => KeySource::jwks(rules, url, ca, plain),
            (None, Some(url), _) => KeySource::discovery(rules, Some(url), ca, plain),
            (None, None, true) => KeySource::discovery(rules, None, ca, plain),
            (None, None, false) => return Ok(None),
        };
        let mut source = source.map_err(|error: FetchError| self.wrong(error.to_string()))?;
        source.refresh = self.refresh_s.map_or(source.refresh, Duration::from_secs);
        source.keep = self.keep_s.map_or(source.keep, Duration::from_secs);
        Ok(Some(source))
    }

    fn check(&self) -> Result<(), IssuerFault> {
        let places =
            [self.jwks.is_some(), self.jwks_url.is_some(), self.discovery, self.openid_configuration.is_some()];
        if places.into_iter().filter(|named| *named).count() != 1 {
            return Err(self.wrong(
                "say where its keys are with exactly one of `jwks` (a file), `jwks_url`, `discovery = true` and \
                 `openid_configuration`",
            ));
        }
        let fetching = self.tls_ca.is_some() || self.http_on_loopback || self.refresh_s.or(self.keep_s).is_some();
        if self.jwks.is_some() && fetching {
            return Err(self.wrong(
                "`tls_ca`, `http_on_loopback`, `refresh_s` and `keep_s` are for keys that are fetched, and `jwks` is a file",
            ));
        }
        if self.typ.as_ref().is_some_and(Vec::is_empty) {
            return Err(self.wrong("`typ` accepts nothing"));
        }
        if let Some(role) = self.roles.impossible() {
            return Err(self.wrong(format!("`{}` in `roles.map` cannot be a role", shown(role))));
        }
        Ok(())
    }
}

/// Checks the descriptions of all issuers against each other.
pub(super) fn check_all(issuers: &[IssuerConfig]) -> Result<(), IssuerFault> {
    for (position, issuer) in issuers.iter().enumerate() {
        if issuers.iter().take(position).any(|earlier| earlier.issuer == issuer.issuer) {
            return Err(issuer.wrong("is described twice: put everything about it in one `[[tokens.issuer]]`"));
        }
        issuer.check()?;
    }
    match issuers {
        [] | [_] => Ok(()),
        several => several.iter().find(|issuer| issuer.may.is_none()).map_or(Ok(()), |issuer| {
            Err(issuer.wrong(
                "with several issuers, say for whom each may speak: \
                 `may = { agents = [\"…\"], roles = [\"…\"] }`, where [\"*\"] is everybody",
            ))
        }),
    }
}
