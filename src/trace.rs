//! The trace that a call belongs to: what its caller says of it, whether it is recorded, its spans, and what nested calls continue.
//! Never decides anything about a call, and never puts parameters, results, tokens or reply subjects into a span.

mod carried;
mod context;
mod data;
#[cfg(feature = "otel")]
mod flags;
mod judge;
mod key;
#[cfg(feature = "otel")]
mod otel;
#[cfg(feature = "otel")]
mod otlp;
#[cfg(feature = "otel")]
mod queue;
mod sampler;
mod span;
mod traced;
mod tracer;

pub use carried::TraceContext;
pub use context::SpanContext;
#[cfg(feature = "otel")]
pub(crate) use context::{hex, new_trace};
pub use data::{Kind, MAX_ID, Value};
pub use judge::Tracing;
pub use key::*;
#[cfg(feature = "otel")]
pub(crate) use otlp::{refused_spans, request, resource};
#[cfg(feature = "otel")]
pub(crate) use queue::{Counts, Queue};
#[cfg(feature = "otel")]
pub(crate) use sampler::Sampler;
pub use sampler::{FLAGS_PER_SECOND, SAMPLE};
pub use span::{Span, Start};
pub use traced::Trace;
pub use tracer::Tracer;
