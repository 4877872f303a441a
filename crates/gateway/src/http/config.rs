//! `[gateway]`: the configuration file of a gateway over HTTP.
//! Never accepts a file that other users could have written, and never guesses: an unknown key is an error.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use governor::Quota;
use sealwire::configure::{FileTrust, ReloadConfig, RevocationConfig, TelemetryConfig, TokensConfig};
use sealwire::errors::SecretFileError;
use sealwire::internal::address::{Address, AddressFault, Plaintext, front};
use sealwire::internal::config::{OutOfRange, check_ranges};
use sealwire::internal::files::read_public;
use sealwire::internal::settings::{Setting, Table};
use sealwire::{BusConfig, MethodName, Name};
use serde::Deserialize;

use super::authority::{authority_name, is_loopback};
use crate::once::ReplayMemory;

/// A gateway over HTTP: where it listens, which agent it is, and which services it exposes.
#[derive(Debug, Clone, Deserialize, Setting)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct GatewayConfig {
    /// Address and port to listen on: a loopback address, unless callers have tokens and there is a certificate. Port 0 picks a free port.
    pub listen: SocketAddr,
    /// The credentials file of its agent.
    pub credentials: PathBuf,
    /// The listener's certificate chain, a PEM file; together with `tls_key` or not at all
    /// ([Certificates](README.md#certificates)).
    #[setting(left_out = "clear text")]
    pub tls_cert: Option<PathBuf>,
    /// Its private key, a PEM file that only its owner can read.
    #[setting(left_out = "clear text")]
    pub tls_key: Option<PathBuf>,
    /// With `mint`: where callers find it, without a path: `https://gateway.example`. The `aud` of their tokens must name it.
    #[setting(left_out = "refused with `mint`")]
    pub public_url: Option<String>,
    /// Who the callers are to the services ([identity.md](identity.md)). What other keys say of `mint` holds for `exchange`, too.
    #[serde(default)]
    #[setting(left_out = "`{ mode = \"own\" }`")]
    pub identity: Identity,
    /// With `mint`: the token issuers to accept.
    #[setting(left_out = "refused with `mint`")]
    pub tokens: Option<TokensConfig>,
    /// With `mint`: revoked tokens and subjects, a file that `sealwire token revoke` writes. Reread when it changes
    /// ([Files that change](README.md#files-that-change)).
    #[setting(left_out = "nothing is revoked")]
    pub denylist: Option<PathBuf>,
    /// With `mint`: what happens if the denylist or the keys of an issuer's file cannot be read again: everything is refused (503,
    /// `-32014`) once the time is over, until they can be.
    #[serde(default)]
    pub reload: ReloadConfig,
    /// What operators revoke by `sealwire revoke`, in force within a second ([Revocation](README.md#revocation)).
    #[setting(left_out = "only files and services revoke")]
    pub revocation: Option<RevocationConfig>,
    /// Names to accept in `Host`, without ports, besides loopback names.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// Origins of web pages that may call and read the answers (CORS), such as `https://app.example`, besides loopback origins.
    #[serde(default)]
    pub origins: Vec<String>,
    /// Concurrent connections ([Open files](README.md#open-files)).
    #[setting(unit = "connections", min = 1, max = 65_536)]
    #[serde(default = "usual::connections")]
    pub connections: usize,
    /// Calls of one caller per second, sustained; each entry of a batch counts.
    #[setting(unit = "calls per second", min = 1, max = 1_000_000)]
    #[serde(default = "usual::per_second")]
    pub per_second: u32,
    /// Calls of one caller at once; a larger batch uses up the whole burst.
    #[setting(unit = "calls", min = 1, max = 1_000_000)]
    #[serde(default = "usual::burst")]
    pub burst: u32,
    /// Concurrent requests of one caller; if several services are exposed, at most half of them to any one service.
    #[setting(unit = "requests", min = 1, max = 65_536)]
    #[serde(default = "usual::in_flight")]
    pub in_flight: u32,
    /// Open streams of one caller; if several services are exposed, at most half of them to any one service.
    #[setting(unit = "streams", min = 1, max = 256)]
    #[serde(default = "usual::streams")]
    pub streams: u32,
    /// Open WebSockets of one caller; never more than half of `connections`.
    #[setting(unit = "sockets", min = 1, max = 65_536)]
    #[serde(default = "usual::sockets")]
    pub sockets: u32,
    /// How long requests in progress may take to end when the gateway is stopped.
    #[setting(unit = "seconds", min = 1, max = 600)]
    #[serde(default = "usual::drain_s")]
    pub drain_s: u64,
    /// How often to ask the services whether the callable methods have changed, for MCP clients that listen for it.
    #[setting(unit = "seconds", min = 1, max = 3_600)]
    #[serde(default = "usual::refresh_s")]
    pub refresh_s: u64,
    /// The file with the key that seals what callers keep for the gateway: 64 hexadecimal digits, such as the output of
    /// `openssl rand -hex 32`, that only its owner can read. Replicas with the same key accept each other's sessions, nonces and tickets.
    #[setting(left_out = "each process has a key of its own, and what it has sealed ends with it")]
    pub seal_key: Option<PathBuf>,
    /// How long a stopping gateway still accepts connections, while `/readyz` is 503 and each answer closes its connection: the time that
    /// your balancer needs to notice.
    #[setting(unit = "seconds", min = 0, max = 60)]
    #[serde(default)]
    pub leave_s: u64,
    /// How replicas of this gateway reach each other ([replicas.md](replicas.md)).
    #[setting(left_out = "there are none")]
    pub replicas: Option<Replicas>,
    /// With `mint`: where replicas share their memory of used proofs and tickets
    /// ([identity.md](identity.md#replicas-that-remember-together)).
    #[setting(left_out = "each replica has its own")]
    pub replay: Option<ReplayMemory>,
    /// Whether it serves [a page](page.md) at `/` that shows its traffic. Only on a loopback address; with `mint`, only if `public_url` is
    /// one, too.
    #[serde(default)]
    pub page: bool,
    /// With `mint`: how approvers' own signed calls are passed on, for the services with `approvals` ([approvals.md](approvals.md)).
    #[setting(left_out = "none are")]
    pub approvals: Option<ApprovalRelay>,
    /// The key that signs A2A cards, a file from `sealwire keys new-token-key`; not the one of `mint`.
    #[setting(left_out = "cards are unsigned")]
    pub card_key: Option<PathBuf>,
    /// The services it exposes.
    pub expose: Vec<Expose>,
    /// `[telemetry]`: where metrics and health are served, on a listener of their own.
    #[serde(skip)]
    pub telemetry: TelemetryConfig,
}

