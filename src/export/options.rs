//! Where spans are sent, how, and which: what a file asks for, and OpenTelemetry's variables, which have priority.
//! Never shows a header, which may be a secret, and never sends spans unencrypted to another machine unless told to.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderName, HeaderValue, TRANSFER_ENCODING};
use tokio_rustls::rustls::ClientConfig;

use super::environment::{Environment, EnvironmentFault};
use crate::address::{Address, AddressFault, Plaintext, front};
use crate::files::read_public;
use crate::name::shown;
use crate::tls::{self, TlsFault};
use crate::trace::{FLAGS_PER_SECOND, SAMPLE, Sampler, hex, new_trace};

/// What a configuration asks for.
#[derive(Clone)]
pub struct WantedTraces<'a> {
    /// The address of a collector, without `/v1/traces`.
    pub endpoint: Option<&'a str>,
    /// Trust anchors (PEM) instead of the system's.
    pub anchors: Option<&'a str>,
    /// Header fields, one a line.
    pub headers: Option<&'a str>,
    /// Whether another machine may be reached over plain HTTP.
    pub allow_plaintext: bool,
    /// Which part of the calls is recorded whose callers say nothing, from 0 to 1.
    pub sample: f64,
    /// How many sampled flags of one caller count in a second.
    pub flags_per_second: u32,
    /// The program.
    pub service: &'a str,
    /// What it belongs to.
    pub namespace: Option<&'a str>,
}

/// Where spans are sent, how, and which.
#[derive(Clone)]
pub struct TraceOptions {
    pub(super) address: Address,
    pub(super) tls: Option<Arc<ClientConfig>>,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    /// For one request.
    pub(super) timeout: Duration,
    pub(super) sampler: Sampler,
    pub(super) flags_per_second: u32,
    /// The most spans that wait.
    pub(super) queue: usize,
    /// The most spans in a request.
    pub(super) batch: usize,
    /// How long spans wait for others.
    pub(super) delay: Duration,
    pub(super) resource: Vec<(String, String)>,
}

/// Why spans cannot be sent as asked for.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TraceOptionsError {
    /// The collector's address.
    #[error("the collector's address `{url}` {why}")]
    Address {
        /// What may be shown of it.
        url: String,
        /// What is wrong, and what to do.
        why: &'static str,
    },
    /// The trust anchors.
    #[error("the collector's trust anchors: {0}")]
    Anchors(TlsFault),
    /// A header. Nothing of it is shown.
    #[error(
        "header {line} for the collector: write `name: value`, on a line of its own; it must not be one that HTTP itself needs"
    )]
    Header {
        /// From 1.
        line: usize,
    },
    /// A variable.
    #[error(transparent)]
    Variable(#[from] EnvironmentFault),
}

/// The most spans that wait, unless configured otherwise.
const MAX_QUEUE: usize = 2_048;
/// The most spans in a request, unless configured otherwise.
const MAX_BATCH: usize = 512;
/// How long spans wait for others, unless configured otherwise.
const DELAY: Duration = Duration::from_secs(5);
/// How long a request may take, unless configured otherwise.
const TIMEOUT: Duration = Duration::from_secs(10);
/// What both can be configured to at most.
const MOST_SPANS: u64 = 65_536;
/// The most attributes of the resource, and header fields.
const MOST_MEMBERS: usize = 64;

impl Default for WantedTraces<'_> {
    fn default() -> Self {
        Self {
            endpoint: None,
            anchors: None,
            headers: None,
            allow_plaintext: false,
            sample: SAMPLE,
            flags_per_second: FLAGS_PER_SECOND,
            service: "sealwire",
            namespace: None,
        }
    }
}

impl TraceOptions {
    /// What OpenTelemetry's variables ask for, for a program of this name without a configuration file; `None` if it is nothing.
    ///
    /// # Errors
    /// [`TraceOptionsError`]; whoever set them is to blame.
    pub fn from_env(service: &str) -> Result<Option<Self>, TraceOptionsError> {
        let wanted = WantedTraces { service, ..WantedTraces::default() };
        let read = |path: &str| read_public(Path::new(path)).map_err(|error| error.to_string());
        Self::new(&wanted, &|name| std::env::var(name).ok(), &read)
    }

