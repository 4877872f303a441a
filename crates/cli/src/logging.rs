//! Log lines of the process, on stderr.
//! Never mixes log lines with results, which are on stdout, and never shows what travels on the wire.

use clap::ValueEnum;
use tracing::Level;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::colour;

/// How log lines look.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Starts logging. `level` applies if `RUST_LOG` is not set.
pub(crate) fn start(format: LogFormat, level: &str) {
    let given = std::env::var("RUST_LOG").unwrap_or_default();
    let (filter, wrong) = match EnvFilter::builder().parse(if given.is_empty() { level } else { &given }) {
        Ok(filter) => (filter, None),
        Err(error) => (EnvFilter::new(level), Some(error)),
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // Otherwise tracing reports a failed write on stderr, and panics if that fails too: a full disk, or a terminal or pipe
        // that is gone, would end the thread that logs.
        .log_internal_errors(false)
        .with_ansi(colour::shown_on(&std::io::stderr()));
    // Spans are exported by the library itself, and only those of calls that are traced: here they would cost every call, and show up in
    // every line.
    // At TRACE, async_nats logs what it sends: access tokens, and passwords for the broker.
    let discreet = filter_fn(|about| {
        let is_wire = *about.level() > Level::DEBUG && about.target().starts_with("async_nats");
        let is_span = about.is_span() && about.target() == "sealwire::trace";
        !is_wire && !is_span
    });
    // An error means that logging runs already.
    let _ = match format {
        LogFormat::Text => builder.finish().with(discreet).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).finish().with(discreet).try_init(),
    };
    if let Some(error) = wrong {
        tracing::warn!(target: "sealwire::command", %error, "RUST_LOG is not a valid filter, such as `sealwire=debug`, and is ignored");
    }
}
