//! Contexts of the `nats` command: a broker and how to log in there, under a name for all tools of a user.
//! Never quotes a value of one, and never leaves out what is said there about the connection.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};
use zeroize::Zeroizing;

use super::{BusConfig, BusError, is_context_file};
use crate::fault;
use crate::files::{Content, FileTrust, SecretFileError, read_open, read_trusted};
use crate::settings::Setting;

/// The file of a context, as the `nats` command writes it. What is empty is left out.
#[derive(Default, Deserialize, Setting)]
#[serde(deny_unknown_fields, default)]
struct Context {
    url: String,
    user: String,
    password: Zeroizing<String>,
    token: Zeroizing<String>,
    creds: String,
    nkey: String,
    cert: String,
    key: String,
    ca: String,
    tls_first: bool,
    inbox_prefix: String,
    // Whom these name, or where they lead, is not ours to guess.
    user_jwt: Zeroizing<String>,
    user_seed: Zeroizing<String>,
    nsc: String,
    socks_proxy: String,
    jetstream_domain: String,
    jetstream_api_prefix: String,
    windows_cert_store: String,
    windows_cert_match_by: String,
    windows_cert_match: String,
    windows_ca_certs_match: Option<Vec<String>>,
    // These change nothing about the connection.
    name: String,
    description: String,
    color_scheme: String,
    jetstream_event_prefix: String,
}

/// A field, and what is wrong with it.
type Wrong = (&'static str, &'static str);

impl BusConfig {
    /// The same settings, with those of the context in place of its name. Reads the context's file.
    ///
    /// # Errors
    /// [`BusError::Context`] and [`BusError::Secret`].
    pub fn resolved(&self) -> Result<Cow<'_, Self>, BusError> {
        let Some(name) = &self.context else { return Ok(Cow::Borrowed(self)) };
        self.check()?;
        let (place, context) = read(name, &self.files)?;
        let wrong = |reason: String| BusError::Context { place: place.clone(), reason };
        let said = |(field, reason): Wrong| wrong(format!("`{field}` {reason}"));
        let bus = context.into_bus(Path::is_absolute).map_err(said)?;
        let bus = Self { allow_plaintext: self.allow_plaintext, files: self.files.clone(), ..bus };
        bus.check().map_err(|error| wrong(error.to_string()))?;
        Ok(Cow::Owned(bus))
    }
}

/// Where a context has answers arrive, for those who choose their inbox.
///
/// # Errors
/// As for [`BusConfig::resolved`].
pub fn inbox_of_context(bus: &BusConfig) -> Result<Option<String>, BusError> {
    let Some(name) = &bus.context else { return Ok(None) };
    Ok(given(read(name, &bus.files)?.1.inbox_prefix))
}

