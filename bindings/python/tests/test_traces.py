"""Traces of programs that use OpenTelemetry, with its real SDK.

Calls continue the current span, and handlers that of their caller.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import textwrap

from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import TracerProvider, export
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import sealwire
from conftest import SOON, opened, run

ENDED = InMemorySpanExporter()
PROVIDER = TracerProvider()
PROVIDER.add_span_processor(export.SimpleSpanProcessor(ENDED))
TRACER = PROVIDER.get_tracer("test")


def named(span):
    """A span as `traceparent` names it."""
    known = span.get_span_context()
    return f"00-{known.trace_id:032x}-{known.span_id:016x}-{known.trace_flags:02x}"


@contextlib.asynccontextmanager
async def served(stage):
    service = sealwire.Service(stage.folder / "sealwire.toml")
    buses = []

    def seen(ctx, others):
        """What the caller has sent, and the span and the baggage that the handler finds."""
        span = trace.get_current_span()
        return [ctx.traceparent, named(span), span.get_span_context().is_remote, dict(baggage.get_all()), *others]

    @service.method("site/seen")
    async def in_loop(ctx: sealwire.Ctx):
        with TRACER.start_as_current_span("in loop"):
            inner = named(trace.get_current_span())
        return seen(ctx, [inner])

    @service.method("site/seen-in-thread")
    def in_thread(ctx: sealwire.SyncCtx):
        return seen(ctx, [])

    @service.stream("site/parts")
    async def parts(ctx: sealwire.Ctx):
        yield seen(ctx, [])

    @service.stream("site/parts-in-thread")
    def parts_in_thread(ctx: sealwire.SyncCtx):
        yield seen(ctx, [])

    @service.method("site/through")
    async def through(ctx: sealwire.Ctx, own: bool, foreign: bool):
        bus = ctx.using(buses[0])
        if foreign:
            with TRACER.start_as_current_span("foreign", context.Context()) as span:
                return [named(span), *await bus.call("site", "site/seen")]
        if own:
            with TRACER.start_as_current_span("own") as span:
                return [named(span), *await bus.call("site", "site/seen")]
        return [None, *await bus.call("site", "site/seen")]

    # The span of whoever starts it is no handler's.
    with TRACER.start_as_current_span("start"):
        async with service, opened(stage) as bus:
            buses.append(bus)
            with trace.use_span(trace.INVALID_SPAN):
                yield bus


METHODS = ["site/seen", "site/seen-in-thread", "site/parts", "site/parts-in-thread"]


async def called(bus, method):
    if "parts" not in method:
        return await bus.call("site", method)
    async with bus.stream("site", method) as parts:
        return [part async for part in parts][0]


def test_the_current_span_is_the_parent_of_a_call(stage):
    async def main():
        async with served(stage) as bus:
            for method in METHODS:
                with TRACER.start_as_current_span("call") as span:
                    kept = context.attach(baggage.set_baggage("who", "secret"))
                    sent, found, is_remote, carried, *_ = await called(bus, method)
                    context.detach(kept)
                    assert (sent, found, is_remote, carried) == (named(span), named(span), True, {})
                    batch = bus.batch("site")
                    call = batch.call("site/seen")
                    await batch.send()
                    assert call.result()[0] == named(span)

            with TRACER.start_as_current_span("thread") as span, sealwire.SyncClient(stage.creds()) as waiting:
                assert (await asyncio.to_thread(waiting.call, "site", "site/seen"))[0] == named(span)

    run(main)


def test_spans_of_a_handler_are_children_of_the_caller_s(stage):
    async def main():
        async with served(stage) as bus:
            ENDED.clear()
            with TRACER.start_as_current_span("call") as span:
                await bus.call("site", "site/seen")
            inner = next(each for each in ENDED.get_finished_spans() if each.name == "in loop")
            assert inner.parent.span_id == span.get_span_context().span_id and inner.parent.is_remote
            assert inner.context.trace_id == span.get_span_context().trace_id

    run(main)


def test_without_a_span_there_is_none(stage):
    async def main():
        async with served(stage) as bus:
            for method in METHODS:
                sent, found, *_ = await called(bus, method)
                assert (sent, found) == (None, named(trace.INVALID_SPAN))
            ENDED.clear()
            await bus.call("site", "site/seen")
            assert [(each.name, each.parent) for each in ENDED.get_finished_spans()] == [("in loop", None)]

    run(main)


def test_calls_that_are_part_of_a_call_stay_in_its_trace(stage):
    async def main():
        async with served(stage) as bus:
            with TRACER.start_as_current_span("call") as span:
                _, sent, *_ = await bus.call("site", "site/through", own=False, foreign=False)
                assert sent == named(span)
                own, sent, *_ = await bus.call("site", "site/through", own=True, foreign=False)
                assert sent == own and own.split("-")[1] == named(span).split("-")[1] and own != named(span)
                _, sent, *_ = await bus.call("site", "site/through", own=False, foreign=True)
                assert sent == named(span)

    run(main)


def test_nothing_is_imported_by_itself(stage):
    program = """
    import asyncio, sys, sealwire

    service = sealwire.Service(sys.argv[1])

    @service.method("site/seen")
    async def seen(ctx: sealwire.Ctx):
        return ctx.traceparent

    async def main():
        async with service, sealwire.Client(sys.argv[2]) as bus:
            assert await bus.call("site", "site/seen") is None
        assert not [name for name in sys.modules if name.startswith("opentelemetry")]

    asyncio.run(main())
    """
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(stage.folder / "sealwire.toml"), str(stage.creds())],
        env=os.environ,
        check=True,
        timeout=3 * SOON,
    )
