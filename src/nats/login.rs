//! How we prove to a broker who we are: every way to log in, for both kinds of connections.
//! Never logs in as anybody else than the configured user, and never signs what is no challenge.

use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use serde::Serialize;
use zeroize::Zeroizing;

use super::creds::{CredsFault, Life, UserCreds};
use super::error::{BusError, unreadable};
use super::nkey::{self, NKey};
use super::tls::TlsFiles;
use crate::clock::{Clock as _, SystemClock};
use crate::files::{Content, read_trusted};

/// How we log in.
#[derive(Clone, Default)]
pub(crate) struct Login {
    pub(super) user: User,
    pub(super) tls: TlsFiles,
}

/// As whom, and what proves it.
#[derive(Clone, Default)]
pub(super) enum User {
    /// The broker admits anybody, or knows us by our certificate.
    #[default]
    Unnamed,
    Password(String, Zeroizing<String>),
    Token(Zeroizing<String>),
    /// The member of the configuration, and the seed.
    NKey(&'static str, Zeroizing<String>),
    /// A `.creds` file, read again for each connection.
    Creds(PathBuf),
    /// The access token of the agent's calls, a fresh one for each connection; `None` where there are no calls.
    AccessToken(Option<Arc<dyn LoginTokens>>),
}

/// Where the access tokens come from with which an agent logs in.
pub trait LoginTokens: Send + Sync + fmt::Debug + 'static {
    /// A token that has not expired, a new one if it is time for that; or why there is none.
    fn token(&self) -> Pin<Box<dyn Future<Output = Result<LoginToken, String>> + Send + '_>>;

    /// The broker refused the last one.
    fn refused(&self);
}

/// An access token to log in with.
pub struct LoginToken {
    pub(crate) text: Zeroizing<String>,
    /// From when on there should be a newer one, and when it ends, in seconds since the Unix epoch.
    pub(crate) renew_s: u64,
    pub(crate) expires_s: u64,
}

/// What one connection logs in with: files have been read.
pub(super) enum Credential {
    Unnamed,
    Password(String, Zeroizing<String>),
    Token(Zeroizing<String>),
    NKey(NKey),
    Creds(UserCreds),
    AccessToken(LoginToken),
}

/// The members of `CONNECT` that say who we are.
#[derive(Default, Serialize)]
pub(super) struct Proof {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pass: Option<Zeroizing<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) auth_token: Option<Zeroizing<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) jwt: Option<Zeroizing<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) nkey: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sig: Option<String>,
}

/// Omits the token.
impl fmt::Debug for LoginToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LoginToken(until {})", self.expires_s)
    }
}

impl Login {
    /// Logs in with these tokens, if it is with the access token of calls.
    pub(super) fn with_tokens(&mut self, tokens: Option<Arc<dyn LoginTokens>>) {
        if let User::AccessToken(source) = &mut self.user {
            *source = tokens;
        }
    }

    /// What to do about a login that ends in `left_s` seconds. `now` is what comes instead of a later one.
    pub(super) fn ends_in(&self, left_s: u64, now: &str) -> String {
        match &self.user {
            User::AccessToken(_) => {
                format!("the access token, and with it the connection, ends in {left_s} s: there is {now}")
            }
            _ => ends_in(left_s, now),
        }
    }

    /// The broker refused what the last connection logged in with.
    pub(super) fn refused(&self) {
        if let User::AccessToken(Some(tokens)) = &self.user {
            tokens.refused();
        }
    }

    /// Reads what the next connection logs in with.
    pub(super) async fn credential(&self) -> Result<Credential, BusError> {
        if let User::AccessToken(Some(tokens)) = &self.user {
            let token = tokens.token().await;
            return token.map(Credential::AccessToken).map_err(|reason| BusError::AccessToken { reason });
        }
        self.stored_credential().await
    }

    /// The same for connections that are no agent's, and so have no access token.
    pub(super) async fn stored_credential(&self) -> Result<Credential, BusError> {
        let User::Creds(path) = &self.user else { return self.read() };
        let login = self.clone();
        let read = tokio::task::spawn_blocking(move || login.read()).await;
        read.unwrap_or_else(|error| Err(BusError::Creds { path: path.clone(), reason: error.to_string() }))
    }