/// `[gateway.replicas]`: how the replicas of a gateway reach each other.
#[derive(Debug, Clone, Deserialize, Setting)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Replicas {
    /// Where this replica listens for the others.
    pub listen: SocketAddr,
    /// Where the others reach this replica; one of `all`.
    pub url: String,
    /// Where each replica is reached, this one included. Nothing is forwarded to any other address.
    pub all: Vec<String>,
    /// The CA certificates for the others' certificates, a PEM file.
    #[setting(left_out = "the system's trust anchors")]
    pub tls_ca: Option<PathBuf>,
}

/// `[gateway.approvals]`: a page on which people approve calls, and the relay of what they sign there.
#[derive(Debug, Clone, Deserialize, Setting)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ApprovalRelay {
    /// The relay's own broker user, with the permissions of the row "relay" in SPEC.md, section 19.
    pub nats: BusConfig,
}

/// Who the callers are to the services.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Setting)]
#[serde(deny_unknown_fields, tag = "mode", rename_all = "lowercase")]
#[non_exhaustive]
pub enum Identity {
    /// Every caller is the gateway's agent. For listeners that only this machine can reach.
    // With braces, because serde ignores unknown keys of a tagged unit variant.
    Own {},
    /// Each caller is who its token says. The gateway's agent acts on its behalf, with a token that the gateway mints.
    Mint {
        /// The key that signs the gateway's tokens, made by `sealwire keys new-token-key`.
        key: PathBuf,
        /// Whether the `scope` of a caller's token must name the service.
        #[serde(default = "usual::scopes")]
        scopes: bool,
        /// Whether callers prove possession of a key that their tokens are bound to.
        #[serde(default)]
        dpop: Dpop,
    },
    /// The same, with a token that the issuer of the caller's token exchanges for it (RFC 8693).
    Exchange {
        /// The issuer's endpoint, an `https` address.
        token_endpoint: String,
        /// The gateway's client ID at the issuer.
        client_id: String,
        /// A file with the client secret that only its owner can read.
        client_secret: PathBuf,
        /// Trust anchors for the endpoint, a PEM file.
        #[setting(left_out = "the system's")]
        tls_ca: Option<PathBuf>,
        /// Whether the address may be `http` to a loopback address, for development.
        #[serde(default)]
        http_on_loopback: bool,
        /// Whether the `scope` of a caller's token must name the service.
        #[serde(default = "usual::scopes")]
        scopes: bool,
        /// Whether callers prove possession of a key that their tokens are bound to.
        #[serde(default)]
        dpop: Dpop,
    },
}

