"""The smallest caller, of the service in first_service.py.

Prints:
    5.0
"""

import asyncio

import sealwire


async def main():
    async with sealwire.Client("planner.creds.json") as bus:
        await bus.wait_for("math")  # it may have just been started
        print(await bus.call("math", "math/add", a=2, b=3))


asyncio.run(main())
