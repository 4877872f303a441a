"""A service that the tests in Rust call."""

import asyncio
import os
import time
import typing

import sealwire

service = sealwire.Service(os.path.join(os.environ["SEALWIRE_STAGE"], "sealwire.toml"))


@service.method("site/add")
async def add(a: float, b: float) -> float:
    """Adds two numbers."""
    return a + b


@service.method("site/who")
def who(ctx: sealwire.SyncCtx) -> list[typing.Any]:
    return [ctx.caller.agent, ctx.caller.subject, sorted(ctx.caller.roles)]


@service.stream("site/slowly")
async def slowly(ms: int):
    yield "begun"
    await asyncio.sleep(ms / 1000)
    yield "finished"


@service.method("site/busy")
async def busy(seconds: int) -> int:
    time.sleep(seconds)
    return seconds


@service.stream("site/count")
async def count(to: int):
    for number in range(1, to + 1):
        yield number


@service.subscription("site/ticks")
async def ticks():
    while True:
        yield {"at": time.time()}
        await asyncio.sleep(0.1)


@service.method("site/ask")
async def ask(ctx: sealwire.Ctx, question: str) -> typing.Any:
    return await ctx.ask("user/confirm", {"question": question})


@service.method("site/store")
async def store(ctx: sealwire.Ctx, document: sealwire.AttachmentRef) -> int:
    return len(await ctx.attachment(document))


@service.method("secret/open")
async def secret() -> str:
    return "the secret"


service.run()