/// Whether tokens may or must be bound to a key that callers prove with each request (DPoP, RFC 9449).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Setting)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Dpop {
    /// Key-bound tokens are refused.
    #[default]
    Off,
    /// Key-bound tokens are accepted with a proof, all others without.
    Accept,
    /// Only key-bound tokens are accepted, with a proof.
    Require,
}

impl Default for Identity {
    fn default() -> Self {
        Self::Own {}
    }
}

/// `[[gateway.expose]]`: a service that the gateway exposes.
#[derive(Debug, Clone, Deserialize, Setting)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Expose {
    /// The service.
    pub service: Name,
    /// Methods that may be called, or name prefixes followed by `*`. This is a ceiling: the policy decides below it.
    #[serde(default = "usual::methods")]
    pub methods: Vec<String>,
    /// How long a call may take.
    #[setting(unit = "seconds", min = 1, max = 600)]
    #[serde(default = "usual::timeout_s")]
    pub timeout_s: u64,
    /// With `mint`: the `aud` of the gateway's own tokens for the service.
    #[setting(left_out = "`<environment>/<service>`")]
    pub audience: Option<String>,
    /// Offers the service as an A2A agent ([a2a.md](a2a.md)); the table may be empty. Off unless set, because anyone who reaches the
    /// listener can read its card.
    #[setting(left_out = "it is not offered")]
    pub a2a: Option<A2aAgent>,
    /// With `[gateway.approvals]`: whether people may decide about its calls that wait for approval, on [a page](approvals.md) of the gateway.
    #[serde(default)]
    pub approvals: bool,
}

/// `a2a` of `[[gateway.expose]]`: the service as an A2A agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Setting)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct A2aAgent {
    /// How the card describes the agent, in 1 to 1,000 bytes.
    #[setting(left_out = "as the methods of the service")]
    pub description: Option<String>,
    /// The service implements the A2A methods itself: `SendMessage` and others.
    #[serde(default)]
    pub native: bool,
    /// The method that receives messages that are a text.
    #[setting(left_out = "there is none")]
    pub text_method: Option<String>,
    /// The name of its parameter for the text.
    #[setting(left_out = "the first parameter, by position")]
    pub text_param: Option<String>,
}

impl A2aAgent {
    fn check(&self, exposed: &Expose) -> Result<(), String> {
        let service = &exposed.service;
        if self.description.as_ref().is_some_and(|text| text.is_empty() || text.len() > 1_000) {
            return Err(format!("`description` in `a2a` of `{service}`: write 1 to 1000 bytes"));
        }
        match &self.text_method {
            Some(_) if self.native => {
                Err(format!("`a2a` of `{service}` is `native`: the service reads texts itself, without `text_method`"))
            }
            Some(method) if !exposed.allows(method) => {
                Err(format!("`text_method` of `{service}` is `{method}`, which `methods` leaves out"))
            }
            None if self.text_param.is_some() => Err(format!("`text_param` of `{service}` needs `text_method`")),
            _ => Ok(()),
        }
    }
}

impl Expose {
    /// How long a call may take.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout_s)
    }

    /// Whether the gateway forwards calls of this method. Never true for an invalid method name.
    #[must_use]
    pub fn allows(&self, method: &str) -> bool {
        let may = |allowed: &str| match allowed.strip_suffix('*') {
            Some(beginning) => method.starts_with(beginning),
            None => method == allowed,
        };
        MethodName::new(method).is_ok() && self.methods.iter().any(|allowed| may(allowed))
    }
}

