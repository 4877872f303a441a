//! How to reach the broker: addresses, credentials and TLS.
//! Never prints a secret, and never logs in as any other user than the configured one.

mod check;

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::dial::{DialError, Login};
use super::servers::Address;
use super::tls;
use crate::files::{Content, FileTrust, SecretFileError, read_trusted};

/// The broker's addresses, and how to log in there.
///
/// The broker's own authentication is a second gate, independent of the checks on messages. Leave out the credentials
/// only for a broker that admits anybody, such as one on a developer's machine.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BusConfig {
    /// `nats://host:port` or `tls://host:port`, one or several nodes of one cluster.
    pub urls: Vec<String>,
    /// User name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The user's password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<Zeroizing<String>>,
    /// A file that holds the password, readable by its owner alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
    /// A token for the broker (not the access token of the calls).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Zeroizing<String>>,
    /// An nkey seed (`SU…`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nkey_seed: Option<Zeroizing<String>>,
    /// A file that holds the nkey seed, readable by its owner alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nkey_seed_file: Option<PathBuf>,
    /// A PEM file with the certificate authorities that sign the broker's certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_ca: Option<PathBuf>,
    /// A PEM file with our certificate, for brokers that ask for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_cert: Option<PathBuf>,
    /// A PEM file with our certificate's key, readable by its owner alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_key: Option<PathBuf>,
    /// Whether a password or token may be sent in clear text to another machine; false. For networks in which nobody
    /// else can listen.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_plaintext: bool,
    /// Whose secret files are trusted. Not a member of this section: it comes from `[files]` in the same file.
    #[serde(skip)]
    pub files: FileTrust,
}

/// Why the broker cannot be reached, or refuses us.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BusError {
    /// No address is configured.
    #[error("no broker address: give `urls`, for example [\"nats://127.0.0.1:4222\"]")]
    NoUrl,
    /// A member has an unusable value.
    #[error("`{member}` {reason}")]
    Member {
        /// Its name; for an array, with the position from 0.
        member: String,
        /// What is wrong with it, and what to do.
        reason: &'static str,
    },
    /// Nobody answers at the addresses.
    #[error("no broker answers at {urls} ({cause}): is it running, and is the address right?")]
    Unreachable {
        /// The addresses.
        urls: String,
        /// The underlying error.
        cause: String,
    },
    /// The broker refuses the user.
    #[error("the broker at {urls} refuses our user: check `user` and its password (or nkey, token, certificate)")]
    Refused {
        /// The addresses.
        urls: String,
    },
    /// The TLS connection could not be established.
    #[error("TLS with {urls} failed ({cause}): check `tls_ca`, and the host name in the broker's certificate")]
    Tls {
        /// The addresses.
        urls: String,
        /// The underlying error.
        cause: String,
    },
    /// The broker's permissions forbid an operation.
    #[error("the broker forbids this user to {action} `{subject}`: permit it")]
    Forbidden {
        /// `publish to` or `subscribe to`.
        action: &'static str,
        /// The subject.
        subject: String,
    },
    /// A secret file cannot be used.
    #[error(transparent)]
    Secret(#[from] SecretFileError),
}

impl BusConfig {
    /// The configuration for one broker that admits anybody.
    #[must_use]
    pub fn open(url: &str) -> Self {
        Self { urls: vec![url.to_owned()], ..Self::default() }
    }

    /// Makes relative paths relative to `folder`, where the configuration file is.
    #[must_use]
    pub fn relative_to(mut self, folder: &Path) -> Self {
        let files = [
            &mut self.password_file,
            &mut self.nkey_seed_file,
            &mut self.tls_ca,
            &mut self.tls_cert,
            &mut self.tls_key,
        ];
        for path in files.into_iter().flatten() {
            *path = folder.join(&*path);
        }
        self
    }

    /// Reads the file that `member` names.
    pub(crate) fn secret(&self, member: &'static str, path: &Path) -> Result<Zeroizing<String>, BusError> {
        read_trusted(path, Content::Secret, &self.files).map_err(|error| unreadable(member, error))
    }