    /// What `wanted` and these variables ask for; `None` if it is nothing. Certificates named by a variable are read with `read`.
    ///
    /// # Errors
    /// [`TraceOptionsError`]; whoever configured it is to blame.
    pub fn new(
        wanted: &WantedTraces<'_>,
        variables: &dyn Fn(&str) -> Option<String>,
        read: &dyn Fn(&str) -> Result<String, String>,
    ) -> Result<Option<Self>, TraceOptionsError> {
        let environment = Environment(variables);
        if environment.is_true("OTEL_SDK_DISABLED") {
            return Ok(None);
        }
        let Some(address) = address(wanted, &environment)? else { return Ok(None) };
        match environment.text("OTEL_TRACES_EXPORTER").as_deref() {
            None | Some("otlp") => {}
            Some("none") => return Ok(None),
            Some(_) => return Err(EnvironmentFault::new("OTEL_TRACES_EXPORTER", "write `otlp` or `none`").into()),
        }
        let protocols = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];
        if let Some((name, protocol)) = environment.first(&protocols)
            && protocol != "http/protobuf"
        {
            return Err(EnvironmentFault::new(name, "only `http/protobuf` is spoken, to port 4318 as a rule").into());
        }
        let tls = match address.tls {
            true => Some(Arc::new(trusted(wanted, &environment, read)?.with_no_client_auth())),
            false => None,
        };
        let of_queue = environment.number(&["OTEL_BSP_MAX_QUEUE_SIZE"], (1, MOST_SPANS))?;
        let of_batch = environment.number(&["OTEL_BSP_MAX_EXPORT_BATCH_SIZE"], (1, MOST_SPANS))?;
        let number = |number: Option<u64>| number.and_then(|number| usize::try_from(number).ok());
        let timeouts = ["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT", "OTEL_BSP_EXPORT_TIMEOUT"];
        Ok(Some(Self {
            tls,
            headers: headers(wanted, &environment)?,
            timeout: environment.time(&timeouts)?.unwrap_or(TIMEOUT),
            sampler: sampler(wanted.sample, &environment)?,
            flags_per_second: wanted.flags_per_second,
            queue: number(of_queue).unwrap_or(MAX_QUEUE),
            batch: number(of_batch).unwrap_or(MAX_BATCH),
            delay: environment.time(&["OTEL_BSP_SCHEDULE_DELAY"])?.unwrap_or(DELAY),
            resource: resource(wanted, &environment)?,
            address,
        }))
    }
}

/// Which traces are recorded that begin here.
fn sampler(sample: f64, environment: &Environment<'_>) -> Result<Sampler, EnvironmentFault> {
    const NAME: &str = "OTEL_TRACES_SAMPLER";
    const ARGUMENT: &str = "OTEL_TRACES_SAMPLER_ARG";
    let Some(sampler) = environment.text(NAME) else { return Ok(Sampler { ratio: sample, honours_callers: true }) };
    let ratio = match sampler.strip_prefix("parentbased_").unwrap_or(&sampler) {
        "always_on" => 1.0,
        "always_off" => 0.0,
        "traceidratio" => match environment.text(ARGUMENT).map(|text| text.parse::<f64>()) {
            None => 1.0,
            Some(Ok(ratio)) if (0.0..=1.0).contains(&ratio) => ratio,
            Some(_) => return Err(EnvironmentFault::new(ARGUMENT, "write a number from 0 to 1")),
        },
        _ => {
            let wrong = "write `always_on`, `always_off` or `traceidratio`, or one of them after `parentbased_`";
            return Err(EnvironmentFault::new(NAME, wrong));
        }
    };
    Ok(Sampler { ratio, honours_callers: sampler.starts_with("parentbased_") })
}