/// Refuses a login with a secret in it: other users may read this file.
fn check_login(table: &str, nats: &BusConfig) -> Result<(), String> {
    let BusConfig { password, token, nkey_seed, .. } = nats;
    if password.is_some() || token.is_some() || nkey_seed.is_some() {
        return Err(format!(
            "`nats` of `{table}` has a secret, which needs a file of its own: write `password_file`, `nkey_seed_file` or `creds_file`"
        ));
    }
    nats.check().map_err(|error| format!("`nats` of `{table}`: {error}"))
}

/// A file that is not the configuration of a gateway.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GatewayConfigError {
    /// It cannot be read, or other users could have written it.
    #[error(transparent)]
    File(#[from] SecretFileError),
    /// It is not TOML, has an unknown key, or lacks a required one.
    #[error("`{}`, line {line}: {reason}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The line number, from 1.
        line: usize,
        /// What is wrong there.
        reason: String,
    },
    /// A number is out of its range.
    #[error("`{}`: {error}", path.display())]
    Range {
        /// The file.
        path: PathBuf,
        /// Which number, and what to write.
        error: OutOfRange,
    },
    /// A value is not allowed.
    #[error("`{}`: {reason}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// Which value, and why.
        reason: String,
    },
}

/// What `gateway.toml` holds.
#[derive(Deserialize, Setting)]
#[serde(deny_unknown_fields)]
struct File {
    /// The gateway.
    gateway: GatewayConfig,
    /// Where metrics and health are served, on a listener of their own.
    #[serde(default)]
    telemetry: TelemetryConfig,
}

