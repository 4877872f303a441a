"""A service that pushes to those who listen, beside its ordinary methods.

A subscription lives as long as somebody takes its notifications, under a lease that is renewed meanwhile. `topic` is
one to whatever is published; a generator under `@service.subscription` makes the notifications of one subscriber.

Prints:
    hello
    tick 1
    tick 2
    tick 3
    the lamp is 20 now
"""

import asyncio

import sealwire

service = sealwire.Service("sealwire.toml")
# Of each product, only the latest price waits for a slow subscriber.
prices = service.topic("shop/prices", keyed=True)


@service.method("text/echo")
async def echo(message: str) -> str:
    return message


@service.subscription("clock/ticks")
async def ticks():
    tick = 0
    while True:
        tick += 1
        yield {"tick": tick}
        await asyncio.sleep(0.05)


async def main():
    async with service, sealwire.Client("planner.creds.json") as bus:
        print(await bus.call("math", "text/echo", message="hello"))

        async with bus.subscribe("math", "clock/ticks") as pushed:
            async for note in pushed:
                print("tick", note["tick"])
                if note["tick"] == 3:
                    break

        async with bus.subscribe("math", "shop/prices") as pushed:
            first = asyncio.ensure_future(anext(pushed))
            while not prices.subscribers:
                await asyncio.sleep(0.01)
            prices.publish({"product": "lamp", "price": 20}, key="lamp")
            change = await first
            print(f"the {change['product']} is {change['price']} now")


asyncio.run(main())