/// The context that is selected in the `nats` command, if one is.
///
/// # Errors
/// [`BusError::Secret`].
pub fn selected_context() -> Result<Option<String>, BusError> {
    let Some(path) = folder().map(|folder| folder.join("context.txt")) else { return Ok(None) };
    match read_trusted(&path, Content::Public, &FileTrust::default()) {
        Ok(name) => Ok(given(name.trim().to_owned())),
        Err(error) if error.is_missing() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The broker and the login in the variables of the `nats` command, if there are any.
///
/// # Errors
/// [`BusError::Context`] and [`BusError::Member`].
pub fn environment_login(variable: impl Fn(&str) -> Option<String>) -> Result<Option<BusConfig>, BusError> {
    let filled = |name: &str| variable(name).filter(|value| !value.is_empty());
    let set: Vec<_> = VARIABLES.iter().filter_map(|(name, field)| Some((*name, *field, filled(name)?))).collect();
    let wrong =
        |name: &str, reason: &str| BusError::Context { place: PLACE.to_owned(), reason: format!("`{name}` {reason}") };
    match (filled("NATS_CONTEXT"), set.first()) {
        (Some(_), Some((name, ..))) => return Err(wrong(name, BESIDE_CONTEXT)),
        (Some(context), None) => return Ok(Some(BusConfig { context: Some(context), ..BusConfig::default() })),
        (None, None) => return Ok(None),
        (None, Some(_)) => {}
    }
    let fields = set.into_iter().map(|(_, field, value)| (field.to_owned(), Value::String(value)));
    // It is made of strings that each have a field.
    let mut context: Context = serde_json::from_value(Value::Object(fields.collect::<Map<_, _>>())).unwrap_or_default();
    if context.password.is_empty() && !context.user.is_empty() {
        // As the `nats` command takes a user without a password.
        context.token = Zeroizing::new(std::mem::take(&mut context.user));
    }
    let said = |(field, reason): Wrong| {
        let name = VARIABLES.iter().find(|(_, of)| *of == field).map_or(field, |(name, _)| *name);
        wrong(name, reason)
    };
    let bus = context.into_bus(|_| true).map_err(said)?;
    bus.check().map_err(|error| BusError::Context { place: PLACE.to_owned(), reason: error.to_string() })?;
    Ok(Some(bus))
}

const PLACE: &str = "the environment";
/// The variables beside `NATS_CONTEXT`, and what each says.
const VARIABLES: [(&str, &str); 12] = [
    ("NATS_URL", "url"),
    ("NATS_USER", "user"),
    ("NATS_PASSWORD", "password"),
    ("NATS_TOKEN", "token"),
    ("NATS_CREDS", "creds"),
    ("NATS_NKEY", "nkey"),
    ("NATS_CERT", "cert"),
    ("NATS_KEY", "key"),
    ("NATS_CA", "ca"),
    ("NATS_JWT", "user_jwt"),
    ("NATS_SEED", "user_seed"),
    ("NATS_SOCKS_PROXY", "socks_proxy"),
];

/// What is wrong with the name of a context, or the path to one.
pub(super) fn check_name(name: &str) -> Result<(), &'static str> {
    let is_name = !name.is_empty() && !name.contains("..") && !name.contains(['/', '\\', '\0']);
    if is_name || is_context_file(name) {
        Ok(())
    } else {
        Err("is no name of a context, and no path to one that ends in `.json`")
    }
}

/// Reads a context. Returns how to call it, too.
fn read(name: &str, trust: &FileTrust) -> Result<(String, Context), BusError> {
    let path = match is_context_file(name) {
        true => PathBuf::from(name),
        false => {
            let reason = "is a name, but no folder is known: set HOME, or write the path to its file";
            let folder = folder().ok_or_else(|| BusError::Member { member: "context".to_owned(), reason })?;
            folder.join("context").join(format!("{name}.json"))
        }
    };
    let place = format!("the context `{}`", path.display());
    let wrong = |reason: String| BusError::Context { place: place.clone(), reason };
    let missing = |error: SecretFileError| match error.is_missing() {
        true => wrong("is not there: `nats context ls` lists those that are".to_owned()),
        false => error.into(),
    };
    let file = trust.open(&path, Content::Public).map_err(missing)?;
    let text = read_open(&path, &file)?;
    let context: Context = fault::json(&text).map_err(|fault| wrong(fault.to_string()))?;
    if context.holds_secrets() {
        trust.judge(&path, &file, Content::Secret)?;
    }
    Ok((place, context))
}

/// Where the `nats` command keeps contexts.
fn folder() -> Option<PathBuf> {
    let config = std::env::var_os("XDG_CONFIG_HOME").filter(|folder| !folder.is_empty()).map(PathBuf::from);
    Some(config.or_else(|| Some(std::env::home_dir()?.join(".config")))?.join("nats"))
}

fn given(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

impl Context {
    fn holds_secrets(&self) -> bool {
        [&self.password, &self.token, &self.user_seed, &self.user_jwt].into_iter().any(|secret| !secret.is_empty())
    }

    /// What it says, in our words. Paths must be as `holds` wants them.
    fn into_bus(self, holds: fn(&Path) -> bool) -> Result<BusConfig, Wrong> {
        self.check()?;
        let path = |field, value: String| path(field, value, holds);
        let secret = |value: Zeroizing<String>| (!value.is_empty()).then_some(value);
        let scheme = |url: &str| if url.contains("://") { url.to_owned() } else { format!("nats://{url}") };
        let urls = self.url.split(',').map(str::trim).filter(|url| !url.is_empty()).map(scheme).collect::<Vec<_>>();
        if urls.is_empty() {
            return Err(("url", "is missing: name a broker"));
        }
        Ok(BusConfig {
            urls,
            user: given(self.user),
            password: secret(self.password),
            token: secret(self.token),
            nkey_seed_file: path("nkey", self.nkey)?,
            creds_file: path("creds", self.creds)?,
            tls_ca: path("ca", self.ca)?,
            tls_cert: path("cert", self.cert)?,
            tls_key: path("key", self.key)?,
            tls_first: self.tls_first,
            jetstream_domain: given(self.jetstream_domain),
            ..BusConfig::default()
        })
    }

    fn check(&self) -> Result<(), Wrong> {
        const WINDOWS: &str = "names a certificate store of Windows, which is not read: write `cert` and `key`";
        let certificates = self.windows_ca_certs_match.as_ref().is_some_and(|names| !names.is_empty());
        let refused = [
            ("user_jwt", !self.user_jwt.is_empty(), IN_A_FILE),
            ("user_seed", !self.user_seed.is_empty(), IN_A_FILE),
            (
                "nsc",
                !self.nsc.is_empty(),
                "asks `nsc` for the login: write its file, and name it in `creds` (`nsc generate creds`)",
            ),
            ("socks_proxy", !self.socks_proxy.is_empty(), "is not supported: connect directly"),
            (
                "jetstream_api_prefix",
                !self.jetstream_api_prefix.is_empty(),
                "is not supported: name a domain in `jetstream_domain`",
            ),
            ("windows_cert_store", !self.windows_cert_store.is_empty(), WINDOWS),
            ("windows_cert_match_by", !self.windows_cert_match_by.is_empty(), WINDOWS),
            ("windows_cert_match", !self.windows_cert_match.is_empty(), WINDOWS),
            ("windows_ca_certs_match", certificates, WINDOWS),
            ("password", is_elsewhere(&self.password), ELSEWHERE),
            ("token", is_elsewhere(&self.token), ELSEWHERE),
        ];
        match refused.into_iter().find(|(_, is_refused, _)| *is_refused) {
            Some((field, _, reason)) => Err((field, reason)),
            None => Ok(()),
        }
    }
}

/// Whether a value says where to find the secret, in one of the ways that the `nats` command knows.
fn is_elsewhere(value: &str) -> bool {
    let scheme = value.split(':').next().unwrap_or_default().to_ascii_lowercase();
    value.contains(':') && ["file", "op", "nsc", "env", "data"].contains(&&*scheme)
}

/// A file that a field names.
fn path(field: &'static str, value: String, holds: fn(&Path) -> bool) -> Result<Option<PathBuf>, Wrong> {
    let value = value.strip_prefix("file://").map_or(value.clone(), str::to_owned);
    let value = match value.strip_prefix('~') {
        Some(rest) if rest.starts_with('/') => {
            let home =
                std::env::home_dir().ok_or((field, "begins with `~`, and HOME is not set: write the whole path"))?;
            home.join(rest.trim_start_matches('/'))
        }
        Some(_) => return Err((field, "begins with another user's `~`: write the whole path")),
        None if value.is_empty() => return Ok(None),
        None if is_elsewhere(&value) => return Err((field, ELSEWHERE)),
        None if value.contains('$') => return Err((field, "has a variable in it: write the whole path")),
        None => PathBuf::from(value),
    };
    if holds(&value) {
        Ok(Some(value))
    } else {
        Err((field, "depends on where a program is started: write the whole path"))
    }
}

const IN_A_FILE: &str = "is not read: put JWT and seed into a `.creds` file, and name that in `creds`";
const ELSEWHERE: &str =
    "says where else the secret is, which only the `nats` command follows: put it into a file, and name that";
const BESIDE_CONTEXT: &str =
    "is set beside `NATS_CONTEXT`, and an address and its login come from one place: unset either";

#[cfg(test)]
mod tests;
