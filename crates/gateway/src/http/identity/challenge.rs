//! What a caller without a good token is told: which schemes, scopes and issuers there are (RFC 6750, RFC 9449, RFC 9728).
//! Never says what is wrong with a token beyond the error codes of these specifications.

use hyper::header::{HeaderValue, WWW_AUTHENTICATE};
use sealwire::internal::auth::DpopProof;
use serde::Serialize;

use super::presented::Scheme;
use crate::http::config::Dpop;
use crate::http::refusal::Refusal;

/// RFC 9728 §3.
pub const METADATA: &str = "/.well-known/oauth-protected-resource";

/// Makes challenges.
#[derive(Debug)]
pub(super) struct Challenges {
    /// Where callers find the gateway.
    pub(super) url: String,
    pub(super) issuers: Vec<String>,
    pub(super) services: Vec<String>,
    /// Whether a token's `scope` has to name the service.
    pub(super) scopes: bool,
    pub(super) dpop: Dpop,
}

impl Challenges {
    /// RFC 6750 §3, RFC 9449 §7.1, RFC 9728 §5.1: adds a challenge for each scheme. That of the scheme in use says what is wrong.
    pub(super) fn add(&self, refusal: Refusal, path: &str, used: Scheme, wrong: &str) -> Refusal {
        let challenges = self.all(path, used, wrong).into_iter();
        challenges.fold(refusal, |refusal, challenge| refusal.with(WWW_AUTHENTICATE, challenge))
    }

    pub(super) fn all(&self, path: &str, used: Scheme, wrong: &str) -> Vec<HeaderValue> {
        let schemes: &[Scheme] = match self.dpop {
            Dpop::Off => &[Scheme::Bearer],
            Dpop::Accept => &[Scheme::Bearer, Scheme::Dpop],
            Dpop::Require => &[Scheme::Dpop],
        };
        let (scopes, path) = match self.scopes_of(path).filter(|_| path.starts_with("/mcp")) {
            // The scope is the service's name; what the caller may do there is up to the policy.
            Some(scopes) if self.scopes => (format!("scope=\"{}\", ", scopes.join(" ")), path),
            Some(_) => (String::new(), path),
            None => (String::new(), ""),
        };
        let challenge = |scheme: &Scheme| {
            let wrong = if schemes.len() == 1 || *scheme == used { wrong } else { "" };
            let algs = match scheme {
                Scheme::Bearer => String::new(),
                Scheme::Dpop => format!("algs=\"{}\", ", DpopProof::ALGORITHMS),
            };
            let (name, url) = (scheme.as_str(), &self.url);
            let text = format!("{name} {wrong}{scopes}{algs}resource_metadata=\"{url}{METADATA}{path}\"");
            HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(name))
        };
        schemes.iter().map(challenge).collect()
    }

    /// RFC 9728: the metadata that callers need to get a token, of a resource with this name.
    ///
    /// `about` is the path they want to call, which follows the path of this document. A token is for the whole gateway, so `resource`,
    /// which `aud` names, is always the same; clients accept it for the addresses below it.
    pub(super) fn metadata(&self, about: &str, name: String) -> Option<Vec<u8>> {
        #[derive(Serialize)]
        struct Metadata<'a> {
            resource: &'a str,
            authorization_servers: &'a [String],
            #[serde(skip_serializing_if = "<[_]>::is_empty")]
            scopes_supported: &'a [String],
            bearer_methods_supported: &'static [&'static str],
            #[serde(skip_serializing_if = "Vec::is_empty")]
            dpop_signing_alg_values_supported: Vec<&'static str>,
            #[serde(skip_serializing_if = "std::ops::Not::not")]
            dpop_bound_access_tokens_required: bool,
            resource_name: String,
        }
        let scopes = self.scopes_of(about)?;
        let metadata = Metadata {
            resource: &self.url,
            authorization_servers: &self.issuers,
            scopes_supported: if self.scopes { scopes } else { &[] },
            bearer_methods_supported: if self.dpop == Dpop::Require { &[] } else { &["header"] },
            dpop_signing_alg_values_supported: if self.dpop == Dpop::Off {
                Vec::new()
            } else {
                DpopProof::ALGORITHMS.split(' ').collect()
            },
            dpop_bound_access_tokens_required: self.dpop == Dpop::Require,
            resource_name: name,
        };
        serde_json::to_vec(&metadata).ok()
    }

    /// The scopes for this path; `None` if clients look for no metadata under this path.
    fn scopes_of(&self, path: &str) -> Option<&[String]> {
        match path.strip_prefix("/mcp") {
            None if path.is_empty() => Some(&self.services),
            Some("") => Some(&self.services),
            Some(service) => {
                let service = service.strip_prefix('/')?;
                self.services.iter().find(|exposed| *exposed == service).map(std::slice::from_ref)
            }
            None => None,
        }
    }
}
