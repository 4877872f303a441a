"""Ten calls at once, and ten in one message.

Calls that are awaited together are under way together. A batch is one message under one signature: each of its calls
succeeds or fails on its own, and its answer is matched by its id, in whatever order the service writes them.

Prints:
    [0, 1, 4, 9, 16, 25, 36, 49, 64, 81]
    [0, 1, 4, 9, 16, 25, 36, 49, 64, 81]
    one of a batch failed: only small numbers (7)
    the other: 4
"""

import asyncio

import sealwire

service = sealwire.Service("sealwire.toml")


@service.method("math/square")
async def square(number: int) -> int:
    if number > 9:
        raise sealwire.RpcError(7, "only small numbers")
    return number * number


async def main():
    async with service, sealwire.Client("planner.creds.json") as bus:
        print(await asyncio.gather(*(bus.call("math", "math/square", number=n) for n in range(10))))

        batch = bus.batch("math")
        calls = [batch.call("math/square", number=n) for n in range(10)]
        await batch.send()
        print([call.result() for call in calls])

        batch = bus.batch("math")
        large, small = batch.call("math/square", number=10), batch.call("math/square", number=2)
        await batch.send()
        try:
            large.result()
        except sealwire.RpcError as error:
            print(f"one of a batch failed: {error}")
        print(f"the other: {small.result()}")


asyncio.run(main())
