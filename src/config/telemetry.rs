//! `[telemetry]`: where a program tells how it is doing.
//! Never lets other machines ask unless the file says so.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;

#[cfg(feature = "otel")]
use super::ConfigError;
#[cfg(feature = "otel")]
use crate::export::{TraceOptions, WantedTraces};
#[cfg(feature = "otel")]
use crate::files::{Content, FileTrust, SecretFileError, read_trusted};
use crate::settings::{Fraction, Setting};

/// `[telemetry]`, in `sealwire.toml` and `gateway.toml`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Setting)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct TelemetryConfig {
    /// Address and port for `/metrics`, `/livez` and `/readyz`, such as `127.0.0.1:9464`. Port 0 picks a free port.
    #[setting(left_out = "they are not served")]
    pub listen: Option<SocketAddr>,
    /// Whether `listen` may be an address that other machines reach. Whoever reaches it learns the names of methods, agents, rules and keys,
    /// without a password.
    pub allow_remote: bool,
    /// Where traces are sent: the address of a collector that takes OTLP over HTTP, such as `http://127.0.0.1:4318`, without `/v1/traces`.
    /// Variables such as `OTEL_EXPORTER_OTLP_ENDPOINT` have priority.
    #[setting(left_out = "they are not, unless a variable says where")]
    pub otlp: Option<String>,
    /// A PEM file with the trust anchors for the collector.
    #[setting(left_out = "the system's")]
    pub otlp_tls_ca: Option<PathBuf>,
    /// A file with header fields for the collector, `name: value` one a line, such as `Authorization`. Nobody else may be able to read it.
    #[setting(left_out = "none")]
    pub otlp_headers_file: Option<PathBuf>,
    /// Whether `otlp` may be an `http` address of another machine. Whoever is on the way then reads who calls what.
    pub otlp_allow_plaintext: bool,
    /// Which part of the calls is traced whose callers do not say whether they are.
    pub sample: Fraction,
    /// How many calls of one agent, or of one caller of a gateway, are traced in a second because the caller says so. Beyond it, it is as
    /// if the caller had said nothing.
    #[setting(unit = "calls per second", max = u32::MAX)]
    pub trace_rate: u32,
}

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self {
            listen: None,
            allow_remote: false,
            otlp: None,
            otlp_tls_ca: None,
            otlp_headers_file: None,
            otlp_allow_plaintext: false,
            sample: SAMPLE,
            trace_rate: crate::trace::FLAGS_PER_SECOND,
        }
    }
}

const SAMPLE: Fraction = match Fraction::new(crate::trace::SAMPLE) {
    Some(sample) => sample,
    None => unreachable!(),
};

impl TelemetryConfig {
    /// Checks that only this machine can ask, unless others are meant to.
    ///
    /// # Errors
    /// What is wrong, and what to write instead.
    pub fn check(&self) -> Result<(), String> {
        match self.listen {
            Some(listen) if !listen.ip().to_canonical().is_loopback() && !self.allow_remote => Err(format!(
                "`listen` in `[telemetry]` is {listen}, which other machines reach: write a loopback address, such as 127.0.0.1:{}, or \
                 `allow_remote = true` if everybody who reaches it may know the names of methods, agents, rules and keys",
                listen.port()
            )),
            _ => Ok(()),
        }
    }

    /// Makes relative paths relative to this folder.
    pub fn relative_to(&mut self, folder: &Path) {
        for path in [&mut self.otlp_tls_ca, &mut self.otlp_headers_file].into_iter().flatten() {
            *path = folder.join(&*path);
        }
    }

    /// Where the traces of this program are sent, by this file and by OpenTelemetry's variables; `None` if nowhere.
    ///
    /// # Errors
    /// [`ConfigError::Trust`], [`ConfigError::Traces`].
    #[cfg(feature = "otel")]
    pub fn traces(
        &self,
        service: &str,
        namespace: Option<&str>,
        files: &FileTrust,
    ) -> Result<Option<TraceOptions>, ConfigError> {
        let read = |path: &Path, content| read_trusted(path, content, files);
        let anchors = self.otlp_tls_ca.as_deref().map(|path| read(path, Content::Public)).transpose()?;
        let headers = self.otlp_headers_file.as_deref().map(|path| read(path, Content::Secret)).transpose()?;
        let wanted = WantedTraces {
            endpoint: self.otlp.as_deref(),
            anchors: anchors.as_deref().map(String::as_str),
            headers: headers.as_deref().map(String::as_str),
            allow_plaintext: self.otlp_allow_plaintext,
            sample: self.sample.get(),
            flags_per_second: self.trace_rate,
            service,
            namespace,
        };
        let of_variable = |path: &str| {
            let text = read(Path::new(path), Content::Public).map_err(|error: SecretFileError| error.to_string())?;
            Ok(text.to_string())
        };
        Ok(TraceOptions::new(&wanted, &|name| std::env::var(name).ok(), &of_variable)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_other_machines_reach_takes_a_word() {
        let check = |listen: &str, allow_remote| {
            TelemetryConfig { listen: listen.parse().ok(), allow_remote, ..TelemetryConfig::default() }
                .check()
                .map_err(|wrong| wrong.contains("127.0.0.1:9464"))
        };
        for local in ["127.0.0.1:9464", "127.0.0.2:9464", "[::1]:9464", "[::ffff:127.0.0.1]:9464"] {
            assert_eq!(check(local, false), Ok(()), "{local}");
        }
        for open in ["0.0.0.0:9464", "[::]:9464", "192.0.2.1:9464"] {
            assert_eq!((check(open, false), check(open, true)), (Err(true), Ok(())), "{open}");
        }
    }
}
