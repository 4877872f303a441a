//! `[door]`: the configuration file of a door over HTTP.
//! Never accepts a file that other users could have written, and never guesses: an unknown key is an error.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use governor::Quota;
use sealwire::address::{Address, AddressFault, Plaintext, front};
use sealwire::auth::{SecretFileError, read_public};
use sealwire::{MethodName, Name, TokensConfig};
use serde::Deserialize;

use super::gate;
use crate::once::ReplayMemory;

/// A door over HTTP: where it listens, which agent it is, and which services it exposes. docs/doors.md describes every key.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct DoorConfig {
    /// Where it listens: a loopback address, unless callers have tokens and there is a certificate. Port 0 picks a free port.
    pub listen: SocketAddr,
    /// The credentials file of its agent.
    pub credentials: PathBuf,
    /// The listener's certificate chain, a PEM file; together with `tls_key` or not at all.
    pub tls_cert: Option<PathBuf>,
    /// Its private key, a PEM file that only its owner can read.
    pub tls_key: Option<PathBuf>,
    /// Where callers find it, without a path: `https://door.example`. With `mint`, the `aud` of their tokens must name it.
    pub public_url: Option<String>,
    /// Who the callers are to the services.
    #[serde(default)]
    pub identity: Identity,
    /// With `mint`, the token issuers to accept.
    pub tokens: Option<TokensConfig>,
    /// With `mint`, revoked tokens and subjects. Reread when it changes.
    pub denylist: Option<PathBuf>,
    /// Names to accept in `Host`, besides loopback names.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// Origins of pages that may call, besides loopback origins; browsers are told so (CORS).
    #[serde(default)]
    pub origins: Vec<String>,
    /// Concurrent connections.
    #[serde(default = "usual::connections")]
    pub connections: usize,
    /// Calls of one caller per second, sustained; each entry of a batch counts.
    #[serde(default = "usual::per_second")]
    pub per_second: u32,
    /// Calls of one caller at once.
    #[serde(default = "usual::burst")]
    pub burst: u32,
    /// Concurrent requests of one caller.
    #[serde(default = "usual::in_flight")]
    pub in_flight: u32,
    /// Open streams of one caller.
    #[serde(default = "usual::streams")]
    pub streams: u32,
    /// Open WebSockets of one caller; at most half of the connections.
    #[serde(default = "usual::sockets")]
    pub sockets: u32,
    /// How long requests in progress may take to end when the door is stopped, in seconds.
    #[serde(default = "usual::drain_s")]
    pub drain_s: u64,
    /// How often to ask the services whether the callable methods have changed, for clients that listen for it, in seconds.
    #[serde(default = "usual::refresh_s")]
    pub refresh_s: u64,
    /// The file with the key that seals what callers keep for the door: 64 hexadecimal digits, the same for all replicas, readable only by
    /// its owner. If left out, each process has a key of its own, and what it has sealed ends with it.
    pub seal_key: Option<PathBuf>,
    /// How long a stopping door still accepts connections, while `/readyz` is 503, in seconds.
    #[serde(default)]
    pub leave_s: u64,
    /// How replicas of this door reach each other, if there are any.
    pub replicas: Option<Replicas>,
    /// With `mint`, the shared memory of used proofs and tickets; if left out, each replica has its own.
    pub replay: Option<ReplayMemory>,
    /// Whether it serves a page that shows its traffic, on this machine only.
    #[serde(default)]
    pub page: bool,
    /// The key that signs A2A cards, made by `sealwire keys new-token-key`; not the one of `mint`. If left out, cards are unsigned.
    pub card_key: Option<PathBuf>,
    /// The services it exposes.
    pub expose: Vec<Expose>,
}

/// `[door.replicas]`: how the replicas of a door reach each other.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Replicas {
    /// Where this replica listens for the others.
    pub listen: SocketAddr,
    /// Where the others reach this replica; one of `all`.
    pub url: String,
    /// Where each replica is reached, this one included. Nothing is forwarded to any other address.
    pub all: Vec<String>,
    /// The CA certificates for the others' certificates, a PEM file; the system's trust anchors if left out.
    pub tls_ca: Option<PathBuf>,
}

