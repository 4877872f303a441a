//! Log lines of the process, on stderr.
//! Never mixes with results, which are on stdout.

use std::io::IsTerminal as _;

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

/// How log lines look.
#[derive(Clone, Copy, Default, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Starts logging. `level` holds where `RUST_LOG` says nothing.
pub(crate) fn start(format: LogFormat, level: &str) {
    let given = std::env::var("RUST_LOG").unwrap_or_default();
    let (filter, wrong) = match EnvFilter::builder().parse(if given.is_empty() { level } else { &given }) {
        Ok(filter) => (filter, None),
        Err(error) => (EnvFilter::new(level), Some(error)),
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none());
    // An error means that logging runs already.
    let _ = match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    if let Some(error) = wrong {
        tracing::warn!(%error, "RUST_LOG is not a filter such as `sealwire=debug`; it is ignored");
    }
}