impl GatewayConfig {
    /// Reads the file. Relative paths in it are relative to its folder.
    ///
    /// # Errors
    /// See [`GatewayConfigError`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self, GatewayConfigError> {
        let path = path.as_ref();
        let text = read_public(path)?;
        let File { mut gateway, telemetry } = toml::from_str(&text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            let line = before.matches('\n').count() + 1;
            GatewayConfigError::Format { path: path.to_owned(), line, reason: error.message().replace('\n', ", ") }
        })?;
        check_ranges::<File>(&text).map_err(|error| GatewayConfigError::Range { path: path.to_owned(), error })?;
        gateway.telemetry = telemetry;
        let checked = gateway.check().and_then(|()| gateway.telemetry.check());
        checked.map_err(|reason| GatewayConfigError::Value { path: path.to_owned(), reason })?;
        gateway.relative_to(path.parent().unwrap_or_else(|| Path::new("")));
        Ok(gateway)
    }

    /// How long requests in progress may take to end when the gateway is stopped.
    #[must_use]
    pub fn drain(&self) -> Duration {
        Duration::from_secs(self.drain_s)
    }

    /// How long a stopping gateway still accepts connections.
    #[must_use]
    pub fn leave(&self) -> Duration {
        Duration::from_secs(self.leave_s)
    }

    /// How often to ask the services whether the callable methods have changed.
    #[must_use]
    pub fn refresh(&self) -> Duration {
        Duration::from_secs(self.refresh_s)
    }

    /// The rate of one caller.
    pub(super) fn quota(&self) -> Quota {
        let positive = |number: u32| NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN);
        Quota::per_second(positive(self.per_second)).allow_burst(positive(self.burst))
    }

    /// How many proofs and tickets of one caller to remember: as many as it may use during the life of one.
    pub(super) fn proofs(&self) -> usize {
        let lives_s = crate::once::LIFE_S + crate::once::SKEW_S;
        usize::try_from(u64::from(self.per_second) * lives_s + u64::from(self.burst)).unwrap_or(usize::MAX)
    }

    /// The files that are read only when the gateway starts, by their keys.
    pub(super) fn read_at_start(&self) -> Vec<(&'static str, PathBuf)> {
        let (key, secret, ca) = match &self.identity {
            Identity::Own {} => (None, None, None),
            Identity::Mint { key, .. } => (Some(key), None, None),
            Identity::Exchange { client_secret, tls_ca, .. } => (None, Some(client_secret), tls_ca.as_ref()),
        };
        let replicas_ca = self.replicas.as_ref().and_then(|replicas| replicas.tls_ca.as_ref());
        let all = [
            ("credentials", Some(&self.credentials)),
            ("seal_key", self.seal_key.as_ref()),
            ("card_key", self.card_key.as_ref()),
            ("key of identity", key),
            ("client_secret", secret),
            ("tls_ca of identity", ca),
            ("tls_ca of replicas", replicas_ca),
        ];
        all.into_iter().filter_map(|(name, path)| Some((name, path?.clone()))).collect()
    }

    fn relative_to(&mut self, folder: &Path) {
        match &mut self.identity {
            Identity::Own {} => {}
            Identity::Mint { key, .. } => *key = folder.join(&*key),
            Identity::Exchange { client_secret, tls_ca, .. } => {
                for path in tls_ca.iter_mut().chain([client_secret]) {
                    *path = folder.join(&*path);
                }
            }
        }
        self.credentials = folder.join(&self.credentials);
        for path in [&mut self.tls_cert, &mut self.tls_key, &mut self.denylist, &mut self.seal_key, &mut self.card_key]
            .into_iter()
            .flatten()
        {
            *path = folder.join(&*path);
        }
        if let Some(ca) = self.replicas.as_mut().and_then(|replicas| replicas.tls_ca.as_mut()) {
            *ca = folder.join(&*ca);
        }
        self.telemetry.relative_to(folder);
        if let Some(replay) = &mut self.replay {
            replay.relative_to(folder);
        }
        if let Some(tokens) = &mut self.tokens {
            tokens.relative_to(folder);
        }
        if let Some(approvals) = &mut self.approvals {
            approvals.nats = std::mem::take(&mut approvals.nats).relative_to(folder);
        }
        let revocation = self.revocation.take();
        self.revocation = revocation.map(|revocation| revocation.relative_to(folder, &FileTrust::default(), "gateway"));
    }

    fn check(&mut self) -> Result<(), String> {
        self.check_identity()?;
        self.check_replicas()?;
        self.check_replay()?;
        self.check_approvals()?;
        self.revocation.as_ref().map_or(Ok(()), |revocation| check_login("revocation", &revocation.nats))?;
        let Self { hosts, origins, .. } = self;
        for host in hosts {
            host.make_ascii_lowercase();
            if host.is_empty() || !host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte)) {
                return Err(format!("`hosts` has `{host}`: write the name alone, such as `gateway.example`"));
            }
        }
        for origin in origins {
            let rest = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
            if rest.is_none_or(|rest| rest.is_empty() || rest.contains(['/', '*', ' ', '@'])) {
                return Err(format!(
                    "`origins` has `{origin}`: write one as browsers do, such as `https://app.example`"
                ));
            }
            origin.make_ascii_lowercase();
        }
        if let (Some(_), Some(url)) = (&self.approvals, &self.public_url) {
            // Its own page.
            let url = url.to_ascii_lowercase();
            let usual = if url.starts_with("https:") { ":443" } else { ":80" };
            self.origins.push(url.strip_suffix(usual).unwrap_or(&url).to_owned());
        }
        if self.page {
            self.check_page()?;
        }
        let expose = &self.expose;
        if expose.is_empty() {
            return Err("there is no `[[gateway.expose]]`: nothing is exposed".to_owned());
        }
        for (position, exposed) in expose.iter().enumerate() {
            let service = &exposed.service;
            if expose.iter().take(position).any(|other| other.service == *service) {
                return Err(format!("`{service}` is exposed twice"));
            }
            exposed.a2a.as_ref().map_or(Ok(()), |agent| agent.check(exposed))?;
            if exposed.methods.is_empty() && !exposed.approvals {
                return Err(format!("`methods` of `{service}` is empty: nothing could be called"));
            }
            for method in &exposed.methods {
                let is_known = match method.strip_suffix('*') {
                    // Any valid name with this prefix will do.
                    Some(beginning) => MethodName::new(&format!("{beginning}x")).is_ok(),
                    None => MethodName::new(method).is_ok(),
                };
                if !is_known {
                    return Err(format!("`methods` of `{service}` has `{method}`, which is not a valid method name"));
                }
            }
        }
        Ok(())
    }
}