    /// As [`Login::credential`], but blocks.
    pub(super) fn read(&self) -> Result<Credential, BusError> {
        Ok(match &self.user {
            User::Unnamed => Credential::Unnamed,
            User::Password(name, password) => Credential::Password(name.clone(), password.clone()),
            User::Token(token) => Credential::Token(token.clone()),
            User::NKey(member, seed) => {
                let unusable = |_| BusError::Member { member: (*member).to_owned(), reason: nkey::fault(seed) };
                Credential::NKey(NKey::from_seed(seed).map_err(unusable)?)
            }
            User::Creds(path) => {
                let wrong = |fault: CredsFault| BusError::Creds { path: path.clone(), reason: fault.to_string() };
                let text = read_trusted(path, Content::Secret, &self.tls.trust);
                let creds = UserCreds::parse(&text.map_err(|error| unreadable("creds_file", error))?).map_err(wrong)?;
                creds.life.check(SystemClock.now_s()).map_err(wrong)?;
                Credential::Creds(creds)
            }
            User::AccessToken(_) => return Err(of_calls()),
        })
    }
}

/// There is no access token to log in with.
pub(super) fn of_calls() -> BusError {
    let reason = "is for the credentials of an agent: nothing else has an access token";
    BusError::Member { member: "access_token".to_owned(), reason }
}

/// When a login ends by itself.
#[derive(Debug)]
pub(crate) struct LoginEnd {
    /// In seconds since the Unix epoch.
    pub(crate) until: u64,
    /// If that is soon, what to do.
    pub(crate) soon: Option<String>,
}

/// What to do about a login that ends in `left_s` seconds. `now` is what is in the file.
pub(super) fn ends_in(left_s: u64, now: &str) -> String {
    format!(
        "the user JWT ends in {left_s} s: replace `creds_file`, which is read again without a restart; now it holds {now}"
    )
}

impl Credential {
    /// Answers the broker's challenge.
    pub(super) fn prove(self, nonce: Option<&str>) -> Result<Proof, BusError> {
        let mut proof = Proof::default();
        let nonce = nonce.filter(|nonce| !nonce.is_empty());
        if nonce.is_some_and(|nonce| nonce.len() > LONGEST_NONCE || !nonce.bytes().all(|byte| byte.is_ascii_graphic()))
        {
            return Err(BusError::Challenge(NO_NONCE));
        }
        match (self, nonce) {
            (Self::Password(user, password), _) => (proof.user, proof.pass) = (Some(user), Some(password)),
            (Self::Token(token), _) => proof.auth_token = Some(token),
            (Self::AccessToken(token), _) => proof.auth_token = Some(token.text),
            (Self::NKey(key), Some(nonce)) => (proof.nkey, proof.sig) = (Some(key.public()), Some(key.sign(nonce))),
            (Self::Creds(UserCreds { jwt, key, .. }), Some(nonce)) => {
                (proof.jwt, proof.sig) = (Some(jwt), Some(key.sign(nonce)));
            }
            // Without a challenge, a signature would be good for ever.
            (Self::Creds(_), None) => return Err(BusError::Challenge(NO_CHALLENGE)),
            (Self::Unnamed | Self::NKey(_), _) => {}
        }
        Ok(proof)
    }

    /// When the login ends by itself, if it does.
    pub(super) fn life(&self) -> Option<Life> {
        match self {
            Self::Creds(creds) => Some(creds.life),
            Self::AccessToken(token) => Some(Life::renewed_from(token.renew_s, token.expires_s)),
            _ => None,
        }
    }
}

const NO_CHALLENGE: &str = "has none, so it is not in operator mode: check the address, or leave out `creds_file` for a broker that \
     admits anybody";
const NO_NONCE: &str = "has one that no nats-server makes: nothing was signed; check the address";
/// The longest challenge, in bytes; a nats-server's has 15.
const LONGEST_NONCE: usize = 256;

/// Omits the secrets.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = match &self.user {
            User::Unnamed => "none",
            User::Password(..) => "password",
            User::Token(_) => "token",
            User::NKey(..) => "nkey",
            User::Creds(_) => "creds",
            User::AccessToken(_) => "access token",
        };
        f.debug_struct("Login").field("way", &way).finish_non_exhaustive()
    }
}