/// Who the callers are to the services.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, tag = "mode", rename_all = "lowercase")]
#[non_exhaustive]
pub enum Identity {
    /// Every caller is the door's agent. For listeners that only this machine can reach.
    // With braces, because serde ignores unknown keys of a tagged unit variant.
    Own {},
    /// Each caller is who its token says. The door's agent acts on its behalf, with a token that the door mints.
    Mint {
        /// The key that signs the door's tokens, made by `sealwire keys new-token-key`.
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
        /// The door's client ID at the issuer.
        client_id: String,
        /// A file with the client secret that only its owner can read.
        client_secret: PathBuf,
        /// Trust anchors for the endpoint, a PEM file; the system's if left out.
        tls_ca: Option<PathBuf>,
        /// Whether the address may be `http` to a loopback address, for development.
        #[serde(default)]
        http_on_loopback: bool,
        /// As with `Mint`.
        #[serde(default = "usual::scopes")]
        scopes: bool,
        /// As with `Mint`.
        #[serde(default)]
        dpop: Dpop,
    },
}

/// Whether tokens may or must be bound to a key that callers prove with each request (DPoP, RFC 9449).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
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

/// `[[door.expose]]`: a service that the door exposes.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Expose {
    /// The service.
    pub service: Name,
    /// Methods that may be called, or name prefixes followed by `*`. This is a ceiling: the policy decides below it.
    #[serde(default = "usual::methods")]
    pub methods: Vec<String>,
    /// How long a call may take, in seconds.
    #[serde(default = "usual::timeout_s")]
    pub timeout_s: u64,
    /// With `mint`, the `aud` of the door's tokens for the service; `<environment>/<service>` if left out.
    pub audience: Option<String>,
    /// Offers the service as an A2A agent. Off unless set, because anyone who reaches the listener can read its card.
    pub a2a: Option<A2aAgent>,
}

/// `a2a` of `[[door.expose]]`: the service as an A2A agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct A2aAgent {
    /// How the card describes the agent.
    pub description: Option<String>,
    /// The service implements the A2A methods itself: `SendMessage` and others.
    #[serde(default)]
    pub native: bool,
    /// The method that receives messages that are a text.
    pub text_method: Option<String>,
    /// The name of its parameter for the text; the first parameter, by position, if left out.
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

    /// Whether the door forwards calls of this method. Never true for an invalid method name.
    #[must_use]
    pub fn allows(&self, method: &str) -> bool {
        let may = |allowed: &str| match allowed.strip_suffix('*') {
            Some(beginning) => method.starts_with(beginning),
            None => method == allowed,
        };
        MethodName::new(method).is_ok() && self.methods.iter().any(|allowed| may(allowed))
    }
}

/// A file that is not the configuration of a door.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DoorConfigError {
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
    /// A value is not allowed.
    #[error("`{}`: {reason}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// Which value, and why.
        reason: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    door: DoorConfig,
}