impl GatewayConfig {
    fn check_approvals(&self) -> Result<(), String> {
        let exposed = self.expose.iter().find(|exposed| exposed.approvals);
        match (&self.approvals, exposed) {
            (None, None) => Ok(()),
            (None, Some(exposed)) => {
                Err(format!("`approvals` of `{}` needs `[gateway.approvals]`", exposed.service))
            }
            (Some(_), None) => Err("`approvals` is of no use: no `[[gateway.expose]]` has `approvals = true`".to_owned()),
            (Some(_), Some(_)) if self.identity == (Identity::Own {}) => Err(
                "`approvals` is for `mint` and `exchange`: with `own`, approvers have no tokens by which the gateway could know them"
                    .to_owned(),
            ),
            (Some(relay), Some(_)) => check_login("approvals", &relay.nats),
        }
    }

    fn check_replay(&self) -> Result<(), String> {
        let Some(replay) = &self.replay else { return Ok(()) };
        if self.identity == (Identity::Own {}) {
            return Err("`replay` is for `mint` and `exchange`: with `own` there are no proofs and tickets".to_owned());
        }
        if self.seal_key.is_none() {
            return Err("`replay` needs a `seal_key`, so that replicas accept each other's tickets".to_owned());
        }
        if self.expose.iter().any(|exposed| exposed.service == replay.name) {
            return Err(format!(
                "`name` of `replay` is `{}`, a service: the gateway needs a memory of its own",
                replay.name
            ));
        }
        check_login("replay", &replay.nats)
    }

    fn check_replicas(&self) -> Result<(), String> {
        let Some(Replicas { listen, url, all, tls_ca }) = &self.replicas else { return Ok(()) };
        let is_tls = self.tls_cert.is_some();
        if self.seal_key.is_none() {
            return Err("`replicas` need one `seal_key`, so that each can open what others have sealed".to_owned());
        }
        if listen.port() == 0 {
            return Err("`listen` of `replicas` has port 0: the others must know the port".to_owned());
        }
        if !listen.ip().is_loopback() && (!is_tls || self.identity == (Identity::Own {})) {
            return Err(format!(
                "`listen` of `replicas` is {listen}, which other machines reach: that needs `tls_cert` and `mint`, or \
                 write a loopback address"
            ));
        }
        if !(1..=32).contains(&all.len()) {
            return Err(format!("`all` of `replicas` has {} entries: write 1 to 32", all.len()));
        }
        if !all.contains(url) {
            return Err(format!("`url` of `replicas` is `{}`, which is not in `all`", front(url)));
        }
        if tls_ca.is_some() && !is_tls {
            return Err("`tls_ca` of `replicas` is for replicas with `tls_cert`".to_owned());
        }
        for (position, one) in all.iter().enumerate() {
            let wrong = |why: &str| Err(format!("`all` of `replicas`: `{}` {why}", front(one)));
            match Address::parse(one, Plaintext::Loopback) {
                Err(AddressFault::UserName) => return Err("`all` of `replicas` has a user name".to_owned()),
                Err(fault) => return wrong(fault.why()),
                Ok(address) if address.tls != is_tls => {
                    return wrong("must be https with `tls_cert`, and http without");
                }
                Ok(address) if address.target != "/" || one.ends_with('/') || one.len() > 255 => {
                    return wrong("has a path: write it without, such as `http://127.0.0.1:9480`");
                }
                Ok(_) if all.iter().take(position).any(|other| other == one) => return wrong("is listed twice"),
                Ok(_) => {}
            }
        }
        Ok(())
    }

    /// The page is for people at this machine, and does not ask who they are.
    fn check_page(&self) -> Result<(), String> {
        if !self.listen.ip().is_loopback() {
            return Err(format!(
                "`page` with `listen` {}, which other machines reach: it is shown on a loopback address only, such as \
                 127.0.0.1:{}",
                self.listen,
                self.listen.port()
            ));
        }
        match self.public_url.as_deref() {
            // Callers from elsewhere then come through a proxy, which would lead them to the page as well.
            Some(url) if self.identity != (Identity::Own {}) && !is_local(url) => Err(format!(
                "`page` with `public_url` {url}: whatever brings callers from other machines to this listener would \
                 show them the page, too. Leave out one of them"
            )),
            _ => Ok(()),
        }
    }

