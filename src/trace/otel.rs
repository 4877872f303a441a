//! Between our traces and an application's own OpenTelemetry, behind `tracing-opentelemetry`.
//! Does nothing where the subscriber has no such layer.

use opentelemetry::Context;
use opentelemetry::trace::{SpanContext as OtelContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use super::context::{Ids, SpanContext};

/// Makes the span of another program the parent. Spans of this one are found by the subscriber itself.
pub(super) fn set_parent(span: &tracing::Span, parent: Option<Ids>, link: Option<Ids>) {
    if span.is_disabled() {
        return;
    }
    if let Some(parent) = parent.filter(|ids| ids.is_remote).and_then(remote) {
        // Fails without the layer, and then there is nothing to tell.
        drop(span.set_parent(Context::new().with_remote_span_context(parent)));
    }
    if let Some(link) = link.and_then(remote) {
        span.add_link(link);
    }
}

/// How the application's subscriber names this span.
pub(super) fn context(span: &tracing::Span) -> Option<SpanContext> {
    if span.is_disabled() {
        return None;
    }
    let context = span.context();
    let context = context.span().span_context().clone();
    context.is_valid().then(|| SpanContext {
        trace: context.trace_id().to_bytes(),
        span: context.span_id().to_bytes(),
        is_sampled: context.is_sampled(),
    })
}

fn remote(ids: Ids) -> Option<OtelContext> {
    let flags = if ids.is_sampled { TraceFlags::SAMPLED } else { TraceFlags::default() };
    let (trace, span) = (TraceId::from_bytes(ids.trace), SpanId::from_bytes(ids.parent?));
    Some(OtelContext::new(trace, span, flags, true, TraceState::default()))
}
