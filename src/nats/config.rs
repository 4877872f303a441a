//! How to reach the broker: addresses, credentials and TLS.
//! Never prints a secret, and never logs in as any other user than the configured one.

mod check;
pub(super) mod context;

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::dial::DialError;
use super::error::{BusError, unreadable};
use super::login::{self, Login, LoginEnd, User, ends_in};
use super::servers::{self, Address};
use super::tls::{self, TlsFiles};
use crate::clock::{Clock as _, SystemClock};
use crate::files::{Content, FileTrust, read_trusted};
use crate::settings::Setting;

/// The broker's addresses, and how to log in there.
///
/// The broker's own authentication is a second gate, independent of the checks on messages. Leave out the credentials
/// only for a broker that admits anybody, such as one on a developer's machine.
#[derive(Clone, Default, Serialize, Deserialize, Setting)]
#[serde(deny_unknown_fields)]
pub struct BusConfig {
    /// `nats://host:port` or `tls://host:port`, or `wss://host/path` where only HTTP passes; one or several nodes of one cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[setting(not_empty, left_out = "those of `context`")]
    pub urls: Vec<String>,
    /// Whether the addresses are tried in this order, and not in one drawn by lot when a connection is made: many programs with the same
    /// list then all go to its first broker.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_randomize: bool,
    /// A context of the `nats` command: the name of one of this user's, or the path to its file, which ends in `.json`. It is read once, and
    /// says everything, so no other key but `allow_plaintext` may stand beside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[setting(left_out = "`urls` and the keys below")]
    pub context: Option<String>,
    /// The user's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[setting(left_out = "no user")]
    pub user: Option<String>,
    /// The user's password. This file is then a secret, and must be readable by its owner alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[setting(left_out = "no password")]
    pub password: Option<Zeroizing<String>>,
    /// A file that holds the password, readable by its owner alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[setting(left_out = "no password")]
    pub password_file: Option<PathBuf>,
    /// A token for the broker (not the access token of calls).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[setting(left_out = "no token")]
    pub token: Option<Zeroizing<String>>,
    /// An nkey seed (`SU…`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[setting(left_out = "no nkey")]
    pub nkey_seed: Option<Zeroizing<String>>,
    /// A file that holds the nkey seed, readable by its owner alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[setting(left_out = "no nkey")]
    pub nkey_seed_file: Option<PathBuf>,
    /// A `.creds` file of NATS, readable by its owner alone: for brokers in operator mode, whose users have a JWT and an nkey seed. It is
    /// read again for each connection, and before the JWT ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[setting(left_out = "no JWT")]
    pub creds_file: Option<PathBuf>,
    /// Whether an agent logs in with the access token of its calls, a fresh one for each connection: for brokers that ask
    /// `sealwire authd`. Only in a credentials file.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub access_token: bool,
    /// A PEM file with the certificate authorities that sign the brokers' certificates. If set, every connection must use TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[setting(left_out = "the system's")]
    pub tls_ca: Option<PathBuf>,
    /// Our certificate, a PEM file, for brokers that ask for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[setting(left_out = "no certificate")]
    pub tls_cert: Option<PathBuf>,
    /// Our certificate's key, a PEM file, readable by its owner alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[setting(left_out = "no certificate")]
    pub tls_key: Option<PathBuf>,
    /// Whether TLS begins before the broker says anything: for brokers with `handshake_first`. Every connection uses TLS then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tls_first: bool,
    /// The JetStream domain that has the streams of a shared guard, or the bucket of revocations, if it is not that of the broker: for
    /// services at a leaf node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[setting(left_out = "the broker's")]
    pub jetstream_domain: Option<String>,
    /// Whether a password or token may be sent in clear text to another machine: for networks in which nobody else can listen.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_plaintext: bool,
    /// Whose secret files are trusted. Not a member of this section: it comes from `[files]` in the same file.
    #[serde(skip)]
    pub files: FileTrust,
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
            &mut self.creds_file,
            &mut self.tls_ca,
            &mut self.tls_cert,
            &mut self.tls_key,
        ];
        for path in files.into_iter().flatten() {
            *path = folder.join(&*path);
        }
        if let Some(context) = self.context.as_mut().filter(|context| is_context_file(context)) {
            // Of text, unless the folder's name is none; then the file is not found.
            *context = folder.join(&*context).to_string_lossy().into_owned();
        }
        self
    }

    /// Checks the settings of what makes no calls, and so has no access token: see [`check`](BusConfig::check).
    pub(crate) fn check_without_calls(&self) -> Result<(), BusError> {
        self.check()?;
        if self.access_token { Err(login::of_calls()) } else { Ok(()) }
    }

    /// Reads the file that `member` names.
    pub(crate) fn secret(&self, member: &'static str, path: &Path) -> Result<Zeroizing<String>, BusError> {
        read_trusted(path, Content::Secret, &self.files).map_err(|error| unreadable(member, error))
    }

    /// Reads every file that a connection needs, to check them.
    pub(crate) fn try_files(&self) -> Result<(), BusError> {
        let login = self.resolved()?.login()?;
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
    pub(crate) fn target(&self) -> Result<Target, BusError> {
        self.check()?;
        let bus = self.resolved()?;
        let address = |(position, url): (usize, &String)| {
            let wrong = || BusError::Member { member: format!("urls[{position}]"), reason: "is no broker address" };
            Address::parse(url).ok_or_else(wrong)
        };
        let mut addresses = bus.urls.iter().enumerate().map(address).collect::<Result<Vec<_>, _>>()?;
        if !bus.no_randomize {
            servers::shuffle(&mut addresses);
        }
        Ok(Target { addresses, login: bus.login()?, follow: bus.may_follow() })
    }

    /// The same brokers in an order drawn once, for several connections that are to prefer the same one.
    pub(crate) fn in_one_order(&self) -> Self {
        // What is wrong with a context is told by whoever connects.
        let Ok(mut bus) = self.resolved().map(Cow::into_owned) else { return self.clone() };
        if !bus.no_randomize {
            servers::shuffle(&mut bus.urls);
            bus.no_randomize = true;
        }
        bus
    }

    /// When the JWT in `creds_file` ends. Blocks.
    pub(crate) fn login_end(&self) -> Option<LoginEnd> {
        let bus = self.resolved().ok()?;
        bus.creds_file.as_ref()?;
        let life = bus.login().ok()?.read().ok()?.life()?;
        let soon = life.left_to_renew(SystemClock.now_s()).map(|left_s| ends_in(left_s, "the same JWT"));
        Some(LoginEnd { until: life.until?, soon })
    }

    fn login(&self) -> Result<Login, BusError> {
        self.check_files()?;
        let identity = self.tls_cert.clone().zip(self.tls_key.clone());
        let tls = TlsFiles { trust: self.files.clone(), ca: self.tls_ca.clone(), identity, first: self.tls_first };
        let login = Login { user: self.user()?, tls };
        // What is wrong with it is told at once, and not for the first time when a broker answers.
        if !self.access_token {
            login.read()?;
        }
        Ok(login)
    }

    fn user(&self) -> Result<User, BusError> {
        Ok(if let Some(user) = &self.user {
            let password = match &self.password_file {
                Some(path) => {
                    Zeroizing::new(self.secret("password_file", path)?.trim_end_matches(['\r', '\n']).to_owned())
                }
                None => self.password.clone().unwrap_or_default(),
            };
            User::Password(user.clone(), password)
        } else if let Some(token) = &self.token {
            User::Token(token.clone())
        } else if let Some(path) = &self.nkey_seed_file {
            User::NKey("nkey_seed_file", Zeroizing::new(self.secret("nkey_seed_file", path)?.trim().to_owned()))
        } else if let Some(seed) = &self.nkey_seed {
            User::NKey("nkey_seed", Zeroizing::new(seed.trim().to_owned()))
        } else if let Some(path) = &self.creds_file {
            User::Creds(path.clone())
        } else if self.access_token {
            User::AccessToken(None)
        } else {
            User::Unnamed
        })
    }

    /// Converts a failed attempt to connect into an error for the operator.
    pub(crate) fn failed(&self, error: DialError) -> BusError {
        let urls = self.shown();
        match error {
            DialError::Unreachable(cause) => BusError::Unreachable { urls, cause },
            DialError::Refused => BusError::Refused { urls },
            DialError::Tls(cause) => BusError::Tls { urls, cause },
            DialError::Login(error) => error,
        }
    }
}