    fn check_identity(&mut self) -> Result<(), String> {
        let Self { listen, identity, public_url, tokens, denylist, reload, tls_cert, tls_key, expose, .. } = &*self;
        if tls_cert.is_some() != tls_key.is_some() {
            return Err("`tls_cert` and `tls_key` belong together".to_owned());
        }
        let is_local = listen.ip().is_loopback();
        if *identity == (Identity::Own {}) {
            // Everyone who reaches the listener is the agent.
            if !is_local {
                return Err(format!(
                    "`listen` is {listen}, which other machines reach: with `identity = {{ mode = \"own\" }}` every caller \
                     is the gateway's agent, so it must be a loopback address, such as 127.0.0.1:{}",
                    listen.port()
                ));
            }
            // Otherwise somebody might believe that these settings have an effect.
            let is_vain = tokens.is_some()
                || denylist.is_some()
                || reload.fail_closed_after_s.is_some()
                || expose.iter().any(|expose| expose.audience.is_some());
            if is_vain {
                return Err(
                    "`tokens`, `denylist`, `reload` and `audience` are for `identity = { mode = \"mint\", … }`"
                        .to_owned(),
                );
            }
            return Ok(());
        }
        if !is_local && tls_cert.is_none() {
            return Err(format!(
                "`listen` is {listen}, which other machines reach, and callers' tokens would come in clear text: name \
                 `tls_cert` and `tls_key`, or listen on a loopback address behind a proxy"
            ));
        }
        let Some(tokens) = tokens else {
            return Err("`[[gateway.tokens.issuer]]` is missing: whose tokens do callers have?".to_owned());
        };
        // A token may be presented only to its own issuer.
        if matches!(identity, Identity::Exchange { .. }) && tokens.issuer.len() != 1 {
            return Err(format!(
                "`exchange` hands callers' tokens to `token_endpoint`: name one `[[gateway.tokens.issuer]]`, whose endpoint that is, \
                 and not {}",
                tokens.issuer.len()
            ));
        }
        let must_prove = matches!(
            identity,
            Identity::Mint { dpop: Dpop::Require, .. } | Identity::Exchange { dpop: Dpop::Require, .. }
        );
        if tokens.require_cnf && !must_prove {
            return Err("`require_cnf` in `[gateway.tokens]`: over HTTP keys are proved with `dpop = \"require\"` in \
                        `identity`"
                .to_owned());
        }
        let url = public_url.as_deref().ok_or("`public_url` is missing: what do callers' tokens name in `aud`?")?;
        let name = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
        let name = name.filter(|name| !name.is_empty() && !name.contains(['/', '?', '#', '@', ' ', '"']));
        let Some(name) = name else {
            return Err(format!("`public_url` is `{url}`: write it without a path, such as `https://gateway.example`"));
        };
        let host = name.rsplit_once(':').map_or(name, |(host, _)| host).to_ascii_lowercase();
        if !self.hosts.contains(&host) {
            self.hosts.push(host);
        }
        Ok(())
    }
}

/// Whether this address, which has no path, is on this machine.
fn is_local(url: &str) -> bool {
    let name = url.split_once("://").map_or(url, |(_, name)| name);
    authority_name(name).is_some_and(|name| is_loopback(&name))
}

/// Every key of `gateway.toml`.
#[must_use]
pub fn keys() -> Table {
    Table::of::<File>()
}

/// The defaults.
mod usual {
    pub(super) fn connections() -> usize {
        1_024
    }

    pub(super) fn per_second() -> u32 {
        50
    }

    pub(super) fn burst() -> u32 {
        100
    }

    /// At 192 KiB each, 24 MiB.
    pub(super) fn in_flight() -> u32 {
        128
    }

    /// Half of what services allow one agent.
    pub(super) fn streams() -> u32 {
        32
    }

    pub(super) fn sockets() -> u32 {
        16
    }

    /// As for services.
    pub(super) fn drain_s() -> u64 {
        30
    }

    /// As for `sealwire mcp`.
    pub(super) fn refresh_s() -> u64 {
        30
    }

    pub(super) fn scopes() -> bool {
        true
    }

    pub(super) fn methods() -> Vec<String> {
        vec!["*".to_owned()]
    }

    pub(super) fn timeout_s() -> u64 {
        60
    }
}

#[cfg(test)]
mod tests;
