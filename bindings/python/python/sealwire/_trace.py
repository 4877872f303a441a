"""Traces of programs that use OpenTelemetry.

Never imports it: a program that has not done so has no span."""

from __future__ import annotations

import contextvars
import sys
from typing import Any

#: `traceparent`, `tracestate` and `baggage`. The last stays in the program, since others would read it.
Carried = tuple[str, "str | None", None]


def _api() -> Any:
    """`opentelemetry.trace`, once it is there."""
    found = sys.modules.get("opentelemetry.trace")
    return found if hasattr(found, "set_span_in_context") else None


def current(within: Any = None) -> Carried | None:
    """The current span, for a call to continue; if the call is `within` a trace, only a span of that."""
    api = _api()
    if api is None:
        return None
    span = api.get_current_span().get_span_context()
    if not span.is_valid:
        return None
    parent = f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"
    if within is not None and within[0].split("-")[1] != parent.split("-")[1]:
        return None
    return parent, span.trace_state.to_header() or None, None


def received(traceparent: str | None) -> contextvars.Context:
    """A context for a handler, whose current span is that of its caller: whatever span the program had when the service
    was started is none of the caller's."""
    made = contextvars.copy_context()
    api, context = _api(), sys.modules.get("opentelemetry.context")
    if api is not None and context is not None:
        span = api.INVALID_SPAN
        if traceparent is not None:
            _, trace_id, span_id, flags = traceparent.split("-")
            flags = api.TraceFlags(int(flags, 16))
            span = api.NonRecordingSpan(api.SpanContext(int(trace_id, 16), int(span_id, 16), True, flags))
        made.run(context.attach, api.set_span_in_context(span, context.Context()))
    return made
