"""A program that type checkers read, and nobody runs: what users write, and what its types are. Each `# type: ignore`
is an error that they must find."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Iterator
from typing import Any

from typing_extensions import assert_type

import sealwire

service = sealwire.Service("sealwire.toml", threads=4)
prices = service.topic("shop/prices", keyed=True, when_full="end")


@dataclasses.dataclass
class Order:
    product: str
    number: int = 1


@service.method("shop/buy", idempotent="24h", examples=[({"order": {"product": "lamp"}}, 25)])
async def buy(ctx: sealwire.Ctx, order: Order, note: str | None = None) -> int:
    """Buys something."""
    assert_type(ctx.caller.agent, str)
    assert_type(ctx.caller.roles, frozenset[str])
    assert_type(ctx.permit.rule, str | None)
    assert_type(ctx.remaining, float)
    ctx.progress(1, 2, "half")
    await ctx.notify("shop/step", {"step": 1})
    assert_type(await ctx.attachment(sealwire.AttachmentRef("", 0, "")), bytes)
    prices.publish({"product": order.product}, key=order.product)
    if order.number < 1:
        raise sealwire.RpcError(1001, "nothing to buy", {"number": order.number})
    return 25


@service.method("shop/pack", idempotent="24h", task="6h", only_as_task=True)
async def pack(ctx: sealwire.Ctx, order: Order) -> str:
    assert_type(ctx.is_task, bool)
    return order.product


@service.method("shop/look")
def look(product: str) -> list[str]:
    return [product]


@service.stream("shop/words")
async def words(ctx: sealwire.Ctx, text: str) -> AsyncIterator[str]:
    for word in text.split():
        yield word


@service.stream("shop/letters")
def letters(text: str) -> Iterator[str]:
    yield from text


@service.subscription("shop/ticks")
async def ticks() -> AsyncIterator[dict[str, int]]:
    yield {"tick": 1}


async def main() -> None:
    # What is decorated stays what it is.
    assert_type(look("lamp"), list[str])
    async with sealwire.Client("planner.creds.json", deadline=5) as bus:
        assert_type(bus, sealwire.Client)
        assert_type(await bus.call("shop", "shop/buy", order=Order("lamp"), result=int), int)
        assert_type(await bus.call("shop", "shop/look", params=["lamp"], result=list[str]), list[str])
        assert_type(await bus.call("shop", "shop/look", product="lamp", deadline=2.5), Any)
        task = await bus.detach("shop", "shop/pack", order=Order("lamp"), idempotency_key="k", task_limit=60)
        assert_type(task, sealwire.Task)
        assert_type(await bus.task("shop", "shop/pack", task.key).wait(result=str, timeout=5), str)
        assert_type((await task.status()).result(), Any)
        assert_type((await task.cancel()).progress, sealwire.Progress | None)
        assert_type(await bus.notify("shop", "shop/look", product="lamp"), None)
        async with bus.stream("shop", "shop/words", text="a b", item=str) as parts:
            async for _ in parts:
                pass
        assert_type((await bus.discover("shop")).methods[0].name, str)
        assert_type(bus.stats().pending, int)
        batch = bus.batch("shop")
        call = batch.call("shop/look", product="lamp", result=int)
        await batch.send()
        call.result()
        await bus.call("shop", "shop/buy", deadline="soon")  # type: ignore
        await bus.call("shop")  # type: ignore
    try:
        async with service:
            await service.ready()
    except sealwire.Denied as error:
        assert_type(error.outcome_unknown, bool)
        assert_type(error.retry_after, float | None)
    with sealwire.SyncClient() as sync_bus:
        assert_type(sync_bus.call("shop", "shop/buy", order={"product": "lamp"}, result=int), int)
        assert_type(sync_bus.detach("shop", "shop/pack", order=Order("lamp")).wait(result=str), str)
        for _ in sync_bus.subscribe("shop", "shop/ticks"):
            break


if __name__ == "__main__":
    asyncio.run(main())