impl DoorConfig {
    /// Reads the file. Relative paths in it are relative to its folder.
    ///
    /// # Errors
    /// See [`DoorConfigError`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self, DoorConfigError> {
        let path = path.as_ref();
        let text = read_public(path)?;
        let File { mut door } = toml::from_str(&text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            let line = before.matches('\n').count() + 1;
            DoorConfigError::Format { path: path.to_owned(), line, reason: error.message().replace('\n', ", ") }
        })?;
        door.check().map_err(|reason| DoorConfigError::Value { path: path.to_owned(), reason })?;
        door.relative_to(path.parent().unwrap_or_else(|| Path::new("")));
        Ok(door)
    }

    /// How long requests in progress may take to end when the door is stopped.
    #[must_use]
    pub fn drain(&self) -> Duration {
        Duration::from_secs(self.drain_s)
    }

    /// How long a stopping door still accepts connections.
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
        if let Some(replay) = &mut self.replay {
            replay.relative_to(folder);
        }
        if let Some(tokens) = &mut self.tokens {
            tokens.relative_to(folder);
        }
    }

    fn check(&mut self) -> Result<(), String> {
        self.check_identity()?;
        self.check_replicas()?;
        self.check_replay()?;
        let Self { hosts, origins, .. } = self;
        within("connections", self.connections as u64, 1, 65_536)?;
        within("per_second", self.per_second.into(), 1, 1_000_000)?;
        within("burst", self.burst.into(), 1, 1_000_000)?;
        within("in_flight", self.in_flight.into(), 1, 65_536)?;
        within("streams", self.streams.into(), 1, 256)?;
        within("sockets", self.sockets.into(), 1, 65_536)?;
        within("drain_s", self.drain_s, 1, 600)?;
        within("refresh_s", self.refresh_s, 1, 3_600)?;
        within("leave_s", self.leave_s, 0, 60)?;
        for host in hosts {
            host.make_ascii_lowercase();
            if host.is_empty() || !host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte)) {
                return Err(format!("`hosts` has `{host}`: write the name alone, such as `door.example`"));
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
        if self.page {
            self.check_page()?;
        }
        let expose = &self.expose;
        if expose.is_empty() {
            return Err("there is no `[[door.expose]]`: nothing is exposed".to_owned());
        }
        for (position, exposed) in expose.iter().enumerate() {
            let service = &exposed.service;
            if expose.iter().take(position).any(|other| other.service == *service) {
                return Err(format!("`{service}` is exposed twice"));
            }
            within("timeout_s", exposed.timeout_s, 1, 600)?;
            exposed.a2a.as_ref().map_or(Ok(()), |agent| agent.check(exposed))?;
            if exposed.methods.is_empty() {
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

impl DoorConfig {
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
                "`name` of `replay` is `{}`, a service: the door needs a memory of its own",
                replay.name
            ));
        }
        replay.check()
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
        within("replicas.all", all.len() as u64, 1, 32)?;
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
        let Self { listen, identity, public_url, tokens, denylist, tls_cert, tls_key, expose, .. } = &*self;
        if tls_cert.is_some() != tls_key.is_some() {
            return Err("`tls_cert` and `tls_key` belong together".to_owned());
        }
        let is_local = listen.ip().is_loopback();
        if *identity == (Identity::Own {}) {
            // Everyone who reaches the listener is the agent.
            if !is_local {
                return Err(format!(
                    "`listen` is {listen}, which other machines reach: with `identity = {{ mode = \"own\" }}` every caller \
                     is the door's agent, so it must be a loopback address, such as 127.0.0.1:{}",
                    listen.port()
                ));
            }
            // Otherwise somebody might believe that these settings have an effect.
            if tokens.is_some() || denylist.is_some() || expose.iter().any(|expose| expose.audience.is_some()) {
                return Err(
                    "`tokens`, `denylist` and `audience` are for `identity = { mode = \"mint\", … }`".to_owned()
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
            return Err("`[[door.tokens.issuer]]` is missing: whose tokens do callers have?".to_owned());
        };
        // A token may be presented only to its own issuer.
        if matches!(identity, Identity::Exchange { .. }) && tokens.issuer.len() != 1 {
            return Err(format!(
                "`exchange` hands callers' tokens to `token_endpoint`: name one `[[door.tokens.issuer]]`, whose endpoint that is, \
                 and not {}",
                tokens.issuer.len()
            ));
        }
        let must_prove = matches!(
            identity,
            Identity::Mint { dpop: Dpop::Require, .. } | Identity::Exchange { dpop: Dpop::Require, .. }
        );
        if tokens.require_cnf && !must_prove {
            return Err("`require_cnf` in `[door.tokens]`: over HTTP keys are proved with `dpop = \"require\"` in \
                        `identity`"
                .to_owned());
        }
        let url = public_url.as_deref().ok_or("`public_url` is missing: what do callers' tokens name in `aud`?")?;
        let name = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
        let name = name.filter(|name| !name.is_empty() && !name.contains(['/', '?', '#', '@', ' ', '"']));
        let Some(name) = name else {
            return Err(format!("`public_url` is `{url}`: write it without a path, such as `https://door.example`"));
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
    gate::authority_name(name).is_some_and(|name| gate::is_loopback(&name))
}

fn within(key: &str, value: u64, least: u64, most: u64) -> Result<(), String> {
    if (least..=most).contains(&value) { Ok(()) } else { Err(format!("`{key}` is {value}: write {least} to {most}")) }
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
