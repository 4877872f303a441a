//! Where traces are sent: a collector that takes OTLP over HTTP, as a file and OpenTelemetry's variables say.
//! Never knows what a call is.

mod environment;
mod exporter;
mod options;
#[cfg(feature = "metrics")]
mod report;

pub use exporter::Traces;
pub use options::{TraceOptions, TraceOptionsError, WantedTraces};
