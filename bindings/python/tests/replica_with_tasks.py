"""A replica whose methods may be tasks: says when it is ready, what begins, what was cancelled, and when it drains."""

import asyncio
import os
import signal
import sys
import time

import sealwire

config, creds = sys.argv[1:]
service = sealwire.Service(config)


def say(*words):
    print(*words, flush=True)


@service.method("site/work", idempotent="1h", task="1h")
async def work(ctx: sealwire.Ctx, name: str, seconds: float) -> list:
    say("began", name)
    ctx.progress(1, 2, "half")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        say("cancelled", name)
        raise
    return [name, ctx.is_task]


@service.method("site/again", idempotent="1h", rerun_if_lost=True, task="1h")
async def again(name: str, seconds: float) -> int:
    say("began", name)
    await asyncio.sleep(seconds)
    return os.getpid()


@service.method("site/watch", idempotent="1h", task="1h", only_as_task=True)
async def watch(ctx: sealwire.Ctx, name: str) -> None:
    say("began", name)
    await ctx.cancelled()
    say("cancelled", name, ctx.is_cancelled)


@service.method("site/thread", idempotent="1h", task="1h")
def thread(ctx: sealwire.SyncCtx, name: str) -> None:
    say("began", name)
    while not ctx.is_cancelled:
        time.sleep(0.02)
    say("cancelled", name)


@service.method("site/calls", idempotent="1h", task="1h")
async def calls(ctx: sealwire.Ctx, seconds: float) -> list:
    async with sealwire.Client(creds) as bus:
        inner = ctx.using(bus).call("site", "site/work", name="inner", seconds=seconds, deadline=60)
        return [await inner, ctx.remaining]


async def main():
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, service.stop)
    serving = asyncio.create_task(service.serve())
    seen = None
    while not serving.done():
        if service.state != seen:
            seen = service.state
            say(seen)
        await asyncio.wait([serving], timeout=0.02)
    await serving


asyncio.run(main())