/// Where spans are sent, if anywhere.
fn address(wanted: &WantedTraces<'_>, environment: &Environment<'_>) -> Result<Option<Address>, TraceOptionsError> {
    // This one is the whole address; to the others, OpenTelemetry adds the path.
    let whole = environment.text("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
    let base = || environment.text("OTEL_EXPORTER_OTLP_ENDPOINT").or_else(|| wanted.endpoint.map(str::to_owned));
    let url = match whole {
        Some(whole) => whole,
        None => match base() {
            Some(base) => format!("{}/v1/traces", base.trim_end_matches('/')),
            None => return Ok(None),
        },
    };
    let may_be_plain = wanted.allow_plaintext || environment.is_true("OTEL_EXPORTER_OTLP_INSECURE");
    let plain = if may_be_plain { Plaintext::Anywhere } else { Plaintext::ThisMachine };
    Address::parse(&url, plain).map(Some).map_err(|fault| match fault {
        // Nothing of it is shown: it may contain a password.
        AddressFault::UserName => TraceOptionsError::Address {
            url: "…".to_owned(),
            why: "has a user name: write an `Authorization` header into the file that `otlp_headers_file` names",
        },
        AddressFault::Plain => TraceOptionsError::Address {
            url: shown(front(&url)),
            why: "is not https: whoever is on the way could read who calls what. Write https, or `otlp_allow_plaintext = true` (or the \
                  variable OTEL_EXPORTER_OTLP_INSECURE=true) for a network of your own",
        },
        fault => TraceOptionsError::Address { url: shown(front(&url)), why: fault.why() },
    })
}

fn trusted(
    wanted: &WantedTraces<'_>,
    environment: &Environment<'_>,
    read: &dyn Fn(&str) -> Result<String, String>,
) -> Result<
    tokio_rustls::rustls::ConfigBuilder<ClientConfig, tokio_rustls::rustls::client::WantsClientCert>,
    TraceOptionsError,
> {
    let named = ["OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE"];
    let anchors = match environment.first(&named) {
        Some((name, path)) => Some(read(&path).map_err(|wrong| EnvironmentFault::new(name, wrong))?),
        None => wanted.anchors.map(str::to_owned),
    };
    tls::trusting(anchors.as_deref()).map_err(TraceOptionsError::Anchors)
}

/// Header fields for the collector: those of the variable replace those of the file.
fn headers(
    wanted: &WantedTraces<'_>,
    environment: &Environment<'_>,
) -> Result<Vec<(HeaderName, HeaderValue)>, TraceOptionsError> {
    let names = ["OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"];
    let given = environment.list(&names)?;
    let lines = wanted.headers.unwrap_or_default().lines().enumerate();
    let lines = lines.map(|(at, line)| (at + 1, line.trim())).filter(|(_, line)| !line.is_empty());
    let pairs: Vec<_> = match given.is_empty() {
        true => lines.map(|(at, line)| (at, line.split_once(':').unwrap_or_default())).collect(),
        false => {
            given.iter().enumerate().map(|(at, (name, value))| (at + 1, (name.as_str(), value.as_str()))).collect()
        }
    };
    let mut headers = Vec::with_capacity(pairs.len());
    for (line, (name, value)) in pairs {
        let name = HeaderName::try_from(name.trim()).ok();
        let name = name.filter(|name| ![HOST, CONTENT_TYPE, CONTENT_LENGTH, TRANSFER_ENCODING].contains(name));
        let pair = name.zip(HeaderValue::try_from(value.trim()).ok()).filter(|_| headers.len() < MOST_MEMBERS);
        let (name, mut value) = pair.ok_or(TraceOptionsError::Header { line })?;
        value.set_sensitive(true);
        headers.push((name, value));
    }
    Ok(headers)
}

/// What all spans have in common.
fn resource(
    wanted: &WantedTraces<'_>,
    environment: &Environment<'_>,
) -> Result<Vec<(String, String)>, TraceOptionsError> {
    let mut resource = environment.list(&["OTEL_RESOURCE_ATTRIBUTES"])?;
    if resource.len() > MOST_MEMBERS {
        return Err(EnvironmentFault::new("OTEL_RESOURCE_ATTRIBUTES", "name no more than 64 attributes").into());
    }
    if let Some(name) = environment.text("OTEL_SERVICE_NAME") {
        resource.retain(|(key, _)| key != "service.name");
        resource.push(("service.name".to_owned(), name));
    }
    let mut instance = String::new();
    hex(&new_trace(), &mut instance);
    let usual = [
        ("service.name", Some(wanted.service)),
        ("service.namespace", wanted.namespace),
        ("service.instance.id", Some(instance.as_str())),
        ("telemetry.sdk.name", Some("sealwire")),
        ("telemetry.sdk.language", Some("rust")),
        ("telemetry.sdk.version", Some(env!("CARGO_PKG_VERSION"))),
    ];
    for (key, value) in usual {
        if let Some(value) = value.filter(|_| !resource.iter().any(|(other, _)| other == key)) {
            resource.push((key.to_owned(), value.to_owned()));
        }
    }
    Ok(resource)
}

impl fmt::Debug for TraceOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.headers.iter().map(|(name, _)| name).collect();
        f.debug_struct("TraceOptions")
            .field("address", &self.address.to_string())
            .field("headers", &names)
            .field("sampler", &self.sampler)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for WantedTraces<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WantedTraces").field("service", &self.service).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