/// Whether this is the path to a context rather than its name.
fn is_context_file(context: &str) -> bool {
    context.ends_with(".json")
}

/// What our own connection needs to begin.
pub(crate) struct Target {
    pub(crate) addresses: Vec<Address>,
    pub(crate) login: Login,
    /// Whether to connect to further brokers that a broker lists.
    pub(crate) follow: bool,
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
    fn connections_of_one_order_try_the_same_brokers() {
        let urls: Vec<String> = (0..8).map(|broker| format!("nats://broker-{broker}")).collect();
        let bus = BusConfig { urls: urls.clone(), ..BusConfig::default() };
        let tried = |bus: &BusConfig| bus.target().ok().map(|target| target.addresses);
        let drawn = bus.in_one_order();
        assert_eq!(tried(&drawn), tried(&drawn));
        // Any two of 40,320 orders.
        assert!((0..3).any(|_| bus.in_one_order().urls != urls));
        let fixed = BusConfig { no_randomize: true, ..bus };
        assert_eq!(fixed.in_one_order().urls, urls);
        let absent = BusConfig { context: Some("/no/such/context.json".into()), ..BusConfig::default() };
        let told = |bus: &BusConfig| bus.resolved().map_err(|error| error.to_string()).err();
        assert!(told(&absent).is_some());
        assert_eq!(told(&absent.in_one_order()), told(&absent));
    }

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
        let error = BusConfig::open("not a url").target().err();
        assert!(error.is_some_and(|error| error.to_string().contains("nats://host:port")));
    }
}
