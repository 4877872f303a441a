"""A result that comes in parts, as each of them is there.

A generator is a stream: it is asked for the next part only while the caller has room for it. Leaving the block early
closes it.

Prints:
    1 3 6 10 15
    the first three: [1, 3, 6]
    the generator was closed
    all at once: [1, 3, 6, 10, 15]
"""

import asyncio

import sealwire

service = sealwire.Service("sealwire.toml")
closed = asyncio.Event()


@service.stream("math/running-sums")
async def running_sums(to: int):
    """The sums of 1 to n, for each n."""
    total = 0
    try:
        for number in range(1, to + 1):
            total += number
            yield total
    finally:
        closed.set()


async def main():
    async with service, sealwire.Client("planner.creds.json") as bus:
        async with bus.stream("math", "math/running-sums", to=5) as sums:
            print(*[part async for part in sums])

        closed.clear()
        async with bus.stream("math", "math/running-sums", to=10**9, window=1) as sums:
            print("the first three:", [await anext(sums) for _ in range(3)])
        await closed.wait()
        print("the generator was closed")

        # Any method may be called as any other: a caller that takes no parts gets all of them.
        print("all at once:", await bus.call("math", "math/running-sums", to=5))


asyncio.run(main())
