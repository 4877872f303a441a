//! `[tokens]`: whose access tokens are accepted, and the verifier that this section describes.
//! Never accepts tokens of an issuer that is not fully described.

use std::path::Path;

use super::TokensConfig;
use super::error::ConfigError;
use super::issuer::{self, IssuerFault};
use crate::auth::{KeySet, KeySource, Symmetric, TokenRules, TokenVerifier};
use crate::files::FileTrust;

impl TokensConfig {
    /// Makes relative paths relative to this folder.
    pub fn relative_to(&mut self, folder: &Path) {
        for issuer in &mut self.issuer {
            issuer.relative_to(folder);
        }
    }

    /// A token verifier for `audience`, unless another one is configured, with nothing revoked, for programs that accept tokens
    /// but are not services. Keys that are not in a file are fetched, as described at [`TokenVerifier::fetch`].
    ///
    /// # Errors
    /// [`ConfigError::NoIssuer`], [`ConfigError::Issuer`], and errors in key files.
    ///
    /// Cancel safety: dropping the future ends every fetch.
    pub async fn verifier(&self, audience: &str, files: &FileTrust) -> Result<TokenVerifier, ConfigError> {
        let sources = self.key_sources(files)?;
        let rules = self.rules(audience, str::to_owned);
        Ok(TokenVerifier::new(rules, self.keys(files)?).fetch(sources).await)
    }

    /// The keys of issuers that have a key file, as the file is now.
    ///
    /// # Errors
    /// As for [`TokensConfig::verifier`].
    pub fn keys(&self, files: &FileTrust) -> Result<KeySet, ConfigError> {
        if self.issuer.is_empty() {
            return Err(ConfigError::NoIssuer);
        }
        let named = self.issuer.iter().filter_map(|issuer| Some((issuer, issuer.jwks.as_ref()?)));
        let mut sets = Vec::new();
        for (issuer, file) in named {
            let set = KeySet::read_trusted_file(file, &issuer.key_rules(self.symmetric()), files)?;
            for key in set.left_out().take(16) {
                tracing::warn!(
                    target: "sealwire::reload",
                    resource = "token keys",
                    issuer = issuer.issuer,
                    key = crate::name::shown(&key.key),
                    reason = %key.fault,
                    "key left out"
                );
            }
            sets.push(set);
        }
        if sets.is_empty() { Ok(KeySet::default()) } else { Ok(KeySet::merge(sets)?) }
    }

    /// Where keys are fetched from, for issuers whose keys are not in a file.
    pub(super) fn key_sources(&self, files: &FileTrust) -> Result<Vec<KeySource>, ConfigError> {
        issuer::check_all(&self.issuer)?;
        let sources = self.issuer.iter().filter_map(|issuer| issuer.key_source(self.symmetric(), files).transpose());
        Ok(sources.collect::<Result<_, IssuerFault>>()?)
    }

    /// The rules for tokens. `audience` is what `aud` must name by default; `template` fills in a configured audience.
    pub(super) fn rules(&self, audience: &str, template: impl Fn(&str) -> String) -> TokenRules {
        let mut rules = TokenRules::new(self.audience.as_deref().unwrap_or(audience));
        rules.leeway_s = self.leeway_s.unwrap_or(rules.leeway_s);
        rules.max_lifetime_s = self.max_lifetime_s.unwrap_or(rules.max_lifetime_s);
        rules.require_cnf = self.require_cnf;
        rules.accept_plain_jwt_typ = self.accept_plain_jwt_typ;
        rules.symmetric = self.symmetric();
        rules.issuers = self.issuer.iter().map(|issuer| (issuer.issuer.clone(), issuer.rules(&template))).collect();
        rules
    }

    fn symmetric(&self) -> Symmetric {
        if self.accept_symmetric { Symmetric::Allowed } else { Symmetric::Refused }
    }
}