    /// Reads every file that a connection needs, to check them.
    pub(crate) fn try_files(&self) -> Result<(), BusError> {
        let login = self.login()?;
        if login.tls.ca.is_some() || login.tls.identity.is_some() {
            tls::try_files(&login.tls).map_err(|cause| BusError::Tls { urls: self.shown(), cause })?;
        }
        Ok(())
    }

    /// Checks that nobody else could have written the TLS files or read the key.
    fn check_files(&self) -> Result<(), BusError> {
        let files = [
            ("tls_ca", &self.tls_ca, Content::Public),
            ("tls_cert", &self.tls_cert, Content::Public),
            ("tls_key", &self.tls_key, Content::Secret),
        ];
        for (member, path, content) in files {
            if let Some(path) = path {
                self.files.check(path, content).map_err(|error| unreadable(member, error))?;
            }
        }
        Ok(())
    }
}

impl BusConfig {
    /// Where to connect, and how to log in.
    ///
    /// # Errors
    /// As for [`check`](BusConfig::check), or a secret file that cannot be used.
    pub(crate) fn door(&self) -> Result<Door, BusError> {
        self.check()?;
        let address = |(position, url): (usize, &String)| {
            let wrong = || BusError::Member { member: format!("urls[{position}]"), reason: "is no broker address" };
            Address::parse(url).ok_or_else(wrong)
        };
        let addresses = self.urls.iter().enumerate().map(address).collect::<Result<_, _>>()?;
        Ok(Door { addresses, login: self.login()?, follow: self.may_follow() })
    }

    fn login(&self) -> Result<Login, BusError> {
        self.check_files()?;
        let mut login = Login::default();
        if let Some(user) = &self.user {
            let password = match &self.password_file {
                Some(path) => {
                    Zeroizing::new(self.secret("password_file", path)?.trim_end_matches(['\r', '\n']).to_owned())
                }
                None => self.password.clone().unwrap_or_default(),
            };
            login.user = Some((user.clone(), password));
        }
        login.token.clone_from(&self.token);
        login.nkey_seed = match &self.nkey_seed_file {
            Some(path) => Some(Zeroizing::new(self.secret("nkey_seed_file", path)?.trim().to_owned())),
            None => self.nkey_seed.clone(),
        };
        login.tls.trust = self.files.clone();
        login.tls.ca.clone_from(&self.tls_ca);
        login.tls.identity = self.tls_cert.clone().zip(self.tls_key.clone());
        Ok(login)
    }

    /// Converts a failed attempt to connect into an error for the operator.
    pub(crate) fn failed(&self, error: DialError) -> BusError {
        let urls = self.shown();
        match error {
            DialError::Unreachable(cause) => BusError::Unreachable { urls, cause },
            DialError::Refused => BusError::Refused { urls },
            DialError::Tls(cause) => BusError::Tls { urls, cause },
        }
    }
}

/// What our own connection needs to begin.
pub(crate) struct Door {
    pub(crate) addresses: Vec<Address>,
    pub(crate) login: Login,
    /// Whether to connect to further brokers that a broker lists.
    pub(crate) follow: bool,
}

/// For a missing file, omits the name: a user who mistook the member may have written the secret itself.
fn unreadable(member: &'static str, error: SecretFileError) -> BusError {
    if error.is_missing() {
        BusError::Member { member: member.to_owned(), reason: "names a file that is not there" }
    } else {
        error.into()
    }
}

impl fmt::Debug for BusConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BusConfig")
            .field("urls", &self.shown())
            .field("allow_plaintext", &self.allow_plaintext)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_do_not_show() {
        let config = BusConfig {
            password: Some(Zeroizing::new("hunter2".into())),
            token: Some(Zeroizing::new("t0ken".into())),
            nkey_seed: Some(Zeroizing::new("SUSEED".into())),
            ..BusConfig::open("nats://localhost:4222")
        };
        let shown = format!("{config:?}");
        assert!(!shown.contains("hunter2") && !shown.contains("t0ken") && !shown.contains("SUSEED"), "{shown}");
    }

    #[test]
    fn a_wrong_address_says_what_to_write() {
        let error = BusConfig::open("not a url").door().err();
        assert!(error.is_some_and(|error| error.to_string().contains("nats://host:port")));
    }
}
