//! Where an issuer's keys are, how to get them, and how long they are valid.
//! Never follows a redirect, never takes another issuer's document, never shows a query string.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio_rustls::rustls::ClientConfig;

use super::super::json;
use super::super::key::KeyRules;
use super::super::keys::{KeySet, MAX_SET_LEN};
use super::error::FetchError;
use super::http::{self, Got};
use crate::address::Address;

/// Where the keys of one issuer are fetched from, and how.
///
/// Fetched over TLS, with HTTP/1.1, without redirects, cookies, proxies or credentials; at most 256 KiB, as for files.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct KeySource {
    /// How long a whole fetch may take; 10 s.
    pub timeout: Duration,
    /// How long keys count as current if the issuer does not say (`Cache-Control: max-age`); 10 minutes.
    pub refresh: Duration,
    /// The shortest time that an issuer can set; a minute.
    pub youngest: Duration,
    /// The longest time that an issuer can set; a day.
    pub oldest: Duration,
    /// How long keys stay in force without being confirmed by the issuer; a day. Then its tokens are refused.
    pub keep: Duration,
    /// The least time from the start of one fetch to the next if that is for an unknown key id; 30 s.
    pub pause: Duration,
    rules: KeyRules,
    place: Place,
    /// Whether plain HTTP is allowed, to this machine itself.
    plain: bool,
    tls: Arc<ClientConfig>,
}

#[derive(Debug, Clone)]
enum Place {
    Keys(Address),
    Discovery(Address),
}

impl KeySource {
    /// The default of [`KeySource::refresh`].
    pub const REFRESH: Duration = Duration::from_secs(600);
    /// The default of [`KeySource::keep`].
    pub const KEEP: Duration = Duration::from_secs(86_400);

    /// The key set at an address. `anchors`: PEM trust anchors to use instead of the system's. `plain`: the address may be
    /// `http://`, to a loopback address, for development.
    ///
    /// # Errors
    /// [`FetchError::Address`] and [`FetchError::Anchors`]; whoever configured them is to blame.
    pub fn jwks(rules: KeyRules, url: &str, anchors: Option<&str>, plain: bool) -> Result<Self, FetchError> {
        Ok(Self::new(rules, Place::Keys(http::address(url, plain)?), http::trusting(anchors)?, plain))
    }

    /// The key set that an OpenID Connect discovery document names (`jwks_uri`). Without `url`, the document is where OpenID
    /// Connect Discovery 1.0 §4 puts it: at the issuer, below `/.well-known/openid-configuration`.
    ///
    /// # Errors
    /// As of [`KeySource::jwks`].
    pub fn discovery(
        rules: KeyRules,
        url: Option<&str>,
        anchors: Option<&str>,
        plain: bool,
    ) -> Result<Self, FetchError> {
        let usual = || format!("{}/.well-known/openid-configuration", rules.issuer.trim_end_matches('/'));
        let address = http::address(&url.map_or_else(usual, str::to_owned), plain)?;
        Ok(Self::new(rules, Place::Discovery(address), http::trusting(anchors)?, plain))
    }

    fn new(rules: KeyRules, place: Place, tls: Arc<ClientConfig>, plain: bool) -> Self {
        Self {
            timeout: Duration::from_secs(10),
            refresh: Self::REFRESH,
            youngest: Duration::from_secs(60),
            oldest: Duration::from_secs(86_400),
            keep: Self::KEEP,
            pause: Duration::from_secs(30),
            rules,
            place,
            plain,
            tls,
        }
    }

    pub(super) fn issuer(&self) -> &str {
        &self.rules.issuer
    }

    /// Fetches the text of the key set, within the timeout and `left`.
    pub(super) async fn fetch(&self, left: Option<Duration>) -> Result<Got, FetchError> {
        let limit = left.map_or(self.timeout, |left| left.min(self.timeout));
        let first = match &self.place {
            Place::Keys(address) | Place::Discovery(address) => address,
        };
        match tokio::time::timeout(limit, self.get(first)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(FetchError::Slow { url: first.to_string(), limit }),
        }
    }

    async fn get(&self, address: &Address) -> Result<Got, FetchError> {
        let got = http::get(address, &self.tls, MAX_SET_LEN).await?;
        if matches!(self.place, Place::Keys(_)) {
            return Ok(got);
        }
        let keys = self.found(address, &got.text)?;
        http::get(&keys, &self.tls, MAX_SET_LEN).await
    }

    /// Where the keys are, according to a discovery document.
    fn found(&self, address: &Address, document: &str) -> Result<Address, FetchError> {
        let url = || address.to_string();
        let document = json::object(document.as_bytes()).map_err(|fault| FetchError::Document { url: url(), fault })?;
        let text = |name: &str| document.get(name).and_then(Value::as_str);
        // OpenID Connect Discovery 1.0 §4.3: exactly. Otherwise one tenant's document could bring in another's keys.
        match text("issuer") {
            Some(issuer) if issuer == self.rules.issuer => {}
            other => return Err(FetchError::Issuer { url: url(), found: other.unwrap_or_default().to_owned() }),
        }
        let keys = text("jwks_uri").ok_or_else(|| FetchError::Address { url: url(), why: "names no jwks_uri" })?;
        http::address(keys, self.plain)
    }

    pub(super) fn read(&self, text: &str) -> Result<KeySet, FetchError> {
        let (Place::Keys(address) | Place::Discovery(address)) = &self.place;
        Ok(KeySet::read(text, &address.to_string(), &self.rules)?)
    }
}
